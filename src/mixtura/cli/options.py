"""Arguments and options that commands share."""

from glob import glob
from pathlib import Path
from typing import Annotated

import typer


def _model(path: Path) -> Path:
    """The path, if there is such a file; said before PyTorch is imported, which takes seconds."""
    if not path.is_file():
        raise FileNotFoundError(f"no model file at {path}.")
    return path


def _data(path: Path) -> Path:
    """The same of a table, which may be a pattern that names Parquet files."""
    from mixtura.files import check_file

    may_be_many = path.suffix.lower() in (".parquet", ".pq")
    if path.exists() or not (may_be_many and glob(str(path), recursive=True)):
        check_file(path)
    return path


def _model_out(path: Path) -> Path:
    """The path, if a file can be written there; said as early."""
    from mixtura.files import check_place

    check_place(path)
    return path


def _table_out(path: Path) -> Path:
    """The same of a table."""
    from mixtura.files import check_table_place

    check_table_place(path)
    return path


Model = Annotated[
    Path, typer.Argument(help="a model file, as `mixtura fit` writes them", callback=_model)
]
Data = Annotated[
    Path, typer.Argument(help="CSV, Parquet, Arrow (Feather) or Excel", callback=_data)
]
Target = Annotated[
    str | None, typer.Option(help="the column to predict; without one, a density of the rows")
]
Truth = Annotated[
    str | None,
    typer.Option("--target", help="the column with the truth; that of training if left out"),
]
ModelOut = Annotated[Path, typer.Option(help="the model file to write", callback=_model_out)]
TableOut = Annotated[
    Path,
    typer.Option(help="the table to write; its suffix says which format", callback=_table_out),
]
Drop = Annotated[list[str] | None, typer.Option(help="a column to leave out; may be repeated")]
Id = Annotated[list[str] | None, typer.Option(help="a column that names rows; likewise left out")]
Kept = Annotated[
    list[str] | None,
    typer.Option("--id", help="a column to keep in the output; without any, all are kept"),
]
Categorical = Annotated[
    list[str] | None, typer.Option(help="a column of numbers that are categories; may be repeated")
]
Missing = Annotated[
    list[str] | None, typer.Option(help="what marks missing values, such as '?'; may be repeated")
]
Regression = Annotated[bool, typer.Option("--regression", help="predict a number, not a class")]
TestSize = Annotated[float, typer.Option(min=0.0, max=0.9, help="share of the rows to test on")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="a parameter, such as density=diag; may be repeated"),
]
Seed = Annotated[int, typer.Option(min=0, help="of all that is random")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
