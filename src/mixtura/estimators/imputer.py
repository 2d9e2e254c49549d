"""MixtureImputer: what is missing, from what is observed, in a pipeline."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Self

import numpy as np
from sklearn.base import TransformerMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _check_feature_names_in, _num_samples, check_is_fitted

from mixtura.data.given import ArrayLike, Parameters
from mixtura.data.in_memory import as_table, with_missing_indicators
from mixtura.data.lazy import SCAN_ROWS, Opened, chunks_of, shared
from mixtura.densities import LowRank, Structure
from mixtura.estimators.base import CONSTRAINTS, Estimator
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.reading import check_weight, opened
from mixtura.exceptions import InvalidInputError
from mixtura.parts import AMOUNT
from mixtura.selection.held_out import mean_and_error

#: Rows per entry of a covariance for which low rank is no question.
_ROWS_PER_ENTRY = 5
#: Numbers of which it is one, at most: a trial takes several times as long as the fit.
_MOST_NUMBERS = 20_000
#: What is taken unless low rank is clearly better; ranks beside its own, where they are smaller
#: than that, so large a share of the columns.
_PLAIN, _RANKS, _SHARE = "full", (10, 3), 0.25
#: Share of the entries that a trial hides, and how many trials there are.
_HIDDEN, _TRIALS = 0.2, 2


@dataclass(eq=False, repr=False)
class MixtureImputer(TransformerMixin, Estimator):
    """Fills missing entries of mixed tables from what is observed.

    Parameters
    ----------
    strategy : "mean" or "draw"
        Conditional means, and the likeliest categories; or a draw of each row's missing entries
        given the others, whose spread is that of the data. A seed draws the same every time.
    add_indicator : bool
        Append a column for each one that lacked entries in training: 1 where it is missing.
    use_labels : bool
        Fit one mixture per class of y, which is ignored otherwise. Rows to transform have no
        labels: what is filled in is the mean over the classes they may have.
    missingness : "ignore" or "informative"
        Whether components also differ in which entries are absent.
    density : "auto", or as in `MixtureClassifier`
        "auto" is "full", or "low_rank", of its own rank, 10 or 3, where rows are few for their
        columns and it comes nearer to entries that are hidden for a trial, which takes several
        times as long as a fit: of tables of up to 20,000 numbers, without `max_time`. `density_` is
        what was chosen.
    n_components, prior_rows, max_time, categorical_features, unexpected, device, random_state,
    verbose
        As in `MixtureClassifier`. The prior keeps covariances sound where rows are few.

    Attributes
    ----------
    estimator_ : the fitted `MixtureClassifier`; all rows are of one class if labels are not used
    density_ : what components are
    indicated_ : positions of the columns that have an indicator

    Examples
    --------
    >>> import numpy as np
    >>> from mixtura import MixtureImputer
    >>> X = np.array([[1.0, 2.0], [2.0, 4.1], [3.0, 5.9], [4.0, 8.0], [5.0, np.nan]] * 4)
    >>> filled = MixtureImputer(1, random_state=0).fit_transform(X)
    >>> bool(9.5 < filled[4, 1] < 10.5)
    True
    """

    _parameter_constraints = CONSTRAINTS | {
        "strategy": [StrOptions({"mean", "draw"})],
        "add_indicator": ["boolean"],
        "use_labels": ["boolean"],
        "prior_rows": [StrOptions({"auto"}), AMOUNT],
        "missingness": [StrOptions({"ignore", "informative"})],
    }

    n_components: int | str = "auto"
    _: KW_ONLY
    strategy: str = "mean"
    add_indicator: bool = False
    use_labels: bool = False
    density: str | Structure = "auto"
    prior_rows: float | str = "auto"
    categorical_features: ArrayLike = None
    unexpected: str = "missing"
    missingness: str = "ignore"

    def _inner(self, **options: ArrayLike) -> MixtureClassifier:
        """What is fitted: it has the parameters that bear the same names here."""
        known, own = MixtureClassifier().get_params(deep=False), self.get_params(deep=False)
        shared: Parameters = {name: own[name] for name in known if name in own}
        return MixtureClassifier(objective="likelihood", **shared | options)

    @property
    def n_features_in_(self) -> int:
        """How many columns the training rows had."""
        return self.estimator_.n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """(D,) their names, where X was a data frame."""
        return self.estimator_.feature_names_in_

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike = None, sample_weight: ArrayLike = None) -> Self:
        """Fit the mixture to rows, with the labels y if `use_labels` is set.

        X may be files, as `MixtureClassifier` takes them; a column that y names is left out.
        """
        if self.use_labels and y is None:
            raise InvalidInputError("use_labels=True needs labels: fit(X, y).")
        with self._all_or_nothing(X):
            X, y, sample_weight = opened(self, X, y, sample_weight)
            if not self.use_labels:
                rows = X.rows if isinstance(X, Opened) else as_table(X)
                y = np.broadcast_to(0.0, _num_samples(rows))
            self.density_ = _PLAIN if self.density == "auto" else self.density
            self.estimator_ = self._fit_inner(X, y, sample_weight)
            values = X.rows if isinstance(X, Opened) else self.estimator_._rows(X).values
            chosen = self._chosen(values, y, sample_weight) if self.density == "auto" else _PLAIN
            if chosen != _PLAIN:
                self.density_ = chosen
                self.estimator_ = self._fit_inner(X, y, sample_weight)
            missing = [np.isnan(rows).any(0) for _, rows in chunks_of(values, SCAN_ROWS)]
            missing = np.any([each for some in shared(values, missing) for each in some], axis=0)
            self.indicated_ = np.flatnonzero(missing & self.add_indicator)
        return self

    def _fit_inner(self, X: ArrayLike, y: ArrayLike, weight: ArrayLike) -> MixtureClassifier:
        inner = self._inner(density=self.density_).set_callbacks(*self._callbacks)
        return inner.fit(X, y, weight)

    def _chosen(self, values: ArrayLike, y: ArrayLike, sample_weight: ArrayLike) -> str | Structure:
        """What clearly fills in better what is hidden for trials, if any; of small tables alone."""
        kinds = self.estimator_.schema_.levels(values.shape[1]) > 0
        size = (~kinds).sum()
        enough = len(values) > _ROWS_PER_ENTRY * size * (size + 1) / 2
        if size < 3 or enough or values.size > _MOST_NUMBERS or self.max_time:
            return _PLAIN
        values, weight = values[:], check_weight(sample_weight, len(values))
        ranks = [rank for rank in _RANKS if rank < _SHARE * size]
        ways: list[str | Structure] = ["low_rank", *map(LowRank, ranks)]
        gains = [(way, np.zeros(len(values))) for way in ways]
        rng = np.random.default_rng(self._generator().initial_seed())
        for _ in range(_TRIALS):
            hidden = (rng.random(values.shape) < _HIDDEN) & ~np.isnan(values)
            trial = partial(self._off, values, hidden, kinds, y, sample_weight)
            plain = trial(_PLAIN)
            gains = [(way, gain + plain - trial(way)) for way, gain in gains]
            gains = [(way, gain) for way, gain in gains if weight @ gain > 0.0]
            if not gains:
                return _PLAIN
        best, gain = max(gains, key=lambda each: float(weight @ each[1]))
        mean, error = mean_and_error(gain, weight)
        return best if mean > error else _PLAIN

    def _off(
        self,
        values: np.ndarray,
        hidden: np.ndarray,
        kinds: np.ndarray,
        y: ArrayLike,
        weight: ArrayLike,
        density: str | Structure,
    ) -> np.ndarray:
        """(n,) how far off rows are filled in where entries are hidden: squares, in deviations."""
        rows, scale = np.where(hidden, np.nan, values), np.nanstd(values, axis=0)
        trial = self._inner(density=density, categorical_features=kinds, verbose=0)
        filled = trial.fit(rows, y, weight).impute(rows)
        squares = ((filled - values) / np.where(scale > 0.0, scale, 1.0)) ** 2
        return np.where(hidden, np.where(kinds, filled != values, squares), 0.0).sum(1)

    def transform(self, X: ArrayLike) -> ArrayLike:
        """The rows with nothing missing, (n, D) and one column per indicator.

        A data frame for a data frame, and an array for all else.
        """
        check_is_fitted(self)
        draws = {} if self.strategy == "mean" else {"n_draws": 1}
        filled = self.estimator_.impute(X, **draws)
        filled = filled[0] if draws else filled
        if not len(self.indicated_):
            return filled
        shown = np.isnan(self.estimator_._rows(X).values[:, self.indicated_])
        return with_missing_indicators(filled, self.indicated_, shown)

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """(n,) log density of what is observed of each row."""
        check_is_fitted(self)
        return self.estimator_.score_samples(X)

    def get_feature_names_out(self, input_features: ArrayLike = None) -> np.ndarray:
        """Names of the columns that `transform` gives."""
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        shown = [f"missingindicator_{names[place]}" for place in self.indicated_]
        return np.array([*names, *shown], dtype=object)
