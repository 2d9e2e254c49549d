"""Where training begins for classes that rules tell apart: a component per leaf of a tree."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor
from torch.nn.functional import one_hot

from mixtura.densities import Density
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.solvers import FitResult, SpreadPrior
from mixtura.solvers.em import em_update
from mixtura.training.groups import Recipe
from mixtura.training.start import built, completed

#: Rows per leaf on average, the fewest and most leaves; rows of a class in a leaf that are a
#: component of their own, at least and as a share of all.
_ROWS_PER_LEAF, _LEAVES, _FEWEST, _SHARE = 20.0, (4, 128), 3.0, 1e-3


def leaf_start(
    engine: Engine, recipe: Recipe, log_prior: Tensor, learn_prior: bool, generator: torch.Generator
) -> FitResult[Mixture]:
    """The rows of each class in each leaf are a component; those among others share one.

    A tree asks for one column after another, as rules do, and finds classes in places that no
    distance between rows would.
    """
    batch = engine.only(engine.labeled).merged().all_rows().to(torch.float64)
    n_classes = len(log_prior)
    owner, place = _components(
        batch.with_nan().cpu().numpy(),
        batch.y.cpu().numpy(),
        batch.weight.cpu().numpy(),
        engine.levels,
        n_classes,
    )
    own = torch.from_numpy(place).to(engine.device)
    member = one_hot(own, len(owner)) * batch.weight[:, None]
    member = torch.where(member.sum(0) > 0.0, member, batch.weight[:, None])

    def density(kind: Tensor, member: Tensor) -> Density:
        filled = completed(replace(batch, y=kind), engine.levels, generator)
        structure = recipe.structure.start
        return built(structure, False, filled, member, generator, engine.scaling, batch.lacks())

    alike = density(batch.y, one_hot(batch.y, n_classes) * batch.weight[:, None])
    prior = SpreadPrior.pooled([alike], torch.ones(1), recipe.prior_rows)
    first, counts = density(own, member), np.bincount(owner, minlength=n_classes).tolist()
    log_prior, layout = log_prior.to(engine.device), Layout(counts, engine.device)
    start = Mixture(first, log_prior.new_zeros(len(owner)), layout, log_prior, learn_prior=False)
    start = em_update(start, first.statistics(batch, member), prior)
    return FitResult(replace(start, learn_prior=learn_prior), math.nan, 0, True, prior)


def _components(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, levels: tuple[int, ...], n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(K,) the class of each component, ascending; (n,) the component of each row (n, D).

    A class without rows has one that no row is of.
    """
    x, total = _in_order(x, y, weight, levels, n_classes), weight.sum()
    fewest = max(_FEWEST, _SHARE * total)
    tree = DecisionTreeClassifier(
        max_leaf_nodes=int(np.clip(total / _ROWS_PER_LEAF, *_LEAVES)),
        min_weight_fraction_leaf=min(fewest / total, 0.5),
        random_state=0,
    )
    leaf = tree.fit(x, y, sample_weight=weight).apply(x)
    size, rest = tree.tree_.node_count, 0  # no leaf is the first node, unless it is the only one
    few = np.bincount(y * size + leaf, weight)[y * size + leaf] < fewest
    place = y * size + np.where(few, rest, leaf)
    absent = np.setdiff1d(np.arange(n_classes), y) * size
    known, place = np.unique(np.append(place, absent), return_inverse=True)
    return known // size, place[: len(y)]


def _in_order(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, levels: tuple[int, ...], n_classes: int
) -> np.ndarray:
    """The rows (n, D) with categories in the order in which they tell of classes.

    They stand along the line on which their shares of the classes differ most.
    """
    x, own = x.copy(), np.eye(n_classes)[y] * weight[:, None]
    every = own.sum(0) / own.sum()
    for column in np.flatnonzero(levels):
        known = ~np.isnan(x[:, column])
        code = x[known, column].astype(int)
        mass = np.zeros((levels[column], n_classes))
        np.add.at(mass, code, own[known])
        count = mass.sum(1, keepdims=True)
        share = (mass + every) / (count + 1.0) - every
        line = np.linalg.svd(np.sqrt(count) * share, full_matrices=False)[2][0]
        x[known, column] = (share @ line)[code]
    return x
