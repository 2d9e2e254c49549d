"""Engines of sequences: what rows are to the other models, whole sequences are to these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch, hashed, odd_factors
from mixtura.data.lazy import Marked, chunks_of, is_memory_mapped
from mixtura.data.scaling import Scaling
from mixtura.data.sequences import SequenceBatch
from mixtura.engines.base import Engine

#: Frames that are looked at together where all are looked through.
_SCAN_FRAMES = 16_384


class SequenceEngine(Engine[SequenceBatch]):
    """A user's sequences as batches of tensors, always in double precision.

    Frames are in memory once: engines of some of the sequences look at those of all. Those of a
    memory-mapped file stay there, and are read and converted when they are asked for.
    Chunks are bounded by their frames. One that has all of them is packed once, several are packed
    anew whenever they are looked through. Nothing that was computed for one outlives it.
    """

    most_rows: ClassVar[dict[str, int]] = {"cpu": 262_144, "cuda": 4_194_304}
    most_numbers: ClassVar[int] = 20_000_000
    most_copied: ClassVar[float] = math.inf

    def __init__(
        self,
        frames: np.ndarray,
        lengths: np.ndarray,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        scaling: Scaling,
        device: torch.device,
    ) -> None:
        n, self._mapped = len(lengths), frames if is_memory_mapped(frames) else None
        super().__init__(
            frames if self._mapped is None else np.asarray(frames[:0]).copy(),
            np.zeros(n, dtype=np.int64) if y is None else y,
            np.ones(n) if weight is None else weight,
            scaling=scaling,
            device=device,
        )
        self.lengths = torch.as_tensor(lengths, device=device)
        self._began = self.lengths.cumsum(0) - self.lengths
        self._holes = self._mapped is not None and any(
            bool(np.isnan(part).any()) for _, part in chunks_of(frames, _SCAN_FRAMES)
        )

    @property
    def _told_missing(self) -> bool:
        return self._holes or self._observed is not None

    @property
    def uniform(self) -> bool:
        return False

    @property
    def sizes(self) -> Tensor:
        return self.lengths.to(self.weight)

    def _rows_at(self, index: slice | Tensor) -> SequenceBatch:
        """The sequences at `index`."""
        answers = self.y[index], self.weight[index]
        frames = self._frames_at(self._places(index))
        return SequenceBatch.of(*frames, self.lengths[index], *answers)

    def _frames_at(self, at: Tensor) -> tuple[Tensor, Tensor | None]:
        """Frames at some places (m,), zero where an entry is missing; and which are not."""
        if self._mapped is not None:
            return self._convert(self._mapped[at.cpu().numpy()])
        return self._x[at], None if self._observed is None else self._observed[at]

    def _places(self, index: slice | Tensor) -> Tensor:
        """(F,) places of the frames of some sequences."""
        lengths = self.lengths[index]
        first = self._began[index] - (lengths.cumsum(0) - lengths)
        inside = torch.arange(int(lengths.sum()), device=self.device)
        return first.repeat_interleave(lengths).add_(inside)

    def _rows_in_order(self, n_rows: int) -> Iterator[SequenceBatch]:
        """All sequences in order, about `n_rows` frames at a time."""
        number = (self.lengths.cumsum(0) - 1) // n_rows
        if len(number) and number[-1] == 0:
            yield replace(self._whole, kept={})
            return
        counts = torch.unique_consecutive(number, return_counts=True)[1].tolist()
        ends = np.cumsum(counts).tolist()
        for end, count in zip(ends, counts, strict=True):
            yield self._rows_at(slice(end - count, end))

    @cached_property
    def _whole(self) -> SequenceBatch:
        return self._rows_at(slice(None))

    def __getstate__(self) -> dict[str, object]:
        """Copies may get other sequences, labels or weights."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_whole"}

    def cast(self, dtype: torch.dtype) -> Self:
        """Itself: likelihoods of long sequences need all digits."""
        return self

    def row_keys(self) -> np.ndarray:
        """(n,) numbers as good as random, the same for copies of a sequence (but for rounding)."""
        lengths = self.lengths.cpu().numpy()
        began = lengths.cumsum() - lengths
        factors = odd_factors(self.n_features + int(lengths.max()))
        keys = factors[self.n_features :][np.arange(lengths.sum()) - began.repeat(lengths)]
        for low, at in enumerate(self._places(slice(None)).split(_SCAN_FRAMES)):
            frames = Batch(*self._frames_at(at), self.y, self.weight)
            some = slice(low * _SCAN_FRAMES, (low + 1) * _SCAN_FRAMES)
            keys[some] *= hashed(frames, factors[: self.n_features])
        return np.add.reduceat(keys, began)

    def take(self, index: np.ndarray | Marked) -> Self:
        """The sequences at the integer positions `index`."""
        part, at = copy(self), torch.as_tensor(np.asarray(index), device=self.device)
        part.lengths, part._began = self.lengths[at], self._began[at]
        part.y, part.weight = self.y[at], self.weight[at]
        return part
