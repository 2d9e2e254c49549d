"""MixtureRegressor: distributions of targets given features."""

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal, norm
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import OneHotEncoder

from mixtura import MixtureNetworkRegressor, MixtureRegressor, load
from mixtura.data.batch import Batch
from mixtura.data.indicators import Indicators
from mixtura.data.targets import beside_features, with_punched_features
from mixtura.densities import Full, FullGaussian, LowRank
from mixtura.engines import Contrast
from mixtura.estimators import regressor
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.models.regression import conditional, log_conditional
from mixtura.predictive import Predictive, log_normal_below
from mixtura.selection import chooser
from mixtura.solvers import EM, LBFGS, LinkedEM

pd = pytest.importorskip("pandas")

BRIEF = {"solver": LBFGS(5), "init": EM(10, 0.1), "random_state": 0}


def draw(n_rows, seed=0, share=0.0):
    """A kink, a slope, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    y = 2.0 * np.abs(X[:, 0]) + X[:, 1] + 0.4 * rng.normal(size=n_rows)
    return np.where(rng.random(X.shape) < share, np.nan, X), 10.0 + 5.0 * y


@pytest.fixture(scope="module")
def model():
    return MixtureRegressor(4, marginals="linear", density="full", random_state=0).fit(*draw(300))


@pytest.fixture(scope="module")
def averaged():
    """Mixtures in three kinds of units."""
    return MixtureRegressor(2, density="full", **BRIEF).fit(*draw(120))


@pytest.fixture(scope="module")
def several():
    """Two targets that are correlated given the features."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = X @ [[1.0, 0.0], [0.0, 2.0]] + rng.normal(size=(150, 2)) @ [[1.0, 0.8], [0.0, 0.6]]
    y[:20, 0] = np.nan
    return MixtureRegressor(1, marginals="linear", density=Full(1e-6), random_state=0).fit(X, y)


def gaussians(rng, n_components=3, size=4):
    """A mixture, and its means, covariances and weights."""
    mean = rng.normal(size=(n_components, size))
    factor = np.tril(rng.normal(size=(n_components, size, size)), -1) + np.eye(size)
    density = FullGaussian(mean=torch.from_numpy(mean), factor=torch.from_numpy(factor), floor=1e-6)
    return Mixture.single(density), mean, factor @ factor.transpose(0, 2, 1)


def batch_of(values):
    x = torch.from_numpy(values)
    seen = ~x.isnan()
    return Batch(x.nan_to_num(), seen, torch.full((len(x),), -1), torch.ones(len(x)).double())


def test_components_given_features_are_those_of_the_textbook():
    """By hand: means, variances and weights of each component given what is observed."""
    rng = np.random.default_rng(0)
    mixture, mean, covariance = gaussians(rng)
    values = rng.normal(size=(6, 4))
    values[1, 0] = values[2, :2] = values[3, :3] = np.nan
    found = conditional(mixture, batch_of(values), 1).numpy()
    for row, (share, center, log_deviation) in zip(values, found.transpose(0, 2, 1), strict=True):
        o = np.flatnonzero(~np.isnan(row[:3]))
        density = [
            multivariate_normal(m[o], c[np.ix_(o, o)]).pdf(row[o]) if len(o) else 1.0
            for m, c in zip(mean, covariance, strict=True)
        ]
        np.testing.assert_allclose(np.exp(share), density / np.sum(density), rtol=1e-9)
        for k, (m, c) in enumerate(zip(mean, covariance, strict=True)):
            slope = np.linalg.solve(c[np.ix_(o, o)], c[o, 3])
            np.testing.assert_allclose(center[k], m[3] + slope @ (row[o] - m[o]), rtol=1e-9)
            variance = c[3, 3] - slope @ c[o, 3]
            np.testing.assert_allclose(np.exp(2 * log_deviation[k]), variance, rtol=1e-8)


def test_weights_of_copies_make_the_likelihood_conditional():
    """Half of log p(x, y) and half of log p(y | x), by rows beside copies of negative weight."""
    mixture, _, _ = gaussians(np.random.default_rng(1))
    batch = batch_of(np.random.default_rng(2).normal(size=(5, 4)))
    both = beside_features(batch, 2, 0.5)
    found = (mixture.outputs(both)[:, 0] * both.weight).sum()
    wanted = 0.5 * mixture.outputs(batch)[:, 0] + 0.5 * log_conditional(mixture, batch, 2)
    torch.testing.assert_close(found, wanted.sum())


def test_the_tradeoff_is_per_observed_value(monkeypatch):
    """t log p(x, y) / V + (1 - t) log p(y | x) in rows of V values; the weights add up to one."""
    shares = []

    def contrast(n_targets, share):
        shares.append(share)
        return Contrast(n_targets, share)

    monkeypatch.setattr("mixtura.training.joint.Contrast", contrast)
    X, y = draw(40, share=0.3)
    MixtureRegressor(2, density="diag", marginals="linear", tradeoff=0.3, **BRIEF).fit(X, y)
    n_values = 1.0 + (~np.isnan(X)).sum() / 40
    assert shares[-1] == pytest.approx(0.3 / n_values / (0.3 / n_values + 0.7))


def test_holes_leave_targets_alone():
    batch = batch_of(np.random.default_rng(0).normal(size=(50, 4)))
    both = with_punched_features(batch, 0.5, torch.Generator().manual_seed(0), 1)
    assert both.observed[:, 3].all()
    assert not both.observed[50:, :3].all()
    torch.testing.assert_close(both.x[50:, 3], batch.x[:, 3])


def test_quantiles_and_tails_are_those_of_the_mixture():
    share = np.log([[0.2, 0.8], [1e-9, 1.0 - 1e-9], [0.5, 0.5]])
    mean, deviation = np.array([[0.0, 5.0]] * 3)[..., None], np.array([[1.0, 0.1]] * 3)[..., None]
    found = Predictive(share, mean, deviation)
    for tail in (0.5, 0.05, 1e-12):
        for upper in (False, True):
            at = found.beyond(np.full((3, 1), np.log(tail)), upper)
            side = norm.sf if upper else norm.cdf
            chance = np.exp(share) * side(at, mean[..., 0], deviation[..., 0])
            np.testing.assert_allclose(chance.sum(1), tail, rtol=1e-6)
    assert found.expected()[2] == pytest.approx(2.5)
    assert found.std()[2, 0] == pytest.approx(np.sqrt(0.505 + 6.25))


def test_chances_of_a_normal_are_those_of_scipy():
    off = np.append(np.linspace(-60.0, 60.0, 2_401), [-1e8, -1e3, 1e5])
    np.testing.assert_allclose(log_normal_below(off), log_ndtr(off), 1e-10, 1e-300)


def test_one_full_component_is_linear_regression():
    X, y = draw(100)
    model = MixtureRegressor(1, density=Full(1e-9), marginals="linear", random_state=0).fit(X, y)
    line = LinearRegression().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, line.predict(X), rtol=1e-8)
    np.testing.assert_allclose(std, np.std(y - line.predict(X)), rtol=1e-8)


def test_density_integrates_to_one_and_has_the_moments_it_says(averaged):
    X = draw(1, 5)[0]
    X[0, 1] = np.nan

    mean, std = (each[0] for each in averaged.predict(X, return_std=True))
    grid = np.linspace(mean - 10 * std, mean + 10 * std, 2_001)
    density = np.exp(averaged.score_samples(np.repeat(X, len(grid), 0), grid))
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1.0, abs=1e-6)
    assert density @ grid * step == pytest.approx(mean, abs=1e-4)
    assert density @ (grid - mean) ** 2 * step == pytest.approx(std**2, rel=1e-4)
    quantile = averaged.predict_quantiles(X, [0.2])[0, 0]
    assert np.interp(quantile, grid, density.cumsum() * step) == pytest.approx(0.2, abs=1e-2)


def test_missing_features_are_integrated_out(model):
    """p(y | x1, x2) is the mean of p(y | x) over x3 given the others, by a grid."""
    X, y = draw(1, 7)
    grid = np.linspace(-8, 8, 2_001)
    many = np.repeat(X, len(grid), 0)
    many[:, 2] = grid
    X[0, 2] = np.nan
    mixture, scaling = model.model_.fitted.mixture, model.model_.fitted.scaling
    values = scaling.apply(np.column_stack([many, np.full(len(grid), y[0])]))
    joint = mixture.outputs(batch_of(values)).exp().sum().item()
    values[:, 3] = np.nan
    found = joint / mixture.outputs(batch_of(values)).exp().sum().item() / scaling.scale[3]
    assert model.score_samples(X, y)[0] == pytest.approx(np.log(found), abs=1e-6)


def test_a_kink_is_learned(model):
    X, y = draw(2_000, 1)
    line = LinearRegression().fit(*draw(300))
    assert model.score(X, y) > 0.8 > 0.6 > line.score(X, y)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_intervals_cover_whatever_is_missing(model, share):
    """Standard deviation over 200 held-back rows: 0.021, and 0.01 over 800 new ones."""
    X, y = draw(800, 1, share)
    lower, upper = model.predict_interval(X).T
    assert 0.85 <= np.mean((y >= lower) & (y <= upper)) <= 0.95
    within = model.predict_interval(X, 0.5)
    assert (within[:, 0] >= lower).all()
    assert (within[:, 1] <= upper).all()


def test_ends_of_intervals():
    """The definition: so many of the rows that are gone by lie as far out, or farther."""
    X, y = draw(100)
    model = MixtureRegressor(1, density="full", marginals="linear", **BRIEF).fit(X, y)
    new, own = draw(99, 3)
    mean, std = model.predict(new, return_std=True)
    farthest = np.sort(np.abs(own - mean) / std[0])[-9]
    found = model.predict_interval(new[:5], 0.905, calibration=(new, own))
    np.testing.assert_allclose(found[:, 1] - mean[:5], farthest * std[0], rtol=1e-6)
    np.testing.assert_allclose(mean[:5] - found[:, 0], farthest * std[0], rtol=1e-6)
    assert np.isinf(model.predict_interval(new, 1.0)).all()
    assert np.isinf(model.predict_interval(new, 0.9, calibration=(new[:8], own[:8]))).all()
    np.testing.assert_allclose(model.predict_interval(new, 0.0)[:, 1], mean, rtol=1e-6)


def test_intervals_of_networks_cover_too(tmp_path):
    """By networks of the folds; rows that lack the same entries have intervals of one width."""
    quick = {"init": EM(5, 0.01), "solver": LinkedEM(5), "random_state": 0}
    model = MixtureNetworkRegressor(4, **quick).fit(*draw(120))
    X, y = draw(300, 1)
    X[:100, 1] = np.nan
    interval = model.predict_interval(X, 0.8)
    assert 0.7 <= np.mean((y >= interval[:, 0]) & (y <= interval[:, 1])) <= 0.9
    np.testing.assert_allclose(interval.mean(1), model.predict(X), rtol=1e-9)
    width = np.diff(interval)[:, 0]
    np.testing.assert_allclose(width[:100], width[0])
    np.testing.assert_allclose(width[100:], width[100])
    assert width[0] > width[100]
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_interval(X, 0.8), interval)
    whole, own = draw(99, 3)
    farthest = np.sort(np.abs(own - model.predict(whole)))[-9]
    found = model.predict_interval(whole, 0.905, calibration=(whole, own))
    np.testing.assert_allclose(np.diff(found)[:, 0], 2 * farthest, rtol=1e-9)
    assert np.isinf(model.predict_interval(X[:2], 1.0)).all()


def test_draws_are_of_the_predicted_distribution(averaged):
    X = draw(3, 5, 0.3)[0]
    drawn = averaged.sample(X, 4_000, random_state=0)
    assert drawn.shape == (4_000, 3)
    mean, std = averaged.predict(X, return_std=True)
    np.testing.assert_array_less(np.abs(drawn.mean(0) - mean), 4.0 * std / np.sqrt(4_000))
    quantiles = averaged.predict_quantiles(X, [0.1, 0.9])
    np.testing.assert_allclose((drawn < quantiles[:, 0]).mean(0), 0.1, atol=0.02)
    np.testing.assert_allclose((drawn < quantiles[:, 1]).mean(0), 0.9, atol=0.02)


def test_several_targets_at_once(several):
    """Jointly, and given each other's rows: some lack the first target."""
    X = np.array([[1.0, -1.0], [np.nan, 0.5]])
    mean, std = several.predict(X, return_std=True)
    np.testing.assert_allclose(mean[0], [1.0, -2.0], atol=0.3)
    np.testing.assert_allclose(std[0], 1.0, atol=0.2)
    covariance = np.cov(several.sample(X[:1], 4_000, random_state=0)[:, 0].T)
    joint = multivariate_normal(mean[0], covariance).logpdf([1.5, -1.0])
    assert several.score_samples(X[:1], [[1.5, -1.0]])[0] == pytest.approx(joint, abs=0.1)
    second = norm(mean[0, 1], std[0, 1]).logpdf(-1.0)
    assert several.score_samples(X[:1], [[np.nan, -1.0]])[0] == pytest.approx(second)
    assert several.predict_quantiles(X).shape == (2, 2, 3)
    assert several.predict_interval(X).shape == (2, 2, 2)
    assert several.score(X, mean + 0.1) < 1.0


def test_categories_shift_targets(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": rng.choice(["a", "b", "c"], 120), "x": rng.normal(size=120)})
    shift = frame["kind"].map({"a": 0.0, "b": 5.0, "c": -5.0})
    frame.loc[:10, "kind"] = None
    model = MixtureRegressor(1, marginals="linear", **BRIEF).fit(frame, shift + frame["x"])
    rows = pd.DataFrame({"kind": ["a", "b", "c", None], "x": [1.0, 1.0, 1.0, 1.0]})
    np.testing.assert_allclose(model.predict(rows)[:3], [1.0, 6.0, -4.0], atol=0.3)
    std = model.predict(rows, return_std=True)[1]
    assert std[3] > 5.0 * std[:3].max()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_interval(rows), model.predict_interval(rows))
    with pytest.warns(UserWarning, match="kind"):
        assert model.predict(rows.assign(kind="z"))[0] == pytest.approx(model.predict(rows)[3])


def test_rare_categories_have_no_indicator():
    """They count as one, not as the most frequent category."""
    codes, count = np.arange(30.0)[:, None], np.arange(60, 30, -1)
    found = Indicators.learn(codes, count, np.array([30]))
    repeated = codes.repeat(count, 0)
    again = Indicators.learn(repeated, np.ones(len(repeated)), np.array([30]))
    np.testing.assert_array_equal(again.knot, found.knot)
    np.testing.assert_array_equal(found.knot, np.arange(20))
    encoder = OneHotEncoder(max_categories=21, sparse_output=False).fit(repeated)
    np.testing.assert_array_equal(found.apply(codes), encoder.transform(codes)[:, :20])
    np.testing.assert_array_equal(found.categories(0), np.arange(21))
    assert np.isnan(found.apply(np.array([[np.nan]]))).all()


def test_what_was_compared_is_told(averaged):
    table = averaged.choice_
    assert {row["marginals"] for row in table} == {"linear", "ranks", "power"}
    assert sum(row["weight"] for row in table) == pytest.approx(1.0)
    kept = sum(row["chosen"] for row in table)
    assert kept == 1 + len(averaged.model_.fitted.blend.members)


def test_few_rows_and_wide_ones():
    """Five rows, and fewer rows than features: something finite, near the data."""
    X, y = draw(5)
    model = MixtureRegressor(random_state=0).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(UnsupportedError, match="calibration"):
        model.predict_interval(X)
    one = MixtureRegressor(random_state=0).fit(X[:1], y[:1])
    np.testing.assert_allclose(one.predict(X), y[0])
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(30, 70))
    model = MixtureRegressor(**BRIEF).fit(wide, wide[:, 0])
    assert np.abs(model.predict(wide)).max() < 5.0


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
def test_constant_columns_and_targets():
    X, y = draw(60)
    X[:, 1] = 3.0
    model = MixtureRegressor(1, marginals="linear", **BRIEF).fit(X.astype(np.float32), y)
    assert np.isfinite(model.predict(X)).all()
    model.fit(X, np.full(60, 7.0))
    np.testing.assert_allclose(model.predict(X), 7.0)
    for constant in (np.zeros(60), np.where(np.arange(60) % 2, 0.3, 0.1 + 0.2)):
        with pytest.warns(DegenerateDataWarning, match="target 0"):
            model.fit(X, constant)


def test_a_shift_of_the_targets_is_one_of_the_predictions():
    """By a number of few digits, it changes no rounding that training sees."""
    X, y = draw(80)
    made = [MixtureRegressor(2, density="full", **BRIEF) for _ in range(3)]
    plain, *moved = (
        each.fit(X, y.round() + shift).predict(X) - shift
        for each, shift in zip(made, (0.0, 1e6, -(2.0**24)), strict=True)
    )
    for each in moved:
        np.testing.assert_allclose(each, plain, atol=1e-7)
    centers = [model.model_.fitted.scaling.location[-1] for model in made]
    np.testing.assert_array_equal(np.diff(centers), np.diff([0.0, 1e6, -(2.0**24)]))


def test_units_of_the_targets_are_those_of_the_answers(averaged):
    """Whatever is compared and averaged, and wherever rounding would have led training."""
    X, y = draw(120)
    for unit in (1e6, 1e-3, 1.0 / 3.7):
        other = MixtureRegressor(2, density="full", **BRIEF).fit(X, y * unit)
        pairs = (
            (other.predict(X), averaged.predict(X) * unit),
            (other.predict_interval(X), averaged.predict_interval(X) * unit),
            (other.score_samples(X, y * unit), averaged.score_samples(X, y) - np.log(unit)),
        )
        for found, expected in pairs:
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_targets_in_other_units_are_trained_on_to_the_bit(monkeypatch):
    """Also where units are no powers of two, and division rounds."""
    seen, own = [], regressor.engine_of
    monkeypatch.setattr(regressor, "engine_of", lambda *args: seen.append(args[0]) or own(*args))
    X, y = draw(120)
    for unit in (1.0, 1e6, 1.0 / 3.7):
        MixtureRegressor(1, marginals="linear", density="full", **BRIEF).fit(X, y * unit)
    for other in seen[1:]:
        np.testing.assert_array_equal(other.values, seen[0].values)


def test_rows_without_targets_say_what_features_are_like():
    """With them, a hole is filled by what all rows say of it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 1)) @ [[1.0, 1.0]] + 0.1 * rng.normal(size=(100, 2))
    y = np.where(np.arange(100) < 40, X[:, 0], np.nan)
    model = MixtureRegressor(1, density=Full(1e-6), marginals="linear", **BRIEF)
    model.set_params(init=EM(60, 1e-6)).fit(X, y)
    assert model.predict([[np.nan, 2.0]])[0] == pytest.approx(2.0, abs=0.1)
    assert len(model.model_.fitted.held_back.y) == 40


def test_a_weight_of_two_is_a_row_given_twice():
    X, y = draw(40)
    options = {"density": "full", "marginals": "linear", "random_state": 0}
    twice = MixtureRegressor(1, **options).fit(np.vstack([X, X[:10]]), np.append(y, y[:10]))
    weight = np.where(np.arange(40) < 10, 2.0, 1.0)
    weighed = MixtureRegressor(1, **options).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(weighed.predict(X), twice.predict(X), rtol=1e-6)


def test_low_rank_and_little_time():
    X, y = draw(60)
    found = MixtureRegressor(2, density=LowRank(1), **BRIEF).fit(X, y)
    assert found.score(X, y) > 0.4
    with pytest.warns(UserWarning, match="max_time"):
        short = MixtureRegressor(max_time=1e-6, random_state=0).fit(X, y)
    assert np.isfinite(short.predict(X)).all()


def test_folds_one_by_one_go_on_from_their_own_models(monkeypatch):
    """Each candidate has one model per fold, and all rows go on from that of the first."""
    monkeypatch.setattr(chooser, "_SMALL", 0)
    X, y = draw(300)
    model = MixtureRegressor(4, density="full", random_state=0).fit(X, y)
    assert {row["rows"] for row in model.choice_} == {225}
    assert model.score(*draw(300, seed=1)) > 0.9


def test_many_categories_are_told_apart():
    """As linear regression on all of their indicators does; more than there is room for are not."""
    rng = np.random.default_rng(0)
    code, effect = rng.integers(60, size=900), rng.normal(size=60)
    y = effect[code] + 0.2 * rng.normal(size=900)
    table = pd.DataFrame({"code": code.astype(str), "x": rng.normal(size=900)})
    encoded = OneHotEncoder().fit_transform(table[["code"]])
    plain = LinearRegression().fit(encoded[:600], y[:600]).score(encoded[600:], y[600:])
    model = MixtureRegressor(random_state=0).fit(table[:600], y[:600])
    assert model.score(table[600:], y[600:]) > plain - 0.02
    levels = np.array([0, 22, 21, 400, 90])
    assert regressor._most_indicators(600, levels) == 66
    assert regressor._most_indicators(200_000, levels) == 33
    assert regressor._most_indicators(10**7, levels) == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"density": "student"}, "Gaussians"),
        ({"tradeoff": 0.0}, "tradeoff"),
        ({"n_components": 0}, "n_components"),
    ],
)
def test_settings_that_are_refused(change, message):
    with pytest.raises((UnsupportedError, ValueError), match=message):
        MixtureRegressor(**change).fit(*draw(30))


def test_bad_input(model, several):
    X, y = draw(30)
    for wrong, message in ((None, "requires y"), (["a"] * 30, "numbers"), (y * np.nan, "target")):
        with pytest.raises(ValueError, match=message):
            MixtureRegressor().fit(X, wrong)
    with pytest.raises(ValueError, match="inconsistent"):
        MixtureRegressor().fit(X, y[:5])
    for coverage in (-0.1, 1.1):
        with pytest.raises(InvalidInputError, match="coverage"):
            model.predict_interval(X, coverage)
    with pytest.raises(InvalidInputError, match="quantiles"):
        model.predict_quantiles(X, [0.5, 1.0])
    with pytest.raises(InvalidInputError, match="2 target"):
        several.score_samples(X[:, :2], y)
    nothing = np.full((1, 3), np.nan)
    low, middle, high = model.predict_quantiles(nothing)[0]
    assert low < middle < high
    assert np.isfinite(model.predict([[1e300, -1e300, 0.0]])).all()
