"""scikit-learn's own checks of an estimator."""

import os

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
    MixtureImputer,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.data.schema import Schema
from mixtura.solvers import EM, LBFGS, LinkedEM

#: Checks that fit many rows again and again; all others take the classifiers as they come.
LONG = {
    "check_class_weight_classifiers",
    "check_classifier_data_not_an_array",
    "check_classifiers_classes",
    "check_classifiers_train",
    "check_dtype_object",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimators_dtypes",
    "check_estimators_partial_fit_n_features",
    "check_estimators_pickle",
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_fit_score_takes_y",
    "check_n_features_in",
    "check_non_transformer_estimators_n_iter",
    "check_pipeline_consistency",
    "check_positive_only_tag_during_fit",
    "check_transformer_data_not_an_array",
    "check_transformer_general",
}
#: Estimators for which almost all checks are long.
SLOW = {"Moments", "MixtureNetworkClassifier", "MixtureNetworkRegressor", "MixtureRegressor"}
#: For them there is less to choose, in the few iterations that scikit-learn's own estimators are
#: checked with; `make fuzz` leaves all as they come.
BRIEF = {"n_components": 1, "density": "diag", "calibrate": False}
LINKED = {"embedding": "log_density", "init": EM(5, 0.01)}
NARROW = {
    "MixtureClassifier": BRIEF | {"solver": LBFGS(5), "tradeoff": 0.5},
    "SparseMixtureClassifier": {"n_components": 1},
    "BoostedMixtureClassifier": BRIEF | {"n_stages": 2, "early_stopping": False, "solver": EM(5)},
    "MixtureNetworkClassifier": BRIEF | LINKED | {"solver": LinkedEM(5, end_to_end=False)},
    "MixtureNetworkRegressor": LINKED | {"n_components": 3},
    "MixtureRegressor": {"n_components": 1, "density": "full", "marginals": "linear"},
    "Moments": {"n_states": 1, "method": "ml", "init": EM(5), "early_stopping": False},
}


class Moments(SequenceMixtureClassifier):
    """Rows as sequences of one frame: scikit-learn checks matrices."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        return tags

    def _read(self, X, schema=None):
        reset = schema is None
        rows = validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype=np.float64)
        return super()._read(rows[:, None], schema or Schema())


PLAIN = {"density": "diag", "solver": EM(5), "random_state": 0}
QUICK = MixtureClassifier(1, objective="likelihood", **PLAIN)
#: They pass data frames, which for sequences have one row for each moment.
FRAMES = {"check_sample_weights_pandas_series", "check_classifier_data_not_an_array"}
PARTS = [PairwiseClassifier(QUICK), FisherScores(MixtureDensity(2, **PLAIN))]
CLASSIFIERS = [
    MixtureClassifier(),
    SparseMixtureClassifier(),
    BoostedMixtureClassifier(),
    MixtureNetworkClassifier(),
    Moments(),
]
REGRESSORS = [MixtureNetworkRegressor(), MixtureRegressor()]
OTHERS = [MixtureDensity(), *REGRESSORS, MixtureImputer(1, density="diag")]


def name_of(check):
    """The name of a check, its options left out."""
    return getattr(check, "func", check).__name__


@parametrize_with_checks([*CLASSIFIERS, *OTHERS, *PARTS])
def test_estimator(estimator, check):
    """Every check of scikit-learn."""
    if isinstance(estimator, Moments) and name_of(check) in FRAMES:
        pytest.skip("a data frame of sequences is another thing")
    name = type(estimator).__name__
    slow = name in SLOW and "sample_weight_equivalence" not in name_of(check)
    if (slow or name_of(check) in LONG) and "MIXTURA_FUZZ" not in os.environ:
        estimator = clone(estimator).set_params(**NARROW.get(name, {}))
        if isinstance(estimator, MixtureNetworkRegressor):  # trained to the end where that is asked
            estimator.set_params(solver=LinkedEM(5, end_to_end="train" in name_of(check)))
    check(estimator)
