"""Mixture networks: mixtures embed a row, a log-linear read-out of the embedding decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from mixtura.data import UNLABELED, Batch
from mixtura.densities import Density
from mixtura.mixture import Mixture


def _posterior(mixture: Mixture, log_joint: Tensor) -> Tensor:
    """p(component | x, class): each class's sum to one."""
    return (log_joint - mixture.by_class(log_joint)[:, mixture.owner]).exp()


def _log_density(mixture: Mixture, log_joint: Tensor) -> Tensor:
    """log of weight times density, without the class prior."""
    return log_joint - mixture.layout.spread(mixture.log_prior).to(log_joint.dtype)


def _density(mixture: Mixture, log_joint: Tensor) -> Tensor:
    """Density as a share of the component's highest, which is a radial basis function."""
    peak = mixture.density.log_peak() + mixture.log_weight
    return (_log_density(mixture, log_joint) - peak.to(log_joint.dtype)).exp()


def _simplex(mixture: Mixture, log_joint: Tensor) -> Tensor:
    """The point of each class's simplex nearest to the log-joints: posteriors with true zeros."""
    parts = log_joint.split(list(mixture.layout.counts), 1)
    return torch.cat([_nearest_on_simplex(part) for part in parts], 1)


def _nearest_on_simplex(values: Tensor) -> Tensor:
    """Rows (n, k) shifted down, and cut off at zero, until they sum to one."""
    values = values - values.amax(1, keepdim=True)
    ranked = values.sort(1, descending=True).values
    place = torch.arange(1, values.shape[1] + 1, device=values.device)
    total = ranked.cumsum(1) - 1.0
    support = (ranked * place > total).sum(1, keepdim=True)
    threshold = total.gather(1, support - 1) / support
    return (values - threshold).clamp_min(0.0)


#: What components make of a row, from their log-joints (n, K).
EMBEDDINGS: dict[str, Callable[[Mixture, Tensor], Tensor]] = {
    "posterior": _posterior,
    "density": _density,
    "log_density": _log_density,
    "simplex": _simplex,
}
#: Embeddings that compare the components of a class; the others take each by itself.
RELATIVE = ("posterior", "simplex")


@dataclass(frozen=True)
class Network:
    """One mixture a class embeds a row; the score of a class reads its own embedding.

    p(c | x) = softmax_c(bias_c + sum over the components k of class c of weight_k * f_k(x)), and
    p(x) is that of all mixtures together: a joint model of rows and classes, for any objective.

    Attributes
    ----------
    mixture : the mixtures.
    weight : (K,).
    bias : (C,).
    embedding : one of `EMBEDDINGS`.
    shift, scale : (K,) units of the embedding.
    """

    mixture: Mixture
    weight: Tensor
    bias: Tensor
    embedding: str
    shift: Tensor
    scale: Tensor

    @classmethod
    def blank(cls, mixture: Mixture, embedding: str) -> Self:
        """A network that knows nothing of classes yet."""
        zero = torch.zeros_like(mixture.log_weight)
        bias = torch.zeros_like(mixture.log_prior)
        return cls(mixture, zero, bias, embedding, zero, torch.ones_like(zero))

    @property
    def density(self) -> Density:
        return self.mixture.density

    @property
    def n_classes(self) -> int:
        return self.mixture.n_classes

    @property
    def fewest(self) -> int:
        """Components of a class that its embedding needs to tell rows apart."""
        return 2 if self.embedding in RELATIVE else 1

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Another device or floating type."""
        read_out = (self.weight, self.bias, self.shift, self.scale)
        moved = replace(self, mixture=self.mixture.to(*args, **kwargs))
        return moved.with_read_out(*(part.to(*args, **kwargs).contiguous() for part in read_out))

    def embed(self, batch: Batch, log_joint: Tensor | None = None) -> Tensor:
        """(n, K) what the components make of each row.

        Densities of rows with different holes cannot be compared: such rows are filled in first.
        """
        if batch.observed is not None and self.embedding not in RELATIVE:
            batch, log_joint = self._filled(batch), None
        log_joint = self.mixture.log_joint(batch) if log_joint is None else log_joint
        found = EMBEDDINGS[self.embedding](self.mixture, log_joint)
        return (found - self.shift.to(found.dtype)) / self.scale.to(found.dtype)

    def _filled(self, batch: Batch) -> Batch:
        """The rows with what is missing in them replaced by what is expected."""
        unlabelled = replace(batch, y=torch.full(batch.y.shape, UNLABELED, device=batch.y.device))
        with torch.no_grad():
            filled = self.mixture.impute(unlabelled)
        return replace(batch, x=filled, observed=None, absent=batch.lacks())

    def scores(self, embedded: Tensor) -> Tensor:
        """(n, C) before the softmax."""
        weight, bias = self.weight.to(embedded.dtype), self.bias.to(embedded.dtype)
        return self.mixture.layout.total(embedded * weight) + bias

    def class_log_joint(self, batch: Batch) -> Tensor:
        """log p(x) + log p(c | x), (n, C)."""
        log_joint = self.mixture.log_joint(batch)
        scores = self.scores(self.embed(batch, log_joint))
        return log_joint.logsumexp(1, keepdim=True) + scores.log_softmax(1)

    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters of mixtures and read-out."""
        free = {f"mixture.{name}": value for name, value in self.mixture.free().items()}
        return {**free, "weight": self.weight, "bias": self.bias}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        prefix = "mixture."
        inner = {k.removeprefix(prefix): v for k, v in free.items() if k.startswith(prefix)}
        mixture = self.mixture.from_free(inner)
        return replace(self, mixture=mixture, weight=free["weight"], bias=free["bias"])

    def with_read_out(self, weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> Self:
        """The network with another read-out, of an embedding in other units."""
        return replace(self, weight=weight, bias=bias, shift=shift, scale=scale)

    def select(self, keep: Tensor) -> Self:
        """The network of the components at `keep`, ascending; every class keeps one at least."""
        kept = replace(self, mixture=self.mixture.select(keep))
        return kept.with_read_out(self.weight[keep], self.bias, self.shift[keep], self.scale[keep])


@dataclass(frozen=True)
class RegressionNetwork(Network):
    """One mixture, and a prediction instead of scores: the target is Gaussian around it."""

    def class_log_joint(self, batch: Batch) -> Tensor:
        """What objectives see: log p(x) and the prediction, (n, 2)."""
        log_joint = self.mixture.log_joint(batch)
        prediction = self.scores(self.embed(batch, log_joint))
        return torch.cat([log_joint.logsumexp(1, keepdim=True), prediction], 1)
