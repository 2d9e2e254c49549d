"""Rows that stay in files: the same models as of tables in memory."""

import gc
import re
import socket
import sys
import time
import warnings
from dataclasses import replace
from decimal import Decimal
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureImputer,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SparseMixtureClassifier,
)
from mixtura.data.scaling import nan_range
from mixtura.exceptions import InvalidInputError
from mixtura.solvers import EBW, EM, LBFGS, Adam, LinkedEM

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")
parquet = pytest.importorskip("mixtura.parquet")
source = pytest.importorskip("mixtura.data.source")
streamed = pytest.importorskip("mixtura.data.streamed")

#: A short fit of a network; gradients through all of it are the regressor's.
LINKED = {"init": EM(5), "solver": LinkedEM(2, end_to_end=False)}
FEATURES = ["a", "b", "c", "kind", "flag"]

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped")


def open_rows(source, y=None):
    return parquet.Source(source).opened(y, None, None).rows


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "likelihood", "solver": EM(2)},
        {"tradeoff": 0.5, "solver": LBFGS(2)},
        {"tradeoff": 0.5, "solver": EBW(2)},
    ],
    ids=["em", "lbfgs", "ebw"],
)
def test_files_and_memory_give_the_same_model(settings, frame, files, streaming):
    model = MixtureClassifier(
        2, density="diag", init=EM(2), missingness="ignore", calibrate=False, random_state=0
    ).set_params(**settings)
    ours = clone(model).fit(files / "*.parquet", "label", "weight")
    theirs = clone(model).fit(frame[FEATURES], frame["label"], frame["weight"])
    for name in ("means_", "covariances_", "weights_", "class_prior_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-9, 1e-12)
    assert ours.schema_.equals(theirs.schema_)
    assert ours.feature_names_in_.tolist() == FEATURES
    assert ours.classes_.tolist() == ["x", "y", "z"]
    assert ours.margin_bound_ == pytest.approx(theirs.margin_bound_, rel=1e-9)
    probabilities = ours.predict_proba(frame[FEATURES]), theirs.predict_proba(frame[FEATURES])
    np.testing.assert_allclose(*probabilities, 1e-9, 1e-12)


class DataSet:
    """Rows as Hugging Face's datasets give them: one by one, or in batches, by name."""

    def __init__(self, frame):
        self.frame = frame

    def __iter__(self):
        return iter(self.frame.to_dict("records"))

    def iter(self, batch_size):
        for start in range(0, len(self.frame), batch_size):
            yield self.frame[start : start + batch_size].to_dict("list")


def test_data_sets_are_read_in_batches(frame, large, monkeypatch):
    monkeypatch.setattr(source, "_ROWS", 64)
    given = frame[[*FEATURES, "label"]].astype({"kind": object}).replace({np.nan: None})
    model = MixtureDensity(2, density="diag", solver=EM(2), missingness="ignore", random_state=0)
    ours = clone(model).fit(parquet.Source(DataSet(given)), "label")
    np.testing.assert_array_equal(ours.means_, model.fit(frame[FEATURES]).means_)


@pytest.mark.parametrize("form", [list, tuple, iter, DataSet], ids=str)
def test_chunks_that_are_no_source_are_told_to_become_one(form, frame):
    numbers = frame.select_dtypes("number")
    chunks = form(numbers if form is DataSet else [numbers[:20], numbers[20:40]])
    with pytest.raises(
        InvalidInputError, match=r"fit takes mixtura\.parquet\.Source\(X\), and y by"
    ):
        MixtureDensity(2).fit(chunks)


@pytest.mark.parametrize("odd", [{"u": [1.0, 2.0], "v": [3.0]}, {"u": [1.0, "x"], "v": [3.0, 4.0]}])
def test_a_dictionary_that_is_no_table_is_named(odd):
    chunks = [{"u": [1.0, 2.0], "v": [3.0, 4.0]}, odd]
    with pytest.raises(InvalidInputError, match=r"chunk 1 is no table \(.*equal lengths"):
        MixtureDensity(1).fit(parquet.Source(chunks))


@pytest.mark.parametrize("hole", [None, np.nan, pd.NA])
def test_text_with_holes_in_dictionaries(hole, rng):
    """As in a data frame, whose columns of text hold NaN where there is nothing."""
    kind = np.array(["a", hole, "b", "a"] * 20, dtype=object)
    chunk = {"x": rng.normal(size=80), "kind": kind}
    model = MixtureDensity(1, density="diag", random_state=0)
    ours = clone(model).fit(parquet.Source([chunk, {"x": chunk["x"], "kind": [*kind]}]))
    twice = pd.concat([pd.DataFrame(chunk)] * 2, ignore_index=True)
    np.testing.assert_allclose(ours.score(twice), model.fit(twice).score(twice), 1e-9)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_chunks_of_every_library_are_one_table(kind, frame, large):
    columns = [*FEATURES, "label"]
    parts = [frame[columns][:90], frame[columns][90:]]
    if kind == "polars":
        parts = [pytest.importorskip("polars").from_pandas(part) for part in parts]
    if kind == "arrow":
        parts = [pa.RecordBatch.from_pandas(part, preserve_index=False) for part in parts]
    model = MixtureDensity(2, density="diag", solver=EM(2), missingness="ignore", random_state=0)
    ours = clone(model).fit(parquet.Source(parts), "label")
    np.testing.assert_array_equal(ours.means_, model.fit(frame[FEATURES]).means_)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dictionary"])
def test_one_table_is_a_source_too(kind, frame):
    given = {
        "pandas": lambda: frame,
        "polars": lambda: pytest.importorskip("polars").DataFrame(frame),
        "arrow": lambda: pa.Table.from_pandas(frame),
        "dictionary": lambda: {name: frame[name] for name in ("a", "b", "c", "label")},
    }[kind]()
    found = parquet.Source(given).opened("label", None, None)
    np.testing.assert_array_equal(found.rows[:][:, :3], frame[["a", "b", "c"]])


def test_long_whole_numbers_and_decimals_are_read_as_floats(tmp_path, rng):
    """Rounded, as NumPy does it; labels of decimals are numbers."""
    long = 2**60 + rng.integers(2**40, size=100)
    label = rng.integers(2, size=100)
    decimals = [Decimal(each) for each in label.tolist()]
    table = {"x": long, "u": long.astype(np.uint64), "label": decimals}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    found = parquet.Source(tmp_path / "rows.parquet").opened("label", None, None)
    np.testing.assert_array_equal(found.rows[:], np.column_stack([long, long]).astype(np.float64))
    np.testing.assert_array_equal(found.y, label)


def test_the_default_learns_from_files(frame, files, clock):
    """Structures, marginals and calibration are chosen on samples of the rows."""
    model = MixtureClassifier(random_state=0, max_time=1.0)
    with pytest.warns(ConvergenceWarning, match="max_time"):
        model.fit(parquet.Source(files / "*.parquet", columns=[*FEATURES, "label"]), "label")
    assert model.choice_
    assert model.score(frame[FEATURES], frame["label"]) > 0.8


def test_rows_without_labels_and_columns_without_values(frame, tmp_path, streaming):
    """Labels that are null mark unlabeled rows; text that one file lacks is missing there."""
    some = frame[[*FEATURES, "label"]].copy()
    some.loc[some.index % 3 == 0, "label"] = None
    some.loc[:99, "kind"] = None
    some[:100].to_parquet(tmp_path / "0.parquet")
    some[100:].to_parquet(tmp_path / "1.parquet")
    model = MixtureClassifier(1, density="diag", objective="likelihood", solver=EM(2))
    model.set_params(unlabeled_weight=0.5, random_state=0, missingness="ignore")
    ours = clone(model).fit(tmp_path / "*.parquet", "label")
    theirs = clone(model).fit(some[FEATURES], some["label"])
    np.testing.assert_allclose(ours.means_, theirs.means_, 1e-9)
    assert ours.unlabeled_weight_ == 0.5


def test_numbers_may_be_categories(frame, tmp_path):
    some = pd.DataFrame({"a": frame["a"], "code": np.arange(len(frame)) % 3 + 5})
    some.to_parquet(tmp_path / "rows.parquet")
    model = MixtureDensity(1, density="diag", categorical_features=["code"], random_state=0)
    model.fit(tmp_path / "rows.parquet")
    assert model.schema_.categories[1].tolist() == [5, 6, 7]


def test_holes_are_seen_in_columns_of_all_kinds(tmp_path):
    path = tmp_path / "rows.parquet"
    whole = {"number": [1.0, 2.0], "word": ["u", "v"], "flag": [True, False]}
    pd.DataFrame(whole).to_parquet(path)
    assert not open_rows(path).has_missing
    for name, hole in {"number": np.nan, "word": None, "flag": None}.items():
        pd.DataFrame({**whole, name: [whole[name][0], hole]}).to_parquet(path)
        assert open_rows(path).has_missing, name


def test_float32_stays_float32(tmp_path):
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    rows.astype(np.float32).to_parquet(tmp_path / "rows.parquet")
    assert open_rows(tmp_path / "rows.parquet").dtype == np.float32


def in_a_group(train, **options):
    """What starts processes, here this one: with a group of PyTorch around it."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    here = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in here.items():
            patch.setenv(name, value)
        if "scaling_config" in options:  # Ray makes the group itself
            torch.distributed.init_process_group("gloo")
        try:
            return train()
        finally:
            torch.distributed.destroy_process_group()


def launchers(patch):
    """As much of Ray, Spark and Dask as the recipes call."""

    class Trainer(partial):
        def fit(self):
            return self()

    here = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    parts = {
        "ray.train": {"ScalingConfig": dict, "get_context": lambda: here},
        "ray.train.torch": {"TorchTrainer": partial(Trainer, in_a_group)},
        "pyspark.ml.torch.distributor": {
            "TorchDistributor": lambda **options: SimpleNamespace(run=in_a_group)
        },
    }
    for name, content in parts.items():
        for depth in range(1, name.count(".") + 2):
            above = ".".join(name.split(".")[:depth])
            patch.setitem(sys.modules, above, sys.modules.get(above, ModuleType(above)))
        vars(sys.modules[name]).update(content)

    def fit(client, model, frame, label):
        signature(mixtura.dask.fit).bind(client, model, frame, label)
        rows = frame.compute()
        return model.fit(rows.drop(columns=label), rows[label])

    patch.setattr("distributed.Client", str)
    patch.setattr("mixtura.dask.fit", wraps(mixtura.dask.fit)(fit))


def test_the_page_on_large_data_runs(tmp_path, monkeypatch):
    """Every Python block, in order, in one session; those of launchers with a small model."""
    pytest.importorskip("mixtura.dask")
    page = Path(__file__).parents[1] / "docs" / "large_data.md"
    monkeypatch.chdir(tmp_path)
    launchers(monkeypatch)
    session: dict = {}
    local, _, launched = page.read_text().partition("## Dask, Ray, Spark")
    for part in (local, launched.replace("/shared/", "")):
        for block in re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL):
            exec(compile(block, page.name, "exec"), session)
        found = session["answers"]
        assert (found.num_rows if part is local else len(found.compute())) == 1_500
        quick = {"n_components": 1, "density": "diag", "objective": "likelihood"}
        session["MixtureClassifier"] = partial(MixtureClassifier, **quick)
    assert Path("model.safetensors").is_file()
    assert session["model"].classes_.tolist() == ["no", "yes"]


# -- reading -----------------------------------------------------------------------------------


@pytest.fixture
def rows(files):
    return open_rows(files / "*.parquet", "label")


def test_any_rows_in_any_order(rows, frame, rng):
    numbers = frame[["a", "b", "c"]].to_numpy()
    at = rng.integers(len(frame), size=50)
    np.testing.assert_array_equal(rows[at][:, :3], numbers[at])
    np.testing.assert_array_equal(rows[7:203][:, :3], numbers[7:203])
    part = rows.view(frame["flag"].to_numpy())
    np.testing.assert_array_equal(part[:][:, :3], numbers[frame["flag"]])
    np.testing.assert_array_equal(part.view(np.arange(3, 9))[1:4][:, :3], part[4:7][:, :3])


@pytest.fixture
def read(rows, monkeypatch):
    """How many rows each batch had that was read."""
    found, batches = [], rows._cursor._blocks.reader.batches

    def counting(parts, columns):
        for place, batch in batches(parts, columns):
            found.append(len(batch))
            yield place, batch

    monkeypatch.setattr(rows._cursor._blocks.reader, "batches", counting)
    rows._cursor.forget()
    return found


def walk(rows):
    for start in range(0, len(rows), 16):
        rows[start : start + 16]


def test_a_pass_reads_every_row_once(rows, read, monkeypatch):
    """Whatever the chunks; then the first ones of the next pass, and no file that is not asked."""
    monkeypatch.setattr(streamed, "_BLOCK", 1)
    for passes in (1, 2):
        walk(rows)
        deadline = time.monotonic() + 10.0
        while sum(read) == passes * len(rows) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert passes * len(rows) < sum(read) <= passes * len(rows) + 49
    read.clear()
    rows[np.array([190, 185])]
    assert sum(read) <= 2 * 49


def test_small_files_are_read_once_for_all_passes(rows, read, frame):
    """And not per row group, however small these are."""
    for _ in range(3):
        walk(rows)
    assert sum(read) == len(rows)
    np.testing.assert_array_equal(rows[:][:, :3], frame[["a", "b", "c"]])


@pytest.mark.parametrize("block", [1, streamed._BLOCK])
def test_other_categories_are_those_of_all_rows(block, files, monkeypatch):
    """Also of rows that had been read, or were being read: shards learn them from each other."""
    monkeypatch.setattr(streamed, "_BLOCK", block)
    opened = parquet.Source(files / "*.parquet").opened("label", None, None)
    rows, schema = opened.rows, opened.schema
    before, categories = rows[:], [*schema.categories]
    categories[3] = np.append(["a word before"], categories[3])
    rows.recode(replace(schema, categories=tuple(categories)))
    np.testing.assert_array_equal(rows[:][:, 3], before[:, 3] + 1.0)


def test_reading_goes_on_after_an_error(rows, frame, monkeypatch):
    rows._cursor.forget()

    def failing(parts, columns):
        raise OSError("gone")

    with monkeypatch.context() as context:
        context.setattr(rows._cursor._blocks.reader, "batches", failing)
        with pytest.raises(OSError, match="gone"):
            rows[:5]
    np.testing.assert_array_equal(rows[:5][:, :3], frame[["a", "b", "c"]][:5])


@pytest.mark.parametrize("row", [-1, 220])
def test_rows_that_are_not_there(row, rows):
    with pytest.raises(IndexError, match=f"no row {row} among 220"):
        rows[np.array([row])]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_files_are_closed_when_a_fit_is_over(files, monkeypatch):
    """Those read ahead, too; a cycle of references would keep them open until it is looked for."""
    monkeypatch.setattr(streamed, "_BLOCK", 1)
    gc.collect()
    gc.disable()
    try:
        MixtureDensity(1, density="diag", random_state=0).fit(files / "*.parquet")
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            held = [
                str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()
            ]
            if not (left := [each for each in held if each.startswith(str(files))]):
                break
            time.sleep(0.01)
    finally:
        gc.enable()
    assert not left


def test_the_range_of_all_rows_is_known_after_the_scan(rows, frame, monkeypatch):
    """Rows are read for that of a part of them alone; codes of categories count from zero."""
    numbers, some = ["a", "b", "c", "weight"], frame["flag"].to_numpy()
    low, high = (each[[0, 1, 2, 5]] for each in nan_range(rows.view(some)))
    np.testing.assert_array_equal([low, high], frame.loc[some, numbers].agg(["min", "max"]))
    monkeypatch.setattr(rows, "chunks", None)
    codes = {"kind": [0, frame["kind"].nunique() - 1], "flag": [0, 1]}
    known = frame[numbers].agg(["min", "max"]).assign(**codes)
    np.testing.assert_array_equal(nan_range(rows), known[["a", "b", "c", "kind", "flag", "weight"]])


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
def test_the_range_is_exact_where_files_differ_in_precision(narrow, tmp_path):
    """What one file holds may be more than the numbers of another can be."""
    wide, other = np.array([0.1, 1e300]), np.array([0.25, 0.5], narrow)
    for place, values in enumerate((wide, other)):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{place}.parquet")
    found = parquet.Source(tmp_path / "*.parquet").opened(None, None, None)
    np.testing.assert_array_equal(nan_range(found.rows), [[0.1], [1e300]])


@pytest.mark.parametrize("some", [False, True])
def test_minibatches_are_all_rows_in_random_order(some, rows, generator, streaming):
    """Windows go over row groups in random order; of some rows as well as of all."""
    part = rows.view(np.flatnonzero(np.arange(len(rows)) % 5)) if some else rows
    whole = part[:]
    index = list(part.minibatches(8, generator))
    order = torch.cat(index)
    assert torch.equal(order.sort().values, torch.arange(len(part)))
    assert [*map(len, index[:-1])] == [8] * (len(index) - 1)
    assert not torch.equal(order, order.sort().values)
    for at in part.minibatches(8, generator):
        np.testing.assert_array_equal(part[at.numpy()], whole[at.numpy()])


def test_adam_learns_from_files(frame, files, streaming):
    model = MixtureClassifier(1, density="diag", solver=Adam(max_iter=3), init=EM(2))
    model.set_params(random_state=0, tradeoff=0.5, calibrate=False, missingness="ignore")
    model.fit(parquet.Source(files / "*.parquet", [*FEATURES, "label"]), "label")
    assert model.score(frame[FEATURES], frame["label"]) > 0.75


@pytest.mark.filterwarnings("ignore:the evidence had not settled")
def test_a_sparse_model_of_files_is_that_of_memory(frame, tmp_path):
    """It keeps all rows in memory, and marginalizes nothing."""
    whole, model = frame.dropna(), SparseMixtureClassifier(1, max_iter=3, random_state=0)
    frame[["a", "flag", "label"]].to_parquet(tmp_path / "holes.parquet")
    with pytest.raises(InvalidInputError, match="contains NaN"):
        clone(model).fit(tmp_path / "holes.parquet", "label")
    whole[["a", "b", "label"]].to_parquet(tmp_path / "rows.parquet", row_group_size=33)
    ours = clone(model).fit(tmp_path / "rows.parquet", "label")
    theirs = model.fit(whole[["a", "b"]], whole["label"])
    assert ours.terms_ == theirs.terms_
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)


@pytest.mark.parametrize(
    "model",
    [
        BoostedMixtureClassifier(1, n_stages=1, calibrate=False),
        MixtureNetworkClassifier(2, embedding="posterior", calibrate=False, **LINKED),
        MixtureNetworkRegressor(2, embedding="posterior", solver=LinkedEM(2)),
        MixtureRegressor(2, density="diag", marginals="linear", init=EM(2), solver=LBFGS(2)),
        MixtureImputer(2, add_indicator=True),
        MixtureImputer(1, use_labels=True, density="diag"),
        PairwiseClassifier(MixtureClassifier(1, density="diag", objective="likelihood")),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_of_files_are_those_of_memory(model, frame, files, streaming):
    columns = ["a", "b", "kind"]
    target = "weight" if hasattr(model, "predict_interval") else "label"
    inner = getattr(model, "estimator", model)
    known = {"missingness": "ignore", "random_state": 0}
    inner.set_params(**{name: value for name, value in known.items() if hasattr(inner, name)})
    source = parquet.Source(sorted(files.iterdir()), columns=[*columns, target])
    ours = clone(model).fit(source, target)
    theirs = clone(model).fit(frame[columns], frame[target])
    answers = ("predict_proba", "predict", "transform")
    answer = next(name for name in answers if hasattr(model, name))
    found = [pd.DataFrame(getattr(each, answer)(frame[columns])) for each in (ours, theirs)]
    pd.testing.assert_frame_equal(*found, rtol=1e-6, atol=1e-9)


def test_several_targets_are_named(frame, files):
    """Rows of weight zero do not count, and indicators are those of all rows."""
    model = MixtureRegressor(1, density="diag", marginals="linear", init=EM(2), random_state=0)
    weight = (np.arange(len(frame)) % 3).astype(float)
    source = parquet.Source(files / "*.parquet", columns=["a", "kind", "b", "weight"])
    ours = clone(model).fit(source, ["weight", "b"], weight)
    theirs = model.fit(frame[["a", "kind"]], frame[["weight", "b"]], weight)
    rows = frame[["a", "kind"]]
    np.testing.assert_allclose(ours.predict(rows), theirs.predict(rows), 1e-9)
    np.testing.assert_allclose(ours.predict_interval(rows), theirs.predict_interval(rows), 1e-9)


def test_one_target_in_a_list(tmp_path):
    """Of whole numbers, which labels may be, too."""
    table, path = pd.DataFrame({"x": np.arange(40.0), "target": 3 * np.arange(40)}), tmp_path / "t"
    table.to_parquet(path.with_suffix(".parquet"))
    model = MixtureRegressor(1, density="diag", marginals="linear", init=EM(2), random_state=0)
    ours = clone(model).fit(path.with_suffix(".parquet"), ["target"])
    theirs = model.fit(table[["x"]], table["target"])
    np.testing.assert_allclose(ours.predict(table[["x"]]), theirs.predict(table[["x"]]), 1e-9)


def test_a_stream_of_files_is_one_of_its_parts(frame, files, tmp_path):
    """Files are read once, in order; what fails on the way leaves the model as it was."""
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    options, parts = {"classes": ["x", "y", "z"], "memory": 100}, sorted(files.iterdir())
    ours, theirs = clone(model), clone(model)
    ours.partial_fit(parts, "label", sample_weight="weight", **options)
    for part in parquet.Source(parts).parts("label", "weight"):
        theirs.partial_fit(part[0], part[1], sample_weight=part[2], **options)
    np.testing.assert_array_equal(ours.means_, theirs.means_)
    assert ours.drift_ == theirs.drift_
    assert len(ours.drift_) > 1
    with pytest.raises(ValueError, match="has no column 'nothing'"):
        ours.partial_fit(parts, "nothing")
    with pytest.raises(ValueError, match="names of its columns"):
        ours.partial_fit(parts, frame["label"])
    frame[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="have no rows"):
        clone(model).partial_fit(tmp_path / "empty.parquet", "label", **options)
    np.testing.assert_array_equal(ours.means_, theirs.means_)


def test_labels_given_apart_that_are_a_column_too(rng, tmp_path):
    """The column would be a feature that tells all."""
    y, path = (np.arange(60) % 2).astype(float), tmp_path / "rows.parquet"
    pd.DataFrame({"u": rng.normal(size=60), "answer": 10.0 * y}).to_parquet(path)
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    with pytest.warns(UserWarning, match="column 'answer' tells the labels exactly"):
        model.fit(path, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(path, np.roll(y, 1) * (np.arange(len(y)) > 5))
