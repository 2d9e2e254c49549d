"""A fit that was interrupted goes on where it was, and ends with the same bits."""

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from mixtura import MixtureClassifier, MixtureDensity, load
from mixtura.data.journal import Journal
from mixtura.engines import Engine, table
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.objectives import Margin
from mixtura.solvers import EBW, EM, LBFGS, Adam, small

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped")

MODELS = {
    "em": MixtureDensity(2, density="diag", solver=EM(6, tol=0.0)),
    "lbfgs": MixtureClassifier(1, density="diag", tradeoff=0.5, solver=LBFGS(4), calibrate=False),
    "ebw": MixtureClassifier(1, density="diag", tradeoff=0.5, solver=EBW(4), calibrate=False),
    "adam": MixtureClassifier(
        1,
        density="diag",
        tradeoff=0.5,
        objective=Margin(holes=0.2),
        solver=Adam(4, 7, averaging=0.5),
        calibrate=False,
    ),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    return rng.normal(size=(60, 2)) + y[:, None], y


@pytest.fixture(autouse=True)
def _all_is_recorded(monkeypatch, large):
    monkeypatch.setattr(table, "_WORTH", 0)


@pytest.fixture
def computed(monkeypatch):
    """Counts the sums that are computed."""
    counted, summed = [], Engine._summed

    def counting(self, *given):
        counted.append(1)
        return summed(self, *given)

    monkeypatch.setattr(Engine, "_summed", counting)
    return counted


class Killed(BaseException):
    """What ends a fit at once."""


def interrupted(model, rows, path, at):
    """Fit, and be killed after so many iterations."""

    def kill(record, left=[at]):  # noqa: B006
        left[0] -= 1
        if not left[0]:
            raise Killed

    with pytest.raises(Killed):
        clone(model).set_params(random_state=0).set_callbacks(kill).fit(*rows, checkpoint=path)


def test_what_is_interrupted_while_it_is_written_is_there_once(tmp_path, monkeypatch):
    """A sum that stood there twice would be taken for the next one, too."""

    def following(journal, *values):
        given = [{"sum": torch.tensor([float(each)])} for each in values]
        return [float(journal.next(lambda e=e: e, torch.device("cpu"))["sum"]) for e in given]

    journal = Journal(tmp_path / "run.ckpt", "fit")
    assert following(journal, 1) == [1]
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            following(journal, 2)
    journal.close(finished=False)
    assert following(Journal(tmp_path / "run.ckpt", "fit"), 1, 20, 3, 4) == [1, 2, 3, 4]


def raising(error):
    def raises(*given):
        raise error

    return raises


@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_fit_ends_with_the_same_bits(name, rows, tmp_path, computed):
    model, path = clone(MODELS[name]).set_params(random_state=0), tmp_path / "run.ckpt"
    whole = clone(model).fit(*rows)
    n_sums = len(computed)
    interrupted(model, rows, path, 3)
    computed.clear()
    resumed = clone(model).fit(*rows, checkpoint=path)
    assert 0 < len(computed) < n_sums
    assert np.array_equal(resumed.means_, whole.means_)
    assert np.array_equal(resumed.covariances_, whole.covariances_)
    assert np.array_equal(resumed.score_quantiles_, whole.score_quantiles_)
    assert [record["objective"] for record in resumed.history_] == [
        record["objective"] for record in whole.history_
    ]
    assert not path.exists()


def test_small_minibatches_are_the_same_with_a_checkpoint(rows, tmp_path, monkeypatch):
    """They go through NumPy, whether epochs are written down or not; EM before them does not, where
    its sums are."""
    monkeypatch.setattr(small, "_SMALL", dict.fromkeys((False, True), 10**6))
    model = clone(MODELS["adam"]).set_params(random_state=0)
    plain, whole = clone(model).fit(*rows), clone(model).fit(*rows, checkpoint=tmp_path / "whole")
    interrupted(model, rows, tmp_path / "run.ckpt", 3)
    resumed = clone(model).fit(*rows, checkpoint=tmp_path / "run.ckpt")
    assert np.array_equal(resumed.means_, whole.means_)
    np.testing.assert_allclose(plain.means_, whole.means_, rtol=1e-12)


def test_entries_wait_for_so_many_seconds(rows, tmp_path, computed):
    """A crash loses what waits; whatever else ends the fit writes it."""
    model, path = clone(MODELS["em"]).set_params(random_state=0), tmp_path / "run.ckpt"
    whole, sizes = clone(model).fit(*rows), []
    n_sums = len(computed)

    def look(record):
        sizes.append(path.stat().st_size)
        if record["iteration"] == 4:
            raise Killed

    with pytest.raises(Killed):
        clone(model).set_callbacks(look).fit(*rows, checkpoint=(path, 1e6))
    assert len(set(sizes)) == 1
    assert path.stat().st_size > sizes[0]
    computed.clear()
    resumed = clone(model).fit(*rows, checkpoint=(path, 1e6))
    assert 0 < len(computed) < n_sums
    assert np.array_equal(resumed.means_, whole.means_)
    assert not path.exists()


@pytest.mark.parametrize("seconds", [(), (-1.0,), ("60",), (np.nan,), (1.0, 2.0)])
def test_seconds_are_a_number(seconds, rows, tmp_path):
    model = clone(MODELS["em"]).set_params(random_state=0)
    with pytest.raises(InvalidInputError, match=r"checkpoint must be a path, or \(path, seconds\)"):
        model.fit(*rows, checkpoint=(tmp_path / "run.ckpt", *seconds))


def test_wherever_a_crash_cuts_the_file(rows, tmp_path, rng):
    """Whatever is left of the last entry, the end is the same."""
    model, path = clone(MODELS["em"]).set_params(random_state=0), tmp_path / "run.ckpt"
    whole = clone(model).fit(*rows)
    interrupted(model, rows, path, 5)
    content = path.read_bytes()
    for length in [0, 5, 30, *rng.integers(len(content), size=7).tolist()]:
        path.write_bytes(content[:length])
        assert np.array_equal(clone(model).fit(*rows, checkpoint=path).means_, whole.means_)
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    path.write_bytes(damaged)
    assert np.array_equal(clone(model).fit(*rows, checkpoint=path).means_, whole.means_)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_killed_process_leaves_what_can_go_on(rows, tmp_path):
    """By SIGKILL, in the middle of a fit, and of writing a model over another."""
    model, path, saved = (
        clone(MODELS["em"]).set_params(random_state=0),
        tmp_path / "c",
        tmp_path / "m",
    )
    whole = clone(model).fit(*rows)
    whole.save(saved)

    def kill(record):
        if record["iteration"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def save_again():
        while True:
            whole.save(saved)

    dying = clone(model).set_callbacks(kill)
    for work in (lambda: dying.fit(*rows, checkpoint=path), save_again):
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(1)  # else it would run the tests that follow
        time.sleep(0.02)
        if work is save_again:
            os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert path.exists()
    assert np.array_equal(clone(model).fit(*rows, checkpoint=path).means_, whole.means_)
    assert np.array_equal(load(saved).means_, whole.means_)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_file_that_cannot_grow_is_named(rows, tmp_path):
    """As on a full disk: a model, and a checkpoint; what stood there before still does."""
    model, saved, path = clone(MODELS["em"]), tmp_path / "model", tmp_path / "run.ckpt"
    whole = model.set_params(random_state=0).fit(*rows)
    whole.save(saved)
    for work, name in (
        (lambda: whole.save(saved), saved),
        (lambda: clone(model).fit(*rows, checkpoint=path), path),
    ):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
                work()
            except OSError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(1)  # else it would run the tests that follow
        os.waitpid(child, 0)
        assert f"too large: '{name}'" in os.read(reading, 1_000).decode()
    assert np.array_equal(load(saved).means_, whole.means_)


def test_files_have_checkpoints_too(rows, tmp_path):
    pytest.importorskip("pyarrow")
    frame = pytest.importorskip("pandas").DataFrame(rows[0], columns=["a", "b"])
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=17)
    given, path = (tmp_path / "rows.parquet",), tmp_path / "run.ckpt"
    model = clone(MODELS["em"]).set_params(random_state=0)
    interrupted(model, given, path, 3)
    resumed = clone(model).fit(*given, checkpoint=path)
    assert np.array_equal(resumed.means_, clone(model).fit(*given).means_)


def test_other_fits_and_files_are_refused(rows, tmp_path, monkeypatch):
    X, y, path = np.tile(rows[0], (20, 1)), np.tile(rows[1], 20), tmp_path / "run.ckpt"
    model = clone(MODELS["em"]).set_params(random_state=0)
    interrupted(model, (X, y), path, 2)
    last = X.copy()
    last[-1, -1] += 1e-9
    for other, given in ((clone(model), last), (clone(model).set_params(random_state=1), X)):
        with pytest.raises(InvalidInputError, match="other rows or parameters"):
            other.fit(given, y, checkpoint=path)
    with monkeypatch.context() as other:
        other.setattr("mixtura.estimators.checkpoint.version", lambda: "0.0.1")
        with pytest.raises(InvalidInputError, match="version of mixtura"):
            clone(model).fit(X, y, checkpoint=path)
    notes = Path(tmp_path / "notes.txt")
    notes.write_text("mine")
    with pytest.raises(InvalidInputError, match="no checkpoint"):
        clone(model).fit(X, checkpoint=notes)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"random_state": None}, "random_state"), ({"max_time": 9.0}, "max_time")],
)
def test_what_cannot_be_resumed_is_refused(settings, message, rows, tmp_path):
    model = clone(MODELS["em"]).set_params(**{"random_state": 0, **settings})
    with pytest.raises((InvalidInputError, UnsupportedError), match=message):
        model.fit(*rows, checkpoint=tmp_path / "run.ckpt")
    assert not list(tmp_path.iterdir())
