"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from mixtura import (
    BoostedMixtureClassifier,
    GaussianMixtureDensity,
    MixtureClassifier,
    SparseMixtureClassifier,
)

MINUS_ONE = "check_classifiers_classes"
#: Nothing is held back: copies of a row on both sides of a split are not a row of more weight.
BOOSTED = BoostedMixtureClassifier(
    covariance="diag", n_stages=2, max_iter=5, early_stopping=False, calibrate=False
)
CLASSIFIERS = [MixtureClassifier(), SparseMixtureClassifier(), BOOSTED]


def expected_failures(estimator):
    """The one check that uses our marker of unlabelled rows as a label."""
    if isinstance(estimator, GaussianMixtureDensity):
        return {}
    return {MINUS_ONE: "trains on labels -1 and 1; -1 marks unlabelled rows"}


@parametrize_with_checks(
    [*CLASSIFIERS, GaussianMixtureDensity()],
    expected_failed_checks=expected_failures,
)
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    check(estimator)


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("unlabeled", [None, -1])
def test_minus_one_as_a_label(classifier, unlabeled):
    """The excepted check passes where nothing is unlabelled, and only there."""
    named = [
        (estimator, check)
        for estimator, check in estimator_checks_generator(
            clone(classifier).set_params(unlabeled=unlabeled)
        )
        if getattr(check, "func", check).__name__ == MINUS_ONE
    ]
    ((estimator, check),) = named
    if unlabeled is None:
        check(estimator)
    else:
        with pytest.raises((AssertionError, ValueError)):
            check(estimator)
