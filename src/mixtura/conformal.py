"""Sets of classes that cover the true one as often as they promise. NumPy alone.

Sets are conformal: a class belongs to the set of a row unless too few held-back rows got so low a
probability of their own class. What is missing changes how low probabilities are, so held-back
rows are masked as the row at hand is (Zaffran, Dieuleveut, Josse and Romano, 2023, Conformal
prediction with missing values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

#: Held-back rows that have all that the row at hand has; if they are fewer, the others join them.
_ENOUGH = 100
#: Rows that are asked about at a time.
_AT_ONCE = 50_000

#: Class probabilities (n, C) of rows (n, D) in the user's units, NaN where missing.
Judge = Callable[[np.ndarray], np.ndarray]


class Unseen(Protocol):
    """Rows (n, D), class indices, weights and folds (n,): a fold's model has not seen its rows."""

    @property
    def values(self) -> np.ndarray: ...
    @property
    def y(self) -> np.ndarray: ...
    @property
    def weight(self) -> np.ndarray: ...
    @property
    def fold(self) -> np.ndarray: ...


def conformal_sets(
    proba: np.ndarray,
    observed: np.ndarray,
    held_back: Unseen,
    judges: Sequence[Judge],
    coverage: float,
) -> np.ndarray:
    """(n, C) whether each class is in the set of each row.

    Parameters
    ----------
    proba : (n, C) class probabilities of the rows.
    observed : (n, D) what is observed of them.
    judges : one per fold of the held-back rows.
    """
    patterns, place = np.unique(observed, axis=0, return_inverse=True)
    found = np.zeros(proba.shape, dtype=bool)
    for number, (scores, weight) in enumerate(_scores(held_back, judges, patterns)):
        mine = np.flatnonzero(place.ravel() == number)
        below = np.searchsorted(scores, proba[mine], side="right")
        mass = np.append(0.0, np.cumsum(weight))
        found[mine] = (1.0 + mass[below]) / (1.0 + mass[-1]) > 1.0 - coverage
    return found


def _scores(
    held_back: Unseen, judges: Sequence[Judge], patterns: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pattern: probabilities of held-back rows' own classes, ascending, and weights."""
    size = max(1, _AT_ONCE // len(held_back.y))
    complete = ~np.isnan(held_back.values)
    for start in range(0, len(patterns), size):
        some = patterns[start : start + size]
        for pattern, scores in zip(some, _own(held_back, judges, some), strict=True):
            like = (complete | ~pattern).all(1)
            used = like if like.sum() >= _ENOUGH else np.ones_like(like)
            order = scores[used].argsort()
            yield scores[used][order], held_back.weight[used][order]


def _own(held_back: Unseen, judges: Sequence[Judge], patterns: np.ndarray) -> np.ndarray:
    """(P, n) probabilities of held-back rows' own classes where they lack what a pattern lacks."""
    found = np.empty((len(patterns), len(held_back.y)))
    for number, judge in enumerate(judges):
        mine = np.flatnonzero(held_back.fold == number)
        masked = np.where(patterns[:, None], held_back.values[mine], np.nan)
        proba = judge(masked.reshape(-1, masked.shape[2]))
        label = np.tile(held_back.y[mine], len(patterns))
        found[:, mine] = proba[np.arange(len(label)), label].reshape(len(patterns), -1)
    return found
