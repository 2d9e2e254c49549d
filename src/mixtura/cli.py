"""The command `mixtura`; thin, no logic. What takes seconds to import, a command imports itself."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

MISSING = "The command needs typer and matplotlib: pip install 'mixtura[cli]'."


def main() -> None:
    """Entry point."""
    try:
        import typer
    except ImportError:
        sys.exit(MISSING)
    if find_spec("matplotlib") is None:
        sys.exit(MISSING)

    from mixtura.exceptions import InvalidInputError

    app = typer.Typer(help="Mixture models that classify.", no_args_is_help=True)

    @app.callback()
    def root() -> None:
        """Mixture models that classify."""

    @app.command()
    def demo(output: Path = Path("mixtura-demo"), seed: int = 0) -> None:
        """Digits with missing pixels: ours beside logistic regression and boosted trees."""
        from mixtura import demo as demonstration

        demonstration.run(output, seed)

    @app.command()
    def reproduce(
        name: str = typer.Argument("", help="the experiment; see --list"),
        show: bool = typer.Option(False, "--list", help="list the experiments and stop"),
        quick: bool = typer.Option(False, help="a small version, within a minute"),
        only: str = typer.Option("", help="keep to the parts whose name contains this"),
        device: str = "auto",
        seed: int = 0,
        output: Path = Path("mixtura-results"),
    ) -> None:
        """Run an experiment of the papers: our figures beside theirs, as CSV and PNG."""
        from mixtura import papers

        if show or not name:
            for known in papers.names():
                print(f"{known:<22}{papers.summary(known)}")
            return
        papers.reproduce(name, folder=output, quick=quick, only=only, device=device, seed=seed)

    try:
        app()
    except (InvalidInputError, FileNotFoundError, ImportError) as error:
        sys.exit(f"error: {error}")
