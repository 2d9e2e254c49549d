"""Classes of sequences by Gaussians over their summaries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.given import Device
from mixtura.data.sequences import SequenceBatch
from mixtura.models.summary import Summary
from mixtura.parts import storable

#: Shares of frames that are lost count in multiples of this.
_STEP = 0.2


@storable
@dataclass(frozen=True)
class Summarized:
    """One Gaussian per class over summaries, of one covariance: not a density of frames.

    Channels with nothing observed are integrated out: that is what the model would be, had it been
    fitted without them. Of channels that lack frames, summaries are less certain.

    Attributes
    ----------
    means : (C, D, r).
    covariance : (D r, D r).
    noise : (D r, D r) what it grows by where channels lack all frames; in proportion, where some.
    log_prior : (C,).
    """

    summary: Summary
    means: Tensor
    covariance: Tensor
    noise: Tensor
    log_prior: Tensor

    def row_cost(self, missing: bool) -> int:
        """Numbers that a sequence of one frame takes."""
        return self.summary.n_channels * (self.summary.length + self.summary.n_components)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Summarized:
        """Another device; always in double precision."""
        tensors = (self.means, self.covariance, self.noise, self.log_prior)
        return Summarized(self.summary.to(device), *(tensor.to(device) for tensor in tensors))

    def class_log_joint(self, batch: Batch | SequenceBatch) -> Tensor:
        """(n, C) log p(summary, c), but for what all classes have in common."""
        assert isinstance(batch, SequenceBatch)
        x, seen = self.summary(batch)
        lost = (batch.lost_frames() / _STEP).round() * _STEP
        like = torch.cat([lost[:, None], seen.to(lost)], 1)
        groups, which = like.unique(dim=0, return_inverse=True)
        found = self.log_prior.repeat(len(batch), 1)
        for number, (share, *channels) in enumerate(groups.tolist()):
            mine, pattern = which == number, torch.tensor(channels, device=seen.device) > 0.0
            found[mine] += self._evidence(x[mine][:, pattern].flatten(1), pattern, share)
        return found

    def _evidence(self, x: Tensor, pattern: Tensor, lost: float) -> Tensor:
        """(n, C) log densities of channels (D,) that are observed, but for what classes share."""
        kept = pattern.repeat_interleave(self.summary.n_components)
        covariance = self.covariance if lost == 0.0 else self.covariance + lost * self.noise
        factor = torch.linalg.cholesky(covariance[kept][:, kept])
        means = self.means[:, pattern].flatten(1)
        slopes = torch.cholesky_solve(means.T, factor)
        return x @ slopes - 0.5 * (means * slopes.T).sum(1)

    def outputs(self, batch: Batch | SequenceBatch) -> Tensor:
        """What objectives look at."""
        return self.class_log_joint(batch)
