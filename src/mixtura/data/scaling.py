"""The map between the user's units and those that models work in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from mixtura.data.atoms import Atoms
from mixtura.data.curves import Curves
from mixtura.data.indicators import LARGEST, UNIT, Indicators, Origin, held_within
from mixtura.data.lazy import SCAN_ROWS, LazyRows, chunks_of, shared
from mixtura.data.trees import Trees
from mixtura.exceptions import DegenerateDataWarning, warn

#: Deviations beyond the range of training up to which predictions follow a column.
_BEYOND = 3.0
#: Bits of half a range that rounded means have.
_GRID = 26
#: Share of a deviation that is lost in rounding.
_LOST = 1e-13
#: What columns are good for, and what to do about it.
_USELESS = "they carry no information. Remedy: drop them."
_DWARFED = (
    "in units of their deviation these differ by no more than rounding. Remedy: NaN for numbers "
    "that stand for a missing value, or logarithms."
)
#: Digits of a deviation to which values in the user's units are found again.
_DIGITS = 12


@dataclass(frozen=True)
class Scaling:
    """Map between the user's units and units in which every feature has variance one.

    It is affine, or goes on along one increasing curve per column. Codes of categories stay as they
    are, or become indicators, which are numbers like others; from these there is no way back. What
    trees add up to is beside the numbers, and left out on the way back.

    Attributes
    ----------
    location, scale : (D,), of the indicators where there are some.
    levels : (D,) number of categories of each column, 0 for numbers.
    curves : of the values in units of variance one; None for straight lines.
    atoms : values that have probabilities, which no units change.
    indicators : of the user's columns, or trees of them; None where these are taken as they are.
    """

    location: np.ndarray
    scale: np.ndarray
    levels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    curves: Curves | None = None
    atoms: Atoms | None = None
    indicators: Indicators | Trees | None = None

    def __post_init__(self) -> None:
        if not len(self.levels):
            object.__setattr__(self, "levels", np.zeros(len(self.scale), dtype=np.int64))

    @classmethod
    def identity(cls, n_features: int) -> Scaling:
        return cls(np.zeros(n_features), np.ones(n_features))

    def sparing(self, levels: np.ndarray) -> Scaling:
        """The same map, but for columns with categories."""
        location, scale = (
            np.where(levels > 0, *each) for each in ((0.0, self.location), (1.0, self.scale))
        )
        return Scaling(location, scale, levels)

    def with_atoms(self, shared: dict[int, tuple[float, ...]]) -> Scaling:
        """The same map, and values that many rows share, by column, in units of variance one."""
        if not shared:
            return self
        x = np.full((max(map(len, shared.values())), len(self.scale)), np.nan)
        for column, values in shared.items():
            x[: len(values), column] = values
        mapped = x if self.curves is None else self.curves.apply(x)
        units = (x * self.scale + self.location).T
        digits = (_DIGITS - np.ceil(np.log10(self.scale))).astype(int).tolist()
        shown = [[round(each, digits[c]) for each in units[c].tolist()] for c in shared]
        columns = tuple(shared)
        mine = _without_nan(mapped.T[list(columns)])
        return replace(self, atoms=Atoms(columns, mine, _without_nan(shown)))

    def with_indicators(self, indicators: Indicators) -> Scaling:
        """The same units of numbers, and one of all indicators."""
        numbers, column = indicators.itself, indicators.column
        location, scale = (
            np.where(numbers, *each)
            for each in ((self.location[column], 0.0), (self.scale[column], UNIT))
        )
        products = indicators.products.shape[1]
        location, scale = (
            np.append(own, np.full(products, unit))
            for own, unit in ((location, 0.0), (scale, UNIT))
        )
        return Scaling(location, scale, indicators=indicators)

    @property
    def origin(self) -> Origin | None:
        """(D,) the user's columns that each comes from; None if each is one itself."""
        return None if self.indicators is None else self.indicators.origin

    @classmethod
    def measure(
        cls, X: np.ndarray | LazyRows, weight: np.ndarray, names: np.ndarray | None = None
    ) -> Scaling:
        """Weighted mean and deviation of each column, ignoring NaN; safe for any magnitude."""
        location, mass = _weighted_nanmean(X, weight, lambda x: x)
        low, high = nan_range(X)
        half = np.maximum(high / 2 - location / 2, location / 2 - low / 2)  # a range may overflow
        unit = np.where(half > 0, half, 1.0)
        variance, _ = _weighted_nanmean(X, weight, lambda x: ((x / 2 - location / 2) / unit) ** 2)
        magnitude = np.maximum(np.abs(low), np.abs(high))
        constant = high / 2 - low / 2 <= 4 * np.finfo(X.dtype).eps * magnitude
        labels = np.arange(X.shape[1]) if names is None else np.asarray(names, dtype=object)
        _warn_about_columns(labels[mass == 0], "have no observed value", _USELESS)
        _warn_about_columns(labels[constant & (mass > 0)], "are constant", _USELESS)
        fallback = np.where(magnitude > 0, magnitude, 1.0)
        location = np.where(constant, low, location)  # a mean is rounded, and a constant is not
        scale = np.where(constant, fallback, 2.0 * np.sqrt(variance) * unit)
        if isinstance(X, np.ndarray):
            lost = ~constant & (_middle_half(X) < _LOST * scale)
            _warn_about_columns(labels[lost], "have numbers that dwarf all others", _DWARFED)
        return cls(location, np.maximum(scale, np.finfo(np.float64).tiny))

    def apply(self, X: np.ndarray) -> np.ndarray:
        """Into the model's units, in float64 so that offsets do not eat the digits."""
        with np.errstate(over="ignore"):  # tables clamp what is infinite
            if self.indicators is not None:
                given = np.asarray(X, dtype=np.float64)
                values = self.indicators.apply(given)  # many, and nobody else's
                values -= self.location
                values /= self.scale
            else:
                values = (X - self.location) / self.scale
        return values if self.curves is None else self.curves.apply(values)

    def invert(self, X: np.ndarray) -> np.ndarray:
        """Back into the user's units; what lies beyond the largest number becomes it."""
        values = X if self.curves is None else self.curves.invert(X)
        with np.errstate(over="ignore"):
            found = values * self.scale + self.location
        held_within(found, -LARGEST, LARGEST, found)
        if isinstance(self.indicators, Trees):
            return np.delete(found, self.indicators.places, axis=1)
        return found if self.atoms is None else self.atoms.restored(found, X)

    def moved(self, values: np.ndarray, before: Scaling) -> np.ndarray:
        """Values in the units of another map, in these; by curves alone where that is enough."""
        pairs = (self.location, before.location), (self.scale, before.scale)
        same = before.curves is None and self.indicators is None
        if same and all(one is other or (one == other).all() for one, other in pairs):
            return values if self.curves is None else self.curves.apply(values)
        return self.apply(before.invert(values))

    def reach(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """(2, D) between which predictions follow columns: the range of rows, and some more.

        Along curves: beyond the end of a long tail it is more than before the other end.
        """
        with np.errstate(over="ignore"):
            if self.curves is None:
                return np.stack([low - _BEYOND * self.scale, high + _BEYOND * self.scale])
            ends = self.curves.apply((np.stack([low, high]) - self.location) / self.scale)
            ends = self.curves.invert(ends + np.array([[-_BEYOND], [_BEYOND]]))
            return ends * self.scale + self.location

    def log_scale(self, x: np.ndarray) -> np.ndarray:
        """(D,) or (n, D) logs of user's units per unit of the model, at values x (n, D) of it.

        Zero for values that have probabilities.
        """
        found = np.log(self.scale)
        found = found if self.curves is None else found - self.curves.log_slope(x)
        return found if self.atoms is None else np.where(self.atoms.held(x), 0.0, found)


def rounded_mean(X: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(D,) weighted means, NaN aside, as numbers of few digits.

    Differences from them are exact where numbers have few digits, and do not change where all are
    moved by another such number: rounding would decide between local optima.
    """
    (mean, _), (low, high) = _weighted_nanmean(X, weight, lambda x: x), nan_range(X)
    grid = np.ldexp(1.0, np.frexp(high / 2 - low / 2)[1] - _GRID).clip(np.finfo(np.float64).tiny)
    return np.where(high > low, np.round(mean / grid) * grid, low)


def _without_nan(rows: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    """Rows of numbers, without those that are not."""
    return tuple(tuple(float(each) for each in row if each == each) for row in rows)


#: Means of columns (D,), and the mass of the rows that they are of.
_Mean = tuple[np.ndarray, np.ndarray]


def _weighted_nanmean(
    X: np.ndarray | LazyRows, weight: np.ndarray, function: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    found = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for at, chunk in chunks_of(X, SCAN_ROWS):
        rows = np.asarray(chunk, dtype=np.float64)
        seen = ~np.isnan(rows)
        share = weight[at, None]
        mass = (share * seen).sum(0)
        part = np.divide(share * seen, mass, out=np.zeros(rows.shape), where=mass > 0)
        found = _pooled(found, ((part * np.where(seen, function(rows), 0.0)).sum(0), mass))
    return reduce(_pooled, shared(X, found))


def _pooled(one: _Mean, other: _Mean) -> _Mean:
    """The mean of all rows, and their mass, from those of two parts."""
    mass = one[1] + other[1]
    share = np.divide(other[1], mass, out=np.zeros_like(mass), where=mass > 0)
    return one[0] + (other[0] - one[0]) * share, mass


def nan_range(X: np.ndarray | LazyRows) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest observed value of each column; zeros where there is none."""
    low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    if isinstance(X, LazyRows) and X.range_here is not None:
        low, high = X.range_here
    else:
        for _, chunk in chunks_of(X, SCAN_ROWS):
            rows = np.asarray(chunk, dtype=np.float64)
            low = np.fmin(low, np.fmin.reduce(rows, axis=0))
            high = np.fmax(high, np.fmax.reduce(rows, axis=0))
    lows, highs = zip(*shared(X, (low, high)), strict=True)
    low, high = np.fmin.reduce(lows), np.fmax.reduce(highs)
    seen = high >= low
    return np.where(seen, low, 0.0), np.where(seen, high, 0.0)


def _middle_half(X: np.ndarray) -> np.ndarray:
    """(D,) how far apart the quartiles of columns (n, D) are; infinity where they are the same."""
    some = X[:: -(-len(X) // SCAN_ROWS)]
    seen, found = ~np.isnan(some).all(0), np.full(X.shape[1], np.inf)
    if seen.any():
        with np.errstate(over="ignore"):
            found[seen] = np.subtract(*np.nanpercentile(some[:, seen], [75.0, 25.0], axis=0))
    return np.where(found > 0.0, found, np.inf)


def _warn_about_columns(labels: np.ndarray, what: str, then: str) -> None:
    if len(labels):
        names = ", ".join([*map(str, labels[:10]), *["..."][: len(labels) - 10]])
        warn(
            f"{len(labels)} column(s) {what} in the training rows ({names}); {then}",
            DegenerateDataWarning,
        )
