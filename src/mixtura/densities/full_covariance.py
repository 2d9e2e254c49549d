"""Gaussians of any positive definite covariance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import Statistics, own_products, randn
from mixtura.densities.gaussian import (
    NEGLIGIBLE,
    Expectation,
    Gaussian,
    n_rows,
    side_by_side,
    weight_per_row,
)
from mixtura.densities.patterns import Given, Holes, Parts, distances, given, marginal
from mixtura.numerics import (
    above,
    above_inverse,
    above_slope,
    floor_spectrum,
    is_positive_definite,
    log_det_lower,
    lower_inverse,
)

#: Products of a component up to which those of all rows cost less than to look for its own.
_FEW = 300_000
#: Largest error of log densities by products of features, which cancel far from the origin.
_EXACT = 1e-9


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

    def _conditioned_masked(self, x: Tensor, holes: Holes) -> Expectation:
        """What depends on a pattern serves both."""
        parts = given(self._parts(x.dtype), x, holes)
        return side_by_side(holes, *distances(parts)), partial(self._moments, parts)

    def _expectation_complete(self, x: Tensor) -> Expectation:
        """By one matrix product each, where components are many for products of two features."""
        few = 2 * self.n_components < self.n_features or x.dtype != torch.float64
        if few or x.is_cuda or not self._lost(x) <= _EXACT:
            return super()._expectation_complete(x)
        products = _products(x)
        return (self._by_product @ products).mT, partial(self._sums_of_products, products)

    def _lost(self, x: Tensor) -> float:
        """Largest rounding error of log densities (n, K) by products of features, or of means."""
        ends = [end for each in (x, self.mean) if len(each) for end in each.aminmax()]
        farthest = torch.stack(ends).abs().max().square().clamp_min(1.0)
        total = self._by_product.abs().sum(1).max() * farthest
        return float(total) * torch.finfo(x.dtype).eps

    @cached_property
    def _by_product(self) -> Tensor:
        """(K, Q) what products are multiplied by in log densities."""
        scaled = (self._precision @ self.mean[..., None])[..., 0]
        constant = self._log_peak - 0.5 * (self.mean * scaled).sum(1)
        rows, columns = torch.triu_indices(self.n_features, self.n_features, device=scaled.device)
        share = torch.where(rows == columns, -0.5, -1.0).to(scaled)
        squares = self._precision[:, rows, columns] * share
        return torch.cat([constant[:, None], scaled, squares], 1)

    def _sums_of_products(self, products: Tensor, occupancy: Tensor, _: Tensor) -> Statistics:
        sums, size = occupancy.mT @ products.mT, self.n_features
        rows, columns = torch.triu_indices(size, size, device=sums.device)
        second = sums.new_empty(len(sums), size, size)
        second[:, rows, columns] = second[:, columns, rows] = sums[:, 1 + size :]
        return {"mass": sums[:, 0], "first": sums[:, 1 : 1 + size], "second": second}

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

    def _expected_masked(self, batch: Batch, observed: Tensor) -> Tensor:
        filled = batch.x.new_empty(len(batch), *self.mean.shape)
        for rows, part in given(self._parts(batch.x.dtype), batch.x, Holes(observed)):
            filled[rows] = part.blocks.restore(part.expected.permute(1, 2, 0, 3))
        return filled + self.mean.to(filled.dtype)


def _products(x: Tensor) -> Tensor:
    """(Q, n) one, the features of rows (n, D), and what any two of them give."""
    size, columns = x.shape[1], x.mT.contiguous()
    found = x.new_empty(1 + size + size * (size + 1) // 2, len(x))
    found[0], found[1 : 1 + size] = 1.0, columns
    place = 1 + size
    for first in range(size):
        torch.mul(columns[first:], columns[first], out=found[place : place + size - first])
        place += size - first
    return found


def _triangle_bands(size: int) -> list[tuple[int, int]]:
    """Row bands of a triangular matrix: the zeros right of each band are never multiplied."""
    n_bands = min(4, max(1, size // 12))
    edges = [round(size * i / n_bands) for i in range(n_bands + 1)]
    return list(pairwise(edges))


def _weighted_second_moments(x: Tensor, occupancy: Tensor) -> Tensor:
    """sum_n w_nk x_n x_n^T for every component, (K, D, D).

    Where most of many rows belong to few components, each component sums its own rows only: what is
    left out is below the rounding of the sum. Otherwise the lower half is computed for all at once.
    """
    size, n_components = x.shape[1], occupancy.shape[1]
    moments = x.new_zeros(n_components, size, size)
    active = occupancy.abs() > NEGLIGIBLE * occupancy.abs().max()
    many = x.device.type == "cpu" and x.numel() * size > _FEW
    if many and active.sum() < 0.5 * active.numel():
        for component, mine in enumerate(active.mT):
            rows, share = x[mine], occupancy[mine, component, None]
            torch.mm((rows * share).mT, rows, out=moments[component])
        return moments
    for low, high in _triangle_bands(size):
        weighted = (occupancy[:, :, None] * x[:, None, low:high]).view(len(x), -1)
        moments[:, low:high, :high] = (weighted.mT @ x[:, :high]).view(n_components, -1, high)
    return moments.tril() + moments.tril(-1).mT
