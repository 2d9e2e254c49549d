"""Mixture models that classify.

Public names are imported when they are first used: PyTorch and scikit-learn take seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixtura import datasets as datasets
    from mixtura import densities as densities
    from mixtura import exceptions as exceptions
    from mixtura import nn as nn
    from mixtura import objectives as objectives
    from mixtura import plotting as plotting
    from mixtura import runtime as runtime
    from mixtura import sequences as sequences
    from mixtura import solvers as solvers
    from mixtura.estimators import (
        BoostedMixtureClassifier,
        FisherScores,
        MixtureClassifier,
        MixtureDensity,
        MixtureImputer,
        MixtureNetworkClassifier,
        MixtureNetworkRegressor,
        MixtureRegressor,
        PairwiseClassifier,
        SequenceDensity,
        SequenceMixtureClassifier,
        SparseMixtureClassifier,
    )
    from mixtura.persistence import load

    __version__: str

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
    "load",
]
#: Modules that are attributes of the package without an import of their own.
_MODULES = (
    *("datasets", "densities", "exceptions", "nn", "objectives", "plotting", "runtime"),
    *("sequences", "solvers"),
)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"mixtura.{name}")
    if name == "__version__":
        found: object = import_module("mixtura.version").version()
    elif name in __all__:
        home = "mixtura.persistence" if name == "load" else "mixtura.estimators"
        found = getattr(import_module(home), name)
    else:
        raise AttributeError(f"module 'mixtura' has no attribute {name!r}", name=name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
