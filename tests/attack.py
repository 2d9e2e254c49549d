"""Tables, labels and sequences as bad as any that a user may pass, and what must hold of them."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import mixtura
from mixtura.exceptions import FileFormatError, InvalidInputError, UnsupportedError

OWN = (InvalidInputError, UnsupportedError, FileFormatError)
#: CPU seconds that a fit may take; outside of `make fuzz` the machine may be slow.
MOST_SECONDS = 5.0 if "MIXTURA_FUZZ" in os.environ else 20.0


# -- columns ------------------------------------------------------------------------------------


def holes(rng, n):
    """A normal column of which a third is missing."""
    return np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n))


def outlier(rng, n):
    """One value far from all others."""
    return np.where(np.arange(n) == n // 2, 1e150, rng.normal(size=n))


def text(rng, n):
    """Categories as text, some missing."""
    return [None if rng.random() < 0.1 else "abc"[i] for i in rng.integers(0, 3, n)]


def mixed(rng, n):
    """Numbers and text in one column."""
    return [value if place % 2 else str(value) for place, value in enumerate(rng.random(n))]


COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "shifted": lambda rng, n: 1e9 + rng.normal(size=n),
    "constant": lambda rng, n: np.full(n, 3.7),
    "zeros": lambda rng, n: np.zeros(n),
    "ranks": lambda rng, n: np.arange(n, dtype=float),
    "two values": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "holes": holes,
    "empty": lambda rng, n: np.full(n, np.nan),
    "one observed": lambda rng, n: np.where(np.arange(n) == 0, 1.0, np.nan),
    "infinite": lambda rng, n: np.where(np.arange(n) == n // 2, np.inf, rng.normal(size=n)),
    "huge": lambda rng, n: 1e300 * rng.normal(size=n),
    "largest": lambda rng, n: np.finfo(float).max * rng.choice([-1.0, 1.0], n),
    "tiny": lambda rng, n: 1e-300 * rng.normal(size=n),
    "denormal": lambda rng, n: 5e-324 * rng.integers(0, 3, n),
    "heavy": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "outlier": outlier,
}
OBJECTS = {
    "text": text,
    "identifiers": lambda rng, n: [f"row {place}" for place in range(n)],
    "booleans": lambda rng, n: (rng.random(n) < 0.5).tolist(),
    "mixed": mixed,
    "nothing": lambda rng, n: [None] * n,
    "things": lambda rng, n: [object()] * n,
    "lists": lambda rng, n: [[1.0]] * n,
    "numbers": lambda rng, n: rng.normal(size=n).tolist(),
}

# -- labels and weights -------------------------------------------------------------------------


def with_marks(rng, n, mark):
    """Two classes, and a mark in a third of the places."""
    labels = rng.integers(0, 2, n).astype(object)
    labels[rng.random(n) < 0.3] = mark
    return labels


LABELS = {
    "two": lambda rng, n: rng.integers(0, 2, n),
    "three": lambda rng, n: rng.integers(0, 3, n),
    "one": lambda rng, n: np.zeros(n, dtype=int),
    "pairs": lambda rng, n: np.arange(n) // 2,
    "each its own": lambda rng, n: np.arange(n),
    "rare": lambda rng, n: (np.arange(n) == 0).astype(int),
    "text": lambda rng, n: np.array(["x", "y"])[rng.integers(0, 2, n)],
    "booleans": lambda rng, n: rng.random(n) < 0.5,
    "floats": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "signs": lambda rng, n: rng.choice([-1, 1], n),
    "all unlabeled": lambda rng, n: np.full(n, -1),
    "some unlabeled": lambda rng, n: rng.integers(-1, 2, n),
    "none among": lambda rng, n: with_marks(rng, n, None),
    "nan among": lambda rng, n: with_marks(rng, n, np.nan).astype(float),
    "types": lambda rng, n: with_marks(rng, n, "x"),
    "continuous": lambda rng, n: rng.normal(size=n),
    "infinite": lambda rng, n: np.where(np.arange(n) == 0, np.inf, 1.0),
    "dates": lambda rng, n: np.array(["2020-01-01", "2021-01-01"], "M8[D]")[rng.integers(0, 2, n)],
    "bytes": lambda rng, n: np.array([b"x", b"y"])[rng.integers(0, 2, n)],
    "column": lambda rng, n: rng.integers(0, 2, (n, 1)),
    "two columns": lambda rng, n: rng.integers(0, 2, (n, 2)),
    "too few": lambda rng, n: rng.integers(0, 2, max(n - 1, 0)),
    "list": lambda rng, n: rng.integers(0, 2, n).tolist(),
    "big": lambda rng, n: rng.integers(0, 2, n) * 2**62,
    "tuples": lambda rng, n: [(0, 1)] * n,
}
WEIGHTS = {
    "none": lambda rng, n: None,
    "ones": lambda rng, n: np.ones(n),
    "some zero": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "all zero": lambda rng, n: np.zeros(n),
    "huge": lambda rng, n: 1e300 * rng.random(n),
    "tiny": lambda rng, n: 1e-300 * rng.random(n),
    "uneven": lambda rng, n: 10.0 ** rng.uniform(-12, 12, n),
    "negative": lambda rng, n: rng.normal(size=n),
    "nan": lambda rng, n: np.full(n, np.nan),
    "too many": lambda rng, n: np.ones(n + 1),
    "text": lambda rng, n: ["x"] * n,
}

# -- whole tables -------------------------------------------------------------------------------


def as_frame(columns):
    """A data frame of pandas."""
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({f"c{place}": column for place, column in enumerate(columns)})


def as_objects(columns):
    """An array of Python objects."""
    table = np.empty((len(columns[0]) if columns else 0, len(columns)), dtype=object)
    for place, column in enumerate(columns):
        table[:, place] = column
    return table


def as_sparse(columns):
    """A sparse matrix."""
    return csr_matrix(np.column_stack(columns))


CONTAINERS = {
    "array": np.column_stack,
    "float32": lambda columns: np.column_stack(columns).astype(np.float32),
    "integers": lambda columns: np.nan_to_num(np.column_stack(columns)).clip(-9, 9).astype(int),
    "fortran": lambda columns: np.asfortranarray(np.column_stack(columns)),
    "list": lambda columns: np.column_stack(columns).tolist(),
    "objects": as_objects,
    "frame": as_frame,
    "sparse": as_sparse,
}


@dataclass(frozen=True)
class Recipe:
    """A table, labels and weights, by the names of their parts."""

    n_rows: int = 20
    columns: tuple[str, ...] = ("normal", "normal")
    repeat: int = 1
    container: str = "array"
    labels: str = "two"
    weights: str = "none"
    duplicated: bool = False
    seed: int = 0

    def build(self):
        """X, y and sample_weight."""
        rng, n = np.random.default_rng(self.seed), self.n_rows
        y = LABELS[self.labels](rng, n)
        weight = WEIGHTS[self.weights](rng, n)
        made = [(COLUMNS | OBJECTS)[kind](rng, n) for kind in self.columns * self.repeat]
        if self.duplicated:
            made = [column for column in made for _ in range(2)]
            made = [np.resize(np.array(column, dtype=object)[: n // 2 + 1], n) for column in made]
        plain = not OBJECTS.keys() & set(self.columns) and made
        container = self.container if plain or self.container == "frame" else "objects"
        if plain and self.duplicated:
            made = [column.astype(float) for column in made]
        if not made:
            return np.empty((n, 0)), y, weight
        return CONTAINERS[container](made), y, weight


SEQUENCES = {
    "unequal": lambda rng, n: [rng.normal(size=(rng.integers(1, 9), 2)) for _ in range(n)],
    "one frame": lambda rng, n: [rng.normal(size=(1, 2)) for _ in range(n)],
    "one long": lambda rng, n: [rng.normal(size=(200 if i == 0 else 2, 2)) for i in range(n)],
    "holes": lambda rng, n: [np.stack([holes(rng, 6), holes(rng, 6)], 1) for _ in range(n)],
    "empty": lambda rng, n: [np.full((3, 2), np.nan) for _ in range(n)],
    "constant": lambda rng, n: [np.full((4, 2), 3.7) for _ in range(n)],
    "huge": lambda rng, n: [1e300 * rng.normal(size=(4, 2)) for _ in range(n)],
    "tiny": lambda rng, n: [1e-300 * rng.normal(size=(4, 2)) for _ in range(n)],
    "heavy": lambda rng, n: [rng.standard_cauchy((5, 2)) ** 3 for _ in range(n)],
    "infinite": lambda rng, n: [np.full((2, 2), np.inf) for _ in range(n)],
    "wide": lambda rng, n: [rng.normal(size=(3, 200)) for _ in range(n)],
    "widths": lambda rng, n: [rng.normal(size=(3, 1 + i % 2)) for i in range(n)],
    "no frames": lambda rng, n: [np.empty((0, 2)) for _ in range(n)],
    "no channels": lambda rng, n: [np.empty((3, 0)) for _ in range(n)],
    "scalars": lambda rng, n: [1.0] * n,
    "text": lambda rng, n: [["a", "b"]] * n,
    "array": lambda rng, n: rng.normal(size=(n, 4, 2)),
    "matrix": lambda rng, n: rng.normal(size=(n, 4)),
    "integers": lambda rng, n: [rng.integers(0, 3, (4, 2)) for _ in range(n)],
    "float32": lambda rng, n: [rng.normal(size=(4, 2)).astype(np.float32) for _ in range(n)],
    "same": lambda rng, n: [np.arange(8.0).reshape(4, 2) for _ in range(n)],
}


@dataclass(frozen=True)
class SequenceRecipe:
    """Sequences, labels and weights, by the names of their parts."""

    n_rows: int = 20
    kind: str = "unequal"
    labels: str = "two"
    weights: str = "none"
    seed: int = 0

    def build(self):
        """X, y and sample_weight."""
        rng, n = np.random.default_rng(self.seed), self.n_rows
        labels, weight = LABELS[self.labels](rng, n), WEIGHTS[self.weights](rng, n)
        return SEQUENCES[self.kind](rng, n), labels, weight


# -- what must hold -----------------------------------------------------------------------------


def is_ours(error):
    """Whether we raised an error, or scikit-learn's validation did, and not what we call."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    on_purpose = "mixtura" in last.filename and (last.line or "").startswith("raise")
    validated = "sklearn" in last.filename
    plain = isinstance(error, ValueError | TypeError) and (on_purpose or validated)
    return plain or isinstance(error, OWN)


def fitted(model, X, y, weight):
    """The model, fitted; None where it refuses, with an error of its own."""
    options = {} if weight is None else {"sample_weight": weight}
    begin = time.process_time()
    try:
        found = model.fit(X, y, **options)
    except Exception as error:
        if not is_ours(error):
            raise
        found = None
    assert time.process_time() - begin < MOST_SECONDS, "it took too long"
    return found


def answers(model, X):
    """Everything that the model says of the rows, by the name of the question."""
    found = {}
    for name in ("predict_proba", "predict", "score_samples", "transform", "impute", "is_outlier"):
        if hasattr(model, name):
            try:
                found[name] = getattr(model, name)(X)
            except Exception as error:
                if not is_ours(error):
                    raise
    return found


def numbers(value):
    """An answer as one array, if it holds numbers; of a data frame, the numeric columns."""
    if hasattr(value, "select_dtypes"):
        value = value.select_dtypes("number")
    parts = value if isinstance(value, list) else [value]
    return np.concatenate([np.ravel(np.asarray(part)) for part in parts] or [np.empty(0)])


def check_answers(found, n_rows):
    """Probabilities are finite and sum to one, and all that is a number is finite."""
    for name, value in found.items():
        values = numbers(value)
        if values.dtype == object:
            values = np.array([v for v in values if isinstance(v, float)])
        if values.dtype.kind == "f":
            assert np.isfinite(values).all(), f"{name} is not finite"
    if "predict_proba" in found:
        chances = found["predict_proba"]
        assert len(chances) == n_rows
        assert (chances >= 0).all()
        np.testing.assert_allclose(chances.sum(1), 1.0, rtol=1e-6)


def check_same(first, second, what):
    """Two sets of answers are the same to the bit."""
    assert first.keys() == second.keys(), what
    for name in first:
        one, other = numbers(first[name]), numbers(second[name])
        assert one.dtype == other.dtype, (what, name)
        kinds = {"equal_nan": True} if one.dtype.kind == "f" else {}
        assert np.array_equal(one, other, **kinds), f"{name} of {what} differs"


def far_rows(X):
    """Rows unlike any of X: zeros, and very far away on either side."""
    far = np.zeros((3, X.shape[1]), X.dtype)
    far[1], far[2] = np.finfo(X.dtype).max, np.finfo(X.dtype).min
    return far


def attack(make, recipe, path, repeatable=True):
    """Fit, ask, fit again, save and load: what every estimator must stand. Whether it fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fitted(make(), *recipe.build())
        if model is None:
            return False
        X, y, weight = recipe.build()
        found = answers(model, X)
        check_answers(found, recipe.n_rows)
        if isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.ndim == 2:
            check_answers(answers(model, far_rows(X)), 3)
            check_answers(answers(model, np.full_like(X[:1], np.nan)), 1)
        if hasattr(model, "save"):
            model.save(path)
            check_same(found, answers(mixtura.load(path), X), "the loaded model")
        if repeatable:
            check_same(found, answers(fitted(make(), X, y, weight), X), "the second fit")
    return True
