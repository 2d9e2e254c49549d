"""Pairwise coupling: class probabilities from those of the pairs. NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixtura.exceptions import InvalidInputError

#: Probabilities of a pair keep so far away from 0 and 1.
_HAIR = 1e-12
_TOLERANCE, _SWEEPS = 1e-10, 1_000
#: Keeps Newton's matrix invertible; relative to the largest weight.
_RIDGE = 1e-14
#: Coupling makes arrays of about so many numbers.
_CHUNK = 2**21


def coupled(answers: Sequence[np.ndarray], pairs: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(n, C) class probabilities, from those (n, 2) of each of the pairs (P, 2) of classes.

    Classes have so many rows, `count` (C,).
    """
    r = np.full((len(answers[0]), len(count), len(count)), 0.5)
    for (i, j), proba in zip(pairs, answers, strict=True):
        r[:, i, j], r[:, j, i] = proba.T
    return couple(r, np.add.outer(count, count))


def couple(r: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Class probabilities that agree best with those of the pairs.

    They minimize the Kullback-Leibler divergence of Hastie and Tibshirani (1998), the sum over
    pairs of `weights_ij KL(r_ij || p_i / (p_i + p_j))`.

    Parameters
    ----------
    r : (n, C, C), `r_ij = P(i | i or j)`; the diagonal does not matter.
    weights : (C, C), symmetric: rows that each pair was learned from.

    Returns
    -------
    (n, C) probabilities.
    """
    r, weights = np.asarray(r, dtype=np.float64), np.array(weights, dtype=np.float64)
    n_classes = len(weights)
    if weights.shape != (n_classes, n_classes) or r.shape[1:] != weights.shape:
        raise InvalidInputError(
            f"r has the shape {r.shape} and weights {weights.shape}: give (n, C, C) and (C, C)."
        )
    pair = ~np.eye(n_classes, dtype=bool)
    if not ((r >= 0) & (r <= 1))[:, pair].all():
        raise InvalidInputError("r must hold probabilities, from 0 to 1.")
    if not ((weights > 0) & (weights == weights.T) & (weights < np.inf))[pair].all():
        raise InvalidInputError("weights must be positive, finite and symmetric.")
    if n_classes == 1:
        return np.ones((len(r), 1))
    weights = np.where(pair, weights / weights[pair].max(), 0.0)
    size = max(1, _CHUNK // n_classes**2)
    starts = range(0, max(len(r), 1), size)
    return np.concatenate([_couple(r[at : at + size], weights) for at in starts])


def _couple(r: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Newton's method for theta = log p, from the theta that fit the log-odds by least squares.

    The paper's own iteration crawls where several classes are improbable together. The divergence
    is generalized self-concordant in the differences of theta, so a step of range d shortened to
    log(1 + d) never overshoots (Sun and Tran-Dinh, 2019).
    """
    r = np.where(weights > 0, np.clip(r, _HAIR, 1.0 - _HAIR), 0.5)
    r /= r + r.swapaxes(1, 2)
    odds = np.log(r) - np.log(r.swapaxes(1, 2))
    theta = _solve(weights[None], (weights * odds).sum(2).T[None])[0].T
    proba, active = _softmax(theta), np.arange(len(r))
    for _ in range(_SWEEPS):
        if not len(active):
            break
        share = np.exp(-np.logaddexp(0.0, theta[active, None, :] - theta[active, :, None]))
        slope = (weights * (r[active] - share)).sum(2)
        step = _solve(weights * share * share.swapaxes(1, 2), slope[:, :, None])[:, :, 0]
        reach = np.ptp(step, axis=1, keepdims=True)
        theta[active] += step * np.log1p(reach) / np.maximum(reach, np.finfo(float).tiny)
        better = _softmax(theta[active])
        left = np.maximum(np.abs(better - proba[active]), np.abs(slope)).max(1)
        proba[active] = better
        active = active[left > _TOLERANCE]
    return proba


def _solve(links: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve with the Laplacian of (m, C, C) links; the solutions sum to about zero."""
    n_classes = links.shape[-1]
    matrix = np.eye(n_classes) * (links.sum(2)[:, :, None] + _RIDGE) - links
    return np.linalg.solve(matrix + 1.0 / n_classes, right)


def _softmax(values: np.ndarray) -> np.ndarray:
    raised = np.exp(values - values.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
