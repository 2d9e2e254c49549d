"""Inverses of principal submatrices, over a side of each pattern of observed features."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mixtura.numerics import eliminated, log_det_lower, lower_inverse, stack_product

#: Sides are padded to multiples of this, and of more where matrices are few: a stack has overhead
#: worth that of so many small matrices.
_STEP, STACK = 2, 256
#: Features up to which nothing is gained by taking submatrices out of matrices.
WHOLE = 12
#: Sides up to which matrices are inverted in step, and how many are worth it, by their side.
_SMALL, _MANY = 20, 64


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


@dataclass(frozen=True)
class Submatrices:
    """Of D x D matrices: the principal ones over a side of each of B patterns.

    Attributes
    ----------
    mask : (B, D) the sides.
    stacks : patterns (G,) whose sides are equally large, rounded up to multiples of `step`; columns
        (G, s).
    """

    mask: Tensor
    step: int
    stacks: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, mask: Tensor, n_matrices: int) -> Submatrices:
        """Of so many matrices."""
        n_stacks = max(1, n_matrices * len(mask) // STACK)
        step = max(_STEP, math.ceil(int(mask.sum(1).max()) / n_stacks))
        stacks = list(of_equal_size(mask, step)) if mask.shape[1] > WHOLE else []
        return cls(mask, step, stacks)


def _picked(table: Tensor, place: Tensor) -> Tensor:
    """(K, ...) what stands at a place (...) of each table (K, N)."""
    return table.gather(1, place.flatten().expand(len(table), -1)).view(len(table), *place.shape)


class _Cholesky:
    """Of positive definite matrices (K, G, s, s), one by one."""

    def __init__(self, matrix: Tensor) -> None:
        self._factor = torch.linalg.cholesky_ex(matrix).L
        self.log_det = log_det_lower(self._factor)  # (K, G)

    def solve(self, right: Tensor) -> Tensor:
        """Rows (K, G, h, s) times the inverses."""
        half = torch.linalg.solve_triangular(self._factor, right.mT, upper=False)
        return torch.linalg.solve_triangular(self._factor.mT, half, upper=True).mT

    @cached_property
    def inverse(self) -> Tensor:
        half = lower_inverse(self._factor)
        return stack_product(half.mT, half)


class _Elimination:
    """The same of many small ones, all in step: no call per matrix."""

    def __init__(self, matrix: Tensor) -> None:
        self.inverse, self.log_det = eliminated(matrix)

    def solve(self, right: Tensor) -> Tensor:
        return stack_product(right, self.inverse)


def factored(matrix: Tensor) -> _Cholesky | _Elimination:
    """Positive definite matrices (K, G, s, s): `log_det`, `solve`, `inverse`."""
    size, count = matrix.shape[-1], matrix[..., 0, 0].numel()
    many = matrix.device.type == "cpu" and size <= _SMALL and count >= _MANY * size
    return _Elimination(matrix) if many else _Cholesky(matrix)


class Inverses(ABC):
    """Of principal submatrices of matrices (K, D, D), each over the side of a block.

    Attributes
    ----------
    solved : (K, B, h, D) inverse times vectors, zero beside the side.
    log_det : (K, B).
    """

    solved: Tensor
    log_det: Tensor

    @abstractmethod
    def total(self, weight: Tensor) -> Tensor:
        """(K, D, D) the sum of the inverses by weights (K, B), each in its place."""


class _OfWhole(Inverses):
    """Where matrices are small, submatrices stand in an identity, without a search."""

    def __init__(self, matrix: Tensor, which: Submatrices, vectors: Tensor) -> None:
        own = which.mask.to(matrix.dtype)
        self._both = own[:, :, None] * own[:, None]
        self._factored = factored(matrix[:, None] * self._both + torch.diag_embed(1.0 - own))
        self.solved = self._factored.solve(vectors * own[:, None])
        self.log_det = self._factored.log_det

    def total(self, weight: Tensor) -> Tensor:
        return (self._factored.inverse * self._both * weight[..., None, None]).sum(1)


class _OfParts(Inverses):
    """By stacks of submatrices of equal size."""

    def __init__(self, matrix: Tensor, which: Submatrices, vectors: Tensor) -> None:
        self._size, self._wide = matrix.shape[1], matrix.shape[1] + which.step
        wide, height = self._wide, vectors.shape[2]
        table = torch.eye(wide, dtype=matrix.dtype, device=matrix.device).repeat(len(matrix), 1, 1)
        table[:, : self._size, : self._size] = matrix
        given = torch.nn.functional.pad(vectors, (0, which.step)).flatten(1)
        solved = torch.zeros_like(given)
        self.log_det = vectors.new_zeros(vectors.shape[:2])
        slot = torch.arange(height, device=given.device)[:, None] * wide
        self._stacks = []
        for rows, columns in which.stacks:
            inner = columns[:, :, None] * wide + columns[:, None]  # (G, s, s)
            at = (rows * height * wide)[:, None, None] + slot + columns[:, None]  # (G, h, s)
            part = factored(_picked(table.flatten(1), inner))
            self.log_det[:, rows] = part.log_det
            answer = part.solve(_picked(given, at))
            solved.scatter_(1, at.flatten().expand(len(given), -1), answer.reshape(len(given), -1))
            self._stacks.append((rows, inner, part))
        self.solved = solved.view(*vectors.shape[:3], wide)[..., : self._size]

    def total(self, weight: Tensor) -> Tensor:
        found = weight.new_zeros(len(weight), self._wide**2)
        for rows, inner, part in self._stacks:
            share = part.inverse * weight[:, rows, None, None]
            found.scatter_add_(1, inner.flatten().expand(len(weight), -1), share.flatten(1))
        return found.view(-1, self._wide, self._wide)[:, : self._size, : self._size]


def inverted(matrix: Tensor, which: Submatrices, vectors: Tensor) -> Inverses:
    """Of submatrices of matrices (K, D, D), and times vectors (K, B, h, D)."""
    kind = _OfWhole if matrix.shape[1] <= WHOLE else _OfParts
    return kind(matrix, which, vectors)
