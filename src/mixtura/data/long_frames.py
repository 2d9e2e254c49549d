"""Columns of data frames with one row per frame."""

from __future__ import annotations

import numpy as np

from mixtura.data.columns import TEXT, name_of_type
from mixtura.data.columns import is_missing as is_nothing
from mixtura.data.given import ArrayLike
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn

#: Steps in time that are so many times as long as the usual one are gaps.
GAP = 1.5
#: Names of columns that mostly hold times.
_TIMES = {"time", "timestamp", "datetime"}


def is_frame(X: ArrayLike) -> bool:
    """Whether X is a table with one row per frame: of pandas, polars, Arrow, or one like them."""
    lazy = hasattr(X, "collect_schema")  # to look at its columns takes time
    return (lazy or hasattr(X, "columns")) and hasattr(X, "__getitem__")


def column_names(X: ArrayLike) -> list[ArrayLike]:
    """Names of the columns of a table."""
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def check_columns(X: ArrayLike, id_column: str, time_column: str | None) -> list[ArrayLike]:
    """Names of the channels."""
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):
        raise InvalidInputError("X is a lazy data frame, without rows yet: pass X.collect().")
    columns = column_names(X)
    for parameter, name in (("id_column", id_column), ("time_column", time_column)):
        if name is not None and name not in columns:
            raise InvalidInputError(
                f"X has no column {name!r}; it has {columns}: name the right one by {parameter} "
                "of mixtura.sequences.Layout; "
                "panels of sktime and aeon go through mixtura.sequences.from_panel."
            )
    texts = [str(name) for name in columns]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise InvalidInputError(f"X has several columns named {twice}: give each its own name.")
    return [name for name in columns if name not in (id_column, time_column)]


def warn_of_times(channels: list[ArrayLike]) -> None:
    """Channels whose names say that rows are to be sorted by them."""
    for name in channels:
        if str(name).lower() in _TIMES:
            warn(
                f"column {name!r} is taken for a channel, and rows stay in their order. "
                f"Remedy: Layout(time_column={name!r}) of mixtura.sequences sorts by it; a channel "
                "may have another name.",
                AmbiguousDataWarning,
            )


def grouped(X: ArrayLike, id_column: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids in the order of their first rows, and the place of each row's id among them."""
    ids = complete(X, id_column)
    if not len(ids):
        raise InvalidInputError("X has no sequences: the data frame has no rows.")
    # Rows of an id mostly stand together: sort the runs, not the rows.
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    distinct, first, codes = unique(ids[starts], id_column)
    order = np.argsort(first)
    codes = np.argsort(order)[codes]
    return distinct[order], np.repeat(codes, np.diff(np.append(starts, len(ids))))


def complete(X: ArrayLike, name: str) -> np.ndarray:
    """The values of a column where nothing may be missing."""
    values = np.asarray(X[name])
    missing = is_missing(X[name], values)
    if missing.any():
        raise InvalidInputError(
            f"the column {name!r} has {int(missing.sum())} missing value(s), the first in row "
            f"{int(np.argmax(missing))}: fill them, or drop these rows."
        )
    return values


def unique(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        return np.unique(values, return_index=True, return_inverse=True)
    except TypeError as error:
        raise InvalidInputError(
            f"the column {name!r} mixes values that have no order ({error}): make them all one "
            "type."
        ) from error


def is_missing(column: ArrayLike, values: np.ndarray) -> np.ndarray:
    """Where a column, of which `values` is the array, has no value."""
    if values.dtype != object:
        return values != values
    for question in ("isna", "is_null"):
        if hasattr(column, question):
            return np.asarray(getattr(column, question)(), dtype=bool)
    return np.array([is_nothing(value) for value in values], dtype=bool)


#: Values of a channel, NaN where one is missing; and its categories, sorted, if they are codes.
Channel = tuple[np.ndarray, np.ndarray | None]


def channel(column: ArrayLike) -> Channel | None:
    """Numbers, or codes of words and categories; None for a column of anything else."""
    values = np.asarray(column)
    known = ~is_missing(column, values)
    cells = values[known].tolist() if values.dtype == object else values[known]
    found = np.full(len(values), np.nan)
    try:
        given = np.array(cells)
        words = given.dtype.kind == "U" and all(isinstance(cell, str) for cell in cells)
        named = name_of_type(getattr(column, "dtype", getattr(column, "type", "")))
        if len(given) and (words or (named in TEXT and given.ndim == 1)):
            categories, found[known] = np.unique(given, return_inverse=True)
            return found, categories.astype(object) if words else categories
        if given.ndim != 1 or given.dtype.kind not in "fiubO":
            return None
        if values.dtype != object:
            return (values, None) if values.dtype.kind in "fiub" else None
        found[known] = given
    except (TypeError, ValueError):
        return None
    return found, None


def places_of(ids: np.ndarray, index: np.ndarray) -> np.ndarray | None:
    """Where each id stands in an index; None unless both hold each of them once."""
    if index.ndim != 1 or len(index) != len(ids):
        return None
    place = {value: at for at, value in enumerate(index.tolist())}
    places = [place.get(value) for value in ids.tolist()]
    return None if None in places or len(set(places)) < len(ids) else np.array(places)


def as_numbers(times: np.ndarray) -> np.ndarray | None:
    """(F,) times as numbers, dates in nanoseconds; None for text and the like."""
    if times.dtype.kind in "mM":
        return times.astype(f"{times.dtype.kind}8[ns]").astype(np.int64)
    return times if times.dtype.kind in "iuf" else None


def steps_of(times: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Steps in time from each frame to the next of its sequence; none of text and the like."""
    numbers = as_numbers(times)
    if numbers is None:
        return np.empty(0)
    inside = np.ones(len(numbers) - 1, dtype=bool)
    inside[offsets[1:-1] - 1] = False
    return np.diff(numbers)[inside]


def warn_of_gaps(times: np.ndarray, offsets: np.ndarray) -> None:
    """Say so where times (F,) of sequences, in order, leave gaps, or come twice."""
    gap = steps_of(times, offsets)
    if (gap == 0).any():
        warn(
            f"{int((gap == 0).sum())} row(s) have the id and the time of another one: they count "
            "as frames one after another. Remedy: drop one of each, or take their mean.",
            AmbiguousDataWarning,
        )
    gap = gap[gap > 0]
    usual = np.median(gap) if len(gap) else 0
    wide = gap[gap >= GAP * usual]
    if len(wide):
        warn(
            f"{len(wide)} step(s) in time are longer than usual, up to {wide.max() / usual:.3g} "
            "times: frames count as one after another. Remedy: mixtura.sequences.from_long with "
            "step=... makes lost frames of the gaps.",
            AmbiguousDataWarning,
        )
