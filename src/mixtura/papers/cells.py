"""Cells of the papers' tables: what they print, and what cannot be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A figure that a paper prints.

    Attributes
    ----------
    higher : whether more is better, as of accuracies; less is of errors and of numbers of weights.
    absent : why it cannot be had here; nothing where it can.
    """

    row: str
    column: str
    published: float
    higher: bool = False
    absent: str = ""


def grid(
    columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], **options: object
) -> list[Cell]:
    """Cells of rows with one figure per column; None for what the paper leaves out."""
    return [
        Cell(row, column, figure)._replace(**options)  # type: ignore[arg-type]
        for row, figures in rows.items()
        for column, figure in zip(columns, figures, strict=True)
        if figure is not None
    ]
