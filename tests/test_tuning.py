"""The search for parameters: what it finds, how it goes on, and what it refuses."""

import importlib
import logging
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

pytest.importorskip("optuna")

from optuna.distributions import FloatDistribution, IntDistribution
from optuna.logging import get_verbosity
from optuna.pruners import NopPruner, ThresholdPruner
from optuna.trial import TrialState

from mixtura import MixtureClassifier, MixtureDensity
from mixtura.densities import Diagonal, Spherical
from mixtura.exceptions import InvalidInputError
from mixtura.objectives import Margin
from mixtura.solvers import EM, LBFGS
from mixtura.tuning import tune

QUICK = {
    "solver": LBFGS(2),
    "init": EM(max_iter=2, tol=0.01),
    "prior_rows": 0.0,
    "calibrate": False,
}
ALL = {"states": (TrialState.COMPLETE, TrialState.PRUNED)}
FLOOR = {"density__floor": FloatDistribution(1e-3, 1e-1, log=True)}


def quick(**parameters):
    """A classifier that is fitted in a blink."""
    return MixtureClassifier(**{"n_components": 1, "density": Diagonal(), **QUICK, **parameters})


def global_numbers():
    """The state of the random numbers that everybody shares."""
    return np.random.mtrand._rand.get_state()[2], *np.random.mtrand._rand.get_state()[1]


def outcome(study):
    """What a search tried, and what came of it."""
    return [(trial.params, trial.value, trial.state) for trial in study.trials]


# -- searching -----------------------------------------------------------------------------


def test_a_poor_start_is_left_behind(wine):
    """A huge floor on the variances and next to no discriminative term."""
    X, y = wine
    poor = MixtureClassifier(1, density=Spherical(50.0), tradeoff=0.999, **QUICK)
    best, study = tune(poor, X, y, n_trials=8, cv=2, random_state=0)
    assert study.trials[0].params == {}
    assert study.best_value > study.trials[0].value + 0.3
    folds = StratifiedKFold(4, shuffle=True, random_state=99)
    before, after = (
        cross_val_score(model, X, y, cv=folds, scoring="neg_log_loss").mean()
        for model in (poor, best)
    )
    assert after > before + 0.3
    assert poor.density == Spherical(50.0)
    assert not hasattr(poor, "classes_")


def test_the_first_trial_is_scikit_learns_score_of_the_start(flowers):
    """Same folds, same measure, computed by cross_val_score."""
    X, y = flowers
    folds, start = StratifiedKFold(3), quick(random_state=0)
    _, study = tune(start, X, y, n_trials=1, cv=folds, scoring="accuracy")
    assert study.best_value == cross_val_score(start, X, y, cv=folds, scoring="accuracy").mean()


def test_the_best_value_is_that_of_the_estimator_returned(flowers):
    """And the search never ends below its start, however bad the space."""
    X, y = flowers
    folds = StratifiedKFold(3)
    best, study = tune(quick(), X, y, n_trials=4, cv=folds, random_state=1)
    again = cross_val_score(best, X, y, cv=folds, scoring="neg_log_loss").mean()
    assert study.best_value == pytest.approx(again, abs=1e-12)
    awful = {"density__floor": FloatDistribution(100.0, 1000.0)}
    best, study = tune(quick(), X, y, n_trials=3, cv=folds, space=awful, random_state=1)
    assert best.density == quick().density
    assert study.best_trial.number == 0


def test_the_same_seed_gives_the_same_search(flowers):
    """Without touching anybody else's random numbers or settings."""
    X, y = flowers
    before, verbosity = global_numbers(), get_verbosity()
    (one, first), (two, second), (_, third) = (
        tune(quick(), X, y, n_trials=4, cv=2, random_state=seed) for seed in (3, 3, 4)
    )
    assert outcome(first) == outcome(second)
    assert outcome(first) != outcome(third)
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))
    assert global_numbers() == before
    assert get_verbosity() == verbosity == logging.INFO


def test_a_seed_the_user_has_set_stays(flowers):
    """Only a random_state of None is replaced."""
    X, y = flowers
    best, _ = tune(quick(random_state=7), X, y, n_trials=1, cv=2, random_state=0)
    assert best.random_state == 7
    best, _ = tune(quick(), X, y, n_trials=1, cv=2, random_state=0)
    assert isinstance(best.random_state, int)


@pytest.mark.parametrize("name", ["search.db", "search.log", "sqlite:///{}/url.db"])
def test_a_search_goes_on_where_it_ended(flowers, tmp_path, name):
    """n_trials is the number in all; what was tried stays, and is not tried again."""
    X, y = flowers
    place = name.format(tmp_path) if "://" in name else tmp_path / name
    options = {"cv": 2, "storage": place, "space": FLOOR, "pruner": NopPruner()}
    _, first = tune(quick(), X, y, n_trials=3, random_state=0, **options)
    kept = outcome(first)
    _, second = tune(quick(), X, y, n_trials=6, random_state=1, **options)
    assert outcome(second)[:3] == kept
    assert len(second.trials) == 6
    tried = [tuple(trial.params.items()) for trial in second.trials]
    assert len(set(tried)) == 6
    best, third = tune(quick(), X, y, n_trials=6, **options)
    assert outcome(third) == outcome(second)
    assert best.density.floor == third.best_params.get("density__floor", quick().density.floor)


def test_an_interrupted_trial_is_made_good(flowers, tmp_path):
    """Ctrl-C ends the search; the next call has the trials so far, and the start again."""
    X, y = flowers
    calls = []

    def interrupt(trial):
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"density__floor": trial.suggest_float("density__floor", 1e-3, 1e-1, log=True)}

    options = {"cv": 2, "storage": tmp_path / "search.log", "random_state": 0}
    with pytest.raises(KeyboardInterrupt):
        tune(quick(), X, y, n_trials=4, space=interrupt, **options)
    _, study = tune(quick(), X, y, n_trials=4, space=FLOOR, **options)
    assert len(study.get_trials(**ALL)) == 4
    assert [trial.number for trial in study.trials if not trial.params] == [0, 2]


def test_a_study_is_not_continued_with_another_measure(flowers, tmp_path):
    """Its scores could not be compared."""
    X, y = flowers
    options = {"n_trials": 1, "cv": 2, "storage": tmp_path / "search.log"}
    tune(quick(), X, y, **options)
    with pytest.raises(InvalidInputError, match=r"measures neg_log_loss .* not accuracy"):
        tune(quick(), X, y, scoring="accuracy", **options)
    tune(quick(), X, y, scoring="accuracy", study_name="another", **options)


def test_trials_that_fall_behind_are_given_up(flowers):
    """After the first fold, with five trials to compare with."""
    X, y = flowers
    floors = iter([0, 0, 0, 0, 0, 0, 100, 0, 100, 0])  # the last for the refit of the best
    space = {"space": lambda trial: {"density__floor": 1e-3 + next(floors)}}
    _, study = tune(quick(), X, y, n_trials=9, cv=3, **space)
    states = [trial.state for trial in study.trials]
    assert [number for number, state in enumerate(states) if state == TrialState.PRUNED] == [6, 8]
    assert [len(study.trials[number].intermediate_values) for number in (0, 6, 8)] == [3, 1, 1]
    assert "error" not in study.trials[6].user_attrs


def test_the_start_is_never_given_up(flowers):
    """Whatever the pruner says."""
    X, y = flowers
    options = {"space": FLOOR, "pruner": ThresholdPruner(lower=1.0)}
    _, study = tune(quick(), X, y, n_trials=3, cv=2, **options)
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]


def test_trials_in_threads(flowers):
    """Two at a time: as many trials, as good a result."""
    X, y = flowers
    best, study = tune(quick(), X, y, n_trials=6, cv=2, n_jobs=2, random_state=0)
    assert len(study.get_trials(**ALL)) == 6
    assert study.best_value >= study.trials[0].value
    assert best.score(X, y) > 0.9


def test_a_pipeline(wine):
    """Parameters go to the last step, whose features are those of the step before."""
    X, y = wine
    model = make_pipeline(StandardScaler(), PCA(3), quick())
    weight = np.ones(len(y))
    best, study = tune(model, X, y, n_trials=6, cv=2, sample_weight=weight, random_state=0)
    assert study.study_name == "MixtureClassifier"
    assert best.score(X, y) > 0.9
    ranks = [t.distributions["rank"].high for t in study.trials if "rank" in t.params]
    assert set(ranks) <= {2}
    step = {"pca__n_components": IntDistribution(2, 5)}
    best, study = tune(model, X, y, n_trials=3, cv=2, space=step, random_state=0)
    assert best["pca"].n_components in (3, study.best_params.get("pca__n_components"))


def test_unlabeled_rows_train_and_are_never_scored(flowers):
    """For numbers of folds and for given rows alike."""
    X, y = flowers
    y = np.where(np.arange(len(y)) % 3 == 0, -1, y)
    scored, given = [], list(GroupKFold(3).split(X, y, groups=np.arange(len(y)) % 7))

    def scorer(model, rows, labels):
        scored.append(labels)
        assert np.isclose(model.class_count_.sum(), len(X) - len(rows), atol=1e-6)
        return model.score(rows, labels)

    for cv in (3, given):
        scored.clear()
        model = quick().set_params(unlabeled_weight=0.5)
        _, study = tune(model, X, y, n_trials=2, cv=cv, scoring=scorer, random_state=0)
        assert (np.concatenate(scored[:3]) >= 0).all()
        assert len(np.concatenate(scored[:3])) == (y >= 0).sum()
        assert "unlabeled_weight" in study.trials[1].params


@pytest.mark.parametrize("names", [[0, 1, 2], ["a", "b", "c"]])
def test_none_marks_unlabeled_rows_of_object_arrays(flowers, names):
    """As in fit."""
    X, y = flowers
    labels = np.array([names[label] for label in y], dtype=object)
    labels[::4] = None
    best, study = tune(quick(), X, labels, n_trials=2, cv=2, random_state=0)
    assert len(study.trials) == 2
    assert best.classes_.tolist() == names


def test_weights_reach_the_fits(flowers):
    """Rows of weight nothing might as well hold nonsense."""
    X, y = flowers
    weight = np.where(np.arange(len(y)) % 5 == 0, 0.0, 1.0)
    spoilt = np.where(weight[:, None] == 0, 1e6, X)
    options = {"n_trials": 2, "cv": 2, "sample_weight": weight, "random_state": 0}
    scoring = {"scoring": lambda model, rows, labels: model.margin_bound_}
    values = [tune(quick(), rows, y, **options, **scoring).study.best_value for rows in (X, spoilt)]
    assert values[0] == values[1]


def test_density_search(flowers):
    """More components than one are found, and judged by held-out density."""
    X, _ = flowers
    folds = [(np.arange(0, 75, 2), np.arange(1, 75, 2))]
    best, study = tune(
        MixtureDensity(1, density="spherical", solver=EM(20)),
        X,
        n_trials=10,
        cv=folds,
        random_state=0,
    )
    assert best.n_components > 1
    held_out = clone(best).fit(X[folds[0][0]]).score(X[folds[0][1]])
    assert study.best_value == pytest.approx(held_out, abs=1e-12)


def test_a_data_frame(flowers):
    """Rows are taken by position."""
    pandas = pytest.importorskip("pandas")
    X, y = flowers
    table = pandas.DataFrame(X, columns=list("abcd"), index=np.arange(75)[::-1])
    best, _ = tune(quick(), table, pandas.Series(y), n_trials=2, cv=2, random_state=0)
    assert best.feature_names_in_.tolist() == list("abcd")
    assert best.score(table, y) > 0.9


# -- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_trials": 0}, "n_trials=0"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"cv": 26}, "class 0 has 25 labeled rows, too few for cv=26"),
        ({"cv": 1}, "n_splits"),
        ({"scoring": "no_such_score"}, "no_such_score"),
        ({"scoring": ["accuracy"]}, "one name or one callable"),
        ({"space": {"no_such": FloatDistribution(0, 1)}}, "Invalid parameter 'no_such'"),
        ({"space": lambda trial: {"no_such": 1}}, "Invalid parameter 'no_such'"),
        ({"space": {"tradeoff": [0, 1]}}, r"space\['tradeoff'\] is \[0, 1\]"),
        ({"space": 3}, "space=3"),
        ({"sample_weight": [1.0, 2.0]}, "sample_weight has shape"),
    ],
)
def test_bad_input_is_refused_before_any_work(flowers, options, message):
    """Not one fit is begun."""
    begun = []
    model = quick().set_callbacks(begun.append)
    with pytest.raises(ValueError, match=message):
        tune(model, *flowers, **{"n_trials": 2, **options})
    assert not begun


def test_bad_labels_are_refused(flowers):
    """Too few, none, or none that count."""
    X, y = flowers
    for labels, message in ((y[:-1], "inconsistent"), (None, "needs y"), (y * np.nan, "labeled")):
        with pytest.raises(ValueError, match=message):
            tune(quick(), X, labels, n_trials=2)


def test_fits_that_fail(flowers):
    """One is a trial given up, with its message; all of them are an error that quotes the last."""
    X, y = flowers
    values = iter([1e-3, 1e-3, -1.0, 1e-3])
    space = {"space": lambda trial: {"density__floor": next(values)}}
    _, study = tune(quick(), X, y, n_trials=3, cv=2, **space)
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED]
    assert "'floor' parameter of Diagonal" in study.trials[2].user_attrs["error"]
    with pytest.raises(ValueError, match=r"each of the 2 trials failed.*'margin' parameter"):
        tune(quick(objective=Margin(-1.0)), X, y, n_trials=2, cv=2, space=FLOOR)
    with pytest.raises(ValueError, match="the score is nan"):
        tune(quick(), X, y, n_trials=1, cv=2, scoring=lambda *_: np.nan)
    with pytest.raises(ValueError, match="raise timeout"):
        tune(quick(), X, y, cv=2, timeout=0.0)


def test_verbose_shows_the_trials(flowers):
    """And silence is the default."""
    X, y = flowers
    logger = logging.getLogger("optuna")
    shown = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    logger.addHandler(handler)
    try:
        tune(quick(), X, y, n_trials=1, cv=2)
        assert not shown
        tune(quick(), X, y, n_trials=1, cv=2, verbose=1)
        assert any("Trial 0 finished" in line for line in shown)
    finally:
        logger.removeHandler(handler)


def test_without_optuna(monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "mixtura.tuning")
    with pytest.raises(ImportError, match=r"pip install 'mixtura\[tune\]'"):
        importlib.import_module("mixtura.tuning")
