"""Where training begins: k-means clusters inside each class, improved by EM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import (
    Categorical,
    Density,
    HiddenMarkov,
    HolePattern,
    Product,
    Structure,
    randn,
)
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, FitResult, SpreadPrior
from mixtura.solvers.base import with_masses

_MOST_ROWS = 20_000
#: Frames that the states of chains begin with, and those of them that are clustered.
_MOST_FRAMES, _MOST_CLUSTERED = 1_000_000, 10_000
#: Columns with more categories are left out where rows are compared.
_MOST_INDICATORS = 50
#: Share of starts and moves that no cluster shows.
_UNSEEN = 0.05


def _built(
    structure: Structure,
    informative: bool,
    x: Tensor,
    membership: Tensor,
    generator: torch.Generator,
    levels: tuple[int, ...],
    absent: Tensor,
) -> Density:
    """A stack over numbers, categories, and which entries are absent (if that tells)."""
    if not any(levels) and not informative:
        return structure.build(x, membership, generator)
    numbers = tuple(i for i, level in enumerate(levels) if level == 0)
    coded = tuple(i for i, level in enumerate(levels) if level > 0)
    parts: list[Density] = []
    if numbers:
        parts.append(structure.build(x[:, list(numbers)], membership, generator))
    if coded:
        sizes = tuple(levels[i] for i in coded)
        parts.append(Categorical.from_clusters(x[:, list(coded)], membership, sizes))
    if informative:
        parts.append(HolePattern.from_clusters(absent.to(x), membership, (2,) * len(levels)))
    groups = tuple(group for group in (numbers, coded) if group)
    return Product(parts=tuple(parts), columns=groups, informative=informative)


def cluster_start(
    engine: Engine,
    n_components: int,
    structure: Structure,
    generator: torch.Generator,
    *,
    informative: bool = False,
) -> Mixture:
    """A single-class mixture with the moments of k-means clusters.

    `informative` lets components also differ in which entries are absent.
    """
    batch = engine.subsample(_MOST_ROWS, generator).all_rows().to(torch.float64)
    levels, weight = engine.levels, batch.weight
    labels = cluster(_as_numbers(batch, levels), weight, n_components, generator)
    membership = torch.nn.functional.one_hot(labels, n_components).to(weight) * weight[:, None]
    membership = _share_with_empty(membership, weight)
    x = _fill_with_means(batch.x, batch.observed, weight)
    x = _with_unseen_spread(x, batch.observed, generator)
    x = _with_drawn_codes(x, batch.observed, levels, generator)
    density = _built(structure, informative, x, membership, generator, levels, batch.lacks())
    mixture = Mixture.single(density)
    return with_masses(mixture, mixture.density, membership.sum(0))


def _as_numbers(batch: Batch, levels: tuple[int, ...]) -> Tensor:
    """Complete rows to measure distances between: categories become indicators.

    Two different categories are as far apart as two draws of a number are on average. Columns with
    very many categories say little about which rows are alike, and are left out.
    """
    columns, observed = [], []
    seen = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    for i, level in enumerate(levels):
        if level <= _MOST_INDICATORS:
            codes = batch.x[:, i]
            many = level > 0
            columns.append(
                torch.nn.functional.one_hot(codes.long(), level).to(codes)
                if many
                else codes[:, None]
            )
            observed.append(seen[:, i, None].expand_as(columns[-1]))
    if not columns:
        return batch.x.new_zeros(len(batch), 1)
    return _fill_with_means(torch.cat(columns, 1), torch.cat(observed, 1), batch.weight)


def _fill_with_means(x: Tensor, observed: Tensor | None, weight: Tensor) -> Tensor:
    if observed is None:
        return x
    seen = observed.to(x.dtype) * weight[:, None]
    means = (seen * x).sum(0) / seen.sum(0).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(observed, x, means)


def _with_unseen_spread(x: Tensor, observed: Tensor | None, generator: torch.Generator) -> Tensor:
    """Features that no row has get the spread they have elsewhere, which is one; EM keeps it."""
    if observed is None or observed.any(0).all():
        return x
    return torch.where(observed.any(0), x, randn(*x.shape, like=x, generator=generator))


def _with_drawn_codes(
    x: Tensor, observed: Tensor | None, levels: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Missing categories are drawn from those that other rows have, or from all where none has."""
    if observed is None or not any(levels):
        return x
    x = x.clone()
    for column, level in enumerate(levels):
        hidden = ~observed[:, column]
        if level and hidden.any():
            pool = x[~hidden, column]
            pool = pool if len(pool) else torch.arange(level).to(x)
            draw = torch.randint(len(pool), (int(hidden.sum()),), generator=generator)
            x[hidden, column] = pool[draw.to(x.device)]
    return x


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


def chain_start(
    engine: Engine,
    generator: torch.Generator,
    *,
    n_states: int,
    structure: Structure,
    left_to_right: bool,
) -> Mixture:
    """A single hidden Markov model: k-means clusters of frames, or equal stretches of time."""
    most = max(1, int(_MOST_FRAMES / float(engine.sizes.mean())))
    batch: Any = engine.subsample(most, generator).all_rows()
    frames, packing = batch.frames, batch.packing
    x = _fill_with_means(frames.x, frames.observed, frames.weight)
    moment = packing.moments()
    if left_to_right:
        labels = moment * n_states // packing.lengths[packing.owner]
    else:
        labels = _nearest_of_some(x, frames.weight, n_states, generator)
    membership = torch.nn.functional.one_hot(labels, n_states).to(x) * frames.weight[:, None]
    x = _with_unseen_spread(x, frames.observed, generator)
    shares = _share_with_empty(membership, frames.weight)
    emission = structure.finish(structure.start.build(x, shares, generator))
    first = membership[: packing.n_first].sum(0)
    moves = membership[packing.previous()].mT @ (membership[packing.n_first :] > 0).to(x)
    visits = float(batch.weight @ packing.lengths.to(x) / batch.weight.sum()) / n_states
    return Mixture.single(
        HiddenMarkov.from_states(
            emission,
            first + _UNSEEN * first.sum() / n_states,
            moves + _UNSEEN * moves.sum(1, keepdim=True).clamp_min(1e-3) / n_states,
            left_to_right=left_to_right,
            visits=max(1.0, visits),
        )
    )


def _nearest_of_some(x: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n,) cluster of each row, by the k-means of at most `_MOST_CLUSTERED` of them."""
    if len(x) <= _MOST_CLUSTERED:
        return cluster(x, weight, count, generator)
    some = torch.randperm(len(x), generator=generator)[:_MOST_CLUSTERED].to(x.device)
    few = x[some]
    labels = cluster(few, weight[some], count, generator)
    means = torch.stack([few[labels == label].mean(0) for label in labels.unique()])
    return torch.cdist(x, means).argmin(1)


def fit_single(
    start: Callable[[], Mixture],
    engine: Engine,
    em: EM,
    progress: Progress,
    prior: SpreadPrior | None = None,
) -> FitResult:
    """EM from the best of several starts, on rows of a single class."""
    attempts = [
        em.run(start(), Likelihood(), engine, progress, prior=prior) for _ in range(em.n_init)
    ]
    return min(attempts, key=lambda result: result.objective)
