"""One kernel for a pass of EM, beside array operations in double precision."""

import numpy as np
import pytest
import torch

from mixtura import MixtureDensity
from mixtura.data.scaling import Scaling
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.objectives import Likelihood
from mixtura.solvers import EM, em

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(em, "_COMPILED", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n_rows", "width", "count"), [(7, 1, 1), (100_003, 16, 8), (50_000, 5, 11), (20_011, 20, 32)]
)
def test_the_sums_are_those_of_arrays(rng, dtype, n_rows, width, count):
    X = rng.normal(size=(n_rows, width)) * 1.5
    mean = torch.from_numpy(rng.normal(size=(count, width)))
    variance = torch.from_numpy(rng.uniform(0.2, 2.0, size=(count, width)))
    mixture = Mixture(
        DiagonalGaussian(mean=mean, variance=variance, floor=1e-6),
        torch.from_numpy(rng.normal(size=count)).log_softmax(0),
        Layout([count]),
        torch.zeros(1, dtype=torch.float64),
    )
    weight = rng.uniform(0.5, 2.0, size=n_rows)
    units = {"weight": weight, "scaling": Scaling.identity(width)}
    whole = Engine(X, **units, device=torch.device("cpu"))
    here = Engine(X, **units, device=torch.device("cuda"), dtype=dtype)
    assert em._fused(mixture.to("cuda"), Likelihood(), here) is not None
    found = em.expected_sums(mixture.to("cuda"), Likelihood(), here)
    right = em.expected_sums(mixture, Likelihood(), whole)
    near = torch.full((count,), 1e-12)
    if dtype == torch.float32:  # shares have eleven digits: errors of rows, which even out
        near = 5e-6 + 3e-3 * right["mass"].rsqrt()
    size = {"mass": right["mass"], "second": right["second"], "loss": right["loss"].abs()}
    size["first"] = (right["mass"][:, None] * right["second"]).sqrt()
    for name, values in right.items():
        assert values.shape == found[name].shape
        assert found[name].dtype == torch.float64
        error = ((found[name].cpu() - values).abs() / size[name]).reshape(len(values), -1)
        assert (error.amax(1) < (near if name != "loss" else near[:1].clamp_max(5e-6))).all()


def test_a_fit_is_that_of_the_cpu(rng):
    centers = rng.normal(size=(4, 6)) * 4.0
    X = (centers[rng.integers(4, size=30_000)] + rng.normal(size=(30_000, 6))).astype(np.float32)
    fits = [
        MixtureDensity(4, density="diag", solver=EM(50, tol=1e-9), device=device, random_state=0)
        for device in ("cpu", "cuda")
    ]
    one, other = (each.fit(X).score_samples(X[:1000]) for each in fits)
    np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
