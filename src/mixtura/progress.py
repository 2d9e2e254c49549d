"""Progress: what a solver tells while it works, and who listens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TypedDict


class Record(TypedDict, total=False):
    """What is known after an iteration; solvers may add to it."""

    stage: str
    iteration: int
    objective: float
    validation_error: float
    validation_objective: float
    evidence: float
    n_weights: int
    n_components: int
    seconds: float


#: Called with each record; training stops at the first that returns True.
Callback = Callable[[Record], object]


class Progress:
    """Collects the history of a fit, shows it, and passes it on to the user's callbacks.

    Attributes
    ----------
    max_time : seconds that the fit may take; infinite without a limit.
    stopped : whether a callback or the clock has ended the fit.
    hurried : whether the clock has kept candidates from being compared, or a trial from its end.
    """

    def __init__(
        self, callbacks: Iterable[Callback] = (), verbose: int = 0, max_time: float | None = None
    ) -> None:
        self.history: list[Record] = []
        self._callbacks = list(callbacks)
        self._display = _display(verbose)
        self._began = time.perf_counter()
        self.max_time = math.inf if max_time is None else max_time
        self.stopped = self.hurried = False
        self._whole: Progress | None = None

    @property
    def seconds(self) -> float:
        """Time since the fit began."""
        return time.perf_counter() - self._began

    @property
    def time_spent(self) -> float:
        """Share of the allowed time that has gone; 0 where there is no limit."""
        return self.seconds / self.max_time if self.max_time > 0.0 else 1.0

    @property
    def seconds_left(self) -> float:
        """What is left of the allowed time; infinite where there is no limit."""
        return max(self.max_time - self.seconds, 0.0)

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.max_time)

    @property
    def out_of_time(self) -> bool:
        """Whether the clock has ended the fit."""
        return self.stopped and self.time_spent >= 1.0

    def part(self, share: float) -> Progress:
        """A silent clock for work on the side: it may take a share of the time that is left."""
        side = Progress(max_time=share * self.seconds_left)
        side._whole = self._whole or self
        return side

    def leaves_time(self, share: float) -> bool:
        """Whether less than a share of the allowed time has gone; if not, something is left out."""
        late = self.time_spent >= share
        self.hurried |= late
        return not late

    def start(self, stage: str, total: int) -> None:
        """A stage of at most `total` iterations begins."""
        self._display.start(stage, total)

    def step(self, record: Record) -> bool:
        """One iteration is done; True once a callback has asked to stop, or time is up."""
        record = {**record, "seconds": self.seconds}
        self.history.append(record)
        self._display.step(record)
        self.stopped |= any([callback(record) is True for callback in self._callbacks])
        self.stopped |= self.time_spent >= 1.0
        if self._whole is not None:
            self._whole.hurried |= self.stopped
        return self.stopped

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing more will come."""
        self._display.close()


def describe(record: Record) -> str:
    """One line a person can read."""
    shown = [f"objective {record['objective']:.5g}"]
    if "validation_error" in record:
        shown.append(f"validation error {100 * record['validation_error']:.2f} %")
    return ", ".join(shown)


class _Silent:
    def start(self, stage: str, total: int) -> None:
        """Show nothing."""

    def step(self, record: Record) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class _Lines(_Silent):
    """Plain lines, at most one per second, with the time left."""

    def start(self, stage: str, total: int) -> None:
        self._stage, self._total, self._done = stage, total, 0
        self._began = self._shown = time.perf_counter()

    def step(self, record: Record) -> None:
        self._done += 1
        now = time.perf_counter()
        if now - self._shown < 1.0 and self._done < self._total:
            return
        self._shown = now
        left = (now - self._began) / self._done * (self._total - self._done)
        print(
            f"{self._stage} {self._done}/{self._total}: {describe(record)}, "
            f"at most {left:.0f} s left",
            flush=True,
        )


class _Bars(_Silent):
    """A live bar, by rich."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self._bar.start()

    def start(self, stage: str, total: int) -> None:
        self._finish()
        self._bar.add_task(stage, total=total, state="")

    def step(self, record: Record) -> None:
        self._bar.update(self._bar.task_ids[-1], advance=1, state=describe(record))

    def _finish(self) -> None:
        for task in self._bar.tasks[-1:]:
            self._bar.update(task.id, total=task.completed)

    def close(self) -> None:
        self._finish()
        self._bar.stop()


def _display(verbose: int) -> _Silent:
    if not verbose:
        return _Silent()
    try:
        return _Bars()
    except ImportError:
        return _Lines()
