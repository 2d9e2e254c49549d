"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.base import clone, is_classifier
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SparseMixtureClassifier,
)

MINUS_ONE = "check_classifiers_classes"
#: Checks that fit many rows again and again; all others take the classifiers as they come.
LONG = {
    "check_class_weight_classifiers",
    "check_classifier_data_not_an_array",
    "check_classifiers_train",
    "check_dtype_object",
    "check_estimators_dtypes",
    "check_estimators_partial_fit_n_features",
    "check_fit_check_is_fitted",
    "check_fit_score_takes_y",
    "check_non_transformer_estimators_n_iter",
    "check_positive_only_tag_during_fit",
}
#: For them there is less to choose: only the covariance is compared, in the few iterations that
#: scikit-learn's own estimators are checked with, and no component has to die.
NARROW = {
    MixtureClassifier: {"n_components": 1, "max_iter": 5, "tradeoff": 0.5, "reg_covar": 0.01},
    SparseMixtureClassifier: {"n_components": 1},
}
#: Nothing is held back: copies of a row on both sides of a split are not a row of more weight.
BOOSTED = BoostedMixtureClassifier(
    covariance="diag", n_stages=2, max_iter=5, early_stopping=False, calibrate=False
)
SMALL = {"n_components": 1, "embedding": "log_density", "covariance": "diag", "max_iter": 5}
NETWORK = MixtureNetworkClassifier(calibrate=False, end_to_end=False, **SMALL)
CLASSIFIERS = [MixtureClassifier(), SparseMixtureClassifier(), BOOSTED, NETWORK]
OTHERS = [MixtureDensity(), MixtureNetworkRegressor(**SMALL | {"n_components": 3})]


def name_of(check):
    """The name of a check, its options left out."""
    return getattr(check, "func", check).__name__


def expected_failures(estimator):
    """The one check that uses our marker of unlabelled rows as a label."""
    if not is_classifier(estimator):
        return {}
    return {MINUS_ONE: "trains on labels -1 and 1; -1 marks unlabelled rows"}


@parametrize_with_checks(
    [*CLASSIFIERS, *OTHERS],
    expected_failed_checks=expected_failures,
)
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    if name_of(check) in LONG:
        estimator = clone(estimator).set_params(**NARROW.get(type(estimator), {}))
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
        if name_of(check) == MINUS_ONE
    ]
    ((estimator, check),) = named
    if unlabeled is None:
        check(estimator)
    else:
        with pytest.raises((AssertionError, ValueError)):
            check(estimator)
