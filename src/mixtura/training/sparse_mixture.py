"""A discriminative mixture with few weights: its likelihood, derivatives and evidence on rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.models.mixture import Layout
from mixtura.numerics import floor_spectrum, log_det_lower, logsumexp, lower_inverse

Chunks = Iterable[tuple[slice, Tensor]]

#: A column so small beside the largest is what rounding left of a constant.
_NOTHING = 1e-14
#: Numbers in a chunk of columns, and in all that are kept.
_CHUNK, KEPT = 2**22, 2**26
#: Weights whose products with all later ones are summed in one go: half the matrix is not needed.
_PANEL = 256


@dataclass(frozen=True)
class Examples:
    """Training rows.

    Attributes
    ----------
    columns : (rows, columns) -> values of these columns of phi for these rows.
    n_columns : how many columns there are.
    y : (n,) class of each row.
    cluster : (n,) component, among all, from which each row starts.
    weight : (n,) positive weights.
    layout : components of each class.
    """

    columns: Callable[[slice | Tensor, Tensor], Tensor]
    n_columns: int
    y: Tensor
    cluster: Tensor
    weight: Tensor
    layout: Layout

    def some(self, count: int) -> Examples:
        """About so many rows, a share of each cluster, that weigh as much as all."""
        if len(self.y) <= count:
            return self
        # Cluster by cluster, so that neither the order of the rows nor that of the classes matters.
        order, sizes = self.cluster.argsort(stable=True), self.cluster.bincount()
        first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        step = -(-len(self.y) // max(1, count))
        rows = order[(torch.arange(len(order), device=order.device) - first) % step == 0]
        weight = self.weight[rows] * (self.weight.sum() / self.weight[rows].sum())
        return replace(
            self,
            columns=lambda part, columns: self.columns(rows[part], columns),
            y=self.y[rows],
            cluster=self.cluster[rows],
            weight=weight,
        )

    def chunks(self, columns: Tensor, scale: Tensor) -> Chunks:
        """Slices of the rows, and the scaled columns there; kept where they are not too many."""
        chunks = _Columns(self, columns, scale)
        return list(chunks) if len(self.y) * len(columns) <= KEPT else chunks

    def memberships(self, like: Tensor) -> Tensor:
        """(n, K) one where a row starts from a component, zero elsewhere."""
        return torch.nn.functional.one_hot(self.cluster, self.layout.n_components).to(like)

    def root_mean_square(self) -> Tensor:
        """(H,) size of each column, one for columns of nothing but zeros and rounding."""
        ones = self.weight.new_ones(self.n_columns)
        every = torch.arange(self.n_columns, device=ones.device)
        total = torch.zeros_like(ones)
        for rows, values in _Columns(self, every, ones):
            total += self.weight[rows] @ values.square()
        size = (total / self.weight.sum()).sqrt()
        return torch.where(size > _NOTHING * size.max(), size, ones)


@dataclass(frozen=True)
class _Columns:
    """Columns that are computed anew whenever they are looked through."""

    examples: Examples
    columns: Tensor
    scale: Tensor

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        size = max(1, _CHUNK // max(1, len(self.columns)))
        for start in range(0, len(self.examples.y), size):
            rows = slice(start, start + size)
            values = self.examples.columns(rows, self.columns).T / self.scale[self.columns, None]
            yield rows, values.contiguous().T


@dataclass(frozen=True)
class SparseMixture:
    """Live weights, ascending by component.

    Attributes
    ----------
    layout : components of each class.
    log_share : (K,) log pi; minus infinity for a component that has died.
    component, column : (L,) what each weight belongs to.
    weight, precision : (L,) most probable value, and precision of the prior.
    """

    layout: Layout
    log_share: Tensor
    component: Tensor
    column: Tensor
    weight: Tensor
    precision: Tensor

    def keep(self, which: Tensor) -> SparseMixture:
        """The same model with a part of its weights."""
        return replace(
            self,
            component=self.component[which],
            column=self.column[which],
            weight=self.weight[which],
            precision=self.precision[which],
        )

    def compact(self) -> SparseMixture:
        """The same function of fewer components.

        The dead are gone, and those of a class that have lost all their weights are one.
        """
        weighty = set(self.component.tolist())
        alive = self.log_share.isfinite()
        groups: list[list[int]] = []
        counts = []
        for label in range(self.layout.n_classes):
            own = torch.nonzero(alive & (self.layout.owner == label)).flatten().tolist()
            kept = [[k] for k in own if k in weighty]
            rest = [k for k in own if k not in weighty]
            groups += [*kept, rest] if rest else kept
            counts.append(len(kept) + bool(rest))
        place = torch.zeros_like(self.layout.owner)
        for new, group in enumerate(groups):
            place[group] = new
        return replace(
            self,
            layout=Layout(counts, place.device),
            log_share=torch.stack([self.log_share[group].logsumexp(0) for group in groups]),
            component=place[self.component],
        )

    def log_proba(self, values: Tensor) -> Tensor:
        """log p(c, m | x), (n, K), from the values (n, L) of the live columns."""
        spread = values.new_zeros(len(self.weight), self.layout.n_components)
        spread[torch.arange(len(self.weight)), self.component] = self.weight
        return (self.log_share + values @ spread).log_softmax(1)


@dataclass(frozen=True)
class Slope:
    """log p(labels | x), its gradient, and what each component explains of the rows, (K,)."""

    value: Tensor
    gradient: Tensor
    mass: Tensor


def slope(model: SparseMixture, examples: Examples, chunks: Chunks) -> Slope:
    """Log-likelihood and its gradient `(r - p) phi`, summed over rows."""
    value, mass = model.weight.new_zeros(()), torch.zeros_like(model.log_share)
    gradient = model.weight.new_zeros(len(mass), len(model.weight))
    for rows, values in chunks:
        weight, log_proba = examples.weight[rows], model.log_proba(values)
        elsewhere = examples.y[rows, None] != model.layout.owner
        own = log_proba.masked_fill(elsewhere, -math.inf)
        per_row = logsumexp(own, 1)
        shares = (own - per_row[:, None]).exp()
        value += weight @ per_row
        mass += weight @ shares
        gradient += ((shares - log_proba.exp()) * weight[:, None]).T @ values
    return Slope(value, gradient.gather(0, model.component[None])[0], mass)


def information(model: SparseMixture, examples: Examples, chunks: Chunks) -> Tensor:
    """Minus the Hessian with the components' shares fixed: sum of `p (delta - p') phi phi^T`."""
    count, blocks = len(model.weight), _blocks(model)
    total = model.weight.new_zeros(count, count)
    within = [model.weight.new_zeros(b.stop - b.start, b.stop - b.start) for b in blocks]
    for rows, values in chunks:
        root = examples.weight[rows].sqrt()
        proba = model.log_proba(values).exp() * root[:, None]
        expected = proba.T[model.component] * values.T
        for start in range(0, count, _PANEL):
            panel = slice(start, start + _PANEL)
            total[start:, panel] -= expected[start:] @ expected[panel].T
        # A difference of sums would lose 1 - p beside p.
        for own, block in zip(within, blocks, strict=True):
            own += (values.T[block] * root - expected[block]) @ expected[block].T
    for own, block in zip(within, blocks, strict=True):
        total[block, block] = own
    return total.tril() + total.tril(-1).T


def _blocks(model: SparseMixture) -> list[slice]:
    """Where the weights of each component lie."""
    ends = torch.bincount(model.component).cumsum(0).tolist() if len(model.weight) else []
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False) if b > a]


@dataclass(frozen=True)
class Laplace:
    """The Gaussian that approximates the posterior of the weights.

    The components' shares of each row are held fixed, as in the paper: with several components a
    class the curvature is too high, evidence and deviations are too low. Everything is in units of
    each weight's prior deviation, in which no eigenvalue of the negative Hessian is below one.
    """

    deviation: Tensor
    factor: Tensor

    @classmethod
    def at(cls, model: SparseMixture, hessian: Tensor) -> Laplace:
        """From minus the Hessian of the log-likelihood."""
        deviation = model.precision.rsqrt()
        scaled = hessian * deviation[:, None] * deviation
        # Beside huge entries the one is lost to rounding, so what rounding takes comes on top.
        rounding = len(scaled) * torch.finfo(scaled.dtype).eps * scaled.diagonal().sum()
        scaled.diagonal().add_(1.0 + rounding)
        factor, failed = torch.linalg.cholesky_ex(scaled)
        if failed:  # rows of very uneven weights: their sums have lost more than that
            floor = 1.0 + float(rounding)
            factor = torch.linalg.cholesky(floor_spectrum(scaled[None], floor)[0])
        return cls(deviation, factor)

    def solve(self, gradient: Tensor) -> Tensor:
        """The Newton step."""
        right = (self.deviation * gradient)[:, None]
        return self.deviation * torch.cholesky_solve(right, self.factor)[:, 0]

    def root(self) -> Tensor:
        """(L, L), whose product with its transpose is the covariance of the weights."""
        return (lower_inverse(self.factor) * self.deviation).T

    def evidence(self, model: SparseMixture, log_likelihood: Tensor) -> Tensor:
        """log p(labels), the weights integrated out."""
        penalty = model.precision @ model.weight.square()
        return log_likelihood - 0.5 * (penalty + log_det_lower(self.factor))
