"""scikit-learn's checks over the cross of structures, objectives and solvers, not defaults alone.

In the tests every combination takes a few of the checks, so that each check is taken by two
combinations or more; `make fuzz` takes all of them everywhere.
"""

import os
from contextlib import suppress
from itertools import product
from unittest import SkipTest

import pytest
from gaussians import GAUSSIANS
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    estimator_checks_generator,
)

from mixtura import MixtureClassifier
from mixtura.exceptions import UnsupportedError
from mixtura.solvers import EM, SOLVERS

LONG = "MIXTURA_FUZZ" in os.environ
OBJECTIVES = ("likelihood", "conditional", "margin", "smooth_margin")
#: One check in so many is taken by each combination.
APART = 1 if LONG else 24
#: Weights as repetitions have a test of their own.
ELSEWHERE = "check_sample_weight_equivalence"


def has_an_algorithm(density, objective, solver):
    """EM knows the likelihood alone; EBW needs closed forms."""
    closed_form = GAUSSIANS[density].closed_form
    return (solver != "em" or objective == "likelihood") and (closed_form or solver != "ebw")


CROSS = [each for each in product(GAUSSIANS, OBJECTIVES, SOLVERS) if has_an_algorithm(*each)]


def make(density, objective, solver, n_components=1):
    """A classifier whose fits are short."""
    return MixtureClassifier(
        n_components,
        density=GAUSSIANS[density],
        objective=objective,
        solver=SOLVERS[solver](3),
        init=EM(5, 0.01),
        calibrate=False,
    )


def declared(density, objective, solver):
    """Why a row of weight two may differ from the row twice; None where it may not."""
    if solver == "adam":
        return (
            "minibatches of repeated rows are others, so weights are repetitions in expectation "
            "alone, and gradients are divided by their size, so that even rounding moves a model"
        )
    if density == "precision":
        return "a start has equal eigenvalues where rows are few: rounding chooses the directions"
    return None


def name_of(check):
    """The name of a check, its options left out."""
    return getattr(check, "func", check).__name__


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", range(len(CROSS)), ids=lambda place: f"{CROSS[place]}")
def test_checks(place):
    """One check in `APART`, each combination beginning with another."""
    checks = [
        (estimator, check)
        for estimator, check in estimator_checks_generator(make(*CROSS[place]))
        if not name_of(check).startswith(ELSEWHERE)
    ]
    for estimator, check in checks[place % APART :: APART]:
        with suppress(SkipTest):
            check(estimator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "setting",
    [setting for setting in CROSS if declared(*setting) is None],
    ids=lambda setting: f"{setting}",
)
def test_weights_are_repetitions(setting):
    """A row of weight two is the row twice, also where k-means begins and a class has one row."""
    check_sample_weight_equivalence_on_dense_data("MixtureClassifier", make(*setting, 2))


def test_what_has_no_algorithm_is_refused():
    """Whatever is not in the cross says so."""
    left_out = set(product(GAUSSIANS, OBJECTIVES, SOLVERS)) - set(CROSS)
    for setting in left_out:
        with pytest.raises(UnsupportedError, match="solver="):
            make(*setting).fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
