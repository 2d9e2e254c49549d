"""One component per class, all of the same spread: what tells classes apart is linear in rows."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csc_array, csr_array, vstack
from scipy.special import log_softmax
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import DiagonalGaussian
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.progress import Progress

#: Variance that means are expected to have, those of classes around a middle, and the middle around
#: that of rows; iterations that find them, and the share of the loss that ends these.
_APART, _TOGETHER, _ITERATIONS, _TOL = 0.05, 0.1, 100, 1e-4
#: Rows that are taken over at a time; classes of which there are few: more are worked on at once,
#: in single precision.
_ROWS, _FEW = 512, 5


def by_slopes(
    engine: Engine,
    log_prior: Tensor,
    evidence: HoleEvidence | None = None,
    progress: Progress | None = None,
) -> Mixture:
    """Components of variance one, whose means (C, D) make the labels of rows most probable.

    They lie near each other, unless labels say otherwise. What a row lacks tells nothing, and where
    it lacks all, the prior is left: what holes tell of labels is the evidence's, and no mean's.
    Most numbers of rows are to be zero.
    """
    prior = log_prior.double().cpu().numpy()
    dtype = torch.float64 if len(prior) <= _FEW else torch.float32
    x, lacks, y, weight, told_by_holes, squares = _all_shown(engine, evidence, dtype)
    known = prior + told_by_holes
    mass = np.maximum(weight.sum() - weight @ lacks, np.finfo(np.float64).tiny)
    center, own = (weight @ x) / mass, np.eye(len(prior))[y]
    # Steps of like size: what few rows have is known less.
    unit = 1.0 / np.sqrt(1.0 / _APART + 0.25 * squares)

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        by_class = free.reshape(-1, x.shape[1])
        slope, moved = by_class[:-1] * unit, by_class[-1]
        middle = center + moved
        told = slope * (middle + 0.5 * slope)
        score = _contrasts(x, slope) + _contrasts(lacks, told) + (known - told.sum(1))
        found = log_softmax(score, axis=1)
        off = (np.exp(found) - own) * weight[:, None]
        shown = off.sum(0)[:, None] - _sums(lacks, off)
        by_slope = _sums(x, off) - shown * (middle + slope) + slope / _APART
        by_middle = moved / _TOGETHER - (shown * slope).sum(0)
        held = 0.5 * ((slope * slope).sum() / _APART + moved @ moved / _TOGETHER)
        gradient = np.append(by_slope * unit, by_middle)
        return held - float(weight @ found[np.arange(len(y)), y]), gradient

    def in_time(_: np.ndarray) -> None:
        if progress is not None and progress.seconds_left <= 0.0:
            raise StopIteration

    start, options = np.zeros((len(prior) + 1) * x.shape[1]), {"maxiter": _ITERATIONS, "ftol": _TOL}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options, callback=in_time)
    best = found.x.reshape(-1, x.shape[1])
    mean = torch.from_numpy(best[:-1] * unit + (center + best[-1]))
    density = DiagonalGaussian(mean=mean, variance=torch.ones_like(mean), floor=1.0)
    layout, weights = Layout([1] * len(prior)), torch.zeros(len(prior), dtype=torch.float64)
    return Mixture(density, weights, layout, torch.from_numpy(prior))


_Shown = tuple[csr_array, csr_array, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _all_shown(engine: Engine, evidence: HoleEvidence | None, dtype: torch.dtype) -> _Shown:
    """Labeled rows (n, D), most of whose numbers are zero, what they lack (n, D), labels, weights
    (n,), what their holes tell (n, C), or nothing (n, 1); and weighted sums of squares (D,)."""
    parts = [_shown(each.take(each.y >= 0), evidence, dtype) for each in engine.chunks(_ROWS)]
    x, lacks, y, weight, told, squares = zip(*parts, strict=True)
    joined = (np.concatenate(each) for each in (y, weight, told))
    return vstack(x, "csr"), vstack(lacks, "csr"), *joined, np.sum(squares, 0)


def _shown(batch: Batch, evidence: HoleEvidence | None, dtype: torch.dtype) -> _Shown:
    """The same of a few."""
    lacks, told = csr_array(batch.x.shape, dtype=np.float32), np.zeros((len(batch), 1))
    if batch.observed is not None:
        lacks = csr_array((~batch.observed).to("cpu", dtype).numpy())
    if evidence is not None:
        told = evidence.log_prob(hole_patterns(batch)).cpu().numpy()
    x, weight = csr_array(batch.x.to("cpu", dtype).numpy()), batch.weight.double().cpu().numpy()
    return x, lacks, batch.y.cpu().numpy(), weight, told, weight @ x.power(2)


def _contrasts(rows: csr_array, slope: np.ndarray) -> np.ndarray:
    """(n, C) products of rows (n, D) with slopes (C, D), less that with the first: as probable."""
    return np.pad(_product(rows, (slope[1:] - slope[0]).T), ((0, 0), (1, 0)))


def _sums(rows: csr_array, off: np.ndarray) -> np.ndarray:
    """(C, D) sums of rows (n, D), each as much as it is off (n, C), over classes by nothing."""
    others = _product(rows.T, off[:, 1:]).T
    return np.vstack([-others.sum(0), others])


def _product(sparse: csr_array | csc_array, dense: np.ndarray) -> np.ndarray:
    """(n, k) in the precision of the sparse side; few columns one by one: half of the time."""
    dense = dense.astype(sparse.dtype)
    if not 0 < dense.shape[1] < _FEW:
        return np.asarray(sparse @ dense)
    return np.column_stack([sparse @ column for column in dense.T.copy()])
