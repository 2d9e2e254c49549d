"""Rows in a model's units, and what is asked of densities about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

#: Rows among which it is worth to look for shared holes; how many are to share them on average.
_MANY, _SHARED = 64, 4


@dataclass(frozen=True)
class Batch:
    """Rows in the model's units: x (n, D), zero where missing; observed and absent as in training.

    `observed` (n, D) is None where nothing is missing; `absent` (n, D) is 1 for absent, 0 for
    present, -1 for no telling, and None where all that is not observed is absent.
    """

    x: np.ndarray
    observed: np.ndarray | None
    absent: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def seen(self) -> np.ndarray:
        """(n, D) bool."""
        return np.ones(self.x.shape, dtype=bool) if self.observed is None else self.observed

    @cached_property
    def moments(self) -> np.ndarray:
        """(n, 3 D) squares, values and presences; (n, 2 D) where nothing is missing."""
        told = () if self.observed is None else (self.observed,)
        return np.concatenate([self.x * self.x, self.x, *told], 1)

    @cached_property
    def patterns(self) -> tuple[np.ndarray, np.ndarray | None]:
        """What is seen (P, D), and which of it each row has (n,): None where few rows share it."""
        if len(self) >= _MANY:
            bits = np.ascontiguousarray(np.packbits(self.seen, axis=1))
            words = bits.view(f"V{bits.shape[1]}").ravel()
            _, first, place = np.unique(words, return_index=True, return_inverse=True)
            if _SHARED * len(first) <= len(self):
                return self.seen[first], place
        return self.seen, None

    def take(self, index: np.ndarray) -> Batch:
        parts = (None if each is None else each[index] for each in (self.observed, self.absent))
        return Batch(self.x[index], *parts)

    def lacks(self) -> np.ndarray:
        """(n, D) as `absent`."""
        return (~self.seen).astype(np.int8) if self.absent is None else self.absent


class Density(Protocol):
    """K densities; components come first in all arrays."""

    @property
    def row_cost(self) -> int: ...
    @property
    def n_components(self) -> int: ...
    def log_prob(self, batch: Batch) -> np.ndarray: ...
    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray: ...
    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray: ...
