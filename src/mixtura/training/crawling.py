"""Where few rows have a column, EM crawls and ends too early: L-BFGS goes on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.solvers import LBFGS, FitResult
from mixtura.solvers.base import AnyMixture

#: Share of the rows; a column that fewer have is one that few have.
_FEW = 0.2
#: Iterations of L-BFGS, at most.
_ITERATIONS = 100


def crawls(model: AnyMixture, engine: Engine) -> bool:
    """Whether EM of rows does, and there is a way on.

    Of what the likelihood can gain by a column, an iteration brings as large a share as have it:
    next to nothing, by which EM ends, while regressions on other columns are still as they began.
    """
    if not (model.density.explicit and engine.may_marginalize):
        return False

    def known(batch: Batch) -> dict[str, Tensor]:
        seen = torch.ones_like(batch.x) if batch.observed is None else batch.observed
        return {"known": batch.weight.double() @ seen.double()}

    share = engine.sum(known, model)["known"] / engine.total_weight
    return bool(((share > 0.0) & (share < _FEW)).any())


def finished(
    found: FitResult[Mixture], objective: Objective, engine: Engine, progress: Progress
) -> FitResult[Mixture]:
    """What EM has found, where the objective of the rows is least nearby."""
    if progress.stopped or not crawls(found.model, engine):
        return found
    better = LBFGS(_ITERATIONS).run(found.model, objective, engine, progress, prior=found.prior)
    return replace(
        found,
        model=better.model,
        objective=better.objective,
        n_iter=found.n_iter + better.n_iter,
        converged=found.converged or better.converged,
    )
