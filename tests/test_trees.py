"""What boosted trees expect of targets stands beside the features of `MixtureRegressor`."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import r2_score

from mixtura import MixtureRegressor, load, predictive, runtime
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.data.trees import Trees
from mixtura.engines import engine_of
from mixtura.estimators import regression
from mixtura.predictive import of_features, say_of, trees_of
from mixtura.solvers import EM, LBFGS
from mixtura.training import trees as growing


def draw(n_rows, seed=0):
    """Steps that no line goes along, in two of three columns, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n_rows, 3))
    y = 3.0 * (X[:, 0] * X[:, 1] > 0.0) + np.floor(X[:, 0]) + 0.2 * rng.normal(size=n_rows)
    return X, y


def rows_with_holes(X, share=0.2):
    return np.where(np.random.default_rng(1).random(X.shape) < share, np.nan, X)


@pytest.fixture(scope="module")
def model():
    return MixtureRegressor(solver=LBFGS(10), init=EM(10), random_state=0).fit(*draw(1_200))


@pytest.fixture(scope="module")
def grown():
    """Trees for two targets, one with holes, as they are and what they were made of."""
    X, y = draw(400)
    y = np.column_stack([y, np.where(np.arange(400) % 5 == 0, np.nan, X[:, 2])])
    weight, fold = np.random.default_rng(3).uniform(0.5, 2.0, 400), np.arange(400) % 3
    return X, y, weight, fold, *growing.grown(X, y, weight, fold)


def reference(X, y, weight, fold, number):
    """Scikit-learn's own trees of all folds but one; of 400 rows with as many bins."""
    known = (fold != number) & ~np.isnan(y)
    trees = HistGradientBoostingRegressor(
        max_iter=growing._ROUNDS, learning_rate=growing._RATE, early_stopping=False, random_state=0
    )
    places = [growing._edges(each, weight) for each in X.T]

    def shown(rows):
        return np.column_stack(
            [np.searchsorted(own, each) for own, each in zip(places, rows.T, strict=True)]
        )

    trees.fit(shown(X[known]), y[known], sample_weight=weight[known] / weight.mean())
    return lambda rows: trees.predict(shown(rows))


def test_sums_are_those_of_scikit_learn(grown):
    """New rows get the mean over folds, rows of training what others' trees say."""
    X, y, weight, fold, trees, told = grown
    new = np.column_stack([draw(50, seed=9)[0], np.full((50, 2), np.nan)])
    for target in range(2):
        each = [reference(X, y[:, target], weight, fold, number) for number in range(3)]
        mean = np.mean([predict(new[:, :3]) for predict in each], axis=0)
        np.testing.assert_allclose(trees.sums(new)[:, target], mean, rtol=1e-9)
        own = [each[number](row[None])[0] for number, row in zip(fold, X, strict=True)]
        np.testing.assert_allclose(told[:, target], own, rtol=1e-9)


def test_rows_at_an_edge_go_to_the_left_and_holes_silence_sums():
    """By hand: one split at 2 of the second column, and leaves of 10 and 20."""
    one, ends = np.ones(1, dtype=np.int64), np.array([0])
    value = np.zeros((1, 32))
    value[0, :2] = 10.0, 20.0
    trees = Trees(one, np.array([2.0]), ends, ends, one, value, np.array([0.5]), 3)
    rows = np.array([[0.0, 2.0, 0.0], [np.nan, 2.1, np.nan], [0.0, np.nan, 0.0]])
    np.testing.assert_array_equal(trees.sums(rows)[:, 0], [10.5, 20.5, np.nan])
    np.testing.assert_array_equal(trees.apply(rows)[:2, 2], [10.5, 20.5])
    np.testing.assert_array_equal(trees.told(rows), [True, True, False])
    assert trees.origin == ((0, 1, 1, 2),)
    scaling = replace(Scaling.identity(4), indicators=trees)
    np.testing.assert_array_equal(scaling.invert(scaling.apply(rows)), rows)


def test_a_sum_is_observed_where_all_that_it_asks_for_is(grown):
    *_, trees, _ = grown
    values = rows_with_holes(np.column_stack([draw(60, seed=4)[0], np.zeros((60, 2))]))
    beside = replace(Scaling.identity(7), indicators=trees)
    batch = engine_of(Matrix(values), None, None, Scaling.identity(5), "cpu").under(beside)
    seen = batch.all_rows().observed.numpy()[:, trees.places]
    np.testing.assert_array_equal(seen, np.repeat(trees.told(values)[:, None], 2, 1))


def test_it_predicts_steps_as_boosting_does_and_holes_as_without(model):
    """Trees have a say on whole rows, and none on others."""
    X, y = draw(1_000, seed=5)
    boosting = HistGradientBoostingRegressor(random_state=0).fit(*draw(1_200))
    assert model.score(X, y) > boosting.score(X, y) - 0.005
    whole = model.model_.whole(Matrix(rows_with_holes(X)))
    beside = np.array([each is not None for each in trees_of(model.model_.fitted)])
    assert beside.any()
    assert not beside[0]
    say = say_of(model.model_.fitted, whole.values)
    np.testing.assert_allclose(say.sum(0), 1.0)
    known = ~np.isnan(whole.values[:, :3]).any(1)  # noise is asked for, too
    assert (say[beside][:, ~known] == 0.0).all()
    assert (say[beside][:, known].sum(0) > 0.5).all()
    alone = of_features(model.model_.fitted)[1]
    np.testing.assert_allclose(say[~beside][:, ~known].T, np.tile(alone, ((~known).sum(), 1)))


def test_densities_means_and_draws_agree(model):
    """Densities integrate to one, and to what is predicted; so do draws."""
    X = rows_with_holes(draw(8, seed=6)[0])
    grid = np.linspace(-12.0, 12.0, 24_001)
    for row, mean in zip(X, model.predict(X), strict=True):
        density = np.exp(model.score_samples(np.repeat(row[None], len(grid), 0), grid))
        np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, atol=1e-6)
        np.testing.assert_allclose(np.trapezoid(grid * density, grid), mean, atol=1e-5)
    drawn, std = model.sample(X, 4_000, random_state=0), model.predict(X, return_std=True)[1]
    assert (np.abs(drawn.mean(0) - model.predict(X)) < 4.5 * std / np.sqrt(4_000)).all()


def test_features_are_those_of_the_others_alone(model):
    """What trees make of a row is no part of its density, which integrates to one."""
    rng = np.random.default_rng(0)
    low, high = -8.0, 8.0
    X = rng.uniform(low, high, size=(200_000, 3))
    mass = np.exp(model.score_samples(X))
    error = mass.std() / np.sqrt(len(X)) * (high - low) ** 3
    assert abs(mass.mean() * (high - low) ** 3 - 1.0) < 4.0 * error


def test_explanations_are_differences_of_what_is_expected(model):
    """By brute force: all subsets of the columns, each a row with holes."""
    row = draw(1, seed=7)[0]
    found = model.explain(row)
    masks = (np.arange(8)[:, None] >> np.arange(3)) % 2 == 1
    value = dict(zip(map(tuple, masks), model.predict(np.where(masks, row, np.nan)), strict=True))
    for column in range(3):
        total = 0.0
        for mask in masks[~masks[:, column]]:
            size, more = mask.sum(), mask.copy()
            more[column] = True
            share = 1.0 / (3.0 * (1.0, 2.0, 1.0)[size])
            total += share * (value[tuple(more)] - value[tuple(mask)])
        np.testing.assert_allclose(found.values[0, column], total, atol=1e-6)
    by_orders = model.explain(row, method="permutation", random_state=0)
    np.testing.assert_allclose(by_orders.values.sum() + by_orders.base_values, model.predict(row))


def test_it_is_stored_and_answers_without_torch(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    X = rows_with_holes(draw(100, seed=8)[0])
    for other in (
        load(tmp_path / "model.safetensors"),
        runtime.load(tmp_path / "model.safetensors"),
    ):
        np.testing.assert_allclose(other.predict(X), model.predict(X), rtol=1e-9)
        np.testing.assert_allclose(other.score_samples(X), model.score_samples(X), rtol=1e-9)
        expected = model.predict_interval(X[:20])
        np.testing.assert_allclose(other.predict_interval(X[:20]), expected, rtol=1e-7)


def test_intervals_cover(model):
    X, y = draw(2_000, seed=11)
    for rows in (X, rows_with_holes(X)):
        lower, upper = model.predict_interval(rows, 0.9).T
        assert 0.87 < np.mean((lower <= y) & (y <= upper)) < 0.93


def test_features_are_filled_in_and_what_to_measure_is_told(model):
    X = rows_with_holes(draw(30, seed=12)[0])
    filled = model.impute(X, draw(30, seed=12)[1])
    assert not np.isnan(filled).any()
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    row = np.array([[np.nan, 0.5, np.nan]])
    worth = model.next_feature(row, random_state=0)[0]
    assert worth[0] > 0.5
    assert worth[1] == 0.0
    assert worth[2] < 0.1


def test_copies_of_rows_do_not_tell_trees_of_themselves():
    """Noise that is learned by heart would have a say, were a row's copy among those trees see."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(700, 3)), rng.normal(size=700)
    model = MixtureRegressor(solver=LBFGS(5), init=EM(5), random_state=0)
    model.fit(np.tile(X, (3, 1)), np.tile(y, 3))
    new = rng.normal(size=(500, 3))
    assert r2_score(rng.normal(size=500), model.predict(new)) > -0.1


def test_several_targets_have_trees_of_their_own():
    X, y = draw(1_100)
    rng = np.random.default_rng(0)
    both = np.column_stack([y, X[:, 2] ** 2 + 0.1 * rng.normal(size=1_100)])
    both[:50, 1] = np.nan
    model = MixtureRegressor(solver=LBFGS(10), init=EM(10), random_state=0).fit(X, both)
    new, told = draw(500, seed=3)
    assert r2_score(told, model.predict(new)[:, 0]) > 0.9
    assert r2_score(new[:, 2] ** 2, model.predict(new)[:, 1]) > 0.9
    assert model.sample(new[:5], 3).shape == (3, 5, 2)
    rows = rows_with_holes(new[:12])
    found = model.explain(rows)
    np.testing.assert_allclose(found.values.sum(1) + found.base_values, model.predict(rows))


def test_who_has_chosen_gets_what_was_chosen():
    """Trees stand beside the models of "auto" alone, and where rows are enough."""
    for given, count in ((MixtureRegressor(2), 1_100), (MixtureRegressor(), 900)):
        given = given.set_params(solver=LBFGS(2), init=EM(2), random_state=0)
        model = given.fit(*draw(count))
        assert all(each is None for each in trees_of(model.model_.fitted))
        assert len(predictive.members_of(model.model_.fitted)) >= 1


def test_weights_count_rows_where_trees_are_tried():
    X, y = draw(600)
    given = MixtureRegressor(solver=LBFGS(2), init=EM(2), random_state=0)
    weighed = clone(given).fit(X, y, np.full(600, 2.0))
    copied = clone(given).fit(np.vstack([X, X]), np.concatenate([y, y]))
    assert "trees" in [each["marginals"] for each in weighed.choice_]
    np.testing.assert_allclose(weighed.predict(X), copied.predict(X), rtol=1e-6)


def test_many_columns_are_none_for_trees(monkeypatch):
    """Growing them takes long; the target is a column, too."""
    X, y = draw(1_100)
    for most in (3, 4):
        monkeypatch.setattr(regression, "_MOST_FOR_TREES", most)
        model = MixtureRegressor(solver=LBFGS(2), init=EM(2), random_state=0).fit(X, y)
        assert ("trees" in [each["marginals"] for each in model.choice_]) == (most == 4)


def test_a_target_that_few_rows_have_is_none_for_trees():
    X, y = draw(1_100)
    both = np.column_stack([y, np.where(np.arange(1_100) < 900, y, np.nan)])
    model = MixtureRegressor(solver=LBFGS(2), init=EM(2), random_state=0).fit(X, both)
    assert "trees" not in [each["marginals"] for each in model.choice_]


def test_columns_and_targets_that_no_row_has_are_none_to_learn_from():
    """Parts of rows may lack what a few others have."""
    X, y = draw(90)
    X, y, fold = np.column_stack([X, X[:, 0]]), np.column_stack([y, y]), np.arange(90) % 3
    X[fold != 0, 3] = y[fold != 0, 1] = np.nan
    trees, told = growing.grown(X, y, np.ones(90), fold)
    assert (told[fold == 0, 1] == 0.0).all()
    alone = growing.grown(X[:, :3], y[:, :1], np.ones(90), fold)[0]
    part = len(alone.value) // 3  # what does not see the first fold has nothing of the last column
    np.testing.assert_array_equal(trees.value[:part], alone.value[:part])
    assert np.isfinite(trees.sums(np.nan_to_num(np.column_stack([X, y])))).all()


def test_rows_may_weigh_little_or_much(grown):
    X, y, weight, fold, _, told = grown
    for unit in (1e-9, 1e45):
        np.testing.assert_allclose(growing.grown(X, y, unit * weight, fold)[1], told, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*no observed value")
def test_a_column_without_values_is_no_obstacle():
    X, y = draw(1_000)
    rows = np.column_stack([X, np.full(len(X), np.nan)])
    model = MixtureRegressor(solver=LBFGS(2), init=EM(2), random_state=0).fit(rows, y)
    assert model.score(rows, y) > 0.9
    assert trees_of(model.model_.fitted)[-1] is not None
