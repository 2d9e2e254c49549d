"""Files of rows: what is written into them, and those that cannot be read."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from mixtura import (
    MixtureClassifier,
    MixtureDensity,
    PairwiseClassifier,
    SparseMixtureClassifier,
)
from mixtura.exceptions import FileFormatError, InvalidInputError, UnsupportedError

pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")
parquet = pytest.importorskip("mixtura.parquet")

FEATURES = ["a", "b", "c", "kind", "flag"]

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped")


# -- answers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(frame):
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    return model.fit(frame[FEATURES], frame["label"])


def test_answers_are_written_as_parquet(fitted, frame, files, tmp_path):
    target, features = tmp_path / "answers.parquet", frame[FEATURES]
    parquet.write(fitted.predict_proba, files / "*.parquet", target, keep=["weight"])
    found = pd.read_parquet(target)
    assert [*found] == ["weight", *(f"predict_proba_{label}" for label in "xyz")]
    np.testing.assert_allclose(found.iloc[:, 1:], fitted.predict_proba(features), 1e-12)
    np.testing.assert_array_equal(found["weight"], frame["weight"])
    parquet.write(fitted.predict, files / "*.parquet", target)
    assert pd.read_parquet(target)["predict"].tolist() == fitted.predict(features).tolist()
    parquet.write(fitted.impute, files / "*.parquet", target)
    pd.testing.assert_frame_equal(
        pd.read_parquet(target), fitted.impute(features), check_dtype=False
    )


def test_columns_of_any_type_are_kept(fitted, frame, tmp_path):
    """Whatever the model has no use for."""
    odd = frame.assign(day=np.datetime64("2020-01-01", "us"), tags=[["a", "b"]] * len(frame))
    odd.to_parquet(tmp_path / "rows.parquet")
    parquet.write(
        fitted.predict, tmp_path / "rows.parquet", tmp_path / "found.parquet", keep=["day", "tags"]
    )
    found = pq.read_table(tmp_path / "found.parquet")
    written = pq.read_table(tmp_path / "rows.parquet", columns=["day", "tags"])
    assert found.select(["day", "tags"]).to_pylist() == written.to_pylist()


def test_files_that_are_read_are_not_written_to(fitted, frame, tmp_path):
    """Also under a name that would be a pattern, if it were not that of a file."""
    source = tmp_path / "p[0].parquet"
    frame[::2].to_parquet(source)  # pandas adds a column for its index
    before = source.read_bytes()
    with pytest.raises(InvalidInputError, match="is read here"):
        parquet.write(fitted.predict, source, source)
    assert source.read_bytes() == before
    model = MixtureDensity(1, density="diag", random_state=0).fit(source)
    assert [*model.feature_names_in_] == [*frame]


def test_a_failure_leaves_what_stood_there(fitted, frame, files, tmp_path):
    target = tmp_path / "answers.parquet"
    parquet.write(fitted.predict, files / "p0.parquet", target)
    before, damaged = target.read_bytes(), tmp_path / "damaged.parquet"
    write_damaged(frame, damaged)
    with pytest.raises(FileFormatError, match="row group 2"):
        parquet.write(fitted.predict, damaged, target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name, damaged.name]


@pytest.mark.parametrize(
    ("answer", "keep", "message"),
    [
        (len, (), "method of an estimator"),
        (None, ["id"], "no column 'id' to keep"),
        (None, ["weight", "predict"], "keep=.'predict'.: answers have that name"),
    ],
)
def test_what_cannot_be_written(answer, keep, message, fitted, frame, tmp_path_factory, tmp_path):
    files = tmp_path_factory.mktemp("read")
    frame.assign(predict=1.0).to_parquet(files / "rows.parquet")
    with pytest.raises(InvalidInputError, match=message):
        parquet.write(answer or fitted.predict, files / "*.parquet", tmp_path / "x", keep=keep)
    assert not list(tmp_path.iterdir())


# -- bad input ---------------------------------------------------------------------------------


def write_damaged(frame, path):
    """A file of which the third row group is overwritten."""
    frame.to_parquet(path, row_group_size=50, index=False)
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset or column.data_page_offset)
        file.write(b"\xff" * 200)


def other_type(frame, folder):
    frame.assign(b=frame["b"].astype(str)).to_parquet(folder / "1.parquet")
    return "column 'b' is of the type .*string in .*1.parquet, and double in .*0.parquet"


def no_such_column(frame, folder):
    frame.drop(columns="b").to_parquet(folder / "1.parquet")
    return "1.parquet has no column 'b'"


def one_more_column(frame, folder):
    frame.assign(d=1.0).to_parquet(folder / "1.parquet")
    return "1.parquet has columns that .*0.parquet does not have .'d'"


def empty_file(frame, folder):
    (folder / "1.parquet").touch()
    return "1.parquet cannot be read as Parquet"


def damaged_group(frame, folder):
    write_damaged(frame, folder / "1.parquet")
    return "1.parquet, row group 2 cannot be read"


def infinity(frame, folder):
    frame.assign(b=np.where(frame.index == 80, np.inf, frame["b"])).to_parquet(
        folder / "1.parquet", row_group_size=50
    )
    return "1.parquet, row group 1: column 'b' holds infinity"


def infinite_label(frame, folder):
    values = np.where(frame.index == 80, np.inf, np.arange(len(frame)) % 3)
    frame.assign(label=values).to_parquet(folder / "1.parquet", row_group_size=50)
    frame.assign(label=0.0).to_parquet(folder / "0.parquet")
    return "1.parquet, row group 1: column 'label' holds inf: leave such rows out"


def a_date(frame, folder):
    (folder / "0.parquet").unlink()
    dated = frame.assign(day=np.datetime64("2020-01-01"))
    dated.to_parquet(folder / "1.parquet")
    return "column 'day' is of the type timestamp"


def no_label(frame, folder):
    (folder / "0.parquet").unlink()
    frame.drop(columns="label").to_parquet(folder / "1.parquet")
    return "1.parquet has no column 'label' for y"


def nothing(frame, folder):
    (folder / "0.parquet").unlink()
    return r"no file is named '.*parquet'"


def no_rows(frame, folder):
    frame[:0].astype({"kind": str, "label": str}).to_parquet(folder / "0.parquet")
    return "no rows"


@pytest.mark.parametrize(
    "spoil",
    [
        other_type,
        no_such_column,
        one_more_column,
        empty_file,
        damaged_group,
        infinity,
        infinite_label,
        a_date,
        no_label,
        nothing,
        no_rows,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_bad_files_are_named(spoil, frame, tmp_path):
    frame[:50].to_parquet(tmp_path / "0.parquet", index=False)
    message = spoil(frame.reset_index(drop=True), tmp_path)
    with pytest.raises((InvalidInputError, FileFormatError), match=message):
        MixtureClassifier(1, density="diag").fit(tmp_path / "*.parquet", "label")


@pytest.mark.parametrize("odd", [-1, -0.5, np.nan, np.inf])
def test_bad_weights_are_named(odd, frame, tmp_path):
    weights = np.where(np.arange(len(frame)) == 80, odd, 1).astype(type(odd))
    frame[:50].assign(weight=1).to_parquet(tmp_path / "0.parquet", index=False)
    frame.assign(weight=weights).to_parquet(tmp_path / "1.parquet", index=False, row_group_size=50)
    with pytest.raises(
        InvalidInputError,
        match=rf"1\.parquet, row group 1: column 'weight' holds {odd:.0f}.*weights are finite",
    ):
        MixtureClassifier(1).fit(tmp_path / "*.parquet", "label", sample_weight="weight")


def test_weights_are_numbers(files):
    with pytest.raises(InvalidInputError, match=r"'kind' of weights is of the type .*string"):
        MixtureClassifier(1).fit(files / "*.parquet", "label", sample_weight="kind")


def test_a_file_that_is_not_there_is_named(frame, tmp_path):
    frame[:50].to_parquet(tmp_path / "0.parquet", index=False)
    with pytest.raises(InvalidInputError, match=r"no file is named '.*1\.parquet'"):
        MixtureClassifier(1).fit([tmp_path / "1.parquet", tmp_path / "0.*"], "label")


def test_a_folder_in_place_of_a_file_is_named(frame, tmp_path):
    (tmp_path / "rows.parquet").mkdir()
    with pytest.raises(InvalidInputError, match=r"rows\.parquet is a folder: .*\*\.parquet"):
        MixtureClassifier(1).fit(tmp_path / "rows.parquet", "label")


@pytest.mark.parametrize("unlabeled", [0, 2])
@pytest.mark.parametrize("each", [2, np.append(np.ones(39, int), 60)], ids=["alike", "one_large"])
def test_warnings_about_labels_go_by_rows(unlabeled, each, tmp_path, rng):
    """As of labels in memory: 40 classes of two rows each, in the mean, are no numbers to be
    predicted."""
    y = np.append(np.repeat(np.arange(40), each), np.full(2 * unlabeled, -1))
    X = rng.normal(size=(len(y), 1)) + y[:, None]
    table = pd.DataFrame({"x": X[:, 0], "label": y})
    table.to_parquet(tmp_path / "rows.parquet")
    told = []
    for given in ((tmp_path / "rows.parquet", "label"), (X, y)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            MixtureClassifier(1, density="diag", objective="likelihood").fit(*given)
        told.append([str(each.message) for each in caught if "label -1" in str(each.message)])
        assert not any("unique classes" in str(each.message) for each in caught)
    assert told[0] == told[1]
    assert len(told[0]) == bool(unlabeled)


def test_categories_without_rows_are_no_classes(frame, tmp_path):
    """As of labels in memory: pandas keeps those of rows that were dropped."""
    some = frame.assign(label=pd.Categorical(frame["label"]))[frame["label"] != "y"]
    some.to_parquet(tmp_path / "rows.parquet")
    model = MixtureClassifier(1, density="diag", objective="likelihood")
    found = model.fit(tmp_path / "rows.parquet", "label")
    np.testing.assert_array_equal(found.classes_, np.unique(some["label"].astype(str)))
    np.testing.assert_array_equal(found.class_count_, some["label"].value_counts()[["x", "z"]])


@pytest.mark.parametrize("columns", ["label", []])
def test_columns_are_a_list_of_names(columns, files):
    with pytest.raises(InvalidInputError, match="give a list of names"):
        MixtureClassifier(1).fit(parquet.Source(files / "*.parquet", columns), "label")


@pytest.mark.parametrize("y", [np.zeros(3), 3])
def test_labels_given_apart_that_are_not_those_of_the_rows(y, files):
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples|1d array"):
        MixtureClassifier(1).fit(files / "*.parquet", y)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (lambda frame: iter([frame]), "gives them once"),
        (lambda frame: [frame, frame.drop(columns="b")], "chunk 1 has no column 'b'"),
        (lambda frame: [frame, frame.to_numpy()], "chunk 1 is a ndarray"),
        (lambda frame: [], "no chunks"),
        (lambda frame: 3, "rows cannot be read from this int"),
        (lambda frame: pytest.importorskip("polars").LazyFrame(frame), "from this LazyFrame"),
        (lambda frame: Shrinking(frame), "220 rows in the first pass, and 199 now"),
    ],
)
def test_bad_chunks_are_named(chunks, message, frame):
    frame = frame[["a", "b"]]
    with pytest.raises(InvalidInputError, match=message):
        MixtureDensity(1, density="diag").fit(parquet.Source(chunks(frame)))


class Shrinking:
    """Gives fewer rows once its types and all its rows have been looked at."""

    def __init__(self, frame):
        self.frame, self.passes = frame, 0

    def __iter__(self):
        self.passes += 1
        return iter([self.frame if self.passes < 4 else self.frame[:199]])


def test_who_does_not_read_files_says_what_to_do(files, fitted, streaming):
    for rows in (str(files / "*.parquet"), sorted(files.iterdir())):
        with pytest.raises(UnsupportedError, match=r"mixtura\.parquet\.write"):
            fitted.score(rows, "label")
    with pytest.raises(ValueError, match="y='label' is a name"):
        PairwiseClassifier(LogisticRegression()).fit(str(files / "*.parquet"), "label")
    rows = parquet.Source(files / "*.parquet", ["a", "b", "label"])
    with pytest.raises(UnsupportedError, match="up to 250 numbers: pass a random sample"):
        SparseMixtureClassifier().fit(rows, "label")
