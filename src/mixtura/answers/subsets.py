"""Log densities of many subsets of a row's columns, all at once.

What subsets share is computed once. Of Gaussians, conditioning the others on one column is a step
of elimination, and leaving it out costs nothing: all 2^m subsets of m columns come from m steps
over a stack that doubles, a few operations per subset whatever m is. Nested subsets come from one
Cholesky factor. Independent columns add up, by one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch

import numpy as np
import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.densities import Categorical, Density, DiagonalGaussian, Gaussian, HolePattern, Product
from mixtura.densities.patterns import distinct_patterns

Columns = tuple[int, ...]


@lru_cache(maxsize=16)
def all_subsets(count: int) -> np.ndarray:
    """(2^m, m) bool; the last of `count` members is the one that the first half lacks."""
    return (np.arange(2**count)[:, None] >> np.arange(count)) % 2 == 1


@dataclass(frozen=True)
class Subsets:
    """Subsets of groups of columns.

    Attributes
    ----------
    groups : the columns of each, disjoint.
    nested : whether subsets are those of the first 0, 1, ..., m groups; otherwise all 2^m, in the
        order of `all_subsets`.
    """

    groups: Sequence[Columns]
    nested: bool = False

    @property
    def shown(self) -> np.ndarray:
        """(s, m) the groups of each subset."""
        count = len(self.groups)
        return np.tri(count + 1, count, -1, dtype=bool) if self.nested else all_subsets(count)

    def columns(self, n_columns: int) -> np.ndarray:
        """(s, D) the columns of each subset; those of no group are in all."""
        member = np.zeros((len(self.groups), n_columns), dtype=bool)
        for place, columns in enumerate(self.groups):
            member[place, list(columns)] = True
        return (self.shown.astype(np.float64) @ member > 0.0) | ~member.any(0)

    def spread(self, origin: Sequence[int] | None) -> Subsets:
        """The same of columns that come from these, (D,), if any do."""
        if origin is None:
            return self
        places = [
            tuple(place for place, column in enumerate(origin) if column in group)
            for group in self.groups
        ]
        return replace(self, groups=places)

    def within(self, columns: Columns) -> Subsets:
        """The same of a part of the columns, by their places in it."""
        place = {column: at for at, column in enumerate(columns)}
        groups = [tuple(place[c] for c in group if c in place) for group in self.groups]
        return replace(self, groups=groups)


@singledispatch
def log_probs(density: Density, batch: Batch, subsets: Subsets) -> Tensor:
    """(s, n, K) log density of each subset of the columns.

    Rows have all columns of the groups, and no others. What they lack still counts where it tells
    something. This is right for every density; some have faster ways.
    """
    kept = torch.from_numpy(subsets.columns(batch.x.shape[1])).to(batch.x.device)
    observed = kept[:, None].expand(-1, len(batch), -1)
    if batch.observed is not None:
        observed = observed & batch.observed
    count = len(kept)
    many = Batch(
        torch.where(observed, batch.x, 0.0).flatten(0, 1),
        observed.flatten(0, 1),
        batch.y.repeat(count),
        batch.weight.repeat(count),
    )
    return density.log_prob(many).unflatten(0, (count, len(batch)))


@log_probs.register
def _of_product(density: Product, batch: Batch, subsets: Subsets) -> Tensor:
    every = tuple(range(batch.x.shape[1]))
    columns = [*density.columns, *([] if density.atoms is None else [density.atoms.columns]), every]
    parts = [
        log_probs(part, density.view(batch, number), subsets.within(columns[number]))
        for number, part in enumerate(density.parts)
    ]
    return sum(parts[1:], parts[0])


@log_probs.register
def _of_categories(density: Categorical, batch: Batch, subsets: Subsets) -> Tensor:
    codes, chances = batch.x.long(), density.by_column(density.log_chance.to(batch.x))
    terms = [chance.mT[codes[:, column]] for column, chance in enumerate(chances)]
    return _sums(torch.stack(terms), batch, subsets)


@log_probs.register
def _of_hole_pattern(density: HolePattern, batch: Batch, subsets: Subsets) -> Tensor:
    return log_probs.dispatch(Density)(density, batch, subsets)


@log_probs.register
def _of_independent(density: DiagonalGaussian, batch: Batch, subsets: Subsets) -> Tensor:
    mean, variance = (part.to(batch.x).mT[:, None] for part in (density.mean, density.variance))
    squared = (batch.x.mT[..., None] - mean).square() / variance
    return _sums(-0.5 * (squared + variance.log() + LOG_2PI), batch, subsets)


def _sums(terms: Tensor, batch: Batch, subsets: Subsets) -> Tensor:
    """Sums of terms (D, n, K) over the observed columns of each subset."""
    if batch.observed is not None:
        terms = terms * batch.observed.mT[..., None]
    kept = torch.from_numpy(subsets.columns(len(terms))).to(terms)
    return (kept @ terms.flatten(1)).unflatten(1, terms.shape[1:])


@log_probs.register
def _of_gaussians(density: Gaussian, batch: Batch, subsets: Subsets) -> Tensor:
    if batch.observed is not None:
        return _by_pattern(density, batch, batch.observed, subsets)
    return with_means(density, batch, subsets, 0)[0]


def with_means(
    density: Gaussian, batch: Batch, subsets: Subsets, n_last: int
) -> tuple[Tensor, Tensor]:
    """Log densities (s, n, K) of subsets, and means (s, n, K, T) of the last T columns given them.

    These belong to no group, and rows lack them.
    """
    width = batch.x.shape[1]
    columns = [*(c for group in subsets.groups for c in group), *range(width - n_last, width)]
    order = torch.tensor(columns, dtype=torch.long, device=batch.x.device)
    covariance = density.covariances().to(batch.x)[:, order[:, None], order]
    deviation = (batch.x[:, None] - density.mean.to(batch.x))[..., order]
    deviation[..., len(order) - n_last :] = 0.0
    sizes = [len(group) for group in subsets.groups]
    found, off = (_of_nested if subsets.nested else _of_all)(covariance, deviation, sizes)
    return found, density.mean.to(batch.x)[:, width - n_last :] - off


def _by_pattern(density: Gaussian, batch: Batch, observed: Tensor, subsets: Subsets) -> Tensor:
    """Rows that lack the same columns together, these in no group: atoms are not observed."""
    patterns, place = distinct_patterns(observed)
    found = batch.x.new_empty(len(subsets.shown), len(batch), density.n_components)
    for number, pattern in enumerate(patterns):
        rows = (place == number).nonzero().flatten()
        told = set(pattern.nonzero().flatten().tolist())
        groups = [tuple(c for c in group if c in told) for group in subsets.groups]
        alike = replace(batch.take(rows), observed=None)
        found[:, rows] = log_probs(density, alike, replace(subsets, groups=groups))
    return found


def _of_nested(covariance: Tensor, deviation: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The same as `_of_all` for the first groups, from the factor of all columns in order."""
    count = sum(sizes)
    factor = torch.linalg.cholesky_ex(covariance).L
    own, last = factor[:, :count, :count], factor[:, count:, :count]
    white = torch.linalg.solve_triangular(own, deviation[..., :count].permute(1, 2, 0), upper=False)
    pivot = own.diagonal(dim1=1, dim2=2).log()[..., None]
    terms = (-0.5 * (white.square() + LOG_2PI) - pivot).permute(1, 2, 0)
    steps = -torch.einsum("kti,kin->inkt", last, white)
    places = np.append(0, np.cumsum(sizes))
    sums = torch.nn.functional.pad(terms.cumsum(0), (0, 0, 0, 0, 1, 0))
    off = torch.nn.functional.pad(steps.cumsum(0), (0, 0, 0, 0, 0, 0, 1, 0))
    return sums[places], off[places]


def _of_all(covariance: Tensor, deviation: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Log densities (2^m, n, K) of all subsets of groups of so many columns each.

    And deviations (2^m, n, K, d) of the columns that come after them from their conditional means.
    A step is about the first column that is left. Of the others there are covariances (s, K, d, d)
    and deviations from conditional means (s, n, K, d), given the columns that a subset has.
    """
    covariance, deviation = covariance[None], deviation[None]
    found = deviation.new_zeros(deviation.shape[:3])
    for size in sizes:
        without = covariance[..., size:, size:], deviation[..., size:], found
        for _ in range(size):
            pivot, row, own = covariance[..., 0, :1], covariance[..., 0, 1:], deviation[..., :1]
            reach, variance = row / pivot, pivot[:, None, :, 0]
            distance = own[..., 0].square() / variance
            found = found - 0.5 * (distance + (variance.log() + LOG_2PI))
            deviation = deviation[..., 1:] - own * reach[:, None]
            covariance = covariance[..., 1:, 1:] - row[..., :, None] * reach[..., None, :]
        pairs = zip(without, (covariance, deviation, found), strict=True)
        covariance, deviation, found = (torch.cat(pair) for pair in pairs)
    return found, deviation
