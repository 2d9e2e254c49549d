"""Rows that are prepared before a model meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mixtura.data import Batch, Table
from mixtura.engines.local import LocalEngine


class PreparedEngine(LocalEngine):
    """Passes over all rows meet chunks as `prepare` makes them, once: those of the first pass."""

    def __init__(self, table: Table, prepare: Callable[[Batch], Batch]) -> None:
        super().__init__(table)
        self._prepare = prepare
        self._kept: list[Batch] = []

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        if not self._kept:
            self._kept = [self._prepare(batch) for batch in super().chunks(n_rows)]
        return iter(self._kept)
