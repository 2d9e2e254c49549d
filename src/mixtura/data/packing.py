"""Frames of many sequences, packed by time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """How the frames of n sequences are ordered by time.

    Attributes
    ----------
    lengths : (n,).
    place : (F,) packed place of each frame, frames given sequence after sequence.
    owner : (F,) sequence of each packed frame.
    alive : number of sequences at each moment, as plain ints.
    """

    lengths: Tensor
    place: Tensor
    owner: Tensor
    alive: list[int]

    @classmethod
    def of(cls, lengths: Tensor) -> Packing:
        order = lengths.argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        longest = int(lengths.max())
        ending = torch.bincount(lengths, minlength=longest + 1)
        alive = len(lengths) - ending.cumsum(0)[:longest]
        first = alive.cumsum(0) - alive
        sequence = torch.arange(len(lengths), device=order.device).repeat_interleave(lengths)
        began = lengths.cumsum(0) - lengths
        moment = torch.arange(len(sequence), device=order.device) - began[sequence]
        place = first[moment] + rank[sequence]
        owner = torch.empty_like(sequence)
        owner[place] = sequence
        return cls(lengths, place, owner, alive.tolist())

    @property
    def n_first(self) -> int:
        """Frames of the first moment: one of every sequence."""
        return self.alive[0]

    def pack(self, frames: Tensor) -> Tensor:
        """Frames given sequence after sequence, by time."""
        packed = torch.empty_like(frames)
        packed[self.place] = frames
        return packed

    def previous(self) -> Tensor:
        """Packed place of the frame before each frame that is not a sequence's first."""
        alive = torch.tensor(self.alive, device=self.owner.device)
        here = torch.arange(self.n_first, len(self.owner), device=self.owner.device)
        return here - alive[:-1].repeat_interleave(alive[1:])

    def last(self) -> Tensor:
        """(n,) packed place of the last frame of each sequence."""
        return self.place[self.lengths.cumsum(0) - 1]

    def moments(self) -> Tensor:
        """(F,) when each packed frame is, from 0."""
        alive = torch.tensor(self.alive, device=self.owner.device)
        return torch.arange(len(alive), device=alive.device).repeat_interleave(alive)

    def total(self, values: Tensor) -> Tensor:
        """Sums over the frames of each sequence: (K, F) -> (n, K)."""
        total = values.new_zeros(values.shape[0], len(self.lengths))
        return total.index_add_(1, self.owner, values).mT

    @cached_property
    def cut(self) -> Cut:
        """Pieces about as long as the longest sequence has pieces."""
        most = math.isqrt(len(self.alive))
        count = (self.lengths + most - 1) // most
        final = count.cumsum(0) - 1
        lengths = torch.full((int(count.sum()),), most, device=count.device)
        lengths[final] = self.lengths - most * (count - 1)
        pieces, numbers = Packing.of(lengths), Packing.of(count)
        number = numbers.place[pieces.owner[: pieces.n_first]]
        order, place = torch.empty_like(self.place), torch.empty_like(self.place)
        order[pieces.place], place[self.place] = self.place, pieces.place
        return Cut(pieces, numbers, number, final, order, place, self.owner[order])


@dataclass(frozen=True)
class Cut:
    """Sequences cut into P pieces.

    Attributes
    ----------
    pieces : packs their frames, each piece as though it were a sequence.
    numbers : packs the pieces: all first ones, then all second ones, ...
    number : (P,) place in `numbers` of each piece, the longest first as in `pieces`.
    final : (n,) the last piece of each sequence, given sequence after sequence.
    order : (F,) packed place, uncut, of each packed frame of the pieces.
    place : (F,) the other way round.
    owner : (F,) sequence of each packed frame of the pieces.
    """

    pieces: Packing
    numbers: Packing
    number: Tensor
    final: Tensor
    order: Tensor
    place: Tensor
    owner: Tensor
