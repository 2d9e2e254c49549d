"""What every solver takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import torch
from sklearn.base import clone
from sklearn.utils._param_validation import Interval
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.densities import Density, Statistics
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.engines import Engine
from mixtura.engines.base import HasRowCost
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.objectives import Objective
from mixtura.parts import AMOUNT, COUNT, Part
from mixtura.progress import Progress
from mixtura.solvers.near import Near, learning

#: What settings of solvers may be, where one that has them says nothing else.
CONSTRAINTS: dict[str, list[object]] = {
    "max_iter": [COUNT],
    "tol": [AMOUNT],
    "n_init": [COUNT],
    "patience": [COUNT],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
}


@dataclass(frozen=True)
class SpreadPrior:
    """A conjugate prior: imagined rows, around each component's own center or of any category.

    Attributes
    ----------
    rows : number of imagined rows per component.
    reference : their spread, as `Density.spread` of one component; or of each component.
    around : where they are instead, as `Density.location` has it; a model that is adapted.
    """

    rows: float
    reference: Tensor
    around: Tensor | None = None

    @classmethod
    def adapted(cls, density: Density, rows: float) -> SpreadPrior:
        """Rows that are as those of a density, in each of its components (and states)."""
        spread = density.spread.flatten(0, density.location.ndim - 2)
        return cls(rows, spread, density.location)

    @classmethod
    def pooled(cls, densities: list[Density], share: Tensor, rows: float | None) -> SpreadPrior:
        """The mean spread of groups, each with its share; None is enough rows for it to matter."""
        spreads = torch.stack([density.typical_spread for density in densities])
        reference = torch.tensordot((share / share.sum()).to(spreads), spreads, 1)
        return cls(densities[0].prior_rows if rows is None else rows, reference)

    @classmethod
    def stacked(cls, priors: Sequence[SpreadPrior | None], n_components: int) -> SpreadPrior | None:
        """Those of several problems, each with so many components."""
        known = [prior for prior in priors if prior is not None]
        if not known:
            return None
        places = [prior.around for prior in known if prior.around is not None]
        if places:
            return cls(known[0].rows, torch.cat([p.reference for p in known]), torch.cat(places))
        every = torch.stack([prior.reference for prior in known])
        return cls(known[0].rows, every.repeat_interleave(n_components, 0))

    def split(self, spreads: Callable[[Tensor], list[Tensor]]) -> list[SpreadPrior]:
        """Those of the parts of a product, which has their spreads side by side."""
        return [SpreadPrior(self.rows, each) for each in spreads(self.reference)]

    def only(self, mask: Tensor) -> SpreadPrior:
        """That of some problems (P,) of a stack."""
        each = self.reference.unflatten(0, (len(mask), -1))
        around = None if self.around is None else self.around[mask]
        return SpreadPrior(self.rows, each[mask].flatten(0, 1), around)

    def statistics(self, density: Density, center: Tensor) -> Statistics:
        """What the imagined rows around each `center` (K, D) add to those of the real ones."""
        center = center if self.around is None else self.around.to(center)
        imagined = density.spread_statistics(self.reference.to(center), center)
        return {name: value * self.rows for name, value in imagined.items()}

    def penalty(self, mixture: Mixture | MixtureStack) -> Tensor:
        """Minus the log prior, up to a constant; that of each problem of a stack."""
        reference, density = self.reference.to(mixture.log_weight), mixture.density
        if self.around is not None:
            reference = density.spread_about(reference, self.around.to(reference))
        return -self.rows * mixture.summed(density.spread_log_prob(reference))


class HasOutputs(HasRowCost, Protocol):
    """What objectives can judge."""

    def outputs(self, batch: Batch) -> Tensor:
        """What objectives look at: log p(x, c), (n, C), or the like."""


class Model(HasOutputs, Protocol):
    """What can be trained by gradients: a mixture, a stack of them, or a network of mixtures."""

    @property
    def n_problems(self) -> int:
        """How many problems are trained side by side; each row is so many rows of `outputs`."""

    def asked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Labels and weights of the rows of `outputs`."""

    def total_weight(self, y: Tensor, weight: Tensor) -> Tensor:
        """(P,) what all rows weigh in each problem."""

    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters by name."""

    def from_free(self, free: dict[str, Tensor]) -> Self:
        """The model of unconstrained parameters."""

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Another device or floating type."""


AnyModel = TypeVar("AnyModel", bound=Model)
AnyMixture = TypeVar("AnyMixture", Mixture, MixtureStack)
Penalized = TypeVar("Penalized", contravariant=True)


class Penalty(Protocol[Penalized]):
    """What a training by gradient adds to the summed loss of the rows."""

    def penalty(self, model: Penalized, /) -> Tensor: ...


@dataclass(frozen=True)
class FitResult(Generic[AnyModel]):
    """A trained model, how training ended, and the prior it was trained under.

    `losses` (P,) are those of the problems, where the model is a stack. `evidence` (C, ...) is what
    missing entries told of the classes; training counted on it, and it is no part of the model.
    """

    model: AnyModel
    objective: float
    n_iter: int
    converged: bool
    prior: SpreadPrior | None = None
    losses: Tensor | None = None
    evidence: HoleEvidence | None = None


def unstacked(result: FitResult[MixtureStack]) -> list[FitResult[Mixture]]:
    """The mixtures of a stack, each with its own loss."""
    assert result.losses is not None  # a stack has one per problem
    return [
        FitResult(result.model[place], loss, result.n_iter, result.converged)
        for place, loss in enumerate(result.losses.tolist())
    ]


def penalty(mixture: Mixture, prior: SpreadPrior | None) -> float:
    """Minus the log prior of a mixture; nothing without a prior."""
    return 0.0 if prior is None else float(prior.penalty(mixture))


class Solver(Part, ABC):
    """Improves a model on an objective; all it needs of the rows are sums and minibatches.

    A new solver is a dataclass with a `run`; its fields are its settings.
    """

    #: Whether it maximizes the likelihood and nothing else.
    likelihood_only: ClassVar[bool] = False
    #: Whether it needs densities with closed-form updates.
    closed_form_only: ClassVar[bool] = False
    #: Whether to end without having converged deserves a warning.
    settles: ClassVar[bool] = False
    #: Whether float32 is enough for it, where rows come in that.
    single_precision: ClassVar[bool] = False

    max_iter: int | str | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1

    @abstractmethod
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
        """A better model.

        Parameters
        ----------
        model : where to begin; `free` and `from_free` give its unconstrained parameters, and
            `outputs` is what objectives look at, and differentiable.
        objective : to be minimized, summed over the rows by weight.
        engine : the rows.
        progress : to be told of every iteration; training stops where its `step` returns True.
        generator : for all that is random.
        held_out : rows that are not to be trained on, for early stopping.
        prior : what is added to the summed loss.
        """

    @property
    def held_out_share(self) -> float:
        """Share of the labeled rows that are to be held out of training."""
        return self.validation_fraction if self.early_stopping else 0.0

    def limited(self, max_iter: int) -> Self:
        """The same solver with no more iterations than that, where it counts any."""
        if self.max_iter is None:
            return self
        most = max_iter if self.max_iter == "auto" else min(self.max_iter, max_iter)
        return clone(self).set_params(max_iter=most)

    def for_trials(self) -> Solver:
        """What stands in for it where candidates are compared on a few rows."""
        return self


def occupancies(
    mixture: Mixture | MixtureStack, objective: Objective, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Weighted losses of a chunk (n,), and its signed occupancies (n, K)."""
    with torch.no_grad():
        log_joint = mixture.log_joint(batch)
        return objective.occupancy(mixture, log_joint, *mixture.asked(batch))


@torch.no_grad()
def expected(
    model: Mixture | MixtureStack, objective: Objective, batch: Batch, near: Near | None = None
) -> Statistics:
    """Statistics of a chunk by signed occupancies, and `loss` (P,), that of each problem.

    They are in double precision, whatever the rows are in. Where rows have holes, problems are left
    out that do not learn from them, and components that do not matter to them, where that is known.
    """
    density, among = model.density, None
    if near is not None:
        log_joint, among, statistics = near.expectation(model, batch)
    else:
        masked = isinstance(batch, Batch) and batch.observed is not None
        if model.n_problems > 1 and masked:
            log_prob, statistics = density.expectation_among(batch, learning(model, batch))
        else:
            log_prob, statistics = density.expectation(batch)
        log_joint = model.weighted(log_prob)
    losses, occupancy = objective.occupancy(model, log_joint, *model.asked(batch))
    loss, occupancy = losses.view(-1, model.n_problems).sum(0), occupancy.view(len(batch), -1)
    if among is not None:
        occupancy = occupancy * among
    if not density.closed_form:
        return {"mass": occupancy.sum(0), "loss": loss}
    return {name: sums.double() for name, sums in (statistics(occupancy) | {"loss": loss}).items()}
