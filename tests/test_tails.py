"""Student's t among the structures that are compared: where whole rows lie far out."""

import numpy as np
import pytest
import torch

from mixtura import MixtureClassifier
from mixtura.data.scaling import Scaling
from mixtura.densities import Student
from mixtura.engines import Engine
from mixtura.selection.tails import has_heavy_tails
from mixtura.solvers import LBFGS


def far_rows(rng, n, d=4):
    """Rows of Student's t with two degrees of freedom, around zero."""
    return rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2, (n, 1)) / 2)


SHAPES = {
    "rows": (far_rows, True),
    "errors": (
        lambda rng, n: rng.normal(size=(n, 4)) * np.where(rng.random((n, 1)) < 0.05, 10, 1),
        True,
    ),
    "holes": (lambda rng, n: np.where(rng.random((n, 4)) < 0.3, np.nan, far_rows(rng, n)), True),
    "Gaussian": (lambda rng, n: rng.normal(size=(n, 4)), False),
    "entries": (lambda rng, n: rng.standard_t(2, (n, 4)), False),
    "skewed": (lambda rng, n: np.exp(far_rows(rng, n).clip(-3, 3)), False),
    "one column": (lambda rng, n: far_rows(rng, n, 1), False),
    "many columns": (lambda rng, n: far_rows(rng, n, 31), False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tails_of_classes(shape, rng):
    """Far from the middle of their class; classes that are far apart have no tails."""
    make, wanted = SHAPES[shape]
    y = np.arange(600) % 3
    X = make(rng, 600) + 50.0 * y[:, None]
    engine = Engine(X, y, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))
    assert has_heavy_tails(engine) is wanted


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=200)
    X = far_rows(rng, 200) @ [[1, 0, 0], [0.9, 0.3, 0], [0, 0.9, 0.4], [0, 0, 1]] + 0.7 * y[:, None]
    model = MixtureClassifier(solver=LBFGS(max_iter=4), marginals="linear", random_state=0)
    return model.fit(X, y), X, y


def test_student_is_compared_and_chosen(fitted):
    model = fitted[0]
    assert model.density_ == Student()
    assert len({row["density"] for row in model.choice_}) == 4


def test_training_goes_on_with_it(fitted):
    model, X, y = fitted
    again = model.set_params(warm_start=True).fit(X, y)
    assert again.density_ == Student()
