"""Sequences as tensors: what rows are to the other models, whole sequences are to these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mixtura.data.batch import Batch
from mixtura.data.packing import Packing
from mixtura.exceptions import DegenerateDataWarning, warn

#: How many times shorter or longer than in training sequences are that a warning tells of.
_FAR = 2
#: Channels of zeros and ones that a channel of codes becomes at most.
_MOST_INDICATORS = 50


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
