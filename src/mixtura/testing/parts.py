"""Things to check on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.scaling import Scaling
from mixtura.densities import (
    Density,
    DiagonalGaussian,
    FullGaussian,
    LowRankGaussian,
    LowRankPrecision,
    StudentT,
    VectorDensity,
)
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture

EXACT = 1e-9
DRAWS = 20_000
SIGMAS = 5.0

#: (covariance, parameterization) -> class and the options it is built with: Gaussians.
STRUCTURES: dict[tuple[str, str], tuple[type[VectorDensity], dict[str, object]]] = {
    ("spherical", "covariance"): (DiagonalGaussian, {"tied": True}),
    ("diag", "covariance"): (DiagonalGaussian, {}),
    ("full", "covariance"): (FullGaussian, {}),
    ("low_rank", "covariance"): (LowRankGaussian, {}),
    ("low_rank", "precision"): (LowRankPrecision, {}),
}
#: The same with heavy tails, and all of them.
STUDENTS: dict[tuple[str, str], tuple[type[VectorDensity], dict[str, object]]] = {
    ("student_diag", "covariance"): (StudentT, {"kind": DiagonalGaussian}),
    ("student_full", "covariance"): (StudentT, {"kind": FullGaussian}),
    ("student_low_rank", "covariance"): (StudentT, {"kind": LowRankGaussian}),
}
KINDS = STRUCTURES | STUDENTS


def make_density(
    covariance: str,
    parameterization: str,
    generator: torch.Generator,
    *,
    n_components: int = 3,
    n_features: int = 5,
    rank: int = 2,
    floor: float = 1e-3,
) -> VectorDensity:
    """Components of a known structure, fitted to overlapping clouds of correlated rows."""
    n = 40 * n_components
    mixing = randn(generator, n_features, n_features)
    centers = randn(generator, n_components, n_features)
    labels = torch.arange(n) % n_components
    x = centers[labels] + randn(generator, n, n_features) @ mixing
    membership = torch.nn.functional.one_hot(labels, n_components) + 0.1 * rand(
        generator, n, n_components
    )
    kind, options = KINDS[covariance, parameterization]
    if covariance.endswith("low_rank"):
        options = {**options, "rank": rank}
    return kind.from_clusters(x, membership, floor, generator, **options)


def make_mixture(density: Density, counts: list[int], generator: torch.Generator) -> Mixture:
    """The density's components shared out among classes, with random weights and prior."""
    layout = Layout(counts)
    prior = randn(generator, len(counts)).log_softmax(0)
    blank = Mixture(density, torch.zeros(layout.n_components).double(), layout, prior)
    weight = blank.normalize_weight(randn(generator, layout.n_components))
    return replace(blank, log_weight=weight)


def make_batch(
    density: VectorDensity, n: int, generator: torch.Generator, *, holes: bool = False
) -> Batch:
    """Rows drawn from all components; with holes, also rows that are complete or wholly missing."""
    component = torch.arange(n) % density.n_components
    x = density.sample(component, generator)
    y, weight = torch.full((n,), -1), torch.ones(n, dtype=x.dtype)
    if not holes:
        return Batch(x, None, y, weight)
    observed = rand(generator, *x.shape) < 0.6
    observed[0], observed[-1] = True, False
    return Batch(torch.where(observed, x, 0.0), observed, y, weight)


def make_engine(
    mixture: Mixture, n: int, generator: torch.Generator, *, holes: bool = False
) -> Engine:
    """Labeled, weighted rows drawn from a mixture."""
    prior = mixture.log_prior.exp()
    labels = torch.multinomial(prior, n, replacement=True, generator=generator)
    X = mixture.sample(labels, generator).numpy()
    if holes:
        X[rand(generator, *X.shape).numpy() < 0.2] = np.nan
    weight = 0.5 + rand(generator, n).numpy()
    scaling = Scaling.identity(X.shape[1])
    return Engine(X, labels.numpy(), weight, scaling=scaling, device=CPU)


CPU = torch.device("cpu")


def randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def rand(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator)
