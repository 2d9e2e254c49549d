"""Mixtures over features and targets, trained to explain both, to predict targets, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.engines import Contrast, Engine, engine_of
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import spawn
from mixtura.objectives import Likelihood, likelihood_share
from mixtura.progress import Progress
from mixtura.solvers import LBFGS, FitResult, SpreadPrior
from mixtura.training.groups import Folds, Groups, Recipe, fit_groups
from mixtura.training.trees import grown

#: Rows that trees and what stands beside them learn from, at most; parts that each of the trees
#: does without one of.
_MOST_ROWS, _PARTS = 50_000, 4


@dataclass(frozen=True)
class Trained:
    """A mixture over features and targets, how training ended, and the units of its rows."""

    result: FitResult[Mixture]
    scaling: Scaling

    @property
    def mixture(self) -> Mixture:
        """What was trained."""
        return self.result.model


@dataclass(frozen=True)
class JointPlan:
    """How mixtures over features and targets are trained: nothing is left open.

    What L-BFGS minimizes is the likelihood of rows beside copies without their targets, of negative
    weight: by that, -log p(y | x) and a share of -log p(x).

    Attributes
    ----------
    recipe : of the start, by EM.
    count : components.
    tradeoff : share of the likelihood of whole rows, per observed value; 1 is generative.
    n_targets : how many of the last columns are targets.
    marginals : what features are mapped by.
    begin : models that training goes on from, one per trial, in place of a start by EM.
    """

    recipe: Recipe
    count: int
    tradeoff: float
    n_targets: int
    solver: LBFGS
    marginals: str = "linear"
    begin: tuple[Trained, ...] = ()

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {
            "n_components": self.count,
            "density": self.recipe.structure,
            "tradeoff": self.tradeoff,
            "marginals": self.marginals,
        }

    @property
    def together(self) -> bool:
        """Trials on all folds cost little more than one."""
        return True

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[Trained]:
        """The mixtures of trials; each learns from the rows of the other folds."""
        groups = Groups.everyone(engine, folds=folds)
        if self.begin and self.tradeoff < 1.0:
            begun = [self.begin[max(number, 0)].result for number in folds.held_out]
        else:
            start = fit_groups(groups, [self.count], self.recipe, generator, progress)
            begun = [
                replace(results[0], prior=start.prior(trial))
                for trial, results in enumerate(start.results)
            ]
        if self.tradeoff == 1.0:
            return [Trained(each, engine.scaling) for each in begun]
        rows, assignment = groups.part([0])
        stack = MixtureStack.of([each.model for each in begun], assignment)
        prior = SpreadPrior.stacked([each.prior for each in begun], stack.layout.n_components)
        share = likelihood_share(self.tradeoff, rows.values_per_row)
        contrasted = rows.seen(Contrast(self.n_targets, share))
        found = self.solver.run(
            stack, Likelihood(), contrasted, progress, generator=generator, prior=prior
        )
        return [
            Trained(
                replace(
                    each, model=found.model[place], n_iter=found.n_iter, converged=found.converged
                ),
                engine.scaling,
            )
            for place, each in enumerate(begun)
        ]

    def train(self, engine: Engine, generator: torch.Generator, progress: Progress) -> Trained:
        """The mixture of all rows."""
        return self.trials(engine, Folds.none(engine), generator, progress)[0]

    def going_on(self, begin: Sequence[Trained], share: float = 1.0) -> JointPlan:
        """The same from models of each trial on, with a share of the iterations."""
        return replace(self.limited(share), begin=tuple(begin))

    def limited(self, share: float) -> JointPlan:
        """The same with a share of the iterations."""
        count = max(1, round(share * self.solver.max_iter))
        return replace(self, solver=replace(self.solver, max_iter=count))


@dataclass(frozen=True)
class BesideTrees:
    """The same of rows that have one more feature per target: what boosted trees expect of it.

    Rows of training have it from trees that have not seen them, others from all trees; where the
    trees ask for what is missing, it is missing as well, and what the mixture says is unchanged.
    """

    plan: JointPlan

    @property
    def n_targets(self) -> int:
        return self.plan.n_targets

    @property
    def marginals(self) -> str:
        return self.plan.marginals

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return self.plan.settings | {"marginals": "trees"}

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterator[Trained]:
        """There is one."""
        yield self.train(engine, generator, progress)

    def going_on(self, begin: Sequence[Trained], share: float = 1.0) -> BesideTrees:
        """The same from models of each trial on, with a share of the iterations."""
        return replace(self, plan=self.plan.going_on(begin, share))

    def train(self, engine: Engine, generator: torch.Generator, progress: Progress) -> Trained:
        """The mixture of all rows, or of a sample of very many."""
        rows = engine.merged().sample(_MOST_ROWS, spawn(generator))
        fold, batch = rows.fold_numbers(_PARTS, spawn(generator)), rows.all_rows()
        values, weight = (each.double().cpu().numpy() for each in (batch.with_nan(), batch.weight))
        values, last = rows.scaling.invert(values), rows.n_features - self.n_targets
        trees, told = grown(values[:, :last], values[:, last:], weight, fold.numpy())
        location, scale = (
            np.insert(each, [last], each[last:])
            for each in (rows.scaling.location, rows.scaling.scale)
        )
        beside = Scaling(location, scale)
        whole = Matrix(np.insert(values, [last], told, axis=1))
        wider = engine_of(whole, rows.y.cpu().numpy(), weight, beside, rows.device)
        found = self.plan.train(wider, generator, progress)
        return replace(found, scaling=replace(beside, indicators=trees))
