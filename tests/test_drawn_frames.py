"""Rows drawn from models of data frames: the same columns, types and sorts of numbers."""

import numpy as np
import pytest

from mixtura import MixtureClassifier, MixtureDensity, MixtureNetworkRegressor, MixtureRegressor
from mixtura import load as load_model

pd = pytest.importorskip("pandas")

Y = np.arange(2).repeat(80)
QUICK = {"objective": "likelihood", "marginals": "linear", "random_state": 0}


def _frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "visits": rng.poisson(0.7 + Y),
            "age": rng.integers(18, 90, len(Y)).astype(float),
            "amount": rng.lognormal(size=len(Y)),
            "change": rng.normal(size=len(Y)).astype(np.float32),
            "size": pd.Categorical(rng.choice(["S", "L"], len(Y)), ["S", "L", "XL"], ordered=True),
            "grade": pd.Categorical(rng.choice([3, 1], len(Y))),
            "member": rng.random(len(Y)) < 0.4,
            "kind": rng.choice(["a", "b"], len(Y)),
            "kids": pd.array(rng.integers(0, 3, len(Y)), dtype="UInt8"),
        }
    )
    frame.loc[rng.random(len(Y)) < 0.2, "age"] = np.nan
    return frame


FRAME = _frame()


@pytest.fixture(scope="module")
def model():
    return MixtureClassifier(1, **QUICK).fit(FRAME, Y)


def test_frames_are_like_those_of_training(model, tmp_path):
    """To the type, so that they can be appended; also of a model that was stored."""
    density = MixtureDensity(2, random_state=0).fit(FRAME)
    network = MixtureNetworkRegressor(2, random_state=0).fit(FRAME[["amount", "visits"]], Y + 0.1)
    for each in (model, density, network):
        rows, _ = each.sample(300, random_state=0)
        known = FRAME[list(each.feature_names_in_)]
        pd.testing.assert_series_equal(rows.dtypes, known.dtypes)
        assert pd.concat([known, rows]).dtypes.equals(known.dtypes)
        assert rows["visits"].between(0, FRAME["visits"].max()).all()
        assert (rows["amount"] >= FRAME["amount"].min()).all()
        each.save(tmp_path / "model.safetensors")
        again, _ = load_model(tmp_path / "model.safetensors").sample(300, random_state=0)
        pd.testing.assert_frame_equal(rows, again)


def test_numbers_are_of_the_sort_of_training(model):
    """Whole ones within the range, whatever their type; others as the model has them."""
    rows, labels = model.sample(2_000, random_state=0)
    assert (rows["age"] % 1 == 0).all()
    assert rows["age"].between(FRAME["age"].min(), FRAME["age"].max()).all()
    assert rows["change"].min() < FRAME["change"].min()
    assert set(rows["size"]) == {"S", "L"}
    for label in (0, 1):
        seen, drawn = FRAME["visits"][label == Y], rows["visits"][label == labels]
        assert abs(drawn.mean() - seen.mean()) < 0.15


def test_what_is_given_stays(model):
    """Beyond the range, and with a fraction."""
    far, _ = model.sample(5, given={"visits": 99, "age": 30.5}, random_state=0)
    assert far.dtypes["visits"] == FRAME.dtypes["visits"]
    assert set(far["visits"]) == {99}
    assert set(far["age"]) == {30.5}
    assert set(model.condition({"visits": 2.5}).sample(3)["visits"]) == {2.5}
    regressor = MixtureRegressor(1, random_state=0).fit(FRAME, FRAME["amount"] + Y)
    rows, _ = regressor.condition({"visits": 99}).sample(50, random_state=0)
    assert set(rows["visits"]) == {99}
    pd.testing.assert_series_equal(rows.dtypes, FRAME.dtypes)
    assert (rows["amount"] >= FRAME["amount"].min()).all()


def test_frames_of_polars():
    """Likewise, with lists of categories."""
    pl = pytest.importorskip("polars")
    sizes = pl.Enum(["S", "L", "XL"])
    frame = pl.DataFrame(
        {
            "visits": pl.Series(FRAME["visits"].tolist(), dtype=pl.Int16),
            "change": pl.Series(FRAME["change"].tolist(), dtype=pl.Float32),
            "size": pl.Series(FRAME["size"].tolist(), dtype=sizes),
            "kind": pl.Series(FRAME["kind"].tolist(), dtype=pl.Categorical),
            "member": FRAME["member"].tolist(),
        }
    )
    rows, _ = MixtureClassifier(1, **QUICK).fit(frame, Y).sample(300, random_state=0)
    assert rows.schema == frame.schema
    assert rows["visits"].min() == 0
    assert pl.concat([frame, rows]).schema == frame.schema


def test_a_stream_may_widen_the_range():
    """Later parts have larger counts, fractions, or the first negative numbers."""
    rng = np.random.default_rng(0)
    first = pd.DataFrame({"a": rng.poisson(2.0, 160), "b": rng.poisson(2.0, 160)}) + 0.0
    first["c"] = rng.uniform(1.0, 2.0, 160)
    later = pd.DataFrame({"a": 8.0 + first["a"], "b": 0.5 + first["b"], "c": first["c"] - 3.0})
    model = MixtureClassifier(1, **QUICK).partial_fit(first, Y, classes=[0, 1])
    assert model.sample(500, random_state=0)[0]["a"].max() <= first["a"].max()
    for _ in range(5):
        model.partial_fit(later, Y)
    rows, _ = model.sample(500, random_state=0)
    assert first["a"].max() < rows["a"].max() <= later["a"].max()
    assert (rows["b"] % 1 != 0).any()
    assert rows["c"].min() < -2.0


def test_arrays_give_what_the_model_has():
    """Arrays have no types of columns: the draws of Gaussians as they are."""
    X = FRAME[["visits", "amount"]].to_numpy()
    rows, _ = MixtureClassifier(1, **QUICK).fit(X, Y).sample(300, random_state=0)
    assert isinstance(rows, np.ndarray)
    assert (rows < 0.0).any()
