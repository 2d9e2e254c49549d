"""Log densities (n, K) of rows as nodes of a graph; their formulas stand in `mixtura.densities`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch

import numpy as np

from mixtura.constants import SAME
from mixtura.data.atoms import Atoms
from mixtura.exceptions import UnsupportedError
from mixtura.runtime.export.graph import Graph, Rows, quadratic
from mixtura.runtime.gaussians import LOG_2PI, DiagonalGaussian, FullGaussian, LowRankForm, StudentT
from mixtura.runtime.mixed import Categorical, HolePattern, Product

#: Features up to which full covariances are eliminated.
MOST_FEATURES = 30


@singledispatch
def distances(density: object, g: Graph, rows: Rows) -> tuple[str, str]:
    """Squared distances of what is observed, and log det(2 pi covariance) of it, (n, K)."""
    raise UnsupportedError(f"ONNX export does not know {type(density).__name__}.")


def _moments(g: Graph, rows: Rows) -> str:
    return g("Concat", g.square(rows.x), rows.x, rows.seen, axis=1)


@distances.register
def _(density: DiagonalGaussian, g: Graph, rows: Rows) -> tuple[str, str]:
    table, log_variance = density.table
    return g("MatMul", _moments(g, rows), table), g("MatMul", rows.seen, log_variance)


@distances.register
def _(density: FullGaussian, g: Graph, rows: Rows) -> tuple[str, str]:
    size = density.mean.shape[1]
    if size > MOST_FEATURES:
        raise UnsupportedError(
            f"full covariances of {size} features cannot be exported, {MOST_FEATURES} at most: "
            "use density='low_rank' or 'diag', or mixtura.runtime."
        )
    seen = g.widened(rows.seen, 1)
    away = g("Mul", g("Sub", g.widened(rows.x, 1), density.mean), seen)
    both = g("Mul", g.widened(seen, 3), g.widened(seen, 2))
    own = g("Mul", both, density.covariance)
    rest = g("Mul", g.widened(g("Sub", 1.0, seen), 3), np.eye(size))
    squared, log_det = quadratic(g, g("Add", own, rest), away, size)
    return squared, g.sum(log_det, g("Mul", g.total(rows.seen, 1, keep=True), LOG_2PI))


@distances.register
def _(density: LowRankForm, g: Graph, rows: Rows) -> tuple[str, str]:
    (by_square, by_value, log_scale), (_, count, rank, _) = density.table, density.grams.shape
    side = rows.seen if density.of_covariance else g("Sub", 1.0, rows.seen)
    gram = g("MatMul", side, density.grams.reshape(len(density.grams), -1))
    gram = g("Add", g.shaped(gram, -1, count, rank, rank), np.eye(rank))
    values = g("Concat", rows.x, rows.seen, axis=1)
    latent = g.shaped(g("MatMul", values, by_value), -1, count, rank)
    inner, log_gram = quadratic(g, gram, latent, rank)
    squares = g("MatMul", _moments(g, rows), by_square)
    log_det = g.sum(g("MatMul", rows.seen, log_scale), log_gram)
    if density.of_covariance:
        return g("Sub", squares, inner), log_det
    return g("Add", squares, inner), g("Sub", log_det, density.log_gram_left)


@singledispatch
def log_prob(density: object, g: Graph, rows: Rows) -> str:
    """(n, K); of a Gaussian, unless another kind is registered."""
    return g("Mul", g.sum(*distances(density, g, rows)), -0.5)


@log_prob.register
def _(density: StudentT, g: Graph, rows: Rows) -> str:
    squared, log_det = distances(density.scale, g, rows)
    size = g.total(rows.seen, 1)
    near = g("Div", g("Max", squared, 0.0), density.dof)
    tail = g("Mul", g("Log", g("Add", near, 1.0)), g("Add", g.widened(size, 1), density.dof))
    constants = g("Gather", density.constants, g.cast(size, "i"))
    return g("Sub", constants, g("Mul", g.sum(log_det, tail), 0.5))


@log_prob.register
def _(density: Categorical, g: Graph, rows: Rows) -> str:
    missing = len(density.table) - 1.0
    observed = g("Mul", g("Add", rows.x, density.first - missing), rows.seen)
    slots = g.cast(g("Add", observed, missing), "i")
    return g.total(g("Gather", density.table, slots), 1)


@log_prob.register
def _(density: HolePattern, g: Graph, rows: Rows) -> str:
    size, count = len(density.levels), density.n_components
    every = replace(rows, x=rows.lacks, seen=g("Add", g("Mul", rows.lacks, 0.0), 1.0))
    own = g.shaped(log_prob(density.by_rate, g, every), -1, count, len(density.rates))
    absent = g.cast(g.total(rows.lacks, 1), "i")
    facts = density.log_factorials
    broad = facts[: size + 1] + facts[size::-1] - facts[size + 1] + math.log(density.broad)
    likely = g.log_sum(g("Add", own, density.log_shares), 2)
    spread = g("Mul", g.widened(g("Gather", broad, absent), 1), np.ones(count))  # (n, K)
    pair = [g.widened(likely, 2), g.widened(spread, 2)]
    return g.log_sum(g("Concat", *pair, axis=2), 2)


@log_prob.register
def _(density: Product, g: Graph, rows: Rows) -> str:
    numbers, parts = rows, []
    if density.atoms is not None:
        numbers, codes = without_atoms(g, density.atoms, rows, sum(map(len, density.columns)))
        parts.append(log_prob(density.parts[len(density.columns)], g, codes))
    for part, columns in zip(density.parts, density.columns, strict=False):
        x, seen = (g("Gather", e, np.array(columns), axis=1) for e in (numbers.x, numbers.seen))
        parts.append(log_prob(part, g, Rows(x, seen, rows.lacks)))
    if density.informative:
        parts.append(log_prob(density.parts[-1], g, rows))
    return g.sum(*parts)


def without_atoms(g: Graph, atoms: Atoms, rows: Rows, n_columns: int) -> tuple[Rows, Rows]:
    """The rows, numbers that are atoms unobserved; and which they are, (n, A)."""
    values = np.nan_to_num(atoms.table[0], nan=np.inf)
    x, seen = (g("Gather", each, atoms.index, axis=1) for each in (rows.x, rows.seen))
    away = g("Abs", g("Sub", g.widened(x, 2), values))
    near = SAME * np.maximum(np.abs(atoms.table[0]), 1.0)
    hit = g.cast(g("LessOrEqual", away, np.nan_to_num(near, nan=-1.0)))
    number = np.arange(1.0, values.shape[1] + 1.0)
    codes = g("ReduceMax", g("Mul", hit, number), np.array([2]), keepdims=0)
    held = g("MatMul", g("Min", codes, 1.0), np.eye(n_columns)[atoms.index])
    free = g("Sub", 1.0, held)
    x, told = (g("Mul", each, free) for each in (rows.x, rows.seen))
    return Rows(x, told, rows.lacks), Rows(codes, seen, rows.lacks)
