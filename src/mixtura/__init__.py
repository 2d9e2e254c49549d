"""Mixture models that classify."""

from importlib.metadata import PackageNotFoundError, version

from mixtura.estimators import (
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
from mixtura.persistence import load

try:
    __version__ = version("mixtura")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "BoostedMixtureClassifier",
    "FisherScores",
    "MixtureClassifier",
    "MixtureDensity",
    "MixtureNetworkClassifier",
    "MixtureNetworkRegressor",
    "PairwiseClassifier",
    "SequenceMixtureClassifier",
    "SparseMixtureClassifier",
    "load",
]
