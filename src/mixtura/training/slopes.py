"""One component per class, all of the same spread: what tells classes apart is linear in rows."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_array, vstack
from scipy.special import log_softmax
from torch import Tensor

from mixtura.densities import DiagonalGaussian
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.progress import Progress

#: Variance that means are expected to have, those of classes around a middle, and the middle around
#: that of rows; iterations that find them, and the share of the loss that ends these.
_APART, _TOGETHER, _ITERATIONS, _TOL = 0.05, 0.1, 100, 1e-4
#: Rows that are taken over at a time.
_ROWS = 2_048


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
    batch = engine.only(engine.labeled).all_rows()
    y, weight = batch.y.cpu().numpy(), batch.weight.double().cpu().numpy()
    prior = log_prior.double().cpu().numpy()
    known = prior[None]
    if evidence is not None:
        known = known + evidence.log_prob(hole_patterns(batch)).cpu().numpy()
    x, lacks = _sparse(batch.x), csr_array(batch.x.shape, dtype=np.float32)
    if batch.observed is not None:
        lacks = _sparse(~batch.observed)
    mass = np.maximum(weight.sum() - weight @ lacks, np.finfo(np.float64).tiny)
    center, own = (weight @ x) / mass, np.eye(len(prior))[y]
    # Steps of like size: what few rows have is known less.
    unit = 1.0 / np.sqrt(1.0 / _APART + 0.25 * (weight @ x.power(2)))

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        by_class = free.reshape(-1, x.shape[1])
        slope, moved = by_class[:-1] * unit, by_class[-1]
        middle = center + moved
        told = slope * (middle + 0.5 * slope)
        score = x @ _single(slope).T + (lacks @ _single(told).T + (known - told.sum(1)))
        found = log_softmax(score.astype(np.float64), axis=1)
        off = (np.exp(found) - own) * weight[:, None]
        narrow = _single(off)
        shown = off.sum(0)[:, None] - (lacks.T @ narrow).T
        by_slope = (x.T @ narrow).T - shown * (middle + slope) + slope / _APART
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


def _sparse(values: Tensor) -> csr_array:
    """(n, D) numbers in single precision, most of which are zero."""
    return vstack([csr_array(each.float().cpu().numpy()) for each in values.split(_ROWS)], "csr")


def _single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)
