"""Kernel densities beside other mixtures: a component per row."""

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp
from scipy.stats import norm
from sklearn.neighbors import KNeighborsClassifier

from mixtura import MixtureClassifier, load
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.engines import engine_of
from mixtura.training import kernels
from mixtura.training.kernels import Kernels

LOG_PRIOR = np.log([0.5, 0.3, 0.2])


@pytest.fixture
def mixed(rng):
    """Thirty rows of two numbers and two columns of categories, with holes and weights."""
    y = np.arange(30) % 3
    codes = np.column_stack([(y + (rng.random(30) < 0.3)) % 3, rng.integers(2, size=30)])
    X = np.column_stack([rng.normal(size=(30, 2)) + 0.7 * y[:, None], codes])
    X[rng.random(X.shape) < 0.2] = np.nan
    return X, y, rng.integers(1, 4, size=30).astype(float)


def engine_for(X, y, weight, levels=(0, 0, 3, 2)):
    scaling = Scaling(np.zeros(len(levels)), np.ones(len(levels)), np.array(levels))
    return engine_of(Matrix(X), y, weight, scaling, "cpu")


def log_joint(row, X, y, weight, log_width, left_out=None):
    """(C,) of a row, by all rows but one and a broad component per class, one after another."""
    n_classes = len(LOG_PRIOR)
    components = [(X[j], y[j], weight[j]) for j in range(len(X)) if j != left_out]
    components += [(np.full(4, np.nan), c, 1.0) for c in range(n_classes)]
    mass = [sum(weight[y == c]) + 1.0 for c in range(n_classes)]
    found = [[] for _ in range(n_classes)]
    for center, owner, share in components:
        total = np.log(share / mass[owner]) + LOG_PRIOR[owner]
        for d in np.flatnonzero(~np.isnan(row)):
            if d < 2:
                variance = np.exp(2 * log_width[d])
                mean = 0.0 if np.isnan(center[d]) else center[d]
                spread = variance + (1.0 if np.isnan(center[d]) else 0.0)
                total += norm.logpdf(row[d], mean, np.sqrt(spread))
            else:
                level = (3, 2)[d - 2]
                told = ~np.isnan(X[:, d])
                every = weight @ (X[:, d] == row[d]) + 1 / level
                every /= weight[told].sum() + 1
                other = 1.0 if np.isnan(center[d]) else expit(log_width[d])
                total += np.log((1 - other) * (center[d] == row[d]) + other * every)
        found[owner].append(total)
    return np.array([logsumexp(each) for each in found])


def test_the_mixture_against_a_loop(mixed):
    X, y, weight = mixed
    log_width = np.array([-0.5, 0.3, -1.0, 0.5])
    engine = engine_for(X, y, weight)
    mixture = Kernels(engine, torch.from_numpy(LOG_PRIOR), torch.Generator()).mixture(log_width)
    assert mixture.layout.counts == (11, 11, 11)
    wanted = [log_joint(row, X, y, weight, log_width) for row in X]
    found = mixture.class_log_joint(engine.all_rows()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_widths_tell_rows_that_are_left_out_best(mixed, monkeypatch):
    """By brute force, no step along a column is better; and few iterations from there stay."""
    monkeypatch.setattr(kernels, "_ITERATIONS", 200)
    monkeypatch.setattr(kernels, "_TOL", 1e-10)
    X, y, weight = mixed
    each = Kernels(engine_for(X, y, weight), torch.from_numpy(LOG_PRIOR), torch.Generator())
    found = each.learn()
    starts = [np.full(4, np.log(width * 4**0.35)) for width in (0.3, 0.5, 0.9)]

    def told(log_width):
        joint = [log_joint(X[i], X, y, weight, log_width, i) for i in range(30)]
        return -weight @ [row[label] - logsumexp(row) for row, label in zip(joint, y, strict=True)]

    center = min(starts, key=told)

    def loss(log_width):
        return told(log_width) + (log_width - center) @ (log_width - center)

    least = loss(found)
    assert least < loss(center) - 1.0
    for step in 0.05 * np.vstack([np.eye(4), -np.eye(4)]):
        assert loss(found + step) > least
    np.testing.assert_allclose(each.learn(found), found, atol=0.02)


@pytest.mark.parametrize("chunk", [4, 256])
def test_slopes_are_differences(chunk, mixed, monkeypatch):
    """Along a random direction, however many rows are asked of at a time."""
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    each = Kernels(engine_for(*mixed), torch.from_numpy(LOG_PRIOR), torch.Generator())
    asked, offers = each._asked(), each._narrowed(each._offers(np.full(4, -0.5))[0])
    way = np.random.default_rng(1).normal(size=offers.shape).astype(np.float32)
    high, low = (each._left_out(asked, offers + step * way)[0] for step in (1e-2, -1e-2))
    slope = each._left_out(asked, offers)[1]
    assert np.vdot(slope, way) == pytest.approx((high - low) / 2e-2, rel=1e-3)


def test_far_out_only_counts_tell(mixed):
    """Of broad components, and of rows that lack the column."""
    X, y, weight = mixed
    each = Kernels(engine_for(X, y, weight), torch.from_numpy(LOG_PRIOR), torch.Generator())
    mixture = each.mixture(np.array([-1.0, 2.0, 0.0, 0.0]))
    far = np.array([[1e3, np.nan, np.nan, np.nan], [np.nan, -1e3, np.nan, np.nan]])
    rows = engine_for(far, np.zeros(2, int), np.ones(2)).all_rows()
    found = mixture.class_log_joint(rows).log_softmax(1).numpy()
    for column, log_proba in enumerate(found):
        lacks = np.isnan(X[:, column])
        broad = [1 + weight[lacks & (y == c)].sum() for c in range(3)]
        mass = [1 + weight[y == c].sum() for c in range(3)]
        wanted = np.log(broad) - np.log(mass) + LOG_PRIOR
        np.testing.assert_allclose(log_proba, wanted - logsumexp(wanted), atol=1e-6)


def test_names_of_classes_and_the_order_of_rows_and_columns_do_not_matter(mixed, rng):
    X, y, weight = mixed
    X, y, weight = X[y < 2], y[y < 2], weight[y < 2]
    order, even = rng.permutation(len(y)), torch.tensor([0.5, 0.5]).log()
    plain = Kernels(engine_for(X, y, weight), even, torch.Generator()).learn()
    other = engine_for(X[order][:, ::-1], 1 - y[order], weight[order], (2, 3, 0, 0))
    np.testing.assert_allclose(
        Kernels(other, even, torch.Generator()).learn()[::-1], plain, atol=1e-3
    )
    single = engine_for(X.astype(np.float32), y, weight)
    np.testing.assert_allclose(Kernels(single, even, torch.Generator()).learn(), plain, atol=1e-3)


def make_board(n, seed):
    """A board of 25 fields in two colors, and a column of noise."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 5, size=(n, 2)), rng.normal(size=n)])
    return X, X[:, :2].astype(int).sum(1) % 2


@pytest.fixture(scope="module")
def board():
    return make_board(900, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_narrow_widths_are_found_and_noise_is_wide(seed):
    """Where equal widths that are wide tell more than narrow ones, too."""
    X, y = make_board(300, seed)
    units = (X - X.mean(0)) / X.std(0)
    engine = engine_for(units, y, np.ones(300), (0, 0, 0))
    found = Kernels(engine, torch.tensor([0.5, 0.5]).log(), torch.Generator()).learn()
    assert found[:2].max() < -1.5
    assert found[2] > 0.0


def test_copies_are_weights(mixed):
    X, y, weight = mixed
    copies = np.repeat(np.arange(30), weight.astype(int))
    kinds = engine_for(X, y, weight), engine_for(X[copies], y[copies], np.ones(len(copies)))
    one, other = (Kernels(each, torch.from_numpy(LOG_PRIOR), torch.Generator()) for each in kinds)
    np.testing.assert_allclose(one.learn(), other.learn(), atol=1e-6)
    rows, width = kinds[0].all_rows(), np.zeros(4)
    np.testing.assert_allclose(
        *(each.mixture(width).class_log_joint(rows).numpy() for each in (one, other)), rtol=1e-9
    )


def test_near_rows_tell_what_few_components_cannot(board, tmp_path):
    """The default does better than neighbors; with a hole it knows that it knows nothing."""
    X, y = board
    model = MixtureClassifier(random_state=0).fit(X[:500], y[:500])
    assert model.marginals_[-1] == "kernels"
    assert model.model_.blend.weights[-1] > 0.3
    neighbors = KNeighborsClassifier().fit(X[:500], y[:500])
    assert model.score(X[500:], y[500:]) > neighbors.score(X[500:], y[500:]) + 0.03
    half = np.where([True, False, False], np.nan, X[500:])
    assert model.predict_proba(half).max(1).mean() < 0.75
    model.save(tmp_path / "board.safetensors")
    again = load(tmp_path / "board.safetensors")
    np.testing.assert_array_equal(again.predict_proba(half), model.predict_proba(half))


def test_a_number_of_components_that_is_named_has_no_kernels(board):
    X, y = board
    model = MixtureClassifier(2, random_state=0).fit(X[:100], y[:100])
    assert "kernels" not in model.marginals_
