"""Distributions of the missing entries of rows, given what is observed and the component.

An entry of a Gaussian is Gaussian, and one of a t is t: with d columns observed at the squared
distance delta it has nu + d degrees of freedom and the variance of the Gaussian times
(nu + delta) / (nu + d) in place of its scale. One factorization per component and set of observed
columns serves all entries. Categories are independent of all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor
from torch.distributions import Normal
from torch.distributions import StudentT as StandardT

from mixtura.data.atoms import Atoms
from mixtura.data.batch import Batch
from mixtura.densities import Categorical, Density, Gaussian, Product, StudentT
from mixtura.densities.patterns import distinct_patterns
from mixtura.densities.product import hole_patterns

#: Nodes around the mean of each component, in deviations, and the logs of what a standard normal
#: has around them: as much as a t has around its quantiles of the same levels. Integrals are sums
#: over the nodes of all components, whose own share of the densities at a node is smooth: such sums
#: converge fast.
NODES = torch.linspace(-6.0, 6.0, 33, dtype=torch.float64)
_CHANCES = (NODES[1] - NODES[0]).log() + Normal(0.0, 1.0).log_prob(NODES)

#: A column, the rows (n,) that lack it, and log densities (n, Q, K) of values it may have there,
#: under each component, plus the logs of the widths that values stand for.
Entry = tuple[int, Tensor, Tensor]


def has_entries(density: Density) -> bool:
    """Whether `entries` knows the kind of density."""
    if isinstance(density, Product):
        return all(map(has_entries, density.parts))
    return isinstance(density, Gaussian | StudentT | Categorical)


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
    if batch.observed is not None:
        deviation = _variances(density, batch.observed).sqrt()
        yield from _of_numbers(batch, density.expected(batch), deviation)


@entries.register
def _of_student(density: StudentT, batch: Batch) -> Iterator[Entry]:
    if batch.observed is not None:
        dof = density.dof + batch.observed.sum(1, keepdim=True)
        stretch = (density.dof + density.scale.distances(batch)[0].clamp_min(0.0)) / dof
        deviation = (_variances(density.scale, batch.observed) * stretch[..., None]).sqrt()
        yield from _of_numbers(batch, density.expected(batch), deviation, dof)


def _of_numbers(
    batch: Batch, mean: Tensor, deviation: Tensor, dof: Tensor | None = None
) -> Iterator[Entry]:
    """Entries with means and deviations (n, K, D): Gaussian, or t of degrees of freedom (n, K)."""
    standard = NODES.to(mean).expand(*mean.shape[:2], -1) if dof is None else _quantiles(dof)
    chance = _CHANCES.to(mean).repeat(mean.shape[1])
    for place, asked in _lacking(batch):
        center, scale = mean[asked, :, place], deviation[asked, :, place]
        nodes = (center[..., None] + scale[..., None] * standard[asked]).flatten(1)
        off = (nodes[..., None] - center[:, None]) / scale[:, None]
        kind = Normal(0.0, 1.0) if dof is None else StandardT(dof[asked, None])
        found = kind.log_prob(off) - scale.log()[:, None]
        yield place, asked, found + (chance - found.logsumexp(2))[..., None]


def _quantiles(dof: Tensor) -> Tensor:
    """(n, K, Q) of standard t distributions (n, K), at the levels of the normal's nodes."""
    each, which = dof.unique(return_inverse=True)
    lower = stdtrit(each[:, None].cpu().numpy(), ndtr(-NODES.abs().numpy()))
    return (torch.from_numpy(lower) * -NODES.sign()).to(dof)[which]


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
