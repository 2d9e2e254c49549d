"""Boosted mixtures: the paper's weights and line search recomputed, and sklearn's AdaBoost."""

from functools import partial

import numpy as np
import pytest
import torch
from chains import make_chains, make_sequences
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal
from sklearn.ensemble import AdaBoostClassifier
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB

from mixtura import BoostedMixtureClassifier, MixtureClassifier, SequenceMixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.datasets import make_hmm_sequences, make_lobes
from mixtura.datasets.generators import LOBE_CENTERS
from mixtura.densities import Auto, Diagonal, Full, LowRank
from mixtura.engines import Engine
from mixtura.exceptions import DegenerateDataWarning, NoDensityError
from mixtura.objectives import Conditional
from mixtura.progress import Progress
from mixtura.solvers import EM, Boosted
from mixtura.testing import check_valid, make_batch, make_density, make_mixture
from mixtura.training import boosting, growth
from mixtura.training.boosting import _NEGLIGIBLE, Boosting
from mixtura.training.groups import Recipe
from mixtura.training.growth import _TEMPERATURES, _temperature
from mixtura.training.learner import Learner

METHODS = ["boosted", "boosted_generative", "adaboost"]
FLOOR = 0.05
PLAIN = {"early_stopping": False, "calibrate": False, "random_state": 0}


@pytest.fixture(scope="module")
def lobes():
    """Two classes of three lobes, and weights."""
    rows = make_lobes(random_state=0)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(rows.target))
    return rows.data, rows.target, weight


def grown(lobes, discriminative, n_stages=2, **options):
    """The mixtures after each stage, and their shares; components are single Gaussians."""
    X, y, weight = lobes
    engine = Engine(X, y, weight, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))

    def begin(engine, generator):
        return Recipe(Full(FLOOR), EM()).start(engine, 1, generator)

    learner = Learner(begin, EM(20, 0.0), len(np.unique(y)))
    boosting = Boosting(learner, discriminative, n_stages, **options)
    progress = Progress()
    stages = list(boosting.grow(engine, torch.Generator().manual_seed(0), progress))
    return stages, progress


@pytest.fixture(scope="module", params=[(True, 3), (False, 2)], ids=["BxCML", "BxML"])
def course(request, lobes):
    """Stages of each kind, and the objectives on the way."""
    discriminative, n_stages = request.param
    stages, progress = grown(lobes, discriminative, n_stages)
    assert len(stages) == n_stages
    return discriminative, stages, [-record["objective"] for record in progress.history]


def classifiers(mixture, share):
    """A mixture of two stages as two classifiers: class priors, means and covariances of each."""
    joint = (mixture.log_weight + mixture.layout.by_component(mixture.log_prior)).exp().numpy()
    parts = []
    for stage, amount in enumerate((1.0 - share, share)):
        index = np.arange(stage, mixture.n_components, 2)
        mean, covariance = mixture.density.mean.numpy(), mixture.density.covariances().numpy()
        parts.append((joint[index] / amount, mean[index], covariance[index]))
    return parts


def joint_density(classifier, X):
    """f(c, a), (n, C), by scipy."""
    columns = [p * multivariate_normal(m, s).pdf(X) for p, m, s in zip(*classifier, strict=True)]
    return np.stack(columns, 1)


def weighted_moments(X, y, q):
    """Class priors, means and variances of weighted rows in one dimension."""
    masses = np.bincount(y, q)
    means = np.array([np.average(X[y == c], axis=0, weights=q[y == c]) for c in range(len(masses))])
    squares = (X[:, 0] - means[y, 0]) ** 2
    variances = np.maximum(np.bincount(y, q * squares) / masses, FLOOR)
    return masses / masses.sum(), means, variances[:, None, None]


def kept(q):
    """Weights without those that are too small to matter."""
    return np.where(q > _NEGLIGIBLE * q.max(), q, 0.0)


def conditional(F, y, temperature=1.0):
    """F(c_i | a_i)."""
    F = F ** (1.0 / temperature)
    return F[np.arange(len(y)), y] / F.sum(1)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_discriminative_stage_begins_where_the_classes_meet(temperature, lobes):
    """Weighted maximum likelihood, q proportional to 1 - F(c | a); then the best share of it."""
    X, y, weight = lobes
    options = {"refits": 0, "temperature": temperature, "tol": -np.inf}
    (_, (mixture, share)), progress = grown(lobes, True, **options)
    first, second = classifiers(mixture, share)
    for found, expected in zip(first, weighted_moments(X, y, weight), strict=True):
        np.testing.assert_allclose(found, expected, 1e-8)
    one, other = (joint_density(each, X) for each in (first, second))
    q = weight * kept(1.0 - conditional(one, y, temperature))
    for found, expected in zip(second, weighted_moments(X, y, q), strict=True):
        np.testing.assert_allclose(found, expected, 1e-5)

    def value(amount):
        chance = conditional((1.0 - amount) * one + amount * other, y, temperature)
        return np.average(np.log(chance), weights=weight)

    assert value(share) > max(map(value, np.linspace(1e-3, 0.98, 200))) - 1e-6
    assert -progress.history[-1]["objective"] == pytest.approx(value(share), rel=1e-9)


@pytest.mark.parametrize("discriminative", [True, False], ids=["BxCML", "BxML"])
def test_refits_follow_the_papers_weights(discriminative, lobes):
    """q = w f with w = (1 - F(c | a)) / F(c, a), or 1 / F(c, a); F has the stage in it."""
    X, y, weight = lobes
    options = {"tol": -np.inf, "n_stages": 2}
    (_, (before, share)), _ = grown(lobes, discriminative, refits=0, **options)
    first, second = classifiers(before, share)
    f = joint_density(second, X)
    F = (1.0 - share) * joint_density(first, X) + share * f
    q = f[np.arange(len(y)), y] / F[np.arange(len(y)), y]
    if discriminative:
        q *= 1.0 - conditional(F, y)
    q = weight * kept(q)
    (_, (after, amount)), _ = grown(lobes, discriminative, refits=1, **options)
    for found, expected in zip(
        classifiers(after, amount)[1], weighted_moments(X, y, q), strict=True
    ):
        np.testing.assert_allclose(found, expected, 1e-5)


def test_the_line_search_finds_the_maximum(course, lobes):
    """No share of a dense grid does better, for the objective that the history shows."""
    X, y, weight = lobes
    discriminative, (_, (mixture, share), *_), values = course
    first, second = classifiers(mixture, share)
    one, other = joint_density(first, X), joint_density(second, X)

    def value(amount):
        F = (1.0 - amount) * one + amount * other
        each = conditional(F, y) if discriminative else F[np.arange(len(y)), y]
        return np.average(np.log(each), weights=weight)

    assert value(share) > max(map(value, np.linspace(1e-3, 0.98, 2000))) - 1e-6
    assert values[1] == pytest.approx(value(share), rel=1e-9)


def test_no_stage_loses(course):
    """The objective rises with every stage, and every mixture is sound."""
    _, stages, values = course
    assert len(values) == len(stages)
    assert (np.diff(values) > 0).all()
    for mixture, _ in stages:
        check_valid(mixture)


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.999])
@pytest.mark.parametrize("kind", ["vectors", "sequences"])
def test_blending_is_a_convex_combination(kind, share, generator):
    """Class by class, whatever the numbers of components."""
    make = (
        partial(make_density, "full", "covariance", generator)
        if kind == "vectors"
        else partial(make_chains, "diag", generator)
    )
    one = make_mixture(make(n_components=3), [2, 1], generator)
    other = make_mixture(make(n_components=4), [1, 3], generator)
    if kind == "vectors":
        batch = make_batch(one.density, 9, generator, holes=True)
    else:
        batch = make_sequences(one.density, [4, 1, 6], generator, holes=True)
    blended = one.blend(other, share)
    assert blended.layout.counts == (3, 4)
    check_valid(blended)
    expected = np.logaddexp(
        np.log1p(-share) + one.class_log_joint(batch).numpy(),
        np.log(share) + other.class_log_joint(batch).numpy(),
    )
    np.testing.assert_allclose(blended.class_log_joint(batch), expected, 1e-10, 1e-10)


def test_lobes(lobes):
    """Figure 1: a discriminative stage finds the crucial lobe, a generative one the far lobe."""
    X, y, _ = lobes
    second = {}
    for method in METHODS[:2]:
        model = BoostedMixtureClassifier(method=method, n_stages=2, **PLAIN).fit(X, y)
        assert model.n_stages_ == 2
        second[method] = model.means_[[1, 3], 0]
    side = np.array([1.0, -1.0])
    _, far, crucial = LOBE_CENTERS
    np.testing.assert_allclose(second["boosted"], crucial * side, atol=0.5)
    np.testing.assert_allclose(second["boosted_generative"], far * side, atol=1.0)


# -- AdaBoost ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_adaboost_agrees_with_sklearn(n_classes, iris):
    """Votes and decisions of SAMME with Gaussian naive Bayes as voters."""
    X, y = iris[0][iris[1] < n_classes][:, [0, 1]], iris[1][iris[1] < n_classes]
    X = X + np.random.default_rng(0).normal(size=X.shape)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    theirs = AdaBoostClassifier(GaussianNB(var_smoothing=1e-15), n_estimators=4)
    theirs.fit(X, y, sample_weight=weight)
    model = BoostedMixtureClassifier(
        method="adaboost",
        n_stages=4,
        density=Diagonal(1e-9),
        prior_rows=0,
        standardize=False,
        **PLAIN,
    ).fit(X, y, sample_weight=weight)
    assert len(theirs.estimators_) > 1
    votes = theirs.estimator_weights_[: len(theirs.estimators_)]
    np.testing.assert_allclose(model.stage_weights_, votes, 1e-6)
    np.testing.assert_array_equal(model.predict(X), theirs.predict(X))
    cast = 1e-3 + sum(
        vote * (voter.predict(X)[:, None] == np.arange(n_classes))
        for voter, vote in zip(theirs.estimators_, votes, strict=True)
    )
    expected = cast / cast.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected, 1e-6)


def test_votes_are_no_density(iris):
    """Whoever asks for one is told what to do."""
    model = BoostedMixtureClassifier(method="adaboost", n_stages=2, **PLAIN).fit(*iris)
    for name in ("mixture_", "class_prior_", "weights_", "score_quantiles_"):
        assert not hasattr(model, name)
    for ask in (model.score_samples, model.impute, model.transform, model.class_log_density):
        with pytest.raises(NoDensityError, match="use another method"):
            ask(iris[0])
    with pytest.raises(NoDensityError, match="use another method"):
        model.sample(3)


# -- the estimator -----------------------------------------------------------------------------


def test_one_stage_is_maximum_likelihood(wine):
    """Gaussian naive Bayes, and our own classifier."""
    X, y = wine
    options = {"density": Diagonal(1e-9), "prior_rows": 0}
    model = BoostedMixtureClassifier(n_stages=1, standardize=False, **options, **PLAIN).fit(X, y)
    theirs = GaussianNB(var_smoothing=1e-15).fit(X, y)
    np.testing.assert_allclose(model.predict_log_proba(X), theirs.predict_log_proba(X), 1e-6, 1e-6)
    ours = MixtureClassifier(1, objective="likelihood", **options).fit(X, y)
    np.testing.assert_allclose(model.score_samples(X), ours.score_samples(X), 1e-6)
    assert model.stage_weights_.tolist() == [1.0]


@pytest.mark.parametrize("method", ["boosted", "adaboost"])
def test_stages(method, lobes):
    """Held-back rows choose how many; weights sum to one unless they are votes."""
    X, y = lobes[0][::2], lobes[1][::2]
    model = BoostedMixtureClassifier(2, method=method, n_stages=2, random_state=0).fit(X, y)
    assert 1 <= model.n_stages_ == len(model.stage_weights_) <= 2
    if method == "adaboost":
        assert (model.stage_weights_ > 0).all()
        assert len(model.model_.model.voters) == model.n_stages_
    else:
        assert model.stage_weights_.sum() == pytest.approx(1.0)
        assert len(model.weights_) == 2 * 2 * model.n_stages_
        first = model.weights_ * np.repeat(model.class_prior_, 2 * model.n_stages_)
        assert first.sum() == pytest.approx(1.0)
    single = BoostedMixtureClassifier(n_stages=1, random_state=0).fit(X, y)
    assert model.score(X, y) > single.score(X, y)


def test_boosting_gains_with_holes(lobes):
    """Rows with holes are trained on, marginalized, imputed and sampled."""
    rng = np.random.default_rng(0)
    X, y, _ = lobes
    X = np.c_[X, rng.normal(size=X.shape) + y[:, None]]
    X[rng.random(X.shape) < 0.2] = np.nan
    model = BoostedMixtureClassifier(n_stages=3, **PLAIN).fit(X, y)
    assert model.n_stages_ > 1
    filled = model.impute(X)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    prior = model.predict_proba([[np.nan, np.nan]])[0]
    np.testing.assert_allclose(prior, model.class_prior_, 1e-9)
    assert np.isfinite(model.sample(20, random_state=0)[0]).all()


@pytest.mark.parametrize("method", ["boosted", "adaboost"])
def test_a_class_without_weight_in_a_stage(method):
    """A class that nobody mistakes is left out of a stage, and loses nothing by it."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 20)
    X = rng.normal(size=(60, 2)) ** 3 + np.array([0.0, 1.0, 1e3])[y][:, None]
    model = BoostedMixtureClassifier(method=method, n_stages=3, standardize=False, **PLAIN)
    model.fit(X, y)
    assert model.n_stages_ > 1
    assert np.isfinite(model.predict_proba(X)).all()
    np.testing.assert_array_equal(model.predict(X[y == 2]), 2)
    if method == "boosted":
        joint = model.weights_ * np.repeat(model.class_prior_, model.n_stages_)
        later = joint.reshape(3, -1)[:, 1:].sum(1)
        assert later[2] < 1e-50 < later[:2].min()
        np.testing.assert_allclose(model.class_prior_[2], model.stage_weights_[0] / 3.0)


@pytest.mark.parametrize("method", METHODS)
def test_weights_count_as_rows(method, iris):
    """A weight of two is a row given twice, and a weight of zero one left out."""
    X, y = iris[0][::2, [0, 1]], iris[1][::2]
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    places = np.repeat(np.arange(len(y)), weight)
    model = BoostedMixtureClassifier(method=method, n_stages=2, **PLAIN | {"random_state": 1})
    expected = model.fit(X[places], y[places]).predict_proba(X)
    found = model.fit(X, y, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_one_class(method, iris):
    """Nothing to decide, and no error."""
    model = BoostedMixtureClassifier(method=method, n_stages=3, **PLAIN)
    model.fit(iris[0], np.full(150, 7))
    np.testing.assert_array_equal(model.predict(iris[0]), 7)
    np.testing.assert_allclose(model.predict_proba(iris[0]), 1.0)


@pytest.mark.parametrize("density", ["spherical", "diag", "low_rank"])
def test_structures(density, holey_iris):
    """Other covariance structures than the full one, with holes."""
    X, y = holey_iris
    model = BoostedMixtureClassifier(density=density, n_stages=2, solver=EM(3), **PLAIN)
    model.fit(X, y)
    assert model.score(X, y) > 0.85
    check_valid(model.mixture_)


def test_refits_forget(iris):
    """Votes leave nothing behind when a density follows."""
    model = BoostedMixtureClassifier(method="adaboost", n_stages=2, **PLAIN).fit(*iris)
    model.set_params(method="boosted").fit(*iris)
    assert not hasattr(model, "voters_")
    assert np.isfinite(model.score_samples(iris[0])).all()


def test_unlabeled_rows_are_left_out_with_a_warning(iris):
    """They cannot be weighted by what they are mistaken for."""
    X, y = iris
    some = np.where(np.arange(150) % 3 == 0, -1, y)
    model = BoostedMixtureClassifier(n_stages=2, **PLAIN)
    with pytest.warns(DegenerateDataWarning, match="unlabeled row"):
        found = model.fit(X, some).predict_proba(X)
    expected = model.fit(X[some >= 0], y[some >= 0]).predict_proba(X)
    np.testing.assert_allclose(found, expected, 1e-9, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_time_runs_out(method, lobes):
    """A limit ends growing early, with a model."""
    X, y, _ = lobes
    model = BoostedMixtureClassifier(method=method, max_time=1e-6, random_state=0).fit(X, y)
    assert model.n_stages_ == 1
    assert model.score(X, y) > 0.6


# -- what rows can support ---------------------------------------------------------------------


def count_runs_of_em(monkeypatch):
    """A list that grows by one with every run of EM."""
    runs, run = [], EM.run
    monkeypatch.setattr(EM, "run", lambda *args, **named: runs.append(1) or run(*args, **named))
    return runs


def test_wide_rows_have_no_full_covariances(rng, iris):
    """The matrices of 1,000 features took over a minute, and ten rows do not show them."""
    X, y = rng.normal(size=(20, 1000)), np.arange(20) % 2
    X[:, 0] += 20.0 * y
    wide = BoostedMixtureClassifier(random_state=0).fit(X, y)
    assert isinstance(wide.density_, LowRank)
    assert wide.mixture_.density.rank == 25
    np.testing.assert_allclose(wide.predict_proba(X).sum(1), 1.0)
    tall = BoostedMixtureClassifier(n_stages=1, calibrate=False, random_state=0).fit(*iris)
    assert isinstance(tall.density_, Full)


def test_auto_is_shorthand_for_its_object(iris):
    """Which may say more: a floor of its own."""
    one, other, own = (
        BoostedMixtureClassifier(density=density, n_stages=1, **PLAIN).fit(*iris).density_
        for density in ("auto", Auto(), Auto(floor=0.05))
    )
    assert one == other == Full()
    assert own == Full(0.05)


def test_a_class_has_two_rows_per_stage(rng):
    X, y = rng.normal(size=(28, 2)), np.arange(28) % 2
    settings = {"n_stages": 10, "early_stopping": False, "calibrate": False, "random_state": 0}
    assert BoostedMixtureClassifier(**settings).fit(X, y).n_stages_ > 1
    assert BoostedMixtureClassifier(**settings).fit(X[:6], y[:6]).n_stages_ == 1


@pytest.mark.parametrize("kind", ["rows", "sequences"])
def test_many_classes_of_two_are_fitted_once(kind, rng, monkeypatch):
    """Nothing can be held back of them, so nothing is compared, and that is said."""
    y = np.arange(60) % 30
    if kind == "rows":
        model, X = BoostedMixtureClassifier(random_state=0), rng.normal(size=(60, 3))
    else:
        model = SequenceMixtureClassifier(random_state=0)
        X = [rng.normal(size=(4, 2)) for _ in y]
    runs = count_runs_of_em(monkeypatch)
    with pytest.warns(DegenerateDataWarning, match="3 per class"):
        model.fit(X, y)
    assert len(runs) == 1  # the classes side by side
    assert np.isfinite(model.predict_proba(X)).all()


def test_the_temperature_is_where_training_is_half_as_unsure_as_held_back_rows_are_wrong(
    rng, monkeypatch
):
    """Against probabilities by scipy; one where training errs as often as held-back rows.

    The highest, where none is high enough.
    """
    X, y = rng.normal(size=(40, 12)), np.repeat([0, 1], 20)
    X[:, 0] += 1.5 * y
    engine = Engine(X, y, scaling=Scaling.identity(12), device=torch.device("cpu"))
    found = {}
    for floor in (1e3, 1e-3):
        recipe = Recipe(Full(floor), EM())
        learner = Learner(lambda rows, g, recipe=recipe: recipe.start(rows, 1, g), EM(), 2)
        seed = torch.Generator().manual_seed(0)
        found[floor] = _temperature(learner, engine, seed, Progress())
    assert found[1e3] == 1.0
    rest, back = engine.merged().hold_out(0.25, torch.Generator().manual_seed(0))

    def log_joint(rows):
        x, rest_x, rest_y = rows.all_rows().x, rest.all_rows().x, rest.y
        moments = [
            (rest_x[rest_y == c].mean(0), rest_x[rest_y == c].T.cov(correction=0)) for c in (0, 1)
        ]
        return np.stack([multivariate_normal(m, s).logpdf(x) for m, s in moments], 1)

    wrong = (log_joint(back).argmax(1) != back.y.numpy()).mean()
    doubts = [
        1.0 - softmax(log_joint(rest) / t, 1)[np.arange(30), rest.y.numpy()].mean()
        for t in _TEMPERATURES.numpy()
    ]
    assert wrong > 0.0
    assert doubts[0] < wrong / 2
    assert found[1e-3] == _TEMPERATURES[np.searchsorted(doubts, wrong / 2)]
    assert doubts[1] < wrong / 2
    monkeypatch.setattr(growth, "_TEMPERATURES", _TEMPERATURES[:2])
    seed = torch.Generator().manual_seed(0)
    assert _temperature(learner, engine, seed, Progress()) == _TEMPERATURES[1]


def test_pairwise_weights_go_by_the_strongest_rival(rng):
    """By scipy's softmax of each row's own class and the likeliest other one, tempered."""
    joint, y = 30.0 * rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    engine = Engine(
        np.zeros((50, 1)), y, np.ones(50), scaling=Scaling.identity(1), device=torch.device("cpu")
    )
    rows = boosting._Rows(engine, Conditional(), 10.0, pairwise=True)
    expected = []
    for row, label in zip(joint / 10.0, y, strict=True):
        pair = row[label], np.delete(row, label).max()
        expected.append(log_softmax(pair)[1])
    np.testing.assert_allclose(rows.rivalry(torch.from_numpy(joint)), expected, rtol=1e-9)


def test_stages_are_trained_together_for_the_conditional_likelihood():
    """Of training sequences it rises, by scikit-learn's log-loss; densities stay."""
    train = make_hmm_sequences(15, random_state=0)
    losses = []
    for together in (False, True):
        model = SequenceMixtureClassifier(
            2,
            method=Boosted(n_stages=2, together=together),
            early_stopping=False,
            calibrate=False,
            random_state=0,
        ).fit(train.data, train.target)
        assert model.n_stages_ == 2
        losses.append(log_loss(train.target, model.predict_proba(train.data).clip(1e-12)))
        assert np.isfinite(model.score_samples(train.data)).all()
    assert losses[1] < losses[0]
