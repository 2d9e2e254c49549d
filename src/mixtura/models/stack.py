"""Mixtures of one shape, trained side by side on rows that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.densities import Density
from mixtura.densities.base import keep_valid
from mixtura.models.mixture import Layout, Mixture, Weighted

#: Rows whose weights are added up at a time.
_AT_ONCE = 2**20


@dataclass(frozen=True)
class Assignment:
    """Which of P problems learn from which rows; rows carry the number of their kind as label.

    Attributes
    ----------
    sees : (P, M) whether a problem learns from the rows of a kind.
    label : (M,) class of the rows of a kind, -1 for none.
    """

    sees: Tensor
    label: Tensor

    @classmethod
    def everyone(cls, n_problems: int, device: torch.device) -> Assignment:
        """Rows of one kind, that all problems learn from."""
        sees = torch.ones(n_problems, 1, dtype=torch.bool, device=device)
        return cls(sees, torch.zeros(1, dtype=torch.long, device=device))

    def weight(self, kind: Tensor, weight: Tensor) -> Tensor:
        """(n, P) what the rows of these kinds (n,) weigh in each problem."""
        return weight[:, None] * self.sees.mT[kind.long()].to(weight.dtype)

    def total(self, kind: Tensor, weight: Tensor) -> Tensor:
        """(P,) what all rows weigh in each problem; of very many, some at a time are looked at."""
        parts = zip(kind.split(_AT_ONCE), weight.split(_AT_ONCE), strict=True)
        # Small tensors that stay between large ones that go would keep the memory of all of them.
        return sum((self.weight(*part).sum(0) for part in parts), torch.zeros(()).to(weight))


@final
@dataclass(frozen=True)
class MixtureStack(Weighted):
    """P mixtures of one layout: one stack of densities, so that one product serves them all.

    To an objective, each row is P rows, one per problem: (n * P, K) log-joints.

    Attributes
    ----------
    density : P * K component densities, problem by problem.
    log_weight : (P, K), normalized within each class.
    layout : the class that owns each of K components.
    log_prior : (P, C), normalized.
    assignment : which rows each mixture learns from.
    learn_prior : whether training may move the class priors.
    """

    assignment: Assignment = field(kw_only=True)

    @classmethod
    def of(cls, mixtures: Sequence[Mixture], assignment: Assignment) -> MixtureStack:
        """Mixtures of one layout."""
        return cls(
            Density.stack([each.density for each in mixtures]),
            torch.stack([each.log_weight for each in mixtures]),
            mixtures[0].layout,
            torch.stack([each.log_prior for each in mixtures]),
            mixtures[0].learn_prior,
            assignment=assignment,
        )

    @classmethod
    def single(cls, density: Density, assignment: Assignment) -> MixtureStack:
        """Single-class mixtures with equal weights."""
        n_problems = len(assignment.sees)
        count = density.n_components // n_problems
        weight = density.location.new_full((n_problems, count), 1.0 / count).log()
        prior = weight.new_zeros(n_problems, 1)
        layout = Layout([count], weight.device)
        return cls(density, weight, layout, prior, learn_prior=False, assignment=assignment)

    def __len__(self) -> int:
        return len(self.log_weight)

    def __getitem__(self, problem: int) -> Mixture:
        count = self.layout.n_components
        index = torch.arange(problem * count, (problem + 1) * count, device=self.log_weight.device)
        return Mixture(
            self.density.select(index),
            self.log_weight[problem],
            self.layout,
            self.log_prior[problem],
            self.learn_prior,
        )

    def only(self, mask: Tensor) -> MixtureStack:
        """The problems of a mask (P,)."""
        components = mask.repeat_interleave(self.layout.n_components).nonzero().flatten()
        return replace(
            self,
            density=self.density.select(components),
            log_weight=self.log_weight[mask],
            log_prior=self.log_prior[mask],
            assignment=replace(self.assignment, sees=self.assignment.sees[mask]),
        )

    def with_parts(self, places: Tensor, other: MixtureStack) -> MixtureStack:
        """The stack with the mixtures of another at some places."""
        components = torch.arange(self.log_weight.numel(), device=places.device)
        components = components.view_as(self.log_weight)[places].flatten()
        new = other.density.tensors()
        named = {
            name: value.index_copy(0, components, new[name])
            for name, value in self.density.tensors().items()
        }
        return replace(
            self,
            density=self.density.with_tensors(named),
            log_weight=self.log_weight.index_copy(0, places, other.log_weight),
            log_prior=self.log_prior.index_copy(0, places, other.log_prior),
        )

    def replaced(self, new: MixtureStack, which: Tensor) -> MixtureStack:
        """Those of another stack at `which` (P,), these elsewhere."""
        each, which = which.repeat_interleave(self.layout.n_components), which[:, None]
        return replace(
            self,
            density=keep_valid(self.density, new.density, each),
            log_weight=torch.where(which, new.log_weight, self.log_weight),
            log_prior=torch.where(which, new.log_prior, self.log_prior),
        )

    @property
    def n_problems(self) -> int:
        return len(self)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> MixtureStack:
        """Another device or floating type."""
        moved, given = super().to(device, dtype), self.assignment
        sees, label = (each.to(moved.log_weight.device) for each in (given.sees, given.label))
        return replace(moved, assignment=Assignment(sees, label))

    def asked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Labels and weights of the rows, row by row and problem by problem, (n * P,)."""
        labels = self.assignment.label[batch.y].repeat_interleave(len(self))
        return labels, self.assignment.weight(batch.y, batch.weight).flatten()

    def total_weight(self, kind: Tensor, weight: Tensor) -> Tensor:
        """(P,) what all rows weigh in each problem."""
        return self.assignment.total(kind, weight)
