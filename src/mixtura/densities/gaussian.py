"""Gaussian components with spherical, diagonal or full covariance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import (
    Statistics,
    VectorDensity,
    add_statistics,
    own_products,
    randn,
)
from mixtura.densities.patterns import (
    Given,
    Holes,
    Parts,
    by_holes,
    distances,
    given,
    in_order,
    marginal,
)
from mixtura.numerics import (
    LOG_2PI,
    above,
    above_inverse,
    above_slope,
    floor_spectrum,
    is_positive_definite,
    log_det_lower,
    lower_inverse,
)

#: Occupancies smaller than this share of the largest do not change a sum in double precision.
_NEGLIGIBLE = 1e-20

#: Log densities (n, K) of rows, and their statistics as a function of two kinds of occupancies.
Expectation = tuple[Tensor, Callable[[Tensor, Tensor], Statistics]]


@dataclass(frozen=True, kw_only=True)
class Gaussian(VectorDensity):
    """K Gaussians over D features: statistics are moments, and draws follow Matheron's rule.

    A kind writes what depends on the form of its covariances: log densities and statistics of rows
    with and without holes, `expected`, `spread` and what is asked of it, `maximize`.

    Attributes
    ----------
    mean : (K, D).
    floor : smallest variance (in the model's units) any component may have.
    """

    closed_form: ClassVar[bool] = True

    mean: Tensor
    floor: float

    @property
    def location(self) -> Tensor:
        return self.mean

    def at(self, location: Tensor) -> Self:
        return self.with_tensors({**self.tensors(), "mean": location})

    def log_prob(self, batch: Batch) -> Tensor:
        return self._joined(batch, self._log_prob_complete, self._log_prob_masked)

    def distances(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Squared distances of what is observed from the means, and log densities at these.

        (n, K) each; a log density is the second less half the first.
        """
        found = self._joined(batch, self._distances_complete, self._distances_masked)
        return found[..., 0], found[..., 1]

    def _joined(
        self,
        batch: Batch,
        complete: Callable[[Tensor], Tensor],
        masked: Callable[[Tensor, Holes], Tensor],
    ) -> Tensor:
        """(n, ...) what one function says of rows without holes, and the other of the others."""
        return in_order(
            [
                (rows, complete(x) if holes is None else masked(x, holes))
                for rows, x, holes in by_holes(batch)
            ]
        )

    @abstractmethod
    def _log_prob_complete(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _marginal(self, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
        """Squared distances of what is observed, log determinants of its covariance, (n, K)."""

    def _log_prob_masked(self, x: Tensor, holes: Holes) -> Tensor:
        squared, log_det = self._marginal(x, holes)
        return peak_masked(holes, log_det) - 0.5 * squared

    def _distances_masked(self, x: Tensor, holes: Holes) -> Tensor:
        squared, log_det = self._marginal(x, holes)
        return torch.stack([squared, peak_masked(holes, log_det)], 2)

    def _distances_complete(self, x: Tensor) -> Tensor:
        peak = self.log_peak().to(x.dtype)
        squared = 2.0 * (peak - self._log_prob_complete(x))
        return torch.stack([squared, peak.expand_as(squared)], 2)

    def statistics(
        self, batch: Batch, occupancy: Tensor, scatter: Tensor | None = None
    ) -> Statistics:
        """Moments; what is not observed scatters with occupancies (n, K) of its own, if given."""
        scatter = occupancy if scatter is None else scatter
        return add_statistics(
            *(
                self._statistics_complete(x, occupancy[rows])
                if holes is None
                else self._statistics_masked(x, holes, occupancy[rows], scatter[rows])
                for rows, x, holes in by_holes(batch)
            )
        )

    def expectation(self, batch: Batch) -> tuple[Tensor, Callable[..., Statistics]]:
        parts = [
            (
                rows,
                *(
                    self._expectation_complete(x)
                    if holes is None
                    else self._expectation_masked(x, holes)
                ),
            )
            for rows, x, holes in by_holes(batch)
        ]

        def statistics(share: Tensor, scatter: Tensor | None = None) -> Statistics:
            scatter = share if scatter is None else scatter
            return add_statistics(*(sums(share[rows], scatter[rows]) for rows, _, sums in parts))

        return in_order([(rows, log_prob) for rows, log_prob, _ in parts]), statistics

    def _expectation_complete(self, x: Tensor) -> Expectation:
        """Log densities of complete rows, and their statistics as a function of occupancies."""
        return self._log_prob_complete(x), lambda share, _: self._statistics_complete(x, share)

    def _expectation_masked(self, x: Tensor, holes: Holes) -> Expectation:
        """The same of rows with holes; what is missing scatters with the second occupancies."""
        return self._log_prob_masked(x, holes), partial(self._statistics_masked, x, holes)

    def _statistics_complete(self, x: Tensor, occupancy: Tensor) -> Statistics:
        raise self._no_closed_form()

    def _statistics_masked(
        self, x: Tensor, holes: Holes, occupancy: Tensor, scatter: Tensor
    ) -> Statistics:
        raise self._no_closed_form()

    @property
    @abstractmethod
    def spread(self) -> Tensor: ...

    @abstractmethod
    def spread_log_prob(self, reference: Tensor) -> Tensor: ...

    @abstractmethod
    def covariances(self) -> Tensor: ...

    @abstractmethod
    def expected(self, batch: Batch) -> Tensor: ...

    def center(self, statistics: Statistics) -> Tensor:
        mass = statistics["mass"][:, None]
        return torch.where(mass > 0, statistics["first"] / mass, self.mean)

    def own_statistics(self) -> Statistics:
        return self.spread_statistics(self.spread, self.mean)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        raise self._no_closed_form()

    def own_expected(self, batch: Batch, component: Tensor) -> Tensor:
        """Conditional mean (n, D) of every row under its own component (n,)."""
        found = torch.zeros_like(batch.x)
        for k in component.unique():
            mine = (component == k).nonzero().flatten()
            found[mine] = self.select(k[None]).expected(batch.take(mine))[:, 0]
        return found

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        """Each draw, shifted by the regression of what it missed of the observed part.

        Matheron's rule: exact for Gaussians, and no conditional covariance is formed.
        """
        if batch.observed is None:
            return batch.x
        drawn = drawn.to(batch.x.dtype)
        missed = replace(batch, x=torch.where(batch.observed, batch.x - drawn, 0.0))
        centered = self.at(torch.zeros_like(self.mean))
        return torch.where(
            batch.observed, batch.x, drawn + centered.own_expected(missed, component)
        )


def peak_masked(holes: Holes, log_det: Tensor) -> Tensor:
    """Log densities (n, K) at the means, of what is observed, by log determinants (n, K)."""
    size = holes.observed.to(log_det.dtype).sum(1, keepdim=True)
    return -0.5 * (log_det + LOG_2PI * size)


def weight_per_row(statistics: Statistics) -> Tensor:
    """(K, 1): one; or what the rows weigh on average, where `rows` (K,) says how many they are.

    Moments divided by the weight are those of an average row. Where rows are weighted because their
    variances differ, as those of heavy tails do, scatter is to be divided by the number of rows.
    """
    mass = statistics["mass"][:, None]
    return mass / statistics["rows"][:, None] if "rows" in statistics else torch.ones_like(mass)


def n_rows(statistics: Statistics) -> Tensor:
    """(K,): how many rows there are, which is what they weigh unless `rows` says otherwise."""
    return statistics.get("rows", statistics["mass"])


@dataclass(frozen=True, kw_only=True)
class DiagonalGaussian(Gaussian):
    """Independent features; `tied` gives all features of a component one variance (spherical)."""

    explicit: ClassVar[bool] = True
    single_precision: ClassVar[bool] = True

    variance: Tensor  # (K, D)
    tied: bool = False

    @property
    def n_parameters(self) -> int:
        return self.n_features + (1 if self.tied else self.n_features)

    def row_cost(self, missing: bool) -> int:
        filled = self.n_components * self.n_features if missing else 0
        return 2 * self.n_features + 4 * self.n_components + filled

    @classmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        **options: Setting,
    ) -> Self:
        blank = x.new_zeros(membership.shape[1], x.shape[1])
        start = cls(mean=blank, variance=blank + 1.0, floor=floor, **options)
        return start.maximize(start._statistics_complete(x, membership))[0]

    def _log_prob_complete(self, x: Tensor) -> Tensor:
        precision, scaled_mean, constant = (part.to(x.dtype) for part in self._natural)
        linear = x @ scaled_mean.mT + constant.sum(1)
        return torch.addmm(linear, x.square(), precision.mT, alpha=-0.5)

    def _log_prob_masked(self, x: Tensor, holes: Holes) -> Tensor:
        precision, scaled_mean, constant = (part.to(x.dtype) for part in self._natural)
        seen = holes.observed.to(x.dtype)
        return x @ scaled_mean.mT - 0.5 * x.square() @ precision.mT + seen @ constant.mT

    def _marginal(self, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
        precision, scaled_mean, _ = (part.to(x.dtype) for part in self._natural)
        seen = holes.observed.to(x.dtype)
        squared = x.square() @ precision.mT - 2.0 * x @ scaled_mean.mT
        squared = squared + seen @ (self.mean.to(x.dtype) * scaled_mean).mT
        return squared, seen @ self.variance.log().mT.to(x.dtype)

    @cached_property
    def _natural(self) -> tuple[Tensor, Tensor, Tensor]:
        """Precision, precision times mean, and the constant of each feature, (K, D) each."""
        precision = self.variance.reciprocal()
        scaled_mean = self.mean * precision
        constant = -0.5 * (self.mean * scaled_mean + self.variance.log() + LOG_2PI)
        return precision, scaled_mean, constant

    def _statistics_complete(self, x: Tensor, occupancy: Tensor) -> Statistics:
        return {
            "mass": occupancy.sum(0),
            "first": (x.mT @ occupancy).mT,
            "second": (x.square().mT @ occupancy).mT,
        }

    def _statistics_masked(
        self, x: Tensor, holes: Holes, occupancy: Tensor, scatter: Tensor
    ) -> Statistics:
        seen, hidden = self._statistics_complete(x, occupancy), (~holes.observed).to(x.dtype)
        first = (occupancy.mT @ hidden) * self.mean
        second = first * self.mean + (scatter.mT @ hidden) * self.variance
        return {
            "mass": seen["mass"],
            "first": seen["first"] + first,
            "second": seen["second"] + second,
        }

    @property
    def spread(self) -> Tensor:
        return self.variance

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return -0.5 * (self.variance.log() + reference / self.variance).sum(1)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        return {
            "mass": torch.ones_like(center[:, 0]),
            "first": center,
            "second": reference + center.square(),
        }

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        mass = statistics["mass"][:, None]
        mean = statistics["first"] / mass
        variance = (statistics["second"] / mass - mean.square()) * weight_per_row(statistics)
        if self.tied:
            variance = variance.mean(1, keepdim=True).expand_as(mean)
        valid = (mass[:, 0] > 0) & (variance > -0.5 * self.floor).all(1)
        return self.with_tensors({"mean": mean, "variance": variance.clamp_min(self.floor)}), valid

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        mass, first = statistics["mass"][:, None], statistics["first"]
        scatter = statistics["second"] - self.mean * (2.0 * first - mass * self.mean)
        by_variance = scatter / self.variance - n_rows(statistics)[:, None]
        by_variance = 0.5 * by_variance / self.variance
        if self.tied:
            by_variance = by_variance.sum(1, keepdim=True)
        rate = above_slope(self.floor, self.variance[:, : by_variance.shape[1]])
        by_mean = (first - mass * self.mean) / self.variance
        return {"mean": by_mean, "raw_variance": by_variance * rate}

    def free(self) -> dict[str, Tensor]:
        variance = self.variance[:, :1] if self.tied else self.variance
        return {"mean": self.mean, "raw_variance": above_inverse(self.floor, variance)}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        variance = above(self.floor, free["raw_variance"]).expand_as(free["mean"])
        return self.with_tensors({"mean": free["mean"], "variance": variance})

    def covariances(self) -> Tensor:
        return torch.diag_embed(self.variance)

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        noise = randn(len(component), self.n_features, like=self.mean, generator=generator)
        return self.mean[component] + self.variance[component].sqrt() * noise

    def expected(self, batch: Batch) -> Tensor:
        x = batch.x[:, None].expand(-1, self.n_components, -1)
        if batch.observed is None:
            return x
        return torch.where(batch.observed[:, None], x, self.mean.to(x.dtype))


@dataclass(frozen=True, kw_only=True)
class FullGaussian(Gaussian):
    """Any positive definite covariance, held as its Cholesky factor."""

    explicit: ClassVar[bool] = True
    single_precision: ClassVar[bool] = True

    factor: Tensor  # (K, D, D), lower triangular

    @property
    def n_parameters(self) -> int:
        return self.n_features + self.n_features * (self.n_features + 1) // 2

    @property
    def prior_rows(self) -> float:
        return self.n_features + 2.0

    def row_cost(self, missing: bool) -> int:
        holes = 8 * self.n_features + self.n_features**2 if missing else self.n_features
        return self.n_components * holes

    @classmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        **options: Setting,
    ) -> Self:
        blank = x.new_zeros(membership.shape[1], x.shape[1])
        start = cls(mean=blank, factor=torch.diag_embed(blank + 1.0), floor=floor, **options)
        return start.maximize(start._statistics_complete(x, membership))[0]

    @cached_property
    def _whitening(self) -> Tensor:
        return lower_inverse(self.factor)

    @cached_property
    def _bands(self) -> list[tuple[Tensor, Tensor]]:
        """What whitens rows, by bands: weights (high, K h) and minus the whitened means (K h,)."""
        offset = -(self._whitening @ self.mean[..., None])[..., 0]
        return [
            (self._whitening[:, low:high, :high].flatten(0, 1).mT, offset[:, low:high].flatten())
            for low, high in _triangle_bands(self.n_features)
        ]

    @cached_property
    def _log_peak(self) -> Tensor:
        return -0.5 * (log_det_lower(self.factor) + self.n_features * LOG_2PI)

    def _log_prob_complete(self, x: Tensor) -> Tensor:
        found = self._log_peak.to(x.dtype)
        for weight, offset in self._bands:
            band = torch.addmm(offset.to(x.dtype), x[:, : len(weight)], weight.to(x.dtype))
            norm = torch.linalg.vector_norm(band.view(len(x), self.n_components, -1), dim=2)
            found = torch.addcmul(found, norm, norm, value=-0.5)
        return found

    @cached_property
    def _precision(self) -> Tensor:
        return self._whitening.mT @ self._whitening

    def _parts(self, dtype: torch.dtype) -> Parts:
        log_det = log_det_lower(self.factor)
        parts = self.mean, self.covariances(), self._precision, self._whitening, log_det
        return Parts(*(part.to(dtype) for part in parts))

    def _marginal(self, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
        return marginal(self._parts(x.dtype), x, holes)

    def _expectation_masked(self, x: Tensor, holes: Holes) -> Expectation:
        """What depends on a pattern serves both."""
        parts = given(self._parts(x.dtype), x, holes)
        squared, log_det = distances(parts)
        return peak_masked(holes, log_det) - 0.5 * squared, partial(self._moments, parts)

    def _statistics_complete(self, x: Tensor, occupancy: Tensor) -> Statistics:
        return {
            "mass": occupancy.sum(0),
            "first": occupancy.mT @ x,
            "second": _weighted_second_moments(x, occupancy),
        }

    def _statistics_masked(
        self, x: Tensor, holes: Holes, occupancy: Tensor, scatter: Tensor
    ) -> Statistics:
        return self._moments(given(self._parts(x.dtype), x, holes), occupancy, scatter)

    def _moments(
        self, parts: list[tuple[Tensor | slice, Given]], occupancy: Tensor, scatter: Tensor
    ) -> Statistics:
        mass, first = occupancy.sum(0), torch.zeros_like(self.mean)
        second = torch.zeros_like(self.factor)
        for rows, part in parts:
            filled = (part.expected + self.mean[:, None, None]).flatten(1, 2)
            weighted = part.blocks.by_component(occupancy[rows]).flatten(1)[..., None] * filled
            first += weighted.sum(1)
            second += weighted.mT @ filled + part.missing_covariance(part.by_block(scatter[rows]))
        return {"mass": mass, "first": first, "second": second}

    @property
    def spread(self) -> Tensor:
        return self.covariances()

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        trace = ((self._whitening @ reference) * self._whitening).sum((1, 2))
        return -0.5 * (log_det_lower(self.factor) + trace)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        return {
            "mass": torch.ones_like(center[:, 0]),
            "first": center,
            "second": reference + center[:, :, None] * center[:, None, :],
        }

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        mass = statistics["mass"]
        mean = statistics["first"] / mass[:, None]
        second = statistics["second"] / mass[:, None, None]
        covariance = second - mean[:, :, None] * mean[:, None, :]
        covariance = 0.5 * (covariance + covariance.mT) * weight_per_row(statistics)[..., None]
        usable = torch.where(covariance.isfinite().all((1, 2))[:, None, None], covariance, 0.0)
        slack = 0.5 * self.floor * torch.eye(self.n_features, dtype=mass.dtype, device=mass.device)
        valid = (mass > 0) & mean.isfinite().all(1) & is_positive_definite(usable + slack)
        factor = torch.linalg.cholesky_ex(floor_spectrum(usable, self.floor)).L
        return self.with_tensors({"mean": mean, "factor": factor}), valid

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        mass, first, half = statistics["mass"], statistics["first"], self._whitening
        off = first - mass[:, None] * self.mean
        cross = self.mean[:, :, None] * off[:, None, :]
        second = self.mean[:, :, None] * self.mean[:, None, :] * mass[:, None, None]
        scatter = statistics["second"] - cross - cross.mT - second
        rows = torch.diag_embed(n_rows(statistics)[:, None].expand_as(first))
        by_factor = half.mT @ (half @ scatter @ half.mT - rows)  # L^-T (L^-1 C L^-T - rows)
        diagonal = self.factor.diagonal(dim1=1, dim2=2)
        rate = above_slope(self._smallest_pivot, diagonal)
        return {
            "mean": (half.mT @ (half @ off[..., None]))[..., 0],
            "below": by_factor.tril(-1),
            "raw_diagonal": by_factor.diagonal(dim1=1, dim2=2) * rate,
        }

    @property
    def _smallest_pivot(self) -> float:
        return 0.1 * self.floor**0.5

    def free(self) -> dict[str, Tensor]:
        diagonal = self.factor.diagonal(dim1=1, dim2=2)
        return {
            "mean": self.mean,
            "below": self.factor.tril(-1),
            "raw_diagonal": above_inverse(self._smallest_pivot, diagonal),
        }

    def from_free(self, free: dict[str, Tensor]) -> Self:
        diagonal = above(self._smallest_pivot, free["raw_diagonal"])
        factor = free["below"].tril(-1) + torch.diag_embed(diagonal)
        return self.with_tensors({"mean": free["mean"], "factor": factor})

    def covariances(self) -> Tensor:
        return self.factor @ self.factor.mT

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        noise = randn(len(component), self.n_features, like=self.mean, generator=generator)
        return self.mean[component] + own_products(self.factor, component, noise)

    def expected(self, batch: Batch) -> Tensor:
        if batch.observed is None:
            return batch.x[:, None].expand(-1, self.n_components, -1)
        filled = batch.x.new_empty(len(batch), *self.mean.shape)
        for rows, part in given(self._parts(batch.x.dtype), batch.x, Holes(batch.observed)):
            filled[rows] = part.blocks.restore(part.expected.permute(1, 2, 0, 3))
        filled = filled + self.mean.to(filled.dtype)
        return torch.where(batch.observed[:, None], batch.x[:, None], filled)


def _triangle_bands(size: int) -> list[tuple[int, int]]:
    """Row bands of a triangular matrix: the zeros right of each band are never multiplied."""
    n_bands = min(4, max(1, size // 12))
    edges = [round(size * i / n_bands) for i in range(n_bands + 1)]
    return list(pairwise(edges))


def _weighted_second_moments(x: Tensor, occupancy: Tensor) -> Tensor:
    """sum_n w_nk x_n x_n^T for every component, (K, D, D).

    Where most rows belong to few components, each component sums its own rows only: what is left
    out is below the rounding of the sum. Otherwise the lower half is computed for all at once.
    """
    size, n_components = x.shape[1], occupancy.shape[1]
    moments = x.new_zeros(n_components, size, size)
    active = occupancy.abs() > _NEGLIGIBLE * occupancy.abs().max()
    if x.device.type == "cpu" and active.sum() < 0.5 * active.numel():
        for component, mine in enumerate(active.mT):
            rows, share = x[mine], occupancy[mine, component, None]
            torch.mm((rows * share).mT, rows, out=moments[component])
        return moments
    for low, high in _triangle_bands(size):
        weighted = (occupancy[:, :, None] * x[:, None, low:high]).view(len(x), -1)
        moments[:, low:high, :high] = (weighted.mT @ x[:, :high]).view(n_components, -1, high)
    return moments.tril() + moments.tril(-1).mT
