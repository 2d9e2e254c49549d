"""scikit-learn estimators: validate, build, train, publish."""

from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.density import GaussianMixtureDensity
from mixtura.estimators.sparse import SparseMixtureClassifier

__all__ = ["GaussianMixtureDensity", "MixtureClassifier", "SparseMixtureClassifier"]
