"""Extended Baum-Welch: closed-form updates for objectives with negative occupancies.

The statistics of the data are damped by those of the model itself, `statistics + D * own`, which
for Gaussians is the published update; D is the smallest that keeps every component valid, times
a safety factor F. With the likelihood and D = 0 the update is EM's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Density, Statistics
from mixtura.densities.base import add_statistics, keep_valid, scale_statistics
from mixtura.engines import Engine
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.numerics import exp_or_zero, or_zero
from mixtura.objectives import Objective
from mixtura.parts import AMOUNT, POSITIVE
from mixtura.progress import Progress, Record
from mixtura.solvers.base import CONSTRAINTS, FitResult, Solver, SpreadPrior, penalty
from mixtura.solvers.gradients import Best

_MOST_DOUBLINGS = 60

#: What F is multiplied by where successive moves of a component agree, where they do not, and
#: after a step back.
_EASE, _BRAKE, _BRAKE_HARD = 0.9, 2.0**0.25, 2.0
#: Cosine from which two moves agree.
_AGREEMENT = 0.3
#: Share of a component's last change that is added to its next move.
_MOMENTUM = 0.9

Attempt = Callable[[Tensor], tuple[Density, Tensor]]
Free = dict[str, Tensor]
#: log share, positive and negative occupancies -> new log share, not normalized.
Grow = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class EBW(Solver):
    """Extended Baum-Welch iterations; the best iterate is kept.

    Parameters
    ----------
    max_iter : iterations at most.
    tol : gains of a smaller share of the objective count as none.
    factor : F, what the smallest valid D is multiplied by; where it adapts, its first value.
    per_component : D, F and momentum of each component's own. F adapts to how it moves, and a
        step that raises the objective is taken back; exact derivatives of the weights let it
        settle where gradients vanish; an own class's posterior is taken off its numerator before
        the two signs are told apart, which damps less. False is the published recipe, which is not
        monotone: one D for all, F fixed, and the robust derivative of the weights (positive and
        negative terms, each normalized to one), which drifts off an optimum.
    damping : a fixed D instead of the search, in rows: so many more, as the component is, are mixed
        into the statistics of its own; no momentum, and no step is taken back.
    patience : iterations without a gain before training stops.
    early_stopping : hold out `validation_fraction` of the labeled rows; what counts as a gain, and
        which iterate is kept, is then judged by their errors and loss.
    finish : a solver that goes on from the best iterate once gains are gone, such as `LBFGS()`: the
        first steps of extended Baum-Welch are long, its last ones slow.
    """

    max_iter: int = 100
    tol: float = 1e-5
    factor: float = 4.0
    per_component: bool = True
    damping: float | None = None
    patience: int = 20
    early_stopping: bool = False
    validation_fraction: float = 0.1
    finish: Solver | None = None

    closed_form_only = settles = True
    _parameter_constraints = CONSTRAINTS | {
        "factor": [POSITIVE],
        "per_component": ["boolean"],
        "damping": [None, AMOUNT],
        "finish": [None, Solver],
    }

    def run(  # type: ignore[override]
        self,
        model: Mixture,
        objective: Objective,
        engine: Engine,
        progress: Progress,
        *,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
        prior: SpreadPrior | None = None,
    ) -> FitResult[Mixture]:
        if not model.density.closed_form:
            raise UnsupportedError(
                "solver='ebw' needs closed-form updates, and "
                f"{type(model.density).__name__} has none: use solver='adam' or 'lbfgs', or a "
                "density that has them."
            )
        progress.start("EBW", self.max_iter)
        total_weight = engine.total_weight
        walk = _Walk(self, prior, torch.full_like(model.log_weight, self.factor))
        best, lowest, gained_at = model, float("inf"), 0
        watch = Best(model, objective, held_out)
        iteration, stop, waited = 0, False, False
        while iteration < self.max_iter and not (stop or waited):
            iteration += 1
            sums = self.sums(model, objective, engine)
            loss = (float(sums.pop("loss")) + penalty(model, prior)) / total_weight
            if loss < lowest - self.tol * max(1.0, abs(lowest)) or iteration == 1:
                gained_at = iteration
            if loss < lowest:
                best, lowest = model, loss
            record: Record = {"stage": "EBW", "iteration": iteration, "objective": loss}
            watch.offer(model, loss, record)
            stop = progress.step(record)
            waited = watch.waited(self.patience, iteration, gained_at)
            model = walk.on(_Place(model, sums, loss))
        kept = best if held_out is None else watch.model
        if self.finish is None or stop:
            return FitResult(kept, lowest, iteration, waited and not stop)
        found = self.finish.run(
            *(kept, objective, engine, progress),
            generator=generator,
            held_out=held_out,
            prior=prior,
        )
        return replace(found, n_iter=iteration + found.n_iter)

    def sums(self, mixture: Mixture, objective: Objective, engine: Engine) -> Statistics:
        """What a pass over all rows says of a mixture: statistics, positive masses, and loss."""
        accumulate = partial(_accumulate, mixture, objective, netted=self.per_component)
        return engine.sum(accumulate, mixture.density, side_by_side=True)

    def update(
        self,
        mixture: Mixture,
        sums: Statistics,
        prior: SpreadPrior | None = None,
        factor: Tensor | None = None,
    ) -> Mixture:
        """One step from the summed statistics of all rows, with an F for each component."""
        factor = torch.full_like(mixture.log_weight, self.factor) if factor is None else factor
        positive = sums["positive"]
        negative = (positive - sums["mass"]).clamp_min(0.0)
        sums = {name: value for name, value in sums.items() if name != "positive"}
        if prior is not None:
            imagined = prior.statistics(mixture.density, mixture.density.location)
            sums = add_statistics(sums, imagined)
        damping, density = self._damped(mixture.density, sums, negative, factor)
        if self.per_component:
            grow = partial(_grow, factor=float(factor.median()), damping=self.damping)
        else:
            grow = partial(_grow_robustly, damping=float(damping.max()))
        return _reweigh(replace(mixture, density=density), positive, negative, grow)

    def _damped(
        self, density: Density, sums: Statistics, negative: Tensor, factor: Tensor
    ) -> tuple[Tensor, Density]:
        own = density.own_statistics()

        def attempt(damping: Tensor) -> tuple[Density, Tensor]:
            return density.maximize(add_statistics(sums, scale_statistics(own, damping)))

        if self.damping is not None:
            damping = torch.full_like(negative, self.damping)
        else:
            damping = self._smallest_valid(attempt, negative) * factor
        updated, valid = attempt(damping)
        return damping, keep_valid(density, updated, valid)

    def _smallest_valid(self, attempt: Attempt, negative: Tensor) -> Tensor:
        """Double D until the updates are valid, for each component or for all."""
        damping = negative.clamp_min(1.0) if self.per_component else torch.ones_like(negative)
        for _ in range(_MOST_DOUBLINGS):
            valid = attempt(damping)[1]
            if valid.all():
                break
            grow = ~valid if self.per_component else torch.ones_like(valid)
            damping = torch.where(grow, 2.0 * damping, damping)
        return damping


class _Place(NamedTuple):
    """A mixture, and what a pass over the rows says of it."""

    mixture: Mixture
    sums: Statistics
    loss: float


@dataclass
class _Walk:
    """Steps from place to place; where F adapts, it does so to how they turn out.

    Attributes
    ----------
    good : the last place that was no worse than the one before.
    move, change : of the free parameters by the last update, without and with momentum; None
        after a step back.
    """

    ebw: EBW
    prior: SpreadPrior | None
    factor: Tensor
    good: _Place | None = None
    move: Free | None = None
    change: Free | None = None

    def on(self, place: _Place) -> Mixture:
        """The next mixture: from this place, or from the last good one if this is worse."""
        if not self.ebw.per_component or self.ebw.damping is not None:
            return self.ebw.update(place.mixture, place.sums, self.prior)
        # An objective that is no number is worse too.
        if self.good is None or place.loss <= self.good.loss:
            self.good = place
        else:
            self.factor = _BRAKE_HARD * self.factor
            self.move = self.change = None
        return self._onward(self.good)

    def _onward(self, place: _Place) -> Mixture:
        stepped = self.ebw.update(place.mixture, place.sums, self.prior, self.factor)
        before, after = place.mixture.density.free(), stepped.density.free()
        move = {name: after[name] - before[name] for name in before}
        if self.move is not None:
            agree = _cosine(move, self.move) > _AGREEMENT
            self.factor = (self.factor * torch.where(agree, _EASE, _BRAKE)).clamp_min(1.0)
        self.move = move
        if self.change is None:
            self.change = move
            return stepped
        self.change = {name: move[name] + _MOMENTUM * self.change[name] for name in move}
        ahead = stepped.density.from_free({k: v + self.change[k] for k, v in before.items()})
        # Free parameters may leave a full covariance below the floor; closed forms do not.
        return replace(stepped, density=ahead.maximize(ahead.own_statistics())[0])


def _cosine(one: Free, other: Free) -> Tensor:
    """Of the angle between two moves of each component, (K,)."""
    flat, to = (
        torch.cat([part.reshape(len(part), -1) for part in move.values()], 1)
        for move in (one, other)
    )
    return torch.cosine_similarity(flat, to, dim=1)


@torch.no_grad()
def _accumulate(
    mixture: Mixture, objective: Objective, batch: Batch, *, netted: bool
) -> Statistics:
    """Statistics of signed occupancies, and how much of them is positive, (K,).

    `netted`: what is positive once both terms of a row and component are added up. Otherwise the
    whole of the positive term, as published: the two may overlap in a row's own class.
    """
    log_prob, statistics = mixture.density.expectation(batch)
    log_joint = mixture.weighted(log_prob)
    losses, occupancy = objective.occupancy(mixture, log_joint, batch.y, batch.weight)
    positive = (
        occupancy.clamp_min(0.0) if netted else _numerator(mixture, objective, log_joint, batch)
    )
    return {**statistics(occupancy), "loss": losses.sum(), "positive": positive.sum(0)}


def _numerator(mixture: Mixture, objective: Objective, log_joint: Tensor, batch: Batch) -> Tensor:
    """The positive term of every occupancy, (n, K)."""
    class_log_joint = mixture.by_class(log_joint)
    by_class = or_zero(objective.numerator(class_log_joint, batch.y)) * batch.weight[:, None]
    within_class = exp_or_zero(log_joint - class_log_joint[:, mixture.owner])
    return by_class[:, mixture.owner] * within_class


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
    return replace(mixture, log_weight=mixture.normalize_weight(weight), log_prior=prior)


def _grow(
    log_share: Tensor, positive: Tensor, negative: Tensor, factor: float, damping: float | None
) -> Tensor:
    """log of p (g + D) with the exact derivative g = mass / p: damped EM, still at an optimum."""
    share, mass = log_share.exp(), positive - negative
    tiny = torch.finfo(share.dtype).tiny
    if damping is not None:
        return (mass + damping * share).clamp_min(tiny).log()
    excess = mass - share * mass.sum()
    damped = share * (mass.sum() + 2.0 * factor * negative.sum())
    # The derivative of a share near nothing is huge: unbounded, such a share leaps to and fro.
    bound = 1.0 / (1.0 + factor)
    return log_share + (excess / damped.clamp_min(tiny)).clamp(-bound, bound).log1p()


def _grow_robustly(log_share: Tensor, positive: Tensor, negative: Tensor, damping: float) -> Tensor:
    """log of p (g + D), g = positive part normalized to one - negative part normalized to one."""
    tiny = torch.finfo(log_share.dtype).tiny
    robust = positive / positive.sum().clamp_min(tiny) - negative / negative.sum().clamp_min(tiny)
    return log_share + (robust + damping).clamp_min(tiny).log()
