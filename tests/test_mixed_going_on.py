"""Warm starts and streams of tables of numbers and categories, with holes."""

import warnings

import numpy as np
import pytest
from frames import FRAME, FRESH, FRESH_Y, QUICK, Y, make_frame
from sklearn.exceptions import ConvergenceWarning

from mixtura import MixtureClassifier, MixtureDensity
from mixtura.densities import Diagonal
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EM, LBFGS

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_a_warm_start_goes_on():
    """Likelihoods rise from where the last fit ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = {"solver": EM(2, 0.0), "warm_start": True, "random_state": 0}
        for made in (
            MixtureClassifier(2, prior_rows=0, **settings, **QUICK),
            MixtureDensity(3, missingness="ignore", **settings),
        ):
            scores = [made.fit(FRAME, Y).score_samples(FRAME).mean() for _ in range(3)]
            assert scores[0] < scores[1] < scores[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.assign(color=frame["color"].fillna("black")),
        lambda frame: frame.drop(columns="size"),
        lambda frame: frame[frame.columns[::-1]],
    ],
    ids=["more categories", "fewer columns", "other columns"],
)
def test_a_warm_start_needs_the_same_table(change):
    """Another table is refused, and the model stays as it was."""
    made = MixtureClassifier(1, warm_start=True, **QUICK).fit(FRAME, Y)
    before = made.score_samples(FRESH)
    with pytest.raises(InvalidInputError, match="warm_start"):
        made.fit(change(FRAME), Y)
    np.testing.assert_array_equal(made.score_samples(FRESH), before)


def test_a_warm_start_needs_the_same_categories():
    """As many other categories are other categories: codes would change their meaning."""
    made = MixtureClassifier(1, warm_start=True, **QUICK).fit(FRAME, Y)
    other = FRAME.assign(color=FRAME["color"].replace({"blue": "zinc"}))
    with pytest.raises(InvalidInputError, match="warm_start"):
        made.fit(other, Y)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.assign(color=frame["color"].fillna("black")),
        lambda frame: frame.assign(color=frame["color"].replace({"blue": "red"})),
        lambda frame: frame.assign(color=frame["color"].replace({"blue": "zinc"})),
        lambda frame: frame[frame.columns[::-1]],
    ],
    ids=["more categories", "fewer categories", "other categories", "other columns"],
)
def test_a_warm_start_of_a_density_needs_the_same_table(change):
    """As that of a classifier does."""
    made = MixtureDensity(1, warm_start=True, missingness="ignore").fit(FRAME)
    with pytest.raises(InvalidInputError, match="warm_start"):
        made.fit(change(FRAME))


def test_a_warm_start_of_a_density_needs_the_same_view_of_holes():
    """A classifier refuses it; a density must not say one thing and do another."""
    made = MixtureDensity(1, warm_start=True, missingness="ignore").fit(FRAME)
    with pytest.raises(InvalidInputError, match="warm_start"):
        made.set_params(missingness="informative").fit(FRAME)


def test_a_warm_start_of_a_classifier_needs_the_same_view_of_holes():
    """Whether holes tell is part of the structure."""
    made = MixtureClassifier(1, warm_start=True, **QUICK).fit(FRAME, Y)
    with pytest.raises(InvalidInputError, match="warm_start"):
        made.set_params(missingness="informative").fit(FRAME, Y)


def test_a_stream_ends_where_fit_would():
    """One component a class, complete rows: parts of any size add up to the whole."""
    table, labels = make_frame(holes=0.0)
    settings = QUICK | {"prior_rows": 0, "marginals": "raw", "density": Diagonal(1e-9)}
    whole = MixtureClassifier(1, **settings).fit(table, labels)
    stream = MixtureClassifier(1, **settings)
    for part in np.split(np.arange(len(labels)), [50, 57, 90]):
        stream.partial_fit(table.iloc[part], labels[part], classes=[0, 1])
    np.testing.assert_allclose(stream.class_prior_, whole.class_prior_, 1e-9)
    np.testing.assert_allclose(
        stream.mixture_.density.spread, whole.mixture_.density.spread, 1e-6, 1e-9
    )
    np.testing.assert_allclose(stream.predict_proba(FRESH), whole.predict_proba(FRESH), 1e-6)


def test_a_stream_may_bring_new_categories_and_lack_columns():
    """The first part says what there is; later surprises count as missing, with a warning."""
    made = MixtureClassifier(1, random_state=0, **QUICK)
    made.partial_fit(FRAME[:60], Y[:60], classes=[0, 1])
    later = FRAME[60:].assign(color="octarine")
    with pytest.warns(DegenerateDataWarning, match="octarine"):
        made.partial_fit(later, Y[60:])
    with pytest.warns(DegenerateDataWarning, match="lacks 1 column"):
        made.partial_fit(FRAME[60:].drop(columns="size"), Y[60:])
    assert made.schema_.categories[0].tolist() == ["blue", "green", "red"]
    assert made.score(FRESH, FRESH_Y) > 0.75
    with pytest.raises(InvalidInputError, match="held text"):
        made.partial_fit(FRAME.assign(color=1.0), Y)


def test_discriminative_streams_take_mixed_frames():
    """An epoch of Adam a part."""
    settings = QUICK | {"objective": "margin", "missingness": "informative"}
    made = MixtureClassifier(1, solver=LBFGS(3), calibrate=False, random_state=0, **settings)
    for part in np.array_split(np.arange(len(Y)), 3):
        made.partial_fit(FRAME.iloc[part], Y[part], classes=[0, 1])
        assert np.isfinite(made.predict_proba(FRESH)).all()
    assert made.score(FRESH, FRESH_Y) > 0.7
    assert made.missingness_ == "informative"
