"""What to fit and how: a classifier's data and parameters, read and found consistent.

Every refusal happens here, before any work is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length
from torch import Tensor

from mixtura.data import encode_labels, find_labeled, read_labels
from mixtura.densities import DENSITIES, Auto, Structure
from mixtura.engines import Engine
from mixtura.estimators.base import check_weight, distinct_rows, working_type
from mixtura.exceptions import (
    AmbiguousDataWarning,
    DegenerateDataWarning,
    InvalidInputError,
    UnsupportedError,
    warn,
)
from mixtura.objectives import OBJECTIVES, Likelihood
from mixtura.parts import resolve
from mixtura.solvers import EM, LBFGS, SOLVERS, Adam, Solver
from mixtura.training.groups import Recipe

#: Up to so many rows (by weight), L-BFGS on all of them is as fast as Adam, and repeatable.
SMALL = 3_000
#: Weight of unlabeled rows in the likelihood, where nothing else is said: that of any row.
EVEN = 0.5
#: Whether unlabeled rows help is tried with so many of them and so many labeled ones at least,
#: and so many iterations of EM and of other solvers at most.
TRIED, FEWEST_TRIED = 1_000, 10
_SHORT_EM, _SHORT = 30, 20
#: Share of the allowed time after which nothing is compared with and without unlabeled rows.
UNTIL = 0.6
#: Why unlabeled rows are set aside.
NO_TIME = "max_time left too little time to tell whether they help"
NO_GAIN = "they did not clearly help to predict held-out labels"
TOO_FEW = "the labels are too few to tell whether they would help"
STREAMED = "the first part of this stream had none, so that nothing was compared"
#: Where a number is left to "auto": first choice first. The study behind them is
#: docs/results/defaults.md.
_TRADEOFFS = (0.9, 0.5)
#: The prior of a class that a stream has not shown yet.
_NEVER = 1e-100


@dataclass(frozen=True)
class Rows:
    """Validated training rows: labels are indices of `classes` (-1: none), weights positive."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    classes: np.ndarray

    @property
    def has_unlabeled(self) -> bool:
        return bool((self.y < 0).any())

    @property
    def may_do_without_unlabeled(self) -> bool:
        """Whether there are unlabeled rows, and labeled ones of every class."""
        known = len(np.unique(self.y[self.y >= 0]))
        return self.has_unlabeled and 0 < known == len(self.classes)

    def labeled(self) -> Rows:
        """The rows that have labels."""
        known = self.y >= 0
        return Rows(self.X[known], self.y[known], self.weight[known], self.classes)


@dataclass(frozen=True)
class Plan:
    """A classifier's parameters, resolved for given rows.

    Attributes
    ----------
    unlabeled_weight : weight of unlabeled rows in the likelihood, the labeled ones get the rest; 0
        sets them aside, None says that there are none.
    """

    solver: Solver
    generative: bool
    recipe: Recipe
    tradeoff: float
    counts: list[int] | None
    log_prior: Tensor
    learn_prior: bool
    dtype: torch.dtype
    unlabeled_weight: float | None = None


def read_rows(
    estimator: Any, X: np.ndarray, y: Any, sample_weight: Any, known: np.ndarray | None = None
) -> Rows:
    """Labels as class indices, and the rows that count.

    With `known` classes, the rows may lack some of them: they are part of a stream.
    """
    classes, codes = read_classes(estimator, X, y, estimator.unlabeled, known)
    weight = check_weight(sample_weight, len(X))
    weight = weight * _class_weights(estimator.class_weight, codes, classes)
    keep = weight > 0
    mass = np.bincount(codes[keep & (codes >= 0)], minlength=len(classes))
    if known is None and (mass == 0).any():
        raise InvalidInputError(
            f"no labeled row with positive weight for the classes "
            f"{classes[mass == 0].tolist()}: drop these classes, or weigh their rows."
        )
    if keep.all():
        return Rows(X, codes, weight, classes)
    return Rows(X[keep], codes[keep], weight[keep], classes)


def read_classes(
    estimator: Any, X: Any, y: Any, unlabeled: Any, known: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The classes, `known` or those of y, and (n,) their indices, -1 for unlabeled rows."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    y = read_labels(y)
    check_consistent_length(X, y)
    if y.dtype.kind == "f":
        assert_all_finite(y, allow_nan=True, input_name="y")
    classes = _classes(y, unlabeled) if known is None else known
    return classes, encode_labels(y, classes, unlabeled)


def labeled_rows(rows: Rows) -> Rows:
    """The rows that have labels, for a model that cannot learn from others."""
    if len(rows.classes) == 1 and (rows.y < 0).any():
        raise InvalidInputError(
            f"only the class {rows.classes.tolist()[0]!r} has labeled rows, and a discriminative "
            "model needs two: label rows of another; if the marker of unlabeled rows is a class, "
            "set unlabeled=None."
        )
    known = labeled_alone(rows.y)
    if known.all():
        return rows
    return rows.labeled()


def labeled_alone(codes: np.ndarray) -> np.ndarray:
    """Which rows have labels; a warning says how many have none and are left out."""
    known = codes >= 0
    if not known.all():
        warn(
            f"{int((~known).sum())} unlabeled row(s) are left out: this model cannot learn from "
            "them. Remedy: MixtureClassifier can; or drop them.",
            DegenerateDataWarning,
        )
    return known


def _classes(y: np.ndarray, unlabeled: Any) -> np.ndarray:
    """The classes of training labels."""
    labeled = find_labeled(y, unlabeled)
    if not labeled.any():
        raise InvalidInputError(
            f"y has no labeled row: all are None, NaN or the marker (unlabeled={unlabeled!r}). "
            "Label some rows, set unlabeled=None if the marker is a class, or use MixtureDensity."
        )
    classes = _distinct(y[labeled])
    if len(classes) == 1 and not labeled.all():
        warn(
            f"only the class {classes.tolist()[0]!r} has labeled rows, the others are unlabeled. "
            "Remedy: label rows of another; if the marker of unlabeled rows is a class, set "
            "unlabeled=None.",
            DegenerateDataWarning,
        )
    return classes


def _distinct(labels: np.ndarray) -> np.ndarray:
    kinds = {type(label).__name__ for label in labels.tolist()}
    if "str" in kinds and len(kinds) > 1:
        raise InvalidInputError(
            f"y mixes labels of the types {', '.join(sorted(kinds))}: make them all one type."
        )
    plain = np.array(labels.tolist())
    check_classification_targets(plain)
    numbers_as_objects = labels.dtype == object and "str" not in kinds
    return np.unique(plain if numbers_as_objects else labels)


def _class_weights(class_weight: Any, codes: np.ndarray, classes: np.ndarray) -> np.ndarray:
    factors = np.ones(len(codes))
    if class_weight is not None:
        labeled = codes >= 0
        factors[labeled] = compute_sample_weight(class_weight, classes[codes[labeled]])
    return factors


def class_counts(rows: Rows, class_prior: np.ndarray) -> np.ndarray:
    """Weight of the rows of each class; unlabeled rows are shared out by the prior."""
    known = rows.y >= 0
    counted = np.bincount(rows.y[known], rows.weight[known], minlength=len(rows.classes))
    return counted + rows.weight[~known].sum() * class_prior


def make_plans(estimator: Any, rows: Rows) -> list[Plan]:
    """The estimator's parameters, resolved for these rows.

    One plan for every structure that is left open, the first choice first.
    """
    term, density = resolve(estimator.objective, OBJECTIVES), resolve(estimator.density, DENSITIES)
    alone = len(rows.classes) == 1
    generative = isinstance(term, Likelihood) or estimator.tradeoff == 1.0 or alone
    n_numbers = _count_numbers(estimator, rows)
    structures = density.candidates(n_numbers)
    by_em = generative and structures[0].closed_form
    solver = choose_solver(estimator.solver, rows.weight.sum(), by_em)
    init = resolve(estimator.init, {"em": partial(EM, tol=0.01)})
    _refuse_contradictions(estimator, solver, generative, structures[0])
    prior, prior_rows = estimator.class_prior, estimator.prior_rows
    first = Plan(
        solver=solver,
        generative=generative,
        recipe=Recipe(
            structure=structures[0],
            em=solver if isinstance(solver, EM) else init,
            prior_rows=None if prior_rows == "auto" else prior_rows,
            informative=estimator.missingness == "informative",
        ),
        tradeoff=_first(estimator.tradeoff, _TRADEOFFS),
        counts=component_counts(estimator.n_components, rows),
        log_prior=torch.from_numpy(np.log(_class_prior(prior, rows))),
        learn_prior=isinstance(prior, str) and prior == "empirical",
        dtype=working_type(rows.X.dtype, n_numbers, structures[0].floor),
        unlabeled_weight=(
            _first(estimator.unlabeled_weight, (EVEN,)) if rows.has_unlabeled else None
        ),
    )
    if generative:
        return [first]
    return [replace(first, recipe=replace(first.recipe, structure=each)) for each in structures]


def choose_solver(given: Any, weight: float, by_em: bool) -> Solver:
    """What was asked for; "auto" is EM where that is enough, and else goes by the rows' weight."""
    if given != "auto":
        return resolve(given, SOLVERS)
    if by_em:
        return EM()
    return LBFGS() if weight <= SMALL else Adam()


def resized(estimator: Any, plan: Plan, engine: Engine) -> Plan:
    """The plan with the solver that it would have for these rows."""
    by_em = isinstance(plan.solver, EM)
    return replace(plan, solver=choose_solver(estimator.solver, engine.total_weight, by_em))


def other_tradeoffs(estimator: Any, plan: Plan) -> list[Plan]:
    """The plan with the other trade-offs that "auto" leaves open."""
    left_open = isinstance(resolve(estimator.density, DENSITIES), Auto)
    if plan.generative or estimator.tradeoff != "auto" or not left_open:
        return []
    return [replace(plan, tradeoff=tradeoff) for tradeoff in _TRADEOFFS[1:]]


def shortened(plan: Plan) -> Plan:
    """The plan with fewer iterations: enough to see whether unlabeled rows help."""
    recipe = replace(plan.recipe, em=plan.recipe.em.limited(_SHORT_EM))
    return replace(plan, recipe=recipe, solver=plan.solver.limited(_SHORT))


def warn_of_rows_set_aside(rows: Rows, reason: str) -> None:
    """Say that unlabeled rows are not used, and why."""
    warn(
        f"{int((rows.y < 0).sum())} unlabeled rows are set aside: {reason}. To use them all the "
        "same, set unlabeled_weight=0.5; unlabeled_weight=0 sets them aside without this warning.",
        AmbiguousDataWarning,
    )


def other_missingness(estimator: Any, plan: Plan, engine: Engine) -> list[Plan]:
    """The plan that also models which entries are absent, where "auto" leaves that open."""
    if estimator.missingness != "auto" or not engine.has_holes:
        return []
    return [replace(plan, recipe=replace(plan.recipe, informative=True))]


def _count_numbers(estimator: Any, rows: Rows) -> int:
    """Columns that hold numbers."""
    return int((estimator._levels(rows.X.shape[1]) == 0).sum())


def _first(value: Any, choices: tuple[float, ...]) -> float:
    return choices[0] if value == "auto" else float(value)


def _refuse_contradictions(
    estimator: Any, solver: Solver, generative: bool, structure: Structure
) -> None:
    if solver.likelihood_only and not generative:
        raise UnsupportedError(
            f"solver={estimator.solver!r} maximizes the likelihood, not "
            f"objective={estimator.objective!r} with tradeoff={estimator.tradeoff}: use "
            "solver='ebw', 'adam' or 'lbfgs', or tradeoff=1."
        )
    if (solver.closed_form_only or solver.likelihood_only) and not structure.closed_form:
        raise UnsupportedError(
            f"solver={estimator.solver!r} needs closed-form updates, and "
            f"density={estimator.density!r} has none: use solver='adam' or 'lbfgs', or a density "
            "that has them, such as 'low_rank'."
        )


def read_counts(n_components: Any, classes: np.ndarray) -> np.ndarray:
    """One positive number of components for each class."""
    counts = np.atleast_1d(np.asarray(n_components))
    if counts.dtype.kind not in "iu" or counts.ndim != 1 or (counts < 1).any():
        raise InvalidInputError(
            f"n_components={n_components!r}: give a positive int, or one positive int a class."
        )
    if len(counts) not in (1, len(classes)):
        raise InvalidInputError(
            f"n_components has {len(counts)} entries, but there are {len(classes)} classes "
            f"({classes.tolist()}): give one number a class, or a single one."
        )
    return np.broadcast_to(counts, len(classes))


def component_counts(n_components: Any, rows: Rows) -> list[int] | None:
    """Components of each class, no more than its distinct rows; None for "auto"."""
    if isinstance(n_components, str):
        return None
    classes = rows.classes
    wanted = read_counts(n_components, classes)
    mine = [np.flatnonzero(rows.y == label) for label in range(len(classes))]
    found = [distinct_rows(rows.X, *each) for each in zip(mine, wanted, strict=True)]
    available = np.maximum(found, 1)
    if (wanted > available).any():
        warn(
            f"more components than distinct labeled rows in the classes "
            f"{classes[wanted > available].tolist()}; these get one component per distinct row. "
            "Remedy: a smaller n_components.",
            DegenerateDataWarning,
        )
    return np.minimum(wanted, available).tolist()


def _class_prior(class_prior: Any, rows: Rows) -> np.ndarray:
    n_classes = len(rows.classes)
    if isinstance(class_prior, str):
        labeled = rows.y >= 0
        mass = np.bincount(rows.y[labeled], rows.weight[labeled], minlength=n_classes)
        uniform = class_prior == "uniform" or mass.sum() == 0
        prior = np.ones(n_classes) if uniform else mass
        return np.maximum(prior / prior.sum(), _NEVER)
    prior = np.asarray(class_prior, dtype=np.float64)
    if prior.shape != (n_classes,) or not (prior > 0).all() or abs(prior.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"class_prior must hold {n_classes} positive numbers that sum to one, in the order of "
            f"the classes {rows.classes.tolist()}; got {prior.tolist()}."
        )
    return prior / prior.sum()
