"""The command: every question of it on a small file, for people and for machines."""

import json
import os
import re
import resource
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss

import mixtura
from mixtura.densities import Diagonal
from mixtura.objectives import Margin
from mixtura.solvers import EM

pd = pytest.importorskip("pandas")
for package in ("pyarrow", "rich", "typer"):
    pytest.importorskip(package)
SETTINGS = ("density=diag", "objective=likelihood", "n_components=1", "missingness=ignore")
PLAIN = [part for setting in SETTINGS for part in ("--set", setting)]


def run(*arguments, status=0):
    """What a command says, to people (stdout) and beside (stderr)."""
    from typer.testing import CliRunner

    from mixtura.cli.app import app

    apart = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    ended = CliRunner(**apart).invoke(app, [*map(str, arguments)], prog_name="mixtura")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == status, ended.output
    return ended


def facts(*arguments):
    """What a command says to machines: all that stands on standard output."""
    return json.loads(run(*arguments, "--json").stdout)


def error(*arguments, status=1):
    """The one line in which a command fails."""
    ended = run(*arguments, status=status)
    assert ended.stdout == ""
    *_, last = lines = ended.stderr.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [last], ended.stderr
    return last


def table(n_rows=60, seed=0):
    """Numbers, words, booleans, holes and three kinds of flowers."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_rows) % 3
    frame = pd.DataFrame(
        {
            "length": kind + 0.3 * rng.normal(size=n_rows),
            "width": -kind + 0.5 * rng.normal(size=n_rows),
            "color": np.array(["red", "blue", "white"])[(kind + (rng.random(n_rows) < 0.2)) % 3],
            "wild": rng.random(n_rows) < 0.3 + 0.2 * kind,
            "flower": np.array(["iris", "lily", "rose"])[kind],
        }
    )
    frame.loc[rng.random(n_rows) < 0.2, "width"] = np.nan
    frame.loc[rng.random(n_rows) < 0.1, "color"] = None
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of flowers, and a model of it."""
    place = tmp_path_factory.mktemp("flowers")
    table().to_csv(place / "flowers.csv", index=False)
    place.joinpath("model.safetensors").unlink(missing_ok=True)
    out = ["--out", place / "model.safetensors"]
    run("fit", place / "flowers.csv", "--target", "flower", *PLAIN, *out)
    return place


@pytest.fixture
def asked(folder, tmp_path, monkeypatch):
    """Arguments that name the model and the file; what is written goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    return folder / "model.safetensors", folder / "flowers.csv"


# -- fit ---------------------------------------------------------------------------------------


def test_fit_says_what_it_did_and_is_the_fit_of_the_library(asked, tmp_path):
    ended = run("fit", asked[1], "--target", "flower", *PLAIN, "--test-size", 0.25)
    assert "fitting MixtureClassifier to 45 rows" in ended.stderr
    for shown in ("MixtureClassifier", "test rows", "log loss", "wrote model.safetensors"):
        assert shown in ended.stdout
    model, frame = mixtura.load(asked[0]), table()
    assert model.target_name_ == "flower"
    assert list(model.feature_names_in_) == ["length", "width", "color", "wild"]
    own = mixtura.MixtureClassifier(
        1, density="diag", objective="likelihood", missingness="ignore", random_state=0
    )
    own.fit(frame.drop(columns="flower"), frame["flower"])
    X = frame.drop(columns="flower")
    np.testing.assert_allclose(model.predict_proba(X), own.predict_proba(X), atol=1e-9)
    assert (model.max_time, model._callbacks) == (None, ())


def test_settings_of_parts(asked, tmp_path):
    """A name that is followed by settings is the object that it is shorthand for."""
    out = tmp_path / "other.safetensors"
    given = ("objective__holes=0.3", "density__floor=0.2", "init__max_iter=7", "tradeoff=0.9")
    settings = [part for each in (*given, "density=diag") for part in ("--set", each)]
    run("fit", asked[1], "--target", "flower", *settings, "--out", out)
    model = mixtura.load(out)
    assert (model.objective, model.density) == (Margin(holes=0.3), Diagonal(0.2))
    assert model.init == EM(max_iter=7)
    refused = {"density__width=1": "width", "verbose__x=1": "verbose is 0, which has no settings."}
    named = 'solver is "auto", which has no settings; name one first: --set solver=em or ebw or'
    for wrong, told in {**refused, "solver__max_iter=2": named}.items():
        assert told in error("fit", asked[1], "--target", "flower", "--set", wrong, "--out", out)


def test_fit_for_machines(asked, tmp_path):
    """Standard output is JSON alone; the test rows are those that training has not seen."""
    out = tmp_path / "other.safetensors"
    found = facts("fit", asked[1], "--target", "flower", *PLAIN, "--test-size", 0.25, "--out", out)
    assert (found["rows"], found["test_rows"], found["columns"]) == (45, 15, 4)
    assert found["wrote"] == str(out)
    counts = np.array(
        [[row[name] for name in ("iris", "lily", "rose")] for row in found["confusion"]]
    )
    assert counts.sum() == 15
    assert found["error"] == pytest.approx(1 - np.trace(counts) / 15)


def test_columns_that_are_left_out(asked, tmp_path):
    """By --drop and --id; dates and the index of pandas, with a word; identifiers are hinted at."""
    frame = table().assign(name=[f"f{n}" for n in range(60)], day="2024-01-31", number=range(60))
    frame.to_csv("more.csv")
    options = ["more.csv", "--target", "flower", *PLAIN, "--out", tmp_path / "model.safetensors"]
    said = run("fit", *options, "--drop", "wild", "--id", "name").stderr
    assert "column 'day' holds dates" in said
    assert "column 1, which has no name and counts the rows, is left out" in said
    assert "column 'number' is different in every row" in said
    assert "--drop number" in said
    assert "'name'" not in said
    model = mixtura.load(tmp_path / "model.safetensors")
    assert list(model.feature_names_in_) == ["length", "width", "color", "number"]


def test_numbers_that_are_categories_and_marks_of_missing_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = table()
    frame["place"] = np.arange(60) % 4
    frame["weight"] = np.round(frame["length"], 3).astype(str)
    frame.loc[::7, "weight"] = "?"
    frame.to_csv("marked.csv", index=False)
    options = ["marked.csv", "--target", "flower", *PLAIN]
    message = error("fit", *options)
    assert "column 'weight' holds numbers and words ('?')" in message
    assert "--missing '?'" in message
    assert not (tmp_path / "model.safetensors").exists()
    found = facts("fit", *options, "--missing", "?", "--categorical", "place")
    assert found["missing_cells"] == frame.isna().sum().sum() + 9
    model = mixtura.load("model.safetensors")
    assert model.schema_.categories[4].tolist() == ["0", "1", "2", "3"]
    assert run("predict", "model.safetensors", "marked.csv", "--missing", "?").exit_code == 0
    given = pd.read_csv("predictions.csv")
    assert run("predict", "model.safetensors", "marked.csv").exit_code == 0  # the model knows
    pd.testing.assert_frame_equal(pd.read_csv("predictions.csv"), given)
    proba = model.predict_proba(
        pd.read_csv("marked.csv", na_values="?", dtype={"place": str})[model.feature_names_in_]
    )
    np.testing.assert_allclose(given.filter(like="p(").to_numpy(), proba, atol=1e-12)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_are_left_out_may_hold_infinity(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    frame = table().assign(ratio=np.inf)
    getattr(frame, f"to_{suffix}")(f"odd.{suffix}", index=False)
    options = [f"odd.{suffix}", "--target", "flower", *PLAIN]
    assert "infinity in the column 'ratio'" in error("fit", *options)
    assert run("fit", *options, "--drop", "ratio").exit_code == 0
    for question in ("predict", "evaluate"):
        assert run(question, "model.safetensors", f"odd.{suffix}").exit_code == 0


def test_unlabeled_rows_and_whole_numbers_as_classes(tmp_path, monkeypatch):
    """Empty targets are unlabeled; 0 and 1 stay 0 and 1 beside them."""
    monkeypatch.chdir(tmp_path)
    frame = table()
    frame["flower"] = (np.arange(60) % 3 > 0).astype(float)
    frame.loc[::4, "flower"] = np.nan
    frame.to_csv("few.csv", index=False)
    found = facts("fit", "few.csv", "--target", "flower", *PLAIN, "--set", "unlabeled_weight=0.5")
    assert found["without_target"] == 15
    assert mixtura.load("model.safetensors").classes_.tolist() == [0, 1]
    assert facts("evaluate", "model.safetensors", "few.csv")["error"] < 0.2


def test_a_density_and_a_number(asked, tmp_path):
    """Without a target; and with one that is a number, which comes with intervals."""
    plain = [*PLAIN[:2], *PLAIN[4:]]
    assert facts("fit", asked[1], "--drop", "flower", *plain)["model"] == "MixtureDensity"
    density = facts("evaluate", "model.safetensors", asked[1])["mean_log_density"]
    own = mixtura.MixtureDensity(1, density="diag", missingness="ignore", random_state=0)
    assert density == pytest.approx(
        own.fit(table().drop(columns="flower")).score(table().drop(columns="flower"))
    )
    assert facts("predict", "model.safetensors", asked[1])["mean_log_density"] == density
    assert {"component", "log_density"} < set(pd.read_csv("predictions.csv"))
    assert "has no predict_set" in error(
        "predict", "model.safetensors", asked[1], "--coverage", 0.9
    )
    assert facts("sample", "model.safetensors", "-n", 5)["columns"] == 4


def test_numbers_are_predicted_with_intervals(asked):
    quick = ["--set", "n_components=1", "--set", "density=full", "--set", "marginals=linear"]
    options = ["--target", "length", "--regression", *quick, "--test-size", 0.25]
    found = facts("fit", asked[1], *options)
    assert found["model"] == "MixtureRegressor"
    assert found["r2"] > 0.5
    X = table().drop(columns="length")
    model = mixtura.load("model.safetensors")
    run("predict", "model.safetensors", asked[1], "--coverage", 0.8)
    written = pd.read_csv("predictions.csv")
    np.testing.assert_allclose(written["prediction"], model.predict(X))
    np.testing.assert_allclose(written[["low", "high"]], model.predict_interval(X, 0.8))
    rows = facts("evaluate", "model.safetensors", asked[1])
    assert rows["mean_absolute_error"] < rows["root_mean_squared_error"] < 0.6
    assert "is not for" in error("sample", "model.safetensors")
    why = facts("explain", "model.safetensors", asked[1], "--rows", 5)
    assert why["explained"] == "mean"
    told = pd.read_csv("explanations.csv").filter(regex="adds|base").sum(axis=1)
    np.testing.assert_allclose(told, model.predict(X[:5]))
    run("impute", "model.safetensors", asked[1])


# -- questions ---------------------------------------------------------------------------------


def test_predict_keeps_the_columns_and_adds_probabilities(asked):
    ended = run("predict", *asked, "--coverage", 0.9, "--outliers", 0.05)
    assert "wrote predictions.csv" in ended.stdout
    written, model = pd.read_csv("predictions.csv"), mixtura.load(asked[0])
    X = table().drop(columns="flower")
    pd.testing.assert_frame_equal(written[list(table())], pd.read_csv(asked[1]))
    shown = written[["p(iris)", "p(lily)", "p(rose)"]]
    np.testing.assert_allclose(shown, model.predict_proba(X), atol=1e-12)
    assert (written["prediction"] == model.predict(X)).all()
    sets = [" | ".join(model.classes_[row]) for row in model.predict_set(X, 0.9)]
    assert written["set"].fillna("").tolist() == sets
    assert written["unlike_training"].tolist() == model.is_outlier(X, 0.05).tolist()


def test_predict_matches_columns_by_name(asked):
    """Absent columns are missing and unknown ones ignored, each with a note; --id keeps some."""
    frame = table().drop(columns=["width", "flower"]).assign(extra=1.0, key=range(60))
    frame[["key", "extra", "wild", "length", "color"]].to_parquet("other.parquet")
    ended = run("predict", asked[0], "other.parquet", "--id", "key", "--out", "found.feather")
    assert ended.stderr.count("note: X lacks 1 column(s) of the training rows ('width')") == 1
    assert "note: X has 1 column(s) that the training rows do not ('extra')" in ended.stderr
    written = pd.read_feather("found.feather")
    assert list(written) == ["key", "prediction", "p(iris)", "p(lily)", "p(rose)"]
    X = table().drop(columns="flower").assign(width=np.nan)
    np.testing.assert_allclose(written["p(rose)"], mixtura.load(asked[0]).predict_proba(X)[:, 2])


def test_predict_keeps_what_is_written(asked):
    """Of columns that the model does not know: zeros before numbers, and digits after them."""
    keys = [f"{number:05d}" for number in range(60)]
    table().assign(key=keys, price="1.50").to_csv("keyed.csv", index=False)
    for options in ((), ("--id", "key", "--id", "price")):
        run("predict", asked[0], "keyed.csv", *options)
        written = pd.read_csv("predictions.csv", dtype=str)
        assert written["key"].tolist() == keys
        assert set(written["price"]) == {"1.50"}


def test_evaluate_beside_scikit_learn(asked):
    found = facts("evaluate", *asked)
    model, frame = mixtura.load(asked[0]), table()
    proba = model.predict_proba(frame.drop(columns="flower"))
    assert found["log_loss"] == pytest.approx(log_loss(frame["flower"], proba))
    guess = model.classes_[proba.argmax(1)]
    assert found["error"] == pytest.approx((guess != frame["flower"]).mean())
    groups = np.argsort(proba.max(1), kind="stable").reshape(-1, 20)  # of twenty rows at least
    right = (guess == frame["flower"]).to_numpy()
    off = proba.max(1)[groups].mean(1) - right[groups].mean(1)
    assert found["calibration_error"] == pytest.approx(np.abs(off).mean())
    assert "true \\ predicted" in run("evaluate", *asked).stdout
    frame.drop(columns="flower").to_csv("blind.csv", index=False)
    assert "there is no such column" in error("evaluate", asked[0], "blind.csv")


def test_the_target_of_a_model_that_python_saved_is_named(tmp_path, monkeypatch):
    """Its file knows no name of it; labels are what the file of rows says, numbers as numbers."""
    monkeypatch.chdir(tmp_path)
    frame = table().assign(flower=lambda rows: (rows["flower"] == rows["flower"][0]).astype(int))
    model = mixtura.MixtureClassifier(1, random_state=0)
    model.fit(frame.drop(columns="flower"), frame["flower"]).save("model.safetensors")
    frame.to_csv("rows.csv", index=False)
    found = facts("evaluate", "model.safetensors", "rows.csv", "--target", "flower")
    wanted = model.score(frame.drop(columns="flower"), frame["flower"])
    assert found["error"] == pytest.approx(1.0 - wanted)


def test_explanations_sum_to_the_answer(asked):
    found = facts("explain", *asked, "--rows", 20)
    written = pd.read_csv("explanations.csv")
    assert found["rows"] == len(written) == 20
    adds = written[[f"{name} adds" for name in ("length", "width", "color", "wild")]]
    proba = mixtura.load(asked[0]).predict_proba(table().drop(columns="flower"))[:20]
    np.testing.assert_allclose(adds.sum(axis=1) + written["base value"], proba.max(1), atol=1e-9)
    sizes = [line["mean absolute value"] for line in found["importance"]]
    assert sizes == sorted(sizes, reverse=True)


def test_impute_fills_holes_and_leaves_the_rest(asked):
    run("impute", *asked)
    filled, before = pd.read_csv("imputed.csv"), pd.read_csv(asked[1])
    assert list(filled) == list(before)
    assert not filled.isna().any().any()
    for name in before:
        known = before[name].notna()
        assert (filled[name][known] == before[name][known]).all()
    run("impute", *asked, "--draw", "--out", "drawn.csv")
    assert (pd.read_csv("drawn.csv")["width"] != filled["width"]).sum() == before[
        "width"
    ].isna().sum()


def test_samples_of_a_class_with_a_column_given(asked):
    run(
        "sample",
        asked[0],
        "-n",
        20,
        "--class",
        "rose",
        "--given",
        "length=2.5",
        "--given",
        "color=red",
    )
    drawn = pd.read_csv("sample.csv")
    assert list(drawn) == ["length", "width", "color", "wild", "flower"]
    assert (drawn["flower"] == "rose").all()
    assert (drawn["length"] == 2.5).all()
    assert (drawn["color"] == "red").all()
    assert drawn["width"].nunique() == 20
    assert "there is no class tulip: iris, lily" in error("sample", asked[0], "--class", "tulip")
    assert "write COLUMN=VALUE" in error("sample", asked[0], "--given", "length")
    assert "holds true and false" in error("sample", asked[0], "--given", "wild=maybe")


def test_names_with_an_equals_sign_are_given(asked):
    frame = table()[["length", "wild", "flower"]].rename(columns={"wild": "length=b"})
    frame.insert(0, "flower", frame.pop("flower"))
    frame.to_csv("named.csv", index=False)
    run("fit", "named.csv", "--target", "flower", *PLAIN)
    run("sample", "model.safetensors", "-n", 3, "--given", "length=b=true", "--given", "length=2")
    drawn = pd.read_csv("sample.csv")
    assert drawn["length=b"].all()
    assert (drawn["length"] == 2).all()
    run("impute", "model.safetensors", "named.csv")
    assert list(pd.read_csv("imputed.csv")) == list(frame)


def test_files_that_are_read_stay_as_they_are(asked, tmp_path):
    """Whatever is asked, and whatever the file is called by."""
    model, data = tmp_path / "model.csv", tmp_path / "data.csv"
    model.write_bytes(asked[0].read_bytes())
    data.write_bytes(asked[1].read_bytes())
    questions = [("fit", data), *((name, model, data) for name in ("predict", "explain", "impute"))]
    for question in [*questions, ("report", model, data), ("sample", model), ("export", model)]:
        for read in question[1:]:
            said = error(*question, "--out", tmp_path / ".." / tmp_path.name / read.name)
            assert "is read here, and stays as it is" in said
    assert model.read_bytes() == asked[0].read_bytes()
    assert data.read_bytes() == asked[1].read_bytes()
    table().to_parquet("part.parquet")
    assert "is read here" in error("fit", "p*.parquet", "--out", "part.parquet")
    assert "is read here" in error("predict", model, "p*.parquet", "--out", "part.parquet")


def test_answers_in_place_of_columns_are_noted(asked):
    frame = table().assign(prediction="mine")
    frame.to_csv("named.csv", index=False)
    frame.to_parquet("part.parquet")
    for data, out in (("named.csv", "out.csv"), ("p*.parquet", "out.parquet")):
        ended = run("predict", asked[0], data, "--out", out)
        assert "in place of the columns 'prediction' of the file" in ended.stderr
    assert "in place of" not in run("predict", asked[0], "named.csv", "--id", "length").stderr
    assert "in place of" not in run("impute", *asked).stderr


def parts(**changes):
    """Three files of flowers, some of them changed."""
    Path("part").mkdir(exist_ok=True)
    frames = [table(seed=seed) for seed in range(3)]
    for number, frame in enumerate(frames):
        frame = changes.get(f"part{number}", lambda frame: frame)(frame)
        frame.to_parquet(f"part/{number}.parquet", index=False)
        frames[number] = frame
    return pd.concat(frames, ignore_index=True)


def test_files_of_a_pattern_have_columns_in_any_order_and_some_without_values(asked):
    frame = parts(
        part0=lambda frame: frame.assign(color=None),
        part1=lambda frame: frame[frame.columns[::-1]],
        part2=lambda frame: frame.assign(more=1.0),
    )
    run("predict", asked[0], "part/*.parquet", "--out", "found.parquet")
    found = pd.read_parquet("found.parquet")
    columns = list(table().columns)
    both = (each[columns].fillna({"color": "none"}) for each in (found, frame))
    pd.testing.assert_frame_equal(*both, check_dtype=False)
    frame[columns].to_csv("all.csv", index=False)
    run("predict", asked[0], "all.csv", "--out", "wanted.parquet")
    wanted = pd.read_parquet("wanted.parquet")
    assert (found["prediction"] == wanted["prediction"]).all()
    assert found["prediction"].nunique() == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.assign(length="long"), "column 'length' is of the type"),
        (lambda frame: frame.assign(length=pd.Timestamp(0)), "neither numbers nor categories"),
        (lambda frame: frame.drop(columns="width"), "has no column 'width'"),
        (lambda frame: frame.assign(length=np.inf), "column 'length' holds infinity"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(change, said, asked):
    parts(part1=change)
    told = error("predict", asked[0], "part/*.parquet", "--out", "found.parquet")
    assert said in told
    assert "part/1.parquet" in told
    assert not Path("found.parquet").exists()


def test_damaged_files_of_a_pattern_are_named(asked):
    parts()
    whole = Path("part/1.parquet").read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:10] + b"\xff" * 400 + whole[410:]):
        Path("part/1.parquet").write_bytes(damaged)
        for question in (("predict", asked[0]), ("fit",)):
            told = error(*question, "part/*.parquet", "--out", "found.parquet")
            assert "part/1.parquet" in told
            assert not Path("found.parquet").exists()


def test_rows_marked_as_unlabeled_are_not_evaluated(asked):
    frame = table()
    frame["flower"] = np.arange(len(frame)) % 3 - 1
    frame.to_csv("marked.csv", index=False)
    run("fit", "marked.csv", "--target", "flower", *PLAIN)
    found = facts("evaluate", "model.safetensors", "marked.csv")
    assert sum(line["0"] + line["1"] for line in found["confusion"]) == 40
    frame[frame["flower"] == -1].to_csv("none.csv", index=False)
    assert "marked as unlabeled" in error("evaluate", "model.safetensors", "none.csv")


def test_models_of_several_numbers_are_refused(asked):
    X = np.arange(8.0)[:, None]
    mixtura.MixtureRegressor(1, random_state=0).fit(X, np.hstack([X, -X])).save("two.safetensors")
    assert "2 numbers per row" in error("predict", "two.safetensors", asked[1])


def test_export_gives_the_same_probabilities(asked):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    assert facts("export", asked[0])["wrote"] == "model.onnx"
    model, X = mixtura.load(asked[0]), table().drop(columns="flower")
    codes = X.assign(color=X["color"].map({"blue": 0, "red": 1, "white": 2}))
    session = runtime.InferenceSession("model.onnx")
    (found,) = session.run(["probabilities"], {"X": codes.to_numpy(np.float64)})
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-5)
    assert "must end with .onnx" in error("export", asked[0], "--out", "model.bin")


def test_tune_keeps_the_best(asked):
    pytest.importorskip("optuna")
    found = facts("tune", asked[1], "--target", "flower", *PLAIN, "--trials", 1, "--folds", 2)
    assert found["trials"] == 1
    assert found["best_score"] == found["score_as_given"] < 0
    assert mixtura.load("model.safetensors").target_name_ == "flower"


# -- the command itself ------------------------------------------------------------------------


def test_usage_errors_are_one_line():
    import typer

    suggests = "suggest_commands" in signature(typer.Typer).parameters  # by its version
    assert re.search("'fti'" + ".*Did you mean 'fit'" * suggests, error("fti", status=2))
    assert "See: mixtura fit --help" in error("fit", status=2)
    assert "--traget" in error("fit", "x.csv", "--traget", "y", status=2)


def test_help_is_fast():
    """Little more processor time than Typer and rich take alone."""

    def seconds(*arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    alone = min(seconds("-c", "import rich.console, typer.main") for _ in range(2))
    assert min(seconds("-m", "mixtura", "--help") for _ in range(2)) < 3.0 * alone


def test_files_that_cannot_be_are_told_before_pytorch_is_imported(tmp_path):
    for name in ("model", "x.csv"):
        (tmp_path / name).touch()
    (tmp_path / "folder.parquet").mkdir()
    asking = ("predict", "evaluate", "report", "explain", "impute")
    lines = [
        *(("fit", "nowhere.csv"), ("tune", "nowhere.parquet"), ("predict", "model", "no*.parquet")),
        *(("fit", "."), ("fit", os.devnull), ("predict", "model", "folder.parquet")),
        *(("fit", "x.csv", "--out", "."), ("predict", "model", "x.csv", "--out", "x.json")),
        *((name, "nowhere", "x.csv") for name in asking),
        *((name, "nowhere") for name in ("sample", "serve", "export")),
    ]
    code = (
        "import sys; from typer.testing import CliRunner; from mixtura.cli.app import app\n"
        f"for line in {lines}:\n"
        "    ended = CliRunner().invoke(app, line)\n"
        "    assert ended.exit_code == 1, ended.output\n"
        "    print(ended.output.strip())\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.check_output(command, cwd=tmp_path, text=True)
    tables = [f"error: there is no file {name}." for _, *_, name in lines[:3]]
    found = said.splitlines()
    assert found[:3] == tables
    told = (". is a folder:", "is a device or a pipe", "is a folder", "is a folder", "x.json: what")
    assert all(part in line for part, line in zip(told, found[3:8], strict=True)), found
    assert found[8:] == [*["error: no model file at nowhere."] * 8, "False"]


def test_completion_is_there():
    assert "--install-completion" in run("--help").stdout
