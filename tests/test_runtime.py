"""The runtime answers as the estimator does, with NumPy alone."""

import json
import subprocess
import sys
import warnings
from copy import deepcopy
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import logsumexp
from sequence_checks import toy_sequences
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    MixtureImputer,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
    runtime,
)
from mixtura.data.matrix import Matrix
from mixtura.densities import Diagonal, Full, LowRank, Spherical, Student
from mixtura.estimators import classifying
from mixtura.exceptions import (
    DegenerateDataWarning,
    FileFormatError,
    InvalidInputError,
    NoDensityError,
    UnsupportedError,
)
from mixtura.models.fitted import Fitted
from mixtura.runtime.files import unpack
from mixtura.runtime.models import Layout
from mixtura.solvers import EM, LBFGS, LinkedEM

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
ASKED = ("predict_log_proba", "predict", "score_samples", "impute", "transform")


@pytest.fixture(autouse=True)
def numpy_of_old(monkeypatch):
    """Right sides with one axis less than the left are vectors in NumPy 1, and matrices in 2."""
    solve = np.linalg.solve

    def plain(left, right):
        assert np.ndim(right) == np.ndim(left)
        return solve(left, right)

    monkeypatch.setattr(np.linalg, "solve", plain)


@pytest.fixture(autouse=True)
def by_pytorch(monkeypatch):
    """Estimators answer by PyTorch, also for few rows."""
    monkeypatch.setattr(classifying, "_FEW_ROWS", 0)


# -- rows --------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
N = 46
Y = np.arange(N) % 5 % 3  # classes of different sizes: no ties
X = RNG.normal(size=(N, 4)) + np.array([1.0, 0.5, 0.0, 2.0]) * Y[:, None]
X[:, 1] = np.exp(X[:, 1])
HOLED = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
HOLED[0] = np.nan
LABELS = np.array(["x", "y", "z"])[Y]
ROWS = [X, HOLED, X[:1], HOLED[:1], HOLED[1:2], 1e9 * X]
FLAT = np.where(X < [0.4, -9, 0, -9], [0.4, 0, 0, 0], X)  # two columns share a value
FLAT_ROWS = [*ROWS, FLAT, np.where(np.isnan(HOLED), np.nan, FLAT), FLAT[:1]]


@lru_cache
def frames():
    """The same beside text and booleans: whole, with holes, fewer columns, a category not seen."""
    pandas = pytest.importorskip("pandas")
    whole = pandas.DataFrame(X, columns=list("abcd"))
    whole["color"] = np.array(["red", "green", "blue"])[(Y + (RNG.random(N) < 0.3)) % 3]
    whole["flag"] = RNG.random(N) < 0.5
    holed = whole.astype({"flag": object}).mask(RNG.random(whole.shape) < 0.3)
    odd = [whole[["color", "d", "a"]], whole[whole.columns[::-1]], whole.assign(color="black")]
    return [holed, whole, whole.iloc[:1], holed.iloc[:1], *odd]


# -- estimators --------------------------------------------------------------------------------

PLAIN = {
    **{"objective": "likelihood", "marginals": "linear", "missingness": "ignore"},
    **{"solver": EM(max_iter=3), "init": EM(max_iter=3)},
}
GROWN = {"n_stages": 2, "calibrate": False, "early_stopping": False, "missingness": "ignore"}
STRUCTURES = [
    *(Full(), Diagonal(), Spherical(), LowRank(2)),
    LowRank(1, parameterization="precision"),
    *(Student(), Student("diag"), Student("low_rank", rank=1)),
]
NETWORK = {
    **{"init": EM(max_iter=3, tol=0.01), "random_state": 0},
    "solver": LinkedEM(max_iter=2, end_to_end=False),
}


def classifier(density, **settings):
    return MixtureClassifier(2, density=density, random_state=0, **{**PLAIN, **settings})


def network(embedding, density, **settings):
    settings = {"calibrate": False, "missingness": "ignore", **NETWORK, **settings}
    return MixtureNetworkClassifier(2, embedding=embedding, density=density, **settings)


ESTIMATORS = {
    **{str(each): (classifier(each), X, LABELS) for each in STRUCTURES},
    "curves": (classifier(Full(), marginals="ranks"), X, LABELS),
    "atoms": (classifier(LowRank(1), marginals="power+atoms"), FLAT, LABELS),
    "boosted": (BoostedMixtureClassifier(**GROWN), X, LABELS),
    "votes": (BoostedMixtureClassifier(method="adaboost", **GROWN), X, LABELS),
    "primal": (SparseMixtureClassifier(1, form="primal"), X, LABELS),
    "poly2": (SparseMixtureClassifier(2, max_iter=5), X, LABELS),
    **{
        kernel: (SparseMixtureClassifier(1, kernel=kernel, max_iter=3), X, LABELS)
        for kernel in ("linear", "poly", "rbf", "laplacian", "sigmoid")
    },
    "pairs": (PairwiseClassifier(classifier(Diagonal())), X, Y),
    "one pair": (PairwiseClassifier(classifier(Diagonal())), X, Y > 0),
    "density": (MixtureDensity(3, density="full", missingness="ignore"), X, None),
    "simplex": (network("simplex", "full"), X, LABELS),
    "curved network": (network("log_density", "full", marginals="tamed"), X, LABELS),
    "student network": (network("posterior", "student"), X, LABELS),
    "no labels": (network("posterior", "diag"), HOLED, None),
    "diagonal network": (network("posterior", "diag"), HOLED, LABELS),
}
MIXED = {
    "mixed": (classifier("full"), LABELS),
    "informative": (classifier("low_rank", missingness="informative"), LABELS),
    "mixed density": (MixtureDensity(2, density="diag", missingness="ignore"), None),
    "imputer": (MixtureImputer(1, density="diag", add_indicator=True, random_state=0), None),
    "log_density": (network("log_density", "full"), LABELS),
    "peaks": (network("density", "low_rank", missingness="informative"), LABELS),
    "regressor": (MixtureRegressor(1, density="full", marginals="linear"), X[:, 0] + X[:, 2]),
    "targets": (MixtureRegressor(1, density="diag", random_state=0), X[:, :2]),
    "network regressor": (
        MixtureNetworkRegressor(3, embedding="log_density", missingness="ignore", **NETWORK),
        X[:, 0],
    ),
}


def same(found, wanted):
    """Equal to 1e-9: numbers, labels, or data frames of both."""
    if hasattr(wanted, "columns"):
        assert list(found.columns) == list(wanted.columns)
        for name in wanted.columns:
            same(found[name].to_numpy(), wanted[name].to_numpy())
    elif np.asarray(wanted).dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, wanted)


def both(model, tmp_path):
    """The estimator, and the runtime's reading of its file."""
    model.save(tmp_path / "model")
    return model, runtime.load(tmp_path / "model")


def agree(model, loaded, tables):
    """Whatever the estimator answers, the runtime answers too; what it refuses is refused."""
    for name in (name for name in ASKED if hasattr(model, name) and hasattr(loaded, name)):
        for rows in tables[:1] if name == "predict" and hasattr(model, "classes_") else tables:
            try:
                wanted = getattr(model, name)(rows)
            except (InvalidInputError, UnsupportedError) as error:
                with pytest.raises(type(error)):
                    getattr(loaded, name)(rows)
            else:
                same(getattr(loaded, name)(rows), wanted)


@lru_cache
def fitted(name):
    """One of the estimators, fitted once; to holes where these are part of what it learns."""
    model, *given = ESTIMATORS[name] if name in ESTIMATORS else (*MIXED[name],)
    holed = name in ("informative", "peaks", "imputer")
    return model.fit(*(given if len(given) == 2 else (frames()[0 if holed else 1], *given)))


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_numbers(name, tmp_path):
    model, loaded = both(fitted(name), tmp_path)
    if name == "votes":  # of a row without values all classes have the same number
        agree(model, loaded, [X, HOLED[1:], HOLED[1:2]])
    else:
        agree(model, loaded, FLAT_ROWS if name == "atoms" else ROWS)


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize("name", MIXED)
def test_mixed_tables(name, tmp_path):
    model, loaded = both(fitted(name), tmp_path)
    agree(model, loaded, frames())


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """The default: models by lines, powers and ranks, averaged, and rows held back."""
    path = tmp_path_factory.mktemp("default") / "model"
    model = MixtureClassifier(solver=LBFGS(max_iter=3), random_state=0).fit(X, LABELS)
    assert model.model_.blend is not None
    model.save(path)
    return model, path


def test_averages_of_calibrated_models(averaged):
    model, path = averaged
    loaded = runtime.load(path)
    agree(model, loaded, ROWS)
    same(loaded.predict_proba(HOLED), model.predict_proba(HOLED))
    same(loaded.is_outlier(HOLED, 0.0567), model.is_outlier(HOLED, 0.0567))
    unseen = {"calibration": (HOLED[:30], LABELS[:30])}
    some = np.where(np.arange(30) % 5, LABELS[:30].astype(object), None)
    for options in ({}, unseen, {"calibration": (HOLED[:30], some)}):
        wanted = model.predict_set(HOLED[:6], 0.7, **options)
        assert 0 < wanted.sum() < wanted.size
        same(loaded.predict_set(HOLED[:6], 0.7, **options), wanted)
    with pytest.raises(InvalidInputError, match="one per row"):
        loaded.predict_set(HOLED[:6], calibration=(HOLED[:2], [LABELS[0], "unheard"]))


def test_estimators_answer_for_a_few_rows_in_numpy(averaged, monkeypatch):
    model, _ = averaged
    wanted = {id(rows): model.predict_log_proba(rows) for rows in (X, HOLED)}
    monkeypatch.setattr(classifying, "_FEW_ROWS", N)
    monkeypatch.setattr(Fitted, "engine", None)  # what PyTorch's answers begin with
    for rows in (X, HOLED):
        alone = np.concatenate([model.predict_log_proba(row[None]) for row in rows])
        np.testing.assert_allclose(alone, wanted[id(rows)], 1e-10, 1e-12)
        np.testing.assert_allclose(model.predict_log_proba(rows), alone, 1e-10, 1e-12)
    assert len(vars(deepcopy(model.model_))) < len(vars(model.model_))  # copies make their own


def test_sets_by_a_step_of_em(tmp_path):
    """The models without the rows that are held back are computed when the file is written."""
    model, loaded = both(classifier(Diagonal()).fit(X, LABELS), tmp_path)
    assert model.model_.held_back.models == ()
    same(loaded.predict_set(HOLED[:6], 0.7), model.predict_set(HOLED[:6], 0.7))


def test_few_rows_in_float32_are_answered_by_numpy_too(monkeypatch):
    """Where models work in double precision on them anyway: PyTorch takes ten times as long."""
    X, y = load_iris(return_X_y=True)
    model, rows = MixtureClassifier(random_state=0).fit(X, y), X[::30].astype(np.float32)
    expected = model._fitted.log_proba(model._fitted.engine(Matrix(rows), "cpu"))
    monkeypatch.setattr(classifying, "_FEW_ROWS", len(rows))
    monkeypatch.setattr(Fitted, "log_proba", None)
    found = model.predict_log_proba(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_float32_is_read_as_it_is_and_computed_in_double_precision(tmp_path):
    """The estimator may compute such rows in single precision."""
    model, loaded = both(classifier(Full()).fit(X, LABELS), tmp_path)
    rows = HOLED.astype(np.float32)
    same(loaded.predict_proba(rows), model.predict_proba(rows.astype(np.float64)))
    filled = loaded.impute(rows)
    assert filled.dtype == np.float32
    np.testing.assert_allclose(filled, model.impute(rows), rtol=1e-4)


def test_columns_by_name(tmp_path):
    """Data frames of both kinds, and dicts of columns or of the values of one row."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    holed = frames()[0]
    model, loaded = both(classifier("diag").fit(holed, LABELS), tmp_path)
    wanted = model.predict_proba(holed)
    columns = {name: holed[name].tolist() for name in holed.columns}
    plain = {name: [None if v != v else v for v in column] for name, column in columns.items()}
    same(loaded.predict_proba(columns), wanted)
    same(loaded.predict_proba(polars.DataFrame(plain)), wanted)
    row = {"color": "red", "d": 1.5, "a": None, "flag": True, "b": 0.1, "c": np.nan}
    frame = pandas.DataFrame({name: [value] for name, value in row.items()})
    same(loaded.predict_proba(row), model.predict_proba(frame))
    filled = loaded.impute(columns)
    for name, column in model.impute(holed).items():
        same(filled[name].astype(float if name in "abcd" else object), column.to_numpy())
    with pytest.warns(DegenerateDataWarning, match="lacks 5 column"):
        same(loaded.predict_proba({"a": 1.0}), model.predict_proba(frame[["a"]].assign(a=1.0)))
    for wrong, what in (
        ({"a": [1.0, 2.0], "b": [1.0]}, "differ in length"),
        ({}, "or that has none"),
        ({**row, "unheard": 1.0}, "unheard"),
        ({**row, "a": "text"}, "held numbers in training and holds text"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            loaded.predict_proba(wrong)


def test_numbers_in_a_dict(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model, loaded = both(classifier("diag").fit(frame, LABELS), tmp_path)
    row = {"d": 0.5, "c": np.nan, "b": 1.0, "a": 2}
    same(loaded.predict_proba(row), model.predict_proba(pandas.DataFrame([row])))


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (X[:, :3], r"\(46, 3\), and the model takes \(n, 4\)"),
        (X[0], r"\(4,\), and the model takes"),
        (X[:0], "no rows"),
        (np.where(X > 2.0, np.inf, X), "infinity"),
        (X + 1j, "complex numbers"),
        ([["a", "b", "c", "d"]], "held numbers in training and holds text"),
        (object(), "numbers"),
    ],
    ids=["width", "one dimension", "no rows", "infinite", "complex", "text", "nonsense"],
)
def test_rows_that_are_refused(rows, what, averaged):
    with pytest.raises(InvalidInputError, match=what):
        runtime.load(averaged[1]).predict_proba(rows)


def test_what_needs_pytorch_is_said_when_loading(tmp_path):
    sequences, y = toy_sequences(8)
    path = tmp_path / "model"
    hidden = SequenceMixtureClassifier(1, method="ml", calibrate=False)
    for model, given, what in (
        (hidden, sequences, "a SequenceMixtureClassifier .* without PyTorch"),
        (FisherScores(MixtureDensity(1, density="diag")), X, "FisherScores"),
        (SparseMixtureClassifier(1, kernel="cosine", max_iter=2), X, "'cosine', and .* 'rbf'"),
        (MixtureImputer(1, strategy="draw"), X, "strategy='mean'"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(given, y if given is sequences else Y).save(path)
        with pytest.raises(UnsupportedError, match=what):
            runtime.load(path)


def test_what_a_model_cannot_answer(averaged, tmp_path):
    votes = BoostedMixtureClassifier(method="adaboost", **GROWN).fit(X, Y)
    loaded = both(votes, tmp_path)[1]
    with pytest.raises(NoDensityError, match="no density"):
        loaded.score_samples(X)
    with pytest.raises(UnsupportedError, match="holds no rows back"):
        loaded.predict_set(X)
    with pytest.raises(InvalidInputError, match=r"labels of .*, one per row"):
        loaded.predict_set(X, calibration=(X, np.full(N, 7)))


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"{}"])
def test_files_that_are_none(content, tmp_path):
    path = tmp_path / "model"
    with pytest.raises(FileNotFoundError):
        runtime.load(path)
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        runtime.load(path)


# -- what it takes -----------------------------------------------------------------------------

MEASURE = """
import json, sys, time
import numpy as np

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before, begin = resident(), time.process_time()
from mixtura import runtime

took, grown = time.process_time() - begin, resident() - before
model = runtime.load(sys.argv[1])
proba = model.predict_proba(np.array([[0.5, np.nan, 1.0, np.nan]])).tolist()
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([took, grown, proba, loaded]))
"""


def test_numpy_is_all_it_imports(averaged):
    """In a process of its own: 0.2 seconds and 40 MB beside NumPy's are the most allowed.

    The best of two: the first may have to compile, and another process on the machine adds to both.
    """
    model, path = averaged
    measured = [sys.executable, "-c", MEASURE, path]
    ended = [subprocess.run(measured, capture_output=True, text=True, check=True) for _ in "12"]
    took, grown, proba, loaded = min(json.loads(each.stdout) for each in ended)
    heavy = {"torch", "sklearn", "scipy", "pandas", "polars", "safetensors", "threadpoolctl"}
    assert not heavy & set(loaded)
    assert took < 0.2
    assert grown < 40e6
    same(proba, model.predict_proba([[0.5, np.nan, 1.0, np.nan]]))


def test_every_estimator_is_read_or_refused_by_name():
    """A new one of tables gets its predictor, or stands here."""
    known = set(runtime.predictors._PREDICTORS)
    sequences = {"SequenceMixtureClassifier", "SequenceDensity", "FisherScores"}
    assert known | sequences | {"load"} == set(mixtura.__all__)
    assert mixtura.runtime is runtime


# -- ONNX --------------------------------------------------------------------------------------

EXPORTED = [
    *map(str, STRUCTURES),
    *("curves", "atoms", "boosted", "votes", "primal", "poly2"),
    *("linear", "poly", "rbf", "laplacian", "sigmoid", "mixed", "informative"),
    *("diagonal network", "log_density", "peaks"),
]


def session(model, path):
    """What onnxruntime makes of the graph of a model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model.export(path / "model.onnx")
    return onnxruntime.InferenceSession(path / "model.onnx")


def same_graph(model, graph, tables):
    """Labels and probabilities are those of the estimator, however many rows there are."""
    for rows in tables:
        codes = model._rows(rows).values
        label, proba = graph.run(["label", "probabilities"], {"X": codes.astype(np.float64)})
        np.testing.assert_allclose(proba, model.predict_proba(rows), rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(label, model.predict(rows))


@pytest.mark.parametrize("name", EXPORTED)
def test_graphs(name, tmp_path):
    model = fitted(name)
    tables = frames()[1:4] if name in MIXED else [HOLED, X[:1], 1e9 * X]
    if isinstance(model, SparseMixtureClassifier):
        tables = [X, X[:1]]
    elif name == "votes":
        tables = [X, HOLED[1:]]
    elif name == "atoms":
        tables = FLAT_ROWS
    same_graph(model, session(model, tmp_path), tables)


def test_graph_of_averages(averaged, tmp_path):
    model = averaged[0]
    same_graph(model, session(model, tmp_path), ROWS)


def test_categories_of_a_graph(tmp_path):
    """They go by their places in the metadata, and a place that is none is missing."""
    model = fitted("mixed")
    graph = session(model, tmp_path)
    told = graph.get_modelmeta().custom_metadata_map
    assert json.loads(told["names"]) == [*"abcd", "color", "flag"]
    assert json.loads(told["categories"]) == [*[None] * 4, ["blue", "green", "red"], [False, True]]
    rows = np.array([[1.0, 1.0, 1.0, 1.0, code, 0.0] for code in (np.nan, -1, 3, 1.5, 2)])
    proba = graph.run(["probabilities"], {"X": rows})[0]
    np.testing.assert_array_equal(proba[1:4], proba[[0, 0, 0]])
    assert not np.allclose(proba[4], proba[0])


@pytest.mark.parametrize("labels", [Y, Y > 0, 1.0 * Y], ids=["integers", "booleans", "floats"])
def test_labels_of_a_graph(labels, tmp_path):
    model = classifier("diag").fit(X, labels)
    same_graph(model, session(model, tmp_path), [HOLED])


def test_what_is_not_exported_says_so(tmp_path, monkeypatch):
    """And what stood there before still stands."""
    pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    path.write_text("before")
    wide = RNG.normal(size=(70, 31))
    for model, what in (
        (fitted("density"), "only classifiers of tables"),
        (fitted("pairs"), "only classifiers of tables"),
        (fitted("no labels"), "that know classes"),
        (fitted("simplex"), "embedding='simplex' cannot"),
        (fitted("student network"), "networks of StudentT cannot"),
        (classifier("full").fit(wide, wide[:, 0] > 0), "31 features cannot be exported, 30"),
    ):
        with pytest.raises(UnsupportedError, match=what):
            model.export(path)
    with pytest.raises(InvalidInputError, match=r"must end with \.onnx"):
        fitted("curves").export(tmp_path / "model.c")
    with pytest.raises(NotFittedError):
        MixtureClassifier().export(path)
    monkeypatch.setattr("mixtura.estimators.base.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mixtura\[onnx\]'"):
        fitted("curves").export(path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "before"


def test_intervals_of_networks(tmp_path):
    """Rows are held back where embeddings are compared; none are for a coverage of one."""
    network = MixtureNetworkRegressor(2, missingness="ignore", **NETWORK)
    model, loaded = both(network.fit(X, X[:, 0] + X[:, 2]), tmp_path)
    for coverage in (0.5, 0.9, 1.0):
        found = loaded.predict_interval(HOLED[:20], coverage)
        same(found, model.predict_interval(HOLED[:20], coverage))
    assert np.isinf(found).all()
    with pytest.raises(InvalidInputError, match="coverage"):
        loaded.predict_interval(X, 1.5)


@pytest.mark.parametrize("name", ["targets", "averages"])
def test_distributions_of_regressors(name, tmp_path):
    """Deviations, quantiles and intervals, of two targets or of models that are averaged."""
    if name == "averages":
        regressor = MixtureRegressor(2, density="full", solver=LBFGS(2), init=EM(3), random_state=0)
        model, rows = regressor.fit(X, X[:, 0] + np.abs(X[:, 2])), HOLED[:20]
        assert len(model.model_.members) > 1
    else:
        model, rows = fitted(name), frames()[0][:20]
    model, loaded = both(model, tmp_path)
    for found, wanted in zip(loaded.predict(rows, True), model.predict(rows, True), strict=True):
        same(found, wanted)
    same(loaded.predict_quantiles(rows, [0.2, 0.9]), model.predict_quantiles(rows, [0.2, 0.9]))
    y = np.array(model.predict(rows)) + 0.3
    y[3:5] = np.nan
    same(loaded.score_samples(rows, y), model.score_samples(rows, y))
    with pytest.raises(InvalidInputError, match="number"):
        loaded.score_samples(rows, y[:7])
    for coverage in (0.0, 0.5, 0.9, 1.0):
        found = loaded.predict_interval(rows, coverage)
        same(found, model.predict_interval(rows, coverage))
    assert np.isinf(found).all()
    with pytest.raises(InvalidInputError, match="coverage"):
        loaded.predict_interval(rows, 1.5)
    with pytest.raises(InvalidInputError, match="quantiles"):
        loaded.predict_quantiles(rows, 1.5)


@pytest.mark.parametrize("n", [3, 300])
def test_sums_of_a_class_are_those_of_scipy(n):
    """Of few rows and many, also where components of a class have no chance."""
    values = 100.0 * np.random.default_rng(0).normal(size=(n, 5))
    values[0, :2], values[1, 4], values[2] = -np.inf, -np.inf, -np.inf
    parts = values[:, :2], values[:, 2:]
    with np.errstate(divide="ignore"):
        found = Layout((2, 3)).logsumexp(values)
    np.testing.assert_allclose(found, np.stack([logsumexp(part, 1) for part in parts], 1), 1e-14)


def test_arrays_of_the_same_bytes_keep_their_shapes_and_types():
    arrays = {"a": np.zeros(4), "b": np.zeros((2, 2)), "c": np.zeros(4, np.int64)}
    items = [{"kind": "array", "dtype": each.dtype.str, "name": k} for k, each in arrays.items()]
    several = unpack({"kind": "list", "items": items}, arrays)
    for found, given in zip(several, arrays.values(), strict=True):
        assert (found.shape, found.dtype) == (given.shape, given.dtype)
