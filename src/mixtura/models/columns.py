"""What a log-linear mixture looks at: products of a row's features, or its kernels to other rows.

Both kinds number their columns, and column 0 is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from sklearn.metrics.pairwise import pairwise_kernels
from torch import Tensor

from mixtura.exceptions import InvalidInputError
from mixtura.parts import storable

Kernel = str | Callable[..., np.ndarray]


@storable
@dataclass(frozen=True)
class Products:
    """Products of at most two features.

    Attributes
    ----------
    pairs : (H, 2), places in (1, x_1, ..., x_D) of the two factors of each column.
    """

    pairs: np.ndarray

    @classmethod
    def of(cls, kind: str, n_features: int) -> Products:
        """What the logarithm of a Gaussian is made of: "quadratic", "diagonal" or "linear".

        The constant comes first, then the features, then what is of degree two.
        """
        places = np.arange(n_features + 1)
        single = np.stack([np.zeros_like(places), places], 1)
        if kind == "linear":
            return cls(single)
        if kind == "diagonal":
            return cls(np.concatenate([single, np.stack([places[1:], places[1:]], 1)]))
        return cls(np.stack(np.triu_indices(n_features + 1), 1))

    def __len__(self) -> int:
        return len(self.pairs)

    def values(self, x: Tensor, columns: Tensor) -> Tensor:
        """(n, len(columns)) for rows x (n, D)."""
        left, right = torch.as_tensor(self.pairs, device=x.device)[columns].T
        lifted = torch.cat([torch.ones_like(x[:, :1]), x], 1)
        return lifted[:, left] * lifted[:, right]

    def select(self, columns: np.ndarray) -> Products:
        """Some of the columns."""
        return Products(self.pairs[columns])

    def names(self, features: list[str]) -> list[str]:
        """The columns in words: "1", "x0", "x0^2", "x0 x1"."""
        words = ["1", *features]
        return [
            words[b] if a == 0 else f"{words[a]}^2" if a == b else f"{words[a]} {words[b]}"
            for a, b in self.pairs
        ]


@storable
@dataclass(frozen=True)
class Kernels:
    """A constant, and the kernel to each of a number of centers.

    Attributes
    ----------
    centers : (R, D), in the units of the rows.
    kernel : "poly2" for (gamma x.x' + 1)^2, a name scikit-learn knows, or a function of two
        matrices.
    params : what else the kernel takes.
    """

    centers: np.ndarray
    kernel: Kernel
    params: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return 1 + len(self.centers)

    def values(self, x: Tensor, columns: Tensor) -> Tensor:
        """(n, len(columns)) for rows x (n, D)."""
        values = x.new_ones(len(x), len(columns))
        proper = columns > 0
        if proper.any():
            centers = self.centers[(columns[proper] - 1).cpu().numpy()]
            values[:, proper] = torch.as_tensor(self._evaluate(x.cpu().numpy(), centers)).to(x)
        return values

    def select(self, columns: np.ndarray) -> Kernels:
        """Some of the columns, the constant among them."""
        return replace(self, centers=self.centers[columns[1:] - 1])

    def _evaluate(self, X: np.ndarray, centers: np.ndarray) -> np.ndarray:
        values = self._pairs(X, centers)
        if values.shape != (len(X), len(centers)):
            raise InvalidInputError(
                f"the kernel gave an array of shape {values.shape} for {len(X)} and "
                f"{len(centers)} rows: it must take two matrices and give one value per pair."
            )
        if not np.isfinite(values).all():
            raise InvalidInputError(
                "the kernel gives values that are not finite: choose another kernel, or other "
                "kernel_params."
            )
        return values

    def _pairs(self, X: np.ndarray, centers: np.ndarray) -> np.ndarray:
        if callable(self.kernel):
            return np.asarray(self.kernel(X, centers, **self.params), dtype=np.float64)
        if self.kernel == "poly2":
            return (self.params.get("gamma", 1.0) * X @ centers.T + 1.0) ** 2
        if self.kernel.endswith("chi2") and min(X.min(), centers.min()) < 0.0:
            raise InvalidInputError(
                f"kernel={self.kernel!r} takes rows without negative values: set "
                "standardize=False, and give none."
            )
        return pairwise_kernels(X, centers, metric=self.kernel, **self.params)
