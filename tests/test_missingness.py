"""Holes that mean something, and holes that do not."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from frames import QUICK, make_frame
from scipy.special import log_softmax
from scipy.stats import entropy
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
)
from mixtura.data.batch import Batch
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.densities import HolePattern
from mixtura.densities.product import hole_patterns
from mixtura.engines import engine_of
from mixtura.exceptions import AmbiguousDataWarning
from mixtura.models.stack import Assignment
from mixtura.objectives import Conditional
from mixtura.selection.design import lacks_by_design
from mixtura.selection.held_out import Losses
from mixtura.solvers import EBW, EM, LBFGS, LinkedEM
from mixtura.training.evidence import hole_evidence

pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def make_telling(n=160, seed=0):
    """Noise, of which each class lacks other columns."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    table = pd.DataFrame(
        {"a": rng.normal(size=n), "b": rng.choice(list("xyz"), n).astype(object),
         "c": rng.normal(size=n)}
    )  # fmt: skip
    often = rng.random((n, 3)) < 0.9
    telling = np.column_stack([labels == 1, labels == 0, rng.random(n) < 0.2])
    return table.mask(telling & often), labels


TELLING, SIDES = make_telling()
LATER, LATER_SIDES = make_telling(seed=1)


@pytest.mark.parametrize(
    "estimator",
    [
        MixtureClassifier(1, density="diag", objective="likelihood"),
        BoostedMixtureClassifier(n_stages=1, calibrate=False, early_stopping=False, solver=EM(10)),
    ],
    ids=["likelihood", "boosted"],
)
def test_holes_that_tell_are_found(estimator):
    """Where only the holes tell the class, "auto" sees it; without them there is nothing."""
    scores = {}
    for missingness in ("ignore", "informative", "auto"):
        made = clone(estimator).set_params(missingness=missingness, random_state=0)
        scores[missingness] = made.fit(TELLING, SIDES).score(LATER, LATER_SIDES)
    assert scores["ignore"] < 0.65
    assert scores["informative"] > 0.9
    assert made.missingness_ == "informative"
    assert scores["auto"] == scores["informative"]


def discriminative(**settings):
    known = {"density": "diag", "tradeoff": 0.5, "solver": LBFGS(8), "calibrate": False}
    return MixtureClassifier(1, random_state=0, **known | settings)


@pytest.mark.parametrize("objective", ["conditional", "margin"])
def test_discriminative_training_finds_holes_that_tell(objective):
    """Features do not learn it, so that a model of the holes is clearly better."""
    made = discriminative(objective=objective).fit(TELLING, SIDES)
    assert made.missingness_ == "informative"
    assert made.score(LATER, LATER_SIDES) > 0.9


def test_not_all_models_of_an_average_trust_holes_that_tell():
    """Rows to come may lack other entries: where "auto" takes holes for signs, others do not."""
    X, labels = two_classes(80, 0)
    holes = lose(X, np.where(labels[:, None] == 0, [0.8, 0.8, 0, 0], [0, 0, 0.8, 0.8]), 1)
    made = MixtureClassifier(1, solver=LBFGS(5), random_state=0)
    with pytest.warns(AmbiguousDataWarning, match="for the same reasons"):
        made.fit(holes, labels)
    assert made.missingness_ == "informative"
    others = [member.model.density for member in made.model_.blend.members]
    assert others
    assert not any(getattr(density, "informative", False) for density in others)


def by_design(n, seed):
    """Two overlapping classes of six columns; most rows of the second skip two of them."""
    labels = np.arange(n) % 2
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)) + 0.8 * labels[:, None]
    X[np.ix_((labels == 1) & (rng.random(n) < 0.9), [1, 4])] = np.nan
    return X, labels


def test_all_models_of_an_average_trust_holes_that_come_by_design():
    """And none is weighed by what it does not say; there is nothing to decide."""
    X, labels = by_design(120, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmbiguousDataWarning)
        made = MixtureClassifier(1, solver=LBFGS(5), random_state=0).fit(X, labels)
    assert made.missingness_ == "informative"
    assert made.marginals_ == ("linear", "power", "ranks", "indicators")
    trusts = [
        getattr(each.model.density, "informative", False) for each in made.model_.blend.members
    ]
    assert trusts == [True, True, False]
    *others, indicators = made.model_.blend.weights
    assert indicators < min(others)
    later, sides = by_design(400, 1)
    trees = HistGradientBoostingClassifier(random_state=0).fit(X, labels)
    assert log_loss(sides, made.predict_proba(later)) < log_loss(sides, trees.predict_proba(later))
    # Where rows lack other entries instead, that costs something, but far less than it costs trees.
    whole, sides = two_classes(400, 2)
    whole = lose(np.column_stack([whole, whole[:, :2]]), 0.3, 3)
    with pytest.warns(AmbiguousDataWarning, match="30% of these rows|% of these rows lack column"):
        found = made.predict_proba(whole)
    assert log_loss(sides, found) < 0.8
    assert log_loss(sides, trees.predict_proba(whole)) > 1.6


def test_rows_that_lack_other_entries_than_in_training_are_told():
    """Where holes are signs, of rows that are enough to see it."""
    X, labels = by_design(120, 0)
    made = MixtureClassifier(1, solver=LBFGS(5), random_state=0).fit(X, labels)
    later, _ = by_design(400, 1)
    complete = np.nan_to_num(later)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.predict_proba(later)
        made.predict_proba(complete[:20])
    told = f"0% of these rows lack column 1, in training {np.isnan(X[:, 1]).mean():.0%}"
    with pytest.warns(AmbiguousDataWarning, match=told):
        made.predict_proba(complete)
    blind = MixtureClassifier(1, solver=LBFGS(5), missingness="ignore", random_state=0)
    blind.fit(X, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blind.predict_proba(complete)


def rows_with_holes(absent, y, weight=None):
    x = np.where(absent, np.nan, np.random.default_rng(9).normal(size=absent.shape))
    scaling = Scaling(np.zeros(absent.shape[1]), np.ones(absent.shape[1]))
    return engine_of(Matrix(x), y, np.ones(len(y)) if weight is None else weight, scaling, "cpu")


@pytest.mark.parametrize("share", [0.2, 0.6, 0.8])
def test_holes_at_random_within_classes_are_not_by_design(share, rng):
    y = np.arange(300) % 3
    columns = np.array(
        [[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]
    )
    absent = columns[y].astype(bool) & (rng.random((300, 8)) < share)
    assert not lacks_by_design(rows_with_holes(absent, y))


@pytest.mark.parametrize("n_columns", [1, 10, 200])
def test_one_column_that_a_class_loses_at_random_is_not_by_design(n_columns, rng):
    """However many others lack nothing."""
    y, absent = np.arange(300) % 2, np.zeros((300, n_columns), bool)
    absent[:, 0] = (y == 1) & (rng.random(300) < 0.5)
    assert not lacks_by_design(rows_with_holes(absent, y))


def test_how_surprising_patterns_of_holes_are_against_a_loop(rng, monkeypatch):
    """Each row by the others of its class; rows of weight two are two rows."""
    y, weight = np.arange(40) % 2, 1.0 + np.arange(40) % 3
    absent = np.zeros((40, 5), bool)
    absent[np.ix_((y == 1) & (rng.random(40) < 0.8), [0, 2])] = True
    absent[:6, 3] = True
    share = weight @ absent / weight.sum()
    losses = []
    for i in range(40):
        others = (np.arange(40) != i) & (y == y[i])
        count = weight[others].sum()
        chance = (weight[others] @ absent[others] + 2 * share) / (count + 2)
        alike = weight[others & (absent == absent[i]).all(1)].sum()
        imagined = np.prod(np.where(absent[i], chance, 1 - chance))
        losses.append(-np.log((alike + imagined) / (count + 1)))
    mean = share[[0, 2, 3]].mean()  # the others lack nothing
    at_random = 3 * entropy([mean, 1 - mean])
    ratio = weight @ losses / weight.sum() / at_random
    engine = rows_with_holes(absent, y, weight)
    monkeypatch.setattr("mixtura.selection.design._SURPRISE", ratio + 1e-9)
    assert lacks_by_design(engine)
    monkeypatch.setattr("mixtura.selection.design._SURPRISE", ratio - 1e-9)
    assert not lacks_by_design(engine)


def two_classes(n, seed):
    """Two overlapping classes in four columns."""
    labels = np.arange(n) % 2
    return np.random.default_rng(seed).normal(size=(n, 4)) + 0.8 * labels[:, None], labels


def lose(X, rate, seed):
    return np.where(np.random.default_rng(seed).random(X.shape) < rate, np.nan, X)


@pytest.mark.parametrize(
    ("solver", "objective", "tradeoff"),
    [(LBFGS(20), "conditional", 0.5), (EBW(20), "conditional", 0.5), (LBFGS(20), "margin", 0.9)],
    ids=repr,
)
def test_features_do_not_learn_what_holes_tell(solver, objective, tradeoff):
    """Training rows lack columns by class, later ones at random: as if trained on whole rows."""
    X, labels = two_classes(400, 0)
    holes = lose(X, np.where(labels[:, None] == 0, [0.8, 0.8, 0, 0], [0, 0, 0.8, 0.8]), 1)
    later, truth = two_classes(2000, 2)
    later = lose(later, 0.3, 3)
    settings = {"solver": solver, "objective": objective, "tradeoff": tradeoff}
    made = discriminative(missingness="ignore", **settings)
    whole, told = (clone(made).fit(rows, labels).score(later, truth) for rows in (X, holes))
    assert told > whole - 0.02


def test_evidence_of_holes_against_a_loop():
    """Counts per class, with a power that suits rows that were left out of them."""
    rng = np.random.default_rng(0)
    y, absent = np.arange(40) % 2, rng.random((40, 3)) < 0.3
    absent[:, 0] |= (y == 1) & (rng.random(40) < 0.5)
    x = np.where(absent, np.nan, rng.normal(size=(40, 3)))
    scaling = Scaling(np.zeros(3), np.ones(3))
    engine = engine_of(Matrix(x), y, np.ones(40), scaling, "cpu")
    kinds = Assignment(torch.ones(1, 2, dtype=torch.bool), torch.arange(2))
    found = hole_evidence(engine, kinds, 2)

    def log_prob(rows, labels, pattern, side):
        mine = rows[labels == side]
        rate = (absent.sum(0) + 0.5) / 41
        chance = (mine.sum(0) + 2 * rate) / (len(mine) + 2)
        return np.log(np.where(pattern, chance, 1 - chance)).sum()

    def left_out(i, side):
        keep = (np.arange(40) != i) | (y != side)
        return log_prob(absent[keep], y[keep], absent[i], side)

    left = np.array([[left_out(i, side) for side in (0, 1)] for i in range(40)])
    powers = np.linspace(0, 1, 21)
    gains = [(log_softmax(power * left, axis=1)[np.arange(40), y]).sum() for power in powers]
    power = powers[np.argmax(gains)]
    assert power > 0
    told = found.log_prob(hole_patterns(engine.all_rows()))
    whole = [[power * log_prob(absent, y, row, side) for side in (0, 1)] for row in absent]
    np.testing.assert_allclose(told.numpy(), whole, rtol=1e-9)


def test_weights_are_repetitions_to_evidence_of_holes():
    """However often rows are given, and in which order, they tell the same."""
    rng = np.random.default_rng(0)
    X, y = two_classes(40, 0)
    X, count = lose(X, np.where(y[:, None] == 0, 0.6, 0.2), 1), rng.integers(1, 4, 40)
    again = rng.permutation(np.arange(40).repeat(count))
    kinds = Assignment(torch.ones(1, 2, dtype=torch.bool), torch.arange(2))
    scaling = Scaling(np.zeros(4), np.ones(4))
    tables = (X, y, count * 1.0), (X[again], y[again], np.ones(len(again)))
    weighted, repeated = (
        hole_evidence(engine_of(Matrix(x), label, weight, scaling, "cpu"), kinds, 2)
        for x, label, weight in tables
    )
    assert weighted.log_odds.abs().max() > 0.1
    torch.testing.assert_close(weighted.log_odds, repeated.log_odds)
    torch.testing.assert_close(weighted.base, repeated.base)


def test_a_density_finds_holes_that_come_together():
    """Groups that differ in what they lack are found, and make held-back rows likelier."""
    made = MixtureDensity(2, density="diag", random_state=0).fit(TELLING)
    assert made.missingness_ == "informative"
    agreement = np.mean(made.predict(LATER) == LATER_SIDES)
    assert max(agreement, 1.0 - agreement) > 0.9


CHOOSING = {
    "classifier": MixtureClassifier(1, density="diag", objective="likelihood", random_state=0),
    "one component": MixtureDensity(1, density="diag", random_state=0),
    "two components": MixtureDensity(2, density="diag", random_state=0),
    "boosted": BoostedMixtureClassifier(
        n_stages=1, calibrate=False, early_stopping=False, solver=EM(10), random_state=0
    ),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_without_holes_nothing_is_told(name):
    """Complete training rows leave it off."""
    table, labels = make_frame(holes=0.0)
    made = clone(CHOOSING[name]).fit(table, labels)
    assert made.missingness_ == "ignore"
    assert not made.mixture_.density.informative


@pytest.mark.parametrize("name", ["classifier", "two components"])
def test_holes_at_random_are_ignored(name):
    """Where holes tell nothing, "auto" leaves them alone but for a rare mistake."""
    chosen = []
    for seed in range(100, 104):
        table, labels = make_frame(100, seed=seed, holes=0.2)
        chosen.append(clone(CHOOSING[name]).fit(table, labels).missingness_)
    assert chosen.count("informative") <= 1


def make_blocks(n, seed):
    """Eight classes, two of which lack a block of columns: one always, one by halves."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(8, 20))
    labels = np.arange(n) % 8
    X = centers[labels] + rng.normal(size=(n, 20))
    X[np.ix_(labels == 0, range(10))] = np.nan
    half = (labels == 1)[:, None] & (rng.random((n, 10)) < 0.5)
    X[:, 5:15][half] = np.nan
    return X, labels


@pytest.mark.parametrize(
    "estimator",
    [
        MixtureClassifier(1, density="diag", objective="likelihood", random_state=0),
        MixtureNetworkClassifier(
            1,
            embedding="log_density",
            density="diag",
            solver=LinkedEM(20, end_to_end=False),
            init=EM(20, 0.01),
            calibrate=False,
            missingness="informative",
            random_state=0,
        ),
    ],
    ids=["mixture", "network"],
)
def test_further_holes_at_random_do_no_harm(estimator):
    """A class with holes of its own does not attract all other rows that have some."""
    X, labels = make_blocks(400, 1)
    later, truth = make_blocks(800, 2)
    plain = clone(estimator).set_params(missingness="ignore").fit(X, labels)
    made = clone(estimator).fit(X, labels)
    assert made.missingness_ == "informative"
    for share in (0.0, 0.3, 0.6):
        rng = np.random.default_rng(3)
        met = np.where(rng.random(later.shape) < share, np.nan, later)
        assert made.score(met, truth) > plain.score(met, truth) + 0.02


def test_an_empty_row_is_no_sign_of_a_class_with_holes():
    """It is unlike all training rows, and gets about the shares of the classes."""
    settings = {"density": "diag", "objective": "likelihood", "missingness": "informative"}
    made = MixtureClassifier(1, **settings).fit(*make_blocks(400, 1))
    empty = made.predict_proba(np.full((1, 20), np.nan))[0]
    np.testing.assert_allclose(empty, 1 / 8, atol=0.1)


@pytest.mark.parametrize("telling", [True, False])
def test_a_regression_finds_holes_that_tell(telling):
    """The target is high where the first two columns are missing, or holes come at random."""
    rng = np.random.default_rng(0)
    X, high = rng.normal(size=(160, 4)), rng.random(160) < 0.5
    lacks = high if telling else rng.random(160) < 0.5
    X[np.ix_(lacks, [0, 1])] = X[~lacks, 2] = np.nan
    y = 2.0 * high + 0.3 * rng.normal(size=160)
    made = MixtureNetworkRegressor(
        2,
        embedding="posterior",
        density="diag",
        solver=LinkedEM(20, end_to_end=False),
        init=EM(20, 0.01),
        random_state=0,
    ).fit(X, y)
    assert made.missingness_ == ("informative" if telling else "ignore")


def test_wine_with_holes_at_random(wine):
    """Nothing is read into them, and an empty row gets the shares of the classes."""
    X, y = wine
    shares, chosen = np.bincount(y) / len(y), []
    for seed in range(3):
        met = np.where(np.random.default_rng(seed).random(X.shape) < 0.2, np.nan, X)
        made = MixtureClassifier(1, density="diag", objective="likelihood").fit(met, y)
        chosen.append(made.missingness_)
        empty = made.predict_proba(np.full((1, X.shape[1]), np.nan))[0]
        np.testing.assert_allclose(empty, shares, atol=0.01)
    assert chosen == ["ignore"] * 3


def test_what_makes_a_gain_clear():
    """Rows as they are gain by much and surely; those with further holes do not lose."""
    rng = np.random.default_rng(0)
    noise, punched, weight = rng.normal(size=200), np.arange(200) >= 100, np.ones(200)
    noise -= np.where(punched, noise[100:].mean(), noise[:100].mean())
    losses = rng.normal(size=200)

    def clear_gain(gain):
        better, worse = (Losses(weight, punched, values) for values in (losses - gain, losses))
        return better.clearly_beats(worse)

    cases = {0.3: True, 0.15: False}  # more, and less, than two standard errors of 0.1
    for mean, clear in cases.items():
        assert clear_gain(noise + mean) == clear
    assert not clear_gain(0.01 * noise + 0.01)  # sure, but hardly anything
    assert not clear_gain(noise + np.where(punched, -0.01, 0.3))
    assert not clear_gain(np.where(np.arange(200) == 0, np.inf, 0.3))


def test_numbers_alone_may_have_holes_that_tell():
    """The same for a plain matrix."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    labels = np.arange(100) % 2
    X[np.arange(100), labels] = np.nan
    X[:6, 0] = 0.5  # else a column's presence would be certain
    made = MixtureClassifier(1, density="diag", objective="likelihood").fit(X, labels)
    assert made.missingness_ == "informative"
    assert made.score(X, labels) > 0.9
    assert made.sample(5, random_state=0)[0].dtype == np.float64


def test_holes_that_training_punches_are_not_learned():
    """Holes that training punches do not make absence likelier."""
    table, labels = make_frame(holes=0.0)
    settings = QUICK | {"missingness": "informative", "objective": Conditional(holes=0.5)}
    made = MixtureClassifier(1, solver=EBW(4), calibrate=False, random_state=0, **settings).fit(
        table, labels
    )
    holes = made.mixture_.density.parts[-1]
    assert isinstance(holes, HolePattern)
    assert holes.levels == (2,) * 4
    assert (holes.spread[:, 1::2] <= holes.floor + 1e-9).all()


def test_punching_keeps_what_rows_came_without(generator):
    """The copies lack what their rows lack, no more."""
    x = torch.zeros(50, 3).double()
    observed = torch.rand(50, 3, generator=generator) < 0.7
    batch = Batch(x, observed, torch.zeros(50).long(), torch.ones(50).double())
    before = generator.get_state()
    punched = batch.with_punched(0.5, generator)
    after = generator.get_state()
    assert batch.with_punched(0.5, generator.set_state(before)) is punched
    assert torch.equal(generator.get_state(), after)
    assert torch.equal(punched.lacks(), (~observed).repeat(2, 1))
    assert torch.equal(punched.observed[:50], observed)
    assert (punched.observed[50:] & ~observed).sum() == 0
    assert punched.observed[50:].sum() < observed.sum()
    assert torch.equal(punched.take(slice(50, 60)).lacks(), ~observed[:10])
    met = punched.for_prediction()
    assert torch.equal(met.lacks(), ~punched.observed)
    untold = replace(batch, absent=torch.full((50, 3), -1, dtype=torch.int8))
    assert (untold.with_punched(0.5, generator).for_prediction().lacks() == -1).all()
    again = punched.with_punched(0.5, generator)
    assert torch.equal(again.lacks(), (~observed).repeat(4, 1))
