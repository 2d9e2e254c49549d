"""Thresholds of `is_outlier`: those of rows that a model was not fitted to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import logistic, multivariate_normal
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    SequenceMixtureClassifier,
)
from mixtura.data.scaling import Scaling
from mixtura.densities import LowRank
from mixtura.engines import Engine
from mixtura.exceptions import DegenerateDataWarning
from mixtura.models.fitted import log_density
from mixtura.models.mixture import Mixture
from mixtura.progress import Progress
from mixtura.selection import typical
from mixtura.selection.typical import held_out_scores, typical_scores
from mixtura.solvers import EM, LBFGS, LinkedEM, SpreadPrior
from mixtura.testing import STRUCTURES


@pytest.mark.parametrize("prior_rows", [0.0, 7.0])
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_scores_are_those_of_a_fit_without_the_row(covariance, prior_rows, rng):
    """One component: every tenth row is judged by the moments of the others, prior included."""
    X = rng.normal(size=(43, 3)) @ rng.normal(size=(3, 3))
    engine = plain_engine(X, np.zeros(43, dtype=int))
    x, ones = torch.from_numpy(X), torch.ones(43, 1, dtype=torch.float64)
    kind, options = STRUCTURES[covariance, "covariance"]
    mixture = Mixture.single(kind.from_clusters(x, ones, 1e-9, torch.Generator(), **options))
    prior = SpreadPrior(prior_rows, 2.0 * mixture.density.spread[0])
    if prior_rows:
        imagined = prior.statistics(mixture.density, mixture.density.mean)
        own = mixture.density._statistics_complete(x, ones)
        total = {name: own[name] + imagined[name] for name in own}
        mixture = Mixture.single(mixture.density.maximize(total)[0])
    found = held_out_scores(mixture, engine, prior if prior_rows else None, score=log_density)
    reference = 2.0 * np.cov(X.T, bias=True)
    for row in range(43):
        rest = np.delete(X, np.arange(row % 10, 43, 10), axis=0)
        scatter = len(rest) * np.cov(rest.T, bias=True) + prior_rows * reference
        spread = scatter / (len(rest) + prior_rows)
        spread = spread if covariance == "full" else np.diag(np.diag(spread))
        expected = multivariate_normal(rest.mean(0), spread).logpdf(X[row])
        own = float(log_density(mixture, engine.batch(slice(row, row + 1))))
        assert float(found[row]) == pytest.approx(min(expected, own), rel=1e-9)


@pytest.mark.parametrize("kind", [MixtureClassifier, MixtureNetworkClassifier])
def test_as_many_new_rows_with_holes_are_flagged_as_asked_for(kind):
    """Few rows of many columns: a step of EM without a row would not forget it."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        y, mixed = np.arange(2120) % 3, rng.normal(size=(20, 20))
        X = rng.normal(size=(2120, 20)) @ mixed + 3.0 * np.outer(y, np.arange(20) % 3 == 0)
        X[rng.random(X.shape) < 0.3] = np.nan
        model = kind(1, random_state=0).fit(X[:120], y[:120])
        found.append([model.is_outlier(X[120:], share).mean() for share in (0.05, 0.2)])
    ratio = np.mean(found, 0) / [0.05, 0.2]
    assert (ratio < 1.4).all()
    assert (ratio > 0.4).all()  # trials learn from fewer rows than the model, and judge low


def three_normals(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return rng.normal(size=(n, 3)) + 2.0 * (y[:, None] == np.arange(3)), y


def mostly_unlabeled(X, y):
    return (X, np.where(np.arange(len(y)) < 60, y, -1)), {"unlabeled_weight": 0.5}


#: Rows, what is passed to `fit`, and parameters, where trials tell of some rows or of none.
UNLIKE = {
    "weights for which Adam trains": (150, lambda X, y: ((X, y, np.full(150, 40.0)), {})),
    "Adam": (600, lambda X, y: ((X, y), {"solver": "adam"})),
    "unlabeled rows": (1_500, mostly_unlabeled),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_as_many_new_rows_are_flagged_where_trials_tell_little(what):
    """Models that are not trained as trials were, and rows that no trial has held out."""
    n, prepare = UNLIKE[what]
    found = []
    for seed in range(3):
        given, settings = prepare(*three_normals(n, seed))
        model = MixtureClassifier(1, density="full", random_state=0, **settings).fit(*given)
        rows = three_normals(5_000, 100 + seed)[0]
        found.append([model.is_outlier(rows, share).mean() for share in (0.05, 0.2)])
    ratio = np.mean(found, 0) / [0.05, 0.2]
    assert (ratio > 0.6).all()
    assert (ratio < 1.6).all()


def test_densities_without_closed_form_are_scored_as_they_are(wine):
    """A low-rank precision keeps in-sample thresholds."""
    model = MixtureClassifier(
        1,
        density=LowRank(2, parameterization="precision"),
        solver=LBFGS(3),
        calibrate=False,
        random_state=0,
    ).fit(*wine)
    assert model.is_outlier(wine[0], share=0.1).sum() in (17, 18)


def normal_rows(random_state):
    rng = np.random.default_rng(random_state)
    y = rng.integers(2, size=2000)
    return rng.normal(size=(2000, 8)) + y[:, None], y


def every_other_pixel(X, y):
    return X[:, ::2], y


#: What to load, the share of it that is held back, and splits.
TABLES = {
    "normal": (normal_rows, 0.85, 4),
    "breast cancer": (lambda seed: load_breast_cancer(return_X_y=True), 0.5, 2),
    "digits": (lambda seed: every_other_pixel(*load_digits(return_X_y=True)), 0.5, 2),
}
MODELS = {
    "density": lambda: MixtureDensity(random_state=0),
    "density, low rank": lambda: MixtureDensity(2, density="low_rank", random_state=0),
    "likelihood": lambda: MixtureClassifier(
        1, density="full", objective="likelihood", random_state=0
    ),
    "margin": lambda: MixtureClassifier(
        1,
        density=LowRank(3),
        tradeoff=0.8,
        solver=LBFGS(15),
        calibrate=False,
        random_state=0,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_about_the_share_of_new_rows_is_flagged(name):
    """At one in a hundred, on the average of tables and splits."""
    shares = {}
    for table, (load, held_back, n_splits) in TABLES.items():
        for seed in range(n_splits):
            X, y = load(seed)
            train, test = train_test_split(
                np.arange(len(y)), test_size=held_back, random_state=seed, stratify=y
            )
            model = MODELS[name]().fit(X[train], y[train])
            shares.setdefault(table, []).append(model.is_outlier(X[test]).mean())
    means = {table: np.mean(found) for table, found in shares.items()}
    assert 0.005 < np.mean(list(means.values())) < 0.016, means
    assert max(means.values()) < 0.025, means


def test_models_without_some_rows_are_the_same_at_once_and_one_by_one(holey_iris, monkeypatch):
    """Small ones are a stack, whose components have a prior each, and weights in their classes."""

    def quantiles():
        model = MixtureClassifier([2, 1, 3], objective="likelihood", random_state=0)
        return model.fit(*holey_iris).score_quantiles_

    at_once = quantiles()
    monkeypatch.setattr(typical, "_SMALL", 0)
    np.testing.assert_allclose(quantiles(), at_once, rtol=1e-10)


def test_about_the_share_is_flagged_by_networks():
    """Whose mixtures are fitted to all rows as well as to those of a class."""
    shares = []
    for seed in range(3):
        X, y = normal_rows(seed)
        model = MixtureNetworkClassifier(
            2,
            embedding="posterior",
            calibrate=False,
            solver=LinkedEM(5, specialize=1.0),
            init=EM(5, 0.01),
            random_state=1,
        ).fit(X[:300], y[:300])
        shares.append(model.is_outlier(X[300:]).mean())
    assert 0.004 < np.mean(shares) < 0.02


def fitted_classes(X, y, weight=None):
    """One full covariance per class, by maximum likelihood."""
    settings = {"density": "full", "objective": "likelihood", "prior_rows": 0}
    model = MixtureClassifier(1, **settings, random_state=0)
    return model.fit(X, y, sample_weight=weight)


def plain_engine(X, y=None):
    return Engine(X, y, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))


def test_the_order_of_rows_does_not_matter(rng):
    """Labels that come in turn, a tenth of each: no part that is left out is a class."""
    y = np.arange(300) % 10
    mean = 3.0 * rng.normal(size=(10, 8))
    X, new = mean[y] + rng.normal(size=(300, 8)), mean.repeat(500, 0) + rng.normal(size=(5000, 8))
    order = rng.permutation(300)
    in_turn, shuffled = fitted_classes(X, y), fitted_classes(X[order], y[order])
    np.testing.assert_allclose(in_turn.score_quantiles_, shuffled.score_quantiles_, 1e-6)
    assert 0.004 < in_turn.is_outlier(new).mean() < 0.03


def test_copies_of_a_row_are_left_out_together(rng):
    """A row of weight three counts as three rows, which no model without the row has seen."""
    X, weight = rng.normal(size=(60, 6)), rng.integers(1, 4, size=60)
    y = (X[:, 0] > 0).astype(int)
    weighted = fitted_classes(X, y, weight)
    repeated = fitted_classes(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.score_quantiles_, repeated.score_quantiles_, 1e-6)


def test_copies_are_merged(rng):
    """As `np.unique` finds them, holes and labels told apart; fewer where fewer are wanted."""
    X = rng.integers(3, size=(500, 3)).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    y = rng.integers(2, size=500)
    told, counts = np.unique(
        np.column_stack([np.nan_to_num(X, nan=9.0), y]), axis=0, return_counts=True
    )
    rows = plain_engine(X, y).merged(500)
    batch = rows.all_rows()
    found = np.column_stack([batch.x.masked_fill(~batch.observed, 9.0).numpy(), batch.y])
    order = np.lexsort(found.T[::-1])
    np.testing.assert_array_equal(found[order], told)
    np.testing.assert_array_equal(batch.weight.numpy()[order], counts)
    assert len(plain_engine(X, y).merged(20)) == 20


def test_a_component_that_would_be_lost_stays_as_it_is(rng):
    """Weight and all: its rows, a part that is left out whole, have the scores of training."""
    alone = np.arange(100) % 10 == 0
    X = rng.normal(size=(100, 2)) + 20.0 * alone[:, None]
    kind, options = STRUCTURES["full", "covariance"]
    share = torch.from_numpy(np.column_stack([alone, ~alone]).astype(float))
    density = kind.from_clusters(torch.from_numpy(X), share, 1e-6, torch.Generator(), **options)
    mixture = Mixture.single(density)
    engine = plain_engine(X)
    found = held_out_scores(mixture, engine, score=log_density)
    expected = log_density(mixture, engine.all_rows())
    np.testing.assert_allclose(found[alone], expected[alone], 1e-9)


def test_a_score_of_minus_infinity_counts_as_in_training(rng):
    """Where a model without the row cannot judge it."""
    engine = plain_engine(rng.normal(size=(40, 2)))
    kind, options = STRUCTURES["full", "covariance"]
    x, ones = engine.all_rows().x, torch.ones(40, 1, dtype=torch.float64)
    mixture = Mixture.single(kind.from_clusters(x, ones, 1e-9, torch.Generator(), **options))

    def score(model, batch):
        same = torch.allclose(model.density.mean, mixture.density.mean)
        return log_density(model, batch) if same else torch.full((len(batch),), -torch.inf)

    found = held_out_scores(mixture, engine, score=score)
    np.testing.assert_allclose(found, log_density(mixture, engine.all_rows()), 1e-9)


@pytest.mark.parametrize(("max_time", "most"), [(None, 4 * 3_000), (1e-9, 500)])
def test_scores_are_those_of_a_sample(max_time, most, rng, monkeypatch):
    """Of few rows where time is short; of no more than some thousands else."""
    engine, looked_at = plain_engine(rng.normal(size=(20_000, 3))), []
    x, ones = engine.all_rows().x, torch.ones(20_000, 1, dtype=torch.float64)
    kind, options = STRUCTURES["full", "covariance"]
    mixture = Mixture.single(kind.from_clusters(x, ones, 1e-9, torch.Generator(), **options))

    def run_over(model, rows, score):
        looked_at.append(len(rows))
        return plain(model, rows, score)

    plain = typical.run_over
    monkeypatch.setattr(typical, "run_over", run_over)
    scores, rows = typical_scores(mixture, engine, None, Progress(max_time=max_time))
    assert 0 < sum(looked_at) <= most
    assert len(scores) == len(rows)
    low = np.quantile(log_density(mixture, engine.all_rows()), 0.1)
    assert np.quantile(scores, 0.1) == pytest.approx(low, abs=0.5)


@pytest.mark.parametrize(
    "model",
    [
        BoostedMixtureClassifier(1, n_stages=1, calibrate=False, prior_rows=7, random_state=0),
        MixtureNetworkClassifier(
            2,
            embedding="posterior",
            calibrate=False,
            prior_rows=7,
            solver=LinkedEM(2),
            init=EM(2, 0.01),
        ),
    ],
)
def test_the_prior_of_training_holds_for_scores(model, wine, monkeypatch):
    """A model without a row would have been fitted with the same imagined rows."""
    priors = []

    def noted(mixture, engine, prior, progress):
        priors.append(prior)
        return typical_scores(mixture, engine, prior, progress)

    monkeypatch.setattr(typical, "typical_scores", noted)
    model.fit(*wine)
    assert [prior.rows for prior in priors] == [7]


def test_numbers_far_outside_of_training_count_as_missing_for_classes(wine, tmp_path):
    """As if mistyped: for probabilities, sets and reasons, while densities see them."""
    X, y = wine
    ends = np.stack([X.min(0) - 3.0 * X.std(0), X.max(0) + 3.0 * X.std(0)])
    model = MixtureClassifier(1, density="full", random_state=0).fit(X, y)
    np.testing.assert_allclose(model.model_.reach, ends)
    far, near, lacking = X[:6].copy(), X[:6].copy(), X[:6].copy()
    far[2, 3], near[2, 3], lacking[2, 3] = 1e6, ends[1, 3] - 1e-9, np.nan
    model.save(path := tmp_path / "model.safetensors")
    expected = model.predict_proba(lacking)
    assert abs(model.predict_proba(near) - expected).max() > 1e-6  # these are followed
    for each in (model, mixtura.load(path), mixtura.runtime.load(path)):
        with pytest.warns(DegenerateDataWarning, match=r"1e\+06 in row 2, column 3"):
            np.testing.assert_allclose(each.predict_proba(far), expected, rtol=1e-9)
        with pytest.warns(DegenerateDataWarning, match="count as missing"):
            sets = each.predict_set(far, 0.8)
        assert (sets == each.predict_set(lacking, 0.8)).all()
    with pytest.warns(DegenerateDataWarning, match="far outside"):
        reasons = model.explain(far[2:3], max_time=None).values
    assert (reasons[0, 3] == 0.0).all()
    assert model.is_outlier(far).tolist() == [False, False, True, False, False, False]
    assert model.score_samples(far)[2] < -1e6
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), tmp_path / "model.onnx"
    model.export(onnx)
    found = onnxruntime.InferenceSession(onnx).run(["probabilities"], {"X": far})[0]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("kind", [BoostedMixtureClassifier, MixtureNetworkClassifier])
def test_numbers_far_outside_count_as_missing_for_grown_mixtures_and_networks(kind, wine, tmp_path):
    X, y = wine
    model = kind(random_state=0).fit(X, y)
    far, lacking = X[:6].copy(), X[:6].copy()
    far[2, 3], lacking[2, 3] = 1e6, np.nan
    model.save(path := tmp_path / "model.safetensors")
    for each in (model, mixtura.runtime.load(path)):
        with pytest.warns(DegenerateDataWarning, match=r"1e\+06 in row 2, column 3"):
            found = each.predict_proba(far)
        np.testing.assert_allclose(found, model.predict_proba(lacking), rtol=1e-9)


def test_beyond_long_tails_numbers_have_a_say(rng):
    """By powers, what is twice the largest value of an income is not far; before its start it is.

    Rows with larger values than those of training belong to the class of the largest.
    """
    X = np.exp(2.0 * rng.normal(size=(3000, 3)))
    y = (X[:, 0] > 1.0).astype(int)
    model = MixtureClassifier(random_state=0).fit(X[:60], y[:60])
    low, high = model.model_.reach[:, 0]
    assert high > X[:60, 0].max() + 6.0 * X[:60, 0].std()
    assert low > X[:60, 0].min() - 4.0 * X[:60, 0].std()
    larger = X[(X[:, 0] > X[:60, 0].max()) & (model.model_.reach[1] > X).all(1)]
    assert len(larger) > 20
    assert (model.predict(larger) == 1).all()


def test_a_stream_reaches_as_far_as_all_its_rows(wine):
    X, y = wine
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    model.partial_fit(X[::2], y[::2], classes=np.unique(y))
    low = model.model_.reach[0]
    moved = X[1::2] + 20.0 * X.std(0)
    after = model.partial_fit(moved, y[1::2]).model_.reach
    assert (after[0] == low).all()
    assert (after[1] > moved.max(0)).all()
    model.model_ = replace(model.model_, reach=np.zeros((2, 0)))  # as in an earlier version's file
    assert model.partial_fit(X, y).model_.reach.size == 0
    weight = np.append(np.ones(len(X)), 0.0)  # a row of no weight is none
    with_one = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    with_one.fit(np.vstack([X, 1e3 * X[:1]]), np.append(y, y[0]), weight)
    without = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0).fit(X, y)
    np.testing.assert_array_equal(with_one.model_.reach, without.model_.reach)
    plain = MixtureClassifier(1, density="diag", marginals="raw", random_state=0).fit(X, y)
    assert np.isinf(plain.model_.reach).all()


@pytest.mark.parametrize("options", [{}, {"method": "ml", "multiclass": "pairwise"}])
def test_frames_far_outside_count_as_lost(options, tmp_path):
    """As if the entry had been NaN, for class probabilities and explanations alone."""
    rng, y = np.random.default_rng(0), np.arange(36) % 3
    X = [rng.normal(label, size=(rng.integers(10, 20), 2)) for label in y]
    model = SequenceMixtureClassifier(2, random_state=0, **options).fit(X, y)
    far, lacking = ([frames.copy() for frames in X[:3]] for _ in range(2))
    far[1][4, 1], lacking[1][4, 1] = 1e6, np.nan
    model.save(tmp_path / "model")
    for each in (model, mixtura.load(tmp_path / "model")):
        with pytest.warns(DegenerateDataWarning, match=r"1e\+06 in frame 4 of sequence 1, column"):
            found = each.predict_proba(far)
        np.testing.assert_array_equal(found, each.predict_proba(lacking))
    if options:
        return
    with pytest.warns(DegenerateDataWarning, match="count as missing"):
        reasons = model.explain(far, max_time=None).values
    np.testing.assert_array_equal(reasons, model.explain(lacking, max_time=None).values)
    assert model.is_outlier(far).tolist() == [False, True, False]
    assert model.score_samples(far)[1] < -1e6


def test_tails_of_few_scores_are_exponential():
    """Of exponential tails shares are as promised, below the least score too."""
    rng, flagged = np.random.default_rng(0), []
    for _ in range(400):
        found = typical.tail_quantiles(rng.logistic(size=40), np.ones(40))
        flagged.append([logistic.cdf(found[place]) for place in (5, 10, 50, 100, 500)])
        assert (np.diff(found) >= 0.0).all()
    shares = np.array([0.005, 0.01, 0.05, 0.1, 0.5])
    np.testing.assert_allclose(np.mean(flagged, 0), shares, rtol=0.2, atol=0.005)
    values, weight = rng.normal(size=2000), np.ones(2000)
    plain = np.quantile(values, np.linspace(0, 1, 1001), method="weibull")
    found = typical.tail_quantiles(values, weight)
    np.testing.assert_allclose(found[6:], plain[6:], atol=1e-12)


def test_sequences_are_judged_by_models_that_have_not_seen_them():
    """Of few sequences and many states, about the promised share of new ones is an outlier."""
    shares = []
    for seed in range(3):
        rng, y = np.random.default_rng(seed), np.arange(40) % 2
        X = [rng.normal(label, size=(12, 2)) for label in y]
        new = [rng.normal(label, size=(12, 2)) for label in np.arange(400) % 2]
        model = SequenceMixtureClassifier(8, method="ml", init=EM(20), random_state=0).fit(X, y)
        shares.append([model.is_outlier(new, share).mean() for share in (0.01, 0.1)])
    one, ten = np.mean(shares, 0)
    assert one < 0.03
    assert 0.03 < ten < 0.15
