"""Checks of densities over real and categorical columns at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import comb
from typing import NamedTuple, cast

import numpy as np
import torch

from mixtura.data.batch import Batch
from mixtura.densities import Categorical, Density, HolePattern, Product, VectorDensity
from mixtura.models.mixture import Mixture
from mixtura.testing.densities import (
    check_additive,
    check_gradient,
    check_moments,
    check_single_precision,
    check_slope,
    check_stacking,
    same_where_observed,
)
from mixtura.testing.parts import DRAWS, EXACT, SIGMAS, make_batch, make_density, rand, randn
from mixtura.testing.references import dense_conditional, dense_log_prob


def make_mixed(
    generator: torch.Generator,
    covariance: str = "full",
    parameterization: str = "covariance",
    *,
    n_components: int = 2,
    n_numbers: int = 3,
    levels: tuple[int, ...] = (3, 1, 4),
    informative: bool = False,
    floor: float = 1e-3,
) -> Product:
    """Real and categorical columns by turns, the real ones from right to left in their part."""
    coded, numbers = _by_turns(len(levels), n_numbers)
    parts: list[Density] = []
    if n_numbers:
        sizes = {"n_components": n_components, "n_features": n_numbers}
        rank = min(2, n_numbers)
        parts.append(
            make_density(covariance, parameterization, generator, rank=rank, floor=floor, **sizes)
        )
    if levels:
        parts.append(make_categorical(generator, levels, n_components=n_components))
    if informative:
        parts.append(
            make_hole_pattern(generator, n_numbers + len(levels), n_components=n_components)
        )
    groups = tuple(group for group in (numbers[::-1], coded) if group)
    return Product(parts=tuple(parts), columns=groups, informative=informative)


def make_categorical(
    generator: torch.Generator, levels: tuple[int, ...], *, n_components: int = 2
) -> Categorical:
    """Categorical columns with random chances, none near nothing."""
    blank = Categorical(log_chance=torch.zeros(n_components, sum(levels)), levels=levels)
    return blank.from_free({"logit": randn(generator, n_components, sum(levels))})


def make_hole_pattern(
    generator: torch.Generator, n_columns: int, *, n_components: int = 2
) -> HolePattern:
    """Patterns of missing entries with random chances, none near nothing."""
    made = make_categorical(generator, (2,) * n_columns, n_components=n_components)
    chance = torch.stack([part.softmax(1) for part in made.by_column(made.log_chance)], 1)
    return HolePattern(log_chance=(0.05 + 0.9 * chance).log().flatten(1), levels=made.levels)


def _by_turns(n_coded: int, n_numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places of the categorical and of the real columns: one of each while both last."""
    key = [(i, 0) for i in range(n_coded)] + [(i, 1) for i in range(n_numbers)]
    order = sorted(key)
    places = [order.index(each) for each in key]
    return tuple(places[:n_coded]), tuple(places[n_coded:])


def check_mixed(density: Product, generator: torch.Generator) -> None:
    """Everything a density over mixed columns promises; `MIXED_CHECKS` has it one by one."""
    for check in MIXED_CHECKS:
        check(density, generator)


def _rows(density: Product, n: int, generator: torch.Generator, *, holes: bool = False) -> Batch:
    return make_batch(cast(VectorDensity, density), n, generator, holes=holes)


# -- the same, in plain words ------------------------------------------------------------------


class Plain(NamedTuple):
    """A product of densities, taken apart.

    Attributes
    ----------
    numbers, places : the density of the real columns, if there are any, and where they stand.
    tables : for each categorical column its chances, (K, levels).
    holes : the density of what is absent; None: no telling.
    """

    numbers: VectorDensity | None
    places: list[int]
    tables: dict[int, np.ndarray]
    holes: HolePattern | None


def plain(density: Product) -> Plain:
    """A density over mixed columns as tables that a loop can read."""
    numbers, places = None, []
    tables: dict[int, np.ndarray] = {}
    for part, columns in zip(density.parts, density.columns, strict=False):
        if isinstance(part, Categorical):
            tables.update(zip(columns, _tables(part), strict=True))
        else:
            numbers, places = cast(VectorDensity, part), list(columns)
    holes = cast(HolePattern, density.parts[-1]) if density.informative else None
    return Plain(numbers, places, tables, holes)


def _tables(part: Categorical) -> list[np.ndarray]:
    ends = np.cumsum(part.levels)[:-1]
    return np.split(np.exp(part.log_chance.numpy()), ends, axis=1)


def _seen(batch: Batch) -> np.ndarray:
    return np.ones(batch.x.shape, bool) if batch.observed is None else batch.observed.numpy()


def _of_numbers(batch: Batch, places: list[int]) -> Batch:
    observed = torch.from_numpy(_seen(batch)[:, places])
    return Batch(batch.x[:, places], observed, batch.y, batch.weight)


def slow_hole_terms(
    density: HolePattern, absent: np.ndarray, told: np.ndarray | None = None
) -> np.ndarray:
    """(n, K, R + 1): the terms that a pattern's density is the sum of, a coin for each entry."""
    theta = np.exp(density.log_chance.numpy()[:, 1::2])
    told = np.ones_like(absent, dtype=bool) if told is None else told
    rest = density.further / (len(density.rates) - 1)
    shares = [1.0 - density.broad - density.further] + [rest] * (len(density.rates) - 1)
    terms = np.zeros((len(absent), len(theta), len(shares) + 1))
    for row, k in np.ndindex(*terms.shape[:2]):
        mine, chances = absent[row][told[row]].astype(bool), theta[k][told[row]]
        for r, (share, rate) in enumerate(zip(shares, density.rates, strict=True)):
            lacks = chances + rate * (1.0 - chances)
            terms[row, k, r] = share * np.prod(np.where(mine, lacks, 1.0 - lacks))
        patterns = (len(mine) + 1) * comb(len(mine), int(mine.sum()))
        terms[row, k, -1] = density.broad / patterns
    return terms


def slow_log_prob(density: Product, batch: Batch) -> np.ndarray:
    """(n, K): scipy's normal, a look in a table for each category, coins for what is absent."""
    known, seen = plain(density), _seen(batch)
    absent = (~seen).astype(int) if batch.absent is None else batch.absent.numpy()
    result = np.zeros((len(batch), density.n_components))
    if known.numbers is not None:
        result += dense_log_prob(known.numbers, _of_numbers(batch, known.places))
    for row, k in np.ndindex(*result.shape):
        for column, table in known.tables.items():
            if seen[row, column]:
                result[row, k] += np.log(table[k, int(batch.x[row, column])])
    if known.holes is not None:
        result += np.log(slow_hole_terms(known.holes, absent, absent >= 0).sum(2))
    return result


def slow_fill(density: Product, batch: Batch, share: np.ndarray) -> np.ndarray:
    """(n, D): mean of the conditional means, likeliest category; observed entries as they are."""
    known, seen = plain(density), _seen(batch)
    filled = batch.x.numpy().copy()
    if known.numbers is not None:
        mean, _ = dense_conditional(known.numbers, _of_numbers(batch, known.places))
        filled[:, known.places] = np.einsum("nk,nkd->nd", share, mean)
    for row in range(len(batch)):
        for column, table in known.tables.items():
            if not seen[row, column]:
                filled[row, column] = np.argmax(share[row] @ table)
    return filled


def _shares(generator: torch.Generator, n: int, density: Product) -> torch.Tensor:
    return (2.0 * randn(generator, n, density.n_components)).softmax(1)


# -- checks ------------------------------------------------------------------------------------


def check_mixed_log_prob(density: Product, generator: torch.Generator) -> None:
    """Log densities are those of scipy times a look in the tables."""
    batch = _rows(density, 12, generator)
    np.testing.assert_allclose(density.log_prob(batch), slow_log_prob(density, batch), EXACT)


def check_mixed_marginals(density: Product, generator: torch.Generator) -> None:
    """Missing entries are left out; holes punched into a row are none that it came with."""
    batch = _rows(density, 30, generator, holes=True)
    for rows in (batch, batch.with_punched(0.3, generator)):
        expected = slow_log_prob(density, rows)
        np.testing.assert_allclose(density.log_prob(rows), expected, EXACT, EXACT)
        some = torch.arange(len(rows)) % 3 == 0
        few = density.log_prob(rows.take(some))
        np.testing.assert_allclose(few, expected[some.numpy()], EXACT, EXACT)


def check_mixed_free(density: Product, generator: torch.Generator) -> None:
    """Free parameters describe the density, and any values of them a valid one."""
    free = density.free()
    again = density.from_free(free)
    for name, value in density.tensors().items():
        np.testing.assert_allclose(again.tensors()[name], value, EXACT, EXACT)
    wild = {k: v + 30.0 * randn(generator, *v.shape) for k, v in free.items()}
    other = density.from_free(wild)
    check_sound(other)
    assert other.log_prob(_rows(density, 3, generator)).isfinite().all()


def check_sound(density: Product) -> None:
    """Chances sum to one in every column, and covariances are positive definite."""
    for value in density.tensors().values():
        assert value.isfinite().all(), "a parameter is not finite"
    for part in density.parts:
        if isinstance(part, Categorical):
            for table in _tables(part):
                assert (table >= 0.0).all()
                np.testing.assert_allclose(table.sum(1), 1.0, EXACT)
        else:
            eigenvalues = torch.linalg.eigvalsh(part.covariances())
            assert (eigenvalues.amin(1) > -1e-12 * eigenvalues.amax(1)).all()


def check_mixed_valid(mixture: Mixture) -> None:
    """A sound density, weights and prior that sum to one."""
    check_sound(cast(Product, mixture.density))
    np.testing.assert_allclose(mixture.layout.sum(mixture.log_weight.exp()), 1.0, EXACT)
    np.testing.assert_allclose(float(mixture.log_prior.exp().sum()), 1.0, EXACT)


def check_mixed_own_statistics(density: Product, generator: torch.Generator) -> None:
    """The likeliest density for a model's own statistics is the model."""
    if not density.closed_form:
        return
    again, valid = density.maximize(density.own_statistics())
    assert valid.all()
    for before, after in zip(density.parts, again.parts, strict=True):
        np.testing.assert_allclose(after.location, before.location, EXACT, EXACT)
        np.testing.assert_allclose(after.spread, before.spread, EXACT, EXACT)


def check_mixed_statistics(density: Product, generator: torch.Generator) -> None:
    """Moments are dense conditional expectations; counts are counts of what is observed."""
    if not density.closed_form:
        return
    batch = _rows(density, 12, generator, holes=True)
    occupancy = randn(generator, 12, density.n_components)
    statistics = density.statistics(batch, occupancy)
    known, share = plain(density), occupancy.numpy()
    np.testing.assert_allclose(statistics["mass"], share.sum(0), EXACT, EXACT)
    number = 0
    if known.numbers is not None:
        mean, covariance = dense_conditional(known.numbers, _of_numbers(batch, known.places))
        outer = mean[..., :, None] * mean[..., None, :] + covariance
        if statistics["0.second"].ndim == 2:
            outer = np.diagonal(outer, axis1=2, axis2=3)
        first = np.einsum("nk,nkd->kd", share, mean)
        second = np.einsum("nk,nk...->k...", share, outer)
        np.testing.assert_allclose(statistics["0.first"], first, EXACT, EXACT)
        np.testing.assert_allclose(statistics["0.second"], second, EXACT, EXACT)
        number = 1
    if known.tables:
        counts = _count(batch.x.numpy(), _seen(batch), share, known.tables)
        np.testing.assert_allclose(statistics[f"{number}.count"], counts, EXACT, EXACT)
    if known.holes is not None:
        counts = slow_hole_counts(known.holes, ~_seen(batch), share)
        last = len(density.parts) - 1
        np.testing.assert_allclose(statistics[f"{last}.count"], counts, EXACT, EXACT)


def slow_hole_counts(
    density: HolePattern, absent: np.ndarray, share: np.ndarray, told: np.ndarray | None = None
) -> np.ndarray:
    """(K, 2 D) expected counts of present and own absent entries, by loops."""
    told = np.ones_like(absent, dtype=bool) if told is None else told
    theta = np.exp(density.log_chance.numpy()[:, 1::2])
    terms = slow_hole_terms(density, absent, told)
    posterior = share[..., None] * terms / terms.sum(2, keepdims=True)
    count = np.zeros((*theta.shape, 2))
    for (row, column), k in product(np.argwhere(told), range(len(theta))):
        for r, rate in enumerate(density.rates):
            own = theta[k, column] / (theta[k, column] + rate * (1.0 - theta[k, column]))
            own = own if absent[row, column] else 0.0
            count[k, column] += posterior[row, k, r] * np.array([1.0 - own, own])
    return count.reshape(len(theta), -1)


def _count(
    x: np.ndarray, seen: np.ndarray, share: np.ndarray, tables: dict[int, np.ndarray]
) -> np.ndarray:
    """(K, S) shares of the rows that hold each category."""
    blank = {column: np.zeros_like(table) for column, table in tables.items()}
    for row, k in np.ndindex(*share.shape):
        for column, count in blank.items():
            if seen[row, column]:
                count[k, int(x[row, column])] += share[row, k]
    return np.concatenate(list(blank.values()), 1)


def check_mixed_prior(density: Product, generator: torch.Generator) -> None:
    """The prior's log density of a table is the mean log chance of categories drawn from it."""
    reference = density.typical_spread
    given = density.spread_log_prob(reference).numpy()
    at, expected = 0, np.zeros(density.n_components)
    for part in density.parts:
        size = part.spread[0].numel()
        piece = reference[at : at + size]
        at += size
        if isinstance(part, Categorical):
            for k, slot in np.ndindex(*part.log_chance.shape):
                expected[k] += float(piece[slot]) * float(part.log_chance[k, slot])
        else:
            expected += part.spread_log_prob(piece.view(part.spread.shape[1:])).numpy()
    np.testing.assert_allclose(given, expected, EXACT, EXACT)


def check_mixed_fill(density: Product, generator: torch.Generator) -> None:
    """Filled in are conditional means and likeliest categories; codes stay as they are."""
    batch = _rows(density, 30, generator, holes=True)
    share = _shares(generator, 30, density)
    filled = density.fill(batch, share)
    np.testing.assert_allclose(filled, slow_fill(density, batch, share.numpy()), EXACT, EXACT)
    whole = _rows(density, 5, generator)
    np.testing.assert_allclose(density.fill(whole, share[:5]), whole.x, EXACT, EXACT)
    coded = list(plain(density).tables)
    assert batch.observed is not None
    seen = batch.observed[:, coded]
    assert torch.equal(filled[:, coded][seen], batch.x[:, coded][seen])


def check_mixed_chances(density: Product, generator: torch.Generator) -> None:
    """Chances of categories are shares of the tables; of what is observed, one."""
    batch = _rows(density, 20, generator, holes=True)
    share, seen = _shares(generator, 20, density), _seen(batch)
    for column, table in plain(density).tables.items():
        number, within = density.find(column)
        part = cast(Categorical, density.parts[number])
        given = part.chances(density.view(batch, number), share, within)
        for row in range(20):
            expected = sum(share[row, k].item() * table[k] for k in range(len(table)))
            if seen[row, column]:
                expected = np.eye(table.shape[1])[int(batch.x[row, column])]
            np.testing.assert_allclose(given[row], expected, EXACT, EXACT)


def check_mixed_sample(density: Product, generator: torch.Generator) -> None:
    """Draws have the moments and frequencies of their component, columns are independent."""
    known = plain(density)
    for component in range(density.n_components):
        rows = density.sample(torch.full((DRAWS,), component), generator).numpy()
        assert rows.shape == (DRAWS, density.n_features)
        if known.numbers is not None:
            mean = known.numbers.location[component].numpy()
            covariance = known.numbers.covariances()[component].numpy()
            check_moments(rows[:, known.places], mean, covariance)
        for column, table in known.tables.items():
            check_frequencies(rows[:, column], table[component])
        if len(known.tables) > 1:
            (one, first), *_, (other, last) = known.tables.items()
            pair = rows[:, one] * last.shape[1] + rows[:, other]
            check_frequencies(pair, np.outer(first[component], last[component]).ravel())


def check_frequencies(codes: np.ndarray, chance: np.ndarray) -> None:
    """Frequencies of codes within five of their own standard deviations."""
    assert np.array_equal(codes, np.rint(codes))
    found = np.bincount(codes.astype(int), minlength=len(chance)) / len(codes)
    slack = SIGMAS * np.sqrt(chance * (1.0 - chance) / len(codes)) + 1e-12
    assert found.shape == chance.shape
    assert (np.abs(found - chance) <= slack).all(), "the frequencies of the draws are off"


def check_mixed_complete(density: Product, generator: torch.Generator) -> None:
    """Completions keep what was observed, and follow the conditional distribution of the rest."""
    known, component = plain(density), density.n_components - 1
    row = _rows(density, 3, generator, holes=True).take(slice(1, 2))
    assert row.observed is not None
    row.observed[0] = rand(generator, density.n_features) < 0.5
    for group in (known.places, list(known.tables)):
        if len(group) > 1:
            row.observed[0, group[0]], row.observed[0, group[-1]] = True, False
    many = row.take(torch.zeros(DRAWS, dtype=torch.long))
    drawn = density.complete(many, torch.full((DRAWS,), component), generator)
    same_where_observed(drawn, many)
    hidden, rows = ~row.observed[0].numpy(), drawn.numpy()
    if known.numbers is not None:
        moments = dense_conditional(known.numbers, _of_numbers(row, known.places))
        mean, covariance = (moment[0, component] for moment in moments)
        mine = hidden[known.places]
        found = rows[:, known.places][:, mine]
        check_moments(found, mean[mine], covariance[np.ix_(mine, mine)])
    for column, table in known.tables.items():
        if hidden[column]:
            check_frequencies(rows[:, column], table[component])


MIXED_CHECKS: tuple[Callable[..., None], ...] = (
    check_mixed_log_prob,
    check_mixed_marginals,
    check_single_precision,
    check_mixed_free,
    check_gradient,
    check_slope,
    check_mixed_own_statistics,
    check_additive,
    check_mixed_statistics,
    check_mixed_prior,
    check_mixed_fill,
    check_mixed_chances,
    check_mixed_sample,
    check_mixed_complete,
    check_stacking,
)
