"""Gaussians and t distributions in NumPy, for prediction: twins of those of `mixtura.densities`.

Their formulas stand there. What differs is how rows with holes are computed: what is missing stands
in an identity, and one Cholesky factorization per row and component, bordered by the row itself,
gives its squared distance and the log determinant. Rows that share their holes share inverses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from mixtura.constants import LOG_2PI
from mixtura.runtime.batch import Batch
from mixtura.runtime.files import kind

#: Components by their numbers (...,), or all; the pattern of each row (n,), or None for its own.
Component = np.ndarray | slice
Place = np.ndarray | None
#: The corner of a bordered matrix: larger than any squared distance.
_CORNER = 1e300


def _bordered(matrix: np.ndarray, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v^T A^-1 v and log det A, (...), of A (..., d, d) and v (..., d): one factorization."""
    size = vector.shape[-1]
    whole = np.empty((*vector.shape[:-1], size + 1, size + 1))
    whole[..., :size, :size], whole[..., size, :size] = matrix, vector
    whole[..., size, size] = _CORNER
    factor = np.linalg.cholesky(whole)
    half = factor[..., size, :size]
    pivots = factor.diagonal(0, -2, -1)[..., :size]
    return (half * half).sum(-1), 2.0 * np.log(pivots).sum(-1)


def _quadratic(
    matrix: np.ndarray, vector: np.ndarray, place: Place
) -> tuple[np.ndarray, np.ndarray]:
    """The same (n, K), of v (n, K, d) and A (P, K, d, d), those of each row by its place (n,)."""
    if place is None:
        return _bordered(matrix, vector)
    half = np.linalg.inv(np.linalg.cholesky(matrix))
    log_det = -2.0 * np.log(half.diagonal(0, 2, 3)).sum(2)
    return (_times(half, vector, place) ** 2).sum(2), log_det[place]


def _times(matrix: np.ndarray, vector: np.ndarray, place: Place) -> np.ndarray:
    """(n, K, d) matrices (P, K, d, d) times the vectors (n, K, d) of the rows that have them."""
    if place is None:
        return (matrix @ vector[..., None])[..., 0]
    order = place.argsort(kind="stable")
    edges = np.searchsorted(place[order], np.arange(len(matrix) + 1))
    stacks, found = vector[order].transpose(1, 2, 0), np.empty_like(vector)
    for number, each in enumerate(matrix):
        mine = slice(edges[number], edges[number + 1])
        found[order[mine]] = (each @ stacks[..., mine]).transpose(2, 0, 1)
    return found


def _summed(by_moment: np.ndarray, log_scale: np.ndarray) -> tuple[np.ndarray, ...]:
    """Tables (3 D, K) and (D, K) of complete rows: what presences are multiplied by is summed."""
    size = len(log_scale)
    return by_moment[: 2 * size].copy(), by_moment[2 * size :].sum(0), log_scale.sum(0)


@dataclass(frozen=True)
class Gaussian(ABC):
    """What all forms of covariances share; a form writes `distances`, and `regress`."""

    mean: np.ndarray
    floor: float

    @property
    def n_components(self) -> int:
        return len(self.mean)

    @property
    def row_cost(self) -> int:
        return 4 * self.mean.size

    @abstractmethod
    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of what is observed, and log det(2 pi covariance) of it, (n, K).

        The latter is (K,) where nothing is missing.
        """

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: Component, place: Place = None
    ) -> np.ndarray:
        """Expected deviations (..., D) of whole rows, given those (zero elsewhere) that are seen.

        Leading dimensions end with those that `component` has. Rows that share what is seen have it
        at their `place` (n,). None are expected where features are independent.
        """
        return np.zeros_like(away)

    def log_prob(self, batch: Batch) -> np.ndarray:
        squared, log_det = self.distances(batch)
        return -0.5 * (squared + log_det)

    def expected(self, batch: Batch) -> np.ndarray:
        """(n, K, D) conditional means, where rows have holes."""
        away = np.where(batch.seen[:, None], batch.x[:, None] - self.mean, 0.0)
        patterns, place = batch.patterns
        return self.mean + self.regress(away, patterns[:, None], slice(None), place)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        filled = np.einsum("nk,nkd->nd", share, self.expected(batch))
        return np.where(batch.seen, batch.x, filled)

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        away = np.where(batch.seen, batch.x - drawn, 0.0)
        return np.where(batch.seen, batch.x, drawn + self.regress(away, batch.seen, component))


@kind
@dataclass(frozen=True)
class DiagonalGaussian(Gaussian):
    variance: np.ndarray
    tied: bool = False

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """What squares, values and presences (3 D,) are multiplied by; log(2 pi variance)."""
        precision = 1.0 / self.variance
        parts = precision, -2.0 * self.mean * precision, self.mean**2 * precision
        return np.concatenate(parts, 1).T.copy(), np.log(self.variance).T + LOG_2PI

    @cached_property
    def _whole(self) -> tuple[np.ndarray, ...]:
        """The same of complete rows: (2 D, K), and sums over presences (K,) each."""
        return _summed(*self.table)

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        if batch.observed is None:
            table, offset, log_det = self._whole
            return batch.moments @ table + offset, log_det
        (table, log_variance), values = self.table, batch.moments
        return values @ table, values[:, -len(log_variance) :] @ log_variance


@kind
@dataclass(frozen=True)
class FullGaussian(Gaussian):
    factor: np.ndarray

    @property
    def row_cost(self) -> int:
        return 4 * self.factor.size

    @cached_property
    def covariance(self) -> np.ndarray:
        return self.factor @ self.factor.swapaxes(1, 2)

    @cached_property
    def _whitening(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What whitens rows (D, K D), minus the whitened means (K D,), log determinants (K,)."""
        inverse = np.linalg.inv(self.factor)
        offset = -(inverse @ self.mean[..., None]).ravel()
        log_det = (2.0 * np.log(self.factor.diagonal(0, 1, 2)) + LOG_2PI).sum(1)
        return inverse.reshape(-1, inverse.shape[2]).T.copy(), offset, log_det

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        if batch.observed is None:
            weight, offset, log_det = self._whitening
            white = (batch.x @ weight + offset).reshape(len(batch), *self.mean.shape)
            return np.einsum("nkd,nkd->nk", white, white), log_det
        seen, (patterns, place) = batch.observed[:, None], batch.patterns
        away = (batch.x[:, None] - self.mean) * seen
        squared, log_det = _quadratic(self._masked(patterns[:, None], slice(None)), away, place)
        return squared, log_det + LOG_2PI * seen.sum(2)

    def _masked(self, seen: np.ndarray, component: Component) -> np.ndarray:
        """Covariances of what is seen (..., D), in an identity."""
        both = seen[..., None] & seen[..., None, :]
        return np.where(both, self.covariance[component], np.eye(seen.shape[-1]))

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: Component, place: Place = None
    ) -> np.ndarray:
        masked, covariance = self._masked(seen, component), self.covariance[component]
        if place is None:
            return (covariance @ np.linalg.solve(masked, away[..., None]))[..., 0]
        return _times(np.linalg.solve(masked, covariance[None]).swapaxes(-1, -2), away, place)


@dataclass(frozen=True)
class LowRankForm(Gaussian):
    """Diagonal plus low rank: all that depends on a pattern is B (R, R), a sum over one side."""

    diagonal: np.ndarray
    loading: np.ndarray

    #: Whether the covariance has this form, and B sums over what is observed; or the precision.
    of_covariance: ClassVar[bool]

    @property
    def row_cost(self) -> int:
        rank = self.loading.shape[2]
        return 4 * (self.loading.size + len(self.mean) * (rank + 1) ** 2)

    @cached_property
    def _scaled(self) -> np.ndarray:
        return self.loading / self.diagonal[..., None]

    @cached_property
    def grams(self) -> np.ndarray:
        """(D, K, R, R) what each feature adds to B."""
        grams = self.loading[..., :, None] * self._scaled[..., None, :]
        return grams.transpose(1, 0, 2, 3).copy()

    @cached_property
    def table(self) -> tuple[np.ndarray, ...]:
        """Squares, values and presences to weighted squares (3 D, K); values and presences to u,
        (2 D, K R); log(2 pi variance) but for the low rank (D, K)."""
        weight = 1.0 / self.diagonal if self.of_covariance else self.diagonal
        projection = self._scaled if self.of_covariance else self.loading
        squares = weight, -2.0 * weight * self.mean, weight * self.mean**2
        both = np.concatenate([projection, -projection * self.mean[..., None]], 1)
        by_value = both.transpose(1, 0, 2).reshape(2 * self.mean.shape[1], -1)
        log_scale = np.log(self.diagonal if self.of_covariance else 1.0 / self.diagonal)
        return np.concatenate(squares, 1).T.copy(), by_value, log_scale.T + LOG_2PI

    def _gram(self, seen: np.ndarray) -> np.ndarray:
        """(n, K, R, R) B of rows of which this is seen (n, D)."""
        side = (seen if self.of_covariance else ~seen).astype(np.float64)
        shape = self.grams.shape
        summed = (side @ self.grams.reshape(shape[0], -1)).reshape(-1, *shape[1:])
        return summed + np.eye(shape[2])

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        shape, values = (len(batch), len(self.mean), -1), batch.moments
        if batch.observed is None:
            by_square, offset, by_value, shift, log_det = self._whole
            latent = (batch.x @ by_value + shift).reshape(shape)
            inner, squares = np.einsum("nkr,nkr->nk", latent, latent), values @ by_square + offset
        else:
            by_square, by_value, log_scale = self.table
            latent, (patterns, place) = values[:, -len(by_value) :] @ by_value, batch.patterns
            inner, log_gram = _quadratic(self._gram(patterns), latent.reshape(shape), place)
            log_det = values[:, -len(log_scale) :] @ log_scale + log_gram - self.log_gram_left
            squares = values @ by_square
        return squares - inner if self.of_covariance else squares + inner, log_det

    @cached_property
    def _whole(self) -> tuple[np.ndarray, ...]:
        """Of complete rows: squares and values to weighted squares (2 D, K), sums over presences
        (K,), values to whitened u (D, K R), theirs (K R,), log determinants (K,)."""
        (by_square, by_value, log_scale), (size, count, rank, _) = self.table, self.grams.shape
        factor = np.linalg.cholesky(self._gram(np.ones((1, size), dtype=bool))[0])
        half = np.linalg.inv(factor).swapaxes(1, 2)
        log_gram = 2.0 * np.log(factor.diagonal(0, 1, 2)).sum(1) - self.log_gram_left
        whitened = by_value.reshape(2, size, count, rank).transpose(0, 2, 1, 3) @ half
        by_latent = whitened.transpose(0, 2, 1, 3).reshape(2 * size, -1)
        by_square, offset, log_det = _summed(by_square, log_scale)
        return by_square, offset, by_latent[:size], by_latent[size:].sum(0), log_det + log_gram

    @cached_property
    def log_gram_left(self) -> np.ndarray | float:
        """(K,) what log determinants of precisions have too much: that of B of nothing."""
        if self.of_covariance:
            return 0.0
        every = self.grams.sum(0) + np.eye(self.grams.shape[2])
        return _bordered(every, np.zeros(every.shape[:2]))[1]

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: Component, place: Place = None
    ) -> np.ndarray:
        scaled, loading = self._scaled[component], self.loading[component]
        side = (seen if self.of_covariance else ~seen)[..., None]
        gram = loading.swapaxes(-1, -2) @ (scaled * side) + np.eye(loading.shape[-1])
        projection, response = (scaled, loading) if self.of_covariance else (loading, -scaled)
        latent = projection.swapaxes(-1, -2) @ away[..., None]
        if place is None:
            return (response @ np.linalg.solve(gram, latent))[..., 0]
        return (response @ _times(np.linalg.inv(gram), latent[..., 0], place)[..., None])[..., 0]


@kind
@dataclass(frozen=True)
class LowRankGaussian(LowRankForm):
    of_covariance = True


@kind
@dataclass(frozen=True)
class LowRankPrecision(LowRankForm):
    of_covariance = False


@kind
@dataclass(frozen=True)
class StudentT:
    scale: Gaussian
    dof: np.ndarray

    @property
    def n_components(self) -> int:
        return len(self.dof)

    @property
    def row_cost(self) -> int:
        return self.scale.row_cost

    @cached_property
    def constants(self) -> np.ndarray:
        """(D + 1, K) what the log density has more than a Gaussian's, by how much is observed."""
        return np.array(
            [
                [
                    math.lgamma(0.5 * (nu + size))
                    - math.lgamma(0.5 * nu)
                    - 0.5 * size * math.log(0.5 * nu)
                    for nu in self.dof.tolist()
                ]
                for size in range(self.scale.mean.shape[1] + 1)
            ]
        )

    def log_prob(self, batch: Batch) -> np.ndarray:
        squared, log_det = self.scale.distances(batch)
        size = batch.seen.sum(1)
        tail = np.log1p(squared.clip(0.0) / self.dof) * (self.dof + size[:, None])
        return self.constants[size] - 0.5 * (log_det + tail)

    def expected(self, batch: Batch) -> np.ndarray:
        return self.scale.expected(batch)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        return self.scale.fill(batch, share)

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        other, each = Batch(np.where(batch.seen, drawn, 0.0), batch.observed), np.arange(len(batch))
        reach, own = (
            (self.dof + self.scale.distances(rows)[0].clip(0.0))[each, component, None]
            for rows in (batch, other)
        )
        mean = self.scale.mean[component]
        around, mine = (
            mean
            + self.scale.regress(np.where(batch.seen, rows.x - mean, 0.0), batch.seen, component)
            for rows in (batch, other)
        )
        moved = around + np.sqrt(reach / own) * (drawn - mine)
        return np.where(batch.seen, batch.x, moved)
