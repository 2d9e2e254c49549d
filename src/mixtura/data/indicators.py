"""Categories as numbers, and numbers as several; NumPy is all that this needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from mixtura.data.conditions import Conditions, Slopes
from mixtura.data.given import ArrayLike
from mixtura.data.lazy import SCAN_ROWS, Found, LazyRows, Marked, chunks_of, shared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: The user's columns that each number comes from, (P,) once per factor of products, at least once:
#: of what is no product, the same one.
Origin = tuple[tuple[int, ...], ...]

#: Categories of a column that have an indicator, at most; rarer ones are all one.
MOST_INDICATORS = 20
#: The unit of indicators, whatever their variance: a category of few rows has no more leverage than
#: one of many.
UNIT = 0.5
#: Rows from which a table of products is made and asked.
_SEVERAL_ROWS = 256
#: The largest number.
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Indicators:
    """Columns of numbers, and of categories the indicators of all but the most frequent one.

    Of very many categories, the most frequent have indicators and the others are one. A column in
    which all rows have the same category has the indicator of that one. Numbers may have
    indicators, too, which fade from one knot to the next: what is linear in these is any curve of
    straight pieces, and values between knots, or beyond them, are nothing special.

    Attributes
    ----------
    column : (P,) the column that each number comes from.
    knot : (P,) the category or value at which an indicator is one; NaN for the number itself.
    rise, fall : (P,) its slopes below and above.
    frequent : (D,) the category of each column that all indicators zero stand for, of several the
        most frequent one; -1 for numbers.
    n_columns : how many columns there are.
    factors : what products are of, if there are some.
    products : (d, R) the factors of each; they come after the others.
    """

    column: np.ndarray
    knot: np.ndarray
    rise: np.ndarray
    fall: np.ndarray
    frequent: np.ndarray
    n_columns: int
    factors: Indicators | None = None
    products: np.ndarray = field(default_factory=lambda: np.zeros((1, 0), dtype=np.int64))

    @classmethod
    def learn(
        cls,
        values: np.ndarray | LazyRows,
        weight: np.ndarray,
        levels: np.ndarray,
        knots: Mapping[int, np.ndarray] | None = None,
        most: int = MOST_INDICATORS,
    ) -> Self:
        """Of codes and numbers (n, D), with so many categories (D,) per column, 0 for numbers.

        How frequent categories are goes by the weights (n,) of rows; so many at `most` have an
        indicator. Columns of numbers may have increasing `knots`; with less than three they are the
        numbers themselves.
        """
        counts = [np.zeros(level) for level in levels]
        for at, rows in chunks_of(values, SCAN_ROWS) if any(levels) else ():
            for place in np.flatnonzero(levels).tolist():
                seen = ~np.isnan(rows[:, place])
                codes, mass = rows[seen, place].astype(int), weight[at][seen]
                counts[place] += np.bincount(codes, mass, minlength=levels[place])
        table: list[tuple[float, ...]] = []
        frequent = np.full(len(levels), -1, dtype=np.int64)
        for place, parts in enumerate(zip(*shared(values, counts), strict=True)):
            count = np.sum(parts, axis=0)
            if not len(count):
                table += [(place, *each) for each in _faded((knots or {}).get(place, ()))]
                continue
            ranked = np.argsort(-count, kind="stable")[: 1 + most]
            rare = int((count > 0).sum() > len(ranked))  # the last stands for them, not the first
            frequent[place], *order = np.roll(ranked, rare)
            codes = [each for each in np.sort(order) if count[each]] or [frequent[place]]
            table += [(place, code, 1.0, 1.0) for code in codes]
        column, knot, rise, fall = np.array(table, dtype=np.float64).reshape(-1, 4).T
        return cls(column.astype(np.int64), knot, rise, fall, frequent, len(levels))

    @cached_property
    def itself(self) -> np.ndarray:
        """(P,) which are numbers of the user's."""
        return np.isnan(self.knot)

    @cached_property
    def _numbers(self) -> np.ndarray:
        """Where these are."""
        return np.flatnonzero(self.itself)

    def categories(self, column: int) -> np.ndarray:
        """The categories of a column that are told apart; none of numbers."""
        if self.frequent[column] < 0:
            return np.zeros(0, dtype=np.int64)
        found = np.append(self.knot[self.column == column], self.frequent[column])
        return np.unique(found.astype(np.int64))

    @cached_property
    def origin(self) -> Origin:
        """Where all numbers come from; each batch of rows asks for it."""
        return tuple(map(tuple, self.sources.tolist()))

    @cached_property
    def sources(self) -> np.ndarray:
        """(d, P) the same."""
        if self.factors is None:
            return self.column[None]
        own = np.tile(self.column, (len(self.products), 1))
        return np.concatenate([own, self.factors.column[self.products]], 1)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """(n, P) numbers; the indicators of what is missing are missing."""
        alone = self._alone(values)
        if self.factors is None:
            return alone
        if len(values) < _SEVERAL_ROWS:
            return np.concatenate([alone, self._multiplied(values)], 1)
        holds, lacks, fading = self._conditions.of(values)
        found = np.empty((len(values), alone.shape[1] + holds.shape[1]), dtype=alone.dtype)
        found[:, : alone.shape[1]], products = alone, found[:, alone.shape[1] :]
        products[:] = holds
        if lacks.any():
            products[lacks] = np.nan
        if fading.any():
            products[fading] = self._multiplied(values[fading])
        return found

    def _multiplied(self, values: np.ndarray) -> np.ndarray:
        """(n, R) the products, factor by factor."""
        assert self.factors is not None
        factors = np.ascontiguousarray(self.factors._alone(values).T)
        products = factors[self.products[0]]
        for each, count in zip(self.products[1:], self._told[1:], strict=True):
            products[:count] *= factors[each[:count]]
        return products.T

    def __getstate__(self) -> dict[str, object]:
        """Without what is looked up, which is larger than all else."""
        return {name: value for name, value in vars(self).items() if name != "_conditions"}

    @cached_property
    def _conditions(self) -> Conditions:
        factors = self.factors
        assert factors is not None
        slopes = Slopes(factors.knot, factors.rise, factors.fall)
        return Conditions(factors.column, slopes, self.products)

    @cached_property
    def _told(self) -> list[int]:
        """(d,) how many products have a factor at each place that tells more than its column."""
        assert self.factors is not None
        flat = ((self.factors.rise == 0.0) & (self.factors.fall == 0.0))[self.products]
        return [0 if each.all() else len(each) - int(np.argmin(each[::-1])) for each in flat]

    def _alone(self, values: np.ndarray) -> np.ndarray:
        found = values.take(self.column, 1)
        if len(self._numbers) == len(self.column):
            return found
        share = found.astype(np.float64, copy=False)
        with np.errstate(over="ignore"):  # far out is out, and infinity times no slope no number
            share -= self.knot
            held_within(share, -LARGEST, LARGEST, share)
            np.minimum(share * self.rise, share * self._drop, out=share)
        share += 1.0
        held_within(share, 0.0, 1.0, share)
        if len(itself := self._numbers):
            share[:, itself] = values[:, self.column[itself]]
        return share.astype(values.dtype, copy=False)

    @cached_property
    def _drop(self) -> np.ndarray:
        return -self.fall

    def beside(self, values: ArrayLike, others: np.ndarray) -> ArrayLike:
        """(n, P + T) numbers, and other columns (n, T); lazy rows stay so."""
        if isinstance(values, LazyRows):
            return _Beside(values, others, self)
        return np.column_stack([self.apply(values), others])


def held_within(
    values: np.ndarray, low: float, high: float, out: np.ndarray | None = None
) -> np.ndarray:
    """Values between two ends, in place of `out`; faster than `np.clip` for a few."""
    return np.minimum(np.maximum(values, low, out=out), high, out=out)


def quantile_knots(values: np.ndarray, weight: np.ndarray, most: int) -> np.ndarray:
    """Increasing knots of a column of numbers (n,): all values, if these are few, or quantiles.

    Values that more rows share than there are between two knots are knots, and the others are
    quantiles of what is left: zeros that most rows have say nothing of where the other values lie.
    """
    seen = ~np.isnan(values)
    found, place = np.unique(values[seen], return_inverse=True)
    if len(found) <= most:
        return found
    mass = np.bincount(place, weight[seen])
    shared = mass * (most + 1) > mass.sum()
    rest, left = np.cumsum(mass[~shared]), most - int(shared.sum())
    between = np.arange(1, left + 1) / (left + 1) * rest[-1]
    return np.union1d(found[shared], found[~shared][np.searchsorted(rest, between)])


def _faded(knots: Sequence[float] | np.ndarray) -> list[tuple[float, float, float]]:
    """Where the indicators of a column of numbers are one, and their slopes below and above.

    The middle one is left out, since all together are one; of too few there is the number.
    """
    if len(knots) < 3:
        return [(np.nan, 0.0, 0.0)]
    with np.errstate(over="ignore"):
        slope = np.minimum(1.0 / np.diff(knots), LARGEST)
    hats = [*zip(knots, np.append(0.0, slope), np.append(slope, 0.0), strict=True)]
    return hats[: len(hats) // 2] + hats[len(hats) // 2 + 1 :]


class _Beside(LazyRows):
    """Lazy rows as numbers, and columns (n, T) that are in memory."""

    def __init__(self, inner: LazyRows, others: np.ndarray, indicators: Indicators) -> None:
        shape = len(inner), len(indicators.column) + others.shape[1]
        super().__init__(shape, np.dtype(np.float64))
        self._inner, self._others, self._indicators = inner, others, indicators
        known = inner.has_missing
        self.has_missing = True if np.isnan(others).any() else known

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def n_here(self) -> int:
        return self._inner.n_here

    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        return np.column_stack([self._indicators.apply(self._inner[index]), self._others[index]])

    def view(self, index: np.ndarray | Marked) -> Self:
        others = self._others[np.asarray(index)]
        return type(self)(self._inner.view(index), others, self._indicators)

    def chunks(self, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
        for at, rows in self._inner.chunks(n_rows):
            yield at, np.column_stack([self._indicators.apply(rows), self._others[at]])

    def comes_whole(self, index: np.ndarray | Marked) -> bool:
        return self._inner.comes_whole(index)

    def shared(self, found: Found) -> list[Found]:
        return self._inner.shared(found)

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._inner.reduced(sums)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        return self._inner.minibatches(size, generator)
