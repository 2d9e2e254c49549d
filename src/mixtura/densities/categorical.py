"""Categorical columns: independent of each other within a component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities.base import Density, Statistics, rand

#: Up to so many categories in all, or per column, a matrix product with indicators is faster than
#: looking up.
_FEW, _PER_COLUMN = 512, 12
#: Indicators of a batch that are kept with it, at most: a table may have many batches.
_KEPT = 2**17
#: Rounds of raising small chances to the floor: raising some lowers others.
_ROUNDS = 3
#: Share of a column's chances that floors may take.
_MOST_RAISED = 0.5


@lru_cache(maxsize=256)
def _slots(levels: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """First slot of each column (d,); the column of each slot (S,), and its number of slots."""
    with torch.inference_mode(False):  # whoever asks first, gradients may need them later
        size = torch.tensor(levels)
        column = torch.arange(len(levels)).repeat_interleave(size)
        parts = size.cumsum(0) - size, column, size.double()[column]
        return tuple(part.to(device) for part in parts)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Categorical(Density[Batch]):
    """K products of categorical distributions; the categories of all columns stand side by side.

    Rows hold codes 0, 1, ... as floats. Dirichlet priors are imagined rows, as everywhere:
    `spread_statistics` has the pooled frequencies of the categories.

    Attributes
    ----------
    log_chance : (K, S) of every category, which sum to one within each column.
    levels : number of categories of each column; S is their sum.
    floor : smallest chance that a maximum-likelihood update leaves a category (and less, where
        very many share a column).
    """

    closed_form: ClassVar[bool] = True
    explicit: ClassVar[bool] = True

    log_chance: Tensor
    levels: tuple[int, ...]
    floor: float = 1e-6

    def __post_init__(self) -> None:
        if sum(self.levels) != self.log_chance.shape[-1]:
            raise ValueError(f"{self.log_chance.shape[-1]} chances of {self.levels} categories")

    @classmethod
    def from_clusters(
        cls, codes: Tensor, membership: Tensor, levels: tuple[int, ...], floor: float = 1e-6
    ) -> Categorical:
        """The frequencies in weighted clusters of complete rows, membership (n, K)."""
        blank = membership.new_zeros(membership.shape[1], sum(levels))
        start = cls(log_chance=blank, levels=levels, floor=floor)
        start = start.from_free(start.free())
        rows = Batch(codes, None, codes.new_zeros(len(codes)).long(), membership.sum(1))
        return start.maximize(start.statistics(rows, membership))[0]

    @property
    def n_parameters(self) -> int:
        return sum(self.levels) - len(self.levels)

    def row_cost(self, missing: bool) -> int:
        columns, slots = len(self.levels), sum(self.levels)
        looked_up = slots if self.is_small else columns * self.n_components
        filled = max(self.levels, default=0) if missing else 0
        return 2 * columns + looked_up + filled + 4 * self.n_components

    @property
    def n_components(self) -> int:
        return self.log_chance.shape[0]

    @property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor]:
        return _slots(self.levels, self.log_chance.device)

    def by_column(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., S) as one tensor per column."""
        return values.split(list(self.levels), -1)

    def _places(self, batch: Batch) -> Tensor:
        """(n, d) slot of every entry; S where it is missing."""
        places = batch.x.long() + self._layout[0]
        if batch.observed is None:
            return places
        return torch.where(batch.observed, places, self.log_chance.shape[1])

    @property
    def is_small(self) -> bool:
        """Whether all categories together are few enough to have indicators."""
        return self.log_chance.shape[1] <= max(_FEW, _PER_COLUMN * len(self.levels))

    def indicators(self, batch: Batch) -> Tensor:
        """(n, S), one where a category is observed."""

        def found() -> Tensor:
            blank = batch.x.new_zeros(len(batch), self.log_chance.shape[1] + 1)
            return blank.scatter_(1, self._places(batch), 1.0)[:, :-1]

        few = len(batch) * self.log_chance.shape[1] <= _KEPT
        return batch.once(("indicators", self.levels), found) if few else found()

    def log_prob(self, batch: Batch) -> Tensor:
        log_chance = self.log_chance.to(batch.x.dtype)
        if self.is_small:
            return self.indicators(batch) @ log_chance.mT
        missing = log_chance.new_zeros(1, self.n_components)
        return torch.cat([log_chance.mT, missing])[self._places(batch)].sum(1)

    def log_peak(self) -> Tensor:
        parts = self.by_column(self.log_chance)
        return torch.stack([part.amax(-1) for part in parts]).sum(0)

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        """Missing entries add nothing: columns are independent, so nothing tells them better."""
        slots = self.log_chance.shape[1]
        if self.is_small:
            count = occupancy.mT @ self.indicators(batch)
        else:
            places = self._places(batch)
            count = occupancy.new_zeros(slots + 1, self.n_components)
            for column in range(places.shape[1]):
                count.index_add_(0, places[:, column], occupancy)
            count = count[:-1].mT
        return {"mass": occupancy.sum(0), "count": count}

    @property
    def location(self) -> Tensor:
        """The likeliest codes, (K, d)."""
        modes = [part.argmax(-1) for part in self.by_column(self.log_chance)]
        return torch.stack(modes, 1).to(self.log_chance)

    @property
    def spread(self) -> Tensor:
        return self.log_chance.exp()

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return (self.log_chance * reference).sum(1)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        return {
            "mass": self.log_chance.new_ones(self.n_components),
            "count": reference.expand(self.n_components, -1),
        }

    def center(self, statistics: Statistics) -> Tensor:
        """Of no matter: imagined rows have all categories."""
        return self.log_chance.new_zeros(self.n_components, len(self.levels))

    def own_statistics(self) -> Statistics:
        return self.spread_statistics(self.spread, self.location)

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """A column of which a component saw nothing stays as it is."""
        count, mass = statistics["count"], statistics["mass"]
        tiny = torch.finfo(count.dtype).tiny
        rounding = -1e-9 * (1.0 + count.abs().sum(1))
        valid = (mass > 0) & (count >= rounding[:, None]).all(1)
        count = count.clamp_min(0.0)
        unseen = self._total(count) <= tiny
        count = torch.where(unseen, self.spread, count)
        chance = count / self._total(count)
        floor = (_MOST_RAISED / self._layout[2]).clamp_max(self.floor).to(chance)
        low = None
        for _ in range(_ROUNDS):
            before, low = low, chance <= floor
            if before is not None and torch.equal(before, low):
                break
            spare = 1.0 - self._total(torch.where(low, floor, 0.0))
            high = torch.where(low, 0.0, chance)
            scaled = high * spare / self._total(high).clamp_min(tiny)
            chance = torch.where(low, floor, scaled)
        return self.with_tensors({"log_chance": chance.log()}), valid

    def _total(self, values: Tensor) -> Tensor:
        """(K, S): at each slot the sum over its column."""
        column = self._layout[1]
        total = values.new_zeros(len(values), len(self.levels)).index_add(1, column, values)
        return total[:, column]

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        count = statistics["count"]
        return {"logit": count - self._total(count) * self.spread}

    def free(self) -> dict[str, Tensor]:
        return {"logit": self.log_chance}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        logit, column = free["logit"], self._layout[1]
        shape = len(logit), len(self.levels)
        owner = column.expand_as(logit)
        blank = logit.new_full(shape, -torch.inf)
        top = blank.scatter_reduce(1, owner, logit.detach(), "amax")[:, column]
        shifted = logit - top
        return self.with_tensors({"log_chance": shifted - self._total(shifted.exp()).log()})

    def covariances(self) -> Tensor:
        """Codes have none: not a number."""
        columns = len(self.levels)
        return self.log_chance.new_full((self.n_components, columns, columns), torch.nan)

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        level = rand(len(component), len(self.levels), generator)
        drawn, owner = torch.zeros_like(level), component.cpu()
        first = torch.arange(self.n_components, dtype=torch.float64)[:, None]
        for column, part in enumerate(self.by_column(self.log_chance.double().exp().cpu())):
            edges = (part.cumsum(1) + first).flatten()  # those of component k lie in (k, k + 1]
            place = torch.searchsorted(edges, level[:, column] + owner) - owner * part.shape[1]
            drawn[:, column] = place.clamp(0, part.shape[1] - 1).double()
        return drawn.to(self.log_chance)

    def chances(self, batch: Batch, share: Tensor, column: int) -> Tensor:
        """(n, L) conditional probability of every category; one for what is observed."""
        part = self.by_column(self.spread)[column].to(share)
        codes = batch.x[:, column].long()
        known = torch.nn.functional.one_hot(codes, part.shape[1]).to(share)
        if batch.observed is None:
            return known
        return torch.where(batch.observed[:, column, None], known, share @ part)

    def means(self, values: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
        """(K, d) chances of the first categories, and means, where others stand for values."""
        parts = list(zip(self.by_column(self.spread), values, strict=True))
        means = [part[:, 1:] @ part.new_tensor(each) for part, each in parts]
        return torch.stack([part[:, 0] for part, _ in parts], 1), torch.stack(means, 1)

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        """The likeliest categories: codes have no mean."""
        if batch.observed is None:
            return batch.x
        filled = batch.x.clone()
        for column, part in enumerate(self.by_column(self.spread.to(share))):
            hidden = (~batch.observed[:, column]).nonzero().flatten()
            filled[hidden, column] = (share[hidden] @ part).argmax(1).to(filled)
        return filled

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        if batch.observed is None:
            return batch.x
        return torch.where(batch.observed, batch.x, drawn.to(batch.x))
