"""Objectives: differentiable functions of the class log-joints and the labels.

Each gives one loss per row, to be minimized. What a solver needs beyond the value is its
derivative by the component log-joint: the signed occupancies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Real

import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import Context, exp_or_zero, logsumexp, or_zero
from mixtura.parts import POSITIVE, Part, resolve

#: What shares of holes may be.
_HOLES: list[object] = [Interval(Real, 0, 0.5, closed="both")]


class Objective(Part, ABC):
    """One loss per row from class log-joints (n, C) and labels (n,), -1 where there is none.

    A new objective is a dataclass with a `loss`; its fields are its parameters. Threads may ask for
    the losses of several chunks of rows at once: nothing is to be kept from one to the next.

    Attributes
    ----------
    holes : share of random holes (on average) in a copy of every row, which `MixtureClassifier`
        shows the objective beside the row itself: good where features will be missing at
        prediction. They are marginalized, as everywhere; 0 is off.
    """

    holes: float = 0.0

    @property
    def reach(self) -> float:
        """Nats below the best class that others may lie and still count: any, unless known."""
        return math.inf

    @abstractmethod
    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        """(n,) losses."""

    def loss_and_slope(self, class_log_joint: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and their derivatives by the class log-joints (n, C)."""
        leaf = class_log_joint.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.loss(leaf, y)
            if losses.shape != y.shape:
                raise InvalidInputError(
                    f"{type(self).__name__}.loss gave a tensor of shape {tuple(losses.shape)} for "
                    f"{len(y)} rows: it must give one loss per row, ({len(y)},)."
                )
            (slope,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), slope.contiguous()

    def total(self, class_log_joint: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The weighted sum of the losses, for training by gradient."""
        return _Total.apply(class_log_joint, y, weight, self)

    def numerator(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        """The positive term of the class occupancies, (n, C); the negative one is the rest."""
        return (-self.loss_and_slope(class_log_joint, y)[1]).clamp_min(0.0)

    def occupancy(
        self, mixture: Mixture | MixtureStack, log_joint: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weighted losses (n,), and how they want rows explained by components, (n, K)."""
        class_log_joint = mixture.by_class(log_joint)
        losses, slope = self.loss_and_slope(class_log_joint, y)
        by_component = mixture.layout.by_component
        within = exp_or_zero(log_joint - by_component(class_log_joint))
        slope = or_zero(slope).mul_(-weight[:, None])
        return losses * weight, within.mul_(by_component(slope))


class _Total(torch.autograd.Function):
    """Hands the slopes of an objective to autograd, so that the chain ends in one operation."""

    @staticmethod
    def forward(
        ctx: Context, class_log_joint: Tensor, y: Tensor, weight: Tensor, objective: Objective
    ) -> Tensor:
        losses, slope = objective.loss_and_slope(class_log_joint, y)
        ctx.save_for_backward(or_zero(slope).mul_(weight[:, None]))
        return torch.dot(losses, weight)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return ctx.saved_tensors[0] * grad, None, None, None


def _own(class_log_joint: Tensor, y: Tensor) -> Tensor:
    return class_log_joint.gather(1, y.clamp_min(0)[:, None])[:, 0]


def log_margin(class_log_joint: Tensor, y: Tensor, smoothness: float = math.inf) -> Tensor:
    """log p(x, own class) minus the (smooth) maximum over the other classes, (n,)."""
    rivals = class_log_joint.scatter(1, y.clamp_min(0)[:, None], -torch.inf)
    if math.isinf(smoothness):
        best = rivals.amax(1)
    else:
        best = logsumexp(smoothness * rivals, 1) / smoothness
    return _own(class_log_joint, y) - best


@dataclass
class Likelihood(Objective):
    """-log p(x, c); -log p(x) for unlabeled rows.

    Attributes
    ----------
    unlabeled_weight : share of unlabeled rows, the labeled ones get the rest; None if all rows
        have labels.
    """

    unlabeled_weight: float | None = None

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        if self.unlabeled_weight is None:
            return -_own(class_log_joint, y)
        labeled = (self.unlabeled_weight - 1.0) * _own(class_log_joint, y)
        return torch.where(y >= 0, labeled, -self.unlabeled_weight * logsumexp(class_log_joint, 1))

    def loss_and_slope(self, class_log_joint: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.unlabeled_weight is not None:
            return super().loss_and_slope(class_log_joint, y)
        blank = torch.zeros_like(class_log_joint)
        return -_own(class_log_joint, y), blank.scatter_(1, y[:, None], -1.0)

    def occupancy(
        self, mixture: Mixture | MixtureStack, log_joint: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """With one class these are plain responsibilities, and one exponential serves both."""
        if mixture.n_classes > 1:
            return super().occupancy(mixture, log_joint, y, weight)
        if self.unlabeled_weight is not None:
            rest = 1.0 - self.unlabeled_weight
            weight = torch.where(y >= 0, rest * weight, self.unlabeled_weight * weight)
        largest = log_joint.amax(1, keepdim=True)
        share = exp_or_zero(log_joint - largest)
        total = share.sum(1, keepdim=True)
        return -(largest + total.log())[:, 0] * weight, share.mul_(weight[:, None] / total)


@dataclass
class Conditional(Objective):
    """-log p(c | x)."""

    _: KW_ONLY
    holes: float = 0.0

    _parameter_constraints = {"holes": _HOLES}

    @property
    def reach(self) -> float:
        return 0.0

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        return (logsumexp(class_log_joint, 1) - _own(class_log_joint, y)) * (y >= 0)

    def loss_and_slope(self, class_log_joint: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        log_chance, labeled = class_log_joint.log_softmax(1), (y >= 0).to(class_log_joint)
        own = y.clamp_min(0)[:, None]
        slope = log_chance.exp().scatter_(1, own, -1.0, reduce="add").mul_(labeled[:, None])
        return -log_chance.gather(1, own)[:, 0] * labeled, slope

    def numerator(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        """One for the own class; the posterior that is taken off it is of the negative term."""
        return (y[:, None] == torch.arange(class_log_joint.shape[1], device=y.device)).to(
            class_log_joint
        )


@dataclass
class LogMargin(Objective):
    """A function of how far the log-margin falls short of the desired one.

    Attributes
    ----------
    margin : the desired log-margin; rows that reach it cost nothing.
    smoothness : sharpness of the smooth maximum over rival classes.
    """

    margin: float = 20.0
    smoothness: float = 10.0
    _: KW_ONLY
    holes: float = 0.0

    _parameter_constraints = {"margin": [POSITIVE], "smoothness": [POSITIVE], "holes": _HOLES}

    @property
    def reach(self) -> float:
        return self.margin

    @abstractmethod
    def _of_shortfall(self, short: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of a shortfall, and its derivative."""

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        short = self.margin - log_margin(class_log_joint, y, self.smoothness)
        return self._of_shortfall(short)[0] * (y >= 0)

    def loss_and_slope(self, class_log_joint: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        own = y.clamp_min(0)[:, None]
        sharpened = class_log_joint.scatter(1, own, -torch.inf).mul_(self.smoothness)
        share = sharpened.softmax(1)
        best = sharpened.amax(1).sub_(share.amax(1).log_())
        short = torch.add(
            self.margin - class_log_joint.gather(1, own)[:, 0], best, alpha=1 / self.smoothness
        )
        loss, slope = self._of_shortfall(short)
        labeled = y >= 0
        slope = (slope * labeled)[:, None]
        return loss * labeled, share.mul_(slope).scatter_add_(1, own, -slope)


@dataclass
class Margin(LogMargin):
    """How far the log-margin falls short of the desired one."""

    def _of_shortfall(self, short: Tensor) -> tuple[Tensor, Tensor]:
        return short.clamp_min(0.0), (short > 0.0).to(short.dtype)


@dataclass
class SmoothMargin(LogMargin):
    """-log h(y) + log 2 with y = exp(kappa * log-margin) and the smooth hinge h.

    h(y) = y + 1/2 up to 1, 2 - (y - 2)^2 / 2 up to 2, and 2 above: a row costs nothing once its
    log-margin is `margin` = log 2 / kappa, and hopeless rows cost a bounded amount, so that a row
    which falls short by several margins is given up.
    """

    margin: float = 1.0

    @property
    def kappa(self) -> float:
        """What log-margins are multiplied by."""
        return math.log(2.0) / self.margin

    def _of_shortfall(self, short: Tensor) -> tuple[Tensor, Tensor]:
        ratio = (self.kappa * (self.margin - short)).clamp(max=math.log(2.0)).exp()
        height = torch.where(ratio <= 1.0, ratio + 0.5, 2.0 - 0.5 * (ratio - 2.0).square())
        steepness = torch.where(ratio <= 1.0, ratio, ratio * (2.0 - ratio)) / height
        return math.log(2.0) - height.log(), self.kappa * steepness


@dataclass
class Hybrid(Objective):
    """tradeoff * likelihood + (1 - tradeoff) * a discriminative term."""

    likelihood: Likelihood
    discriminative: Objective
    tradeoff: float

    @property
    def reach(self) -> float:
        return self.discriminative.reach

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        generative = self.likelihood.loss(class_log_joint, y)
        discriminative = self.discriminative.loss(class_log_joint, y)
        return self.tradeoff * generative + (1.0 - self.tradeoff) * discriminative

    def numerator(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        generative = self.likelihood.numerator(class_log_joint, y)
        discriminative = self.discriminative.numerator(class_log_joint, y)
        return self.tradeoff * generative + (1.0 - self.tradeoff) * discriminative

    def loss_and_slope(self, class_log_joint: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.likelihood.unlabeled_weight is not None:
            return super().loss_and_slope(class_log_joint, y)
        loss, slope = self.discriminative.loss_and_slope(class_log_joint, y)
        rest, own = 1.0 - self.tradeoff, y[:, None]
        loss = torch.add(rest * loss, class_log_joint.gather(1, own)[:, 0], alpha=-self.tradeoff)
        return loss, slope.mul_(rest).scatter_(1, own, -self.tradeoff, reduce="add")


@dataclass
class Regression(Objective):
    """tradeoff * -log p(x) + (1 - tradeoff) * half the squared error; no target is NaN.

    Of a network that predicts: its outputs are not class log-joints, but log p(x) and the
    prediction.
    """

    tradeoff: float

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        log_density, prediction = class_log_joint.unbind(1)
        off = torch.where(y.isnan(), 0.0, prediction - y.nan_to_num())
        return (1.0 - self.tradeoff) * 0.5 * off.square() - self.tradeoff * log_density


def likelihood_share(tradeoff: float, n_values: float) -> float:
    """The share of a row's whole log-likelihood, where `tradeoff` is that of its mean per value.

    Up to a factor, tradeoff * log p(x, c) / n_values + (1 - tradeoff) * r is
    share * log p(x, c) + (1 - share) * r. A likelihood grows with the number of values in a row and
    one label does not, so only the former means the same whatever that number.
    """
    return tradeoff / (tradeoff + n_values * (1.0 - tradeoff))


def tradeoff_of_share(share: float, n_values: float) -> float:
    """The inverse of `likelihood_share`, for settings in the convention of a paper."""
    return share / (share + (1.0 - share) / n_values)


#: What the names of objectives are shorthand for.
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "likelihood": Likelihood,
    "conditional": Conditional,
    "margin": Margin,
    "smooth_margin": SmoothMargin,
}


def of_whole_rows(
    given: str | Objective, names: Mapping[str, Callable[[], Objective]]
) -> Objective:
    """The objective of an estimator that shows no copies of rows with holes."""
    term = resolve(given, names)
    if term.holes:
        raise UnsupportedError(f"{term!r}: holes are for MixtureClassifier; leave them at 0.")
    return term


def beside_likelihood(
    term: Objective,
    tradeoff: float,
    *,
    unlabeled_weight: float | None = None,
    n_values: float = 1.0,
) -> Objective:
    """A discriminative term and the likelihood, weighed against each other.

    `tradeoff` weighs the likelihood per value, of which a row has `n_values`.
    `unlabeled_weight` (None when all rows are labeled) is the share of unlabeled rows in the
    likelihood term; the labeled ones get the rest.
    """
    likelihood = Likelihood(unlabeled_weight)
    if isinstance(term, Likelihood) or tradeoff == 1.0:
        return likelihood
    share = likelihood_share(tradeoff, n_values)
    return term if share == 0.0 else Hybrid(likelihood, term, share)
