"""Property checks for every density, objective and solver.

They also hold for those yet to be written. Each compares with something computed another way: a
reference that is passed, dense matrices, scipy's distributions, finite differences, or many draws.
"""

from mixtura.testing.densities import (
    DENSITY_CHECKS,
    GAUSSIAN_CHECKS,
    REFERENCE_CHECKS,
    check_density,
)
from mixtura.testing.parts import (
    KINDS,
    STRUCTURES,
    STUDENTS,
    make_batch,
    make_density,
    make_engine,
    make_mixture,
)
from mixtura.testing.references import Reference, dense_conditional
from mixtura.testing.training import check_objective, check_solver, check_valid, penalized_loss

__all__ = [
    "DENSITY_CHECKS",
    "GAUSSIAN_CHECKS",
    "KINDS",
    "REFERENCE_CHECKS",
    "STRUCTURES",
    "STUDENTS",
    "Reference",
    "check_density",
    "check_objective",
    "check_solver",
    "check_valid",
    "dense_conditional",
    "make_batch",
    "make_density",
    "make_engine",
    "make_mixture",
    "penalized_loss",
]
