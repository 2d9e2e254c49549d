"""Trials side by side: mixtures of one shape that learn from the same minibatches by Adam.

Adam moves every number by the gradients of that number alone, so each mixture of a stack is trained
as if it were the only one, and one product serves them all. Trials may differ in their start, their
objective and their step size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.numerics import logsumexp
from mixtura.objectives import Conditional, Likelihood, Objective, log_margin
from mixtura.solvers.adam import SCHEDULES, Adam, make_step
from mixtura.solvers.gradients import Free

#: Sharpness of the paper's smooth maximum over rival classes.
_SMOOTHNESS = 10.0


class Trial(NamedTuple):
    """What one mixture of a stack is trained for.

    Attributes
    ----------
    share : of the whole log-likelihood in the objective (the paper's lambda).
    margin : the desired log-margin; None trains for the conditional likelihood.
    learning_rate : the step size.
    labeled : share of the labeled rows in the likelihood (the paper's kappa).
    """

    share: float
    margin: float | None
    learning_rate: float
    labeled: float = 1.0


class Outcome(NamedTuple):
    """A mixture after the best of its epochs, and its error on held-out rows in percent."""

    mixture: Mixture
    validation: float


@dataclass
class _Objectives(Objective):
    """Those of P trials, for rows that come row by row and trial by trial, (n * P,)."""

    share: Tensor
    margin: Tensor
    labeled: Tensor
    scale: Tensor

    @classmethod
    def of(cls, trials: Sequence[Trial], device: torch.device) -> _Objectives:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device)

        return cls(
            column([trial.share for trial in trials]),
            column([math.nan if trial.margin is None else trial.margin for trial in trials]),
            column([trial.labeled for trial in trials]),
            column([1.0 / trial.learning_rate for trial in trials]),
        )

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        count = len(y) // len(self.share)
        share, margin, labeled, scale = (
            each.to(class_log_joint.dtype).repeat(count)
            for each in (self.share, self.margin, self.labeled, self.scale)
        )
        known = y >= 0
        own = labeled * Likelihood().loss(class_log_joint, y.clamp_min(0))
        generative = torch.where(known, own, (labeled - 1.0) * logsumexp(class_log_joint, 1))
        short = margin.nan_to_num() - log_margin(class_log_joint, y, _SMOOTHNESS)
        conditional = Conditional().loss(class_log_joint, y)
        term = torch.where(margin.isnan(), conditional, short.clamp_min(0.0) * known)
        return scale * (share * generative + (1.0 - share) * term)


def stacked(mixtures: Sequence[Mixture]) -> MixtureStack:
    """Mixtures that all see the same rows, whose labels count from 1 on; 0 is for none."""
    device = mixtures[0].log_weight.device
    labels = torch.arange(-1, mixtures[0].n_classes, device=device)
    sees = torch.ones(len(mixtures), len(labels), dtype=torch.bool, device=device)
    return MixtureStack.of(mixtures, Assignment(sees, labels))


def error_rates(stack: MixtureStack, engine: Engine) -> Tensor:
    """(P,) errors in percent of labeled rows."""
    return _judged(stack, Conditional(), engine)[0]


def _judged(stack: MixtureStack, objective: Objective, engine: Engine) -> tuple[Tensor, Tensor]:
    """(P,) errors in percent of labeled rows, and mean losses."""

    def sums(batch: Batch) -> dict[str, Tensor]:
        y, weight = stack.asked(batch)
        with torch.no_grad():
            joint = stack.outputs(batch)
            each = torch.stack([(joint.argmax(1) != y).to(weight), objective.loss(joint, y)])
        return {"sums": (each * weight).view(2, len(batch), -1).sum(1)}

    wrong, loss = engine.sum(sums, stack)["sums"] / len(engine)
    return 100.0 * wrong, loss


def train(
    starts: Sequence[Mixture],
    trials: Sequence[Trial],
    engine: Engine,
    held_out: Engine,
    solver: Adam,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> list[Outcome]:
    """Every trial from its start; of each, the epoch with the fewest errors on held-out rows.

    Of those with as few, the one with the smallest loss. Rows have labels as in `stacked`. The
    solver says how many epochs, of which batches, and how iterates are averaged. Past the deadline
    (of `time.time`) a TimeoutError is raised.
    """
    device = engine.device
    stack = stacked([start.to(device, engine.dtype) for start in starts])
    rate = torch.tensor([trial.learning_rate for trial in trials], dtype=engine.dtype).to(device)

    def paced(free: Free) -> Free:
        """Free parameters from those in units of the step sizes, in which all steps are alike."""
        return {name: value * _beside(rate, value) for name, value in free.items()}

    begin = {name: value / _beside(rate, value) for name, value in stack.free().items()}
    free = {name: value.detach().clone().requires_grad_() for name, value in begin.items()}
    average = {name: value.detach().clone() for name, value in free.items()}
    n_epochs, size = solver.epochs_and_size(len(engine))
    n_batches, n_steps = math.ceil(len(engine) / size), 0
    objective = _Objectives.of(trials, device)
    if n_epochs == 0:
        return _outcomes(stack, error_rates(stack, held_out))
    step = make_step(lambda each: stack.from_free(paced(each)), objective, free, engine, size)
    kept = {name: value.clone() for name, value in average.items()}
    fewest, least = _judged(stack, objective, held_out)
    for _ in range(n_epochs):
        for index in engine.minibatch_indices(size, generator):
            step(index, SCHEDULES[solver.schedule](n_steps / (n_epochs * n_batches)))
            n_steps += 1
            solver.average(average, free, n_steps)
        if time.time() > deadline:
            raise TimeoutError
        errors, loss = _judged(stack.from_free(paced(average)), objective, held_out)
        better = (errors < fewest) | ((errors == fewest) & (loss < least))
        fewest, least = torch.where(better, errors, fewest), torch.where(better, loss, least)
        for name, value in average.items():
            kept[name] = torch.where(_beside(better, value), value, kept[name])
    return _outcomes(stack.from_free(paced(kept)), fewest)


def _outcomes(stack: MixtureStack, errors: Tensor) -> list[Outcome]:
    return [Outcome(stack[place], error) for place, error in enumerate(errors.tolist())]


def _beside(values: Tensor, parameter: Tensor) -> Tensor:
    """Values (P,), as they stand beside a parameter whose first dimension goes trial by trial."""
    each = values.repeat_interleave(len(parameter) // len(values))
    return each.view(-1, *[1] * (parameter.ndim - 1))
