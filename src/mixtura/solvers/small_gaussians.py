"""Gaussians of few rows in NumPy, derivatives and steps of EM. Arrays over rows have these last.

They are those of `densities`, and named as there: PyTorch's overhead would be most of the time. By
Fisher's identity, a step of EM needs little more than derivatives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import torch

from mixtura.constants import LOG_2PI
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.patterns import Holes
from mixtura.numerics import (
    floor_spectrum,
    inverses,
    invert_few,
    is_positive_definite,
    tri_pack_index,
)
from mixtura.solvers.base import SpreadPrior

Arrays = dict[str, np.ndarray]


class Imagined:
    """The rows of a prior, none without one; their spread is (..., D) or (..., D, D)."""

    def __init__(self, prior: SpreadPrior | None) -> None:
        self.rows = 0.0 if prior is None else prior.rows
        self.spread = np.zeros(1) if prior is None else prior.reference.numpy()


class Kind(ABC):
    """K densities of n rows, as functions of their parameters by name."""

    @abstractmethod
    def natural(self, free: Arrays) -> Arrays:
        """The parameters, named as the density's tensors, of its free ones."""

    @abstractmethod
    def log_prob(self, named: Arrays) -> np.ndarray:
        """(K, n) log densities."""

    @abstractmethod
    def slope(self, occupancy: np.ndarray) -> Arrays:
        """Derivatives by free parameters of log densities, weighted by occupancies (K, n).

        Imagined rows are included. The parameters are those that `log_prob` was asked about.
        """

    @abstractmethod
    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """Parameters after a step of EM, likewise, and whether each component's are valid (K,)."""

    @abstractmethod
    def log_prior(self) -> np.ndarray:
        """(K,) log densities of the imagined rows, up to a constant."""

    @abstractmethod
    def some(self, rows: np.ndarray) -> Self:
        """The same of the rows at some places (m,)."""


class Gaussians(Kind):
    """Gaussians; of rows with holes x is zero where they are."""

    def __init__(self, x: np.ndarray, imagined: Imagined) -> None:
        self.x, self.imagined = x, imagined
        self.sizes: int | np.ndarray = x.shape[1]  # features that are observed

    @abstractmethod
    def distances(self, named: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances (K, n), and log densities at the means (K, n or 1)."""

    @abstractmethod
    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        """Derivatives of minus half of distances and log determinants, imagined rows included.

        Of the former by shares (K, n), of the latter by occupancies (K, n).
        """

    @abstractmethod
    def maximized_of(self, share: np.ndarray, rows: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """What `maximized` gives, by the same."""

    def log_prob(self, named: Arrays) -> np.ndarray:
        squared, peak = self.distances(named)
        return peak - 0.5 * squared

    def slope(self, occupancy: np.ndarray) -> Arrays:
        return self.slope_of(occupancy, occupancy)

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        return self.maximized_of(occupancy, occupancy)

    def some(self, rows: np.ndarray) -> Self:
        part = copy(self)
        part.x = self.x[rows]
        return part


class Expected(NamedTuple):
    """What rows tell of a regression on R latent factors and a constant.

    By how much they differ from what it expects, times the factors (K, R, D) and times one (K, D);
    squares of what it leaves (K, D); second (K, R, R) and first (K, R) moments of the factors.
    """

    by_factors: np.ndarray
    by_one: np.ndarray
    residual: np.ndarray
    second: np.ndarray
    first: np.ndarray


class LowRank(Gaussians):
    """Covariance = diagonal + low rank, of rank zero where features are independent."""

    def __init__(
        self, density: DiagonalGaussian | LowRankGaussian, x: np.ndarray, imagined: Imagined
    ) -> None:
        super().__init__(x, imagined)
        self._floor, self._with_squares = density.floor, np.concatenate([x, x * x], 1)
        self._name, self._eye = "variance", np.eye(0)
        if isinstance(density, LowRankGaussian):
            self._name, self._eye = "diagonal", np.eye(density.rank)

    def natural(self, free: Arrays) -> Arrays:
        diagonal = self._floor + np.logaddexp(0.0, free[f"raw_{self._name}"])
        found = {"mean": free["mean"], self._name: diagonal}
        return found | {"loading": free["loading"].swapaxes(1, 2)} if len(self._eye) else found

    def _loading(self, named: Arrays) -> np.ndarray:
        """(K, R, D)."""
        mean = named["mean"]
        return named["loading"].swapaxes(1, 2) if len(self._eye) else mean[:, None][:, :0]

    def distances(self, named: Arrays) -> tuple[np.ndarray, np.ndarray]:
        mean, size, diagonal = named["mean"], self.x.shape[1], named[self._name]
        weight, loading = 1.0 / diagonal, self._loading(named)
        moment, log_det = weight * mean, np.log(diagonal).sum(1)
        squared = np.concatenate([-2.0 * moment, weight], 1) @ self._with_squares.T
        squared += (moment * mean).sum(1)[:, None]
        if len(self._eye):
            scaled = loading * weight[:, None]
            gram = scaled @ loading.swapaxes(1, 2) + self._eye
            inverse = inverses(gram)
            projected = (scaled.reshape(-1, size) @ self.x.T).reshape(*scaled.shape[:2], -1)
            projected -= scaled @ mean[..., None]
            latent = inverse @ projected
            squared -= (projected * latent).sum(1)
            log_det = log_det + np.linalg.slogdet(gram)[1]
            self._latent = inverse, latent
        self._parameters = mean, diagonal, loading
        return squared, -0.5 * (log_det + size * LOG_2PI)[:, None]

    def _expected(self, share: np.ndarray, rows: np.ndarray) -> Expected:
        (mean, _, loading), size = self._parameters, self.x.shape[1]
        sums = share @ self._with_squares
        first, second = sums[:, :size], sums[:, size:]
        by_one = first - share.sum(1)[:, None] * mean
        if not len(self._eye):
            none = np.zeros((len(mean), 0, 0))
            return Expected(loading, by_one, second - mean * (first + by_one), none, none.sum(2))
        inverse, latent = self._latent
        pull = share[:, None] * latent
        total = pull.sum(2)[..., None]
        squares = pull @ latent.swapaxes(1, 2) + rows.sum(1)[:, None, None] * inverse
        cross = (pull.reshape(-1, pull.shape[2]) @ self.x).reshape(loading.shape)
        by_factors = cross - squares @ loading - total * mean[:, None]
        by_one -= (loading * total).sum(1)
        residual = second - mean * (first + by_one) - (loading * (cross + by_factors)).sum(1)
        return Expected(by_factors, by_one, residual, squares, total[..., 0])

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        found, imagined, diagonal = self._expected(share, rows), self.imagined, self._parameters[1]
        by_diagonal = (found.residual + imagined.rows * imagined.spread) / diagonal
        by_diagonal -= (rows.sum(1) + imagined.rows)[:, None]
        by_diagonal *= -0.5 * np.expm1(self._floor - diagonal) / diagonal
        by_loading = {"loading": found.by_factors / diagonal[:, None]} if len(self._eye) else {}
        by_mean = found.by_one / diagonal
        return {"mean": by_mean, f"raw_{self._name}": by_diagonal, **by_loading}

    def maximized_of(self, share: np.ndarray, rows: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """The regression takes a step to where nothing differs from what it expects."""
        (mean, _, loading), imagined = self._parameters, self.imagined
        found, mass = self._expected(share, rows), share.sum(1)[:, None]
        away = np.divide(found.by_one, mass, where=mass > 0.0, out=np.zeros_like(mean))
        short = np.concatenate(
            [found.by_factors, (found.by_one + imagined.rows * away)[:, None]], 1
        )
        moments = np.empty((len(mean), *[len(self._eye) + 1] * 2))
        moments[:, :-1, :-1] = found.second + imagined.rows * self._eye
        moments[:, :-1, -1] = moments[:, -1, :-1] = found.first
        moments[:, -1, -1] = mass[:, 0] + imagined.rows
        scale = moments[:, -1, -1][:, None, None]
        valid = (scale[:, 0, 0] > 0.0) & np.isfinite(moments).all((1, 2))
        moments = np.where(valid[:, None, None], moments / scale, np.eye(len(self._eye) + 1))
        step = inverses(moments) @ (short / scale)
        residual = found.residual + imagined.rows * (imagined.spread + away**2)
        residual -= (step * short).sum(1)
        diagonal = residual / (rows.sum(1) + imagined.rows)[:, None]
        valid &= (diagonal > -0.5 * self._floor).all(1)
        new = {"mean": mean + step[:, -1], self._name: np.maximum(diagonal, self._floor)}
        if len(self._eye):
            new["loading"] = (loading + step[:, :-1]).swapaxes(1, 2)
        return new, valid

    def log_prior(self) -> np.ndarray:
        diagonal = self._parameters[1]
        spread = np.log(diagonal) + self.imagined.spread / diagonal
        return -0.5 * self.imagined.rows * spread.sum(1)

    def some(self, rows: np.ndarray) -> Self:
        part = super().some(rows)
        part._with_squares = self._with_squares[rows]
        return part


class Patterns:
    """Which entries of rows are observed: `seen` (n, D), and the inverses of a matrix of each.

    Features that are missing together, as indicators are, share their sums.
    """

    def __init__(self, observed: torch.Tensor) -> None:
        found = Holes(observed)
        patterns, place = found.distinct
        self.place = place if isinstance(place, slice) else place.numpy()
        self.seen, self.patterns = (each.double().numpy() for each in (observed, patterns))
        columns, self._column = (each.numpy() for each in found.columns)
        self._own = columns.astype(float)  # (n, U)
        self._order = self._column.argsort(kind="stable")
        _, self._first = np.unique(self._column[self._order], return_index=True)
        self._of_pattern = self.patterns[:, self._order[self._first]].T

    def some(self, rows: np.ndarray) -> Patterns:
        """The same of the rows at some places (m,)."""
        part, which = copy(self), rows
        if not isinstance(self.place, slice):
            which, part.place = np.unique(self.place[rows], return_inverse=True)
        part.seen, part._own = self.seen[rows], self._own[rows]
        part.patterns, part._of_pattern = self.patterns[which], self._of_pattern[:, which]
        return part

    def over_observed(self, values: np.ndarray) -> np.ndarray:
        """(m, D) to (m, P): sums over what each pattern has."""
        if len(self._first) < len(self._order):
            values = np.add.reduceat(values[:, self._order], self._first, axis=1)
        return values @ self._of_pattern

    def over_rows(self, values: np.ndarray) -> np.ndarray:
        """(m, n) to (m, D): sums over the rows that have each feature."""
        return (values @ self._own)[:, self._column]

    def inverted(self, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of (R, R, K, P), one per pattern: inverses (R, R, K, P); log determinants (K, n)."""
        matrix = np.ascontiguousarray(matrix)
        log_det = invert_few(matrix.reshape(*matrix.shape[:2], -1))
        return matrix, log_det.reshape(matrix.shape[2:])[:, self.place]

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

    def some(self, rows: np.ndarray) -> Self:
        part = super().some(rows)
        part._rows, part._holes = self._rows[rows], self._holes.some(rows)
        part.sizes = part._holes.seen.sum(1)
        return part

    def distances(self, named: Arrays) -> tuple[np.ndarray, np.ndarray]:
        mean, size, diagonal = named["mean"], self.x.shape[1], named[self._name]
        weight = 1.0 / diagonal
        moment, log_det = weight * mean, np.log(diagonal) @ self._holes.seen.T
        squared = np.concatenate([-2.0 * moment, moment * mean, weight], 1) @ self._rows.T
        loading = np.ascontiguousarray(self._loading(named).swapaxes(0, 1))  # (R, K, D)
        if len(self._eye):
            scaled = loading * weight
            packed = loading[self._left] * scaled[self._right]
            gram = self._holes.over_observed(packed.reshape(-1, size))
            gram = gram.reshape(*packed.shape[:2], -1)[self._whole]  # (R, R, K, P)
            gram[*np.diag_indices(len(gram))] += 1.0
            inverse, inner = self._holes.inverted(gram)
            both = np.concatenate([scaled, -scaled * mean], 2).reshape(-1, 2 * size)
            projected = (both @ self._rows[:, : 2 * size].T).reshape(*scaled.shape[:2], -1)
            latent = self._holes.times(inverse, projected)
            squared -= (projected * latent).sum(0)
            log_det += inner
            self._latent = inverse, latent
        self._parameters = mean, diagonal, loading.swapaxes(0, 1)
        return squared, -0.5 * (log_det + self.sizes * LOG_2PI)

    def _expected(self, share: np.ndarray, rows: np.ndarray) -> Expected:
        """What is missing is as expected, but for its own spread."""
        (mean, diagonal, loading), size = self._parameters, self.x.shape[1]
        first, mass, square = np.split(share @ self._rows, 3, 1)
        by_one = first - mass * mean
        residual = square + diagonal * (rows.sum(1)[:, None] - rows @ self._holes.seen)
        if not len(self._eye):
            none = np.zeros((len(mean), 0, 0))
            residual -= mean * (first + by_one)
            return Expected(loading, by_one, residual, none, none.sum(2))
        loading, (inverse, latent) = loading.swapaxes(0, 1), self._latent
        pull = share * latent
        squares = inverse[self._left, self._right][..., self._holes.place] * rows
        squares += pull[self._left] * latent[self._right]
        second = squares.sum(2)[self._whole].transpose(2, 0, 1)
        by_feature = self._holes.over_rows(squares.reshape(-1, len(self.x)))
        by_feature = by_feature.reshape(*squares.shape[:2], -1)[self._whole]  # (R, R, K, D)
        sums = pull.reshape(-1, len(self.x)) @ self._rows[:, : 2 * size]
        cross, total = np.split(sums.reshape(*pull.shape[:2], -1), 2, 2)
        by_factors = cross - mean * total
        by_factors -= np.einsum("ijkd,jkd->ikd", by_feature, loading)
        by_one -= (loading * total).sum(0)
        residual -= mean * (first + by_one) + (loading * (cross + by_factors)).sum(0)
        return Expected(by_factors.swapaxes(0, 1), by_one, residual, second, pull.sum(2).T)


class FullCovariance(Gaussians):
    """Any covariance, by its Cholesky factor."""

    def __init__(self, density: FullGaussian, x: np.ndarray, imagined: Imagined) -> None:
        super().__init__(x, imagined)
        self._least, self._floor = density._smallest_pivot, density.floor
        self._eye = np.eye(x.shape[1])

    def natural(self, free: Arrays) -> Arrays:
        pivots = self._least + np.logaddexp(0.0, free["raw_diagonal"])
        factor = np.tril(free["below"], -1) + pivots[..., None] * self._eye
        return {"mean": free["mean"], "factor": factor}

    def _factor(self, named: Arrays) -> np.ndarray:
        """(K, D, D); what whitens is kept."""
        self._mean, self._root = named["mean"], named["factor"]
        self._pivots, self._half = np.einsum("kdd->kd", self._root), inverses(self._root)
        self._log_det = 2.0 * np.log(self._pivots).sum(1)
        return self._root

    def _whitened(self, named: Arrays) -> np.ndarray:
        """(K, D, n), kept as well."""
        self._factor(named)
        half = self._half
        away = (half.reshape(-1, self.x.shape[1]) @ self.x.T).reshape(*half.shape[:2], -1)
        away -= half @ named["mean"][..., None]
        self._away = away
        return away

    def distances(self, named: Arrays) -> tuple[np.ndarray, np.ndarray]:
        away, size = self._whitened(named), self.x.shape[1]
        return (away * away).sum(1), -0.5 * (self._log_det + size * LOG_2PI)[:, None]

    def _imagined_spread(self) -> np.ndarray:
        """What whitening makes of the spread of imagined rows, (K, D, D)."""
        return self._half @ self.imagined.spread @ self._half.swapaxes(1, 2)

    def _slopes(self, share: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives by the mean (K, D) and by any entry of the factor (K, D, D)."""
        return self._slopes_by(share[:, None] * self._away, rows.sum(1)[:, None])

    def _slopes_by(self, weighted: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, by whitened rows times shares (K, D, n) and the mass of occupancies (K, D)."""
        back = self._half.swapaxes(1, 2)
        scatter = weighted @ self._away.swapaxes(1, 2)
        by_factor = back @ (scatter - mass[..., None] * self._eye)
        return (back @ weighted.sum(2)[..., None])[..., 0], by_factor

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        return self._free_slopes(*self._slopes(share, rows))

    def _free_slopes(self, by_mean: np.ndarray, by_factor: np.ndarray) -> Arrays:
        """Derivatives by free parameters, imagined rows included."""
        if self.imagined.rows:
            beyond = self.imagined.rows * (self._imagined_spread() - self._eye)
            by_factor = by_factor + self._half.swapaxes(1, 2) @ beyond
        rate = -np.expm1(self._least - self._pivots)
        return {
            "mean": by_mean,
            "below": np.tril(by_factor, -1),
            "raw_diagonal": np.einsum("kdd->kd", by_factor) * rate,
        }

    def maximized_of(self, share: np.ndarray, rows: np.ndarray) -> tuple[Arrays, np.ndarray]:
        """Slopes by parameters that whiten are moments of whitened rows."""
        by_mean, by_factor = self._slopes(share, rows)
        root, back = self._root, self._root.swapaxes(1, 2)
        mass, count = share.sum(1), rows.sum(1)[:, None, None]
        away = back @ by_mean[..., None]
        away = np.divide(away, mass[:, None, None], where=mass[:, None, None] > 0.0, out=0.0 * away)
        scatter = back @ by_factor + count * self._eye
        scatter -= mass[:, None, None] * (away @ away.swapaxes(1, 2))
        covariance = root @ scatter @ back + self.imagined.rows * self.imagined.spread
        covariance = (covariance + covariance.swapaxes(1, 2)) / (2.0 * (count + self.imagined.rows))
        finite = np.isfinite(covariance).all((1, 2))
        usable = torch.from_numpy(np.where(finite[:, None, None], covariance, 0.0))
        slack = torch.from_numpy(0.5 * self._floor * self._eye)
        valid = finite & is_positive_definite(usable + slack).numpy()
        factor = torch.linalg.cholesky_ex(floor_spectrum(usable, self._floor)).L
        mean = self._mean + (root @ away)[..., 0]
        return {"mean": mean, "factor": factor.numpy()}, valid

    def log_prior(self) -> np.ndarray:
        if not self.imagined.rows:
            return np.zeros(len(self._log_det))
        trace = np.einsum("kdd->k", self._imagined_spread())
        return -0.5 * self.imagined.rows * (self._log_det + trace)


class ContrastedFull(FullCovariance):
    """The same of rows, and after these of copies that lack the last columns.

    The first entries of a whitened row are those of its copy.
    """

    def __init__(
        self, density: FullGaussian, x: np.ndarray, imagined: Imagined, lacking: int
    ) -> None:
        super().__init__(density, x, imagined)
        self._first = x.shape[1] - lacking

    def log_prob(self, named: Arrays) -> np.ndarray:
        squares, first = self._whitened(named) ** 2, self._first
        peak = np.cumsum(np.log(self._pivots) + 0.5 * LOG_2PI, 1)[..., None]
        part = squares[:, :first].sum(1)
        whole = part + squares[:, first:].sum(1)
        return np.concatenate([-0.5 * whole - peak[:, -1], -0.5 * part - peak[:, first - 1]], 1)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        whole, both = occupancy[:, : len(self.x)], occupancy.reshape(len(occupancy), 2, -1).sum(1)
        weighted = self._away * both[:, None]
        np.multiply(self._away[:, self._first :], whole[:, None], out=weighted[:, self._first :])
        mass = np.repeat(both.sum(1)[:, None], self.x.shape[1], 1)
        mass[:, self._first :] = whole.sum(1)[:, None]
        found = self._free_slopes(*self._slopes_by(weighted, mass))
        del self._away, self._half, self._root  # of many parts these are more than the rows
        return found


class FullOfHoles(FullCovariance):
    """The same of rows with holes: a covariance for each pattern, in an identity.

    Less exact than PyTorch's for conditions of a covariance above 1e7: errors grow with these and
    with squared distances; the worst of a log density was 2e-6 at 3e7.
    """

    def __init__(
        self, density: FullGaussian, x: np.ndarray, imagined: Imagined, holes: Patterns
    ) -> None:
        super().__init__(density, x, imagined)
        self._look_at(holes)

    def _look_at(self, holes: Patterns) -> None:
        self._holes, self.sizes = holes, holes.seen.sum(1)
        own = holes.patterns.T
        self._both, self._rest = (own[:, None] * own)[:, :, None], 1.0 - own[:, None]

    def some(self, rows: np.ndarray) -> Self:
        part = super().some(rows)
        part._look_at(self._holes.some(rows))
        return part

    def distances(self, named: Arrays) -> tuple[np.ndarray, np.ndarray]:
        factor = self._factor(named)
        covariance = (factor @ factor.swapaxes(1, 2)).transpose(1, 2, 0)[..., None] * self._both
        covariance[*np.diag_indices(len(covariance))] += self._rest
        precision, log_det = self._holes.inverted(covariance)
        precision *= self._both
        seen = self._holes.seen.T[:, None]  # (D, 1, n)
        away = self.x.T[:, None] - named["mean"].T[..., None] * seen
        dual = self._holes.times(precision, away)
        self._duals = precision, dual
        return (away * dual).sum(0), -0.5 * (log_det + self.sizes * LOG_2PI)

    def _slopes(self, share: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision, dual = self._duals
        pull = (share * dual).swapaxes(0, 1)  # (K, D, n)
        if not isinstance(self._holes.place, slice):
            member = np.eye(precision.shape[3])[self._holes.place]
            rows = rows @ member
        scatter = pull @ dual.transpose(1, 2, 0) - (precision * rows).sum(3).transpose(2, 0, 1)
        return pull.sum(2), scatter @ self._root
