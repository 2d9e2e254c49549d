"""Rows with holes: patterns of observed features that they share, and Gaussians given these.

With covariance C, precision P and a row's deviation r from the mean (zero where missing), all that
depends on its pattern is the inverse of one principal submatrix, over the smaller of two sides:

the observed features o: `y = C_oo^-1 r_o`, expected deviation `C y`,
    squared distance `r y`, log determinant `log det C_oo`;
the missing features m: `y = P_mm^-1 (P r)_m`, expected deviation `e = r - y`,
    squared distance `e P e`, log determinant `log det C + log det P_mm`,

y being zero elsewhere. What is missing then has covariance `C - C C_oo^-1 C` or `P_mm^-1`, and what
is observed has precision `C_oo^-1` or `P - P P_mm^-1 P`, so that sums over rows need no more than
sums of the inverses, each in its place of a D x D matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities.submatrices import STACK, Inverses, Submatrices, inverted
from mixtura.numerics import Context

#: Columns whose pattern a float64 holds exactly, as the bits of one number.
_BITS = 52
#: Numbers of rows up to which those without holes go with the others: overhead is what costs.
_FEW = 10_000


def by_holes(batch: Batch) -> list[tuple[Tensor | slice, Tensor, Holes | None]]:
    """Rows without holes, and rows with some: which they are, x, what is observed if not all."""
    return batch.once(by_holes, lambda: _by_holes(batch.x, batch.observed))


def _by_holes(
    x: Tensor, observed: Tensor | None
) -> list[tuple[Tensor | slice, Tensor, Holes | None]]:
    if observed is None or (whole := observed.all(1)).all():
        return [(slice(None), x, None)]
    if not whole.any() or x.numel() <= _FEW:
        return [(slice(None), x, Holes(observed))]
    full, holes = whole.nonzero().flatten(), (~whole).nonzero().flatten()
    return [(full, x[full], None), (holes, x[holes], Holes(observed[holes]))]


def in_order(parts: list[tuple[Tensor | slice, Tensor]], dim: int = 0) -> Tensor:
    """Values of all rows, in order: each part has some rows (m,), or all; theirs along `dim`."""
    rows = [rows for rows, _ in parts if isinstance(rows, Tensor)]
    if not rows:
        return parts[0][1]
    values = torch.cat([values for _, values in parts], dim)
    return values.index_select(dim, torch.cat(rows).argsort())


def distinct_patterns(observed: Tensor) -> tuple[Tensor, Tensor]:
    """Different rows of a mask (n, D), (P, D), and which of them each row is, (n,)."""
    each = torch.arange(len(observed), device=observed.device)
    if not len(observed):
        return observed, each
    place = torch.zeros_like(each)
    for columns in observed.split(_BITS, 1):
        bits = torch.arange(columns.shape[1], dtype=torch.float64, device=observed.device).exp2()
        word = torch.unique(columns.double() @ bits, return_inverse=True)[1]
        if columns.shape[1] < observed.shape[1]:
            word = torch.unique(place * len(observed) + word, return_inverse=True)[1]
        place = word
    example = torch.zeros(int(place.max()) + 1, dtype=torch.long, device=observed.device)
    return observed[example.scatter_(0, place, each)], place


@dataclass(frozen=True)
class PatternBlocks:
    """Rows arranged into equally tall blocks that share one pattern of observed features.

    Work that depends only on the pattern is then done once per block, without a loop over patterns;
    at most half the slots stay empty, whatever the patterns.
    """

    observed: Tensor  # (B, D) bool
    slot: Tensor  # (n,) place of each row among the B * height slots
    height: int

    @classmethod
    def of(cls, observed: Tensor) -> PatternBlocks:
        patterns, inverse = distinct_patterns(observed)
        if len(patterns) == len(observed):
            return cls(patterns, inverse, 1)
        counts = torch.bincount(inverse, minlength=len(patterns))
        height = len(observed) // max(len(patterns), 1)
        n_blocks = (counts + height - 1) // height
        first_block = n_blocks.cumsum(0) - n_blocks
        first_row = counts.cumsum(0) - counts
        order = inverse.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first_row[inverse[order]]
        slot = (first_block[inverse] + rank // height) * height + rank % height
        return cls(patterns.repeat_interleave(n_blocks, 0), slot, height)

    def arrange(self, rows: Tensor) -> Tensor:
        """(n, ...) -> (B, height, ...), zeros in empty slots."""
        n_blocks = len(self.observed)
        flat = rows.new_zeros(n_blocks * self.height, *rows.shape[1:])
        return flat.index_copy(0, self.slot, rows).view(n_blocks, self.height, *rows.shape[1:])

    def by_component(self, values: Tensor) -> Tensor:
        """(n, K) -> (K, B, height)."""
        return self.arrange(values).permute(2, 0, 1)

    def restore(self, blocks: Tensor) -> Tensor:
        """(B, height, ...) -> (n, ...)."""
        return blocks.flatten(0, 1)[self.slot]


class Parts(NamedTuple):
    """What there is to know of K Gaussians: (K, D), (K, D, D) three times, (K,).

    `whitening` is the inverse of the covariance's Cholesky factor.
    """

    mean: Tensor
    covariance: Tensor
    precision: Tensor
    whitening: Tensor
    log_det: Tensor


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """(K, B, h, D) rows of each component times its matrix (K, D, D)."""
    return (rows.flatten(1, 2) @ matrix).view(*rows.shape[:3], -1)


@dataclass(frozen=True)
class Given(ABC):
    """K Gaussians given the observed part of rows, which stand in B blocks of h rows.

    Attributes
    ----------
    deviation : (K, B, h, D) from the means, zero where missing.
    inverses : of one side of each pattern.
    """

    parts: Parts
    blocks: PatternBlocks
    deviation: Tensor
    inverses: Inverses

    @classmethod
    def of(cls, parts: Parts, x: Tensor, side: Side) -> Self:
        blocks = side.blocks
        deviation = (blocks.arrange(x) - parts.mean[:, None, None]) * blocks.observed[:, None]
        matrix, vectors = cls._problem(parts, deviation)
        return cls(parts, blocks, deviation, inverted(matrix, side.submatrices, vectors))

    def by_block(self, weight: Tensor) -> Tensor:
        """(K, B) sums of the weights (n, K) of rows."""
        return self.blocks.by_component(weight).sum(2)

    @staticmethod
    @abstractmethod
    def _problem(parts: Parts, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Which matrices (K, D, D) are inverted, times which vectors."""

    @abstractmethod
    def squared(self) -> Tensor:
        """Squared distances of what is observed, (K, B, h)."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """Log determinants of the covariance of what is observed, (K, B)."""

    @property
    @abstractmethod
    def expected(self) -> Tensor:
        """Deviations with their regression where they are missing, (K, B, h, D)."""

    @abstractmethod
    def dual(self) -> Tensor:
        """Deviations times the precision of what is observed, zero where missing, (K, B, h, D)."""

    @abstractmethod
    def missing_covariance(self, weight: Tensor) -> Tensor:
        """Sum of the covariances of what is missing by weights (K, B), (K, D, D)."""

    @abstractmethod
    def observed_precision(self, weight: Tensor) -> Tensor:
        """Sum of the precisions of what is observed by weights (K, B), (K, D, D)."""


class _OverMissing(Given):
    """By the submatrices of the precision over what is missing."""

    @staticmethod
    def _problem(parts: Parts, deviation: Tensor) -> tuple[Tensor, Tensor]:
        return parts.precision, _times(deviation, parts.precision)

    def squared(self) -> Tensor:
        """By what is expected: an error of the regression does not matter in first order."""
        return _times(self.expected, self.parts.whitening.mT).square().sum(3)

    def log_det(self) -> Tensor:
        return self.inverses.log_det + self.parts.log_det[:, None]

    @cached_property
    def expected(self) -> Tensor:
        return self.deviation - self.inverses.solved

    def dual(self) -> Tensor:
        return _times(self.expected, self.parts.precision) * self.blocks.observed[:, None]

    def missing_covariance(self, weight: Tensor) -> Tensor:
        return self.inverses.total(weight)

    def observed_precision(self, weight: Tensor) -> Tensor:
        return _less(self.parts.precision, self.inverses.total(weight), weight)


class _OverObserved(Given):
    """By the submatrices of the covariance over what is observed."""

    @staticmethod
    def _problem(parts: Parts, deviation: Tensor) -> tuple[Tensor, Tensor]:
        return parts.covariance, deviation

    def squared(self) -> Tensor:
        return (self.deviation * self.inverses.solved).sum(3)

    def log_det(self) -> Tensor:
        return self.inverses.log_det

    @cached_property
    def expected(self) -> Tensor:
        regression = _times(self.inverses.solved, self.parts.covariance)
        return torch.where(self.blocks.observed[:, None], self.deviation, regression)

    def dual(self) -> Tensor:
        return self.inverses.solved

    def missing_covariance(self, weight: Tensor) -> Tensor:
        return _less(self.parts.covariance, self.inverses.total(weight), weight)

    def observed_precision(self, weight: Tensor) -> Tensor:
        return self.inverses.total(weight)


def _less(whole: Tensor, part: Tensor, weight: Tensor) -> Tensor:
    """(K, D, D) the sum by weights (K, B) of A - A X A, where the sum of the X is `part`."""
    return weight.sum(1)[:, None, None] * whole - whole @ part @ whole


@dataclass(frozen=True)
class Side:
    """Rows that are worked on by the same side of their patterns, the smaller one of nearly all.

    Attributes
    ----------
    rows : which they are.
    kind : by which side.
    submatrices : over that side of each block.
    """

    rows: Tensor | slice
    kind: type[Given]
    blocks: PatternBlocks
    submatrices: Submatrices

    @classmethod
    def of(
        cls, kind: type[Given], rows: Tensor | slice, observed: Tensor, n_components: int
    ) -> Side:
        blocks = PatternBlocks.of(observed[rows])
        mask = ~blocks.observed if kind is _OverMissing else blocks.observed
        return cls(rows, kind, blocks, Submatrices.of(mask, n_components))


class Holes:
    """What is observed of rows, (n, D), each of which has holes; what follows from it is kept."""

    def __init__(self, observed: Tensor) -> None:
        self.observed = observed
        self._sides: tuple[int, list[Side]] = 0, []

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor | slice]:
        """Patterns (P, D), and which of them each row has: its own, unless rows share many."""
        patterns, place = distinct_patterns(self.observed)
        return (
            (patterns, place) if 2 * len(patterns) <= len(place) else (self.observed, slice(None))
        )

    @property
    def are_shared(self) -> bool:
        """Whether rows share patterns, two and more each on average."""
        return not isinstance(self.distinct[1], slice)

    @cached_property
    def blocks(self) -> PatternBlocks:
        """All rows, in blocks of one pattern each."""
        return PatternBlocks.of(self.observed)

    @cached_property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Different columns of what is observed, (n, U), and which of them each feature has, (D,).

        Indicators of one column are missing together. Where few features do so, each has its own.
        """
        patterns, place = distinct_patterns(self.observed.mT)
        if 2 * len(patterns) <= len(place):
            return patterns.mT, place
        return self.observed, torch.arange(len(place), device=place.device)

    def sides(self, n_components: int) -> list[Side]:
        """All rows, by the smaller side of their patterns; where these are few, with the others."""
        if self._sides[0] != n_components:
            self._sides = n_components, list(self._found(n_components))
        return self._sides[1]

    def _found(self, n_components: int) -> Iterator[Side]:
        few = 2 * self.observed.sum(1) >= self.observed.shape[1]
        n_few = int(few.sum())
        if min(n_few, len(few) - n_few) * n_components < STACK:
            kind = _OverMissing if 2 * n_few >= len(few) else _OverObserved
            yield Side.of(kind, slice(None), self.observed, n_components)
            return
        for kind, mine in ((_OverMissing, few), (_OverObserved, ~few)):
            yield Side.of(kind, mine.nonzero().flatten(), self.observed, n_components)


def given(parts: Parts, x: Tensor, holes: Holes) -> list[tuple[Tensor | slice, Given]]:
    """Which of the rows x (n, D), and the Gaussians given these."""
    sides = holes.sides(len(parts.mean))
    return [(side.rows, side.kind.of(parts, x[side.rows], side)) for side in sides]


def distances(parts: list[tuple[Tensor | slice, Given]]) -> tuple[Tensor, Tensor]:
    """Squared distances and log determinants (n, K) of what is observed."""
    found = []
    for rows, part in parts:
        squared = part.squared()
        both = torch.stack([squared, part.log_det()[..., None].expand_as(squared)])
        found.append((rows, part.blocks.restore(both.permute(2, 3, 1, 0))))
    squared, log_det = in_order(found).unbind(2)
    return squared, log_det


class _Conditional(Context, Protocol):
    parts: list[tuple[Tensor | slice, Given]]


class _Marginal(torch.autograd.Function):
    """Squared distances and log determinants (n, K) of what is observed, gradients written out.

    Derivatives by mean and covariance are all that is needed: the other parts follow from these.
    """

    @staticmethod
    def forward(
        ctx: _Conditional, mean: Tensor, covariance: Tensor, x: Tensor, parts: Parts, holes: Holes
    ) -> tuple[Tensor, Tensor]:
        ctx.parts = given(parts, x, holes)
        return distances(ctx.parts)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _Conditional, by_squared: Tensor, by_log_det: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        parts = ctx.parts[0][1].parts
        by_mean, by_covariance = torch.zeros_like(parts.mean), torch.zeros_like(parts.covariance)
        by_x = by_squared.new_empty(len(by_squared), by_mean.shape[1])
        for rows, part in ctx.parts:
            dual = part.dual()
            pull = part.blocks.by_component(by_squared[rows])[..., None] * dual
            by_mean -= 2.0 * pull.sum((1, 2))
            by_covariance += part.observed_precision(part.by_block(by_log_det[rows]))
            by_covariance -= pull.flatten(1, 2).mT @ dual.flatten(1, 2)
            by_x[rows] = 2.0 * part.blocks.restore(pull.sum(0))
        return by_mean, by_covariance, by_x, None, None


def marginal(parts: Parts, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
    """Squared distances and log determinants (n, K) of what is observed of rows x (n, D)."""
    fixed = Parts(*(part.detach() for part in parts))
    return _Marginal.apply(parts.mean, parts.covariance, x, fixed, holes)
