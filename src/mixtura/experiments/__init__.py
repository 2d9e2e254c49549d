"""The papers' tables and figures, one module each; `mixtura reproduce` runs them.

A module `hybrid_table1` is the experiment `hybrid-table1`: its docstring says what it reproduces,
its function `run(report)` does it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
from collections.abc import Callable
from typing import Any

from mixtura.exceptions import InvalidInputError
from mixtura.experiments.report import Report, writable_folder

_PREFIXES = ("hybrid_", "ebw_", "sparse_", "sequence_", "network_")


def names() -> list[str]:
    """All experiments."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if name.startswith(_PREFIXES))


def find(name: str) -> Any:
    """The module of an experiment."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidInputError(
            f"no experiment is called {name!r}.{hint} There are: {', '.join(names())}."
        )
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def summary(name: str) -> str:
    """One line on what an experiment shows."""
    return (find(name).__doc__ or "").strip().splitlines()[0]


def reproduce(name: str, *, folder: str | os.PathLike[str], **settings: Any) -> Report:
    """Run an experiment; its tables and pictures are written into the folder when it ends."""
    run: Callable[[Report], None] = find(name).run
    report = Report(name, writable_folder(folder), **settings)
    try:
        run(report)
    finally:  # what was done until an interruption is kept
        report.close()
    return report
