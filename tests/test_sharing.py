"""What classes of sequences share: a model that all are adapted from, or what states emit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import _dense_states, make_chains, make_sequence_engine, make_sequences
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from mixtura import SequenceDensity, SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import Chain, EmissionMixtures
from mixtura.densities.base import add_statistics
from mixtura.densities.side_by_side import SideBySide
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.solvers import SpreadPrior
from mixtura.solvers.em import em_update, expected_sums

LENGTHS = [4, 2, 1, 5, 3, 4]
FRAMES = 3.0


def adapted(density):
    """A prior for two models of these states."""
    one = SpreadPrior.adapted(density, FRAMES)
    return SpreadPrior.stacked([one, one], density.n_states)


def moments(x, weight, mean=0.0, covariance=0.0, frames=0.0):
    """Mean and covariance of frames (F, D), and of imagined ones."""
    total = weight.sum() + frames
    center = (weight @ x + frames * np.asarray(mean)) / total
    off, shift = x - center, np.atleast_1d(mean - center)
    spread = (off * weight[:, None]).T @ off + frames * (covariance + np.outer(shift, shift))
    return center, spread / total


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_adapted_states_count_imagined_frames(kind, generator):
    """A step of EM, by all paths through the states and plain moments."""
    density = make_chains(kind, generator, n_features=3)
    pooled = make_chains(kind, generator, n_components=1, n_features=3)
    batch = make_sequences(density, LENGTHS, generator)
    own = torch.nn.functional.one_hot(torch.arange(len(LENGTHS)) % 2, 2).double()
    sums, prior = density.statistics(batch, own), adapted(pooled)
    total = add_statistics(sums, prior.statistics(density, density.center(sums)))
    found, valid = density.maximize(total)
    assert valid.all()
    state = _dense_states(density, batch) * own.numpy()[batch.packing.owner, :, None]
    for k, s in np.ndindex(2, 2):
        imagined = pooled.location[0, s].numpy(), pooled.covariances()[0, s].numpy(), FRAMES
        mean, covariance = moments(batch.x.numpy(), state[:, k, s], *imagined)
        if kind == "diag":
            covariance = np.diag(np.diag(covariance))
        assert_allclose(found.location[k, s], mean, rtol=1e-9)
        assert_allclose(found.covariances()[k, s], covariance, rtol=1e-8, atol=1e-10)
    for name in ("log_start", "log_transition"):  # of these, nothing is imagined
        assert_allclose(getattr(found, name), getattr(density.maximize(sums)[0], name))


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_the_prior_is_the_likelihood_of_imagined_frames(kind, generator):
    """Up to a constant: their expected log density, by scipy."""
    pooled = make_chains(kind, generator, n_components=1)
    prior, wanted, found = adapted(pooled), [], []
    for _ in range(2):
        density = make_chains(kind, generator)
        found.append(float(prior.penalty(Mixture.single(density))))
        expected = 0.0
        for k, s in np.ndindex(2, 2):
            covariance = density.covariances()[k, s].numpy()
            at = multivariate_normal(density.location[k, s], covariance)
            spread = np.linalg.solve(covariance, pooled.covariances()[0, s].numpy())
            expected -= FRAMES * (at.logpdf(pooled.location[0, s]) - 0.5 * np.trace(spread))
        wanted.append(expected)
    assert_allclose(found[0] - found[1], wanted[0] - wanted[1], rtol=1e-9)


def with_mixtures(chains, generator):
    each = make_chains("diag", generator, n_components=2, n_states=4).emission
    count = chains.emission.n_components
    emission = EmissionMixtures.of(
        each.select(torch.arange(2 * count)), torch.ones(count, 2).double()
    )
    return replace(chains, emission=emission)


@pytest.mark.parametrize("kind", ["diag", "full", "mixtures"])
@pytest.mark.parametrize("holes", [False, True])
def test_adapting_never_goes_down(kind, holes, generator):
    chains = [make_chains("diag" if kind == "mixtures" else kind, generator) for _ in range(2)]
    if kind == "mixtures":
        chains = [with_mixtures(each, generator) for each in chains]
    mixture, pooled = Mixture.single(chains[0]), chains[1].select(torch.tensor([0]))
    engine, prior = (
        make_sequence_engine(mixture, LENGTHS * 3, generator, holes=holes),
        adapted(pooled),
    )
    losses = []
    for _ in range(15):
        sums = expected_sums(mixture, Likelihood(), engine)
        losses.append(float(sums.pop("loss") + prior.penalty(mixture)))
        mixture = em_update(mixture, sums, prior)
    assert (np.diff(losses) < 1e-9).all()
    assert losses[-1] < losses[0] - 0.1


def test_tied_states_are_updated_by_the_frames_of_all_classes(generator):
    """By all paths through the states; moves are those of each class."""
    plain = make_chains("full", generator, n_components=1)
    both = type(plain).stack(
        [plain, replace(make_chains("full", generator, n_components=1), emission=plain.emission)]
    )
    labels = torch.arange(len(LENGTHS)) % 2
    batch = replace(make_sequences(both, LENGTHS, generator), y=labels)
    own = torch.nn.functional.one_hot(labels, 2).double()
    tied = SideBySide.of(both, torch.arange(2), tied=True)
    found, valid = tied.maximize(tied.statistics(batch, own))
    assert valid.all()
    state = _dense_states(both, batch) * own.numpy()[batch.packing.owner, :, None]
    for s in range(2):
        mean, covariance = moments(batch.x.numpy(), state[:, :, s].sum(1))
        for k in range(2):
            assert_allclose(found.location[k, s], mean, rtol=1e-9)
            assert_allclose(found.covariances()[k, s], covariance, rtol=1e-8)
    apart = both.maximize(both.statistics(batch, own))[0]
    assert_allclose(found.log_transition, apart.log_transition)
    assert type(found.plain()) is type(plain)


# -- the classifier ----------------------------------------------------------------------------


def switching(seed, n):
    """Two classes of sequences over the same two places, which differ in how long they stay."""
    rng, y = np.random.default_rng(seed), np.arange(n) % 2
    X = []
    for label in y:
        moves = rng.random(40) < (0.1, 0.5)[label]
        X.append(4.0 * (np.cumsum(moves) % 2)[:, None] + rng.normal(size=(40, 2)))
    return X, y


def test_tied_classes_differ_in_moves_alone():
    X, y = switching(0, 6)
    chain = Chain(sharing="tied")
    model = SequenceMixtureClassifier(2, method="ml", chain=chain, random_state=0).fit(X, y)
    assert_allclose(model.means_[0], model.means_[1])
    assert_allclose(model.covariances_[0], model.covariances_[1])
    assert model.score(*switching(1, 200)) > 0.95


@pytest.mark.parametrize("method", ["ml", "conditional", "boosted"])
def test_adapted_classes_need_fewer_sequences(method):
    """Two sequences per class, three draws."""
    test, errors = make_hmm_sequences(40, random_state=9), []
    for sharing in (None, "adapted"):
        model = SequenceMixtureClassifier(
            6, method=method, chain=Chain(sharing=sharing), calibrate=False, random_state=0
        )
        train = [make_hmm_sequences(2, random_state=seed) for seed in range(3)]
        errors.append(
            [1.0 - model.fit(t.data, t.target).score(test.data, test.target) for t in train]
        )
    assert np.mean(errors[1]) < np.mean(errors[0])


def test_sharing_is_of_classes():
    X, y = switching(0, 6)
    with pytest.raises(UnsupportedError, match="classes"):
        SequenceDensity(chain=Chain(sharing="tied")).fit(X)
    with pytest.raises(ValueError, match="sharing"):
        SequenceMixtureClassifier(method="ml", chain=Chain(sharing="all")).fit(X, y)
