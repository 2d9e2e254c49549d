"""Rows of a table or another engine: as they are, with copies, or as a model has prepared them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data import Batch, Scaling, Table
from mixtura.data.journal import Sums
from mixtura.data.sequences import AnyBatch
from mixtura.data.targets import beside_features
from mixtura.engines.base import Engine


class Wrapped(Engine[AnyBatch]):
    """The rows of a table, or of another engine; subclasses say how they are seen."""

    def __init__(self, inner: Table | Engine[AnyBatch]) -> None:
        self._inner: Engine[AnyBatch] = inner  # type: ignore[assignment]  # a table answers alike

    def _around(self, inner: Engine[AnyBatch]) -> Self:
        other = copy(self)
        other._inner = inner
        return other

    @property
    def uniform(self) -> bool:
        return self._inner.uniform

    @property
    def y(self) -> Tensor:
        return self._inner.y

    @property
    def weight(self) -> Tensor:
        return self._inner.weight

    @property
    def scaling(self) -> Scaling:
        return self._inner.scaling

    @property
    def single(self) -> bool:
        return self._inner.single

    @property
    def sizes(self) -> Tensor:
        return self._inner.sizes

    @property
    def may_have_missing(self) -> bool:
        return self._inner.may_have_missing

    @property
    def has_holes(self) -> bool:
        return self._inner.has_holes

    @property
    def most_rows(self) -> dict[str, int]:
        return self._inner.most_rows

    @property
    def values_per_row(self) -> float:
        """Of the rows as they are, however they are seen."""
        inner = self._inner
        return inner.values_per_row if isinstance(inner, Engine) else super().values_per_row

    @property
    def n_here(self) -> int:
        return self._inner.n_here

    def batch(self, index: slice | Tensor) -> AnyBatch:
        return self._inner.batch(index)

    def chunks(self, n_rows: int) -> Iterator[AnyBatch]:
        return self._inner.chunks(n_rows)

    def minibatch_indices(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        return self._inner.minibatch_indices(size, generator)

    def recorded(self, compute: Callable[[], Sums]) -> Sums:
        return self._inner.recorded(compute)

    def reduced(self, sums: Sums, function: Callable[[AnyBatch], Sums]) -> Sums:
        return self._inner.reduced(sums, function)

    def joined(self, parts: list[Tensor]) -> Tensor:
        return self._inner.joined(parts)

    def row_keys(self) -> np.ndarray:
        return self._inner.row_keys()

    def take(self, index: np.ndarray) -> Self:
        return self._around(self._inner.take(index))

    def with_answers(self, y: Tensor | None = None, weight: Tensor | None = None) -> Self:
        return self._around(self._inner.with_answers(y, weight))

    def under(self, scaling: Scaling) -> Self:
        return self._around(self._inner.under(scaling))

    def cast(self, dtype: torch.dtype) -> Self:
        return self._around(self._inner.cast(dtype))


def is_copy(batch: Batch) -> Tensor:
    """(n,) which rows of a punched batch are the copies with holes."""
    return torch.arange(len(batch), device=batch.y.device) >= len(batch) // 2


class Doubled(Wrapped[AnyBatch]):
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

    def batch(self, index: slice | Tensor) -> Batch:
        return beside_features(super().batch(index), self._n_targets, self._share)

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        for batch in super().chunks(max(1, n_rows // 2)):
            yield beside_features(batch, self._n_targets, self._share)


class PreparedEngine(Wrapped[Batch]):
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
