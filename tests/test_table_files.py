"""Tables as files: formats, encodings, delimiters; and all that may be wrong with them."""

import io
import json
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from test_command import PLAIN, error, facts, run, table

import mixtura
from mixtura.cli.columns import labels
from mixtura.exceptions import AmbiguousDataWarning, FileFormatError, InvalidInputError
from mixtura.files import check_table_place, read_frame, read_text, replacing, write_frame

pd = pytest.importorskip("pandas")
for package in ("pyarrow", "rich", "typer"):
    pytest.importorskip(package)
FORMATS = [".csv", ".tsv", ".parquet", ".feather", ".arrow", ".xlsx"]


def read(content, encoding="utf-8", **options):
    """A table from text."""
    return read_text(io.BytesIO(content.encode(encoding)), "table", **options)


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_written_is_read_back(suffix, tmp_path):
    """Numbers, words, booleans and holes, in every format."""
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    path, frame = tmp_path / f"table{suffix}", table()
    write_frame(frame, path)
    found = read_frame(path)
    assert list(found) == list(frame)
    for name in frame:
        assert (found[name].isna() == frame[name].isna()).all()
        known = frame[name].notna()
        assert found[name][known].tolist() == pytest.approx(frame[name][known].tolist(), abs=1e-12)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.filterwarnings("ignore:table is not in UTF-8")
def test_encodings_and_delimiters_are_found_out(encoding, delimiter):
    rows = [["Größe", "wo"], ["1.5", '"a, b; c"'], ["2", "là"], ["", "x"]]
    found = read("\r\n".join(delimiter.join(row) for row in rows), encoding)
    assert found["Größe"].tolist() == pytest.approx([1.5, 2.0, np.nan], nan_ok=True)
    assert found["wo"].tolist() == ["a, b; c", "là", "x"]


def test_another_encoding_is_said():
    with pytest.warns(UserWarning, match="not in UTF-8, and is read as cp1252"):
        assert read("a,b\n“x”,1", "cp1252")["a"].tolist() == ["“x”"]


def test_decimal_commas_where_no_point_is_written():
    assert read("a;b\n1,5;x\n-2;y")["a"].tolist() == [1.5, -2.0]
    assert read("a;b\n1,5;x\n2.5;y")["a"].tolist() == ["1,5", "2.5"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('a,b\n"11,030",x\n,y\n"-1,234,567.5",x\n950,y\n', [11030.0, np.nan, -1234567.5, 950.0]),
        ("a;b;c\n1.234,5;x;0,1\n7;y;0,2\n", [1234.5, 7.0]),
    ],
)
def test_thousands_that_are_set_apart_are_numbers(text, values):
    with pytest.warns(AmbiguousDataWarning, match=r"'a' is read as numbers.*--categorical a "):
        found = read(text)
    np.testing.assert_array_equal(found["a"], values)
    assert read_text(io.BytesIO(text.encode()), "x", text=["a"])["a"].map(type).iloc[0] is str


def test_words_with_commas_are_no_numbers():
    """Groups of other lengths, a zero in front, and words."""
    for cell in ("1,5", "0,125", "12,34", "x"):
        assert read(f'a,b\n"1,234",x\n"{cell}",y\n')["a"].tolist() == ["1,234", cell]


def test_text_stays_text_where_a_model_has_it_so(tmp_path):
    """Leading zeros of text; numbers of other formats as they would be written."""
    assert read("zip,n\n01,1\n2,2", text=["zip"])["zip"].tolist() == ["01", "2"]
    pd.DataFrame({"zip": [1.0, None, 2.0]}).to_parquet(tmp_path / "a.parquet")
    found = read_frame(tmp_path / "a.parquet", text=["zip"])["zip"]
    assert found.dropna().tolist() == ["1", "2"]


def test_numbers_of_rows_are_no_column(tmp_path):
    """What pandas writes beside the columns of a data frame whose rows were chosen or sorted."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[5, 3, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    assert list(read_frame(tmp_path / "a.parquet").columns) == ["a"]


def test_whole_numbers_are_classes_without_a_point():
    found = labels(pd.Series([1.0, None, 2.0]))
    assert list(map(repr, found)) == ["1", "None", "2"]
    assert labels(pd.Series([1.0, 2.5])).tolist() == [1.0, 2.5]


def test_marks_of_missing_values_in_every_format(tmp_path):
    assert read("a\n1\n?\n-", missing=["?", "-"])["a"].isna().tolist() == [False, True, True]
    pd.DataFrame({"a": ["x", "?"]}).to_feather(tmp_path / "a.feather")
    found = read_frame(tmp_path / "a.feather", missing=["?"])["a"]
    assert found.isna().tolist() == [False, True]
    marked = pd.DataFrame({"f": [1.5, -9], "i": [1, -9], "s": ["x", "-9"], "b": [True, False]})
    expected = [[False] * 4, [True, True, True, False]]
    excel = ["a.xlsx"] if find_spec("openpyxl") else []
    for name in ("a.csv", "a.parquet", "a.feather", *excel):
        write_frame(marked, tmp_path / name)
        found = read_frame(tmp_path / name, missing=["-9", "?"])
        assert found.isna().to_numpy().tolist() == expected, name
        assert found["f"].dtype.kind == found["i"].dtype.kind == "f", name


BROKEN = {
    "": "is empty",
    "\n\n": "is empty",
    "a,b\n": "no rows",
    "1,2\n3,4": "begins with numbers .*put a line with the names",
    "a,b,a\n1,2,3": "several columns named a",
    "a,b\n1,2\n3,4,5": "Expected 2 fields in line 3, saw 3",
    "a,b\n1,2,3\n3,4,5": "every line needs as many fields",
    'a,b\n"1,2\n"3,4\n': "quotation mark that is not closed joins lines",
    'a,b\n"x,2\ny,3\nz",4\n': "two stray quotation marks make one field of whole lines",
    'a,b\n"x,1\n2,3': "EOF inside string",
    "a,b\n1,\0\n": "is not text",
    "a,b\n1,inf\n": "infinity in the column 'b'",
}


@pytest.mark.parametrize("text", BROKEN)
def test_broken_text_is_refused(text):
    with pytest.raises((FileFormatError, InvalidInputError), match=BROKEN[text]):
        read(text)


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".xlsx", ".csv.gz"])
def test_damaged_files_are_refused(suffix, tmp_path):
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    path = tmp_path / f"table{suffix}"
    path.write_bytes(b"PK\3\4 neither this nor that")
    with pytest.raises(FileFormatError, match=r"table\..* is damaged"):
        read_frame(path)


def test_the_old_format_of_excel_is_not_written(tmp_path):
    with pytest.raises(InvalidInputError, match=r"end in .*\.xlsx, \.xlsm, \.csv"):
        check_table_place(tmp_path / "table.xls")


@pytest.mark.parametrize("suffix", [".json", ".JSONL", ".npz"])
def test_files_that_are_no_tables_are_refused_by_their_names(suffix, tmp_path):
    path = tmp_path / f"table{suffix}"
    path.write_text('[{"a": 1, "b": 1}]')
    with pytest.raises(FileFormatError, match=r"is no table: .* from \.parquet.*\.csv"):
        read_frame(path)


def test_folders_that_cannot_be_written_to_are_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be written to: choose another"):
        check_table_place(tmp_path / "table.csv")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("before")
    with pytest.raises(FileNotFoundError), replacing(path) as fresh:
        fresh.with_name("elsewhere").rename(fresh)
    with pytest.raises(TypeError), replacing(path) as fresh:
        fresh.write_text(fresh.write_text("half"))
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


# -- what a command makes of it ----------------------------------------------------------------


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_here")
def test_targets_that_are_none(tmp_path):
    frame = table().assign(price=np.linspace(0, 1, 60), same=1, none=None, day=date(2024, 1, 31))
    frame["name"] = [f"n{n}" for n in range(60)]
    frame["count"] = np.arange(60)
    frame["kind"] = pd.Categorical(frame["price"])
    expected = {
        "kind": "60 different numbers are no classes",
        "flwr": "did you mean 'flower'",
        "price": "60 different numbers are no classes. Use --regression",
        "count": "60 different numbers are no classes",
        "same": "holds only 1, and there is nothing to tell apart",
        "none": "holds nothing",
        "day": "dates are no classes",
        "name": "60 different values in 60 rows are no classes",
    }
    frame.to_parquet("table.parquet")
    for target, message in expected.items():
        assert message in error("fit", "table.parquet", *PLAIN, "--target", target)
    options = ["table.parquet", "--regression"]
    assert "needs numbers" in error("fit", *options, "--target", "flower")
    assert "needs a --target" in error("fit", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_words_for_nothing_may_be_classes(suffix):
    """A disease called "None" is neither lost nor learned from before somebody says what it is."""
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    name, frame = f"table{suffix}", table().replace({"flower": {"rose": "None"}})
    frame.loc[0, "flower"] = ""
    write_frame(frame, Path(name))
    said = error("fit", name, *PLAIN, "--target", "flower")
    assert "None, in 20 rows" in said
    assert "--categorical flower" in said
    assert "--missing None" in said
    facts("fit", name, *PLAIN, "--target", "flower", "--categorical", "flower")
    model = mixtura.load("model.safetensors")
    assert model.classes_.tolist() == ["None", "iris", "lily"]
    kept = frame.iloc[1:]
    wrong = (model.predict(kept.drop(columns="flower")) != kept["flower"]).mean()
    assert facts("evaluate", "model.safetensors", name)["error"] == pytest.approx(wrong)
    some = kept[kept["flower"] == "None"]
    write_frame(some, Path(f"some{suffix}"))  # no other word says that the target is text
    wrong = (model.predict(some.drop(columns="flower")) != "None").mean()
    found = facts("evaluate", "model.safetensors", f"some{suffix}")
    assert (found["rows"], found["error"]) == (len(some), pytest.approx(wrong))
    facts("predict", "model.safetensors", name)
    written = pd.read_csv("predictions.csv", keep_default_na=False)["flower"]
    assert written.tolist() == frame["flower"].tolist()
    found = facts("fit", name, *PLAIN, "--target", "flower", "--missing", "None")
    assert found["without_target"] == 21
    assert mixtura.load("model.safetensors").classes_.tolist() == ["iris", "lily"]
    numbers = frame.assign(flower=frame["flower"].replace({"iris": 1, "lily": 2, "": None}))
    write_frame(numbers, Path(name))  # there is no number called None
    assert facts("fit", name, *PLAIN, "--target", "flower")["without_target"] == 21


@pytest.mark.usefixtures("_here")
def test_numbers_with_zeros_before_them_are_not_merged():
    frame = table().replace({"flower": {"rose": "01", "iris": "1", "lily": ""}})
    frame.to_csv("table.csv", index=False)
    said = error("fit", "table.csv", *PLAIN, "--target", "flower")
    assert "01 and 1 are one number" in said
    assert "--categorical flower" in said
    facts("fit", "table.csv", *PLAIN, "--target", "flower", "--categorical", "flower")
    assert mixtura.load("model.safetensors").classes_.tolist() == ["01", "1"]
    frame.replace({"flower": {"1": "10"}}).to_csv("table.csv", index=False)
    facts("fit", "table.csv", *PLAIN, "--target", "flower")
    assert mixtura.load("model.safetensors").classes_.tolist() == [1, 10]


@pytest.mark.usefixtures("_here")
def test_options_that_ask_for_what_is_not_there():
    table().to_csv("table.csv", index=False)
    common = ["fit", "table.csv", "--target", "flower"]
    assert "--drop wdth: there is no such column; did you mean 'width'" in error(
        *common, "--drop", "wdth"
    )
    assert "--set densty=diag: write NAME=VALUE" in error(*common, "--set", "densty=diag")
    assert "there is no folder nowhere" in error(*common, "--out", "nowhere/model")
    assert "no column is left" in error(
        *common, *(part for name in list(table())[:4] for part in ("--drop", name))
    )
    assert "'density' parameter" in error(*common, "--set", "density=round")


@pytest.mark.usefixtures("_here")
def test_model_files_that_are_none(tmp_path):
    """Damaged, foreign, absent; and no table is written."""
    table().to_csv("table.csv", index=False)
    run("fit", "table.csv", "--target", "flower", *PLAIN)
    model = tmp_path / "model.safetensors"
    content = model.read_bytes()
    for damaged in (b"", content[:100], content[:-50], content.replace(b"sha256", b"sha257")):
        model.write_bytes(damaged)
        assert "damaged" in error("predict", model, "table.csv")
    assert "no model file" in error("predict", "nothing.safetensors", "table.csv")
    assert "damaged or not a model" in error("predict", "table.csv", "table.csv")
    assert not (tmp_path / "predictions.csv").exists()


@pytest.mark.usefixtures("_here")
def test_tables_that_a_model_cannot_take(tmp_path):
    table().to_csv("table.csv", index=False)
    run("fit", "table.csv", "--target", "flower", *PLAIN)
    asked = ["predict", "model.safetensors"]
    (tmp_path / "words.csv").write_text("length,color\nlong,red\n")
    assert "held numbers in training and holds text now" in error(*asked, "words.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "no column of the training rows" in error(*asked, "other.csv")
    assert "Let the name end in" in error(*asked, "table.csv", "--out", "table.png")
    (tmp_path / "new.csv").write_text("length,width,color,wild\n1,,green,True\n")
    ended = run(*asked, "new.csv", "--json")
    assert "'green'); they count as missing" in ended.stderr
    assert json.loads(ended.stdout)["rows"] == 1


@pytest.mark.usefixtures("_here")
def test_many_files_are_as_one(tmp_path):
    """The model and the predictions are those of the table in memory."""
    frame = table(90)
    frame.to_csv("all.csv", index=False)
    for part in range(3):
        frame.iloc[30 * part : 30 * part + 30].to_parquet(f"rows{part}.parquet")
    run("fit", "all.csv", "--target", "flower", *PLAIN, "--out", "one.safetensors")
    found = facts("fit", "rows?.parquet", "--target", "flower", *PLAIN)
    assert (found["rows"], found["columns"]) == (90, 4)
    run("predict", "one.safetensors", "all.csv")
    said = facts("predict", "model.safetensors", "rows?.parquet", "--out", "many.parquet")
    one, many = pd.read_csv("predictions.csv"), pd.read_parquet("many.parquet")
    assert list(one) == list(many)
    names = ["p(iris)", "p(lily)", "p(rose)"]
    np.testing.assert_allclose(one[names], many[names], atol=1e-6)
    assert said["predicted"] == many["prediction"].value_counts().to_dict()
    for part in range(3):
        rows = frame.iloc[30 * part : 30 * part + 30]
        rows.assign(length=-9.0).to_parquet(f"marked{part}.parquet")
    asked = ["predict", "model.safetensors", "marked?.parquet", "--out", "marked.parquet"]
    run(*asked, "--missing", "-9")
    frame.drop(columns="length").to_csv("absent.csv", index=False)
    run("predict", "one.safetensors", "absent.csv")
    absent, marked = pd.read_csv("predictions.csv"), pd.read_parquet("marked.parquet")
    np.testing.assert_allclose(absent[names], marked[names], atol=1e-6)
    for part in range(2):
        frame.iloc[:0].to_parquet(f"empty{part}.parquet")
    for command in (["predict", "model.safetensors"], ["fit"]):
        assert "have no rows" in error(*command, "empty?.parquet")
    options = ["rows?.parquet", "--target", "flower"]
    assert "hold a file back" in error("fit", *options, "--test-size", 0.2)
    assert "--missing is for tables" in error("fit", *options, "--missing", "?")
    assert "tune is for tables" in error("tune", *options)
    assert "goes to .parquet" in error("predict", "model.safetensors", "rows?.parquet")
    assert "no classes. Use --regression" in error("fit", options[0], "--target", "length")


@pytest.mark.usefixtures("_here")
def test_absent_packages_are_named(monkeypatch):
    """As what to install: those that read a format, and those without which nothing goes."""
    table().to_csv("a.xlsx")
    monkeypatch.setattr("mixtura.files.find_spec", lambda name: name != "openpyxl" or None)
    assert "pip install openpyxl" in error("fit", "a.xlsx")
    for package, extra in {"pyarrow": "cli", "pandas": "cli", "starlette": "serve"}.items():
        with monkeypatch.context() as hidden:
            for name in list(sys.modules):
                if name.startswith(("mixtura.cli", "mixtura.serve")):
                    hidden.delitem(sys.modules, name)
                if name.partition(".")[0] == package:
                    hidden.setitem(sys.modules, name, None)
            hidden.setitem(sys.modules, package, None)
            command = "serve" if extra == "serve" else "fit"
            assert f"pip install 'mixtura[{extra}]'" in error(command, "a.xlsx")


def test_long_lines_and_too_many_columns():
    names = [f"{'long' * 8}{n}" for n in range(10_000)]  # more letters than are looked at
    found = read("\n".join([",".join(names), ",".join(["1"] * 10_000)]))
    assert list(found)[-1] == names[-1]
    with pytest.raises(FileFormatError, match="200001 columns"):
        read("a" + ",a" * 200_000 + "\n")
