"""MixtureNetworkRegressor: a mixture embeds a row, a sparse read-out predicts a number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Self

import numpy as np
import torch
from sklearn.base import RegressorMixin, _fit_context
from torch import Tensor

from mixtura.answers.condition import Given
from mixtura.answers.intervals import network_means
from mixtura.answers.next_feature import Cost, next_for_network, unit_costs
from mixtura.conformal import HeldBack, interval_around
from mixtura.data.batch import Batch
from mixtura.data.curves import TAMED
from mixtura.data.given import ArrayLike, Numbers, RandomState
from mixtura.engines import Engine, engine_of
from mixtura.estimators.blending import curved, in_units
from mixtura.estimators.network import NETWORK_CONSTRAINTS, NetworkEstimator, draw_rows
from mixtura.estimators.reading import check_count, opened
from mixtura.estimators.rows import check_held_back, read_targets, read_weight, target_score
from mixtura.exceptions import InvalidInputError
from mixtura.models.fitted import Observations
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.progress import Progress
from mixtura.report import write_numbers_report
from mixtura.selection.chooser import MOST_COMPARED, Chooser
from mixtura.selection.held_out import Losses, with_holes
from mixtura.solvers.linked import LinkedResult
from mixtura.training.networks import NetworkPlan


@dataclass(eq=False, repr=False)
class MixtureNetworkRegressor(RegressorMixin, NetworkEstimator):
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
    missingness, marginals, device
        As in `MixtureNetworkClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    coef_, intercept_ : read-out, in units of the target's deviation
    target_location_, target_scale_ : mean and deviation of the target
    model_ : the fitted model; `network_`, `mixture_`, `scaling_`, `schema_` for short
    weights_, means_, covariances_, n_components_ : of the mixture
    embedding_, missingness_, marginals_ : what "auto" chose
    choice_ : what was compared on held-out rows, as in `MixtureClassifier`
    history_
    n_iter_, converged_ : of linked EM, or of EM where that is enough; those of gradients are fixed

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from mixtura import MixtureNetworkRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MixtureNetworkRegressor(5, embedding="log_density", random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.4
    True
    """

    _parameter_constraints = NETWORK_CONSTRAINTS

    n_components: Numbers | str = "auto"

    @property
    def target_location_(self) -> float:
        """The mean of the target."""
        return self._fitted.target[0]

    @property
    def target_scale_(self) -> float:
        """The deviation of the target."""
        return self._fitted.target[1]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing. Or files, as
            `MixtureClassifier` takes them.
        y : (n,) targets; NaN where there is none.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing(X):
            X, y, sample_weight = opened(self, X, y, sample_weight)
            rows, schema = self._read(X)
            y, weight, target = self._read_targets(rows, y, sample_weight)
            if (weight == 0).any():
                rows, y, weight = rows.take(weight > 0), y[weight > 0], weight[weight > 0]
            scaling, generator = self._scaled(rows, weight, schema), self._generator()
            engine = engine_of(rows, y, weight, scaling, self.device)
            counts = None if self.n_components == "auto" else np.array([self.n_components])
            units = "linear" if self.marginals == "auto" else self.marginals
            engine = in_units(engine, units)
            plans = self._plans(engine, 0, counts, None, 0.5, units)
            with self._progress() as progress:
                chosen = self._choose(plans, engine, spawn(generator), progress)
                plan, engine, held_back, unseen = chosen
                result = self._train(plan, engine, generator, progress)
            if held_back is not None:
                center, scale = target
                known = (held_back.y * scale + center)[:, None]
                held_back = replace(held_back, y=known)
            answers = {"target": target, "held_back": held_back}
            self._publish(result, plan, engine, schema, progress, unseen, **answers)
            return self

    def _read_targets(
        self, X: Observations, y: ArrayLike, sample_weight: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
        """Targets in units of their deviation, weights, and the mean and deviation."""
        y = read_targets(self, X, y, several=False)
        weight = read_weight(sample_weight, len(X))
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
        target = center * largest, deviation * largest
        return (y / largest - center) / deviation, weight, target

    def _choose(
        self,
        plans: list[NetworkPlan],
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> tuple[NetworkPlan, Engine, HeldBack | None, list[tuple[Mixture, Engine]]]:
        """The plan with the smallest squared error on held-out rows, the rows in its units, those
        that were held out, if any; and mixtures of trials, with the rows they had not seen."""
        asks = self.missingness == "auto" and engine.has_holes
        curves = curved(engine, TAMED) if self._asks_units(engine) else None
        compares = len(plans) > 1 or asks or curves is not None
        some = engine.merged().sample(MOST_COMPARED, spawn(generator)) if compares else None
        chooser = Chooser[NetworkPlan, LinkedResult](
            some,
            _squares,
            spawn(generator),
            progress,
            n_ways=len(plans) * (1 if curves is None else 2) + asks,
        )
        best, _, chooser = self._best(chooser, plans, curves, asks, Losses.clearly_beats)
        self.choice_, self.marginals_ = chooser.table(), best.way.marginals
        if best.way.marginals != plans[0].marginals:
            engine = engine.under(best.scaling)
        held_back = chooser.held_back([[each.network] for each in best.models])
        return best.way.whole(), engine, held_back, self._of_trials(chooser, best, engine)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The expected target of each row."""
        return network_means(self._fitted, self._table(X), self.device)

    def predict_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        calibration: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> np.ndarray:
        """(n, 2) intervals of which a share `coverage` hold the true number, whatever is missing.

        As of `MixtureRegressor`, but that all rows that lack the same entries have intervals of one
        width around what is predicted. Rows are held back where embeddings, or whether holes mean
        something, were compared; else `calibration` is needed.
        """
        rows, model = self._table(X), self._fitted
        held_back = model.held_back
        if calibration is not None:
            seen = self._table(calibration[0])
            y = read_targets(self, seen, calibration[1], several=False)
            held_back = HeldBack.unseen(seen.values, y[:, None])
        known = check_held_back(held_back, coverage)
        return interval_around(
            model, rows, known, partial(network_means, device=self.device), coverage
        )

    def report(
        self,
        path: str | PathLike[str],
        X: ArrayLike,
        y: ArrayLike,
        *,
        max_time: float = 60.0,
        random_state: RandomState = None,
    ) -> None:
        """Write a report on the model as one HTML file, or its model card if `path` ends in .md.

        It has what that of `MixtureRegressor` has. Parameters are as in
        `MixtureClassifier.report`.
        """
        targets = read_targets(self, self._table(X), y, several=False)[:, None]
        seed = self._generator(random_state).initial_seed()
        write_numbers_report(self, path, X, targets, max_time=max_time, seed=seed)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> float:
        """R^2 of the rows that have a target."""
        y = read_targets(self, self._table(X), y, several=False)
        return target_score(self.predict(X)[:, None], y[:, None], sample_weight)

    def sample(
        self, n_samples: int = 1, *, given: Given | None = None, random_state: RandomState = None
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw rows, as `MixtureClassifier.sample` does, and what the network predicts for them.

        All rows have the values that are `given` by column, as of `condition`.
        """
        network, count = self.network_, check_count(n_samples)
        generator = self._generator(random_state)
        if given is not None:
            drawn = self._condition(given).draw(count, None, generator)
            found = network_means(self._fitted, drawn, self.device)
            return self.schema_.table(drawn.values), found
        batch = draw_rows(network.mixture, count, generator)
        with torch.no_grad():
            found = network.outputs(batch).numpy()
        return self._fitted.decoded(batch.x), self._fitted.predicted(found)

    def next_feature(
        self,
        X: ArrayLike,
        cost: Cost = None,
        *,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> np.ndarray:
        """Which missing entry of each row to measure next.

        Parameters
        ----------
        cost, max_time, random_state
            As in `MixtureClassifier.next_feature`.

        Returns
        -------
        (n, D) the share of the variance of predictions, over what all missing entries may be, that
        each of them is expected to remove, by its cost. Zero where an entry is observed.
        """
        rows, generator = self._table(X), self._generator(random_state)
        costs = unit_costs(self.schema_, rows.values.shape[1], cost)
        with Progress((), self.verbose, max_time) as progress:
            found = next_for_network(self._fitted, rows, generator, self.device, progress)
        return found / costs


def _squares(trained: LinkedResult, held_out: Engine, generator: torch.Generator) -> Losses:
    """Squared errors of rows as they are, and with random holes."""
    moved = trained.network.to(held_out.device)

    def losses(batch: Batch) -> Tensor:
        return (moved.outputs(batch.for_prediction())[:, 1] - batch.y).square()

    return Losses.of(with_holes(held_out, generator, moved), losses)
