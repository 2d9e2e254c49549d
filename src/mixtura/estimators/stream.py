"""What `MixtureClassifier.partial_fit` learns from one more part of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixtura.data.labels import labeled_mask
from mixtura.densities import DENSITIES, Auto
from mixtura.engines import Engine, engine_of
from mixtura.estimators.classifying import STREAMED, warn_of_rows_set_aside
from mixtura.estimators.plan import make_plans, resumed, spread_prior
from mixtura.estimators.rows import Rows
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.fitted import run_over, typicality
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.typical import weighted_quantiles
from mixtura.solvers import Adam, FitResult
from mixtura.solvers.em import online_em_step, past_statistics
from mixtura.training.groups import Recipe
from mixtura.training.hybrid import Plan, class_counts
from mixtura.training.streams import grown, shrunken

if TYPE_CHECKING:
    from mixtura.estimators.classifier import MixtureClassifier

#: Labeled rows per class that the first part of a stream should have.
_FIRST_PART = 10
#: Deviations from the first part of a stream beyond which a value is taken for an error.
_FARTHEST = 1e9


@dataclass(frozen=True)
class Step:
    """What the rows of one call led to: a mixture, how and on what it was trained.

    `typical` (1001,) are quantiles of scores, `class_count` (C,) weights of all rows seen so far,
    `drift` is the mean log density of the rows before they were learned from.
    """

    result: FitResult[Mixture]
    plan: Plan
    engine: Engine
    typical: np.ndarray
    class_count: np.ndarray
    drift: float


def read_stream_classes(
    estimator: MixtureClassifier, classes: object, known: np.ndarray | None
) -> np.ndarray:
    """The classes of a stream: those given, or those `known` from its first call."""
    if classes is None:
        if known is None:
            raise InvalidInputError(
                "the first call of partial_fit needs all classes: pass classes=."
            )
        return known
    given = np.unique(np.asarray(classes))
    if not labeled_mask(given, estimator.unlabeled, classes=given).all():
        raise InvalidInputError(
            f"classes={given.tolist()} contain the unlabeled marker {estimator.unlabeled!r}: "
            "leave it out, or set unlabeled=None."
        )
    if known is not None and not np.array_equal(given, known):
        raise InvalidInputError(
            f"classes={given.tolist()} differ from those of the first call, {known.tolist()}."
        )
    return given


def used_rows(estimator: MixtureClassifier, rows: Rows) -> tuple[Rows, float | None]:
    """The rows to learn from, and the weight of unlabeled ones; None: none have come so far."""
    given = estimator.unlabeled_weight
    weight = estimator.unlabeled_weight_ if isinstance(given, str) else given
    if weight is None and rows.has_unlabeled:
        warn_of_rows_set_aside(rows, STREAMED)
        weight = 0.0
    return rows.labeled() if weight == 0.0 else rows, weight


def warn_of_a_small_part(rows: Rows) -> None:
    """Say that the first part of a stream is small for what it settles."""
    known = rows.y >= 0  # weights count rows
    fewest = np.bincount(rows.y[known], rows.weight[known], minlength=len(rows.classes)).min()
    if fewest < _FIRST_PART:
        warn(
            f"the first part of this stream has only {fewest:g} labeled rows of a class: it "
            "settles how doubtful probabilities are, and later parts do not change that. Remedy: "
            f"begin with {_FIRST_PART} rows per class or more, or calibrate=False.",
            DegenerateDataWarning,
        )


def next_step(
    estimator: MixtureClassifier,
    rows: Rows,
    memory: float | None,
    generator: torch.Generator,
    progress: Progress,
) -> Step:
    """One step from the present model: online EM, an epoch of Adam, or both.

    The past weighs no more than `memory` rows.
    """
    plan = _stream_plan(estimator, rows)
    scaling, device = estimator.scaling_, estimator.device
    engine = engine_of(rows.X, rows.y, rows.weight, scaling, device)
    _refuse_far(rows.X.values, engine, estimator.schema_.names)
    mixture = replace(estimator.mixture_, learn_prior=plan.learn_prior).to(engine.device)
    count, prior = estimator.class_count_, spread_prior(estimator)
    if memory is not None:
        count = count * min(1.0, memory / max(count.sum(), 1e-300))
    drift = np.average(estimator.model_.log_density(engine), weights=rows.weight)
    typical = _streamed_quantiles(estimator.score_quantiles_, count, mixture, engine)
    closed_form = mixture.density.closed_form
    if closed_form:
        recipe = plan.recipe if estimator.n_components == "auto" else None
        mixture, count = _online_step(mixture, engine, count, recipe, generator)
    else:
        count = count + class_counts(engine, estimator.class_prior_)
    result = FitResult(mixture, float("nan"), 1, True)
    if not (plan.generative and closed_form):
        adam = plan.solver if isinstance(plan.solver, Adam) else Adam()
        steady = replace(adam, max_iter=1, schedule="constant", averaging=0.0)
        result = plan.epoch(steady, mixture, engine, generator, progress, prior)
    result = replace(result, converged=True, prior=prior)
    return Step(result, plan, engine, typical, count, float(drift))


def _refuse_far(values: np.ndarray, engine: Engine, names: tuple[object, ...] | None) -> None:
    """One such value would stay in means and variances for as long as the stream lasts."""
    far = (engine.all_rows().x.abs() > _FARTHEST).nonzero()
    if len(far):
        row, column = far[0].tolist()
        raise InvalidInputError(
            f"column {names[column] if names else column!r}: {values[row, column]:g} is more than "
            f"{_FARTHEST:g} deviations away from the first part of the stream; leave such rows "
            "out, make the value missing, or fit anew."
        )


def _stream_plan(estimator: MixtureClassifier, rows: Rows) -> Plan:
    """How the stream goes on: as it began."""
    levels = estimator.schema_.levels(rows.X.values.shape[1])
    n_numbers = int((levels == 0).sum())
    asked = resolve(estimator.density, DENSITIES)
    if not isinstance(asked, Auto) and estimator.density_ not in asked.candidates(n_numbers):
        raise InvalidInputError(
            f"density={estimator.density!r} is not that of the stream so far, "
            f"{estimator.density_!r}: leave it, or fit anew."
        )
    return resumed(estimator, make_plans(estimator, rows, n_numbers, estimator.n_components_)[0])


def _streamed_quantiles(
    before: np.ndarray, count: np.ndarray, mixture: Mixture, engine: Engine
) -> np.ndarray:
    """Quantiles of scores, those of new rows among them, before they are learned from."""
    scores = run_over(mixture, engine, typicality).numpy()
    past = np.full(len(before), float(count.sum()) / len(before))
    weight = engine.weight.cpu().numpy()
    return weighted_quantiles(np.append(before, scores), np.append(past, weight))


def _online_step(
    mixture: Mixture,
    engine: Engine,
    count: np.ndarray,
    recipe: Recipe | None,
    generator: torch.Generator,
) -> tuple[Mixture, np.ndarray]:
    """Online EM; every row counts the same, labeled or not.

    A recipe says how components begin, where their number follows the rows.
    """
    share = None if bool(engine.labeled.all()) else 0.5
    scale = 1.0 if share is None else share
    seen = torch.from_numpy(count).to(engine.device)
    if recipe is None:
        past = past_statistics(mixture, seen)
    else:
        mixture, past = grown(mixture, engine, seen, recipe, generator)
    past = {name: scale * value for name, value in past.items()}
    updated, come = online_em_step(mixture, Likelihood(share), engine, past)
    seen = seen + come / scale
    return updated if recipe is None else shrunken(updated, seen), seen.cpu().numpy()
