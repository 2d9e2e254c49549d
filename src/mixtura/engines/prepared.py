"""Rows that are prepared before a model meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from mixtura.data import Batch, Table
from mixtura.engines.local import LocalEngine


class PreparedEngine(LocalEngine):
    """Batches as `prepare` makes them; those of passes over all rows are made once and kept."""

    def __init__(self, table: Table, prepare: Callable[[Batch], Batch]) -> None:
        super().__init__(table)
        self._prepare = prepare
        self._kept: dict[int, list[Batch]] = {}

    def batch(self, index: Tensor) -> Batch:
        return self._prepare(super().batch(index))

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        if n_rows not in self._kept:
            self._kept = {n_rows: [self._prepare(batch) for batch in super().chunks(n_rows)]}
        return iter(self._kept[n_rows])
