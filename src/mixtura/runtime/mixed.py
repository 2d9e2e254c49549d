"""Categories, patterns of holes and products in NumPy: twins of those of `mixtura.densities`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mixtura.runtime.batch import Batch, Density
from mixtura.runtime.files import kind


@kind
@dataclass(frozen=True)
class Categorical:
    log_chance: np.ndarray
    levels: tuple[int, ...]
    floor: float = 1e-6

    def __post_init__(self) -> None:
        if sum(self.levels) != self.log_chance.shape[1]:
            raise ValueError(f"{self.log_chance.shape[1]} chances of {self.levels} categories")

    @property
    def n_components(self) -> int:
        return len(self.log_chance)

    @property
    def row_cost(self) -> int:
        return (len(self.levels) + 2) * self.n_components

    @cached_property
    def first(self) -> np.ndarray:
        """(d,) slot of the first category of each column."""
        return np.cumsum([0, *self.levels[:-1]])

    @cached_property
    def table(self) -> np.ndarray:
        """(S + 1, K) log chances of the slots; zero for what is missing."""
        return np.concatenate([self.log_chance.T, np.zeros((1, len(self.log_chance)))])

    def log_prob(self, batch: Batch) -> np.ndarray:
        slots = np.where(batch.seen, batch.x.astype(np.int64) + self.first, len(self.table) - 1)
        return self.table[slots].sum(1)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        parts = np.split(np.exp(self.log_chance), self.first[1:], axis=1)
        likeliest = np.stack([(share @ part).argmax(1) for part in parts], 1)
        return np.where(batch.seen, batch.x, likeliest)

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return np.where(batch.seen, batch.x, drawn)


@kind
@dataclass(frozen=True)
class HolePattern(Categorical):
    broad: float = 0.1
    further: float = 0.1
    rates: tuple[float, ...] = ()

    @property
    def row_cost(self) -> int:
        return super().row_cost * (len(self.rates) + 1)

    @cached_property
    def by_rate(self) -> Categorical:
        """The K R products of chances at each rate, one after another."""
        present, absent = self.log_chance[:, None, ::2], self.log_chance[:, None, 1::2]
        rate = np.array(self.rates)[:, None]
        with np.errstate(divide="ignore"):
            further = np.logaddexp(absent, present + np.log(rate))
        both = np.stack([present + np.log1p(-rate), further], -1)
        return Categorical(both.reshape(-1, self.log_chance.shape[1]), self.levels)

    @cached_property
    def log_shares(self) -> np.ndarray:
        """(R,)."""
        some = len(self.rates) - 1
        return np.log([1.0 - self.broad - self.further] + [self.further / some] * some)

    @cached_property
    def log_factorials(self) -> np.ndarray:
        return np.array([math.lgamma(1.0 + count) for count in range(len(self.levels) + 2)])

    def log_prob(self, batch: Batch) -> np.ndarray:
        own = self.by_rate.log_prob(batch).reshape(len(batch), self.n_components, -1)
        absent = np.where(batch.seen, batch.x, 0.0).sum(1).astype(np.int64)
        told, log_factorial = batch.seen.sum(1), self.log_factorials
        broad = log_factorial[absent] + log_factorial[told - absent] - log_factorial[told + 1]
        broad = np.broadcast_to((broad + math.log(self.broad))[:, None, None], (*own.shape[:2], 1))
        return np.logaddexp.reduce(np.concatenate([own + self.log_shares, broad], 2), axis=2)


@kind
@dataclass(frozen=True)
class Product:
    parts: tuple[Density, ...]
    columns: tuple[tuple[int, ...], ...]
    informative: bool = False

    @property
    def n_components(self) -> int:
        return self.parts[0].n_components

    @property
    def row_cost(self) -> int:
        return sum(part.row_cost for part in self.parts)

    @cached_property
    def _index(self) -> list[np.ndarray]:
        return [np.array(columns, dtype=np.int64) for columns in self.columns]

    def _view(self, batch: Batch, index: np.ndarray) -> Batch:
        observed = None if batch.observed is None else batch.observed[:, index]
        whole = observed is None or observed.all()
        return Batch(batch.x[:, index], None if whole else observed)

    def log_prob(self, batch: Batch) -> np.ndarray:
        views = [self._view(batch, index) for index in self._index]
        if self.informative:
            lacks = batch.lacks()
            told = None if batch.absent is None else lacks >= 0
            views.append(Batch(lacks.clip(0).astype(np.float64), told))
        first, *rest = (p.log_prob(view) for p, view in zip(self.parts, views, strict=True))
        return sum(rest, first)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        for part, index in zip(self.parts, self._index, strict=False):
            found[:, index] = part.fill(self._view(batch, index), share)
        return found

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        for part, index in zip(self.parts, self._index, strict=False):
            found[:, index] = part.agree(self._view(batch, index), component, drawn[:, index])
        return found
