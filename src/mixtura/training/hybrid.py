"""Class mixtures trained to explain, to discriminate, or both: from the rows to a mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.labels import class_masses
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.low_rank import LowRankForm
from mixtura.densities.product import numeric_part, with_numeric_part
from mixtura.engines import Engine, Punched
from mixtura.exceptions import warn
from mixtura.models.calibration import Calibration
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.objectives import (
    Likelihood,
    LogMargin,
    Margin,
    Objective,
    beside_likelihood,
    log_margin,
)
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, FitResult, Solver, SpreadPrior
from mixtura.solvers.base import AnyMixture
from mixtura.training.beginnings import CLUSTERS, Beginning
from mixtura.training.evidence import hole_evidence, with_evidence, without_evidence
from mixtura.training.groups import Folds, Recipe

#: Rows from which a start is found where another solver than EM goes on: more do not improve it.
_MOST_TO_START = 30_000
#: A sample that is trained on first, where rows are more than so many times as many: it takes
#: little beside them, and all rows then begin where it ended.
_TRAINED_FIRST, _MANY_TIMES = 100_000, 4
#: Iterations of EM and of other solvers that are enough to see whether unlabeled rows help.
_SHORT_EM, _SHORT = 30, 20

Trained = FitResult[Mixture]


@dataclass(frozen=True)
class Plan:
    """How class mixtures are trained: nothing is left open.

    Attributes
    ----------
    term : the discriminative term of the objective.
    tradeoff : share of the likelihood per observed value beside it; 1 is generative.
    recipe : of the start, by EM.
    beginning : what components begin with.
    counts : components of each class; None lets a criterion choose them.
    log_prior : (C,) of the classes, to begin with.
    learn_prior : whether training may move it.
    dtype : of rows, for solvers that may work in single precision.
    holes : share of random holes in the copies of rows that the objective is shown.
    unlabeled_weight : weight of unlabeled rows in the likelihood, the labeled ones get the rest; 0
        sets them aside, None says that there are none.
    begin : what trials begin with, one mixture per fold; nothing is an EM of their own.
    marginals : what columns of numbers are mapped by.
    """

    solver: Solver
    term: Objective
    tradeoff: float
    recipe: Recipe
    counts: list[int] | None
    log_prior: Tensor
    learn_prior: bool
    dtype: torch.dtype = torch.float64
    holes: float = 0.0
    unlabeled_weight: float | None = None
    begin: Sequence[Trained] = ()
    marginals: str = "linear"
    beginning: Beginning = CLUSTERS

    @property
    def generative(self) -> bool:
        """Whether the likelihood is all that counts."""
        return isinstance(self.term, Likelihood) or self.tradeoff == 1.0

    @property
    def name(self) -> str:
        """What tells it from other models that are averaged: how it begins, or its units."""
        return self.beginning.name or self.marginals

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {
            "density": self.recipe.structure,
            "tradeoff": self.tradeoff,
            "marginals": self.name,
            "missingness": self.recipe.missingness,
            "unlabeled_weight": self.unlabeled_weight,
        }

    def informative(self) -> Plan:
        """The same, with components that also differ in which entries are absent."""
        return replace(self, recipe=replace(self.recipe, informative=True), begin=())

    def limited(self, max_iter: int, tol: float) -> Plan:
        """The same, by L-BFGS with so many iterations after EM at most, while they gain enough."""
        return replace(self, solver=LBFGS(max_iter, tol))

    def shortened(self) -> Plan:
        """The same, with fewer iterations."""
        recipe = replace(self.recipe, em=self.recipe.em.limited(_SHORT_EM))
        return replace(self, recipe=recipe, solver=self.solver.limited(_SHORT))

    @property
    def together(self) -> bool:
        """Whether trials on all folds cost little more than one: all have like components."""
        return isinstance(self.solver.for_trials(), LBFGS) and self.beginning.alike

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[Trained]:
        """The mixtures of trials; each learns from the rows of the other folds."""
        if self.beginning.ready:
            return self._ready(engine, folds, generator, progress)
        begin = [self.begin[number] for number in folds.held_out if self.begin]
        trial = replace(self, solver=self.solver.for_trials())
        if not self.together:
            number = folds.held_out[0]
            rows = engine.only(folds.number.to(engine.device) != number)
            return [trial.train(rows, generator, progress, previous=begin[0] if begin else None)]
        if self.unlabeled_weight == 0.0:
            folds, engine = folds.only(engine.labeled), engine.only(engine.labeled)
        begun = begin or self.beginning.models(self, engine, folds, generator, progress)
        kind, assignment = folds.assignment(engine.y, len(self.log_prior))
        stack = MixtureStack.of([each.model for each in begun], assignment)
        prior = SpreadPrior.stacked([each.prior for each in begun], stack.layout.n_components)
        rows = engine.with_answers(y=kind).labeled_among(assignment.sees.any(0))
        if self.unlabeled_weight and not begin:
            stack = self._shown_unlabeled(stack, prior, rows, progress)
        evidence = self.evidence(engine, folds)
        busy, prior = self._beside(trial._without_idle(stack), prior, evidence)
        rows, objective = trial._for_solver(rows, generator), self.objective(engine)
        found = trial.solver.run(busy, objective, rows, progress, generator=generator, prior=prior)
        trained = found.model if evidence is None else without_evidence(found.model)
        trained = _beside_idle(trained, stack)
        models = [replace(each, model=trained[place]) for place, each in enumerate(begun)]
        return _knowing(models, evidence)

    def _ready(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[Trained]:
        """What the trials begin with, where nothing is left to train."""
        models = self.beginning.models(self, engine, folds, generator, progress)
        return _knowing(models, self.evidence(engine, folds))

    def evidence(self, engine: Engine, folds: Folds) -> HoleEvidence | None:
        """What discriminative training is not to learn from the rows of each trial."""
        if not engine.has_holes or self.generative or self.recipe.informative:
            return None
        if engine not in folds.kept:
            kind, assignment = folds.assignment(engine.y, len(self.log_prior))
            rows = engine.with_answers(y=kind)
            folds.kept[engine] = hole_evidence(rows, assignment, len(self.log_prior))
        return folds.kept[engine]

    def _beside(
        self, model: AnyMixture, prior: SpreadPrior | None, evidence: HoleEvidence | None
    ) -> tuple[AnyMixture, SpreadPrior | None]:
        """What holes tell, in the units of log-joints that keep a margin."""
        if evidence is None:
            return model, prior
        typical = Calibration.typical(self.term.margin if isinstance(self.term, LogMargin) else 0.0)
        return with_evidence(model, prior, evidence.scaled(typical.temperature))

    def objective(self, engine: Engine) -> Objective:
        """What is minimized over the rows."""
        return beside_likelihood(
            self.term,
            self.tradeoff,
            unlabeled_weight=self.unlabeled_weight or None,
            n_values=engine.values_per_row,
        )

    def train(
        self,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
        *,
        previous: Trained | None = None,
        held_out: Engine | None = None,
    ) -> Trained:
        """Begin anew or with a previous mixture, and train."""
        if self.beginning.ready:
            return self._ready(engine, Folds.none(engine), generator, progress)[0]
        if self.unlabeled_weight == 0.0:
            engine = engine.only(engine.labeled)
        start = self._resumed(previous, engine) if previous else None
        if start is None:
            by_em, few = isinstance(self.solver, EM), self._rows_to_start(engine, generator)
            start = self.beginning.models(self, few, Folds.none(few), generator, progress)[0]
            if by_em and self.recipe.direct and not self.unlabeled_weight:
                return start
            if self.unlabeled_weight and not by_em:
                shown = self._shown_unlabeled(start.model, start.prior, few, progress)
                start = replace(start, model=shown)
        evidence = self.evidence(engine, Folds.none(engine))
        model = start.model if previous else self._without_idle(start.model)
        model, prior = self._beside(model, start.prior, evidence)
        for some in [engine] if previous else self._first_some(engine, generator):
            rows = self._for_solver(some, generator)
            result = self.solver.run(
                model,
                self.objective(rows),
                rows,
                progress,
                generator=generator,
                held_out=held_out,
                prior=prior,
            )
            model = result.model
        if not math.isfinite(result.objective):
            warn(
                f"{type(self.term).__name__} was not finite in any iteration of "
                f"{type(self.solver).__name__}: the model is the one that training began with. "
                "Remedy: a loss that is finite wherever the class log-joints are.",
                ConvergenceWarning,
            )
        trained = result.model if evidence is None else without_evidence(result.model)
        trained = _beside_idle(trained, start.model)
        return replace(result, model=trained, prior=start.prior, evidence=evidence)

    def epoch(
        self,
        solver: Solver,
        mixture: Mixture,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
        prior: SpreadPrior | None,
    ) -> Trained:
        """A few more steps of another solver on the rows of a stream."""
        again = replace(self, solver=solver)
        rows = again._for_solver(engine, generator)
        objective = self.objective(rows)
        return solver.run(mixture, objective, rows, progress, generator=generator, prior=prior)

    def _resumed(self, previous: Trained, engine: Engine) -> Trained:
        mixture = replace(previous.model, learn_prior=self.learn_prior)
        return replace(previous, model=mixture.to(engine.device))

    def _rows_to_start(self, engine: Engine, generator: torch.Generator) -> Engine:
        """The rows that the start is found from: all if it is also the end."""
        if isinstance(self.solver, EM) or len(engine) <= _MOST_TO_START:
            return engine
        return engine.sample(_MOST_TO_START, generator)

    def _first_some(self, engine: Engine, generator: torch.Generator) -> list[Engine]:
        """All rows; where they are very many, a sample first, whose model is where all begin."""
        many = len(engine) > _MANY_TIMES * _TRAINED_FIRST
        if not many or not isinstance(self.solver, EBW | LBFGS):
            return [engine]
        return [engine.sample(_TRAINED_FIRST, generator), engine]

    def _shown_unlabeled(
        self, model: AnyMixture, prior: SpreadPrior | None, engine: Engine, progress: Progress
    ) -> AnyMixture:
        """EM over all rows, so that discriminative training begins where the rows are."""
        if not model.density.closed_form:
            return model
        em, likelihood = self.recipe.em, Likelihood(self.unlabeled_weight)
        em = replace(em, tol=0.1 * em.tol)
        return em.run(model, likelihood, engine, progress, prior=prior).model

    def _without_idle(self, model: AnyMixture) -> AnyMixture:
        """The same without factors that L-BFGS would have to carry along.

        Rows that the model is of leave them idle; others would wake them.
        """
        part = numeric_part(model.density)
        if not (isinstance(self.solver, LBFGS) and isinstance(part, LowRankForm)):
            return model
        return replace(model, density=with_numeric_part(model.density, part.without_idle()))

    def _for_solver(self, engine: Engine, generator: torch.Generator) -> Engine:
        """The rows as the solver is to see them."""
        engine = engine.cast(self.dtype) if self.solver.single_precision else engine
        if self.holes and not self.generative:
            return engine.seen(Punched(self.holes, generator))
        return engine


def _beside_idle(trained: AnyMixture, start: AnyMixture) -> AnyMixture:
    """The same with the factors that training went without: other rows may wake them."""
    part, before = numeric_part(trained.density), numeric_part(start.density)
    if not (isinstance(part, LowRankForm) and isinstance(before, LowRankForm)):
        return trained
    return replace(trained, density=with_numeric_part(trained.density, part.beside_idle(before)))


def _knowing(models: Sequence[Trained], evidence: HoleEvidence | None) -> list[Trained]:
    """The models of trials, with what holes tell in each."""
    if evidence is None:
        return list(models)
    parts = evidence.split(len(models))
    return [replace(each, evidence=part) for each, part in zip(models, parts, strict=True)]


def margin_bound(mixture: Mixture, term: Objective, engine: Engine) -> float:
    """sum of hinge(margin - log-margin) / margin: no fewer than the training errors."""
    if mixture.n_classes == 1:
        return 0.0
    wanted = term if isinstance(term, LogMargin) else Margin()
    moved = mixture.to(engine.device)

    def sums(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            margin = log_margin(moved.class_log_joint(batch), batch.y, wanted.smoothness)
        short = (wanted.margin - margin.double()).clamp_min(0.0) * batch.weight
        return {"short": short[batch.y >= 0].sum()}

    return float(engine.sum(sums, moved)["short"] / wanted.margin)


def class_counts(engine: Engine, class_prior: np.ndarray) -> np.ndarray:
    """(C,) weight of the rows of each class; unlabeled rows are shared out by the prior."""
    y, weight = engine.y.cpu().numpy(), engine.weight.double().cpu().numpy()
    counted = class_masses(y, weight, len(class_prior))
    unlabeled = weight[y < 0].sum() if y.min(initial=0) < 0 else 0.0
    return counted + unlabeled * class_prior
