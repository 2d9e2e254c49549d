"""Curves of columns, and models whose class probabilities are averaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from sklearn.base import clone
from small import mean_prior

from mixtura import MixtureClassifier, load
from mixtura.data.curves import KINDS, TAMED, Curves, has_far_values
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal
from mixtura.engines import Engine
from mixtura.estimators import blending, classifier, plan
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.nn import MixtureHead
from mixtura.selection import blend
from mixtura.selection.blend import _PRIOR_ROWS, _SHARE, blend_weights
from mixtura.selection.chooser import Chooser
from mixtura.solvers import LBFGS
from mixtura.training.hybrid import Plan

SHAPES = {
    "lognormal": lambda rng, n: np.exp(1.5 * rng.normal(size=n)),
    "mirrored": lambda rng, n: -np.exp(rng.normal(size=n)),
    "zeros": lambda rng, n: np.maximum(rng.normal(size=n), 0.0),
    "counts": lambda rng, n: rng.poisson(2.0, n).astype(float),
    "heavy": lambda rng, n: rng.standard_t(2.0, n),
}


def standardized(values):
    return (values - np.nanmean(values)) / np.nanstd(values)


def learned(kind, columns, weight=None, levels=None):
    X = np.column_stack(columns)
    weight = np.ones(len(X)) if weight is None else weight
    return Curves.learn(kind, X, weight, np.zeros(X.shape[1]) if levels is None else levels), X


@pytest.fixture(scope="module")
def skewed():
    """Two classes of 200 rows, apart in the logs of two columns."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    logs = rng.normal(size=(400, 2)) @ [[1.5, 0.8], [0.0, 1.0]] + 1.6 * y[:, None] * [1, -1]
    return np.exp(logs), y


@pytest.fixture(scope="module")
def blended(skewed):
    X, y = skewed
    return MixtureClassifier(random_state=0).fit(X[:200], y[:200])


@pytest.mark.parametrize("kind", KINDS)
def test_curves_increase_and_go_back(kind, rng):
    """Also beyond the ends, for columns of every shape, and with entries missing."""
    columns = [standardized(shape(rng, 300)) for shape in SHAPES.values()]
    columns[0][:20] = np.nan
    curves, X = learned(kind, columns)
    assert (np.diff(curves.at) > 0).all()
    assert (np.diff(curves.to) > 0).all()
    wide = np.linspace(-30, 30, 200)[:, None] + np.zeros(X.shape[1])
    np.testing.assert_allclose(curves.invert(curves.apply(wide)), wide, rtol=0, atol=1e-9)
    mapped = curves.apply(X)
    assert np.isnan(mapped[:20, 0]).all()
    low, high = np.nanquantile(mapped, [0.1, 0.9], axis=0)
    assert ((high - low > 1.2) & (high - low < 3.5)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_rounding_parts_are_one_knot(kind, rng):
    x = np.exp(2.0 * rng.standard_normal(60))
    twins = np.concatenate([x, np.nextafter(x, np.inf)])
    X = ((twins - twins.mean()) / twins.std())[:, None]
    curves = Curves.learn(kind, X, np.ones(len(X)), np.array([0]))
    assert (np.diff(curves.to) > 0).all()
    values = curves.apply(X)
    np.testing.assert_allclose(curves.invert(values), X, rtol=1e-9, atol=1e-12)
    assert np.abs(curves.log_slope(values)).max() < 15.0


def test_only_far_values_are_tamed_by_ranks(rng):
    """A column whose values stay near under its power keeps the power."""
    X = np.stack([np.exp(rng.normal(size=400)), rng.normal(size=400)], axis=1)
    X[0, 1] = 1e3
    weight, levels = np.ones(400), np.zeros(2, dtype=int)
    power, ranks, tamed = (Curves.learn(k, X, weight, levels).apply(X) for k in (*KINDS, TAMED))
    np.testing.assert_allclose(tamed, np.stack([power[:, 0], ranks[:, 1]], axis=1), atol=1e-12)
    assert power[0, 1] > 100
    assert abs(tamed).max() < 5
    flipped = Curves.learn(TAMED, -X, weight, levels).apply(-X)
    assert abs(flipped).max() < 5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_lies_far_out(sign, rng):
    """By quartiles; neither categories nor columns that mostly hold one value are asked."""
    X = rng.normal(size=(300, 2))
    weight, levels = np.ones(300), np.array([0, 0])
    assert not has_far_values(X, weight, levels)
    X[3, 1] = sign * 30.0
    assert has_far_values(X, weight, levels)
    assert not has_far_values(X, weight, np.array([0, 5]))
    assert not has_far_values(X, np.where(X[:, 1] == X[3, 1], 0.0, 1.0), levels)
    assert not has_far_values(np.where(np.arange(300)[:, None] < 290, 0.0, X), weight, levels)


def test_ranks_of_values_that_hardly_weigh(rng):
    X = rng.standard_normal((17, 1))
    weight = np.where(X[:, 0] == X.max(), 1e-20, 1.0)
    curves = Curves.learn("ranks", X, weight, np.array([0]))
    assert np.isfinite(curves.to).all()
    assert (np.diff(curves.to) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_are_derivatives(kind, rng):
    curves, _ = learned(kind, [standardized(shape(rng, 300)) for shape in SHAPES.values()])
    at = rng.uniform(-4, 4, (50, len(SHAPES)))
    step = 1e-7
    numeric = (curves.apply(at + step) - curves.apply(at - step)) / (2 * step)
    found = np.exp(curves.log_slope(curves.apply(at)))
    assert np.mean(np.isclose(found, numeric, rtol=1e-4)) > 0.98  # but for steps across a knot


def test_the_slope_at_a_knot_does_not_hang_on_rounding(rng):
    curves = Curves.learn("ranks", rng.exponential(size=(60, 1)), np.ones(60), np.zeros(1))
    knots = curves.to.T
    before, after = (curves.log_slope(np.nextafter(knots, end)) for end in (-np.inf, np.inf))
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(
        before[1:, 0], np.log(np.diff(knots[:, 0]) / np.diff(curves.at[0]))
    )
    np.testing.assert_array_equal(curves.log_slope(knots.astype(np.float32)), before)


@pytest.mark.parametrize(("kind", "bound"), [("power", 0.5), ("ranks", 0.2)])
def test_values_become_more_gaussian(kind, bound, rng):
    """Skewness is all but gone where it was large."""
    columns = [standardized(SHAPES[name](rng, 500)) for name in ("lognormal", "mirrored")]
    curves, X = learned(kind, columns)
    assert (np.abs(stats.skew(X)) > 2).all()
    assert (np.abs(stats.skew(curves.apply(X))) < bound).all()


def test_power_leaves_gaussian_columns_alone(rng):
    curves, _ = learned("power", [standardized(rng.normal(size=400))])
    slopes = np.diff(curves.to) / np.diff(curves.at)
    np.testing.assert_allclose(slopes, slopes[0, 0], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_repetitions(kind, rng):
    values, weight = standardized(rng.gamma(1.0, size=60)), rng.integers(0, 4, 60)
    weighed, _ = learned(kind, [values], weight.astype(float))
    repeated, _ = learned(kind, [np.repeat(values, weight)])
    np.testing.assert_allclose(weighed.at, repeated.at, atol=1e-12)
    np.testing.assert_allclose(weighed.to, repeated.to, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_categories_constants_and_nothing_stay(kind):
    columns = [np.arange(9.0) % 3, np.full(9, 7.0), np.full(9, np.nan), np.arange(9.0) % 2]
    curves, X = learned(kind, columns, levels=np.array([3, 0, 0, 0]))
    np.testing.assert_array_equal(curves.apply(X), X)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one(kind, skewed):
    """In the units of X; those of a row with a hole over what is left."""
    X, y = skewed
    model = MixtureClassifier(2, density="full", marginals=kind, random_state=0).fit(X, y)
    assert model.marginals_ == (kind,)

    def density(*point):
        return float(np.exp(model.score_samples(np.array([point]))[0]))

    logs = np.linspace(-18, 18, 20_001)
    grid = np.concatenate([-np.exp(logs[::-1]), np.exp(logs)])
    rows = np.column_stack([grid, np.full(len(grid), np.nan)])
    total = integrate.trapezoid(np.exp(model.score_samples(rows)), grid)
    assert total == pytest.approx(1.0, abs=2e-3)
    inner = np.column_stack([np.full(len(grid), 2.0), grid])
    marginal = integrate.trapezoid(np.exp(model.score_samples(inner)), grid)
    assert marginal == pytest.approx(density(2.0, np.nan), rel=5e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_rows(kind, skewed):
    """Quantiles of draws are those of the rows, by a test that Gaussians in X fail."""
    X, y = skewed
    settings = {"n_components": 1, "density": "full", "objective": "likelihood", "random_state": 0}
    curved = MixtureClassifier(marginals=kind, **settings).fit(X, y).sample(400)[0]
    plain = MixtureClassifier(**settings).fit(X, y).sample(400)[0]
    assert stats.ks_2samp(curved[:, 0], X[:, 0]).pvalue > 0.01
    assert stats.ks_2samp(plain[:, 0], X[:, 0]).pvalue < 1e-6
    filled = MixtureClassifier(marginals=kind, **settings).fit(X, y).impute([[np.nan, 1.0]])
    assert X[:, 0].min() < filled[0, 0] < X[:, 0].max()


def test_covariances_are_linearized_at_the_means(skewed):
    X, y = skewed
    model = MixtureClassifier(1, density=Diagonal(), marginals="power", random_state=0).fit(X, y)
    scaling, step = model.scaling_, 1e-6
    at = model.mixture_.density.location.numpy()
    slope = (scaling.invert(at + step) - scaling.invert(at - step)) / (2 * step)
    inner = model.mixture_.density.covariances().numpy()
    expected = inner * slope[:, :, None] * slope[:, None, :]
    np.testing.assert_allclose(model.covariances_, expected, rtol=1e-4)


def test_a_head_takes_no_curves(skewed):
    X, y = skewed
    settings = {"density": "full", "missingness": "ignore", "random_state": 0}
    with pytest.raises(UnsupportedError, match="marginals='linear'"):
        MixtureHead.from_mixture(MixtureClassifier(1, marginals="ranks", **settings).fit(X, y))


def test_weights_predict_best(rng):
    """Against a general minimizer of the same sum, over the simplex."""
    own, weight = rng.uniform(0.01, 1.0, (3, 80)), rng.uniform(0.5, 2.0, 80)
    own[1] *= 1.3
    share = weight / weight.sum() * 40
    prior = np.prod(own ** (_SHARE * share), axis=1)  # each by itself, of a small part of the rows
    prior /= prior.sum()
    assert prior.max() > 1.1 * prior.min()

    def loss(point):
        found = np.exp(point - np.logaddexp.reduce(point))
        return -share @ np.log(found @ own) - _PRIOR_ROWS * prior @ np.log(found)

    best = optimize.minimize(loss, np.zeros(3), tol=1e-12).x
    best = np.exp(best - np.logaddexp.reduce(best))
    np.testing.assert_allclose(blend_weights(np.log(own), weight), best, atol=1e-4)


def test_class_probabilities_are_averages(blended, skewed):
    """Of what the members say, by their weights, and then calibrated; rows of nothing get the
    average of the priors."""
    X, _ = skewed
    rows = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    model, blend = blended.model_, blended.model_.blend
    others = ("power", "ranks", "indicators", "quadratic", "leaves", "kernels")
    assert blended.marginals_ == ("linear", *others)
    assert blend.weights.sum() == pytest.approx(1.0)
    joint, missing = 0.0, torch.from_numpy(np.isnan(rows).mean(1))
    for member, weight in zip((model, *blend.members), blend.weights, strict=True):
        matrix = blended._rows(rows)
        own = torch.from_numpy(member.class_log_joint(member.engine(matrix, "cpu")))
        joint = joint + weight * member.calibration.log_proba(own, missing).exp()
    expected = blend.calibration.log_proba(joint.log(), missing).exp().numpy()
    seen = ~np.isnan(rows).all(1)
    np.testing.assert_allclose(blended.predict_proba(rows)[seen], expected[seen], atol=1e-9)
    nothing = np.full((1, 2), np.nan)
    expected = mean_prior(blended)
    np.testing.assert_allclose(blended.predict_proba(nothing)[0], expected)
    np.testing.assert_allclose(blended.predict_proba(nothing.repeat(20, 0))[0], expected)


@pytest.mark.parametrize("n_columns", [1, 4])
@pytest.mark.parametrize(("share", "more"), [(0.0, True), (0.15, True), (0.25, False)])
def test_rows_that_lack_much_have_no_more_components(share, more, n_columns, rng, monkeypatch):
    """They cost much there, and gain nothing; of a sample of many rows that is not known."""
    X, y, met = rng.normal(size=(240, n_columns)), np.arange(240) % 2, []
    holes = (rng.permutation(X.size) < share * X.size).reshape(X.shape)
    X = np.where(holes, np.nan, X + 2.0 * y[:, None])
    monkeypatch.setattr(classifier, "try_beside", lambda *given: met.append(given) or [])
    model = MixtureClassifier(random_state=0).fit(X, y)
    ((decision, (power, *_)),) = met
    least = sum(decision.chooser.runner_up("density").models[0].model.layout.counts)
    assert power.name == "power"
    assert (sum(power.counts) > least) == more
    (sampled,) = plan.ways_beside(model, replace(decision, saw_all=False), ["power"])
    assert sum(sampled.counts) > least
    (given,) = plan.ways_beside(clone(model).set_params(n_components=1), decision, ["power"])
    assert sum(given.counts) == least


def test_rows_of_nothing_get_about_the_class_frequencies():
    """Margins move the prior of a model; the average of several keeps nearer to what is true."""
    y = (np.arange(300) % 10 == 0).astype(int)
    X = np.random.default_rng(0).normal(size=(300, 3)) + 0.5 * y[:, None]
    model = MixtureClassifier(random_state=0).fit(X, y)
    found, share = model.predict_proba(np.full((1, 3), np.nan))[0], np.array([0.9, 0.1])
    assert stats.entropy(share, found) < 0.25 * stats.entropy(share, model.class_prior_)


def test_what_was_averaged_comes_back_from_a_file(blended, skewed, tmp_path):
    blended.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(skewed[0]), blended.predict_proba(skewed[0]))
    assert again.marginals_ == blended.marginals_


def test_curves_help_where_columns_are_skewed(blended, skewed):
    """And what is not a class probability is left as it is without them."""
    X, y = skewed
    plain = MixtureClassifier(marginals="linear", random_state=0).fit(X[:200], y[:200])
    losses = [
        -np.log(each.predict_proba(X[200:])[np.arange(200), y[200:]]).mean()
        for each in (plain, blended)
    ]
    assert losses[1] < losses[0] - 0.02
    np.testing.assert_array_equal(plain.score_samples(X), blended.score_samples(X))
    np.testing.assert_array_equal(plain.means_, blended.means_)


def test_calibration_may_be_left_out(skewed):
    X, y = skewed
    settings = {"calibrate": False, "solver": LBFGS(3), "random_state": 0}
    model = MixtureClassifier(**settings).fit(X[:100], y[:100])
    members = (model.model_, *model.model_.blend.members)
    assert {each.calibration.temperature for each in members} == {1.0}
    assert model.model_.blend.calibration.temperature == 1.0


def test_few_labels_have_equal_weights(skewed):
    """Held-out rows decide nothing there."""
    X, y = skewed
    model = MixtureClassifier(random_state=0).fit(X[:7], y[:7])
    np.testing.assert_allclose(model.model_.blend.weights, 1 / 4)


def test_training_that_goes_on_is_one_model(skewed):
    X, y = skewed
    brief = {"solver": LBFGS(3), "random_state": 0}
    stream = MixtureClassifier(**brief).partial_fit(X[:60], y[:60], classes=[0, 1])
    assert stream.marginals_ == ("linear",)
    assert stream.model_.blend is None
    warm = MixtureClassifier(warm_start=True, **brief).fit(X[:60], y[:60])
    assert warm.model_.blend is None


def test_training_goes_on_under_the_curves_it_began_with(skewed):
    X, y = skewed
    model = MixtureClassifier(1, objective="likelihood", marginals="ranks", density=Diagonal())
    model.fit(X[:60], y[:60]).set_params(marginals="auto", warm_start=True).fit(X[:60], y[:60])
    assert model.marginals_ == ("ranks",)
    assert model.partial_fit(X[:60], y[:60]).marginals_ == ("ranks",)
    assert model.scaling_.curves is not None
    with pytest.raises(InvalidInputError, match="marginals of the previous fit"):
        model.set_params(marginals="power").fit(X[:60], y[:60])


def test_of_many_rows_the_first_model_is_that_of_the_best_curves(monkeypatch):
    """All are weighed by rows that none of them learned from, where the first one held out some."""
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    logs = 1.5 * rng.normal(size=(4000, 2)) + 1.2 * y[:, None]
    learned, weighed = [], []

    def train(plan, engine, *args, own=Plan.train, **options):
        learned.append(len(engine))
        return own(plan, engine, *args, **options)

    def weigh(answers, own=blend.blend_answers):
        weighed.append([each.y for each in answers])
        return own(answers)

    monkeypatch.setattr(Plan, "train", train)
    monkeypatch.setattr(blend, "blend_answers", weigh)
    for X, kinds in ((np.exp(logs), {"power", "ranks"}), (logs, {"linear"})):
        model = MixtureClassifier(1, solver=LBFGS(3, early_stopping=True), random_state=0)
        model.fit(X, y)
        assert model.marginals_[0] in kinds
        assert len(model.marginals_) == len(set(model.marginals_)) >= 3
        assert learned[-len(model.marginals_) :] == [3600] * len(model.marginals_)
        assert {len(labels) for labels in weighed[-1]} == {2 * 400}  # whole, and with holes
        assert model.score(X, y) > 0.70  # the best rule has 0.714


def test_of_very_many_rows_equals_are_left_out(monkeypatch):
    monkeypatch.setattr(blending, "_LARGE", 3500)
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = 1.5 * rng.normal(size=(4000, 2)) + 1.2 * y[:, None]
    model = MixtureClassifier(solver=LBFGS(3), random_state=0).fit(X, y)
    assert model.marginals_ == ("linear", "ranks", "additive")  # and no pairs of indicators
    assert [row["chosen"] for row in model.choice_ if row["marginals"] == "power"] == [False]


def test_models_with_hardly_a_say_are_left_out(monkeypatch, rng):
    """And files and predictions know nothing of them."""
    X = np.exp(rng.normal(size=(300, 3)))
    y = (np.log(X).sum(1) > 0.0).astype(int)
    monkeypatch.setattr(blend, "_LITTLE", 0.0)
    every = MixtureClassifier(random_state=0).fit(X, y)
    weights = dict(zip(every.marginals_, every.model_.blend.weights, strict=True))
    monkeypatch.setattr(blend, "_LITTLE", 0.1)
    model = MixtureClassifier(random_state=0).fit(X, y)
    kept = {kind: each for kind, each in weights.items() if each >= 0.1 or kind == "linear"}
    assert 1 < len(kept) < len(weights)
    assert model.marginals_ == tuple(kept)
    found = model.model_.blend.weights
    np.testing.assert_allclose(found, np.array([*kept.values()]) / sum(kept.values()))
    rows = [row for row in model.choice_ if row["question"] == "marginals"]
    assert {row["marginals"] for row in rows if row["chosen"]} == {*kept} - {"linear"}
    assert model.predict_set(X, 0.9).mean(0).sum() == pytest.approx(1.0, abs=0.2)


def test_models_without_a_say_on_a_sample_do_not_learn_from_all_rows(monkeypatch):
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = 1.5 * rng.normal(size=(4000, 2)) + 1.2 * y[:, None]
    learned = []

    def train(plan, engine, *args, own=Plan.train, **options):
        learned.append(plan.name)
        return own(plan, engine, *args, **options)

    monkeypatch.setattr(Plan, "train", train)
    monkeypatch.setattr(blend, "_LITTLE", 1.0)  # but one always has
    model = MixtureClassifier(solver=LBFGS(3), random_state=0).fit(X, y)
    assert (*learned,) == model.marginals_
    assert len(learned) == 2 < sum(row["question"] == "marginals" for row in model.choice_)


def test_a_model_beside_has_more_components(monkeypatch):
    """Where a ring lies around a class, one component per class is too few for both."""
    monkeypatch.setattr(blend, "_LITTLE", 0.0)  # all stay
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    angle, far = rng.uniform(0, 2 * np.pi, 80), 0.3 * rng.normal(size=80) + 2.0 * y
    X = np.column_stack([far * np.cos(angle), far * np.sin(angle)])
    model = MixtureClassifier(solver=LBFGS(3), random_state=0).fit(X, y)
    more, *others = (each.mixture.n_components for each in model.model_.blend.members)
    assert more > model.mixture_.n_components
    assert others == [2, 2, 82]  # the last is one of kernels: all rows, and a broad one per class
    named = MixtureClassifier(2, solver=LBFGS(3), random_state=0).fit(X, y)
    counts = [each.mixture.layout.counts for each in named.model_.blend.members]
    assert counts == [(2, 2), (2, 2), (1, 1)]


def test_averages_in_float32_see_past_an_outlier(rng):
    """In float32 and straight units the outlier leaves other values no digits; ranks see them."""
    X = rng.standard_normal((100, 1)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    X[0] = 1e12
    model = MixtureClassifier(random_state=0).fit(X, y)
    log_proba = [model.predict_log_proba(X.astype(dtype)) for dtype in (np.float32, np.float64)]
    np.testing.assert_allclose(*log_proba, rtol=0, atol=1e-3)


def test_other_units_stay_finite():
    scaling = Scaling(np.zeros(1), np.ones(1))
    steep = Curves(np.array([[0.0, 1.0]]), np.array([[0.0, 1e30]]))
    X = np.array([[1.0], [1e9], [-1e9]])
    engine = Engine(X, scaling=scaling, device=torch.device("cpu"), dtype=torch.float32)
    x = engine.under(replace(scaling, curves=steep)).batch(slice(3)).x
    assert torch.isfinite(x.square()).all()


def test_models_that_were_not_tried_have_no_say(skewed):
    """Time is up at once: there is no evidence for them."""
    X, y = skewed
    model = MixtureClassifier(max_time=1e-6, random_state=0).fit(X[:60], y[:60])
    assert model.marginals_ == ("linear",)


def test_models_that_met_too_few_rows_have_no_say(skewed, monkeypatch):
    """Time is up once they have met the first fold: the first model has met all."""

    def in_time(chooser):
        latest = chooser._entered[-1]
        return latest.question != "marginals" or not latest.parts

    monkeypatch.setattr(Chooser, "in_time", in_time)
    monkeypatch.setattr("mixtura.selection.chooser._SMALL", 0)
    X, y = skewed
    model = MixtureClassifier(1, solver=LBFGS(max_iter=3), random_state=0)
    model.fit(X[:24, :1], y[:24])
    assert model.marginals_ == ("linear",)
    tried = [row for row in model.choice_ if row["question"] == "marginals"]
    assert tried
    assert not any(row["chosen"] for row in tried)


def test_units_and_names_do_not_matter(skewed):
    """Averages of five models see the same rows in other units, and classes by other names."""
    X, y = skewed[0][:100], skewed[1][:100]
    brief = {"solver": LBFGS(3), "random_state": 0}
    plain = MixtureClassifier(**brief).fit(X, y).predict_proba(X)
    other = X * [1e-6, 1e4] + [1e-7, 3.0]
    named = MixtureClassifier(**brief).fit(other, np.array(["no", "yes"])[y])
    assert len(named.marginals_) == 5
    np.testing.assert_allclose(named.predict_proba(other), plain, atol=1e-8)


def test_of_many_rows_units_names_and_files_do_not_matter(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = rng.gamma(2.0, size=(4000, 2)) * (1.0 + y[:, None])
    model = MixtureClassifier(1, solver=LBFGS(3, early_stopping=True), random_state=0).fit(X, y)
    proba, nothing = model.predict_proba(X[:50]), np.full((1, 2), np.nan)
    again = clone(model).fit(1024.0 * X, np.array(["a", "b"])[y])
    np.testing.assert_array_equal(again.predict_proba(1024.0 * X[:50]), proba)
    np.testing.assert_allclose(model.predict_proba(nothing)[0], mean_prior(model), 1e-9)
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "model.safetensors").predict_proba(X[:50]), proba)


def test_models_of_many_rows_go_on_where_they_have_a_say(rng, monkeypatch):
    """Of those beside the first, the one with least say by held-out rows stays as it began."""
    weigh, train, shares, iterations = blending._weighed, blending._trained, [], {}

    def weighed(first, others, *given):
        say = weigh(first, others, *given)
        names = [trial.way.name for _, trial in others]
        found = dict(zip(names, say.weights[1:], strict=True))
        monkeypatch.setattr(blending, "_SOME", sorted(found.values())[1])
        shares.append(found)
        return say

    def trained(trial, *given):
        *_, count, _, _ = given
        iterations.setdefault(trial.way.name, []).append(count)
        return train(trial, *given)

    monkeypatch.setattr(blending, "_weighed", weighed)
    monkeypatch.setattr(blending, "_trained", trained)
    X = rng.normal(size=(3_300, 3))
    MixtureClassifier(random_state=0).fit(X, X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=3_300) > 0.0)
    least = min(shares[0], key=shares[0].get)
    assert [len(each) > 1 for each in shares] == [True, True]
    assert iterations.pop(least) == [10]
    assert iterations.pop("rules", [10]) == [10]  # they have seen all rows, which are few
    assert all(counts == [10, 30] for counts in iterations.values())
