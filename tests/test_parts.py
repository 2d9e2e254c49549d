"""Parts of estimators as objects: names are shorthand, users bring their own."""

import importlib
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils._param_validation import InvalidParameterError

import mixtura
from mixtura import MixtureClassifier, MixtureNetworkClassifier
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.objectives import Conditional, Margin, Objective

SETTINGS = {"covariance": "diag", "max_iter": 5, "random_state": 0}
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("model", "name", "part"),
    [
        (MixtureClassifier, "conditional", Conditional()),
        (MixtureClassifier, "margin", Margin(20.0)),
        (partial(MixtureNetworkClassifier, embedding="log_density"), "margin", Margin(5.0)),
    ],
)
def test_a_name_is_shorthand(model, name, part, iris):
    """For the same bits."""
    named, given = (
        model(1, objective=each, calibrate=False, **SETTINGS).fit(*iris).predict_proba(iris[0])
        for each in (name, part)
    )
    np.testing.assert_array_equal(named, given)


@pytest.mark.parametrize("model", [MixtureClassifier, MixtureNetworkClassifier])
@pytest.mark.parametrize("settings", [{"margin": 0.0}, {"margin": np.nan}, {"smoothness": -1.0}])
def test_bad_settings_are_refused(model, settings, iris):
    """By name, as those of estimators are."""
    (name,) = settings
    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of Margin"):
        model(objective=Margin(**settings)).fit(*iris)


def test_parts_are_cloned_printed_and_compared():
    """As scikit-learn's own objects are; an estimator never shares or changes one."""
    model = MixtureClassifier(objective=Margin(3.0))
    twin = clone(model).set_params(objective__margin=4.0)
    assert model.get_params()["objective__margin"] == 3.0
    assert (model.objective, twin.objective) == (Margin(3.0), Margin(4.0))
    assert "Margin(margin=3.0" in repr(model.objective)


@pytest.fixture
def focal(monkeypatch):
    """The module of a user."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("focal_objective")


def test_an_objective_of_ones_own(focal, iris, tmp_path, monkeypatch):
    """Fitted, cloned, searched, saved and loaded, also by another process."""
    X, y = iris
    model = MixtureClassifier(1, objective=focal.Focal(), tradeoff=0.0, **SETTINGS)
    search = GridSearchCV(model, {"objective__gamma": [0.0, 2.0]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.9
    plain = clone(model).set_params(objective__gamma=0.0).fit(X, y)
    known = clone(model).set_params(objective="conditional").fit(X, y)
    np.testing.assert_allclose(plain.predict_proba(X), known.predict_proba(X), atol=1e-6)
    path = tmp_path / "model"
    plain.save(path)
    again = mixtura.load(path)
    assert again.objective == plain.objective
    np.testing.assert_array_equal(again.predict_proba(X), plain.predict_proba(X))
    read = f"import mixtura; print(mixtura.load({str(path)!r}).objective.gamma)"
    found = subprocess.run([sys.executable, "-c", read], cwd=EXAMPLES, capture_output=True)
    assert found.stdout.strip() == b"0.0"
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "focal_objective")
    with pytest.raises(FileFormatError, match="focal_objective:Focal cannot be imported"):
        mixtura.load(path)


def test_a_part_that_cannot_be_found_again_is_not_saved(iris, tmp_path):
    """An error when saving, not when loading; the file that stood there stays."""

    @dataclass
    class Local(Objective):
        def loss(self, class_log_joint, y):
            return Conditional().loss(class_log_joint, y)

    path = tmp_path / "model"
    path.write_text("kept")
    model = MixtureClassifier(1, objective=Local(), **SETTINGS).fit(*iris)
    with pytest.raises(InvalidInputError, match="cannot be found again"):
        model.save(path)
    assert path.read_text() == "kept"
    with pytest.raises(FileFormatError):
        mixtura.load(path)
