"""Gaussian components: what all have in common, and those with spherical or diagonal covariance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import Statistics, VectorDensity, add_statistics, randn
from mixtura.densities.patterns import Holes, by_holes, in_order
from mixtura.numerics import above, above_inverse, above_slope

#: Log densities (n, K) of rows, and their statistics as a function of two kinds of occupancies.
Expectation = tuple[Tensor, Callable[[Tensor, Tensor], Statistics]]
#: What occupancies are to the largest one where they are less than the rounding of a sum.
NEGLIGIBLE = 1e-20
#: Parts of a chunk that a GPU sums up at the same time.
_SIDE_BY_SIDE = 1_024


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
        return side_by_side(holes, *self._marginal(x, holes))

    def _distances_complete(self, x: Tensor) -> Tensor:
        return self._from_peak(self._log_prob_complete(x))

    def _from_peak(self, log_prob: Tensor) -> Tensor:
        peak = self.log_peak().to(log_prob.dtype)
        return torch.stack([2.0 * (peak - log_prob), peak.expand_as(log_prob)], 2)

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
        return self._shared(batch, self._expectation_complete, self._expectation_masked)

    def conditioned(self, batch: Batch) -> tuple[Tensor, Callable[..., Statistics]]:
        """What `distances` gives, side by side (n, K, 2), and statistics that share its work."""
        return self._shared(batch, self._conditioned_complete, self._conditioned_masked)

    def _shared(
        self,
        batch: Batch,
        complete: Callable[[Tensor], Expectation],
        masked: Callable[..., Expectation],
        *among: Tensor,
    ) -> tuple[Tensor, Callable[..., Statistics]]:
        """(n, ...) what two functions say of rows without and with holes; statistics of both.

        The second may be told which components (n, K) matter to each row.
        """
        parts = [
            (rows, *(complete(x) if holes is None else masked(x, holes, *(a[rows] for a in among))))
            for rows, x, holes in by_holes(batch)
        ]

        def statistics(share: Tensor, scatter: Tensor | None = None) -> Statistics:
            scatter = share if scatter is None else scatter
            return add_statistics(*(sums(share[rows], scatter[rows]) for rows, _, sums in parts))

        return in_order([(rows, found) for rows, found, _ in parts]), statistics

    def _conditioned_complete(self, x: Tensor) -> Expectation:
        log_prob, statistics = self._expectation_complete(x)
        return self._from_peak(log_prob), statistics

    def _conditioned_masked(self, x: Tensor, holes: Holes) -> Expectation:
        return self._distances_masked(x, holes), partial(self._statistics_masked, x, holes)

    def _expectation_complete(self, x: Tensor) -> Expectation:
        """Log densities of complete rows, and their statistics as a function of occupancies."""
        return self._log_prob_complete(x), lambda share, _: self._statistics_complete(x, share)

    def _expectation_masked(self, x: Tensor, holes: Holes) -> Expectation:
        """The same of rows with holes; what is missing scatters with the second occupancies."""
        found, statistics = self._conditioned_masked(x, holes)
        return found[..., 1] - 0.5 * found[..., 0], statistics

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
    def _expected_masked(self, batch: Batch, observed: Tensor) -> Tensor: ...

    def center(self, statistics: Statistics) -> Tensor:
        mass = statistics["mass"][:, None]
        return torch.where(mass > 0, statistics["first"] / mass, self.mean)

    def own_statistics(self) -> Statistics:
        return self.spread_statistics(self.spread, self.mean)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        raise self._no_closed_form()

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        off = center - self.mean
        return reference + (
            off.square() if self.spread.ndim == 2 else off[:, :, None] * off[:, None]
        )

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


def side_by_side(holes: Holes, squared: Tensor, log_det: Tensor) -> Tensor:
    """(n, K, 2) squared distances, and log densities at the means, by log determinants."""
    return torch.stack([squared, peak_masked(holes, log_det)], 2)


def peak_masked(holes: Holes, log_det: Tensor) -> Tensor:
    """Log densities (n, K) at the means, of what is observed, by log determinants (n, K)."""
    size = holes.observed.to(log_det.dtype).sum(1, keepdim=True)
    return -0.5 * (log_det + LOG_2PI * size)


def _moments(x: Tensor, squared: Tensor, occupancy: Tensor) -> Statistics:
    """Sums over rows by occupancies (n, K): of ones, of x (n, D), and of its squares."""
    return {
        "mass": occupancy.sum(0),
        "first": _summed(x, occupancy).mT,
        "second": _summed(squared, occupancy).mT,
    }


def _summed(x: Tensor, occupancy: Tensor) -> Tensor:
    """(D, K): sums of rows (n, D) by occupancies (n, K); a GPU takes many of them side by side."""
    if not x.is_cuda or len(x) % _SIDE_BY_SIDE:
        return x.mT @ occupancy
    parts = (each.unflatten(0, (_SIDE_BY_SIDE, -1)) for each in (x, occupancy))
    return torch.einsum("snd,snk->sdk", *parts).sum(0)


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
        return self._log_prob_squared(x, x.square())

    def _log_prob_squared(self, x: Tensor, squared: Tensor) -> Tensor:
        precision, scaled_mean, constant = (part.to(x.dtype) for part in self.natural)
        peak = constant.sum(1)
        if x.is_cuda:  # values of a component side by side: sums over components take a fifth
            by_component = torch.addmm(peak[:, None], scaled_mean, x.mT)
            return by_component.addmm_(precision, squared.mT, alpha=-0.5).mT
        return torch.addmm(peak, x, scaled_mean.mT).addmm_(squared, precision.mT, alpha=-0.5)

    def _expectation_complete(self, x: Tensor) -> Expectation:
        squared = x.square()
        return self._log_prob_squared(x, squared), lambda share, _: _moments(x, squared, share)

    def _log_prob_masked(self, x: Tensor, holes: Holes) -> Tensor:
        precision, scaled_mean, constant = (part.to(x.dtype) for part in self.natural)
        seen = holes.observed.to(x.dtype)
        return x @ scaled_mean.mT - 0.5 * x.square() @ precision.mT + seen @ constant.mT

    def _expectation_masked(self, x: Tensor, holes: Holes) -> Expectation:
        return self._log_prob_masked(x, holes), partial(self._statistics_masked, x, holes)

    def _marginal(self, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
        precision, scaled_mean, _ = (part.to(x.dtype) for part in self.natural)
        seen = holes.observed.to(x.dtype)
        squared = x.square() @ precision.mT - 2.0 * x @ scaled_mean.mT
        squared = squared + seen @ (self.mean.to(x.dtype) * scaled_mean).mT
        return squared, seen @ self.variance.log().mT.to(x.dtype)

    @cached_property
    def natural(self) -> tuple[Tensor, Tensor, Tensor]:
        """Precision, precision times mean, and the constant of each feature, (K, D) each."""
        precision = self.variance.reciprocal()
        scaled_mean = self.mean * precision
        constant = -0.5 * (self.mean * scaled_mean + self.variance.log() + LOG_2PI)
        return precision, scaled_mean, constant

    def _statistics_complete(self, x: Tensor, occupancy: Tensor) -> Statistics:
        return _moments(x, x.square(), occupancy)

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

    def _expected_masked(self, batch: Batch, observed: Tensor) -> Tensor:
        return self.mean.to(batch.x.dtype)
