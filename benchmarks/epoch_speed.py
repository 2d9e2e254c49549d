"""Seconds an epoch of hybrid-margin training: ours beside the plain formulas in eager PyTorch.

python benchmarks/epoch_speed.py --features 50 --components 10       # MNIST pca50, CPU
python benchmarks/epoch_speed.py --features 784 --components 17 --device cuda
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mixtura.data import Scaling, Table
from mixtura.densities import LowRankGaussian
from mixtura.engines import LocalEngine
from mixtura.models.mixture import Layout, Mixture
from mixtura.objectives import Margin, beside_likelihood
from mixtura.progress import Progress
from mixtura.solvers import Adam

CLASSES, RANK, MARGIN, TRADEOFF, SMOOTHNESS = 10, 25, 60.0, 0.25, 10.0


def make_mixture(x: Tensor, per_class: int, generator: torch.Generator) -> Mixture:
    """A mixture of the benchmark's shape around random rows."""
    count, size = CLASSES * per_class, x.shape[1]
    rows = torch.randint(len(x), (count,), generator=generator).to(x.device)
    loading = 0.1 * torch.randn(count, size, RANK, generator=generator).to(x)
    density = LowRankGaussian(
        mean=x[rows].clone(), diagonal=torch.ones(count, size).to(x), loading=loading, floor=0.1
    )
    weight = torch.full((count,), 1.0 / per_class).log().to(x)
    prior = torch.full((CLASSES,), 1.0 / CLASSES).log().to(x)
    return Mixture(density, weight, Layout([per_class] * CLASSES, x.device), prior, False)


def ours(x: Tensor, y: Tensor, mixture: Mixture, epochs: int) -> float:
    """Seconds an epoch of the library's own solver, set-up not counted."""
    table = Table(
        x.cpu().double().numpy(),
        y.cpu().numpy(),
        scaling=Scaling.identity(x.shape[1]),
        device=x.device,
        dtype=x.dtype,
    )
    marks: list[float] = []

    def mark(record: dict) -> None:
        synchronize(x)
        marks.append(time.perf_counter())

    solver = Adam(epochs + 1, batch_size=100, learning_rate=2e-3, schedule="constant")
    objective = beside_likelihood(Margin(MARGIN, SMOOTHNESS), TRADEOFF)
    solver.run(mixture, objective, LocalEngine(table), Progress([mark]))
    return (marks[-1] - marks[0]) / epochs


def plain(x: Tensor, y: Tensor, mixture: Mixture, epochs: int) -> float:
    """Seconds an epoch of the formulas as they stand in the paper."""
    density = mixture.density
    raw = torch.log(torch.expm1(density.diagonal - density.floor))
    free = [mixture.log_weight, density.mean, raw, density.loading]
    free = [value.clone().requires_grad_() for value in free]
    optimizer = torch.optim.Adam(free, lr=2e-3)
    eye = torch.eye(RANK, dtype=x.dtype, device=x.device)
    own = torch.nn.functional.one_hot(y, CLASSES).bool()

    def step(index: Tensor) -> None:
        logits, mean, raw, loading = free
        diagonal = density.floor + softplus(raw)
        scaled = loading / diagonal[..., None]
        factor = torch.linalg.cholesky(eye + loading.mT @ scaled)
        whitened = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)
        difference = x[index][:, None] - mean
        direct = (difference.square() / diagonal).sum(2)
        inner = torch.einsum("krd,nkd->nkr", whitened, difference).square().sum(2)
        log_det = diagonal.log().sum(1) + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        log_prob = -0.5 * (direct - inner + log_det + x.shape[1] * 1.8378770664093453)
        weights = logits.view(CLASSES, -1).log_softmax(1).flatten()
        joint = (log_prob + weights).view(len(index), CLASSES, -1).logsumexp(2)
        mine = joint[own[index]]
        rivals = joint.masked_fill(own[index], -torch.inf)
        margin = mine - (SMOOTHNESS * rivals).logsumexp(1) / SMOOTHNESS
        loss = -TRADEOFF * mine + (1 - TRADEOFF) * (MARGIN - margin).clamp_min(0)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()

    order = torch.randperm(len(x)).to(x.device)
    for index in order[:500].split(100):
        step(index)
    synchronize(x)
    began = time.perf_counter()
    for _ in range(epochs):
        for index in order.split(100):
            step(index)
    synchronize(x)
    return (time.perf_counter() - began) / epochs


def synchronize(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--components", type=int, default=10, help="components per class")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.rows, options.features, generator=generator)
    y = torch.randint(CLASSES, (options.rows,), generator=generator)
    x, y = x.to(options.device), y.to(options.device)
    mixture = make_mixture(x, options.components, generator)
    mine = ours(x, y, mixture, options.epochs)
    theirs = plain(x, y, mixture, options.epochs)
    print(
        f"{options.rows} x {options.features}, {CLASSES * options.components} components, "
        f"rank {RANK}, minibatches of 100, float32, {options.device}: ours {mine:.3f} s an epoch, "
        f"plain eager {theirs:.3f} s, ratio {theirs / mine:.1f}"
    )


if __name__ == "__main__":
    main()
