"""MixtureImputer in pipelines."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

from mixtura import MixtureClassifier, MixtureImputer, MixtureRegressor, load
from mixtura.densities import LowRank
from mixtura.exceptions import InvalidInputError
from mixtura.runtime import load as runtime_load
from mixtura.solvers import LBFGS

pd = pytest.importorskip("pandas")

PLAIN = {"random_state": 0}


@pytest.fixture(scope="module")
def holes(iris):
    """Flowers of which a third is missing."""
    X, y = iris
    return np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X), y


def test_it_fills_in_conditional_means(rng):
    """Of one Gaussian they are a regression, that of scikit-learn here."""
    X = rng.multivariate_normal([1.0, 2.0, 3.0], [[1, 0.8, 0], [0.8, 1, 0.5], [0, 0.5, 1]], 400)
    holes = X[:100].copy()
    holes[:, 1] = np.nan
    found = MixtureImputer(1, prior_rows=0, **PLAIN).fit(X).transform(holes)[:, 1]
    by_hand = LinearRegression().fit(X[:, [0, 2]], X[:, 1]).predict(holes[:, [0, 2]])
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)


def test_labels_make_it_a_mixture_per_class(holes):
    X, y = holes
    found = MixtureImputer(1, use_labels=True, **PLAIN).fit(X, y)
    classifier = MixtureClassifier(
        1, density="full", objective="likelihood", missingness="ignore", **PLAIN
    )
    np.testing.assert_allclose(found.transform(X), classifier.fit(X, y).impute(X))
    with pytest.raises(InvalidInputError, match="needs labels"):
        found.fit(X)


def test_it_is_nearer_the_truth_than_means(holes, iris):
    hidden = np.isnan(holes[0])
    errors = [
        np.square(imputer.fit_transform(holes[0]) - iris[0])[hidden].mean()
        for imputer in (MixtureImputer(3, **PLAIN), SimpleImputer())
    ]
    assert errors[0] < 0.4 * errors[1]


def test_draws_have_the_spread_of_the_data(holes, iris):
    drawn = MixtureImputer(3, strategy="draw", **PLAIN).fit(holes[0])
    found = drawn.transform(holes[0])
    np.testing.assert_array_equal(found, drawn.transform(holes[0]))
    np.testing.assert_allclose(found.std(0), iris[0].std(0), rtol=0.1)


def test_indicators_are_those_of_scikit_learn(holes):
    X = holes[0].copy()
    X[:, 1] = 1.0 + np.arange(150) % 7
    found = MixtureImputer(1, add_indicator=True, **PLAIN).fit(X)
    shown = found.transform(X)[:, 4:]
    np.testing.assert_array_equal(shown, MissingIndicator().fit_transform(X))
    names = found.get_feature_names_out()
    assert names.tolist() == [
        "x0",
        "x1",
        "x2",
        "x3",
        *(f"missingindicator_x{c}" for c in (0, 2, 3)),
    ]


def test_a_pipeline_takes_it(holes):
    X, y = holes
    pipeline = make_pipeline(MixtureImputer(2, **PLAIN), LogisticRegression(max_iter=500))
    assert clone(pipeline).fit(X, y).score(X, y) > 0.85


def test_data_frames_stay_data_frames(holes, tmp_path):
    X, _ = holes
    kind = np.where(np.isnan(X[:, 1]), None, np.where(X[:, 1] > 3, "wide", "narrow"))
    frame = pd.DataFrame({"length": X[:, 0], "kind": kind, "petal": X[:, 2]})
    imputer = MixtureImputer(2, add_indicator=True, **PLAIN).fit(frame)
    found = imputer.transform(frame)
    assert not found.isna().any(axis=None)
    assert set(found["kind"]) == {"wide", "narrow"}
    assert list(found.columns) == list(imputer.get_feature_names_out())
    known = frame["kind"].notna()
    assert (found["kind"][known] == frame["kind"][known]).all()
    imputer.save(tmp_path / "imputer")
    pd.testing.assert_frame_equal(load(tmp_path / "imputer").transform(frame), found)
    lean = runtime_load(tmp_path / "imputer")
    pd.testing.assert_frame_equal(lean.transform(frame), found)
    columns = lean.transform({name: frame[name].tolist() for name in frame})
    assert list(columns) == list(found)
    polars = pytest.importorskip("polars")
    for each in (imputer, lean):
        rows = each.transform(polars.from_pandas(frame))
        pd.testing.assert_frame_equal(rows.to_pandas(), found, check_dtype=False)


def test_trials_do_not_call_the_users_callbacks(rng, monkeypatch):
    """One that stops a fit would decide what is compared."""
    monkeypatch.setattr("mixtura.estimators.imputer._TRIALS", 1)
    X = rng.normal(size=(30, 1)) + 0.5 * rng.normal(size=(30, 6))
    calls = {"full": [], "low_rank": [], "auto": []}
    for density, heard in calls.items():
        model = MixtureImputer(1, density=density, **PLAIN)
        model.set_callbacks(heard.append).fit(X)
    fits = ["full", *({model.density_} - {"full"})]
    assert len(calls["auto"]) == sum(len(calls[each]) for each in fits) > 0


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize("text", [True, False])
def test_what_training_did_not_know_comes_back(text, tmp_path):
    """Observed entries are never replaced: SimpleImputer leaves them, too."""
    kinds = np.array(["a", "b"] if text else [3, 4])
    frame = pd.DataFrame({"kind": np.tile(kinds, 10), "x": np.arange(20.0), "void": np.nan})
    imputer = MixtureImputer(1, categorical_features=["kind"], **PLAIN).fit(frame)
    rows = pd.DataFrame({"kind": ["new" if text else 7, kinds[0]], "x": np.nan, "void": [5, None]})
    wanted = SimpleImputer(strategy="most_frequent").fit(frame[["kind"]]).transform(rows[["kind"]])
    imputer.save(tmp_path / "imputer")
    for each in (imputer, runtime_load(tmp_path / "imputer")):
        found = each.transform(rows)
        np.testing.assert_array_equal(found[["kind"]].to_numpy(), wanted)
        assert found["void"][0] == 5.0
        assert found["x"].notna().all()
    columns = runtime_load(tmp_path / "imputer").transform({"kind": "new" if text else 7, "x": 1.0})
    assert columns["kind"] == wanted[0]
    polars = pytest.importorskip("polars")
    assert imputer.transform(polars.from_pandas(rows))["kind"].to_list() == wanted[:, 0].tolist()
    plain = MixtureImputer(1, categorical_features=[0], **PLAIN).fit(frame.to_numpy())
    np.testing.assert_array_equal(plain.transform(rows.to_numpy())[:, :1], wanted)


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
def test_regressors_leave_what_training_did_not_know():
    X = pd.DataFrame({"kind": ["a", "b"] * 10, "x": np.arange(20.0)})
    model = MixtureRegressor(1, solver=LBFGS(3), random_state=0).fit(X, X["x"])
    rows = pd.DataFrame({"kind": ["new"], "x": [np.nan]})
    assert model.impute(rows)["kind"][0] == "new"
    (drawn,) = model.impute(rows, n_draws=1, random_state=0)
    assert drawn["kind"][0] == "new"


def test_few_rows_of_one_factor_are_filled_in_by_low_rank(rng, monkeypatch):
    """Full ones know no better there; they stay where rows suffice, or are many, or time ends."""
    monkeypatch.setattr("mixtura.estimators.imputer._TRIALS", 1)
    X = rng.normal(size=(300, 1)) + 0.5 * rng.normal(size=(300, 10))
    holes = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    few, off = holes[:40], {}
    chosen = MixtureImputer(1, **PLAIN).fit(few)
    assert chosen.density_ == "low_rank"
    for imputer in (chosen, MixtureImputer(1, density="full", **PLAIN).fit(few)):
        off[imputer.density_] = np.square(imputer.transform(holes[40:]) - X[40:]).mean()
    assert off["low_rank"] < 0.9 * off["full"]
    assert MixtureImputer(1, **PLAIN).fit(holes).density_ == "full"
    assert MixtureImputer(1, max_time=60.0, **PLAIN).fit(few).density_ == "full"
    monkeypatch.setattr("mixtura.estimators.imputer._MOST_NUMBERS", few.size - 1)
    assert MixtureImputer(1, **PLAIN).fit(few).density_ == "full"


def test_more_columns_than_rows_are_filled_in_by_few_directions(rng):
    """Where others make of noise what is worse than the mean."""
    X = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 60)) + 2.0 * rng.normal(size=(50, 60))
    hidden = rng.random(X.shape) < 0.3
    holes = np.where(hidden, np.nan, X)

    def off(imputer):
        return np.square(imputer.fit_transform(holes) - X)[hidden].mean()

    chosen = MixtureImputer(1, **PLAIN)
    assert off(chosen) < off(SimpleImputer())
    assert chosen.density_ == LowRank(3)
    for other in ("full", "low_rank"):
        assert off(MixtureImputer(1, density=other, **PLAIN)) > off(SimpleImputer())
