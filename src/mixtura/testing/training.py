"""Checks of objectives and solvers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.progress import Progress
from mixtura.solvers import FitResult, Solver, SpreadPrior
from mixtura.solvers.base import penalty
from mixtura.testing.parts import EXACT, make_density, make_mixture, rand, randn

# -- objectives --------------------------------------------------------------------------------


def check_objective(
    objective: Objective, generator: torch.Generator, *, unlabeled: bool = False
) -> None:
    """Slopes, totals and occupancies are the derivatives of the loss, in two terms of one sign.

    `unlabeled` includes rows without a label.
    """
    counts = [2, 1, 3]
    n, n_classes = 15, len(counts)
    y = torch.arange(n) % n_classes
    if unlabeled:
        y[::4] = -1
    weight = 0.5 + rand(generator, n)
    class_log_joint = 3.0 * randn(generator, n, n_classes)
    _check_slopes(objective, class_log_joint, y, weight)
    mixture = make_mixture(
        make_density("diag", "covariance", generator, n_components=sum(counts)), counts, generator
    )
    _check_occupancy(objective, mixture, 3.0 * randn(generator, n, sum(counts)), y, weight)


def _check_slopes(objective: Objective, joint: Tensor, y: Tensor, weight: Tensor) -> None:
    leaf = joint.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda j: objective.loss(j, y), (leaf,))
    assert torch.autograd.gradcheck(lambda j: objective.total(j, y, weight), (leaf,))
    losses = objective.loss(leaf, y)
    (slope,) = torch.autograd.grad(losses.sum(), leaf)
    given, given_slope = objective.loss_and_slope(joint, y)
    np.testing.assert_allclose(given, losses.detach(), EXACT, EXACT)
    np.testing.assert_allclose(given_slope, slope, EXACT, EXACT)
    numerator = objective.numerator(joint, y)
    assert (numerator >= 0.0).all()
    assert (numerator + slope >= -EXACT).all()
    total = float(objective.total(joint, y, weight))
    np.testing.assert_allclose(total, float((losses.detach() * weight).sum()), EXACT)


def _check_occupancy(
    objective: Objective, mixture: Mixture, log_joint: Tensor, y: Tensor, weight: Tensor
) -> None:
    def total(values: Tensor) -> float:
        return float((objective.loss(mixture.by_class(values), y) * weight).sum())

    losses, occupancy = objective.occupancy(mixture, log_joint, y, weight)
    np.testing.assert_allclose(float(losses.sum()), total(log_joint), EXACT)
    step = 1e-6
    for row, component in np.ndindex(*log_joint.shape):
        nudge = torch.zeros_like(log_joint)
        nudge[row, component] = step
        slope = (total(log_joint + nudge) - total(log_joint - nudge)) / (2.0 * step)
        np.testing.assert_allclose(float(occupancy[row, component]), -slope, 1e-5, 1e-7)


# -- solvers -----------------------------------------------------------------------------------


def check_solver(
    solver: Solver,
    objective: Objective,
    mixture: Mixture,
    engine: Engine,
    *,
    prior: SpreadPrior | None = None,
) -> FitResult:
    """A solver ends with a valid model no worse than it began with, and repeats itself."""
    first, second = (
        solver.run(
            mixture,
            objective,
            engine,
            Progress(),
            generator=torch.Generator().manual_seed(0),
            prior=prior,
        )
        for _ in range(2)
    )
    check_valid(first.model)
    before, after = (penalized_loss(m, objective, engine, prior) for m in (mixture, first.model))
    assert after <= before + EXACT * abs(before), f"objective rose from {before} to {after}"
    for name, value in first.model.free().items():
        assert torch.equal(value, second.model.free()[name]), f"{name} differs between two runs"
    return first


def check_valid(mixture: Mixture) -> None:
    """Finite parameters, positive definite covariances, weights and prior that sum to one."""
    for name, value in mixture.free().items():
        assert value.isfinite().all(), f"{name} is not finite"
    assert (torch.linalg.eigvalsh(mixture.density.covariances()) > 0).all()
    sums = mixture.layout.sum(mixture.log_weight.exp())
    np.testing.assert_allclose(sums, 1.0, EXACT)
    np.testing.assert_allclose(float(mixture.log_prior.exp().sum()), 1.0, EXACT)


def penalized_loss(
    mixture: Mixture, objective: Objective, engine: Engine, prior: SpreadPrior | None = None
) -> float:
    """The mean loss of all rows plus the prior's share, straight from the definitions."""
    batch = engine.all_rows()
    with torch.no_grad():
        losses = objective.loss(mixture.class_log_joint(batch), batch.y)
    total = float((losses * batch.weight).sum()) + penalty(mixture, prior)
    return total / float(batch.weight.sum())
