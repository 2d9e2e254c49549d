"""MixtureNetworkRegressor: a mixture embeds a row, a sparse read-out predicts a number."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted
from torch import Tensor

from mixtura.data import Batch, Table, resolve_device
from mixtura.densities import Structure
from mixtura.engines import Engine, LocalEngine, PunchedEngine, is_copy
from mixtura.estimators.base import TABLE_CONSTRAINTS, check_count, check_weight
from mixtura.estimators.network import TRIAL_DRAWS, MixtureNetwork, Variant
from mixtura.estimators.network_classifier import MixtureNetworkClassifier
from mixtura.estimators.plan import SMALL
from mixtura.exceptions import InvalidInputError
from mixtura.models.network import Network, RegressionNetwork
from mixtura.objectives import Objective, Regression, likelihood_share
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.selection.calibration import HOLES, clear_gain
from mixtura.solvers import EM, LinkedEM

#: Parts that rows are held back in for a choice, and rows that are too few.
_FOLDS, _FEWEST = 4, 50
#: Share of the time that is left which a fit on the side may take.
_TRIAL = 0.05


@storable
class MixtureNetworkRegressor(RegressorMixin, MixtureNetwork):
    """A mixture embeds a row; a sparse linear read-out of the embedding predicts a number.

    A radial basis function network whose centers and widths are a density of the rows, and, trained
    end to end, serve the prediction too. Numbers, categories, holes and rows without a target (NaN)
    are welcome.

    Parameters
    ----------
    n_components : "auto" or int
        Components of the mixture; "auto" is twice the cube root of the number of rows.
    tradeoff : float in [0, 1]
        Share of the likelihood of the rows per observed value in end-to-end training; the rest is
        the squared error, in units of the target's variance.
    density : "diag", "auto", "full", "spherical", "low_rank", "student", or a `Structure`
    embedding, solver, init, prior_rows, max_time, standardize, categorical_features, unexpected,
    missingness, device, callbacks
        As in `MixtureNetworkClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    coef_, intercept_ : read-out, in units of the target's deviation
    target_location_, target_scale_ : mean and deviation of the target
    mixture_, weights_, means_, covariances_, n_components_ : the mixture
    embedding_, missingness_ : what "auto" chose
    scaling_, schema_, history_
    n_iter_, converged_ : of linked EM; end to end, the number of iterations is fixed

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from mixtura import MixtureNetworkRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MixtureNetworkRegressor(5, embedding="log_density", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.4
    True
    """

    _network_class = RegressionNetwork

    _parameter_constraints: dict = {
        name: MixtureNetworkClassifier._parameter_constraints[name]
        for name in (
            *("embedding", "tradeoff", "density", "solver", "init", "prior_rows"),
            *("max_time", "standardize", *TABLE_CONSTRAINTS),
            *("device", "callbacks", "random_state", "verbose"),
        )
    } | {"n_components": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")]}

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        embedding: str = "auto",
        tradeoff: float = 0.2,
        density: str | Structure = "diag",
        solver: str | LinkedEM = "linked_em",
        init: str | EM = "em",
        prior_rows: float = 3.0,
        max_time: float | None = None,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.embedding = embedding
        self.tradeoff = tradeoff
        self.density = density
        self.solver = solver
        self.init = init
        self.prior_rows = prior_rows
        self.max_time = max_time
        self.standardize = standardize
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing.
        y : (n,) targets; NaN where there is none.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing():
            X = self._check_X(X, reset=True)
            return self._fit_rows(X, *self._read(X, y, sample_weight))

    def _read(self, X: np.ndarray, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Targets in units of their deviation, and weights."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        y = column_or_1d(y, warn=True)
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"y must hold numbers: {error}.") from error
        assert_all_finite(y, allow_nan=True, input_name="y")
        check_consistent_length(X, y)
        weight = check_weight(sample_weight, len(X))
        known = ~np.isnan(y) & (weight > 0)
        if not known.any():
            raise InvalidInputError(
                "no row has a target: give some, or use MixtureDensity for rows alone."
            )
        share = weight[known] / weight[known].sum()
        largest = float(np.abs(y[known]).max()) or 1.0
        unit = y[known] / largest  # squares of any magnitude stay finite
        center = float(share @ unit)
        deviation = float(np.sqrt(share @ (unit - center) ** 2)) or 1.0
        self.target_location_, self.target_scale_ = center * largest, deviation * largest
        return (y / largest - center) / deviation, weight

    def _fit_rows(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Self:
        if (weight == 0).any():
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        scaling = self._measure_scaling(X, weight)
        device = resolve_device(self.device, X.size)
        engine = LocalEngine(Table(X, y, weight, scaling=scaling, device=device))
        with self._progress() as progress:
            variant = self._choose(engine, progress)
            draw = partial(engine.sample, generator=self._generator())
            result = self._fit_in_time(variant, engine, draw, progress)
        self._keep(result, variant, engine, progress)
        return self

    def _choose(self, engine: Engine, progress: Progress) -> Variant:
        """The variant with the smallest squared error on held-back rows."""
        variants, open_question = self._variants(), self._may_tell(engine)
        known = ~engine.y.isnan().cpu()
        if int(known.sum()) < _FEWEST or (len(variants) == 1 and not open_question):
            return variants[0]
        part = engine.sample(SMALL, self._generator())
        weight = part.weight[~part.y.isnan()].double().cpu().numpy()
        squares = {variant: self._squares(variant, part, progress) for variant in variants}
        best = min(variants, key=lambda variant: float(weight @ squares[variant][0]))
        if open_question:
            other = best._replace(informative=True)
            both = squares[best], self._squares(other, part, progress)
            if np.isfinite(both).all() and _clearly_smaller(*both, weight):
                return other
        return best

    def _squares(self, variant: Variant, engine: Engine, progress: Progress) -> np.ndarray:
        """(2, n) squared errors of the rows with a target, each held back once: as they are, and
        with random holes; infinite if time is up."""
        known = (~engine.y.isnan()).nonzero().flatten().cpu().numpy()
        found, generator = np.full((2, len(known)), np.inf), self._generator()
        for fold in range(_FOLDS):
            if not progress.leaves_time(0.5):
                break
            held = known[fold::_FOLDS]
            train = engine.take(np.setdiff1d(np.arange(len(engine)), held))
            test = engine.take(held)
            fitted = self._fit_network(variant, train, generator, progress.part(_TRIAL))
            holes = torch.Generator().manual_seed(fold)  # the same for all variants
            network = replace(fitted.network, n_draws=TRIAL_DRAWS)
            found[:, fold::_FOLDS] = _squares_met(network, test, holes)
        return found

    def _supervision(self, engine: Engine) -> float:
        share = likelihood_share(self.tradeoff, engine.values_per_row)
        return (1.0 - share) * float(engine.weight[~engine.y.isnan()].sum())

    def _objective(self, engine: Engine) -> Objective:
        return Regression(likelihood_share(self.tradeoff, engine.values_per_row))

    def predict(self, X: Any) -> np.ndarray:
        """The expected target of each row."""
        check_is_fitted(self)
        found = self._outputs(self._check_X(X, reset=False))[:, 1]
        return found * self.target_scale_ + self.target_location_

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of the rows that have a target."""
        y = column_or_1d(y).astype(np.float64)
        known = ~np.isnan(y)
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(r2_score(y[known], self.predict(X)[known], sample_weight=weight))

    def sample(
        self, n_samples: int = 1, *, random_state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the mixture, and what the network predicts for them."""
        batch = self._draw(check_count(n_samples), self._generator(random_state))
        with torch.no_grad():
            found = self._network().class_log_joint(batch)[:, 1].numpy()
        return self._drawn(batch.x), found * self.target_scale_ + self.target_location_


def _clearly_smaller(before: np.ndarray, after: np.ndarray, weight: np.ndarray) -> bool:
    """Whether squared errors (2, n) fall clearly, for rows as they are and with random holes."""
    punched = np.repeat([False, True], len(weight))
    return clear_gain((before - after).ravel(), punched, np.tile(weight, 2))


def _squares_met(network: Network, engine: Engine, generator: torch.Generator) -> np.ndarray:
    """(2, n) squared errors of rows as they are, and with random holes."""
    moved, engine = network.to(engine.device), PunchedEngine(engine, HOLES, generator)

    def errors(batch: Batch) -> Tensor:
        off = moved.class_log_joint(batch.as_met())[:, 1] - batch.y
        return torch.stack([off.square().double(), is_copy(batch).double()], 1)

    square, copy = engine.concat(errors, moved).unbind(1)
    return torch.stack([square[copy == 0], square[copy == 1]]).numpy()
