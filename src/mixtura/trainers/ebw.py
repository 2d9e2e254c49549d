"""Extended Baum-Welch: closed-form updates for objectives with negative occupancies.

The statistics of the data are damped by those of the model itself, `statistics + D * own`, which
for Gaussians is the published update; D is the smallest that keeps every component valid, times
a safety factor. With the likelihood and D = 0 the update is EM's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import Density, Statistics, add_statistics, scale_statistics
from mixtura.engines import LocalEngine
from mixtura.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.trainers.base import (
    FitResult,
    SpreadPrior,
    keep_valid,
    occupancies,
    penalty,
    require_closed_form,
)

_MOST_DOUBLINGS = 60

_VANISHING = 1e-12

Attempt = Callable[[Tensor], tuple[Density, Tensor]]
#: log share, positive and negative occupancies -> new log share, not normalised.
Grow = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class EBW:
    """Extended Baum-Welch iterations; not monotone, so the best iterate is kept.

    Parameters
    ----------
    factor : F, what the smallest valid D is multiplied by.
    per_component : one D a component, and exact derivatives of the weights, so that it settles
        where gradients vanish. False is the published recipe: one D for all, and the robust
        derivative of the weights, which drifts off an optimum.
    damping : a fixed D instead of the search.
    """

    max_iter: int = 100
    tol: float = 1e-5
    factor: float = 2.0
    per_component: bool = True
    damping: float | None = None
    prior: SpreadPrior | None = None
    patience: int = 10
    stage: str = "EBW"

    def run(
        self, mixture: Mixture, objective: Objective, engine: LocalEngine, progress: Progress
    ) -> FitResult:
        require_closed_form(mixture.density, "ebw")
        progress.start(self.stage, self.max_iter)
        total_weight = engine.total_weight
        best, best_loss, best_at = mixture, float("inf"), 0
        for iteration in range(1, self.max_iter + 1):
            sums = engine.sum(partial(_accumulate, mixture, objective), mixture.density)
            loss = (float(sums.pop("loss")) + penalty(mixture, self.prior)) / total_weight
            stop = progress.step({"stage": self.stage, "iteration": iteration, "objective": loss})
            if loss < best_loss - self.tol * max(1.0, abs(best_loss)) or best_at == 0:
                best_at = iteration
            if loss < best_loss:
                best, best_loss = mixture, loss
            if stop or iteration - best_at >= self.patience:
                return FitResult(best, best_loss, iteration, not stop)
            mixture = self.update(mixture, sums)
        return FitResult(best, best_loss, self.max_iter, False)

    def update(self, mixture: Mixture, sums: Statistics) -> Mixture:
        """One step from the summed statistics of all rows."""
        positive = sums.pop("positive")
        mass = sums["mass"]
        negative = (positive - mass).clamp_min(0.0)
        if self.prior is not None:
            imagined = self.prior.statistics(mixture.density, mixture.density.mean)
            sums = add_statistics(sums, imagined)
        damping, density = self._damped(mixture.density, sums, negative)
        grow = partial(_grow, damping=self.damping)
        if not self.per_component:
            grow = partial(_grow_robustly, damping=float(damping.max()))
        return _reweigh(replace(mixture, density=density), positive, negative, grow)

    def _damped(
        self, density: Density, sums: Statistics, negative: Tensor
    ) -> tuple[Tensor, Density]:
        own = density.own_statistics()

        def attempt(damping: Tensor) -> tuple[Density, Tensor]:
            return density.maximise(add_statistics(sums, scale_statistics(own, damping)))

        if self.damping is not None:
            damping = torch.full_like(negative, self.damping)
        else:
            damping = self._smallest_valid(attempt, negative) * self.factor
            if self.per_component:
                damping = damping.maximum(self.factor * negative)
        updated, valid = attempt(damping)
        return damping, keep_valid(density, updated, valid)

    def _smallest_valid(self, attempt: Attempt, negative: Tensor) -> Tensor:
        """Double D from one until the updates are valid, for each component or for all."""
        damping = torch.ones_like(negative)
        for _ in range(_MOST_DOUBLINGS):
            valid = attempt(damping)[1]
            if valid.all():
                break
            grow = ~valid if self.per_component else torch.ones_like(valid)
            damping = torch.where(grow, 2.0 * damping, damping)
        return damping


def _accumulate(mixture: Mixture, objective: Objective, batch: Batch) -> Statistics:
    loss, occupancy = occupancies(mixture, objective, batch)
    statistics = mixture.density.statistics(batch, occupancy)
    return {**statistics, "loss": loss, "positive": occupancy.clamp_min(0.0).sum(0)}


def _reweigh(mixture: Mixture, positive: Tensor, negative: Tensor, grow: Grow) -> Mixture:
    """Weights within each class, and the prior where it may move."""
    layout = mixture.layout
    weight = mixture.log_weight.clone()
    for label in range(mixture.n_classes):
        mine = mixture.owner == label
        weight[mine] = grow(weight[mine], positive[mine], negative[mine])
    prior = mixture.log_prior
    if mixture.learn_prior:
        prior = grow(prior, layout.sum(positive), layout.sum(negative)).log_softmax(0)
    return replace(mixture, log_weight=mixture.normalise_weight(weight), log_prior=prior)


def _grow(
    log_share: Tensor, positive: Tensor, negative: Tensor, damping: float | None = None
) -> Tensor:
    """log of p (g + D) with the exact derivative g = mass / p: damped EM, still at an optimum."""
    share, mass = log_share.exp(), positive - negative
    if damping is None:
        needed = torch.where(share > _VANISHING, -mass / share, 0.0).max()
        damping = 2.0 * max(float(needed), 2.0 * float(negative.sum()), 0.0)
    tiny = torch.finfo(share.dtype).tiny
    return (mass + damping * share).clamp_min(tiny).log()


def _grow_robustly(log_share: Tensor, positive: Tensor, negative: Tensor, damping: float) -> Tensor:
    """log of p (g + D), g = positive part normalised to one - negative part normalised to one."""
    tiny = torch.finfo(log_share.dtype).tiny
    robust = positive / positive.sum().clamp_min(tiny) - negative / negative.sum().clamp_min(tiny)
    return log_share + (robust + damping).clamp_min(tiny).log()
