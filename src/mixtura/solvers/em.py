"""Expectation-maximization: occupancies, statistics, closed-form maximum; never goes down.

Where a density has no closed form, gradients raise what the M step would maximize.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real

import torch
from scipy.optimize import minimize
from sklearn.utils._param_validation import Interval
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import Density, Statistics, add_statistics, keep_valid, scale_statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.solvers.base import (
    FitResult,
    Solver,
    SpreadPrior,
    occupancies,
    penalty,
    with_masses,
)
from mixtura.solvers.gradients import Free, Packed, gradient_of

#: Steps of L-BFGS in an M step that has no closed form.
_STEPS = 5


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
    _parameter_constraints = {
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
    }

    def run(  # type: ignore[override]
        self,
        model: Mixture,
        objective: Objective,
        engine: Engine,
        progress: Progress,
        *,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
        prior: SpreadPrior | None = None,
    ) -> FitResult[Mixture]:
        progress.start("EM", self.max_iter)
        total_weight, previous = engine.total_weight, float("inf")
        for iteration in range(1, self.max_iter + 1):
            sums = engine.sum(partial(_accumulate, model, objective), model.density)
            loss = float(sums.pop("loss")) / total_weight
            penalized = loss + penalty(model, prior) / total_weight
            if model.density.closed_form:
                model = em_update(model, sums, prior)
            else:
                density = _ascended(model, objective, engine, prior)
                model = with_masses(model, density, sums["mass"])
            stop = progress.step({"stage": "EM", "iteration": iteration, "objective": penalized})
            if stop or previous - penalized < self.tol:
                return FitResult(model, loss, iteration, not stop)
            previous = penalized
        return FitResult(model, loss, self.max_iter, False)


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
    past = mixture.log_weight.exp() * mixture.layout.by_component(seen)
    imagined = scale_statistics(mixture.density.own_statistics(), past)
    updated = em_update(mixture, add_statistics(sums, imagined))
    return updated, seen + mixture.layout.sum(sums["mass"])
