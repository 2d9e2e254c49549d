"""Which plan: several are tried on rows held back from them. Calibration falls out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from mixtura.engines import Engine
from mixtura.estimators.plan import Plan
from mixtura.models.mixture import Mixture
from mixtura.selection.calibration import Unseen

Fold = tuple[Engine, Engine]
#: Trains a plan on some rows.
Solve = Callable[[Engine, Plan], Mixture]

#: Rows, judged by models that had not seen them, that settle a comparison; and the folds that
#: decide whether a challenger is worth more.
_ENOUGH, _GLIMPSE = 200, 2


@dataclass
class Contender:
    """A plan, and what its models say of rows they were not trained on, fold by fold."""

    plan: Plan
    parts: list[Unseen] = field(default_factory=list)

    def meet(self, fold: Fold, solve: Solve) -> None:
        """Train on one part, judge the other; all contenders meet the same holes."""
        train, held_back = fold
        holes = torch.Generator().manual_seed(len(self.parts))
        self.parts.append(Unseen.judged(solve(train, self.plan), held_back, holes))

    def loss(self, n_folds: int | None = None) -> float:
        """Log-loss after calibration: it tells models apart on far fewer rows than errors do."""
        loss = Unseen.pool(self.parts[:n_folds]).calibrated_loss()
        return loss if math.isfinite(loss) else math.inf


def compare(plans: list[Plan], folds: Iterable[Fold], solve: Solve) -> Contender:
    """The plan that does best on held-back rows: two survive the first fold, one the second."""
    contenders = [Contender(plan) for plan in plans]
    judged = 0
    for number, fold in enumerate(folds):
        for contender in contenders:
            contender.meet(fold, solve)
        if len(contenders) > 1:
            contenders = sorted(contenders, key=Contender.loss)[: 2 if number == 0 else 1]
        judged += len(fold[1])
        if judged >= _ENOUGH:
            break
    return contenders[0]


def challenge(champion: Contender, plans: list[Plan], folds: list[Fold], solve: Solve) -> Contender:
    """The champion, or the plan that beats it on the first folds; that one then meets them all."""
    glimpse = min(_GLIMPSE, len(champion.parts))
    for plan in plans:
        challenger = Contender(plan)
        for fold in folds[:glimpse]:
            challenger.meet(fold, solve)
        if challenger.loss() < champion.loss(glimpse):
            for fold in folds[glimpse : len(champion.parts)]:
                challenger.meet(fold, solve)
            champion = challenger
    return champion


def judge(plan: Plan, folds: Iterable[Fold], solve: Solve) -> Contender:
    """A plan that has met all folds."""
    contender = Contender(plan)
    for fold in folds:
        contender.meet(fold, solve)
    return contender


def clearly_better(
    champion: Contender,
    plans: list[Plan],
    folds: list[Fold],
    solve: Solve,
    beats: Callable[[Unseen, Unseen], bool] = Unseen.clearly_beats,
) -> Contender:
    """The champion, or the plan that clearly beats it on all its folds."""
    for plan in plans:
        challenger = judge(plan, folds[: len(champion.parts)], solve)
        if beats(Unseen.pool(challenger.parts), Unseen.pool(champion.parts)):
            champion = challenger
    return champion
