"""What estimators over mixed columns answer, against loops and enumeration."""

import pickle

import numpy as np
import pytest
import torch
from mixed import check_frequencies, slow_fill, slow_log_prob
from scipy.special import softmax
from sklearn.base import clone

from mixtura import BoostedMixtureClassifier, MixtureClassifier, MixtureDensity, load
from mixtura.data.batch import Batch
from mixtura.models.fitted import typicality
from mixtura.solvers import EM, LBFGS


def make_frame(n=90, seed=0):
    """Two classes; text, truth values, numeric categories and numbers; a sixth is missing."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    color = np.where(rng.random(n) < 0.2 + 0.5 * y, "red", rng.choice(["blue", "green"], n))
    columns = {
        "color": color.astype(object),
        "size": 1.5 * y + rng.normal(size=n),
        "member": (rng.random(n) < 0.3 + 0.4 * y).astype(object),
        "weight": 100.0 + 10.0 * y * rng.normal(size=n),
        "grade": rng.integers(1, 4, n).astype(float),
    }
    columns["member"] = np.array([bool(v) for v in columns["member"]], dtype=object)
    for values in columns.values():
        missing = rng.random(n) < 1 / 6
        values[missing] = np.nan if values.dtype == float else None
    columns["level"] = rng.integers(-1, 2, n) * (1 + y)
    return pytest.importorskip("pandas").DataFrame(columns), y


ESTIMATORS = {
    "classifier": MixtureClassifier(
        2,
        density="full",
        objective="likelihood",
        categorical_features=["grade", "level"],
        missingness="ignore",
        solver=EM(8, 0.1),
        random_state=0,
    ),
    "informative": MixtureClassifier(
        1,
        density="diag",
        objective="margin",
        solver=LBFGS(3),
        categorical_features=["grade", "level"],
        missingness="informative",
        calibrate=False,
        random_state=0,
    ),
    "boosted": BoostedMixtureClassifier(
        n_stages=2,
        categorical_features=["grade", "level"],
        missingness="ignore",
        calibrate=False,
        early_stopping=False,
        random_state=0,
    ),
    "density": MixtureDensity(
        3,
        categorical_features=["grade", "level"],
        missingness="ignore",
        solver=EM(tol=0.1),
        random_state=0,
    ),
}


@pytest.fixture(scope="module")
def fitted():
    """A fitted estimator of every sort."""
    frame, y = make_frame()
    return {name: clone(model).fit(frame, y) for name, model in ESTIMATORS.items()}


def batch_of(model, frame, y=None):
    """The rows of a frame in the units of a fitted model, coded by hand."""
    columns = []
    for at, name in enumerate(frame.columns):
        values = frame[name].tolist()
        if name not in ("size", "weight"):
            known = sorted({v for v in values if v is not None and v == v})
            values = [known.index(v) if v in known else np.nan for v in values]
        else:
            values = (np.array(values) - model.scaling_.location[at]) / model.scaling_.scale[at]
        columns.append(np.array(values, dtype=float))
    x = torch.from_numpy(np.column_stack(columns))
    labels = np.full(len(frame), -1) if y is None else y
    return Batch(
        x.nan_to_num(0.0), ~x.isnan(), torch.from_numpy(labels), torch.ones(len(frame)).double()
    )


def slow_share(model, batch):
    """(n, K) posteriors of the components, given the labels that there are."""
    mixture = model.mixture_
    log_joint = slow_log_prob(mixture.density, batch) + mixture.log_weight.numpy()
    log_joint += mixture.log_prior.numpy()[mixture.owner]
    y = batch.y.numpy()[:, None]
    return softmax(np.where((y >= 0) & (mixture.owner.numpy() != y), -np.inf, log_joint), 1)


@pytest.mark.parametrize(
    ("name", "labeled"),
    [(name, labeled) for name in ESTIMATORS for labeled in (False, True)][:-1],
)
def test_imputed_values_are_conditional_expectations(name, labeled, fitted):
    """By a loop over the components; categories are the likeliest ones, of the user."""
    model, (frame, y) = fitted[name], make_frame()
    batch = batch_of(model, frame, y if labeled else None)
    filled = slow_fill(model.mixture_.density, batch, slow_share(model, batch))
    given = model.impute(frame, y) if labeled else model.impute(frame)
    assert list(given.columns) == list(frame.columns)
    assert not given.isna().any().any()
    for at, column in enumerate(frame.columns):
        known = frame[column].notna()
        assert (given[column][known] == frame[column][known]).all()
        if column in ("size", "weight"):
            expected = filled[:, at] * model.scaling_.scale[at] + model.scaling_.location[at]
            np.testing.assert_allclose(given[column].astype(float), expected, 1e-9, 1e-9)
        else:
            categories = sorted(set(frame[column][known]))
            expected = [categories[int(code)] for code in filled[:, at]]
            assert given[column].tolist() == expected


@pytest.mark.parametrize("column", ["color", "member", "grade"])
@pytest.mark.parametrize("name", ["classifier", "density", "boosted"])
def test_chances_of_categories_by_enumeration(name, column, fitted):
    """Every category is put in the hole, and the densities of the rows are compared."""
    model, (frame, _) = fitted[name], make_frame()
    given = model.category_proba(frame, column)
    categories = sorted(set(frame[column].dropna()))
    scores = []
    for category in categories:
        tried = frame.copy()
        tried[column] = [category] * len(frame)
        scores.append(model.score_samples(tried))
    expected = softmax(np.array(scores).T, 1)
    missing = frame[column].isna().to_numpy()
    assert missing.any()
    np.testing.assert_allclose(given[missing], expected[missing], 1e-7, 1e-9)
    observed = np.array(categories, dtype=object) == frame[column].to_numpy(object)[:, None]
    np.testing.assert_array_equal(given[~missing], observed[~missing])
    by_place = model.category_proba(frame, list(frame.columns).index(column))
    np.testing.assert_array_equal(by_place, given)


def test_chances_of_categories_where_holes_tell(fitted):
    """What is absent stays absent while the categories are tried."""
    model, (frame, _) = fitted["informative"], make_frame()
    batch = batch_of(model, frame)
    absent, scores = batch.lacks(), []
    for code in range(3):
        x, observed = batch.x.clone(), batch.observed.clone()
        x[:, 0], observed[:, 0] = code, True
        tried = Batch(x, observed, batch.y, batch.weight, absent)
        mixture = model.mixture_
        joint = slow_log_prob(mixture.density, tried) + mixture.log_weight.numpy()
        joint = joint + mixture.log_prior.numpy()[mixture.owner]
        scores.append(np.log(np.exp(joint).sum(1)))
    expected = softmax(np.array(scores).T, 1)
    missing = frame["color"].isna().to_numpy()
    given = model.category_proba(frame, "color")
    np.testing.assert_allclose(given[missing], expected[missing], 1e-7, 1e-9)


def test_draws_of_missing_entries(fitted):
    """Random completions have the chances of the categories, and keep what is observed."""
    model, (frame, _) = fitted["density"], make_frame()
    row = frame[frame["color"].isna() & frame["size"].notna()].iloc[[0]]
    many = row.loc[row.index.repeat(2000)].reset_index(drop=True)
    (drawn,) = model.impute(many, n_draws=1, random_state=0)
    categories = ["blue", "green", "red"]
    codes = np.array([categories.index(value) for value in drawn["color"]], dtype=float)
    check_frequencies(codes, model.category_proba(row, "color")[0])
    assert (drawn["size"] == row["size"].iloc[0]).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_files_give_the_same_model(name, fitted, tmp_path):
    """Text, truth values and numbers are the same categories after a round trip."""
    model, (frame, _) = fitted[name], make_frame()
    model.save(tmp_path / "model")
    for again in (load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model)
        assert again.schema_.names == model.schema_.names
        for one, other in zip(again.schema_.categories, model.schema_.categories, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.dtype == other.dtype
                assert list(map(type, one.tolist())) == list(map(type, other.tolist()))
                assert one.tolist() == other.tolist()
        assert [c.dtype.kind for c in again.schema_.categories if c is not None] == list("Obfi")
        assert again.missingness_ == model.missingness_
        np.testing.assert_array_equal(again.score_samples(frame), model.score_samples(frame))
        np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
        assert again.impute(frame).equals(model.impute(frame))
        density, before = again.mixture_.density, model.mixture_.density
        assert density.columns == before.columns
        assert [type(part) for part in density.parts] == [type(part) for part in before.parts]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_clones_fit_to_the_same_model(name, fitted):
    """A clone has the parameters, knows no categories yet, and learns the same."""
    frame, y = make_frame()
    copy = clone(fitted[name])
    assert copy.get_params() == fitted[name].get_params()
    assert not hasattr(copy, "schema_")
    assert not hasattr(copy, "mixture_")
    again = copy.fit(frame, y)
    np.testing.assert_array_equal(again.score_samples(frame), fitted[name].score_samples(frame))


def test_scores_are_those_of_the_loops(fitted):
    """log p(x) in the user's units, by scipy and tables; categories have no units."""
    frame, _ = make_frame()
    for model in fitted.values():
        batch, mixture = batch_of(model, frame), model.mixture_
        joint = slow_log_prob(mixture.density, batch) + mixture.log_weight.numpy()
        joint = joint + mixture.log_prior.numpy()[mixture.owner]
        expected = np.log(np.exp(joint).sum(1))
        for at in (1, 3):
            expected -= batch.observed[:, at].numpy() * np.log(model.scaling_.scale[at])
        np.testing.assert_allclose(model.score_samples(frame), expected, 1e-9)
        np.testing.assert_allclose(model.responsibilities(frame), slow_share(model, batch), 1e-7)


@pytest.mark.parametrize("name", ["classifier", "informative"])
def test_outliers_are_judged_in_their_favor(name, fitted):
    """With holes filled, and nothing held against a row for having them."""
    model, (frame, _) = fitted[name], make_frame()
    batch, mixture = batch_of(model, frame), model.mixture_
    filled = slow_fill(mixture.density, batch, slow_share(model, batch))
    untold = torch.full_like(batch.lacks(), -1)
    whole = Batch(torch.from_numpy(filled), None, batch.y, batch.weight, untold)
    joint = slow_log_prob(mixture.density, whole) + mixture.log_weight.numpy()
    scores = np.log(np.exp(joint + mixture.log_prior.numpy()[mixture.owner]).sum(1))
    np.testing.assert_allclose(typicality(mixture, batch), scores, 1e-9)
    flagged = model.is_outlier(frame, 0.1)
    assert 1 <= flagged.sum() <= 9
    assert set(np.flatnonzero(flagged)) == set(np.argsort(scores)[: flagged.sum()])
