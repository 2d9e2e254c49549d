"""What every trainer takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import Density, Statistics, scale_statistics
from mixtura.engines import Engine
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.training.progress import Progress


@dataclass(frozen=True)
class SpreadPrior:
    """A conjugate prior: imagined rows, around each component's own center or of any category.

    Attributes
    ----------
    rows : number of imagined rows a component.
    reference : their spread, as `Density.spread` of one component.
    """

    rows: float
    reference: Tensor

    @classmethod
    def pooled(cls, densities: list[Density], share: Tensor, rows: float | None) -> SpreadPrior:
        """The mean spread of groups, each with its share; None is enough rows for it to matter."""
        spreads = torch.stack([density.typical_spread for density in densities])
        reference = torch.tensordot((share / share.sum()).to(spreads), spreads, 1)
        return cls(densities[0].prior_rows if rows is None else rows, reference)

    def statistics(self, density: Density, center: Tensor) -> Statistics:
        """What the imagined rows around each `center` (K, D) add to those of the real ones."""
        imagined = density.spread_statistics(self.reference.to(center), center)
        return scale_statistics(imagined, center.new_full((len(center),), self.rows))

    def penalty(self, mixture: Mixture) -> Tensor:
        """Minus the log prior, up to a constant."""
        reference = self.reference.to(mixture.log_weight)
        return -self.rows * mixture.density.spread_log_prob(reference).sum()


class Penalty(Protocol):
    """What a training by gradient adds to the summed loss of the rows."""

    def penalty(self, mixture: Any) -> Tensor: ...


@dataclass(frozen=True)
class FitResult:
    """A trained mixture, how training ended, and the prior it was trained under."""

    mixture: Mixture
    objective: float
    n_iter: int
    converged: bool
    prior: SpreadPrior | None = None


def penalty(mixture: Mixture, prior: SpreadPrior | None) -> float:
    """Minus the log prior of a mixture; nothing without a prior."""
    return 0.0 if prior is None else float(prior.penalty(mixture))


class Trainer(Protocol):
    """Improves a mixture on an objective; all it needs of the data is sums over chunks."""

    def run(
        self, mixture: Mixture, objective: Objective, engine: Engine, progress: Progress
    ) -> FitResult: ...


def require_closed_form(density: Density, solver: str) -> None:
    """Refuse a density without closed-form updates before any work is done."""
    if not density.closed_form:
        raise UnsupportedError(
            f"solver={solver!r} needs closed-form updates, and {type(density).__name__} has none: "
            "use solver='adam' or 'lbfgs', or a density that has them."
        )


def occupancies(mixture: Mixture, objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """The summed loss of a chunk, and its signed occupancies (n, K)."""
    with torch.no_grad():
        log_joint = mixture.log_joint(batch)
    return objective.occupancy(mixture, log_joint, batch.y, batch.weight)


def with_masses(mixture: Mixture, density: Density, mass: Tensor) -> Mixture:
    """The mixture whose weights and prior are proportional to non-negative masses (K,)."""
    tiny = torch.finfo(mass.dtype).tiny
    weight = mixture.normalize_weight(mass.clamp_min(tiny).log())
    prior = mixture.log_prior
    if mixture.learn_prior:
        by_class = mixture.layout.sum(mass)
        prior = (by_class / by_class.sum()).clamp_min(tiny).log()
    return replace(mixture, density=density, log_weight=weight, log_prior=prior)
