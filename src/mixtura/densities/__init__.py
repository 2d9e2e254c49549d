"""Densities: what components are (`Full`, `LowRank`, ...), and the stacks they are trained as."""

from __future__ import annotations

from typing import Any

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
from mixtura.densities.gaussian import DiagonalGaussian, FullGaussian, Gaussian
from mixtura.densities.hmm import HiddenMarkov
from mixtura.densities.hole_pattern import HolePattern
from mixtura.densities.low_rank import LowRankGaussian, LowRankPrecision
from mixtura.densities.product import Product, numeric_part, with_numeric_part
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

#: (covariance, parameterization) -> class and the options it is built with: Gaussians.
STRUCTURES: dict[tuple[str, str], tuple[type[VectorDensity], dict[str, Any]]] = {
    ("spherical", "covariance"): (DiagonalGaussian, {"tied": True}),
    ("diag", "covariance"): (DiagonalGaussian, {}),
    ("full", "covariance"): (FullGaussian, {}),
    ("low_rank", "covariance"): (LowRankGaussian, {}),
    ("low_rank", "precision"): (LowRankPrecision, {}),
}
#: The same with heavy tails, and all of them.
STUDENTS: dict[tuple[str, str], tuple[type[VectorDensity], dict[str, Any]]] = {
    ("student_diag", "covariance"): (StudentT, {"kind": DiagonalGaussian}),
    ("student_full", "covariance"): (StudentT, {"kind": FullGaussian}),
    ("student_low_rank", "covariance"): (StudentT, {"kind": LowRankGaussian}),
}
KINDS = STRUCTURES | STUDENTS

__all__ = [
    "DENSITIES",
    "KINDS",
    "STRUCTURES",
    "STUDENTS",
    "Auto",
    "Categorical",
    "Density",
    "Diagonal",
    "DiagonalGaussian",
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
]
