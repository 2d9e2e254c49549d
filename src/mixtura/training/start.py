"""Where training begins: k-means clusters inside each class, improved by EM."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mixtura.data.atoms import Atoms
from mixtura.data.batch import Batch
from mixtura.data.scaling import Scaling
from mixtura.densities import (
    Categorical,
    Chain,
    Density,
    EmissionMixtures,
    HiddenMarkov,
    HolePattern,
    Product,
    Structure,
    VectorDensity,
    randn,
)
from mixtura.densities.product import numeric_part, with_numeric_part, without_atoms
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack

_MOST_ROWS, _FEW_ROWS, _PER_CLUSTER = 20_000, 3_000, 256
_MOST_FRAMES = 1_000_000
#: Moves of the centers of k-means at most; and the share of rows that may still go elsewhere.
_MOST_MOVES, _SETTLED = 100, 1e-3
#: Columns with more categories are left out where rows are compared.
_MOST_INDICATORS = 50
#: Share of starts and moves that no cluster shows.
_UNSEEN = 0.05


def built(
    structure: Structure,
    informative: bool,
    x: Tensor,
    membership: Tensor,
    generator: torch.Generator,
    scaling: Scaling,
    absent: Tensor,
) -> Density:
    """A stack over numbers, categories, atoms and which entries are absent (if that tells).

    The columns of x have the codes of atoms, if there are any, after all others.
    """
    levels, atoms = tuple(scaling.levels.tolist()), scaling.atoms
    if not any(levels) and not informative and atoms is None:
        return structure.build(x, membership, generator)
    numbers = tuple(i for i, level in enumerate(levels) if level == 0)
    coded = tuple(i for i, level in enumerate(levels) if level > 0)
    parts: list[Density] = []
    if numbers:
        parts.append(structure.build(x[:, list(numbers)], membership, generator))
    if coded:
        sizes = tuple(levels[i] for i in coded)
        parts.append(Categorical.from_clusters(x[:, list(coded)], membership, sizes))
    if atoms is not None:
        codes = x[:, len(levels) :]
        parts.append(Categorical.from_clusters(codes, membership, atoms.levels))
    if informative:
        parts.append(HolePattern.from_clusters(absent.to(x), membership, (2,) * len(levels)))
    groups = tuple(group for group in (numbers, coded) if group)
    return Product(parts=tuple(parts), columns=groups, informative=informative, atoms=atoms)


def stack_start(
    engine: Engine,
    assignment: Assignment,
    n_components: int,
    structure: Structure,
    generator: torch.Generator,
    *,
    informative: bool = False,
    own_units: bool = False,
) -> MixtureStack:
    """Single-class mixtures with the moments of k-means clusters, one per problem.

    `informative` lets components also differ in which entries are absent; `own_units` measures
    distances by the deviations of these rows.
    """
    enough = _PER_CLUSTER * n_components * len(assignment.sees)
    most = min(max(enough, _FEW_ROWS), _MOST_ROWS)
    some = engine if len(engine) <= most else engine.sample(most, generator)  # of every class
    kept = some.uniform and some.view is None  # with what follows from them
    rows = next(iter(some.chunks(len(some)))) if kept else some.all_rows()
    batch = rows.to(torch.float64)
    absent, scaling, levels = batch.lacks(), engine.scaling, engine.levels
    if scaling.atoms is not None:
        batch, levels = _beside_codes(batch, scaling.atoms), levels + scaling.atoms.levels
    weight = assignment.weight(batch.y, batch.weight)
    numbers = _as_numbers(batch, levels)
    if own_units:
        deviation = numbers.std(0)
        numbers = numbers / torch.where(deviation > 0, deviation, 1.0)
    labels = rows.once_drawn(
        ("clusters", n_components, own_units, assignment.sees.cpu().numpy().tobytes()),
        generator,
        lambda: cluster(numbers, weight, n_components, generator),
    )
    membership = torch.nn.functional.one_hot(labels, n_components) * weight[..., None]
    membership = _share_with_empty(membership, weight).flatten(1)
    # Whoever sees rows of a kind sees all of them.
    x = completed(batch, levels, generator)
    density = built(structure, informative, x, membership, generator, scaling, absent)
    stack = MixtureStack.single(density, assignment)
    return stack.with_masses(density, membership.sum(0))


def _beside_codes(batch: Batch, atoms: Atoms) -> Batch:
    """The rows, atoms unobserved, and further columns that say which they are."""
    rows, codes = without_atoms(batch, atoms)
    assert rows.observed is not None
    told = torch.ones_like(codes.x, dtype=torch.bool) if codes.observed is None else codes.observed
    observed = torch.cat([rows.observed, told], 1)
    return Batch(torch.cat([rows.x, codes.x], 1), observed, batch.y, batch.weight)


def _as_numbers(batch: Batch, levels: tuple[int, ...]) -> Tensor:
    """Complete rows to measure distances between: categories become indicators.

    Two different categories are as far apart as two draws of a number are on average. Columns with
    very many categories say little about which rows are alike, and are left out.
    """
    width = torch.tensor([max(level, 1) if level <= _MOST_INDICATORS else 0 for level in levels])
    if not width.any():
        return batch.x.new_zeros(len(batch), 1)
    size, device = torch.tensor(levels), batch.x.device
    first, kept = width.cumsum(0) - width, width > 0
    numbers, coded = ((kept & mask).nonzero().flatten() for mask in (size == 0, size > 0))
    x = batch.x.new_zeros(len(batch), int(width.sum()))
    x[:, first[numbers].to(device)] = batch.x[:, numbers.to(device)]
    codes = batch.x[:, coded.to(device)].long()
    x.scatter_(1, codes + first[coded].to(device), 1.0)
    origin, seen = torch.arange(len(levels)).repeat_interleave(width).to(device), batch.observed
    return _fill_with_means(x, None if seen is None else seen[:, origin], batch.weight, batch.y)


def completed(batch: Batch, levels: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(n, D) rows whose holes are filled from those of the same kind, which `y` tells."""
    x = _fill_with_means(batch.x, batch.observed, batch.weight, batch.y)
    x = _with_unseen_spread(x, batch.observed, batch.y, generator)
    return _with_drawn_codes(x, batch.observed, batch.y, levels, generator)


def _fill_with_means(x: Tensor, observed: Tensor | None, weight: Tensor, kind: Tensor) -> Tensor:
    """Missing entries are the means of the rows of the same kind (n,)."""
    if observed is None or observed.all():
        return x
    seen = observed.to(x.dtype) * weight[:, None]
    total, mass = (_by_kind(values, kind) for values in (seen * x, seen))
    return torch.where(observed, x, (total / mass.clamp_min(torch.finfo(x.dtype).tiny))[kind])


def _by_kind(values: Tensor, kind: Tensor) -> Tensor:
    """Sums over the rows of each kind, (n, D) -> (M, D)."""
    return values.new_zeros(int(kind.max()) + 1, values.shape[1]).index_add_(0, kind, values)


def _with_unseen_spread(
    x: Tensor, observed: Tensor | None, kind: Tensor, generator: torch.Generator
) -> Tensor:
    """What no row of a kind has gets the spread that it has elsewhere: one. EM keeps it."""
    if observed is None or observed.all():
        return x
    known = _by_kind(observed.to(x.dtype), kind)[kind] > 0.0
    return x if known.all() else torch.where(known, x, randn(*x.shape, like=x, generator=generator))


def _with_drawn_codes(
    x: Tensor,
    observed: Tensor | None,
    kind: Tensor,
    levels: tuple[int, ...],
    generator: torch.Generator,
) -> Tensor:
    """Missing categories are drawn from those of the same kind (n,), or from all if it has none."""
    if observed is None or not any(levels):
        return x
    x, every = x.clone(), torch.bincount(kind)
    for column, level in enumerate(levels):
        hidden = ~observed[:, column]
        if level and hidden.any():
            mine, told = kind[hidden], torch.bincount(kind[~hidden], minlength=len(every))
            draw = torch.rand(len(mine), dtype=torch.float64, generator=generator).to(x.device)
            order = (2 * kind + hidden).argsort()  # kind by kind, what is told first
            place = (every.cumsum(0) - every)[mine] + (draw * told[mine]).long()
            drawn = torch.where(told[mine] > 0, x[order[place], column], (draw * level).floor())
            x[hidden, column] = drawn.to(x.dtype)
    return x


def cluster(x: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n, P) k-means cluster of each row in each of P problems, of weights (n, P) of the rows.

    Fewer than `count` where fewer rows are distinct.
    """
    if count == 1:
        return torch.zeros(weight.shape, dtype=torch.long, device=x.device)
    # Equal rows are one heavier row, so that a weight of two is the same as a row given twice.
    rows, place = distinct_rows(x)
    weight = weight.new_zeros(len(rows), weight.shape[1]).index_add_(0, place, weight)
    centers = _spread_out(rows, weight, count, generator)
    labels, counts = _nearest(rows, centers), weight > 0.0
    for _ in range(_MOST_MOVES):
        member = torch.nn.functional.one_hot(labels, count) * weight[..., None]
        mass = member.sum(0)[..., None]  # (P, K, 1)
        total = (member.flatten(1).mT @ rows).view(centers.shape)
        centers = torch.where(mass > 0.0, total / mass, centers)
        before, labels = labels, _nearest(rows, centers)
        moved = ((before != labels) & counts).sum(0)
        if bool((moved <= _SETTLED * counts.sum(0)).all()):
            break
    return labels[place]


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows among (n, D), in order, and which of them each one is (n,).

    Where no two rows begin with the same number, that alone is sorted: a tenth of the time.
    """
    if x.is_cuda:
        return torch.unique(x, dim=0, return_inverse=True)
    values = x.numpy()
    order = values[:, 0].argsort()
    if (np.diff(values[order, 0]) == 0.0).any():
        order = np.lexsort(values.T[::-1])
    ordered, place = values[order], np.empty(len(x), np.int64)
    begins = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    place[order] = begins.cumsum() - 1
    return torch.from_numpy(ordered[begins]), torch.from_numpy(place)


def _squared_distances(rows: Tensor, centers: Tensor) -> Tensor:
    """(n, P, K) to centers (P, K, D), up to a constant per row."""
    flat = centers.flatten(0, 1)
    return (flat.square().sum(1) - 2.0 * rows @ flat.mT).view(len(rows), *centers.shape[:2])


def _nearest(rows: Tensor, centers: Tensor) -> Tensor:
    return _squared_distances(rows, centers).argmin(2)


def _spread_out(rows: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(P, K, D) centers by k-means++: each the best of a few rows, drawn by squared distance."""
    norm, problems = rows.square().sum(1), torch.arange(weight.shape[1], device=rows.device)
    nearest, chosen = torch.full_like(weight, torch.inf), []
    n_tried = 2 + int(math.log(count))
    for place in range(count):
        chance = weight if place == 0 else weight * nearest
        chance = torch.where(chance.sum(0) > 0.0, chance, weight)
        edges = chance.cumsum(0)
        draw = torch.rand(n_tried, weight.shape[1], dtype=torch.float64, generator=generator)
        wanted = (draw.to(edges) * edges[-1]).mT.contiguous()
        drawn = torch.searchsorted(edges.mT.contiguous(), wanted)
        tried = rows[drawn.clamp_max(len(rows) - 1)]  # (P, tries, D)
        distance = (_squared_distances(rows, tried) + norm[:, None, None]).clamp_min(0.0)
        reached = torch.minimum(distance, nearest[..., None])
        best = (reached * weight[..., None]).sum(0).argmin(1)
        chosen.append(tried[problems, best])
        nearest = reached[:, problems, best]
    return torch.stack(chosen, 1)


def _share_with_empty(membership: Tensor, weight: Tensor) -> Tensor:
    """Clusters (n, P, K) that got (almost) no rows start as copies of the whole problem."""
    poor = membership.sum(0) <= 1e-9 * weight.sum(0)[:, None]
    return torch.where(poor, 1e-3 * weight[..., None], membership)


@dataclass(frozen=True)
class Chains:
    """What hidden Markov models are made of, but for their states."""

    structure: Structure
    chain: Chain

    def start(self, engine: Engine, generator: torch.Generator, n_states: int) -> Mixture:
        """A single hidden Markov model: k-means clusters of frames, or equal stretches of time.

        Each is divided into `chain.n_mixtures` clusters again, where states emit mixtures.
        """
        most = max(1, int(_MOST_FRAMES / float(engine.sizes.mean())))
        batch = engine.subsample(most, generator).all_rows()
        frames, packing, levels = batch.frames, batch.packing, engine.levels
        alike = torch.zeros_like(frames.y)
        moment = packing.moments()
        compared = _as_numbers(replace(frames, y=alike), levels)
        if self.chain.left_to_right:
            labels = moment * n_states // packing.lengths[packing.owner]
        else:
            labels = _nearest_of_some(compared, frames.weight, n_states, generator)
        x = completed(replace(frames, y=alike), levels, generator)
        membership = torch.nn.functional.one_hot(labels, n_states).to(x) * frames.weight[:, None]
        shares = _share_with_empty(membership[:, None], frames.weight[:, None])[:, 0]
        divided = _divided(compared, shares, self.chain.n_mixtures, generator)
        each, scaling = divided.flatten(1), engine.scaling
        emission = built(self.structure.start, False, x, each, generator, scaling, x)
        part = numeric_part(emission)
        if isinstance(part, VectorDensity):
            emission = with_numeric_part(emission, self.structure.finish(part))
        if self.chain.n_mixtures > 1:
            emission = EmissionMixtures.of(emission, divided.sum(0))
        first = membership[: packing.n_first].sum(0)
        moves = membership[packing.previous()].mT @ (membership[packing.n_first :] > 0).to(x)
        visits = float(batch.weight @ packing.lengths.to(x) / batch.weight.sum()) / n_states
        return Mixture.single(
            HiddenMarkov.from_states(
                emission,
                first + _UNSEEN * first.sum() / n_states,
                moves + _UNSEEN * moves.sum(1, keepdim=True).clamp_min(1e-3) / n_states,
                self.chain.durations,
                left_to_right=self.chain.left_to_right,
                visits=max(1.0, visits),
            )
        )


def _divided(x: Tensor, membership: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n, S, M) memberships (n, S) of states, divided by k-means of the rows of each."""
    if count == 1:
        return membership[..., None]
    found = membership.new_zeros(*membership.shape, count)
    for state, weight in enumerate(membership.mT):
        mine = weight.nonzero().flatten()
        labels = _nearest_of_some(x[mine], weight[mine], count, generator)
        found[mine, state, labels] = weight[mine]
    return _share_with_empty(found, membership)


def _nearest_of_some(x: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n,) cluster of each row, by the k-means of at most `_MOST_ROWS` of them."""
    if len(x) <= _MOST_ROWS:
        return cluster(x, weight[:, None], count, generator)[:, 0]
    some = torch.randperm(len(x), generator=generator)[:_MOST_ROWS].to(x.device)
    few = x[some]
    labels = cluster(few, weight[some, None], count, generator)[:, 0]
    means = torch.stack([few[labels == label].mean(0) for label in labels.unique()])
    return torch.cdist(x, means).argmin(1)
