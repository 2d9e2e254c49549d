"""What the components of class mixtures begin with: clusters of rows, leaves of a tree, or rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mixtura.data.curves import KINDS
from mixtura.densities import Diagonal
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.progress import Progress
from mixtura.solvers import FitResult
from mixtura.training.groups import NOTHING, Folds, Groups, fit_groups
from mixtura.training.kernels import Kernels
from mixtura.training.leaves import leaf_start

if TYPE_CHECKING:
    from mixtura.training.hybrid import Plan

#: Of leaves: variances, imagined rows, share of the likelihood, iterations, and the gain that ends
#: them; of rows: the variances that they are printed with, widths are learned.
_LEAF, _LEAF_ROWS, _RULES, _SHARPENING = Diagonal(0.1), 1.0, 0.1, (60, 1e-4)
_ROW = Diagonal(0.3)


class Beginning(ABC):
    """Where components come from, and what that asks of a plan.

    Attributes
    ----------
    name : of such models among those that are averaged; "" if they are named after their units.
    units : how columns of numbers are mapped then.
    needs : what must be left open, or known, for such a model to stand beside another one.
    alike : whether the models of all folds have like components, and are trained as one.
    ready : whether nothing is left to train.
    """

    name: str = ""
    units: str = ""
    needs: tuple[str, ...] = ()
    alike: bool = True
    ready: bool = False

    def adapted(self, way: Plan) -> Plan:
        """What such models are like, else as planned."""
        return way

    @abstractmethod
    def models(
        self,
        plan: Plan,
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        """A mixture per trial, from the rows that it is shown."""


class _Clusters(Beginning):
    """EM on the labeled rows of every class, from clusters of them."""

    def models(
        self,
        plan: Plan,
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        if engine not in folds.groups:
            folds.groups[engine] = Groups.by_class(engine, len(plan.log_prior), folds)
        start = fit_groups(folds.groups[engine], plan.counts, plan.recipe, generator, progress)
        return start.joined(plan.log_prior.to(engine.device), plan.learn_prior)


class _Leaves(Beginning):
    """Leaves of a tree, by variances of few rows.

    Unlabeled rows are set aside: they would move leaves to where they lie.
    """

    name, units = "leaves", KINDS[1]
    needs = ("components", "objective", "solver", "holes")
    alike = False

    def adapted(self, way: Plan) -> Plan:
        recipe = replace(way.recipe, structure=_LEAF, prior_rows=_LEAF_ROWS, informative=False)
        weight = None if way.unlabeled_weight is None else 0.0
        way = replace(way, recipe=recipe, tradeoff=_RULES, unlabeled_weight=weight)
        return way.limited(*_SHARPENING)

    def models(
        self,
        plan: Plan,
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        return [leaf_start(engine, plan.recipe, plan.log_prior, plan.learn_prior, generator)]


class _Rows(Beginning):
    """Kernel densities of the rows of each trial; that of all rows goes on from another's."""

    name, units = "kernels", KINDS[0]
    needs = ("components", "trial")
    ready = True

    def adapted(self, way: Plan) -> Plan:
        return replace(way, recipe=replace(way.recipe, structure=_ROW, informative=False))

    def models(
        self,
        plan: Plan,
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        trained, widths = list[FitResult[Mixture]](), None
        for trial, held_out in enumerate(folds.held_out):
            kernels = Kernels(folds.shown(engine, trial), plan.log_prior, generator)
            widths = kernels.learn(widths if held_out == NOTHING else None)
            trained.append(FitResult(kernels.mixture(widths), math.nan, 0, True))
        return trained


CLUSTERS, LEAVES, KERNELS = _Clusters(), _Leaves(), _Rows()
#: Those that models are named after.
NAMED = {each.name: each for each in (LEAVES, KERNELS)}
