"""Class log-joints (n, C) of rows as nodes of a graph, and the probabilities of fitted models."""

from __future__ import annotations

import math
from functools import partial, reduce, singledispatch
from itertools import pairwise

import numpy as np

from mixtura.constants import SILENCE
from mixtura.data.indicators import Indicators
from mixtura.exceptions import UnsupportedError
from mixtura.runtime.export.densities import log_prob
from mixtura.runtime.export.graph import Graph, Rows
from mixtura.runtime.models import (
    FARTHEST,
    Calibration,
    Fitted,
    Layout,
    Mixture,
    Model,
    Scaling,
    Votes,
)
from mixtura.runtime.sparse import Kernels, Products, SparseModel


@singledispatch
def class_log_joint(model: Model, g: Graph, rows: Rows) -> str:
    """(n, C) up to what all classes of a row share."""
    raise UnsupportedError(f"a {type(model).__name__} cannot be exported: use mixtura.runtime.")


def summed(g: Graph, layout: Layout, values: str) -> str:
    """Sums within each class, in logs: (n, K) -> (n, C)."""
    if max(layout.counts) == 1:
        return values
    parts = [
        g.widened(g.log_sum(g.split(values, first, last, 1), 1), 1)
        for first, last in pairwise(np.cumsum([0, *layout.counts]))
    ]
    return g("Concat", *parts, axis=1)


@class_log_joint.register
def _(model: Mixture, g: Graph, rows: Rows) -> str:
    joint = g("Add", log_prob(model.density, g, rows), model.log_joint_weight)
    return summed(g, model.layout, joint)


@class_log_joint.register
def _(model: Votes, g: Graph, rows: Rows) -> str:
    total, every = None, np.arange(len(model.voters[0].log_prior))
    for voter, weight in zip(model.voters, model.weights, strict=True):
        chosen = g("ArgMax", class_log_joint(voter, g, rows), axis=1, keepdims=1)
        vote = g("Mul", g.cast(g("Equal", chosen, every)), weight)
        total = vote if total is None else g("Add", total, vote)
    total = g("Add", total, SILENCE)
    return g("Log", g("Div", total, g.total(total, 1, keep=True)))


@class_log_joint.register
def _(model: SparseModel, g: Graph, rows: Rows) -> str:
    values = _columns(g, model.basis, rows.x)
    joint = g("Add", g("MatMul", values, model.coef.T), model.log_weight)
    by_class = summed(g, model.layout, joint)
    if not model.moderate or not len(model.root):
        return by_class
    spread = g("Gather", by_class, model.layout.owner, axis=1)
    shares = g("Exp", g("Sub", joint, spread))
    deviations = [
        g.widened(
            g("MatMul", g("Mul", *(g("Gather", each, at, axis=1) for each, at in pair)), root), 1
        )
        for column, own, root in model.masks
        for pair in [((values, column), (shares, own))]
    ]
    deviation = g("Concat", *deviations, axis=1)
    covariance = g("MatMul", deviation, g("Transpose", deviation, perm=[0, 2, 1]))
    own = g.total(g.square(deviation), 2)
    pairs = g("Add", g.widened(own, 2), g.widened(own, 1))
    variance = g("Max", g("Sub", pairs, g("Mul", covariance, 2.0)), 0.0)
    difference = g("Sub", g.widened(by_class, 1), g.widened(by_class, 2))
    root = g("Sqrt", g("Add", g("Mul", variance, math.pi / 8.0), 1.0))
    return g("Neg", g.log_sum(g("Div", difference, root), 2))


def _columns(g: Graph, basis: Products | Kernels, x: str) -> str:
    """(n, H) columns of rows."""
    one = g("Add", g("Mul", g.split(x, 0, 1, 1), 0.0), 1.0)
    if isinstance(basis, Products):
        lifted = g("Concat", one, x, axis=1)
        return g("Mul", *(g("Gather", lifted, basis.pairs[:, side], axis=1) for side in (0, 1)))
    return g("Concat", one, _kernel(g, basis, x), axis=1)


def _kernel(g: Graph, basis: Kernels, x: str) -> str:
    gamma, shift = basis.params.get("gamma", 1.0), basis.params.get("coef0", 1.0)
    if basis.kernel in ("rbf", "laplacian"):
        away = g("Sub", g.widened(x, 1), basis.centers)
        size = g.square(away) if basis.kernel == "rbf" else g("Abs", away)
        return g("Exp", g("Mul", g.total(size, 2), -gamma))
    inner = g("MatMul", x, basis.centers.T)
    if basis.kernel == "linear":
        return inner
    inner = g("Add", g("Mul", inner, gamma), shift)
    if basis.kernel == "sigmoid":
        return g("Tanh", inner)
    degree = 2 if basis.kernel == "poly2" else basis.params.get("degree", 3)
    return g("Pow", inner, float(degree))


# -- a fitted model ------------------------------------------------------------------------------


def _scaled(g: Graph, scaling: Scaling, values: str) -> str:
    x = g("Div", g("Sub", values, scaling.location), scaling.scale)
    if scaling.curves is None:
        return x
    at, to = scaling.curves.at, scaling.curves.to
    above = g.cast(g("Greater", g.widened(x, 2), at), "i")
    place = g("Sub", g.total(above, 2), 1)
    place = g("Min", g("Max", place, 0), at.shape[1] - 2)
    first = np.arange(len(at))
    knot = g("Add", place, first * at.shape[1])
    from_, to_ = (g("Gather", each.ravel(), knot) for each in (at, to))
    slopes = (np.diff(to) / np.diff(at)).ravel()
    slope = g("Gather", slopes, g("Add", place, first * (at.shape[1] - 1)))
    return g("Add", to_, g("Mul", slope, g("Sub", x, from_)))


def _proba(g: Graph, calibration: Calibration, joint: str, missing: str, count: int) -> str:
    """Calibrated probabilities (n, C) of C classes, of rows that lack a share (n, 1)."""
    reach = g("Pow", g("Sub", 1.0, missing), calibration.fade)
    sharp = g("Softmax", g("Div", joint, g("Pow", calibration.temperature, reach)), axis=1)
    return g("Add", g("Mul", sharp, 1.0 - calibration.doubt), calibration.doubt / count)


def _indicators(g: Graph, indicators: Indicators, values: str) -> str:
    """(n, P) of values (n, D), products included."""
    found = g("Gather", values, indicators.column, axis=1)
    off = g("Sub", found, np.nan_to_num(indicators.knot))
    slopes = g("Mul", off, indicators.rise), g("Mul", off, -indicators.fall)
    told = g("Min", g("Max", g("Add", g("Min", *slopes), 1.0), 0.0), 1.0)
    alone = g("Where", indicators.itself, found, told)
    if indicators.factors is None:
        return alone
    factors = _indicators(g, indicators.factors, values)
    sides = (g("Gather", factors, each, axis=1) for each in indicators.products)
    return g("Concat", alone, reduce(partial(g, "Mul"), sides), axis=1)


def _own_proba(g: Graph, model: Fitted, values: str, holes: str, missing: str) -> str:
    """(n, C) what one model says of values (n, D), some of them holes."""
    if isinstance(indicators := model.scaling.indicators, Indicators):
        lost = (g("Gather", holes, [*each], axis=1) for each in indicators.origin)
        values, holes = _indicators(g, indicators, values), reduce(partial(g, "Or"), lost)
    lacks = g.cast(holes)
    x = g("Where", holes, 0.0, _scaled(g, model.scaling, values))
    x = g("Min", g("Max", x, -FARTHEST), FARTHEST)
    joint = class_log_joint(model.model, g, Rows(x, g("Sub", 1.0, lacks), lacks))
    found = _proba(g, model.calibration, joint, missing, count_of(model))
    return g("Where", g("Equal", missing, 1.0), g("Softmax", joint, axis=1), found)


def count_of(model: Fitted) -> int:
    assert model.classes is not None
    return len(model.classes)


def probabilities(g: Graph, model: Fitted, values: str) -> str:
    """(n, C) class probabilities of values (n, D): numbers, codes, NaN."""
    holes = g("IsNaN", values)
    if (levels := model.schema.levels(len(model.scaling.scale))).any():
        known = np.where(levels > 0, levels, np.inf)
        strange = g("Or", g("Less", values, np.where(levels > 0, 0.0, -np.inf)), holes)
        strange = g("Or", strange, g("GreaterOrEqual", values, known))
        between = g("Not", g("Equal", values, g("Floor", values)))
        holes = g("Or", strange, g("And", between, levels > 0))
    if model.reach.size:
        low, high = model.reach
        holes = g("Or", holes, g("Or", g("Less", values, low), g("Greater", values, high)))
    missing = g("ReduceMean", g.cast(holes), np.array([1]), keepdims=1)
    first = _own_proba(g, model, values, holes, missing)
    if model.blend is None:
        return first
    members = [_own_proba(g, each, values, holes, missing) for each in model.blend.members]
    shares = zip([first, *members], model.blend.weights.tolist(), strict=True)
    average = g.sum(*(g("Mul", proba, weight) for proba, weight in shares))
    found = _proba(g, model.blend.calibration, g("Log", average), missing, count_of(model))
    return g("Where", g("Equal", missing, 1.0), average, found)
