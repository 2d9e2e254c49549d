"""Which rows count as unlabeled: one rule for all classifiers."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureImputer,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EM, LinkedEM

PLAIN = {"density": "diag", "calibrate": False, "random_state": 0}
SETTLED = PLAIN | {"missingness": "ignore"}
#: Unlabeled rows take part: whether they should is another question.
TAKEN = {"unlabeled_weight": 0.5}
GENERATIVE = SETTLED | TAKEN | {"objective": "likelihood", "solver": EM(3)}
LINKED = {"solver": LinkedEM(3, end_to_end=False), "init": EM(3, 0.01)}
NETWORK = SETTLED | TAKEN | LINKED | {"embedding": "log_density"}
SEQUENCE = PLAIN | {"method": "ml", "init": EM(3)}
#: Quick settings of every classifier that takes labels.
CLASSIFIERS = {
    "mixture": MixtureClassifier(1, **GENERATIVE),
    "boosted": BoostedMixtureClassifier(n_stages=1, early_stopping=False, solver=EM(3), **SETTLED),
    "sparse": SparseMixtureClassifier(1, form="primal", features="linear", random_state=0),
    "network": MixtureNetworkClassifier(1, **NETWORK),
    "sequence": SequenceMixtureClassifier(1, **SEQUENCE),
    "pairs of sequences": SequenceMixtureClassifier(1, multiclass="pairwise", **SEQUENCE),
    "pairwise": PairwiseClassifier(MixtureClassifier(1, **GENERATIVE)),
}
ABOUT_DATA = (AmbiguousDataWarning, DegenerateDataWarning)
LEARN_FROM_ALL = ("mixture", "network")
EVERY = pytest.mark.parametrize("name", CLASSIFIERS)
N = 30


def settled(name, **parameters):
    """A new classifier of this name; a pair's parameters belong to what it is made of."""
    prefix = "estimator__" if name == "pairwise" else ""
    parameters = {prefix + key: value for key, value in parameters.items()}
    return clone(CLASSIFIERS[name]).set_params(**parameters)


def rows_for(name, codes):
    """Rows around the corners of a triangle, each a short sequence where asked for."""
    rng = np.random.default_rng(0)
    X = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])[codes] + rng.normal(size=(len(codes), 2))
    return [np.stack([x, x + rng.normal(size=2)]) for x in X] if "sequence" in name else X


def fitted(name, y, codes=None, **parameters):
    """A model of rows in the order of their classes, and the warnings about labels."""
    codes = np.arange(len(y)) % 3 if codes is None else codes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = settled(name, **parameters).fit(rows_for(name, codes), y)
    return model, [str(each.message) for each in caught if each.category in ABOUT_DATA]


def said(messages):
    """Those that tell that rows were taken for unlabeled."""
    return [message for message in messages if "taken for unlabeled" in message]


@EVERY
@pytest.mark.parametrize("pair", [(-1, 1), (-1, 0), (-1.0, 1.0)], ids=str)
def test_two_labels_are_two_classes(name, pair):
    """With one other label -1 is a class, and nothing is said."""
    y = np.where(np.arange(N) % 3 == 0, *pair)
    model, messages = fitted(name, y)
    assert model.classes_.tolist() == list(pair)
    assert not messages
    assert (model.predict(rows_for(name, np.arange(N) % 3)) == y).mean() > 0.9


@EVERY
@pytest.mark.parametrize("kind", [np.int64, np.int8, float, object])
def test_minus_one_beside_two_labels(name, kind):
    """-1 is unlabeled, and the fit says so, and what to set."""
    y = (np.arange(N) % 3).astype(kind)
    y[:7] = -1
    model, messages = fitted(name, y)
    assert model.classes_.tolist() == [0, 1, 2]
    (message,) = said(messages)
    assert "7 of 30 rows" in message
    assert "unlabeled=None" in message
    assert "unlabeled=-1" in message


@EVERY
@pytest.mark.parametrize("unlabeled", [-1, None])
def test_who_says_so_is_not_told(name, unlabeled):
    """An explicit marker, or none, is taken at its word; without a marker -1 is a class."""
    codes = np.arange(N) % 3
    model, messages = fitted(name, codes - 1, unlabeled=unlabeled)
    assert model.classes_.tolist() == ([-1, 0, 1] if unlabeled is None else [0, 1])
    assert not said(messages)
    if unlabeled is None or name in LEARN_FROM_ALL:
        assert not messages


NOTHING = {"None": None, "NaN": np.nan}


@EVERY
@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("unlabeled", ["auto", "?"])
@pytest.mark.parametrize("words", [False, True], ids=["numbers", "words"])
def test_nothing_is_never_a_class(name, nothing, unlabeled, words):
    """None and NaN are unlabeled whatever the marker, among numbers and among words."""
    labels = ["no", "so", "yes"] if words else [0, 1, 2]
    y = [labels[code] for code in np.arange(N) % 3]
    y[4] = y[5] = NOTHING[nothing]
    model, messages = fitted(name, y, unlabeled=unlabeled)
    assert model.classes_.tolist() == labels
    assert not said(messages)
    known = [each for each in y if each == each and each is not None]
    kept = [at for at, each in enumerate(y) if each == each and each is not None]
    rows = rows_for(name, np.arange(N) % 3)
    assert model.score([rows[at] for at in kept], known) > 0.9


#: Ways to say that a row has no label: (labels of the classes, marker).
WITHOUT_LABELS = {
    "-1": ([0, 1, 2], -1),
    "NaN": ([0.0, 1.0, 2.0], np.nan),
    "None": ([0, 1, 2], None),
    "None among words": (["no", "so", "yes"], None),
    "-1 among words": (["no", "so", "yes"], -1),
}


def partly_labeled(way, n_rows=N):
    """Labels by turns, every fifth of them unlabeled; and which are labeled."""
    labels, marker = WITHOUT_LABELS[way]
    known = np.arange(n_rows) % 5 != 1
    y = [labels[at % 3] if known[at] else marker for at in range(n_rows)]
    return (np.array(y) if way in ("-1", "NaN") else np.array(y, dtype=object)), known


@EVERY
@pytest.mark.parametrize("way", WITHOUT_LABELS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_without_a_label_have_no_part_in_a_score(name, way):
    """The score is the share of labeled rows that are right, by hand, with weights too."""
    y, known = partly_labeled(way)
    model, _ = fitted(name, y)
    rng = np.random.default_rng(1)
    X, weight = rows_for(name, rng.integers(3, size=N)), rng.uniform(1.0, 2.0, size=N)
    right = model.predict(X)[known] == y[known]
    assert 0.1 < right.mean() < 0.9
    assert model.score(X, y) == pytest.approx(right.mean())
    weighted = (right * weight[known]).sum() / weight[known].sum()
    assert model.score(X, y, sample_weight=weight) == pytest.approx(weighted)


@EVERY
def test_a_score_needs_a_label(name):
    """Labels that weigh nothing are none."""
    model, _ = fitted(name, np.arange(N) % 3)
    X = rows_for(name, np.arange(N) % 3)
    for y in (np.full(N, np.nan), np.full(N, -1), [None] * N):
        with pytest.raises(InvalidInputError, match="no row has a label"):
            model.score(X, y)
    y = np.append(np.full(N - 1, np.nan), 0)
    with pytest.raises(InvalidInputError, match="no row has a label"):
        model.score(X, y, sample_weight=np.append(np.ones(N - 1), 0.0))


@EVERY
def test_a_class_called_minus_one_is_scored(name):
    """It is no marker where the model knows it; labels that it does not know are wrong."""
    y = np.where(np.arange(N) % 3 == 0, -1, 1)
    model, _ = fitted(name, y)
    X = rows_for(name, np.arange(N) % 3)
    right = model.predict(X) == y
    assert model.score(X, y) == pytest.approx(right.mean())
    y = np.where(np.arange(N) < 10, 7, y)
    assert model.score(X, y) == pytest.approx((right & (y != 7)).mean())


@EVERY
@pytest.mark.parametrize("way", WITHOUT_LABELS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_partly_labeled_rows_are_cross_validated(name, way):
    """As -1 with stratified folds, and in every way with plain ones."""
    y, _ = partly_labeled(way, 60)
    X = rows_for(name, np.arange(60) % 3)
    ways = [KFold(2, shuffle=True, random_state=0)] + [2] * (way == "-1")
    for cv in ways:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AmbiguousDataWarning)
            warnings.simplefilter("ignore", DegenerateDataWarning)
            scores = cross_val_score(settled(name), X, y, cv=cv, error_score="raise")
        assert scores.min() > 0.9


@EVERY
def test_searches_see_rows_without_a_label(name):
    """As cross-validation does: they train, and are not scored."""
    y, _ = partly_labeled("NaN", 60)
    grid = {"estimator__prior_rows" if name == "pairwise" else "random_state": [0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguousDataWarning)
        warnings.simplefilter("ignore", DegenerateDataWarning)
        search = GridSearchCV(settled(name), grid, cv=KFold(2), error_score="raise")
        search.fit(rows_for(name, np.arange(60) % 3), y)
    assert search.best_score_ > 0.9


def test_a_network_needs_no_label():
    """None for every row is y=None; NaN for every row is refused."""
    X = rows_for("network", np.arange(N) % 3)
    model = settled("network").fit(X, [None] * N)
    assert not len(model.classes_)
    np.testing.assert_array_equal(model.transform(X), settled("network").fit(X).transform(X))
    with pytest.raises(InvalidInputError, match="NaN alone: pass y=None"):
        settled("network").fit(X, np.full(N, np.nan))


@EVERY
def test_text_is_never_a_marker(name):
    """ "-1" in words is a class like any other; the number among words is not."""
    words = np.array(["-1", "a", "b"])
    model, messages = fitted(name, words[np.arange(N) % 3])
    assert model.classes_.tolist() == ["-1", "a", "b"]
    assert not messages
    y = ["a" if code else "b" for code in np.arange(N) % 3]
    y[0] = -1
    model, messages = fitted(name, y)
    assert model.classes_.tolist() == ["a", "b"]
    assert len(said(messages)) == 1


@EVERY
def test_booleans(name):
    """They are two classes."""
    model, messages = fitted(name, np.arange(N) % 3 == 0)
    assert model.classes_.tolist() == [False, True]
    assert not messages


@EVERY
def test_one_label_that_happens_to_be_minus_one(name):
    """Alone it is the only class."""
    model, messages = fitted(name, np.full(N, -1))
    assert model.classes_.tolist() == [-1]
    assert not said(messages)


@EVERY
def test_one_class_is_told(name):
    """By its name, with what follows from it; an imputer has no classes to tell of."""
    model, messages = fitted(name, np.full(N, "sound"))
    assert (model.predict(rows_for(name, [0, 1, 2])) == "sound").all()
    assert all("only the class 'sound'" in message for message in messages)
    assert "every row will be predicted" in messages[0]
    assert not fitted(name, np.arange(N) % 3)[1]


@pytest.mark.filterwarnings("error")
def test_an_imputer_has_one_class():
    """Which is meant, and needs no warning."""
    X = rows_for("", np.arange(N) % 3)
    np.testing.assert_array_equal(MixtureImputer(1, random_state=0).fit_transform(X), X)


def test_the_labeled_rows_alone():
    """What is left out for want of a label leaves the model of the others."""
    y = np.arange(N) % 3
    few = y.astype(float)
    few[::5] = np.nan
    for name in ("boosted", "sparse", "pairwise"):
        with pytest.warns(DegenerateDataWarning, match="6 unlabeled row"):
            model = settled(name).fit(rows_for(name, y), few)
        kept = few == few
        other = settled(name).fit(rows_for(name, y)[kept], y[kept])
        X = rows_for(name, y)
        np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("name", ["mixture", "boosted"])
def test_labels_of_a_fitted_model(name):
    """-1 conditions on a class that the model knows, and on nothing where it knows none."""
    codes = np.arange(N) % 2
    X = rows_for(name, codes)
    holes = X[:4].copy()
    holes[:, 1] = np.nan
    binary = settled(name).fit(X, np.where(codes, 1, -1))
    known, unknown = (binary.impute(holes, y=labels) for labels in ([-1] * 4, [None] * 4))
    assert np.abs(known - unknown)[:, 1].max() > 1e-6
    np.testing.assert_array_equal(binary.impute(holes), unknown)
    assert binary.log_margin(X, np.where(codes, 1, -1)).min() > 0
    _, labels = binary.sample(5, y=-1, random_state=0)
    assert labels.tolist() == [-1] * 5
    plain = settled(name).fit(X, codes)
    np.testing.assert_array_equal(plain.impute(holes, y=[-1] * 4), plain.impute(holes))
    for wanted in (-1, None, np.nan):
        if wanted is not None:  # None lets the prior draw
            with pytest.raises(InvalidInputError, match="labels"):
                plain.sample(5, y=wanted)
        with pytest.raises(InvalidInputError, match="a label for every row"):
            plain.log_margin(X, np.full(N, wanted))


def test_a_stream_says_what_its_classes_are():
    """-1 is a class if it is among `classes`, whatever labels a part happens to hold."""
    codes = np.arange(N) % 3
    X = rows_for("mixture", codes)
    three = settled("mixture").partial_fit(X, codes - 1, classes=[-1, 0, 1])
    assert three.classes_.tolist() == [-1, 0, 1]
    assert (three.partial_fit(X, codes - 1).predict(X) == codes - 1).mean() > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmbiguousDataWarning)
        two = settled("mixture").partial_fit(X, codes - 1, classes=[0, 1])
        np.testing.assert_allclose(two.class_count_.sum(), N)
        two.partial_fit(X[:5], [-1, 0, 0, -1, -1])
    assert two.classes_.tolist() == [0, 1]
    with pytest.raises(InvalidInputError, match="unlabeled marker -1"):
        settled("mixture", unlabeled=-1).partial_fit(X, codes - 1, classes=[-1, 0, 1])


@pytest.mark.parametrize("kind", ["boolean", "Int64"])
@pytest.mark.parametrize("hole", [False, True])
def test_classes_keep_their_type_beside_holes(kind, hole):
    """Data frames have types of whole numbers and booleans that know missing entries."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    y = pd.Series(rng.permutation([0, 1] * 10), dtype=kind)
    X = np.column_stack([y.to_numpy(dtype=float) * 4, np.zeros(20)]) + rng.normal(size=(20, 2))
    forms = [y.mask(np.arange(20) < 4) if hole else y]
    if hole:
        pl = pytest.importorskip("polars")
        forms += [forms[0].array, pl.Series([None if v is pd.NA else v for v in forms[0]])]
    for labels in forms:
        model = clone(CLASSIFIERS["mixture"]).fit(X, labels)
        assert model.classes_.dtype == (bool if kind == "boolean" else np.int64)
        assert model.predict(X).dtype == model.classes_.dtype
        assert model.score(X, labels) > 0.8


@pytest.mark.parametrize("form", [np.asarray, list, lambda dates: dates - dates[0]])
def test_dates_are_neither_labels_nor_targets(form):
    pd = pytest.importorskip("pandas")
    y = form(pd.date_range("2026", periods=6))
    X = np.arange(12.0).reshape(6, 2)
    with pytest.raises(InvalidInputError, match="dates or times, which are no class labels"):
        MixtureClassifier(1).fit(X, y)
    for model in (MixtureRegressor(1), MixtureNetworkRegressor(1)):
        with pytest.raises(InvalidInputError, match=r"y must hold numbers.*(days since|Timestamp)"):
            model.fit(X, y)
