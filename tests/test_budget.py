"""A limit of time costs no accuracy against a smaller sample, and what it cost is said."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs, make_classification
from sklearn.exceptions import ConvergenceWarning

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
    progress,
)
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, warn_if_cut_short
from mixtura.solvers import EBW, EM, LBFGS, Adam, FitResult, LinkedEM, Solver

#: Seconds that the clock of these tests takes to read a row.
SECONDS_PER_ROW = 1e-5


class Clock:
    """A clock that goes on when it is told to, and by a tick when it is read."""

    def __init__(self):
        self.now, self.tick = 0.0, 0.0

    def perf_counter(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch, large):
    """What a fit takes for the time: as much of it passes as rows are read, in every pass."""
    read, ticking = Engine._rows_at, Clock()

    def rows_at(self, index):
        found = read(self, index)
        ticking.now += SECONDS_PER_ROW * len(found)
        return found

    def rows_in_order(self, n_rows):
        return (self._rows_at(slice(at, at + n_rows)) for at in range(0, len(self), n_rows))

    monkeypatch.setattr(Engine, "_rows_at", rows_at)
    monkeypatch.setattr(Engine, "_rows_in_order", rows_in_order)
    monkeypatch.setattr(progress, "time", ticking)
    return ticking


@pytest.fixture(scope="module")
def rows():
    """30,000 rows of five features, three classes of two clusters; 5,000 more are held out."""
    X, y = make_classification(
        35_000, 5, n_informative=5, n_redundant=0, n_classes=3, class_sep=1.5, random_state=1
    )
    return X[:-5000], y[:-5000], X[-5000:], y[-5000:]


def fit(model, *data):
    """The model, and the warnings about its training."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data)
    kinds = [each for each in caught if issubclass(each.category, ConvergenceWarning)]
    return model, [str(each.message) for each in kinds]


FIXED = {"n_components": 2, "density": "full", "tradeoff": 0.5, "calibrate": False}
LINKED = {"solver": LinkedEM(10, end_to_end=False), "init": EM(10, 0.01)}
NETWORK = {"embedding": "log_density", "calibrate": False, **LINKED}
BOOSTED = {"n_stages": 2, "early_stopping": False, "calibrate": False}
CASES = {
    "adam": (MixtureClassifier, {**FIXED, "solver": Adam(5, batch_size=500)}),
    "lbfgs": (MixtureClassifier, {**FIXED, "solver": LBFGS(10)}),
    "ebw": (MixtureClassifier, {**FIXED, "solver": EBW(10)}),
    "em": (MixtureClassifier, {**FIXED, "objective": "likelihood"}),
    "network": (MixtureNetworkClassifier, {**NETWORK, "n_components": 2}),
    "boosted": (BoostedMixtureClassifier, BOOSTED),
}


@pytest.mark.parametrize("name", CASES)
def test_a_limit_costs_no_accuracy_against_a_smaller_sample(name, rows, clock):
    """What 2,000 rows reach within the time, 30,000 rows reach in time too; and it is said."""
    kind, settings = CASES[name]
    X, y, X_test, y_test = rows
    sample, _ = fit(kind(random_state=0, **settings), X[:2000], y[:2000])
    allowed = (10.0 if name == "lbfgs" else 3.0) * sample.history_[-1]["seconds"]
    model, messages = fit(kind(random_state=0, max_time=allowed, **settings), X, y)
    assert model.history_[-1]["seconds"] < 1.6 * allowed
    assert model.score(X_test, y_test) > sample.score(X_test, y_test) - 0.01
    # L-BFGS has more time: it comes to all rows, and does not settle on them.
    told = ": it stopped before it had settled" if name == "lbfgs" else "of the 30,000 rows"
    assert [told in message for message in messages] == [True]
    assert not getattr(model, "converged_", False)


def test_a_limit_of_the_density(rows, clock):
    """The density of a sample, not one iteration over all rows."""
    X, _, X_test, _ = rows
    full = {"density": "full", "random_state": 1}
    sample = MixtureDensity(6, **full).fit(X[:3000])
    allowed = 3.0 * sample.history_[-1]["seconds"]
    model, messages = fit(MixtureDensity(6, max_time=allowed, **full), X)
    assert model.score(X_test) > sample.score(X_test) - 0.01
    assert len(messages) == 1
    assert not model.converged_


def test_a_limit_of_a_regression(rows, clock):
    """A network that predicts numbers begins with a sample too."""
    X, _, X_test, _ = rows
    y, y_test = (0.1 * each[:, 0] ** 2 + each[:, 1] for each in (X, X_test))
    settings = {**NETWORK, "n_components": 5, "random_state": 0}
    del settings["calibrate"]
    sample = fit(MixtureNetworkRegressor(**settings), X[:2000], y[:2000])[0]
    allowed = 3.0 * sample.history_[-1]["seconds"]
    model, messages = fit(MixtureNetworkRegressor(max_time=allowed, **settings), X, y)
    assert model.score(X_test, y_test) > sample.score(X_test, y_test) - 0.02
    assert len(messages) == 1
    assert not model.converged_


def test_a_limit_of_mixtures_over_features_and_targets(rows, clock):
    """They begin with a sample, too; each model that is averaged learns from as many as it can."""
    X, _, X_test, _ = rows
    y, y_test = (0.1 * each[:, 0] ** 2 + each[:, 1] for each in (X, X_test))
    settings = {"density": "full", "random_state": 0}
    sample = fit(MixtureRegressor(4, **settings), X[:2000], y[:2000])[0]
    allowed = 0.5 * sample.history_[-1]["seconds"]
    model, messages = fit(MixtureRegressor(4, max_time=allowed, **settings), X, y)
    assert clock.now - sample.history_[-1]["seconds"] < 1.6 * allowed
    assert model.score(X_test, y_test) > sample.score(X_test, y_test) - 0.02
    assert ["of the 30,000 rows" in message for message in messages] == [True]
    assert not model.converged_


@pytest.mark.parametrize("name", ["adam", "em", "network", "boosted"])
def test_time_enough_changes_nothing(name, rows, clock):
    """Where all rows are trained on in time, the model is that without a limit, and is silent."""
    kind, settings = CASES[name]
    X, y = rows[0][:2500], rows[1][:2500]
    free, without = fit(kind(random_state=0, **settings), X, y)
    limited, messages = fit(kind(max_time=1e6, random_state=0, **settings), X, y)
    np.testing.assert_allclose(limited.predict_proba(X), free.predict_proba(X), rtol=1e-9)
    assert messages == without
    if name != "boosted":
        assert limited.converged_ == free.converged_


def test_the_start_of_a_discriminative_fit_reads_a_sample(rows, clock, monkeypatch):
    """EM on all rows would find no better start: it has 30,000 at most, without a limit too."""
    monkeypatch.setattr("mixtura.training.hybrid._MOST_TO_START", 2000)
    settings = {**FIXED, "solver": Adam(1, early_stopping=False), "prior_rows": 0.0}
    model = MixtureClassifier(**settings).fit(*rows[:2])
    em = [record["seconds"] for record in model.history_ if record["stage"] == "EM"]
    # An iteration reads the rows of all classes, rounded up in each of them.
    assert 0.0 < em[-1] - em[0] <= (len(em) - 1) * 2003 * SECONDS_PER_ROW


def test_a_limit_of_sparse_and_sequence_models(clock):
    """They say that time was up."""
    clock.tick = 0.1
    X, y = make_classification(300, 4, random_state=0)
    model, messages = fit(SparseMixtureClassifier(max_time=1.0, random_state=0), X, y)
    assert ["max_time=1 s" in message for message in messages] == [True]
    assert not model.converged_
    sequences = list(X.reshape(60, 20, 1))
    model = SequenceMixtureClassifier(2, max_time=1.0, random_state=0)
    _, messages = fit(model, sequences, y[::5])
    assert ["max_time=1 s" in message for message in messages] == [True]


def test_samples_grow_as_time_allows(clock):
    """Half of the time left, ten times the rows at most; then the last model is trained further."""
    watch, trained = Progress(max_time=100.0), []

    rows = np.zeros((300_000, 1))
    engine = Engine(rows, scaling=Scaling.identity(1), device=torch.device("cpu"))

    def train(sample, generator, latest):
        trained.append((len(sample), latest))
        clock.now += 1e-3 * len(sample)
        watch.step({"objective": 0.0})
        return len(sample)

    budget = Budget(watch, train, lambda model, rows: -model, torch.Generator())
    found = budget.run(engine)
    assert trained == [(1000, None), (10_000, None), (44_500, None), (178_000, 44_500)]
    assert found.n_rows == 178_000


def test_a_share_of_the_time_is_not_the_whole_fit(clock):
    """Where work on the side was ended, and all rows were used to the end, only that is said."""
    watch = Progress(max_time=100.0)
    side = watch.part(0.1)
    clock.now += 20.0
    assert side.step({"objective": 0.0})
    with pytest.warns(ConvergenceWarning, match=r"preparation of the fit short \(80 s are left"):
        assert not warn_if_cut_short(watch, 10, 10)


def test_what_was_not_compared_is_said(clock):
    """Trials that the clock ends leave the choice to the machine; a callback is no clock."""
    X, y = make_classification(400, 5, random_state=0)
    model = MixtureClassifier(1, max_time=0.02, random_state=0)
    with pytest.warns(ConvergenceWarning, match="cut the fit short.*candidates were not all"):
        model.fit(X, y)
    calls = iter(range(10**6))
    model.set_params(max_time=10**6).set_callbacks(lambda record: next(calls) > 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert not [w for w in caught if "max_time" in str(w.message)]


def test_a_loss_that_is_no_number_never_wins():
    """Of several models the best one is kept."""
    watch = Progress(max_time=1e9)
    engine = Engine(np.zeros((9000, 1)), scaling=Scaling.identity(1), device=torch.device("cpu"))
    sizes = []

    def train(rows, generator, latest):
        sizes.append(len(rows))
        watch.stopped = len(sizes) == 2
        return len(sizes)

    losses = {1: float("nan"), 2: 1.0}
    budget = Budget(watch, train, lambda model, rows: losses[model], torch.Generator())
    found = budget.run(engine)
    assert (sizes[0], found.model) == (1000, 2)


def test_very_many_rows_begin_with_the_model_of_a_sample(monkeypatch):
    """Training on all rows goes on from there, and is no worse by its own objective."""
    monkeypatch.setattr("mixtura.training.hybrid._TRAINED_FIRST", 60)
    X, y = make_blobs(600, centers=4, cluster_std=3.0, random_state=0)
    model = MixtureClassifier(2, density="diag", solver=LBFGS(6, tol=0.0), tradeoff=0.5)
    model.set_params(calibrate=False, random_state=0).fit(X, y)
    steps = [record for record in model.history_ if record["stage"] == "L-BFGS"]
    assert [record["iteration"] for record in steps] == [*range(1, 7)] * 2
    assert steps[-1]["objective"] < steps[6]["objective"]
    assert model.n_iter_ == 6


def test_solvers_that_go_by_minibatches_begin_with_all_rows(monkeypatch):
    """A solver of one's own learns once, as Adam does: only full passes are many and slow."""
    seen = []

    class Own(Solver):
        def run(self, model, objective, engine, progress, **options):
            seen.append(len(engine))
            return FitResult(model, 0.0, 1, True)

    monkeypatch.setattr("mixtura.training.hybrid._TRAINED_FIRST", 60)
    X, y = make_blobs(600, centers=4, random_state=0)
    MixtureClassifier(2, density="diag", solver=Own(), calibrate=False, random_state=0).fit(X, y)
    assert seen == [600]


@pytest.mark.parametrize("allowed", [0.3, 0.5])
def test_short_of_time_a_classifier_is_not_surer_than_it_is_right(allowed, clock):
    """Trials that the clock cut short would say too little of a model that learns for longer."""
    X, y = make_classification(3_000, 20, n_informative=8, flip_y=0.2, n_classes=3, random_state=0)
    clock.tick = 1e-3
    model, messages = fit(MixtureClassifier(max_time=allowed, random_state=0), X[:400], y[:400])
    assert "not all trained to the end" in messages[0]
    sure = model.predict_proba(X[400:]).max(1).mean()
    assert sure - model.score(X[400:], y[400:]) < 0.05
