"""L-BFGS on all rows: any density, any objective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import torch
from scipy.optimize import minimize
from sklearn.utils._param_validation import Interval
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import add_statistics
from mixtura.engines import Engine
from mixtura.objectives import Objective
from mixtura.progress import Progress, Record
from mixtura.solvers.base import AnyModel, FitResult, Model, Penalty, Solver
from mixtura.solvers.gradients import Best, Free, Packed, gradient_of


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

    _parameter_constraints = {
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [Interval(Integral, 1, None, closed="left")],
    }

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
        packed, best = Packed(model.free()), Best(model, objective, held_out)

        def sums(free: Free) -> Free:
            data = engine.sum(partial(_gradient_sums, model, objective, free), model)
            if prior is None:
                return data
            penalties = gradient_of(lambda leaves: prior.penalty(model.from_free(leaves)), free)
            return add_statistics(data, penalties)

        iteration = 0

        def after_step(intermediate_result) -> None:  # type: ignore[no-untyped-def]
            nonlocal iteration
            iteration += 1
            loss = float(intermediate_result.fun)
            record: Record = {"stage": "L-BFGS", "iteration": iteration, "objective": loss}
            best.offer(model.from_free(packed.unpack(intermediate_result.x)), loss, record)
            if progress.step(record) or best.waited(self.patience, iteration):
                raise StopIteration

        outcome = minimize(
            packed.mean(sums, engine.total_weight),
            packed.pack(model.free()),
            jac=True,
            method="L-BFGS-B",
            callback=after_step,
            options={"maxiter": self.max_iter, "ftol": self.tol, "gtol": 1e-8, "maxcor": 20},
        )
        settled = iteration < self.max_iter and not progress.stopped
        return FitResult(best.model, float(outcome.fun), max(1, iteration), settled)


def _gradient_sums(model: Model, objective: Objective, free: Free, batch: Batch) -> Free:
    def loss(leaves: Free) -> Tensor:
        joint = model.from_free(leaves).outputs(batch)
        return objective.total(joint, batch.y, batch.weight)

    return gradient_of(loss, free)
