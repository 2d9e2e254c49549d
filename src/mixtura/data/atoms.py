"""Values that many rows share: each has a probability of its own, where others have a density."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mixtura.constants import SAME
from mixtura.data.curves import told_values
from mixtura.parts import storable

#: A value is such a one if so large a share of the rows has it, so many rows, and so many times as
#: many as the next one; and if there are so many others.
_SHARE, _ROWS, _TIMES, _OTHERS = 0.1, 20.0, 3.0, 3
#: What ends the name of a map whose columns have them.
SUFFIX = "+atoms"
#: One tuple per column.
Values = tuple[tuple[float, ...], ...]


@storable
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

    def codes(self, x: Tensor) -> Tensor:
        """(n, A) which of the values of its column each entry of x (n, D) is; 0 for none."""
        values = _padded(self.values, x.device)
        away = (x[:, self.index(x.device), None].double() - values).abs()
        number = torch.arange(1, values.shape[1] + 1, device=x.device)
        return ((away <= SAME * values.abs().clamp_min(1.0)) * number).amax(2)

    def held(self, x: Tensor, codes: Tensor | None = None) -> Tensor:
        """(n, D) which entries of x have such a value; by codes (n, A), where these are known."""
        codes = self.codes(x) if codes is None else codes
        blank = torch.zeros_like(x, dtype=torch.bool)
        return blank.index_copy_(1, self.index(x.device), codes > 0)

    def placed(self, x: Tensor, codes: Tensor, values: Values) -> Tensor:
        """Rows x (n, D) with the values that have codes (n, A) in their places."""
        table, index = _padded(values, x.device).to(x.dtype), self.index(x.device)
        own = table.gather(1, (codes.long().mT - 1).clamp_min(0)).mT
        return x.index_copy(1, index, torch.where(codes > 0, own, x[:, index]))

    def index(self, device: torch.device) -> Tensor:
        """(A,) the columns."""
        return index_of(self.columns, device)


@lru_cache(maxsize=256)
def index_of(columns: tuple[int, ...], device: torch.device) -> Tensor:
    """(d,) the columns, as a tensor on a device."""
    with torch.inference_mode(False):  # whoever asks first, gradients may need it later
        return torch.tensor(columns, dtype=torch.long, device=device)


@lru_cache(maxsize=256)
def _padded(values: Values, device: torch.device) -> Tensor:
    """(A, M), NaN where a column has fewer."""
    most = max(map(len, values))
    rows = [[*each, *[torch.nan] * (most - len(each))] for each in values]
    with torch.inference_mode(False):
        return torch.tensor(rows, dtype=torch.float64, device=device)


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
