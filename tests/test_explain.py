"""Explanations: against brute force over masked rows, and shap."""

from itertools import combinations, permutations
from math import factorial

import numpy as np
import pytest
import torch

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    SequenceMixtureClassifier,
)
from mixtura.answers.class_sums import class_log_joints
from mixtura.answers.subsets import Subsets, all_subsets, log_probs
from mixtura.data.batch import Batch
from mixtura.densities import (
    Density,
    DiagonalGaussian,
    FullGaussian,
    LowRank,
    LowRankGaussian,
    Student,
)
from mixtura.exceptions import (
    DegenerateDataWarning,
    InvalidInputError,
    NoDensityError,
    UnsupportedError,
)
from mixtura.models.mixture import Layout, Mixture
from mixtura.progress import Progress
from mixtura.solvers import EM, LBFGS

pd = pytest.importorskip("pandas")

PLAIN = {"objective": "likelihood", "random_state": 0}


def shapley(answers, row, blank=np.nan):
    """Shapley values of the entries of a row, by their definition; `answers` take many rows."""
    here = [j for j, value in enumerate(row) if not pd.isna(value)]
    subsets = [set(c) for size in range(len(here) + 1) for c in combinations(here, size)]
    rows = np.array([[v if j in s else blank for j, v in enumerate(row)] for s in subsets])
    value = {frozenset(s): v for s, v in zip(subsets, answers(rows), strict=True)}
    found = np.zeros((len(row), *np.shape(value[frozenset()])))
    for j in here:
        for s in subsets:
            if j not in s:
                weight = (
                    factorial(len(s)) * factorial(len(here) - len(s) - 1) / factorial(len(here))
                )
                found[j] += weight * (value[frozenset(s | {j})] - value[frozenset(s)])
    return found


def log_odds(model):
    return lambda X: np.log(model.predict_proba(X)) - np.log1p(-model.predict_proba(X))


@pytest.fixture(scope="module")
def wine_model(wine):
    """A calibrated model of nine columns, two components per class."""
    X, y = wine
    return MixtureClassifier(2, density=LowRank(2), random_state=0).fit(X[:, :9], y)


def test_values_are_those_of_brute_force(wine, wine_model):
    row = wine[0][70, :9].copy()
    row[4] = np.nan
    found = wine_model.explain(row[None])
    np.testing.assert_allclose(found.values[0], shapley(wine_model.predict_proba, row), atol=1e-12)
    found = wine_model.explain(row[None], "log_odds").values[0]
    np.testing.assert_allclose(found, shapley(log_odds(wine_model), row), atol=1e-9)


def test_averages_of_models_are_explained(iris):
    model = MixtureClassifier(1, random_state=0).fit(*iris)
    assert len(model.model_.blend.members) == 3
    row = iris[0][77].copy()
    row[1] = np.nan
    found = model.explain(row[None], "log_odds").values[0]
    np.testing.assert_allclose(found, shapley(log_odds(model), row), atol=1e-9)
    orders = model.explain(row[None], method="permutation")
    total = orders.values[0].sum(0) + orders.base_values[0]
    np.testing.assert_allclose(total, model.predict_proba(row[None])[0], atol=1e-12)
    short = iris[0][60:130:5].astype(np.float32)
    found = model.explain(short)
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, model.predict_proba(short), atol=1e-12)


def test_values_sum_to_the_answer_and_what_is_missing_gets_none(wine, wine_model, rng):
    X = np.where(rng.random((20, 9)) < 0.3, np.nan, wine[0][:20, :9])
    X[0] = np.nan
    found = wine_model.explain(X)
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, wine_model.predict_proba(X), atol=1e-12)
    assert (found.values[np.isnan(X)] == 0).all()
    np.testing.assert_allclose(found.base_values[0], wine_model.class_prior_)
    assert found.values.shape == (20, 9, 3)
    assert (found.error_std == 0).all()
    np.testing.assert_array_equal(found.data, X)


def test_log_density_says_which_column_is_odd(wine, rng):
    X = wine[0][:, :6] * [1, 1e3, 1, 1e-3, 1, 1]
    model = MixtureDensity(1, random_state=0).fit(X)
    odd = X[:5].copy()
    odd[np.arange(5), np.arange(5)] += 8 * X.std(0)[:5]
    found = model.explain(odd)
    assert (found.values.argmin(1) == np.arange(5)).all()
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, model.score_samples(odd), rtol=1e-12)
    by_hand = shapley(model.score_samples, odd[0]) + np.log(model.scaling_.scale)
    np.testing.assert_allclose(found.values[0], by_hand, atol=1e-9)


def test_columns_that_say_the_same_share_it(iris):
    X = iris[0][:, [2, 2, 0]]
    model = MixtureClassifier(1, density="diag", **PLAIN).fit(X, iris[1])
    found = model.explain(X[::10]).values
    np.testing.assert_allclose(found[:, 0], found[:, 1], atol=1e-12)


def test_mixed_tables_show_names(flowers_frame):
    frame, y = flowers_frame
    model = MixtureClassifier(1, **PLAIN).fit(frame, y)
    found = model.explain(frame.iloc[:2])
    assert found.feature_names == list(frame.columns)
    assert found.output_names == [str(label) for label in model.classes_]
    assert found.display_data[0, 2] == frame.iloc[0, 2]

    def proba(rows):
        return model.predict_proba(pd.DataFrame(rows, columns=frame.columns).astype(frame.dtypes))

    by_hand = shapley(proba, frame.iloc[0].to_numpy(dtype=object), blank=None)
    np.testing.assert_allclose(found.values[0], by_hand, atol=1e-12)


@pytest.fixture(scope="module")
def flowers_frame(iris):
    """Numbers and a category."""
    X, y = iris
    width = np.where(X[:, 2] > 4, "wide", np.where(X[:, 2] > 1.5, "middle", "narrow"))
    return pd.DataFrame({"sepal": X[:, 0], "petal": X[:, 3], "kind": width}), y


def test_groups_come_and_go_together(wine, wine_model):
    row = wine[0][70:71, :9]
    groups = {"first": [0, 1, 2], "second": range(3, 9)}
    found = wine_model.explain(row, groups=groups)
    assert found.feature_names == ["first", "second"]
    masked = np.repeat(row, 4, 0)
    masked[[0, 1], :3] = masked[[0, 2], 3:] = np.nan
    masked[0] = np.nan
    none, second, first, both = wine_model.predict_proba(masked)
    np.testing.assert_allclose(found.values[0, 0], 0.5 * (first - none + both - second), atol=1e-12)
    found = wine_model.explain(row, groups=[[0, 1]])
    assert found.feature_names == ["0 + 1", *"2345678"]


def test_random_orders_come_close_and_say_how_close(wine, wine_model):
    X = wine[0][:4, :9]
    exact, found = wine_model.explain(X), wine_model.explain(X, method="permutation")
    off = np.abs(found.values - exact.values)
    assert off.max() < 0.05
    assert (off <= 4 * found.error_std + 1e-3).mean() > 0.98
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, wine_model.predict_proba(X), atol=1e-12)


def test_one_order_tells_all_where_columns_add_up(rng):
    X, y = rng.normal(size=(200, 40)), np.arange(200) % 2
    model = MixtureClassifier(1, density="diag", **PLAIN).fit(X + 0.2 * y[:, None], y)
    found = model.explain(X[:3], "log_odds")
    assert (found.error_std == 0).all()
    mean, var = model.means_, np.array([np.diag(c) for c in model.covariances_])
    log_density = -0.5 * ((X[:3, None] - mean) ** 2 / var + np.log(var))
    by_hand = log_density[:, 1] - log_density[:, 0]
    np.testing.assert_allclose(found.values[..., 1], by_hand, atol=1e-9)


def test_many_columns_take_no_longer_than_allowed(rng, clock):
    X, y = rng.normal(size=(60, 60)), np.arange(60) % 2
    model = MixtureClassifier(1, density="low_rank", **PLAIN).fit(X, y)
    with pytest.warns(DegenerateDataWarning, match="pairs of random orders"):
        found = model.explain(X[:1], max_time=0.05)
    assert (found.error_std > 0).any()


def test_other_models_answer_too(iris):
    X, y = iris
    boosted = BoostedMixtureClassifier(1, n_stages=2, method="adaboost", random_state=0).fit(X, y)
    row = X[80]
    found = boosted.explain(row[None]).values[0]
    np.testing.assert_allclose(found, shapley(boosted.predict_proba, row), atol=1e-12)
    network = MixtureNetworkClassifier(1, embedding="log_density", calibrate=False, random_state=0)
    network.fit(X, y)
    found = network.explain(row[None]).values[0]
    np.testing.assert_allclose(found, shapley(network.predict_proba, row), atol=1e-9)


def test_numbers_of_networks_are_explained(iris):
    """Not how likely the row is, unless that is asked for."""
    X, row = iris[0][:, :3], iris[0][80, :3]
    network = MixtureNetworkRegressor(1, embedding="log_density", random_state=0)
    found = network.fit(X, iris[0][:, 3]).explain(row[None])
    np.testing.assert_allclose(found.values[0], shapley(network.predict, row), atol=1e-9)
    assert found.values[0].sum() + found.base_values[0] == pytest.approx(network.predict([row])[0])
    density = network.explain(row[None], "log_density")
    whole = density.values[0].sum() + density.base_values[0]
    assert whole == pytest.approx(network.score_samples(row[None])[0])
    with pytest.raises(InvalidInputError, match="output is one of"):
        network.explain(row[None], "probability")


@pytest.fixture(scope="module")
def steps():
    """Sequences whose first channel tells the class, in its second half alone."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    X = [rng.normal(size=(length, 2)) for length in (6 + np.arange(30) % 5)]
    for each, label in zip(X, y, strict=True):
        each[len(each) // 2 :, 0] += 3.0 + 2.0 * label
    model = SequenceMixtureClassifier(
        n_states=2, representation="states", random_state=0, method="ml", chain="left_to_right"
    )
    return X, y, model.fit(X, y)


def test_channels_of_sequences(steps):
    X, _, model = steps
    found = model.explain(X[:4])
    assert found.values.shape == (4, 2, 2)
    np.testing.assert_allclose(
        found.values.sum(1) + found.base_values, model.predict_proba(X[:4]), atol=1e-12
    )
    assert (np.abs(found.values[:, 0]) > np.abs(found.values[:, 1])).all()


def test_times_of_sequences(steps):
    """Against sequences with frames missing, for all orders; a short one lacks the last part."""
    X, _, model = steps
    X = [X[0], X[9][:4]]
    parts = [slice(0, 2), slice(2, 5), slice(5, None)]
    found = model.explain(X, intervals=[2, 5])
    assert found.feature_names == ["frames 0 to 1", "frames 2 to 4", "frames 5 to the end"]
    for row, own in zip(X, found.values, strict=True):
        by_hand = np.zeros((3, 2))
        for order in permutations(range(3)):
            shown = np.full_like(row, np.nan)
            before = model.predict_proba([shown])[0]
            for place in order:
                shown[parts[place]] = row[parts[place]]
                after = model.predict_proba([shown])[0]
                by_hand[place] += (after - before) / 6
                before = after
        np.testing.assert_allclose(own, by_hand, atol=1e-12)
    assert (found.values[1, 2] == 0.0).all()


def test_halves_and_channels_of_sequences(steps):
    X, _, model = steps
    late = np.abs(model.explain(X, intervals=2).values[:, 1]).sum(1)
    assert (late > np.abs(model.explain(X, intervals=2).values[:, 0]).sum(1)).mean() > 0.9
    both = model.explain(X[:3], "log_density", intervals=2, groups=[[0]])
    assert both.feature_names == [
        "0, 0 to 50 %",
        "0, 50 to 100 %",
        "1, 0 to 50 %",
        "1, 50 to 100 %",
    ]
    np.testing.assert_allclose(
        both.values.sum(1) + both.base_values, model.score_samples(X[:3]), atol=1e-9
    )
    many = model.explain(X[:2], intervals=5, method="permutation")
    exact = model.explain(X[:2], intervals=5)
    assert (np.abs(many.values - exact.values) <= 5 * many.error_std + 1e-9).all()


@pytest.mark.parametrize("intervals", [0, -1, 2.5, True, [3, 3], [0, 2], [[1]], ["a"], "a", []])
def test_intervals_that_make_no_sense_are_refused(steps, intervals):
    X, _, model = steps
    with pytest.raises(InvalidInputError, match="intervals="):
        model.explain(X[:1], intervals=intervals)


def test_summaries_cannot_leave_out_frames(steps):
    X, y, _ = steps
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    with pytest.raises(UnsupportedError, match="summaries of sequences cannot leave out frames"):
        model.explain(X[:2], intervals=2)
    with pytest.raises(NoDensityError, match="knows summaries"):
        model.explain(X[:2], "log_density", intervals=2)
    found = model.explain(X[:2])
    np.testing.assert_allclose(
        found.values.sum(1) + found.base_values, model.predict_proba(X[:2]), atol=1e-9
    )


def test_channels_of_summaries(steps):
    """Against sequences that lack channels, some frames lost; summaries are in single precision."""
    X, y, _ = steps
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    row, far = X[1].copy(), 3.0 + X[2]
    row[:3, 0] = far[:, 1] = np.nan
    found = model.explain([row, far]).values
    parts = [row * [1, np.nan], row * [np.nan, 1], row * np.nan, row, far]
    first, second, none, both, alone = model.predict_proba(parts)
    np.testing.assert_allclose(found[0, 0], 0.5 * (first - none + both - second), atol=1e-6)
    np.testing.assert_allclose(found[1], [alone - none, 0.0 * none], atol=1e-6)


@pytest.fixture(scope="module")
def regressor():
    """Three averaged models in units of their own, of two numbers and a category; two targets."""
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=120)
    X = np.column_stack([rng.normal(size=(120, 2)) + kind[:, None], kind])
    y = np.column_stack([np.abs(X[:, 0]) + kind, X[:, 1]]) + 0.3 * rng.normal(size=(120, 2))
    model = MixtureRegressor(
        2, density="full", categorical_features=[2], solver=LBFGS(3), init=EM(5), random_state=0
    )
    return X, model.fit(X, y)


def test_regressions_are_explained(regressor):
    X, model = regressor
    X = np.vstack([X[:2], [np.nan, *X[3, 1:]]])
    found = model.explain(X)
    assert found.output_names == ["target 0", "target 1"]
    for row, own in zip(X, found.values, strict=True):
        np.testing.assert_allclose(own, shapley(model.predict, row), atol=1e-9)
    np.testing.assert_allclose(found.values.sum(1) + found.base_values, model.predict(X))
    np.testing.assert_allclose(
        model.explain(X[:1], groups=[[0, 1, 2]]).values.sum(1), found.values[:1].sum(1), atol=1e-9
    )
    many = model.explain(X, method="permutation")
    np.testing.assert_allclose(many.values, found.values, atol=0.05)
    with pytest.raises(InvalidInputError, match="output is one of"):
        model.explain(X, "probability")


def test_features_of_regressions_are_explained(regressor):
    X, model = regressor
    odd = X[:1] + np.array([0.0, 30.0, 0.0])
    found = model.explain(odd, "log_density")
    assert found.values.shape == (1, 3)
    assert found.values.argmin() == 1
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, model.score_samples(odd))
    shift = np.log(model.model_.fitted.scaling.scale)[[0, 1]]
    by_hand = shapley(model.score_samples, np.where([True, True, False], odd[0], np.nan))
    partly = model.explain(np.where([True, True, False], odd, np.nan), "log_density").values[0]
    np.testing.assert_allclose(partly[:2] - shift, by_hand[:2], atol=1e-9)


def test_what_holes_tell_stands_in_the_base_value(rng):
    y = np.arange(300) % 2
    X = rng.normal(size=(300, 3)) + y[:, None]
    X[(rng.random(300) < 0.8) & (y == 1), 0] = np.nan
    model = MixtureClassifier(1, missingness="informative", **PLAIN).fit(X, y)
    lacking, whole = np.array([[np.nan, 0.5, 0.5]]), np.array([[0.5, 0.5, 0.5]])
    found, other = model.explain(lacking), model.explain(whole)
    assert found.base_values[0, 1] > 0.7 > other.base_values[0, 1]
    assert (found.values[0, 0] == 0).all()
    total = found.values.sum(1) + found.base_values
    np.testing.assert_allclose(total, model.predict_proba(lacking), atol=1e-12)


def test_shap_agrees(wine, wine_model):
    shap = pytest.importorskip("shap")
    background = shap.maskers.Independent(np.full((1, 9), np.nan))
    explainer = shap.ExactExplainer(wine_model.predict_proba, background)
    X = wine[0][:3, :9]
    found = wine_model.explain(X)
    assert isinstance(found, shap.Explanation)
    np.testing.assert_allclose(found.values, explainer(X).values, atol=1e-9)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"output": "logit"}, "output is one of"),
        ({"method": "kernel"}, "method is one of"),
        ({"groups": [[0, 1], [1, 2]]}, "no column two groups"),
        ({"groups": [[0], [99]]}, "no column 99"),
        ({"groups": {"a": []}}, "must have columns"),
    ],
)
def test_what_makes_no_sense_is_refused(wine, wine_model, asked, message):
    with pytest.raises(InvalidInputError, match=message):
        wine_model.explain(wine[0][:1, :9], **asked)


def test_one_class_has_no_odds_and_many_columns_no_exact_values(rng):
    X = rng.normal(size=(30, 25))
    model = MixtureClassifier(1, density="low_rank", **PLAIN).fit(X, np.zeros(30))
    assert (model.explain(X[:2, :], max_time=None, method="permutation").values == 0).all()
    with pytest.raises(InvalidInputError, match="needs classes, and the model knows 1"):
        model.explain(X[:1], "log_odds")
    with pytest.raises(InvalidInputError, match="at most 20"):
        model.explain(X[:1], method="exact")


# -- subsets -----------------------------------------------------------------------------------


def some_gaussians(n_features, n_components, generator):
    raw = torch.randn(n_components, n_features, n_features + 1, generator=generator).double()
    factor = torch.linalg.cholesky(raw @ raw.mT / n_features)
    mean = torch.randn(n_components, n_features, generator=generator).double()
    return FullGaussian(mean=mean, factor=factor, floor=1e-3)


@pytest.mark.parametrize("orders", [None, [[0, 1, 2, 3], [2, 0, 3, 1]]])
@pytest.mark.parametrize("kind", ["full", "low rank", "diagonal", "student"])
def test_log_probs_are_those_of_masked_rows(kind, orders, generator):
    density = some_gaussians(6, 3, generator)
    if kind == "diagonal":
        variance = density.covariances().diagonal(dim1=1, dim2=2)
        density = DiagonalGaussian(mean=density.mean, variance=variance, floor=1e-3)
    if kind == "low rank":
        loading = torch.randn(3, 6, 1, generator=generator).double()
        variance = density.covariances().diagonal(dim1=1, dim2=2)
        density = LowRankGaussian(mean=density.mean, diagonal=variance, loading=loading, floor=1e-3)
    if kind == "student":
        member = torch.ones(40, 2, dtype=torch.float64)
        rows = torch.randn(40, 6, generator=generator).double()
        density = Student().build(rows, member, generator)
    observed = torch.ones(4, 6, dtype=torch.bool)
    observed[:, 2] = False
    x = torch.randn(4, 6, generator=generator).double() * observed
    batch = Batch(x, observed, torch.full((4,), -1), torch.ones(4).double())
    subsets = Subsets([(0, 3), (5,), (1,), (4,)], orders and np.array(orders))
    found = log_probs(density, batch, subsets)
    by_hand = log_probs.dispatch(Density)(density, batch, subsets)
    torch.testing.assert_close(found, by_hand, rtol=1e-10, atol=1e-10)
    assert len(found) == (10 if orders else 16)


@pytest.mark.parametrize("orders", [None, [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]]])
@pytest.mark.parametrize("apart", [1.0, 100.0])
def test_sums_over_many_components_are_those_of_masked_rows(apart, orders, generator):
    """Also where no component of a class is near, and all products are zero."""
    counts, told = (30, 7), torch.rand(3, 6, generator=generator) < 0.8
    mean = apart * torch.randn(37, 6, generator=generator).double()
    weight = torch.randn(37, generator=generator).double()
    density = DiagonalGaussian(mean=mean, variance=torch.ones_like(mean), floor=1e-3)
    prior = torch.tensor([0.3, 0.7]).double().log()
    mixture = Mixture(density, weight, Layout(counts), prior)
    x = apart * torch.randn(3, 6, generator=generator).double()
    batch = Batch(x * told, told, torch.full((3,), -1), torch.ones(3).double())
    subsets = Subsets([(0, 3), (5,), (1,), (4,), (2,)], orders and np.array(orders))
    found = class_log_joints(mixture, batch, subsets)
    for kept, own in zip(subsets.columns(6), found, strict=True):
        seen = told & torch.from_numpy(kept)
        normal = torch.distributions.Normal(mean, 1.0).log_prob(x[:, None])
        joint = (
            (normal * seen[:, None]).sum(2) + weight + prior.repeat_interleave(torch.tensor(counts))
        )
        by_hand = torch.stack([part.logsumexp(1) for part in joint.split(counts, 1)], 1)
        torch.testing.assert_close(own, by_hand, rtol=1e-10, atol=1e-10)


def test_subsets_count_in_binary():
    assert all_subsets(2).tolist() == [[False, False], [True, False], [False, True], [True, True]]


def test_progress_shows_the_standard_errors(wine, wine_model, monkeypatch, clock):
    """After two pairs of orders, and then now and then, where that may take long."""
    seen, clock.tick = [], 0.5
    monkeypatch.setattr(
        Progress, "step", lambda _, record, count: seen.append((count, record["objective"]))
    )
    wine_model.explain(wine[0][:1, :9], method="permutation")
    assert [count for count, _ in seen] == [32]
    seen.clear()
    wine_model.explain(wine[0][:1, :9], method="permutation", max_time=9.0)
    assert [count for count, _ in seen] == [2, 4, 8, 12, 6]
    assert seen[-1][1] < seen[0][1]
