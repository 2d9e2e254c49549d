"""Model files: everything comes back, and nothing wrong comes back silently."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sequence_checks import toy_sequences
from sklearn.linear_model import LogisticRegression

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    PairwiseClassifier,
    SequenceMixtureClassifier,
)
from mixtura.densities import Diagonal, Full, LowRank, Spherical, Student
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.objectives import Conditional, Margin
from mixtura.parts import find_class
from mixtura.solvers import EM, LBFGS


@pytest.fixture(scope="module")
def model(iris):
    """A small model with two components a class."""
    return MixtureClassifier(2, objective="likelihood", random_state=0).fit(*iris)


@pytest.fixture
def saved(model, tmp_path):
    """Its file."""
    path = tmp_path / "model.mixtura"
    model.save(path)
    return path


def assert_same(first, second, X):
    """Two models have the same parameters to the bit, and answer alike up to rounding."""
    assert type(first) is type(second)
    assert first.get_params() == second.get_params()
    for name, value in first.mixture_.density.tensors().items():
        assert torch.equal(second.mixture_.density.tensors()[name], value)
    assert torch.equal(first.mixture_.log_weight, second.mixture_.log_weight)
    assert torch.equal(first.mixture_.log_prior, second.mixture_.log_prior)
    for method in (
        "predict",
        "predict_proba",
        "score_samples",
        "transform",
        "is_outlier",
        "impute",
    ):
        np.testing.assert_allclose(getattr(first, method)(X), getattr(second, method)(X), 1e-12)
    np.testing.assert_allclose(
        first.sample(5, random_state=0)[0], second.sample(5, random_state=0)[0], 1e-12
    )


# -- round trips -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "density",
    [
        Spherical(),
        Diagonal(),
        Full(),
        LowRank(2),
        LowRank(2, parameterization="precision"),
        Student(),
    ],
    ids=str,
)
def test_every_structure_comes_back(density, holey_iris, tmp_path):
    """All answers of the model, missing entries included."""
    plain = isinstance(density, Diagonal)
    model = MixtureClassifier(
        2,
        density=density,
        solver=LBFGS(3),
        missingness="auto" if plain else "ignore",
        calibrate=plain,
        random_state=0,
    ).fit(*holey_iris)
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert_same(model, again, holey_iris[0])
    assert again.density_ == model.density_
    assert again.history_ == model.history_
    assert again.margin_bound_ == model.margin_bound_
    assert again.temperature_ == model.temperature_
    np.testing.assert_array_equal(again.class_prior_, model.class_prior_)
    np.testing.assert_allclose(again.covariances_, model.covariances_, 1e-12)


@pytest.mark.parametrize("density", ["full", "diag", "spherical", "low_rank"])
def test_densities_come_back(density, holey_iris, tmp_path):
    """The unsupervised estimator too."""
    model = MixtureDensity(2, density=density, random_state=0, solver=EM(tol=0.1))
    model.fit(holey_iris[0])
    model.save(str(tmp_path / "model"))
    again = mixtura.load(str(tmp_path / "model"))
    assert_same(model, again, holey_iris[0])
    assert again.bic(holey_iris[0]) == pytest.approx(model.bic(holey_iris[0]), rel=1e-12)


@pytest.mark.parametrize("method", ["boosted", "adaboost"])
def test_grown_models_come_back(method, holey_iris, tmp_path):
    """Stages, their weights, and voters where there is no density."""
    X, y = holey_iris
    model = BoostedMixtureClassifier(
        method=method,
        n_stages=2,
        solver=EM(2),
        calibrate=False,
        early_stopping=False,
        random_state=0,
    )
    model.fit(X, y).save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert again.history_ == model.history_
    assert again.stage_weights_.tolist() == model.stage_weights_.tolist()
    if method == "boosted":
        assert_same(model, again, X)
    else:
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        assert not hasattr(again, "mixture_")


@pytest.mark.parametrize("multiclass", ["direct", "pairwise"])
@pytest.mark.parametrize("density", ["diag", "full", "low_rank"])
def test_chains_come_back(density, multiclass, tmp_path):
    """Emissions inside hidden Markov models, and whole models inside one of pairs."""
    X, y = toy_sequences()
    model = SequenceMixtureClassifier(
        2,
        method="ml",
        density=density,
        chain="left_to_right",
        multiclass=multiclass,
        init=EM(2),
        random_state=0,
    )
    model.fit(X, y).save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert set(vars(again)) == set(vars(model))
    models = [(model, again)]
    if multiclass == "pairwise":
        models = list(zip(model.pairwise_.estimators_, again.pairwise_.estimators_, strict=True))
    for before, after in models:
        density = after.mixture_.density
        assert density.left_to_right
        assert density.visits == before.mixture_.density.visits
        for name, value in before.mixture_.density.tensors().items():
            assert torch.equal(density.tensors()[name], value)
        np.testing.assert_array_equal(after.score_samples(X), before.score_samples(X))
        np.testing.assert_array_equal(
            after.sample(1, random_state=0)[0][0], before.sample(1, random_state=0)[0][0]
        )
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


LABELS = {
    "strings": np.array(["setosa", "versicolor", "virginica"]),
    "objects": np.array(["setosa", "versicolor", "virginica"], dtype=object),
    "object numbers": np.array([1, 2, 3], dtype=object),
    "floats": np.array([1.0, 2.0, 3.0]),
    "bytes": np.array([1, 2, 3], dtype=np.int8),
    "umlauts": np.array(["Äpfel", "Öl", "🌼"]),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_come_back(name, iris, tmp_path):
    """With their type."""
    X, y = iris
    model = MixtureClassifier(1, objective="likelihood").fit(X, LABELS[name][y])
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert again.classes_.dtype == model.classes_.dtype
    assert again.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    margins = [m.log_margin(X, LABELS[name][y]) for m in (again, model)]
    np.testing.assert_allclose(*margins, 1e-9)


def test_boolean_labels_come_back(iris, tmp_path):
    """Two classes, True and False."""
    X, y = iris
    model = MixtureClassifier(1, objective="likelihood").fit(X, y == 0)
    model.save(tmp_path / "model")
    assert mixtura.load(tmp_path / "model").predict(X).dtype == bool


def test_feature_names_come_back(iris, tmp_path):
    """A loaded model still knows its columns, and refuses others."""
    frame = pytest.importorskip("pandas").DataFrame(iris[0], columns=list("abcd"))
    model = MixtureClassifier(1, objective="likelihood").fit(frame, iris[1])
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == list("abcd")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize(
    "parameters",
    [
        {"class_weight": {0: 1.0, 1: 2.0, 2: 3.0}},
        {"class_weight": {np.int64(0): 1.0, np.int64(1): np.float64(2.0), np.int64(2): 3.0}},
        {"class_prior": [0.2, 0.3, 0.5]},
        {"class_prior": np.array([0.2, 0.3, 0.5])},
        {"n_components": (1, 2, 1)},
        {"n_components": np.array([1, 2, 1])},
        {"n_components": np.int64(2)},
        {"random_state": 3},
        {"device": torch.device("cpu")},
        {"unlabeled": None},
        {"objective": Margin(np.float32(2.0))},
        {"objective": Conditional()},
    ],
    ids=str,
)
def test_parameters_come_back(parameters, iris, tmp_path):
    """Whatever a parameter may be, the file keeps it."""
    model = MixtureClassifier(**{"n_components": 1, "objective": "likelihood", **parameters})
    model.fit(*iris)
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    ((name, value),) = parameters.items()
    kept = getattr(again, name)
    assert type(kept) is type(value)
    np.testing.assert_array_equal(np.asarray(kept, dtype=object), np.asarray(value, dtype=object))
    np.testing.assert_allclose(again.predict_proba(iris[0]), model.predict_proba(iris[0]), 1e-12)


def test_a_loaded_model_goes_on_learning(iris, tmp_path):
    """Streams continue after a restart exactly where they stopped."""
    X, y = iris
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    model.partial_fit(X[::2], y[::2], classes=[0, 1, 2])
    model.save(tmp_path / "model")
    again = mixtura.load(tmp_path / "model")
    for part in (model, again):
        part.partial_fit(X[1::2], y[1::2])
    np.testing.assert_allclose(model.means_, again.means_, 1e-12)


def test_what_cannot_be_stored_is_named(iris, tmp_path):
    """Random states belong to a run; no file is left behind. Callbacks are left out."""
    model = MixtureClassifier(1, objective="likelihood", random_state=np.random.RandomState(0))
    with pytest.raises(InvalidInputError, match=r"random_state.*None before saving"):
        model.fit(*iris).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    heard = []
    model.set_params(random_state=0).set_callbacks(heard.append).fit(*iris).save(tmp_path / "model")
    seen = len(heard)
    mixtura.load(tmp_path / "model").fit(*iris)
    assert len(heard) == seen > 0


# -- damage ------------------------------------------------------------------------------------


def test_any_flipped_byte_is_noticed(saved, model, iris):
    """Header, description or numbers: damage is an error, never another model."""
    content = saved.read_bytes()
    for place in np.linspace(0, len(content) - 1, 60).astype(int):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=saved.name):
            mixtura.load(saved)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_truncated_files(saved, share):
    """Also the empty one."""
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FileFormatError, match="damaged"):
        mixtura.load(saved)


FOREIGN = {
    "text": b"hello, world",
    "zeros": bytes(1000),
    "noise": np.random.default_rng(0).bytes(5000),
    "pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(name, tmp_path):
    """Other people's formats."""
    path = tmp_path / "file"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(FileFormatError, match="not a model file"):
        mixtura.load(path)


def test_foreign_safetensors(tmp_path):
    """A file of tensors is not a model."""
    save_file({"weight": torch.ones(3)}, tmp_path / "file")
    with pytest.raises(FileFormatError, match="not a mixtura model"):
        mixtura.load(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "999"}, "newer.*upgrade"),
        ({"version": "soon"}, "version|damaged"),
        ({"version": ""}, "version|damaged"),
        ({"model": "{}"}, "damaged"),
        ({"model": "no json"}, "damaged"),
        ({"model": '{"estimator": "os.system", "params": {}, "state": {}}'}, "damaged"),
    ],
    ids=str,
)
def test_headers_that_make_no_sense(saved, change, message):
    """A newer version asks for an upgrade, all else is damage."""
    from safetensors import safe_open

    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(saved), saved, {**metadata, **change})
    with pytest.raises(FileFormatError, match=message):
        mixtura.load(saved)


@pytest.mark.filterwarnings("error")
def test_columns_that_were_empty_are_not_spoken_of(tmp_path):
    """When a file is read, nothing is said of values that nobody has given."""
    rows = np.column_stack([np.arange(9.0), np.full(9, np.nan)])
    model = MixtureDensity(1, density="diag", missingness="ignore")
    with pytest.warns(UserWarning, match="no observed value"):
        model.fit(rows)
    model.save(tmp_path / "model.safetensors")
    assert mixtura.load(tmp_path / "model.safetensors").schema_.empty == (1,)


def test_missing_files(tmp_path):
    """No file, or a folder where a file should be."""
    with pytest.raises(FileNotFoundError, match=r"no model file at .*nothing"):
        mixtura.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no model file"):
        mixtura.load(tmp_path)


def test_places_that_cannot_be_written(model, tmp_path):
    """A folder of that name, and a folder that does not exist."""
    with pytest.raises(InvalidInputError, match="is a folder"):
        model.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        model.save(tmp_path / "absent" / "model")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes that have names")
def test_devices_and_pipes_are_not_replaced(model, tmp_path):
    """As root, saving to /dev/null would leave a model there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInputError, match="pipe is a device or a pipe: give the name of a"):
        model.save(pipe)
    assert pipe.is_fifo()


# -- interruptions -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_interrupted_saving_keeps_the_old_file(function, error, model, saved, iris, monkeypatch):
    """The old model stays whole, and no half-written file is left."""
    before = saved.read_bytes()
    other = MixtureClassifier(1, objective="likelihood").fit(*iris)

    def fail(*args):
        raise error

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(type(error)):
        other.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_twice_replaces(model, saved, iris):
    """The newer model is the one that is read."""
    other = MixtureClassifier(1, objective="likelihood").fit(*iris)
    other.save(saved)
    assert_same(mixtura.load(saved), other, iris[0])
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX systems")
def test_files_have_ordinary_permissions(saved, tmp_path):
    """Whoever may read the user's other files may read the model."""
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_files_hold_no_code(saved):
    """Tensors and JSON only: nothing is unpickled when a model is read."""
    tensors = load_file(saved)
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())


def test_every_public_estimator_can_be_saved():
    public = [getattr(mixtura, name) for name in mixtura.__all__ if name != "load"]
    for kind in public:
        assert find_class(f"{kind.__module__}:{kind.__name__}") is kind
        assert hasattr(kind, "save")


def test_estimators_from_elsewhere_are_refused_by_name(iris, tmp_path):
    model = PairwiseClassifier(LogisticRegression(max_iter=1000)).fit(*iris)
    with pytest.raises(InvalidInputError, match=r"LogisticRegression.*Remedy: pickle"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


FORKED = """
import os, sys, time
import torch
from mixtura import load

torch.set_num_threads(2)
load(sys.argv[1])
child = os.fork()
if not child:
    matrix = torch.ones(64, 50, 50) @ torch.ones(50, 50)  # two threads, if there are some
    os._exit(int(matrix.sum() != 64 * 50**3))
for _ in range(300):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(status)
    time.sleep(0.1)
os.kill(child, 9)
sys.exit("the child hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_processes_that_are_forked_after_loading_answer(rng, tmp_path):
    """OpenMP's threads of a process are not there in its children, which wait for them."""
    MixtureDensity(16, density="full").fit(rng.normal(size=(400, 20))).save(tmp_path / "model")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "model")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
