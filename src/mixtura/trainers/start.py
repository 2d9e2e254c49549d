"""Where training begins: k-means clusters inside each class, improved by EM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from mixtura.densities import STRUCTURES, Density
from mixtura.engines import LocalEngine
from mixtura.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.trainers.base import FitResult, with_masses
from mixtura.trainers.em import EM

_MOST_ROWS = 20_000


@dataclass(frozen=True)
class Structure:
    """A kind of density and how to make one."""

    covariance: str
    floor: float = 1e-3
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> Density:
        """A stack with the moments of weighted clusters of complete rows."""
        kind, options = STRUCTURES[self.covariance, "covariance"]
        return kind.from_clusters(x, membership, self.floor, generator, **options, **self.options)


def cluster_start(
    engine: LocalEngine, n_components: int, structure: Structure, generator: torch.Generator
) -> Mixture:
    """A single-class mixture with the moments of k-means clusters."""
    batch = engine.subsample(_MOST_ROWS, generator).table.batch(slice(None)).to(torch.float64)
    x, weight = _fill_with_means(batch.x, batch.observed, batch.weight), batch.weight
    labels = cluster(x, weight, n_components, generator)
    membership = torch.nn.functional.one_hot(labels, n_components).to(x) * weight[:, None]
    membership = _share_with_empty(membership, weight)
    mixture = Mixture.single(structure.build(x, membership, generator))
    return with_masses(mixture, mixture.density, membership.sum(0))


def _fill_with_means(x: Tensor, observed: Tensor | None, weight: Tensor) -> Tensor:
    if observed is None:
        return x
    seen = observed.to(x.dtype) * weight[:, None]
    means = (seen * x).sum(0) / seen.sum(0).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(observed, x, means)


def cluster(x: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n,) k-means cluster of each row; fewer than `count` where fewer rows are distinct."""
    if count == 1:
        return torch.zeros(len(x), dtype=torch.long, device=x.device)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    # Equal rows are one heavier row, so that a weight of two is the same as a row given twice.
    rows, place = np.unique(x.cpu().numpy(), axis=0, return_inverse=True)
    shares = np.bincount(place.ravel(), weight.cpu().numpy())
    means = KMeans(min(count, len(rows)), n_init=1, random_state=seed)
    labels = means.fit(rows, sample_weight=shares).labels_.astype(np.int64)
    return torch.as_tensor(labels[place.ravel()]).to(x.device)


def _share_with_empty(membership: Tensor, weight: Tensor) -> Tensor:
    """Clusters that got (almost) no rows start as copies of the whole class."""
    poor = membership.sum(0) <= 1e-9 * weight.sum()
    return torch.where(poor, 1e-3 * weight[:, None], membership)


def fit_single(
    engine: LocalEngine,
    n_components: int,
    structure: Structure,
    em: EM,
    generator: torch.Generator,
    progress: Progress,
    n_init: int = 1,
) -> FitResult:
    """EM from the best of several starts, on rows of a single class."""
    attempts = [
        em.run(
            cluster_start(engine, n_components, structure, generator),
            Likelihood(),
            engine,
            progress,
        )
        for _ in range(n_init if n_components > 1 else 1)
    ]
    return min(attempts, key=lambda result: result.objective)
