"""Increasing maps of single columns, under which their values look more like Gaussian draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Kinds of curves; and powers, but for columns some of whose values still lie far out under them.
KINDS = ("power", "ranks")
TAMED = "tamed"
#: Points that stand for the values of a column; knots of a curve through ranks, at most and per
#: root of the number of rows.
_POINTS, _KNOTS, _KNOTS_PER_ROOT = 100, 50, 2.0
#: Exponents that are compared, and what one other than 1 has to gain, in nats.
_EXPONENTS, _CLEAR = np.linspace(-2.0, 3.0, 26), 3.0
#: Deviations from the center beyond which a value lies far out, under its curve; and beyond which
#: it is worth a curve, where deviations are those of the inner half of Gaussian draws.
_FAR, _NOTABLE, _INNER_HALF = 10.0, 10.0, 1.349
#: Share of a column's values over which the slope beyond its end is measured.
_END = 0.1
#: Values, and what they become (of their range), that lie no farther apart are rounded alike; no
#: rank is so near to none or all.
_SAME_AT, _SAME_TO, _OUTERMOST = 1e-15, 1e-9, 1e-9
#: Rows up to which comparing values with all knots is faster than searching each column's.
_FEW = 30

_Curve = tuple[np.ndarray, np.ndarray]
_LINE: _Curve = np.array([0.0, 1.0]), np.array([0.0, 1.0])


@dataclass(frozen=True)
class Curves:
    """One increasing, piecewise linear map per column; its ends go on as straight lines.

    Attributes
    ----------
    at : (D, Q) knots, increasing.
    to : (D, Q) what they become, increasing.
    """

    at: np.ndarray
    to: np.ndarray

    @classmethod
    def learn(cls, kind: str, X: np.ndarray, weight: np.ndarray, levels: np.ndarray) -> Curves:
        """Curves of a kind for the columns of X that hold numbers, (n, D) in units near one.

        "power": the power of Yeo and Johnson, from the median or an end of the values on, under
        which they are most probable as draws of a Gaussian. "ranks": the normal scores of ranks, by
        straight lines between some of the values. "tamed": the power, or the ranks where a value
        lies more than ten deviations out under it. Mapped values have about mean zero and variance
        one, by their quantiles, which outliers do not move.
        """
        curves = [
            _LINE if level else _curve(kind, *_shares(*told_values(column, weight)))
            for column, level in zip(X.T, levels, strict=True)
        ]
        longest = max(len(at) for at, _ in curves)
        at, to = (
            np.stack([_lengthened(knots, longest) for knots in each])
            for each in zip(*curves, strict=True)
        )
        return cls(at, to)

    def apply(self, X: np.ndarray) -> np.ndarray:
        """(n, D) mapped values; NaN stays NaN."""
        return self._along(X, self.at, self.to, self._slope)

    def invert(self, values: np.ndarray) -> np.ndarray:
        """(n, D) what is mapped to these values."""
        return self._along(values, self.to, self.at, 1.0 / self._slope)

    def log_slope(self, values: np.ndarray) -> np.ndarray:
        """(n, D) logs of the derivatives of the map, at mapped values.

        A value that is a knot but for rounding (of its type) is on the line before it, on every
        machine.
        """
        share = max(0.5 * _SAME_TO, float(np.finfo(values.dtype).eps))
        knots = self.to + share * (self.to[:, -1:] - self.to[:, :1])
        return np.log(self._slope)[self._column, _segments(values, knots)]

    @cached_property
    def _slope(self) -> np.ndarray:
        """(D, Q - 1) of the lines between knots."""
        return np.diff(self.to) / np.diff(self.at)

    @cached_property
    def _column(self) -> np.ndarray:
        """(D,) numbers of the columns."""
        return np.arange(len(self.at))

    def _along(
        self, X: np.ndarray, at: np.ndarray, to: np.ndarray, slope: np.ndarray
    ) -> np.ndarray:
        """Values on lines that begin at knots, have so large a value there, and these slopes."""
        place = self._column, _segments(X, at)
        found = X - at[place]
        with np.errstate(over="ignore"):  # tables clamp what is infinite
            found *= slope[place]
            found += to[place]
        return found


def _segments(values: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(n, D) the line of each curve (D, Q) that each value lies on."""
    inner = knots[:, 1:-1]
    if len(values) <= _FEW:
        return (values[..., None] > inner).sum(2)
    pairs = zip(inner, values.T, strict=True)
    return np.stack([each.searchsorted(column) for each, column in pairs], axis=1)


def _lengthened(knots: np.ndarray, count: int) -> np.ndarray:
    """So many knots: further ones continue the last line."""
    further = np.arange(1, count - len(knots) + 1) * (knots[-1] - knots[-2])
    return np.concatenate([knots, knots[-1] + further])


def told_values(column: np.ndarray, weight: np.ndarray) -> _Curve:
    """The different values of a column, in order, and the weights of their rows."""
    seen = ~np.isnan(column) & (weight > 0)
    values, place = np.unique(column[seen], return_inverse=True)
    return values, np.bincount(place, weight[seen], minlength=len(values))


def _shares(values: np.ndarray, total: np.ndarray) -> _Curve:
    """Weights that sum to one."""
    return values, total / max(total.sum(), 1e-300)


def _quantiles(values: np.ndarray, weight: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The values that have so large a share of all below them."""
    return values[np.searchsorted(np.cumsum(weight), share).clip(max=len(values) - 1)]


def _curve(kind: str, values: np.ndarray, weight: np.ndarray) -> _Curve:
    """The curve of one column; of two values that is a line."""
    count = min(_POINTS, len(values))
    points = _quantiles(values, weight, (np.arange(count) + 0.5) / max(count, 1))
    if (np.diff(points) > _SAME_AT).sum() < 2:
        return _LINE
    at, to = _ranks(values, weight) if kind == "ranks" else _power(points, len(values))
    mapped = np.interp(points, at, to)
    to = (to - mapped.mean()) / mapped.std()
    if kind == TAMED and max(-_ends(values, at, to)[0], _ends(values, at, to)[1]) > _FAR:
        return _curve("ranks", values, weight)
    return at, to


def _ends(values: np.ndarray, at: np.ndarray, to: np.ndarray) -> np.ndarray:
    """(2,) what the least and the largest value become; curves end as straight lines."""
    ends, slope = values[[0, -1]], (np.diff(to) / np.diff(at))[[0, -1]]
    return to[[0, -1]] + slope * (ends - at[[0, -1]])


def has_far_values(X: np.ndarray, weight: np.ndarray, levels: np.ndarray) -> bool:
    """Whether a number of X (n, D) lies far from the others of its column, by their quartiles."""
    for column, level in zip(X.T, levels, strict=True):
        values, total = told_values(column, weight)
        if level or len(values) < 3:
            continue
        low, center, high = _quantiles(*_shares(values, total), np.array([0.25, 0.5, 0.75]))
        farthest = max(center - values[0], values[-1] - center)
        if high > low and farthest > _NOTABLE * (high - low) / _INNER_HALF:
            return True
    return False


def _power(points: np.ndarray, n_values: int) -> _Curve:
    """The power under which points are most probable as Gaussian draws; 1 unless one is clearly."""
    to, log_slope = points, np.zeros_like(points)
    best = -0.5 * np.log(points.var()) + _CLEAR / n_values
    origin = np.array([np.median(points), points[0], points[-1]])[:, None]
    unit, side = np.abs(points - origin).mean(1)[:, None], np.array([[1.0], [1.0], [-1.0]])
    mapped, slopes = _yeo_johnson(side * (points - origin) / unit)
    slopes -= np.log(unit)[..., None]
    gain = slopes.mean(2) - 0.5 * np.log(mapped.var(2))
    if gain.max() > best:
        start, exponent = np.unravel_index(gain.argmax(), gain.shape)
        to, log_slope = side[start] * mapped[start, exponent], slopes[start, exponent]
    knots, place = np.unique(points, return_index=True)
    return _with_ends(*_apart(knots, to[place]), *np.exp(log_slope[[0, -1]]))


def _yeo_johnson(u: np.ndarray) -> _Curve:
    """(S, E, n) values (S, n) under every exponent, and the logs of the slopes."""
    u, exponent = u[:, None], _EXPONENTS[:, None]
    size, power = np.log1p(np.abs(u)), np.where(u >= 0, exponent, 2.0 - exponent)
    flat = np.abs(power) < 1e-9
    value = np.where(flat, size, np.expm1(power * size) / np.where(flat, 1.0, power))
    return np.sign(u) * value, (power - 1.0) * size


def _ranks(values: np.ndarray, weight: np.ndarray) -> _Curve:
    """Normal scores of ranks, ties in the middle of theirs, by lines between values."""
    from scipy.special import ndtr, ndtri  # curves that have been learned need NumPy alone

    middle = (np.cumsum(weight) - 0.5 * weight).clip(_OUTERMOST, 1.0 - _OUTERMOST)
    most = int(min(_KNOTS, 2 + _KNOTS_PER_ROOT * np.sqrt(len(values))))
    first, last = ndtri(middle[[0, -1]])
    wanted = ndtr(np.linspace(first, last, most))
    knots = np.unique(_quantiles(values, weight, wanted))
    knots, to = _apart(knots, ndtri(middle[np.searchsorted(values, knots)]))
    inner = np.searchsorted(to, ndtri([_END, 1.0 - _END])).clip([1, 0], [len(to) - 1, len(to) - 2])
    slopes = (to[inner] - to[[0, -1]]) / (knots[inner] - knots[[0, -1]])
    return _with_ends(knots, to, *slopes)


def _apart(at: np.ndarray, to: np.ndarray) -> _Curve:
    """Knots without those that are the one before them but for rounding."""
    apart = (np.diff(at) > _SAME_AT) & (np.diff(to) > _SAME_TO * (to[-1] - to[0]))
    return at[np.append(True, apart)], to[np.append(True, apart)]


def _with_ends(at: np.ndarray, to: np.ndarray, first: float, last: float) -> _Curve:
    """A knot more at either end, where the curve has these slopes."""
    at = np.concatenate([[at[0] - 1.0], at, [at[-1] + 1.0]])
    return at, np.concatenate([[to[0] - first], to, [to[-1] + last]])
