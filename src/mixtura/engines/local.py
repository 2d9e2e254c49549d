"""Sums over the rows of one machine: in memory, in chunks, or from a memory-mapped file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mixtura.data import Batch, Table

Sums = dict[str, Tensor]

#: Numbers a chunk may hold: few enough to bound memory, enough to keep the device busy.
_CHUNK_NUMBERS = {"cpu": 20_000_000, "cuda": 250_000_000}
#: Of more rows, a random sample is searched for copies.
_SEARCHED = 100_000


class HasRowCost(Protocol):
    """A model, or its density, that says what a row of it costs."""

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory for one row."""


class LocalEngine:
    """Runs functions of batches over a table, a chunk at a time."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @property
    def total_weight(self) -> float:
        return float(self.table.weight.sum())

    @property
    def may_have_missing(self) -> bool:
        return self.table.may_have_missing

    def batch(self, index: Tensor) -> Batch:
        """The rows at `index`, to learn from."""
        return self.table.batch(index)

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        """All rows to learn from, `n_rows` at a time."""
        return self.table.chunks(n_rows)

    def chunk_rows(self, model: HasRowCost) -> int:
        """Rows a chunk, so that memory is bounded whatever the number of rows."""
        kind = "cpu" if self.table.device.type == "cpu" else "cuda"
        cost = max(1, model.row_cost(self.may_have_missing))
        return max(1, min(self.table.most_rows[kind], _CHUNK_NUMBERS[kind] // cost))

    def sum(self, function: Callable[[Batch], Sums], model: HasRowCost) -> Sums:
        """The sum of what `function` gives for each chunk."""
        total: Sums = {}
        for batch in self.chunks(self.chunk_rows(model)):
            for name, value in function(batch).items():
                total[name] = value if name not in total else total[name].add_(value)
        return total

    def concat(self, function: Callable[[Batch], Tensor], model: HasRowCost) -> Tensor:
        """What `function` gives for each chunk, one after another, on the CPU."""
        with torch.no_grad():
            parts = [function(b).cpu() for b in self.chunks(self.chunk_rows(model))]
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
    """Rows to train on, and a share of the labeled rows of every class (None if that is none)."""
    held = torch.zeros(len(table), dtype=torch.bool)
    for mine in _shuffled_by_class(table, generator):
        held[mine[: int(len(mine) * share)]] = True
    return _part(table, held) if held.any() else (LocalEngine(table), None)


def labeled_only(engine: LocalEngine) -> LocalEngine:
    """The rows that have labels."""
    known = (engine.table.y >= 0).nonzero().flatten().cpu().numpy()
    return engine if len(known) == len(engine) else LocalEngine(engine.table.subset(known))


def fewer_unlabeled(sample: Table, table: Table, most: int) -> Table:
    """The sample with its first `most` unlabeled rows.

    They weigh as much beside its labeled rows as all unlabeled rows do in the table.
    """
    known = sample.y >= 0
    few = sample.subset((known | ((~known).cumsum(0) <= most)).nonzero().flatten().cpu().numpy())
    factor = _odds(table) / max(_odds(few), 1e-300)
    return few.weighted(torch.where(few.y >= 0, few.weight, factor * few.weight))


def _odds(table: Table) -> float:
    """Weight of the unlabeled rows by that of the labeled ones."""
    known = table.y >= 0
    return float(table.weight[~known].sum() / table.weight[known].sum())


def some_rows(table: Table, most: int, generator: torch.Generator) -> Table:
    """About `most` labeled rows, every class its share, and as many unlabeled ones."""
    keep = []
    known = int((table.y >= 0).sum())
    for mine in _shuffled_by_class(table, generator):
        keep.append(mine[: max(2, math.ceil(len(mine) * most / known))])
    unlabeled = (table.y.cpu() < 0).nonzero().flatten()
    order = torch.randperm(len(unlabeled), generator=generator)[:most]
    index = torch.cat([*keep, unlabeled[order]]).sort().values
    return table if len(index) == len(table) else table.subset(index.numpy())


def merged(table: Table, most: int | None = None) -> Table:
    """Different rows, each with the weight of all its copies; at most so many of them.

    Their order goes by class, is random within it, and is the same however often and in which order
    rows are given: weights are repetitions. Of very many rows a random sample is merged.
    """
    if len(table) > _SEARCHED:
        some = np.random.default_rng(0).choice(len(table), _SEARCHED, replace=False)
        table = table.subset(np.sort(some))
    key = table.row_keys()
    label = np.zeros_like(key) if table.y.is_floating_point() else table.y.cpu().numpy()
    order = np.lexsort((key, label))
    differs = (np.diff(key[order]) != 0) | (np.diff(label[order]) != 0)
    starts = np.flatnonzero(np.append(True, differs))
    weight = np.add.reduceat(table.weight.cpu().numpy()[order], starts)
    kept = np.linspace(0, len(starts) - 1, min(most or len(starts), len(starts))).astype(np.int64)
    part = table.subset(order[starts[kept]])
    part.weight = torch.from_numpy(weight[kept]).to(part.weight)
    return part


def folds(
    table: Table, count: int, generator: torch.Generator
) -> Iterator[tuple[LocalEngine, LocalEngine]]:
    """Rows to train on and rows held back, `count` times; each labeled row is held back once.

    A class with a single row is never without it.
    """
    fold = torch.full((len(table),), -1)
    first = 0
    for mine in _shuffled_by_class(table, generator):
        if len(mine) > 1:
            fold[mine] = torch.arange(first, first + len(mine)) % count
            first += len(mine)
    for number in fold[fold >= 0].unique():
        yield _part(table, fold == number)


def _shuffled_by_class(table: Table, generator: torch.Generator) -> Iterator[Tensor]:
    y = table.y.cpu()
    order = torch.randperm(len(y), generator=generator)
    for label in y[y >= 0].unique():
        yield order[y[order] == label]


def _part(table: Table, held: Tensor) -> tuple[LocalEngine, LocalEngine]:
    train, rest = ((~held).nonzero().flatten().numpy(), held.nonzero().flatten().numpy())
    return LocalEngine(table.subset(train)), LocalEngine(table.subset(rest))
