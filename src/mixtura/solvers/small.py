"""Losses and gradients of small problems in NumPy: PyTorch's overhead would be most of the time.

The loss of class log-joints stays the objective's own. Arrays over rows have these last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from mixtura.data.batch import Batch
from mixtura.engines import Contrast, Engine, Punched
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import lowest_log
from mixtura.objectives import Conditional, Hybrid, Margin, Objective
from mixtura.solvers.base import SpreadPrior
from mixtura.solvers.gradients import Function
from mixtura.solvers.small_densities import Kind, contrast, kind_of

#: Numbers held in memory for all rows, without and with holes, up to which overhead is what costs.
_SMALL = {False: 1_000_000, True: 5_000_000}
_LOWEST = lowest_log(torch.float64)

#: A parameter: its name, its place in a problem's vector, the shape of all of it.
_Named = tuple[str, slice, torch.Size]
#: Losses (P, n) of class log-joints (P, C, n), and derivatives by these.
_LossAndSlope = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def small_function(
    model: Mixture | MixtureStack, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> Function | None:
    """Mean losses (P,) and gradients (P, d) at points (P, d), of rows in memory.

    None where rows are many, or copies have holes at random, or densities are of other kinds.
    """
    lacking = None
    if isinstance(engine.view, Contrast) and not engine.seen(None).may_marginalize:
        lacking = engine.view.n_targets
    missing = engine.may_marginalize and lacking is None
    few = engine.n_here * model.row_cost(missing) <= _SMALL[missing]
    here = engine.uniform and engine.device.type == "cpu" and engine.dtype == torch.float64
    if not (few and here) or isinstance(engine.view, Punched):
        return None
    batch = engine.all_rows()
    if lacking is None:
        kind = kind_of(model.density, batch, prior)
    else:
        rows = replace(batch.take(slice(len(engine))), observed=None)
        kind = contrast(model.density, rows, lacking, prior)
    total = model.total_weight(engine.y, engine.weight).numpy()  # copies do not count
    return None if kind is None else _Mixtures(model, objective, batch, kind, total)


class _Mixtures:
    """P mixtures, each with K components in C classes."""

    def __init__(
        self,
        model: Mixture | MixtureStack,
        objective: Objective,
        batch: Batch,
        kind: Kind,
        total: np.ndarray,
    ) -> None:
        self._kind, self._n_problems, self._shapes = kind, model.n_problems, list[_Named]()
        for name, value in model.free().items():
            first = self._shapes[-1][1].stop if self._shapes else 0
            place = slice(first, first + value.numel() // model.n_problems)
            self._shapes.append((name.removeprefix("density."), place, value.shape))
        self._owner = model.layout.owner.numpy()
        counts = np.asarray(model.layout.counts)
        self._starts = np.cumsum(counts) - counts
        self._log_prior = model.log_prior.numpy().reshape(model.n_problems, -1)
        y, weight = (each.view(len(batch), -1).mT for each in model.asked(batch))  # (P, n)
        self._weight, self._total = weight.numpy(), total
        self._loss_and_slope: _LossAndSlope = partial(_by_objective, objective, y.flatten())
        if isinstance(objective, Hybrid) and objective.likelihood.unlabeled_weight is None:
            own, term = (y[0].numpy(), np.arange(len(batch))), objective.discriminative
            if type(term) is Margin:
                self._loss_and_slope = partial(_by_margin, objective, term, own)
            elif type(term) is Conditional:
                self._loss_and_slope = partial(_by_conditional, objective, own)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        free = {name: points[:, place].reshape(shape) for name, place, shape in self._shapes}
        weight = free["log_weight"].reshape(self._n_problems, -1)
        weight = weight - self._summed(weight)[0][:, self._owner]
        prior = self._log_prior
        if "log_prior" in free:
            prior = free["log_prior"].reshape(prior.shape)
            prior = prior - np.logaddexp.reduce(prior, 1, keepdims=True)
        log_joint = self._kind.log_prob(free).reshape(*weight.shape, -1)
        log_joint = log_joint + (weight + prior[:, self._owner])[..., None]
        by_class, within = self._summed(log_joint)
        losses, slope = self._loss_and_slope(by_class)
        loss = (losses * self._weight).sum(1)
        loss -= self._kind.log_prior().reshape(weight.shape).sum(1)
        occupancy = within * (slope * -self._weight[:, None])[:, self._owner]
        found = self._kind.slope(occupancy.reshape(-1, occupancy.shape[2]))
        mass = occupancy.sum(2)
        of_class = np.add.reduceat(mass, self._starts, 1)
        found["log_weight"] = mass - of_class[:, self._owner] * np.exp(weight)
        found["log_prior"] = of_class - of_class.sum(1, keepdims=True) * np.exp(prior)
        flat = [found[name].reshape(self._n_problems, -1) for name, _, _ in self._shapes]
        return loss / self._total, np.concatenate(flat, 1) / -self._total[:, None]

    def _summed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """Sums within each class in logs, (P, K, ...) to (P, C, ...), and shares (P, K, ...)."""
        if len(self._starts) == len(self._owner):
            return values, 1.0
        largest = np.maximum.reduceat(values, self._starts, 1)
        share = _exp_or_zero(values - largest[:, self._owner])
        total = np.add.reduceat(share, self._starts, 1)
        share /= total[:, self._owner]
        return largest + np.log(total), share


def _exp_or_zero(log: np.ndarray) -> np.ndarray:
    """As `numerics.exp_or_zero`."""
    found = np.exp(np.maximum(log, _LOWEST))
    found *= log > _LOWEST
    return found


def _by_objective(
    objective: Objective, y: torch.Tensor, joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Losses (P, n) of class log-joints (P, C, n) and labels (P * n,), and their derivatives."""
    outputs = torch.from_numpy(joint.swapaxes(1, 2).reshape(-1, joint.shape[1]))
    losses, slope = (each.numpy() for each in objective.loss_and_slope(outputs, y))
    by_row = slope.reshape(len(joint), joint.shape[2], -1)
    return losses.reshape(len(joint), -1), by_row.swapaxes(1, 2)


def _by_margin(
    objective: Hybrid, term: Margin, own: tuple[np.ndarray, np.ndarray], joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of the likelihood and the margin, by the places of the rows' own classes."""
    mine = joint[:, *own]
    rivals = term.smoothness * joint
    rivals[:, *own] = -np.inf
    largest = rivals.max(1)
    slope = _exp_or_zero(rivals - largest[:, None])
    total = slope.sum(1)
    short = term.margin - mine + (largest + np.log(total)) / term.smoothness
    rest = (1.0 - objective.tradeoff) * (short > 0.0)
    slope *= (rest / total)[:, None]
    slope[:, *own] = -rest - objective.tradeoff
    return rest * short - objective.tradeoff * mine, slope


def _by_conditional(
    objective: Hybrid, own: tuple[np.ndarray, np.ndarray], joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of the likelihood and the conditional likelihood."""
    rest, largest = 1.0 - objective.tradeoff, joint.max(1)
    slope = _exp_or_zero(joint - largest[:, None])
    total = slope.sum(1)
    losses = rest * (largest + np.log(total)) - joint[:, *own]
    slope *= (rest / total)[:, None]
    slope[:, *own] -= 1.0
    return losses, slope
