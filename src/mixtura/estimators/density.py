"""GaussianMixtureDensity: an unsupervised mixture."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import DensityMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from mixtura.data import Table, resolve_device
from mixtura.engines import LocalEngine
from mixtura.estimators.base import (
    MixtureEstimator,
    check_count,
    check_weight,
    resolve_rank,
)
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.trainers.base import FitResult
from mixtura.trainers.em import EM
from mixtura.trainers.selection import Recipe, fit_groups


@storable
class GaussianMixtureDensity(DensityMixin, MixtureEstimator):
    """A Gaussian mixture fitted by EM, with missing values marginalised.

    Parameters
    ----------
    n_components : "auto" or int
        "auto" grows the number while the information criterion falls.
    covariance : "auto", "full", "diag", "spherical" or "low_rank"
    rank : "auto" or int
        Rank of the low-rank part.
    max_iter, max_time, tol, n_init, reg_covar, standardize, warm_start, device, callbacks
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    weights_, means_, covariances_, n_components_, mixture_, scaling_, history_, n_iter_, converged_

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import GaussianMixtureDensity
    >>> X = load_iris().data
    >>> model = GaussianMixtureDensity(3, random_state=0).fit(X)
    >>> model.score_samples(X).shape
    (150,)
    """

    _parameter_constraints: dict = {
        "n_components": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "covariance": [StrOptions({"auto", "full", "diag", "spherical", "low_rank"})],
        "rank": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "reg_covar": [Interval(Real, 0, None, closed="neither")],
        "standardize": ["boolean"],
        "warm_start": ["boolean"],
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        covariance: str = "full",
        rank: Any = "auto",
        max_iter: int = 100,
        max_time: float | None = None,
        tol: float = 1e-3,
        n_init: int = 1,
        reg_covar: float = 1e-5,
        standardize: bool = True,
        warm_start: bool = False,
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.rank = rank
        self.max_iter = max_iter
        self.max_time = max_time
        self.tol = tol
        self.n_init = n_init
        self.reg_covar = reg_covar
        self.standardize = standardize
        self.warm_start = warm_start
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to the rows of X; y is ignored."""
        with self._all_or_nothing():
            return self._fit(X, sample_weight)

    def _fit(self, X: Any, sample_weight: Any) -> Self:
        X = self._check_X(X, reset=True)
        weight = check_weight(sample_weight, len(X))
        if (weight == 0).any():
            X, weight = X[weight > 0], weight[weight > 0]
        previous = getattr(self, "mixture_", None) if self.warm_start else None
        if previous is not None and previous.density.n_features != X.shape[1]:
            raise InvalidInputError(
                f"warm_start=True needs the {previous.density.n_features} features of the previous "
                f"fit, got {X.shape[1]}; set warm_start=False to start anew."
            )
        scaling = self._measure_scaling(X, weight) if previous is None else self.scaling_
        device = resolve_device(self.device, X.size)
        table = Table(X, weight=weight, scaling=scaling, device=device)
        with self._progress() as progress:
            result = self._train(LocalEngine(table), previous, progress)
        self._publish(result.mixture, scaling, table)
        self.n_components_ = result.mixture.n_components
        self.history_, self.n_iter_, self.converged_ = (
            progress.history,
            result.n_iter,
            result.converged,
        )
        if not result.converged and not progress.stopped:
            warn(
                f"EM stopped after max_iter={self.max_iter} iterations without settling; raise "
                "max_iter or tol.",
                ConvergenceWarning,
            )
        return self

    def _train(
        self, engine: LocalEngine, previous: Mixture | None, progress: Progress
    ) -> FitResult:
        em = EM(self.max_iter, self.tol)
        if previous is not None:
            return em.run(previous.to(engine.table.device), Likelihood(), engine, progress)
        recipe = Recipe(
            self.covariance,
            resolve_rank(self.rank, self.covariance, engine.table.n_features),
            self.reg_covar,
            em,
            n_init=self.n_init,
        )
        counts = None if self.n_components == "auto" else [self._affordable(len(engine))]
        return fit_groups([engine], counts, recipe, self._generator(), progress).results[0]

    def _affordable(self, n_rows: int) -> int:
        if self.n_components > n_rows:
            warn(
                f"n_components={self.n_components} exceeds the {n_rows} rows; one component a row "
                "is fitted. Remedy: a smaller n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        return min(int(self.n_components), n_rows)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable component of each row."""
        return self.responsibilities(X).argmax(1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(component | x), (n, K)."""
        return self.responsibilities(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + self.mixture_.n_parameters * np.log(len(scores)))

    def aic(self, X: Any) -> float:
        """Akaike information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + 2.0 * self.mixture_.n_parameters)

    def sample(
        self, n_samples: int = 1, *, random_state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows, and the component each came from."""
        check_is_fitted(self)
        generator = self._generator(random_state)
        weight = self.mixture_.log_weight.exp()
        component = torch.multinomial(
            weight, check_count(n_samples), replacement=True, generator=generator
        )
        rows = self.mixture_.density.sample(component, generator).numpy()
        return self.scaling_.invert(rows), component.numpy()
