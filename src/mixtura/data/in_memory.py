"""Tables in memory: arrays, data frames of pandas, polars and the like, sparse matrices."""

from __future__ import annotations

import math
from importlib.util import find_spec
from numbers import Integral

import numpy as np

from mixtura.data.columns import name_of_type, unmasked
from mixtura.data.given import ArrayLike
from mixtura.data.lazy import Openable, are_files, is_path
from mixtura.exceptions import InvalidInputError, UnsupportedError

#: Sparse matrices become dense arrays of so many bytes at most.
_DENSE_BYTES = 2**32


def as_table(X: ArrayLike) -> ArrayLike:
    """X itself; an Arrow table becomes a data frame, a sparse matrix dense, what is masked NaN.

    A Series, an empty frame or one that has not been read yet is refused.
    """
    if is_path(X) or are_files(X) or isinstance(X, Openable):
        raise UnsupportedError(
            "X is a file, or another source of rows, and this takes tables in memory. The fit of "
            "estimators of tables learns from files, and mixtura.parquet.write answers for their "
            "rows. For all else, read as many rows as memory holds, a random sample."
        )
    if hasattr(X, "toarray"):  # SciPy's
        return _dense(X)
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):
        raise InvalidInputError("X is a lazy data frame, without rows yet: pass X.collect().")
    if hasattr(X, "to_pandas") and hasattr(X, "column_names") and find_spec("pandas"):  # Arrow's
        X = X.to_pandas()
    if is_frame(X) and not len(X.columns):
        raise InvalidInputError("X is a data frame without columns: pass one with at least one.")
    if hasattr(X, "to_frame") and not hasattr(X, "columns"):
        raise InvalidInputError(
            "X is a Series, which may be a row or a column: pass a data frame, such as "
            "frame.iloc[[i]] of pandas or frame[i : i + 1] of polars for one row."
        )
    _check_rows(X)
    return unmasked(X)


def _check_rows(X: ArrayLike) -> None:
    """Refuse rows by name, and single rows with words: both are read as something else."""
    cells = X if isinstance(X, list | tuple) or getattr(X, "ndim", 2) == 1 else ()
    once = hasattr(X, "__iter__") and not any(hasattr(X, name) for name in ("__len__", "__array__"))
    batched = callable(getattr(X, "iter", None))  # like data sets of Hugging Face
    if once or batched or any(hasattr(cell, "columns") for cell in cells[:1]):
        raise InvalidInputError(
            f"X is a {type(X).__name__} of tables or rows, one after another, and no table: fit "
            "takes mixtura.parquet.Source(X), and y by the name of its column; all else takes one "
            "table at a time."
        )
    if isinstance(X, dict | set) or any(isinstance(cell, dict) for cell in cells[:1]):
        raise InvalidInputError(
            "X holds a dict or set, and rows are those of a table: pass a data frame, such as "
            "pandas.DataFrame([row]) for one row by names."
        )
    if getattr(getattr(X, "dtype", None), "names", None):
        raise InvalidInputError(
            "X is a structured array, and rows are those of a table: pass pandas.DataFrame(X)."
        )
    if any(isinstance(cell, str) for cell in cells):
        raise InvalidInputError(
            f"X is one row, or one column, of {len(cells)} values, some of them words: pass a "
            "table, such as [row] for one row. Reshape your data."
        )


def _dense(X: ArrayLike) -> np.ndarray:
    """A sparse matrix as an array, if that is not too large."""
    n_bytes = 8 * math.prod(X.shape)
    if n_bytes > _DENSE_BYTES:
        raise InvalidInputError(
            f"X is a sparse matrix of the shape {X.shape}, and takes {n_bytes / 2**30:.1f} GiB as "
            f"the dense array that mixtures need, more than {_DENSE_BYTES / 2**30:.0f}. Pass "
            "categories as they are, in a data frame, instead of one column for each; or fewer "
            "columns, by TruncatedSVD, say; or fewer rows at a time."
        )
    return X.toarray()


def is_frame(X: object) -> bool:
    """Whether X is a data frame in memory: of pandas, of polars, or one that acts like them."""
    return (hasattr(X, "iloc") or hasattr(X, "get_column")) and hasattr(X, "columns")


def table_of(X: ArrayLike) -> ArrayLike:
    """X as a data frame or a matrix of numbers or objects; None for what others must judge."""
    if is_frame(X):
        return X
    try:
        array = np.asarray(X)
        if array.dtype.kind in "US" and not isinstance(X, np.ndarray):
            array = np.asarray(X, dtype=object)  # NumPy made text of the numbers beside text
    except (TypeError, ValueError, RuntimeError):
        return None
    if array.ndim != 2 or array.dtype.kind not in "iufbOUS":
        return None
    return array.astype(np.float64) if array.dtype.kind == "b" else array


def names_of(table: ArrayLike) -> tuple[object, ...] | None:
    """Names of its columns; None where there are none, or not of one type."""
    given = tuple(table.columns) if is_frame(table) else ()
    names = tuple(name if isinstance(name, str | Integral) else str(name) for name in given)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1}, key=str)
        raise InvalidInputError(f"X has several columns named {twice}: give each its own name.")
    mixed = len({isinstance(name, str) for name in given}) > 1
    return names if names and not mixed else None


def column_of(table: ArrayLike, place: int) -> ArrayLike:
    """One column."""
    return table.iloc[:, place] if hasattr(table, "iloc") else table[:, place]


def columns_of(table: ArrayLike, places: list[ArrayLike]) -> ArrayLike:
    """Some columns."""
    return table.iloc[:, places] if hasattr(table, "iloc") else table[:, places]


def type_names(table: ArrayLike) -> list[str]:
    """The types of its columns."""
    if is_frame(table):
        return [name_of_type(dtype) for dtype in table.dtypes]
    return [name_of_type(table.dtype)] * table.shape[1]


def with_missing_indicators(table: ArrayLike, places: np.ndarray, shown: np.ndarray) -> ArrayLike:
    """A data frame, dict or array with what is shown (n, k) of some of its columns at its end."""
    if isinstance(table, np.ndarray):
        return np.column_stack([table, shown])
    names = list(table.columns if hasattr(table, "columns") else table)
    columns = {f"missingindicator_{names[p]}": c for p, c in zip(places, shown.T, strict=True)}
    if isinstance(table, dict):
        return table | columns
    return (table.assign if hasattr(table, "assign") else table.with_columns)(**columns)
