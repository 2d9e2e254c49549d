"""scikit-learn's own checks of an estimator."""

from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SparseMixtureClassifier,
)

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


@parametrize_with_checks([*CLASSIFIERS, *OTHERS])
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    if name_of(check) in LONG:
        estimator = clone(estimator).set_params(**NARROW.get(type(estimator), {}))
    check(estimator)
