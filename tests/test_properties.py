"""Any table, any labels, any weights: an answer that makes sense, or an error of our own.

Every estimator, given whatever hypothesis can think of, refuses it in words of ours or
scikit-learn's, or gives finite probabilities that sum to one; the same ones with the same seed, and
after it was saved and loaded; within seconds. A quick draw, the same every time, runs in the tests;
`make fuzz` draws at random and at length.
"""

import os

import pytest

pytest.importorskip("hypothesis")

from attack import COLUMNS, CONTAINERS, LABELS, OBJECTS, SEQUENCES, WEIGHTS, Recipe, SequenceRecipe
from attack import attack as stands
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.densities import LowRank
from mixtura.solvers import EBW, EM, LBFGS, Adam, Boosted, LinkedEM

LONG = "MIXTURA_FUZZ" in os.environ
thorough = settings(
    max_examples=int(os.environ.get("MIXTURA_FUZZ", 4)),
    derandomize=not LONG,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
#: Settings that make fits short, and those of a newcomer with little time.
SHORT, IN_LITTLE_TIME = {"random_state": 0}, {"max_time": 0.2, "random_state": 0}
SHORT_EM, SHORT_LBFGS = ({"solver": solver, **SHORT} for solver in (EM(3), LBFGS(3)))
SHORT_LINKED = {"solver": LinkedEM(3), "init": EM(3, 0.01), **SHORT}
SHORT_CHAIN = {"init": EM(3), "solver": LBFGS(3), **SHORT}
SINGLE = {"n_components": 1, **SHORT_LBFGS}
#: First choices are taken: nothing is held back to compare or to calibrate.
TAKEN = {"early_stopping": False, "calibrate": False, "missingness": "ignore"}
TABLES = {
    "full em": lambda: MixtureClassifier(2, density="full", objective="likelihood", **SHORT_EM),
    "low rank": lambda: MixtureClassifier(density="low_rank", **SINGLE),
    "precision": lambda: MixtureClassifier(
        objective="conditional", density=LowRank(1, parameterization="precision"), **SINGLE
    ),
    "diag ebw": lambda: MixtureClassifier(
        2, density="diag", objective="conditional", solver=EBW(3), **SHORT
    ),
    "spherical adam": lambda: MixtureClassifier(
        1, density="spherical", objective="smooth_margin", solver=Adam(3), **SHORT
    ),
    "holes as signs": lambda: MixtureClassifier(
        density="diag", missingness="informative", **SINGLE
    ),
    "as they come": lambda: MixtureClassifier(density="diag", marginals="raw", **SINGLE),
    "mixture": lambda: MixtureClassifier(**IN_LITTLE_TIME),
    "density": lambda: MixtureDensity(**SHORT_EM),
    "thin density": lambda: MixtureDensity(2, density="low_rank", **SHORT_EM),
    "boosted": lambda: BoostedMixtureClassifier(density="diag", n_stages=2, **TAKEN, **SHORT_EM),
    "voters": lambda: BoostedMixtureClassifier(
        method="adaboost", density="diag", n_stages=2, **TAKEN, **SHORT_EM
    ),
    "boosted mixture": lambda: BoostedMixtureClassifier(**IN_LITTLE_TIME),
    "posterior network": lambda: MixtureNetworkClassifier(
        2, embedding="posterior", missingness="ignore", calibrate=False, **SHORT_LINKED
    ),
    "density network": lambda: MixtureNetworkClassifier(
        2,
        embedding="log_density",
        density="diag",
        calibrate=False,
        **SHORT_LINKED | {"solver": LinkedEM(3, end_to_end=False)},
    ),
    "network": lambda: MixtureNetworkClassifier(**IN_LITTLE_TIME),
    "posterior regressor": lambda: MixtureNetworkRegressor(
        2, embedding="posterior", **SHORT_LINKED
    ),
    "regressor": lambda: MixtureNetworkRegressor(**IN_LITTLE_TIME),
    "sparse kernels": lambda: SparseMixtureClassifier(2, max_iter=3, **SHORT),
    "sparse features": lambda: SparseMixtureClassifier(
        1, form="primal", features="linear", max_iter=3, **SHORT
    ),
    "sparse": lambda: SparseMixtureClassifier(**IN_LITTLE_TIME),
    "pairs": lambda: PairwiseClassifier(
        MixtureClassifier(1, density="diag", objective="likelihood", **SHORT_EM)
    ),
    "fisher": lambda: FisherScores(MixtureDensity(2, density="diag", **SHORT_EM)),
}
CHAINS = {
    "hidden": lambda: SequenceMixtureClassifier(2, method="ml", **SHORT_CHAIN),
    "boosted": lambda: SequenceMixtureClassifier(2, method=Boosted(n_stages=2), **SHORT_CHAIN),
    "pairs": lambda: SequenceMixtureClassifier(
        1, method="ml", multiclass="pairwise", **SHORT_CHAIN
    ),
    "left to right": lambda: SequenceMixtureClassifier(
        2, method="conditional", chain="left_to_right", **SHORT_CHAIN
    ),
    "sequences": lambda: SequenceMixtureClassifier(**IN_LITTLE_TIME),
    "fisher": lambda: FisherScores(SequenceMixtureClassifier(2, method="ml", **SHORT_CHAIN)),
}
#: What the clock stops is not repeated to the bit.
BY_THE_CLOCK = {"mixture", "boosted mixture", "network", "regressor", "sparse", "sequences"}
#: Pairs of classes are as many as they are: no more of them than a minute allows.
FEW_CLASSES = {"two", "three", "one", "text", "signs", "some unlabeled"}


def kinds(table, plain):
    """Mostly something plain, otherwise anything of a table."""
    return st.sampled_from(plain) | st.sampled_from(sorted(table))


SIZES = st.sampled_from([0, 1, 2, 3, 7, 20, 60])
NAMES = kinds(COLUMNS, ["normal", "holes", "ranks"]) | st.sampled_from(sorted(OBJECTS))
ANY = st.builds(
    Recipe,
    n_rows=SIZES,
    columns=st.lists(NAMES, max_size=4).map(tuple),
    container=kinds(CONTAINERS, ["array"]),
    labels=kinds(LABELS, ["two", "three"]),
    weights=kinds(WEIGHTS, ["none"]),
    duplicated=st.booleans(),
    seed=st.integers(0, 99),
)
WIDE = st.builds(
    Recipe, repeat=st.just(500), columns=st.just(("normal", "holes")), seed=st.integers(0, 99)
)
PAIRS = st.builds(Recipe, n_rows=st.just(400), labels=st.just("pairs"), seed=st.integers(0, 99))
TALL = st.builds(Recipe, n_rows=st.just(3000), columns=st.just(("normal", "text")))
MANY = st.builds(
    Recipe,
    n_rows=st.just(3000),
    columns=st.just(("identifiers", "normal")),
    container=st.sampled_from(["frame", "objects"]),
)
CHAIN = st.builds(
    SequenceRecipe,
    n_rows=st.sampled_from([0, 1, 2, 3, 10, 30]),
    kind=kinds(SEQUENCES, ["unequal", "holes"]),
    labels=kinds(LABELS, ["two", "three"]),
    weights=kinds(WEIGHTS, ["none"]),
    seed=st.integers(0, 99),
)


#: What broke an estimator once.
FOUND = [
    ("diag ebw", Recipe(60, ("holes", "heavy", "constant"), seed=31)),  # another bit when loaded
    ("density", Recipe(7, ("empty", "largest"), seed=88)),  # a range beyond the largest number
    ("density", Recipe(3, ("largest", "ranks"), weights="huge", seed=72)),
    ("full em", Recipe(columns=("tiny", "huge"), weights="uneven")),
    ("full em", Recipe(columns=("denormal", "normal"), weights="tiny")),  # a scale of zero
    ("density", Recipe(weights="text")),  # NumPy's message
    ("sparse kernels", Recipe(columns=("tiny", "huge"), weights="uneven")),  # LinAlgError
    ("mixture", Recipe(400, labels="pairs")),  # twelve seconds
    ("boosted mixture", Recipe(repeat=500, columns=("normal", "holes"))),  # over a minute
]


@pytest.mark.parametrize(("name", "recipe"), FOUND, ids=str)
def test_what_was_found(name, recipe, tmp_path):
    """Once is enough."""
    stands(TABLES[name], recipe, tmp_path / "model", name not in BY_THE_CLOCK)


@pytest.mark.parametrize("name", TABLES)
@thorough
@given(recipe=ANY)
def test_tables(name, recipe, tmp_path_factory):
    """Whatever is in them."""
    assume(name != "pairs" or recipe.labels in FEW_CLASSES)
    stands(TABLES[name], recipe, tmp_path_factory.getbasetemp() / name, name not in BY_THE_CLOCK)


@pytest.mark.parametrize("name", CHAINS)
@thorough
@given(recipe=CHAIN)
def test_sequences(name, recipe, tmp_path_factory):
    """Whatever their length."""
    assume(name != "pairs" or recipe.labels in FEW_CLASSES)
    stands(CHAINS[name], recipe, tmp_path_factory.getbasetemp() / name, name not in BY_THE_CLOCK)


@pytest.mark.skipif(not LONG, reason="make fuzz runs it: some fits take a second or more")
@pytest.mark.parametrize("name", sorted(TABLES.keys() - {"pairs"}))
@settings(thorough, max_examples=10)
@given(recipe=WIDE | PAIRS | TALL | MANY)
def test_shapes(name, recipe, tmp_path_factory):
    """20 rows of 1,000 columns, 200 classes of two rows, 3,000 rows, 3,000 categories."""
    stands(TABLES[name], recipe, tmp_path_factory.getbasetemp() / name, name not in BY_THE_CLOCK)
