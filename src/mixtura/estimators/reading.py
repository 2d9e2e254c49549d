"""What users pass to estimators, checked: tables, weights and numbers."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_array,
    validate_data,
)

from mixtura.data.given import ArrayLike, Parameters
from mixtura.data.in_memory import as_table
from mixtura.data.labels import CodedLabels
from mixtura.data.lazy import Openable, Opened, source_of
from mixtura.data.matrix import Matrix
from mixtura.data.names import column_label
from mixtura.data.schema import Schema
from mixtura.data.sharded import Shard
from mixtura.data.table_forms import TableForm
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn

#: What a matrix of numbers must be like.
_NUMBERS: Parameters = {
    "dtype": [np.float64, np.float32],
    "order": "C",
    "ensure_all_finite": "allow-nan",
}
#: Rows stand for no more rows than this, so that weighted sums of squares stay finite.
_MOST_WEIGHT = 1e100
#: Rows of files that are looked at for a column that holds the labels.
_GLANCE = 1_000


def opened(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike
) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
    """Training rows, labels and weights: as they are, or of a source after its scan."""
    X = source_of(X)
    if not isinstance(X, Openable):
        return X, y, sample_weight
    settings = estimator.get_params(deep=False)
    if isinstance(X, Shard):
        X.check_fit(settings)
    found = X.opened(y, sample_weight, settings.get("categorical_features"))
    if not len(found.rows):
        raise InvalidInputError("the files or chunks have no rows: pass some that have.")
    named = y is None or isinstance(y, str) or isinstance(found.y, CodedLabels)
    if not named and not isinstance(X, Shard):
        _warn_of_labels(found)
    if found.weight is None:  # a one for all rows takes no memory
        return found, found.y, np.broadcast_to(1.0, len(found.rows))
    return found, found.y, found.weight


def _warn_of_labels(found: Opened) -> None:
    """Labels that were given apart may also be a column of the files: it would be a feature."""
    if np.shape(found.y)[:1] != (len(found.rows),):  # refused later on
        return
    first, y = found.rows[:_GLANCE], np.asarray(found.y[:_GLANCE]).astype(str)
    n_classes = len(np.unique(y))
    if y.ndim > 1 or not 1 < n_classes < len(y) / 2:
        return
    for name, values in zip(found.schema.names or range(first.shape[1]), first.T, strict=True):
        pairs = np.unique(np.char.add(np.char.add(y, " "), values.astype(str)))
        if len(np.unique(values)) == n_classes == len(pairs):
            warn(
                f"column {name!r} tells the labels exactly in the first {len(y):,} rows, and is "
                f"used as a feature. Remedy: y={name!r}, or files without it.",
                AmbiguousDataWarning,
            )


def read_table(
    estimator: BaseEstimator, X: ArrayLike, schema: Schema, unexpected: str, *, reset: bool
) -> Matrix:
    """Rows as numbers and codes of categories, checked as scikit-learn does."""
    plain = None if reset else schema.plain(X)
    if plain is not None and plain.shape[1] == estimator.n_features_in_:
        return Matrix(plain)
    X = as_table(X)
    given = schema.encode(X, unexpected)
    if not isinstance(given, Matrix):
        try:
            return Matrix(validate_data(estimator, given, reset=reset, **_NUMBERS))
        except ValueError as error:
            raise _located(error, given, schema) from None
    try:
        rows = check_array(given.values, input_name="X", estimator=estimator, **_NUMBERS)
    except ValueError as error:
        raise _located(error, given.values, schema) from None
    if reset or schema.names_in(X) is None:
        _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, rows, reset=reset)
    return Matrix(rows, given.untold)


def _located(error: ValueError, given: ArrayLike, schema: Schema) -> ValueError:
    """What was refused; of infinity, the column and the row."""
    if "infinity" not in str(error):
        return error
    row, column = np.argwhere(np.isinf(np.asarray(given, dtype=np.float64)))[0].tolist()
    return InvalidInputError(
        f"{column_label(schema.names, column)} holds infinity (row {row}): put NaN where the value "
        "is not known, or clip it."
    )


def learn_table(
    estimator: BaseEstimator, X: ArrayLike, categorical_features: ArrayLike, unexpected: str
) -> tuple[Matrix, Schema]:
    """Training rows, and what their columns are."""
    if isinstance(X, Opened):
        if all(isinstance(name, str) for name in X.schema.names or [None]):
            vars(estimator)["feature_names_in_"] = np.array(X.schema.names, dtype=object)
        _check_n_features(estimator, X.rows, reset=True)
        return Matrix(X.rows), X.schema  # type: ignore[arg-type]
    X = as_table(X)
    schema = Schema.learn(X, categorical_features)
    rows = read_table(estimator, X, schema, unexpected, reset=True)
    return rows, replace(schema.with_empty(rows.values), form=TableForm.of(X, rows.values))


def check_weight(sample_weight: ArrayLike, n_rows: int) -> np.ndarray:
    """One finite, non-negative weight per row, not all zero."""
    if sample_weight is None:
        return np.ones(n_rows)
    try:
        given = np.asarray(sample_weight)
        words = given.dtype.kind == "O" and any(isinstance(each, str) for each in given.flat)
        if words or given.dtype.kind not in "biufO":
            raise TypeError(f"it holds {given.dtype.name}")
        weight = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"sample_weight must hold numbers ({error}).") from error
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.shape != (n_rows,):
        raise InvalidInputError(
            f"sample_weight has shape {weight.shape}, but X has {n_rows} rows: "
            f"give one weight per row, shape ({n_rows},)."
        )
    told = weight[:1] if weight.strides == (0,) else weight  # what all rows share is kept once
    if not np.isfinite(told).all() or (told < 0).any():
        raise InvalidInputError("sample_weight must be finite and not negative.")
    if (told > _MOST_WEIGHT / max(n_rows, 1)).any():
        raise InvalidInputError(
            f"sample_weight reaches {told.max():.3g}, and a weight counts rows: divide it by "
            "its mean."
        )
    if not (told > 0).any():
        raise InvalidInputError("sample_weight is zero for every row: nothing to fit.")
    return weight


def check_count(count: object, name: str = "the number to draw") -> int:
    """How many: a positive whole number."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise InvalidInputError(f"{name} must be positive and whole, got {count!r}.")
    return int(count)
