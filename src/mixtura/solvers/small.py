"""Losses, gradients, EM of small problems in NumPy: PyTorch's overhead would be most of the time.

The loss of class log-joints stays the objective's own. Arrays over rows have these last.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Self, TypeVar

import numpy as np
import torch

from mixtura.data.batch import Batch
from mixtura.data.meter import passed
from mixtura.densities import Categorical, Product, VectorDensity
from mixtura.engines import Contrast, Engine, Punched
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import lowest_log
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, Objective
from mixtura.solvers.base import AnyMixture, Model, Penalty, SpreadPrior
from mixtura.solvers.gradients import Free, Function
from mixtura.solvers.small_densities import Arrays, Kind, contrast, kind_of

#: Numbers held in memory for all rows, without and with holes, up to which overhead is what costs.
_SMALL = {False: 1_000_000, True: 5_000_000}
#: The same, up to which problems of EM go together though each row counts in few of them.
_TOGETHER = 600_000
#: Numbers of complete rows beside copies without targets that are kept in parts; those of a part
#: and all components, which are to stay in the cache, and its rows, at least.
_MOST, _CACHED, _FEWEST = 2**23, 2**17, 256
#: Rows up to which what follows from all of them is kept for minibatches of some.
_KEPT = 50_000
_LOWEST, _TINY = lowest_log(torch.float64), np.finfo(float).tiny

_Either = TypeVar("_Either", bound=Mixture | MixtureStack)
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
    if isinstance(engine.view, Contrast) and not engine.seen(None).may_marginalize:
        return _contrasted(model, objective, engine, prior, engine.view.n_targets)
    if not is_small(model, engine, engine.may_marginalize) or isinstance(engine.view, Punched):
        return None
    batch = engine.all_rows()
    kind = kind_of(model.density, batch, prior)
    total = model.total_weight(engine.y, engine.weight).numpy()
    return None if kind is None else Gradient(model, objective, batch, kind, total)


def _contrasted(
    model: Mixture | MixtureStack,
    objective: Objective,
    engine: Engine,
    prior: SpreadPrior | None,
    lacking: int,
) -> Function | None:
    """The same of complete rows beside copies without their last columns, some rows at a time.

    PyTorch would look for what each row lacks; imagined rows stand with the first ones.
    """
    if len(engine) * engine.n_features > _MOST or not _at_hand(engine):
        return None
    size = max(_FEWEST, _CACHED // model.row_cost(False))
    total = model.total_weight(engine.y, engine.weight).numpy()  # copies do not count
    parts = list[Gradient]()
    for batch in engine.chunks(2 * size):
        rows = replace(batch.take(slice(len(batch) // 2)), observed=None)
        kind = contrast(model.density, rows, lacking, None if parts else prior)
        if kind is None:
            return None
        parts.append(Gradient(model, objective, batch, kind, total))

    def function(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        losses, slopes = zip(*(each.at(points) for each in parts), strict=True)
        passed(2 * len(engine))
        return np.sum(losses, 0), np.sum(slopes, 0)

    return function


def small_differentiation(
    model: Model,
    objective: Objective,
    free: Free,
    engine: Engine,
    size: int,
    prior: Penalty | None,
) -> Callable[[torch.Tensor, float], torch.Tensor] | None:
    """The loss of minibatches of a size, by their places, rows scaled; free parameters get its
    gradient. Of many processes, each has that of its own rows.

    None where there is nothing to gain, or densities are of other kinds.
    """
    if not isinstance(model, Mixture) or not isinstance(prior, SpreadPrior | None):
        return None
    mixture, spread, total = model, prior, engine.total_weight
    missing = engine.may_marginalize or isinstance(engine.view, Punched)
    if not is_small(mixture, engine, missing, size):
        return None
    row = engine.seen(None).batch(torch.zeros(1).long())
    if not isinstance(row, Batch):  # a sequence
        return None
    if missing and row.observed is None:
        row = replace(row, observed=torch.ones_like(row.x, dtype=torch.bool))
    if kind_of(mixture.density, row, spread) is None:
        return None
    leaves = [free[name] for name in mixture.free()]
    ends = np.cumsum([leaf.numel() for leaf in leaves])[:-1]

    def gradient_of(batch: Batch) -> Gradient:
        kind = kind_of(mixture.density, batch, spread)
        assert kind is not None
        return Gradient(mixture, objective, batch, kind, np.array([total]))

    alone = engine.n_sharing == 1
    keeps = engine.uniform and engine.view is None and len(engine) <= _KEPT
    whole = gradient_of(engine.all_rows()) if keeps else None
    rows_at = engine.batch if alone else engine.own_batch

    @np.errstate(all="ignore")  # as PyTorch: the caller looks at what comes out
    def differentiated(index: torch.Tensor, scale: float) -> torch.Tensor:
        point = np.concatenate([leaf.detach().numpy().ravel() for leaf in leaves])
        part = gradient_of(rows_at(index)) if whole is None else whole.some(index.numpy())
        loss, slope = part.weighing(scale * total).at(point[None])
        for leaf, found in zip(leaves, np.split(slope[0], ends), strict=True):
            leaf.grad = torch.from_numpy(found).view_as(leaf)
        return torch.from_numpy(loss)[0]

    return differentiated


def small_steps(
    model: AnyMixture, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> SmallSteps[AnyMixture] | None:
    """Iterations of EM; None in the same cases, and for other objectives."""
    of_rows = isinstance(model.density, VectorDensity | Product | Categorical)
    if type(objective) is not Likelihood or not (of_rows and model.density.closed_form):
        return None
    known = model.n_classes > 1 or objective.unlabeled_weight is None
    if not (known and engine.view is None):
        return None
    if isinstance(model, Mixture):
        alone = _steps_of(model, objective, engine, prior)
        return None if alone is None else SmallSteps(model, [(torch.zeros(1).long(), alone)])
    blocks = list[tuple[torch.Tensor, _Steps[AnyMixture]]]()
    for mask in _apart(model, engine):
        part = model if mask.all() else model.only(mask)
        rows = engine.labeled_among(part.assignment.sees.any(0))
        own = prior if prior is None or mask.all() else prior.only(mask)
        steps = _steps_of(part, objective, rows, own)
        if steps is None:
            return None
        blocks.append((mask.nonzero().flatten(), steps))
    return SmallSteps(model, blocks)


def _steps_of(
    model: AnyMixture, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> _Steps[AnyMixture] | None:
    if not is_small(model, engine, engine.may_marginalize):
        return None
    # Rows as they are kept, with what follows from them.
    batch = next(iter(engine.chunks(len(engine))))
    kind = kind_of(model.density, batch, prior)
    total = model.total_weight(engine.y, engine.weight).numpy()
    return None if kind is None else _Steps(model, objective, batch, kind, total)


def _apart(stack: MixtureStack, engine: Engine) -> list[torch.Tensor]:
    """Masks (P,) of problems that share rows; all where to keep others apart would not pay."""
    if len(engine) * stack.row_cost(engine.may_marginalize) <= _TOGETHER:
        return [torch.ones(len(stack), dtype=torch.bool)]
    sees = stack.assignment.sees.double()
    first = (sees @ sees.mT > 0.0).int().argmax(1)
    return [first == each for each in first.unique()]


def small_log_joint(mixture: Mixture, batch: Batch) -> torch.Tensor | None:
    """Class log-joints (n, C) of rows; None in the same cases."""
    x, missing, layout = batch.x, batch.observed is not None, mixture.layout
    few = len(x) * mixture.row_cost(missing) <= _SMALL[missing]
    if not (few and x.device.type == "cpu" and x.dtype == torch.float64):
        return None
    kind = kind_of(mixture.density, batch, None)
    if kind is None:
        return None
    named = {name: each.numpy() for name, each in mixture.density.tensors().items()}
    log_joint = kind.log_prob(named) + mixture.log_joint_weight.numpy()[:, None]
    counts, owner = np.asarray(layout.counts), layout.owner.numpy()
    by_class, _ = _summed(log_joint[None], np.cumsum(counts) - counts, owner)
    return torch.from_numpy(by_class[0].T)


def is_small(
    model: Mixture | MixtureStack, engine: Engine, missing: bool, n_rows: int | None = None
) -> bool:
    """Whether rows, or so many of a minibatch, are at hand and few."""
    at_hand = _at_hand(engine) if n_rows is None else _is_double(engine)  # minibatches are
    n_rows = engine.n_here if n_rows is None else n_rows
    return at_hand and are_few(n_rows * model.row_cost(missing), missing)


def are_few(numbers: int, holes: bool) -> bool:
    """Whether so many numbers, of rows with holes or without, take less time than overhead."""
    return 0 < numbers <= _SMALL[holes]


def _at_hand(engine: Engine) -> bool:
    """Whether all rows are: a fit may go on with rows elsewhere, by the same sums."""
    return engine.uniform and not engine.is_recorded and _is_double(engine)


def _is_double(engine: Engine) -> bool:
    return engine.device.type == "cpu" and engine.dtype == torch.float64


@dataclass
class _Mixtures(Generic[_Either]):
    """P mixtures, each with K components in C classes; rows weigh so much in each (P,)."""

    _model: _Either
    _objective: Objective
    _batch: Batch
    _kind: Kind
    _total: np.ndarray

    def __post_init__(self) -> None:
        model, objective, batch = self._model, self._objective, self._batch
        self._n_problems, self._owner = model.n_problems, model.layout.owner.numpy()
        counts = np.asarray(model.layout.counts)
        self._starts = np.cumsum(counts) - counts
        self._log_prior = model.log_prior.numpy().reshape(model.n_problems, -1)
        y, weight = (each.view(len(batch), -1).mT for each in model.asked(batch))  # (P, n)
        self._y, self._weight = y.numpy(), weight.numpy()
        self._loss_and_slope = _loss_and_slope(objective, self._y, len(counts))

    def some(self, rows: np.ndarray) -> Self:
        """The same of the rows at some places (m,)."""
        part = copy(self)
        part._kind, part._y = self._kind.some(rows), self._y[:, rows]
        part._weight = self._weight[:, rows]
        part._loss_and_slope = _loss_and_slope(self._objective, part._y, len(self._starts))
        return part

    def weighing(self, factor: float) -> Self:
        """The same of rows that weigh so many times as much."""
        part = copy(self)
        part._weight = self._weight * factor
        return part

    def _explained(
        self, named: Arrays, weight: np.ndarray, prior: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Losses (P,) and signed occupancies (P, K, n) of log weights (P, K) and priors (P, C)."""
        by_class, within = self._summed(self._log_joint(named, weight, prior))
        losses, slope = self._loss_and_slope(by_class)
        occupancy = within * (slope * -self._weight[:, None])[:, self._owner]
        return (losses * self._weight).sum(1), occupancy

    def _log_joint(self, named: Arrays, weight: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """(P, K, n)."""
        log_joint = self._kind.log_prob(named).reshape(*weight.shape, -1)
        return log_joint + (weight + prior[:, self._owner])[..., None]

    def _log_prior_of_spread(self) -> np.ndarray:
        """(P,) of imagined rows."""
        return self._kind.log_prior().reshape(self._n_problems, -1).sum(1)

    def _summed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        return _summed(values, self._starts, self._owner)


class Gradient(_Mixtures[Mixture | MixtureStack]):
    """Their losses and gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shapes = list[_Named]()
        for name, value in self._model.free().items():
            first = self._shapes[-1][1].stop if self._shapes else 0
            place = slice(first, first + value.numel() // self._n_problems)
            self._shapes.append((name.removeprefix("density."), place, value.shape))

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self.at(points)
        passed(self._weight.shape[1])
        return found

    def at(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, of rows that are part of a pass."""
        free = {name: points[:, place].reshape(shape) for name, place, shape in self._shapes}
        weight = free["log_weight"].reshape(self._n_problems, -1)
        weight = weight - self._summed(weight)[0][:, self._owner]
        prior = self._log_prior
        if "log_prior" in free:
            prior = free["log_prior"].reshape(prior.shape)
            prior = prior - np.logaddexp.reduce(prior, 1, keepdims=True)
        loss, occupancy = self._explained(self._kind.natural(free), weight, prior)
        loss -= self._log_prior_of_spread()
        found = self._kind.slope(occupancy.reshape(-1, occupancy.shape[2]))
        mass = occupancy.sum(2)
        of_class = np.add.reduceat(mass, self._starts, 1)
        found["log_weight"] = mass - of_class[:, self._owner] * np.exp(weight)
        of_class = self._for_priors(of_class)
        found["log_prior"] = of_class - of_class.sum(1, keepdims=True) * np.exp(prior)
        flat = [found[name].reshape(self._n_problems, -1) for name, _, _ in self._shapes]
        return loss / self._total, np.concatenate(flat, 1) / -self._total[:, None]

    def _for_priors(self, mass: np.ndarray) -> np.ndarray:
        """(P, C) what class priors learn from, of all that components learn from."""
        return mass


class _Steps(_Mixtures[AnyMixture]):
    """EM of them: each stays as it is once it has settled (P,)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self._model
        self._named = {name: each.numpy() for name, each in model.density.tensors().items()}
        self._log_weight = model.log_weight.numpy().reshape(model.n_problems, -1)
        self._previous = self._losses = np.full(model.n_problems, np.inf)
        self.settled = self._total == 0  # nothing is learned where there is no row
        self.gain = np.inf

    @np.errstate(all="ignore")  # what is not valid stays as it was
    def step(self, tol: np.ndarray) -> np.ndarray:
        """One iteration; the objectives (P,) before it. Who gains less than `tol` (P,) settles."""
        if self.settled.all():
            return self._previous
        losses, occupancy = self._explained(self._named, self._log_weight, self._log_prior)
        passed(self._weight.shape[1])
        total = np.maximum(self._total, _TINY)
        loss, penalized = losses / total, (losses - self._log_prior_of_spread()) / total
        named, valid = self._kind.maximized(occupancy.reshape(-1, occupancy.shape[2]))
        moves = ~self.settled[:, None]
        valid = (valid.reshape(occupancy.shape[:2]) & moves).ravel()
        for name, old in self._named.items():
            each = valid.reshape(-1, *[1] * (old.ndim - 1))
            self._named[name] = np.where(each, named[name], old)
        mass = occupancy.sum(2)
        weight = np.log(np.maximum(mass, _TINY))
        weight = weight - self._summed(weight)[0][:, self._owner]
        self._log_weight = np.where(moves, weight, self._log_weight)
        if self._model.learn_prior:
            prior = np.add.reduceat(mass, self._starts, 1)
            prior = np.log(np.maximum(prior / prior.sum(1, keepdims=True), _TINY))
            self._log_prior = np.where(moves, prior, self._log_prior)
        self._losses = np.where(self.settled, self._losses, loss)
        gained = self._previous - penalized
        self.gain = float(gained.max())
        self.settled = self.settled | (gained < tol)
        self._previous = penalized
        return penalized

    def whole(self) -> tuple[AnyMixture, torch.Tensor]:
        """All mixtures as they are, and their losses (P,) before the last step."""
        model = self._model
        named = {name: torch.from_numpy(value) for name, value in self._named.items()}
        found = replace(
            model,
            density=model.density.with_tensors(named),
            log_weight=torch.from_numpy(self._log_weight).view_as(model.log_weight),
            log_prior=torch.from_numpy(self._log_prior).view_as(model.log_prior),
        )
        return found, torch.from_numpy(self._losses)


class SmallSteps(Generic[AnyMixture]):
    """EM of mixtures, block by block: at which places (B,) of a stack, and steps of these."""

    def __init__(
        self, model: AnyMixture, blocks: list[tuple[torch.Tensor, _Steps[AnyMixture]]]
    ) -> None:
        self._model: AnyMixture = model
        self._blocks: list[tuple[torch.Tensor, _Steps[AnyMixture]]] = blocks

    @property
    def settled(self) -> np.ndarray:
        """Whether each has."""
        return np.concatenate([steps.settled for _, steps in self._blocks])

    @property
    def gain(self) -> float:
        """What the one that gained most has gained in the last iteration."""
        return max(steps.gain for _, steps in self._blocks)

    def step(self, objective: Objective, tol: torch.Tensor) -> float:
        """One iteration; the mean objective before it. Who gains less than `tol` (P,) settles."""
        found = [steps.step(tol[places].numpy()) for places, steps in self._blocks]
        return float(np.concatenate(found).mean())

    def part(self) -> None:
        """Blocks that have settled cost nothing."""

    def whole(self) -> tuple[AnyMixture, torch.Tensor]:
        """All mixtures as they are, and their losses (P,) before the last step."""
        found, losses = self._blocks[0][1].whole()
        if isinstance(self._model, Mixture) or len(self._blocks) == 1:
            return found, losses
        model, every = self._model, torch.empty(len(self._model), dtype=torch.float64)
        for places, steps in self._blocks:
            part, losses = steps.whole()
            model, every[places] = model.with_parts(places, part), losses
        return model, every


def _summed(
    values: np.ndarray, starts: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray | float]:
    """Sums within each class in logs, (P, K, ...) to (P, C, ...), and shares (P, K, ...)."""
    if len(starts) == len(owner):
        return values, 1.0
    largest = np.maximum.reduceat(values, starts, 1)
    share = exp_or_zero(values - largest[:, owner])
    total = np.add.reduceat(share, starts, 1)
    share /= total[:, owner]
    return largest + np.log(total), share


def exp_or_zero(log: np.ndarray) -> np.ndarray:
    """As `numerics.exp_or_zero`."""
    found = np.exp(np.maximum(log, _LOWEST))
    found *= log > _LOWEST
    return found


def _loss_and_slope(objective: Objective, y: np.ndarray, n_classes: int) -> _LossAndSlope:
    """Of rows with labels (P, n), by the objective or by what is faster for some."""
    own = y[0], np.arange(y.shape[1])
    if isinstance(objective, Hybrid) and objective.likelihood.unlabeled_weight is None:
        term = objective.discriminative
        if type(term) is Margin:
            return partial(_by_margin, objective, term, own)
        if type(term) is Conditional:
            return partial(_by_conditional, objective, own)
    elif type(objective) is Likelihood and objective.unlabeled_weight is None:
        return partial(_by_likelihood, own if n_classes > 1 else (0, own[1]))
    return partial(_by_objective, objective, y)


def _by_objective(
    objective: Objective, y: np.ndarray, joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Losses (P, n) of class log-joints (P, C, n) and labels (P, n), and their derivatives."""
    outputs = torch.from_numpy(joint.swapaxes(1, 2).reshape(-1, joint.shape[1]))
    found = objective.loss_and_slope(outputs, torch.from_numpy(y).flatten())
    losses, slope = (each.numpy() for each in found)
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
    slope = exp_or_zero(rivals - largest[:, None])
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
    slope = exp_or_zero(joint - largest[:, None])
    total = slope.sum(1)
    losses = rest * (largest + np.log(total)) - joint[:, *own]
    slope *= (rest / total)[:, None]
    slope[:, *own] -= 1.0
    return losses, slope


def _by_likelihood(
    own: tuple[np.ndarray | int, np.ndarray], joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of the likelihood alone."""
    slope = np.zeros_like(joint)
    slope[:, *own] = -1.0
    return -joint[:, *own], slope
