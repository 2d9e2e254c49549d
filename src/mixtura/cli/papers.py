"""Commands that show what the library does: the demonstration, and the tables of the papers."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


def demo(output: Path = Path("mixtura-demo"), seed: int = 0) -> None:
    """Digits with missing pixels: ours beside logistic regression and boosted trees."""
    _check_matplotlib()
    from mixtura import demo as demonstration

    demonstration.run(output, seed)


def reproduce(
    name: Annotated[str, typer.Argument(help="the experiment; see --list")] = "",
    show: Annotated[bool, typer.Option("--list", help="list the experiments and stop")] = False,
    quick: Annotated[bool, typer.Option(help="a small version, within a minute")] = False,
    only: Annotated[str, typer.Option(help="keep to the parts whose name contains this")] = "",
    device: str = "auto",
    seed: int = 0,
    search: Annotated[
        bool, typer.Option(help="find the settings anew, where that is done")
    ] = False,
    jobs: Annotated[int, typer.Option(help="processes of a search")] = 1,
    max_time: Annotated[
        float, typer.Option(help="seconds of a search; the next goes on")
    ] = math.inf,
    output: Path = Path("mixtura-results"),
) -> None:
    """Run an experiment of the papers: our figures beside theirs, as CSV and PNG."""
    from mixtura import papers

    if show or not name:
        for known in papers.names():
            print(f"{known:<22}{papers.summary(known)}")
        return
    _check_matplotlib()
    chosen = {"search": search, "jobs": jobs, "max_time": max_time}
    papers.reproduce(
        name, folder=output, quick=quick, only=only, device=device, seed=seed, **chosen
    )


def _check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise ImportError("Pictures need matplotlib: pip install 'mixtura[cli]'.")
