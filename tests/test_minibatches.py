"""Minibatches: what Adam sees of them, by autograd and by NumPy."""

from itertools import combinations

import numpy as np
import pytest
import torch
from test_gradient import OBJECTIVES, problem

from mixtura.data.lazy import MappedRows
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine, Punched
from mixtura.objectives import Conditional
from mixtura.solvers import Adam, SpreadPrior, adam, small
from mixtura.solvers.adam import make_step
from mixtura.solvers.small import small_differentiation
from mixtura.testing import (
    STRUCTURES,
)


def losses_and_gradients(start, objective, engine, indices, prior=None):
    """What Adam sees of each minibatch, (b,) and (b, P), all of them at the same parameters."""
    free = {k: v.detach().clone().requires_grad_() for k, v in start.free().items()}
    step = make_step(start.from_free, objective, free, engine, 100, prior)
    found = []
    for index in indices:
        loss = step(index, 0.0)
        found.append(torch.cat([loss[None], *(v.grad.flatten() for v in free.values())]))
    found = torch.stack(found)
    return found[:, 0], found[:, 1:]


@pytest.mark.parametrize(
    ("n", "epochs", "size"),
    [
        (50, 60, 100),
        (2_000, 60, 100),
        (4_000, 60, 100),
        (20_000, 30, 200),
        (100_000, 30, 1_000),
        (10**6, 3, 1_000),
    ],
)
def test_epochs_and_sizes_of_minibatches_are_those_of_the_documentation(n, epochs, size):
    assert Adam().epochs_and_size(n) == (epochs, size)
    assert Adam(7, 50).epochs_and_size(n) == (7, 50)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_minibatches_are_unbiased(name, size, generator):
    """The mean over all minibatches of a size is that of all rows by weight, prior included."""
    start, engine = problem(("diag", "covariance"), generator, holes=True, n=6)
    engine.weight[:2] *= 10.0
    prior = SpreadPrior(3.0, start.density.spread[0])
    batches = [torch.tensor(index) for index in combinations(range(6), size)]
    losses, gradients = losses_and_gradients(start, OBJECTIVES[name], engine, batches, prior)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in start.free().items()}
    model, rows = start.from_free(leaves), engine.all_rows()
    total = (OBJECTIVES[name].loss(model.class_log_joint(rows), rows.y) * rows.weight).sum()
    mean = (total + prior.penalty(model)) / rows.weight.sum()
    expected = torch.autograd.grad(mean, list(leaves.values()))
    np.testing.assert_allclose(losses.mean(), mean.detach(), 1e-9)
    np.testing.assert_allclose(
        gradients.mean(0), torch.cat([g.flatten() for g in expected]), 1e-9, 1e-12
    )


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
def test_minibatches_in_numpy_are_those_of_autograd(structure, name, holes, generator, monkeypatch):
    """Losses and gradients, of rows with weights and copies with holes, prior included."""
    start, engine = problem(structure, generator, holes=holes)
    engine.weight[:9] *= 3.0
    prior = SpreadPrior(3.0, start.density.spread[0])
    views = [engine, engine.seen(Punched(0.3, generator))] if holes else [engine]
    some = torch.randperm(len(engine), generator=generator)[:20]
    for rows in views:
        state, found = generator.get_state(), []
        for way in ("kept rows", "each anew", "autograd"):
            if way == "each anew":
                monkeypatch.setattr(small, "_KEPT", 0)
            elif way == "autograd":
                monkeypatch.setattr(adam, "small_differentiation", lambda *given: None)
            generator.set_state(state)
            found.append(losses_and_gradients(start, OBJECTIVES[name], rows, [some], prior))
        monkeypatch.undo()
        for kept, anew, autograd in zip(*found, strict=True):
            np.testing.assert_allclose(kept, autograd.detach(), 1e-8, 1e-10)
            np.testing.assert_allclose(anew, autograd.detach(), 1e-8, 1e-10)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
def test_minibatches_of_rows_elsewhere_are_those_of_rows_in_memory(holes, generator, monkeypatch):
    """By NumPy and by autograd."""
    start, engine = problem(("diag", "covariance"), generator, holes=holes)
    rows = engine.all_rows()
    x = rows.x if rows.observed is None else rows.x.where(rows.observed, torch.nan)
    told = (rows.y.numpy(), rows.weight.numpy())
    lazy = MappedRows(x.numpy())
    lazy.has_missing = holes
    stored = Engine(lazy, *told, scaling=Scaling.identity(4), device=engine.device)
    assert small_differentiation(start, Conditional(), start.free(), stored, 20, None) is not None
    some = torch.randperm(len(engine), generator=generator)[:20]
    found = [losses_and_gradients(start, Conditional(), each, [some]) for each in (engine, stored)]
    monkeypatch.setattr(adam, "small_differentiation", lambda *given: None)
    for memory, elsewhere, autograd in zip(
        *found, losses_and_gradients(start, Conditional(), stored, [some]), strict=True
    ):
        np.testing.assert_allclose(elsewhere, memory, 1e-9, 1e-12)
        np.testing.assert_allclose(elsewhere, autograd.detach(), 1e-8, 1e-10)


@pytest.mark.parametrize("kind", ["diag", "low_rank", "full"])
def test_small_minibatches_of_gaussians_are_numpys(kind, generator):
    start, engine = problem((kind, "covariance"), generator, holes=True)
    free = start.free()
    for rows, known in ((engine, True), (engine.cast(torch.float32), False)):
        found = small_differentiation(start, Conditional(), free, rows, 20, None)
        assert (found is not None) == known


def test_punched_copies_share_the_weight_of_their_rows(generator):
    """With no holes in the copies, a minibatch says what it says without them."""
    start, engine = problem(("diag", "covariance"), generator)
    punched, index = engine.seen(Punched(0.0, generator)), torch.arange(7)
    plain, doubled = (
        losses_and_gradients(start, Conditional(), each, [index])[1] for each in (engine, punched)
    )
    np.testing.assert_allclose(doubled, plain, 1e-9, 1e-12)
