"""The command `mixtura`; thin, no logic."""

from __future__ import annotations

import sys
from pathlib import Path

MISSING = "The command needs typer and matplotlib: pip install 'mixtura[cli]'."


def main() -> None:
    """Entry point."""
    try:
        import matplotlib  # noqa: F401
        import typer
    except ImportError:
        sys.exit(MISSING)

    from mixtura import demo as demonstration

    app = typer.Typer(help="Mixture models that classify.", no_args_is_help=True)

    @app.callback()
    def root() -> None:
        """Mixture models that classify."""

    @app.command()
    def demo(output: Path = Path("mixtura-demo"), seed: int = 0) -> None:
        """Digits with missing pixels: ours beside logistic regression and boosted trees."""
        demonstration.run(output, seed)

    app()
