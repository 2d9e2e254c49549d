"""Densities: what components are (`Full`, `LowRank`, ...), and the stacks they are trained as."""

from __future__ import annotations

from mixtura.densities.base import (
    Density,
    Even,
    Statistics,
    VectorDensity,
    add_statistics,
    keep_valid,
    rand,
    randn,
    scale_statistics,
)
from mixtura.densities.categorical import Categorical
from mixtura.densities.emission_mixtures import EmissionMixtures
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian, Gaussian
from mixtura.densities.hmm import HiddenMarkov
from mixtura.densities.hole_pattern import HolePattern
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.low_rank_precision import LowRankPrecision
from mixtura.densities.product import Product, numeric_part, with_numeric_part, without_atoms
from mixtura.densities.side_by_side import SideBySide
from mixtura.densities.structures import (
    DENSITIES,
    Auto,
    Diagonal,
    Full,
    LowRank,
    Spherical,
    Structure,
    Student,
)
from mixtura.densities.student import StudentT

__all__ = [
    "DENSITIES",
    "Auto",
    "Categorical",
    "Density",
    "Diagonal",
    "DiagonalGaussian",
    "EmissionMixtures",
    "Even",
    "Full",
    "FullGaussian",
    "Gaussian",
    "HiddenMarkov",
    "HolePattern",
    "LowRank",
    "LowRankGaussian",
    "LowRankPrecision",
    "Product",
    "SideBySide",
    "Spherical",
    "Statistics",
    "Structure",
    "Student",
    "StudentT",
    "VectorDensity",
    "add_statistics",
    "keep_valid",
    "numeric_part",
    "rand",
    "randn",
    "scale_statistics",
    "with_numeric_part",
    "without_atoms",
]
