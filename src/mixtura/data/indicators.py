"""Categories as numbers; NumPy is all that this needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.data.lazy import Found, LazyRows, chunks_of, shared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Categories of a column that have an indicator; rarer ones count as the most frequent one.
_MOST_INDICATORS = 20
_SCAN_ROWS = 16_384


@dataclass(frozen=True)
class Indicators:
    """Columns of numbers, and of categories the indicators of all but the most frequent one.

    A column in which all rows have the same category has the indicator of that one.

    Attributes
    ----------
    column : (P,) the column that each number comes from.
    code : (P,) the category that an indicator tells; -1 for the number itself.
    frequent : (D,) the most frequent category of each column; -1 for numbers.
    n_columns : how many columns there are.
    """

    column: np.ndarray
    code: np.ndarray
    frequent: np.ndarray
    n_columns: int

    @classmethod
    def learn(cls, values: np.ndarray | LazyRows, weight: np.ndarray, levels: np.ndarray) -> Self:
        """Of codes and numbers (n, D), with so many categories (D,) per column, 0 for numbers.

        How frequent categories are goes by the weights (n,) of rows.
        """
        counts = [np.zeros(level) for level in levels]
        for at, rows in chunks_of(values, _SCAN_ROWS) if any(levels) else ():
            for place in np.flatnonzero(levels).tolist():
                seen = ~np.isnan(rows[:, place])
                codes, mass = rows[seen, place].astype(int), weight[at][seen]
                counts[place] += np.bincount(codes, mass, minlength=levels[place])
        pairs: list[tuple[int, int]] = []
        frequent = np.full(len(levels), -1, dtype=np.int64)
        for place, parts in enumerate(zip(*shared(values, counts), strict=True)):
            count = np.sum(parts, axis=0)
            if not len(count):
                pairs.append((place, -1))
                continue
            frequent[place], *order = np.argsort(-count, kind="stable")[: 1 + _MOST_INDICATORS]
            told = [(place, int(each)) for each in np.sort(order) if count[each]]
            pairs += told or [(place, int(frequent[place]))]
        column, code = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return cls(column, code, frequent, len(levels))

    def categories(self, column: int) -> np.ndarray:
        """The categories of a column that are told apart; none of numbers."""
        found = np.append(self.code[self.column == column], self.frequent[column])
        return np.sort(found[found >= 0])

    def apply(self, values: np.ndarray) -> np.ndarray:
        """(n, P) numbers; the indicators of a missing category are missing."""
        found = values[:, self.column]
        told = np.where(np.isnan(found), found, found == self.code)
        return np.where(self.code < 0, found, told).astype(values.dtype)

    def beside(self, values: ArrayLike, others: np.ndarray) -> ArrayLike:
        """(n, P + T) numbers, and other columns (n, T); lazy rows stay so."""
        if isinstance(values, LazyRows):
            return _Beside(values, others, self)
        return np.column_stack([self.apply(values), others])


class _Beside(LazyRows):
    """Lazy rows as numbers, and columns (n, T) that are in memory."""

    def __init__(self, inner: LazyRows, others: np.ndarray, indicators: Indicators) -> None:
        shape = len(inner), len(indicators.column) + others.shape[1]
        super().__init__(shape, np.dtype(np.float64))
        self._inner, self._others, self._indicators = inner, others, indicators
        known = inner.has_missing
        self.has_missing = True if np.isnan(others).any() else known

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def n_here(self) -> int:
        return self._inner.n_here

    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        return np.column_stack([self._indicators.apply(self._inner[index]), self._others[index]])

    def view(self, index: np.ndarray) -> Self:
        return type(self)(self._inner.view(index), self._others[index], self._indicators)

    def chunks(self, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
        for at, rows in self._inner.chunks(n_rows):
            yield at, np.column_stack([self._indicators.apply(rows), self._others[at]])

    def comes_whole(self, index: np.ndarray) -> bool:
        return self._inner.comes_whole(index)

    def shared(self, found: Found) -> list[Found]:
        return self._inner.shared(found)

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._inner.reduced(sums)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        return self._inner.minibatches(size, generator)
