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

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.numerics import Context, log_det_lower, lower_inverse, stack_product

#: Columns whose pattern a float64 holds exactly, as the bits of one number.
_BITS = 52
#: Sides of patterns are padded to multiples of this, and of more where matrices are few: a stack
#: has overhead worth that of so many small matrices.
_STEP, _STACK = 4, 256
#: Features up to which nothing is gained by taking submatrices out of matrices.
_WHOLE = 12


def by_holes(batch: Batch) -> list[tuple[Tensor | slice, Tensor, Tensor | None]]:
    """Rows without holes, and rows with some: which they are, x, what is observed if not all."""
    x, observed = batch.x, batch.observed
    if observed is None or (whole := observed.all(1)).all():
        return [(slice(None), x, None)]
    if not whole.any():
        return [(slice(None), x, observed)]
    full, holes = whole.nonzero().flatten(), (~whole).nonzero().flatten()
    return [(full, x[full], None), (holes, x[holes], observed[holes])]


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
        height = math.ceil(len(observed) / max(len(patterns), 1))
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


def of_equal_size(side: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (G,) of a mask (B, D), and the columns (G, s) they have, by their number s > 0.

    Numbers are rounded up to multiples of `step`: columns D, D + 1, ... stand for nothing.
    """
    size = side.sum(1)
    pad = torch.arange(step, device=side.device) < (-size % step)[:, None]
    side, size = torch.cat([side, pad], 1), size + pad.sum(1)
    for count in size.unique().tolist():
        if count:
            rows = (size == count).nonzero().flatten()
            yield rows, side[rows].nonzero()[:, 1].view(len(rows), count)


def _picked(table: Tensor, place: Tensor) -> Tensor:
    """(K, ...) what stands at a place (...) of each table (K, N)."""
    return table.gather(1, place.flatten().expand(len(table), -1)).view(len(table), *place.shape)


def _put(table: Tensor, place: Tensor, values: Tensor) -> None:
    """Writes values (K, ...) to a place (...) of each table (K, N)."""
    table.scatter_(1, place.flatten().expand(len(table), -1), values.reshape(len(table), -1))


class Parts(NamedTuple):
    """What there is to know of K Gaussians: (K, D), (K, D, D) three times, (K,).

    `whitening` is the inverse of the covariance's Cholesky factor.
    """

    mean: Tensor
    covariance: Tensor
    precision: Tensor
    whitening: Tensor
    log_det: Tensor


class _Inverses(NamedTuple):
    """Of principal submatrices, each over the side of a block: products, determinants, a sum.

    Attributes
    ----------
    solved : (K, B, h, D) inverse times vectors, zero beside the side.
    log_det : (K, B).
    total : (K, D, D) the weighted sum of the inverses, each in its place.
    """

    solved: Tensor
    log_det: Tensor
    total: Tensor

    @classmethod
    def of(cls, matrix: Tensor, side: Tensor, vectors: Tensor, weight: Tensor | None) -> Self:
        """Matrices (K, D, D), sides (B, D), vectors (K, B, h, D), weights (K, B) of the sum."""
        if matrix.shape[1] <= _WHOLE:
            return cls._of_whole(matrix, side.to(matrix.dtype), vectors, weight)
        size, step = matrix.shape[1], _step(side, len(matrix))
        wide, height = size + step, vectors.shape[2]
        eye = torch.eye(wide, dtype=matrix.dtype, device=matrix.device)
        table = eye.repeat(len(matrix), 1, 1)
        table[:, :size, :size] = matrix
        given = torch.nn.functional.pad(vectors, (0, step)).flatten(1)
        solved, total = torch.zeros_like(given), torch.zeros_like(table.flatten(1))
        log_det = vectors.new_zeros(vectors.shape[:2])
        slot = torch.arange(height, device=side.device)[:, None] * wide
        for rows, columns in of_equal_size(side, step):
            inner = columns[:, :, None] * wide + columns[:, None]  # (G, s, s)
            at = (rows * height * wide)[:, None, None] + slot + columns[:, None]  # (G, h, s)
            factor = torch.linalg.cholesky_ex(_picked(table.flatten(1), inner)).L
            log_det[:, rows] = log_det_lower(factor)
            own = None if weight is None else weight[:, rows]
            answer, share = _solved(factor, _picked(given, at), own)
            _put(solved, at, answer)
            if share is not None:
                place = inner.flatten().expand(len(matrix), -1)
                total.scatter_add_(1, place, share.flatten(1))
        solved = solved.view(*vectors.shape[:3], wide)[..., :size]
        return cls(solved, log_det, total.view_as(table)[:, :size, :size])

    @classmethod
    def _of_whole(
        cls, matrix: Tensor, side: Tensor, vectors: Tensor, weight: Tensor | None
    ) -> Self:
        """Where matrices are small, submatrices stand in an identity, without a search."""
        both = side[:, :, None] * side[:, None]
        inner = matrix[:, None] * both + torch.diag_embed(1.0 - side)
        factor = torch.linalg.cholesky_ex(inner).L
        solved, share = _solved(factor, vectors * side[:, None], weight)
        total = torch.zeros_like(matrix) if share is None else (share * both).sum(1)
        return cls(solved, log_det_lower(factor), total)


def _step(side: Tensor, n_components: int) -> int:
    """What sizes of sides (B, D) are rounded up to."""
    n_stacks = max(1, n_components * len(side) // _STACK)
    return max(_STEP, math.ceil(int(side.sum(1).max()) / n_stacks))


def _solved(factor: Tensor, right: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows (K, G, h, s) times the inverses of L L^T, and these times weights (K, G), if any."""
    if weight is None:
        half = torch.linalg.solve_triangular(factor, right.mT, upper=False)
        return torch.linalg.solve_triangular(factor.mT, half, upper=True).mT, None
    half = lower_inverse(factor)
    inverse = stack_product(half.mT, half)
    return stack_product(right, inverse), inverse * weight[..., None, None]


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
    weight : (K, 1, 1) the sum of the rows' weights.
    """

    parts: Parts
    blocks: PatternBlocks
    deviation: Tensor
    inverses: _Inverses
    weight: Tensor

    @classmethod
    def of(cls, parts: Parts, x: Tensor, observed: Tensor, weight: Tensor | None) -> Self:
        blocks = PatternBlocks.of(observed)
        given = blocks.observed
        deviation = (blocks.arrange(x) - parts.mean[:, None, None]) * given[:, None]
        by_block = None if weight is None else blocks.by_component(weight).sum(2)
        matrix, side, vectors = cls._problem(parts, given, deviation)
        inverses = _Inverses.of(matrix, side, vectors, by_block)
        total = inverses.log_det if by_block is None else by_block
        return cls(parts, blocks, deviation, inverses, total.sum(1)[:, None, None])

    @staticmethod
    @abstractmethod
    def _problem(parts: Parts, given: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which matrices (K, D, D) are inverted, over which side (B, D), times which vectors."""

    @abstractmethod
    def squared(self) -> Tensor:
        """Squared distances of what is observed, (K, B, h)."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """Log determinants of the covariance of what is observed, (K, B)."""

    @abstractmethod
    def expected(self) -> Tensor:
        """Deviations with their regression where they are missing, (K, B, h, D)."""

    @abstractmethod
    def dual(self) -> Tensor:
        """Deviations times the precision of what is observed, zero where missing, (K, B, h, D)."""

    @abstractmethod
    def missing_covariance(self) -> Tensor:
        """Weighted sum of the covariances of what is missing, (K, D, D)."""

    @abstractmethod
    def observed_precision(self) -> Tensor:
        """Weighted sum of the precisions of what is observed, (K, D, D)."""


class _OverMissing(Given):
    """By the submatrices of the precision over what is missing."""

    @staticmethod
    def _problem(parts: Parts, given: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return parts.precision, ~given, _times(deviation, parts.precision)

    def squared(self) -> Tensor:
        """By what is expected: an error of the regression does not matter in first order."""
        return _times(self.expected(), self.parts.whitening.mT).square().sum(3)

    def log_det(self) -> Tensor:
        return self.inverses.log_det + self.parts.log_det[:, None]

    def expected(self) -> Tensor:
        return self.deviation - self.inverses.solved

    def dual(self) -> Tensor:
        return _times(self.expected(), self.parts.precision) * self.blocks.observed[:, None]

    def missing_covariance(self) -> Tensor:
        return self.inverses.total

    def observed_precision(self) -> Tensor:
        whole = self.parts.precision
        return self.weight * whole - whole @ self.inverses.total @ whole


class _OverObserved(Given):
    """By the submatrices of the covariance over what is observed."""

    @staticmethod
    def _problem(parts: Parts, given: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return parts.covariance, given, deviation

    def squared(self) -> Tensor:
        return (self.deviation * self.inverses.solved).sum(3)

    def log_det(self) -> Tensor:
        return self.inverses.log_det

    def expected(self) -> Tensor:
        regression = _times(self.inverses.solved, self.parts.covariance)
        return torch.where(self.blocks.observed[:, None], self.deviation, regression)

    def dual(self) -> Tensor:
        return self.inverses.solved

    def missing_covariance(self) -> Tensor:
        whole = self.parts.covariance
        return self.weight * whole - whole @ self.inverses.total @ whole

    def observed_precision(self) -> Tensor:
        return self.inverses.total


def given(
    parts: Parts, x: Tensor, observed: Tensor, weight: Tensor | None = None
) -> Iterator[tuple[Tensor | slice, Given]]:
    """Rows x (n, D) by the smaller side of their patterns: which they are, Gaussians given them.

    `weight` (n, K) is what sums go by; without it there are none.
    """
    few = 2 * observed.sum(1) >= observed.shape[1]
    n_few = int(few.sum())
    if min(n_few, len(few) - n_few) * len(parts.mean) < _STACK:  # so few may go with the others
        side = _OverMissing if 2 * n_few >= len(few) else _OverObserved
        yield slice(None), side.of(parts, x, observed, weight)
        return
    for side, mine in ((_OverMissing, few), (_OverObserved, ~few)):
        rows = mine.nonzero().flatten()
        if len(rows):
            own = None if weight is None else weight[rows]
            yield rows, side.of(parts, x[rows], observed[rows], own)


class _Marginal(torch.autograd.Function):
    """Squared distances and log determinants (n, K) of what is observed, gradients written out.

    Derivatives by mean and covariance are all that is needed: the other parts follow from these.
    """

    @staticmethod
    def forward(
        ctx: Context, mean: Tensor, covariance: Tensor, parts: Parts, x: Tensor, observed: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*parts, x, observed)
        squared = x.new_empty(len(x), len(mean))
        log_det = torch.empty_like(squared)
        for rows, part in given(parts, x, observed):
            restore, like = part.blocks.restore, part.deviation[..., 0]
            squared[rows] = restore(part.squared().permute(1, 2, 0))
            log_det[rows] = restore(part.log_det()[..., None].expand_as(like).permute(1, 2, 0))
        return squared, log_det

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Context, by_squared: Tensor, by_log_det: Tensor
    ) -> tuple[Tensor, Tensor, None, Tensor, None]:
        *parts, x, observed = ctx.saved_tensors
        by_mean, by_covariance = torch.zeros_like(parts[0]), torch.zeros_like(parts[1])
        by_x = torch.zeros_like(x)
        for rows, part in given(Parts(*parts), x, observed, by_log_det):
            dual = part.dual()
            pull = part.blocks.by_component(by_squared[rows])[..., None] * dual
            by_mean -= 2.0 * pull.sum((1, 2))
            by_covariance += part.observed_precision()
            by_covariance -= pull.flatten(1, 2).mT @ dual.flatten(1, 2)
            by_x[rows] = 2.0 * part.blocks.restore(pull.sum(0))
        return by_mean, by_covariance, None, by_x, None


def marginal(parts: Parts, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances and log determinants (n, K) of what is observed of rows x (n, D)."""
    fixed = Parts(*(part.detach() for part in parts))
    return _Marginal.apply(parts.mean, parts.covariance, fixed, x, observed)
