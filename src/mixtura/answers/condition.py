"""What if: the model given some columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mixtura.data.given import ArrayLike, Device
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.fitted import Fitted

#: Values by column, which goes by its name or position.
Given = Mapping[int | str, ArrayLike]


def read_given(schema: Schema, n_columns: int, given: Given) -> Matrix:
    """One row with the given values, categories as codes, and no telling of the others."""
    if not isinstance(given, Mapping) or not given:
        raise InvalidInputError("given must be a dict of values by column, of one at least.")
    row = np.full((1, n_columns), None, dtype=object)
    for column, value in given.items():
        row[0, schema.position(column, n_columns)] = value
    known = schema.encode(row, "error")
    values = np.asarray(known.values if isinstance(known, Matrix) else known, dtype=np.float64)
    asked = [schema.position(column, n_columns) for column in given]
    if not np.isfinite(values[0, asked]).all():
        raise InvalidInputError("given holds what is missing or infinite: leave it out.")
    return Matrix(values, np.isnan(values))


def with_given(rows: Matrix, row: Matrix) -> Matrix:
    """Rows with the values that are given (1, D) in their places."""
    given = ~np.isnan(row.values)
    untold = None if rows.untold is None else rows.untold & ~given
    return Matrix(np.where(given, row.values, rows.values), untold)


def warn_of_extrapolation() -> None:
    """Say that no row of training is as unlikely as the given values."""
    warn(
        "the given values are unlike all rows of training: what follows from them is an "
        "extrapolation.",
        DegenerateDataWarning,
    )


@dataclass(frozen=True)
class Condition:
    """The model of rows some columns of which are given.

    Attributes
    ----------
    model : of all columns.
    row : (1, D) the given values, NaN elsewhere.
    """

    model: Fitted
    row: Matrix
    device: Device

    @classmethod
    def of(cls, model: Fitted, n_columns: int, given: Given, device: Device) -> Condition:
        """A warning says where no row of training is as unlikely as the given values."""
        row = read_given(model.schema, n_columns, given)
        if model.is_outlier(model.engine(row, device), 0.0)[0]:
            warn_of_extrapolation()
        return cls(model, row, device)

    def rows(self, rows: Matrix) -> Matrix:
        """Rows with the given values in their places."""
        return with_given(rows, self.row)

    def log_density(self, rows: Matrix) -> np.ndarray:
        """(n,) log density of the other columns, in the user's units."""
        own = self.model.log_density(self.model.engine(self.row, self.device))
        return self.model.log_density(self.model.engine(self.rows(rows), self.device)) - own

    def draw(self, count: int, y: np.ndarray | None, generator: torch.Generator) -> Matrix:
        """Whole rows (n, D), of classes (n,) where these are told."""
        many = self.row.take(np.zeros(count, dtype=np.int64))
        engine = self.model.engine(many, self.device, y)
        drawn = Matrix(self.model.drawn(engine, many.values, generator))
        return self.rows(Matrix(self.model.schema.within(drawn.values)))


def draw_by_chance(chance: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """(n,) one of the columns for each row of chances (n, k)."""
    return torch.multinomial(torch.from_numpy(chance), 1, generator=generator).flatten().numpy()
