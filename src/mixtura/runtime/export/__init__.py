"""Classifiers as ONNX graphs, which onnxruntime and others compute without Python.

ONNX has no factorizations: matrices are eliminated feature by feature, unrolled. What is missing
stands in an identity, as in `mixtura.runtime.gaussians`.
"""

from __future__ import annotations

import json
import os

import numpy as np
import onnx
from onnx import TensorProto, helper

from mixtura.exceptions import UnsupportedError
from mixtura.files import replacing
from mixtura.runtime.export import networks  # noqa: F401  it registers them
from mixtura.runtime.export.graph import ELEMENTS, Graph
from mixtura.runtime.export.models import probabilities
from mixtura.runtime.predictors import Classifier, Predictor

_OPSET = 18


def build(model: Predictor) -> onnx.ModelProto:
    """The graph of a classifier: "X" (n, D) in; "label" (n,) and "probabilities" (n, C) out.

    X is of double precision, with NaN where a value is missing; of columns with categories it has
    codes, the places of the categories in the metadata entry "categories" (any other is missing).
    """
    if not isinstance(model, Classifier) or not len(model.classes_):
        raise UnsupportedError(
            "only classifiers of tables that know classes, and no pairs of them, can be exported: "
            "use mixtura.runtime."
        )
    fitted, g = model.fitted, Graph()
    proba = probabilities(g, fitted, "X")
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
            _tensor("label", ELEMENTS[kind], "n"),
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
        fresh.write_bytes(content)
