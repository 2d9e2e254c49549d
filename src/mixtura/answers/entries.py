"""Distributions of the missing entries of rows, given what is observed and the component.

An entry of a Gaussian is Gaussian: one factorization per component and set of observed columns
serves all entries. Categories are independent of all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.atoms import Atoms
from mixtura.densities import Categorical, Density, Gaussian, Product
from mixtura.densities.patterns import distinct_patterns
from mixtura.densities.product import hole_patterns
from mixtura.numerics import LOG_2PI

#: Nodes around the mean of each component, in deviations. Integrals are sums over the nodes of all
#: components, whose own share of the densities at a node is smooth: such sums converge fast.
NODES = torch.linspace(-6.0, 6.0, 33, dtype=torch.float64)

#: A column, the rows (n,) that lack it, and log densities (n, Q, K) of values it may have there,
#: under each component, plus the logs of the widths that values stand for.
Entry = tuple[int, Tensor, Tensor]


def has_entries(density: Density) -> bool:
    """Whether `entries` knows the kind of density."""
    if isinstance(density, Product):
        return all(map(has_entries, density.parts))
    return isinstance(density, Gaussian | Categorical)


@singledispatch
def entries(density: Density, batch: Batch) -> Iterator[Entry]:
    """All columns that rows, in double precision, lack entries of."""
    raise NotImplementedError(type(density).__name__)


@entries.register
def _of_product(density: Product, batch: Batch) -> Iterator[Entry]:
    for number, columns in enumerate(density.columns):
        for place, asked, found in entries(density.parts[number], density.view(batch, number)):
            entry = columns[place], asked, found
            atoms = density.atoms
            told = [entry] if atoms is None else _beside_atoms(density, atoms, batch, entry)
            for column, rows, said in told:
                present = _presence(density, batch.take(rows), column) if density.informative else 0
                yield column, rows, said + present


def _presence(density: Product, batch: Batch, column: int) -> Tensor:
    """(n, 1, K) log ratios of what rows lack once they have a column, and of what they lack."""
    lacks = batch.lacks().index_fill(1, torch.tensor(column, device=batch.x.device), 0)
    after, before = (
        density.parts[-1].log_prob(hole_patterns(each))
        for each in (replace(batch, absent=lacks), batch)
    )
    return (after - before)[:, None]


def _beside_atoms(density: Product, atoms: Atoms, batch: Batch, entry: Entry) -> Iterator[Entry]:
    """The same where a number may be an atom; one that is observed to be an atom is not lacking."""
    column, asked, found = entry
    if batch.observed is None or batch.observed[asked, column].all():
        return
    lacks = ~batch.observed[asked, column]
    asked, found = asked[lacks], found[lacks]
    if column in atoms.columns:
        part = density.parts[len(density.columns)]
        assert isinstance(part, Categorical)
        chance = part.by_column(part.log_chance.to(found))[atoms.columns.index(column)]
        each = chance[:, 1:].mT.expand(len(asked), -1, -1)
        found = torch.cat([each, found + chance[:, 0]], 1)
    yield column, asked, found


@entries.register
def _of_categories(density: Categorical, batch: Batch) -> Iterator[Entry]:
    chances = density.by_column(density.log_chance.to(batch.x))
    for place, asked in _lacking(batch):
        yield place, asked, chances[place].mT.expand(len(asked), -1, -1)


@entries.register
def _of_gaussians(density: Gaussian, batch: Batch) -> Iterator[Entry]:
    if batch.observed is None:
        return
    mean, variance = density.expected(batch), _variances(density, batch.observed)
    for place, asked in _lacking(batch):
        center, deviation = mean[asked, :, place], variance[asked, :, place].sqrt()
        nodes = (center[..., None] + deviation[..., None] * NODES.to(deviation)).flatten(1)
        off = (nodes[..., None] - center[:, None]) / deviation[:, None]
        found = -0.5 * (off.square() + LOG_2PI) - deviation.log()[:, None]
        chance = (NODES[1] - NODES[0]).log() - 0.5 * (NODES.square() + LOG_2PI)
        chance = chance.to(found).repeat(density.n_components)
        yield place, asked, found + (chance - found.logsumexp(2))[..., None]


def _lacking(batch: Batch) -> Iterator[tuple[int, Tensor]]:
    """Columns that some rows lack, and these rows."""
    if batch.observed is None:
        return
    for place in (~batch.observed).any(0).nonzero().flatten().tolist():
        yield place, (~batch.observed[:, place]).nonzero().flatten()


def _variances(density: Gaussian, observed: Tensor) -> Tensor:
    """(n, K, D) of each entry, given those that are observed (n, D)."""
    patterns, which = distinct_patterns(observed)
    covariance = density.covariances()
    found = covariance.diagonal(dim1=1, dim2=2).repeat(len(patterns), 1, 1)
    for number, seen in enumerate(patterns):
        factor = torch.linalg.cholesky(covariance[:, seen][:, :, seen])
        reach = torch.linalg.solve_triangular(factor, covariance[:, seen], upper=False)
        found[number] -= reach.square().sum(1)
    return found.clamp_min(density.floor)[which]
