"""How sure a model is: sets of classes that cover the true one as often as they promise.

Sets are conformal: a class belongs to the set of a row unless too few held-back rows got so low a
probability of their own class. What is missing changes how low probabilities are, so held-back
rows are masked as the row at hand is (Zaffran, Dieuleveut, Josse and Romano, 2023, Conformal
prediction with missing values).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from mixtura.data import Matrix
from mixtura.data.given import Device
from mixtura.models.fitted import Fitted
from mixtura.models.held_back import HeldBack
from mixtura.models.mixture import Mixture
from mixtura.selection.typical import models_without

#: Held-back rows that have all that the row at hand has; if they are fewer, the others join them.
_ENOUGH = 100
#: Rows that are asked about at a time.
_AT_ONCE = 50_000


def predict_set(
    model: Fitted, held_back: HeldBack, rows: Matrix, coverage: float, device: Device
) -> np.ndarray:
    """(n, C) whether each class is in the set of each row."""
    proba = np.exp(model.log_proba(model.engine(rows, device)))
    patterns, place = np.unique(~np.isnan(rows.values), axis=0, return_inverse=True)
    found = np.zeros(proba.shape, dtype=bool)
    if not held_back.models:
        held_back = _with_models(model, held_back, device)
    for number, (scores, weight) in enumerate(_scores(model, held_back, patterns, device)):
        mine = np.flatnonzero(place.ravel() == number)
        below = np.searchsorted(scores, proba[mine], side="right")
        mass = np.append(0.0, np.cumsum(weight))
        found[mine] = (1.0 + mass[below]) / (1.0 + mass[-1]) > 1.0 - coverage
    return found


def _scores(
    model: Fitted, held_back: HeldBack, patterns: np.ndarray, device: Device
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pattern: probabilities of held-back rows' own classes, ascending, and weights."""
    size = max(1, _AT_ONCE // len(held_back.y))
    complete = ~np.isnan(held_back.values)
    for start in range(0, len(patterns), size):
        some = patterns[start : start + size]
        for pattern, scores in zip(some, _own(model, held_back, some, device), strict=True):
            like = (complete | ~pattern).all(1)
            used = like if like.sum() >= _ENOUGH else np.ones_like(like)
            order = scores[used].argsort()
            yield scores[used][order], held_back.weight[used][order]


def _own(model: Fitted, held_back: HeldBack, patterns: np.ndarray, device: Device) -> np.ndarray:
    """(P, n) probabilities of held-back rows' own classes where they lack what a pattern lacks."""
    found = np.empty((len(patterns), len(held_back.y)))
    for number, own in enumerate(held_back.models):
        mine = np.flatnonzero(held_back.fold == number)
        judge = _judge(model, own)
        masked = np.where(patterns[:, None], held_back.values[mine], np.nan)
        rows = Matrix(masked.reshape(-1, masked.shape[2]))
        log_proba = judge.log_proba(judge.engine(rows, device))
        label = np.tile(held_back.y[mine], len(patterns))
        scores = np.exp(log_proba[np.arange(len(label)), label])
        found[:, mine] = scores.reshape(len(patterns), -1)
    return found


def _with_models(model: Fitted, held_back: HeldBack, device: Device) -> HeldBack:
    """The same with models that have not seen the rows of each fold."""
    engine = model.engine(Matrix(held_back.values), device, held_back.y)
    models = models_without(model.mixture, engine, held_back)
    return replace(held_back, models=tuple((each.to("cpu", torch.float64),) for each in models))


def _judge(model: Fitted, mixtures: tuple[Mixture, ...]) -> Fitted:
    """The model with mixtures in place of its own and of those averaged with it, if any."""
    if not mixtures:
        return model
    first, *others = mixtures
    blend = model.blend
    if blend is not None:
        members = zip(blend.members, others, strict=True)
        blend = replace(blend, members=tuple(replace(each, model=own) for each, own in members))
    return replace(model, model=first, blend=blend)
