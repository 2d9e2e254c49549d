"""Patterns of missing entries, against enumeration."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from mixed import check_frequencies, make_hole_pattern, slow_hole_counts, slow_hole_terms

from mixtura.data.batch import Batch
from mixtura.densities import Categorical, HolePattern, hole_pattern
from mixtura.densities.base import add_statistics

N_COLUMNS = 4
PATTERNS = np.array(list(product([0, 1], repeat=N_COLUMNS)))


def batch_of(patterns, told=None, dtype=torch.float64):
    """Patterns as rows; entries that are not told are zero."""
    x = torch.tensor(np.asarray(patterns), dtype=dtype)
    told = None if told is None else torch.as_tensor(told)
    return Batch(
        x if told is None else x * told, told, torch.zeros(len(x)).long(), x.new_ones(len(x))
    )


@pytest.fixture
def density(generator):
    """Two components over four columns."""
    return make_hole_pattern(generator, N_COLUMNS)


def plain_log_prob(density, patterns, told=None):
    """(n, K) by the formula, in loops."""
    return np.log(slow_hole_terms(density, patterns, told).sum(2))


def test_all_patterns_together_have_probability_one(density):
    """Under each component, and as a loop has it."""
    found = density.log_prob(batch_of(PATTERNS))
    np.testing.assert_allclose(found.exp().sum(0), 1.0, 1e-12)
    np.testing.assert_allclose(found, plain_log_prob(density, PATTERNS), 1e-10)


def test_untold_entries_are_summed_over(density):
    """Of all patterns that agree with what is told."""
    told = np.array([True, False, True, False])
    for row in PATTERNS:
        agree = (row == PATTERNS)[:, told].all(1)
        whole = np.exp(plain_log_prob(density, PATTERNS[agree])).sum(0)
        found = density.log_prob(batch_of(row[None], told[None]))
        np.testing.assert_allclose(found.exp()[0], whole, 1e-10)
    nothing = density.log_prob(batch_of(PATTERNS[:1], np.zeros((1, N_COLUMNS), bool)))
    np.testing.assert_allclose(nothing, 0.0, atol=1e-12)


@pytest.mark.parametrize("partly", [False, True], ids=["told", "partly told"])
def test_rows_that_share_patterns_are_as_each_by_itself(density, partly, rng, monkeypatch):
    """Log densities, their derivatives, and statistics with occupancies of either sign."""
    monkeypatch.setattr(hole_pattern, "_FEW", 0)
    patterns = PATTERNS[rng.integers(6, size=60)]
    told = rng.random((3, N_COLUMNS))[rng.integers(3, size=60)] < 0.7 if partly else None
    batch, occupancy = batch_of(patterns, told), torch.from_numpy(rng.normal(size=(60, 2)))
    assert len(hole_pattern._distinct(batch)[0]) <= 18
    np.testing.assert_allclose(
        density.log_prob(batch), plain_log_prob(density, patterns, told), 1e-10
    )
    free = {name: value.clone().requires_grad_() for name, value in density.free().items()}
    (density.from_free(free).log_prob(batch) * occupancy).sum().backward()
    shared = density.statistics(batch, occupancy)
    found = {name: leaf.grad.clone() for name, leaf in free.items()}
    monkeypatch.setattr(hole_pattern, "_FEW", 100)
    for leaf in free.values():
        leaf.grad = None
    (density.from_free(free).log_prob(batch) * occupancy).sum().backward()
    for name, leaf in free.items():
        np.testing.assert_allclose(found[name], leaf.grad, 1e-9, 1e-12)
    for name, value in density.statistics(batch, occupancy).items():
        np.testing.assert_allclose(shared[name], value, 1e-9, 1e-12)


def rates_of(*rates):
    """Parameters of a density with the given theta, (K, D)."""
    theta = torch.tensor(np.array(rates)).double()
    log_chance = torch.stack([1.0 - theta, theta], 2).flatten(1).log()
    return {"log_chance": log_chance, "levels": (2,) * theta.shape[1]}


def test_a_pattern_that_no_component_explains_tells_nothing():
    """Each component lacks one half of the columns; the pattern lacks a little of both.

    The product of Bernoullis alone would be sure of the component whose half lacks more.
    """
    settings = rates_of([0.99] * 50 + [0.01] * 50, [0.01] * 50 + [0.99] * 50)
    pattern = np.zeros((1, 100))
    pattern[0, :15] = pattern[0, 50:55] = 1
    alone, bounded = (kind(**settings).log_prob(batch_of(pattern))[0] for kind in
                      (Categorical, HolePattern))  # fmt: skip
    assert alone[0] - alone[1] > 50.0
    assert abs(bounded[0] - bounded[1]) < 1e-6
    log_q = -math.log(101 * math.comb(100, 20))
    np.testing.assert_allclose(bounded, log_q + math.log(0.1), 1e-9)


def test_further_holes_tell_next_to_nothing():
    """A class that often lacks half of the columns does not attract complete rows with holes.

    The product of Bernoullis alone would be sure of it.
    """
    rng = np.random.default_rng(0)
    settings = rates_of([0.5] * 10 + [0.01] * 10, [0.01] * 20)
    rows = batch_of(rng.random((500, 20)) < 0.3)
    for kind, low, high in ((Categorical, 5.0, np.inf), (HolePattern, -np.inf, 1.0)):
        log_prob = kind(**settings).log_prob(rows)
        assert low < float((log_prob[:, 0] - log_prob[:, 1]).mean()) < high


def test_single_precision_of_very_many_columns(generator):
    """Factorials of a thousand are large, and their differences are right."""
    density = make_hole_pattern(generator, 1000)
    rows = batch_of(np.random.default_rng(0).random((20, 1000)) < 0.4)
    single = density.to(dtype=torch.float32).log_prob(rows.to(torch.float32))
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, density.log_prob(rows), 1e-5)


@pytest.mark.parametrize("signed", [False, True])
def test_statistics_are_expected_counts_of_own_holes(signed, density, rng):
    """Over what is hidden: the term, and of an absent entry whether it is one of its own."""
    told = rng.random(PATTERNS.shape) < 0.8
    share = rng.normal(size=(len(PATTERNS), 2)) if signed else rng.random((len(PATTERNS), 2))
    found = density.statistics(batch_of(PATTERNS, told), torch.from_numpy(share))
    expected = slow_hole_counts(density, PATTERNS, share, told)
    np.testing.assert_allclose(found["count"], expected, 1e-9, 1e-12)
    np.testing.assert_allclose(found["mass"], share.sum(0), 1e-12)


def test_own_statistics_are_those_of_all_patterns(density):
    """Weighted by their probabilities; and the density is their maximum."""
    rows = batch_of(PATTERNS)
    own = density.own_statistics()
    for k in range(2):
        chance = torch.zeros(len(PATTERNS), 2).double()
        chance[:, k] = density.log_prob(rows)[:, k].exp()
        found = density.statistics(rows, chance)
        for name, value in own.items():
            np.testing.assert_allclose(found[name][k], value[k], 1e-10)
    np.testing.assert_allclose(density.maximize(own)[0].log_chance, density.log_chance, 1e-10)


def test_em_climbs_to_the_likeliest(density, rng):
    """It never goes down, and ends where gradients vanish (or a floor holds)."""
    rows = batch_of(PATTERNS, rng.random(PATTERNS.shape) < 0.8)
    weight = torch.from_numpy(rng.random((len(PATTERNS), 2)))
    heights = []
    for _ in range(300):
        heights.append(float((weight * density.log_prob(rows)).sum()))
        density = density.maximize(density.statistics(rows, weight))[0]
    assert (np.diff(heights) > -1e-12).all()
    logit = density.free()["logit"].clone().requires_grad_()
    (weight * density.from_free({"logit": logit}).log_prob(rows)).sum().backward()
    inside = (density.spread > 1.01 * density.floor).view(2, -1, 2).all(2).repeat_interleave(2, 1)
    assert inside.any()
    np.testing.assert_allclose(logit.grad[inside], 0.0, atol=1e-4)


def test_a_hole_never_seen_keeps_a_chance():
    """One per cent, not one in a million."""
    rows = torch.zeros(50, 3).double()
    found = HolePattern.from_clusters(rows, rows[:, :1] + 1.0, (2, 2, 2))
    np.testing.assert_allclose(found.spread[:, 1::2], 0.01)


def test_the_peak_is_the_likeliest_pattern(generator):
    """Of all patterns, whichever term makes it so."""
    for seed in range(20):
        density = make_hole_pattern(torch.Generator().manual_seed(seed), N_COLUMNS)
        every = density.log_prob(batch_of(PATTERNS))
        np.testing.assert_allclose(density.log_peak(), every.amax(0), 1e-10)
        at_home = density.log_prob(batch_of(density.location.numpy())).diagonal()
        np.testing.assert_allclose(at_home, every.amax(0), 1e-10)


def test_gradients(density, rng):
    """By the free parameters, against finite differences, with and without untold entries."""
    free = density.free()["logit"].clone().requires_grad_()
    for told in (None, rng.random(PATTERNS.shape) < 0.7):
        rows = batch_of(PATTERNS, told)
        assert torch.autograd.gradcheck(
            lambda logit, rows=rows: density.from_free({"logit": logit}).log_prob(rows), (free,)
        )


def test_draws_have_the_frequencies_of_the_patterns(density, generator):
    """All sixteen of them."""
    drawn = density.sample(torch.ones(20_000).long(), generator).numpy()
    number = (drawn @ [8, 4, 2, 1]).astype(float)
    check_frequencies(number, density.log_prob(batch_of(PATTERNS))[:, 1].exp().numpy())


def test_what_is_not_told_is_drawn_and_filled_given_the_rest(density, generator):
    """By the conditional distribution, which enumeration knows."""
    told, row = np.array([True, False, True, False]), np.array([1, 0, 1, 0])
    agree = (row == PATTERNS)[:, told].all(1)
    chance = np.exp(plain_log_prob(density, PATTERNS[agree]))
    chance /= chance.sum(0)
    many = batch_of(np.tile(row, (20_000, 1)), np.tile(told, (20_000, 1)))
    drawn = density.complete(many, torch.zeros(20_000).long(), generator).numpy()
    assert (drawn[:, told] == 1).all()
    check_frequencies(2 * drawn[:, 1] + drawn[:, 3], chance[:, 0])
    share = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    absent = chance @ [0.3, 0.7] @ PATTERNS[agree][:, [1, 3]]
    one = batch_of(row[None], told[None])
    for column, expected in zip((1, 3), absent, strict=True):
        np.testing.assert_allclose(density.chances(one, share, column)[0, 1], expected, 1e-10)
    np.testing.assert_array_equal(density.fill(one, share)[0, [1, 3]], absent > 0.5)


def test_stacking_and_adding(density):
    """Statistics of parts add up; components can be told apart."""
    rows, share = batch_of(PATTERNS), torch.rand(16, 2).double()
    halves = [density.statistics(rows.take(s), share[s]) for s in (slice(5), slice(5, 16))]
    np.testing.assert_allclose(
        add_statistics(*halves)["count"], density.statistics(rows, share)["count"], 1e-10
    )
    alone = density.select(torch.tensor([1])).log_prob(rows)[:, 0]
    np.testing.assert_allclose(alone, density.log_prob(rows)[:, 1], 1e-12)


def test_parts_of_a_pattern_move_the_rest(density):
    """So draws are made given them, not made to agree with them."""
    drawn = density.sample(torch.zeros(2, dtype=torch.long), torch.Generator().manual_seed(0))
    told = torch.ones_like(drawn, dtype=torch.bool)
    rows = Batch(drawn, told, torch.zeros(2, dtype=torch.long), torch.ones(2))
    assert density.agree(rows, rows.y, drawn) is rows.x
    told[0, 0] = False
    with pytest.raises(NotImplementedError, match="parts of them"):
        density.agree(rows, rows.y, drawn)
