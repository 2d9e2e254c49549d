"""Gaussians of few rows in NumPy, and their derivatives. Arrays over rows have these last.

They are those of `densities`, as functions of free parameters: PyTorch's overhead would be most of
the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from mixtura.constants import LOG_2PI
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.patterns import Holes
from mixtura.numerics import invert_in_step, tri_pack_index
from mixtura.solvers.base import SpreadPrior

Arrays = dict[str, np.ndarray]


class Imagined:
    """The rows of a prior, none without one; their spread is (..., D) or (..., D, D)."""

    def __init__(self, prior: SpreadPrior | None) -> None:
        self.rows = 0.0 if prior is None else prior.rows
        self.spread = np.zeros(1) if prior is None else prior.reference.numpy()


class Kind(ABC):
    """K densities of n rows, as functions of their free parameters by name."""

    @abstractmethod
    def log_prob(self, free: Arrays) -> np.ndarray:
        """(K, n) log densities."""

    @abstractmethod
    def slope(self, occupancy: np.ndarray) -> Arrays:
        """Derivatives of log densities, weighted by occupancies (K, n), imagined rows included."""

    @abstractmethod
    def log_prior(self) -> np.ndarray:
        """(K,) log densities of the imagined rows, up to a constant."""


class Gaussians(Kind):
    """Gaussians; of rows with holes x is zero where they are."""

    def __init__(self, x: np.ndarray, imagined: Imagined) -> None:
        self.x, self.imagined = x, imagined
        self.sizes: int | np.ndarray = x.shape[1]  # features that are observed

    @abstractmethod
    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances (K, n), and log densities at the means (K, n or 1)."""

    @abstractmethod
    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        """Derivatives of minus half of distances and log determinants, imagined rows included.

        Of the former by shares (K, n), of the latter by occupancies (K, n).
        """

    def log_prob(self, free: Arrays) -> np.ndarray:
        squared, peak = self.distances(free)
        return peak - 0.5 * squared

    def slope(self, occupancy: np.ndarray) -> Arrays:
        return self.slope_of(occupancy, occupancy)


class LowRank(Gaussians):
    """Covariance = diagonal + low rank, of rank zero where features are independent."""

    def __init__(
        self, density: DiagonalGaussian | LowRankGaussian, x: np.ndarray, imagined: Imagined
    ) -> None:
        super().__init__(x, imagined)
        self._floor, self._with_squares = density.floor, np.concatenate([x, x * x], 1)
        self._name, self._eye = "raw_variance", np.eye(0)
        if isinstance(density, LowRankGaussian):
            self._name, self._eye = "raw_diagonal", np.eye(density.rank)

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        mean, size = free["mean"], self.x.shape[1]
        diagonal = self._floor + np.logaddexp(0.0, free[self._name])
        weight = 1.0 / diagonal
        moment, log_det = weight * mean, np.log(diagonal).sum(1)
        squared = np.concatenate([-2.0 * moment, weight], 1) @ self._with_squares.T
        squared += (moment * mean).sum(1)[:, None]
        if len(self._eye):
            loading = free["loading"]
            scaled = loading * weight[:, None]
            gram = scaled @ loading.swapaxes(1, 2) + self._eye
            inverse = np.linalg.inv(gram)
            projected = (scaled.reshape(-1, size) @ self.x.T).reshape(*scaled.shape[:2], -1)
            projected -= scaled @ mean[..., None]
            latent = inverse @ projected
            squared -= (projected * latent).sum(1)
            log_det = log_det + np.linalg.slogdet(gram)[1]
            self._factors = loading, scaled, inverse, latent
        self._diagonal, self._mean, self._weight = diagonal, mean, weight
        return squared, -0.5 * (log_det + size * LOG_2PI)[:, None]

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        rows, mean, weight, mass = rows.sum(1), self._mean, self._weight, share.sum(1)[:, None]
        sums, size = share @ self._with_squares, self.x.shape[1]
        first, second = sums[:, :size], sums[:, size:]
        away = first - mass * mean
        by_mean = weight * away
        by_weight = (rows[:, None] + self.imagined.rows) / weight
        by_weight -= second - mean * (first + away) + self.imagined.rows * self.imagined.spread
        by_weight *= 0.5
        found = {}
        if len(self._eye):
            loading, scaled, inverse, latent = self._factors
            pull = share[:, None] * latent
            total = pull.sum(2)[..., None]
            by_gram = -0.5 * (pull @ latent.swapaxes(1, 2) + rows[:, None, None] * inverse)
            by_factors = by_gram @ loading
            by_scaled = (pull.reshape(-1, pull.shape[2]) @ self.x).reshape(loading.shape)
            by_scaled += by_factors - total * mean[:, None]
            by_weight += (by_scaled * loading).sum(1)
            by_mean = by_mean - (total.swapaxes(1, 2) @ scaled)[:, 0]
            found["loading"] = (by_scaled + by_factors) * weight[:, None]
        return {"mean": by_mean, self._name: self._by_raw(by_weight), **found}

    def _by_raw(self, by_weight: np.ndarray) -> np.ndarray:
        """Derivatives by free parameters of those by the inverse of the diagonal."""
        return by_weight * np.expm1(self._floor - self._diagonal) * self._weight**2

    def log_prior(self) -> np.ndarray:
        spread = np.log(self._diagonal) + self.imagined.spread * self._weight
        return -0.5 * self.imagined.rows * spread.sum(1)


class Patterns:
    """Which entries of rows are observed: `seen` (n, D), and the inverses of a matrix of each."""

    def __init__(self, observed: torch.Tensor) -> None:
        patterns, self.place = Holes(observed).distinct
        self.seen, self.patterns = (each.double().numpy() for each in (observed, patterns))

    def inverted(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of (R, R, K, P), one per pattern: inverses (R, R, K, P); log determinants (K, n)."""
        matrix = np.ascontiguousarray(matrix)
        log_det = invert_in_step(torch.from_numpy(matrix.reshape(*matrix.shape[:2], -1)))
        return matrix, log_det.numpy().reshape(matrix.shape[2:])[:, self.place]

    def times(self, matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """(R, R, K, P) times the rows (R, K, n) that have the pattern."""
        return np.einsum("ijkn,jkn->ikn", matrix[..., self.place], vectors)


class LowRankOfHoles(LowRank):
    """The same of rows with holes: a matrix of the rank for each pattern of them."""

    def __init__(
        self,
        density: DiagonalGaussian | LowRankGaussian,
        x: np.ndarray,
        imagined: Imagined,
        holes: Patterns,
    ) -> None:
        super().__init__(density, x, imagined)
        self._holes, self.sizes = holes, holes.seen.sum(1)
        self._rows = np.concatenate([x, holes.seen, x * x], 1)
        pack = tri_pack_index(len(self._eye), torch.device("cpu"))
        self._left, self._right, self._whole = (each.numpy() for each in pack)

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        mean, size = free["mean"], self.x.shape[1]
        diagonal = self._floor + np.logaddexp(0.0, free[self._name])
        weight = 1.0 / diagonal
        moment, log_det = weight * mean, np.log(diagonal) @ self._holes.seen.T
        squared = np.concatenate([-2.0 * moment, moment * mean, weight], 1) @ self._rows.T
        if len(self._eye):
            loading = np.ascontiguousarray(free["loading"].swapaxes(0, 1))  # (R, K, D)
            scaled = loading * weight
            packed = loading[self._left] * scaled[self._right]
            gram = packed.reshape(-1, size) @ self._holes.patterns.T
            gram = gram.reshape(*packed.shape[:2], -1)[self._whole]  # (R, R, K, P)
            gram[*np.diag_indices(len(gram))] += 1.0
            inverse, inner = self._holes.inverted(gram)
            both = np.concatenate([scaled, -scaled * mean], 2).reshape(-1, 2 * size)
            projected = (both @ self._rows[:, : 2 * size].T).reshape(*scaled.shape[:2], -1)
            latent = self._holes.times(inverse, projected)
            squared -= (projected * latent).sum(0)
            log_det += inner
            self._factors = loading, scaled, inverse, latent
        self._diagonal, self._mean, self._weight = diagonal, mean, weight
        return squared, -0.5 * (log_det + self.sizes * LOG_2PI)

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        mean, weight, size = self._mean, self._weight, self.x.shape[1]
        seen, imagined = self._holes.seen, self.imagined
        first, mass, second = np.split(share @ self._rows, 3, 1)
        away = first - mass * mean
        by_mean = weight * away
        by_weight = (rows @ seen + imagined.rows) / weight
        by_weight -= second - mean * (first + away) + imagined.rows * imagined.spread
        by_weight *= 0.5
        found = {}
        if len(self._eye):
            loading, scaled, inverse, latent = self._factors
            pull = share * latent
            by_gram = inverse[self._left, self._right][..., self._holes.place] * rows
            by_gram += pull[self._left] * latent[self._right]
            by_gram = (by_gram.reshape(-1, len(seen)) @ seen).reshape(*by_gram.shape[:2], -1)
            by_factors = -0.5 * np.einsum("ijkd,jkd->ikd", by_gram[self._whole], loading)
            sums = pull.reshape(-1, len(seen)) @ self._rows[:, : 2 * size]
            pulled, total = np.split(sums.reshape(*pull.shape[:2], -1), 2, 2)
            by_scaled = pulled - mean * total + by_factors
            by_weight += (by_scaled * loading).sum(0)
            by_mean -= (scaled * total).sum(0)
            found["loading"] = ((by_scaled + by_factors) * weight).swapaxes(0, 1)
        return {"mean": by_mean, self._name: self._by_raw(by_weight), **found}


class FullCovariance(Gaussians):
    """Any covariance, by its Cholesky factor."""

    def __init__(self, density: FullGaussian, x: np.ndarray, imagined: Imagined) -> None:
        super().__init__(x, imagined)
        self._floor, self._eye = density._smallest_pivot, np.eye(x.shape[1])

    def _factor(self, free: Arrays) -> np.ndarray:
        """(K, D, D); what whitens is kept."""
        self._pivots = self._floor + np.logaddexp(0.0, free["raw_diagonal"])
        factor = np.tril(free["below"], -1) + self._pivots[..., None] * self._eye
        self._half = np.linalg.inv(factor)
        return factor

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        size = self.x.shape[1]
        self._factor(free)
        half = self._half
        away = (half.reshape(-1, size) @ self.x.T).reshape(*half.shape[:2], -1)
        away -= half @ free["mean"][..., None]
        self._away, self._log_det = away, 2.0 * np.log(self._pivots).sum(1)
        return (away * away).sum(1), -0.5 * (self._log_det + size * LOG_2PI)[:, None]

    def _imagined_spread(self) -> np.ndarray:
        """What whitening makes of the spread of imagined rows, (K, D, D)."""
        return self._half @ self.imagined.spread @ self._half.swapaxes(1, 2)

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        back, weighted = self._half.swapaxes(1, 2), share[:, None] * self._away
        scatter = weighted @ self._away.swapaxes(1, 2)
        by_factor = back @ (scatter - rows.sum(1)[:, None, None] * self._eye)
        return self._by_free((back @ weighted.sum(2)[..., None])[..., 0], by_factor)

    def _by_free(self, by_mean: np.ndarray, by_factor: np.ndarray) -> Arrays:
        """Derivatives by free parameters, those of imagined rows included."""
        if self.imagined.rows:
            beyond = self.imagined.rows * (self._imagined_spread() - self._eye)
            by_factor = by_factor + self._half.swapaxes(1, 2) @ beyond
        rate = -np.expm1(self._floor - self._pivots)
        return {
            "mean": by_mean,
            "below": np.tril(by_factor, -1),
            "raw_diagonal": np.einsum("kdd->kd", by_factor) * rate,
        }

    def log_prior(self) -> np.ndarray:
        if not self.imagined.rows:
            return np.zeros(len(self._log_det))
        trace = np.einsum("kdd->k", self._imagined_spread())
        return -0.5 * self.imagined.rows * (self._log_det + trace)


class FullOfHoles(FullCovariance):
    """The same of rows with holes: a covariance for each pattern, in an identity.

    Less exact than PyTorch's for conditions of a covariance above 1e7: errors grow with these and
    with squared distances; the worst of a log density was 2e-6 at 3e7.
    """

    def __init__(
        self, density: FullGaussian, x: np.ndarray, imagined: Imagined, holes: Patterns
    ) -> None:
        super().__init__(density, x, imagined)
        self._holes, self.sizes = holes, holes.seen.sum(1)
        own = holes.patterns.T
        self._both, self._rest = (own[:, None] * own)[:, :, None], 1.0 - own[:, None]

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        self._root = factor = self._factor(free)
        covariance = (factor @ factor.swapaxes(1, 2)).transpose(1, 2, 0)[..., None] * self._both
        covariance[*np.diag_indices(len(covariance))] += self._rest
        precision, log_det = self._holes.inverted(covariance)
        precision *= self._both
        seen = self._holes.seen.T[:, None]  # (D, 1, n)
        away = self.x.T[:, None] - free["mean"].T[..., None] * seen
        dual = self._holes.times(precision, away)
        self._log_det = 2.0 * np.log(self._pivots).sum(1)
        self._duals = precision, dual
        return (away * dual).sum(0), -0.5 * (log_det + self.sizes * LOG_2PI)

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        precision, dual = self._duals
        pull = (share * dual).swapaxes(0, 1)  # (K, D, n)
        if not isinstance(self._holes.place, slice):
            member = np.eye(precision.shape[3])[self._holes.place]
            rows = rows @ member
        scatter = pull @ dual.transpose(1, 2, 0) - (precision * rows).sum(3).transpose(2, 0, 1)
        return self._by_free(pull.sum(2), scatter @ self._root)
