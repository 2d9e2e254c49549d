"""One chooser: candidates are judged on the same held-out rows, and the hopeless leave early."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import torch

from mixtura.conformal import HeldBack
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine
from mixtura.models.held_back import held_back_of
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.numerics import one_thread, spawn
from mixtura.progress import Progress
from mixtura.selection.held_out import HeldOut
from mixtura.training.groups import NOTHING, Folds

#: Parts that rows are held out in, by turns.
FOLDS = 4
#: With fewer labeled rows, in all or per class, held-out ones decide nothing.
FEWEST, FEWEST_PER_CLASS = 20, 3
#: Candidates are compared on about so many labeled rows at most.
MOST_COMPARED = 3_000
#: Stages after which growth ends if none of them does better than those before.
_PATIENCE = 3
#: Held-out rows that settle a race; and the folds after which a challenger that is behind leaves.
_ENOUGH, _GLIMPSE = 200, 2
#: Numbers of small tables: trials on several folds cost little more than one, if they are stacked.
_SMALL = 50_000


Trained = TypeVar("Trained", covariant=True)


class Way(Protocol):
    """A way to train that may be chosen."""

    @property
    def settings(self) -> dict[str, object]:
        """What tells it from others, by name."""


@runtime_checkable
class StagedWay(Way, Protocol[Trained]):
    """One that is tried fold by fold."""

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterable[Trained]:
        """Trained models; where there are several, the simplest first."""


@runtime_checkable
class StackedWay(Way, Protocol[Trained]):
    """One that may be tried on several folds at once."""

    @property
    def together(self) -> bool:
        """Whether trials on several folds cost little more than one."""

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> Sequence[Trained]:
        """One trained model per fold, of the rows of the others."""


AnyWay = TypeVar("AnyWay", bound=Way)
AnyTrained = TypeVar("AnyTrained")
#: What a model makes of held-out rows.
Judge = Callable[[AnyTrained, Engine, torch.Generator], HeldOut]


@dataclass(eq=False)
class Contender(Generic[AnyWay, AnyTrained]):
    """A way to train, and what its models make of held-out rows, fold by fold, stage by stage.

    `scaling` has the units of the rows; `models` are those of the last stage, one per fold, and
    `units` theirs, where each has its own; `whole` is one of all rows, where it was trained beside
    them.
    """

    way: AnyWay
    scaling: Scaling
    question: str = ""
    won: bool = False
    models: list[AnyTrained] = field(default_factory=list)
    units: list[Scaling] = field(default_factory=list)
    whole: AnyTrained | None = None
    parts: list[list[HeldOut]] = field(default_factory=list)
    _pooled: dict[tuple[int, int], HeldOut] = field(default_factory=dict)

    def restart(self, way: AnyWay) -> None:
        """Another way; what the models of the former one said is forgotten."""
        self.way, self.models, self.parts, self._pooled, self.whole = way, [], [], {}, None
        self.units = []

    def _at(self, stage: int, n_folds: int) -> HeldOut:
        """All rows of the first folds at a stage; pooled once, for calibrating them takes time."""
        if (stage, n_folds) not in self._pooled:
            parts = [part[min(stage, len(part) - 1)] for part in self.parts[:n_folds]]
            self._pooled[stage, n_folds] = type(parts[0]).pool(parts)
        return self._pooled[stage, n_folds]

    def stage(self, n_folds: int | None = None) -> int:
        """The stage with the smallest loss."""
        stages, count = range(max(map(len, self.parts))), n_folds or len(self.parts)
        if len(stages) == 1:
            return 0
        return min(stages, key=lambda stage: self._at(stage, count).loss)

    def held_out(self, n_folds: int | None = None) -> HeldOut | None:
        """What the models of that stage make of the rows; None where there was no fold."""
        if not self.parts:
            return None
        return self._at(self.stage(n_folds), n_folds or len(self.parts))

    def loss(self, n_folds: int | None = None) -> float:
        """The smallest mean loss of a stage."""
        found = self.held_out(n_folds)
        return float("inf") if found is None else found.loss

    def is_behind(self, other: Self | None) -> bool:
        """Whether the loss of the folds so far is larger than another's, if there is one."""
        met = len(self.parts)
        return other is not None and met > 0 and self.loss() > other.loss(met)

    def is_hopeless(self, other: Self, n_folds: int) -> bool:
        """Whether the other is so far ahead in the first folds that more would hardly turn it."""
        mine, theirs = self.held_out(n_folds), other.held_out(n_folds)
        return mine is not None and theirs is not None and mine.far_behind(theirs)


def too_few(engine: Engine, fewest: int = FEWEST) -> bool:
    """Whether what is left would be too little, were some labeled rows held out."""
    n_labeled = int(engine.labeled.sum())
    classes = 1 if engine.y.is_floating_point() else len(engine.classes)
    return n_labeled < max(fewest, FEWEST_PER_CLASS * classes)


def is_small(engine: Engine) -> bool:
    """Whether several trainings on the rows take little time."""
    return len(engine) * engine.n_features <= _SMALL


def to_compare(engine: Engine, generator: torch.Generator) -> Engine:
    """Rows that classifiers are compared on: the same, whether copies or weights were given."""
    return engine.merged().in_parts(FOLDS).sample(MOST_COMPARED, generator)


class Chooser(Generic[AnyWay, AnyTrained]):
    """Compares ways to train by what their models make of rows that were held out.

    All have the same rows, holes and random numbers. No trial begins once a share `until` of the
    allowed time has gone, and the trials of all `n_ways` together take no more. Where there are no
    rows to compare on (`engine` is None) or less than `fewest` labeled ones, first choices are
    taken.

    Attributes
    ----------
    cut_short : whether the clock has kept a trial from taking place.
    """

    def __init__(
        self,
        engine: Engine | None,
        judge: Judge[AnyTrained],
        generator: torch.Generator,
        progress: Progress,
        *,
        n_ways: int,
        until: float = 0.5,
        fewest: int = FEWEST,
    ) -> None:
        self._engine, self._number = engine, torch.empty(0, dtype=torch.long)
        self._scaling = Scaling.identity(0) if engine is None else engine.scaling
        if engine is not None and not too_few(engine, fewest):
            self._number = engine.fold_numbers(FOLDS, spawn(generator))
        self._sizes = torch.bincount(self._number[self._number >= 0]).tolist()
        self._seeds = [spawn(generator).initial_seed() for _ in self._sizes]
        self._judge, self._progress = judge, progress
        self._held_out, self._folds = dict[int, Engine](), dict[tuple[int, ...], Folds]()
        self._until, self._share = until, until / (FOLDS * n_ways)
        self._entered: list[Contender[AnyWay, AnyTrained]] = []
        self.cut_short = False

    @property
    def rows(self) -> Engine | None:
        """What is compared on."""
        return self._engine

    def saw_all(self, engine: Engine) -> bool:
        """Whether these rows are what is compared on, and that is no sample of them."""
        own = self._engine
        return own is not None and math.isclose(own.total_weight, engine.total_weight)

    def held_back(self, models: Sequence[Sequence[Mixture | Network]]) -> HeldBack | None:
        """Rows that were held out in the first folds, and the models of each; None if none was."""
        if self._engine is None or not models:
            return None
        number = self._number.where(self._number < len(models), -1)
        return held_back_of(self._engine, number, models)

    def unseen(self, contender: Contender[AnyWay, AnyTrained]) -> list[tuple[AnyTrained, Engine]]:
        """The models of a contender, each with the rows that were held out from it.

        None where models come in stages: the last need not be the best.
        """
        engine = self._engine
        if engine is None or any(len(part) > 1 for part in contender.parts):
            return []
        return [(model, self._fold(engine, fold)) for fold, model in enumerate(contender.models)]

    def under(self, scaling: Scaling) -> Self:
        """This chooser, with its rows in other units: same folds, same seeds, one table."""
        other = copy(self)
        other._scaling, other._held_out = scaling, {}
        other._engine = None if self._engine is None else self._engine.under(scaling)
        return other

    def in_time(self) -> bool:
        """Whether a trial may begin."""
        in_time = self._progress.leaves_time(self._until)
        self.cut_short |= not in_time
        return in_time

    def try_out(
        self,
        way: AnyWay,
        question: str = "",
        *,
        whole: bool = True,
        beside: Contender[AnyWay, AnyTrained] | None = None,
    ) -> Contender[AnyWay, AnyTrained]:
        """A way that is not in question; where folds train together, all rows are one of them.

        `whole` is False where nobody will ask for that one. It has won if time allowed for all, and
        if it is nowhere behind another one that it is to stand beside.
        """
        contender, folds = self.enter(way, question), self._decisive()
        for part in self._parts([way], folds):
            if contender.is_behind(beside) or not self.in_time():
                break
            self._try(contender, part, whole=whole and len(part) == len(folds))
        contender.won = len(contender.parts) == len(folds) and not contender.is_behind(beside)
        return contender

    def try_found(
        self,
        way: AnyWay,
        units: Callable[[Engine], Scaling],
        question: str = "",
        *,
        beside: Contender[AnyWay, AnyTrained] | None = None,
    ) -> Contender[AnyWay, AnyTrained]:
        """The same of a way whose units are found with labels, of each fold from all other rows."""
        contender, folds = self.enter(way, question), self._decisive()
        for number in folds:
            if contender.is_behind(beside) or self._engine is None or not self.in_time():
                break
            other = self.under(units(self._engine.only(self._number != number)))
            contender.units.append(other._scaling)
            other._try(contender, [number])
        contender.won = len(contender.parts) == len(folds) and not contender.is_behind(beside)
        return contender

    def _decisive(self) -> range:
        """The folds whose rows are enough to settle a race."""
        enough = [sum(self._sizes[:number]) < _ENOUGH for number in range(len(self._sizes))]
        return range(sum(enough))

    def race(
        self, ways: Sequence[AnyWay], question: str = "", *, whole: bool = False
    ) -> Contender[AnyWay, AnyTrained]:
        """The best: all try the first fold, two the second if that tells little, one what is left.

        Once enough rows have been judged, it ends. Folds that cost little more than one are
        trained together, and all rows are one of them, if `whole` asks for that.
        """
        left = [self.enter(way, question) for way in ways]
        for part in self._parts(ways, self._decisive()):
            if not self.in_time():
                break
            for contender in left:
                if contender is left[0] or self.in_time():
                    self._try(contender, part, whole and len(part) > 1)
            if len(left) > 1:
                met = min((len(each.parts) for each in left if each.parts), default=0)
                left.sort(key=lambda each: each.loss(met))
                open_yet = list(part) == [0] and not left[1].is_hopeless(left[0], met)
                left = left[: 2 if open_yet else 1]
        left[0].won = True
        return left[0]

    def challenge(
        self,
        champion: Contender[AnyWay, AnyTrained],
        ways: Iterable[AnyWay],
        beats: Callable[..., bool] = HeldOut.beats,
        question: str = "",
    ) -> Contender[AnyWay, AnyTrained]:
        """The champion, or the way that beats it on the folds that it was tried on."""
        for way in ways:
            challenger = self.enter(way, question)
            for part in self._parts([way], range(len(champion.parts))):
                met = len(challenger.parts)
                behind = met == 1 and challenger.is_hopeless(champion, met)
                behind |= met == _GLIMPSE and challenger.loss() >= champion.loss(met)
                if behind or not self.in_time():
                    break
                self._try(challenger, part)
            both = challenger.held_out(), champion.held_out()
            met_all = 0 < len(champion.parts) == len(challenger.parts)
            if met_all and beats(*both):
                champion.won &= champion.question != question
                challenger.won, champion = True, challenger
        return champion

    def deepen(
        self, contender: Contender[AnyWay, AnyTrained], way: AnyWay, share: float | None = None
    ) -> None:
        """Let another way, that goes on from where the contender is, take its place, in time.

        Or late, where that may take a share of what is left.
        """
        if share is None and not self.in_time():
            return
        tried = range(len(contender.parts))
        contender.restart(way)
        for part in self._parts([way], tried):
            self._try(contender, part, share=share and share / len(tried))

    def runner_up(self, question: str) -> Contender[AnyWay, AnyTrained] | None:
        """The best of those that did not win, where several were compared."""
        asked = (each for each in self._entered if each.question == question and each.parts)
        behind = [each for each in asked if not each.won]
        return min(behind, key=Contender.loss) if behind else None

    def table(self) -> list[dict[str, object]]:
        """What was compared, on how many rows, with which loss, and which of it was chosen.

        `question` says what was asked when a candidate entered. The last that was chosen is what is
        trained; a question without a chosen candidate left all as it was.
        """
        return [
            {
                "question": each.question,
                **{name: _plain(value) for name, value in each.way.settings.items()},
                "rows": len(each.held_out() or ()) // 2,
                "loss": each.loss() if each.parts else None,
                "chosen": each.won,
            }
            for each in self._entered
        ]

    def enter(self, way: AnyWay, question: str) -> Contender[AnyWay, AnyTrained]:
        contender: Contender[AnyWay, AnyTrained] = Contender(way, self._scaling, question)
        self._entered.append(contender)
        return contender

    def _parts(self, ways: Sequence[Way], numbers: range) -> Sequence[Sequence[int]]:
        """Folds that are trained together: all where that costs little, else one after another."""
        engine = self._engine
        if engine is None or not numbers:
            return []
        stacked = all(isinstance(way, StackedWay) and way.together for way in ways)
        if stacked and is_small(engine):
            return [numbers]
        return [[number] for number in numbers]

    def _try(
        self,
        contender: Contender[AnyWay, AnyTrained],
        numbers: Sequence[int],
        whole: bool = False,
        share: float | None = None,
    ) -> None:
        """Train on all folds but one, judge that one; for each of these folds.

        `whole`: train on all rows beside. `share`: of the time that is left, for a fold.
        """
        assert self._engine is not None
        way, seeds = contender.way, [self._seeds[number] for number in numbers]
        clock = self._progress.part(len(seeds) * (share or self._share))
        own = torch.Generator().manual_seed(seeds[0])
        with one_thread(len(self._engine) * self._engine.n_features):
            if isinstance(way, StackedWay):
                without = (*numbers, NOTHING) if whole else tuple(numbers)
                fresh = Folds(self._number.to(self._engine.device), without)
                folds = self._folds.setdefault(without, fresh)
                trained = way.trials(self._engine, folds, own, clock)
                # What is not tried together has one model, that of the fold.
                contender.whole = trained[-1] if len(trained) > len(numbers) else None
                stages: list[Iterable[AnyTrained]] = [[model] for model in trained[: len(numbers)]]
            elif isinstance(way, StagedWay):
                stages = [way.stages(self._engine.only(self._number != numbers[0]), own, clock)]
            for each, number, seed in zip(stages, numbers, seeds, strict=True):
                self._judge_stages(contender, each, self._fold(self._engine, number), seed + 1)

    def _fold(self, engine: Engine, number: int) -> Engine:
        """The rows of a fold, kept with what follows from them: all contenders are asked of it."""
        if number not in self._held_out:
            self._held_out[number] = engine.only(self._number == number)
        return self._held_out[number]

    def _judge_stages(
        self,
        contender: Contender[AnyWay, AnyTrained],
        stages: Iterable[AnyTrained],
        held_out: Engine,
        seed: int,
    ) -> None:
        """Stages as they come, until some in a row do no better than those before."""
        judged: list[HeldOut] = []
        for model in stages:
            judged.append(self._judge(model, held_out, torch.Generator().manual_seed(seed)))
            earlier, latest = judged[:-_PATIENCE], judged[-_PATIENCE:]
            if earlier and min(e.loss for e in latest) >= min(e.loss for e in earlier):
                break
        contender.models.append(model)
        contender.parts.append(judged)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool | None) else repr(value)
