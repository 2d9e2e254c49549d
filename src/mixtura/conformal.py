"""Sets of classes, and intervals, that cover the truth as often as they promise. NumPy alone.

Sets are conformal: a class belongs to the set of a row unless too few held-back rows got so low a
probability of their own class. What is missing changes how low probabilities are, so held-back
rows are masked as the row at hand is (Zaffran, Dieuleveut, Josse and Romano, 2023, Conformal
prediction with missing values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

#: Held-back rows that have all that the row at hand has; if they are fewer, the others join them.
_ENOUGH = 100
#: Rows that are asked about at a time.
_AT_ONCE = 50_000

#: Class probabilities (n, C) of rows (n, D) in the user's units, NaN where missing.
Judge = Callable[[np.ndarray], np.ndarray]
#: Scores (n, ...) of what is true (n, ...) of rows (n, D): high where it is no surprise.
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Unseen(Protocol):
    """Rows (n, D), class indices (n,) or numbers (n, T), weights and folds (n,).

    A fold's model has not seen its rows.
    """

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
    own = [partial(_own, judge) for judge in judges]
    for number, (scores, weight) in enumerate(_scores(held_back, own, patterns)):
        mine, order = np.flatnonzero(place.ravel() == number), scores.argsort()
        below = np.searchsorted(scores[order], proba[mine], side="right")
        mass = np.append(0.0, np.cumsum(weight[order]))
        found[mine] = (1.0 + mass[below]) / (1.0 + mass[-1]) > 1.0 - coverage
    return found


def conformal_thresholds(
    observed: np.ndarray, held_back: Unseen, scores: Sequence[Score], coverage: float
) -> np.ndarray:
    """(n, T) scores that T numbers of rows must have to be inside; minus infinity: all are.

    Parameters
    ----------
    observed : (n, D) what is observed of the rows.
    scores : one per fold of the held-back rows; those of numbers that are not known are NaN.
    """
    patterns, place = np.unique(observed, axis=0, return_inverse=True)
    found = [
        [_threshold(each, weight, coverage) for each in own.T]
        for own, weight in _scores(held_back, scores, patterns)
    ]
    return np.array(found)[place.ravel()]


def _threshold(scores: np.ndarray, weight: np.ndarray, coverage: float) -> float:
    """What has a lower score is outside: too few held-back rows are as low."""
    known = ~np.isnan(scores)
    scores, weight = scores[known], weight[known]
    order = scores.argsort()
    mass = np.append(0.0, np.cumsum(weight[order]))
    n_outside = int(((1.0 + mass) / (1.0 + mass[-1]) <= 1.0 - coverage).sum())
    return float(np.concatenate([[-math.inf], scores[order], [math.inf]])[n_outside])


def _scores(
    held_back: Unseen, scores: Sequence[Score], patterns: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pattern: scores of held-back rows that lack what it lacks, and their weights."""
    size = max(1, _AT_ONCE // len(held_back.y))
    complete = ~np.isnan(held_back.values)
    for start in range(0, len(patterns), size):
        some = patterns[start : start + size]
        for pattern, found in zip(some, _masked(held_back, scores, some), strict=True):
            like = (complete | ~pattern).all(1)
            used = like if like.sum() >= _ENOUGH else np.ones_like(like)
            yield found[used], held_back.weight[used]


def _masked(held_back: Unseen, scores: Sequence[Score], patterns: np.ndarray) -> np.ndarray:
    """(P, n, ...) scores of held-back rows where they lack what a pattern lacks."""
    found = np.empty((len(patterns), *held_back.y.shape))
    for number, score in enumerate(scores):
        mine = np.flatnonzero(held_back.fold == number)
        masked = np.where(patterns[:, None], held_back.values[mine], np.nan)
        truth = np.concatenate([held_back.y[mine]] * len(patterns))
        own = score(masked.reshape(-1, masked.shape[2]), truth)
        found[:, mine] = own.reshape(len(patterns), *held_back.y[mine].shape)
    return found


def _own(judge: Judge, values: np.ndarray, label: np.ndarray) -> np.ndarray:
    """(n,) probabilities of the rows' own classes."""
    return judge(values)[np.arange(len(label)), label]
