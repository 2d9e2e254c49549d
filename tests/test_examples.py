"""Parts from a user's own files, those of examples/: they work wherever a name does."""

import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import logistic
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from mixtura import MixtureClassifier, MixtureDensity, MixtureNetworkClassifier, load
from mixtura.exceptions import FileFormatError, InvalidInputError, UnsupportedError
from mixtura.objectives import Conditional
from mixtura.progress import Progress
from mixtura.solvers import EM, LBFGS
from mixtura.testing import (
    check_density,
    check_objective,
    check_solver,
    make_density,
    make_engine,
    make_mixture,
)

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Parameter, module and class of each part; one of its settings, and two values of that.
PARTS = {
    "density": ("logistic_density", "Logistic", "floor", (0.02, 0.5)),
    "objective": ("focal_objective", "Focal", "gamma", (0.0, 4.0)),
    "solver": ("rmsprop_solver", "RMSprop", "learning_rate", (0.001, 0.02)),
}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    """The folder of a user, from which modules are imported."""
    monkeypatch.syspath_prepend(EXAMPLES)


def example(parameter):
    """The class of a part."""
    module, name, *_ = PARTS[parameter]
    return getattr(importlib.import_module(module), name)


def classifier(parameter, **settings):
    """A classifier with that part, which is soon fitted."""
    parts = {"density": "diag", "objective": "conditional", "solver": LBFGS(3), "init": EM(3, 0.1)}
    if parameter == "solver":
        settings = {"max_iter": 5, **settings}
    parts[parameter] = example(parameter)(**settings)
    return MixtureClassifier(1, **parts, tradeoff=0.2, calibrate=False, random_state=0)


def with_holes(X):
    """A third of the entries is missing, and of the first row all."""
    holes = np.where(np.random.default_rng(1).random(X.shape) < 1 / 3, np.nan, X)
    holes[0] = np.nan
    return holes


each_part = pytest.mark.parametrize("parameter", PARTS)


@each_part
def test_they_are_fitted_and_predict(parameter, flowers):
    """Rows with holes too; a setting makes a difference."""
    *_, name, values = PARTS[parameter]
    X, y = flowers
    models = [classifier(parameter, **{name: value}).fit(X, y) for value in values]
    one, other = (model.predict_proba(X) for model in models)
    assert not np.allclose(one, other, atol=1e-3)
    for model in models:
        assert model.score(X, y) > 0.9
        proba = model.predict_proba(with_holes(X))
        np.testing.assert_allclose(proba.sum(1), 1.0, 1e-9)
        np.testing.assert_allclose(proba[0], model.class_prior_, 1e-9)
        assert (proba.argmax(1) == y).mean() > 0.8


@each_part
def test_they_are_cloned_and_searched(parameter, flowers):
    """By nested names, and the object that was given stays as it is."""
    *_, name, values = PARTS[parameter]
    model, nested = classifier(parameter), f"{parameter}__{name}"
    before = clone(getattr(model, parameter))
    search = GridSearchCV(model, {nested: values}, cv=2, scoring="neg_log_loss").fit(*flowers)
    assert search.best_estimator_.get_params()[nested] in values
    assert len(set(search.cv_results_["mean_test_score"])) == 2
    assert getattr(model, parameter) == before == getattr(clone(model), parameter)


@each_part
@pytest.mark.parametrize("form", ["dict", "function"])
def test_they_are_tuned(parameter, form, flowers):
    """In a space of nested names, or by a function that suggests them."""
    pytest.importorskip("optuna")
    from optuna.distributions import FloatDistribution

    from mixtura.tuning import tune

    *_, name, (low, high) = PARTS[parameter]
    nested = f"{parameter}__{name}"
    space = {nested: FloatDistribution(low, high)}
    if form == "function":
        kind = type(getattr(classifier(parameter), parameter))

        def space(trial):
            return {parameter: kind(**{name: trial.suggest_float(nested, low, high)})}

    best, study = tune(
        classifier(parameter), *flowers, space=space, n_trials=2, cv=2, random_state=0
    )
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert low <= study.trials[1].params[nested] <= high
    chosen = study.best_params.get(nested, classifier(parameter).get_params()[nested])
    assert best.get_params()[nested] == chosen


@each_part
def test_they_are_saved_and_loaded(parameter, flowers, tmp_path, monkeypatch):
    """By the path of their import, which is followed anew; without the module it is named."""
    module, kind, name, (value, _) = PARTS[parameter]
    X, y = flowers
    model = classifier(parameter, **{name: value}).fit(X, y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    monkeypatch.delitem(sys.modules, module)
    fresh = load(tmp_path / "model")
    assert type(getattr(fresh, parameter)).__name__ == kind
    for loaded in (again, fresh):
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    monkeypatch.undo()
    sys.modules.pop(module)
    with pytest.raises(FileFormatError, match=f"{module}:{kind} cannot be imported here. Remedy"):
        load(tmp_path / "model")


@each_part
def test_what_cannot_be_found_again_is_not_saved(parameter, flowers, tmp_path):
    """A class inside a function: an error when saving, not when loading."""

    @dataclass
    class Local(example(parameter)):
        pass

    model = classifier(parameter).set_params(**{parameter: Local()}).fit(*flowers)
    with pytest.raises(InvalidInputError, match="Local cannot be found again"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_all_three_at_once(flowers, tmp_path):
    """None knows the others."""
    parts = {name: example(name)() for name in PARTS}
    parts["solver"].set_params(max_iter=10, early_stopping=True)
    model = MixtureClassifier(1, **parts, init=EM(3, 0.1), random_state=0).fit(*flowers)
    assert model.score(*flowers) > 0.9
    stages = {record["stage"] for record in model.history_}
    assert stages == {"EM", "RMSprop"}
    assert "validation_error" in model.history_[-1]
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        load(tmp_path / "model").predict_proba(flowers[0]), model.predict_proba(flowers[0])
    )


# -- each keeps its contract ---------------------------------------------------------------------


@pytest.fixture
def logistics(generator):
    """Three components over three features."""
    x = torch.randn(60, 3, dtype=torch.float64, generator=generator)
    return example("density")().build(x, x.softmax(1), generator)


def test_the_density_is_that_of_scipy(logistics, generator):
    """And all else that a density promises."""

    def reference(component, x, observed):
        mean, scale = (each[component, observed] for each in (logistics.mean, logistics.scale))
        return logistic.logpdf(x, mean, scale).sum(1)

    def draw(component, x, observed, n, rng):
        rest = logistic(logistics.mean[component, ~observed], logistics.scale[component, ~observed])
        return rest.rvs((n, (~observed).sum()), rng)

    check_density(logistics, generator, reference_logpdf=reference, conditional_sampler=draw)


def test_em_of_the_density_ends_where_scipy_does(flowers):
    """Its M step goes by gradients; one component has the maximum that scipy finds."""
    X = flowers[0]
    free = MixtureDensity(1, density=example("density")(1e-4), solver=EM(50, 1e-9)).fit(X)
    expected = sum(logistic.logpdf(x, *logistic.fit(x)).sum() for x in X.T)
    np.testing.assert_allclose(free.score_samples(X).sum(), expected, 1e-6)


@pytest.mark.parametrize("kind", ["density", "classifier"])
def test_em_of_the_density_never_goes_down(kind, flowers):
    """Of several components, on rows with holes, under either estimator."""
    X, y = with_holes(flowers[0])[1:], flowers[1][1:]
    density, em = example("density")(), EM(8, 0.0)
    model = MixtureDensity(2, density=density, solver=em, missingness="ignore", random_state=0)
    if kind == "classifier":
        model = MixtureClassifier(
            2, density=density, solver=em, tradeoff=1.0, missingness="ignore", random_state=0
        )
    objectives = [record["objective"] for record in model.fit(X, y).history_]
    assert [record["iteration"] for record in model.history_] == list(range(1, 9))
    assert (np.diff(objectives) < 1e-9).all()
    assert objectives[-1] < objectives[0]


def test_the_density_answers_what_densities_do(flowers):
    """Imputes, draws, and tells outliers; beside categories, and in a stream."""
    X, y = flowers
    holes = with_holes(X)
    model = classifier("density").fit(X, y)
    filled = model.impute(holes)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(holes)], X[~np.isnan(holes)])
    assert model.impute(holes, n_draws=2, random_state=0).shape == (2, *X.shape)
    assert model.is_outlier(X + 1e3).all()
    assert not model.is_outlier(X).all()
    mixed = np.column_stack([X, y > 1]).astype(object)
    table = clone(model).set_params(categorical_features=[4]).fit(mixed, y)
    assert table.score(mixed, y) > 0.9
    stream = clone(model).set_params(objective="likelihood").fit(X, y)
    before = stream.means_
    assert (stream.partial_fit(X + 1.0, y).means_ > before).all()


@pytest.mark.parametrize(
    "model", [MixtureClassifier(1, solver="ebw"), MixtureNetworkClassifier(1)], ids=str
)
def test_what_the_density_lacks_is_said(model, flowers):
    """Extended Baum-Welch and linked EM need closed forms; no work is done before that."""
    begun = []
    model = clone(model).set_params(density=example("density")()).set_callbacks(begun.append)
    with pytest.raises(UnsupportedError, match=r"closed-form updates, and density=Logistic.* has"):
        model.fit(*flowers)
    assert not begun


def test_the_objective_is_one(generator):
    """Slopes and occupancies follow from its loss; gamma 0 is the conditional likelihood."""
    focal = example("objective")
    check_objective(focal(), generator, unlabeled=True)
    joint, y = torch.randn(9, 3, dtype=torch.float64, generator=generator), torch.arange(9) % 3
    torch.testing.assert_close(focal(0.0).loss(joint, y), Conditional().loss(joint, y))
    torch.testing.assert_close(
        focal(2.0).loss(joint, y),
        -((1.0 - joint.softmax(1)) ** 2 * joint.log_softmax(1))[range(9), y],
    )


def test_the_solver_is_one(generator):
    """It improves a model, repeats itself, heeds a prior, and stops where it is told to."""
    truth, start = (
        make_mixture(make_density("diag", "covariance", generator), [2, 1], generator)
        for _ in range(2)
    )
    engine, solver = make_engine(truth, 80, generator), example("solver")(max_iter=5)
    check_solver(solver, Conditional(), start, engine)
    told = Progress([lambda record: record["iteration"] == 2])
    assert solver.run(start, Conditional(), engine, told).n_iter == 2


def test_they_are_short():
    """A density of at most 120 lines in all, an objective of at most 10, a solver of some 30."""
    assert len(Path(inspect.getfile(example("density"))).read_text().splitlines()) <= 120
    assert len(inspect.getsource(example("objective")).splitlines()) <= 10
    assert len(inspect.getsource(example("solver").run).splitlines()) <= 30


@pytest.mark.parametrize("name", ["clinic", "failing_sensors", "half_filled_form"])
def test_stories_run_and_are_drawn(name, monkeypatch, tmp_path, capsys):
    """With a model that is soon fitted, the same for all."""
    pytest.importorskip("matplotlib").use("agg")
    story = importlib.import_module(name)

    def quick(*settings, **more):
        return MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)

    monkeypatch.setattr(story, "MixtureClassifier", quick)
    story.main(tmp_path / "picture.png", *([8] if name == "clinic" else []))
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert len(capsys.readouterr().out.splitlines()) >= 3
