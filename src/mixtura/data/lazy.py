"""Rows that stay where they are, in a file, say, and are read when they are asked for."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from os import PathLike, fspath
from os.path import exists
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.exceptions import UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mixtura.data.schema import Schema

#: So many numbers of rows that stay on disk are read into memory for good.
_FEW = 2**25
#: So many numbers of rows of a large array are copied, and stay in the model's units.
_COPIED = 2**22
#: Rows that are looked at together where all are walked through once.
SCAN_ROWS = 16_384

#: Rows whose marks are looked at together: a multiple of eight.
_MARKS = 8_192

Found = TypeVar("Found")


class Marked:
    """Places (m,) of the rows that a mask (n,) chooses, ascending, by one bit per row of n."""

    def __init__(self, mask: np.ndarray) -> None:
        self._bits = np.packbits(mask)
        counts = [np.count_nonzero(mask[at : at + _MARKS]) for at in range(0, len(mask), _MARKS)]
        self._before = np.append(0, np.cumsum(counts, dtype=np.int64))
        self._dtype = np.dtype(np.int32 if len(mask) < 2**31 else np.int64)

    def __len__(self) -> int:
        return int(self._before[-1])

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                return self[np.arange(first, last, step)]
            low, high = np.searchsorted(self._before, [first, last - 1], side="right") - 1
            places = np.concatenate([self._places(part) for part in range(low, max(low, high) + 1)])
            return places[first - self._before[low] : max(first, last) - self._before[low]]
        order = np.argsort(index, kind="stable")
        part = np.searchsorted(self._before, index[order], side="right") - 1
        found = np.empty(len(index), self._dtype)
        parts, starts = np.unique(part, return_index=True)
        for each, mine in zip(parts.tolist(), np.split(order, starts[1:]), strict=False):
            found[mine] = self._places(each)[index[mine] - self._before[each]]
        return found

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self._dtype, copy=False)

    def searchsorted(self, rows: np.ndarray, side: str = "left", sorter: None = None) -> np.ndarray:
        """How many of the places lie before each row: NumPy's function asks for it."""
        last = max(len(self._before) - 2, 0)
        parts = [(min(row // _MARKS, last), row) for row in np.asarray(rows).tolist()]
        found = [
            self._before[part] + np.searchsorted(self._places(part), row) for part, row in parts
        ]
        return np.array(found)

    def _places(self, part: int) -> np.ndarray:
        bits = self._bits[part * _MARKS // 8 : (part + 1) * _MARKS // 8]
        found = np.flatnonzero(np.unpackbits(bits))
        return (found + part * _MARKS).astype(self._dtype, copy=False)


class LazyRows(ABC):
    """A matrix (n, D) that is never in memory as a whole; it is read like an array.

    Attributes
    ----------
    has_missing : whether an entry is missing; None where that is not known.
    n_processes : how many hold some of the rows.
    """

    has_missing: bool | None = None
    n_processes = 1
    _order: np.ndarray | Marked | None = None

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._whole, self.dtype = shape, dtype

    def __len__(self) -> int:
        return self._whole[0] if self._order is None else len(self._order)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self._whole[1]

    @property
    def size(self) -> int:
        return len(self) * self._whole[1]

    @property
    def n_here(self) -> int:
        """Rows that `chunks` gives: all, or those of this process."""
        return len(self)

    @property
    def range_here(self) -> np.ndarray | None:
        """(2, D) least and largest values of these rows, if known; the least above if none is."""
        return None

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        """The rows at `index`: a slice, or integers."""
        return self._read(index if self._order is None else self._order[index])

    def view(self, index: np.ndarray | Marked) -> Self:
        """The rows that a mask or integers choose; none is read yet."""
        if isinstance(index, np.ndarray):
            kind = np.int32 if self._whole[0] < 2**31 else np.int64
            index = Marked(index) if index.dtype == bool else index.astype(kind, copy=False)
        part = copy(self)
        part._order = index if self._order is None else self._order[np.asarray(index)]
        return part

    def chunks(self, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
        """The rows at hand, in order: where they stand, and so many of them at a time."""
        for start in range(0, len(self), n_rows):
            yield slice(start, start + n_rows), self[start : start + n_rows]

    def whole(self) -> np.ndarray:
        """All rows, in memory, where they are few enough."""
        if self.size > _FEW:
            raise UnsupportedError(
                f"the files have {self.size:,} numbers, and this model keeps all rows in memory, "
                f"up to {_FEW:,} numbers: pass a random sample of the rows, or use "
                "MixtureClassifier, which learns from files of any size."
            )
        return self[:]

    def recode(self, schema: Schema) -> None:
        """Take other categories, among which are those of these rows."""
        if schema.categories is not None:
            raise UnsupportedError("these rows hold numbers, and no categories.")

    def comes_whole(self, index: np.ndarray | Marked) -> bool:
        """Whether the rows at `index` are so few that they are read into memory for good."""
        return len(index) * self._whole[1] <= _FEW

    def shared(self, found: Found) -> list[Found]:
        """What was found in the rows at hand, here and wherever else there are some."""
        return [found]

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all rows, from those over the rows at hand."""
        return sums

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Positions of all rows in an order that is random, `size` at a time."""
        import torch  # not needed to read tables

        yield from torch.randperm(len(self), generator=generator).split(size)

    @abstractmethod
    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        """The rows at these places of the whole."""


class MappedRows(LazyRows):
    """Rows of a memory-mapped array."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__((len(array), array.shape[1]), array.dtype)
        self._array = array

    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        return self._array[index]


class LargeRows(MappedRows):
    """Rows of an array in memory, of which a copy would take as much again; none lacks an entry."""

    has_missing = False

    def comes_whole(self, index: np.ndarray | Marked) -> bool:
        return len(index) * self._whole[1] <= _COPIED

    def mapped(self) -> MappedRows:
        """The same rows, of which none is converted before it is asked for, whatever the units."""
        rows = MappedRows(self._array)
        rows._order, rows.has_missing = self._order, False
        return rows


def chunks_of(X: np.ndarray | LazyRows, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
    """The rows at hand, in order: where they stand, and so many of them at a time."""
    if isinstance(X, LazyRows):
        yield from X.chunks(n_rows)
        return
    for start in range(0, len(X), n_rows):
        yield slice(start, start + n_rows), X[start : start + n_rows]


def shared(X: np.ndarray | LazyRows, found: Found) -> list[Found]:
    """What was found in the rows at hand, here and wherever else there are some."""
    return X.shared(found) if isinstance(X, LazyRows) else [found]


def is_memory_mapped(X: np.ndarray) -> bool:
    """Whether the array is a view of a file."""
    base: object = X
    while base is not None:
        if isinstance(base, (np.memmap, mmap.mmap)):
            return True
        base = getattr(base, "base", None)
    return False


@dataclass(frozen=True)
class Opened:
    """Training rows that stay where they are, and what is known of them after one scan.

    Attributes
    ----------
    rows : numbers and codes of categories.
    y, weight : of the rows; None where there are none.
    """

    rows: LazyRows
    schema: Schema
    y: ArrayLike
    weight: ArrayLike


class Openable(ABC):
    """What an estimator can be given instead of a table."""

    @abstractmethod
    def opened(
        self, y: ArrayLike, sample_weight: ArrayLike, categorical_features: ArrayLike
    ) -> Opened:
        """Look through the rows once; y and weights are names of columns, or arrays, or None."""

    def parts(
        self, y: ArrayLike, sample_weight: ArrayLike
    ) -> Iterator[tuple[ArrayLike, ArrayLike, ArrayLike]]:
        """One table after another, with its labels and weights; y and weights are names."""
        raise UnsupportedError(
            "a stream is learned from by one process: pass its files, or a mixtura.parquet.Source."
        )


def source_of(X: ArrayLike) -> ArrayLike:
    """X; a path, or a list of them, becomes the source of rows that it names."""
    if not (is_path(X) or are_files(X)):
        return X
    return import_module("mixtura.data.streamed").Source(X)  # pyarrow is optional


def are_files(given: object) -> bool:
    """Whether this is a list of files and patterns, one of which is there at least."""
    if not isinstance(given, list | tuple):
        return False
    return all(map(is_path, given)) and any(map(files_named, given))


def files_named(given: str | PathLike[str]) -> list[str]:
    """The files that a path or a pattern names."""
    name = fspath(given)
    return [name] if exists(name) else sorted(glob(name, recursive=True))


def is_path(given: object) -> bool:
    """Whether this names a file."""
    return isinstance(given, str | PathLike)
