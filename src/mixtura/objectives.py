"""Objectives: differentiable functions of the class log-joints and the labels.

Each gives a loss a row, to be minimised. Whatever a trainer needs beyond the value is the derivative
by the component log-joint: the signed occupancies, here taken by autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.mixture import Mixture


class Objective(ABC):
    """A loss a row from class log-joints (n, C) and labels (n,), -1 where there is none."""

    @abstractmethod
    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        """(n,) losses."""

    def occupancy(
        self, mixture: Mixture, log_joint: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Summed loss, and how much it wants each row explained by each component, (n, K)."""
        leaf = log_joint.detach().requires_grad_()
        with torch.enable_grad():
            total = (self.loss(mixture.by_class(leaf), y) * weight).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
        return total.detach(), -gradient


def _own(class_log_joint: Tensor, y: Tensor) -> Tensor:
    return class_log_joint.gather(1, y.clamp_min(0)[:, None])[:, 0]


def log_margin(class_log_joint: Tensor, y: Tensor, smoothness: float = math.inf) -> Tensor:
    """log p(x, own class) minus the (smooth) maximum over the other classes, (n,)."""
    own = torch.nn.functional.one_hot(y.clamp_min(0), class_log_joint.shape[1]).bool()
    rivals = class_log_joint.masked_fill(own, -torch.inf)
    if math.isinf(smoothness):
        best = rivals.amax(1)
    else:
        best = (smoothness * rivals).logsumexp(1) / smoothness
    return _own(class_log_joint, y) - best


@dataclass(frozen=True)
class Likelihood(Objective):
    """-log p(x, c); -log p(x) for unlabelled rows."""

    labelled_weight: float = 1.0
    unlabelled_weight: float = 1.0

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        if class_log_joint.shape[1] == 1:
            marginal = own = class_log_joint[:, 0]
        else:
            marginal, own = class_log_joint.logsumexp(1), _own(class_log_joint, y)
        labelled = -self.labelled_weight * own
        return torch.where(y >= 0, labelled, -self.unlabelled_weight * marginal)

    def occupancy(
        self, mixture: Mixture, log_joint: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """With one class these are plain responsibilities, and one exponential serves both."""
        if mixture.n_classes > 1:
            return super().occupancy(mixture, log_joint, y, weight)
        weight = weight * torch.where(y >= 0, self.labelled_weight, self.unlabelled_weight)
        largest = log_joint.amax(1, keepdim=True)
        share = (log_joint - largest).exp_()
        total = share.sum(1, keepdim=True)
        loss = -((largest + total.log())[:, 0] * weight).sum()
        return loss, share.mul_(weight[:, None] / total)


@dataclass(frozen=True)
class Conditional(Objective):
    """-log p(c | x)."""

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        excess = class_log_joint.logsumexp(1) - _own(class_log_joint, y)
        return torch.where(y >= 0, excess, 0.0)


@dataclass(frozen=True)
class HingeMargin(Objective):
    """How far the log-margin falls short of the desired one."""

    margin: float
    smoothness: float = 10.0

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        short = self.margin - log_margin(class_log_joint, y, self.smoothness)
        return torch.where(y >= 0, short.clamp_min(0.0), 0.0)


@dataclass(frozen=True)
class SmoothMargin(Objective):
    """-log h(y) + log 2 with y = exp(kappa * log-margin) and the smooth hinge h.

    h(y) = y + 1/2 up to 1, 2 - (y - 2)^2 / 2 up to 2, and 2 above: a row costs nothing once its
    log-margin is `margin` = log 2 / kappa, and hopeless rows cost a bounded amount.
    """

    margin: float
    smoothness: float = 10.0

    @property
    def kappa(self) -> float:
        return math.log(2.0) / self.margin

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        exponent = self.kappa * log_margin(class_log_joint, y, self.smoothness)
        ratio = exponent.clamp(max=math.log(2.0)).exp()
        height = torch.where(ratio <= 1.0, ratio + 0.5, 2.0 - 0.5 * (ratio - 2.0).square())
        return torch.where(y >= 0, math.log(2.0) - height.log(), 0.0)


@dataclass(frozen=True)
class Hybrid(Objective):
    """tradeoff * likelihood + (1 - tradeoff) * a discriminative term."""

    likelihood: Likelihood
    discriminative: Objective
    tradeoff: float

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        generative = self.likelihood.loss(class_log_joint, y)
        discriminative = self.discriminative.loss(class_log_joint, y)
        return self.tradeoff * generative + (1.0 - self.tradeoff) * discriminative


#: The discriminative terms by name, made from (margin, smoothness).
DISCRIMINATIVE: dict[str, Callable[[float, float], Objective]] = {
    "conditional": lambda margin, smoothness: Conditional(),
    "margin": HingeMargin,
    "smooth_margin": SmoothMargin,
}


def build_objective(
    name: str,
    *,
    tradeoff: float,
    margin: float,
    smoothness: float = 10.0,
    unlabeled_weight: float | None = None,
) -> Objective:
    """The objective a user names.

    `unlabeled_weight` (None when all rows are labelled) is the share of unlabelled rows in the
    likelihood term; the labelled ones get the rest.
    """
    share = unlabeled_weight
    likelihood = Likelihood() if share is None else Likelihood(1.0 - share, share)
    if name == "likelihood" or tradeoff == 1.0:
        return likelihood
    term = DISCRIMINATIVE[name](margin, smoothness)
    return term if tradeoff == 0.0 else Hybrid(likelihood, term, tradeoff)
