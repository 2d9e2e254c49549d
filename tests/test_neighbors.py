"""Neighbors: a Gaussian per training sequence beside those of classes, over summaries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import log_loss

from mixtura import SequenceMixtureClassifier, load
from mixtura.models.summarized import Neighbors, Summarized
from mixtura.training import summaries
from mixtura.training.left_out import LeftOut


def moments(x, y, weight, kept, within):
    """Means (C, P) of classes, and the covariance of the rows that are kept, within them or not."""
    means = np.array([np.average(x[kept & (y == c)], 0, weight[kept & (y == c)]) for c in set(y)])
    centers = means[y] if within else np.average(x[kept], 0, weight[kept])
    off = (x - centers) * kept[:, None]
    return means, off.T @ (off * weight[:, None]) / weight.sum()


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("n_columns", [3, 20])
def test_distances_between_sequences_are_those_of_moments_without_one(n_columns, within, rng):
    x, y = rng.normal(size=(12, n_columns)), np.repeat([0, 1, 2], [5, 6, 1])
    weight, ridge = rng.uniform(0.5, 2.0, 12), 0.3
    means, covariance = moments(x, y, weight, np.ones(12, dtype=bool), within)
    mass = np.repeat(np.bincount(y, weight)[:, None], n_columns, 1)
    prior, often, complete = np.zeros(3), np.ones(n_columns), np.ones(12, dtype=bool)
    given = (x, y, weight, means, covariance, prior, mass, often, complete)
    left = LeftOut.of(*map(torch.from_numpy, given), within)
    assert left.kept.tolist() == [True] * 11 + [False]
    found = left.distances(torch.tensor(ridge, dtype=torch.float64))
    for row in range(11):
        kept = np.arange(12) != row
        whole = moments(x, y, weight, kept, within)[1] + ridge * np.eye(n_columns)
        off = x[row] - x
        expected = (off * np.linalg.solve(whole, off.T).T).sum(1)
        assert_allclose(found[row, kept], expected[kept], rtol=1e-8)
        assert torch.isinf(found[row, row])
    places = torch.tensor([0, 2, 5, 6, 8, 11])
    some = left._only(places)
    assert some.kept.tolist() == [True] * 5 + [False]
    assert_allclose(some.distances(torch.tensor(ridge)), found[places[some.kept]][:, places])


def test_probabilities_are_those_of_scipys_densities(rng):
    """With a channel that failed, too: it is integrated out of all Gaussians."""
    rows, x = rng.normal(size=(5, 2, 2)), rng.normal(size=(3, 2, 2))
    means, weight, share = rng.normal(size=(2, 2, 2)), rng.uniform(0.5, 2.0, 5), 0.3
    of_classes, own = ((lambda a: a @ a.T + np.eye(4))(rng.normal(size=(4, 4))) for _ in "ab")
    log_prior, temperatures = np.log([0.4, 0.6]), np.array([2.0, 0.5])
    each = (rows, np.array([2, 3]), np.log(weight), own, temperatures[1], np.array(share))
    given = (means, of_classes, np.zeros((4, 4)), log_prior, np.zeros(4))
    beside = Neighbors(*(torch.as_tensor(part) for part in each))
    model = Summarized(
        None,
        *map(torch.from_numpy, given),
        temperature=torch.as_tensor(temperatures[0]),
        neighbors=beside,
    )
    seen = np.array([[True, True], [True, False], [False, True]])
    found = model.by_summary(
        torch.from_numpy(x), torch.from_numpy(seen), torch.zeros(3).double(), torch.ones(3)
    )

    def density(row, mean, covariance, kept):
        at = np.repeat(kept, 2)
        return multivariate_normal.logpdf(row.ravel()[at], mean.ravel()[at], covariance[at][:, at])

    for row, kept, told in zip(x, seen, found.numpy(), strict=True):
        classes = log_prior + [density(row, mean, of_classes, kept) for mean in means]
        near = np.log(weight) + [density(row, mean, own, kept) for mean in rows]
        near = log_prior + np.array([logsumexp(near[:2]), logsumexp(near[2:])])
        said = log_softmax(np.stack([classes, near]) / temperatures[:, None], 1)
        assert_allclose(told, logsumexp(said, 0, b=[[1 - share], [share]]), rtol=1e-9)


def bumps(rng, n):
    """Classes that lie in two places each: an early bump up or down, or a late one."""
    y, time = np.arange(n) % 2, np.linspace(-1, 1, 30)
    bump = np.exp(-0.5 * ((time - np.where(y, 0.4, -0.4)[:, None]) / 0.15) ** 2)
    X = rng.choice([-1.0, 1.0], n)[:, None] * bump + 0.3 * rng.normal(size=(n, 30))
    return X[..., None], y


def test_classes_that_lie_in_many_places_are_told_apart(tmp_path):
    """Better than by one Gaussian per class; and files keep it."""
    rng = np.random.default_rng(0)
    (X, y), (X_test, y_test) = bumps(rng, 120), bumps(rng, 400)
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    both, path = model.predict_proba(X_test), tmp_path / "model.safetensors"
    model.save(path)
    assert_allclose(load(path).predict_proba(X_test), both, rtol=1e-12)
    summarized = model.model_.model
    assert summarized.neighbors.counts.tolist() == [60, 60]
    model.model_ = replace(model.model_, model=replace(summarized, neighbors=None))
    assert log_loss(y_test, both) < log_loss(y_test, model.predict_proba(X_test)) - 0.02


def test_one_gaussian_per_class_is_enough_where_classes_are_such(rng):
    X, y = rng.normal(size=(60, 30, 1)), np.arange(60) % 2
    X[:, 10:20, 0] += 0.8 * y[:, None]
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    assert model.model_.model.neighbors is None


def test_some_complete_sequences_are_neighbors(monkeypatch):
    """Of many, or where some lack a channel: folds have neighbors, and so has the whole."""
    monkeypatch.setattr(summaries, "_NEIGHBORS", 98)
    rng = np.random.default_rng(0)
    (X, y), (X_test, y_test) = bumps(rng, 120), bumps(rng, 400)
    X, X_test = (np.concatenate([each, each], 2) for each in (X, X_test))
    few = X.copy()
    few[:2, :, 1] = np.nan
    for each, counts in ((X, [49, 49]), (few, [49, 49])):
        model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(each, y)
        summarized = model.model_.model
        assert summarized.neighbors.counts.tolist() == counts
        both = model.predict_proba(X_test)
        model.model_ = replace(model.model_, model=replace(summarized, neighbors=None))
        assert log_loss(y_test, both) < log_loss(y_test, model.predict_proba(X_test)) - 0.02


def test_a_class_without_complete_sequences_has_no_neighbors_against_it(rng):
    X, y = bumps(rng, 60)
    X, y = np.concatenate([X, X], 2), np.where(np.arange(60) < 6, 2, y)
    X[y == 2, :, 1] = np.nan
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    assert model.model_.model.neighbors is None


def test_sequences_without_a_channel_do_not_tell_of_labels():
    """A tenth of them: deviations of the others stand for theirs, and are left out with these."""
    rng, found = np.random.default_rng(0), []
    (X, y), (X_test, y_test) = bumps(rng, 200), bumps(rng, 400)
    X, X_test = (np.concatenate([each, rng.normal(size=each.shape)], 2) for each in (X, X_test))
    for n_without in (0, 20):
        X[:n_without, :, 1] = np.nan
        model = SequenceMixtureClassifier(representation="summary", calibrate=False, random_state=0)
        found.append(log_loss(y_test, model.fit(X, y).predict_proba(X_test)))
    assert found[1] < found[0] + 0.1


def test_a_channel_that_a_class_never_has_leaves_answers(rng):
    """Complete sequences of one class alone say nothing of how sure to be."""
    X, y = bumps(rng, 80)
    X = np.concatenate([X, rng.normal(size=X.shape)], 2)
    X[y == 0, :, 1] = np.nan
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < 0.5


def test_order_and_names_do_not_matter_and_weights_are_repetitions():
    rng = np.random.default_rng(0)
    (X, y), (X_test, _) = bumps(rng, 60), bumps(rng, 20)

    def found(X, y, weight=None):
        model = SequenceMixtureClassifier(representation="summary", random_state=0)
        proba = model.fit(X, y, sample_weight=weight).predict_proba(X_test)
        assert model.model_.model.neighbors is not None
        assert_allclose(model.predict_proba(X_test.astype(np.float32)), proba, atol=1e-4)
        return proba

    plain, order = found(X, y), rng.permutation(60)
    assert_allclose(found(X[order], y[order]), plain, atol=1e-6)
    twice = 1.0 + (np.arange(60) < 20)
    repeated = np.concatenate([np.arange(60), np.arange(20)])
    assert_allclose(found(X[repeated], y[repeated]), found(X, y, twice), atol=1e-6)
    assert_allclose(found(X, np.array(["a", "b"])[y]), plain, atol=1e-12)
