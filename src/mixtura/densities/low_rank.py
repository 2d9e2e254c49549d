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
these few, and over the others by their difference from all; else they come from one matrix product,
unless the table that it needs is too large to keep.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mixtura.data.batch import Batch
from mixtura.densities.base import own_products
from mixtura.densities.gaussian import Gaussian
from mixtura.densities.patterns import Holes, distinct_patterns, in_order
from mixtura.densities.submatrices import of_equal_size
from mixtura.numerics import (
    above,
    above_inverse,
    quadratic_log_det,
    solve_posdef,
    times_transposed,
    tri_pack_index,
)

#: Sums run over one side of a pattern if it has at most this share of the features, and if a
#: product over all of them would have so many terms; sides are padded to multiples of a step.
_FEW = {torch.float64: 0.35, torch.float32: 0.15}
_SMALL, _STEP = 100_000, 8
#: Numbers of the table that such products need, up to which a density keeps it (64 MB).
_KEPT = 8_000_000
#: What is added to the identity and makes no difference to it.
_IDLE = 1e-12


@dataclass(frozen=True, kw_only=True)
class LowRankForm(Gaussian):
    """What the two forms share: log densities, means given what is observed, free parameters."""

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

    def without_idle(self) -> Self:
        """The same densities by fewer factors, where some reach no feature of any component.

        Classes of fewer rows than the rank have such factors. Steps by the slope of these rows' log
        density leave them where they are: by a loading of next to nothing it is next to nothing.
        """
        rank = max(1, int((self._reach > _IDLE).sum(1).max()))
        if rank == self.rank:
            return self
        loading = self.loading.gather(2, self._leading(rank))
        return self.with_tensors({**self.tensors(), "loading": loading})

    def beside_idle(self, whole: Self) -> Self:
        """What has become of `whole.without_idle()`, with the factors that it was without."""
        if self.rank == whole.rank:
            return self
        loading = whole.loading.to(self.loading)
        loading = loading.scatter(2, whole._leading(self.rank), self.loading)
        return self.with_tensors({**self.tensors(), "loading": loading})

    @property
    def _reach(self) -> Tensor:
        """(K, R) what each factor adds to B."""
        return (self.loading * self._scaled).sum(1)

    def _leading(self, rank: int) -> Tensor:
        """(K, D, rank) places of the factors that reach farthest."""
        order = self._reach.sort(dim=1, descending=True, stable=True).indices
        return order[:, None, :rank].expand(-1, self.n_features, -1)

    @property
    def _eye(self) -> Tensor:
        return torch.eye(self.rank, dtype=self.mean.dtype, device=self.mean.device)

    @property
    def _pack(self) -> tuple[Tensor, Tensor, Tensor]:
        return tri_pack_index(self.rank, self.mean.device)

    @cached_property
    def _gram_table(self) -> Tensor:
        """Lower triangles of every G_d, (R (R+1) / 2 * K, D)."""
        rows, columns, _ = self._pack
        left, right = self.loading.permute(2, 0, 1), self._scaled.permute(2, 0, 1)
        return (left.index_select(0, rows) * right.index_select(0, columns)).flatten(0, 1)

    @property
    def _gram_by_component(self) -> Tensor:
        """The same, component by component, (K, R (R + 1) / 2, D)."""
        return self._gram_table.view(-1, *self.mean.shape).transpose(0, 1)

    @property
    def _table_is_large(self) -> bool:
        return self.n_features * self.n_components * len(self._pack[0]) > _KEPT

    def _sums(
        self, x: Tensor, observed: Tensor, columns: tuple[Tensor, Tensor] | None = None
    ) -> Iterator[tuple[Tensor | slice, Tensor, Tensor, Tensor]]:
        """Rows (m,), and of these B (m, K, R, R), u (m, K, R, 1), the sum of weight r^2 (m, K).

        `columns` are those of `Holes`.
        """
        if self._product_is_better(x):
            gram, projected, squares = self._sums_by_product(x, observed, columns)
            yield slice(None), gram, projected[..., None], squares
            return
        size = observed.sum(1)
        share = 0.5 if self._table_is_large else _FEW[x.dtype]
        few = torch.minimum(size, self.n_features - size) <= share * self.n_features
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

    def _sums_by_product(
        self, x: Tensor, observed: Tensor, columns: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Over all features, the others of which count zero: one matrix product, with gradients."""
        seen, table = observed.to(x.dtype), self._gram_table.to(x.dtype)
        side = seen
        if columns is not None and columns[0].shape[1] < seen.shape[1]:
            side = columns[0].to(x.dtype)
            table = table.new_zeros(len(table), side.shape[1]).index_add(1, columns[1], table)
        packed = table @ (side if self._over_observed else 1.0 - side).mT
        place = self._pack[2]
        gram = packed.view(-1, self.n_components * len(x)).index_select(0, place.flatten())
        gram = gram.view(*place.shape, self.n_components, len(x))
        gram.diagonal().add_(1.0)
        projected = self._projected(x, seen).permute(2, 0, 1)
        return gram.permute(3, 2, 0, 1), projected, self._weighted_distance(x, seen)

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
        small = self.n_features * self.rank**2 < _SMALL and not self._table_is_large
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
        return pad(torch.cat(columns, 2).double(), (0, 0, 0, _STEP))

    def _gathered(self, side: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over a side (n, D) of G (K, n, R, R), of S / a (or S) times r, of weight times r^2.

        r = x - mean; the mean itself without x. Only what is on the side is read and multiplied.
        Rows come in the order of the size of their side, so that equal sizes stand together.
        """
        found = np.zeros((self.n_components, len(side), self.rank + 1, self.rank + 1))
        groups = []
        for rows, columns in of_equal_size(side, _STEP):
            values = None if x is None else pad(x[rows], (0, _STEP)).gather(1, columns).numpy()
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
        """sum over observed features of weight * r^2, (n, K).

        `seen` tells what is observed of each row, or of each of as many rows one after another.
        """
        weight, moment = self._weight, self._weight * self.mean
        constant = (moment * self.mean).to(x.dtype)
        total = constant.sum(1) if seen is None else _per_row(seen @ constant.mT, len(x), 0)
        return total - 2.0 * x @ moment.mT.to(x.dtype) + x.square() @ weight.mT.to(x.dtype)

    def _projected(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """u of every row, component-major: (K, R, n); `seen` likewise."""
        projection = self._projection_rows.to(x.dtype)
        if seen is None:
            mean = self.mean[..., None].to(x.dtype)
            shift = (projection.view(-1, self.rank, self.n_features) @ mean).flatten(0, 1)
        else:
            shift = _per_row(self._projected_mean.to(x.dtype) @ seen.mT, len(x), 1)
        return (projection @ x.mT - shift).view(self.n_components, self.rank, len(x))

    @cached_property
    def _projection_rows(self) -> Tensor:
        """What maps deviations to u, component by component, (K R, D)."""
        return self._projection.mT.flatten(0, 1)

    @cached_property
    def _projected_mean(self) -> Tensor:
        """What each feature of the mean adds to u, (K R, D)."""
        return self._projection_rows * self.mean.repeat_interleave(self.rank, 0)

    def _marginal(self, x: Tensor, holes: Holes) -> tuple[Tensor, Tensor]:
        found = []
        for rows, gram, projected, squares in self._sums(x, holes.observed):
            inner, log_det = quadratic_log_det(gram, projected)
            found.append((rows, torch.stack([squares + self._sign * inner[..., 0], log_det])))
        squared, log_det = in_order(found, 1)
        return squared, self._log_det_masked(holes.observed.to(x.dtype), log_det)

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

    def _expected_masked(self, batch: Batch, observed: Tensor) -> Tensor:
        sums, dtype = self._sums(batch.x, observed), batch.x.dtype
        found = [(rows, solve_posdef(gram, projected)) for rows, gram, projected, _ in sums]
        latent, response = in_order(found)[..., 0], self._response.to(dtype)
        return self.mean.to(dtype) + torch.einsum("nkr,kdr->nkd", latent, response)

    def own_expected(self, batch: Batch, component: Tensor) -> Tensor:
        """What rows have of their pattern and component alone is found once for all of them."""
        if batch.observed is None:
            return batch.x
        patterns, place = distinct_patterns(batch.observed)
        kinds, kind = (place * self.n_components + component).unique(return_inverse=True)
        if self._table_is_large:
            return super().own_expected(batch, component)
        inverse = self._own_inverse(patterns[kinds // self.n_components], kinds % self.n_components)
        mean = self.mean.to(batch.x.dtype)[component]
        away = torch.where(batch.observed, batch.x - mean, 0.0)
        projected = own_products(self._projection.mT.to(away.dtype), component, away)
        latent = (inverse.to(away.dtype)[kind] @ projected[..., None])[..., 0]
        found = mean + own_products(self._response.to(away.dtype), component, latent)
        return torch.where(batch.observed, batch.x, found)

    def _own_inverse(self, observed: Tensor, component: Tensor) -> Tensor:
        """B^-1 of patterns (m, D) under one component each, (m, R, R)."""
        side = (observed if self._over_observed else ~observed).to(self.mean.dtype)
        packed = own_products(self._gram_by_component, component, side)
        return torch.cholesky_inverse(
            torch.linalg.cholesky_ex(packed[:, self._pack[2]] + self._eye).L
        )


def _per_row(values: Tensor, n_rows: int, dim: int) -> Tensor:
    """Values of so many rows, where each may stand for as many, one after another."""
    times = n_rows // values.shape[dim]
    return values if times == 1 else values.repeat_interleave(times, dim)


def leading_eigenpairs(matrix: Tensor, rank: int) -> Tensor:
    """Leading eigenvectors times the roots of their eigenvalues, (K, D, rank)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors[..., -rank:] * values[..., None, -rank:].clamp_min(0.0).sqrt()
