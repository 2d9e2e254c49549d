"""States that emit mixtures: scipy over all paths, a longer chain that says the same, hmmlearn."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from chains import make_chains, make_sequences
from scipy.special import logsumexp, softmax

from mixtura import FisherScores, SequenceDensity, SequenceMixtureClassifier, load
from mixtura.densities import Chain, EmissionMixtures, HiddenMarkov
from mixtura.solvers import EM, LBFGS, Boosted
from mixtura.testing.references import dense_log_prob

STATES, EACH = 2, 3
LENGTHS = [4, 2, 1, 3, 3]
QUICK = {"random_state": 0, "calibrate": False}


def mixed_chains(generator, kind="diag", left_to_right=False, n_components=2):
    """Models of two states with three Gaussians each."""
    sizes = {"n_components": n_components, "left_to_right": left_to_right}
    each = make_chains(kind, generator, n_states=STATES * EACH, floor=1e-9, **sizes).emission
    chains = make_chains(kind, generator, n_states=STATES, **sizes)
    count = 0.1 + torch.rand(n_components * STATES, EACH, dtype=torch.float64, generator=generator)
    return replace(chains, emission=EmissionMixtures.of(each, count))


def longer_chain(chains):
    """A state per Gaussian: one is entered by the chance of its state times its share."""
    share = chains.emission.log_share.unflatten(0, chains.log_start.shape)
    start = chains.log_start[..., None] + share
    moves = chains.log_transition[..., None] + share[:, None]
    return HiddenMarkov(
        emission=chains.emission.each,
        log_start=start.flatten(1),
        log_transition=moves.flatten(2).repeat_interleave(EACH, 1),
    )


@pytest.mark.parametrize("left_to_right", [False, True])
def test_sums_over_all_paths(left_to_right, generator):
    """Log-likelihoods, chances of states, and the likeliest path, with frames and values lost."""
    chains = mixed_chains(generator, left_to_right=left_to_right)
    batch = make_sequences(chains, LENGTHS, generator, holes=True)
    each = dense_log_prob(chains.emission.each, batch.frames).reshape(-1, 2, STATES, EACH)
    share = chains.emission.log_share.reshape(2, STATES, EACH).numpy()
    emission = logsumexp(each + share, axis=3)
    found, ones = chains.log_prob(batch), torch.ones(len(LENGTHS), 2).double()
    state = chains.states(batch, ones).unflatten(1, (2, STATES)).numpy()
    for number, k in product(range(len(LENGTHS)), range(2)):
        places = (batch.packing.owner == number).nonzero().flatten().numpy()
        paths = list(product(range(STATES), repeat=len(places)))
        start, moves = chains.log_start[k].numpy(), chains.log_transition[k].numpy()
        joints = [
            start[path[0]]
            + sum(moves[one, other] for one, other in pairwise(path))
            + emission[places, k, path].sum()
            for path in paths
        ]
        np.testing.assert_allclose(found[number, k], logsumexp(joints), 1e-9, 1e-12)
        visits = np.einsum("p,pts->ts", softmax(joints), np.eye(STATES)[np.array(paths)])
        np.testing.assert_allclose(state[places, k], visits, 1e-7, 1e-9)
        best = chains.paths(batch, torch.full((len(LENGTHS),), k))[places].tolist()
        np.testing.assert_allclose(joints[paths.index(tuple(best))], max(joints), 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_as_a_longer_chain(kind, generator):
    """Statistics of any sign, conditional means and draws are those of a state per Gaussian."""
    chains = mixed_chains(generator, kind)
    longer = longer_chain(chains)
    batch = make_sequences(chains, LENGTHS, generator, holes=True)
    np.testing.assert_allclose(chains.log_prob(batch), longer.log_prob(batch), 1e-10, 1e-12)
    weight = torch.randn(len(LENGTHS), 2, dtype=torch.float64, generator=generator)
    own, theirs = (each.statistics(batch, weight) for each in (chains, longer))
    for name in (name for name in theirs if name.startswith("emission.")):
        same = own[name.replace("emission.", "emission.each.")].flatten(1, 2)
        np.testing.assert_allclose(same, theirs[name], 1e-7, 1e-9)
    by_gaussian = own["emission.share"].flatten(1)
    np.testing.assert_allclose(by_gaussian, theirs["emission.mass"], 1e-7, 1e-9)
    share = weight.softmax(1)
    np.testing.assert_allclose(chains.fill(batch, share), longer.fill(batch, share), 1e-8, 1e-9)
    np.testing.assert_allclose(chains.location.flatten(1, 2), longer.location)
    np.testing.assert_allclose(chains.covariances().flatten(1, 2), longer.covariances())
    many = 4000
    draws = [
        each.sample(torch.ones(many).long(), generator, lengths=torch.full((many,), 2)).numpy()
        for each in (chains, longer)
    ]
    x, observed = torch.zeros(3 * many, 2).double(), torch.zeros(3 * many, 2).bool()
    x[::3, 0], observed[::3, 0], x[2::3, 1], observed[2::3, 1] = 1.0, True, -0.5, True
    rows = torch.full((many,), 3), torch.full((many,), -1), torch.ones(many).double()
    lacking = type(batch).of(x, observed, *rows)
    completed = [
        each.complete(lacking, torch.ones(many).long(), generator).numpy()
        for each in (chains, longer)
    ]
    for drawn, expected in (draws, completed):
        spread = expected.std(0)
        np.testing.assert_array_less(np.abs(drawn.mean(0) - expected.mean(0)), 0.1 * spread)
        np.testing.assert_allclose(drawn.std(0), spread, 0.06)


def test_hmmlearn(generator):
    """Scores, and one step of Baum-Welch, of its mixtures of Gaussians."""
    hmm = pytest.importorskip("hmmlearn.hmm")
    chains = mixed_chains(generator, n_components=1)
    batch = make_sequences(chains, [20, 30, 9], generator)
    peer = hmm.GMMHMM(STATES, EACH, covariance_type="diag", init_params="", n_iter=1, min_covar=0)
    peer.startprob_ = chains.log_start[0].exp().numpy()
    peer.transmat_ = chains.log_transition[0].exp().numpy()
    peer.weights_ = chains.emission.log_share.exp().numpy()
    peer.means_ = chains.location[0].numpy()
    peer.covars_ = chains.covariances()[0].diagonal(dim1=-2, dim2=-1).numpy()
    frames = [part.numpy() for part in batch.unpacked(batch.x).split([20, 30, 9])]
    np.testing.assert_allclose(chains.log_prob(batch)[:, 0], list(map(peer.score, frames)), 1e-9)
    updated, valid = chains.maximize(chains.statistics(batch, torch.ones(3, 1).double()))
    assert valid.all()
    peer.fit(np.concatenate(frames), [20, 30, 9])
    np.testing.assert_allclose(updated.log_start[0].exp(), peer.startprob_, 1e-7, 1e-12)
    np.testing.assert_allclose(updated.log_transition[0].exp(), peer.transmat_, 1e-7)
    np.testing.assert_allclose(updated.emission.log_share.exp(), peer.weights_, 1e-7)
    np.testing.assert_allclose(updated.location[0], peer.means_, 1e-7)
    variance = updated.covariances()[0].diagonal(dim1=-2, dim2=-1)
    moved = (updated.location - chains.location)[0].square()  # it measures from the old means
    np.testing.assert_allclose(variance + moved, peer.covars_, 1e-7)


def test_updates(generator):
    """EM never goes down, own statistics change nothing, gradients are finite differences."""
    chains = mixed_chains(generator)
    batch, ones = make_sequences(chains, LENGTHS, generator, holes=True), torch.ones(5, 2).double()
    own, valid = chains.maximize(chains.own_statistics())
    assert valid.all()
    for name, value in own.tensors().items():
        np.testing.assert_allclose(value, chains.tensors()[name], 1e-7, 1e-9)
    free, step = chains.free(), 1e-5
    for name in (name for name in free if name.startswith("emission.")):
        at = free[name].detach().requires_grad_()
        direction = torch.randn(at.shape, dtype=at.dtype, generator=generator)

        def total(value, name=name):
            return chains.from_free({**free, name: value}).log_prob(batch).sum()

        (slope,) = torch.autograd.grad(total(at), at)
        with torch.no_grad():
            rise = total(at + step * direction) - total(at - step * direction)
        np.testing.assert_allclose(rise / (2 * step), (slope * direction).sum(), 1e-5)
    before = chains.log_prob(batch).sum(0)
    for _ in range(3):
        chains, _ = chains.maximize(chains.statistics(batch, ones))
        after = chains.log_prob(batch).sum(0)
        assert (after >= before - 1e-9).all()
        before = after


def lobes(n, two, rng):
    """Sequences whose second state has one lobe, or two with the same mean and variance."""
    found = []
    for length in rng.integers(20, 40, n):
        state = np.append(0, rng.random(length - 1) < 0.3).cumsum() % 2
        sign = rng.choice([-1.0, 1.0], length) if two else rng.normal(size=length)
        found.append((5.0 * state + np.where(state, sign, 0.3 * rng.normal(size=length)))[:, None])
    return [part + 0.2 * rng.normal(size=part.shape) for part in found]


def test_states_of_two_lobes(rng, tmp_path):
    """One Gaussian per state sees no difference; what the estimators say of mixtures agrees."""
    X, y = [*lobes(20, False, rng), *lobes(20, True, rng)], np.arange(40) // 20
    options = {"method": "ml", "init": EM(20), **QUICK}
    errors = [
        1.0
        - SequenceMixtureClassifier(2, chain=Chain(n_mixtures=m), **options)
        .fit(X[::2], y[::2])
        .score(X[1::2], y[1::2])
        for m in (1, 2)
    ]
    assert errors[1] <= 0.05 < errors[0]
    model = SequenceDensity(
        1, n_states=2, chain=Chain(n_mixtures=2), solver=EM(20), random_state=0
    ).fit(X[20:])
    course = [record["objective"] for record in model.history_]  # with imagined frames
    assert len(course) > 3
    assert (np.diff(course) <= 1e-9).all()
    assert model.means_.shape == (1, 2, 2, 1)
    assert model.covariances_.shape == (1, 2, 2, 1, 1)
    lost = [part.copy() for part in X[20:24]]
    lost[0][2:5], lost[1][-1] = np.nan, np.nan
    np.testing.assert_allclose(
        [np.nansum(part) for part in model.score_frames(lost)], model.score_samples(lost), 1e-9
    )
    coming = model.forecast(lost, 2)
    futures = model.forecast(lost, 2, n_draws=4000, random_state=0)
    np.testing.assert_allclose(coming.mean, futures.mean(0), atol=0.2)
    np.testing.assert_allclose(coming.std, futures.std(0), 0.05)
    below = (futures[..., None] <= coming.quantiles([0.2, 0.7])).mean(0)
    np.testing.assert_allclose(below, np.broadcast_to([0.2, 0.7], below.shape), atol=0.03)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.score_samples(lost), model.score_samples(lost))


@pytest.mark.parametrize("method", ["conditional", Boosted("boosted", 2), Boosted("adaboost", 2)])
def test_every_method(method, rng):
    X, y = [*lobes(8, False, rng), *lobes(8, True, rng)], np.arange(16) // 8
    model = SequenceMixtureClassifier(
        2,
        method=method,
        chain=Chain(n_mixtures=2),
        init=EM(3, tol=1.0),
        solver=LBFGS(2),
        early_stopping=False,
        **QUICK,
    ).fit(X, y)
    assert model.score(X, y) > 0.8


def test_words_and_fisher_scores(rng):
    """Each density of a state has chances of words, too."""
    words = [rng.choice(["a", "b", "c"], (9, 1)) for _ in range(5)]
    frames = [np.column_stack([rng.normal(size=9).astype(object), part]) for part in words]
    model = SequenceDensity(
        1, n_states=2, chain=Chain(n_mixtures=2), solver=EM(2, tol=9.0), random_state=0
    )
    lacking = frames[0].copy()
    lacking[2:4, 1], lacking[5, 0] = None, None
    filled = model.fit(frames).impute([lacking])[0]
    assert set(filled[:, 1]) <= {"a", "b", "c"}
    assert np.isfinite(FisherScores(model).fit(frames).transform([lacking])).all()
