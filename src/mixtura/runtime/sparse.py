"""Sparse models in NumPy, for prediction: twins of those of `mixtura.models.sparse`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mixtura.constants import FARTHEST_COLUMN
from mixtura.exceptions import UnsupportedError
from mixtura.runtime.batch import Batch
from mixtura.runtime.files import kind
from mixtura.runtime.models import Layout, log_softmax


def _poly(
    x: np.ndarray, centers: np.ndarray, gamma: float, degree: float = 3, coef0: float = 1.0
) -> np.ndarray:
    return (gamma * x @ centers.T + coef0) ** degree


#: Kernels, as scikit-learn names them, of rows (n, D) and centers (R, D).
_KERNELS: dict[str, Callable[..., np.ndarray]] = {
    "poly2": lambda x, centers, gamma=1.0: (gamma * x @ centers.T + 1.0) ** 2,
    "linear": lambda x, centers: x @ centers.T,
    "poly": _poly,
    "polynomial": _poly,
    "rbf": lambda x, centers, gamma: np.exp(-gamma * ((x[:, None] - centers) ** 2).sum(2)),
    "laplacian": lambda x, centers, gamma: np.exp(-gamma * np.abs(x[:, None] - centers).sum(2)),
    "sigmoid": lambda x, centers, gamma, coef0=1.0: np.tanh(gamma * x @ centers.T + coef0),
}


@kind
@dataclass(frozen=True)
class Products:
    pairs: np.ndarray

    @property
    def row_cost(self) -> int:
        return 2 * len(self.pairs)

    def values(self, x: np.ndarray) -> np.ndarray:
        """(n, H) of rows (n, D)."""
        lifted = np.concatenate([np.ones((len(x), 1)), x], 1)
        return lifted[:, self.pairs[:, 0]] * lifted[:, self.pairs[:, 1]]


@kind
@dataclass(frozen=True)
class Kernels:
    centers: np.ndarray
    kernel: str
    params: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not np.isfinite(self.centers).all():
            raise ValueError("its centers are not finite")
        if self.kernel not in _KERNELS:
            raise UnsupportedError(
                f"its kernel is {self.kernel!r}, and mixtura.runtime knows {sorted(_KERNELS)}: use "
                "mixtura.load, which needs PyTorch."
            )

    @property
    def row_cost(self) -> int:
        return self.centers.size

    def values(self, x: np.ndarray) -> np.ndarray:
        """(n, H) of rows (n, D)."""
        found = _KERNELS[self.kernel](x, self.centers, **self.params)
        return np.concatenate([np.ones((len(x), 1)), found], 1)


@kind
@dataclass(frozen=True)
class SparseModel:
    basis: Products | Kernels
    coef: np.ndarray
    log_weight: np.ndarray
    layout: Layout
    root: np.ndarray
    moderate: bool = True

    def __post_init__(self) -> None:
        if sum(self.layout.counts) != len(self.coef):
            raise ValueError(
                f"{len(self.coef)} components, where classes have {self.layout.counts}"
            )

    @property
    def row_cost(self) -> int:
        return self.basis.row_cost + len(self.layout.counts) * (self.root.size + self.coef.size)

    @cached_property
    def masks(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each class: columns and components of its coefficients, and their rows of `root`."""
        component, column = self.coef.nonzero()
        owner = self.layout.owner[component]
        return [
            (column[owner == label], component[owner == label], self.root[owner == label])
            for label in range(len(self.layout.counts))
        ]

    def class_log_joint(self, batch: Batch) -> np.ndarray:
        """log p(c | x), (n, C): there is no density of rows."""
        values = self.basis.values(batch.x).clip(-FARTHEST_COLUMN, FARTHEST_COLUMN)
        joint = self.log_weight + values @ self.coef.T
        by_class = self.layout.logsumexp(joint)
        if not self.moderate or not len(self.root):
            return log_softmax(by_class)
        shares = np.exp(joint - by_class[:, self.layout.owner])
        deviations = np.stack(
            [(values[:, at] * shares[:, own]) @ root for at, own, root in self.masks], 1
        )
        covariance = deviations @ deviations.swapaxes(1, 2)
        own = covariance.diagonal(0, 1, 2)
        variance = (own[:, :, None] + own[:, None, :] - 2.0 * covariance).clip(0.0)
        difference = by_class[:, None, :] - by_class[:, :, None]
        shrunk = difference / np.sqrt(1.0 + math.pi / 8.0 * variance)
        return log_softmax(-np.logaddexp.reduce(shrunk, axis=2))
