"""Expectation-maximization: occupancies, statistics, closed-form maximum; never goes down.

Where a density has no closed form, gradients raise what the M step would maximize.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from scipy.optimize import minimize
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import Density, Statistics, add_statistics, keep_valid, scale_statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.training.base import (
    FitResult,
    SpreadPrior,
    occupancies,
    penalty,
    with_masses,
)
from mixtura.training.gradient import Free, Packed, gradient_of
from mixtura.training.progress import Progress

#: Steps of L-BFGS in an M step that has no closed form.
_STEPS = 5


@dataclass(frozen=True)
class EM:
    """EM until the mean log-likelihood (plus log prior, if there is one) gains less than `tol`."""

    max_iter: int = 100
    tol: float = 1e-3
    prior: SpreadPrior | None = None
    stage: str = "EM"

    def run(
        self, mixture: Mixture, objective: Objective, engine: Engine, progress: Progress
    ) -> FitResult:
        progress.start(self.stage, self.max_iter)
        total_weight, previous = engine.total_weight, float("inf")
        for iteration in range(1, self.max_iter + 1):
            sums = engine.sum(partial(_accumulate, mixture, objective), mixture.density)
            loss = float(sums.pop("loss")) / total_weight
            penalized = loss + penalty(mixture, self.prior) / total_weight
            if mixture.density.closed_form:
                mixture = em_update(mixture, sums, self.prior)
            else:
                density = _ascended(mixture, objective, engine, self.prior)
                mixture = with_masses(mixture, density, sums["mass"])
            stop = progress.step(
                {"stage": self.stage, "iteration": iteration, "objective": penalized}
            )
            if stop or previous - penalized < self.tol:
                return FitResult(mixture, loss, iteration, not stop)
            previous = penalized
        return FitResult(mixture, loss, self.max_iter, False)


def _accumulate(mixture: Mixture, objective: Objective, batch: Batch) -> Statistics:
    loss, occupancy = occupancies(mixture, objective, batch)
    if not mixture.density.closed_form:
        return {"mass": occupancy.sum(0), "loss": loss}
    return {**mixture.density.statistics(batch, occupancy), "loss": loss}


def em_update(mixture: Mixture, sums: Statistics, prior: SpreadPrior | None = None) -> Mixture:
    """The M step; a component that lost all its rows stays where it is."""
    old = mixture.density
    total = sums
    if prior is not None:
        total = add_statistics(sums, prior.statistics(old, old.center(sums)))
    new, valid = old.maximize(total)
    return with_masses(mixture, keep_valid(old, new, valid), sums["mass"])


def _ascended(
    mixture: Mixture, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> Density:
    """The density after a few steps of L-BFGS on what an M step maximizes."""
    old = mixture.density
    packed = Packed(old.free())

    def loss(batch: Batch, free: Free) -> Tensor:
        _, occupancy = occupancies(mixture, objective, batch)
        return -(occupancy * old.from_free(free).log_prob(batch)).sum()

    def sums(free: Free) -> Free:
        data = engine.sum(lambda batch: gradient_of(partial(loss, batch), free), old)
        if prior is None:
            return data
        return add_statistics(
            data,
            gradient_of(lambda f: prior.penalty(replace(mixture, density=old.from_free(f))), free),
        )

    function, start = packed.mean(sums, engine.total_weight), packed.pack(old.free())
    found = minimize(function, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return old.from_free(packed.unpack(found.x))


def online_em_step(
    mixture: Mixture, objective: Objective, engine: Engine, seen: Tensor
) -> tuple[Mixture, Tensor]:
    """One step on new rows; the model itself stands for the rows `seen` of each class (C,).

    Returns the new mixture and the rows seen by now.
    """
    sums = engine.sum(partial(_accumulate, mixture, objective), mixture.density)
    sums.pop("loss")
    past = mixture.log_weight.exp() * mixture.layout.spread(seen)
    imagined = scale_statistics(mixture.density.own_statistics(), past)
    updated = em_update(mixture, add_statistics(sums, imagined))
    return updated, seen + mixture.layout.sum(sums["mass"])
