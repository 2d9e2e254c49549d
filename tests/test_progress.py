"""What a fit tells: history, callbacks, displays."""

import builtins
import re
import warnings

import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from mixtura import MixtureClassifier, MixtureDensity, progress
from mixtura.data import meter
from mixtura.progress import Progress, describe
from mixtura.solvers import EBW, EM, LBFGS, Adam

STAGES = {"em": "EM", "ebw": "EBW", "adam": "Adam", "lbfgs": "L-BFGS"}


def fit(name, data, *callbacks, max_iter=4, **options):
    """A short fit by the given solver, warnings about its shortness left out."""
    objective = "likelihood" if name == "em" else "conditional"
    solvers = {"em": EM(max_iter, tol=0.0), "ebw": EBW(max_iter)}
    solvers |= {"adam": Adam(max_iter), "lbfgs": LBFGS(max_iter)}
    options |= {"density": "diag", "calibrate": False, "random_state": 0}
    model = MixtureClassifier(2, objective=objective, solver=solvers[name], **options)
    model.set_callbacks(*callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data)


@pytest.fixture
def without_rich(monkeypatch):
    """An environment in which rich is not installed."""
    original = builtins.__import__

    def import_without_rich(name, *args, **kwargs):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_rich)


@pytest.mark.parametrize("solver", STAGES)
def test_history(solver, iris):
    """One record an iteration: stage, number, objective, seconds; numbers count up."""
    model = fit(solver, iris)
    stages = {record["stage"] for record in model.history_}
    assert STAGES[solver] in stages
    for record in model.history_:
        assert {"stage", "iteration", "objective", "seconds"} <= set(record)
    seconds = [record["seconds"] for record in model.history_]
    assert seconds == sorted(seconds)
    if solver != "em":
        own = [r["iteration"] for r in model.history_ if r["stage"] == STAGES[solver]]
        assert own == list(range(1, len(own) + 1))
        assert model.n_iter_ == len(own) <= 4


def test_validation_is_recorded(iris):
    """Held-back rows show up in the history."""
    model = fit("adam", iris)
    own = [record for record in model.history_ if record["stage"] == "Adam"]
    assert all(0.0 <= record["validation_error"] <= 1.0 for record in own)
    assert all("validation_objective" in record for record in own)


@pytest.mark.parametrize("solver", STAGES)
def test_callbacks_see_every_record(solver, iris):
    """In order, and each the same as in the history."""
    first, second = [], []
    model = fit(solver, iris, first.append, second.append)
    assert first == second == model.history_


@pytest.mark.parametrize("solver", ["ebw", "adam", "lbfgs"])
def test_a_callback_can_stop(solver, iris):
    """True ends training after that iteration; the model is usable."""
    stop = lambda record: record["stage"] == STAGES[solver] and record["iteration"] == 2  # noqa: E731
    model = fit(solver, iris, stop, max_iter=50)
    assert model.n_iter_ == 2
    assert not model.converged_
    assert model.score(*iris) > 0.9


def test_a_callback_can_stop_em(iris):
    """In the unsupervised estimator as well; only True itself stops."""
    em = EM(20, tol=0.0)
    quiet = MixtureDensity(3, random_state=0, solver=em)
    with pytest.warns(ConvergenceWarning):
        quiet.fit(iris[0])
    with pytest.warns(ConvergenceWarning):
        model = clone(quiet).set_callbacks(lambda r: r["iteration"]).fit(iris[0])
    assert model.n_iter_ == quiet.n_iter_
    model = clone(clone(quiet).set_callbacks(lambda r: r["iteration"] == 3)).fit(iris[0])
    assert model.n_iter_ == 3
    assert not model.converged_


@pytest.mark.parametrize("solver", STAGES)
def test_plain_lines(solver, iris, without_rich, capsys):
    """Without rich, progress is printed: stage, iteration, objective, time left."""
    fit(solver, iris, verbose=1, init=EM(3, tol=0.0))
    out = capsys.readouterr().out
    assert f"EM {4 if solver == 'em' else 3}/{4 if solver == 'em' else 3}: objective" in out
    assert "s left" in out
    if solver in ("ebw", "adam"):
        assert f"{STAGES[solver]} 4/4: objective" in out


def test_lines_come_once_a_second(without_rich, capsys, monkeypatch):
    """And at the end; the time left follows from the time taken."""
    now = iter([0.1 * i for i in range(1000)])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    shown = Progress(verbose=1)
    shown.start("EM", 10)
    for iteration in range(1, 11):
        shown.step({"stage": "EM", "iteration": iteration, "objective": 1.0})
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert 1 < len(lines) < 10
    assert lines[-1].startswith("EM 10/10: objective 1, 0 rows/s, at most 0 s left")


def test_where_the_time_went(iris, without_rich, capsys, monkeypatch):
    """verbose=2 ends with it; of a long pass, lines tell how far it is."""
    monkeypatch.setattr(meter, "_WORD", 0.0)
    monkeypatch.setattr(progress, "_LONG", 0.0)
    fit("em", iris, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"rows in passes: compute \d+%, read 0%, communicate 0%", lines[-1])
    assert re.search(
        r"EM 3/4: 150 of 150 rows, [\d,]+ rows/s, 0 s left of this pass", "\n".join(lines)
    )
    assert re.search(
        r"EM 4/4: objective .*, [1-9][\d,]* rows/s, at most 0 s left", "\n".join(lines)
    )


def test_reading_and_talking_are_told_apart(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(meter.time, "perf_counter", lambda: float(next(now)))
    found = meter.Meter(lambda done, total: None)
    with found.active():
        assert list(meter.counted(meter.waited_for(["ab", "c"]), 3)) == ["ab", "c"]
        with meter.spent_on("communicate"):
            pass
    assert found.rows == 3
    assert found.seconds == {"read": 3.0, "communicate": 1.0}


def test_bars(iris, capsys):
    """With rich, a live bar; nothing crashes, and a second fit gets its own."""
    pytest.importorskip("rich")
    for _ in range(2):
        fit("lbfgs", iris, verbose=1)
    assert "L-BFGS" in capsys.readouterr().out


def test_silence(iris, capsys):
    """verbose=0 prints nothing."""
    fit("lbfgs", iris)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_an_error_takes_the_bar_down(iris):
    """A callback that fails leaves no live display behind."""
    console = pytest.importorskip("rich").get_console()

    def fail(record):
        raise RuntimeError("the callback failed")

    with pytest.raises(RuntimeError, match="the callback failed"):
        fit("lbfgs", iris, fail, verbose=1)
    assert not console._live_stack
    with pytest.raises(RuntimeError, match="the callback failed"):
        MixtureDensity(2, verbose=1).set_callbacks(fail).fit(iris[0])
    assert not console._live_stack


def test_describe():
    """One line a person can read."""
    record = {"objective": 1.23456789, "validation_error": 0.0512}
    assert describe(record) == "objective 1.2346, validation error 5.12 %"
    assert describe({"objective": 2.0}) == "objective 2"
