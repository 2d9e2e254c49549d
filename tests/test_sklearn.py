"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from mixtura import GaussianMixtureDensity, MixtureClassifier, SparseMixtureClassifier

MINUS_ONE = "check_classifiers_classes"


def expected_failures(estimator):
    """The one check that uses our marker of unlabelled rows as a label."""
    if isinstance(estimator, MixtureClassifier | SparseMixtureClassifier):
        return {MINUS_ONE: "trains on labels -1 and 1; -1 marks unlabelled rows"}
    return {}


@parametrize_with_checks(
    [MixtureClassifier(), SparseMixtureClassifier(), GaussianMixtureDensity()],
    expected_failed_checks=expected_failures,
)
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    check(estimator)


@pytest.mark.parametrize("kind", [MixtureClassifier, SparseMixtureClassifier])
@pytest.mark.parametrize("unlabeled", [None, -1])
def test_minus_one_as_a_label(kind, unlabeled):
    """The excepted check passes where nothing is unlabelled, and only there."""
    named = [
        (estimator, check)
        for estimator, check in estimator_checks_generator(kind(unlabeled=unlabeled))
        if getattr(check, "func", check).__name__ == MINUS_ONE
    ]
    ((estimator, check),) = named
    if unlabeled is None:
        check(estimator)
    else:
        with pytest.raises((AssertionError, ValueError)):
            check(estimator)
