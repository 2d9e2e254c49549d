"""Whether numbers are codes, of plots, districts or patients: what near ones tell says nothing."""

from __future__ import annotations

import numpy as np

from mixtura.selection.held_out import WORTH, mean_and_error

#: Groups of a column's numbers that its values are compared with, at most; values per group.
_GROUPS, _VALUES = 16, 2
#: How many rows have the same value, in the mean, at least: two of them may be copies.
_ROWS = 2.5
#: By how many standard errors values must tell more than groups: of many columns some look so.
_CLEAR = 3.0


def gain_of_values(values: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """Nats per row that values of a column (n,) tell of classes (n,) beyond groups of near ones.

    Each row is told by the others that have its value, or are in its group: rows with their weights
    (n,), and no copies. Zero unless that is clear, and of values that hardly repeat; rows that lack
    the value, or a label (-1), do not count.
    """
    known = ~np.isnan(values) & (y >= 0) & (weight > 0.0)
    values, y, weight = values[known], y[known], weight[known]
    weight = weight / weight.mean() if len(weight) else weight  # whatever weights sum to
    found, code = np.unique(values, return_inverse=True)
    if len(values) <= _ROWS * len(found) or len(found) < 2 * _VALUES:
        return 0.0
    n_groups = min(_GROUPS, len(found) // _VALUES)
    edges = np.quantile(values, np.arange(1, n_groups) / n_groups)
    group = np.searchsorted(edges, values, side="right")
    mean, error = mean_and_error(_losses(group, y, weight) - _losses(code, y, weight), weight)
    return mean if mean > max(_CLEAR * error, WORTH) else 0.0


def _losses(code: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(n,) of labels by the other rows of the same code, and one row of all classes."""
    share = np.bincount(y, weight) / weight.sum()
    count = np.bincount(code * len(share) + y, weight, (code.max() + 1) * len(share))
    count = count.reshape(-1, len(share))
    own, all_of_them = count[code, y] - weight, count.sum(1)[code] - weight
    return -np.log((own.clip(0.0) + share[y]) / (all_of_them.clip(0.0) + 1.0))
