"""What passes over rows take: how many rows, and the time by what it was spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

AnyRows = TypeVar("AnyRows", bound=Sized)
Item = TypeVar("Item")

#: Seconds between two words about a pass.
_WORD = 1.0


class Meter:
    """Counts rows and seconds while it is `active`; a long pass is told, by rows done and in all.

    Attributes
    ----------
    rows : that passes have gone through.
    seconds : spent on "read" (waiting for rows) and "communicate" (with other processes).
    """

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self.rows = 0
        self.seconds = {"read": 0.0, "communicate": 0.0}
        self._tell, self._last = tell, time.perf_counter()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count what is done within."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def add(self, n_rows: int, done: int, total: int) -> None:
        """More rows of a pass are done."""
        self.rows += n_rows
        now = time.perf_counter()
        if now - self._last >= _WORD:
            self._last = now
            self._tell(done, total)


_active: ContextVar[Meter | None] = ContextVar("_active", default=None)


@contextmanager
def spent_on(kind: str) -> Iterator[None]:
    """What is done within counts as that kind."""
    meter, began = _active.get(), time.perf_counter()
    try:
        yield
    finally:
        if meter is not None:
            meter.seconds[kind] += time.perf_counter() - began


def waited_for(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; the time until each comes counts as reading."""
    source, end = iter(items), object()
    while True:
        with spent_on("read"):
            item = next(source, end)
        if item is end:
            return
        yield item  # type: ignore[misc]


def counted(batches: Iterable[AnyRows], total: int) -> Iterator[AnyRows]:
    """The same batches, of so many rows in all, counted when the next one is asked for."""
    meter, done = _active.get(), 0
    for batch in batches:
        yield batch
        done += len(batch)
        if meter is not None:
            meter.add(len(batch), done, total)


def passed(n_rows: int) -> None:
    """A pass over so many rows is done."""
    meter = _active.get()
    if meter is not None:
        meter.add(n_rows, n_rows, n_rows)
