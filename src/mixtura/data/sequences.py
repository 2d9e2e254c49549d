"""Sequences as tensors: what rows are to the other models, whole sequences are to these."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mixtura.data.packing import Packing
from mixtura.data.scaling import Scaling
from mixtura.data.tables import Batch, Table, hashed, odd_factors
from mixtura.exceptions import DegenerateDataWarning, warn

#: How many times shorter or longer than in training sequences are that a warning tells of.
_FAR = 2
#: Channels of zeros and ones that a channel of codes becomes at most.
_MOST_INDICATORS = 50
#: Frames that are looked at together where all are looked through.
_SCAN_FRAMES = 16_384


def warn_of_lengths(lengths: np.ndarray, known: tuple[int, int]) -> None:
    """Where sequences are far shorter or longer than the shortest and the longest of training."""
    found = np.flatnonzero((_FAR * lengths < known[0]) | (lengths > _FAR * known[1]))
    if known[1] and len(found):
        warn(
            f"{len(found)} sequence(s) of X are less than half as long as all training sequences, "
            f"or more than twice as long (the first: {lengths[found[0]]} frames of sequence "
            f"{found[0]}, in training {known[0]} to {known[1]}): their class probabilities are "
            "guesses. Remedy: pass whole sequences, or train with such ones.",
            DegenerateDataWarning,
        )


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """Sequences ready for a model, in the model's units.

    Attributes
    ----------
    frames : all frames by time, as `packing` says.
    y : (n,) class index, -1 for unlabeled sequences.
    weight : (n,) non-negative weights.
    kept : what a density wants to find again when it sees the same batch; it goes with the batch.
    lasting : the same of what follows from the sequences alone; it stays as long as they do.
    bounded : whether a single frame may not tell for or against a class without limit.
    """

    frames: Batch
    packing: Packing
    y: Tensor
    weight: Tensor
    kept: dict[str, Any] = field(default_factory=dict)
    lasting: dict[object, Any] = field(default_factory=dict)
    bounded: bool = False

    def __len__(self) -> int:
        return len(self.y)

    @property
    def x(self) -> Tensor:
        return self.frames.x

    @classmethod
    def of(
        cls, x: Tensor, observed: Tensor | None, lengths: Tensor, y: Tensor, weight: Tensor
    ) -> SequenceBatch:
        """Frames given sequence after sequence."""
        packing = Packing.of(lengths)
        seen = None if observed is None else packing.pack(observed)
        owner = packing.owner
        return cls(Batch(packing.pack(x), seen, y[owner], weight[owner]), packing, y, weight)

    def unpacked(self, values: Tensor) -> Tensor:
        """Packed frames, sequence after sequence again."""
        return values[self.packing.place]

    def for_prediction(self) -> SequenceBatch:
        """The sequences as at prediction, where a frame may be a glitch."""
        return replace(self, bounded=True, kept={})

    def with_indicators(self, levels: tuple[int, ...]) -> SequenceBatch:
        """The sequences, with one channel of zeros and ones per category of a channel of codes.

        `levels` has the number of categories of each channel, 0 for numbers. Categories beyond the
        first `_MOST_INDICATORS` share channels.
        """
        if not any(levels):
            return self
        frames, x, seen = self.frames, [], []
        for at, level in enumerate(levels):
            count, own = min(level, _MOST_INDICATORS), frames.x[:, at, None]
            x.append(one_hot(own[:, 0].long() % count, count).to(own) if count else own)
            if frames.observed is not None:
                seen.append(frames.observed[:, at, None].expand_as(x[-1]))
        observed = torch.cat(seen, 1) if seen else None
        frames = replace(frames, x=torch.cat(x, 1), observed=observed)
        return replace(self, frames=frames, kept={}, lasting={})

    def missing_share(self) -> Tensor:
        """(n,) share of the values that each sequence lacks."""
        total = self.packing.total(self.frames.missing_share()[None])[:, 0]
        return total / self.packing.lengths

    def lost_frames(self) -> Tensor:
        """(n,) mean share of the frames that channels lack which have some."""
        if self.frames.observed is None:
            return torch.zeros_like(self.weight)
        seen = self.packing.total(self.frames.observed.mT.to(self.weight))
        count = (seen > 0.0).sum(1) * self.packing.lengths
        return 1.0 - seen.sum(1) / count.clamp_min(1)

    def n_values(self) -> Tensor:
        """(n,) how many values each sequence has, missing ones included."""
        return self.packing.lengths * self.x.shape[1]

    def sum_observed(self, values: Tensor) -> Tensor:
        """(n,) sums of values (D,) over the observed entries of each sequence."""
        return self.packing.total(self.frames.sum_observed(values)[None])[:, 0]

    def with_punched(self, share: float, generator: torch.Generator) -> SequenceBatch:
        """The sequences and, beside each, a copy with random holes; the two share its weight.

        Every other copy loses whole frames and the rest whole channels (if there are several), a
        share of its own, `share` on average.
        """
        x, lengths = self.unpacked(self.x), self.packing.lengths
        sequence = torch.arange(len(self)).repeat_interleave(lengths.cpu())
        rate = 2.0 * share * torch.rand(len(self), 1, generator=generator)
        keeps_channel = torch.rand(len(self), x.shape[1], generator=generator) >= rate
        keeps_frame = torch.rand(len(x), 1, generator=generator) >= rate[sequence]
        by_frame = (sequence % 2 == 0)[:, None] | torch.tensor(x.shape[1] == 1)
        kept = torch.where(by_frame, keeps_frame, keeps_channel[sequence]).to(x.device)
        whole = torch.ones_like(kept)
        if self.frames.observed is not None:
            whole = self.unpacked(self.frames.observed)
        return SequenceBatch.of(
            torch.cat([x, x * kept]),
            torch.cat([whole, whole & kept]),
            lengths.repeat(2),
            self.y.repeat(2),
            self.weight.repeat(2) / 2.0,
        )


class Batched(Protocol):
    """What batches of rows and of sequences have in common."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def for_prediction(self) -> Self: ...
    def missing_share(self) -> Tensor: ...
    def sum_observed(self, values: Tensor) -> Tensor: ...
    def unpacked(self, values: Tensor) -> Tensor: ...
    def with_punched(self, share: float, generator: torch.Generator) -> Self: ...


AnyBatch = TypeVar("AnyBatch", bound=Batched)


class SequenceTable(Table):
    """A user's sequences as batches of tensors, always in double precision.

    Frames are in memory once: tables of some of the sequences look at those of all.
    Chunks are bounded by their frames. One that has all of them is packed once, several are packed
    anew whenever they are looked through. Nothing that was computed for one outlives it.
    """

    most_rows: ClassVar[dict[str, int]] = {"cpu": 262_144, "cuda": 4_194_304}
    most_numbers: ClassVar[int] = 20_000_000

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
        n = len(lengths)
        super().__init__(
            frames,
            np.zeros(n, dtype=np.int64) if y is None else y,
            np.ones(n) if weight is None else weight,
            scaling=scaling,
            device=device,
        )
        self.lengths = torch.as_tensor(lengths, device=device)
        self._began = self.lengths.cumsum(0) - self.lengths

    @property
    def uniform(self) -> bool:
        return False

    @property
    def sizes(self) -> Tensor:
        return self.lengths.to(self.weight)

    def batch(self, index: slice | Tensor) -> SequenceBatch:  # type: ignore[override]
        """The sequences at `index`."""
        return SequenceBatch.of(*self._part(index))

    def _part(self, index: slice | Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Frames, what is observed, lengths, labels and weights of some sequences."""
        at = self._places(index)
        observed = None if self._observed is None else self._observed[at]
        return self._x[at], observed, self.lengths[index], self.y[index], self.weight[index]

    def _places(self, index: slice | Tensor) -> Tensor:
        """(F,) places of the frames of some sequences."""
        lengths = self.lengths[index]
        first = self._began[index] - (lengths.cumsum(0) - lengths)
        inside = torch.arange(int(lengths.sum()), device=self.device)
        return first.repeat_interleave(lengths).add_(inside)

    def chunks(self, n_rows: int) -> Iterator[SequenceBatch]:  # type: ignore[override]
        """All sequences in order, about `n_rows` frames at a time."""
        number = (self.lengths.cumsum(0) - 1) // n_rows
        if len(number) and number[-1] == 0:
            yield replace(self._whole, kept={})
            return
        counts = torch.unique_consecutive(number, return_counts=True)[1].tolist()
        ends = np.cumsum(counts).tolist()
        for end, count in zip(ends, counts, strict=True):
            yield self.batch(slice(end - count, end))

    @cached_property
    def _whole(self) -> SequenceBatch:
        return self.batch(slice(None))

    def __getstate__(self) -> dict[str, Any]:
        """Copies may get other sequences, labels or weights."""
        return {name: value for name, value in vars(self).items() if name != "_whole"}

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
            seen = None if self._observed is None else self._observed[at]
            frames = Batch(self._x[at], seen, self.y, self.weight)
            some = slice(low * _SCAN_FRAMES, (low + 1) * _SCAN_FRAMES)
            keys[some] *= hashed(frames, factors[: self.n_features])
        return np.add.reduceat(keys, began)

    def take(self, index: np.ndarray) -> Self:
        """A table of the sequences at the integer positions `index`."""
        part, at = copy(self), torch.as_tensor(index, device=self.device)
        part.lengths, part._began = self.lengths[at], self._began[at]
        part.y, part.weight = self.y[at], self.weight[at]
        return part
