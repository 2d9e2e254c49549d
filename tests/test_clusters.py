"""K-means clusters, which EM begins with: of several problems at once."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal
from mixtura.engines import Engine
from mixtura.models.stack import Assignment
from mixtura.training import start
from mixtura.training.start import cluster, distinct_rows, stack_start


def inertia(x, weight, labels):
    """The weighted sum of squared distances to the means of clusters, by a loop."""
    total = 0.0
    for label in np.unique(labels):
        own, mass = x[labels == label], weight[labels == label]
        total += float(mass @ ((own - np.average(own, 0, mass)) ** 2).sum(1)) if mass.any() else 0.0
    return total


@pytest.mark.parametrize("shift", [0.0, 1e6], ids=["", "far away"])
def test_clusters_are_as_tight_as_those_of_sklearn(shift, rng):
    """In several problems, in which rows have other weights, also none."""
    x, _ = make_blobs(240, 3, centers=5, cluster_std=0.5, random_state=0)
    x = x + shift
    weight = rng.uniform(0.5, 2.0, (240, 3)) * (np.arange(240)[:, None] % 4 != np.arange(3))
    generator = torch.Generator().manual_seed(0)
    labels = cluster(torch.from_numpy(x), torch.from_numpy(weight), 5, generator).numpy()
    for problem in range(3):
        theirs = KMeans(5, n_init=3, random_state=0).fit(x, sample_weight=weight[:, problem])
        assert inertia(x, weight[:, problem], labels[:, problem]) <= 1.1 * theirs.inertia_


def test_clusters_have_their_rows(rng):
    """Every row is with the nearest mean of its problem: k-means has come to its end."""
    x = rng.normal(size=(120, 2))
    weight = rng.integers(0, 3, (120, 2)).astype(float)
    generator = torch.Generator().manual_seed(0)
    labels = cluster(torch.from_numpy(x), torch.from_numpy(weight), 4, generator).numpy()
    for problem in range(2):
        of, mass = labels[:, problem], weight[:, problem]
        means = np.stack([np.average(x[of == k], 0, mass[of == k]) for k in range(4)])
        nearest = ((x[:, None] - means) ** 2).sum(2).argmin(1)
        np.testing.assert_array_equal(nearest, of)


def test_a_weight_of_two_is_a_row_given_twice(rng):
    """And one of none is no row."""
    x, times = rng.normal(size=(60, 2)), rng.integers(0, 4, 60)
    often = np.repeat(np.arange(60), times)
    found, repeated = (
        cluster(
            torch.from_numpy(rows), torch.from_numpy(mass), 3, torch.Generator().manual_seed(0)
        )[:, 0]
        for rows, mass in ((x, times[:, None].astype(float)), (x[often], np.ones((len(often), 1))))
    )
    np.testing.assert_array_equal(found[often], repeated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 3000])
def test_different_rows_are_those_of_torch(n, dtype, rng):
    """In the same order; zeros of both signs are alike."""
    grid = torch.from_numpy(rng.integers(-2, 3, size=(n, 4)) * rng.choice([-1.0, 1.0], (n, 4)))
    for x in (grid, torch.from_numpy(rng.normal(size=(n, 3))), grid[:, :1]):
        found, expected = distinct_rows(x.to(dtype)), torch.unique(x.to(dtype), dim=0)
        assert torch.equal(found[0], expected)
        assert torch.equal(found[0][found[1]], x.to(dtype))


def test_fewer_different_rows_than_clusters(generator):
    """Each different row is a cluster; what is equal is together."""
    x = torch.tensor([[0.0], [5.0], [0.0], [9.0], [5.0]]).double()
    labels = cluster(x, torch.ones(5, 1).double(), 4, generator)[:, 0]
    assert labels[0] == labels[2]
    assert labels[1] == labels[4]
    assert len(labels.unique()) == 3


def test_clusters_are_kept_for_the_same_random_numbers_alone(rng):
    device = torch.device("cpu")
    engine = Engine(rng.normal(size=(60, 3)), scaling=Scaling.identity(3), device=device)
    everyone = Assignment.everyone(1, device)

    def means(seed):
        generator = torch.Generator().manual_seed(seed)
        start = stack_start(engine, everyone, 3, Diagonal(), generator)
        return start.density.mean, torch.rand(3, generator=generator)

    first, other, again = means(0), means(1), means(0)
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("seed", range(4))
def test_of_many_rows_clusters_see_every_class(seed, monkeypatch):
    """Of 300 rows 20 are looked at: a class of three that had none among them had no means."""
    monkeypatch.setattr(start, "_FEW_ROWS", 20)
    monkeypatch.setattr(start, "_PER_CLUSTER", 1)
    y = np.random.default_rng(seed).permutation(np.repeat([0, 1, 2], [200, 97, 3]))
    X = np.random.default_rng(seed).normal(size=(300, 2)) + 5.0 * y[:, None]
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=seed)
    wanted = [X[y == label].mean(0) for label in range(3)]
    np.testing.assert_allclose(model.fit(X, y).means_, wanted, rtol=1e-6)
    assert np.isfinite(MixtureClassifier(3, random_state=seed).fit(X, y).predict_proba(X)).all()
