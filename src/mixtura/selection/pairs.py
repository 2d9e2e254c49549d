"""Pairs of columns that tell of classes together what neither tells by itself."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from mixtura.data.indicators import Indicators, quantile_knots
from mixtura.data.scaling import Scaling

#: Rows that are looked at, at most; groups of a column's numbers, and knots of its factors.
_ROWS, _GROUPS, _KNOTS = 4_000, 8, 5
#: By how many deviations a pair must tell more than by chance: of many pairs some look so.
_CLEAR = 4.0
#: Products in all, at most, and labeled rows per product.
_MOST, _PER_PRODUCT = 200, 10
#: How strong what single columns tell may be, and iterations that find it.
_STRENGTH, _ITERATIONS = 0.05, 25


def crossed(
    scaling: Scaling, values: np.ndarray, y: np.ndarray, weight: np.ndarray, levels: np.ndarray
) -> Indicators | None:
    """Indicators of a map, with products for pairs that clearly tell more than single columns do.

    They are learned from rows (n, D) in the user's units, NaN where missing, that are no copies of
    each other, with labels (n,), -1 for none, weights, and so many categories (D,) per column, 0
    for numbers. None if there is no such pair.
    """
    known = np.flatnonzero((y >= 0) & (weight > 0.0))
    known = known[:: max(1, -(-len(known) // _ROWS))]
    values, weight = values[known], weight[known]
    classes, y = np.unique(y[known], return_inverse=True)
    if len(classes) < 2 or len(levels) < 2 or scaling.indicators is None:
        return None
    weight = weight * (weight.sum() / (weight @ weight))  # uneven ones are as good as fewer rows
    numbers = np.flatnonzero(levels == 0).tolist()
    knots = {c: quantile_knots(values[:, c], weight, _KNOTS) for c in numbers}
    factors = Indicators.learn(values, weight, levels, knots, fewest=2)
    sizes = np.bincount(factors.column[~factors.itself], minlength=len(levels))
    left, variance = _left(np.nan_to_num(scaling.apply(values)), y, weight)
    gain = _gains(left, variance, *_groups(values, weight, levels))
    room, pairs = min(_MOST, len(y) // _PER_PRODUCT), list[tuple[int, int]]()
    for place in np.argsort(-gain, axis=None, kind="stable").tolist():
        one, other = divmod(place, len(levels))
        size = int(sizes[one] * sizes[other])
        if gain[one, other] <= _CLEAR:
            break
        if 0 < size <= room:
            pairs.append((one, other))
            room -= size
    return scaling.indicators.crossed(pairs, factors) if pairs else None


def _left(numbers: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What sums of curves, which are linear in numbers (n, P), leave of labels, (n, C), by weight;
    and variances of that."""
    n_classes, width = int(y.max()) + 1, numbers.shape[1]
    own = np.eye(n_classes)[y]

    def log_chance(free: np.ndarray) -> np.ndarray:
        by_class = free.reshape(n_classes, -1)
        return log_softmax(numbers @ by_class[:, :-1].T + by_class[:, -1], axis=1)

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        found, slope = log_chance(free), free.reshape(n_classes, -1)[:, :-1] / _STRENGTH
        off = (np.exp(found) - own) * weight[:, None]
        gradient = np.column_stack([off.T @ numbers + slope, off.sum(0)])
        held = 0.5 * _STRENGTH * (slope * slope).sum()
        return held - float(weight @ found[np.arange(len(y)), y]), gradient.ravel()

    start = np.zeros(n_classes * (width + 1))
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    chance = np.exp(log_chance(best.x))
    return (own - chance) * weight[:, None], chance * (1.0 - chance) * weight[:, None] ** 2


def _gains(
    left: np.ndarray, variance: np.ndarray, group: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """(D, D) deviations by which cells of two columns tell more than by chance, above the diagonal.

    What a cell tells is the square of what is left of labels in it, by its variance. What a column
    tells alone does not count.
    """
    told, cells = np.zeros((2, group.shape[1], group.shape[1]))
    n_kinds = left.shape[1] - (left.shape[1] == 2)  # what is left of one is that of the other
    for own, spread in zip(left.T[:n_kinds], variance.T[:n_kinds], strict=True):
        moved, held = (
            group.T @ (each[:, None].astype(group.dtype) * group) for each in (own, spread)
        )
        told += (moved * moved - held) / (held + 1.0)
        cells += held > 1.0
    total, count = (
        np.add.reduceat(np.add.reduceat(e, starts, 0), starts, 1) for e in (told, cells)
    )
    alone = np.maximum(np.diag(total), 0.0)
    alike = n_kinds / (left.shape[1] - 1.0)  # what is left of all classes together is zero
    deviation = np.sqrt(2.0 * alike * np.maximum(count, 1.0))
    return np.triu((total - alone[:, None] - alone) / deviation, 1)


def _groups(
    values: np.ndarray, weight: np.ndarray, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Indicators (n, S) of categories and of groups of near numbers, in single precision, and where
    those of each column begin (D,)."""
    found = list[np.ndarray]()
    for own, level in zip(values.T, levels.tolist(), strict=True):
        edges = np.arange(1.0, level) if level else quantile_knots(own, weight, _GROUPS - 1)
        code = np.searchsorted(edges, own, side="right")
        found.append((code[:, None] == np.arange(len(edges) + 1)) & ~np.isnan(own)[:, None])
    sizes = np.array([each.shape[1] for each in found])
    return np.concatenate(found, 1).astype(np.float32), np.cumsum(sizes) - sizes
