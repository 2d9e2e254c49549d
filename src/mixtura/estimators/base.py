"""What fitting is like everywhere, and what every estimator with a density offers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_array,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from mixtura.data import UNLABELED, Batch, Scaling, Table, resolve_device
from mixtura.data.schema import Schema, as_table
from mixtura.densities import Categorical, Product, numeric_part
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.typicality import (
    filled_log_density,
    log_density,
    run_over,
    typical_scores,
)
from mixtura.exceptions import InvalidInputError, warning_once
from mixtura.models.mixture import Mixture
from mixtura.persistence import save_estimator
from mixtura.progress import Progress
from mixtura.solvers import SpreadPrior

#: What a matrix of numbers must be like.
_NUMBERS: dict[str, Any] = {
    "dtype": [np.float64, np.float32],
    "order": "C",
    "ensure_all_finite": "allow-nan",
}
#: Constraints of the parameters that say how mixed tables are read.
TABLE_CONSTRAINTS: dict = {
    "categorical_features": [None, StrOptions({"from_dtype"}), "array-like"],
    "unexpected": [StrOptions({"missing", "ignore", "error"})],
    "missingness": [StrOptions({"auto", "ignore", "informative"})],
}
#: Rows stand for no more rows than this, so that weighted sums of squares stay finite.
_MOST_WEIGHT = 1e100
#: Rounding errors per feature, in units of a square's rounding (found by trial); and what they may
#: move a log density by.
_ROUNDING, _MOST_NATS = 4.0, 0.05
DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class Saveable(BaseEstimator):
    """An estimator that can be written to a file."""

    def save(self, path: Any) -> None:
        """Write the fitted estimator to one file; `mixtura.load` reads it back."""
        check_is_fitted(self)
        save_estimator(self, path)


class Trainable(Saveable):
    """What fitting is like for every estimator."""

    #: Of a model that knows numbers alone; fitting to a table puts its own in this place.
    schema_: Schema = Schema()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_X(self, X: Any, *, reset: bool) -> Any:
        """Rows as a matrix of numbers; categories become their codes."""
        X = as_table(X)
        if reset:
            self.schema_ = self._learn_schema(X)
        given = self._encode(X)
        if given is X or not isinstance(given, np.ndarray):
            return validate_data(self, given, reset=reset, **_NUMBERS)
        rows = check_array(given, input_name="X", estimator=self, **_NUMBERS)
        if reset or self.schema_.names_in(X) is None:
            _check_feature_names(self, X, reset=reset)
        _check_n_features(self, rows, reset=reset)
        return rows

    def _learn_schema(self, X: Any) -> Schema:
        """What the columns of the training rows are: here, numbers alone."""
        return Schema.learn(X).of_numbers()

    def _encode(self, X: Any) -> Any:
        """X in numbers, with the columns of training in their order."""
        return self.schema_.encode(self.schema_.in_order(X), "error")

    def _measure_scaling(self, X: np.ndarray, weight: np.ndarray) -> Scaling:
        measured = Scaling.measure(X, weight, getattr(self, "feature_names_in_", None))
        return measured if self.standardize else Scaling.identity(X.shape[1])

    def _generator(self, random_state: Any = None) -> torch.Generator:
        state = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator().manual_seed(int(state.randint(np.iinfo(np.int32).max)))

    def _progress(self) -> Progress:
        if not all(callable(callback) for callback in self.callbacks or ()):
            raise InvalidInputError("callbacks must be functions that take a dict.")
        return Progress(self.callbacks or (), self.verbose, self.max_time)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A fit that fails leaves the estimator as it was; one that succeeds warns once."""
        before = dict(self.__dict__)
        try:
            with warning_once():
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise


class MixtureEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Trainable):
    """Services of a fitted generative model; subclasses fit it."""

    mixture_: Mixture
    scaling_: Scaling
    missingness_: str = "ignore"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _learn_schema(self, X: Any) -> Schema:
        schema = Schema.learn(X, self.categorical_features)
        resumes = getattr(self, "warm_start", False) and hasattr(self, "mixture_")
        if resumes and not schema.equals(self.schema_):
            raise InvalidInputError(
                "warm_start=True needs the columns and categories of the previous fit; set "
                "warm_start=False to start anew."
            )
        return schema

    def _encode(self, X: Any) -> Any:
        return self.schema_.encode(X, self.unexpected)

    def _levels(self, n_features: int) -> np.ndarray:
        """(D,) number of categories of each column, 0 for numbers."""
        return self.schema_.levels(n_features)

    def _measure_scaling(self, X: np.ndarray, weight: np.ndarray) -> Scaling:
        return super()._measure_scaling(X, weight).sparing(self._levels(X.shape[1]))

    def _publish(self, mixture: Mixture, scaling: Scaling) -> None:
        """Fitted attributes that follow from the mixture."""
        self.mixture_, self.scaling_ = mixture.to("cpu", torch.float64), scaling
        self.weights_ = self.mixture_.log_weight.exp().numpy()
        self.means_ = scaling.invert(self.mixture_.density.location.numpy())
        self._n_features_out = mixture.n_components

    def _publish_scores(
        self, engine: Engine, progress: Progress, prior: SpreadPrior | None = None
    ) -> None:
        """What the published mixture would say of its training rows, had it not seen them."""
        found = typical_scores(self.mixture_, engine, self._typicality, prior, progress)
        self.score_quantiles_ = weighted_quantiles(*(each.double().cpu().numpy() for each in found))

    @property
    def covariances_(self) -> np.ndarray:
        """Dense covariances of the components (and states) in the user's units, (K, ..., D, D)."""
        density, scale = self._density_model().density, self.scaling_.scale
        return density.covariances().numpy() * scale[:, None] * scale[None, :]

    # -- what a fitted model answers -------------------------------------------------------

    def _density_model(self) -> Mixture:
        """The fitted model; an error where there is none."""
        check_is_fitted(self)
        return self.mixture_

    def _table(self, X: np.ndarray, y: np.ndarray | None = None) -> Engine:
        y = np.full(len(X), UNLABELED) if y is None else y
        device, dtype = resolve_device(self.device, X.size), self._working_type(X)
        return LocalEngine(Table(X, y, scaling=self.scaling_, device=device, dtype=dtype))

    def _working_type(self, X: np.ndarray) -> torch.dtype:
        if "mixture_" not in self.__dict__:  # several models vote
            return torch.float64
        part = numeric_part(self.mixture_.density)
        return working_type(X.dtype, part.n_features, getattr(part, "floor", math.inf))

    def _evaluate(
        self,
        function: Callable[[Mixture, Batch], Tensor],
        rows: np.ndarray,
        y: np.ndarray | None = None,
    ) -> np.ndarray:
        """`function` of every checked row, chunk by chunk."""
        return run_over(self._density_model(), self._table(rows, y), function).numpy()

    def _missing_share(self, rows: Any) -> np.ndarray:
        """(n,) share of the values that each checked row lacks."""
        return np.isnan(rows).mean(1)

    def _log_jacobian(self, rows: Any) -> np.ndarray:
        """Sum of log scales over the observed features of each checked row."""
        return ~np.isnan(rows) @ np.log(self.scaling_.scale)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density log p(x) of each row over its observed features.

        Where `missingness_` is "informative" it also counts which entries are absent.

        Returns
        -------
        (n,) array, in the units of X.
        """
        check_is_fitted(self)
        rows = self._check_X(X, reset=False)
        return self._evaluate(log_density, rows) - self._log_jacobian(rows)

    def responsibilities(self, X: Any) -> np.ndarray:
        """p(component | x), (n, K), components in the order of `weights_`."""
        check_is_fitted(self)
        return self._evaluate(lambda m, b: m.posterior(b), self._check_X(X, reset=False))

    def transform(self, X: Any) -> np.ndarray:
        """The embedding of each row as its component posteriors, (n, K)."""
        return self.responsibilities(X)

    def _labels_for(self, y: Any, n_rows: int) -> np.ndarray | None:
        """Class indices of labels that condition an imputation."""
        if y is not None:
            raise InvalidInputError("this model knows no classes: leave y out.")
        return None

    def impute(
        self, X: Any, y: Any = None, *, n_draws: int | None = None, random_state: Any = None
    ) -> Any:
        """Fill missing entries from what is observed.

        Parameters
        ----------
        X : (n, D), NaN where missing.
        y : labels to condition on, where they are known.
        n_draws : None fills in the conditional mean; a number gives so many random completions.

        Returns
        -------
        (n, D), or (n_draws, n, D); a data frame for a data frame, with the columns of the training
        rows in their order; of sequences a list of arrays; or n_draws of these. Observed entries
        come back to the bit; of categories, the likeliest is filled in. Means are those of the
        model: a discriminative objective may have moved them far from the data.
        """
        check_is_fitted(self)
        rows = self._check_X(X, reset=False)
        labels = self._labels_for(y, len(rows))
        values = self._values(rows)

        def filled(function: Callable[[Mixture, Batch], Tensor]) -> Any:
            found = self._evaluate(lambda m, b: b.unpacked(function(m, b)), rows, labels)
            found = np.where(np.isnan(values), self.scaling_.invert(found), values)
            return self._like(found.astype(values.dtype), rows, X)

        if n_draws is None:
            return filled(lambda m, b: m.impute(b))
        generator = self._generator(random_state)
        draws = [filled(lambda m, b: m.draw(b, generator)) for _ in range(check_count(n_draws))]
        return np.stack(draws) if isinstance(draws[0], np.ndarray) else draws

    def _values(self, rows: Any) -> np.ndarray:
        """Checked rows as a matrix, NaN where missing."""
        return rows

    def _like(self, values: np.ndarray, rows: Any, X: Any) -> Any:
        """Such a matrix in the form of what was given."""
        return self.schema_.like(values, X)

    def _drawn(self, rows: Tensor) -> np.ndarray:
        """Rows that a model drew, in the user's units and categories."""
        return self.schema_.decode(self.scaling_.invert(rows.cpu().numpy()))

    def category_proba(self, X: Any, column: Any) -> np.ndarray:
        """p(category | what is observed) of a categorical column.

        Parameters
        ----------
        X : rows, as for `impute`.
        column : its position, or its name in a data frame.

        Returns
        -------
        (n, number of categories), in the order of `schema_.categories`; one for what is observed.
        """
        density = self._density_model().density
        if not isinstance(density, Product):
            raise InvalidInputError("no column of this model holds categories: use impute.")
        rows = self._check_X(X, reset=False)
        place = self.schema_.position(column, rows.shape[1])
        if not self._levels(rows.shape[1])[place]:
            raise InvalidInputError(f"column {column!r} holds numbers: use impute.")
        number, within = density.find(place)
        part = density.parts[number]
        assert isinstance(part, Categorical)

        def chances(mixture: Mixture, batch: Batch) -> Tensor:
            share = mixture.posterior(batch).to(batch.x.dtype)
            return part.to(batch.x.device).chances(density.view(batch, number), share, within)

        return self._evaluate(chances, rows)

    @staticmethod
    def _typicality(mixture: Mixture, batch: Any) -> Tensor:
        """What `is_outlier` judges rows by."""
        return filled_log_density(mixture, batch)

    def is_outlier(self, X: Any, share: float = 0.01) -> np.ndarray:
        """Rows less likely than all but a `share` of rows like those of training would be.

        Training rows count by what a model without them makes of them (those of a stream by what
        the model made of them before it learned from them), so about that `share` of new rows is
        flagged where nothing has changed. With `parameterization="precision"` they count as they
        are, and more is flagged; so they do where `max_time` leaves no time for more.

        A row with holes is judged in its favor: with the holes filled by their conditional means.
        Sequences are judged by their log density per value.
        """
        check_is_fitted(self)
        if not 0.0 <= share <= 1.0:
            raise InvalidInputError(f"share must lie between 0 and 1, got {share!r}.")
        self._density_model()
        threshold = np.interp(share, np.linspace(0.0, 1.0, 1001), self.score_quantiles_)
        return self._evaluate(self._typicality, self._check_X(X, reset=False)) < threshold


def check_weight(sample_weight: Any, n_rows: int) -> np.ndarray:
    """One finite, non-negative weight a row, not all zero."""
    if sample_weight is None:
        return np.ones(n_rows)
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"sample_weight must hold numbers ({error}).") from error
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.shape != (n_rows,):
        raise InvalidInputError(
            f"sample_weight has shape {weight.shape}, but X has {n_rows} rows: "
            f"give one weight a row, shape ({n_rows},)."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInputError("sample_weight must be finite and not negative.")
    if (weight > _MOST_WEIGHT / max(n_rows, 1)).any():
        raise InvalidInputError(
            f"sample_weight reaches {weight.max():.3g}, and a weight counts rows: divide it by "
            "its mean."
        )
    if not (weight > 0).any():
        raise InvalidInputError("sample_weight is zero for every row: nothing to fit.")
    return weight


def working_type(given: np.dtype, n_features: int, floor: float) -> torch.dtype:
    """float32 for rows that come in it, where its rounding moves no log density by much.

    A squared distance is a sum over features of squares divided by variances, which are no smaller
    than the floor, and each square is rounded.
    """
    risky = _ROUNDING * n_features * float(np.finfo(np.float32).eps) > _MOST_NATS * floor
    return torch.float64 if risky else DTYPES[given]


def distinct_rows(X: np.ndarray, index: np.ndarray, most: int) -> int:
    """How many of the rows at `index` differ from each other; `most` where there are no fewer.

    Equal rows count once, so that a row given twice is a row of weight two.
    """
    size = 4 * most
    while True:
        rows = X[index[:size]]
        found = len(np.unique(np.where(np.isnan(rows), np.inf, rows), axis=0))
        if found >= most or size >= len(index):
            return min(found, most)
        size *= 4


def weighted_quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Quantiles 0, 0.001, ..., 1 of values that count as often as their weight says."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    place = np.searchsorted(share, np.linspace(0.0, 1.0, 1001) - 1e-12)
    return values[order][place.clip(max=len(values) - 1)]


def check_count(count: Any) -> int:
    """How many to draw: a positive whole number."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise InvalidInputError(f"the number to draw must be positive and whole, got {count!r}.")
    return int(count)
