"""The same plan for columns that are mapped by curves: instead of the plain one, or beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixtura.data.atoms import SUFFIX, n_patterns, shared_values
from mixtura.data.curves import KINDS, TAMED, Curves, has_far_values
from mixtura.data.indicators import MOST_INDICATORS, Indicators, quantile_knots
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine
from mixtura.estimators.plan import (
    ADDITIVE,
    INDICATORS,
    MANY_MISSING,
    Decision,
    by_indicators,
    from_trial,
)
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import Blend, Fitted
from mixtura.models.mixture import Mixture
from mixtura.numerics import anew, spawn
from mixtura.progress import Progress
from mixtura.selection.blend import Say
from mixtura.selection.chooser import MOST_COMPARED, Contender
from mixtura.selection.codes import gain_of_values
from mixtura.selection.held_out import Answers
from mixtura.selection.rules import ruled
from mixtura.training.beginnings import KERNELS, LEAVES, NAMED, QUADRATIC, RULES, SLOPES
from mixtura.training.hybrid import Plan, Trained

if TYPE_CHECKING:
    from mixtura.estimators.classifier import MixtureClassifier
    from mixtura.estimators.deciding import Learned

#: Rows that curves are learned from, at most; share of the time left that one model may take.
_CURVE_ROWS, _TIME = 20_000, 0.2
#: How many indicators there may be, and how many of few rows, where columns of numbers have no
#: knots; knots of such a column, as far as these allow; labeled rows from which a curve per column
#: is worth a try, and those per column up to which a slope for each is.
_MOST_COLUMNS, _MOST_OF_FEW, _ENOUGH, _WIDE = 300, 1_000, 400, 5
_KNOTS = {INDICATORS: range(8, 3, -1), ADDITIVE: range(16, 3, -1), RULES.units: range(16, 3, -1)}
#: Iterations, and the gain that ends them, after which leaves are compared with the first model;
#: rows that they learn from, at most.
_GLIMPSE, _LEAF_ROWS = (12, 1e-3), 20_000
#: Where rows are more than candidates are compared on: iterations of a model beside the first, and
#: after how many, of how many rows (where there are so many times as many), it goes on only if it
#: has so much say; the gain that ends them, and rows that each looks at, at most (rules: a row has
#: thousands); and rows that models are asked about together, so that all see the same holes.
_ITERATIONS, _FIRST, _FIRST_ROWS, _MANY_TIMES, _SOME = 40, 10, 10_000, 2, 0.03
_GAIN, _LARGE, _RULE_ROWS, _TOGETHER = 1e-4, 50_000, 40_000, 1_000
#: Sets of columns in which rows have atoms, at most: each takes a factorization per component.
_PATTERNS = 128

Trial = Contender[Plan, Trained]


def curved(engine: Engine, kind: str) -> Scaling:
    """The affine units of rows, and on along curves that are learned from them.

    With "+atoms", values that many rows share are left to probabilities.
    """
    if kind in _KNOTS:
        return _indicated(engine, kind)
    values, weight = _values(engine)
    kind, atoms, _ = kind.partition(SUFFIX)
    levels, scaling = engine.scaling.levels, engine.scaling
    shared = shared_values(values, weight, levels) if atoms else {}
    for column, each in shared.items():
        values[np.isin(values[:, column], each), column] = np.nan
    if kind in (*KINDS, TAMED):
        scaling = replace(scaling, curves=Curves.learn(kind, values, weight, levels))
    return scaling.with_atoms(shared)


def in_units(engine: Engine, marginals: str) -> Engine:
    """Rows in affine units, as they are or along curves of a kind."""
    return engine if marginals == "linear" else engine.under(curved(engine, marginals))


def has_far_numbers(engine: Engine) -> bool:
    """Whether a number lies so far from the others of its column that a curve is worth a trial."""
    return has_far_values(*_values(engine), engine.scaling.levels)


def _indicated(engine: Engine, kind: str) -> Scaling:
    """Indicators of categories and of numbers, and rules beside them, if that is what is asked."""
    own, different = engine.scaling, engine.merged(_CURVE_ROWS)
    (values, weight), (rows, counts) = _values(engine), _values(different)
    told = own.invert(rows), different.y.cpu().numpy(), counts
    knots = _knots(engine, kind, own.invert(values), weight, *told)
    found = Indicators.learn(own.invert(values), weight, own.levels, knots)
    if kind == RULES.units:
        found = ruled(found, *told, own.levels)
    return own.with_indicators(found)


def kinds_for(engine: Engine) -> list[str]:
    """Maps that are tried beside straight lines: with atoms, where rows have some in few ways.

    Within a component, categories are independent of all else, and numbers go together along lines;
    as indicators, neither is so.
    """
    values, weight = _values(engine)
    levels = engine.scaling.levels
    shared = shared_values(values, weight, levels)
    atoms = shared and n_patterns(values, shared) <= _PATTERNS
    kinds = [kind + SUFFIX if atoms else kind for kind in KINDS] if engine.n_numbers else []
    fits = engine.n_numbers <= _MOST_COLUMNS and _n_indicators(engine, 0) <= _n_most(engine)
    some = levels.any() and fits
    kinds = [*kinds, INDICATORS] if some or _n_knots(engine, INDICATORS) else kinds
    n_labeled = float(engine.weight[engine.labeled].sum())  # weights count rows
    enough, wide = n_labeled >= _ENOUGH, n_labeled < _WIDE * engine.n_numbers
    kinds = [*kinds, ADDITIVE] if enough and _n_knots(engine, ADDITIVE) else kinds
    kinds = [*kinds, RULES.name] if enough and fits else kinds
    narrow = engine.n_features <= _MOST_COLUMNS
    squares = narrow and _has_pairs(values, levels)
    kinds = [*kinds, QUADRATIC.name] if squares else kinds
    few = len(engine) <= _LARGE and narrow
    kinds = [*kinds, LEAVES.name] if few else kinds
    if max(len(engine), engine.total_weight) > MOST_COMPARED:
        return kinds
    return [*kinds, *([SLOPES.name] if wide and not levels.any() else []), KERNELS.name]


def _has_pairs(values: np.ndarray, levels: np.ndarray) -> bool:
    """Whether rows (n, D) have two columns of numbers or more, and most of their entries."""
    told = ~np.isnan(values).all(0)
    return (levels[told] == 0).sum() > 1 and bool(np.isnan(values[:, told]).mean() < MANY_MISSING)


def _knots(
    engine: Engine,
    kind: str,
    values: np.ndarray,
    weight: np.ndarray,
    rows: np.ndarray,
    y: np.ndarray,
    counts: np.ndarray,
) -> dict[int, np.ndarray]:
    """The knots of columns of numbers (n, D): all values of codes, as far as there is room.

    Different rows (m, D) with labels, and how often there are such ones, tell what are codes.
    """
    most = _n_knots(engine, kind)
    if not most:
        return {}
    numbers = np.flatnonzero(engine.scaling.levels == 0).tolist()
    knots = {c: quantile_knots(values[:, c], weight, most) for c in numbers}
    room = _MOST_COLUMNS - _n_indicators(engine, most)
    gains = {c: gain_of_values(rows[:, c], y, counts) for c in numbers}
    for column in sorted(filter(gains.get, gains), key=gains.__getitem__, reverse=True):
        every = quantile_knots(values[:, column], weight, len(values))
        if len(every) - most <= room:
            knots[column], room = every, room - len(every) + most
    return knots


def _n_knots(engine: Engine, kind: str) -> int:
    """Knots per column of numbers: none of many columns, or for pairs of many rows: long work."""
    if not engine.n_numbers or (kind == INDICATORS and len(engine) > _LARGE):
        return 0
    fitting = (n for n in _KNOTS[kind] if _n_indicators(engine, n) <= _MOST_COLUMNS)
    return next(fitting, 0)


def _n_most(engine: Engine) -> int:
    """Indicators without knots, at most: no more entries than very many rows would have."""
    return max(_MOST_COLUMNS, min(_MOST_OF_FEW, _MOST_COLUMNS * _LARGE // len(engine)))


def _n_indicators(engine: Engine, n_knots: int) -> int:
    """Indicators, and numbers as they are, at most."""
    words = (min(max(level - 1, 1), MOST_INDICATORS) for level in engine.levels if level)
    return sum(words) + engine.n_numbers * max(n_knots - 1, 1)


def _values(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """(n, D) a copy of the rows, or of some, NaN where missing; their weights (n,)."""
    step = -(-len(engine) // _CURVE_ROWS)
    batch = engine.take(np.arange(0, len(engine), step)).all_rows()
    return batch.with_nan().double().cpu().numpy(), batch.weight.double().cpu().numpy()


def try_beside(decision: Decision, ways: Sequence[Plan]) -> list[Trial]:
    """Ways in other units, those that time allows to try on all rows that were compared on."""
    units = cache(partial(curved, decision.every))  # kernels have those of powers
    tried = [_tried(decision, way, units) for way in ways if decision.chooser.in_time()]
    return [each for each in tried if each.won]


def _tried(decision: Decision, way: Plan, units: Callable[[str], Scaling]) -> Trial:
    if way.beginning.finds:
        if decision.saw_all or not decision.plan.solver.held_out_share:
            found = partial(curved, kind=way.marginals)
            return decision.chooser.try_found(way, found, "marginals", beside=decision.trial)
        entered = decision.chooser.enter(way, "marginals")
        entered.won = True
        return entered
    scaling = units(way.marginals)
    if way.marginals in _KNOTS:
        way = by_indicators(way, len(scaling.location))
    chooser = decision.chooser.under(scaling)
    if way.beginning.alike:
        return chooser.try_out(way, "marginals", whole=decision.saw_all)
    tried = chooser.try_out(way.limited(*_GLIMPSE), "marginals", beside=decision.trial)
    if tried.won:
        chooser.deepen(tried, replace(way, begin=tried.models))
    return tried


def in_time(others: Sequence[Trial], progress: Progress) -> list[Trial]:
    """Those that may still be trained: growing trees does not look at the clock."""
    for each in others:
        each.won = not each.way.beginning.finds or progress.leaves_time(1.0 - _TIME)
    return [each for each in others if each.won]


def best_of(decision: Decision, others: Sequence[Trial]) -> tuple[Decision, list[Trial]]:
    """What was decided, or the same in other units, if that surely predicts held-out labels better.

    The others stand beside it; where rows are very many, only those that are of another kind.
    """
    beside = list[Trial]()
    for each in others:
        held_out, best, way = each.held_out(), decision.held_out, each.way
        same = way.name not in (*_KNOTS, *NAMED) and way.term == decision.plan.term
        if same and held_out is not None and best is not None and held_out.surely_beats(best):
            plan = replace(way, solver=decision.plan.solver)
            engine = decision.engine.under(each.scaling)
            decision = replace(decision, plan=plan, engine=engine, trial=each, held_out=held_out)
        elif not same or decision.engine.total_weight <= _LARGE:
            beside.append(each)
        else:
            each.won = False
    return decision, beside


def _trained(
    trial: Trial,
    estimator: MixtureClassifier,
    decision: Decision,
    rows: Engine,
    generator: torch.Generator,
    progress: Progress,
    count: int,
    most: int,
    latest: Trained | None,
) -> Trained:
    """A model of the rows, or of some, from the latest or one of the trial on, if there is one.

    It takes `count` iterations, of so many rows at `most`, where their number is left to us. Leaves
    and rules are those of other trees, which for rules learn from as many: of more, these have
    more.
    """
    way = replace(trial.way, solver=decision.plan.solver)
    plan, begin = from_trial(estimator, way, trial)
    trees, finds = not way.beginning.alike, way.beginning.finds
    limited = estimator.solver == "auto" and begin is None and not trees
    saw_all = len(rows) <= _MANY_TIMES * _FIRST_ROWS
    if latest is not None and not finds and ((saw_all and latest.converged) or not limited):
        return latest
    if trees:
        most = min(most, _RULE_ROWS) if finds else _LEAF_ROWS
        plan, begin = replace(trial.way, begin=()), None
        plan = plan.limited(_ITERATIONS, _GAIN) if len(rows) > MOST_COMPARED else plan
        rows = rows.sample(most, generator)
    elif limited:
        plan, rows = plan.limited(count, _GAIN), rows.sample(most, generator)
        begin = latest or next(iter(trial.models), None)
    if finds:
        trial.scaling, rows = curved(rows, way.marginals), rows.lazily()
    engine = rows.under(trial.scaling)
    return plan.train(engine, generator, progress.part(_TIME), previous=begin)


def _weighed(
    first: Trained,
    others: Sequence[tuple[Trained, Trial]],
    rows: Engine,
    generator: torch.Generator,
    trusts_holes: bool,
) -> Say:
    """By what all say of rows that none was shown, the same for the same random numbers.

    A few rows at a time: in the units of rules, one has thousands of numbers.
    """
    models = [(first, rows.scaling), *((model, trial.scaling) for model, trial in others)]
    draws, said = [anew(generator) for _ in models], [list[Answers]() for _ in models]
    for start in range(0, len(rows), _TOGETHER):
        some = rows.take(np.arange(start, min(start + _TOGETHER, len(rows))))
        for (each, units), own, parts in zip(models, draws, said, strict=True):
            engine = some.under(units)
            parts.append(Answers.of(each.model, engine, own, each.evidence, _TOGETHER))
    answers = [Answers.pool(parts) for parts in said]
    return Say.of(answers, trusts_holes)


@dataclass(frozen=True)
class Ensemble:
    """Mixtures that are to stand beside a first one, and how much say each has.

    Attributes
    ----------
    trials : those of the others that have a say.
    members : the others, their units, and their calibrations, None for that of the first.
    weights : (1 + M,) of all, that of the first one first.
    calibration : of the averages.
    """

    trials: Sequence[Trial]
    members: Sequence[tuple[Mixture, Scaling, Calibration | None]]
    weights: np.ndarray
    calibration: Calibration

    @classmethod
    def train(
        cls,
        estimator: MixtureClassifier,
        decision: Decision,
        others: Sequence[Trial],
        first: Learned,
        generator: torch.Generator,
        progress: Progress,
    ) -> Ensemble:
        """All are weighed by what they say of held-out rows; where there are none, all the same.

        Who has no say is not trained. Where there are more rows than were compared on, the others
        learn from those that the first one was shown, and all are asked about those that it was
        not: after a few iterations, to see who is worth further ones, and at the end.
        """
        unseen = None if decision.saw_all else first.held_out
        later = [each for each in others if unseen is not None and each.way.beginning.finds]
        tried = [each for each in others if each not in later]
        answers = [decision.held_out, *(each.held_out() for each in tried)]
        say, heard = Say.of(answers, decision.trusts_holes).heard(tried)
        heard += later

        def learn(trial: Trial, count: int, most: int, latest: Trained | None = None) -> Trained:
            given = estimator, decision, first.shown, spawn(generator), progress
            return _trained(trial, *given, count, most, latest)

        count, most = (_ITERATIONS if unseen is None else _FIRST), _LARGE
        if unseen is not None and len(first.shown) > _MANY_TIMES * _FIRST_ROWS:
            most = _FIRST_ROWS
        members = [
            ((decision.saw_all and each.whole) or learn(each, count, most), each) for each in heard
        ]

        def goes_on(trial: Trial, share: float) -> bool:
            more = most < _LARGE and progress.leaves_time(1.0 - _TIME)
            return share >= _SOME and (more or not trial.way.beginning.finds)

        if unseen is not None:
            rows, same = unseen.subsample(MOST_COMPARED, generator), spawn(generator)
            asked = rows, same, decision.trusts_holes
            shares = _weighed(first.result, members, *asked).weights[1:]
            members = [
                (
                    learn(each, _ITERATIONS - count, _LARGE, model)
                    if goes_on(each, share)
                    else model,
                    each,
                )
                for (model, each), share in zip(members, shares, strict=True)
            ]
            say, members = _weighed(first.result, members, *asked).heard(members)
        trials = [trial for _, trial in members]
        for each in others:
            each.won = each in trials
        return cls(
            trials,
            [
                (trained.model.to("cpu", torch.float64), trial.scaling, own)
                for (trained, trial), own in zip(members, say.own[1:], strict=True)
            ],
            say.weights,
            say.average,
        )

    def beside(self, first: Fitted, calibrate: bool) -> Fitted:
        """The first model, and these beside it."""
        alike, own = replace(first, typical=None), first.calibration
        members = [
            replace(alike, model=m, scaling=s, calibration=(calibrate and c) or own)
            for m, s, c in self.members
        ]
        calibration = self.calibration if calibrate else Calibration()
        return replace(first, blend=Blend(tuple(members), self.weights, calibration))
