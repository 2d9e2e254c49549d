"""Mixture networks from the outside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine, make_blobs
from sklearn.metrics import balanced_accuracy_score

from mixtura import MixtureClassifier, MixtureNetworkClassifier, MixtureNetworkRegressor, load
from mixtura.data import batch
from mixtura.densities import LowRank, Student, categorical
from mixtura.estimators import network
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, NoLabelsError
from mixtura.models.read_out import EMBEDDINGS
from mixtura.selection import chooser
from mixtura.selection.held_out import Answers
from mixtura.solvers import EM, LinkedEM
from mixtura.training import networks

PUBLISHED = {
    "embedding": "posterior",
    "solver": LinkedEM(end_to_end=False),
    "calibrate": False,
    "density": "full",
    "random_state": 0,
}


def brief(max_iter, **settings):
    """So many iterations of linked EM, and of EM before it."""
    return {"solver": LinkedEM(max_iter, **settings), "init": EM(max_iter, 0.01)}


@pytest.fixture(scope="module")
def fitted(iris):
    """One network for all tests that only look."""
    return MixtureNetworkClassifier(3, embedding="log_density", random_state=0).fit(*iris)


def test_iris(fitted, iris):
    """It learns, and its services have the shapes they should."""
    X, y = iris
    assert fitted.score(X, y) > 0.95
    width = sum(fitted.n_components_)
    assert fitted.transform(X).shape == fitted.responsibilities(X).shape == (150, width)
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1.0)
    assert fitted.cluster(X).max() < width
    assert fitted.get_feature_names_out()[0] == "mixturenetworkclassifier0"


@pytest.fixture(scope="module")
def gross_errors():
    """Wine, 2 % of whose entries are wrong by hundreds of deviations; and the same rows clean."""
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(0)
    sign = rng.choice([-300.0, 300.0], X.shape)
    return X, np.where(rng.random(X.shape) < 0.02, X + sign * X.std(0), X), y


def test_gross_errors_are_tamed(gross_errors):
    """Where straight lines would leave the sound values no room; elsewhere these are enough."""
    clean, X, y = gross_errors
    model = MixtureNetworkClassifier(random_state=0).fit(X[::2], y[::2])
    straight = MixtureNetworkClassifier(random_state=0, marginals="linear").fit(X[::2], y[::2])
    assert model.marginals_ == "tamed"
    assert straight.marginals_ == "linear"
    asked = [each["marginals"] for each in model.choice_ if each["question"] == "marginals"]
    assert asked == ["tamed"]  # of the embedding that straight lines prefer
    assert model.score(X[1::2], y[1::2]) > max(0.9, straight.score(X[1::2], y[1::2]) + 0.1)
    plain = MixtureNetworkClassifier(random_state=0).fit(clean[::2], y[::2])
    assert plain.marginals_ == "linear"
    assert all(each["marginals"] == "linear" for each in plain.choice_)


@pytest.mark.parametrize("helps", [True, False])
def test_gross_errors_are_tamed_beside_unlabeled_rows(helps, gross_errors, monkeypatch):
    """All rows come in the units that the labeled ones have chosen, whether they help or not."""
    _, X, y = gross_errors
    shown = np.where(np.arange(len(y)) % 3 == 0, -1, y)
    monkeypatch.setattr(Answers, "surely_beats", lambda *_: helps)
    model = MixtureNetworkClassifier(4, unlabeled=-1, random_state=0).fit(X, shown)
    assert (model.unlabeled_weight_ > 0) == helps
    assert model.marginals_ == "tamed"
    assert model.scaling_.curves is not None
    assert model.score(X[::3], y[::3]) > 0.75


def test_a_regressor_tames_gross_errors(gross_errors, tmp_path):
    """Its intervals are in the same units, and come back from a file."""
    _, X, y = gross_errors
    model = MixtureNetworkRegressor(random_state=0).fit(X[::2], y[::2].astype(float))
    straight = clone(model).set_params(marginals="linear").fit(X[::2], y[::2].astype(float))
    assert model.marginals_ == "tamed"
    assert model.score(X[1::2], y[1::2]) > straight.score(X[1::2], y[1::2]) + 0.1
    low, high = model.predict_interval(X[1::2], 0.8).T
    assert 0.7 < np.mean((low <= y[1::2]) & (y[1::2] <= high)) <= 1.0
    model.save(tmp_path / "model")
    np.testing.assert_allclose(load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("why", ["rows that no fold has seen", "a clock"])
def test_all_rows_begin_anew(why, monkeypatch):
    """Where folds are tried one by one, but did not see all rows, or may have been cut short."""
    monkeypatch.setattr(chooser, "_SMALL", 0)
    if why == "rows that no fold has seen":
        monkeypatch.setattr(chooser, "MOST_COMPARED", 100)
    max_time = 1e3 if why == "a clock" else None
    model = MixtureNetworkClassifier(max_time=max_time, random_state=0)
    model.fit(*load_wine(return_X_y=True))
    by_gradients = [each for each in model.history_ if each["stage"] == "L-BFGS"]
    assert len(by_gradients) > networks._LAST


def test_all_rows_go_on_from_where_a_fold_ended(monkeypatch):
    """Where folds are tried one by one: no EM again, and a few iterations."""
    monkeypatch.setattr(chooser, "_SMALL", 0)
    model = MixtureNetworkClassifier(random_state=0).fit(*load_wine(return_X_y=True))
    assert {record["stage"] for record in model.history_} == {"L-BFGS"}
    assert 0 < len(model.history_) <= networks._LAST < networks._ITERATIONS[0]
    assert model.score(*load_wine(return_X_y=True)) > 0.97


def test_networks_of_rows_with_holes_are_tried_one_by_one(monkeypatch):
    """Beside each other, each would look at the rows of all; small tables are then learned anew."""
    monkeypatch.setattr(network, "_STACKED", 100)
    trials, tried = networks.NetworkPlan.trials, []

    def noted(plan, engine, folds, *rest):
        tried.append((engine.has_holes, len(folds.held_out)))
        return trials(plan, engine, folds, *rest)

    monkeypatch.setattr(networks.NetworkPlan, "trials", noted)
    X, y = load_wine(return_X_y=True)
    MixtureNetworkClassifier(2, random_state=0).fit(X, y)
    punched = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    model = MixtureNetworkClassifier(2, random_state=0).fit(punched, y)
    assert {n_folds > 1 for holes, n_folds in tried if not holes} == {True}
    assert {n_folds for holes, n_folds in tried if holes} == {1}
    assert {record["stage"] for record in model.history_} == {"EM", "L-BFGS"}
    assert model.score(punched, y) > 0.95


def test_settling_is_not_for_other_networks(monkeypatch):
    """Whether unlabeled rows help is asked of networks with all of their iterations."""
    seen, solvers = [], networks.NetworkPlan._solvers

    def noted(plan, engine):
        found = solvers(plan, engine)
        if not plan.short and not plan.begin:
            seen.append(found[0].max_iter)
        return found

    monkeypatch.setattr(chooser, "_SMALL", 0)
    monkeypatch.setattr(networks.NetworkPlan, "_solvers", noted)
    X, y = load_wine(return_X_y=True)
    hidden = np.where(np.arange(len(y)) % 2, y, np.nan)
    MixtureNetworkClassifier(2, random_state=0).fit(X, hidden)
    assert seen
    assert min(seen) >= networks._ITERATIONS[0]


@pytest.mark.parametrize("kind", [MixtureNetworkClassifier, MixtureNetworkRegressor])
def test_more_rows_are_trained_on_in_minibatches(kind, iris, monkeypatch):
    """By Adam: no fit of more than 6,000 rows had come to an end."""
    monkeypatch.setattr(networks, "_SMALL", 50)
    X, y = iris
    model = kind(2, random_state=0).fit(
        X[:, :3], y if kind is MixtureNetworkClassifier else X[:, 3]
    )
    assert "Adam" in {record["stage"] for record in model.history_}
    assert model.score(X[:, :3], y if kind is MixtureNetworkClassifier else X[:, 3]) > 0.85


def test_log_density_of_classes_is_bayes_rule(fitted, iris):
    """Weighted by the class prior they sum to the density of the row."""
    total = fitted.class_log_density(iris[0]) + np.log(fitted.class_prior_)
    np.testing.assert_allclose(np.logaddexp.reduce(total, axis=1), fitted.score_samples(iris[0]))


def test_draws(fitted):
    """Labels follow the rows; with wanted labels, rows follow them."""
    X, y = fitted.sample(200, random_state=1)
    assert X.shape == (200, 4)
    assert np.mean(fitted.predict(X) == y) > 0.8
    X, y = fitted.sample(30, y=2, random_state=1)
    assert (y == 2).all()
    assert np.mean(fitted.predict(X) == 2) > 0.8


def test_end_to_end_training_moves_the_means(iris):
    """And lowers the objective that it says it lowers."""
    X, y = iris
    settings = {**PUBLISHED, "density": "diag"}
    start = MixtureNetworkClassifier(4, **settings).fit(X, y)
    model = MixtureNetworkClassifier(4, **settings | {"solver": "linked_em"}).fit(X, y)
    losses = [r["objective"] for r in model.history_ if r["stage"] == "L-BFGS"]
    assert losses[-1] < losses[0]
    assert np.abs(model.means_ - start.means_).max() > 0.01
    assert model.score(X, y) > start.score(X, y)


def test_labels_do_not_move_unlinked_mixtures(iris):
    """The mixtures learn from all rows, labeled or not, where these take part."""
    X, y = iris
    few = np.where(np.arange(150) % 5 == 0, y, -1)
    settings = {**PUBLISHED, "unlabeled_weight": 0.5}
    whole, part = (MixtureNetworkClassifier(4, **settings).fit(X, labels) for labels in (y, few))
    np.testing.assert_allclose(whole.means_, part.means_, rtol=1e-6)
    assert part.score(X, y) > 0.8


def test_without_labels_it_is_a_mixture(iris):
    """It clusters, embeds, imputes, scores and samples, and refuses to name classes."""
    X = iris[0].copy()
    X[::7, 1] = np.nan
    for y in (None, np.full(150, None)):
        model = MixtureNetworkClassifier(3, random_state=0).fit(X, y)
        assert len(np.unique(model.cluster(X))) == 3
        assert model.transform(X).shape == (150, 3)
        assert np.isfinite(model.impute(X)).all()
        assert np.isfinite(model.score_samples(X)).all()
        assert model.sample(5)[0].shape == (5, 4)
        with pytest.raises(NoLabelsError, match="fitted without labels"):
            model.predict(X)


def test_one_class(iris):
    """One class is always the answer."""
    model = MixtureNetworkClassifier(2, random_state=0).fit(iris[0], np.full(150, "a"))
    assert (model.predict(iris[0]) == "a").all()
    np.testing.assert_allclose(model.predict_proba(iris[0]), 1.0)


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_saved_networks_answer_the_same(embedding, flowers, tmp_path):
    """To the bit, for every embedding."""
    X, y = flowers
    model = MixtureNetworkClassifier(
        2, embedding=embedding, calibrate=False, random_state=0, **brief(5)
    ).fit(X, y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_units_do_not_matter(iris):
    """Rescaling features leaves the predictions alone."""
    X, y = iris
    settings = {"calibrate": False, "embedding": "posterior", "random_state": 0, **brief(10)}
    plain = MixtureNetworkClassifier(3, **settings).fit(X, y)
    scaled = MixtureNetworkClassifier(3, **settings).fit(1e4 * X - 7.0, y)
    np.testing.assert_allclose(
        plain.predict_proba(X), scaled.predict_proba(1e4 * X - 7.0), atol=1e-4
    )


def test_components_of_their_own_for_each_class(iris):
    """One number a class."""
    settings = PUBLISHED | brief(3, end_to_end=False)
    model = MixtureNetworkClassifier([1, 2, 4], **settings).fit(*iris)
    assert model.n_components_ == [1, 2, 4]


@pytest.mark.parametrize("n_components", [0, -1, [1, 2], [1.5], [1, 0, 2]])
def test_senseless_numbers_of_components(n_components, iris):
    """Are refused with the remedy."""
    with pytest.raises(InvalidInputError, match="n_components"):
        MixtureNetworkClassifier(n_components).fit(*iris)


def test_more_components_than_rows():
    """One a row, with a warning."""
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with pytest.warns(DegenerateDataWarning, match="more components than rows"):
        model = MixtureNetworkClassifier(9, **PUBLISHED).fit(X, y)
    assert model.n_components_ == [4, 4]


@pytest.mark.parametrize("embedding", ["posterior", "simplex"])
def test_a_component_alone_compares_with_none(embedding, iris):
    """Which is said."""
    settings = PUBLISHED | {"embedding": embedding} | brief(2, end_to_end=False)
    with pytest.warns(DegenerateDataWarning, match="tells nothing"):
        MixtureNetworkClassifier(1, **settings).fit(*iris)


def test_a_read_out_that_uses_nothing(iris):
    """Is told."""
    settings = PUBLISHED | {"solver": LinkedEM(l1=1e6, end_to_end=False)}
    with pytest.warns(DegenerateDataWarning, match="smaller l1"):
        model = MixtureNetworkClassifier(2, **settings).fit(*iris)
    np.testing.assert_allclose(model.predict_proba(iris[0]), 1 / 3, atol=1e-6)


def test_missing_labels_of_every_kind(iris):
    """NaN and None are no labels, as -1 is none."""
    X, y = iris
    few = np.arange(150) % 3 == 0
    settings = PUBLISHED | brief(3, end_to_end=False)
    reference = MixtureNetworkClassifier(3, **settings).fit(X, np.where(few, y, -1))
    for labels in (np.where(few, y, np.nan), np.where(few, y.astype(object), None)):
        model = MixtureNetworkClassifier(3, **settings).fit(X, labels)
        np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(X))


def test_predictions_in_inference_mode_do_not_spoil_later_fits(iris):
    """What is kept for all models is fit for gradients, whoever asked first."""
    X = np.column_stack([iris[0], (iris[0] > iris[0].mean(0)).astype(float)])
    settings = {"embedding": "posterior", "calibrate": False, "random_state": 0}
    settings["categorical_features"] = [4, 5, 6, 7]
    model = MixtureNetworkClassifier(2, **settings | brief(2, end_to_end=False)).fit(X, iris[1])
    for cache in (categorical._slots, batch.index_of):
        cache.cache_clear()
    with torch.inference_mode():
        model.predict(X)
    trained = MixtureNetworkClassifier(2, **settings | brief(2)).fit(X, iris[1])
    assert np.isfinite(trained.coef_).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_cuda(embedding):
    """Minibatches through a captured graph, for every embedding."""
    X, y = make_blobs(4000, centers=4, n_features=3, random_state=0)
    settings = {"embedding": embedding, "calibrate": False, "random_state": 0, **brief(3)}
    model = MixtureNetworkClassifier(4, device="cuda", **settings).fit(X, y % 2)
    assert model.score(X, y % 2) > 0.9


@pytest.mark.parametrize("embedding", ["log_density", "posterior"])
def test_a_row_with_nothing_observed_gets_the_prior(embedding):
    """And one with little observed is little more confident, rightly so."""
    X, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[::2], order[1::2]
    count = 2 if embedding == "log_density" else 8
    model = MixtureNetworkClassifier(count, embedding=embedding, calibrate=False, random_state=0)
    model.fit(X[train], y[train])
    shares = np.bincount(y[train]) / len(train)
    np.testing.assert_allclose(model.class_prior_, shares, atol=0.01)
    empty = model.predict_proba(np.full((1, X.shape[1]), np.nan))
    np.testing.assert_allclose(empty[0], shares, atol=0.02)
    holes = np.random.default_rng(1).random(X[test].shape) < 0.9
    proba = model.predict_proba(np.where(holes, np.nan, X[test]))
    right = proba.argmax(1) == y[test]
    assert abs(proba.max(1).mean() - right.mean()) < 0.12


@pytest.mark.parametrize("n_features", [1, 2])
@pytest.mark.parametrize("embedding", ["log_density", "posterior"])
def test_class_densities_integrate_to_one(embedding, n_features):
    """On a grid, with few labels that are not shared out as the rows are."""
    random = np.random.default_rng(0)
    y = (np.arange(400) % 5 == 0).astype(int)
    X = random.normal(size=(400, n_features)) + 1.5 * y[:, None]
    shown = np.where(np.arange(400) < 10, y, -1)
    shown[np.flatnonzero(y == 1)[:6]] = 1
    settings = {"calibrate": False, "unlabeled_weight": 0.5, "random_state": 0}
    model = MixtureNetworkClassifier(3, embedding=embedding, **settings).fit(X, shown)
    side = np.linspace(-8, 10, 1500 if n_features == 1 else 150)
    grid = np.stack(np.meshgrid(*[side] * n_features), -1).reshape(-1, n_features)
    total = np.exp(model.class_log_density(grid)).sum(0) * (side[1] - side[0]) ** n_features
    np.testing.assert_allclose(total, 1.0, atol=0.02)


def test_draws_of_a_rare_class_are_distinct():
    """They lie where the network finds that class; where it never does, others fill up."""
    random = np.random.default_rng(0)
    y = (np.arange(600) % 30 == 0).astype(int)
    X = random.normal(size=(600, 2)) + 3.0 * y[:, None]
    model = MixtureNetworkClassifier(
        2, embedding="log_density", calibrate=False, random_state=0
    ).fit(X, y)
    drawn, labels = model.sample(300, y=1, random_state=0)
    assert len(np.unique(drawn, axis=0)) == 300
    assert (labels == 1).all()
    many, drawn_labels = model.sample(60_000, random_state=1)
    np.testing.assert_allclose(drawn.mean(0), many[drawn_labels == 1].mean(0), atol=0.25)
    never = replace(model.network_, bias=model.network_.bias + torch.tensor([60.0, -60.0]))
    model.model_ = replace(model.model_, model=never)
    with pytest.warns(DegenerateDataWarning, match="likeliest of the others fill up"):
        drawn, _ = model.sample(3, y=1, random_state=0)
    assert len(np.unique(drawn, axis=0)) == 3


def skewed_clinical(n_rows, seed):
    """Indicators, and numbers with heavy tails whose thresholds decide: 91, 6 and 3 % of rows."""
    random = np.random.default_rng(seed)
    indicators = random.random((n_rows, 15)) < random.uniform(0.01, 0.3, size=15)
    group = random.choice(3, size=n_rows, p=[0.9, 0.07, 0.03])
    spread = np.array([0.9, 0.6, 1.2])[group]
    first = np.exp(np.array([0.2, 2.4, 3.8])[group] + spread * random.normal(size=n_rows))
    first *= np.where((group == 0) & (random.random(n_rows) < 0.01), 40.0, 1.0)
    second = np.where(group == 2, 40.0, 108.0) + 25.0 * random.normal(size=n_rows)
    second = second.clip(2.0)
    ill = (first > 6.0) & ~indicators[:, 0]
    y = np.where(ill & (second < 64.0), 2, np.where(ill & ~indicators[:, 1], 1, 0))
    noise = random.normal(size=(n_rows, 3))
    return np.column_stack([indicators, first, second, noise]), y


def test_rare_classes_of_a_skewed_table_are_found():
    """Boosted trees find all; the majority alone would have a balanced accuracy of a third."""
    X, y = skewed_clinical(3_600, 0)
    model = MixtureNetworkClassifier(embedding="log_density", calibrate=False, random_state=0).fit(
        X[:2_400], y[:2_400]
    )
    assert balanced_accuracy_score(y[2_400:], model.predict(X[2_400:])) > 0.58


def test_thousands_of_categories_have_few_components():
    """Every component has a chance of each: their number is bounded, and with it the work."""
    random = np.random.default_rng(0)
    X = np.column_stack([random.normal(size=5_000), np.arange(5_000)])
    y = (X[:, 0] > 0).astype(int)
    settings = PUBLISHED | {"density": "diag"} | brief(2, end_to_end=False)
    model = MixtureNetworkClassifier(categorical_features=[1], **settings).fit(X, y)
    assert sum(model.n_components_) * 5_000 <= 40_000
    assert np.isfinite(model.predict_proba(X[:9])).all()


def test_many_features_do_not_drown_the_labels():
    """On 800 features the trade-off means what it means on few, in mixtures and networks."""
    random = np.random.default_rng(0)
    y = np.arange(160) % 2
    X = random.normal(size=(160, 800)) + random.normal(size=(160, 5)) @ random.normal(size=(5, 800))
    X[:, :40] += 0.8 * y[:, None]
    settings = {"density": "diag", "tradeoff": 0.05, "calibrate": False, "random_state": 0}
    for model in (
        MixtureNetworkClassifier(1, embedding="log_density", **settings),
        MixtureClassifier(1, objective="conditional", **settings),
    ):
        assert model.fit(X[:60], y[:60]).score(X[60:], y[60:]) > 0.8


@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        ({}, 6),
        ({"embedding": "log_density"}, 8),
        ({"density": LowRank(7)}, 7),
        ({"density": Student("low_rank")}, 6),
    ],
    ids=["open", "by class", "given", "Student"],
)
def test_components_of_all_classes_have_a_rank_for_their_rows(settings, rank, rng):
    """A direction for every eight rows, where that is left open and less than usual.

    Copies of a row, or its weight, tell no more than the row.
    """
    X, y = rng.normal(size=(100, 32)), np.arange(100) % 2
    settings = {"embedding": "posterior", **settings}
    model = MixtureNetworkClassifier(2, calibrate=False, random_state=0, **settings)
    for rows in ((X, y), (np.repeat(X, 2, 0), np.repeat(y, 2)), (X, y, np.full(100, 2.0))):
        density = model.fit(*rows).mixture_.density
        assert getattr(density, "scale", density).rank == rank


def test_what_auto_chose_is_told(flowers):
    """Embedding and how far mixtures specialize, and probabilities are calibrated on the way."""
    model = MixtureNetworkClassifier(2, density="diag", random_state=0, **brief(3))
    model.fit(*flowers)
    assert (model.embedding_, model.specialize_) in {("posterior", 0.0), ("log_density", 1.0)}
    assert model.temperature_ != 1.0
    X, y = (each[:80] for each in load_diabetes(return_X_y=True))
    predictor = MixtureNetworkRegressor(2, random_state=0, **brief(3)).fit(X, y)
    assert predictor.embedding_ in ("posterior", "log_density")


def test_unlabeled_rows_cannot_be_set_aside_where_no_row_has_a_label(iris):
    with pytest.raises(InvalidInputError, match="no row has a label"):
        MixtureNetworkClassifier(1, unlabeled_weight=0).fit(iris[0])
