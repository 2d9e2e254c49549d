"""The command `mixtura`; thin, no logic. What takes seconds to import, a command imports itself."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.exit("The command needs typer and rich: pip install 'mixtura[cli]'.")
    from mixtura.cli.app import app

    app()
