"""Values that many rows share: each has a probability of its own, where others have a density."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mixtura.constants import SAME
from mixtura.data.curves import told_values

#: A value is such a one if so large a share of the rows has it, so many rows, and so many times as
#: many as the next one; and if there are so many others.
_SHARE, _ROWS, _TIMES, _OTHERS = 0.1, 20.0, 3.0, 3
#: What ends the name of a map whose columns have them.
SUFFIX = "+atoms"
#: One tuple per column.
Values = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Atoms:
    """Values of columns that have probabilities.

    Attributes
    ----------
    columns : those that have such values, ascending.
    values : of each of them, in the model's units.
    shown : the same in the user's units.
    """

    columns: tuple[int, ...]
    values: Values
    shown: Values

    @property
    def levels(self) -> tuple[int, ...]:
        """How many codes each of the columns has: one per value, and 0 for all others."""
        return tuple(1 + len(values) for values in self.values)

    @cached_property
    def index(self) -> np.ndarray:
        """(A,) the columns."""
        return np.array(self.columns, dtype=np.int64)

    @cached_property
    def table(self) -> np.ndarray:
        """(2, A, M) the values in the model's units and in the user's, NaN in empty places."""
        most = max(map(len, self.values))
        blank = (np.nan,) * most
        return np.array([[(*v, *blank)[:most] for v in each] for each in (self.values, self.shown)])

    def codes(self, x: np.ndarray) -> np.ndarray:
        """(n, A) which of the values of its column each entry of x (n, D) is; 0 for none."""
        values = self.table[0]
        hit = np.abs(x[:, self.index, None] - values) <= SAME * np.maximum(np.abs(values), 1.0)
        return (hit * np.arange(1, values.shape[1] + 1)).max(2)

    def held(self, x: np.ndarray) -> np.ndarray:
        """(n, D) which entries have such a value."""
        found = np.zeros(x.shape, dtype=bool)
        found[:, self.index] = self.codes(x) > 0
        return found

    def restored(self, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Rows in the user's units, to the digit where x (n, D) has such values."""
        codes, found = self.codes(x), rows.copy()
        own = self.table[1][np.arange(len(self.index)), codes - 1]
        found[:, self.index] = np.where(codes > 0, own, rows[:, self.index])
        return found


def shared_values(
    X: np.ndarray, weight: np.ndarray, levels: np.ndarray
) -> dict[int, tuple[float, ...]]:
    """By column, the values of X (n, D) that many rows share, of those that hold numbers."""
    found = {}
    for place, column in enumerate(X.T):
        if not levels[place]:
            values, rows = told_values(column, weight)
            shared = _common(rows)
            if len(shared):
                found[place] = tuple(values[np.sort(shared)].tolist())
    return found


def n_patterns(X: np.ndarray, shared: dict[int, tuple[float, ...]]) -> int:
    """In how many different sets of columns rows of X (n, D) have such values."""
    held = [np.isin(X[:, column], values) for column, values in shared.items()]
    return len(np.unique(np.packbits(held, axis=0), axis=1).T) if held else 1


def _common(rows: np.ndarray) -> np.ndarray:
    """Places of values that so many rows share, from the rows (by weight) of each value."""
    order = np.argsort(-rows, kind="stable")
    most = rows[order[: max(len(rows) - _OTHERS, 0)]]
    many = most >= max(_SHARE * rows.sum(), _ROWS)
    apart = many & (most >= _TIMES * rows[order[1 : len(most) + 1]])
    return order[: apart.nonzero()[0].max(initial=-1) + 1]
