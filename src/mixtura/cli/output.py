"""What commands show: facts as tables for people or JSON for machines, notes, a live line."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from mixtura.progress import Record, describe

#: Facts by name: numbers and words, or tables, whose lines are such facts.
Facts = Mapping[str, object]


def _speaks() -> bool:
    """Whether this process is to be heard: of those that torchrun starts, the first."""
    return os.environ.get("RANK", "0") == "0"


def one_line(text: object) -> str:
    """The text without its line breaks."""
    return " ".join(str(text).split())


@contextmanager
def notes() -> Iterator[None]:
    """Warnings become notes, one line each and once, on standard error."""

    said = set[str]()

    def show(message: Warning | str, *details: object, **more: object) -> None:
        if one_line(message) not in said and _speaks():
            said.add(one_line(message))
            print(f"note: {one_line(message)}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def working(title: str) -> Iterator[Callable[[Record], None]]:
    """A live line on standard error, which records of a fit move on; a plain one in a pipe."""
    console = Console(stderr=True, quiet=not _speaks())
    if not console.is_terminal:
        console.print(title, highlight=False, soft_wrap=True)
        yield lambda record: None
        return
    with console.status(title) as status:
        yield lambda record: status.update(
            f"{title}: {record.get('stage', '')} {record.get('iteration', '')}, {describe(record)}"
        )


def show(facts: Facts, as_json: bool) -> None:
    """Print facts: as one JSON object, or as tables, with what was written last."""
    if as_json:
        print(json.dumps(facts, default=_plain, allow_nan=False))
        return
    console = Console()
    words = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if name != "wrote" and not isinstance(value, list | Mapping):
            words.add_row(name.replace("_", " "), _shown(value))
    if words.row_count:
        console.print(words)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            value = [{name.replace("_", " "): key, " ": each} for key, each in value.items()]
        if isinstance(value, list) and value:
            console.print(_table(value))
    if "wrote" in facts:
        console.print(f"wrote {facts['wrote']}", highlight=False, soft_wrap=True)


def _table(lines: list[Mapping[str, object]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, value in lines[0].items():
        numbers = isinstance(value, int | float)
        table.add_column(name, justify="right" if numbers else "left")
    for line in lines:
        table.add_row(*map(_shown, line.values()))
    return table


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: object) -> object:
    """Numbers of NumPy as Python's; all else, such as paths, as text."""
    item = getattr(value, "item", None)
    return item() if item is not None else str(value)
