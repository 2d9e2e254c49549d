"""Kernels of diagonal plus low-rank Gaussians, beside array operations in double precision."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from mixtura import MixtureClassifier
from mixtura.data.batch import Batch
from mixtura.densities import LowRankGaussian, low_rank_covariance
from mixtura.solvers import Adam

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(low_rank_covariance, "_COMPILED", 0)


def _drawn(rng, n_rows, width, count, rank, size):
    parts = {
        "mean": rng.normal(size=(count, width)),
        "diagonal": rng.uniform(0.2, 2.0, size=(count, width)),
        "loading": size * rng.normal(size=(count, width, rank)),
    }
    parts = {name: torch.from_numpy(each) for name, each in parts.items()}
    return torch.from_numpy(rng.normal(size=(n_rows, width))), parts


def _differentiated(x, parts, grad, device, dtype):
    leaves = {
        name: each.to(device, dtype, copy=True).requires_grad_() for name, each in parts.items()
    }
    density = LowRankGaussian(**leaves, floor=0.1)
    found = density.log_prob(Batch(x.to(device, dtype), None, None, None))
    found.backward(grad.to(device, dtype))
    return [found.detach(), *(leaf.grad for leaf in leaves.values())]


@pytest.mark.parametrize(
    ("n_rows", "width", "count", "rank", "size"),
    [
        (1, 1, 1, 1, 1.0),
        (100, 784, 17, 25, 0.1),
        (37, 33, 2, 25, 3.0),
        (130, 50, 300, 1, 1.0),
        (300, 100, 7, 40, 0.5),
        (1_000, 17, 3, 64, 1.0),
    ],
)
def test_densities_and_slopes_are_those_of_arrays(rng, n_rows, width, count, rank, size):
    x, parts = _drawn(rng, n_rows, width, count, rank, size)
    grad = torch.from_numpy(rng.normal(size=(n_rows, count)))
    right = _differentiated(x, parts, grad, "cpu", torch.float64)
    found = _differentiated(x, parts, grad, "cuda", torch.float32)
    arrays = _differentiated(x, parts, grad, "cpu", torch.float32)
    for one, other, near in zip(found, right, arrays, strict=True):
        assert one.dtype == torch.float32
        error, allowed = ((each.cpu() - other).norm() for each in (one, near))
        assert error <= 4.0 * allowed + 2.0 * torch.finfo(torch.float32).eps * other.norm()


def test_log_densities_are_those_of_scipy(rng):
    x, parts = _drawn(rng, 50, 20, 2, 3, 1.0)
    found, *_ = _differentiated(x, parts, torch.ones(50, 2), "cuda", torch.float32)
    covariances = LowRankGaussian(**parts, floor=0.1).covariances()
    for k, covariance in enumerate(covariances.numpy()):
        right = multivariate_normal.logpdf(x.numpy(), parts["mean"][k].numpy(), covariance)
        np.testing.assert_allclose(found[:, k].cpu(), right, rtol=2e-6, atol=1e-4)


def test_kernels_are_chosen_for_float32_and_few_factors(rng):
    def chosen(rank, dtype):
        _, parts = _drawn(rng, 1, 70, 1, rank, 1.0)
        density = LowRankGaussian(**parts, floor=0.1)
        return density._differentiable(torch.zeros(1, 70, dtype=dtype, device="cuda")).__name__

    assert chosen(64, torch.float32) == "KernelLogProb"
    assert chosen(65, torch.float32) == "_CompleteLogProb"
    assert chosen(5, torch.float64) == "_CompleteLogProb"


def test_a_fit_by_adam_is_that_of_arrays(rng, monkeypatch):
    X = rng.normal(size=(600, 40)).astype(np.float32)
    y = (np.abs(X[:, 0]) + X[:, 1] > 1.0).astype(int)

    def proba(compiled):
        monkeypatch.setattr(low_rank_covariance, "_COMPILED", compiled)
        model = MixtureClassifier(
            3, density="low_rank", solver=Adam(5), device="cuda", random_state=0
        )
        return model.fit(X, y).predict_proba(X)

    np.testing.assert_allclose(proba(0), proba(10**9), atol=2e-3)
    np.testing.assert_array_equal(proba(0), proba(0))
