"""Learning from rows as they will be met: whole, and with holes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mixtura.data import Batch, Table
from mixtura.engines.local import LocalEngine


def is_copy(batch: Batch) -> Tensor:
    """(n,) which rows of a punched batch are the copies with holes."""
    return torch.arange(len(batch), device=batch.y.device) >= len(batch) // 2


class PunchedEngine(LocalEngine):
    """Every row stands beside a copy of itself with random holes.

    Minibatches draw fresh holes; passes over all rows always meet the same ones, so that a sum
    stays one function of the model.
    """

    def __init__(self, table: Table, share: float, generator: torch.Generator) -> None:
        super().__init__(table)
        self._share, self._generator = share, generator
        self._seed = int(torch.randint(2**31, (1,), generator=generator))

    @property
    def may_have_missing(self) -> bool:
        return True

    def batch(self, index: Tensor) -> Batch:
        return super().batch(index).with_punched(self._share, self._generator)

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self._seed)
        for batch in super().chunks(max(1, n_rows // 2)):
            yield batch.with_punched(self._share, generator)
