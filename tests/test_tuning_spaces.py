"""The spaces that are searched: ours, and scikit-learn's searches over every parameter."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingRandomSearchCV,
    StratifiedShuffleSplit,
)

pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    SequenceDensity,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import Diagonal, Full, LowRank
from mixtura.exceptions import InvalidInputError
from mixtura.objectives import Margin
from mixtura.solvers import EBW, EM, LBFGS, Adam, LinkedEM
from mixtura.tuning import SPACES, classifier_space, tune
from mixtura.tuning.spaces import boosted_space, density_space, network_space, sparse_space

QUICK = {
    "solver": LBFGS(2),
    "init": EM(max_iter=2, tol=0.01),
    "prior_rows": 0.0,
    "calibrate": False,
}


def quick(**parameters):
    """A classifier that is fitted in a blink."""
    return MixtureClassifier(**{"n_components": 1, "density": Diagonal(), **QUICK, **parameters})


# -- spaces --------------------------------------------------------------------------------


GIVEN = {
    "n_components": 2,
    "density": "low_rank",
    "rank": 2,
    "floor": 1e-2,
    "objective": "margin",
    "tradeoff_odds": 3.0,
    "margin": 5.0,
    "learning_rate": 1e-3,
    "unlabeled_weight": 0.5,
}
PLAIN = set(GIVEN) - {"learning_rate", "unlabeled_weight"}


@pytest.mark.parametrize(
    ("parameters", "changes", "asked"),
    [
        ({}, {}, PLAIN),
        ({}, {"density": "diag"}, PLAIN - {"rank"}),
        ({}, {"objective": "conditional"}, PLAIN - {"margin"}),
        ({"solver": "adam"}, {}, PLAIN | {"learning_rate"}),
        ({"solver": Adam(averaging=0.9)}, {}, PLAIN | {"learning_rate"}),
        ({"solver": "em"}, {}, PLAIN - {"objective", "tradeoff_odds", "margin"}),
        ({"solver": EM()}, {}, PLAIN - {"objective", "tradeoff_odds", "margin"}),
        ({"density": LowRank(parameterization="precision")}, {}, PLAIN - {"density"}),
        ({"unlabeled": 0}, {}, PLAIN | {"unlabeled_weight"}),
    ],
)
def test_what_has_no_effect_is_not_asked(flowers, parameters, changes, asked):
    """Each parameter appears only where the fit would look at it."""
    trial = FixedTrial(GIVEN | changes)
    chosen = classifier_space(trial, MixtureClassifier(**parameters), *flowers)
    assert set(trial.params) == asked
    if "tradeoff_odds" in asked:
        assert chosen["tradeoff"] == 0.75
    MixtureClassifier(**parameters).set_params(**chosen)


def test_bounds_follow_the_data(flowers):
    """Rank below the features, two rows a component, Adam's step on many rows."""
    X, y = flowers
    trial = FixedTrial(GIVEN)
    classifier_space(trial, MixtureClassifier(), X[:57], y[:57])
    assert (trial.distributions["n_components"].high, trial.distributions["rank"].high) == (3, 3)
    many = FixedTrial(GIVEN)
    classifier_space(many, MixtureClassifier(), np.tile(X, (42, 1)), np.tile(y, 42))
    assert many.distributions["n_components"].high == 20
    assert "learning_rate" in many.params
    narrow = FixedTrial(GIVEN)
    chosen = density_space(narrow, MixtureDensity(), X[:, :1], None)
    assert set(narrow.params) == {"n_components", "floor"}
    assert chosen == {"n_components": 2, "density": Full(1e-2)}


def test_what_is_not_searched_of_a_part_is_kept(flowers):
    """The trial's numbers, in the objects that were given."""
    given = {"density": LowRank(init="eigen"), "solver": Adam(averaging=0.9)}
    chosen = classifier_space(FixedTrial(GIVEN), MixtureClassifier(**given), *flowers)
    assert chosen["density"] == LowRank(rank=2, floor=1e-2, init="eigen")
    assert chosen["solver"] == Adam(learning_rate=1e-3, averaging=0.9)
    assert given == {"density": LowRank(init="eigen"), "solver": Adam(averaging=0.9)}


@pytest.mark.parametrize(("end_to_end", "asked"), [(True, "tradeoff"), (False, "link")])
def test_networks_are_asked_for_penalties_and_what_moves_them(flowers, end_to_end, asked):
    """The share of the likelihood where gradients follow, the link where they do not."""
    given = {"embedding": "posterior", "n_components": 2, "l1": 1e-2, "l2": 1e-4}
    given |= {"prior_rows": 3.0, "floor": 0.02, "density": "diag", asked: 0.5}
    trial = FixedTrial(given)
    start = MixtureNetworkClassifier(solver=LinkedEM(max_iter=7, end_to_end=end_to_end))
    chosen = network_space(trial, start, *flowers)
    assert set(trial.params) == set(given)
    link = 0.0 if end_to_end else 0.5
    assert chosen["solver"] == LinkedEM(7, l1=1e-2, l2=1e-4, link=link, end_to_end=end_to_end)
    start.set_params(**chosen)


def test_boosted_mixtures_are_asked_what_a_stage_is(flowers):
    """And what is chosen can be fitted."""
    given = {"n_components": 2, "prior_rows": 3.0, "floor": 0.02, "density": "diag"}
    trial = FixedTrial(given)
    start = BoostedMixtureClassifier(n_stages=1, calibrate=False, random_state=0)
    chosen = boosted_space(trial, start, *flowers)
    assert chosen == {"n_components": 2, "prior_rows": 3.0, "density": Diagonal(0.02)}
    assert start.set_params(**chosen).fit(*flowers).score(*flowers) > 0.9


def test_sequences_are_searched_as_lists():
    """Of unequal lengths, which no matrix could hold."""
    rows = make_hmm_sequences(10, length=(5, 9), random_state=0)
    start = SequenceMixtureClassifier(method="ml", init=EM(2), calibrate=False)
    best, study = tune(start, rows.data, rows.target, n_trials=2, cv=2, random_state=0)
    asked = {"n_states", "density", "topology", "floor"}
    assert set(study.trials[-1].params) == asked
    assert best.predict(rows.data).shape == (20,)
    start = SequenceDensity(1, n_states=1, solver=EM(2), random_state=0)
    best, study = tune(start, rows.data, n_trials=2, cv=2, random_state=0)
    assert set(study.trials[-1].params) == {"n_components", *asked}
    assert best.predict(rows.data).shape == (20,)


@pytest.mark.parametrize(("kernel", "asked"), [("rbf", {"gamma"}), ("poly2", {"features"})])
def test_a_sparse_mixture_is_asked_what_its_kernel_takes(flowers, kernel, asked):
    """The width is a share of the features' number, and what is chosen can be fitted."""
    trial = FixedTrial({"n_components": 1, "kernel": kernel, "gamma": 0.8, "features": "linear"})
    start = SparseMixtureClassifier(kernel="sigmoid", random_state=0)
    chosen = sparse_space(trial, start, *flowers)
    assert set(trial.params) == {"n_components", "kernel"} | asked
    model = start.set_params(**chosen).fit(*flowers)
    assert model.score(*flowers) > 0.9
    if kernel == "rbf":
        assert model.kernel_params_ == {"gamma": 0.2}


def test_sparse_mixtures_are_searched(flowers):
    """The space is found by the type."""
    best, _ = tune(SparseMixtureClassifier(), *flowers, n_trials=2, cv=2, random_state=0)
    assert best.score(*flowers) > 0.8


def test_components_of_each_class(flowers):
    """A number a class, from a space of one's own."""
    X, y = flowers
    model = quick()
    best, study = tune(
        model,
        X,
        y,
        n_trials=4,
        cv=2,
        space=lambda trial: classifier_space(trial, model, X, y, per_class=True),
        random_state=0,
    )
    names = {f"n_components_{label}" for label in range(3)}
    assert names <= set(study.trials[1].params)
    assert "n_components" not in study.trials[1].params
    assert best.n_components == 1 or len(best.n_components) == 3


def test_a_dict_of_distributions(flowers):
    """Each kind of distribution reaches the parameter it names."""
    X, y = flowers
    space = {
        "density__floor": FloatDistribution(1e-3, 1e-1, log=True),
        "n_components": IntDistribution(1, 3),
        "objective": CategoricalDistribution(["margin", "conditional"]),
    }
    best, study = tune(quick(), X, y, n_trials=4, cv=2, space=space, random_state=0)
    assert set(study.trials[1].params) == set(space)
    for name, value in study.best_params.items():
        assert best.get_params()[name] == value


def test_spaces_are_found_by_base_class_and_can_be_added(flowers, monkeypatch):
    """A subclass has the space of its base; a foreign type needs one."""
    X, y = flowers

    class Special(MixtureClassifier):
        pass

    _, study = tune(
        Special(**quick().get_params(deep=False)), X, y, n_trials=2, cv=2, random_state=0
    )
    assert "tradeoff_odds" in study.trials[1].params
    foreign = LogisticRegression(max_iter=1000)
    with pytest.raises(InvalidInputError, match=r"LogisticRegression.*pass space="):
        tune(foreign, X, y, n_trials=2)
    space = {"C": FloatDistribution(0.1, 10.0, log=True)}
    assert tune(foreign, X, y, n_trials=2, cv=2, space=space).estimator.score(X, y) > 0.9
    monkeypatch.setitem(
        SPACES, LogisticRegression, lambda trial, *_: {"C": trial.suggest_float("C", 0.1, 10.0)}
    )
    assert tune(foreign, X, y, n_trials=2, cv=2).estimator.score(X, y) > 0.9


# -- scikit-learn's searches ---------------------------------------------------------------


SHARED = {
    "density": ["full", LowRank(rank=2)],
    "density__floor": [1e-3, 1e-2],
    "density__rank": [1, "auto"],
    "solver__max_iter": [2, 3],
    "solver__tol": [1e-3, 1e-2],
    "warm_start": [False, True],
    "device": ["cpu", "auto"],
    "random_state": [0, 1],
    "verbose": [0, 1],
    "categorical_features": [None, [3]],
    "unexpected": ["missing", "error"],
    "missingness": ["ignore", "informative"],
}
DENSITY = SHARED | {
    "n_components": [1, "auto"],
    "max_time": [None, 10.0],
    "solver": ["em", EM(2)],
    "solver__n_init": [1, 2],
    "standardize": [True, False],
}
CLASSIFIER = SHARED | {
    "n_components": [1, [1, 2, 1]],
    "density__parameterization": ["covariance", "precision"],
    "density__init": ["em", "eigen"],
    "objective": ["conditional", "likelihood"],
    "tradeoff": [0.0, 0.9],
    "objective__margin": [1.0, 10.0],
    "objective__smoothness": [1.0, 10.0],
    "unlabeled_weight": [0.2, 0.8],
    "solver": [EBW(2), Adam(2)],
    "solver__learning_rate": [1e-3, 1e-2],
    "solver__batch_size": ["auto", 10],
    "solver__schedule": ["constant", "linear"],
    "solver__averaging": [0.0, 0.9],
    "solver__early_stopping": [False, True],
    "solver__validation_fraction": [0.1, 0.2],
    "solver__patience": [1, 5],
    "class_prior": ["uniform", [0.2, 0.3, 0.5]],
    "class_weight": [None, "balanced"],
    "init": ["em", EM(2)],
    "init__max_iter": [2, 3],
    "init__tol": [1e-3, 1e-2],
    "init__n_init": [1, 2],
    "prior_rows": ["auto", 1.0],
    "calibrate": [True, False],
    "marginals": ["raw", "ranks"],
    "unlabeled": [-1, None],
    "objective__holes": [0.0, 0.3],
    "max_time": [None, 10.0],
}
STARTS = [
    (quick(), CLASSIFIER),
    (MixtureDensity(1, density=Full(1e-5), solver=EM(2)), DENSITY),
]
LOW_RANK, ADAM = {"density": LowRank()}, {"solver": Adam(2)}
#: What gives a parameter something to do.
NEEDED = {
    "objective__margin": {"objective": Margin()},
    "objective__smoothness": {"objective": Margin()},
    "objective__holes": {"objective": Margin()},
    "density__rank": LOW_RANK,
    "density__parameterization": LOW_RANK,
    "density__init": LOW_RANK,
    "init__n_init": {"n_components": 2},
    "solver__n_init": {"n_components": 2},
    "solver__learning_rate": ADAM,
    "solver__batch_size": ADAM,
    "solver__schedule": ADAM,
    "solver__averaging": ADAM,
    "solver__early_stopping": ADAM,
    "solver__validation_fraction": ADAM,
    "solver__patience": ADAM,
}
#: Half of the rows judge the models of the others.
OPTIONS = {
    "cv": StratifiedShuffleSplit(1, test_size=0.5, random_state=0),
    "error_score": "raise",
    "refit": False,
}


def searched(search, data, values):
    """All values have been tried, with finite scores."""
    search.fit(*data)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    for name, known in values.items():
        tried = search.cv_results_[f"param_{name}"].tolist()
        assert all(value in tried for value in known)


EVERY_PARAMETER = [
    pytest.param(start, name, values, id=f"{type(start).__name__}-{name}")
    for start, values in STARTS
    for name in dict.fromkeys([*start.get_params(), *(name for name in values if "__" in name)])
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "name", "values"), EVERY_PARAMETER)
def test_scikit_learn_searches_over_every_parameter(flowers, start, name, values):
    """Each of two values is fitted; a parameter without an entry above is a failure."""
    assert name in values, f"give two values of the new parameter {name}"
    model = clone(start).set_params(**NEEDED.get(name, {}))
    searched(GridSearchCV(model, {name: values[name]}, **OPTIONS), flowers, {name: values[name]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "values"), STARTS, ids=["classifier", "density"])
def test_scikit_learn_searches_by_halving(flowers, start, values):
    """Numbers of rows that grow, over plain and nested parameters at once."""
    names = ("n_components", "density__floor", "solver__max_iter")
    some = {name: values[name] for name in names}
    search = HalvingRandomSearchCV(
        start, some, factor=2, n_candidates=8, min_resources=30, random_state=0, **OPTIONS
    )
    searched(search, flowers, some)
