"""Categories, patterns of holes and products in NumPy: twins of those of `mixtura.densities`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mixtura.data.atoms import Atoms
from mixtura.runtime.batch import Batch, Density
from mixtura.runtime.files import kind
from mixtura.runtime.gaussians import Gaussian, StudentT


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
    atoms: Atoms | None = None

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

    def views(self, batch: Batch) -> Iterator[Batch]:
        """What each part looks at."""
        rows, codes = (batch, None) if self.atoms is None else self._apart(batch, self.atoms)
        for index in self._index:
            yield self._view(rows, index)
        if codes is not None:
            yield codes
        if self.informative:
            lacks = batch.lacks()
            told = None if batch.absent is None else lacks >= 0
            yield Batch(lacks.clip(0).astype(np.float64), told)

    def _apart(self, batch: Batch, atoms: Atoms) -> tuple[Batch, Batch]:
        """The rows, numbers that are atoms unobserved; and which they are, (n, A)."""
        free = ~atoms.held(batch.x)
        codes = Batch(atoms.codes(batch.x), batch.seen[:, atoms.index])
        return Batch(batch.x * free, batch.seen & free), codes

    def log_prob(self, batch: Batch) -> np.ndarray:
        pairs = zip(self.parts, self.views(batch), strict=True)
        first, *rest = (part.log_prob(view) for part, view in pairs)
        return sum(rest, first)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        trios = zip(self.parts, self._index, self.views(batch), strict=False)
        for part, index, view in trios:
            found[:, index] = part.fill(view, share)
        if self.atoms is None:
            return found
        return np.where(batch.seen, batch.x, self._with_atoms(found, batch, share, self.atoms))

    def _with_atoms(
        self, filled: np.ndarray, batch: Batch, share: np.ndarray, atoms: Atoms
    ) -> np.ndarray:
        """Rows where numbers that may be atoms are the means of these and of the numbers."""
        numbers, chances = self.parts[0], self.parts[len(self.columns)]
        assert isinstance(numbers, Gaussian | StudentT)
        assert isinstance(chances, Categorical)
        own = np.split(np.exp(chances.log_chance), chances.first[1:], axis=1)
        expected = numbers.expected(next(self.views(batch)))
        for column, values, chance in zip(atoms.columns, atoms.values, own, strict=True):
            mean = chance[:, :1].T * expected[..., self.columns[0].index(column)]
            filled[:, column] = (share * (mean + chance[:, 1:] @ np.array(values))).sum(1)
        return filled

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        for part, index in zip(self.parts, self._index, strict=False):
            found[:, index] = part.agree(self._view(batch, index), component, drawn[:, index])
        return found
