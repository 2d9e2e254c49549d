"""Holes that mean something, and holes that do not."""

import numpy as np
import pytest
import torch
from frames import QUICK, make_frame
from sklearn.base import clone

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
)
from mixtura.data import Batch
from mixtura.densities import Categorical

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
        MixtureClassifier(1, covariance="diag", objective="likelihood"),
        BoostedMixtureClassifier(n_stages=1, calibrate=False, early_stopping=False, max_iter=10),
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


def test_discriminative_training_finds_holes_that_tell():
    """Margins bend densities until observed entries speak; said plainly, they need not."""
    made = MixtureClassifier(
        1, covariance="diag", tradeoff=0.5, max_iter=4, calibrate=False, random_state=0
    ).fit(TELLING, SIDES)
    assert made.missingness_ == "informative"
    assert made.score(LATER, LATER_SIDES) > 0.9


def test_a_density_finds_holes_that_come_together():
    """Groups that differ in what they lack are found, and make held-back rows likelier."""
    made = MixtureDensity(2, covariance="diag", random_state=0).fit(TELLING)
    assert made.missingness_ == "informative"
    agreement = np.mean(made.predict(LATER) == LATER_SIDES)
    assert max(agreement, 1.0 - agreement) > 0.9


CHOOSING = {
    "classifier": MixtureClassifier(1, covariance="diag", objective="likelihood", random_state=0),
    "one component": MixtureDensity(1, covariance="diag", random_state=0),
    "two components": MixtureDensity(2, covariance="diag", random_state=0),
    "boosted": BoostedMixtureClassifier(
        n_stages=1, calibrate=False, early_stopping=False, max_iter=10, random_state=0
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


def test_numbers_alone_may_have_holes_that_tell():
    """The same for a plain matrix."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    labels = np.arange(100) % 2
    X[np.arange(100), labels] = np.nan
    X[:6, 0] = 0.5  # else a column's presence would be certain
    made = MixtureClassifier(1, covariance="diag", objective="likelihood").fit(X, labels)
    assert made.missingness_ == "informative"
    assert made.score(X, labels) > 0.9
    assert made.sample(5, random_state=0)[0].dtype == np.float64


def test_punched_holes_are_no_signs():
    """Holes that training punches do not make absence likelier."""
    table, labels = make_frame(holes=0.0)
    settings = QUICK | {"missingness": "informative", "objective": "conditional", "max_iter": 4}
    made = MixtureClassifier(
        1, holes=0.5, solver="ebw", calibrate=False, random_state=0, **settings
    ).fit(table, labels)
    signs = made.mixture_.density.parts[-1]
    assert isinstance(signs, Categorical)
    assert signs.levels == (2,) * 4
    assert (signs.spread[:, 1::2] < 0.01).all()


def test_punching_keeps_what_rows_came_without(generator):
    """The copies lack what their rows lack, no more."""
    x = torch.zeros(50, 3).double()
    observed = torch.rand(50, 3, generator=generator) < 0.7
    batch = Batch(x, observed, torch.zeros(50).long(), torch.ones(50).double())
    punched = batch.with_punched(0.5, generator)
    assert torch.equal(punched.lacks(), (~observed).repeat(2, 1))
    assert torch.equal(punched.observed[:50], observed)
    assert (punched.observed[50:] & ~observed).sum() == 0
    assert punched.observed[50:].sum() < observed.sum()
    assert torch.equal(punched.take(slice(50, 60)).lacks(), ~observed[:10])
    again = punched.with_punched(0.5, generator)
    assert torch.equal(again.lacks(), (~observed).repeat(4, 1))
