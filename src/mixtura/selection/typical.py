"""How likely rows are that a model has not seen: the thresholds of `is_outlier`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mixtura.conformal import HeldBack
from mixtura.constants import SHARES
from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.densities import Statistics
from mixtura.densities.base import add_statistics, scale_statistics
from mixtura.engines import Engine
from mixtura.models.fitted import Fitted, PerValue, in_deviations, run_over, typicality
from mixtura.models.held_back import MOST_HELD_BACK, held_back_of
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.progress import Progress
from mixtura.solvers import SpreadPrior
from mixtura.solvers.em import em_update

#: Parts of the rows that are left out in turn; fewer where the models without them are kept.
_FOLDS, _FEW_FOLDS = 10, 4
#: A component that would lose all but this share of its mass loses nothing.
_LOST = 1e-6
#: So many different rows are scored at most, and so many where time is short.
_MOST, _FEW = 3_000, 500
#: Least values that tell of a tail: so many at most, or one in so many.
_TAIL = 10
#: Rounds of least squares, the least variance of scores per value, and that of a normal value.
_ROUNDS, _LEAST, _OWN = 3, 1e-12, 0.5
#: Numbers of statistics up to which all steps are one: memory for some more of them is no matter.
_SMALL = 1_000_000
#: What held-out scores cost, in passes of plain ones; and the share of a limit of time that they
#: may take even where less of it is left.
_PASSES, _SHARE = 6.0, 0.1


def typical_quantiles(
    mixture: Mixture,
    engine: Engine,
    prior: SpreadPrior | None,
    progress: Progress,
    held_out: Sequence[tuple[Mixture, Engine]] = (),
) -> np.ndarray:
    """(1001,) quantiles of what training rows would score, had the mixture not seen them.

    `held_out` are models like the mixture, each with rows that it had not seen: a step of EM
    forgets rows with holes, or of few per parameter, only in part.
    """
    if held_out:
        found, rows = _as_if_unseen(mixture, engine, held_out)
    else:
        found, rows = typical_scores(mixture, engine, prior, progress)
    return weighted_quantiles(*(each.double().cpu().numpy() for each in (found, rows.weight)))


def _as_if_unseen(
    mixture: Mixture, engine: Engine, held_out: Sequence[tuple[Mixture, Engine]]
) -> tuple[Tensor, Engine]:
    """Scores of training rows, or of a sample, and the rows.

    Each is less by what the held-out row that scores most like it loses where it was held out: some
    rows, and those without labels, never are.
    """
    rows = engine.merged(_MOST)
    own = run_over(mixture, rows, typicality)
    seen = torch.cat([run_over(mixture, each, typicality) for _, each in held_out])
    lost = seen - torch.cat([run_over(model, each, typicality) for model, each in held_out])
    seen, order = seen.sort()
    lost = lost.nan_to_num(0.0)  # of rows that no model can score
    return own - lost[order][torch.searchsorted(seen, own).clamp_max(len(seen) - 1)], rows


def typical_sequences(
    mixture: Mixture,
    engine: Engine,
    progress: Progress,
    held_out: Sequence[tuple[Mixture, Engine]] = (),
) -> tuple[np.ndarray, PerValue]:
    """The same of sequences, in deviations, so that short ones count as long ones do; and these.

    Those that were held out from models like the mixture go by what these make of them.
    """
    judged = [(run_over(each, rows, typicality), rows) for each, rows in held_out]
    judged = judged or [typical_scores(mixture, engine, None, progress)]
    parts = [
        (found, rows.concat(lambda batch: batch.n_values(), mixture), rows.weight)
        for found, rows in judged
    ]
    columns = (torch.cat(each).double().cpu().numpy() for each in zip(*parts, strict=True))
    scores, count, weight = columns
    per_value = _per_value(scores, count, weight)
    return tail_quantiles(in_deviations(scores, count, per_value), weight), per_value


def tail_quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(1001,) quantiles, at `SHARES`, of what few values are draws of.

    Below the least of them, and a few more, the tail is an exponential one, whose scale is as
    uncertain as they leave it.
    """
    order = np.argsort(values)
    values, share = values[order], np.cumsum(weight[order]) / weight.sum()
    share *= len(values) / (len(values) + 1.0)
    last = min(_TAIL, max(2, len(values) // _TAIL), len(values)) - 1
    found, rare = np.interp(SHARES, share, values), np.searchsorted(SHARES, share[last])
    rarer = share[last] / np.maximum(SHARES[:rare], 0.5 * SHARES[1])
    excess = (values[last] - values[:last]).sum()
    found[:rare] = values[last] - excess * (rarer ** (1.0 / max(last, 1)) - 1.0)
    return found


def _per_value(scores: np.ndarray, count: np.ndarray, weight: np.ndarray) -> PerValue:
    """Means and variances of scores are lines over 1 / count, by weighted least squares.

    That of one value varies as that of a normal one at least, unless all vary less; and first
    frames cost, as nothing tells of them.
    """
    inverse, (own, common) = 1.0 / count, (0.0, 1.0)
    for _ in range(_ROUNDS):
        variance = np.maximum(own * inverse + common, _LEAST)
        first, mean = _line(inverse, scores, weight / variance)
        if first > 0.0:
            first, mean = 0.0, float(np.average(scores, weights=weight / variance))
        square, share = (scores - mean - first * inverse) ** 2, weight / variance**2
        own, common = _line(inverse, square, share)
        if own < _OWN:
            own, common = _OWN, float(np.average(square - _OWN * inverse, weights=share))
        if common < 0.0:
            own, common = float(np.average(square * count, weights=share)), 0.0
    return mean, first, own, max(common, _LEAST)


def _line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Slope, none where x is always the same, and height at zero."""
    center, level = np.average(x, weights=weight), np.average(y, weights=weight)
    off = weight * (x - center)
    spread = off @ (x - center)
    slope = off @ y / spread if spread > _LEAST * weight.sum() else 0.0
    return float(slope), float(level - slope * center)


def weighted_quantiles(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(1001,) quantiles, at `SHARES`, of values that count as often as their weight says."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    place = np.searchsorted(share, SHARES - 1e-12)
    return values[order][place.clip(max=len(values) - 1)]


def typical_scores(
    mixture: Mixture, engine: Engine, prior: SpreadPrior | None, progress: Progress
) -> tuple[Tensor, Engine]:
    """Scores of training rows, or of a sample, as of a model that has not seen them; and the rows.

    Where a limit of time leaves too little for that, the scores of a few rows as they are.
    """
    rows = engine.merged(_MOST)
    if progress.limited:
        few, began = rows.merged(_FEW), progress.seconds
        scores = run_over(mixture, few, typicality)
        pace = (progress.seconds - began) / len(few)
        allowed = max(progress.seconds_left, _SHARE * progress.max_time)
        if _PASSES * pace * len(rows) > allowed:
            return scores, few
    stand_for = float(engine.weight.double().sum() / rows.weight.double().sum())
    return held_out_scores(mixture, rows, prior, stand_for), rows


def held_out_scores(
    mixture: Mixture,
    engine: Engine,
    prior: SpreadPrior | None = None,
    stand_for: float = 1.0,
    score: Callable[[Mixture, Batch], Tensor] = typicality,
) -> Tensor:
    """(n,) scores of training rows in random order, as of a model that was fitted without them.

    What leaving a row out costs it after a step of EM is taken off its score under the mixture,
    which may have been trained for another objective. Densities without closed-form updates are
    scored as they are: their thresholds are in-sample.
    """
    mixture = mixture.to(engine.device)
    if not mixture.density.closed_form:
        return run_over(mixture, engine, score)
    folds = [np.arange(fold, len(engine), _FOLDS) for fold in range(min(_FOLDS, len(engine)))]
    rows = [engine.take(index) for index in folds]
    parts = [_statistics(mixture, each) for each in rows]
    whole, *without = _steps(mixture, parts, prior, stand_for)
    lost = -run_over(whole, engine, score)
    for index, model, each in zip(folds, without, rows, strict=True):
        lost[index] += run_over(model, each, score)
    return run_over(mixture, engine, score) + lost.clamp_max(0.0).nan_to_num(0.0, neginf=0.0)


def without_each_fold(
    mixture: Mixture, engine: Engine, stand_for: float
) -> list[tuple[np.ndarray, Mixture]]:
    """Folds of the rows, and what a step of EM without each of them makes of the mixture.

    A row stands for so many rows of training. Densities without such a step are what they are, for
    all rows.
    """
    if not mixture.density.closed_form:
        return [(np.arange(len(engine)), mixture)]
    mixture = mixture.to(engine.device)
    folds = [np.arange(fold, len(engine), _FOLDS) for fold in range(min(_FOLDS, len(engine)))]
    parts = [_statistics(mixture, engine.take(index)) for index in folds]
    return list(zip(folds, _steps(mixture, parts, None, stand_for)[1:], strict=True))


def held_back_rows(mixture: Mixture, engine: Engine, prior: SpreadPrior | None) -> HeldBack | None:
    """Rows of training that a step of EM can do without; None where densities have no such step."""
    if not mixture.density.closed_form:
        return None
    rows = engine.only(engine.labeled).merged(MOST_HELD_BACK)
    held_back = held_back_of(rows, torch.arange(len(rows)) % _FEW_FOLDS, [])
    assert held_back is not None
    known = None if prior is None else (prior.rows, prior.reference.cpu())
    return replace(held_back, total_weight=engine.total_weight, prior=known)


def with_models(model: Fitted, held_back: HeldBack, device: Device) -> HeldBack:
    """Rows that are held back, with models that have not seen those of each fold."""
    engine = model.engine(Matrix(held_back.values), device, held_back.y)
    models = _models_without(model.mixture, engine, held_back)
    return replace(held_back, models=tuple((each.to("cpu", torch.float64),) for each in models))


def _models_without(mixture: Mixture, engine: Engine, held_back: HeldBack) -> list[Mixture]:
    """What a step of EM without each fold of these rows makes of the mixture."""
    mixture = mixture.to(engine.device)
    weight = torch.from_numpy(held_back.weight).to(engine.weight)
    engine = engine.with_answers(weight=weight)
    folds = [np.flatnonzero(held_back.fold == fold) for fold in np.unique(held_back.fold)]
    parts = [_statistics(mixture, engine.take(index)) for index in folds]
    prior = None
    if held_back.prior is not None:
        rows, spread = held_back.prior
        prior = SpreadPrior(rows, spread.to(engine.device))
    return _steps(mixture, parts, prior, held_back.total_weight / engine.total_weight)[1:]


def _steps(
    mixture: Mixture, parts: Sequence[Statistics], prior: SpreadPrior | None, stand_for: float
) -> list[Mixture]:
    """A step of EM with all rows, and one without each part of them.

    Statistics are additive, so that a step without some rows costs little more than summing theirs.
    Each row of a sample stands for several rows of training, of which one is left out.
    """
    whole = add_statistics(*parts)
    whole = scale_statistics(whole, torch.full_like(whole["mass"], stand_for))
    left = [whole, *(_without(whole, part) for part in parts)]
    if len(left) * sum(each.numel() for each in whole.values()) > _SMALL:
        return [em_update(mixture, each, prior) for each in left]
    together = {name: torch.cat([each[name] for each in left]) for name in whole}
    everyone = Assignment.everyone(len(left), mixture.owner.device)
    stack = MixtureStack.of([mixture] * len(left), everyone)
    prior = SpreadPrior.stacked([prior] * len(left), mixture.n_components)
    found = em_update(stack, together, prior)
    return [found[place] for place in range(len(left))]


def _statistics(mixture: Mixture, engine: Engine) -> Statistics:
    """Expected statistics under the posterior of the components."""

    @torch.no_grad()
    def sums(batch: Batch) -> Statistics:
        log_prob, statistics = mixture.density.expectation(batch)
        occupancy = mixture.shares(mixture.weighted(log_prob), batch.y)
        return statistics(occupancy * batch.weight[:, None])

    return engine.sum(sums, mixture.density)


def _without(whole: Statistics, part: Statistics) -> Statistics:
    """What is left; all of a component that would be left with no more than rounding."""
    taken = whole["mass"] - part["mass"] > _LOST * whole["mass"]
    return add_statistics(whole, scale_statistics(part, -taken.to(part["mass"])))
