"""Rows of a table that have been read and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np

from mixtura.data.lazy import LazyRows

if TYPE_CHECKING:
    from mixtura.data.journal import Journal


class Readings(Protocol):
    """Rows of numbers, NaN where missing: those of tables, or frames of sequences."""

    @property
    def values(self) -> np.ndarray: ...
    def where(self, row: int) -> str: ...
    def without(self, far: np.ndarray) -> Self: ...


AnyReadings = TypeVar("AnyReadings", bound=Readings)


@dataclass(frozen=True)
class Matrix:
    """Rows that have been read and checked.

    Attributes
    ----------
    values : (n, D) numbers and codes of categories, NaN where missing; lazy rows act like an array.
    untold : (n, D) entries that are missing because the model could not know them: a column that is
        not there, a category never seen. None: there are none.
    journal : where sums over the rows are written down, if they are.
    """

    values: np.ndarray
    untold: np.ndarray | None = None
    journal: Journal | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: np.ndarray | slice) -> Matrix:
        """The rows that a mask, integers or a slice (of rows in memory) choose."""
        if isinstance(self.values, LazyRows):
            return replace(self, values=self.values.view(index))
        untold = None if self.untold is None else self.untold[index]
        return replace(self, values=self.values[index], untold=untold)

    def within(self, reach: np.ndarray) -> Matrix:
        """The rows with their first columns between two ends each (2, P)."""
        count = reach.shape[1]
        first = np.clip(self.values[:, :count], *reach)
        return replace(self, values=np.column_stack([first, self.values[:, count:]]))

    def where(self, row: int) -> str:
        """A row, in words."""
        return f"row {row}"

    def without(self, far: np.ndarray) -> Matrix:
        """The rows with nothing known of some entries, a mask (n, D)."""
        untold = far if self.untold is None else far | self.untold
        return replace(self, values=np.where(far, np.nan, self.values), untold=untold)
