"""Log densities of many subsets of a row's columns, all at once.

What subsets share is computed once. Of Gaussians, conditioning the others on one column is a step
of elimination, and leaving it out costs nothing: all 2^m subsets of m columns come from m steps
over a stack that doubles, a few operations per subset whatever m is. Those of the first columns of
an order come from one Cholesky factor. What independent columns say adds up, by one matrix product,
and so does what columns say that are independent given a few factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, singledispatch

import numpy as np
import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.densities import (
    Categorical,
    Density,
    DiagonalGaussian,
    Gaussian,
    HolePattern,
    LowRankGaussian,
    Product,
)
from mixtura.densities.patterns import distinct_patterns
from mixtura.numerics import quadratic_log_det

Columns = tuple[int, ...]
#: Numbers of a chunk: more leave the cache, fewer take as long.
_CACHED = 2**20


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
    orders : (R, m) of the groups: subsets are those of the first 0, 1, ..., m groups of each; None:
        all 2^m, in the order of `all_subsets`.
    """

    groups: Sequence[Columns]
    orders: np.ndarray | None = None

    @cached_property
    def shown(self) -> np.ndarray:
        """(s, m) the groups of each subset."""
        count = len(self.groups)
        if self.orders is None:
            return all_subsets(count)
        place = self.orders.argsort(1)[:, None]
        return (place < np.arange(count + 1)[:, None]).reshape(-1, count)

    def group(self, n_columns: int) -> np.ndarray:
        """(D,) the group of each column; m for those of none."""
        found = np.full(n_columns, len(self.groups))
        for number, columns in enumerate(self.groups):
            found[list(columns)] = number
        return found

    def columns(self, n_columns: int) -> np.ndarray:
        """(s, D) the columns of each subset; those of no group are in all."""
        shown = np.pad(self.shown, ((0, 0), (0, 1)), constant_values=True)
        return shown[:, self.group(n_columns)]

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Places (R, d) of the columns in each order, and how many there are of its first
        0, 1, ..., m groups, (R, m + 1)."""
        assert self.orders is not None
        sizes = np.array([len(group) for group in self.groups], dtype=np.int64)
        counts = np.pad(sizes[self.orders].cumsum(1), ((0, 0), (1, 0)))
        group = np.repeat(np.arange(len(sizes)), sizes)
        return self.orders.argsort(1)[:, group].argsort(1, kind="stable"), counts

    def spread(self, origin: Sequence[int]) -> Subsets:
        """The same of columns that come from these, (D,)."""
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
    first, *rest = [log_probs(*part) for part in _parts(density, batch, subsets)]
    return sum(rest, first)


def _parts(
    density: Product, batch: Batch, subsets: Subsets
) -> Iterator[tuple[Density, Batch, Subsets]]:
    """The factors, what they look at, and subsets of that."""
    every = tuple(range(batch.x.shape[1]))
    columns = [*density.columns, *([] if density.atoms is None else [density.atoms.columns]), every]
    for number, part in enumerate(density.parts):
        yield part, density.view(batch, number), subsets.within(columns[number])


@log_probs.register(Categorical)
@log_probs.register(DiagonalGaussian)
def _of_independent(density: Density, batch: Batch, subsets: Subsets) -> Tensor:
    terms = by_group(density, batch, subsets)
    assert terms is not None
    kept = torch.from_numpy(subsets.shown).to(terms)
    return (kept @ terms[1:].flatten(1)).unflatten(1, terms.shape[1:]) + terms[0]


@log_probs.register
def _of_hole_pattern(density: HolePattern, batch: Batch, subsets: Subsets) -> Tensor:
    return log_probs.dispatch(Density)(density, batch, subsets)


@singledispatch
def by_group(density: Density, batch: Batch, subsets: Subsets) -> Tensor | None:
    """(1 + m, n, K) what the columns of no group and those of each add to log densities.

    None where columns are not independent.
    """
    return None


@by_group.register
def _group_product(density: Product, batch: Batch, subsets: Subsets) -> Tensor | None:
    found = [by_group(*part) for part in _parts(density, batch, subsets)]
    terms = [each for each in found if each is not None]
    return sum(terms[1:], terms[0]) if len(terms) == len(found) else None


@by_group.register
def _group_categories(density: Categorical, batch: Batch, subsets: Subsets) -> Tensor:
    codes, chances = batch.x.long(), density.by_column(density.log_chance.to(batch.x))
    terms = [chance.mT[codes[:, column]] for column, chance in enumerate(chances)]
    return _grouped(_told(torch.stack(terms), batch), subsets)


@by_group.register
def _group_hole_pattern(density: HolePattern, batch: Batch, subsets: Subsets) -> None:
    return None


@by_group.register
def _group_independent(density: DiagonalGaussian, batch: Batch, subsets: Subsets) -> Tensor:
    mean, variance = (part.to(batch.x).mT[:, None] for part in (density.mean, density.variance))
    squared = (batch.x.mT[..., None] - mean).square() / variance
    return _grouped(_told(-0.5 * (squared + (variance.log() + LOG_2PI)), batch), subsets)


def _told(terms: Tensor, batch: Batch) -> Tensor:
    """Terms (D, n, K), zero where a column is not observed."""
    return terms if batch.observed is None else terms * batch.observed.mT[..., None]


def _grouped(terms: Tensor, subsets: Subsets) -> Tensor:
    """Sums of terms (D, ...) over the columns of no group, and of each."""
    group = torch.from_numpy(subsets.group(len(terms))).to(terms.device)
    found = terms.new_zeros(len(subsets.groups) + 1, *terms.shape[1:])
    return found.index_add_(0, group, terms).roll(1, 0)


@log_probs.register
def _of_gaussians(density: Gaussian, batch: Batch, subsets: Subsets) -> Tensor:
    if batch.observed is not None:
        return _by_pattern(density, batch, batch.observed, subsets)
    if isinstance(density, LowRankGaussian) and density.rank**3 < _steps(subsets):
        return _of_low_rank(density, batch.x, subsets)
    return with_means(density, batch, subsets, 0)[0]


def _steps(subsets: Subsets) -> float:
    """What the covariances of a subset cost, in cubes of factors (found by trial)."""
    width, size = sum(map(len, subsets.groups)), len(subsets.groups)
    if subsets.orders is None:
        return 4.0 * (width / max(1, size)) ** 3
    return width**3 / (20.0 * (size + 1))


def _of_low_rank(density: LowRankGaussian, x: Tensor, subsets: Subsets) -> Tensor:
    """By sums over columns that are independent given R factors: A, B and b of
    log det(I + A) - b^T (I + A)^-1 b + B."""
    loading, diagonal = density.loading.to(x).transpose(0, 1), density.diagonal.to(x).mT
    deviation = (x[:, None] - density.mean.to(x)).movedim(2, 0)  # (D, n, K)
    scaled = loading / diagonal[..., None]
    squares = deviation.square() / diagonal[:, None] + (diagonal.log() + LOG_2PI)[:, None]
    terms = [
        loading[..., None] * scaled[..., None, :],  # (D, K, R, R)
        scaled[..., None] * deviation.mT[..., None, :],  # (D, K, R, n)
        squares.mT,  # (D, K, n)
    ]
    sums = [_grouped(each, subsets) for each in terms]
    for each in sums:
        each[0] = 0.0  # rows lack the columns of no group
    sums[0][0] = torch.eye(density.rank)
    kept = torch.from_numpy(np.insert(subsets.shown, 0, True, 1)).to(x)
    found = []
    per_subset = density.n_components * density.rank * (density.rank + len(x))
    for some in kept.split(max(1, _CACHED // per_subset)):
        gram, moved, total = (  # rows of subsets stand last
            (each.flatten(1).mT @ some.mT).view(*each.shape[1:], -1).movedim(-1, 0) for each in sums
        )
        inner, log_det = quadratic_log_det(gram, moved)
        found.append((-0.5 * (total - inner + log_det[..., None])).mT)
    return torch.cat(found)


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
    found, off = (_of_all if subsets.orders is None else _of_orders)(covariance, deviation, subsets)
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


def _of_orders(covariance: Tensor, deviation: Tensor, subsets: Subsets) -> tuple[Tensor, Tensor]:
    """The same as `_of_all` for the first groups, from the factors of all columns in order."""
    order, counts = (torch.from_numpy(each).to(covariance.device) for each in subsets.in_order())
    count, width = order.shape[1], covariance.shape[-1]
    last = torch.arange(count, width, device=order.device).expand(len(order), -1)
    whole = torch.cat([order, last], 1)
    factor = torch.linalg.cholesky_ex(covariance[:, whole[:, :, None], whole[:, None]]).L
    own, last = factor[..., :count, :count], factor[..., count:, :count]
    shifted = deviation[..., order].permute(1, 2, 3, 0)  # (K, R, d, n)
    white = torch.linalg.solve_triangular(own, shifted, upper=False)
    pivot = own.diagonal(dim1=-2, dim2=-1).log()[..., None]
    terms = (-0.5 * (white.square() + LOG_2PI) - pivot).permute(1, 2, 3, 0)
    steps = -torch.einsum("krti,krin->rinkt", last, white)
    each = torch.arange(len(order), device=order.device)[:, None]
    sums = torch.nn.functional.pad(terms.cumsum(1), (0, 0, 0, 0, 1, 0))
    off = torch.nn.functional.pad(steps.cumsum(1), (0, 0, 0, 0, 0, 0, 1, 0))
    return sums[each, counts].flatten(0, 1), off[each, counts].flatten(0, 1)


def _of_all(covariance: Tensor, deviation: Tensor, subsets: Subsets) -> tuple[Tensor, Tensor]:
    """Log densities (2^m, n, K) of all subsets of groups, whose columns come in their order.

    And deviations (2^m, n, K, d) of the columns that come after them from their conditional means.
    A step is about the first column that is left. Of the others there are covariances (d, d, K, s)
    and deviations from conditional means (d, n, K, s), given the columns that a subset has.
    """
    covariance, deviation = covariance.permute(1, 2, 0)[..., None], deviation.permute(2, 0, 1)
    deviation = deviation[..., None]
    found = deviation.new_zeros(deviation.shape[1:])
    for size in map(len, subsets.groups):
        without = covariance[size:, size:], deviation[size:], found
        for _ in range(size):
            variance, row, own = covariance[0, 0], covariance[0, 1:], deviation[0]
            reach = row / variance
            constant = -0.5 * (variance.log() + LOG_2PI)
            found = found + constant - 0.5 * own.square() / variance
            deviation = deviation[1:] - own * reach[:, None]
            covariance = covariance[1:, 1:] - row[:, None] * reach
        pairs = zip(without, (covariance, deviation, found), strict=True)
        covariance, deviation, found = (torch.cat(pair, -1) for pair in pairs)
    return found.permute(2, 0, 1), deviation.permute(3, 1, 2, 0)
