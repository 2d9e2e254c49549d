"""One component per class, all of the same spread: what tells classes apart is linear in rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csc_array, csr_array, vstack
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import DiagonalGaussian
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.progress import Progress
from mixtura.runtime.models import log_softmax

#: Variance that means are expected to have, those of classes around a middle, and the middle around
#: that of rows; iterations that find them, and the share of the loss that ends these.
_APART, _TOGETHER, _ITERATIONS, _TOL = 0.05, 0.1, 100, 1e-4
#: Rows that are taken over at a time; classes of which there are few: of more, sparse rows are
#: worked on at once, in single precision.
_ROWS, _FEW = 512, 5

_Numbers: TypeAlias = csr_array | np.ndarray


def by_slopes(
    engine: Engine,
    log_prior: Tensor,
    evidence: HoleEvidence | None = None,
    progress: Progress | None = None,
) -> Mixture:
    """Components of variance one, whose means (C, D) make the labels of rows most probable.

    They lie near each other, unless labels say otherwise. What a row lacks tells nothing, and where
    it lacks all, the prior is left: what holes tell of labels is the evidence's, and no mean's.
    """
    prior = log_prior.double().cpu().numpy()
    rows, squares = _all_shown(engine, evidence, len(prior))
    mass = np.full(rows.x.shape[1], rows.weight.sum())
    if rows.lacks is not None:
        mass -= rows.weight @ rows.lacks
    center = (rows.weight @ rows.x) / np.maximum(mass, np.finfo(np.float64).tiny)
    # Steps of like size: what few rows have is known less.
    unit = 1.0 / np.sqrt(1.0 / _APART + 0.25 * squares)

    def in_time(_: np.ndarray) -> None:
        if progress is not None and progress.seconds_left <= 0.0:
            raise StopIteration

    begin, given = np.zeros((len(prior) + 1) * len(center)), (rows, prior, center, unit)
    options = {"maxiter": _ITERATIONS, "ftol": _TOL}
    limits = {"jac": True, "method": "L-BFGS-B", "options": options, "callback": in_time}
    best = minimize(_loss, begin, given, **limits).x.reshape(-1, len(center))
    mean = torch.from_numpy(best[:-1] * unit + (center + best[-1]))
    density = DiagonalGaussian(mean=mean, variance=torch.ones_like(mean), floor=1.0)
    layout, weights = Layout([1] * len(prior)), torch.zeros(len(prior), dtype=torch.float64)
    return Mixture(density, weights, layout, torch.from_numpy(prior))


class _Rows(NamedTuple):
    """Labeled rows (n, D), and what they lack (n, D), if anything; labels and weights (n,); and
    what their holes tell (n, C), or nothing (n, 1)."""

    x: _Numbers
    lacks: _Numbers | None
    y: np.ndarray
    weight: np.ndarray
    told: np.ndarray


def _loss(
    free: np.ndarray, rows: _Rows, prior: np.ndarray, center: np.ndarray, unit: np.ndarray
) -> tuple[float, np.ndarray]:
    """Minus the log probability of labels and of slopes, and its derivatives by these (C + 1, D),
    those of classes in units and that of the middle, which is moved from the center."""
    by_class = free.reshape(-1, len(center))
    slope, moved = by_class[:-1] * unit, by_class[-1]
    middle = center + moved
    told = slope * (middle + 0.5 * slope)
    score = _contrasts(rows.x, slope) + (prior + rows.told - told.sum(1))
    if rows.lacks is not None:
        score += _contrasts(rows.lacks, told)
    place = np.arange(len(rows.y)), rows.y
    found = log_softmax(score)
    off = np.exp(found)
    off[place] -= 1.0
    off *= rows.weight[:, None]
    shown = np.repeat(off.sum(0)[:, None], len(center), 1)
    if rows.lacks is not None:
        shown -= _sums(rows.lacks, off)
    by_slope = _sums(rows.x, off) - shown * (middle + slope) + slope / _APART
    by_middle = moved / _TOGETHER - (shown * slope).sum(0)
    held = 0.5 * ((slope * slope).sum() / _APART + moved @ moved / _TOGETHER)
    return held - float(rows.weight @ found[place]), np.append(by_slope * unit, by_middle)


def _all_shown(
    engine: Engine, evidence: HoleEvidence | None, n_classes: int
) -> tuple[_Rows, np.ndarray]:
    """The labeled rows, and weighted sums (D,) of their squares."""
    known, (taken, join) = engine.only(engine.labeled), _sparse_or_not(engine, n_classes)
    parts = [_shown(each, evidence, taken) for each in known.chunks(_ROWS)]
    squares = np.sum([each.weight @ (each.x * each.x) for each in parts], 0)
    x, lacks, *others = zip(*parts, strict=True)
    held = join(lacks) if known.has_holes else None
    return _Rows(join(x), held, *map(np.concatenate, others)), squares


def _sparse_or_not(
    engine: Engine, n_classes: int
) -> tuple[Callable[[Tensor], _Numbers], Callable[..., _Numbers]]:
    """What takes over a few rows, and what joins these: most indicators are zero."""
    if engine.scaling.indicators is None:
        return _dense, np.concatenate
    dtype = torch.float64 if n_classes <= _FEW else torch.float32
    return partial(_sparse, dtype=dtype), partial(vstack, format="csr")


def _shown(
    batch: Batch, evidence: HoleEvidence | None, taken: Callable[[Tensor], _Numbers]
) -> _Rows:
    """The same of a few."""
    told = np.zeros((len(batch), 1))
    lacks = torch.zeros_like(batch.x) if batch.observed is None else ~batch.observed
    if evidence is not None:
        told = evidence.log_prob(hole_patterns(batch)).cpu().numpy()
    y, weight = batch.y.cpu().numpy(), batch.weight.double().cpu().numpy()
    return _Rows(taken(batch.x), taken(lacks), y, weight, told)


def _dense(rows: Tensor) -> np.ndarray:
    return rows.double().cpu().numpy()


def _sparse(rows: Tensor, dtype: torch.dtype) -> csr_array:
    """The same numbers; in half of the time that SciPy takes."""
    dense = rows.to("cpu", dtype).numpy()
    told = dense != 0.0
    place = np.flatnonzero(told)
    ends = np.append(0, np.cumsum(np.count_nonzero(told, axis=1))).astype(np.int32)
    columns = (place % dense.shape[1]).astype(np.int32)
    return csr_array((dense.ravel()[place], columns, ends), dense.shape)


def _contrasts(rows: _Numbers, slope: np.ndarray) -> np.ndarray:
    """(n, C) products of rows (n, D) with slopes (C, D), less that with the first: as probable."""
    return np.pad(_product(rows, (slope[1:] - slope[0]).T), ((0, 0), (1, 0)))


def _sums(rows: _Numbers, off: np.ndarray) -> np.ndarray:
    """(C, D) sums of rows (n, D), each as much as it is off (n, C), over classes by nothing."""
    others = _product(rows.T, off[:, 1:]).T
    return np.vstack([-others.sum(0), others])


def _product(rows: _Numbers | csc_array, dense: np.ndarray) -> np.ndarray:
    """(n, k) in the precision of the rows; few columns of sparse ones one by one: half the time."""
    dense = dense.astype(rows.dtype)
    if isinstance(rows, np.ndarray) or not 0 < dense.shape[1] < _FEW:
        return np.asarray(rows @ dense)
    return np.column_stack([rows @ column for column in dense.T.copy()])
