"""What a density is: a stack of K densities of one kind, evaluated together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device, Setting
from mixtura.data.sequences import AnyBatch
from mixtura.exceptions import UnsupportedError
from mixtura.parts import storable

Statistics = dict[str, Tensor]
Value = TypeVar("Value")
#: What a density is asked about: `Batch`, or `SequenceBatch`.

#: Dimensions of a Sobol sequence that are used, and how far its points stay from the border.
_MOST_EVEN, _EDGE = 1_000, 1e-12
#: Numbers of copied matrices per component that take as long as a look for its rows.
_COPIED = 16_000


def add_statistics(*parts: Statistics) -> Statistics:
    """Statistics are additive: over chunks, over machines, over real and imagined rows."""
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[-1]}


def scale_statistics(statistics: Statistics, factor: Tensor) -> Statistics:
    """Each component's statistics times its own factor (K,)."""
    return {
        name: value * factor.view(-1, *[1] * (value.ndim - 1)) for name, value in statistics.items()
    }


def nested(inner: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """What a part holds by name, as the whole names it."""
    return {prefix + name: value for name, value in inner.items()}


def inside(named: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """The other way round; other names are left out."""
    own = (name for name in named if name.startswith(prefix))
    return {name.removeprefix(prefix): named[name] for name in own}


def numbered(inner: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The same of several parts: names of part 1 begin with "1."."""
    parts = [nested(own, f"{number}.") for number, own in enumerate(inner)]
    return {name: value for own in parts for name, value in own.items()}


def outward(inner: dict[str, Tensor], shape: torch.Size, prefix: str) -> dict[str, Tensor]:
    """What a stack (K * S, ...) of a stack (K, S) holds by name, as (K, S, ...)."""
    return {name: value.unflatten(0, shape) for name, value in nested(inner, prefix).items()}


def inward(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The other way round; other names are left out."""
    return {name: value.flatten(0, 1) for name, value in inside(named, prefix).items()}


@storable
@dataclass(frozen=True, kw_only=True)
class Density(ABC, Generic[AnyBatch]):
    """K densities of one kind, over vectors or over sequences.

    A new kind writes `location`, `log_prob`, `sample`, `free` and `from_free`, and is trained by
    gradients; EM's M step goes by gradients too. Where statistics have a closed form, `statistics`,
    `own_statistics` and `maximize` (and `closed_form = True`) make that step exact and allow
    extended Baum-Welch. All else has a default that is right for every density, or that says what
    to write.

    A density is immutable; training makes new ones. Every tensor that `tensors` names has K as its
    first dimension, which is all that stacking, selecting and storing need to know.
    """

    #: Whether `statistics`, `own_statistics` and `maximize` exist.
    closed_form: ClassVar[bool] = False
    #: Whether `slope` exists.
    explicit: ClassVar[bool] = False
    #: Whether rows without holes may be in float32 while EM is far from its end.
    single_precision: ClassVar[bool] = False

    # -- what every kind writes ----------------------------------------------------------------

    @property
    @abstractmethod
    def location(self) -> Tensor:
        """Where the components lie, (K, ..., D)."""

    @abstractmethod
    def log_prob(self, batch: AnyBatch) -> Tensor:
        """Log density of rows under every component, (n, K), missing features integrated out."""

    @abstractmethod
    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        """One row from each of the given components (n,), (n, D)."""

    @abstractmethod
    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters (K, ...) by name, for gradients."""

    @abstractmethod
    def from_free(self, free: dict[str, Tensor]) -> Self:
        """The density of unconstrained parameters; valid by construction."""

    # -- closed-form updates, where there are any ----------------------------------------------

    def statistics(self, batch: AnyBatch, occupancy: Tensor) -> Statistics:
        """Expected sufficient statistics (K, ...) weighted by (signed) occupancies (n, K).

        They are additive, and `mass` (K,) among them is the sum of the occupancies.
        """
        raise self._no_closed_form()

    def expectation(self, batch: AnyBatch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """`log_prob` of rows, and `statistics` of them as a function of occupancies (n, K).

        A kind that needs the same work for both does it once here.
        """
        return self.log_prob(batch), partial(self.statistics, batch)

    def expectation_among(
        self, batch: AnyBatch, among: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """The same for some components (n, K) of each row: occupancies of the others are zero.

        Their log densities may be any finite numbers.
        """
        return self.expectation(batch)

    def own_statistics(self) -> Statistics:
        """What one row drawn from each component would contribute on average.

        `maximize(own_statistics())` is the density itself: adding a multiple of it to the
        statistics of the data damps an update, which is extended Baum-Welch.
        """
        raise self._no_closed_form()

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """The density of highest likelihood, and whether each component's update is valid (K,)."""
        raise self._no_closed_form()

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        """Derivatives of the expected log density of rows with these statistics, by `free`.

        Rows with holes are expected to be as the density itself completes them (Fisher's identity).
        Where `explicit` is False, gradients go by way of `log_prob`.
        """
        raise self._unwritten("explicit derivatives", "`slope`")

    def _no_closed_form(self) -> UnsupportedError:
        return UnsupportedError(
            f"{type(self).__name__} has no closed-form updates: use solver='adam' or 'lbfgs', or "
            "write `statistics`, `own_statistics` and `maximize`."
        )

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def n_components(self) -> int:
        """How many densities there are, K."""
        return self.location.shape[0]

    @property
    def n_features(self) -> int:
        """How many features rows, or frames, have, D."""
        return self.location.shape[-1]

    @property
    def n_parameters(self) -> int:
        """Degrees of freedom of one component: its free parameters, unless some are redundant."""
        return sum(value[0].numel() for value in self.free().values())

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory per row (or frame): what the size of a chunk is chosen by.

        Unless a kind knows better, a few for each number of each component.
        """
        return 4 * sum(value.numel() for value in self.tensors().values())

    # -- parameters by name --------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        """A pickle has the fields alone: what is kept beside them is computed again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def tensors(self) -> dict[str, Tensor]:
        """The parameters (K, ...), by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same kind of density with other parameters."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    def select(self, index: Tensor) -> Self:
        """The components at `index`, as a stack of their own."""
        return self.with_tensors({name: value[index] for name, value in self.tensors().items()})

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Another device or floating type; laid out as in a file, so that bits do not differ."""
        return self.with_tensors(
            {name: value.to(device, dtype).contiguous() for name, value in self.tensors().items()}
        )

    @staticmethod
    def stack(parts: list[Density]) -> Density:
        """One stack of all the components of several."""
        named = [part.tensors() for part in parts]
        joined = {name: torch.cat([tensors[name] for tensors in named]) for name in named[0]}
        return parts[0].with_tensors(joined)

    # -- a prior of the spread, which says nothing of a density that has none: zero -------------

    @property
    def spread(self) -> Tensor:
        """What a prior acts on, (K, ...): variances, whole covariances, chances; or nothing."""
        return self.location[..., :0]

    @property
    def typical_spread(self) -> Tensor:
        """The mean spread of all components (and states)."""
        return self.spread.flatten(0, self.location.ndim - 2).mean(0)

    @property
    def prior_rows(self) -> float:
        """Imagined rows that are enough for a prior of the spread to matter."""
        return 3.0

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        """Mean log density (up to a constant) of rows of that spread around each location, (K,)."""
        return self._no_spread().flatten(1).sum(1)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        """What one row of spread `reference` around each `center` would contribute."""
        self._no_spread()
        return {name: torch.zeros_like(value) for name, value in self.own_statistics().items()}

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        """The spread about each location of rows of spread `reference` around each `center`."""
        return reference

    def _no_spread(self) -> Tensor:
        """The spread of a density that has none; a spread without a prior of it is refused."""
        if self.spread.numel():
            raise self._unwritten("prior of its spread", "`spread_log_prob`, `spread_statistics`")
        return self.spread

    def center(self, statistics: Statistics) -> Tensor:
        """Where the rows of each component lie, as `location`; that itself where it has no rows."""
        return self.location

    # -- answers -------------------------------------------------------------------------------

    def log_peak(self) -> Tensor:
        """Log density of each component at its own location, (K,)."""
        raise self._unwritten("peak", "`log_peak`")

    def covariances(self) -> Tensor:
        """Dense covariances (K, ..., D, D), for looking at."""
        raise self._unwritten("covariances", "`covariances`")

    def fill(self, batch: AnyBatch, share: Tensor) -> Tensor:
        """Conditional mean (n, D) of what is missing, under the components' shares (n, K)."""
        raise self._unwritten("conditional means", "`fill`")

    def complete(self, batch: AnyBatch, component: Tensor, generator: torch.Generator) -> Tensor:
        """A draw (n, D) of what is missing from the given component (n,) of each row."""
        return self.agree(batch, component, self.sample(component, generator))

    def agree(self, batch: AnyBatch, component: Tensor, drawn: Tensor) -> Tensor:
        """Draws (n, D) of whole rows, moved so that they are draws given what is observed.

        No rule serves every density: each family has its own, or none.
        """
        raise self._unwritten("draws given part of a row", "`agree` or `complete`")

    def _unwritten(self, what: str, how: str) -> UnsupportedError:
        name = type(self).__name__
        return UnsupportedError(f"{name} has no {what}: write {how} of {name}.")


@dataclass(frozen=True, kw_only=True)
class VectorDensity(Density[Batch]):
    """K densities over rows of D numbers. A new kind also writes `from_clusters`."""

    @classmethod
    @abstractmethod
    def from_clusters(
        cls,
        x: Tensor,
        membership: Tensor,
        floor: float,
        generator: torch.Generator,
        **options: Setting,
    ) -> Self:
        """A start: K components from weighted clusters of complete rows x (n, D).

        `membership` (n, K) are the weights; no variance may be less than `floor`.
        """

    def at(self, location: Tensor) -> Self:
        """The same components elsewhere, (K, D)."""
        raise self._unwritten("way to move", "`at`")

    def expected(self, batch: Batch) -> Tensor:
        """Conditional mean of every row given its observed entries, (n, K, D)."""
        x = batch.x[:, None].expand(-1, self.n_components, -1)
        if batch.observed is None:
            return x
        return torch.where(batch.observed[:, None], x, self._expected_masked(batch, batch.observed))

    def _expected_masked(self, batch: Batch, observed: Tensor) -> Tensor:
        """The same where entries are not observed, (n, K, D); others may be anything."""
        raise self._unwritten("conditional means", "`expected`")

    def log_peak(self) -> Tensor:
        at, n = self.location, self.n_components
        return self.log_prob(Batch(at, None, at.new_zeros(n).long(), at.new_ones(n))).diagonal()

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        return torch.einsum("nk,nkd->nd", share, self.expected(batch))

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        return batch.x if batch.observed is None else super().agree(batch, component, drawn)


def own_products(matrix: Tensor, component: Tensor, vectors: Tensor) -> Tensor:
    """(n, D) each vector of (n, R) times the matrix (K, D, R) of its component, (n,).

    Matrices are copied for every row only where that takes no longer.
    """
    if len(vectors) * matrix[0].numel() <= _COPIED * len(matrix):
        return (matrix[component] @ vectors[..., None])[..., 0]
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
        return self._repeated(self._points(size), n)

    def randn(self, n: int, size: int) -> Tensor:
        """(n, size), as normal numbers are spread."""
        return self._repeated(torch.special.ndtri(self._points(size)), n)

    def _repeated(self, points: Tensor, n: int) -> Tensor:
        return points.repeat(-(-n // self._count), 1)[:n]

    def _points(self, size: int) -> Tensor:
        """(count, size)."""
        first, self._used = self._used, self._used + size
        points = torch.rand(self._count, size, dtype=torch.float64, generator=self)
        if self._used <= _MOST_EVEN:
            sobol = torch.quasirandom.SobolEngine(self._used, scramble=True, seed=self._seed)
            points = sobol.draw(self._count, dtype=torch.float64)[:, first:]
        return points.clamp(_EDGE, 1.0 - _EDGE)


def rand(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Numbers between zero and one, (n, size)."""
    if isinstance(generator, Even):
        return generator.rand(n, size)
    return torch.rand(n, size, dtype=torch.float64, generator=generator)


def randn(*shape: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers; drawn on the CPU, so that a seed means the same on every device."""
    if isinstance(generator, Even):
        return generator.randn(shape[0], math.prod(shape[1:])).view(shape).to(like)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(like)
