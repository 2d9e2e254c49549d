"""Rows of another engine: with copies that lack something, or as a model has prepared them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor

from mixtura.data.sequences import AnyBatch, Batched
from mixtura.data.tables import Batch
from mixtura.data.targets import beside_features
from mixtura.engines.base import Engine


def is_copy(batch: Batched) -> Tensor:
    """(n,) which rows of a punched batch are the copies with holes."""
    return torch.arange(len(batch), device=batch.y.device) >= len(batch) // 2


class Doubled(Engine[AnyBatch]):
    """Every row stands beside a copy of itself that lacks something."""

    @property
    def may_have_missing(self) -> bool:
        return True

    @property
    def n_here(self) -> int:
        return 2 * super().n_here


class PunchedEngine(Doubled[AnyBatch]):
    """Every row stands beside a copy of itself with random holes: as rows to predict will come.

    Minibatches draw fresh holes; passes over all rows always have the same ones, so that a sum
    stays one function of the model.
    """

    def __init__(self, inner: Engine[AnyBatch], share: float, generator: torch.Generator) -> None:
        super().__init__(inner)
        self._share, self._generator = share, generator
        self._seed = int(torch.randint(2**31, (1,), generator=generator))

    def batch(self, index: slice | Tensor) -> AnyBatch:
        return super().batch(index).with_punched(self._share, self._generator)

    def chunks(self, n_rows: int) -> Iterator[AnyBatch]:
        generator = torch.Generator().manual_seed(self._seed)
        for batch in super().chunks(max(1, n_rows // 2)):
            yield batch.with_punched(self._share, generator)


class ContrastEngine(Doubled[Batch]):
    """Every row stands beside a copy without its targets, of negative weight.

    The likelihood of such rows is that of the targets given the features, and a `share` of that of
    the features.
    """

    def __init__(self, inner: Engine[Batch], n_targets: int, share: float) -> None:
        super().__init__(inner)
        self._n_targets, self._share = n_targets, share

    @property
    def copies_lack(self) -> int | None:
        """How many of the last columns copies lack; None where rows have holes of their own."""
        return None if self._inner.may_marginalize else self._n_targets

    def batch(self, index: slice | Tensor) -> Batch:
        return beside_features(super().batch(index), self._n_targets, self._share)

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        for batch in super().chunks(max(1, n_rows // 2)):
            yield beside_features(batch, self._n_targets, self._share)


class PreparedEngine(Engine[Batch]):
    """Passes over all rows see chunks as `prepare` makes them, once: those of the first pass."""

    def __init__(self, inner: Engine[Batch], prepare: Callable[[Batch], Batch]) -> None:
        super().__init__(inner)
        self._prepare = prepare
        self._kept: list[Batch] = []

    def _around(self, inner: Engine[Batch]) -> Self:
        other = super()._around(inner)
        other._kept = []
        return other

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        if not self._kept:
            self._kept = [self._prepare(batch) for batch in super().chunks(n_rows)]
        return iter(self._kept)
