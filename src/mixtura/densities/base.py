"""What a density is: a stack of K densities of one kind, evaluated together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from mixtura.data import Batch

Statistics = dict[str, Tensor]

#: Dimensions of a Sobol sequence that are used, and how far its points stay from the border.
_MOST_EVEN, _EDGE = 1_000, 1e-12


def add_statistics(*parts: Statistics) -> Statistics:
    """Statistics are additive: over chunks, over machines, over real and imagined rows."""
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[-1]}


def scale_statistics(statistics: Statistics, factor: Tensor) -> Statistics:
    """Each component's statistics times its own factor (K,)."""
    return {
        name: value * factor.view(-1, *[1] * (value.ndim - 1)) for name, value in statistics.items()
    }


@dataclass(frozen=True, kw_only=True)
class Density(ABC):
    """K densities of one kind, over vectors or over sequences.

    A density is immutable; training makes new ones. Every tensor that `tensors` names has K as its
    first dimension, which is all that stacking, selecting and storing need to know.
    """

    #: Whether `statistics` and `maximise` exist: EM and extended Baum-Welch need them.
    closed_form: ClassVar[bool] = True

    @property
    def n_components(self) -> int:
        return self.location.shape[0]

    @property
    def n_features(self) -> int:
        return self.location.shape[-1]

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Degrees of freedom of one component."""

    @property
    def prior_rows(self) -> float:
        """Imagined rows that are enough for a prior of the spread to matter."""
        return 3.0

    @abstractmethod
    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory for one row (or frame): what the size of a chunk is chosen by."""

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same kind of density with other parameters."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    def select(self, index: Tensor) -> Self:
        """The components at `index`, as a stack of their own."""
        return self.with_tensors({name: value[index] for name, value in self.tensors().items()})

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Another device or floating type; laid out as in a file, so that bits do not differ."""
        moved = {
            name: value.to(*args, **kwargs).contiguous() for name, value in self.tensors().items()
        }
        return self.with_tensors(moved)

    @staticmethod
    def stack(parts: list[Density]) -> Density:
        """One stack of all the components of several."""
        named = [part.tensors() for part in parts]
        joined = {name: torch.cat([tensors[name] for tensors in named]) for name in named[0]}
        return parts[0].with_tensors(joined)

    @abstractmethod
    def log_prob(self, batch: Any) -> Tensor:
        """Log density of rows under every component, (n, K), missing features integrated out."""

    def log_peak(self) -> Tensor:
        """Log density of each component at its own location, (K,)."""
        where = self.location
        rows = Batch(where, None, where.new_zeros(len(where)).long(), where.new_ones(len(where)))
        return self.log_prob(rows).diagonal()

    @abstractmethod
    def statistics(self, batch: Any, occupancy: Tensor) -> Statistics:
        """Expected sufficient statistics weighted by (signed) occupancies (n, K)."""

    @property
    @abstractmethod
    def location(self) -> Tensor:
        """Where the components lie, (K, ..., D)."""

    @property
    @abstractmethod
    def spread(self) -> Tensor:
        """What a prior of the covariances acts on, (K, ...): variances, or whole covariances."""

    @property
    def typical_spread(self) -> Tensor:
        """The mean spread of all components (and states)."""
        return self.spread.flatten(0, self.location.ndim - 2).mean(0)

    @abstractmethod
    def spread_log_prob(self, reference: Tensor) -> Tensor:
        """Mean log density (up to a constant) of rows of that spread around each location, (K,)."""

    @abstractmethod
    def spread_statistics(self, reference: Tensor, centre: Tensor) -> Statistics:
        """What one row of spread `reference` around each `centre` would contribute."""

    @abstractmethod
    def centre(self, statistics: Statistics) -> Tensor:
        """Where the rows of each component lie, as `location`; that itself where it has no rows."""

    @abstractmethod
    def own_statistics(self) -> Statistics:
        """What one row drawn from each component would contribute on average.

        `maximise(own_statistics())` is the density itself: adding a multiple of it to the
        statistics of the data damps an update, which is extended Baum-Welch.
        """

    @abstractmethod
    def maximise(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """The density of highest likelihood, and whether each component's update is valid (K,)."""

    @abstractmethod
    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters, for gradients."""

    @abstractmethod
    def from_free(self, free: dict[str, Tensor]) -> Self:
        """The density of unconstrained parameters; positive definite by construction."""

    @abstractmethod
    def covariances(self) -> Tensor:
        """Dense covariances (K, ..., D, D), for looking at."""

    @abstractmethod
    def sample(self, component: Tensor, generator: torch.Generator, **options: Any) -> Tensor:
        """One row from each of the given components (n,)."""

    @abstractmethod
    def fill(self, batch: Any, share: Tensor) -> Tensor:
        """Conditional mean of what is missing under the components' shares (n, K) of each row."""

    def complete(self, batch: Any, component: Tensor, generator: torch.Generator) -> Tensor:
        """A draw of what is missing from the given component (n,) of each row."""
        return self.agree(batch, component, self.sample(component, generator))

    def agree(self, batch: Any, component: Tensor, drawn: Tensor) -> Tensor:
        """Draws (n, D) of whole rows made to agree with what is observed: draws given that."""
        raise NotImplementedError(f"{type(self).__name__} has no draws of single rows.")


@dataclass(frozen=True, kw_only=True)
class VectorDensity(Density):
    """K densities over D features.

    Attributes
    ----------
    mean : (K, D).
    floor : smallest variance (in the model's units) any component may have.
    """

    mean: Tensor
    floor: float

    @property
    def location(self) -> Tensor:
        return self.mean

    @classmethod
    @abstractmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        **options: Any,
    ) -> VectorDensity:
        """A start: the moments of weighted clusters of complete rows, membership (n, K)."""

    def log_prob(self, batch: Batch) -> Tensor:
        if batch.observed is None:
            return self._log_prob_complete(batch.x)
        complete = batch.observed.all(1)
        if not complete.any():
            return self._log_prob_masked(batch.x, batch.observed)
        full, holes = complete.nonzero().flatten(), (~complete).nonzero().flatten()
        known = self._log_prob_complete(batch.x[full])
        if not len(holes):
            return known
        marginal = self._log_prob_masked(batch.x[holes], batch.observed[holes])
        return (
            known.new_zeros(len(batch), self.n_components)
            .index_copy(0, full, known)
            .index_copy(0, holes, marginal)
        )

    @abstractmethod
    def _log_prob_complete(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_prob_masked(self, x: Tensor, observed: Tensor) -> Tensor: ...

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        if batch.observed is None:
            return self._statistics_complete(batch.x, occupancy)
        complete = batch.observed.all(1)
        holes = ~complete
        parts = []
        if complete.any():
            parts.append(self._statistics_complete(batch.x[complete], occupancy[complete]))
        if holes.any():
            incomplete = batch.x[holes], batch.observed[holes], occupancy[holes]
            parts.append(self._statistics_masked(*incomplete))
        return add_statistics(*parts)

    @abstractmethod
    def _statistics_complete(self, x: Tensor, occupancy: Tensor) -> Statistics: ...

    @abstractmethod
    def _statistics_masked(self, x: Tensor, observed: Tensor, occupancy: Tensor) -> Statistics: ...

    def centre(self, statistics: Statistics) -> Tensor:
        mass = statistics["mass"][:, None]
        return torch.where(mass > 0, statistics["first"] / mass, self.mean)

    def own_statistics(self) -> Statistics:
        return self.spread_statistics(self.spread, self.mean)

    @abstractmethod
    def expected(self, batch: Batch) -> Tensor:
        """Conditional mean of every row given its observed entries, (n, K, D)."""

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        return torch.einsum("nk,nkd->nd", share, self.expected(batch))

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        """Each draw, shifted by the regression of what it missed of the observed part.

        Matheron's rule: exact for Gaussians, and no conditional covariance is formed.
        """
        if batch.observed is None:
            return batch.x
        drawn = drawn.to(batch.x.dtype)
        missed = replace(batch, x=torch.where(batch.observed, batch.x - drawn, 0.0))
        centred = self.with_tensors({**self.tensors(), "mean": torch.zeros_like(self.mean)})
        shifted = drawn.clone()
        for k in component.unique():
            mine = (component == k).nonzero().flatten()
            shifted[mine] += centred.select(k[None]).expected(missed.take(mine))[:, 0]
        return torch.where(batch.observed, batch.x, shifted)


def own_products(matrix: Tensor, component: Tensor, vectors: Tensor) -> Tensor:
    """(n, D) each vector of (n, R) times the matrix (K, D, R) of its component, (n,).

    No matrix is copied for every row.
    """
    found = vectors.new_empty(len(vectors), matrix.shape[1])
    for k in component.unique():
        mine = (component == k).nonzero().flatten()
        found[mine] = vectors[mine] @ matrix[k].mT
    return found


Kind = TypeVar("Kind", bound=Density)


def keep_valid(old: Kind, new: Kind, valid: Tensor) -> Kind:
    """The new components where their update is valid, the old ones elsewhere."""
    if valid.all():
        return new
    before, after = old.tensors(), new.tensors()
    mixed = {
        name: torch.where(valid.view(-1, *[1] * (after[name].ndim - 1)), after[name], before[name])
        for name in after
    }
    return old.with_tensors(mixed)


class Even(torch.Generator):
    """Evenly spread numbers in place of random ones: scrambled Sobol points, over and over.

    Every `count` rows are the same points, and every call has dimensions of its own; those beyond
    the first thousand are random. A mean over the rows is closer to the integral.
    """

    def __new__(cls, count: int, seed: int) -> Self:
        return super().__new__(cls)

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed, self._used = count, seed, 0
        self.manual_seed(seed)

    def rand(self, n: int, size: int) -> Tensor:
        """(n, size), above zero and below one."""
        first, self._used = self._used, self._used + size
        points = torch.rand(self._count, size, dtype=torch.float64, generator=self)
        if self._used <= _MOST_EVEN:
            sobol = torch.quasirandom.SobolEngine(self._used, scramble=True, seed=self._seed)
            points = sobol.draw(self._count, dtype=torch.float64)[:, first:]
        return points.clamp(_EDGE, 1.0 - _EDGE).repeat(-(-n // self._count), 1)[:n]


def rand(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Numbers between zero and one, (n, size)."""
    if isinstance(generator, Even):
        return generator.rand(n, size)
    return torch.rand(n, size, dtype=torch.float64, generator=generator)


def randn(*shape: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers; drawn on the CPU, so that a seed means the same on every device."""
    if isinstance(generator, Even):
        size = math.prod(shape[1:])
        return torch.special.ndtri(generator.rand(shape[0], size)).view(shape).to(like)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(like)


@dataclass(frozen=True)
class PatternBlocks:
    """Rows arranged into equally tall blocks that share one pattern of observed features.

    Work that depends only on the pattern is then done once a block, without a loop over patterns;
    at most half the slots stay empty, whatever the patterns.
    """

    observed: Tensor  # (B, D) bool
    slot: Tensor  # (n,) place of each row among the B * height slots
    height: int

    @classmethod
    def of(cls, observed: Tensor) -> PatternBlocks:
        patterns, inverse, counts = torch.unique(
            observed, dim=0, return_inverse=True, return_counts=True
        )
        height = math.ceil(len(observed) / max(len(patterns), 1))
        n_blocks = (counts + height - 1) // height
        first_block = n_blocks.cumsum(0) - n_blocks
        first_row = counts.cumsum(0) - counts
        order = inverse.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first_row[inverse[order]]
        slot = (first_block[inverse] + rank // height) * height + rank % height
        return cls(patterns.repeat_interleave(n_blocks, 0), slot, height)

    def arrange(self, rows: Tensor) -> Tensor:
        """(n, ...) -> (B, height, ...), zeros in empty slots."""
        n_blocks = len(self.observed)
        flat = rows.new_zeros(n_blocks * self.height, *rows.shape[1:])
        return flat.index_copy(0, self.slot, rows).view(n_blocks, self.height, *rows.shape[1:])

    def restore(self, blocks: Tensor) -> Tensor:
        """(B, height, ...) -> (n, ...)."""
        return blocks.flatten(0, 1)[self.slot]
