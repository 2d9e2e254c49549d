"""Property checks for every density, objective, trainer and classifier of sequences.

They also hold for those yet to be written. Each compares with something computed another way: a
reference that is passed, dense matrices, scipy's distributions, all paths of a chain, finite
differences, or many draws.
"""

from mixtura.testing.chains import (
    SEQUENCE_DENSITY_CHECKS,
    check_chances,
    check_sequence_density,
    make_chains,
    make_sequence_engine,
    make_sequences,
)
from mixtura.testing.densities import (
    DENSITY_CHECKS,
    GAUSSIAN_CHECKS,
    REFERENCE_CHECKS,
    check_density,
)
from mixtura.testing.mixed import (
    MIXED_CHECKS,
    check_frequencies,
    check_mixed,
    check_mixed_valid,
    make_categorical,
    make_hole_pattern,
    make_mixed,
    plain,
    slow_fill,
    slow_hole_counts,
    slow_hole_terms,
    slow_log_prob,
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
from mixtura.testing.sequences import (
    SEQUENCE_ESTIMATOR_CHECKS,
    check_one_class,
    check_sequence_estimator,
    check_storage,
    check_weights,
    toy_sequences,
)
from mixtura.testing.training import check_objective, check_solver, check_valid, penalized_loss

__all__ = [
    "DENSITY_CHECKS",
    "GAUSSIAN_CHECKS",
    "KINDS",
    "MIXED_CHECKS",
    "REFERENCE_CHECKS",
    "SEQUENCE_DENSITY_CHECKS",
    "SEQUENCE_ESTIMATOR_CHECKS",
    "STRUCTURES",
    "STUDENTS",
    "Reference",
    "check_chances",
    "check_density",
    "check_frequencies",
    "check_mixed",
    "check_mixed_valid",
    "check_objective",
    "check_one_class",
    "check_sequence_density",
    "check_sequence_estimator",
    "check_solver",
    "check_storage",
    "check_valid",
    "check_weights",
    "dense_conditional",
    "make_batch",
    "make_categorical",
    "make_chains",
    "make_density",
    "make_engine",
    "make_hole_pattern",
    "make_mixed",
    "make_mixture",
    "make_sequence_engine",
    "make_sequences",
    "penalized_loss",
    "plain",
    "slow_fill",
    "slow_hole_counts",
    "slow_hole_terms",
    "slow_log_prob",
    "toy_sequences",
]
