"""What missing entries tell of classes, while mixtures learn to discriminate: held fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities.base import Density, Statistics


@dataclass(frozen=True, kw_only=True)
class HoleEvidence(Density[Batch]):
    """base_k + log_odds_k . m for each of K components, m_d = 1 where an entry is absent.

    A product with it has nothing more to learn: it has no free parameters.

    Attributes
    ----------
    base : (K,).
    log_odds : (K, D).
    """

    closed_form = explicit = True

    base: Tensor
    log_odds: Tensor

    @property
    def location(self) -> Tensor:
        return torch.zeros_like(self.log_odds)

    def scaled(self, factor: float) -> Self:
        """So many times the evidence."""
        return self.with_tensors({name: factor * v for name, v in self.tensors().items()})

    def split(self, n_parts: int) -> list[Self]:
        """Parts of equal size."""
        return [self.select(index) for index in torch.arange(len(self.base)).chunk(n_parts)]

    def log_prob(self, batch: Batch) -> Tensor:
        """(n, K) of patterns; entries that are not told count as present."""
        absent = batch.x if batch.observed is None else batch.x * batch.observed
        return self.base + absent.to(self.base) @ self.log_odds.mT

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        return {"mass": occupancy.sum(0)}

    def own_statistics(self) -> Statistics:
        return {"mass": torch.ones_like(self.base)}

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        return self, torch.ones_like(self.base, dtype=torch.bool)

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        return {}

    def free(self) -> dict[str, Tensor]:
        return {}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        return self

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        raise self._unwritten("draws", "`sample`")
