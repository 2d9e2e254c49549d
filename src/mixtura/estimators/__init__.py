"""scikit-learn estimators: validate, build, train, publish."""

from mixtura.estimators.boosted import BoostedMixtureClassifier
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.density import MixtureDensity
from mixtura.estimators.fisher import FisherScores
from mixtura.estimators.imputer import MixtureImputer
from mixtura.estimators.network_classifier import MixtureNetworkClassifier
from mixtura.estimators.network_regressor import MixtureNetworkRegressor
from mixtura.estimators.pairwise import PairwiseClassifier
from mixtura.estimators.regressor import MixtureRegressor
from mixtura.estimators.sequence import SequenceMixtureClassifier
from mixtura.estimators.sequence_density import SequenceDensity
from mixtura.estimators.sparse import SparseMixtureClassifier

__all__ = [
    "BoostedMixtureClassifier",
    "FisherScores",
    "MixtureClassifier",
    "MixtureDensity",
    "MixtureImputer",
    "MixtureNetworkClassifier",
    "MixtureNetworkRegressor",
    "MixtureRegressor",
    "PairwiseClassifier",
    "SequenceDensity",
    "SequenceMixtureClassifier",
    "SparseMixtureClassifier",
]
