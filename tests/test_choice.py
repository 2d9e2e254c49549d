"""What "auto" chooses, the rows it holds back for that, holes in training, and the clock."""

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SequenceMixtureClassifier,
    load,
)
from mixtura.data.scaling import Scaling
from mixtura.densities import DiagonalGaussian, Full, LowRank, LowRankGaussian
from mixtura.engines import Engine, Punched
from mixtura.models.calibration import Calibration
from mixtura.objectives import Margin
from mixtura.progress import Progress
from mixtura.selection.held_out import Answers, Averages
from mixtura.solvers import EBW, EM, LBFGS, SOLVERS, Adam, LinkedEM

#: Nothing is left open, so that nothing is compared.
FIXED = {"density": "diag", "tradeoff": 0.5, "n_components": 1}


def engine_of(X, y):
    return Engine(X, y, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))


# -- rows with holes ---------------------------------------------------------------------------


def test_every_row_stands_beside_a_copy_with_holes(iris, generator):
    """Whole rows first; copies lose the stated share; the two share the row's weight."""
    X, y = iris
    engine = engine_of(X, y).seen(Punched(0.3, generator))
    (batch,) = engine.chunks(10**6)
    n = len(X)
    assert len(batch) == 2 * n
    np.testing.assert_array_equal(batch.x[:n], X)
    assert batch.observed[:n].all()
    hidden = ~batch.observed[n:]
    assert 0.2 < hidden.double().mean() < 0.4
    assert (batch.x[n:][hidden] == 0).all()
    np.testing.assert_array_equal(batch.x[n:][~hidden], torch.from_numpy(X.copy())[~hidden])
    assert float(batch.weight.sum()) == pytest.approx(n)


def test_passes_repeat_their_holes_and_minibatches_do_not(iris, generator):
    """A sum over all rows is one function of the model; minibatches see ever new holes."""
    engine = engine_of(*iris).seen(Punched(0.3, generator))
    first, second = (torch.cat([b.observed for b in engine.chunks(64)]) for _ in range(2))
    assert torch.equal(first, second)
    index = torch.arange(50)
    assert not torch.equal(engine.batch(index).observed, engine.batch(index).observed)


def test_natural_holes_stay(holey_iris, generator):
    """What is missing already is missing in both copies."""
    X, y = holey_iris
    (batch,) = engine_of(X, y).seen(Punched(0.2, generator)).chunks(10**6)
    missing = torch.from_numpy(np.isnan(X))
    assert not batch.observed[: len(X)][missing].any()
    assert not batch.observed[len(X) :][missing].any()


@pytest.mark.parametrize("solver", ["lbfgs", "adam", "ebw"])
def test_training_with_holes_changes_the_model(solver, wine):
    """The option does something with every discriminative solver, and the model stays good."""
    settings = {**FIXED, "solver": SOLVERS[solver](5), "calibrate": False, "random_state": 0}
    plain, holed = (
        MixtureClassifier(objective=Margin(holes=share), **settings).fit(*wine)
        for share in (0.0, 0.4)
    )
    assert not np.allclose(plain.means_, holed.means_)
    assert holed.score(*wine) > 0.9


# -- rows held back ----------------------------------------------------------------------------


def test_folds_hold_every_labeled_row_back_once(iris, generator):
    """Disjoint, complete, in proportion to the classes; unlabeled rows always train."""
    X, y = iris
    some = np.where(np.arange(len(y)) % 5 == 0, -1, y)
    engine = engine_of(np.column_stack([X, np.arange(len(X))]), some)
    held = []
    fold = engine.fold_numbers(4, generator)
    for train, back in (engine.split(fold == number) for number in range(4)):
        rows, others = back.all_rows(), train.all_rows()
        assert (rows.y >= 0).all()
        assert len(rows) + len(others) == len(X)
        counts = np.bincount(rows.y)
        assert counts.max() - counts.min() <= 1
        held += rows.x[:, -1].tolist()
    assert sorted(held) == np.flatnonzero(some >= 0).tolist()


def test_a_class_with_one_row_always_trains(generator):
    """Otherwise a fold would have no model of it."""
    y = np.array([0] * 10 + [1])
    engine = engine_of(np.arange(11.0)[:, None], y)
    fold = engine.fold_numbers(3, generator)
    for train, _ in (engine.split(fold == number) for number in range(3)):
        assert 1 in train.y


def test_some_rows_keep_rare_classes(generator):
    """A part of a large table has its rare classes and as many unlabeled rows as labeled."""
    y = np.concatenate([np.zeros(5000), np.ones(20), np.full(3000, -1)]).astype(np.int64)
    part = engine_of(np.arange(8020.0)[:, None], y).sample(500, generator)
    assert (part.y == 1).sum() >= 2
    assert 450 <= int((part.y >= 0).sum()) <= 550
    assert int((part.y < 0).sum()) == 500


# -- what estimators choose --------------------------------------------------------------------


def of_choice(model, **chosen):
    """The rows of `choice_` that were chosen; all are found sound, and the last is as told."""
    assert all(np.isfinite(row["loss"]) for row in model.choice_ if row["rows"] > 0)
    assert all(row["loss"] is None for row in model.choice_ if row["rows"] == 0)
    found = [row for row in model.choice_ if row["chosen"] and row["question"] != "marginals"]
    assert len({row["question"] for row in found}) == len(found)
    told = {name: found[-1][name] for name in chosen}
    assert told == chosen
    return found


#: What a classifier asks held-out rows.
QUESTIONS = ("density", "tradeoff", "missingness", "unlabeled rows", "marginals")
#: Training is cut short, and unlabeled rows are told of.
UNSETTLED = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def flowers_with_holes(holey_iris):
    """36 flowers of two kinds, two thirds of them labeled."""
    X, y = holey_iris[0][32:68], holey_iris[1][32:68]
    return X, [None if at % 3 == 0 else int(label) for at, label in enumerate(y)]


@UNSETTLED
def test_what_a_classifier_compared(flowers_with_holes):
    """Structures, trade-offs, holes and curves in one comparison, unlabeled rows in another."""
    brief = {"solver": LBFGS(2), "init": EM(2), "prior_rows": 0.0, "random_state": 0}
    model = MixtureClassifier(1, **brief).fit(*flowers_with_holes)
    kept = {"tradeoff": model.tradeoff_, "missingness": model.missingness_}
    kept["density"] = repr(model.density_)
    first, second = of_choice(model, unlabeled_weight=model.unlabeled_weight_, **kept)[-2:]
    assert {name: first[name] for name in kept} == kept
    asked = {name: [row for row in model.choice_ if row["question"] == name] for name in QUESTIONS}
    maps, (without, beside) = asked.pop("marginals"), asked.pop("unlabeled rows")
    candidates = [row for rows in asked.values() for row in rows]
    tried = [(row["marginals"], row["chosen"]) for row in maps]
    assert tried == [("power", True), ("ranks", True), ("indicators", True)]
    assert len({row["density"] for row in candidates}) > 1
    assert {row["tradeoff"] for row in candidates} == {0.9, 0.5}
    chosen = {row["missingness"] for row in candidates if row["chosen"]}
    assert chosen == {"ignore"}  # holes tell nothing
    assert {row["unlabeled_weight"] for row in candidates} == {None}
    assert (without["unlabeled_weight"], beside["unlabeled_weight"]) == (0.0, 0.5)
    assert (first["rows"], second["rows"]) == (24, 24)


@UNSETTLED
def test_what_a_boosted_classifier_compared(flowers_with_holes):
    """Whether holes tell something."""
    model = BoostedMixtureClassifier(n_stages=2, solver=EM(2), random_state=0)
    model.fit(*flowers_with_holes)
    (found,) = of_choice(model, missingness=model.missingness_)
    assert [row["missingness"] for row in model.choice_] == ["ignore", "informative"]
    assert found["rows"] == 24


def test_what_a_sequence_classifier_compared():
    """How many states; and then which method, with as many."""
    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    X = [rng.normal(size=(6, 1)) + label * np.sin(np.arange(6.0))[:, None] for label in y]
    settings = {"representation": "states", "solver": EBW(2), "init": EM(2)}
    model = SequenceMixtureClassifier("auto", **settings, random_state=0).fit(X, y)
    first, second = of_choice(model, n_states=model.n_states_)
    assert first["n_states"] == model.n_states_
    assert first["method"] == "ml"
    assert len({row["method"] for row in model.choice_}) > 2
    assert second["rows"] == 20


BRIEF = {"solver": LinkedEM(2, end_to_end=False), "init": EM(2, 0.01), "random_state": 0}


@UNSETTLED
def test_what_a_network_classifier_compared(flowers_with_holes):
    """Embeddings and holes; and then unlabeled rows."""
    model = MixtureNetworkClassifier(2, **BRIEF).fit(*flowers_with_holes)
    kept = {"embedding": model.embedding_, "missingness": model.missingness_}
    *_, first, second = of_choice(model, unlabeled_weight=model.unlabeled_weight_, **kept)
    assert {name: first[name] for name in kept} == kept
    assert [row["embedding"] for row in model.choice_[:2]] == ["posterior", "log_density"]
    assert [row["missingness"] for row in model.choice_[1:3]] == ["ignore", "informative"]
    assert [row["unlabeled_weight"] for row in model.choice_] == [0.0] * 4 + [0.5]
    assert (first["rows"], second["rows"]) == (24, 24)


@UNSETTLED
def test_what_a_network_regressor_compared(holey_iris):
    """Embeddings and holes, by the squared error of rows that have a target."""
    X, y = holey_iris
    target = np.where(np.arange(150) % 3 == 0, np.nan, y + 0.5)
    model = MixtureNetworkRegressor(2, **BRIEF).fit(X, target)
    (found,) = of_choice(model, embedding=model.embedding_, missingness=model.missingness_)
    assert len(model.choice_) == 3
    assert found["rows"] == 100


@UNSETTLED
def test_what_a_density_compared(holey_iris):
    """Structures, and whether holes tell something; it needs no labels."""
    model = MixtureDensity(2, solver=EM(5), random_state=0).fit(holey_iris[0])
    *_, found = of_choice(model, missingness=model.missingness_, density=repr(model.density_))
    assert [row["missingness"] for row in model.choice_] == [*["ignore"] * 4, "informative"]
    assert len({row["density"] for row in model.choice_}) == 4
    assert found["rows"] == 150


def test_what_auto_chose_is_published_and_kept(tmp_path):
    """Diagonal for independent features, low rank for correlated ones; files remember."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    mixing = rng.normal(size=(6, 6)) + 2.0
    X = (rng.normal(size=(400, 6)) + y[:, None] * [1, 0, 0, 0, 0, 0]) @ mixing
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert isinstance(model.density_, LowRank)
    assert model.density_.floor in (0.01, 0.1)
    assert model.tradeoff_ in (0.9, 0.5)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.choice_ == model.choice_
    before = (model.density_, model.tradeoff_)
    model.set_params(warm_start=True).fit(X, y)
    assert (model.density_, model.tradeoff_) == before


def test_a_named_structure_is_not_compared(iris):
    """Who names the structure has chosen."""
    model = MixtureClassifier(1, density="full", solver=LBFGS(3), calibrate=False).fit(*iris)
    assert (model.density_, model.tradeoff_) == (Full(0.01), 0.9)


def test_a_warm_start_from_a_generative_fit_discriminates(iris):
    """The likelihood's trade-off of one is not taken for a choice."""
    settings = {**FIXED, "tradeoff": "auto", "random_state": 0, "warm_start": True}
    model = MixtureClassifier(objective="likelihood", **settings).fit(*iris)
    assert model.tradeoff_ == 1.0
    model.set_params(objective="margin", solver=LBFGS(5)).fit(*iris)
    assert model.tradeoff_ == 0.9


def test_with_a_handful_of_labels_classes_share_a_covariance(iris):
    """From eight labels on, probabilities go by those that are held out; fewer stay modest."""
    X, y = iris
    few = np.where(np.arange(len(y)) % 10 == 0, y, -1)
    model = MixtureClassifier(1, solver=LBFGS(5), random_state=0).fit(X, few)
    assert model.density_ == Full(0.3)
    np.testing.assert_allclose(*model.covariances_[:2], atol=0.02)
    assert model.predict_proba(X).max() > 0.9
    np.testing.assert_allclose(model.scaling_.scale, X.std(0))  # units are those of all rows
    few[np.arange(len(y)) % 50 > 10] = -1
    model.fit(X, few)
    assert (model.temperature_, model.doubt_) == (5.0, 20 / (40 + 6))
    assert model.predict_proba(X).max() <= 0.79


# -- calibration -------------------------------------------------------------------------------


def test_probabilities_with_holes_are_calibrated():
    """With a third of the features missing, the mean confidence is near the accuracy."""
    X, y = load_breast_cancer(return_X_y=True)
    model = MixtureClassifier(random_state=0).fit(X[::2], y[::2])
    rest, truth = X[1::2].copy(), y[1::2]
    rest[np.random.default_rng(0).random(rest.shape) < 1 / 3] = np.nan
    proba = model.predict_proba(rest)
    right = (proba.argmax(1) == truth).mean()
    assert abs(proba.max(1).mean() - right) < 0.05


def test_the_temperature_fades_with_the_features():
    """Whole rows have all of it, empty ones none."""
    joint = np.array([[0.0, 8.0]] * 3)
    missing = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    found = Calibration(4.0, 0.0, 1.0).log_proba(torch.from_numpy(joint), missing)
    expected = [8.0 / 4.0, 8.0 / 2.0, 8.0]
    np.testing.assert_allclose(found[:, 1] - found[:, 0], expected)


# -- what must not matter --------------------------------------------------------------------


HOLDS_OUT = {
    "mixture": MixtureClassifier(1, density="diag", solver=LBFGS(10), random_state=0),
    "boosted": BoostedMixtureClassifier(n_stages=3, solver=EM(20), random_state=0),
    "network": MixtureNetworkClassifier(
        2,
        embedding="log_density",
        solver=LinkedEM(10, end_to_end=False),
        init=EM(10, 0.01),
        random_state=0,
    ),
}


@pytest.mark.parametrize("name", HOLDS_OUT)
def test_copies_and_order_of_rows_do_not_matter(name, iris, rng):
    """Also where rows are held out: copies of a row are one row of their weight."""
    rows = np.unique(np.column_stack(iris), axis=0)[::2]
    X, y = rows[:, :-1], rows[:, -1].astype(int)
    count, order = rng.integers(1, 4, len(y)), rng.permutation(len(y))
    weighted, repeated, permuted = (
        clone(HOLDS_OUT[name]).fit(*data, sample_weight=weight)
        for data, weight in (
            ((X, y), count),
            ((X.repeat(count, 0), y.repeat(count)), None),
            ((X[order], y[order]), count[order]),
        )
    )
    assert weighted.temperature_ != 1.0  # held-out rows had a say
    for other in (repeated, permuted):
        np.testing.assert_allclose(other.predict_proba(X), weighted.predict_proba(X), atol=1e-6)


def test_few_different_rows_with_many_copies_are_calibrated():
    """Copies of a row with one label are not held out together, as if that were never seen."""
    X = np.repeat([[0.0], [1.0], [2.0]], 40, axis=0)
    y = np.concatenate([np.arange(40) < 10, np.arange(40) < 12, np.arange(40) < 30])
    proba = clone(HOLDS_OUT["mixture"]).fit(X, y).predict_proba(X[::40])[:, 1]
    np.testing.assert_allclose(proba, [0.25, 0.3, 0.75], atol=0.1)


# -- the clock ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [LBFGS(100_000), Adam(100_000, early_stopping=False), EBW(100_000)], ids=str
)
def test_max_time_ends_a_fit(solver, clock):
    """A fit that would go on and on ends at its time with a usable model."""
    X, y = make_classification(1000, 30, n_informative=20, n_classes=4, random_state=0)
    settings = {**FIXED, "n_components": 4, "solver": solver, "init": EM(tol=0.0)}
    settings |= {"calibrate": False}
    model = MixtureClassifier(max_time=0.4, **settings).fit(X, y)
    assert 0.4 <= clock.now < 0.6
    assert not model.converged_
    assert model.score(X, y) > 0.4


def test_max_time_of_the_density(wine, clock):
    """The unsupervised estimator has a clock too."""
    model = MixtureDensity(5, max_time=0.1, solver=EM(10**6, 0.0)).fit(wine[0])
    assert 0.1 <= clock.now < 0.3
    assert not model.converged_
    assert model.score(wine[0]) > MixtureDensity(1).fit(wine[0]).score(wine[0])


def test_the_clock_of_a_part(clock):
    """Work on the side gets a share of what is left; no limit stays no limit."""
    assert Progress().part(0.5).time_spent == 0.0
    begun = Progress(max_time=1.0)
    clock.now += 0.5 - 2 * clock.tick
    assert begun.part(0.5).time_spent == pytest.approx(clock.tick / 0.25, rel=0.1)
    clock.now += 0.5
    assert begun.time_spent >= 1.0
    assert begun.part(0.5).step({"objective": 0.0})


def test_engines_agree_where_nothing_is_punched(iris, generator):
    """A share of zero leaves every sum as it was."""
    plain = engine_of(*iris)
    density = DiagonalGaussian.from_clusters(
        plain.all_rows().x, torch.ones(150, 1).double(), 1e-3, generator
    )
    sums = [
        engine.sum(lambda b: {"x": (b.x * b.weight[:, None]).sum(0)}, density)["x"]
        for engine in (plain, plain.seen(Punched(0.0, generator)))
    ]
    torch.testing.assert_close(*sums)


def test_calibration_is_where_the_slope_vanishes(rng):
    """The derivatives are those of finite differences, and no other start finds less."""
    y, missing = rng.integers(3, size=60), np.repeat([0.0, 0.4], 30)
    joint = 8.0 * rng.normal(size=(60, 3))
    joint[np.arange(60), y] += 12.0 * (rng.random(60) < 0.8)
    evidence = rng.normal(size=(60, 3))
    answers = Answers(rng.uniform(0.5, 2.0, 60), missing > 0.0, joint, missing, y, evidence)

    def loss(point):
        return answers._loss_and_slope(point)[0]

    for point in np.array([[0.0, 1.0, -3.0], [1.5, 0.3, -1.0], [-1.0, 2.5, 1.0]]):
        slope = approx_fprime(point, loss, 1e-7)
        np.testing.assert_allclose(answers._loss_and_slope(point)[1], slope, 1e-4, 1e-4)
    found = answers.calibration
    point = [np.log(found.temperature), found.fade, logit(found.doubt / 0.5)]
    least = loss(np.array(point))
    plain = minimize(loss, [1.0, 1.0, -2.0], method="Nelder-Mead", options={"maxiter": 2000})
    assert least <= plain.fun + 1e-6


def test_averages_are_expected_to_be_too_cautious(rng):
    """Until held-out rows say otherwise."""

    def temperatures(n, best):
        """By n rows, whole and with holes, whose log-joints are right at the best temperature."""
        joint = np.tile(rng.normal(scale=3.0, size=(n, 2)), (2, 1))
        y = np.tile((rng.random(n) < expit((joint[:n, 1] - joint[:n, 0]) / best)).astype(int), 2)
        rows = np.ones(2 * n), np.repeat([False, True], n), joint, np.zeros(2 * n), y, 0.0 * joint
        return [kind(*rows).calibration.temperature for kind in (Answers, Averages)]

    few = np.log([temperatures(3, 1.0) for _ in range(20)])
    assert np.abs(few[:, 1] + 0.3).max() < 0.5 < np.abs(few[:, 0]).max()
    for best in (0.3, 3.0):
        assert temperatures(20_000, best) == pytest.approx([best, best], rel=0.1)


@pytest.mark.parametrize(("n_labels", "compared"), [(100, True), (120, False)])
def test_few_labels_of_many_columns_are_also_compared_by_variances(rng, n_labels, compared):
    """Which many columns that each tell a little need: their spread cannot be learned."""
    y = np.arange(n_labels) % 2
    X = rng.normal(size=(n_labels, 150)) + 0.3 * y[:, None]
    model = MixtureClassifier(random_state=0, marginals="linear").fit(X, y)
    assert ("Diagonal(floor=0.3)" in [row["density"] for row in model.choice_]) == compared


def test_of_very_many_columns_ranks_have_variances_alone(rng):
    y = np.arange(24) % 2
    X = rng.normal(size=(24, 250)) + 0.5 * y[:, None]
    for columns, density in ((250, DiagonalGaussian), (200, LowRankGaussian)):
        model = MixtureClassifier(random_state=0).fit(X[:, :columns], y)
        member = model.model_.blend.members[model.marginals_.index("ranks") - 1]
        assert isinstance(member.mixture.density, density)
