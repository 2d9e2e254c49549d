"""Numbers that sum up channels of sequences, and Gaussians over them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_softmax
from scipy.stats import multivariate_normal, norm, rankdata
from waves import ANY_LENGTH, sequence_engine, summed_up, waves

from mixtura import SequenceMixtureClassifier
from mixtura.data.resampling import resample
from mixtura.models.summarized import Summarized, _add_scores
from mixtura.models.summary import (
    _KERNELS,
    Summary,
    _by_frames,
    _curves,
    _outputs,
    _scores,
    _shares_over,
    _thresholds,
)
from mixtura.training import summaries
from mixtura.training.groups import NOTHING, Folds
from mixtura.training.left_out import LeftOut
from mixtura.training.summaries import SummaryPlan


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return *waves(rng, 40), *waves(rng, 60)


# -- numbers of channels ---------------------------------------------------------------------------


def test_channels_are_interpolated_between_observed_frames_as_numpy_does():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(T, 3)) for T in (1, 7, 30, 12)]
    for frames in X[1:]:
        frames[rng.random(frames.shape) < 0.4] = np.nan
    X[2][:, 1] = np.nan
    found, seen = resample(sequence_engine(X).all_rows(), 16)
    wanted = (np.arange(16) + 0.5) / 16
    for number, frames in enumerate(X):
        moment = (np.arange(len(frames)) + 0.5) / len(frames)
        for channel, values in enumerate(frames.T):
            there = ~np.isnan(values)
            assert seen[number, channel] == there.any()
            expected = np.zeros(16)
            if there.any():
                expected = np.interp(wanted, moment[there], values[there])
            assert_allclose(found[number, channel], expected, atol=1e-12)


def test_complete_channels_of_the_wanted_length_stay_as_they_are():
    X = np.random.default_rng(0).normal(size=(4, 20, 2))
    found, seen = resample(sequence_engine(X).all_rows(), 20)
    assert_allclose(found.movedim(1, 2), X, atol=1e-12)
    assert seen.all()


@pytest.mark.parametrize("dilation", [1, 2])
def test_kernels_and_shares_are_those_of_plain_loops(dilation):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 2, 20))
    x, kernels = torch.from_numpy(values).float(), _KERNELS.numpy()
    padded = np.pad(values, ((0, 0), (0, 0), (4 * dilation,) * 2), mode="edge")
    expected = np.zeros((3, 2, 84, 20))
    for tap in range(9):
        part = padded[:, :, None, tap * dilation : tap * dilation + 20]
        expected += kernels[:, tap, None] * part
    assert_allclose(_outputs(x, dilation), expected, atol=1e-4)
    levels = _thresholds(x, dilation, 2)
    shares = (expected[:, None] > levels.numpy()[None, ..., None] + 1e-4).mean(-1)
    near = np.moveaxis(shares, 1, 2).reshape(3, 2, -1)
    assert_allclose(_shares_over(x, dilation, levels), near, atol=1 / 20 + 1e-6)
    assert len(np.unique(kernels, axis=0)) == 84


def test_autocorrelations_by_frames_are_those_of_plain_loops(rng):
    """Of channels that were stretched to twice their length, at twice the lag."""
    channel = np.sin(0.4 * np.arange(60)) + 0.1 * rng.normal(size=60)
    centered = channel - channel.mean()
    wanted = [centered[lag:] @ centered[:-lag] / (centered @ centered) for lag in range(1, 17)]
    values = torch.tensor(channel)[None, None].float()
    found = _by_frames(values, torch.tensor([60.0]), 16)[0, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    stretched = _by_frames(values, torch.tensor([30.0]), 8)[0, 0]
    np.testing.assert_allclose(stretched, wanted[1::2], atol=1e-5)


def test_frequencies_of_sequences_of_unequal_length_are_told_apart():
    """They are so many cycles per frame, whatever the cycles per sequence."""

    def drawn(n, seed):
        rng = np.random.default_rng(seed)
        y, each = rng.integers(2, size=n), []
        for label in y:
            time = np.arange(rng.integers(25, 90))
            wave = np.sin((0.3, 0.45)[label] * time + rng.uniform(0, 6))
            each.append((wave + 0.5 * rng.normal(size=len(time)))[:, None])
        return each, y

    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(*drawn(60, 1))
    assert model.score(*drawn(200, 2)) > 0.93


def test_principal_components_are_uncorrelated_and_ordered():
    batch = sequence_engine(np.random.default_rng(0).normal(size=(30, 24, 2))).all_rows()
    learned, found, _ = Summary.learn(batch)
    assert_allclose(learned(batch)[0], found, atol=1e-6)
    together = learned(batch)[0].chunk(len(learned.parts()), 2)
    for part, x in zip(learned.parts(), together, strict=True):
        assert_allclose(part(batch)[0], x, atol=1e-6)
    for channel in torch.cat([x.movedim(1, 0) for x in together]):
        covariance = (channel - channel.mean(0)).T @ (channel - channel.mean(0)) / len(channel)
        variance = covariance.diagonal()
        assert (variance.diff() <= 1e-6 * variance[0]).all()
        assert (covariance - variance.diag()).abs().max() < 1e-4 * variance[0]


@pytest.mark.parametrize(("n", "lacking", "error"), [(30, 0.0, 1e-6), (400, 0.1, 0.1)])
def test_numbers_become_normal_scores_of_their_ranks(n, lacking, error, rng):
    """Those of scipy, of equal values their mean; channels that are not there do not count."""
    values = torch.from_numpy(
        np.stack([rng.lognormal(size=n), rng.integers(0, 3, n), np.ones(n)], 1)
    )
    seen = torch.from_numpy(rng.random((n, 1)) >= lacking)
    curves = _curves(values[:, None] * seen[..., None], seen)
    found, kept = _scores(values[:, None], curves)[:, 0].numpy(), seen[:, 0].numpy()
    ranks = (rankdata(values[kept], axis=0) - 0.5) / kept.sum()
    expected = norm.ppf(ranks) - norm.ppf(ranks).mean(0)
    inner = (ranks > lacking) & (ranks < 1.0 - lacking)
    assert_allclose(found[kept][inner], expected[inner], atol=error)
    assert (found[:, 2] == 0.0).all()
    ends = np.array([0.0, 2.0, 1.0]) + np.array([-1.0, 1.0, 0.0])
    beyond = _scores(torch.from_numpy(np.stack([ends, 1e6 + ends]))[:, None], curves)[:, 0].numpy()
    highest = found[kept].max(0)
    assert_allclose(beyond[1], [highest[0] + 6.0, highest[1] + 6.0, 0.0])
    assert_allclose(beyond[0, 1] - highest[1], 1.0 / curves[0, 0, 1, 1:-1].numpy().std())


# -- Gaussians -------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [True, False])
def test_distances_without_a_row_are_those_of_moments_without_it(within):
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(12, 3)), np.arange(12) % 3, rng.uniform(0.5, 2.0, 12)
    prior = 0.1 * np.eye(3)

    def moments(kept):
        means = [np.average(x[kept & (y == c)], 0, weight[kept & (y == c)]) for c in range(3)]
        center = np.array(means)[y] if within else np.average(x[kept], 0, weight[kept])
        off = (x - center) * kept[:, None]
        return np.array(means), off.T @ (off * weight[:, None]) / weight.sum() + prior

    everyone = np.ones(12, dtype=bool)
    means, covariance = moments(everyone)
    mass = np.tile(np.bincount(y, weight)[:, None], 3)
    given = (x, y, weight, means, covariance, np.zeros(3), mass, np.ones(3), everyone)
    left = LeftOut.of(*(torch.from_numpy(each) for each in given), within)
    found = -2.0 * left.by_classes(torch.zeros(()))
    for row in range(12):
        means, covariance = moments(np.arange(12) != row)
        off = x[row] - means
        assert_allclose(found[row], (off * np.linalg.solve(covariance, off.T).T).sum(1), rtol=1e-9)


@pytest.mark.parametrize("within", [True, False])
def test_covariances_are_those_within_classes_or_of_all(within, rng, monkeypatch):
    """Of a channel that some sequences lack, the variance is that of the others."""
    monkeypatch.setattr(summaries, "_clearly_least", lambda losses: (not within) * len(losses) // 2)
    y, weight = np.arange(40) % 2, rng.uniform(0.5, 2.0, 40)
    x = rng.normal(size=(40, 2, 20)) + y[:, None, None]
    seen = np.stack([np.ones(40, dtype=bool), np.arange(40) % 4 > 1], 1)
    given = [torch.from_numpy(each) for each in (x, seen, y, weight, np.zeros((0, 40)))]
    model = summed_up([None], given[:1], *given[1:4], given[4:], ANY_LENGTH).fit(2)
    off = [
        x[:, d]
        - np.stack([_mean(x[:, d], weight, seen[:, d] & ((y == c) | (not within))) for c in y])
        for d in (0, 1)
    ]
    wanted = [_spread(off[0], weight), _spread(off[1], weight * seen[:, 1])]
    ridge = model.covariance[0, 0] - wanted[0][0, 0]
    for found, expected in zip(
        (model.covariance[:20, :20], model.covariance[20:, 20:]), wanted, strict=True
    ):
        assert_allclose(found, expected + ridge.item() * np.eye(20), rtol=1e-9)


def _mean(x, weight, kept):
    return np.average(x[kept], 0, weight[kept])


def _spread(off, weight):
    return off.T @ (off * weight[:, None]) / weight.sum()


@pytest.mark.parametrize("better", [0, 1])
def test_the_weight_is_the_one_that_predicts_sequences_left_out(better, rng):
    """Of two equally good ones the usual weight is taken, which comes first."""
    y, noise = np.arange(40) % 2, rng.normal(size=(40, 1, 3))
    apart = noise + 1.5 * y[:, None, None]
    x = [torch.from_numpy(each) for each in ((apart, noise), (noise, apart))[better]]
    seen, weight = torch.ones(40, 1, dtype=torch.bool), torch.ones(40, dtype=torch.float64)
    for given, expected in ((x, better), ([x[better]] * 2, 0)):
        lost = [torch.zeros(0, 3)] * 2
        rows = summed_up([0, 1], given, seen, torch.from_numpy(y), weight, lost, ANY_LENGTH)
        assert rows.fit(2).summary == expected


@pytest.mark.parametrize("shift", [1.0, 4.0])
def test_the_covariance_of_few_sequences_is_that_of_all_numbers(shift, rng):
    """Ten rows of thirty numbers: the loss is that of moments without each row, inverted whole."""
    y, x = np.arange(10) % 2, rng.normal(size=(10, 1, 30))
    x += shift * y[:, None, None]
    rows, ones = torch.from_numpy(x), torch.ones(10, dtype=torch.float64)
    given = summed_up(
        [0], [rows], torch.ones(10, 1, dtype=torch.bool), torch.from_numpy(y), ones, [], 0
    )
    flat, ridges = x[:, 0], torch.tensor([0.5, 2.0, 100.0]).double()
    everyone = np.ones(10, dtype=bool)

    def moments(kept, within):
        means = np.stack([flat[kept & (y == c)].mean(0) for c in (0, 1)])
        off = (flat - (means[y] if within else flat[kept].mean(0)))[kept]
        return means, off.T @ off / 10

    means, *covariances = moments(everyone, True)[0], *(moments(everyone, w)[1] for w in (1, 0))
    args = (
        ridges,
        [torch.from_numpy(each) for each in covariances],
        torch.from_numpy(means)[:, None],
    )
    others = (torch.zeros(2), torch.full((2, 1), 5.0), torch.ones(1, 1))
    loss, chosen, _, _ = given._best_covariance(rows, *args, *(each.double() for each in others))
    expected = {}
    for within in (0, 1):
        for each in ridges.tolist():
            joint = []
            for row in range(10):
                own, whole = moments(np.arange(10) != row, within)
                whole += each * np.eye(30)
                joint.append([-0.5 * d @ np.linalg.solve(whole, d) for d in flat[row] - own])
            scaled = np.array(joint) / np.logspace(-0.5, 3, 15)[:, None, None]
            told = np.take_along_axis(log_softmax(scaled, 2), y[None, :, None], 2)[..., 0]
            expected[within, each] = -told.mean(1).max()
    within, ridge = min(expected, key=expected.get)
    assert_allclose(loss, expected[within, ridge], rtol=1e-8)
    assert_allclose(chosen, covariances[1 - within] + ridge * np.eye(30))


def test_lost_frames_move_means_and_add_noise(rng):
    """By what summaries that lack frames differ from whole ones, per share that they lack."""
    y, x = torch.arange(20) % 2, torch.from_numpy(rng.normal(size=(20, 1, 3)))
    seen, weight = torch.ones(20, 1, dtype=torch.bool), torch.ones(20, dtype=torch.float64)
    lost = torch.from_numpy(rng.normal(1.0, 2.0, size=(500, 3)))
    model = summed_up([0], [x], seen, y, weight, [lost], ANY_LENGTH).fit(2)
    assert_allclose(model.shift, lost.numpy().mean(0) / 0.3)
    assert_allclose(model.noise, (lost.T @ lost).numpy() / 500 / 0.3)
    earlier = Summarized(0, model.means, model.covariance, model.noise, model.log_prior)
    assert (earlier.means.flatten(1) + 0.3 * earlier.shift).equal(model.means.flatten(1))


def test_failed_channels_are_integrated_out_and_lost_frames_make_doubts(data):
    X, y = data[:2]
    everyone = Folds(torch.zeros(len(X), dtype=torch.long), [NOTHING])
    engine = sequence_engine(X, y)
    (model,) = SummaryPlan(2).trials(engine, everyone, torch.Generator().manual_seed(0), None)
    X = [frames.copy() for frames in X]
    X[0][:, 1] = np.nan
    X[2][: round(0.4 * len(X[2]))] = np.nan
    batch = sequence_engine(X).all_rows()
    x, seen = model.summary(batch)
    assert seen[0].tolist() == [True, False]
    size, found = model.summary.n_components, model.class_log_joint(batch)
    for row, kept, lost in ((0, slice(size), 0.0), (1, slice(None), 0.0), (2, slice(None), 0.4)):
        covariance = (model.covariance + lost * model.noise)[kept, kept]
        log_density = [
            multivariate_normal(mean[kept], covariance).logpdf(x[row].flatten()[kept])
            for mean in model.means.flatten(1) + lost * model.shift
        ]
        expected = np.array(log_density) + model.log_prior.numpy()
        assert_allclose(found[row].diff(), np.diff(expected), rtol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_patterns_of_channels_share_their_elimination(share, rng):
    """All of them, or some, are solved as one by one."""
    patterns = torch.cartesian_prod(*[torch.tensor([False, True])] * 5)
    patterns = patterns[torch.from_numpy(rng.random(32) >= share)]
    patterns = patterns.repeat_interleave(2, 0)
    root, means = (torch.from_numpy(rng.normal(size=(15, width))) for width in (20, 3))
    x = torch.from_numpy(rng.normal(size=(len(patterns), 15)))
    _add_scores(found := torch.ones(len(patterns), 3).double(), root @ root.T, means, x, patterns)
    for pattern, row, scores in zip(patterns, x, found, strict=True):
        kept = pattern.repeat_interleave(3)
        slopes = torch.linalg.solve((root @ root.T)[kept][:, kept], means[kept])
        expected = 1.0 + row[kept] @ slopes - 0.5 * (means[kept] * slopes).sum(0)
        assert_allclose(scores, expected, atol=1e-10)


def test_weights_are_repetitions(data):
    X, y = data[0][:20], data[1][:20]
    plan, folds = SummaryPlan(2), Folds(torch.zeros(20, dtype=torch.long), [NOTHING])
    engine = sequence_engine(X, y)
    twice = engine.with_answers(weight=torch.full((20,), 2.0).double())
    made = [
        plan.trials(each, folds, torch.Generator().manual_seed(0), None)[0]
        for each in (engine, twice)
    ]
    assert_allclose(made[0].covariance, made[1].covariance)
