"""Sequences as rows: numbers that sum up each channel by itself, from what is observed of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

from mixtura.data.given import Device
from mixtura.data.resampling import resample
from mixtura.data.sequences import SequenceBatch
from mixtura.parts import storable

#: Kernels of Dempster et al. (2021), MiniRocket: of nine taps three weigh 2 and the others -1.
_TAPS = 9
_KERNELS = torch.full((84, _TAPS), -1.0)
_KERNELS.scatter_(1, torch.tensor(list(combinations(range(_TAPS), 3))), 2.0)
#: Shares of outputs over thresholds that sequences get in all channels together, and dilations.
_SHARES, _DILATIONS = 4_000, 6
#: Moments of a channel: so many at least and at most, and the share of sequences with no more
#: frames than that.
_SHORTEST, _LONGEST, _TYPICAL = 16, 2_048, 0.9
#: Halvings of a channel and of its differences, and the quantiles of each part.
_HALVINGS, _QUANTILES = (5, 4), (0.1, 0.5, 0.9)
_FREQUENCIES, _LAGS, _FRAMES = 16, (1, 2, 3, 5, 8), 16
#: Weights of other numbers beside shares, the usual one first, and that of the length.
_WEIGHTS, _LENGTH = (0.35, 0.1, 1.0), 0.3
#: Numbers that ranks go by, at most, deviations beyond them that count, and relative deviations
#: that are rounding errors.
_KNOTS, _BEYOND, _ROUNDING = 33, 6.0, 1e-5
#: Principal components of all channels together, and those that a channel gets at least.
_COMPONENTS, _FEWEST = 600, 2
#: Numbers that are worked on together, and outputs that thresholds are quantiles of.
_CHUNK, _SORTED = 4_000_000, 1_000_000
_GOLDEN = 0.6180339887498949


@storable
@dataclass(frozen=True)
class Summary:
    """A map from sequences to r numbers per channel; it knows no classes.

    Channels of categories count as one channel per category. All are brought to the same length.
    Their numbers are shares of outputs of dilated kernels over thresholds, means, deviations and
    quantiles of their parts and of the parts of their differences, their spectrum and
    autocorrelations (by shares of the length, and by frames where lengths differ), and the length
    of the sequence; principal components of these are kept.

    Attributes
    ----------
    length : L, of channels.
    dilations : K, of kernels.
    thresholds : (K, thresholds per kernel and dilation, D, 84).
    curves : (2, D, p, K) values of the numbers, in order, and what they become.
    directions : (D, p, r) of the principal components.
    levels : of the channels of sequences, as `with_indicators` takes them.
    lags : of autocorrelations by frames, from one on; none where all sequences are as long.
    """

    length: int
    dilations: tuple[int, ...]
    thresholds: Tensor
    curves: Tensor
    directions: Tensor
    levels: tuple[int, ...] = ()
    lags: int = 0

    @classmethod
    def learn(
        cls, batch: SequenceBatch, levels: tuple[int, ...] = ()
    ) -> tuple[Summary, Tensor, Tensor]:
        """What the sequences of a batch differ in, by each weight of the numbers beside shares.

        The components of all weights stand side by side: `parts` takes them apart. Returns the
        summary, and what it gives for these sequences.
        """
        batch = batch.with_indicators(levels)
        lengths = batch.packing.lengths.double()
        typical = int(lengths.quantile(_TYPICAL, interpolation="lower"))
        length = min(max(typical, _SHORTEST), _LONGEST)
        values, seen = resample(batch, length)
        per_channel = max(1, _SHARES // (len(_KERNELS) * values.shape[1]))
        dilations = _dilations(length, min(per_channel, _DILATIONS))
        count = per_channel // len(dilations)
        thresholds = torch.stack([_thresholds(values.float(), each, count) for each in dilations])
        lags = _FRAMES if lengths.min() < lengths.max() else 0
        some = [*_numbers(values, lengths, dilations, thresholds, lags)]
        curves = _curves(torch.cat(some), seen)
        n_shares = count * len(_KERNELS) * len(dilations)
        sizes = torch.tensor([n_shares, curves.shape[2] - n_shares - 1, 1])
        shown = torch.cat([_scores(each, curves) for each in some]) * seen[..., None]
        most, directions = max(_FEWEST, _COMPONENTS // values.shape[1]), []
        for others in _WEIGHTS:
            weight = torch.tensor([1.0, others, _LENGTH]) / sizes.sqrt()
            weight = weight.repeat_interleave(sizes).to(shown)
            found = _principal((shown * weight).movedim(1, 0).double(), most)
            directions.append(found.float() * weight[:, None])
        side_by_side = torch.cat(directions, 2)
        summary = cls(length, dilations, thresholds, curves, side_by_side, levels, lags)
        return summary, torch.einsum("ndp,dpr->ndr", shown, side_by_side).double(), seen

    def parts(self) -> list[Summary]:
        """One summary per weight, of what `learn` found."""
        each = self.directions.chunk(len(_WEIGHTS), 2)
        return [replace(self, directions=directions.contiguous()) for directions in each]

    @property
    def n_channels(self) -> int:
        return self.directions.shape[0]

    @property
    def n_components(self) -> int:
        """r, per channel."""
        return self.directions.shape[2]

    def to(self, device: Device | None = None) -> Summary:
        """Another device."""
        return replace(
            self,
            thresholds=self.thresholds.to(device),
            curves=self.curves.to(device),
            directions=self.directions.to(device),
        )

    def __call__(self, batch: SequenceBatch, first: int = 0) -> tuple[Tensor, Tensor]:
        """(n, D, r) numbers, zero for channels with nothing observed; (n, D) which have some.

        Of the sequences from the `first` on.
        """
        values, seen = resample(batch.with_indicators(self.levels), self.length)
        values, seen, parts = values[first:], seen[first:], []
        lengths = batch.packing.lengths[first:].double()
        for numbers in _numbers(values, lengths, self.dilations, self.thresholds, self.lags):
            shown = _scores(numbers, self.curves)
            parts.append(torch.einsum("ndp,dpr->ndr", shown, self.directions))
        return (torch.cat(parts) * seen[..., None]).double(), seen


def _curves(numbers: Tensor, seen: Tensor) -> Tensor:
    """(2, D, p, K) some of the numbers (n, D, p) of channels that are there (n, D), in order, and
    the normal scores of their ranks, about zero.

    Beyond the first and the last, scores go on as deviations do, so far. Numbers that do not vary,
    but for rounding, have a score of zero.
    """
    ordered = numbers.where(seen[..., None], torch.inf).sort(0).values
    last = (seen.sum(0) - 1).clamp_min(0)
    place = torch.linspace(0.0, 1.0, min(len(numbers), _KNOTS)).to(last.device)[:, None] * last
    at = ordered.gather(0, place.round().long()[..., None].expand(-1, -1, numbers.shape[2]))
    varies = at[-1] - at[0] > _ROUNDING * (1.0 + at[0].abs())
    at = at.where(varies, 0.0).permute(1, 2, 0).contiguous()
    below = torch.searchsorted(at, at) + torch.searchsorted(at, at, right=True)
    to = torch.special.ndtri(0.5 * below / at.shape[2])
    to = to - to.mean(2, keepdim=True)
    far = at.std(2, correction=0, keepdim=True) * _BEYOND, varies[..., None] * _BEYOND
    each = zip((at, to), far, strict=True)
    return torch.stack([torch.cat([v[..., :1] - f, v, v[..., -1:] + f], 2) for v, f in each])


def _scores(numbers: Tensor, curves: Tensor) -> Tensor:
    """(n, D, p) scores of numbers, on straight lines between those of curves (2, D, p, K)."""
    (at, to), x = curves, numbers.permute(1, 2, 0).contiguous()
    after = torch.searchsorted(at, x, right=True)
    left, right = (after - 1).clamp_min(0), after.clamp_max(at.shape[2] - 1)
    low = at.gather(2, left)
    share = ((x - low) / (at.gather(2, right) - low)).nan_to_num(0.0).clamp(0.0, 1.0)
    return torch.lerp(to.gather(2, left), to.gather(2, right), share).permute(2, 0, 1)


def _principal(x: Tensor, size: int) -> Tensor:
    """(D, p, r) directions of largest variance of rows (D, n, p); r is `size` at most."""
    if x.shape[1] < x.shape[2]:
        values, vectors = torch.linalg.eigh(x @ x.mT)
        scale = values.clamp_min(1e-9 * values[:, -1:].clamp_min(1e-9)).rsqrt()
        directions = x.mT @ (vectors * scale[:, None])
    else:
        directions = torch.linalg.eigh(x.mT @ x)[1]
    return directions.flip(2)[:, :, :size]


# -- numbers of channels -------------------------------------------------------------------------


def _numbers(
    values: Tensor, lengths: Tensor, dilations: Sequence[int], thresholds: Tensor, lags: int
) -> Iterator[Tensor]:
    """(n, D, p) of channels (n, D, L) of sequences of so many frames (n,), some at a time."""
    step = max(1, _CHUNK // (len(_KERNELS) * values[0].numel()))
    values = values.clamp(-1e9, 1e9).float()  # squares of more overflow, and tell no more
    for part, some in zip(values.split(step), lengths.split(step), strict=True):
        length = some.log()[:, None, None].expand(*part.shape[:2], 1).to(part)
        each = zip(dilations, thresholds, strict=True)
        shares = [_shares_over(part, dilation, levels) for dilation, levels in each]
        yield torch.cat([*shares, _statistics(part), _by_frames(part, some, lags), length], 2)


def _dilations(length: int, count: int) -> tuple[int, ...]:
    """At most so many, even on a log scale; the longest kernel is as long as channels."""
    longest, most = (length - 1) // (_TAPS - 1), max(count - 1, 1)
    return tuple(sorted({round(longest ** (place / most)) for place in range(count)}))


def _outputs(values: Tensor, dilation: int) -> Tensor:
    """(n, D, 84, L) of all kernels; channels stay at their ends."""
    reach = dilation * (_TAPS // 2)
    rows = pad(values.flatten(0, 1)[:, None], (reach, reach), mode="replicate")
    found = conv1d(rows, _KERNELS.to(values)[:, None], dilation=dilation)
    return found.unflatten(0, values.shape[:2])


def _thresholds(values: Tensor, dilation: int, count: int) -> Tensor:
    """(B, D, 84) quantiles of the outputs of some sequences, so many per kernel."""
    step = -(-values.numel() * len(_KERNELS) // _SORTED)
    outputs = _in_order(_outputs(values[::step], dilation).permute(1, 2, 0, 3).flatten(2))
    share = torch.arange(1, count * len(_KERNELS) + 1, dtype=torch.float64) * _GOLDEN % 1.0
    place = (share * (outputs.shape[2] - 1)).long().view(-1, count).to(values.device)
    return outputs.gather(2, place.expand(values.shape[1], -1, -1)).permute(2, 0, 1)


def _shares_over(values: Tensor, dilation: int, levels: Tensor) -> Tensor:
    """(n, D, B 84) shares of the outputs of kernels over each of their levels (B, D, 84)."""
    outputs = _outputs(values, dilation)
    over, every = torch.empty_like(outputs), values.new_ones(outputs.shape[3])
    counts = [torch.gt(outputs, level[..., None], out=over) @ every for level in levels]
    return torch.cat(counts, 2) / len(every)


def _statistics(values: Tensor) -> Tensor:
    """(n, D, q) of channels (n, D, L)."""
    found = [
        _of_parts(each, halvings)
        for each, halvings in zip((values, values.diff(dim=2)), _HALVINGS, strict=True)
    ]
    centered = values - values.mean(2, keepdim=True)
    size = max(centered.shape[2], 2 * _FREQUENCIES)
    waves = torch.fft.rfft(centered, size).abs()[..., 1 : _FREQUENCIES + 1]
    found.append((waves / centered.shape[2] ** 0.5).clamp_min(1e-2).log())
    power = centered.square().mean(2).clamp_min(1e-6)
    found += [
        ((centered[..., lag:] * centered[..., :-lag]).mean(2) / power)[..., None] for lag in _LAGS
    ]
    return torch.cat(found, 2)


def _by_frames(values: Tensor, lengths: Tensor, lags: int) -> Tensor:
    """(n, D, lags) autocorrelations of channels (n, D, L) at lags of 1, 2, ... frames of their
    sequences, which had so many (n,): what repeats itself does so however long a sequence is."""
    size = values.shape[2]
    power = torch.fft.rfft(values - values.mean(2, keepdim=True), 2 * size).abs().square()
    found = torch.fft.irfft(power)[..., :size]
    found = found / found[..., :1].clamp_min(1e-6 * size)
    place = (torch.arange(1, lags + 1).to(lengths) * (size / lengths[:, None])).clamp_max(size - 1)
    low = place.floor().long().clamp_max(size - 2)
    low, share = (each[:, None].expand(-1, values.shape[1], -1) for each in (low, place - low))
    return torch.lerp(found.gather(2, low), found.gather(2, low + 1), share.to(found))


def _in_order(values: Tensor) -> Tensor:
    """Sorted along the last axis; on a CPU NumPy takes a fraction of PyTorch's time."""
    if values.device.type != "cpu":
        return values.sort().values
    return torch.from_numpy(np.sort(values.numpy()))


def _of_parts(values: Tensor, halvings: int) -> Tensor:
    """(n, D, q) mean, deviation and quantiles of the parts of channels, and of halves of parts."""
    length, found = values.shape[2], []
    for count in (2**power for power in range(halvings)):
        size = -(-length // count)
        start = torch.linspace(0, length - size, count, device=values.device).round().long()
        parts = values[..., start[:, None] + torch.arange(size, device=values.device)]
        ordered, mean = _in_order(parts), parts.mean(-1, keepdim=True)
        places = [round(share * (size - 1)) for share in _QUANTILES]
        spread = (parts - mean).square().mean(-1, keepdim=True).sqrt()
        whole = torch.cat([mean, spread, ordered[..., places]], -1)
        found.append(whole.flatten(2))
    return torch.cat(found, 2)
