"""The papers' tables and figures, one module each; `mixtura reproduce` runs them.

The module `hybrid/table1.py` is the experiment `hybrid-table1`: its docstring says what it
reproduces, its function `run(report)` does it. Modules whose names begin with an underscore help
the others of their paper.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from mixtura.data.given import Setting
from mixtura.exceptions import InvalidInputError
from mixtura.papers.report import Report, writable_folder

#: How docstrings begin to say what `only` is compared with.
_PARTS = ("A part is named", "Parts are named")


def names() -> list[str]:
    """All experiments."""
    modules = Path(__file__).parent.glob("*/[!_]*.py")
    return sorted(f"{path.parent.name}-{path.stem.replace('_', '-')}" for path in modules)


def find(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidInputError(
            f"no experiment is called {name!r}.{hint} There are: {', '.join(names())}."
        )
    paper, _, module = name.partition("-")
    return importlib.import_module(f"{__name__}.{paper}.{module.replace('-', '_')}")


def summary(name: str) -> str:
    """One line on what an experiment shows."""
    return (find(name).__doc__ or "").strip().splitlines()[0]


def account(name: str) -> str:
    """What an experiment shows and how, without the names of its parts."""
    paragraphs = inspect.cleandoc(find(name).__doc__ or "").split("\n\n")
    return "\n\n".join(part for part in paragraphs if not part.startswith(_PARTS))


def reproduce(name: str, *, folder: str | os.PathLike[str], **settings: Setting) -> Report:
    """Run an experiment; its tables and pictures are written into the folder when it ends."""
    run: Callable[[Report], None] = find(name).run
    report = Report(name, writable_folder(folder), **settings)
    try:
        run(report)
    finally:  # what was done until an interruption is kept
        report.close()
    return report
