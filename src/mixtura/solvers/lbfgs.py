"""L-BFGS on all rows: any density, any objective, and several problems side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Parameters
from mixtura.densities import Statistics
from mixtura.densities.base import add_statistics
from mixtura.engines import Engine, Prepared
from mixtura.models.mixture import Mixture
from mixtura.models.read_out import Completed, ReadOut
from mixtura.models.stack import MixtureStack
from mixtura.objectives import Objective
from mixtura.progress import Progress, Record
from mixtura.solvers.base import (
    CONSTRAINTS,
    AnyModel,
    FitResult,
    Model,
    Penalty,
    Solver,
    SpreadPrior,
    expected,
)
from mixtura.solvers.elastic_net import NetworkPrior
from mixtura.solvers.gradients import Best, Free, Function, Packed
from mixtura.solvers.near import Near
from mixtura.solvers.small import small_function
from mixtura.solvers.small_networks import small_read_out

#: Steps that curvature is remembered of.
_MEMORY = 20
#: A step lowers the loss by this share of what the slope promises, and leaves no more than this
#: share of the slope; no more points than this are tried for it.
_ARMIJO, _WOLFE, _MOST_TRIED = 1e-4, 0.9, 20
#: No entry of a gradient is larger where a minimum is.
_FLAT = 1e-8

#: Where numbers are too large (or there are no rows), comparisons fail and steps become shorter:
#: nothing to warn of.
_OVERFLOW = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass
class LBFGS(Solver):
    """L-BFGS on all rows; with early stopping, the best iterate on held-out rows is kept.

    Parameters
    ----------
    max_iter : iterations at most.
    tol : it ends when the objective gains a smaller share of itself.
    early_stopping : hold out `validation_fraction` of the labeled rows, keep the best iterate on
        them, and stop after `patience` iterations without a gain.
    """

    max_iter: int = 40
    tol: float = 1e-7
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10

    _parameter_constraints = CONSTRAINTS

    def run(
        self,
        model: AnyModel,
        objective: Objective,
        engine: Engine,
        progress: Progress,
        *,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
        prior: Penalty | None = None,
    ) -> FitResult[AnyModel]:
        progress.start("L-BFGS", self.max_iter)
        packed, best = Packed(model.free(), model.n_problems), Best(model, objective, held_out)
        function, near = _function(model, objective, engine, prior, packed)
        search = Minimization(function, packed.pack(model.free()), self.max_iter, self.tol)
        while not search.settled.all():
            taken = search.advance()
            if near is not None and (search.settled.all() or (taken and near.old)):
                near.look_again()
                search.begin_again()
            if not taken:
                continue
            iteration = int(search.n_iter.max())
            loss = float(search.loss.mean())
            record: Record = {"stage": "L-BFGS", "iteration": iteration, "objective": loss}
            if held_out is not None:
                best.offer(model.from_free(packed.unpack(search.point)), loss, record)
            if progress.step(record) or best.waited(self.patience, iteration):
                break
        iteration = int(search.n_iter.max())
        settled = iteration < self.max_iter and not progress.stopped
        losses = torch.from_numpy(search.loss)
        found = best.model
        if held_out is None and iteration:
            found = model.from_free(packed.unpack(search.point))
        return FitResult(found, float(losses.mean()), max(1, iteration), settled, losses=losses)


def _function(
    model: Model, objective: Objective, engine: Engine, prior: Penalty | None, packed: Packed
) -> tuple[Function, Near | None]:
    """What is minimized; and what knows which components matter to rows, where that is asked.

    In NumPy where rows are few, by derivatives of our own where there are some.
    """
    given: Parameters = {"objective": objective, "engine": engine, "prior": prior}
    sums: Callable[[Free], Free] = partial(traced_sums, model, **given)
    near = None
    if isinstance(model, Mixture | MixtureStack) and isinstance(prior, SpreadPrior | NoneType):
        if small := small_function(model, objective, engine, prior):
            return small, None
        if model.density.explicit:
            near = Near.of(model, objective, engine)
            sums = partial(explicit_sums, model, near=near, **given)
    elif (
        isinstance(model, ReadOut)
        and model.explicit
        and isinstance(prior, NetworkPrior)
        and (isinstance(engine.view, Prepared) or not engine.may_have_missing)
    ):
        if small := small_read_out(model, objective, engine, prior):
            return small, None
        sums = partial(read_out_sums, model, **given)
    return packed.mean(sums, model.total_weight(engine.y, engine.weight)), near


@torch.no_grad()
def explicit_sums(
    model: Mixture | MixtureStack,
    free: Free,
    objective: Objective,
    engine: Engine,
    prior: SpreadPrior | None,
    near: Near | None = None,
) -> Free:
    """Losses (P,) at free parameters, and their gradient, by the statistics of the rows.

    Imagined rows of a prior are rows like any other.
    """
    current = model.from_free(free)
    if near is not None:
        near.begin()
    found = partial(expected, current, objective, near=near)
    sums = engine.sum(found, near or model, side_by_side=near is None)
    loss, mass, density = sums.pop("loss"), sums["mass"], current.density
    if prior is not None:
        loss = loss + prior.penalty(current)
        sums = add_statistics(sums, prior.statistics(density, density.location))
    slope = current.slope(sums, mass)
    return {"loss": loss.view(-1), **{name: -slope[name] for name in free}}


@torch.no_grad()
def read_out_sums(
    model: ReadOut, free: Free, objective: Objective, engine: Engine, prior: NetworkPrior
) -> Free:
    """The same for networks of complete rows, or draws of what is missing that stay."""
    current = model.from_free(free)
    sums = engine.sum(partial(_read, current, objective), model)
    read = {name: sums.pop(name) for name in ("loss", "weight", "bias", "log_prior")}
    mixture, density, mass = current.mixture, current.density, sums["mass"]
    if prior.spread is not None:
        sums = add_statistics(sums, prior.spread.statistics(density, density.location))
    slope = mixture.slope(sums, mass)
    by_prior = read["log_prior"]
    slope["log_prior"] -= by_prior - by_prior.sum(-1, keepdim=True) * mixture.log_prior.exp()
    rows = prior.rows if mixture.n_problems > 1 else prior.rows[0]
    by_weight = read["weight"] + rows[..., None] * prior.net.slope(current.weight)
    found = {f"mixture.{name}": -value for name, value in slope.items()}
    found |= {"weight": by_weight, "bias": read["bias"]}
    loss = read["loss"] + prior.penalty(current)
    return {"loss": loss, **{name: found[name] for name in free}}


def _read(model: ReadOut, objective: Objective, batch: Batch) -> Free:
    """Statistics of a chunk, `loss` (P,), and its derivatives by the read-out and class priors.

    The latter are those of embeddings, which may leave out what log-joints hold of them.
    """
    log_prob, statistics = model.density.expectation(batch)
    log_joint, (y, weight) = model.mixture.weighted(log_prob), model.asked(batch)

    def loss_and_slope(outputs: Tensor) -> tuple[Free, Tensor]:
        losses, slope = objective.loss_and_slope(outputs.detach(), y)
        loss = (losses * weight).view(-1, model.n_problems).sum(0)
        return {"loss": loss}, slope * weight[:, None]

    if isinstance(batch, Completed):
        return _read_draws(model, batch, log_joint, statistics, loss_and_slope)
    outputs, slopes = model.read(log_joint)
    loss, slope = loss_and_slope(outputs)
    by_joint, by_parameter = slopes(slope)
    return {**statistics(-by_joint.view(len(batch), -1)), **loss, **by_parameter}


def _read_draws(
    model: ReadOut,
    batch: Completed,
    log_joint: Tensor,
    statistics: Callable[[Tensor], Statistics],
    loss_and_slope: Callable[[Tensor], tuple[Free, Tensor]],
) -> Free:
    """The same where rows have holes: autograd goes through the read-out of rows and draws.

    Each network has its own draws, which are rows like any other to its mixtures.
    """
    drawn = [
        (each, *each.density.expectation(rows))
        for each, rows in zip(model.mixtures, batch.drawn, strict=True)
    ]
    joints = torch.stack([each.weighted(log_prob) for each, log_prob, _ in drawn], 1)
    given = log_joint, joints, model.weight, model.bias, model.mixture.log_prior
    leaves = [each.detach().requires_grad_() for each in given]
    with torch.enable_grad():
        mixture = replace(model.mixture, log_prior=leaves[4])
        current = replace(model, mixture=mixture, weight=leaves[2], bias=leaves[3])
        outputs = current.outputs_over(leaves[0], leaves[1].flatten(0, 1), batch)
    loss, slope = loss_and_slope(outputs)
    with torch.enable_grad():  # to check slopes that it is given, PyTorch would import SymPy
        total = (outputs * slope).sum()
    by_joint, by_draws, *rest = torch.autograd.grad(total, leaves, materialize_grads=True)
    shares = (-by_draws).unbind(1)
    parts = [sums(share) for (_, _, sums), share in zip(drawn, shares, strict=True)]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    found = add_statistics(statistics(-by_joint.view(len(batch), -1)), joined)
    return {**found, **loss, **dict(zip(("weight", "bias", "log_prior"), rest, strict=True))}


def traced_sums(
    model: Model, free: Free, objective: Objective, engine: Engine, prior: Penalty | None
) -> Free:
    """The same by autograd, for any model."""
    leaves = {name: value.requires_grad_() for name, value in free.items()}
    current = model.from_free(leaves)
    extra = [] if prior is None else [prior.penalty(current).view(-1)]

    def sums(batch: Batch) -> Free:
        outputs, (y, weight) = current.outputs(batch), current.asked(batch)
        losses, slope = objective.loss_and_slope(outputs.detach(), y)
        total = sum((each.sum() for each in extra), (outputs * (slope * weight[:, None])).sum())
        gradients = torch.autograd.grad(
            total, list(leaves.values()), retain_graph=True, materialize_grads=True
        )
        loss = (losses * weight).view(-1, model.n_problems).sum(0)
        loss = sum((each.detach() for each in extra), loss)
        extra.clear()  # it is of all rows together
        return {"loss": loss, **dict(zip(leaves, gradients, strict=True))}

    return engine.sum(sums, model)


class Minimization:
    """P functions, each minimized by L-BFGS; all are evaluated together, and none waits for others.

    Steps meet the weak Wolfe conditions, found by doubling and halving, which also serves
    functions with kinks. Curvature enters in its compact form (Byrd, Nocedal, Schnabel, 1994).

    Attributes
    ----------
    point : (P, d), the best so far, with its loss (P,) and slope (P, d).
    n_iter : (P,) steps taken.
    settled : (P,) where no further step is to come.
    """

    @_OVERFLOW
    def __init__(self, function: Function, start: np.ndarray, max_iter: int, tol: float) -> None:
        self._function, self._max_iter, self._tol = function, max_iter, tol
        self.point = start
        self.loss, self.slope = function(start)
        self.n_iter = np.zeros(len(start), dtype=int)
        self.settled = ~np.isfinite(self.loss) | (abs(self.slope).max(1) <= _FLAT)
        size = len(start), min(_MEMORY, max_iter)
        self._pairs = np.zeros((*size, 2, start.shape[1]))  # moves, and what they did to the slope
        self._products, self._squares = np.zeros((2, *size, size[1]))
        self._step, self._kept = np.zeros(size, dtype=int), np.zeros(len(start), dtype=int)
        self._direction = -self.slope
        self._length = 1.0 / np.linalg.norm(self.slope, axis=1).clip(1.0)
        self._low, self._high = np.zeros(len(start)), np.full(len(start), np.inf)
        self._tried = np.zeros(len(start), dtype=int)

    @_OVERFLOW
    def advance(self) -> bool:
        """Evaluate one point per problem; whether any has taken a step."""
        move = np.where(self.settled, 0.0, self._length)[:, None] * self._direction
        loss, slope = self._function(self.point + move)
        promised = np.einsum("pd,pd->p", self.slope, self._direction)
        lower = loss <= self.loss + _ARMIJO * self._length * promised  # never where it is NaN
        flatter = np.einsum("pd,pd->p", slope, self._direction) >= _WOLFE * promised
        self._tried += 1
        tired = self._tried >= _MOST_TRIED
        taken = lower & (flatter | tired) & ~self.settled
        self._low[lower], self._high[~lower] = self._length[lower], self._length[~lower]
        open_ended = np.isinf(self._high)
        middle = 0.5 * (self._low + np.where(open_ended, 3.0 * self._length, self._high))
        self._length = middle
        self.settled |= tired & ~lower
        if taken.any():
            self._take(taken, move, loss, slope)
        return bool(taken.any())

    @_OVERFLOW
    def begin_again(self) -> None:
        """Go on from where it is with those functions that are no longer what they were."""
        loss, slope = self._function(self.point)
        changed = abs(loss - self.loss) > self._tol * abs(self.loss).clip(1.0)
        self.loss = np.where(changed, loss, self.loss)
        self.slope = np.where(changed[:, None], slope, self.slope)
        self.settled &= ~changed | (self.n_iter >= self._max_iter)
        self._direction = np.where(changed[:, None], self._newton(), self._direction)
        self._begin_line(changed)

    def _begin_line(self, taken: np.ndarray) -> None:
        self._length[taken], self._low[taken], self._high[taken] = 1.0, 0.0, np.inf
        self._tried[taken] = 0

    def _take(
        self, taken: np.ndarray, move: np.ndarray, loss: np.ndarray, slope: np.ndarray
    ) -> None:
        scale = np.maximum(abs(self.loss), abs(loss)).clip(1.0)
        ended = self.loss - loss <= self._tol * scale
        self._remember(taken, move, slope - self.slope)
        self.point = np.where(taken[:, None], self.point + move, self.point)
        self.slope = np.where(taken[:, None], slope, self.slope)
        self.loss = np.where(taken, loss, self.loss)
        self.n_iter += taken
        ended |= (self.n_iter >= self._max_iter) | (abs(self.slope).max(1) <= _FLAT)
        self.settled |= taken & ended
        self._direction = np.where(taken[:, None], self._newton(), self._direction)
        self._begin_line(taken)

    def _remember(self, taken: np.ndarray, move: np.ndarray, turn: np.ndarray) -> None:
        """The last moves and what they did to the slope, each in the place of the oldest.

        Their products are kept, moves by turns that came no earlier and turns by turns: only those
        by the last turn are new. Problems that have taken fewer steps than others have moves of
        zero.
        """
        curved = (move * turn).sum(1) > 1e-10 * (turn * turn).sum(1)
        (keep,) = (taken & curved).nonzero()
        if not len(keep):
            return
        slot = self._kept[keep] % self._step.shape[1]
        self._kept[keep] += 1
        self._pairs[keep, slot] = np.stack([move[keep], turn[keep]], 1)
        self._step[keep, slot] = self._kept[keep]
        used, known = self._known()
        dots = (known @ turn[..., None]).reshape(len(turn), -1, 2)[keep]
        self._products[keep, used, slot] = dots[..., 0]
        self._squares[keep, slot, used] = self._squares[keep, used, slot] = dots[..., 1]

    def _known(self) -> tuple[slice, np.ndarray]:
        """Places that are in use, and their pairs of a move and a turn, (P, 2 m, d)."""
        used = slice(min(self._step.shape[1], int(self._kept.max())))
        known = self._pairs[:, used]
        return used, known.reshape(len(known), -1, known.shape[3])

    def _newton(self) -> np.ndarray:
        """Minus the inverse curvature times the slope, (P, d)."""
        used, known = self._known()
        if not used.stop:
            return -self.slope
        step = self._step[:, used]
        products, squares = self._products[:, used, used], self._squares[:, used, used]
        # Triangular in the order of the steps, whatever their places.
        upper = np.where(step[:, :, None] <= step[:, None], products, 0.0)
        upper = upper + (step == 0)[..., None] * np.eye(step.shape[1])
        diagonal, latest = np.einsum("pmm->pm", products), (np.arange(len(step)), step.argmax(1))
        scale = np.ones(len(step))
        np.divide(diagonal[latest], squares[*latest, latest[1]], where=self._kept > 0, out=scale)
        scale = scale[:, None, None]
        dots = (known @ self.slope[..., None]).reshape(*step.shape, 2)
        inner = np.linalg.solve(upper, dots[..., :1])
        middle = diagonal[..., None] * inner + scale * (squares @ inner - dots[..., 1:])
        outer = np.linalg.solve(upper.transpose(0, 2, 1), middle)
        back = np.concatenate([outer, -scale * inner], 2).reshape(len(step), 1, -1)
        found = scale[:, 0] * self.slope + (back @ known)[:, 0]
        descends = (found * self.slope).sum(1, keepdims=True) > 0.0
        return -np.where(descends, found, self.slope)
