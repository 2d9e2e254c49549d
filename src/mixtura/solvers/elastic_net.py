"""Read-outs of mixture networks: an elastic net on what the components make of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from torch import Tensor

from mixtura.models.read_out import ReadOut
from mixtura.runtime.models import log_softmax
from mixtura.solvers.base import SpreadPrior

#: Losses (n,) of scores (n, C), and their derivatives by them.
Loss = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
#: Rounds the corner of |w| where a gradient is followed.
_CORNER = 1e-3


@dataclass(frozen=True)
class ElasticNet:
    """Penalties of the read-out's weights, beside the mean loss of the rows."""

    l1: float = 1e-3
    l2: float = 1e-3

    def fit(
        self,
        embedded: np.ndarray,
        owner: np.ndarray,
        loss: Loss,
        share: np.ndarray,
        start: tuple[np.ndarray, np.ndarray],
        tol: float = 1e-9,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights (K,) and biases (C,): L-BFGS-B on the positive and negative parts of weights.

        Parameters
        ----------
        embedded : (n, K).
        owner : (K,) the score that each weight belongs to.
        share : (n,) of each row in the mean.
        start : weights and biases to begin with.
        tol : it ends where an iteration gains a smaller share of the objective.
        """
        size, n_scores = len(owner), len(start[1])
        place = np.arange(size)

        def value_and_slope(point: np.ndarray) -> tuple[float, np.ndarray]:
            parts, bias = point[: 2 * size], point[2 * size :]
            weight = parts[:size] - parts[size:]
            read = np.zeros((size, n_scores))
            read[place, owner] = weight
            losses, slopes = loss(embedded @ read + bias)
            slopes = slopes * share[:, None]
            slope = (slopes.T @ embedded)[owner, place]
            value = share @ losses + self.l1 * parts.sum() + 0.5 * self.l2 * parts @ parts
            by_part = np.concatenate([slope, -slope]) + self.l1 + self.l2 * parts
            return float(value), np.concatenate([by_part, slopes.sum(0)])

        weight, bias = start
        found = minimize(
            value_and_slope,
            np.concatenate([weight.clip(min=0.0), (-weight).clip(min=0.0), bias]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (2 * size) + [(None, None)] * n_scores,
            options={"maxiter": 500, "ftol": tol, "gtol": 1e-6, "maxcor": 20},
        ).x
        return found[:size] - found[size : 2 * size], found[2 * size :]

    def penalty(self, weight: Tensor) -> Tensor:
        """What weights (..., K) cost; |w| is rounded at zero, so that gradients can be followed."""
        absolute = (weight.square() + _CORNER**2).sqrt() - _CORNER
        return (self.l1 * absolute + 0.5 * self.l2 * weight.square()).sum(-1)

    def slope(self, weight: Tensor) -> Tensor:
        """Its derivatives, (..., K)."""
        return weight * (self.l1 / (weight.square() + _CORNER**2).sqrt() + self.l2)


@dataclass(frozen=True)
class NetworkPrior:
    """Penalties of networks that are trained by gradient; (P,) rows of each."""

    net: ElasticNet
    rows: Tensor
    spread: SpreadPrior | None

    def penalty(self, network: ReadOut) -> Tensor:
        """As much as `rows` losses weigh."""
        total = self.rows * self.net.penalty(network.weight)
        return total if self.spread is None else total + self.spread.penalty(network.mixture)


def cross_entropy(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-log softmax of the own class."""
    rows = np.arange(len(labels))
    logs = log_softmax(scores)
    slope = np.exp(logs)
    slope[rows, labels] -= 1.0
    return -logs[rows, labels], slope


def squared_error(target: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half the squared difference."""
    off = scores - target[:, None]
    return 0.5 * off[:, 0] ** 2, off
