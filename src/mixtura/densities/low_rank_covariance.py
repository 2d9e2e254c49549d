"""Gaussians whose covariance is diagonal plus low rank: factor analyzers, with exact EM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.data.given import Setting
from mixtura.densities.base import Statistics, own_products, randn
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import NEGLIGIBLE, Expectation, n_rows, side_by_side, weight_per_row
from mixtura.densities.low_rank import LowRankForm, leading_eigenpairs
from mixtura.densities.patterns import Holes, PatternBlocks, in_order
from mixtura.densities.submatrices import factored
from mixtura.numerics import (
    Context,
    above_slope,
    compiles,
    is_positive_definite,
    log_det_lower,
    lower_inverse,
    quadratic_log_det,
    solve_lower,
    solve_posdef,
    stack_product,
)

#: Features, and numbers in all clusters, up to which covariances are factored as one stack.
_FEW_FEATURES, _FEW_NUMBERS = 64, 2_000_000
#: Numbers up to which all components count for all rows: to look for them would cost more.
_FEW = 20_000
#: Numbers of matrices of features that are worked on together.
_BLOCK = 100_000
#: Loadings from which kernels are worth compiling; factors at most: their matrix is in registers.
#: Numbers of an array at most: places in it are integers of 32 bits.
_COMPILED, _MOST_FACTORS, _MOST_NUMBERS = 100_000, 64, 2**31


@dataclass(frozen=True, kw_only=True)
class LowRankGaussian(LowRankForm):
    """Covariance = diagonal + low rank: a mixture of factor analyzers, with exact EM."""

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
        share = membership / membership.sum(0)
        if rank <= x.shape[1] <= _FEW_FEATURES and share.shape[1] * x.numel() <= _FEW_NUMBERS:
            scatter = (share.mT[:, None] * x.mT) @ x
            loading = leading_eigenpairs(scatter - mean[:, :, None] * mean[:, None], rank)
        else:
            centered = ((x - c) * s.sqrt()[:, None] for c, s in zip(mean, share.mT, strict=True))
            loading = torch.stack([_leading_directions(r, rank, generator) for r in centered])
        rest = variance - loading.square().sum(2)
        # Leave the features some variance of their own, or EM could never move it again.
        diagonal = rest.maximum(1e-2 * variance).clamp_min(floor)
        return cls(mean=mean, diagonal=diagonal, loading=loading, floor=floor, **options)

    @classmethod
    def from_full(cls, full: FullGaussian, rank: int) -> Self:
        """The leading eigenpairs of each covariance; the rest of its diagonal stays."""
        covariance = full.covariances()
        loading = leading_eigenpairs(covariance, rank)
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
            return self._differentiable(x).apply(*parts, x)
        weight, moment, constant, whitening, offset = (part.to(x.dtype) for part in self._natural)
        found = torch.addmm(constant, x, moment).addmm_(x.square(), weight, alpha=-0.5)
        latent = torch.addmm(offset, x, whitening).view(len(x), self.n_components, self.rank)
        norm = torch.linalg.vector_norm(latent, dim=2)
        return found.addcmul_(norm, norm, value=0.5)

    def _differentiable(self, x: Tensor) -> type[torch.autograd.Function]:
        """Log densities of complete rows and their gradient: by kernels, where these pay."""
        given, latent = self.loading.numel(), self.n_components * _MOST_FACTORS
        largest = max(given, x.numel(), latent * max(len(x), _MOST_FACTORS))
        fits = self.rank <= _MOST_FACTORS and len(x) > 0 and largest < _MOST_NUMBERS
        pays = fits and given >= _COMPILED
        if not pays or x.dtype != torch.float32 or not compiles(x.device):
            return _CompleteLogProb
        from mixtura.densities.low_rank_kernel import KernelLogProb  # Triton comes with CUDA alone

        return KernelLogProb

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

    def statistics(
        self, batch: Batch, occupancy: Tensor, scatter: Tensor | None = None
    ) -> Statistics:
        return self.expectation(batch)[1](occupancy, scatter)

    def _expectation_complete(self, x: Tensor) -> Expectation:
        """Latent factors, their covariances and determinants serve both."""
        parts = self.loading.to(x.dtype), self._weight.to(x.dtype), self.mean.to(x.dtype)
        log_prob, (squares, _, covariance, latent) = _complete_log_prob(*parts, x)
        return log_prob, partial(self._complete_sums, x, squares, covariance, latent)

    def _complete_sums(
        self,
        x: Tensor,
        squares: Tensor,
        covariance: Tensor,
        latent: Tensor,
        occupancy: Tensor,
        scatter: Tensor,
    ) -> Statistics:
        """Statistics of complete rows: latent factors (K, R, n) of covariance (K, R, R)."""
        share = occupancy.mT
        weighted, mass = latent * share[:, None], share.sum(1)
        second = stack_product(weighted, latent.mT) + scatter.sum(0)[:, None, None] * covariance
        return {
            "mass": mass,
            "first": share @ x,
            "second": share @ squares,
            "latent": weighted.sum(2),
            "latent_second": second,
            "cross": (weighted.flatten(0, 1) @ x).view(*weighted.shape[:2], -1).mT,
        }

    def _conditioned_masked(self, x: Tensor, holes: Holes) -> Expectation:
        """Rows stand last, so that work goes through all of them at once.

        Matrices of rows that share no pattern are inverted for statistics alone, of components that
        matter to the row.
        """
        if holes.are_shared:
            return self._conditioned_in_blocks(x, holes)
        sums = list(self._sums(x, holes.observed, holes.columns))
        gram, projected, squares = (
            in_order([(rows, found[part]) for rows, *found in sums]) for part in range(3)
        )
        gram, projected = gram.transpose(0, 1), projected.transpose(0, 1)  # (K, n, R, ...)
        inner, log_det = quadratic_log_det(gram, projected)
        seen, squared = holes.observed.to(x.dtype), squares - inner[..., 0].mT
        found = side_by_side(holes, squared, self._log_det_masked(seen, log_det.mT))
        matrices, vectors = gram.permute(2, 3, 0, 1), projected[..., 0].permute(2, 0, 1)

        def pairs(component: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            """Of so many rows under their components: covariances (R, R, A), and factors (R, A)."""
            own = factored(_picked(matrices, component, row).permute(2, 0, 1)).inverse
            own = own.permute(1, 2, 0)
            return own, (own * _picked(vectors, component, row)).sum(1)

        return found, partial(self._masked_sums, x, seen, holes, pairs)

    def _conditioned_in_blocks(self, x: Tensor, holes: Holes) -> Expectation:
        """Rows of one pattern share its factorization, and go through it together."""
        blocks = holes.blocks
        rows, seen = blocks.arrange(x), blocks.observed.to(x.dtype)  # (B, h, D), (B, D)
        sums = self._sums(rows[:, 0], blocks.observed)  # matrices do not depend on numbers
        matrices = factored(in_order([(at, gram) for at, gram, *_ in sums]).transpose(0, 1))
        flat, shape = rows.flatten(0, 1), (self.n_components, self.rank, *rows.shape[:2])
        projected = self._projected(flat, seen).view(shape).transpose(1, 2)  # (K, B, R, h)
        covariance = matrices.inverse.contiguous()
        latent = stack_product(covariance, projected)
        inner = (projected * latent).sum(2).flatten(1)
        squared = (self._weighted_distance(flat, seen) - inner.mT)[blocks.slot]
        log_det = self._log_det_masked(seen, matrices.log_det.mT)[blocks.slot // blocks.height]
        found = side_by_side(holes, squared, log_det)
        return found, partial(self._block_sums, rows, blocks, covariance, latent)

    def expectation_among(
        self, batch: Batch, among: Tensor
    ) -> tuple[Tensor, Callable[..., Statistics]]:
        return self._shared(batch, self._expectation_complete, self._expectation_among, among)

    def _expectation_among(self, x: Tensor, holes: Holes, among: Tensor) -> Expectation:
        """Each component goes through its own rows alone, unless rows share patterns."""
        few = among.numel() * self.rank**2 <= _FEW or self._table_is_large
        if few or holes.are_shared or 2 * int(among.sum()) > among.numel():
            return self._expectation_masked(x, holes)
        seen = holes.observed.to(x.dtype)
        component, row = among.mT.nonzero(as_tuple=True)
        both, parts = torch.cat([x, x.square()], 1), []
        own = row.split(among.sum(0).tolist())
        tables = (table.to(x.dtype) for table in self._tables)
        for mine, by_seen, by_x in zip(own, *tables, strict=True):
            parts.append(torch.cat([by_seen @ seen[mine].mT, by_x @ both[mine].mT]))
        sizes = [len(self._pack[0]), self.rank, 1, self.rank, 1]
        packed, shift, of_seen, projected, of_x = torch.cat(parts, 1).split(sizes)
        place = self._pack[2]
        gram = packed.index_select(0, place.flatten()).unflatten(0, place.shape)  # (R, R, A)
        gram.diagonal().add_(1.0)
        projected = projected - shift
        inner, log_det = quadratic_log_det(gram.permute(2, 0, 1), projected.mT[..., None])
        found = x.new_zeros(among.shape)
        found[row, component] = -0.5 * ((of_seen + of_x)[0] - inner[:, 0] + log_det)
        position = among.mT.flatten().cumsum(0).view(among.mT.shape) - 1

        def pairs(component: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            at = position[component, row]
            own = factored(gram[..., at].permute(2, 0, 1)).inverse.permute(1, 2, 0)
            return own, (own * projected[:, at]).sum(1)

        return found, partial(self._masked_sums, x, seen, holes, pairs)

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """What sums over observed features consist of, component by component.

        By what is observed, (K, R (R + 1) / 2 + R + 1, D): lower triangles of G, what the mean adds
        to u, and to minus twice the log density. By x and its squares, (K, R + 1, 2 D): u, and the
        same.
        """
        weight, moment = self._weight, self._weight * self.mean
        gram = self._gram_by_component
        shift = self._projected_mean.view(len(gram), self.rank, -1)
        constant = moment * self.mean - weight.log() + LOG_2PI
        linear = torch.cat([self._scaled.mT, -2.0 * moment[:, None]], 1)
        squares = torch.cat([torch.zeros_like(self._scaled.mT), weight[:, None]], 1)
        return torch.cat([gram, shift, constant[:, None]], 1), torch.cat([linear, squares], 2)

    def _masked_sums(
        self,
        x: Tensor,
        seen: Tensor,
        holes: Holes,
        pairs: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        occupancy: Tensor,
        scatter: Tensor,
    ) -> Statistics:
        """Statistics of rows with holes, each of which has its own pattern.

        Components that hardly matter to a row have no part in them: that is less than rounding.
        """
        share, around, hidden = occupancy.mT, scatter.mT, 1.0 - seen
        size = share.abs() + around.abs()
        matters = size > NEGLIGIBLE * size.max()
        if size.numel() * self.rank**2 <= _FEW:
            matters = torch.ones_like(matters)
        component, row = matters.nonzero(as_tuple=True)
        counts = matters.sum(1).tolist()
        covariance, latent = pairs(component, row)

        def sums(values: Tensor, table: Tensor) -> Tensor:
            """(K, L, C) values (L, A) times the rows (n, C) that they belong to."""
            if len(row) == size.numel():
                return values.view(-1, *size.shape).transpose(0, 1) @ table
            parts = zip(values.split(counts, 1), row.split(counts), strict=True)
            return torch.stack([part @ table[rows] for part, rows in parts])

        weighted, (rows, columns, _) = latent * share[component, row], self._pack
        second = covariance[rows, columns] * around[component, row]
        second = second.addcmul_(weighted[rows], latent[columns])  # (R (R+1) / 2, A)
        some, group = holes.columns
        table = torch.cat([1.0 - some.to(x.dtype), torch.ones_like(x[:, :1])], 1)
        every = torch.cat([group, group.new_full((1,), some.shape[1])])
        of_table, cross = sums(weighted, torch.cat([table, x], 1)).split(
            [table.shape[1], self.n_features], 2
        )
        moments = share.sum(1), share @ x, share @ x.square()
        unseen, total = (share @ hidden, around @ hidden), of_table[..., every]
        return self._expected_sums(moments, unseen, cross, total, sums(second, table), group)

    def _block_sums(
        self,
        rows: Tensor,
        blocks: PatternBlocks,
        covariance: Tensor,
        latent: Tensor,
        occupancy: Tensor,
        scatter: Tensor,
    ) -> Statistics:
        """Statistics of blocks of rows (B, h, D), each of which has one pattern.

        Latent factors (K, B, R, h) have covariances (K, B, R, R).
        """
        share, around = (blocks.by_component(each) for each in (occupancy, scatter))  # (K, B, h)
        around, flat = around.sum(2), rows.flatten(0, 1)
        weighted = latent * share[:, :, None]
        second = stack_product(weighted, latent.mT) + around[..., None, None] * covariance
        hidden = 1.0 - blocks.observed.to(flat.dtype)
        table = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)
        cross = weighted.transpose(1, 2).flatten(2) @ flat
        mass, share = share.sum(2), share.flatten(1)
        moments = mass.sum(1), share @ flat, share @ flat.square()
        unseen = mass @ hidden, around @ hidden
        (first, other, _), group = self._pack, torch.arange(self.n_features, device=flat.device)
        total, squares = weighted.sum(3).mT @ table, second[..., first, other].mT @ table
        return self._expected_sums(moments, unseen, cross, total, squares, group)

    def _expected_sums(
        self,
        moments: tuple[Tensor, Tensor, Tensor],
        unseen: tuple[Tensor, Tensor],
        cross: Tensor,
        total: Tensor,
        squares: Tensor,
        group: Tensor,
    ) -> Statistics:
        """What is missing is as latent factors tell, and scatters.

        Parameters
        ----------
        moments : rows (K,), sums (K, D) of x and of its squares, zero where missing.
        unseen : (K, D) rows that lack a feature, and of which it scatters.
        cross : (K, R, D) latent factors times x.
        total : (K, R, D + 1) latent factors of rows that lack a feature, and of all.
        squares : (K, R (R + 1) / 2, U + 1) likewise, products of these.
        group : (D,) which of the U differently missing columns each feature has.
        """
        (rows, first, second), (mass, around) = moments, unseen
        loading = self.loading.mT
        reach = (loading * total[..., :-1]).sum(1)
        of_loading = self._times_loading(squares, group)
        spread = self.mean.square() * mass + self.diagonal * around
        spread += 2.0 * self.mean * reach + (loading * of_loading).sum(1)
        return {
            "mass": rows,
            "first": first + self.mean * mass + reach,
            "second": second + spread,
            "latent": total[..., -1],
            "latent_second": squares[..., -1][:, self._pack[2]],
            "cross": (cross + self.mean[:, None] * total[..., :-1] + of_loading).mT,
        }

    def _times_loading(self, squares: Tensor, group: Tensor) -> Tensor:
        """Of each feature, symmetric matrices of `_expected_sums` times its loading: (K, R, D).

        Of few components at a time, so that whole matrices need not leave the cache.
        """
        place, at_once = self._pack[2], max(1, _BLOCK // (self.rank * self.loading[0].numel()))
        parts = []
        for own, loading in zip(
            squares[..., :-1].split(at_once), self.loading.mT.split(at_once), strict=True
        ):
            every = own if own.shape[2] == len(group) else own[..., group]
            matrices = every.index_select(1, place.flatten()).unflatten(1, place.shape)
            parts.append(matrices.mul_(loading[:, None]).sum(2))
        return torch.cat(parts)

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
        by_diagonal = residual / self.diagonal - n_rows(statistics)[:, None]
        by_diagonal = 0.5 * by_diagonal / self.diagonal
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


def _picked(values: Tensor, component: Tensor, row: Tensor) -> Tensor:
    """(..., A) of values (..., K, n) those of so many pairs; as they are, if these are all."""
    flat, size = values.flatten(-2), values.shape[-1]
    return flat if len(row) == flat.shape[-1] else flat[..., component * size + row]


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


def _leading_directions(rows: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Leading right singular vectors times singular values, (D, rank), by subspace iteration."""
    guess = randn(rows.shape[1], min(rank + 8, rows.shape[1]), like=rows, generator=generator)
    for _ in range(6):
        guess = torch.linalg.qr(rows.mT @ (rows @ guess)).Q
    _, values, vectors = torch.linalg.svd(rows @ guess, full_matrices=False)
    directions = guess @ vectors.mT * values
    padding = directions.new_zeros(rows.shape[1], max(0, rank - directions.shape[1]))
    return torch.cat([directions[:, :rank], padding], 1)
