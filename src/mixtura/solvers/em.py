"""Expectation-maximization: occupancies, statistics, closed-form maximum; never goes down.

Where a density has no closed form, gradients raise what the M step would maximize.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import Density, Statistics
from mixtura.densities.base import add_statistics, keep_valid, scale_statistics
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.product import without_atoms
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import compiles
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
#: What a column gains is told by the rows that have it, where fewer than so many of all do; by so
#: many at least; and where these are so many times the columns, for each component.
_FEW, _FEWEST, _ENOUGH = 0.5, 0.01, 5.0
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
    tol : it ends when the mean log-likelihood (plus log prior, if there is one) gains less; where a
        column is missing in most rows of a class, the gain of those counts that have it.
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
        tol = self.tol * _least_share(model, engine)
        left: _Left[AnyMixture]
        if _may_be_rough(model, engine) and self.max_iter > 1:
            left = _Unsettled(model, engine.cast(torch.float32), prior)
            first = range(1, self.max_iter)
            iteration, stop, _ = self._steps(left, objective, tol, progress, first)
            model = left.whole()[0]
        if not stop:
            small = small_steps(model, objective, engine, prior)
            left = _Unsettled(model, engine, prior) if small is None else small
            rest = range(iteration + 1, self.max_iter + 1)
            iteration, stop, settled = self._steps(left, objective, tol, progress, rest)
        found, losses = left.whole()
        return FitResult(
            found, float(losses.mean()), iteration, settled and not stop, losses=losses
        )

    def _steps(
        self,
        left: _Left[AnyMixture],
        objective: Objective,
        tol: Tensor,
        progress: Progress,
        iterations: range,
    ) -> tuple[int, bool, bool]:
        """The last iteration, whether progress asked for an end, and whether all have settled.

        They go on while they gain `tol` (P,), but have settled where all rows gain no more than
        what was asked for.
        """
        for iteration in iterations:
            penalized = left.step(objective, tol)
            record: Record = {"stage": "EM", "iteration": iteration, "objective": penalized}
            stop, settled = progress.step(record), bool(left.settled.all())
            if stop or settled:
                break
            left.part()
        return iteration, stop, settled or left.gain < self.tol


def _least_share(model: Mixture | MixtureStack, engine: Engine) -> Tensor:
    """(P,) of the rows of a class in each problem, the share that have the column that fewest have;
    one where half of them or more do.

    An iteration gains by a column as large a share of what there is to gain as there are rows that
    have it, and only in these: by the mean over all, EM would end before it has begun to learn it.
    Columns that too few rows have to learn a regression from count for nothing: to end early is
    what keeps EM from learning one.
    """
    problems, n_classes = model.n_problems, model.n_classes
    if not engine.may_marginalize:
        return torch.ones(problems, dtype=torch.float64, device=engine.device)
    atoms = engine.scaling.atoms

    def sums(batch: Batch | SequenceBatch) -> dict[str, Tensor]:
        rows = batch.frames if isinstance(batch, SequenceBatch) else batch
        rows = rows if atoms is None else without_atoms(rows, atoms)[0]
        y, weight = (each.view(len(rows), problems) for each in model.asked(rows))
        own = (y[..., None] == torch.arange(n_classes, device=y.device)) | (n_classes == 1)
        own = (own * weight[..., None]).double().flatten(1)  # (n, P C)
        seen = torch.ones_like(rows.x) if rows.observed is None else rows.observed
        return {"known": own.mT @ seen.double(), "all": own.sum(0)}

    found = engine.sum(sums, model)
    share = found["known"] / found["all"][:, None]  # of a class without rows not a number
    counts = torch.tensor(model.layout.counts, device=engine.device).repeat(problems)[:, None]
    enough = found["known"] >= _ENOUGH * engine.n_features * counts
    share = torch.where(enough & (share < _FEW), share, 1.0).view(problems, -1)
    return share.amin(1).clamp_min(_FEWEST)


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
        self.gain = torch.inf

    def step(self, objective: Objective, tol: Tensor) -> float:
        """One iteration; the mean objective before it. Who gains less than `tol` (P,) settles."""
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
        gained = self._previous - penalized
        self.gain = float(gained.max())
        self.settled = self.settled | (gained < tol[self._places])
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
    if few or not compiles(engine.device) or type(density) is not DiagonalGaussian:
        return None
    count, width = (2 ** (size - 1).bit_length() for size in density.mean.shape)
    padded = max(count, 8) * max(width, 16)  # as the kernel holds them
    plain = engine.uniform and engine.view is None and not engine.may_marginalize
    if not isinstance(model, Mixture) or model.n_classes > 1 or objective != Likelihood():
        return None
    if not plain or padded > _IN_REGISTERS:
        return None
    from mixtura.solvers.fused import Fused  # Triton comes with PyTorch for CUDA alone

    return Fused(model)


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
