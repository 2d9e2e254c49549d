"""How likely rows are that a model has not seen: the thresholds of `is_outlier`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura.data import UNLABELED, Batch, Table
from mixtura.densities import Statistics, add_statistics, scale_statistics
from mixtura.engines import LocalEngine
from mixtura.mixture import Mixture
from mixtura.trainers.base import SpreadPrior
from mixtura.trainers.em import em_update

#: Parts of the rows that are left out in turn.
_FOLDS = 10
#: A component that loses all but this share of its mass stays as it is.
_LOST = 1e-6

#: Of a mixture and a batch, (n,).
Score = Callable[[Mixture, Any], Tensor]


def run_over(model: Any, table: Table, function: Callable[[Any, Batch], Tensor]) -> Tensor:
    """`function` of every row of a table under the model, in double precision on the CPU."""
    moved = model.to(table.device)
    engine = LocalEngine(table)
    return engine.concat(lambda batch: function(moved, batch).double(), moved.density)


def log_density(mixture: Mixture, batch: Batch) -> Tensor:
    """log p(x) of each row in the model's units."""
    return mixture.class_log_joint(batch).logsumexp(1)


def filled_log_density(mixture: Mixture, batch: Batch) -> Tensor:
    """log p of each row with its holes filled by their conditional means."""
    unlabelled = torch.full_like(batch.y, UNLABELED)
    filled = batch.x
    if batch.observed is not None:
        filled = mixture.impute(replace(batch, y=unlabelled))
    untold = torch.full_like(batch.lacks(), -1)  # nor do holes make a row unlikely
    return log_density(mixture, replace(batch, x=filled, observed=None, absent=untold))


def held_out_scores(
    mixture: Mixture, table: Table, score: Score, prior: SpreadPrior | None = None
) -> Tensor:
    """(n,) scores of the training rows, as of a model that was fitted without them.

    Statistics are additive, so a step of EM without a tenth of the rows costs little more than
    summing theirs. What leaving a row out costs it there is taken off its score under the mixture,
    which may have been trained for another objective. Densities without closed-form updates are
    scored as they are: their thresholds are in-sample.
    """
    mixture = mixture.to(table.device)
    scores = run_over(mixture, table, score)
    if not mixture.density.closed_form:
        return scores
    whole = _statistics(mixture, table)
    lost = -run_over(em_update(mixture, whole, prior), table, score)
    for fold in range(_FOLDS):
        index = np.arange(fold, len(table), _FOLDS)
        if len(index):
            part = table.subset(index)
            without = em_update(mixture, _without(whole, _statistics(mixture, part)), prior)
            lost[index] += run_over(without, part, score)
    return scores + lost.clamp_max(0.0).nan_to_num(0.0)


def _statistics(mixture: Mixture, table: Table) -> Statistics:
    """Expected statistics of all rows under the posterior of the components."""

    def statistics(batch: Any) -> Statistics:
        with torch.no_grad():
            occupancy = mixture.posterior(batch) * batch.weight[:, None]
        return mixture.density.statistics(batch, occupancy)

    return LocalEngine(table).sum(statistics, mixture.density)


def _without(whole: Statistics, part: Statistics) -> Statistics:
    """What is left; nothing at all of a component that is left with no more than rounding."""
    rest = add_statistics(whole, scale_statistics(part, -torch.ones_like(part["mass"])))
    kept = rest["mass"] > _LOST * whole["mass"]
    return scale_statistics(rest, kept.to(rest["mass"]))
