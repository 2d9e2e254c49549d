"""Mixtures over features and targets, trained to explain both, to predict targets, or both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mixtura.engines import Contrast, Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.objectives import Likelihood, likelihood_share
from mixtura.progress import Progress
from mixtura.solvers import LBFGS, FitResult, SpreadPrior
from mixtura.training.groups import Folds, Groups, Recipe, fit_groups

Trained = FitResult[Mixture]


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
    """

    recipe: Recipe
    count: int
    tradeoff: float
    n_targets: int
    solver: LBFGS
    marginals: str = "linear"

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
        start = fit_groups(groups, [self.count], self.recipe, generator, progress)
        begun = [
            replace(results[0], prior=start.prior(trial))
            for trial, results in enumerate(start.results)
        ]
        if self.tradeoff == 1.0:
            return begun
        rows, assignment = groups.part([0])
        stack = MixtureStack.of([each.model for each in begun], assignment)
        prior = SpreadPrior.stacked([each.prior for each in begun], stack.layout.n_components)
        share = likelihood_share(self.tradeoff, rows.values_per_row)
        contrasted = rows.seen(Contrast(self.n_targets, share))
        found = self.solver.run(
            stack, Likelihood(), contrasted, progress, generator=generator, prior=prior
        )
        return [
            replace(each, model=found.model[place], n_iter=found.n_iter, converged=found.converged)
            for place, each in enumerate(begun)
        ]

    def train(self, engine: Engine, generator: torch.Generator, progress: Progress) -> Trained:
        """The mixture of all rows."""
        return self.trials(engine, Folds.none(engine), generator, progress)[0]
