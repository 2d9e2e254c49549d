"""scikit-learn's own checks of an estimator."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

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


class Moments(SequenceMixtureClassifier):
    """Rows as sequences of one frame: scikit-learn checks matrices."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        return tags

    def _check_X(self, X, *, reset):
        rows = validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype=np.float64)
        return super()._check_X(rows[:, None], reset=False)


PLAIN = {"covariance": "diag", "max_iter": 5, "random_state": 0}
QUICK = MixtureClassifier(1, objective="likelihood", reg_covar=0.01, **PLAIN)
MOMENTS = Moments(1, method="ml", calibrate=False, early_stopping=False, **PLAIN)
#: They pass data frames, which for sequences have one row for each moment.
FRAMES = {"check_sample_weights_pandas_series", "check_classifier_data_not_an_array"}
PARTS = [PairwiseClassifier(QUICK), FisherScores(MixtureDensity(2, **PLAIN))]
OTHERS = [MixtureDensity(), MixtureNetworkRegressor(**SMALL | {"n_components": 3})]


def name_of(check):
    """The name of a check, its options left out."""
    return getattr(check, "func", check).__name__


@parametrize_with_checks([*CLASSIFIERS, *OTHERS, *PARTS, MOMENTS])
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    if isinstance(estimator, Moments) and name_of(check) in FRAMES:
        pytest.skip("a data frame of sequences is another thing")
    if name_of(check) in LONG:
        estimator = clone(estimator).set_params(**NARROW.get(type(estimator), {}))
    check(estimator)
