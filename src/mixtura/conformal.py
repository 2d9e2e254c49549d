"""Sets of classes, and intervals, that cover the truth as often as they promise. NumPy alone.

Sets are conformal: a class belongs to the set of a row unless too few held-back rows got so low a
probability of their own class. What is missing changes how low probabilities are, so held-back
rows are masked as the row at hand is (Zaffran, Dieuleveut, Josse and Romano, 2023, Conformal
prediction with missing values). Rows of a fold are compared with what the model of that fold says
of the row at hand (Vovk, 2015, Cross-conformal predictors): where few values are observed, models
say the same of many rows, and which model says a little more would decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling

#: Held-back rows that have all that the row at hand has; if they are fewer, the others join them.
_ENOUGH = 100
#: Rows that are asked about at a time.
_AT_ONCE = 50_000

#: A fitted model, a dataclass: its `model`, and in its `blend` those that are averaged with it.
AnyFitted = TypeVar("AnyFitted")
#: Scores (n, ...) of what is true (n, ...) of rows (n, D): high where it is no surprise.
Score = Callable[[AnyFitted, Matrix, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class HeldBack:
    """Labeled rows, in folds, and for each fold a model that has not seen its rows.

    Attributes
    ----------
    values : (n, D) in the user's units, categories as codes, NaN where missing.
    y : (n,) class indices; or (n, T) numbers, in the user's units.
    weight : (n,) of the rows, one on average.
    fold : (n,) number of the model that has not seen the row.
    models : for each fold the mixtures, or the network, of the rows of the others, in place of that
        of the fitted model and those that are averaged with it; none where the model itself has
        seen none of the rows. Empty where a step of EM without the rows of a fold tells them.
    units : for each fold those of the models that are averaged with the first, where they are other
        ones than of the fitted model; None elsewhere.
    total_weight, prior : of such a step: weight of all rows of training; imagined rows and their
        spread.
    """

    values: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    fold: np.ndarray
    models: tuple[tuple[ArrayLike, ...], ...] = ((),)
    units: tuple[tuple[Scaling | None, ...], ...] = ()
    total_weight: float = 0.0
    prior: tuple[float, ArrayLike] | None = None

    @classmethod
    def unseen(cls, values: np.ndarray, y: np.ndarray) -> HeldBack:
        """Rows that the model itself has not seen."""
        return cls(values, y, np.ones(len(y)), np.zeros(len(y), dtype=int))


def conformal_sets(
    fitted: AnyFitted,
    rows: Matrix,
    held_back: HeldBack,
    proba: Callable[[AnyFitted, Matrix], np.ndarray],
    coverage: float,
) -> np.ndarray:
    """(n, C) whether each class is in the set of each row; `proba` are class probabilities."""

    def score(own: AnyFitted, masked: Matrix, label: np.ndarray) -> np.ndarray:
        return proba(own, masked)[np.arange(len(label)), label]

    patterns, place = np.unique(~np.isnan(rows.values), axis=0, return_inverse=True)
    folds = range(len(held_back.models))
    given = [proba(_of_fold(fitted, held_back, fold), rows) for fold in folds]
    found = np.zeros(given[0].shape, dtype=bool)
    for number, (scores, used) in enumerate(_scores(fitted, held_back, score, patterns)):
        mine = np.flatnonzero(place.ravel() == number)
        weight, fold = held_back.weight[used], held_back.fold[used]
        below = sum(
            _mass_up_to(own[mine], scores[fold == each], weight[fold == each])
            for each, own in enumerate(given)
        )
        found[mine] = (1.0 + below) / (1.0 + weight.sum()) > 1.0 - coverage
    return found


def conformal_thresholds(
    fitted: AnyFitted, rows: Matrix, held_back: HeldBack, score: Score[AnyFitted], coverage: float
) -> np.ndarray:
    """(n, T) scores that T numbers of rows must have to be inside; minus infinity: all are.

    Scores of numbers that are not known are NaN.
    """
    patterns, place = np.unique(~np.isnan(rows.values), axis=0, return_inverse=True)
    found = [
        [_threshold(each, held_back.weight[used], coverage) for each in own.T]
        for own, used in _scores(fitted, held_back, score, patterns)
    ]
    return np.array(found)[place.ravel()]


def interval_around(
    fitted: AnyFitted,
    rows: Matrix,
    held_back: HeldBack,
    predicted: Callable[[AnyFitted, Matrix], np.ndarray],
    coverage: float,
) -> np.ndarray:
    """(n, 2) ends around what is `predicted`, (n,): as wide for all rows with the same holes."""

    def nearness(own: AnyFitted, masked: Matrix, y: np.ndarray) -> np.ndarray:
        return -np.abs(y - predicted(own, masked)[:, None])

    least = conformal_thresholds(fitted, rows, held_back, nearness, coverage)
    return predicted(fitted, rows)[:, None] + np.minimum(least, 0.0) * [1.0, -1.0]


def _threshold(scores: np.ndarray, weight: np.ndarray, coverage: float) -> float:
    """What has a lower score is outside: too few held-back rows are as low."""
    known = ~np.isnan(scores)
    scores, weight = scores[known], weight[known]
    order = scores.argsort()
    mass = np.append(0.0, np.cumsum(weight[order]))
    n_outside = int(((1.0 + mass) / (1.0 + mass[-1]) <= 1.0 - coverage).sum())
    return float(np.concatenate([[-math.inf], scores[order], [math.inf]])[n_outside])


def _scores(
    fitted: AnyFitted, held_back: HeldBack, score: Score[AnyFitted], patterns: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pattern: scores of held-back rows that lack what it lacks; which rows, (n,)."""
    size = max(1, _AT_ONCE // len(held_back.y))
    complete = ~np.isnan(held_back.values)
    for start in range(0, len(patterns), size):
        some = patterns[start : start + size]
        used = (complete | ~some[:, None]).all(2)
        used[used.sum(1) < _ENOUGH] = True
        masked = _masked(fitted, held_back, score, some, used)
        for own, found in zip(used, masked, strict=True):
            yield found[own], own


def _masked(
    fitted: AnyFitted,
    held_back: HeldBack,
    score: Score[AnyFitted],
    patterns: np.ndarray,
    used: np.ndarray,
) -> np.ndarray:
    """(P, n, ...) scores of held-back rows that are `used` (P, n) and lack what a pattern lacks."""
    found = np.empty((len(patterns), *held_back.y.shape))
    for number in range(len(held_back.models)):
        pattern, row = np.nonzero(used & (held_back.fold == number))
        masked = Matrix(np.where(patterns[pattern], held_back.values[row], np.nan))
        if len(row):
            own = _of_fold(fitted, held_back, number)
            found[pattern, row] = score(own, masked, held_back.y[row])
    return found


def _of_fold(fitted: AnyFitted, held_back: HeldBack, number: int) -> AnyFitted:
    """The fitted model with those that have not seen a fold in place of its own, if any."""
    models = held_back.models[number]
    if not models:
        return fitted
    (first, *others), blend = models, fitted.blend  # type: ignore[attr-defined]
    units = held_back.units[number] if held_back.units else ()
    if blend is not None:
        members = zip(blend.members, others, units or [None] * len(others), strict=True)
        found = (replace(m, model=own, scaling=unit or m.scaling) for m, own, unit in members)
        blend = replace(blend, members=tuple(found))
    return replace(fitted, model=first, blend=blend)  # type: ignore[type-var]


def _mass_up_to(values: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The weight of the scores (n,) that are no higher than each of the values (...)."""
    order = scores.argsort()
    mass = np.append(0.0, np.cumsum(weight[order]))
    return mass[np.searchsorted(scores[order], values, side="right")]
