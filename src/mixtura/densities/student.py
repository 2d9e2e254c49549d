"""Student's t: Gaussians with heavy tails, for rows of which some lie far out.

A row is Gaussian given a latent weight: x | w ~ N(mean, scale / w), w ~ Gamma(nu / 2, nu / 2). With
d features observed, at the squared distance delta from the mean under their part of the scale,

    E[w] = (nu + d) / (nu + delta),  E[log w] = log E[w] - g(nu + d),
    g(nu) = log(nu / 2) - psi(nu / 2),

so that EM sums the Gaussian's own statistics of rows weighted by E[w], and nu follows from the mean
of E[w] - E[log w] - 1, which is g(nu) at the maximum. Marginals are t of the same nu; what is
missing is t given the rest, with nu + d degrees of freedom (Liu and Rubin, 1995, Statistica Sinica;
mixtures: Peel and McLachlan, 2000, Statistics and Computing).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from scipy.special import gammaincinv
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import Statistics, VectorDensity, inside, nested, rand
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import Gaussian

#: Degrees of freedom: enough for a covariance to exist, and so many that a Gaussian is no better.
LEAST_DOF, MOST_DOF = 2.1, 1000.0
#: Those that training starts with.
_START = 10.0
#: How near to the bounds their free parameter reaches, as a share of the range of their logarithm.
_HAIR = 1e-6
#: Newton's steps that find them: each doubles the digits that are right, two to begin with.
_ROUNDS = 5
_INNER = "scale."


@dataclass(frozen=True, kw_only=True)
class StudentT(VectorDensity):
    """K t distributions, whose scale matrices have the form of a Gaussian's covariances.

    Attributes
    ----------
    scale : K Gaussians, with the means and the scale matrices.
    dof : (K,) degrees of freedom, from `LEAST_DOF` to `MOST_DOF`.
    """

    scale: Gaussian
    dof: Tensor

    @classmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        *,
        kind: type[Gaussian] = FullGaussian,
        **options: Setting,
    ) -> Self:
        """A start: the Gaussians that `kind` starts with, and tails that are somewhat heavy."""
        scale = kind.from_clusters(x, membership, floor, generator, **options)
        return cls(scale=scale, dof=x.new_full((membership.shape[1],), _START))

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.scale.closed_form

    @property
    def explicit(self) -> bool:  # type: ignore[override]
        return self.scale.explicit

    @property
    def location(self) -> Tensor:
        return self.scale.mean

    @property
    def floor(self) -> float:
        """The smallest variance that a scale matrix may have."""
        return self.scale.floor

    @property
    def n_parameters(self) -> int:
        return self.scale.n_parameters + 1

    @property
    def prior_rows(self) -> float:
        return self.scale.prior_rows

    def row_cost(self, missing: bool) -> int:
        return self.scale.row_cost(missing) + 8 * self.n_components

    def at(self, location: Tensor) -> Self:
        return replace(self, scale=self.scale.at(location))

    # -- names: what belongs to the Gaussians begins with "scale." -------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {"dof": self.dof, **nested(self.scale.tensors(), _INNER)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        scale = self.scale.with_tensors(inside(tensors, _INNER))
        return replace(self, scale=scale, dof=tensors.get("dof", self.dof))

    def free(self) -> dict[str, Tensor]:
        return {"raw_dof": self._dof_share.logit(), **nested(self.scale.free(), _INNER)}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        dof = LEAST_DOF * (free["raw_dof"].sigmoid() * math.log(MOST_DOF / LEAST_DOF)).exp()
        return replace(self, dof=dof, scale=self.scale.from_free(inside(free, _INNER)))

    @property
    def _dof_share(self) -> Tensor:
        """(K,) where the degrees of freedom lie between their bounds, in logs: from 0 to 1."""
        share = (self.dof / LEAST_DOF).log() / math.log(MOST_DOF / LEAST_DOF)
        return share.clamp(_HAIR, 1.0 - _HAIR)

    # -- likelihood ------------------------------------------------------------------------------

    def _distances(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Squared distances of what is observed, and the Gaussians' log densities at their means,
        (n, K) each."""
        squared, peak = self.scale.distances(batch)
        return squared.clamp_min(0.0), peak

    def log_prob(self, batch: Batch) -> Tensor:
        return self._log_prob(batch, *self._distances(batch))

    def _log_prob(self, batch: Batch, squared: Tensor, peak: Tensor) -> Tensor:
        dof, size = self.dof.double(), _sizes(batch).double()
        whole = 0.5 * (dof + size)
        constant = torch.lgamma(whole) - torch.lgamma(0.5 * dof) - 0.5 * size * (0.5 * dof).log()
        whole, constant = (_by_row(batch, part.to(squared)) for part in (whole, constant))
        return peak + constant - whole * (squared / self.dof.to(squared)).log1p()

    # -- updates ---------------------------------------------------------------------------------

    def expectation(self, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """Distances serve both."""
        found, moments = self.scale.conditioned(batch)
        squared, peak = found[..., 0].clamp_min(0.0), found[..., 1]
        statistics = partial(self._statistics, batch, squared, moments)
        return self._log_prob(batch, squared, peak), statistics

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        return self.expectation(batch)[1](occupancy)

    def _statistics(
        self, batch: Batch, squared: Tensor, moments: Callable[..., Statistics], occupancy: Tensor
    ) -> Statistics:
        """Those of the Gaussians, rows weighted by E[w], and what tells the degrees of freedom.

        What is missing scatters around its mean as scale / w: weighted by w, as scale.
        """
        total = self.dof + _sizes(batch)
        weight = _by_row(batch, total) / (self.dof + squared)
        tail = weight - 1.0 - weight.log() + _by_row(batch, _gap(total))
        inner = moments(occupancy * weight, occupancy)
        return {
            "mass": occupancy.sum(0),
            "tail": (occupancy * tail).sum(0),
            **nested(inner, _INNER),
        }

    def own_statistics(self) -> Statistics:
        return self.spread_statistics(self.spread, self.location)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        """Imagined rows have the tails that the components have."""
        inner = self.scale.spread_statistics(reference, center)
        return {"mass": inner["mass"], "tail": _gap(self.dof), **nested(inner, _INNER)}

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        mass, tail = statistics["mass"], statistics["tail"]
        scale, valid = self.scale.maximize({**inside(statistics, _INNER), "rows": mass})
        return replace(self, scale=scale, dof=dof_of(tail / mass)), valid & (mass > 0) & (tail > 0)

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        mass, share = statistics["mass"], self._dof_share
        by_dof = 0.5 * (mass * _gap(self.dof) - statistics["tail"])
        rate = math.log(MOST_DOF / LEAST_DOF) * self.dof * share * (1.0 - share)
        inner = self.scale.slope({**inside(statistics, _INNER), "rows": mass})
        return {"raw_dof": by_dof * rate, **nested(inner, _INNER)}

    def center(self, statistics: Statistics) -> Tensor:
        return self.scale.center(inside(statistics, _INNER))

    @property
    def spread(self) -> Tensor:
        return self.scale.spread

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        """A prior is one of the scale matrices; of the degrees of freedom it says nothing."""
        return self.scale.spread_log_prob(reference)

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        return self.scale.spread_about(reference, center)

    # -- answers ---------------------------------------------------------------------------------

    def covariances(self) -> Tensor:
        return (self.dof / (self.dof - 2.0))[:, None, None] * self.scale.covariances()

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        drawn, mean = self.scale.sample(component, generator), self.location[component]
        level = rand(len(component), 1, generator).clamp_min(torch.finfo(torch.float64).tiny)
        half = 0.5 * self.dof.detach()[component, None].double().cpu()
        weight = torch.from_numpy(gammaincinv(half.numpy(), level.numpy())) / half
        return mean + (drawn - mean) / weight.sqrt().to(drawn)

    def expected(self, batch: Batch) -> Tensor:
        return self.scale.expected(batch)

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        """Each draw's own deviation from its regression, at the observed part's distance.

        Relative to sqrt(nu + delta) the deviation is independent of what is observed, so a draw
        given other values there has another delta and the same relative deviation.
        """
        if batch.observed is None:
            return batch.x
        drawn = drawn.to(batch.x.dtype)
        other = replace(batch, x=torch.where(batch.observed, drawn, 0.0))
        each = torch.arange(len(batch), device=component.device)
        reach, own = (
            (self.dof.to(drawn) + self._distances(rows)[0])[each, component, None]
            for rows in (batch, other)
        )
        around, mine = (self.scale.own_expected(rows, component) for rows in (batch, other))
        return torch.where(batch.observed, batch.x, around + (reach / own).sqrt() * (drawn - mine))


def _sizes(batch: Batch) -> Tensor:
    """Numbers of features that rows may have: none to D, (D + 1, 1); or D alone, (1, 1)."""
    n_features = batch.x.shape[1]
    sizes = torch.arange(n_features + 1, dtype=batch.x.dtype, device=batch.x.device)[:, None]
    return sizes[-1:] if batch.observed is None else sizes


def _by_row(batch: Batch, values: Tensor) -> Tensor:
    """What belongs to the number of features that each row has observed: (n, K), or (1, K)."""
    return values if batch.observed is None else values[batch.observed.sum(1)]


def _gap(dof: Tensor) -> Tensor:
    """log(nu / 2) - psi(nu / 2): E[w] - E[log w] - 1 of w ~ Gamma(nu / 2, nu / 2)."""
    return (0.5 * dof).log() - torch.digamma(0.5 * dof)


def dof_of(gap: Tensor) -> Tensor:
    """The degrees of freedom with that gap, which falls as they rise; the nearer bound if none.

    By Newton's method in logs, from where 1 / nu + 1 / (3 nu ** 2) is the gap.
    """
    gap = gap.clamp(*_gap(gap.new_tensor([MOST_DOF, LEAST_DOF])))
    log_dof = (0.5 * (1.0 + (1.0 + 4.0 / 3.0 * gap).sqrt()) / gap).log()
    for _ in range(_ROUNDS):
        half = 0.5 * log_dof.exp()
        found = half.log() - torch.digamma(half)
        rate = half * torch.polygamma(1, half) - 1.0
        log_dof = log_dof + (found / gap).log() * found / rate
    return log_dof.exp().clamp(LEAST_DOF, MOST_DOF)
