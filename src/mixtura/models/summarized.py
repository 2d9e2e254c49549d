"""Classes of sequences by Gaussians over their summaries."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.data.sequences import SequenceBatch
from mixtura.models.summary import Summary
from mixtura.parts import storable

#: Shares of frames that are lost count in multiples of this.
_STEP = 0.2
#: The power of squared distances beyond the usual ones by which a summary has less of a say.
_FADE = 4.0
#: Log of the least share of a say: that of the farthest summaries is finite.
_LEAST = -100.0
#: Patterns of missing channels that are gone through together.
_PATTERNS = 256


@storable
@dataclass(frozen=True)
class Summarized:
    """One Gaussian per class over summaries, of one covariance: not a density of frames.

    Channels with nothing observed are integrated out: that is what the model would be, had it been
    fitted without them. Of channels that lack frames, summaries are elsewhere and less certain. The
    farther from all classes a sequence is, beyond what is usual, the less is said of its class.

    Attributes
    ----------
    means : (C, D, r).
    covariance : (D r, D r).
    noise : (D r, D r) what it grows by where channels lack all frames; in proportion, where some.
    log_prior : (C,).
    shift : (D r,) what means move by where channels lack frames, as the covariance grows.
    usual : (D,) squared distances of channels from their class; few sequences are as far from all.
    lengths : (2,) of the shortest and the longest training sequence.
    """

    summary: Summary
    means: Tensor
    covariance: Tensor
    noise: Tensor
    log_prior: Tensor
    shift: Tensor = field(default=torch.zeros(1, dtype=torch.float64))
    usual: Tensor = field(default=torch.full((1,), torch.inf, dtype=torch.float64))
    lengths: Tensor = field(default=torch.tensor([0.0, torch.inf]).double())

    def row_cost(self, missing: bool) -> int:
        """Numbers that a sequence of one frame takes."""
        return self.summary.n_channels * (self.summary.length + self.summary.n_components)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Summarized:
        """Another device; always in double precision."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return Summarized(self.summary.to(device), **tensors)

    def class_log_joint(self, batch: Batch | SequenceBatch) -> Tensor:
        """(n, C) log p(c | summary), plus the log of the share of a say that the summary has."""
        assert isinstance(batch, SequenceBatch)
        x, seen = self.summary(batch)
        lost = (batch.lost_frames() / _STEP).round() * _STEP
        found, say = self.log_prior.repeat(len(batch), 1), torch.zeros_like(lost)
        frames = batch.packing.lengths.to(x)
        alike = (frames / self.lengths[0]).minimum(self.lengths[1] / frames).clamp_max(1.0).sqrt()
        noise, flat = self.noise.diagonal().view(-1, x.shape[2]).sum(1), x.flatten(1)
        for share in lost.unique().tolist():
            rows = (lost == share).nonzero().flatten()
            patterns, place = seen[rows].unique(dim=0, return_inverse=True)
            parts = rows[place.argsort()].split(place.bincount().tolist())
            covariance = self.covariance if share == 0.0 else self.covariance + share * self.noise
            means = (self.means.flatten(1) + share * self.shift).T
            far = distances(x[rows], seen[rows], means.T.view_as(self.means)).min(1).values
            near = torch.where(seen[rows], self.usual + share * noise, 0.0).sum(1) * alike[rows]
            say[rows] = (_FADE * (near / far).log().nan_to_num(0.0)).clamp(_LEAST, 0.0)
            for start in range(0, len(patterns), _PATTERNS):
                some = slice(start, start + _PATTERNS)
                each = _slopes(covariance, means, patterns[some])
                for mine, slopes in zip(parts[some], each, strict=True):
                    found[mine] += flat[mine] @ slopes - 0.5 * (means * slopes).sum(0)
        return found.log_softmax(1) + say[:, None]

    def outputs(self, batch: Batch | SequenceBatch) -> Tensor:
        """What objectives look at."""
        return self.class_log_joint(batch)


def distances(x: Tensor, seen: Tensor, means: Tensor) -> Tensor:
    """(n, C) squares, over channels (n, D) that are there, of summaries (n, D, r) from means."""
    square = x.square().sum((1, 2))[:, None] + seen.to(x) @ means.square().sum(2).T
    return (square - 2.0 * x.flatten(1) @ means.flatten(1).T).clamp_min(0.0)


def _slopes(covariance: Tensor, means: Tensor, patterns: Tensor) -> Tensor:
    """(g, D r, C) what turns the observed channels of each pattern (g, D) into log densities.

    That is S^-1 m of the rows and columns of the covariance (D r, D r) and the means (D r, C) that
    are observed, and zero elsewhere. Patterns are sorted.
    """
    found = means.new_zeros(len(patterns), *means.shape)
    _fill(found, covariance, means, patterns)
    return found


def _fill(found: Tensor, covariance: Tensor, means: Tensor, patterns: Tensor) -> None:
    """The same into zeros: patterns that begin alike share the steps of elimination."""
    if not patterns.any():
        return
    size = len(means) // patterns.shape[1]
    if len(patterns) == 1:
        kept = patterns[0].repeat_interleave(size)
        factor = torch.linalg.cholesky(covariance[kept][:, kept])
        found[0, kept] = torch.cholesky_solve(means[kept], factor)
        return
    own, others, rest = slice(size), slice(size, None), patterns[:, 1:]
    without = int((~patterns[:, 0]).sum())
    _fill(found[:without, others], covariance[others, others], means[others], rest[:without])
    if without < len(patterns):
        factor = torch.linalg.cholesky(covariance[own, own])
        reach = torch.cholesky_solve(covariance[own, others], factor)
        given = covariance[others, others] - covariance[others, own] @ reach
        later = found[without:, others]
        _fill(later, given, means[others] - reach.T @ means[own], rest[without:])
        found[without:, own] = torch.cholesky_solve(means[own], factor) - reach @ later
