"""What boosted trees of numbers add up to, as more numbers. NumPy is all that this needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mixtura.data.indicators import Origin

#: Leaves of a tree, at most: there is a bit for each.
MOST_LEAVES = 32
#: Rows times trees that are looked at together.
_AT_ONCE = 2**19


class _Column(NamedTuple):
    """Which leaves a column leaves open, (E + 1, R) in bits: by how many of E edges it is above."""

    column: int
    edges: np.ndarray
    leaves: np.ndarray


@dataclass(frozen=True)
class Trees:
    """Numbers, and before the last T of them what trees of the others add up to, T sums.

    A sum is missing where a number is that one of its trees asks for.

    Attributes
    ----------
    column, edge, tree : (S,) of all splits: which number is compared, with what, in which tree.
    first, last : (S,) the leaves, from left to right, that numbers above the edge leave out.
    value : (R, L) of the leaves; the first R / T trees are those of the first sum, and so on.
    start : (T,) what sums begin with.
    n_columns : numbers of a row, the last T among them.
    """

    column: np.ndarray
    edge: np.ndarray
    tree: np.ndarray
    first: np.ndarray
    last: np.ndarray
    value: np.ndarray
    start: np.ndarray
    n_columns: int

    @cached_property
    def _asked(self) -> np.ndarray:
        """The columns that trees ask for."""
        return np.unique(self.column)

    @cached_property
    def sources(self) -> np.ndarray:
        """(d, T + P) the columns that each number comes from; each comes first from itself."""
        asked = self._asked if len(self._asked) else np.zeros(1, dtype=np.int64)
        own = np.tile(np.arange(self.n_columns), (len(asked), 1))
        sums = np.tile(asked[:, None], len(self.start))
        return np.insert(own, [self.n_columns - len(self.start)], sums, axis=1)

    @cached_property
    def origin(self) -> Origin:
        """The same, as batches of rows have it."""
        return tuple(map(tuple, self.sources.tolist()))

    @cached_property
    def places(self) -> np.ndarray:
        """(T,) where the sums are."""
        return self.n_columns - len(self.start) + np.arange(len(self.start))

    def told(self, values: np.ndarray) -> np.ndarray:
        """(n,) whether rows (n, P) have all that trees ask for."""
        return ~np.isnan(values[:, self._asked]).any(1)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """(n, P + T) of numbers (n, P)."""
        return np.insert(values, [self.places[0]], self.sums(values), axis=1)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(n, T) what the trees add up to."""
        found, step = np.empty((len(values), len(self.start))), max(1, _AT_ONCE // len(self.value))
        for at in range(0, len(values), step):
            found[at : at + step] = self._sums(values[at : at + step])
        return found

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """The leftmost leaf that no column leaves out is where a row is."""
        count = len(self.value)
        left = np.full((len(values), count), np.uint32(2**32 - 1))
        for column, edges, leaves in self._columns:
            left &= leaves[edges.searchsorted(values[:, column])]
        lowest = left & (~left + np.uint32(1))
        leaf = np.frexp(lowest.astype(np.float32))[1] - 1
        each = self.value.ravel().take(leaf + np.arange(count) * self.value.shape[1])
        found = each.reshape(len(values), len(self.start), -1).sum(2) + self.start
        return np.where(self.told(values)[:, None], found, np.nan)

    def __getstate__(self) -> dict[str, object]:
        """Without what is looked up, which is larger than all else."""
        return {name: value for name, value in vars(self).items() if name != "_columns"}

    @cached_property
    def _columns(self) -> list[_Column]:
        found, one = [], np.uint64(1)
        first, last = (each.astype(np.uint64) for each in (self.first, self.last))
        kept = (~((one << last) - (one << first))).astype(np.uint32)
        for column in self._asked.tolist():
            own = self.column == column
            edges, place = np.unique(self.edge[own], return_inverse=True)
            leaves = np.full((len(edges) + 1, len(self.value)), np.uint32(2**32 - 1))
            np.bitwise_and.at(leaves, (place.ravel() + 1, self.tree[own]), kept[own])
            np.bitwise_and.accumulate(leaves, axis=0, out=leaves)
            found.append(_Column(column, edges, leaves))
        return found
