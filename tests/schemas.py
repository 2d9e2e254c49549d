"""Tables of every form with the same content, for several tests."""

import numpy as np
import pytest

from mixtura.data.matrix import Matrix

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

NAN = np.nan
CODES = np.array([[1.5, 1, 1, 0], [NAN, 0, 0, NAN], [3.0, NAN, 1, 1], [-2.0, 1, 1, 1]])
NAMES = ("size", "color", "round", "grade")


def encoded(schema, X, unexpected="missing"):
    """The numbers and codes of `Schema.encode`."""
    found = schema.encode(X, unexpected)
    return found.values if isinstance(found, Matrix) else found


def columns():
    """A column of numbers, of text, of booleans and of categories, most with a hole."""
    return {
        "size": [1.5, None, 3.0, -2.0],
        "color": ["red", "blue", None, "red"],
        "round": [True, False, True, True],
        "grade": ["a", None, "b", "b"],
    }


def pandas_frame():
    frame = pd.DataFrame(columns(), index=[10, 10, 5, 7])
    return frame.astype({"grade": pd.CategoricalDtype(["c", "b", "a"], ordered=True)})


def polars_frame(grade=None):
    grades = pl.Enum(["c", "b", "a"]) if grade is None else grade
    return pl.DataFrame(columns(), schema_overrides={"grade": grades})


def objects():
    return np.array(list(columns().values()), dtype=object).T


FORMS = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "objects": objects,
    "lists": lambda: objects().tolist(),
}


#: A test of every form, and of the forms that have names.
EVERY_TABLE = pytest.mark.parametrize("table", [f() for f in FORMS.values()], ids=FORMS)
EVERY_FRAME = pytest.mark.parametrize(
    "frame", [pandas_frame(), polars_frame()], ids=["pandas", "polars"]
)


def one(values, **kwargs):
    """A data frame with one column."""
    return pd.DataFrame({"f": pd.Series(values, **kwargs)})
