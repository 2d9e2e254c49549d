"""MixtureRegressor: the distribution of targets given features, from mixtures over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Real
from os import PathLike
from typing import Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from mixtura.answers.condition import Given, read_given, warn_of_extrapolation, with_given
from mixtura.answers.explain import NUMBERS, Groups
from mixtura.answers.intervals import predict_interval
from mixtura.answers.next_feature import Cost, next_for_targets, unit_costs
from mixtura.answers.question import TargetQuestion
from mixtura.conformal import HeldBack
from mixtura.data.curves import KINDS
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.indicators import MOST_INDICATORS, UNIT, Indicators
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling, nan_range, rounded_mean
from mixtura.data.schema import Schema
from mixtura.densities import Structure
from mixtura.engines import engine_of
from mixtura.estimators.base import CONSTRAINTS, Estimator
from mixtura.estimators.conditioned import ConditionedRegressor
from mixtura.estimators.reading import check_count, learn_table, opened, read_table
from mixtura.estimators.regression import Comparison, make_plans
from mixtura.estimators.rows import check_held_back, read_targets, read_weight, target_score
from mixtura.exceptions import InvalidInputError
from mixtura.models.regression import Regression
from mixtura.numerics import spawn
from mixtura.parts import AMOUNT
from mixtura.predictive import Predictive, check_quantiles, in_parts
from mixtura.progress import Progress
from mixtura.report import write_numbers_report
from mixtura.selection.budget import warn_if_cut_short
from mixtura.solvers import EM, LBFGS

#: Units of a target per deviation: k-means then takes it for as many features as the square.
_TARGET_UNITS = 2.0
#: Indicators of columns with many categories, at most, in all; and rows times these.
_INDICATORS, _NUMBERS = 200, 20_000_000
#: What standardized targets are multiples of.
_TARGET_GRID = 2.0**-30


@dataclass(eq=False, repr=False)
class MixtureRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """The distribution of one or several numbers given features, whatever of these is missing.

    Mixtures of Gaussians over features and targets are trained to explain both and to predict the
    targets. Given what is observed of a row, its targets are a mixture of Gaussians again, around
    linear functions of the features: means, deviations, quantiles, densities and draws are exact,
    and so are holes, which are integrated out. Categories enter as indicators, of which a missing
    one is a hole; of columns with very many, the most frequent are told apart (200 in all, of up to
    100,000 rows; 20 of a column at least), and the others count as one. Numbers are followed up to
    three deviations beyond the training rows; a warning tells of farther ones.

    Parameters
    ----------
    n_components : "auto" or int
        "auto" averages mixtures of 1, 4 and 8 components, where rows are enough for them, by how
        likely they make the targets of held-out rows, whole and with holes. Where 1,000 rows have
        targets, and density and marginals are "auto" as well, one more knows what boosted trees
        expect of each row; it has a say where nothing that these ask for is missing.
    density : "auto", "full", "diag", "spherical", "low_rank", or a `Structure` of Gaussians
        "auto" has full covariances with several floors, and low rank, among the models.
    tradeoff : "auto" or float in (0, 1]
        Share of the likelihood of whole rows, per observed value; the rest is that of the targets
        given the features. 1 trains by EM alone. "auto" is 1 for one component, and else 0.5.
    marginals : "auto", "linear", "power" or "ranks"
        What features are mapped by, as in `MixtureClassifier`; "auto" averages models of all three.
    prior_rows : "auto" or float
        Imagined rows per component with the covariance of all rows.
    solver : "lbfgs", or an `LBFGS`
    init : "em", or an `EM`
        What training begins with, of no more than 20 iterations if it is left to us; and ends with,
        if `tradeoff` is 1.
    max_time, categorical_features, unexpected, device
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    model_ : the fitted mixtures, their weights and units, and rows that are held back
    choice_ : the models that were compared on held-out rows, and the weight of each
    history_, n_iter_, converged_ : of the model of the largest weight

    Examples
    --------
    >>> import numpy as np
    >>> from mixtura import MixtureRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = X[:, 0] + np.abs(X[:, 1])
    >>> model = MixtureRegressor(4, random_state=0).fit(X, y)
    >>> X[:, 1] = np.nan
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.predict_interval(X, coverage=0.8).shape
    (200, 2)
    """

    _parameter_constraints = CONSTRAINTS | {
        "tradeoff": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "marginals": [StrOptions({"auto", "linear", *KINDS})],
        "prior_rows": [StrOptions({"auto"}), AMOUNT],
        "solver": [StrOptions({"lbfgs"}), LBFGS],
    }

    n_components: int | str = "auto"
    _: KW_ONLY
    density: str | Structure = "auto"
    tradeoff: float | str = "auto"
    marginals: str = "auto"
    prior_rows: float | str = "auto"
    solver: str | LBFGS = "lbfgs"
    init: str | EM = "em"
    categorical_features: ArrayLike = None
    unexpected: str = "missing"

    # -- fitting -------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit the mixtures.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing. Or files, as
            `MixtureClassifier` takes them.
        y : (n,) targets, or (n, T); NaN where there is none. Rows without any teach what features
            are like. Of files, the name of a column, or a list of names.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing(X):
            X, y, sample_weight = opened(self, X, y, sample_weight)
            rows, schema = learn_table(self, X, self.categorical_features, self.unexpected)
            y = read_targets(self, rows, y, several=True)
            weight = read_weight(sample_weight, len(rows))
            if not (~np.isnan(y.reshape(len(y), -1))[weight > 0]).any(0).all():
                raise InvalidInputError(
                    "a target has no number in any row (of weight above zero): give some, or use "
                    "MixtureDensity for rows alone."
                )
            if (weight == 0).any():
                rows, y, weight = rows.take(weight > 0), y[weight > 0], weight[weight > 0]
            return self._fit_rows(rows, y, weight, schema)

    def _fit_rows(self, rows: Matrix, y: np.ndarray, weight: np.ndarray, schema: Schema) -> Self:
        flat, y = y.ndim == 1, y.reshape(len(y), -1)
        levels = schema.levels(rows.values.shape[1])
        most = _most_indicators(len(rows), levels)
        indicators = Indicators.learn(rows.values, weight, levels, most=most)
        scaling, units, standard = self._scaled(rows.values, y, weight, indicators)
        whole = Matrix(indicators.beside(rows.values, standard))
        known = np.where(np.isnan(y).all(1), np.nan, 0.0)
        engine = engine_of(whole, known, weight, scaling, self.device)
        plans, generator = make_plans(self, engine, y), self._generator()
        with self._progress() as progress:
            compared = Comparison.of(plans, engine, spawn(generator), progress)
            fitted, outcome = compared.train(engine, units, spawn(generator), progress)
        reach = scaling.reach(*nan_range(whole.values))[:, : -y.shape[1]]
        self.model_ = Regression(fitted, schema, indicators, y.shape[1], flat, reach)
        self.choice_, self.history_ = compared.choice, progress.history
        result = outcome.model.result
        cut_short = warn_if_cut_short(progress, outcome.n_rows, len(engine))
        self.n_iter_, self.converged_ = result.n_iter, result.converged and not cut_short
        return self

    def _scaled(
        self, values: ArrayLike, y: np.ndarray, weight: np.ndarray, indicators: Indicators
    ) -> tuple[Scaling, Scaling, np.ndarray]:
        """Units of numbers, each of variance one, and of indicators; of targets; these in them.

        Targets are rounded there, so that the same ones in other units are trained on to the bit:
        rounding would decide between local optima.
        """
        names = np.asarray(getattr(self, "feature_names_in_", np.arange(self.n_features_in_)))
        targets = [f"target {place}" for place in range(y.shape[1])]
        names = np.append(names[indicators.column].astype(object), targets)
        center, count = rounded_mean(y, weight), len(indicators.column)
        rounding = 8.0 * np.finfo(np.float64).eps * np.abs(center)
        off = np.where(np.abs(y - center) <= rounding, 0.0, y - center)
        found = Scaling.measure(indicators.beside(values, off), weight, names)
        scale = np.where(indicators.itself, found.scale[:count], UNIT)
        own, unit = found.location[count:], found.scale[count:]
        scaling = Scaling(
            np.append(found.location[:count], np.zeros_like(own)),
            np.append(scale, np.full_like(unit, 1.0 / _TARGET_UNITS)),
        )
        standard = np.round((off - own) / unit / _TARGET_GRID) * _TARGET_GRID
        return scaling, Scaling(center + own, unit), standard

    # -- answers -------------------------------------------------------------------------------

    @property
    def _model(self) -> Regression:
        check_is_fitted(self, "model_")
        return self.model_

    def _rows(self, X: ArrayLike) -> Matrix:
        return read_table(self, X, self._model.schema, self.unexpected, reset=False)

    def _asked(self, X: ArrayLike) -> Matrix:
        return self._model.checked(self._rows(X))

    def _shaped(self, answers: np.ndarray, axis: int = 1) -> np.ndarray:
        """Answers of T targets along an axis, as targets were given."""
        return answers.take(0, axis) if self._model.flat else answers

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The expected targets of each row, (n,) or (n, T), and their standard deviations."""
        rows = self._asked(X)
        if not return_std:
            return self._expected(rows)
        mean, std = np.moveaxis(self._told(Predictive.moments, rows), 2, 0)
        return self._shaped(mean.copy()), self._shaped(std.copy())

    def _expected(self, rows: Matrix) -> np.ndarray:
        return self._shaped(self._told(Predictive.expected, rows))

    def _told(self, ask: Callable[[Predictive], np.ndarray], rows: Matrix) -> np.ndarray:
        """What is asked of the distributions of targets."""
        return in_parts(lambda some: ask(self._model.predictive(some, self.device)), rows)

    def predict_quantiles(
        self, X: ArrayLike, quantiles: ArrayLike = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """(n, Q), or (n, T, Q), what a share `quantiles` (Q,) of the targets will not exceed."""
        shares, rows = check_quantiles(quantiles), self._asked(X)
        return self._shaped(self._told(partial(Predictive.quantiles, shares=shares), rows))

    def predict_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        calibration: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> np.ndarray:
        """Intervals of which a share `coverage` hold the true number, whatever is missing.

        They end where what is beyond has the chances that held-back rows, masked as this row is,
        show to be right: rows of training, by folds, judged by models that have not seen them. So
        widths are those of the predicted distributions, and coverage does not rest on these being
        true. It is over all rows that lack the same entries, and of each target on its own. Ends
        are infinite where held-back rows are fewer than `coverage / (1 - coverage)`, and where
        `coverage` is 1.

        Parameters
        ----------
        coverage : from 0 to 1.
        calibration : rows and targets that the model has not seen, to go by instead.

        Returns
        -------
        (n, 2), or (n, T, 2), lower and upper ends.
        """
        rows, model = self._asked(X), self._model
        held_back = model.fitted.held_back if calibration is None else self._unseen(*calibration)
        known = check_held_back(held_back, coverage)
        return self._shaped(predict_interval(model, known, rows, coverage, self.device))

    def _unseen(self, X: ArrayLike, y: ArrayLike) -> HeldBack:
        rows = self._rows(X)
        return HeldBack.unseen(self._model.whole(rows).values, self._targets(rows, y))

    def _targets(self, rows: Matrix, y: ArrayLike) -> np.ndarray:
        """(n, T) targets of new rows."""
        found = read_targets(self, rows, y, several=True).reshape(len(rows), -1)
        if found.shape[1] != self._model.n_targets:
            raise InvalidInputError(
                f"y has {found.shape[1]} column(s), the model {self._model.n_targets} target(s)."
            )
        return found

    def score_samples(self, X: ArrayLike, y: ArrayLike = None) -> np.ndarray:
        """(n,) log p(y | x), in the units of y; targets that are NaN do not count.

        Without y, log p(x), in the units of X; indicators of categories count as numbers.
        """
        rows = self._rows(X)
        targets = None if y is None else self._targets(rows, y)
        return self._model.log_density(rows, targets, self.device)

    def sample(
        self, X: ArrayLike, n_samples: int = 1, *, random_state: RandomState = None
    ) -> np.ndarray:
        """(n_samples, n), or (n_samples, n, T), draws of the targets of each row."""
        rows, generator = self._asked(X), self._generator(random_state)
        found = self._model.draw(rows, check_count(n_samples), self.device, generator)
        return self._shaped(found, axis=2)

    def impute(
        self,
        X: ArrayLike,
        y: ArrayLike = None,
        *,
        n_draws: int | None = None,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Fill missing features from what is observed, and from targets where these are given.

        Parameters
        ----------
        X : (n, D), NaN or None where missing.
        y : (n,) or (n, T) targets, NaN where there is none.
        n_draws : None fills in conditional means, and the likeliest categories; a number gives so
            many random completions.

        Returns
        -------
        (n, D), a data frame for a data frame; or n_draws of these, arrays as (n_draws, n, D). The
        chances of categories are by the density of rows that have each of them.
        """
        rows = self._rows(X)
        targets = None if y is None else self._targets(rows, y)
        return self._filled(rows, X, targets, n_draws, random_state)

    def _filled(
        self,
        rows: Matrix,
        X: ArrayLike,
        y: np.ndarray | None,
        n_draws: int | None,
        random_state: RandomState,
    ) -> ArrayLike:
        """Checked rows with their holes filled, given targets (n, T), in the form of X."""
        model, schema = self._model, self._model.schema
        like = partial(schema.like, X=X, untold=rows.untold)
        if n_draws is None:
            return like(model.imputed(rows, y, self.device))
        draw = partial(model.drawn, device=self.device)
        return self._draws(rows, y, draw, like, n_draws, random_state)

    def condition(self, given: Given) -> ConditionedRegressor:
        """The model given some columns: it predicts, scores, samples and imputes.

        Parameters
        ----------
        given : values by column, which goes by its name or position.
        """
        model = self._model
        row = read_given(model.schema, model.n_columns, given)
        if model.is_outside(row, self.device):
            warn_of_extrapolation()
        return ConditionedRegressor(self, row)

    def _log_density(self, rows: Matrix) -> np.ndarray:
        return self._model.log_density(rows, None, self.device)

    def _draw_given(
        self, given: Matrix, n_samples: int, random_state: RandomState
    ) -> tuple[ArrayLike, np.ndarray]:
        """Rows (n_samples, D) that have the given values (1, D), and their targets."""
        model, generator = self._model, self._generator(random_state)
        many = given.take(np.zeros(check_count(n_samples), dtype=np.int64))
        drawn = model.drawn(many, None, generator, self.device)
        rows = with_given(Matrix(model.schema.within(drawn)), given)
        targets = model.draw(rows, 1, self.device, generator)[0]
        return model.schema.table(rows.values), self._shaped(targets)

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
        (n, D) the share of the target's variance, given what is observed, that each missing entry
        is expected to remove, by its cost; of several targets, the mean. Zero where an entry is
        observed.
        """
        rows, generator = self._rows(X), self._generator(random_state)
        costs = unit_costs(self._model.schema, rows.values.shape[1], cost)
        with Progress((), self.verbose, max_time) as progress:
            found = next_for_targets(self._model, rows, generator, self.device, progress)
        return found / costs

    def explain(
        self,
        X: ArrayLike,
        output: str | None = None,
        *,
        method: str = "auto",
        groups: Groups = None,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Why the model expects what it does: Shapley values of the columns of each row.

        The value of some columns is the expected target given these alone, the others integrated
        out, in closed form.

        Parameters
        ----------
        X : rows, as for `predict`.
        output : "mean", or None, what `predict` says; or "log_density" of the features, as in
            `MixtureClassifier.explain`, where indicators of categories count as numbers.
        method, groups, max_time, random_state
            As in `MixtureClassifier.explain`.

        Returns
        -------
        As there; `values` are (n, P) for one target, and (n, P, T) for several.
        """
        output = output or "mean"
        rows = self._rows(X) if output == "log_density" else self._asked(X)
        if output not in NUMBERS:
            raise InvalidInputError(f"output={output!r}: output is one of {NUMBERS}.")
        question = TargetQuestion(self._model, output, self.device)
        return self._shapley(question, rows, method, groups, max_time, random_state)

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

        It has the data and its holes, what was chosen against what, errors and intervals whole and
        with entries missing, which columns matter, what to measure first, rows that are missed
        most, and what the model cannot do. Parameters are as in `MixtureClassifier.report`.
        """
        targets = self._targets(self._rows(X), y)
        seed = self._generator(random_state).initial_seed()
        write_numbers_report(self, path, X, targets, max_time=max_time, seed=seed)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> float:
        """R^2 of the rows that have a target; of several targets, the mean."""
        found = self._told(Predictive.expected, rows := self._asked(X))
        return target_score(found, self._targets(rows, y), sample_weight)


def _most_indicators(n_rows: int, levels: np.ndarray) -> int:
    """Indicators of a column, at most: what room there is for those with many categories (D,)."""
    n_many = int((levels > MOST_INDICATORS + 1).sum())
    return max(MOST_INDICATORS, min(_INDICATORS, _NUMBERS // n_rows) // max(n_many, 1))
