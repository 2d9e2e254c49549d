"""Mixture networks as nodes of a graph: every row is completed by the draws of its network.

Components are given by their covariances, whatever form these have.
"""

from __future__ import annotations

import math
from functools import singledispatch
from itertools import pairwise

import numpy as np

from mixtura.exceptions import UnsupportedError
from mixtura.runtime.batch import Density
from mixtura.runtime.export.densities import MOST_FEATURES, log_prob
from mixtura.runtime.export.graph import Graph, Rows, eliminated
from mixtura.runtime.export.models import class_log_joint
from mixtura.runtime.gaussians import DiagonalGaussian, FullGaussian, Gaussian, LowRankForm
from mixtura.runtime.mixed import Categorical, Product
from mixtura.runtime.models import Mixture
from mixtura.runtime.networks import Network


@class_log_joint.register
def _(model: Network, g: Graph, rows: Rows) -> str:
    mixture, (count, n_draws, size) = model.mixture, model.draws.shape
    own = _log_joint(g, mixture, rows)
    edges = g("CumSum", g("Softmax", own, axis=1), 1)
    below = g("Less", g.widened(edges, 2), (np.arange(n_draws) + 0.5) / n_draws)
    component = g("Min", g.total(g.cast(below, "i"), 1), count - 1)
    place = g("Add", g("Mul", component, n_draws), np.arange(n_draws))
    drawn = g("Gather", model.draws.reshape(-1, size), place)
    whole = g.shaped(_agree(mixture.density, g, rows, component, drawn), -1, size)
    lacks = g.shaped(g("Add", g.widened(rows.lacks, 1), np.zeros((n_draws, 1))), -1, size)
    seen = g("Add", g("Mul", lacks, 0.0), 1.0)
    scores = _scores(g, model, _log_joint(g, mixture, Rows(whole, seen, lacks)))
    answers = g.shaped(g("LogSoftmax", scores, axis=1), -1, n_draws, len(model.bias))
    found = g("Sub", g.log_sum(answers, 1), math.log(n_draws))
    if not getattr(mixture.density, "informative", False):
        blank = g("Equal", g.total(rows.seen, 1, keep=True), 0.0)
        found = g("Where", blank, np.log(model.class_shares), found)
    return g("Add", found, g.widened(g.log_sum(own, 1), 1))


def _log_joint(g: Graph, mixture: Mixture, rows: Rows) -> str:
    """(n, K)."""
    return g("Add", log_prob(mixture.density, g, rows), mixture.log_joint_weight)


def _scores(g: Graph, model: Network, log_joint: str) -> str:
    """(n, C) before the softmax."""
    mixture, layout = model.mixture, model.mixture.layout
    membership = np.eye(len(layout.counts))[layout.owner]
    if model.embedding == "posterior":
        edges = pairwise(np.cumsum([0, *layout.counts]))
        parts = (g.split(log_joint, first, last, 1) for first, last in edges)
        found = g("Concat", *(g("Softmax", part, axis=1) for part in parts), axis=1)
    elif model.embedding in ("log_density", "density"):
        found = g("Sub", log_joint, mixture.log_prior[layout.owner])
        if model.embedding == "density":
            found = g("Exp", g("Sub", found, model.log_peak + mixture.log_weight))
    else:
        raise UnsupportedError(
            f"networks with embedding={model.embedding!r} cannot be exported: use 'posterior' or "
            "'log_density', or mixtura.runtime."
        )
    weight = model.weight / model.scale
    bias = model.bias - (model.shift * weight) @ membership
    return g("Add", g("MatMul", found, weight[:, None] * membership), bias)


# -- completions (n, draws, D) of rows, by draws (n, draws, D) of their components (n, draws) -----


@singledispatch
def _agree(density: Density, g: Graph, rows: Rows, component: str, drawn: str) -> str:
    """Observed values, and draws of the others that agree with them."""
    raise UnsupportedError(
        f"networks of {type(density).__name__} cannot be exported: use another density, or "
        "mixtura.runtime."
    )


def _where_seen(g: Graph, rows: Rows, drawn: str) -> str:
    seen = g("Greater", g.widened(rows.seen, 1), 0.5)
    return g("Where", seen, g.widened(rows.x, 1), drawn)


@_agree.register
def _(density: Categorical, g: Graph, rows: Rows, component: str, drawn: str) -> str:
    return _where_seen(g, rows, drawn)


@_agree.register
def _(density: DiagonalGaussian, g: Graph, rows: Rows, component: str, drawn: str) -> str:
    return _where_seen(g, rows, drawn)


@_agree.register
def _(density: Gaussian, g: Graph, rows: Rows, component: str, drawn: str) -> str:
    covariance, size = _covariance(density), density.mean.shape[1]
    if size > MOST_FEATURES:
        raise UnsupportedError(
            f"networks of {size} features whose components correlate cannot be exported, "
            f"{MOST_FEATURES} at most: use density='diag', or mixtura.runtime."
        )
    seen = g.widened(rows.seen, 1)
    both = g("Mul", g("Mul", g.widened(seen, 3), g.widened(seen, 2)), covariance)
    masked = g("Add", both, g("Mul", g.widened(g("Sub", 1.0, seen), 3), np.eye(size)))
    blank = g("Mul", masked, 0.0)
    right, below = g("Add", blank, np.eye(size)), g("Add", blank, covariance)
    regression = eliminated(g, masked, right, below, size)[0]  # (n, K, D, D)
    own = g("GatherND", regression, g.widened(component, 2), batch_dims=1)
    away = g("Mul", g("Sub", g.widened(rows.x, 1), drawn), seen)
    moved = g("Squeeze", g("MatMul", own, g.widened(away, 3)), np.array([3]))
    return _where_seen(g, rows, g("Add", drawn, moved))


def _covariance(density: Gaussian) -> np.ndarray:
    """(K, D, D)."""
    if isinstance(density, FullGaussian):
        return density.covariance
    assert isinstance(density, LowRankForm)
    matrix = density.loading @ density.loading.swapaxes(1, 2)
    matrix = matrix + density.diagonal[:, None] * np.eye(density.diagonal.shape[1])
    return matrix if density.of_covariance else np.linalg.inv(matrix)


@_agree.register
def _(density: Product, g: Graph, rows: Rows, component: str, drawn: str) -> str:
    parts = []
    for part, columns in zip(density.parts, density.columns, strict=False):
        index = np.array(columns)
        x, seen = (g("Gather", each, index, axis=1) for each in (rows.x, rows.seen))
        mine = g("Gather", drawn, index, axis=2)
        parts.append(_agree(part, g, Rows(x, seen, rows.lacks), component, mine))
    order = np.argsort(np.concatenate(density.columns))
    return g("Gather", g("Concat", *parts, axis=2), order, axis=2)
