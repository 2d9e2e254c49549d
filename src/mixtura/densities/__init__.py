"""Densities: what components are (`Full`, `LowRank`, ...), and the stacks they are trained as."""

from mixtura.data.batch import Batch
from mixtura.densities.base import Density, Statistics, VectorDensity, rand, randn
from mixtura.densities.categorical import Categorical
from mixtura.densities.emission_mixtures import EmissionMixtures
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian, Gaussian
from mixtura.densities.hmm import HiddenMarkov
from mixtura.densities.hole_pattern import HolePattern
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.low_rank_precision import LowRankPrecision
from mixtura.densities.product import Product
from mixtura.densities.structures import (
    CHAINS,
    DENSITIES,
    Auto,
    Chain,
    Diagonal,
    Full,
    LowRank,
    Spherical,
    Structure,
    Student,
)
from mixtura.densities.student import StudentT

__all__ = [
    "CHAINS",
    "DENSITIES",
    "Auto",
    "Batch",
    "Categorical",
    "Chain",
    "Density",
    "Diagonal",
    "DiagonalGaussian",
    "EmissionMixtures",
    "Full",
    "FullGaussian",
    "Gaussian",
    "HiddenMarkov",
    "HolePattern",
    "LowRank",
    "LowRankGaussian",
    "LowRankPrecision",
    "Product",
    "Spherical",
    "Statistics",
    "Structure",
    "Student",
    "StudentT",
    "VectorDensity",
    "rand",
    "randn",
]
