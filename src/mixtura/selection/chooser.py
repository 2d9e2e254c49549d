"""One chooser: candidates meet the same held-out rows, and the hopeless leave early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

from mixtura.engines import Engine
from mixtura.numerics import spawn
from mixtura.progress import Progress
from mixtura.selection.held_out import HeldOut

#: Parts that rows are held out in, by turns.
FOLDS = 4
#: With fewer labeled rows, in all or per class, held-out ones decide nothing.
FEWEST, FEWEST_PER_CLASS = 20, 3
#: Candidates are compared on about so many labeled rows at most.
MOST = 3_000
#: Held-out rows that settle a race; and the folds after which a challenger that is behind leaves.
_ENOUGH, _GLIMPSE = 200, 2


class Way(Protocol):
    """A way to train that may be chosen."""

    @property
    def settings(self) -> dict[str, Any]:
        """What tells it from others, by name."""

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterable[Any]:
        """Trained models; where there are several, the simplest first."""


AnyWay = TypeVar("AnyWay", bound=Way)
#: What a model makes of held-out rows.
Judge = Callable[[Any, Engine, torch.Generator], HeldOut]


@dataclass(eq=False)
class Contender(Generic[AnyWay]):
    """A way to train, and what its models make of held-out rows, fold by fold, stage by stage."""

    way: AnyWay
    question: str = ""
    won: bool = False
    parts: list[list[HeldOut]] = field(default_factory=list)
    _pooled: dict[tuple[int, int], HeldOut] = field(default_factory=dict)

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


def too_few(engine: Engine, fewest: int = FEWEST) -> bool:
    """Whether what is left would be too little, were some labeled rows held out."""
    n_labeled = int(engine.labeled.sum())
    classes = 1 if engine.y.is_floating_point() else len(engine.y[engine.y >= 0].unique())
    return n_labeled < max(fewest, FEWEST_PER_CLASS * classes)


class Chooser(Generic[AnyWay]):
    """Compares ways to train by what their models make of rows that were held out.

    All meet the same rows, holes and random numbers. No trial begins once a share `until` of the
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
        judge: Judge,
        generator: torch.Generator,
        progress: Progress,
        *,
        n_ways: int,
        until: float = 0.5,
        fewest: int = FEWEST,
    ) -> None:
        folds: Iterable[tuple[Engine, Engine]] = ()
        if engine is not None and not too_few(engine, fewest):
            folds = engine.folds(FOLDS, spawn(generator))
        self._folds = list(folds)
        self._seeds = [spawn(generator).initial_seed() for _ in self._folds]
        self._judge, self._progress = judge, progress
        self._until, self._share = until, until / (FOLDS * n_ways)
        self._entered: list[Contender[AnyWay]] = []
        self.cut_short = False

    def race(self, ways: Sequence[AnyWay], question: str = "") -> Contender[AnyWay]:
        """The best: all meet the first fold, two of them the second, one what is left.

        Once enough rows have been judged, it ends.
        """
        left = [self._enter(way, question) for way in ways]
        judged = 0
        for number, (_, held_out) in enumerate(self._folds):
            if not self._in_time():
                break
            for contender in left:
                self._meet(contender, number)
            if len(left) > 1:
                left = sorted(left, key=Contender.loss)[: 2 if number == 0 else 1]
            judged += len(held_out)
            if judged >= _ENOUGH:
                break
        left[0].won = True
        return left[0]

    def challenge(
        self,
        champion: Contender[AnyWay],
        ways: Iterable[AnyWay],
        beats: Callable[[Any, Any], bool] = HeldOut.beats,
        question: str = "",
    ) -> Contender[AnyWay]:
        """The champion, or the way that beats it on the folds that it has met."""
        for way in ways:
            challenger = self._enter(way, question)
            for number in range(len(champion.parts)):
                behind = number == _GLIMPSE and challenger.loss() >= champion.loss(_GLIMPSE)
                if behind or not self._in_time():
                    break
                self._meet(challenger, number)
            both = challenger.held_out(), champion.held_out()
            met_all = 0 < len(champion.parts) == len(challenger.parts)
            if met_all and beats(*both):
                champion.won &= champion.question != question
                challenger.won, champion = True, challenger
        return champion

    def table(self) -> list[dict[str, Any]]:
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

    def _enter(self, way: AnyWay, question: str) -> Contender[AnyWay]:
        contender = Contender(way, question)
        self._entered.append(contender)
        return contender

    def _in_time(self) -> bool:
        in_time = self._progress.leaves_time(self._until)
        self.cut_short |= not in_time
        return in_time

    def _meet(self, contender: Contender[AnyWay], number: int) -> None:
        """Train on one part, judge the other."""
        (train, held_out), seed = self._folds[number], self._seeds[number]
        clock = self._progress.part(self._share)
        models = contender.way.stages(train, torch.Generator().manual_seed(seed), clock)
        contender.parts.append(
            [
                self._judge(model, held_out, torch.Generator().manual_seed(seed + 1))
                for model in models
            ]
        )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | None) else repr(value)
