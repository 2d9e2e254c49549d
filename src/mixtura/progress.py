"""Progress: what a solver tells while it works, and who listens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TypedDict

from mixtura.data.meter import Meter


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


#: Seconds after which a line tells how far a pass is.
_LONG = 10.0
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
        self._meter = Meter(self._passed)
        self._verbose, self._open = verbose, ExitStack()
        self._began = time.perf_counter()
        self.max_time = math.inf if max_time is None else max_time
        self.stopped = self.hurried = False
        self._whole: Progress | None = None
        self._stage = 0.0, 0

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
        self._stage = self.seconds, self._meter.rows
        self._display.start(stage, total)

    def step(self, record: Record, count: int = 1) -> bool:
        """Iterations are done; True once a callback has asked to stop, or time is up."""
        seconds = self.seconds
        record = {**record, "seconds": seconds}
        self.history.append(record)
        self._display.step(record, self._speed(seconds), count)
        self.stopped |= any([callback(record) is True for callback in self._callbacks])
        self.stopped |= self.time_spent >= 1.0
        if self._whole is not None:
            self._whole.hurried |= self.stopped
        return self.stopped

    def _passed(self, done: int, total: int) -> None:
        """So many of the rows of a pass are done."""
        self._display.rows(done, total, self._speed(self.seconds))

    def _speed(self, seconds: float) -> float:
        """Rows per second since the stage began, so many seconds after the fit did."""
        began, before = self._stage
        return (self._meter.rows - before) / max(seconds - began, 1e-9)

    def __enter__(self) -> Progress:
        self._open.enter_context(self._meter.active())
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        self.close()

    def close(self) -> None:
        """Nothing more will come."""
        self._display.close()
        if self._verbose > 1:
            print(self._times(), flush=True)

    def _times(self) -> str:
        """Where the time went."""
        whole, spent = self.seconds, self._meter.seconds
        shares = {"compute": whole - sum(spent.values()), **spent}
        told = [f"{kind} {each / max(whole, 1e-9):.0%}" for kind, each in shares.items()]
        return f"{whole:.1f} s, {self._meter.rows:,} rows in passes: {', '.join(told)}"


def describe(record: Record) -> str:
    """One line a person can read."""
    shown = [f"objective {record['objective']:.5g}"]
    if "validation_error" in record:
        shown.append(f"validation error {100 * record['validation_error']:.2f} %")
    return ", ".join(shown)


def _passed(done: int, total: int, speed: float) -> str:
    """How far a pass over rows is."""
    left = max(total - done, 0) / max(speed, 1e-9)
    return f"{done:,} of {total:,} rows, {speed:,.0f} rows/s, {left:.0f} s left of this pass"


class _Silent:
    def start(self, stage: str, total: int) -> None:
        """Show nothing."""

    def step(self, record: Record, speed: float, count: int) -> None:
        """Show nothing."""

    def rows(self, done: int, total: int, speed: float) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class _Lines(_Silent):
    """Plain lines, at most one per second, with rows per second and the time left."""

    _stage, _total, _done = "", 0, 0
    _began = _shown = 0.0

    def start(self, stage: str, total: int) -> None:
        self._stage, self._total, self._done = stage, total, 0
        self._began = self._shown = time.perf_counter()

    def rows(self, done: int, total: int, speed: float) -> None:
        now = time.perf_counter()
        if now - self._shown >= _LONG:
            self._shown = now
            print(f"{self._stage} {self._done}/{self._total}: {_passed(done, total, speed)}")

    def step(self, record: Record, speed: float, count: int) -> None:
        self._done += count
        now = time.perf_counter()
        if now - self._shown < 1.0 and self._done < self._total:
            return
        self._shown = now
        left = (now - self._began) / self._done * (self._total - self._done)
        print(
            f"{self._stage} {self._done}/{self._total}: {describe(record)}, "
            f"{speed:,.0f} rows/s, at most {left:.0f} s left",
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

    def rows(self, done: int, total: int, speed: float) -> None:
        for task in self._bar.tasks[-1:]:
            self._bar.update(task.id, state=_passed(done, total, speed))

    def step(self, record: Record, speed: float, count: int) -> None:
        state = f"{describe(record)}, {speed:,.0f} rows/s"
        self._bar.update(self._bar.task_ids[-1], advance=count, state=state)

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
