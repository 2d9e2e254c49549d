"""What `MixtureClassifier` trains on which rows, with unlabeled ones if they help; the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.engines import Engine, engine_of
from mixtura.estimators.blending import in_units
from mixtura.estimators.classifying import EVEN, prefer_unlabeled
from mixtura.estimators.plan import (
    Decision,
    answers,
    choose,
    from_trial,
    make_plans,
    previous_fit,
    resized,
    resumed,
)
from mixtura.estimators.rows import Rows, component_counts
from mixtura.models.calibration import Calibration
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import LogMargin
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome
from mixtura.selection.chooser import MOST_COMPARED
from mixtura.selection.held_out import Answers
from mixtura.selection.typical import typical_quantiles
from mixtura.solvers import FitResult
from mixtura.solvers.gradients import evaluate

if TYPE_CHECKING:
    from mixtura.estimators.classifier import MixtureClassifier


def decide(
    estimator: MixtureClassifier,
    rows: Rows,
    schema: Schema,
    generator: torch.Generator,
    progress: Progress,
    stream: bool = False,
) -> Decision:
    """What to train on which rows; unlabeled ones only if held-out labels say that they help.

    All else but the units is chosen as it would be without them. `stream`: more rows will come.
    """
    weight = estimator.unlabeled_weight
    if weight == "auto" and estimator._resumes:
        weight = "auto" if estimator.unlabeled_weight_ is None else estimator.unlabeled_weight_
    used, asks = rows.chosen_on(weight)
    engine = _engine(estimator, rows, schema) if asks else None
    without = _decide_on(estimator, used, schema, generator, progress, stream, engine)
    if used is not rows:
        without = replace(without, plan=replace(without.plan, unlabeled_weight=0.0))
    if engine is None:
        return without
    plain = without.plan.shortened()
    ways = plain, replace(plain, unlabeled_weight=EVEN)
    best, chooser = prefer_unlabeled(ways, rows, engine, generator, progress, answers)
    if best is None:
        return replace(without, also=chooser)
    plan = resized(estimator, replace(without.plan, unlabeled_weight=EVEN), engine)
    held_out = None if without.held_out is None else best.held_out()
    return Decision(
        plan,
        engine,
        engine,
        chooser,
        best,
        without.previous,
        held_out,
        also=without.chooser,
        trusts_holes=without.trusts_holes,
    )


def _decide_on(
    estimator: MixtureClassifier,
    rows: Rows,
    schema: Schema,
    generator: torch.Generator,
    progress: Progress,
    stream: bool,
    every: Engine | None = None,
) -> Decision:
    """What to train on these rows, in the units of all, where these are more."""
    levels = schema.levels(rows.X.values.shape[1])
    counts = component_counts(estimator.n_components, rows)
    plans = make_plans(estimator, rows, int((levels == 0).sum()), counts)
    previous = None
    if estimator._resumes:
        previous = previous_fit(estimator, rows, plans)
        plans = [resumed(estimator, plans[0])]
    engine = _engine(estimator, rows, schema, None if every is None else every.scaling)
    found = choose(estimator, plans, engine, generator, progress, previous, stream)
    return found if every is None else replace(found, every=every)


def _engine(
    estimator: MixtureClassifier, rows: Rows, schema: Schema, scaling: Scaling | None = None
) -> Engine:
    """The rows to learn from, in known units or in those that suit them."""
    scaling = estimator.scaling_ if estimator._resumes else scaling
    known = scaling or estimator._scaled(rows.X, rows.weight, schema)
    engine = engine_of(rows.X, rows.y, rows.weight, known, estimator.device)
    if scaling is None and estimator.marginals not in ("auto", "raw"):
        return in_units(engine, estimator.marginals)
    return engine


@dataclass(frozen=True)
class Learned:
    """What training gave, the rows that it was shown, and those that it was not, if any."""

    result: FitResult[Mixture]
    shown: Engine
    held_out: Engine | None


def train(
    estimator: MixtureClassifier,
    decision: Decision,
    generator: torch.Generator,
    progress: Progress,
) -> Outcome[Learned]:
    """What was decided, trained on all rows or on as many as time allows."""

    def learn(rows: Engine, own: torch.Generator, latest: Learned | None) -> Learned:
        plan, held_out = resized(estimator, decision.plan, rows), None
        if plan.solver.held_out_share:
            rows, held_out = rows.hold_out(plan.solver.held_out_share, own)
        begin = decision.previous if latest is None else latest.result
        if begin is None:
            plan, begin = from_trial(estimator, plan, decision.trial)
        result = plan.train(rows, own, progress, previous=begin, held_out=held_out)
        return Learned(result, rows, held_out)

    def loss(trained: Learned, rows: Engine) -> float:
        return evaluate(trained.result.model, decision.plan.objective(rows), rows)[1]

    return Budget(progress, learn, loss, generator).run(decision.engine)


def typical_rows(decision: Decision, trained: Learned, progress: Progress) -> np.ndarray:
    """(1001,) quantiles of how likely rows are that the model has not seen.

    Trials tell that where all rows were compared on, and the model was trained as they were.
    """
    alike = decision.saw_all and trained.held_out is None
    unseen = decision.chooser.unseen(decision.trial) if alike else []
    held_out = [(each.model, rows) for each, rows in unseen]
    result = trained.result
    return typical_quantiles(result.model, decision.engine, result.prior, progress, held_out)


def calibrated(
    decision: Decision,
    result: FitResult[Mixture],
    held_out: Engine | None,
    generator: torch.Generator,
) -> Calibration:
    """By what models said of rows they had not seen, of training's own if any; or as is typical."""
    said = decision.held_out
    if held_out is not None:
        some = held_out.subsample(MOST_COMPARED, spawn(generator))
        said = Answers.of(result.model, some, spawn(generator), result.evidence)
    if isinstance(said, Answers):
        return said.calibration
    term, rows = decision.plan.term, decision.chooser.rows
    if not isinstance(term, LogMargin):
        return Calibration()
    rows = decision.engine.merged() if rows is None else rows
    return Calibration.typical(term.margin, float(rows.labeled.sum()))
