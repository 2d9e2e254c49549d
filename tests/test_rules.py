"""Rules that boosted trees find, the models that are linear in them, and what these answer."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace
from itertools import permutations, product
from math import factorial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from small import in_columns, mean_prior

from mixtura import MixtureClassifier, load, runtime
from mixtura.data.conditions import Conditions, Slopes
from mixtura.data.indicators import Indicators
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.densities import DiagonalGaussian
from mixtura.engines import Punched, engine_of
from mixtura.engines.table import Table
from mixtura.estimators import blending, classifier, deciding, plan
from mixtura.models.stack import Assignment
from mixtura.progress import Progress
from mixtura.selection import chooser, rules
from mixtura.selection.held_out import Answers
from mixtura.selection.rules import ruled
from mixtura.training import slopes
from mixtura.training.beginnings import CLUSTERS, RULES
from mixtura.training.evidence import hole_evidence
from mixtura.training.hybrid import Plan

LEVELS = np.array([0, 0, 2, 3, 0])


def table(n, seed=0):
    """Numbers, categories of two and of three kinds, and noise; three columns tell together."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    X[:, 2], X[:, 3] = rng.integers(2, size=n), rng.integers(3, size=n)
    side = np.sign(X[:, 0]) * np.sign(X[:, 1] - 0.5) * (2.0 * X[:, 2] - 1.0)
    score = 3.0 * side + (X[:, 3] == 2.0)
    return X, (rng.random(n) < expit(score)).astype(int)


def found_in(X, y, levels=LEVELS, weight=None):
    weight = np.ones(len(X)) if weight is None else weight
    return ruled(Indicators.learn(X, weight, levels), X, y, weight, levels)


def asked_in(X, y):
    """The rules, each as the conditions that it asks for."""
    found = found_in(X, y)
    factors = found.factors
    each = [*zip(factors.column, factors.knot, factors.rise, factors.fall, strict=True)]
    return {frozenset(each[place] for place in rule) for rule in found.products.T}


def with_holes(n):
    X, y = table(n)
    return np.where(np.random.default_rng(3).random(X.shape) < 0.05, np.nan, X), y


def fitted_to_many(X, y, **parameters):
    """A model of more rows than are compared, which here are fewer than usual."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (blending, chooser, classifier, deciding, plan):
            patch.setattr(module, "MOST_COMPARED", 1500)
        return MixtureClassifier(random_state=0, **parameters).fit(X, y)


@pytest.fixture(scope="module")
def fitted():
    return fitted_to_many(*with_holes(1800), categorical_features=[2, 3])


def by_rules(model):
    return model.model_.blend.members[model.marginals_.index("rules") - 1]


def test_sums_of_rules_are_what_trees_say(monkeypatch):
    """All that boosted trees of numbers say of their rows is linear in their leaves."""
    monkeypatch.setattr(rules, "_TREES", (20, 20))
    X, y = table(900)
    X = X.round(1)[:, [0, 1, 4]]  # values that thresholds lie between
    levels = np.zeros(3, dtype=int)
    found = found_in(X, y, levels).apply(X)[:, 3:]
    assert set(np.unique(found)) == {0.0, 1.0}
    trees = HistGradientBoostingClassifier(
        max_leaf_nodes=16, max_depth=6, max_iter=20, early_stopping=False
    ).fit(X, y)
    said = trees.decision_function(X)
    design = np.column_stack([found, np.ones(len(X))])
    left = said - design @ np.linalg.lstsq(design, said, rcond=None)[0]
    assert np.abs(left).max() < 1e-8 < said.std()


def test_rules_are_products_of_conditions():
    X, y = table(1500)
    X[::7, 0], X[::9, 3] = np.nan, np.nan
    X[:, 4] = np.nan  # nothing is known of it
    found = found_in(X, y)
    factors, values = found.factors, found.apply(X)[:, len(found.column) :]
    assert values.shape[1] == found.products.shape[1] > 100
    for place in range(0, values.shape[1], 17):
        wanted = np.ones(len(X))
        for each in found.products[:, place]:
            own, knot = X[:, factors.column[each]], factors.knot[each]
            if factors.rise[each] == factors.fall[each] == 0.0:
                met = np.ones(len(X), dtype=bool)
            elif LEVELS[factors.column[each]]:
                met = own == knot
            else:
                met = own >= knot if factors.fall[each] == 0.0 else own <= knot
            wanted = wanted * np.where(np.isnan(own), np.nan, met)
        np.testing.assert_allclose(values[:, place], wanted, atol=1e-12)
    assert {2, 3} <= set(factors.column.tolist())
    chosen = factors.knot[(factors.column == 2) & (factors.rise > 0.0)]
    assert set(chosen) == {0.0, 1.0}  # what is not of one of two kinds is of the other


def test_between_values_of_rows_conditions_fade():
    X = np.repeat([[0.0], [1.0]], 50, axis=0)
    found = found_in(X, X[:, 0].astype(int), np.array([0]))
    between = found.apply(np.array([[-3.0], [0.25], [0.5], [9.0]]))[:, 1:]
    assert between[0].tolist() in ([1.0, 0.0], [0.0, 1.0])
    np.testing.assert_array_equal(between[3], 1.0 - between[0])
    assert between[2].tolist() == [0.5, 0.5]
    assert sorted(between[1].tolist()) == [0.25, 0.75]


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.7e308, 1.7e308), (0.0, 5e-324), (1.0, np.nextafter(1.0, 2.0)), (0.1, 0.8), (-3.0, 0.3)],
)
def test_conditions_hold_at_one_end_and_not_at_the_other(low, high, above):
    """However far the ends are apart; where that is no number, they are no slope apart."""
    knot, *slope = rules._Condition(0, above, low).shape(np.array([low, high, np.nan]))
    assert knot == (high if above else low)
    steep, flat = slope if above else slope[::-1]
    assert flat == 0.0
    assert np.isfinite(steep)
    with np.errstate(over="ignore"):
        apart = np.subtract(high, low)
    assert steep * apart >= 1.0 or np.isinf(apart) or apart < 1e-308


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("far", [1.0, 1e-9, 1e12])
def test_many_rows_are_looked_up_and_get_what_few_rows_get(far, dtype):
    """Also with holes, between the values of training, at these, and in units of any size."""
    X, y = table(1500)
    X[:, [0, 1]] = X[:, [0, 1]].round(1) * far + far
    X[:, 4] = X[:, 4] * far
    found = found_in(X, y)
    others, _ = table(600, seed=1)
    others[:, [0, 1, 4]] = others[:, [0, 1, 4]] * far + far
    others[:60, 0], others[60:90] = far * 1e9, np.finfo(dtype).max / 2.0
    for rows in (X, others, np.concatenate([X, others])):
        rows = rows.astype(dtype)
        for share in (0.0, 0.3, 1.0):
            rows[np.random.default_rng(2).random(rows.shape) < share] = np.nan
            one_by_one = np.concatenate([found.apply(part) for part in np.array_split(rows, 20)])
            assert len(rows) > 20 * 9
            together = found.apply(rows)
            assert together.dtype == one_by_one.dtype
            np.testing.assert_allclose(together, one_by_one, rtol=0.0, atol=1e-9)


def test_edges_of_conditions_are_where_their_slopes_end():
    one = np.ones(3)
    slopes = Slopes(one, np.array([2.0, 0.0, 2.0]), np.array([0.0, 4.0, 4.0]))
    np.testing.assert_allclose(slopes.edges(), [0.5, 1.0, 1.25], atol=1e-12)


def test_rows_that_rules_are_learned_from_take_bits_alone():
    """Thresholds lie between them; also where differences and their inverses are rounded."""
    X, y = table(2000)
    found = found_in(X, y)
    holds, lacks, fading = found._conditions.of(X)
    assert not fading.any()
    assert not lacks.any()
    products = found.factors.apply(X)[:, found.products].prod(1)
    np.testing.assert_array_equal(holds, products)
    assert set(np.unique(products)) == {0.0, 1.0}


def test_no_rules_without_classes_or_conditions():
    X, y = table(300)
    for labels in (np.zeros(300, dtype=int), np.full(300, -1)):
        assert found_in(X, labels).factors is None
    assert found_in(np.ones_like(X), y).factors is None
    assert found_in(X, y, weight=np.zeros(300)).factors is None


def test_units_of_weights_do_not_matter():
    X, y = table(600)
    weight = np.random.default_rng(1).integers(1, 4, size=600).astype(float)
    one, other = (found_in(X, y, weight=each) for each in (weight, 1e3 * weight))
    np.testing.assert_array_equal(one.products, other.products)
    np.testing.assert_array_equal(one.factors.knot, other.factors.knot)


def test_rows_are_put_into_units_when_they_are_asked_for():
    """The same numbers as of all rows at once, in less memory, and the same slopes."""
    X, y = with_holes(300)
    engine = in_columns(X, y)
    scaling = blending.curved(engine, RULES.units)
    waiting, ready = engine.lazily().under(scaling), engine.under(scaling)
    assert waiting.lazily() is waiting
    told = engine_of(Matrix(X, np.isnan(X)), y, None, Scaling.identity(X.shape[1]), "cpu")
    assert told.lazily() is told  # why entries are missing is known of these
    for one, other in zip(waiting.chunks(70), ready.chunks(70), strict=True):
        assert torch.equal(one.observed, other.observed)
        assert torch.equal(one.y, other.y)
        torch.testing.assert_close(one.x, other.x, rtol=1e-12, atol=1e-12)
    prior = torch.full((2,), 0.5).double().log()
    means = [slopes.by_slopes(each, prior).density.mean for each in (waiting, ready)]
    torch.testing.assert_close(*means, rtol=0.0, atol=1e-6)


def test_what_holes_tell_needs_no_rules(monkeypatch):
    """It is a matter of columns: rules of rows are not asked for, and the answer is the same."""
    X, y = table(300)
    X[(np.random.default_rng(1).random(300) < 0.4) & (y == 1), 0] = np.nan
    engine = in_columns(X, y)
    scaling = blending.curved(engine, RULES.units)
    kinds = Assignment(torch.ones(1, 2, dtype=torch.bool), torch.arange(2))
    wanted = hole_evidence(engine, kinds, 2)
    assert wanted.log_odds.abs().max() > 0.1
    monkeypatch.delattr(Indicators, "apply")
    found = hole_evidence(engine.lazily().under(scaling), kinds, 2)
    torch.testing.assert_close(found.tensors(), wanted.tensors())


def test_rules_do_not_go_by_holes():
    """Noise whose holes go with the class: rows to come may have them for other reasons."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 6)), rng.integers(2, size=1000)
    holed = np.where(rng.random(X.shape) < np.where(y, 0.5, 0.05)[:, None], np.nan, X)
    model = MixtureClassifier(random_state=0, missingness="ignore").fit(holed, y)
    assert "rules" in model.marginals_
    many = np.isnan(holed).sum(1) > 2
    chance = model.predict_proba(np.where(np.isnan(holed), np.nan, rng.normal(size=X.shape)))[:, 1]
    assert abs(chance[many].mean() - chance[~many].mean()) < 0.03


def test_models_of_many_rows_know_rules(fitted):
    """Three columns tell together what no pair of them tells."""
    X, y = table(3000, 9)
    trees = HistGradientBoostingClassifier(random_state=0).fit(*with_holes(1800))
    ours, theirs = (log_loss(y, each.predict_proba(X)) for each in (fitted, trees))
    assert "rules" in fitted.marginals_
    assert ours < theirs < 0.6 * np.log(2.0)


def test_rows_that_weigh_rules_are_not_shown_to_trees(monkeypatch):
    """Labels that are noise give rules nothing to say, however well they know their own rows.

    Of thousands of rules, only a few rows are held at a time.
    """
    asked, held = [], []
    own, apply = blending.ruled, Indicators.apply
    monkeypatch.setattr(
        blending, "ruled", lambda *given: asked.append(len(given[1])) or own(*given)
    )

    def watched(self, values):
        held.append(len(values) if self.products.size else 0)
        return apply(self, values)

    monkeypatch.setattr(Indicators, "apply", watched)
    monkeypatch.setattr(slopes, "_ROWS", 90)
    monkeypatch.setattr(blending, "_TOGETHER", 100)
    X, _ = table(2100)
    y = np.random.default_rng(5).integers(2, size=len(X))
    model = fitted_to_many(X, y, categorical_features=[2, 3])
    assert 0 < max(asked) < 2100
    assert 0 < max(held) <= 100
    P = model.predict_proba(table(2000, 6)[0])
    assert np.abs(P - 0.5).max() < 0.12


@pytest.mark.parametrize(("share", "wanted"), [(0.1, [600, 1200]), (1.0, [600])])
def test_rules_learn_from_more_rows_if_those_of_a_part_have_a_say(share, wanted, monkeypatch):
    """Three columns tell together what other models do not know."""
    asked, own = [], blending.ruled
    monkeypatch.setattr(blending, "_FIRST_ROWS", 600)
    monkeypatch.setattr(blending, "_RULE_ROWS", 1200)
    looked_up, own_look = [], Conditions.of
    monkeypatch.setattr(
        Conditions,
        "of",
        lambda self, values: looked_up.append(len(values)) or own_look(self, values),
    )
    monkeypatch.setattr(blending, "_SOME", share)
    monkeypatch.setattr(
        blending, "ruled", lambda *given: asked.append(len(given[1])) or own(*given)
    )
    X, y = table(2100)
    model = fitted_to_many(X, y, categorical_features=[2, 3])
    assert [round(each, -1) for each in asked] == wanted
    assert looked_up
    kept = pickle.dumps(by_rules(model).scaling)
    by_rules(model).scaling.apply(X)
    assert len(pickle.dumps(by_rules(model).scaling)) == len(kept)  # without what is looked up
    assert "rules" in model.marginals_


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_models_beside_learn_from_some_rows_before_all(share, monkeypatch):
    """Who has a say then goes on with all of them; leaves see theirs at once."""
    learned = defaultdict[str, list[int]](list)

    def train(plan, engine, *args, own=Plan.train, **options):
        learned[plan.name].append(round(len(engine), -1))
        return own(plan, engine, *args, **options)

    monkeypatch.setattr(blending, "_FIRST_ROWS", 600)
    monkeypatch.setattr(blending, "_SOME", share)
    monkeypatch.setattr(Plan, "train", train)
    X, y = table(2100)
    fitted_to_many(X, y, categorical_features=[2, 3])
    first = learned.pop("linear", None) or learned.pop("power")
    learned.pop("leaves", None)
    assert first == [1890]
    assert {len(rows) for rows in learned.values()} == {1 if share else 2}
    assert {rows[0] for rows in learned.values()} == {600}
    assert {rows[-1] for rows in learned.values()} == {600 if share else 1890}


def test_rules_are_lost_with_any_of_their_columns(fitted):
    engine = fitted.model_.engine(fitted._rows(table(40)[0]), "cpu")
    scaling = by_rules(fitted).scaling
    plain, derived = (
        each.seen(Punched(0.4, torch.Generator().manual_seed(1))).all_rows()
        for each in (engine, engine.under(scaling))
    )
    wanted = torch.stack([plain.observed[:, list(each)] for each in scaling.origin]).all(0)
    assert torch.equal(wanted, derived.observed)
    assert torch.equal(plain.missing_share(), derived.missing_share())


def test_values_of_columns_are_those_of_masked_rows(fitted):
    """Shapley's by their definition, over all orders in which columns may be told."""
    row = table(1, 7)[0][0]
    subsets = [*product([False, True], repeat=5)]
    value = dict(
        zip(
            subsets,
            fitted.predict_proba(np.where(subsets, row, np.nan))[:, 1],
            strict=True,
        )
    )
    wanted = np.zeros(5)
    for order in permutations(range(5)):
        for place, column in enumerate(order):
            before, after = (
                tuple(each in order[:many] for each in range(5)) for many in (place, place + 1)
            )
            wanted[column] += (value[after] - value[before]) / factorial(5)
    np.testing.assert_allclose(fitted.explain(row[None]).values[0][:, 1], wanted, atol=1e-12)


def test_values_take_no_array_of_rows_and_subsets_and_rules(fitted, monkeypatch):
    """Columns of the sum are independent: what each adds is found once."""
    calls = []
    log_prob = DiagonalGaussian.log_prob
    monkeypatch.setattr(
        DiagonalGaussian, "log_prob", lambda self, b: calls.append(len(b)) or log_prob(self, b)
    )
    fitted.explain(table(3, 7)[0])
    assert max(calls, default=0) <= 3


def test_units_and_order_do_not_matter():
    X, y = table(700)
    units, order = np.array([1024.0, 1024.0, 1.0, 1.0, 0.5]), np.array([4, 2, 0, 3, 1])
    one, other = found_in(X, y), found_in(units * X, y)
    np.testing.assert_array_equal(one.products, other.products)
    told = [
        found.apply(rows)[:, len(one.column) :] for found, rows in ((one, X), (other, units * X))
    ]
    np.testing.assert_allclose(*told, atol=1e-9)
    moved = found_in(X[:, order], y, LEVELS[order])
    shares = (found.apply(rows).mean(0) for found, rows in ((one, X), (moved, X[:, order])))
    wanted, told = (np.sort(share[len(one.column) :]) for share in shares)
    assert np.isin(wanted.round(9), told.round(9)).mean() > 0.9  # ties between columns aside


def test_names_of_classes_and_order_of_rows_do_not_matter():
    X, y = table(700)
    order, wanted = np.random.default_rng(2).permutation(700), asked_in(X, y)
    for again in (asked_in(X, 1 - y), asked_in(X[order], y[order]), asked_in(X, 7 * y)):
        assert len(again & wanted) > 0.95 * len(again | wanted)  # ties between splits aside


def test_files_and_graphs_answer_the_same(fitted, tmp_path):
    X = table(60, 5)[0]
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    wanted = fitted.predict_proba(X)
    np.testing.assert_allclose(fitted.predict_proba(X.astype(np.float32)), wanted, atol=1e-5)
    nothing = fitted.predict_proba(np.full((1, 5), np.nan))[0]
    np.testing.assert_allclose(nothing, mean_prior(fitted), rtol=1e-9)
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    np.testing.assert_array_equal(load(path).predict_proba(X), wanted)
    np.testing.assert_allclose(runtime.load(path).predict_proba(X), wanted, atol=1e-12)
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    fitted.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(["probabilities"], {"X": X})[0]
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_sets_of_many_rows_cover_what_they_promise(fitted):
    """By rows that no model has seen, with the models themselves."""
    X, y = table(4000, 11)
    for holes in (0.0, 0.3):
        rows = X.copy()
        rows[:, 0] = np.where(holes, np.nan, rows[:, 0])
        covered = fitted.predict_set(rows, coverage=0.9)[np.arange(len(y)), y]
        assert 0.86 < covered.mean() < 0.95
    assert fitted.model_.held_back.models == ((),)


def test_models_of_fewer_rows_are_compared_by_rules_of_other_rows(tmp_path):
    """Each fold has rules of its own, which sets go by, too, here and in files."""
    X, y = table(900)
    model = MixtureClassifier(random_state=0, categorical_features=[2, 3]).fit(X, y)
    assert "rules" in model.marginals_
    noise = np.random.default_rng(5).integers(2, size=900)
    nothing = MixtureClassifier(random_state=0, categorical_features=[2, 3]).fit(X, noise)
    fresh, truth = table(3000, 12)
    assert np.abs(nothing.predict_proba(fresh) - 0.5).max() < 0.2
    kept, place = model.model_.held_back, model.marginals_.index("rules") - 1
    own = [fold[place] for fold in kept.units]
    assert all(each.indicators.factors is not None for each in own)
    assert [fold[place - 1] for fold in kept.units] == [None] * len(own)
    fresh[:, 4] = np.nan
    sets = model.predict_set(fresh, coverage=0.9)
    assert 0.86 < sets[np.arange(3000), truth].mean() < 0.95
    path = tmp_path / "model.safetensors"
    model.save(path)
    for other in (load(path), runtime.load(path)):
        np.testing.assert_array_equal(other.predict_set(fresh[:50], coverage=0.9), sets[:50])


def test_rules_leave_where_the_first_model_tells_more():
    """After the first fold of two: no further trees are grown."""
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=500)
    model = MixtureClassifier(random_state=0).fit(rng.normal(size=(500, 6)) + 0.8 * y[:, None], y)
    asked = {row["marginals"]: row for row in model.choice_}
    assert asked["rules"]["loss"] > asked["linear"]["loss"]
    assert (asked["rules"]["rows"], asked["additive"]["rows"]) == (125, 250)
    assert "rules" not in model.marginals_


def test_copies_of_rows_are_held_out_together():
    """Trees know a row that they have seen, and would be believed for its copies."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    place = np.concatenate([np.arange(300), rng.integers(100, size=400)])
    y = (place < 100).astype(int)
    shown, held = in_columns(x[place], y).hold_out(0.2, torch.Generator().manual_seed(0))
    assert not {*shown.row_keys()} & {*held.row_keys()}
    assert 0.15 < len(held) / len(y) <= 0.2
    kinds = rng.integers(30, size=700)  # of both labels: all of one would be held out together
    shown, held = in_columns(x[kinds], rng.integers(2, size=700)).hold_out(
        0.2, torch.Generator().manual_seed(0)
    )
    assert {*held.row_keys()} <= {*shown.row_keys()}


def test_rows_that_are_given_often_do_not_make_rules_surer():
    """More than are compared, of which those of a rare class are given as often as the others."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1800, 4)), (rng.random(1800) < 0.1).astype(int)
    rare = np.flatnonzero(y)
    rows = np.concatenate([np.arange(1800), rng.choice(rare, 1800 - 2 * len(rare))])
    model = fitted_to_many(X[rows], y[rows])
    fresh = rng.normal(size=(1000, 4))
    assert np.abs(model.predict_proba(fresh) - 0.5).mean() < 0.1
    assert model.predict_set(fresh, coverage=0.9).mean() > 0.85


def test_no_trees_are_grown_once_time_is_up():
    """Of many rows, rules come after the first model, which may take all of the time."""
    X, y = table(600)
    given = in_columns(X, y), torch.tensor([0.5, 0.5]).double().log(), None
    late, early = Progress(max_time=1e-9), Progress(max_time=3600.0)
    short, whole = (slopes.by_slopes(*given, clock).density.mean for clock in (late, early))
    assert torch.equal(whole, slopes.by_slopes(*given).density.mean)
    assert not torch.allclose(short, whole)
    trials = [SimpleNamespace(way=SimpleNamespace(beginning=each)) for each in (RULES, CLUSTERS)]
    assert blending.in_time(trials, early) == trials
    assert blending.in_time(trials, late) == trials[1:]
    assert not trials[0].won


def test_rules_stand_beside_models_of_unlabeled_rows(monkeypatch):
    """Whose chooser is not the one that saw all labeled rows; here they are taken for better."""
    monkeypatch.setattr(Answers, "surely_beats", lambda *given: True)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1500, 4))
    y = np.where(rng.random(1500) < 0.05, X[:, 0] * X[:, 1] <= 0, X[:, 0] * X[:, 1] > 0).astype(int)
    y[420:] = -1
    model = MixtureClassifier(random_state=0, unlabeled=-1).fit(X, y)
    assert model.unlabeled_weight_ == 0.5
    assert "rules" in model.marginals_


def test_a_column_of_many_words_leaves_rules_to_the_others():
    """Its 20 most frequent ones are told apart, and count as so many."""
    X, y = table(600)
    words = np.random.default_rng(0).integers(400, size=600)
    model = MixtureClassifier(random_state=0, categorical_features=[2, 3, 5])
    assert "rules" in model.fit(np.column_stack([X, words]), y).marginals_


def test_predictions_of_many_rows_take_bounded_memory(fitted, monkeypatch):
    """As many numbers at a time as a chunk may have, and the same answers."""
    X, sizes = with_holes(500)[0], []
    wanted = fitted.predict_proba(X)
    under = Table.under

    def watched(self, scaling):
        sizes.append(len(self) * len(scaling.scale))
        return under(self, scaling)

    monkeypatch.setattr(Table, "under", watched)
    monkeypatch.setattr(Table, "most_numbers", 100_000)
    np.testing.assert_allclose(fitted.predict_proba(X), wanted, atol=1e-13)
    assert max(sizes) <= 100_000


def test_hundreds_of_words_have_indicators_where_rows_are_few(monkeypatch):
    """With 300 in all at most, 400 questions were answered as if each went by itself."""
    rng = np.random.default_rng(0)

    def kinds(n_columns):
        X, y = rng.integers(2, size=(420, n_columns)).astype(float), np.arange(420) % 2
        scaling = replace(Scaling.identity(n_columns), levels=np.full(n_columns, 2))
        return blending.kinds_for(engine_of(Matrix(X), y, np.ones(420), scaling, "cpu"))

    assert {"indicators", "rules"} <= {*kinds(400)}
    assert not {"indicators", "rules"} & {*kinds(1_001)}
    monkeypatch.setattr(blending, "_LARGE", 500)  # 420 rows are many then
    assert not {"indicators", "rules"} & {*kinds(400)}


def test_classes_share_the_variances_of_ranks_where_columns_are_very_many(monkeypatch):
    """What tells them apart is linear then, too: tables of genes have few labels per column."""
    seen, try_beside = [], classifier.try_beside
    monkeypatch.setattr(
        classifier,
        "try_beside",
        lambda decision, ways: seen.extend(ways) or try_beside(decision, ways),
    )
    X, y = np.random.default_rng(0).normal(size=(40, 450)), np.arange(40) % 2
    MixtureClassifier(random_state=0).fit(X + y[:, None] * (np.arange(450) < 20), y)
    [recipe] = [
        way.recipe for way in seen if way.marginals.startswith("ranks") and not way.beginning.name
    ]
    assert (type(recipe.structure).__name__, recipe.prior_rows) == ("Diagonal", 1e3)
