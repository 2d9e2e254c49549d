"""Classifiers as ONNX graphs, which onnxruntime and others compute without Python.

ONNX has no factorizations: matrices are eliminated feature by feature, unrolled. What is missing
stands in an identity, as in `gaussians`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mixtura.exceptions import UnsupportedError
from mixtura.files import replacing
from mixtura.runtime.gaussians import (
    LOG_2PI,
    DiagonalGaussian,
    FullGaussian,
    LowRankForm,
    StudentT,
)
from mixtura.runtime.mixed import Categorical, HolePattern, Product
from mixtura.runtime.models import (
    FARTHEST,
    SILENCE,
    Calibration,
    Fitted,
    Layout,
    Mixture,
    Scaling,
    Votes,
)
from mixtura.runtime.predictors import Classifier, Predictor
from mixtura.runtime.sparse import Kernels, Products, SparseModel

_OPSET = 18
#: Features up to which full covariances are eliminated.
_MOST_FEATURES = 30
_ELEMENTS = {"i": TensorProto.INT64, "f": TensorProto.DOUBLE, "U": TensorProto.STRING}


class _Graph:
    """Nodes and constants, under names of their own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: object) -> str:
        array = np.asarray(value)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def __call__(self, operation: str, *given: object, **attributes: object) -> str:
        """A node of names and constants; the name of what it gives."""
        inputs = [each if isinstance(each, str) else self.constant(each) for each in given]
        name = f"n{len(self.nodes)}"
        node = helper.make_node(operation, inputs, [name])
        node.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        self.nodes.append(node)
        return name

    def sum(self, *given: object) -> str:
        first, *rest = given
        for each in rest:
            first = self("Add", first, each)
        return str(first)

    def total(self, values: str, axis: int, keep: bool = False) -> str:
        return self("ReduceSum", values, np.array([axis]), keepdims=int(keep))

    def square(self, values: str) -> str:
        return self("Mul", values, values)

    def split(self, values: str, start: int, end: int, axis: int) -> str:
        return self("Slice", values, *(np.array([each]) for each in (start, end, axis)))

    def cast(self, values: str, kind: str = "f") -> str:
        return self("Cast", values, to=_ELEMENTS[kind])

    def shaped(self, values: str, *shape: int) -> str:
        return self("Reshape", values, np.array(shape))

    def widened(self, values: str, *axes: int) -> str:
        return self("Unsqueeze", values, np.array(axes))

    def log_sum(self, values: str, axis: int) -> str:
        """log of the sum of exponentials along an axis."""
        top = self("ReduceMax", values, np.array([axis]), keepdims=1)
        total = self.total(self("Exp", self("Sub", values, top)), axis, keep=True)
        return self("Squeeze", self("Add", self("Log", total), top), np.array([axis]))


@dataclass(frozen=True)
class _Rows:
    """Names of rows (n, D): values, zero where missing; 1 where observed; 1 where absent."""

    x: str
    seen: str
    lacks: str


def _eliminated(g: _Graph, matrix: str, vector: str, size: int) -> tuple[str, str]:
    """v^T A^-1 v and log det A of positive definite A (n, K, d, d) and v (n, K, d)."""
    column = g.widened(vector, 3)
    corner = g.total(g("Mul", column, 0.0), 2, keep=True)
    top = g("Concat", matrix, column, axis=3)
    bottom = g("Concat", g("Transpose", column, perm=[0, 1, 3, 2]), corner, axis=3)
    rest, pivots = g("Concat", top, bottom, axis=2), []
    for left in range(size, 0, -1):
        row = g.split(rest, 0, 1, 2)
        pivots.append(g.split(row, 0, 1, 3))
        across = g.split(row, 1, left + 1, 3)
        down = g("Transpose", across, perm=[0, 1, 3, 2])  # what is left is symmetric
        inner = g.split(g.split(rest, 1, left + 1, 2), 1, left + 1, 3)
        rest = g("Sub", inner, g("Mul", g("Div", down, pivots[-1]), across))
    log_det = g.total(g("Log", g("Concat", *pivots, axis=3)), 3)
    both = np.array([2, 3])
    return g("Neg", g("Squeeze", rest, both)), g("Squeeze", log_det, np.array([2]))


# -- densities: log densities (n, K) of rows -----------------------------------------------------


@singledispatch
def _distances(density: object, g: _Graph, rows: _Rows) -> tuple[str, str]:
    """Squared distances of what is observed, and log det(2 pi covariance) of it, (n, K)."""
    raise UnsupportedError(f"ONNX export does not know {type(density).__name__}.")


def _moments(g: _Graph, rows: _Rows) -> str:
    return g("Concat", g.square(rows.x), rows.x, rows.seen, axis=1)


@_distances.register
def _(density: DiagonalGaussian, g: _Graph, rows: _Rows) -> tuple[str, str]:
    table, log_variance = density.table
    return g("MatMul", _moments(g, rows), table), g("MatMul", rows.seen, log_variance)


@_distances.register
def _(density: FullGaussian, g: _Graph, rows: _Rows) -> tuple[str, str]:
    size = density.mean.shape[1]
    if size > _MOST_FEATURES:
        raise UnsupportedError(
            f"full covariances of {size} features cannot be exported, {_MOST_FEATURES} at most: "
            "use density='low_rank' or 'diag', or mixtura.runtime."
        )
    seen = g.widened(rows.seen, 1)
    away = g("Mul", g("Sub", g.widened(rows.x, 1), density.mean), seen)
    both = g("Mul", g.widened(seen, 3), g.widened(seen, 2))
    own = g("Mul", both, density.covariance)
    rest = g("Mul", g.widened(g("Sub", 1.0, seen), 3), np.eye(size))
    squared, log_det = _eliminated(g, g("Add", own, rest), away, size)
    return squared, g.sum(log_det, g("Mul", g.total(rows.seen, 1, keep=True), LOG_2PI))


@_distances.register
def _(density: LowRankForm, g: _Graph, rows: _Rows) -> tuple[str, str]:
    (by_square, by_value, log_scale), (_, count, rank, _) = density.table, density.grams.shape
    side = rows.seen if density.of_covariance else g("Sub", 1.0, rows.seen)
    gram = g("MatMul", side, density.grams.reshape(len(density.grams), -1))
    gram = g("Add", g.shaped(gram, -1, count, rank, rank), np.eye(rank))
    values = g("Concat", rows.x, rows.seen, axis=1)
    latent = g.shaped(g("MatMul", values, by_value), -1, count, rank)
    inner, log_gram = _eliminated(g, gram, latent, rank)
    squares = g("MatMul", _moments(g, rows), by_square)
    log_det = g.sum(g("MatMul", rows.seen, log_scale), log_gram)
    if density.of_covariance:
        return g("Sub", squares, inner), log_det
    return g("Add", squares, inner), g("Sub", log_det, density.log_gram_all)


@singledispatch
def _log_prob(density: object, g: _Graph, rows: _Rows) -> str:
    """(n, K); of a Gaussian, unless another kind is registered."""
    return g("Mul", g.sum(*_distances(density, g, rows)), -0.5)


@_log_prob.register
def _(density: StudentT, g: _Graph, rows: _Rows) -> str:
    squared, log_det = _distances(density.scale, g, rows)
    size = g.total(rows.seen, 1)
    near = g("Div", g("Max", squared, 0.0), density.dof)
    tail = g("Mul", g("Log", g("Add", near, 1.0)), g("Add", g.widened(size, 1), density.dof))
    constants = g("Gather", density.constants, g.cast(size, "i"))
    return g("Sub", constants, g("Mul", g.sum(log_det, tail), 0.5))


@_log_prob.register
def _(density: Categorical, g: _Graph, rows: _Rows) -> str:
    missing = len(density.table) - 1.0
    observed = g("Mul", g("Add", rows.x, density.first - missing), rows.seen)
    slots = g.cast(g("Add", observed, missing), "i")
    return g.total(g("Gather", density.table, slots), 1)


@_log_prob.register
def _(density: HolePattern, g: _Graph, rows: _Rows) -> str:
    size, count = len(density.levels), density.n_components
    every = replace(rows, x=rows.lacks, seen=g("Add", g("Mul", rows.lacks, 0.0), 1.0))
    own = g.shaped(_log_prob(density.by_rate, g, every), -1, count, len(density.rates))
    absent = g.cast(g.total(rows.lacks, 1), "i")
    facts = density.log_factorials
    broad = facts[: size + 1] + facts[size::-1] - facts[size + 1] + math.log(density.broad)
    likely = g.log_sum(g("Add", own, density.log_shares), 2)
    pair = [g.widened(likely, 2), g.widened(_expanded(g, g("Gather", broad, absent), count), 2)]
    return g.log_sum(g("Concat", *pair, axis=2), 2)


def _expanded(g: _Graph, values: str, count: int) -> str:
    """(n,) -> (n, count)."""
    return g("Mul", g.widened(values, 1), np.ones(count))


@_log_prob.register
def _(density: Product, g: _Graph, rows: _Rows) -> str:
    parts = []
    for part, columns in zip(density.parts, density.columns, strict=False):
        x, seen = (g("Gather", each, np.array(columns), axis=1) for each in (rows.x, rows.seen))
        parts.append(_log_prob(part, g, _Rows(x, seen, rows.lacks)))
    if density.informative:
        parts.append(_log_prob(density.parts[-1], g, rows))
    return g.sum(*parts)


# -- models: class log-joints (n, C) -------------------------------------------------------------


@singledispatch
def _joint(model: object, g: _Graph, rows: _Rows) -> str:
    raise UnsupportedError(
        "a network integrates what is missing by draws, and cannot be exported: use "
        "MixtureClassifier, or mixtura.runtime."
    )


def _by_class(g: _Graph, layout: Layout, values: str) -> str:
    """Sums within each class, in logs: (n, K) -> (n, C)."""
    if max(layout.counts) == 1:
        return values
    parts = [
        g.widened(g.log_sum(g.split(values, first, last, 1), 1), 1)
        for first, last in pairwise(np.cumsum([0, *layout.counts]))
    ]
    return g("Concat", *parts, axis=1)


@_joint.register
def _(model: Mixture, g: _Graph, rows: _Rows) -> str:
    joint = g("Add", _log_prob(model.density, g, rows), model.log_joint_weight)
    return _by_class(g, model.layout, joint)


@_joint.register
def _(model: Votes, g: _Graph, rows: _Rows) -> str:
    total, every = None, np.arange(len(model.voters[0].log_prior))
    for voter, weight in zip(model.voters, model.weights, strict=True):
        chosen = g("ArgMax", _joint(voter, g, rows), axis=1, keepdims=1)
        vote = g("Mul", g.cast(g("Equal", chosen, every)), weight)
        total = vote if total is None else g("Add", total, vote)
    total = g("Add", total, SILENCE)
    return g("Log", g("Div", total, g.total(total, 1, keep=True)))


@_joint.register
def _(model: SparseModel, g: _Graph, rows: _Rows) -> str:
    values = _columns(g, model.basis, rows.x)
    joint = g("Add", g("MatMul", values, model.coef.T), model.log_weight)
    by_class = _by_class(g, model.layout, joint)
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


def _columns(g: _Graph, basis: Products | Kernels, x: str) -> str:
    """(n, H) columns of rows."""
    one = g("Add", g("Mul", g.split(x, 0, 1, 1), 0.0), 1.0)
    if isinstance(basis, Products):
        lifted = g("Concat", one, x, axis=1)
        return g("Mul", *(g("Gather", lifted, basis.pairs[:, side], axis=1) for side in (0, 1)))
    return g("Concat", one, _kernel(g, basis, x), axis=1)


def _kernel(g: _Graph, basis: Kernels, x: str) -> str:
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


def _scaled(g: _Graph, scaling: Scaling, values: str) -> str:
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


def _proba(g: _Graph, calibration: Calibration, joint: str, missing: str, count: int) -> str:
    """Calibrated probabilities (n, C) of C classes, of rows that lack a share (n, 1)."""
    reach = g("Pow", g("Sub", 1.0, missing), calibration.fade)
    sharp = g("Softmax", g("Div", joint, g("Pow", calibration.temperature, reach)), axis=1)
    return g("Add", g("Mul", sharp, 1.0 - calibration.doubt), calibration.doubt / count)


def _own_proba(g: _Graph, model: Fitted, values: str, holes: str, missing: str) -> str:
    """(n, C) what one model says of values (n, D), some of them holes."""
    lacks = g.cast(holes)
    x = g("Where", holes, 0.0, _scaled(g, model.scaling, values))
    x = g("Min", g("Max", x, -FARTHEST), FARTHEST)
    joint = _joint(model.model, g, _Rows(x, g("Sub", 1.0, lacks), lacks))
    found = _proba(g, model.calibration, joint, missing, _count(model))
    return g("Where", g("Equal", missing, 1.0), g("Softmax", joint, axis=1), found)


def _count(model: Fitted) -> int:
    assert model.classes is not None
    return len(model.classes)


def _all_proba(g: _Graph, model: Fitted, values: str) -> str:
    """(n, C) class probabilities of values (n, D): numbers, codes, NaN."""
    holes = g("IsNaN", values)
    if (levels := model.schema.levels(len(model.scaling.scale))).any():
        known = np.where(levels > 0, levels, np.inf)
        strange = g("Or", g("Less", values, np.where(levels > 0, 0.0, -np.inf)), holes)
        holes = g("Or", strange, g("GreaterOrEqual", values, known))
    missing = g("ReduceMean", g.cast(holes), np.array([1]), keepdims=1)
    first = _own_proba(g, model, values, holes, missing)
    if model.blend is None:
        return first
    members = [_own_proba(g, each, values, holes, missing) for each in model.blend.members]
    shares = zip([first, *members], model.blend.weights.tolist(), strict=True)
    average = g.sum(*(g("Mul", proba, weight) for proba, weight in shares))
    found = _proba(g, model.blend.calibration, g("Log", average), missing, _count(model))
    return g("Where", g("Equal", missing, 1.0), first, found)


def build(model: Predictor) -> onnx.ModelProto:
    """The graph of a classifier: "X" (n, D) in; "label" (n,) and "probabilities" (n, C) out.

    X is of double precision, with NaN where a value is missing; of columns with categories it has
    codes, the places of the categories in the metadata entry "categories" (any other is missing).
    """
    if not isinstance(model, Classifier) or not len(model.classes_):
        raise UnsupportedError(
            "only MixtureClassifier, BoostedMixtureClassifier and SparseMixtureClassifier can be "
            "exported: use mixtura.runtime."
        )
    fitted, g = model.fitted, _Graph()
    proba = _all_proba(g, fitted, "X")
    classes = np.array(model.classes_.tolist())
    kind = "i" if classes.dtype.kind in "bu" else classes.dtype.kind
    classes = classes.astype({"i": np.int64, "f": np.float64, "U": object}[kind])
    label = g("Gather", classes, g("ArgMax", proba, axis=1, keepdims=0))
    g.nodes += [
        helper.make_node("Identity", [made], [name])
        for made, name in ((label, "label"), (proba, "probabilities"))
    ]
    graph = helper.make_graph(
        g.nodes,
        "mixtura",
        [_tensor("X", TensorProto.DOUBLE, "n", len(fitted.scaling.scale))],
        [
            _tensor("label", _ELEMENTS[kind], "n"),
            _tensor("probabilities", TensorProto.DOUBLE, "n", len(classes)),
        ],
        g.constants,
    )
    found = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="mixtura"
    )
    found.ir_version = 9
    schema = fitted.schema
    known = schema.categories or ()
    told = {
        "names": [str(name) for name in schema.names or ()],
        "categories": [None if each is None else each.tolist() for each in known],
    }
    helper.set_model_props(found, {name: json.dumps(value) for name, value in told.items()})
    onnx.checker.check_model(found)
    return found


def _tensor(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def write(model: Predictor, path: str | os.PathLike[str]) -> None:
    """Write the graph of a classifier; a file that is there stays until the new one is complete."""
    content = build(model).SerializeToString()
    with replacing(path) as fresh:
        Path(fresh).write_bytes(content)
