"""Rows as tensors, as models see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mixtura.data.indicators import Origin

UNLABELED = -1

Answer = TypeVar("Answer")


@lru_cache(maxsize=256)
def index_of(columns: tuple[int, ...], device: torch.device) -> Tensor:
    """(d,) the columns, as a tensor on a device."""
    with torch.inference_mode(False):  # whoever asks first, gradients may need it later
        return torch.tensor(columns, dtype=torch.long, device=device)


@dataclass(frozen=True)
class Batch:
    """Rows ready for a model, in the model's units.

    Attributes
    ----------
    x : (n, D), zero where a feature is missing.
    observed : (n, D) bool, or None when nothing is missing.
    y : (n,) class index, -1 for unlabeled rows.
    weight : (n,) non-negative weights.
    absent : (n, D) what the rows came without: 1 for absent, 0 for present, -1 for no telling.
        None: all that is not observed is absent. Holes that are punched into a row are none of its
        own.
    origin : (D,) the user's columns that each comes from, where several may come from one: its
        indicators are missing together. None: each is a column of the user's.
    """

    x: Tensor
    observed: Tensor | None
    y: Tensor
    weight: Tensor
    absent: Tensor | None = None
    origin: Origin | None = None
    _kept: dict[object, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.x)

    def once(self, key: object, function: Callable[[], Answer]) -> Answer:
        """What follows from the rows, whatever the model, kept as long as this batch is."""
        if key not in self._kept:
            self._kept[key] = function()
        return self._kept[key]  # type: ignore[return-value]

    def once_drawn(
        self, key: object, generator: torch.Generator, function: Callable[[], Answer]
    ) -> Answer:
        """What follows from the rows and from random numbers: the same from the same ones.

        The last answer to each key is kept.
        """
        kept = self.once(key, dict[bytes, tuple[Answer, Tensor]])
        state = generator.get_state().numpy().tobytes()
        if state not in kept:
            kept.clear()
            kept[state] = function(), generator.get_state()
        found, after = kept[state]
        generator.set_state(after)
        return found

    def take(self, index: slice | Tensor) -> Batch:
        """The rows at `index` (slice, mask or indices)."""
        observed = None if self.observed is None else self.observed[index]
        absent = None if self.absent is None else self.absent[index]
        y, weight = self.y[index], self.weight[index]
        return Batch(self.x[index], observed, y, weight, absent, self.origin)

    def to(self, dtype: torch.dtype) -> Batch:
        """The same rows in another floating type."""
        return replace(self, x=self.x.to(dtype), weight=self.weight.to(dtype))

    def lacks(self) -> Tensor:
        """(n, D) what the rows came without, as in `absent`."""
        if self.absent is not None:
            return self.absent
        if self.observed is None:
            return torch.zeros_like(self.x, dtype=torch.int8)
        return (~self.observed).to(torch.int8)

    def unpacked(self, values: Tensor) -> Tensor:
        """Values by row, in the order in which the rows were given: as they are."""
        return values

    def for_prediction(self) -> Batch:
        """The rows as at prediction, where a hole that was punched is absent like any other."""
        if self.absent is None or self.observed is None:
            return self
        told, lacks = self.absent, (~self.observed).to(self.absent)
        return self.once(
            "for prediction", lambda: replace(self, absent=torch.where(told < 0, told, lacks))
        )

    def with_nan(self) -> Tensor:
        """(n, D) what rows have, NaN where entries are missing."""
        return self.x if self.observed is None else self.x.where(self.observed, torch.nan)

    def missing_share(self) -> Tensor:
        """(n,) share of the user's columns that each row lacks."""
        if self.observed is None:
            return self.weight.new_zeros(len(self), dtype=torch.float64)
        return (~self.by_column(self.observed)).double().mean(1)

    def by_column(self, values: Tensor) -> Tensor:
        """(n, C) of each of the user's columns, what all that come from it have in (n, D)."""
        return values if self.origin is None else values[:, _firsts(self.origin[0], values.device)]

    def sum_observed(self, values: Tensor) -> Tensor:
        """(n,) sums of values, (D,) or (n, D), over the observed features of each row."""
        if self.observed is None:
            return values.sum(-1).expand(len(self))
        return (self.observed * values).sum(1)

    def with_punched(self, share: float, generator: torch.Generator) -> Batch:
        """The rows and, beside each, a copy with random holes; the two share its weight.

        Every copy loses a share of its features of its own, `share` on average. The same random
        numbers give the same batch, with what is kept of it.
        """
        punched = partial(self._punched, share, generator)
        return self.once_drawn(("punched", share), generator, punched)

    def _punched(self, share: float, generator: torch.Generator) -> Batch:
        rate = 2.0 * share * torch.rand(len(self), 1, generator=generator)
        width = self.x.shape[1] if self.origin is None else 1 + max(self.origin[0])
        kept = (torch.rand(len(self), width, generator=generator) >= rate).to(self.x.device)
        kept = kept if self.origin is None else spread(kept, self.origin)
        whole = torch.ones_like(kept) if self.observed is None else self.observed
        return Batch(
            torch.cat([self.x, self.x * kept]),
            torch.cat([whole, whole & kept]),
            self.y.repeat(2),
            self.weight.repeat(2) / 2.0,
            self.lacks().repeat(2, 1),
            self.origin,
        )


def spread(shown: Tensor, origin: Origin) -> Tensor:
    """(n, D) bool, of what comes from the user's columns: whether all are shown in (n, C)."""
    return (~shown).float() @ _sources(origin, shown.shape[1], shown.device) == 0.0


@lru_cache(maxsize=16)
def _sources(origin: Origin, n_columns: int, device: torch.device) -> Tensor:
    """(C, D) whether each of the user's columns is one that a number comes from."""
    found = torch.zeros(n_columns, len(origin[0]), device=device)
    for each in origin:
        found[list(each), range(len(each))] = 1.0
    return found


@lru_cache(maxsize=256)
def _firsts(origin: tuple[int, ...], device: torch.device) -> Tensor:
    """(C,) of each of the user's columns, the first that comes from it."""
    return index_of(tuple(origin.index(column) for column in sorted(set(origin))), device)


def odd_factors(count: int) -> np.ndarray:
    """Random odd numbers, always the same ones."""
    return 2 * np.random.default_rng(0).integers(2**63, size=count, dtype=np.uint64) + 1


def hashed(batch: Batch, factors: np.ndarray) -> np.ndarray:
    """Hashes of rows by odd factors (D,): sums of products of bits, modulo 2 ** 64.

    The last bits do not count: weights and copies may move the units of rows by rounding.
    """
    bits = batch.x.double().cpu().contiguous().numpy().view(np.uint64)
    bits = (bits + np.uint64(1 << 23)) >> np.uint64(24)
    bits = bits + batch.lacks().cpu().numpy().astype(np.uint64)
    return ((bits ^ (bits >> np.uint64(20))) * factors).sum(1)
