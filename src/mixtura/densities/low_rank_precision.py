"""Gaussians whose precision is diagonal plus low rank: trained by gradients alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.given import Setting
from mixtura.densities.base import own_products, randn
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.low_rank import LowRankForm, leading_eigenpairs
from mixtura.numerics import (
    above,
    above_inverse,
    floor_spectrum,
    lower_inverse,
    quadratic_log_det,
    solve_lower,
    solve_posdef,
    times_transposed,
)

#: Smallest diagonal of a precision; and the least share of a variance that is left where its floor
#: is taken off.
_LEAST, _HAIR = 1e-6, 1e-6


@dataclass(frozen=True, kw_only=True)
class LowRankPrecision(LowRankForm):
    """Precision = diagonal + low rank: spends its rank on the directions of least variance.

    The floor bounds every direction: free parameters are those of the covariance less `floor` in
    every direction, which has the same structure (`_with_variance`).
    """

    closed_form: ClassVar[bool] = False
    _sign: ClassVar[float] = 1.0
    _over_observed: ClassVar[bool] = False

    @classmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        *,
        rank: int = 1,
        **options: Setting,
    ) -> Self:
        return cls.from_full(FullGaussian.from_clusters(x, membership, floor, generator), rank)

    @classmethod
    def from_full(cls, full: FullGaussian, rank: int) -> Self:
        """The leading eigenpairs of each precision; the rest of its diagonal stays.

        Diagonal and low rank together can exceed the precision they were taken from, so the floor
        is added to the covariance.
        """
        half = lower_inverse(full.factor)
        precision = half.mT @ half
        loading = leading_eigenpairs(precision, rank)
        rest = precision.diagonal(dim1=1, dim2=2) - loading.square().sum(2)
        diagonal, loading = _with_variance(rest.clamp_min(_LEAST), loading, full.floor)
        return cls(mean=full.mean, diagonal=diagonal, loading=loading, floor=full.floor)

    def free(self) -> dict[str, Tensor]:
        diagonal, loading = _with_variance(self.diagonal, self.loading, -self.floor)
        return {
            "mean": self.mean,
            "raw_diagonal": above_inverse(_LEAST, diagonal),
            "loading": loading.mT.contiguous(),
        }

    def from_free(self, free: dict[str, Tensor]) -> Self:
        diagonal = above(_LEAST, free["raw_diagonal"])
        diagonal, loading = _with_variance(diagonal, free["loading"].mT, self.floor)
        return self.with_tensors({"mean": free["mean"], "diagonal": diagonal, "loading": loading})

    @property
    def _weight(self) -> Tensor:
        return self.diagonal

    @property
    def _projection(self) -> Tensor:
        return self.loading

    @property
    def _response(self) -> Tensor:
        return -self._scaled

    def _log_det_all(self) -> Tensor:
        nothing = torch.zeros_like(self._gram_all[..., :1])
        return quadratic_log_det(self._gram_all, nothing)[1]

    def _log_det_masked(self, seen: Tensor, gram_log_det: Tensor) -> Tensor:
        diagonal = seen @ self.diagonal.log().mT.to(seen.dtype)
        return gram_log_det - self._log_det_all().to(seen.dtype) - diagonal

    def _log_prob_complete(self, x: Tensor) -> Tensor:
        inner = self._projected(x, None).square().sum(1).mT
        log_det = (self._log_det_all() + self.diagonal.log().sum(1)).to(x.dtype)
        distance = self._weighted_distance(x, None) + inner
        return -0.5 * (distance - log_det + self.n_features * LOG_2PI)

    @property
    def spread(self) -> Tensor:
        return self.diagonal.reciprocal()

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return -0.5 * (reference * self.diagonal - self.diagonal.log()).sum(1)

    def _times_covariance(self, rows: Tensor, component: Tensor) -> Tensor:
        """Sigma y for one row and component each, by Woodbury."""
        inner = own_products(solve_posdef(self._gram_all, self._scaled.mT), component, rows)
        return rows / self.diagonal[component] - own_products(self._scaled, component, inner)

    def covariances(self) -> Tensor:
        inner = torch.linalg.solve(self._gram_all, self._scaled.mT)
        return torch.diag_embed(self.diagonal.reciprocal()) - self._scaled @ inner

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        """Draw from N(0, precision), then multiply by the covariance."""
        n = len(component)
        latent = randn(n, self.rank, like=self.mean, generator=generator)
        noise = randn(n, self.n_features, like=self.mean, generator=generator)
        structured = own_products(self.loading, component, latent)
        drawn = structured + self.diagonal[component].sqrt() * noise
        return self.mean[component] + self._times_covariance(drawn, component)


def _with_variance(diagonal: Tensor, loading: Tensor, amount: float) -> tuple[Tensor, Tensor]:
    """The precision A + S S^T once `amount` is added to the covariance in every direction.

    With V = (I + amount A)^-1 and L L^T = I + amount S^T V S it is A V + (V S L^-T) (V S L^-T)^T.
    A negative amount undoes it; a covariance that has no more than that is lifted by a hair.
    """
    share = 1.0 / (1.0 + amount * diagonal).clamp_min(_HAIR)
    shared = loading * share[..., None]
    eye = torch.eye(loading.shape[2], dtype=loading.dtype, device=loading.device)
    gram = eye + amount * times_transposed(loading.mT, shared.mT)
    factor = torch.linalg.cholesky_ex(gram if amount > 0 else floor_spectrum(gram, _HAIR)).L
    return diagonal * share, solve_lower(factor, shared.mT).mT
