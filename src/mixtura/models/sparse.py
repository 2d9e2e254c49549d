"""Sparse discriminative mixtures: components that are log-linear in columns made of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.constants import FARTHEST_COLUMN
from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.models.columns import Kernels, Products
from mixtura.models.mixture import Layout
from mixtura.parts import storable

#: Numbers held per row and column, or coefficient.
_COPIES = 8


@storable
@dataclass(frozen=True)
class SparseModel:
    """p(c | x) = sum over the components k of class c of a softmax of log-linear functions.

    Attributes
    ----------
    basis : H columns made of a row.
    coef : (K, H) coefficients of the components.
    log_weight : (K,) of the components.
    layout : components of each class.
    root : (L, M), whose product with its transpose is the posterior covariance of the L
        coefficients that are not zero, row by row.
    moderate : whether it moderates the probabilities.
    """

    basis: Products | Kernels
    coef: Tensor
    log_weight: Tensor
    layout: Layout
    root: Tensor
    moderate: bool = True

    @property
    def n_coef(self) -> int:
        """Coefficients that are not zero."""
        return len(self.root)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> SparseModel:
        """Another device or floating type."""
        coef, log_weight, root = (
            each.to(device, dtype) for each in (self.coef, self.log_weight, self.root)
        )
        layout = Layout(self.layout.counts, coef.device)
        return replace(self, coef=coef, log_weight=log_weight, layout=layout, root=root)

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory per row."""
        n_classes = self.layout.n_classes
        return _COPIES * (len(self.basis) + n_classes * (1 + n_classes + self.n_coef))

    def class_log_joint(self, batch: Batch) -> Tensor:
        """log p(c | x), (n, C): there is no density of rows."""
        values = self._values(batch)
        joint = self._joint(values)
        by_class = self.layout.logsumexp(joint)
        if not self.moderate or not self.n_coef:
            return by_class.log_softmax(1)
        return _moderated(by_class, self._deviations(values, joint))

    def posterior(self, batch: Batch) -> Tensor:
        """p(component | x), (n, K); never moderated."""
        return self._joint(self._values(batch)).softmax(1)

    def _values(self, batch: Batch) -> Tensor:
        """(n, H) columns of the rows."""
        every = torch.arange(len(self.basis), device=batch.x.device)
        return self.basis.values(batch.x, every).clamp(-FARTHEST_COLUMN, FARTHEST_COLUMN)

    def _joint(self, values: Tensor) -> Tensor:
        """log p(component | x) up to a constant, (n, K), from the columns (n, H)."""
        return self.log_weight + values @ self.coef.T

    def _deviations(self, values: Tensor, joint: Tensor) -> Tensor:
        """(n, C, M): inner products of its rows are covariances of the class log-joints."""
        component, column = self.coef.nonzero(as_tuple=True)
        shares = (joint - self.layout.logsumexp(joint)[:, self.layout.owner]).exp()
        slopes = values[:, column] * shares[:, component]
        owner = self.layout.owner[component]
        masks = [owner == label for label in range(self.layout.n_classes)]
        return torch.stack([slopes[:, mask] @ self.root[mask] for mask in masks], 1)


def _moderated(by_class: Tensor, deviations: Tensor) -> Tensor:
    """Class log-probabilities under uncertain log-joints.

    Every difference of two classes shrinks by MacKay's factor 1 / sqrt(1 + pi variance / 8); for
    two classes this is his moderated output.
    """
    covariance = deviations @ deviations.mT
    own = covariance.diagonal(dim1=1, dim2=2)
    variance = (own[:, :, None] + own[:, None, :] - 2.0 * covariance).clamp_min(0.0)
    difference = by_class[:, None, :] - by_class[:, :, None]
    shrunk = difference / (1.0 + math.pi / 8.0 * variance).sqrt()
    return (-shrunk.logsumexp(2)).log_softmax(1)
