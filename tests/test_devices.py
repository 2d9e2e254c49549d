"""The core on every device: CUDA gives what the CPU gives, which the other tests look after."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sequence_checks import toy_sequences

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine
from mixtura.objectives import Conditional, Hybrid, Likelihood, Margin, SmoothMargin
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam, LinkedEM, SpreadPrior
from mixtura.testing import KINDS, check_valid, make_batch, make_density, make_mixture

CLOSED_FORM = [key for key, (kind, _) in KINDS.items() if kind.closed_form]
OBJECTIVES = {
    "likelihood": Likelihood(),
    "conditional": Conditional(),
    "hybrid": Hybrid(Likelihood(), Margin(3.0), 0.5),
    "smooth margin": SmoothMargin(3.0),
}


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Where to compute."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device(request.param)


def moved(batch, device):
    """The rows of a batch on another device."""
    observed = None if batch.observed is None else batch.observed.to(device)
    x, y, weight = (part.to(device) for part in (batch.x, batch.y, batch.weight))
    return replace(batch, x=x, observed=observed, y=y, weight=weight)


def close(first, second, tolerance=1e-9):
    """Tensors of any devices agree."""
    torch.testing.assert_close(first.cpu(), second.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("structure", KINDS, ids="-".join)
def test_densities(structure, holes, device, generator):
    """Log densities, statistics, updates and conditional means."""
    density = make_density(*structure, generator)
    batch = make_batch(density, 40, generator, holes=holes)
    there, theirs = density.to(device), moved(batch, device)
    close(there.log_prob(theirs), density.log_prob(batch))
    share = torch.rand(40, density.n_components, dtype=torch.float64, generator=generator)
    close(there.fill(theirs, share.to(device)), density.fill(batch, share))
    if density.closed_form:
        statistics = density.statistics(batch, share)
        found = there.statistics(theirs, share.to(device))
        assert all(value.device.type == device.type for value in found.values())
        for name, value in statistics.items():
            close(found[name], value)
        updated, updated_there = density.maximize(statistics)[0], there.maximize(found)[0]
        for name, value in updated.tensors().items():
            close(updated_there.tensors()[name], value, 1e-6)


@pytest.mark.parametrize("structure", KINDS, ids="-".join)
def test_mixtures(structure, device, generator):
    """Joint densities, posteriors, imputations and draws."""
    mixture = make_mixture(make_density(*structure, generator), [2, 1], generator)
    batch = make_batch(mixture.density, 40, generator, holes=True)
    batch = replace(batch, y=batch.y.clamp(max=1))
    there, theirs = mixture.to(device), moved(batch, device)
    for name in ("class_log_joint", "posterior", "impute"):
        close(getattr(there, name)(theirs), getattr(mixture, name)(batch))
    labels = torch.tensor([0, 1, 1])
    drawn = there.sample(labels.to(device), torch.Generator().manual_seed(0))
    close(drawn, mixture.sample(labels, torch.Generator().manual_seed(0)))


def problem(structure, device):
    """A start and rows with holes, on a device."""
    generator = torch.Generator().manual_seed(1)
    truth, start = (
        make_mixture(make_density(*structure, generator, n_features=4), [2, 1], generator)
        for _ in range(2)
    )
    labels = (torch.rand(60, generator=generator) < 0.4).long()
    x = truth.sample(labels, generator).numpy()
    x[torch.rand(x.shape, generator=generator).numpy() < 0.2] = np.nan
    engine = Engine(x, labels.numpy(), scaling=Scaling.identity(4), device=device)
    return start.to(device), engine


def trained(solver, objective, structure, device, **named):
    """What a solver makes of the problem on a device."""
    start, engine = problem(structure, device)
    with Progress() as progress:
        random = torch.Generator().manual_seed(0)
        result = solver.run(start, objective, engine, progress, generator=random, **named)
    check_valid(result.model.to("cpu"))
    assert result.model.log_weight.device.type == device.type
    return result


def assert_agreement(solver, objective, structure, device, tolerance):
    """The same mixture on the device as on the CPU."""
    there = trained(solver, objective, structure, device).model
    here = trained(solver, objective, structure, torch.device("cpu")).model
    for name, value in here.density.tensors().items():
        close(there.density.tensors()[name], value, tolerance)
    close(there.log_weight, here.log_weight, tolerance)
    close(there.log_prior, here.log_prior, tolerance)


@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_em(structure, device):
    """Five iterations."""
    prior = SpreadPrior(2.0, problem(structure, device)[0].density.typical_spread)
    assert trained(EM(5, 0.0), Likelihood(), structure, device, prior=prior).n_iter == 5
    assert_agreement(EM(5, 0.0), Likelihood(), structure, device, 1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("structure", CLOSED_FORM, ids="-".join)
def test_ebw(structure, name, device):
    """Three iterations of extended Baum-Welch."""
    assert_agreement(EBW(3), OBJECTIVES[name], structure, device, 1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("structure", KINDS, ids="-".join)
def test_gradients(structure, name, device):
    """L-BFGS, and Adam on minibatches."""
    assert_agreement(LBFGS(3), OBJECTIVES[name], structure, device, 1e-4)
    adam = Adam(2, batch_size=16, schedule="constant")
    assert_agreement(adam, OBJECTIVES[name], structure, device, 1e-4)


def likelihood(device):
    """A classifier trained by EM."""
    return MixtureClassifier(2, objective="likelihood", device=device, random_state=0)


def discriminative(device):
    """A few steps of L-BFGS."""
    settings = {"density": "diag", "solver": LBFGS(3), "calibrate": False}
    return MixtureClassifier(1, device=device, random_state=0, **settings)


MODELS = {
    "likelihood": likelihood,
    "discriminative": discriminative,
    "density": lambda device: MixtureDensity(2, device=device, random_state=0),
    "boosted": lambda device: BoostedMixtureClassifier(
        n_stages=2, early_stopping=False, calibrate=False, device=device, random_state=0
    ),
    "sparse": lambda device: SparseMixtureClassifier(1, max_iter=5, device=device, random_state=0),
    "network": lambda device: MixtureNetworkClassifier(
        2,
        embedding="posterior",
        solver=LinkedEM(3),
        init=EM(3, 0.01),
        calibrate=False,
        device=device,
        random_state=0,
    ),
}


def answer(model, X):
    """Probabilities, or log densities."""
    return getattr(model, "predict_proba", getattr(model, "score_samples", None))(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_estimators(name, device, flowers, monkeypatch):
    """Fitted on the device and on the CPU, they answer alike."""
    # In the 40 steps of L-BFGS that networks take, rounding of 1e-13 grows to 1e-3.
    monkeypatch.setattr("mixtura.training.networks._ITERATIONS", (3, 3))
    X, y = flowers
    there, here = (MODELS[name](where).fit(X, y) for where in (str(device), "cpu"))
    np.testing.assert_allclose(answer(there, X), answer(here, X), rtol=1e-3, atol=1e-3)
    moved_back = there.set_params(device="cpu")
    np.testing.assert_allclose(answer(moved_back, X), answer(there, X), rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_atoms_in_minibatches(device):
    """Numbers that are integrated out differ from one minibatch to the next: no graph of steps."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 2)).clip(-0.5), rng.integers(2, size=120)
    settings = {"marginals": "linear+atoms", "density": "full", "solver": Adam(2, batch_size=32)}
    there, here = (
        MixtureClassifier(1, calibrate=False, device=where, random_state=0, **settings).fit(X, y)
        for where in (str(device), "cpu")
    )
    assert here._engine(X).may_marginalize
    assert not here._engine(X).may_have_missing
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), rtol=1e-3, atol=1e-3)


def test_sequences(device):
    """Hidden Markov models too."""
    X, y = toy_sequences()
    settings = {"method": "ml", "init": EM(3), "calibrate": False, "random_state": 0}
    there, here = (
        SequenceMixtureClassifier(2, device=where, **settings).fit(X, y)
        for where in (str(device), "cpu")
    )
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), rtol=1e-5, atol=1e-7)
