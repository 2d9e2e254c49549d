"""What to measure next: how much each missing entry is expected to tell about the class.

That is the mutual information of class and entry, given what is observed:

    sum over c of q(c) sum over v of p(v | c) log(p(v | c) / p(v)),
    p(v) = sum over c of q(c) p(v | c),

with q the calibrated probabilities of the classes, and p(v | c) the density of the entry given what
is observed (where models are averaged, that of the first: it has the density). v goes through the
categories of a column, or through nodes of a quadrature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from scipy.special import logsumexp

from mixtura.data import Matrix
from mixtura.data.given import Device, Numbers
from mixtura.data.schema import Schema
from mixtura.exceptions import InvalidInputError
from mixtura.models.fitted import Fitted

#: Draws of a missing number, so many of which are averaged to a node (that spaces nodes evenly),
#: and nodes beyond the outermost ones, as shares of the range.
_DRAWS, _PER_NODE = 256, 4
_BEYOND = np.array([0.1, 0.25, 0.5])
#: Numbers that a chunk of rows may hold.
_NUMBERS = 4_000_000

Cost = Numbers | Mapping[int | str, float] | None


def unit_costs(schema: Schema, n_columns: int, cost: Cost) -> np.ndarray:
    """(D,) what each column costs; one for those that a mapping does not name."""
    found = np.asarray(1.0 if cost is None or isinstance(cost, Mapping) else cost, dtype=np.float64)
    if isinstance(cost, Mapping):
        found = np.ones(n_columns)
        for column, price in cost.items():
            found[schema.position(column, n_columns)] = price
    if found.shape not in ((), (n_columns,)) or not (np.isfinite(found) & (found > 0.0)).all():
        raise InvalidInputError(
            f"cost must hold {n_columns} finite numbers above zero, one per column, or be a dict "
            "of them by column: information is divided by it. What is free should be measured "
            "without asking."
        )
    return np.broadcast_to(found, n_columns)


def next_feature(
    model: Fitted, rows: Matrix, generator: torch.Generator, device: Device
) -> np.ndarray:
    """(n, D) nats that each missing entry is expected to tell about the class; zero if observed."""
    found = np.zeros_like(rows.values, dtype=np.float64)
    size = max(1, _NUMBERS // (_DRAWS * rows.values.shape[1]))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        found[part] = _information(model, rows.take(part), generator, device)
    return found


def _information(
    model: Fitted, rows: Matrix, generator: torch.Generator, device: Device
) -> np.ndarray:
    found = np.zeros_like(rows.values, dtype=np.float64)
    log_proba = model.log_proba(model.engine(rows, device))
    for column, asked, nodes, log_width in _tables(model, rows, generator, device):
        values = np.repeat(rows.values[asked], nodes.shape[1], axis=0)
        values[:, column] = nodes.ravel()
        density = model.class_log_density(model.engine(Matrix(values), device))
        density = density.reshape(*nodes.shape, -1) + log_width[..., None]
        found[asked, column] = _mutual(density, log_proba[asked])
    return found


def _tables(
    model: Fitted, rows: Matrix, generator: torch.Generator, device: Device
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Columns, the rows that lack them, values (n, Q) they may have there, logs of widths."""
    missing, levels = np.isnan(rows.values), model.schema.levels(rows.values.shape[1])
    draws = None
    for column in np.flatnonzero(missing.any(0)).tolist():
        asked = np.flatnonzero(missing[:, column])
        if levels[column]:
            codes = np.tile(np.arange(levels[column], dtype=np.float64), (len(asked), 1))
            yield column, asked, codes, np.zeros_like(codes)
            continue
        if draws is None:
            many = rows.take(np.repeat(np.arange(len(rows)), _DRAWS))
            draws = model.drawn(model.engine(many, device), many.values, generator)
            draws = draws.reshape(len(rows), _DRAWS, -1)
        yield column, asked, *_nodes(draws[asked, :, column])


def _nodes(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (n, Q) where draws (n, S) are, and beyond; logs of widths by the trapezoidal rule."""
    inner = np.sort(draws, axis=1).reshape(len(draws), -1, _PER_NODE).mean(2)
    low, high = inner[:, :1], inner[:, -1:]
    reach = np.maximum(high - low, np.finfo(np.float64).tiny) * _BEYOND
    nodes = np.concatenate([low - reach[:, ::-1], inner, high + reach], axis=1)
    width = np.gradient(nodes, axis=1)
    return nodes, np.log(np.maximum(width, np.finfo(np.float64).tiny))


def _mutual(log_density: np.ndarray, log_proba: np.ndarray) -> np.ndarray:
    """(n,) mutual information, of densities (n, Q, C) and probabilities (n, C), all in logs."""
    given = log_density - logsumexp(log_density, axis=1, keepdims=True)
    joint = given + log_proba[:, None]
    ratio = given - logsumexp(joint, axis=2, keepdims=True)
    return np.maximum(np.sum(np.exp(joint) * np.where(joint > -700.0, ratio, 0.0), (1, 2)), 0.0)
