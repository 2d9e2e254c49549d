"""How rows are seen: beside copies that lack something, or as a model has prepared them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Generic

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.sequences import AnyBatch, Batched
from mixtura.data.targets import beside_features


def is_copy(batch: Batched) -> Tensor:
    """(n,) which rows of a punched batch are the copies with holes."""
    return torch.arange(len(batch), device=batch.y.device) >= len(batch) // 2


class View(Generic[AnyBatch]):
    """Rows as they are; subclasses say how they are seen, by batch and in passes over all rows."""

    #: Whether every row stands beside a copy of itself that lacks something.
    doubles: ClassVar[bool] = False

    def batch(self, rows: AnyBatch) -> AnyBatch:
        """A batch of rows, to learn from."""
        return rows

    def chunks(self, rows: Iterator[AnyBatch]) -> Iterator[AnyBatch]:
        """All rows, chunk by chunk."""
        return map(self.batch, rows)


class Punched(View[AnyBatch]):
    """Every row stands beside a copy of itself with random holes: as rows to predict will come.

    Minibatches draw fresh holes; passes over all rows always have the same ones, so that a sum
    stays one function of the model.
    """

    doubles = True

    def __init__(self, share: float, generator: torch.Generator) -> None:
        self._share, self._generator = share, generator
        self._seed = int(torch.randint(2**31, (1,), generator=generator))

    def batch(self, rows: AnyBatch) -> AnyBatch:
        return rows.with_punched(self._share, self._generator)

    def chunks(self, rows: Iterator[AnyBatch]) -> Iterator[AnyBatch]:
        generator = torch.Generator().manual_seed(self._seed)
        return (batch.with_punched(self._share, generator) for batch in rows)


class Contrast(View[Batch]):
    """Every row stands beside a copy without its targets, of negative weight.

    The likelihood of such rows is that of the targets given the features, and a `share` of that of
    the features.
    """

    doubles = True

    def __init__(self, n_targets: int, share: float) -> None:
        self.n_targets, self.share = n_targets, share

    def batch(self, rows: Batch) -> Batch:
        return beside_features(rows, self.n_targets, self.share)


class Prepared(View[Batch]):
    """Passes over all rows see chunks as `prepare` makes them, once: those of the first pass."""

    def __init__(self, prepare: Callable[[Batch], Batch]) -> None:
        self._prepare = prepare
        self._kept: list[Batch] = []

    def __getstate__(self) -> dict[str, object]:
        """A copy may see other rows."""
        return {**vars(self), "_kept": []}

    def chunks(self, rows: Iterator[Batch]) -> Iterator[Batch]:
        self._kept = self._kept or [self._prepare(batch) for batch in rows]
        return iter(self._kept)
