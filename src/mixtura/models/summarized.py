"""Classes of sequences by Gaussians over their summaries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


@storable
@dataclass(frozen=True)
class Neighbors:
    """A Gaussian per training sequence: classes that lie in many places have a part of the say.

    Attributes
    ----------
    rows : (M, D, r) summaries, those of a class side by side.
    counts : (C,) how many each class has.
    log_weight : (M,) of each in its class.
    covariance : (D r, D r) of each Gaussian.
    temperature : () of what they say.
    share : () how much of a say neighbors have.
    """

    rows: Tensor
    counts: Tensor
    log_weight: Tensor
    covariance: Tensor
    temperature: Tensor
    share: Tensor

    def to(self, device: Device | None) -> Neighbors:
        """Another device."""
        return Neighbors(*(each.to(device) for each in vars(self).values()))

    def by_class(self, scores: Tensor) -> Tensor:
        """(n, C) log means over the neighbors of each class of (n, M) log densities."""
        return sums_by_class(scores + self.log_weight, self.counts)

    def averaged(self, classes: Tensor, own: Tensor) -> Tensor:
        """(n, C) logs of averages, of what classes say and of log-joints of neighbors (n, C)."""
        said = torch.stack([classes, own / self.temperature]).log_softmax(2)
        weight = torch.stack([1.0 - self.share, self.share]).log()
        return (said + weight[:, None, None]).logsumexp(0)


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
    temperature : () of what classes say.
    neighbors : what stands beside the classes, where it tells sequences left out better.
    """

    summary: Summary
    means: Tensor
    covariance: Tensor
    noise: Tensor
    log_prior: Tensor
    shift: Tensor = field(default=torch.zeros(1, dtype=torch.float64))
    usual: Tensor = field(default=torch.full((1,), torch.inf, dtype=torch.float64))
    lengths: Tensor = field(default=torch.tensor([0.0, torch.inf]).double())
    temperature: Tensor = field(default=torch.ones((), dtype=torch.float64))
    neighbors: Neighbors | None = None

    def row_cost(self, missing: bool) -> int:
        """Numbers that a sequence of one frame takes."""
        return self.summary.n_channels * (self.summary.length + self.summary.n_components)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Summarized:
        """Another device; always in double precision."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        beside = None if self.neighbors is None else self.neighbors.to(device)
        return Summarized(self.summary.to(device), **tensors, neighbors=beside)

    def at(self, temperature: Tensor) -> Summarized:
        """The model that is less sure of all by a factor."""
        beside = self.neighbors
        if beside is not None:
            beside = replace(beside, temperature=beside.temperature * temperature)
        return replace(self, temperature=self.temperature * temperature, neighbors=beside)

    def class_log_joint(self, batch: Batch | SequenceBatch) -> Tensor:
        """(n, C) log p(c | summary), plus the log of the share of a say that the summary has."""
        assert isinstance(batch, SequenceBatch)
        return self.by_summary(*self.summary(batch), batch.lost_frames(), batch.packing.lengths)

    def class_log_joints(self, batch: SequenceBatch, kept: Tensor) -> Tensor:
        """(n, s, C) the same of sequences that have lost all but the channels (s, D) kept.

        Summaries are of single channels, and found once. Channels are numbers.
        """
        x, seen = self.summary(batch)
        told = seen.to(x) * batch.packing.lengths.to(x)[:, None]
        if batch.frames.observed is not None:
            told = batch.packing.total(batch.frames.observed.mT.to(x))
        shown = seen[:, None] & kept
        count = shown.sum(2) * batch.packing.lengths[:, None]
        lost = 1.0 - (told[:, None] * shown).sum(2) / count.clamp_min(1)
        many = (x[:, None] * shown[..., None]).flatten(0, 1)
        lengths = batch.packing.lengths.repeat_interleave(len(kept))
        found = self.by_summary(many, shown.flatten(0, 1), lost.flatten(), lengths)
        return found.unflatten(0, shown.shape[:2])

    def by_summary(self, x: Tensor, seen: Tensor, lost: Tensor, lengths: Tensor) -> Tensor:
        """The same of summaries (n, D, r), channels that are there (n, D), shares of frames that
        these lack (n,) and numbers of frames (n,)."""
        lost = (lost / _STEP).round() * _STEP
        found, say = x.new_empty(len(x), len(self.log_prior)), torch.zeros_like(lost)
        frames = lengths.to(x)
        alike = (frames / self.lengths[0]).minimum(self.lengths[1] / frames).clamp_max(1.0).sqrt()
        noise = self.noise.diagonal().view(-1, x.shape[2]).sum(1)
        for share in lost.unique().tolist():
            rows = (lost == share).nonzero().flatten()
            rows = rows[seen[rows].unique(dim=0, return_inverse=True)[1].argsort()]
            covariance = self.covariance if share == 0.0 else self.covariance + share * self.noise
            means = (self.means.flatten(1) + share * self.shift).T
            far = distances(x[rows], seen[rows], means.T.view_as(self.means)).min(1).values
            near = torch.where(seen[rows], self.usual + share * noise, 0.0).sum(1) * alike[rows]
            say[rows] = (_FADE * (near / far).log().nan_to_num(0.0)).clamp(_LEAST, 0.0)
            each, known = x[rows].flatten(1), seen[rows]
            joint = self.log_prior + _scores(covariance, means, each, known)
            found[rows] = joint / self.temperature
            if (beside := self.neighbors) is not None:
                covariance = beside.covariance + share * self.noise
                places = (beside.rows.flatten(1) + share * self.shift).T
                own = self.log_prior + beside.by_class(_scores(covariance, places, each, known))
                found[rows] = beside.averaged(found[rows], own)
        return found.log_softmax(1) + say[:, None]

    def outputs(self, batch: Batch | SequenceBatch) -> Tensor:
        """What objectives look at."""
        return self.class_log_joint(batch)


def distances(x: Tensor, seen: Tensor, means: Tensor) -> Tensor:
    """(n, C) squares, over channels (n, D) that are there, of summaries (n, D, r) from means."""
    square = x.square().sum((1, 2))[:, None] + seen.to(x) @ means.square().sum(2).T
    return (square - 2.0 * x.flatten(1) @ means.flatten(1).T).clamp_min(0.0)


def sums_by_class(scores: Tensor, counts: Tensor) -> Tensor:
    """(n, C) sums in logs of (n, M), those of a class side by side, so many (C,) of each."""
    parts = scores.split(counts.tolist(), 1)
    return torch.stack([part.logsumexp(1) for part in parts], 1)


def _scores(covariance: Tensor, means: Tensor, x: Tensor, seen: Tensor) -> Tensor:
    """(n, M) log densities of rows x (n, D r), up to a term per row; means are (D r, M)."""
    found = x.new_zeros(len(x), means.shape[1])
    _add_scores(found, covariance, means, x, seen)
    return found


def _add_scores(found: Tensor, covariance: Tensor, means: Tensor, x: Tensor, seen: Tensor) -> None:
    """Add x^T S^-1 m - m^T S^-1 m / 2 to (n, C), of rows x (n, D r) and means m (D r, C).

    S are the rows and columns of the covariance (D r, D r) that belong to observed channels
    (n, D). Rows are sorted by these: what begins alike shares the steps of elimination.
    """
    if not seen.any():
        return
    size, n_classes = len(means) // seen.shape[1], means.shape[1]
    if torch.equal(seen[0], seen[-1]):
        kept = seen[0].repeat_interleave(size)
        factor = torch.linalg.cholesky(covariance[kept][:, kept])
        slopes = torch.cholesky_solve(means[kept], factor)
        found += x[:, kept] @ slopes - 0.5 * (means[kept] * slopes).sum(0)
        return
    first, rest, without = slice(size), slice(size, None), int((~seen[:, 0]).sum())
    others, later = covariance[rest, rest], x[:, rest]
    _add_scores(found[:without], others, means[rest], later[:without], seen[:without, 1:])
    if without == len(seen):
        return
    right = torch.cat([covariance[first, rest], means[first], x[without:, first].T], 1)
    factor = torch.linalg.cholesky(covariance[first, first])
    white = torch.linalg.solve_triangular(factor, right, upper=False)
    reach, own, mine = white.split([len(others), n_classes, len(x) - without], 1)
    found[without:] += mine.T @ own - 0.5 * own.square().sum(0)
    _add_scores(
        found[without:],
        torch.addmm(others, reach.T, reach, alpha=-1.0),
        torch.addmm(means[rest], reach.T, own, alpha=-1.0),
        torch.addmm(later[without:], mine.T, reach, alpha=-1.0),
        seen[without:, 1:],
    )
