"""Gaussian components whose covariance, or precision, is diagonal plus low rank.

Both forms hold a diagonal `a` (K, D) and a loading `S` (K, D, R); with `G_d = s_d s_d^T / a_d`
(R x R, one per feature) everything that depends on a row's pattern of observed features is a sum of
`G_d` over one side of the pattern:

covariance `A + S S^T`: over the **observed** side, `B = I + sum G_d`; with `u = sum s_d r_d / a_d`
    squared distance = `sum r_d^2 / a_d - u^T B^-1 u`, log determinant = `sum log a_d + log det B`;
precision `A + S S^T`: over the **missing** side, `B = I + sum G_d`; with `u = sum s_d r_d`
    squared distance = `sum a_d r_d^2 + u^T B^-1 u`,
    log determinant of the covariance = `log det B - log det B_all - sum log a_d`,

where `r` is the deviation from the mean and sums without a side run over observed features. No
D x D matrix appears anywhere. Where few features are missing, or few observed, the sums run over
these few, and over the others by their difference from all; else they come from one matrix product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import Statistics, add_statistics, own_products, randn
from mixtura.densities.gaussian import FullGaussian, Gaussian, weight_per_row
from mixtura.densities.patterns import of_equal_size
from mixtura.numerics import (
    LOG_2PI,
    Context,
    above,
    above_inverse,
    above_slope,
    floor_spectrum,
    is_positive_definite,
    log_det_lower,
    lower_inverse,
    quadratic_log_det,
    solve_lower,
    solve_posdef,
    stack_product,
    times_transposed,
    tri_pack_index,
)

#: Smallest diagonal of a precision; and the least share of a variance that is left where its floor
#: is taken off.
_LEAST, _HAIR = 1e-6, 1e-6
#: Sums run over one side of a pattern if it has at most this share of the features, and if a
#: product over all of them would have so many terms; sides are padded to multiples of a step.
_FEW = {torch.float64: 0.35, torch.float32: 0.15}
_SMALL, _STEP = 100_000, 8


@dataclass(frozen=True, kw_only=True)
class _LowRankGaussian(Gaussian):
    """What the two forms share."""

    diagonal: Tensor  # (K, D), positive
    loading: Tensor  # (K, D, R)

    #: How u^T B^-1 u enters the squared distance.
    _sign: ClassVar[float]
    #: The side of a pattern that B sums over: the observed one, or the missing one.
    _over_observed: ClassVar[bool]

    @property
    def rank(self) -> int:
        return self.loading.shape[2]

    @property
    def n_parameters(self) -> int:
        rotations = self.rank * (self.rank - 1) // 2
        return self.n_features * (2 + self.rank) - rotations

    def row_cost(self, missing: bool) -> int:
        holes = 3 * self.rank**2 + self.n_features if missing else 0
        return 2 * self.n_features + self.n_components * (3 * self.rank + holes)

    @property
    @abstractmethod
    def _weight(self) -> Tensor:
        """Diagonal part of the precision, (K, D)."""

    @property
    @abstractmethod
    def _projection(self) -> Tensor:
        """What maps deviations to u, (K, D, R)."""

    @property
    @abstractmethod
    def _response(self) -> Tensor:
        """How missing features follow B^-1 u, (K, D, R)."""

    @abstractmethod
    def _log_det_masked(self, seen: Tensor, gram_log_det: Tensor) -> Tensor:
        """Log determinant of the covariance of the observed features, (n, K)."""

    @cached_property
    def _scaled(self) -> Tensor:
        """S / a, (K, D, R)."""
        return self.loading / self.diagonal[..., None]

    @cached_property
    def _gram_all(self) -> Tensor:
        """B over all features, (K, R, R)."""
        return times_transposed(self.loading.mT, self._scaled.mT) + self._eye

    @property
    def _eye(self) -> Tensor:
        return torch.eye(self.rank, dtype=self.mean.dtype, device=self.mean.device)

    @property
    def _pack(self) -> tuple[Tensor, Tensor, Tensor]:
        return tri_pack_index(self.rank, self.mean.device)

    @cached_property
    def _gram_table(self) -> Tensor:
        """Lower triangles of every G_d, (D, K * R (R+1) / 2)."""
        rows, columns, _ = self._pack
        table = self.loading[..., rows] * self._scaled[..., columns]
        return table.permute(1, 0, 2).flatten(1)

    def _sums(
        self, x: Tensor, observed: Tensor
    ) -> Iterator[tuple[Tensor | None, Tensor, Tensor, Tensor]]:
        """Rows (m,), and of these B (m, K, R, R), u (m, K, R, 1), the sum of weight r^2 (m, K).

        None stands for all rows.
        """
        if self._product_is_better(x):
            gram, projected, squares = self._sums_by_product(x, observed)
            yield None, gram, projected[..., None], squares
            return
        size = observed.sum(1)
        few = torch.minimum(size, self.n_features - size) <= _FEW[x.dtype] * self.n_features
        lacks_few = 2 * size >= self.n_features
        ways = (
            (few & lacks_few, self._sums_over_missing),
            (few & ~lacks_few, self._sums_over_observed),
            (~few, self._sums_by_product),
        )
        for mine, function in ways:
            rows = mine.nonzero().flatten()
            rows = rows[size[rows].argsort()]  # as `_gathered` wants them
            if len(rows):
                gram, projected, squares = function(x[rows], observed[rows])
                yield rows, gram.to(x.dtype), projected[..., None].to(x.dtype), squares.to(x.dtype)

    def _sums_by_product(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Over all features, the others of which count zero: one matrix product, with gradients."""
        seen = observed.to(x.dtype)
        packed = (seen if self._over_observed else 1.0 - seen) @ self._gram_table.to(x.dtype)
        place = self._pack[2]
        packed = packed.view(len(x), self.n_components, -1)
        gram = packed.gather(2, place.flatten().expand(*packed.shape[:2], -1))
        gram = gram.unflatten(2, place.shape) + self._eye.to(x.dtype)
        return gram, self._projected(x, seen).permute(2, 0, 1), self._weighted_distance(x, seen)

    def _sums_over_observed(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Over the observed features, if these are few."""
        gram, projected, squares = self._gathered(observed, x.double())
        return self._with_eye(gram, observed=True), projected, squares

    def _sums_over_missing(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Over all features with zeros for what is missing, less those over the missing ones."""
        gram, projected, squares = self._gathered(~observed, None)
        projected = projected + self._projected(x.double(), None).permute(2, 0, 1)
        squares = self._weighted_distance(x.double(), None) - squares
        return self._with_eye(gram, observed=False), projected, squares

    def _with_eye(self, gram: Tensor, *, observed: bool) -> Tensor:
        """B (m, K, R, R) by sums (K, m, R, R) of G over the observed or the missing features."""
        own = observed == self._over_observed
        return (gram + self._eye if own else self._gram_all[:, None] - gram).transpose(0, 1)

    def _product_is_better(self, x: Tensor) -> bool:
        """Whether one product serves whatever the patterns: matrices are small, or on a GPU, or
        gradients are to be recorded."""
        small = self.n_features * self.rank**2 < _SMALL
        parts = x, *self.tensors().values()
        traced = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
        return small or traced or x.device.type != "cpu"

    @cached_property
    def _rooted(self) -> Tensor:
        """S / sqrt(a), and the mean and one times sqrt(weight), (K, D + _STEP, R + 2), in double.

        Products of the columns, summed over features, are what sums over a side consist of. Of rows
        that stand for no feature all is zero.
        """
        root = self._weight.sqrt()[..., None]
        columns = self.loading / self.diagonal.sqrt()[..., None], self.mean[..., None] * root, root
        return torch.nn.functional.pad(torch.cat(columns, 2).double(), (0, 0, 0, _STEP))

    def _gathered(self, side: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over a side (n, D) of G (K, n, R, R), of S / a (or S) times r, of weight times r^2.

        r = x - mean; the mean itself without x. Only what is on the side is read and multiplied.
        Rows come in the order of the size of their side, so that equal sizes stand together.
        """
        found = np.zeros((self.n_components, len(side), self.rank + 1, self.rank + 1))
        groups = []
        for rows, columns in of_equal_size(side, _STEP):
            values = None if x is None else _padded(x[rows]).gather(1, columns).numpy()
            part = np.empty((*columns.shape, self.rank + 2))
            groups.append((slice(int(rows[0]), int(rows[-1]) + 1), columns.numpy(), values, part))
        for table, mine in zip(self._rooted.numpy(), found, strict=True):
            for span, place, values, part in groups:
                table.take(place, 0, out=part, mode="clip")
                if values is not None:
                    part[..., -2] = values * part[..., -1] - part[..., -2]
                own = part[..., :-1]
                np.matmul(own.swapaxes(1, 2), own, out=mine[span])  # symmetric: half the work
        sums = torch.from_numpy(found)
        by_row = sums[..., -1].transpose(0, 1)
        return sums[..., :-1, :-1], by_row[..., :-1], by_row[..., -1]

    def _weighted_distance(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """sum over observed features of weight * r^2, (n, K)."""
        weight, moment = self._weight, self._weight * self.mean
        constant = (moment * self.mean).to(x.dtype)
        total = constant.sum(1) if seen is None else seen @ constant.mT
        return total - 2.0 * x @ moment.mT.to(x.dtype) + x.square() @ weight.mT.to(x.dtype)

    def _projected(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """u of every row, component-major: (K, R, n)."""
        projection = self._projection_rows.to(x.dtype)
        if seen is None:
            mean = self.mean[..., None].to(x.dtype)
            shift = (projection.view(-1, self.rank, self.n_features) @ mean).flatten(0, 1)
        else:
            shift = self._projected_mean.to(x.dtype) @ seen.mT
        return (projection @ x.mT - shift).view(self.n_components, self.rank, len(x))

    @cached_property
    def _projection_rows(self) -> Tensor:
        """What maps deviations to u, component by component, (K R, D)."""
        return self._projection.mT.flatten(0, 1)

    @cached_property
    def _projected_mean(self) -> Tensor:
        """What each feature of the mean adds to u, (K R, D)."""
        return self._projection_rows * self.mean.repeat_interleave(self.rank, 0)

    def _marginal(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for rows, gram, projected, squares in self._sums(x, observed):
            inner, log_det = quadratic_log_det(gram, projected)
            found.append((rows, torch.stack([squares + self._sign * inner[..., 0], log_det])))
        squared, log_det = _in_order(found, 1)
        return squared, self._log_det_masked(observed.to(x.dtype), log_det)

    def free(self) -> dict[str, Tensor]:
        return {
            "mean": self.mean,
            "raw_diagonal": above_inverse(self.floor, self.diagonal),
            "loading": self.loading.mT.contiguous(),  # (K, R, D): projections need no copy
        }

    def from_free(self, free: dict[str, Tensor]) -> Self:
        diagonal = above(self.floor, free["raw_diagonal"])
        return self.with_tensors(
            {"mean": free["mean"], "diagonal": diagonal, "loading": free["loading"].mT}
        )

    def expected(self, batch: Batch) -> Tensor:
        if batch.observed is None:
            return batch.x[:, None].expand(-1, self.n_components, -1)
        dtype = batch.x.dtype
        sums = self._sums(batch.x, batch.observed)
        found = [(rows, solve_posdef(gram, projected)) for rows, gram, projected, _ in sums]
        latent = _in_order(found)[..., 0]
        filled = self.mean.to(dtype) + torch.einsum(
            "nkr,kdr->nkd", latent, self._response.to(dtype)
        )
        return torch.where(batch.observed[:, None], batch.x[:, None], filled)


@dataclass(frozen=True, kw_only=True)
class LowRankGaussian(_LowRankGaussian):
    """Covariance = diagonal + low rank: a mixture of factor analysers, with exact EM."""

    explicit: ClassVar[bool] = True
    _sign: ClassVar[float] = -1.0
    _over_observed: ClassVar[bool] = True

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
        mass = membership.sum(0)[:, None]
        mean = membership.mT @ x / mass
        variance = membership.mT @ x.square() / mass - mean.square()
        loading = torch.stack(
            [
                _leading_directions((x - center) * (share / total).sqrt()[:, None], rank, generator)
                for center, share, total in zip(mean, membership.mT, mass, strict=True)
            ]
        )
        rest = variance - loading.square().sum(2)
        # Leave the features some variance of their own, or EM could never move it again.
        diagonal = rest.maximum(1e-2 * variance).clamp_min(floor)
        return cls(mean=mean, diagonal=diagonal, loading=loading, floor=floor, **options)

    @classmethod
    def from_full(cls, full: FullGaussian, rank: int) -> Self:
        """The leading eigenpairs of each covariance; the rest of its diagonal stays."""
        covariance = full.covariances()
        loading = _leading_eigenpairs(covariance, rank)
        rest = covariance.diagonal(dim1=1, dim2=2) - loading.square().sum(2)
        diagonal = rest.clamp_min(full.floor)
        return cls(mean=full.mean, diagonal=diagonal, loading=loading, floor=full.floor)

    @property
    def _weight(self) -> Tensor:
        return self.diagonal.reciprocal()

    @property
    def _projection(self) -> Tensor:
        return self._scaled

    @property
    def _response(self) -> Tensor:
        return self.loading

    def _log_det_masked(self, seen: Tensor, gram_log_det: Tensor) -> Tensor:
        return gram_log_det + seen @ self.diagonal.log().mT.to(seen.dtype)

    def _log_prob_complete(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.loading.requires_grad:
            parts = (part.to(x.dtype) for part in (self.loading, self._weight, self.mean))
            return _CompleteLogProb.apply(*parts, x)
        weight, moment, constant, whitening, offset = (part.to(x.dtype) for part in self._natural)
        found = torch.addmm(constant, x, moment).addmm_(x.square(), weight, alpha=-0.5)
        latent = torch.addmm(offset, x, whitening).view(len(x), self.n_components, self.rank)
        norm = torch.linalg.vector_norm(latent, dim=2)
        return found.addcmul_(norm, norm, value=0.5)

    @cached_property
    def _natural(self) -> tuple[Tensor, ...]:
        """Of log densities, the factors of x^2 and x (D, K) and constants (K,).

        And what makes latent factors of variance one of a row, (D, K R) and (K R,).
        """
        weight, factor = self._weight, torch.linalg.cholesky_ex(self._gram_all).L
        whitening = solve_lower(factor, self._scaled.mT)  # (K, R, D)
        offset = -(whitening @ self.mean[..., None]).flatten()
        moment = weight * self.mean
        constant = (moment * self.mean - weight.log() + LOG_2PI).sum(1) + log_det_lower(factor)
        return weight.mT, moment.mT, -0.5 * constant, whitening.flatten(0, 1).mT, offset

    def expectation(self, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """Latent factors, their covariances and determinants serve both."""
        if batch.observed is None:
            return self._expectation_complete(batch.x)
        whole = batch.observed.all(1)
        if not whole.any():
            return self._expectation_masked(batch.x, batch.observed)
        full, holes = whole.nonzero().flatten(), (~whole).nonzero().flatten()
        known, of_known = self._expectation_complete(batch.x[full])
        if not len(holes):
            return known, of_known
        marginal, of_marginal = self._expectation_masked(batch.x[holes], batch.observed[holes])
        log_prob = known.new_empty(len(batch), self.n_components)
        log_prob[full], log_prob[holes] = known, marginal
        return log_prob, lambda share: add_statistics(
            of_known(share[full]), of_marginal(share[holes])
        )

    def _expectation_complete(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        parts = self.loading.to(x.dtype), self._weight.to(x.dtype), self.mean.to(x.dtype)
        log_prob, (squares, _, covariance, latent) = _complete_log_prob(*parts, x)
        return log_prob, partial(self._complete_sums, x, squares, covariance, latent)

    def _statistics_complete(
        self, x: Tensor, occupancy: Tensor, scatter: Tensor | None = None
    ) -> Statistics:
        covariance = torch.linalg.inv(self._gram_all).to(x.dtype)
        latent = stack_product(covariance, self._projected(x, None))
        return self._complete_sums(x, x.square(), covariance, latent, occupancy, scatter)

    def _complete_sums(
        self,
        x: Tensor,
        squares: Tensor,
        covariance: Tensor,
        latent: Tensor,
        occupancy: Tensor,
        scatter: Tensor | None = None,
    ) -> Statistics:
        """Statistics of complete rows: latent factors (K, R, n) of covariance (K, R, R)."""
        share = occupancy.mT
        weighted, mass = latent * share[:, None], share.sum(1)
        spread = mass if scatter is None else scatter.sum(0)
        second = stack_product(weighted, latent.mT) + spread[:, None, None] * covariance
        return {
            "mass": mass,
            "first": share @ x,
            "second": share @ squares,
            "latent": weighted.sum(2),
            "latent_second": second,
            "cross": (weighted.flatten(0, 1) @ x).view(*weighted.shape[:2], -1).mT,
        }

    def _expectation_masked(
        self, x: Tensor, observed: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        covariance, latent, squared, log_det = self._latent(x, observed)
        seen = observed.to(x.dtype)
        constant = self._log_det_masked(seen, log_det) + LOG_2PI * seen.sum(1, keepdim=True)
        return -0.5 * (squared + constant), partial(self._masked_sums, x, seen, covariance, latent)

    def _statistics_masked(
        self, x: Tensor, observed: Tensor, occupancy: Tensor, scatter: Tensor
    ) -> Statistics:
        covariance, latent, _, _ = self._latent(x, observed)
        seen = observed.to(x.dtype)
        return self._masked_sums(x, seen, covariance, latent, occupancy, scatter)

    def _latent(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Covariances (n, K, R, R) and means (n, K, R) of the latent factors of rows with holes.

        And squared distances (n, K), and log det B (n, K).
        """
        rows, grams, parts, squares = zip(*self._sums(x, observed), strict=True)

        def ordered(values: tuple[Tensor, ...]) -> Tensor:
            return _in_order(list(zip(rows, values, strict=True)))

        factor, projected = torch.linalg.cholesky_ex(ordered(grams)).L, ordered(parts)
        half = lower_inverse(factor)
        covariance = stack_product(half.mT, half)
        latent = covariance @ projected
        squared = ordered(squares) - (projected * latent).sum((2, 3))
        return covariance, latent[..., 0], squared, log_det_lower(factor)

    def _masked_sums(
        self,
        x: Tensor,
        seen: Tensor,
        covariance: Tensor,
        latent: Tensor,
        occupancy: Tensor,
        scatter: Tensor | None = None,
    ) -> Statistics:
        """Statistics of rows with holes, by their latent factors."""
        scatter = occupancy if scatter is None else scatter
        weighted = occupancy[..., None] * latent
        weighted_second = weighted[..., :, None] * latent[..., None, :]
        weighted_second = weighted_second + scatter[..., None, None] * covariance
        visible = {
            "mass": occupancy.sum(0),
            "first": occupancy.mT @ x,
            "second": occupancy.mT @ x.square(),
            "latent": weighted.sum(0),
            "latent_second": weighted_second.sum(0),
            "cross": torch.einsum("nd,nkr->kdr", x, weighted),
        }
        return add_statistics(
            visible, self._hidden(1.0 - seen, occupancy, scatter, weighted, weighted_second)
        )

    def _hidden(
        self,
        hidden: Tensor,
        occupancy: Tensor,
        scatter: Tensor,
        weighted: Tensor,
        weighted_second: Tensor,
    ) -> Statistics:
        """Expected contributions of the missing features, given the latent factors of each row."""
        rows, columns, place = self._pack
        mass = occupancy.mT @ hidden  # (K, D)
        latent = torch.einsum("nd,nkr->kdr", hidden, weighted)
        lower = (rows * self.rank + columns).expand(*weighted.shape[:2], -1)
        packed = hidden.mT @ weighted_second.flatten(2).gather(2, lower).flatten(1)
        packed = packed.view(self.n_features, self.n_components, -1).transpose(0, 1)
        spread = torch.einsum("kdt,kdt->kd", packed, self._doubled_outer(rows, columns))
        reach = (self.loading * latent).sum(2)
        second_loading = torch.einsum("kdrs,kds->kdr", packed[..., place], self.loading)
        own = self.mean.square() * mass + self.diagonal * (scatter.mT @ hidden)
        zero = {name: torch.zeros_like(value) for name, value in self.own_statistics().items()}
        return {
            **zero,
            "first": self.mean * mass + reach,
            "second": own + 2.0 * self.mean * reach + spread,
            "cross": self.mean[..., None] * latent + second_loading,
        }

    def _doubled_outer(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Packed s_d s_d^T whose inner product with a packed symmetric matrix is s^T M s."""
        twice = torch.where(rows == columns, 1.0, 2.0).to(self.mean)
        return self.loading[..., rows] * self.loading[..., columns] * twice

    @property
    def spread(self) -> Tensor:
        return self.diagonal

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return -0.5 * (self.diagonal.log() + reference / self.diagonal).sum(1)

    def center(self, statistics: Statistics) -> Tensor:
        """As seen without the part that the latent factors explain."""
        explained = (self.loading @ statistics["latent"][..., None])[..., 0]
        return super().center({**statistics, "first": statistics["first"] - explained})

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        """Rows whose part outside the low rank has the given variances."""
        return {
            "mass": torch.ones_like(center[:, 0]),
            "first": center,
            "second": reference + self.loading.square().sum(2) + center.square(),
            "latent": torch.zeros_like(self.loading[:, 0]),
            "latent_second": self._eye.expand(self.n_components, -1, -1),
            "cross": self.loading,
        }

    def _regression(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Moments (K, R + 1, R + 1) of latent factors and a constant; (K, D, R + 1) with x."""
        mass, latent = statistics["mass"][:, None, None], statistics["latent"][..., None]
        above = torch.cat([statistics["latent_second"], latent], 2)
        moments = torch.cat([above, torch.cat([latent.mT, mass], 2)], 1)
        return moments, torch.cat([statistics["cross"], statistics["first"][..., None]], 2)

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        moments, cross = self._regression(statistics)
        coefficients = torch.cat([self.loading, self.mean[..., None]], 2)
        short = cross - coefficients @ moments
        residual = statistics["second"] - (coefficients * (cross + short)).sum(2)
        by_diagonal = 0.5 * (residual / self.diagonal - statistics["mass"][:, None]) / self.diagonal
        by_coefficients = short / self.diagonal[..., None]
        return {
            "mean": by_coefficients[..., -1],
            "raw_diagonal": by_diagonal * above_slope(self.floor, self.diagonal),
            "loading": by_coefficients[..., :-1].mT,
        }

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """Regress every feature on the latent factors and a constant, all at once."""
        mass, (moments, cross) = statistics["mass"][:, None, None], self._regression(statistics)
        valid = (mass[:, 0, 0] > 0) & is_positive_definite(moments.nan_to_num())
        moments = torch.where(valid[:, None, None], moments, torch.eye(self.rank + 1).to(mass))
        coefficients = solve_posdef(moments, cross.mT).mT  # (K, D, R + 1)
        residual = statistics["second"] - (coefficients * cross).sum(2)
        diagonal = residual / mass[:, :, 0] * weight_per_row(statistics)
        valid = valid & (diagonal > -0.5 * self.floor).all(1)
        updated = {
            "mean": coefficients[..., -1],
            "diagonal": diagonal.clamp_min(self.floor),
            "loading": coefficients[..., :-1].contiguous(),
        }
        return self.with_tensors(updated), valid

    def covariances(self) -> Tensor:
        return torch.diag_embed(self.diagonal) + self.loading @ self.loading.mT

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        n = len(component)
        latent = randn(n, self.rank, like=self.mean, generator=generator)
        noise = randn(n, self.n_features, like=self.mean, generator=generator)
        structured = own_products(self.loading, component, latent)
        return self.mean[component] + structured + self.diagonal[component].sqrt() * noise


@dataclass(frozen=True, kw_only=True)
class LowRankPrecision(_LowRankGaussian):
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
        loading = _leading_eigenpairs(precision, rank)
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


def _complete_log_prob(
    loading: Tensor, weight: Tensor, mean: Tensor, x: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(n, K) log densities of complete rows, and what their gradient needs again."""
    scaled = loading.mT * weight[:, None]  # (K, R, D)
    moment, squares = weight * mean, x.square()
    gram = stack_product(scaled, loading)
    gram.diagonal(dim1=1, dim2=2).add_(1.0)
    factor = torch.linalg.cholesky_ex(gram).L
    half = lower_inverse(factor)
    inverse = stack_product(half.mT, half)
    shift = scaled @ mean[..., None]
    projected = (scaled.flatten(0, 1) @ x.mT).view(*shift.shape[:2], len(x)).sub_(shift)
    latent = stack_product(inverse, projected)  # (K, R, n)
    constant = (moment * mean - weight.log()).sum(1) + log_det_lower(factor)
    distance = torch.addmm(constant + x.shape[1] * LOG_2PI, squares, weight.mT)
    distance.addmm_(x, moment.mT, alpha=-2.0).sub_(projected.mul_(latent).sum(1).mT)
    return distance.mul_(-0.5), (squares, scaled, inverse, latent)


def _in_order(parts: list[tuple[Tensor | None, Tensor]], dim: int = 0) -> Tensor:
    """Values of all rows, in order: each part has some rows (m,) and theirs along `dim`."""
    rows = [rows for rows, _ in parts if rows is not None]
    values = torch.cat([values for _, values in parts], dim) if rows else parts[0][1]
    return values.index_select(dim, torch.cat(rows).argsort()) if rows else values


def _padded(x: Tensor) -> Tensor:
    """(n, D + _STEP) zeros beside rows."""
    return torch.nn.functional.pad(x, (0, _STEP))


class _CompleteLogProb(torch.autograd.Function):
    """Log density of complete rows under covariance A + S S^T, with the gradient written out.

    Tensors of the size of S, and launches of small operations, dominate a training step: the
    closed form passes over the former a handful of times and needs few of the latter, where
    automatic differentiation would keep and add up several copies.
    """

    @staticmethod
    def forward(ctx: Context, loading: Tensor, weight: Tensor, mean: Tensor, x: Tensor) -> Tensor:
        found, kept = _complete_log_prob(loading, weight, mean, x)
        ctx.save_for_backward(loading, weight, mean, x, *kept)
        return found

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        loading, weight, mean, x, squares, scaled, inverse, latent = ctx.saved_tensors
        mass = grad.mT @ torch.ones_like(x[:, :1])  # (K, 1): faster than a sum over rows
        pull = latent * grad.mT[:, None]
        total = pull.sum(2, keepdim=True)  # (K, R, 1)
        by_gram = torch.addcmul(stack_product(pull, latent.mT), inverse, mass[..., None])
        by_factors = stack_product(by_gram.mul_(-0.5), loading.mT)  # (K, R, D)
        by_scaled = (
            (pull.flatten(0, 1) @ x).view_as(scaled).addcmul_(total, mean[:, None], value=-1)
        )
        by_scaled.add_(by_factors)
        pulled = grad.mT @ x
        first = torch.addcmul(pulled, mass, mean, value=-1)  # sum of grad * (x - mean)
        second = torch.addcmul(grad.mT @ squares, mean, pulled.add_(first), value=-1)
        grad_weight = (by_scaled * loading.mT).sum(1).add_(0.5 * (mass / weight - second))
        grad_mean = torch.addcmul(-(total.mT @ scaled)[:, 0], weight, first)
        grad_loading = by_scaled.add_(by_factors).mul_(weight[:, None]).mT
        return grad_loading, grad_weight, grad_mean, None


def _leading_eigenpairs(matrix: Tensor, rank: int) -> Tensor:
    """Leading eigenvectors times the roots of their eigenvalues, (K, D, rank)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors[..., -rank:] * values[..., None, -rank:].clamp_min(0.0).sqrt()


def _leading_directions(rows: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Leading right singular vectors times singular values, (D, rank), by subspace iteration."""
    guess = randn(rows.shape[1], min(rank + 8, rows.shape[1]), like=rows, generator=generator)
    for _ in range(6):
        guess = torch.linalg.qr(rows.mT @ (rows @ guess)).Q
    _, values, vectors = torch.linalg.svd(rows @ guess, full_matrices=False)
    directions = guess @ vectors.mT * values
    padding = directions.new_zeros(rows.shape[1], max(0, rank - directions.shape[1]))
    return torch.cat([directions[:, :rank], padding], 1)
