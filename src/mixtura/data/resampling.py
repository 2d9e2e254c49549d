"""Channels of sequences at moments that all sequences share."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.data.sequences import SequenceBatch


def resample(batch: SequenceBatch, length: int) -> tuple[Tensor, Tensor]:
    """Every channel at `length` even moments, from its observed frames alone.

    Between two of them it is a straight line, before the first and after the last it is constant.

    Returns
    -------
    (n, D, length) values, zero in channels without an observed frame; (n, D) which channels have
    one.
    """
    lengths, x = batch.packing.lengths, batch.unpacked(batch.x)
    n, place = len(lengths), torch.arange(len(x), device=x.device)
    owner = torch.arange(n, device=x.device).repeat_interleave(lengths)
    moment = (place - (lengths.cumsum(0) - lengths)[owner]).to(x)
    moment = (moment + 0.5) / lengths[owner]
    if batch.frames.observed is None:
        values = _interpolated(x, owner, moment, n, length)
        return values.movedim(2, 1), torch.ones(n, x.shape[1], dtype=torch.bool, device=x.device)
    values, seen = x.new_zeros(n, x.shape[1], length), x.new_zeros(n, x.shape[1], dtype=torch.bool)
    for channel, observed in enumerate(batch.unpacked(batch.frames.observed).T):
        kept = observed.nonzero().flatten()
        seen[owner[kept], channel] = True
        some, mine = seen[:, channel], x[kept, channel][:, None]
        rank = some.cumsum(0)[owner[kept]] - 1
        found = _interpolated(mine, rank, moment[kept], int(some.sum()), length)
        values[some, channel] = found[..., 0]
    return values, seen


def _interpolated(x: Tensor, owner: Tensor, moment: Tensor, n: int, length: int) -> Tensor:
    """(n, length, D) frames (F, D) of n sequences, all of which have one, at even moments.

    `moment` (F,) lies between 0 and 1 and rises within each sequence.
    """
    count = torch.bincount(owner, minlength=n)
    last = count.cumsum(0) - 1
    first = last - count + 1
    wanted = (torch.arange(length).to(x) + 0.5) / length
    wanted = wanted.clamp(moment[first][:, None], moment[last][:, None])
    base = 2.0 * torch.arange(n).to(x)[:, None]
    right = torch.searchsorted(moment + base[owner, 0], wanted + base)
    right = right.minimum(last[:, None]).maximum(first[:, None])
    left = (right - 1).maximum(first[:, None])
    gap = (moment[right] - moment[left]).clamp_min(torch.finfo(x.dtype).tiny)
    share = ((wanted - moment[left]) / gap).clamp(0.0, 1.0)[..., None]
    return x[left] * (1.0 - share) + x[right] * share
