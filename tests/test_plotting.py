"""Displays: what is drawn is what the model says, and nothing covers anything."""

import importlib
import pathlib
import sys
from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid
from sklearn.base import BaseEstimator
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import mixtura
from mixtura import (
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureRegressor,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import make_hmm_sequences
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.solvers import EM, LinkedEM

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.path import Path  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from mixtura.plotting import (  # noqa: E402
    CalibrationDisplay,
    ChoiceDisplay,
    ComponentsDisplay,
    ExplanationDisplay,
    HistoryDisplay,
    MarginalsDisplay,
    MissingDisplay,
    SetsDisplay,
    StatesDisplay,
)
from mixtura.plotting.classifiers import Reliability  # noqa: E402
from mixtura.plotting.components import _radii  # noqa: E402
from mixtura.plotting.holes import with_holes  # noqa: E402

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
plain = partial(MixtureClassifier, 1, objective="likelihood", density="full", random_state=0)
#: Two columns of numbers, one of words; the names are hostile.
MIXED = np.column_stack(
    [X[:, 0].astype(object), np.where(X[:, 2] > 3, "<b>", "$x_{")[:, None], X[:, 3].astype(object)]
)


@pytest.fixture(scope="module")
def model():
    return plain().fit(X, NAMES)


@pytest.fixture(scope="module")
def mixed():
    return plain(density="diag").fit(MIXED, np.where(Y > 0, "_$a", "$b^$"))


@pytest.fixture(scope="module")
def motion():
    rows = make_hmm_sequences(4, random_state=0)
    settings = {"method": "ml", "init": EM(max_iter=3), "calibrate": False, "random_state": 0}
    return SequenceMixtureClassifier(2, **settings).fit(rows.data, rows.target), rows


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def axes(width=7.0, height=5.0):
    return Figure(figsize=(width, height), layout="constrained").subplots()


def texts(display):
    """All text that is drawn, and where: boxes (n, 4)."""
    renderer, found = FigureCanvasAgg(display.figure_).get_renderer(), {}
    draw = Text.draw

    def record(text, renderer, *rest, **more):
        draw(text, renderer, *rest, **more)
        if text.get_visible() and text.get_text().strip():
            found[text] = text.get_window_extent(renderer).extents

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        display.figure_.draw(renderer)
    return [text.get_text().replace(r"\$", "$") for text in found], np.array(list(found.values()))


def check_texts(display):
    """No text lies on another, and all lie on the figure."""
    found, boxes = texts(display)
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    apart = (low >= high.swapaxes(0, 1) - 0.5) | (high <= low.swapaxes(0, 1) + 0.5)
    clash = np.argwhere(~apart.any(2) & ~np.eye(len(boxes), dtype=bool))
    assert not len(clash), [(found[i], found[j]) for i, j in clash[:5]]
    width, height = display.figure_.bbox.size
    assert (boxes[:, :2] > -1).all()
    assert (boxes[:, 2] < width + 1).all()
    assert (boxes[:, 3] < height + 1).all()
    return found


# -- components --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"marginals": "ranks"}, {"density": "student"}], ids=["gauss", "ranks", "t"]
)
def test_outlines_hold_the_shares_that_they_promise(settings):
    fitted = plain(**settings).fit(X, NAMES)
    drawn = ComponentsDisplay.from_estimator(fitted, X, NAMES, features=[1, 2], ax=axes())
    assert len(drawn.lines_) == 2 * 3
    for number, label in enumerate(fitted.classes_):
        rows, _ = fitted.sample(4000, y=label, random_state=1)
        for place, share in enumerate((0.5, 0.9)):
            inside = Path(drawn.outlines[number, place]).contains_points(rows[:, [1, 2]])
            assert inside.mean() == pytest.approx(share, abs=0.03)


def test_components_are_drawn_with_rows_margins_and_names(model):
    drawn = ComponentsDisplay.from_estimator(model, X, NAMES)
    found = check_texts(drawn)
    assert {"class", "setosa", "versicolor", "virginica", "column 2", "column 3"} <= set(found)
    assert [len(points.get_offsets()) for points in drawn.points_] == [0, 50, 50, 50]
    assert all(len(each.lines) == 3 for each in drawn.ax_.child_axes)
    again = drawn.plot(axes())
    assert again.figure_ is not pyplot.gcf()


def test_marginals_are_densities_of_single_columns(model, mixed):
    drawn = MarginalsDisplay.from_estimator(model)
    assert len(drawn.axes_) == 4
    one = next(each for each in drawn.marginals if each.name == "column 1")
    for number in range(3):
        exact = stats.norm(model.means_[number, 1], model.covariances_[number, 1, 1] ** 0.5)
        np.testing.assert_allclose(one.density[:, number], exact.pdf(one.at), rtol=1e-6)
    drawn = MarginalsDisplay.from_estimator(mixed, features=[1, 0])
    words, numbers = drawn.marginals
    np.testing.assert_allclose(words.density.sum(0), 1.0)
    np.testing.assert_allclose(trapezoid(numbers.density, numbers.at, axis=0), 1.0, atol=2e-3)
    assert len(drawn.axes_[0].patches) == 2 * 2
    found = check_texts(drawn)
    assert {"$x_{", "<b>", "_$a", "$b^$", "column 1"} <= set(found)


def test_components_of_one_column_of_none_and_without_classes(model):
    one = plain().fit(X[:, :1], Y)
    check_texts(MarginalsDisplay.from_estimator(one))
    with pytest.raises(InvalidInputError, match=r"two different columns .* MarginalsDisplay"):
        ComponentsDisplay.from_estimator(one)
    with pytest.raises(InvalidInputError, match="no column 'petal'"):
        ComponentsDisplay.from_estimator(model, features=["petal", 1])
    with pytest.raises(InvalidInputError, match="names no column"):
        MarginalsDisplay.from_estimator(model, features=[])
    density = MixtureDensity(2, density="diag", random_state=0).fit(X)
    drawn = ComponentsDisplay.from_estimator(density, X, ax=axes())
    assert len(drawn.lines_) == 4
    assert check_texts(drawn).count("class") == 0


def test_components_of_a_network_are_those_of_its_mixtures():
    solver = LinkedEM(max_iter=2, end_to_end=False)
    settings = {"embedding": "posterior", "init": EM(max_iter=2, tol=0.1), "calibrate": False}
    with pytest.warns(ConvergenceWarning):
        network = MixtureNetworkClassifier(1, solver=solver, random_state=0, **settings).fit(X, Y)
    assert len(ComponentsDisplay.from_estimator(network, ax=axes()).lines_) == 2 * 3


def test_radii_are_those_of_scipy():
    density = plain(density="student").fit(X, NAMES).mixture_.density
    dof = density.dof.numpy()[:, None]
    np.testing.assert_allclose(_radii(density) ** 2, 2 * stats.f.ppf((0.5, 0.9), 2, dof))
    squares = _radii(density.scale) ** 2
    np.testing.assert_allclose(squares, stats.chi2.ppf([(0.5, 0.9)] * len(dof), 2))


# -- classifiers -------------------------------------------------------------------------------


def test_reliability_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet([1, 1, 1], 400)
    labels = rng.integers(3, size=400)
    found = Reliability.of(proba, labels, 8)
    right = (proba.argmax(1) == labels).astype(int)
    share, said = calibration_curve(right, proba.max(1), n_bins=8, strategy="quantile")
    np.testing.assert_allclose(found.said, said)
    np.testing.assert_allclose(found.right, share)
    low, high = found.interval()
    for at, count in enumerate(found.count):
        exact = stats.binomtest(round(found.right[at] * count), count).proportion_ci(
            method="wilson"
        )
        np.testing.assert_allclose([low[at], high[at]], [exact.low, exact.high], atol=2e-5)
    assert found.error == pytest.approx(np.abs(share - said).mean())
    assert len(Reliability.of(proba[:5], labels[:5], 8).count) == 1


def test_calibration_has_a_line_per_share_of_missing_entries(model):
    drawn = CalibrationDisplay.from_estimator(model, X, NAMES, missing=(0.0, 0.5))
    assert len(drawn.lines_) == 2
    assert sum("% missing" in text for text in check_texts(drawn)) == 2
    assert drawn.reliability[0.0].count.sum() == 150
    check_texts(
        CalibrationDisplay.from_estimator(
            LogisticRegression(max_iter=1000).fit(X, Y), X, Y, ax=axes()
        )
    )
    for wrong in ({"missing": (2.0,)}, {"missing": ()}, {"y": ["nothing"] * 150}, {"y": []}):
        with pytest.raises(InvalidInputError):
            CalibrationDisplay.from_estimator(model, X, **{"y": NAMES, **wrong})


def test_errors_against_missing_entries_of_several(model, mixed):
    first = MissingDisplay.from_estimator(model, X, NAMES, shares=(0.0, 0.4, 1.0), n_repeats=2)
    np.testing.assert_allclose(1.0 - first.errors[0], model.score(X, NAMES))
    assert first.errors[0, 0] < first.errors[2, 0]
    labels = np.where(Y > 0, "_$a", "$b^$")
    more = {"shares": (0.0, 0.5), "name": "_$other", "ax": first.ax_, "n_repeats": 1}
    second = MissingDisplay.from_estimator(mixed, MIXED, labels, **more)
    assert len(first.ax_.containers) == 2
    found = check_texts(second)
    assert {"MixtureClassifier", "_$other", "entries missing (%)", "error (%)"} <= set(found)


def test_pipelines_that_begin_with_an_imputer_take_holes():
    rival = make_pipeline(SimpleImputer(), LogisticRegression(max_iter=1000)).fit(X, Y)
    shown = MissingDisplay.from_estimator(rival, X, Y, shares=(0.0, 0.8), n_repeats=1)
    assert shown.errors[1] > shown.errors[0]


def test_holes_come_in_the_form_of_the_rows():
    rng = np.random.default_rng(0)
    for rows in (X, Y[:, None].repeat(4, 1), MIXED):
        found = with_holes(rows, 0.5, rng)
        assert type(found) is np.ndarray
        share = np.mean([[value != value for value in row] for row in found])
        assert 0.4 < share < 0.6
    pieces = with_holes([X[:5], X[:3]], 0.5, rng)
    assert [piece.shape for piece in pieces] == [(5, 4), (3, 4)]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": pandas.Categorical(NAMES), "c": Y})
    found = with_holes(frame, 0.5, rng)
    assert 0.4 < found.isna().to_numpy().mean() < 0.6
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": X[:, 0], "b": NAMES.tolist(), "c": Y})
    found = with_holes(frame, 0.5, rng)
    assert found.schema == frame.schema
    assert 180 < sum(found.null_count().row(0)) < 270


def test_sets_have_a_dot_per_class_and_row(model):
    drawn = SetsDisplay.from_estimator(model, X[::9], NAMES[::9], coverage=0.8)
    sets = model.predict_set(X[::9], 0.8)
    assert len(drawn.inside_.get_offsets()) == sets.sum()
    assert len(drawn.outside_.get_offsets()) == (~sets).sum()
    assert len(drawn.true_.get_offsets()) == 17
    held = sets[np.arange(17), Y[::9]].mean()
    found = check_texts(drawn)
    assert f"{100 * held:.1f} % hold the true one (17 rows)" in " ".join(found)
    assert {"setosa", "in the set", "true class"} <= set(found)
    few = SetsDisplay.from_estimator(model, X, max_rows=3, ax=axes())
    assert few.true_ is None
    assert len(few.inside_.get_offsets()) + len(few.outside_.get_offsets()) == 9


# -- training ----------------------------------------------------------------------------------

CHOICE = [
    {"question": "density", "density": d, "tradeoff": 0.9, "rows": 20, "loss": v, "chosen": c}
    for d, v, c in [("LowRank(rank=3, init='em')", 0.2, True), ("Diagonal()", 0.3, False)]
]
CHOICE += [{**CHOICE[0], "question": "tradeoff", "tradeoff": 0.5, "loss": None, "chosen": False}]


class Told(BaseEstimator):
    """What displays of the training look at."""

    history_ = [
        *({"stage": "EM", "iteration": i + 1, "objective": 5.0 - i} for i in range(3)),
        *({"stage": "EM", "iteration": i + 1, "objective": 9.0 - i} for i in range(2)),
        *({"stage": "L-BFGS", "iteration": i + 1, "objective": 4.0 / (i + 1)} for i in range(20)),
    ]
    choice_ = CHOICE

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True


def test_history_has_a_line_per_run(motion):
    drawn = HistoryDisplay.from_estimator(Told())
    assert [len(each.get_xdata()) for each in drawn.lines_] == [3, 2, 20]
    assert all(min(each.get_ydata()) == 0.0 for each in drawn.lines_)
    assert {"EM, 2 runs", "L-BFGS: 4 to 0.2"} <= set(check_texts(drawn))
    check_texts(HistoryDisplay.from_estimator(motion[0], ax=axes()))
    sparse = SparseMixtureClassifier(1, random_state=0).fit(X, Y)
    assert len(HistoryDisplay.from_estimator(sparse).lines_) == 1


def test_choice_has_a_dot_per_candidate():
    drawn = ChoiceDisplay.from_estimator(Told())
    assert len(drawn.chosen_.get_offsets()) == len(drawn.others_.get_offsets()) == 1
    found = check_texts(drawn)
    assert {"density?", "LowRank(rank=3)", "Diagonal()", "chosen", "not chosen"} <= set(found)
    assert drawn.candidates[2].settings == "0.5"
    real = ChoiceDisplay.from_estimator(MixtureDensity(1, random_state=0).fit(X))
    assert len(real.chosen_.get_offsets()) == 1
    assert len(real.others_.get_offsets()) == 3
    check_texts(real)


# -- an explanation, a sequence ----------------------------------------------------------------


def test_a_waterfall_ends_at_the_answer(model):
    drawn = ExplanationDisplay.from_estimator(model, X[:1], max_features=2)
    assert len(drawn.bars_) == 3
    proba = model.predict_proba(X[:1])[0]
    assert drawn.base + drawn.values.sum() == pytest.approx(proba.max())
    assert drawn.bars_[0].get_x() + drawn.bars_[0].get_width() == pytest.approx(proba.max())
    found = check_texts(drawn)
    assert {"class setosa", "2 others", "column 2 = 1.4"} <= set(found)
    other = ExplanationDisplay.from_estimator(model, X[:1], target="virginica", ax=axes())
    assert other.base + other.values.sum() == pytest.approx(proba[2])
    with pytest.raises(InvalidInputError, match="none of the classes"):
        ExplanationDisplay.from_estimator(model, X[:1], target="rose")


def test_bars_are_mean_sizes_for_the_predicted_classes(model, mixed):
    drawn = ExplanationDisplay.from_estimator(model, X[::50], output="log_odds")
    values, place = model.explain(X[::50], "log_odds").values, model.predict_proba(X[::50])
    exact = np.abs(values[np.arange(3), :, place.argmax(1)]).mean(0)
    np.testing.assert_allclose(drawn.values, np.sort(exact)[::-1])
    assert "the predicted class" in check_texts(drawn)
    two = ExplanationDisplay.from_estimator(model, X[::50], max_features=2, ax=axes())
    assert len(two.bars_) == 2
    assert "mean size of Shapley values, the first 2 of 4" in check_texts(two)
    check_texts(ExplanationDisplay.from_estimator(mixed, MIXED[:1]))
    density = ExplanationDisplay.from_estimator(mixed, MIXED[:1], output="log_density")
    assert "log density" in check_texts(density)


def test_explanations_of_numbers_and_of_time():
    X, t = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0)
    one = MixtureRegressor(1, density="full", marginals="linear", random_state=0).fit(X, t)
    assert ExplanationDisplay.from_estimator(one, X[:1]).title == "expected number"
    drawn = ExplanationDisplay.from_estimator(one, X[:1], output="log_density", ax=axes())
    assert drawn.title == "log density"
    two = one.fit(X, np.column_stack([t, -t]))
    drawn = ExplanationDisplay.from_estimator(two, X[:1], target="target 1", ax=axes())
    assert drawn.title == "expected target 1"
    series = [np.random.default_rng(seed).normal(seed % 2, size=(6, 1)) for seed in range(8)]
    chains = SequenceMixtureClassifier(1, method="ml", calibrate=False, random_state=0)
    chains.fit(series, np.arange(8) % 2)
    drawn = ExplanationDisplay.from_estimator(chains, series[:1], intervals=3, ax=axes())
    assert {"0 to 33.3 %", "33.3 to 66.7 %", "66.7 to 100 %"} == set(drawn.names)
    check_texts(drawn)


def test_a_sequence_is_drawn_over_its_states(motion):
    fitted, rows = motion
    drawn = StatesDisplay.from_estimator(fitted, rows.data, index=1)
    path = fitted.decode(rows.data)[1]
    assert len(drawn.spans_) == 1 + np.count_nonzero(np.diff(path))
    assert len(drawn.lines_) == rows.data[1].shape[1]
    found = check_texts(drawn)
    assert {f"state {state}" for state in np.unique(path)} <= set(found)
    assert f"predicted class {fitted.predict(rows.data)[1]}" in found
    with pytest.raises(InvalidInputError, match="index=9, and X holds 8 sequences"):
        StatesDisplay.from_estimator(fitted, rows.data, index=9)
    with pytest.raises(UnsupportedError, match="use StatesDisplay"):
        ComponentsDisplay.from_estimator(fitted)


# -- what cannot be drawn ----------------------------------------------------------------------


def test_what_an_estimator_does_not_have_is_said():
    sparse = SparseMixtureClassifier(1, random_state=0).fit(X, Y)
    for draw, message in {
        partial(ComponentsDisplay.from_estimator, sparse): "no density",
        partial(MissingDisplay.from_estimator, sparse, X, Y): "takes no missing values",
        partial(SetsDisplay.from_estimator, sparse, X): "no predict_set",
        partial(ExplanationDisplay.from_estimator, sparse, X): "no explain",
        partial(StatesDisplay.from_estimator, sparse, X): "knows no states",
        partial(ChoiceDisplay.from_estimator, sparse): "compared nothing",
    }.items():
        with pytest.raises((InvalidInputError, UnsupportedError), match=message):
            draw()
    with pytest.raises(NotFittedError):
        ComponentsDisplay.from_estimator(MixtureClassifier())


def test_without_matplotlib_the_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert mixtura.plotting.HistoryDisplay is HistoryDisplay
    with pytest.raises(ImportError, match=r"pip install 'mixtura\[plot\]'"):
        MarginalsDisplay.from_estimator(model)


# -- the page ----------------------------------------------------------------------------------


def test_the_page_shows_every_display_and_its_pictures_are_small(monkeypatch):
    root = pathlib.Path(__file__).parents[1]
    monkeypatch.syspath_prepend(root / "examples")
    page = root / "docs" / "looking.md"
    text = page.read_text()
    assert all(f"{name}.from_estimator" in text for name in mixtura.plotting.__all__)
    shown = importlib.import_module("looking").shown(text)
    assert len(shown) == text.count("```python")
    for block, picture in shown:
        compile(block, page.name, "exec")
        assert 2_000 < (page.parent / picture).stat().st_size < 60_000
