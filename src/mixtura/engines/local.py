"""The rows of one machine: in memory, or in a memory-mapped file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data import Batch, Scaling, Table
from mixtura.engines.base import Engine


class LocalEngine(Engine[Batch]):
    """Rows of a table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def uniform(self) -> bool:  # type: ignore[override]
        return self._table.uniform

    @property
    def y(self) -> Tensor:
        return self._table.y

    @property
    def weight(self) -> Tensor:
        return self._table.weight

    @property
    def scaling(self) -> Scaling:
        return self._table.scaling

    @property
    def sizes(self) -> Tensor:
        return self._table.sizes

    @property
    def may_have_missing(self) -> bool:
        return self._table.may_have_missing

    @property
    def has_holes(self) -> bool:
        return self._table.has_holes

    @property
    def most_rows(self) -> int:
        return self._table.most_rows["cpu" if self.device.type == "cpu" else "cuda"]

    def batch(self, index: slice | Tensor) -> Batch:
        return self._table.batch(index)

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        return self._table.chunks(n_rows)

    def row_keys(self) -> np.ndarray:
        return self._table.row_keys()

    def take(self, index: np.ndarray) -> Self:
        return type(self)(self._table.subset(index))

    def with_answers(self, y: Tensor | None = None, weight: Tensor | None = None) -> Self:
        return type(self)(self._table.with_answers(y, weight))

    def cast(self, dtype: torch.dtype) -> Self:
        return type(self)(self._table.cast(dtype))
