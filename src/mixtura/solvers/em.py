"""Expectation-maximization: occupancies, statistics, closed-form maximum; never goes down.

Where a density has no closed form, gradients raise what the M step would maximize.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Generic

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Density, Statistics
from mixtura.densities.base import add_statistics, keep_valid, scale_statistics
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.objectives import Likelihood, Objective
from mixtura.progress import Progress, Record
from mixtura.solvers.base import (
    CONSTRAINTS,
    AnyMixture,
    FitResult,
    Solver,
    SpreadPrior,
    expected,
    occupancies,
)
from mixtura.solvers.gradients import Free, Packed, gradient_of
from mixtura.solvers.lbfgs import Minimization
from mixtura.solvers.small import SmallSteps, small_steps

if TYPE_CHECKING:
    from mixtura.solvers.fused import Fused

#: Steps of L-BFGS in an M step that has no closed form.
_STEPS = 5
#: Numbers of rows in float32 that are worth a copy: EM goes on in double precision afterwards.
_WORTH = 1_000_000
#: Numbers of rows on a GPU that are worth the second in which a kernel for them is compiled, and
#: how many means it may have in its registers.
_COMPILED, _IN_REGISTERS = 2**26, 1_024
#: A start, or a stage, has settled where a row gains so little per number, of ten at least.
_PER_NUMBER, _LEAST_NUMBERS = 1e-3, 10


def enough_gain(n_numbers: int) -> float:
    """The tolerance of starts that other training follows, and of stages: of so many numbers."""
    return _PER_NUMBER * max(n_numbers, _LEAST_NUMBERS)


@dataclass
class EM(Solver):
    """Expectation-maximization: for the likelihood alone.

    Parameters
    ----------
    max_iter : iterations at most.
    tol : it ends when the mean log-likelihood (plus log prior, if there is one) gains less.
    n_init : starts from different clusters, of which the best is kept.
    """

    max_iter: int = 100
    tol: float = 1e-3
    n_init: int = 1

    likelihood_only = settles = True
    _parameter_constraints = CONSTRAINTS

    def run(  # type: ignore[override]
        self,
        model: AnyMixture,
        objective: Objective,
        engine: Engine,
        progress: Progress,
        *,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
        prior: SpreadPrior | None = None,
    ) -> FitResult[AnyMixture]:
        """A better mixture, or better ones: each of a stack stays as it is once it has settled."""
        progress.start("EM", self.max_iter)
        iteration, stop, settled = 0, False, False
        left: _Left[AnyMixture]
        if _may_be_rough(model, engine) and self.max_iter > 1:
            left = _Unsettled(model, engine.cast(torch.float32), prior)
            iteration, stop, _ = self._steps(left, objective, progress, range(1, self.max_iter))
            model = left.whole()[0]
        if not stop:
            small = small_steps(model, objective, engine, prior)
            left = _Unsettled(model, engine, prior) if small is None else small
            rest = range(iteration + 1, self.max_iter + 1)
            iteration, stop, settled = self._steps(left, objective, progress, rest)
        found, losses = left.whole()
        return FitResult(
            found, float(losses.mean()), iteration, settled and not stop, losses=losses
        )

    def _steps(
        self, left: _Left[AnyMixture], objective: Objective, progress: Progress, iterations: range
    ) -> tuple[int, bool, bool]:
        """The last iteration, whether progress asked for an end, and whether all have settled."""
        for iteration in iterations:
            penalized = left.step(objective, self.tol)
            record: Record = {"stage": "EM", "iteration": iteration, "objective": penalized}
            stop, settled = progress.step(record), bool(left.settled.all())
            if stop or settled:
                break
            left.part()
        return iteration, stop, settled


def _may_be_rough(model: Mixture | MixtureStack, engine: Engine) -> bool:
    """Whether rows that came in float32 are worth iterations in it, before those in double."""
    many = engine.single and len(engine) * engine.n_features >= _WORTH
    return many and model.density.single_precision and not engine.may_marginalize


class _Unsettled(Generic[AnyMixture]):
    """A mixture, or those of a stack that EM still improves, and their rows."""

    def __init__(self, model: AnyMixture, engine: Engine, prior: SpreadPrior | None) -> None:
        self._all: AnyMixture = model
        self._model: AnyMixture = model
        self._engine, self._prior = engine, prior
        weight = model.total_weight(engine.y, engine.weight).double()
        self._weight = weight.clamp_min(1e-300)
        self._places = torch.arange(len(self._weight), device=self._weight.device)
        self._previous = self._losses = torch.full_like(self._weight, torch.inf)
        self._final = self._losses.clone()
        self.settled = weight == 0  # nothing is learned where there is no row

    def step(self, objective: Objective, tol: float) -> float:
        """One iteration; the mean objective before it."""
        model, prior = self._model, self._prior
        sums = expected_sums(model, objective, self._engine)
        loss = sums.pop("loss").double() / self._weight
        penalized = loss if prior is None else loss + prior.penalty(model) / self._weight
        if model.density.closed_form:
            new = em_update(model, sums, prior)
        else:
            density = _ascended(model, objective, self._engine, prior)
            new = model.with_masses(density, sums["mass"])
        self._model = new
        if isinstance(model, MixtureStack) and self.settled.any():
            self._model = model.replaced(new, ~self.settled)
        self._losses = torch.where(self.settled, self._losses, loss)
        self.settled = self.settled | (self._previous - penalized < tol)
        self._previous = penalized
        return float(penalized.mean())

    def part(self) -> None:
        """Let those that have settled go, once they are half of all: the others cost less alone."""
        model, left = self._model, ~self.settled
        if not isinstance(model, MixtureStack) or 2 * int(left.sum()) > len(left):
            return
        self._all, self._final = self.whole()
        self._model = model.only(left)
        self._engine = self._engine.labeled_among(self._model.assignment.sees.any(0))
        self._prior = None if self._prior is None else self._prior.only(left)
        self._weight, self._places = self._weight[left], self._places[left]
        self._previous, self._losses = self._previous[left], self._losses[left]
        self.settled = self.settled[left]

    def whole(self) -> tuple[AnyMixture, Tensor]:
        """All mixtures as they are, and their losses (P,) before the last step."""
        losses = self._final.index_copy(0, self._places, self._losses)
        if not isinstance(self._all, MixtureStack) or len(self._places) == len(losses):
            return self._model, losses
        return self._all.with_parts(self._places, self._model), losses


_Left = _Unsettled[AnyMixture] | SmallSteps[AnyMixture]


def expected_sums(
    model: Mixture | MixtureStack, objective: Objective, engine: Engine
) -> Statistics:
    """What `expected` gives for all rows together; by one kernel where there is one for them."""
    fused = _fused(model, objective, engine)
    if fused is not None:
        return engine.sum(fused, fused)
    return engine.sum(partial(expected, model, objective), model.density, side_by_side=True)


def _fused(model: Mixture | MixtureStack, objective: Objective, engine: Engine) -> Fused | None:
    """Complete rows in the memory of a GPU, one class, diagonal covariances: a kernel does it."""
    density, few = model.density, len(engine) * engine.n_features < _COMPILED
    if few or engine.device.type != "cuda" or type(density) is not DiagonalGaussian:
        return None
    count, width = (2 ** (size - 1).bit_length() for size in density.mean.shape)
    padded = max(count, 8) * max(width, 16)  # as the kernel holds them
    plain = engine.uniform and engine.view is None and not engine.may_marginalize
    if not isinstance(model, Mixture) or model.n_classes > 1 or objective != Likelihood():
        return None
    if not plain or padded > _IN_REGISTERS or not _compiles(engine.device):
        return None
    from mixtura.solvers.fused import Fused  # Triton comes with PyTorch for CUDA alone

    return Fused(model)


@cache
def _compiles(device: torch.device) -> bool:
    """Whether Triton is there, and knows the device."""
    known = torch.version.cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(known) and find_spec("triton") is not None


def em_update(
    mixture: AnyMixture, sums: Statistics, prior: SpreadPrior | None = None
) -> AnyMixture:
    """The M step; a component that lost all its rows stays where it is."""
    old = mixture.density
    total = sums
    if prior is not None:
        total = add_statistics(sums, prior.statistics(old, old.center(sums)))
    new, valid = old.maximize(total)
    return mixture.with_masses(keep_valid(old, new, valid), sums["mass"])


def _ascended(
    mixture: AnyMixture, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> Density:
    """The density after a few steps of L-BFGS on what an M step maximizes."""
    old, count = mixture.density, mixture.n_problems
    packed = Packed(old.free(), count)

    def loss(batch: Batch, free: Free) -> Tensor:
        _, occupancy = occupancies(mixture, objective, batch)
        gain = occupancy.view(len(batch), -1) * old.from_free(free).log_prob(batch)
        return -gain.view(len(batch), count, -1).sum((0, 2))

    def sums(free: Free) -> Free:
        data = engine.sum(lambda batch: gradient_of(partial(loss, batch), free), old)
        if prior is None:
            return data

        def penalty(leaves: Free) -> Tensor:
            return prior.penalty(replace(mixture, density=old.from_free(leaves))).view(-1)

        return add_statistics(data, gradient_of(penalty, free))

    function = packed.mean(sums, mixture.total_weight(engine.y, engine.weight))
    search = Minimization(function, packed.pack(old.free()), _STEPS, 0.0)
    while not search.settled.all():
        search.advance()
    return old.from_free(packed.unpack(search.point))


def past_statistics(mixture: Mixture, seen: Tensor) -> Statistics:
    """What the model itself stands for: so many rows of each class (C,), as it expects them."""
    rows = mixture.log_weight.exp() * mixture.layout.by_component(seen)
    return scale_statistics(mixture.density.own_statistics(), rows)


def online_em_step(
    mixture: Mixture, objective: Objective, engine: Engine, past: Statistics
) -> tuple[Mixture, Tensor]:
    """One step on new rows, beside statistics of the past.

    Returns the new mixture, and how many rows of each class (C,) have come.
    """
    sums = expected_sums(mixture, objective, engine)
    return em_update(mixture, add_statistics(sums, past)), mixture.layout.sum(sums["mass"])
