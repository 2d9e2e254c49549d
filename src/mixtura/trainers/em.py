"""Expectation-maximisation: occupancies, statistics, closed-form maximum; never goes down."""

from __future__ import annotations

from dataclasses import dataclass

from mixtura.data import Batch
from mixtura.densities import Statistics, add_statistics, scale_statistics
from mixtura.engines import LocalEngine
from mixtura.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.trainers.base import (
    FitResult,
    keep_valid,
    occupancies,
    require_closed_form,
    with_masses,
)


@dataclass(frozen=True)
class EM:
    """EM until the mean log-likelihood gains less than `tol`."""

    max_iter: int = 100
    tol: float = 1e-3
    stage: str = "EM"

    def run(
        self, mixture: Mixture, objective: Objective, engine: LocalEngine, progress: Progress
    ) -> FitResult:
        require_closed_form(mixture.density, "em")
        progress.start(self.stage, self.max_iter)
        total_weight, previous = engine.total_weight, float("inf")
        for iteration in range(1, self.max_iter + 1):
            current = mixture
            sums = engine.sum(lambda b: _accumulate(current, objective, b), current.density)
            loss = float(sums.pop("loss")) / total_weight
            mixture = em_update(current, sums)
            stop = progress.step({"stage": self.stage, "iteration": iteration, "objective": loss})
            if stop or previous - loss < self.tol:
                return FitResult(mixture, loss, iteration, not stop)
            previous = loss
        return FitResult(mixture, loss, self.max_iter, self.max_iter == 1)


def _accumulate(mixture: Mixture, objective: Objective, batch: Batch) -> Statistics:
    loss, occupancy = occupancies(mixture, objective, batch)
    return {**mixture.density.statistics(batch, occupancy), "loss": loss}


def em_update(mixture: Mixture, sums: Statistics) -> Mixture:
    """The M step; a component that lost all its rows stays where it is."""
    density, valid = mixture.density.maximise(sums)
    return with_masses(mixture, keep_valid(mixture.density, density, valid), sums["mass"])


def online_em_step(
    mixture: Mixture, objective: Objective, engine: LocalEngine, seen: float
) -> Mixture:
    """One step on new rows; the model itself stands for the `seen` rows it was fitted on."""
    sums = engine.sum(lambda b: _accumulate(mixture, objective, b), mixture.density)
    sums.pop("loss")
    share = (mixture.log_weight + mixture.log_prior[mixture.owner]).exp()
    past = scale_statistics(mixture.density.own_statistics(), seen * share)
    return em_update(mixture, add_statistics(sums, past))
