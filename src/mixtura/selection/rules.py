"""Rules that tell of classes, each of a few columns, as boosted trees find them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from mixtura.data.indicators import Indicators, quantile_knots
from mixtura.numerics import one_thread

#: Leaves per tree, and how many conditions lead to one, at most; trees of all classes together, the
#: fewest and the most, and rows for each; rules at most.
_LEAVES, _DEPTH, _TREES, _ROWS_PER_TREE, _MOST = 16, 6, (50, 150), 20, 2_000
#: Numbers of a column that rules may begin or end at.
_EDGES = 254
#: What is asked of the nodes of a tree.
_OF_A_NODE = ["is_leaf", "feature_idx", "num_threshold", "left", "right"]


class _Condition(NamedTuple):
    """That the number of a column is above a threshold, or not; or None, and its category."""

    column: int
    above: bool | None
    at: float

    def shape(self, values: np.ndarray) -> tuple[float, float, float]:
        """Where an indicator of it is one, and its slopes: between values (n,), in order."""
        if self.above is None:
            slope = float(math.isfinite(self.at))  # infinity is any category
            return self.at if slope else 0.0, slope, slope
        place = int(values.searchsorted(self.at, side="right"))
        low, high = values[place - 1 : place + 1].tolist()
        apart = high - low
        slope = 1.0 / apart
        if math.isfinite(apart) and slope * apart < 1.0:
            slope = math.nextafter(slope, math.inf)  # nothing of it is left at the other end
        slope = min(slope, sys.float_info.max)
        return (high, slope, 0.0) if self.above else (low, 0.0, slope)


class _Asked(NamedTuple):
    """A column as trees see it: one category of it, or None and thresholds."""

    column: int
    category: float | None
    edges: np.ndarray

    def shown(self, values: np.ndarray) -> np.ndarray:
        """(n,) whether values are of the category, or how many edges they are above."""
        known = self.category is None
        told = np.searchsorted(self.edges, values) if known else values == self.category
        return np.where(np.isnan(values), np.nan, told)


def ruled(
    own: Indicators, values: np.ndarray, y: np.ndarray, weight: np.ndarray, levels: np.ndarray
) -> Indicators:
    """Indicators, and beside them rules, which are products of conditions.

    They are learned from rows (n, D) in the user's units, NaN where missing, with labels (n,), -1
    for none, weights, and so many categories (D,) per column, 0 for numbers. Rows that are shown to
    trees must not be those that say how much the rules are worth.
    """
    known = (y >= 0) & (weight > 0.0)
    values, weight = values[known], weight[known]
    classes, y = np.unique(y[known], return_inverse=True)
    asked = _asked(own, values, weight, levels)
    if len(classes) < 2 or not asked:
        return own
    rows = np.column_stack([each.shown(values[:, each.column]) for each in asked])
    kinds = len(classes) if len(classes) > 2 else 1
    count = int(np.clip(len(y) / _ROWS_PER_TREE, *_TREES))
    trees = HistGradientBoostingClassifier(
        max_leaf_nodes=min(_LEAVES, max(_MOST // kinds, 2)),
        max_depth=_DEPTH,
        max_iter=max(count // kinds, 1),
        early_stopping=False,
        max_bins=_EDGES + 1,
        random_state=0,
    )
    with one_thread(rows.size):
        trees.fit(rows, y, sample_weight=weight * (len(y) / weight.sum()))
    found = dict[frozenset[_Condition], None]()  # in order
    for tree in (each for step in trees._predictors for each in step):
        found |= dict.fromkeys(_paths(tree.nodes, asked, levels))
    longest = sorted([each for each in found if each][:_MOST], key=len, reverse=True)
    rules = [_padded(each) for each in longest]
    if not rules:
        return own
    place = {each: at for at, each in enumerate(dict.fromkeys(c for r in rules for c in r))}
    column = np.array([each.column for each in place])
    ordered = np.sort(values, axis=0)  # what is missing comes last
    knot, rise, fall = np.transpose([each.shape(ordered[:, each.column]) for each in place])
    factors = Indicators(column, knot, rise, fall, own.frequent, own.n_columns)
    products = np.transpose([[place[each] for each in rule] for rule in rules])
    return replace(own, factors=factors, products=products)


def _padded(rule: frozenset[_Condition]) -> list[_Condition]:
    """As many conditions as any rule has: what is left asks nothing of one of its columns."""
    asked = sorted(rule, key=repr)
    nothing = _Condition(asked[0].column, None, np.inf)
    return [*asked, *[nothing] * (_DEPTH - len(asked))]


def _asked(
    own: Indicators, values: np.ndarray, weight: np.ndarray, levels: np.ndarray
) -> list[_Asked]:
    """What trees are shown: numbers, and categories that are told apart, of which there are two."""
    found, none = list[_Asked](), np.zeros(0)
    for column, level in enumerate(levels.tolist()):
        if level and len(categories := own.categories(column)) > 1:
            found += [_Asked(column, float(each), none) for each in categories]
        elif not level:
            edges = quantile_knots(values[:, column], weight, _EDGES)
            found += [_Asked(column, None, edges)] if len(edges) > 1 else []
    return found


def _paths(
    nodes: np.ndarray, asked: Sequence[_Asked], levels: np.ndarray
) -> Iterator[frozenset[_Condition]]:
    """The conditions that lead to each leaf of a tree.

    That a column is not of a category is one only if there is but one other; that it is missing is
    none. Of several thresholds of a column in one direction the last is the narrowest.
    """
    split, waiting = nodes[_OF_A_NODE].tolist(), [(0, dict[tuple[int, bool | None], _Condition]())]
    while waiting:
        at, path = waiting.pop()
        is_leaf, place, threshold, left, right = split[at]
        if is_leaf:
            yield frozenset(path.values())
            continue
        column, category, edges = asked[place]
        for above, child in ((False, left), (True, right)):
            met: _Condition | None = None
            if category is None and threshold < len(edges):
                met = _Condition(column, above, float(edges[int(threshold)]))
            elif category is not None and (above or levels[column] == 2):
                met = _Condition(column, None, category if above else 1.0 - category)
            longer = path if met is None else path | {(column, met.above): met}
            waiting.append((child, longer))
