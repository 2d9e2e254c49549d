"""Class mixtures: weights, one stack of densities, and the class that owns each component."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import Density, Statistics
from mixtura.densities.base import inside, nested
from mixtura.numerics import exp_or_zero, logsumexp
from mixtura.parts import storable

_MOST_COMPONENTS = 10_000_000
_INNER = "density."


def padded_slots(counts: Sequence[int]) -> Tensor | None:
    """(C, largest class) component of each slot, K for the empty ones; None where none is empty."""
    if len(set(counts)) == 1:
        return None
    count, place = torch.tensor(counts)[:, None], torch.arange(max(counts))
    return torch.where(place < count, count.cumsum(0) - count + place, sum(counts))


@storable
class Layout:
    """Which class owns which component: ascending, and classes may own different numbers."""

    def __init__(self, counts: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.counts = tuple(int(count) for count in counts)
        self.n_classes, self.n_components = len(self.counts), sum(self.counts)
        if self.n_components > _MOST_COMPONENTS:  # no model has so many; a forged file may say so
            raise ValueError(f"{self.n_components} components are more than a model may have")
        labels = torch.arange(self.n_classes)
        self.owner = labels.repeat_interleave(torch.tensor(self.counts)).to(device)
        membership = torch.nn.functional.one_hot(self.owner, self.n_classes)
        self._membership = {dtype: membership.to(dtype) for dtype in (torch.float32, torch.float64)}
        slots = padded_slots(self.counts)
        self._slots = None if slots is None else slots.to(device)

    def stored(self) -> dict[str, object]:
        """What it is made from, for a file."""
        return {"counts": self.counts}

    def logsumexp(self, values: Tensor) -> Tensor:
        """Sums within each class, in logs: (n, K) -> (n, C)."""
        if self.n_components == self.n_classes:
            return values
        if self._slots is None:
            return logsumexp(values.view(len(values), self.n_classes, -1), 2)
        padded = torch.nn.functional.pad(values, (0, 1), value=-torch.inf)
        return logsumexp(padded[:, self._slots.flatten()].view(-1, *self._slots.shape), 2)

    def softmax(self, values: Tensor) -> Tensor:
        """Shares within each class of what values (n, K) are the logs of."""
        if self._slots is None:
            apart = values.view(len(values), self.n_classes, -1)
            share = exp_or_zero(apart - apart.amax(2, keepdim=True))  # half of softmax's time
            return (share / share.sum(2, keepdim=True)).view_as(values)
        return exp_or_zero(values - self.by_component(self.logsumexp(values)))

    def sum(self, values: Tensor) -> Tensor:
        """Sums within each class: (..., K) -> (..., C)."""
        return values @ self._membership[values.dtype]

    def by_component(self, values: Tensor) -> Tensor:
        """Each class's value at its components: (..., C) -> (..., K)."""
        return values @ self._membership[values.dtype].mT


class OneProblem:
    """A model that learns from all rows, by their labels."""

    n_problems: ClassVar[int] = 1

    def asked(self, batch: Batch | SequenceBatch) -> tuple[Tensor, Tensor]:
        """Labels and weights of the rows, (n,)."""
        return batch.y, batch.weight

    def total_weight(self, y: Tensor, weight: Tensor) -> Tensor:
        """(1,) what all rows weigh."""
        return weight.sum(0, keepdim=True)


@dataclass(frozen=True)
class Weighted:
    """Components with weights within classes, and class priors: of a mixture, or of several.

    Leading dimensions of weights and priors go over mixtures, if there are several.
    """

    density: Density
    log_weight: Tensor
    layout: Layout
    log_prior: Tensor
    learn_prior: bool = True

    @property
    def n_classes(self) -> int:
        return self.layout.n_classes

    @cached_property
    def log_joint_weight(self) -> Tensor:
        """log of class prior times component weight, (..., K)."""
        return self.log_weight + self.layout.by_component(self.log_prior)

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory for one row."""
        return self.density.row_cost(missing)

    def log_joint(self, batch: Batch | SequenceBatch) -> Tensor:
        """Component log-joint: log p(x, c, k), (n, K); of P mixtures (n * P, K)."""
        return self.weighted(self.density.log_prob(batch))

    def weighted(self, log_prob: Tensor) -> Tensor:
        """Component log-joint of the log densities of all components (n, ...)."""
        weight = self.log_joint_weight
        return (log_prob + weight.flatten().to(log_prob.dtype)).reshape(-1, weight.shape[-1])

    def by_class(self, log_joint: Tensor) -> Tensor:
        """Class log-joint (n, C) of component log-joints (n, K)."""
        return self.layout.logsumexp(log_joint)

    def outputs(self, batch: Batch | SequenceBatch) -> Tensor:
        """What objectives look at: the class log-joint, (n, C)."""
        return self.by_class(self.log_joint(batch))

    def with_masses(self, density: Density, mass: Tensor) -> Self:
        """Another density; weights and priors are proportional to masses of all components >= 0."""
        tiny, mass = torch.finfo(mass.dtype).tiny, mass.view_as(self.log_weight)
        weight, prior = self.normalize_weight(mass.clamp_min(tiny).log()), self.log_prior
        if self.learn_prior:
            by_class = self.layout.sum(mass)
            prior = (by_class / by_class.sum(-1, keepdim=True)).clamp_min(tiny).log()
        return replace(self, density=density, log_weight=weight, log_prior=prior)

    def normalize_weight(self, log_weight: Tensor) -> Tensor:
        """Log weights (..., K) that sum to one within each class."""
        total = self.by_class(log_weight.view(-1, log_weight.shape[-1])).view_as(self.log_prior)
        return log_weight - self.layout.by_component(total)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Another device or floating type."""
        weight, layout = self.log_weight.to(device, dtype), self.layout
        if weight.device != layout.owner.device:
            layout = Layout(layout.counts, weight.device)
        return replace(
            self,
            density=self.density.to(device, dtype),
            log_weight=weight,
            layout=layout,
            log_prior=self.log_prior.to(device, dtype),
        )

    def summed(self, values: Tensor) -> Tensor:
        """Sums over the components of each mixture: of values of all components, (...)."""
        return values.view_as(self.log_weight).sum(-1)

    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters by name; the first dimension goes mixture by mixture."""
        free = nested(self.density.free(), _INNER)
        free["log_weight"] = self.log_weight
        if self.learn_prior:
            free["log_prior"] = self.log_prior
        return free

    def from_free(self, free: dict[str, Tensor]) -> Self:
        """That of unconstrained parameters; weights and priors are normalized here."""
        return replace(
            self,
            density=self.density.from_free(inside(free, _INNER)),
            log_weight=self.normalize_weight(free["log_weight"]),
            log_prior=free["log_prior"].log_softmax(-1) if self.learn_prior else self.log_prior,
        )

    def slope(self, statistics: Statistics, mass: Tensor) -> dict[str, Tensor]:
        """Derivatives by `free` of what rows with these statistics, and masses, gain."""
        mass = mass.view_as(self.log_weight)
        by_class = self.layout.sum(mass)
        total = by_class.sum(-1, keepdim=True)
        return {
            **nested(self.density.slope(statistics), _INNER),
            "log_weight": mass - self.layout.by_component(by_class) * self.log_weight.exp(),
            "log_prior": by_class - total * self.log_prior.exp(),
        }


@storable
@dataclass(frozen=True)
class Mixture(OneProblem, Weighted):
    """p(x, c) = prior_c * sum over the components k of class c of weight_k * f_k(x).

    All components of all classes live in one stack, so that one matrix product serves them all.

    Attributes
    ----------
    density : K component densities.
    log_weight : (K,), normalized within each class.
    layout : the class that owns each component.
    log_prior : (C,), normalized.
    learn_prior : whether training may move the class prior.
    """

    def __post_init__(self) -> None:
        sizes = self.density.n_components, len(self.log_weight), len(self.log_prior)
        if sizes != (self.n_components, self.n_components, self.n_classes):
            raise ValueError(f"{sizes[0]} components, where classes have {self.layout.counts}")

    @property
    def owner(self) -> Tensor:
        return self.layout.owner

    @property
    def n_components(self) -> int:
        return self.layout.n_components

    @property
    def n_parameters(self) -> int:
        """Degrees of freedom of the whole model."""
        weights = self.n_components - self.n_classes
        priors = self.n_classes - 1 if self.learn_prior else 0
        return self.n_components * self.density.n_parameters + weights + priors

    @classmethod
    def single(cls, density: Density) -> Mixture:
        """One class, equal weights: the start of an unsupervised mixture."""
        count = density.n_components
        weight = density.location.new_full((count,), 1.0 / count).log()
        layout = Layout([count], weight.device)
        return cls(density, weight, layout, weight.new_zeros(1), learn_prior=False)

    @classmethod
    def join(cls, parts: list[Mixture], log_prior: Tensor, learn_prior: bool) -> Mixture:
        """One mixture of single-class mixtures, class by class."""
        density = Density.stack([part.density for part in parts])
        layout = Layout([part.n_components for part in parts], log_prior.device)
        weight = torch.cat([part.log_weight for part in parts])
        return cls(density, weight, layout, log_prior, learn_prior)

    def of_class(self, label: int) -> Mixture:
        """The mixture of one class, on its own."""
        index = (self.owner == label).nonzero().flatten()
        single = Mixture.single(self.density.select(index))
        return replace(single, log_weight=self.log_weight[index])

    def select(self, keep: Tensor) -> Mixture:
        """The components at `keep` (ascending, some of every class); weights fill up again."""
        layout = Layout(torch.bincount(self.owner[keep]).tolist(), keep.device)
        weight = self.log_weight[keep]
        weight = weight - layout.by_component(layout.logsumexp(weight[None])[0])
        return replace(self, density=self.density.select(keep), layout=layout, log_weight=weight)

    def blend(self, other: Mixture, share: float) -> Mixture:
        """(1 - share) of this joint density and a share of another over the same classes."""
        parts = [(self, 1.0 - share), (other, share)]
        weight = torch.cat([part.log_joint_weight + math.log(amount) for part, amount in parts])
        owner = torch.cat([part.owner for part, _ in parts])
        order = owner.argsort(stable=True)
        layout = Layout(torch.bincount(owner).tolist(), owner.device)
        prior = layout.logsumexp(weight[order][None])[0]
        return replace(
            self,
            density=Density.stack([part.density for part, _ in parts]).select(order),
            log_weight=weight[order] - layout.by_component(prior),
            layout=layout,
            log_prior=prior - prior.logsumexp(0),
        )

    def class_log_joint(self, batch: Batch | SequenceBatch) -> Tensor:
        """log p(x, c), (n, C)."""
        return self.outputs(batch)

    def sample(self, labels: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        """One row of each of the given classes (n,); `options` are the density's."""
        own = self.owner == labels[:, None].to(self.owner.device)
        chance = torch.where(own, self.log_weight.exp(), 0.0)
        component = torch.multinomial(chance.cpu(), 1, generator=generator).flatten()
        return self.density.sample(component.to(self.owner.device), generator, **options)

    def impute(self, batch: Batch | SequenceBatch) -> Tensor:
        """Conditional mean of each row given what is observed (and its class, where known)."""
        share = self.posterior(batch).to(batch.x.dtype)
        return self.density.fill(batch, share)

    def draw(self, batch: Batch | SequenceBatch, generator: torch.Generator) -> Tensor:
        """A draw of the missing entries of each row given what is observed."""
        share = self.posterior(batch).double().cpu()
        component = torch.multinomial(share, 1, generator=generator).flatten()
        return self.density.complete(batch, component.to(self.owner.device), generator)

    def posterior(self, batch: Batch | SequenceBatch) -> Tensor:
        """p(component | x), or p(component | x, c) for rows that carry a label, (n, K)."""
        if self.n_components == 1:
            return batch.weight.new_ones(len(batch), 1)
        return self.shares(self.log_joint(batch), batch.y)

    def shares(self, log_joint: Tensor, y: Tensor) -> Tensor:
        """The same by component log-joints (n, K) and labels (n,)."""
        foreign = (y[:, None] >= 0) & (self.owner != y[:, None])
        return log_joint.masked_fill(foreign, -torch.inf).softmax(1)
