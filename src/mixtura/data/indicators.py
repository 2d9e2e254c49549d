"""Categories as numbers; NumPy is all that this needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

#: Categories of a column that have an indicator; rarer ones count as the most frequent one.
_MOST_INDICATORS = 20


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
    def learn(cls, values: np.ndarray, weight: np.ndarray, levels: np.ndarray) -> Self:
        """Of codes and numbers (n, D), with so many categories (D,) per column, 0 for numbers.

        How frequent categories are goes by the weights (n,) of rows.
        """
        pairs: list[tuple[int, int]] = []
        frequent = np.full(len(levels), -1, dtype=np.int64)
        for place, level in enumerate(levels):
            if not level:
                pairs.append((place, -1))
                continue
            seen = ~np.isnan(values[:, place])
            count = np.bincount(values[seen, place].astype(int), weight[seen], minlength=level)
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
