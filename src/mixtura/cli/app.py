"""All commands, and what becomes of their errors."""

from __future__ import annotations

from typing import NoReturn

import typer
from typer.core import TyperGroup

from mixtura.cli import answers, papers, serving, training
from mixtura.cli.output import notes, one_line

#: What is wrong with a command line; Typer has its own copy of Click, or not, by its version.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
#: Where packages come from that may be absent.
_EXTRAS = {"pandas": "cli", "pyarrow": "cli", "matplotlib": "cli"}
#: What a user can mend: files, values, packages that are not there.
_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError)


class _Commands(TyperGroup):
    """Errors are one line with the remedy, and a status: 1, or 2 for the command line itself."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            message, where = error.format_message().rstrip("."), error.ctx or ctx
            _fail(f"{message}. See: {where.command_path} --help", 2)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").partition(".")[0])
            _fail(f"{error}" + (f": pip install 'mixtura[{extra}]'." if extra else ""), 1)
        except _ERRORS as error:
            _fail(str(error) or type(error).__name__, 1)


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"error: {one_line(message)}", err=True)
    raise typer.Exit(status)


app = typer.Typer(
    help="Mixture models that classify.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Mixture models that classify."""


for command in (
    *(training.fit, training.tune),
    *(answers.predict, answers.evaluate, answers.report),
    *(answers.explain, answers.impute, answers.sample),
    *(serving.serve, serving.export),
):
    app.command()(notes()(command))
app.command()(papers.demo)
app.command()(papers.reproduce)
