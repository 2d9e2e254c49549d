"""Sequences in the forms that people keep them in: what comes back is like what was given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.exceptions import InvalidInputError
from mixtura.parts import storable

if TYPE_CHECKING:
    from mixtura.data.sequence_input import Sequences

#: What makes a table of columns, by the library that it is of.
_TABLES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}


@storable
@dataclass(frozen=True)
class Form:
    """How sequences are kept.

    Attributes
    ----------
    kind : "list" of arrays, "array" padded with NaN, "long" (a table with one row per frame); of
        pandas "multiindex" (the same by an index), "nested" (cells hold series) and "frames" (a
        list of tables).
    library : of a table.
    channels_first : whether arrays have frames last.
    length : frames that arrays are padded to at least.
    columns : names of the columns, or of the levels of the index, with ids and times; None where
        there is none.
    """

    kind: str = "list"
    library: str = ""
    channels_first: bool = False
    length: int = 0
    columns: tuple[str | None, str | None] = (None, None)

    def build(self, sequences: Sequences) -> ArrayLike:
        """The sequences in this form."""
        if self.kind in ("list", "array") and sequences.categories is not None:
            shown = np.column_stack(list(sequences.by_name().values()))
            sequences = replace(sequences, frames=shown, categories=None)
        if self.kind == "list":
            parts = sequences.split()
            return [part.T for part in parts] if self.channels_first else parts
        if self.kind == "array":
            array = self._padded(sequences)
            return array.swapaxes(1, 2) if self.channels_first else array
        ids, times = sequences.ids, sequences.times
        ids = np.arange(len(sequences)) if ids is None else ids
        times = sequences.moment if times is None else times
        channels = sequences.by_name()
        if self.kind == "long":
            who, when = self.columns
            known = {who: np.repeat(ids, sequences.lengths), when: times}
            known = {name: values for name, values in known.items() if name is not None}
            return getattr(_library(self.library), _TABLES[self.library])(known | channels)
        return self._of_pandas(sequences, ids, times, channels)

    def _padded(self, sequences: Sequences) -> np.ndarray:
        length, (_, width) = max(self.length, *sequences.lengths), sequences.frames.shape
        array = np.full((len(sequences), length, width), np.nan, sequences.frames.dtype)
        array[np.arange(length) < sequences.lengths[:, None]] = sequences.frames
        return array

    def _of_pandas(
        self,
        sequences: Sequences,
        ids: np.ndarray,
        times: np.ndarray,
        channels: dict[str, np.ndarray],
    ) -> ArrayLike:
        pandas = _library("pandas")
        if self.kind == "multiindex":
            every = [np.repeat(ids, sequences.lengths), times]
            index = pandas.MultiIndex.from_arrays(every, names=self.columns)
            return pandas.DataFrame(channels, index=index)
        parts = [
            slice(*ends) for ends in zip(sequences.offsets, sequences.offsets[1:], strict=False)
        ]
        if self.kind == "frames":
            tables = ({name: values[part] for name, values in channels.items()} for part in parts)
            pairs = zip(tables, parts, strict=True)
            return [pandas.DataFrame(table, index=times[part]) for table, part in pairs]
        cells = {
            name: [pandas.Series(values[part], index=times[part]) for part in parts]
            for name, values in channels.items()
        }
        return pandas.DataFrame(cells, index=ids)


def _library(name: str) -> ArrayLike:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the sequences of training were a table of {name}, and so are those that are drawn: "
            f"pip install {name}."
        ) from error


def library_of(X: ArrayLike) -> str:
    """The library of a table; an error for one that makes no tables of its own."""
    found = type(X).__module__.partition(".")[0]
    return found if found in _TABLES else ""


def with_columns(X: ArrayLike, columns: dict[object, np.ndarray]) -> ArrayLike:
    """A copy of a table with one row per frame, some columns of which are replaced."""
    library = library_of(X)
    if library == "polars":
        series = type(X.to_series(0))
        given = {
            name: each.tolist() if each.dtype == object else each for name, each in columns.items()
        }
        return X.with_columns([series(name, values) for name, values in given.items()])
    if library == "pyarrow":
        for name, values in columns.items():
            place = X.column_names.index(name) if name in X.column_names else X.num_columns
            change = X.set_column if place < X.num_columns else X.add_column
            X = change(place, name, [values])
        return X
    if not hasattr(X, "copy"):
        raise InvalidInputError(f"X is a {type(X).__name__}, which cannot be copied.")
    copied = X.copy()
    for name, values in columns.items():
        copied[name] = values
    return copied
