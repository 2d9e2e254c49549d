"""What the components of class mixtures begin with: clusters of rows, leaves of a tree, or rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from mixtura.training.slopes import by_slopes

if TYPE_CHECKING:
    from mixtura.training.hybrid import Plan

#: Share of the likelihood for rules, curves and squares, that are to tell classes apart far more
#: than to explain rows.
TELLING = 0.1
#: Of leaves: variances, imagined rows, iterations, and the gain that ends them. Of kernels:
#: variances by name alone, since widths are learned.
_LEAF, _IMAGINED, _SHARPENING = Diagonal(0.1), 1.0, (60, 1e-4)
_KERNEL, _SLOPED = Diagonal(0.3), Diagonal(1.0)


@dataclass(frozen=True)
class Beginning:
    """Where components come from, and what that asks of a plan.

    Attributes
    ----------
    models : a mixture per trial, from the rows that it is shown.
    name : of such models among those that are averaged; "" if they are named after their units.
    units : how columns of numbers are mapped then.
    needs : what must be left open, or known, for such a model to stand beside another one.
    alike : whether the models of all folds have like components, and are trained as one.
    ready : whether nothing is left to train.
    finds : whether units are found with labels: rows that judge such a model must not be shown.
    adapted : a plan of such models.
    """

    models: Callable[[Plan, Engine, Folds, torch.Generator, Progress], list[FitResult[Mixture]]]
    name: str = ""
    units: str = ""
    needs: tuple[str, ...] = ()
    alike: bool = True
    ready: bool = False
    finds: bool = False
    adapted: Callable[[Plan], Plan] = lambda way: way


def _by_clusters(
    plan: Plan, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
) -> list[FitResult[Mixture]]:
    """EM on the labeled rows of every class, from clusters of them."""
    if engine not in folds.groups:
        folds.groups[engine] = Groups.by_class(engine, len(plan.log_prior), folds)
    start = fit_groups(folds.groups[engine], plan.counts, plan.recipe, generator, progress)
    return start.joined(plan.log_prior.to(engine.device), plan.learn_prior)


def _with_squares(way: Plan) -> Plan:
    return replace(way, tradeoff=TELLING)


def _by_leaves(
    plan: Plan, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
) -> list[FitResult[Mixture]]:
    return [leaf_start(engine, plan.recipe, plan.log_prior, plan.learn_prior, generator)]


def _with_leaves(way: Plan) -> Plan:
    """By variances of few rows; unlabeled ones would move leaves to where they lie."""
    recipe = replace(way.recipe, structure=_LEAF, prior_rows=_IMAGINED, informative=False)
    weight = None if way.unlabeled_weight is None else 0.0
    way = replace(way, recipe=recipe, tradeoff=TELLING, unlabeled_weight=weight)
    return way.limited(*_SHARPENING)


def _by_rows(
    plan: Plan, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
) -> list[FitResult[Mixture]]:
    """Kernel densities of the rows of each trial; that of all rows goes on from another's."""
    trained, widths = list[FitResult[Mixture]](), None
    for trial, held_out in enumerate(folds.held_out):
        kernels = Kernels(folds.shown(engine, trial), plan.log_prior, generator)
        widths = kernels.learn(widths if held_out == NOTHING else None)
        trained.append(FitResult(kernels.mixture(widths), math.nan, 0, True))
    return trained


def _with_kernels(way: Plan) -> Plan:
    return replace(way, recipe=replace(way.recipe, structure=_KERNEL, informative=False))


def _by_slopes(
    plan: Plan, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
) -> list[FitResult[Mixture]]:
    """Each beside what holes tell in its trial, which slopes are not to learn."""
    count, evidence = len(folds.held_out), plan.evidence(engine, folds)
    told = [None] * count if evidence is None else evidence.split(count)
    models = (
        by_slopes(folds.shown(engine, trial), plan.log_prior, own, progress)
        for trial, own in enumerate(told)
    )
    return [FitResult(each, math.nan, 0, True) for each in models]


def _with_slopes(way: Plan) -> Plan:
    return replace(way, recipe=replace(way.recipe, structure=_SLOPED, informative=False))


_POWER, _RANKS = KINDS
CLUSTERS = Beginning(_by_clusters)
_FREE = ("components", "objective", "solver", "holes")
QUADRATIC = Beginning(_by_clusters, "quadratic", _POWER, _FREE, adapted=_with_squares)
LEAVES = Beginning(_by_leaves, "leaves", _RANKS, _FREE, alike=False, adapted=_with_leaves)
_KNOWN = ("components", "trial")
KERNELS = Beginning(_by_rows, "kernels", _POWER, _KNOWN, ready=True, adapted=_with_kernels)
RULES = Beginning(
    _by_slopes, "rules", "rules", _FREE, False, ready=True, finds=True, adapted=_with_slopes
)
SLOPES = Beginning(_by_slopes, "slopes", _POWER, _FREE, ready=True, adapted=_with_slopes)
#: Those that models are named after.
NAMED = {each.name: each for each in (QUADRATIC, LEAVES, KERNELS, RULES, SLOPES)}
