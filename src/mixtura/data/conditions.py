"""Which products of conditions hold for many rows, by bits: most conditions hold, or do not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: What is nearer to nought or one is it; and by how many roundings the ends of slopes may be off.
_NEAR, _ROUNDINGS = 1e-9, 4
#: Beyond every number.
_ENDS = np.finfo(np.float64).max * np.array([-1.0, 1.0])


class Slopes(NamedTuple):
    """Conditions (F,) on one number each: true at a knot, and less so below and above."""

    knot: np.ndarray
    rise: np.ndarray
    fall: np.ndarray

    def at(self, values: np.ndarray) -> np.ndarray:
        """(m, F) how true each is, of each of some values (m,)."""
        with np.errstate(over="ignore"):
            away = np.nan_to_num(values[:, None] - self.knot)
            found = 1.0 + np.minimum(away * self.rise, away * -self.fall)
        return np.minimum(np.maximum(found, 0.0), 1.0)

    def edges(self) -> np.ndarray:
        """Increasing values between which each is true, or false, or changes along a line."""
        found, knot = [self.knot], self.knot
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            for end, inwards in ((knot - 1.0 / self.rise, 1.0), (knot + 1.0 / self.fall, -1.0)):
                size = np.spacing(np.maximum(abs(end), abs(knot)))
                found.append(end + inwards * _ROUNDINGS * size)
        every = np.concatenate(found)
        return np.unique(every[np.isfinite(every)])


class _Column(NamedTuple):
    """What a column makes of products, by the place of a value: even between edges, odd on them.

    Attributes
    ----------
    holds : (places, R / 8) in bits, which products hold as far as this column goes.
    asks : (R / 8,) which ask for it.
    fades : (places,) where one of its conditions is neither true nor false.
    """

    column: int
    edges: np.ndarray
    holds: np.ndarray
    asks: np.ndarray
    fades: np.ndarray

    @classmethod
    def of(cls, column: int, slopes: Slopes, products: np.ndarray) -> _Column:
        """Of products (d, R) of conditions on this column, and of others, which are -1."""
        edges = slopes.edges()
        on, ends = slopes.at(edges), slopes.at(_ENDS)
        around = np.concatenate([ends[:1], on, ends[1:]])
        told = np.empty((2 * len(edges) + 1, len(slopes.knot)))
        told[1::2], told[::2] = on, 0.5 * (around[1:] + around[:-1])
        true = told > 0.5
        holds = np.ones((len(true), products.shape[1]), dtype=bool)
        for each in products:
            mine = np.flatnonzero(each >= 0)
            holds[:, mine] &= true[:, each[mine]]
        asks = np.packbits((products >= 0).any(0))
        fades = np.any(abs(told - true) > _NEAR, axis=1)
        return cls(column, edges, np.packbits(holds, axis=1), asks, np.asarray(fades))

    def places(self, values: np.ndarray) -> np.ndarray:
        """(n,) of values; of what is missing the last."""
        return self.edges.searchsorted(values) + self.edges.searchsorted(values, side="right")


class Conditions:
    """Products (R,) of conditions (F,) on columns, looked up by the values of rows.

    Each takes an "and" of bits per column, where numbers are multiplied per product and factor.
    """

    def __init__(self, column: np.ndarray, slopes: Slopes, products: np.ndarray) -> None:
        self._count, self._columns = products.shape[1], list[_Column]()
        for each in np.unique(column[products]).tolist():
            mine = np.flatnonzero(column == each)
            place = np.full(len(column), -1)
            place[mine] = np.arange(len(mine))
            own = Slopes(*(part[mine] for part in slopes))
            self._columns.append(_Column.of(each, own, place[products]))

    def of(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, R) bool of rows (n, D), which products hold, and which lack a column that they ask
        for; and (n,) bool, for which rows a condition is neither true nor false."""
        shape = len(values), -(-self._count // 8)
        holds, lacks = np.full(shape, 255, dtype=np.uint8), np.zeros(shape, dtype=np.uint8)
        fading = np.zeros(len(values), dtype=bool)
        for each in self._columns:
            own = values[:, each.column]
            place, missing = each.places(own), np.isnan(own)
            holds &= each.holds[place]
            fading |= each.fades[place] & ~missing
            lacks[missing] |= each.asks
        return self._unpacked(holds), self._unpacked(lacks), fading

    def _unpacked(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, axis=1, count=self._count).view(bool)
