"""Sums over the rows of one machine: in memory, in chunks, or from a memory-mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from mixtura.data import Batch, Table
from mixtura.densities import Density

Sums = dict[str, Tensor]

#: Numbers a chunk may hold: few enough to bound memory, enough to keep the device busy.
_CHUNK_NUMBERS = {"cpu": 20_000_000, "cuda": 250_000_000}
_MOST_ROWS = {"cpu": 16_384, "cuda": 262_144}


class LocalEngine:
    """Runs functions of batches over a table, a chunk at a time."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def total_weight(self) -> float:
        return float(self.table.weight.sum())

    def chunk_rows(self, density: Density) -> int:
        """Rows a chunk, so that memory is bounded whatever the number of rows."""
        kind = self.table.device.type if self.table.device.type in _MOST_ROWS else "cuda"
        cost = max(1, density.row_cost(self.table.may_have_missing))
        return max(1, min(_MOST_ROWS[kind], _CHUNK_NUMBERS[kind] // cost))

    def sum(self, function: Callable[[Batch], Sums], density: Density) -> Sums:
        """The sum of what `function` gives for each chunk."""
        total: Sums = {}
        for batch in self.table.chunks(self.chunk_rows(density)):
            for name, value in function(batch).items():
                total[name] = value if name not in total else total[name].add_(value)
        return total

    def concat(self, function: Callable[[Batch], Tensor], density: Density) -> Tensor:
        """What `function` gives for each chunk, one after another, on the CPU."""
        with torch.no_grad():
            parts = [function(b).cpu() for b in self.table.chunks(self.chunk_rows(density))]
        return torch.cat(parts)

    def minibatch_indices(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """A random order of all rows, `size` at a time."""
        order = torch.randperm(len(self), generator=generator).to(self.table.device)
        yield from order.split(size)

    def subsample(self, most: int, generator: torch.Generator) -> LocalEngine:
        """At most `most` random rows."""
        if len(self) <= most:
            return self
        keep = torch.randperm(len(self), generator=generator)[:most].sort().values
        return LocalEngine(self.table.subset(keep.numpy().astype(np.int64)))


def hold_back(
    table: Table, share: float, generator: torch.Generator
) -> tuple[LocalEngine, LocalEngine | None]:
    """Rows to train on, and a share of the labelled rows of every class (None if that is none)."""
    y = table.y.cpu()
    order = torch.randperm(len(y), generator=generator)
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in y[y >= 0].unique():
        mine = order[y[order] == label]
        held[mine[: int(len(mine) * share)]] = True
    if not held.any():
        return LocalEngine(table), None
    train, rest = (~held).nonzero().flatten().numpy(), held.nonzero().flatten().numpy()
    return LocalEngine(table.subset(train)), LocalEngine(table.subset(rest))
