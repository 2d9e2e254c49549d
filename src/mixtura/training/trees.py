"""Boosted trees that expect targets, each row by those that have not seen it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from mixtura.data.indicators import quantile_knots
from mixtura.data.trees import MOST_LEAVES, Trees
from mixtura.numerics import one_thread

#: Leaves, rounds and rate of boosting; values of a column that trees may split at.
_LEAVES, _ROUNDS, _RATE, _EDGES = 31, 50, 0.2, 254
#: What is asked of the nodes of a tree.
_OF_A_NODE = ["is_leaf", "value", "feature_idx", "num_threshold", "left", "right"]
#: The column, edge and tree of a split, and the leaves that it leaves out.
_Split = tuple[int, float, int, int, int]


def grown(
    values: np.ndarray, y: np.ndarray, weight: np.ndarray, fold: np.ndarray
) -> tuple[Trees, np.ndarray]:
    """Trees of numbers (n, P) for targets (n, T), and (n, T) what others expect of each row.

    Those of each fold (n,) learn from the rows of all others. What new rows get is their mean, so
    that it is no worse than what the rows got; NaN are numbers and targets that are missing. Trees
    are shown places between quantiles, which spares each of them the search for these.
    """
    edges = [_edges(each, weight) for each in values.T]
    places = (np.searchsorted(own, each) for own, each in zip(edges, values.T, strict=True))
    shown = np.where(np.isnan(values), np.nan, np.column_stack([*places]))
    alike = bool((weight == weight[0]).all())  # their derivatives are then found faster
    weight = weight / weight.mean()  # what trees ask of leaves counts rows, in single precision
    count, told = int(fold.max()) + 1, np.full(y.shape, np.nan)
    start, leaves, splits = np.zeros(y.shape[1]), list[list[float]](), list[_Split]()
    width = values.shape[1] + y.shape[1]
    for target, own in enumerate(y.T):
        for number in range(count):
            known = (fold != number) & ~np.isnan(own)
            if not known.any():  # a sample of rows may have nothing of a target that few have
                leaves += [[0.0]] * _ROUNDS
                told[fold == number, target] = 0.0
                continue
            learned = shown[known]
            learned[:, np.isnan(learned).all(0)] = 0.0  # there is nothing to split at
            model = HistGradientBoostingRegressor(
                max_leaf_nodes=_LEAVES,
                max_iter=_ROUNDS,
                learning_rate=_RATE,
                early_stopping=False,
                random_state=0,
            )
            with one_thread(shown.size):
                own_weight = None if alike else weight[known]
                model.fit(learned, own[known], sample_weight=own_weight)
                told[fold == number, target] = model.predict(shown[fold == number])
            start[target] += float(model._baseline_prediction.item()) / count
            for (tree,) in model._predictors:
                splits += _splits(tree.nodes, edges, len(leaves), found := list[float]())
                leaves.append([each / count for each in found])
    value = np.zeros((len(leaves), MOST_LEAVES))
    for row, each in zip(value, leaves, strict=True):
        row[: len(each)] = each
    column, edge, tree, first, last = np.array(splits).reshape(-1, 5).T
    whole = (each.astype(np.int64) for each in (column, tree, first, last))
    column, tree, first, last = whole
    trees = Trees(column, edge, tree, first, last, value, start, width)
    return trees, np.where(trees.told(values)[:, None], told, np.nan)


def _edges(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Numbers halfway between neighbors in a column (n,), after which rounding does not ask."""
    found, known = quantile_knots(values, weight, _EDGES), np.unique(values[~np.isnan(values)])
    place = known.searchsorted(found, side="right")
    inner = place < len(known)
    return 0.5 * found[inner] + 0.5 * known[place[inner]]


def _splits(
    nodes: np.ndarray, edges: list[np.ndarray], tree: int, leaves: list[float]
) -> Iterator[_Split]:
    """The splits of a tree; values of its leaves, from left to right, go to `leaves`."""
    known = nodes[_OF_A_NODE].tolist()

    def below(at: int) -> Iterator[_Split]:
        is_leaf, value, column, place, left, right = known[at]
        if is_leaf:
            leaves.append(value)
            return
        first = len(leaves)
        yield from below(left)
        own = edges[column]  # beyond the last place is what is missing
        edge = float(own[int(place)]) if place < len(own) else np.inf
        yield int(column), edge, tree, first, len(leaves)
        yield from below(right)

    return below(0)
