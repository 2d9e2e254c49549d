"""ONNX graphs node by node, and elimination, since ONNX has no factorizations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ELEMENTS = {"i": TensorProto.INT64, "f": TensorProto.DOUBLE, "U": TensorProto.STRING}


class Graph:
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
        return self("Cast", values, to=ELEMENTS[kind])

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
class Rows:
    """Names of rows (n, D): values, zero where missing; 1 where observed; 1 where absent."""

    x: str
    seen: str
    lacks: str


def eliminated(g: Graph, matrix: str, right: str, below: str, size: int) -> tuple[str, str]:
    """C A^-1 B (n, K, ...) and log det A (n, K), of positive definite A (n, K, d, d).

    B is `right`, (n, K, d, ...), and C `below`, (n, K, ..., d): unrolled over the d features.
    """
    corner = g("Mul", g("MatMul", below, right), 0.0)
    top, bottom = g("Concat", matrix, right, axis=3), g("Concat", below, corner, axis=3)
    rest, pivots, end = g("Concat", top, bottom, axis=2), [], np.iinfo(np.int64).max
    for _ in range(size):
        row, others = g.split(rest, 0, 1, 2), g.split(rest, 1, end, 2)
        pivots.append(g.split(row, 0, 1, 3))
        across, down = g.split(row, 1, end, 3), g.split(others, 0, 1, 3)
        inner = g.split(others, 1, end, 3)
        rest = g("Sub", inner, g("Mul", g("Div", down, pivots[-1]), across))
    log_det = g.total(g("Log", g("Concat", *pivots, axis=3)), 3)
    return g("Neg", rest), g("Squeeze", log_det, np.array([2]))


def quadratic(g: Graph, matrix: str, vector: str, size: int) -> tuple[str, str]:
    """v^T A^-1 v and log det A, (n, K), of v (n, K, d)."""
    found, log_det = eliminated(g, matrix, g.widened(vector, 3), g.widened(vector, 2), size)
    return g("Squeeze", found, np.array([2, 3])), log_det
