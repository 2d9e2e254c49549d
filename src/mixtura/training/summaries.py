"""Gaussians over summaries of sequences: one covariance for all classes, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mixtura.engines import Engine, Punched
from mixtura.models.summarized import Neighbors, Summarized, distances
from mixtura.models.summary import Summary
from mixtura.progress import Progress
from mixtura.training.groups import Folds
from mixtura.training.left_out import LeftOut

#: Sequences that summaries are learned from, and those that are summed up, at most.
_LEARNED, _MOST = 500, 20_000
#: Share of the frames that copies lack, which tell how summaries suffer.
_LOST = 0.3
#: Ridges that are compared, in units of the total variance.
_RIDGES = torch.logspace(-4, 1, 16, dtype=torch.float64)
#: Distances from all classes are usual up to this multiple of what so many sequences keep.
_USUALLY, _MOSTLY = 2.0, 0.95
#: The ridge where no sequence can be left out; nats that another weight of numbers has to gain.
_USUAL, _CLEAR = 1e-2, 1e-3
#: Neighbors, at most, and every how many ridges they are compared at.
_NEIGHBORS, _COARSELY = 1_000, 3


@dataclass(frozen=True)
class SummaryPlan:
    """How classes of sequences get Gaussians over summaries: nothing is left open."""

    n_classes: int
    together: bool = True

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {"method": "summary"}

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[Summarized]:
        """One model per fold, of the sequences of the others; all share the summary."""
        rows = _Rows.of(engine, generator)
        return [rows.only(folds.number != fold).fit(self.n_classes) for fold in folds.held_out]

    def train(self, engine: Engine, generator: torch.Generator) -> Summarized:
        """The model of all sequences."""
        return _Rows.of(engine.sample(_MOST, generator), generator).fit(self.n_classes)


@dataclass(frozen=True)
class _Rows:
    """Summaries of labeled sequences, by several weights of their numbers.

    Attributes
    ----------
    x : (n, D, r) of each weight, and seen (n, D) which channels there are.
    lost : (m, D r) of each, what lost frames change in m sequences.
    lengths : (2,) of the shortest and the longest of all sequences.
    """

    summaries: list[Summary]
    x: list[Tensor]
    seen: Tensor
    y: Tensor
    weight: Tensor
    lost: list[Tensor]
    lengths: Tensor

    @classmethod
    def of(cls, engine: Engine, generator: torch.Generator) -> _Rows:
        some = engine.subsample(_LEARNED, generator)
        summary = Summary.learn(some.all_rows(), engine.levels)
        punched = some.seen(Punched(_LOST, generator)).all_rows()
        both, there = summary(punched)
        lost = (both[len(some) :] - both[: len(some)]) * there[len(some) :, :, None]
        lost = lost[lost.flatten(1).any(1)]
        parts = [(both[: len(some)], there[: len(some)])]
        if some is not engine:
            parts = [summary(batch) for batch in engine.chunks(engine.most_rows["cpu"])]
        x, seen = (torch.cat(each) for each in zip(*parts, strict=True))
        summaries = summary.parts()
        apart, changes = ([*each.chunk(len(summaries), 2)] for each in (x, lost))
        changes = [each.flatten(1) for each in changes]
        lengths = torch.stack([*engine.sizes.double().aminmax()])
        return cls(summaries, apart, seen, engine.y, engine.weight.double(), changes, lengths)

    def only(self, mask: Tensor) -> _Rows:
        """Some of the sequences."""
        seen, y, weight = (v[mask] for v in (self.seen, self.y, self.weight))
        x = [x[mask] for x in self.x]
        return _Rows(self.summaries, x, seen, y, weight, self.lost, self.lengths)

    def fit(self, n_classes: int) -> Summarized:
        """The weight of numbers, and the ridge, that predict sequences best that are left out."""
        each = zip(self.summaries, self.x, self.lost, strict=True)
        found = [self._fit(n_classes, *one) for one in each]
        _, model, beside = found[_clearly_least([loss for loss, *_ in found])]
        return replace(model, neighbors=beside())

    def _fit(
        self, n_classes: int, summary: Summary, x: Tensor, lost: Tensor
    ) -> tuple[float, Summarized, Callable[[], Neighbors | None]]:
        """The loss of sequences that are left out, the model by one weight of numbers, and what
        finds neighbors.

        A channel that is missing counts as the mean of its class, or of all. Covariances of
        channels shrink by that; variances are scaled by how often there is something of them.
        """
        label, present = one_hot(self.y, n_classes).double(), self.weight[:, None] * self.seen
        mass, total = label.T @ present, present.sum(0).clamp_min(1e-300)
        sums = torch.einsum("nc,nd,ndr->cdr", label, present, x)
        overall = sums.sum(0) / total[:, None]
        means = (sums / mass.clamp_min(1e-300)[..., None]).where(mass[..., None] > 0.0, overall)
        share = self.weight / self.weight.sum()
        often = (total / self.weight.sum()).sqrt()[:, None]
        scale = self.seen[..., None] / often
        off = [((x - center) * scale).flatten(1) for center in (means[self.y], overall)]
        covariances = [each.T @ (each * share[:, None]) for each in off]
        prior = (label.T @ share).clamp_min(1e-12).log()
        variance = (x.square() * present[..., None]).sum((0, 2)) / total
        ridges = _RIDGES.to(share) * variance.sum().clamp_min(1e-6)
        loss, covariance, temperature, beside = self._best_covariance(
            x, ridges, covariances, means, prior, mass, often
        )
        share_lost = max(len(lost), 1) * _LOST
        noise, shift = lost.T @ lost / share_lost, lost.sum(0) / share_lost
        usual = self._usual(x, means).clamp_min(ridges[0] * x.shape[2])  # as the least ridge has it
        moments = means, covariance, noise, prior, shift, usual, self.lengths
        return loss, Summarized(summary, *moments, temperature), beside

    def _usual(self, x: Tensor, means: Tensor) -> Tensor:
        """(D,) squared distances of channels, such that few sequences left out are farther off."""
        mass = self.weight.new_zeros(len(means)).index_add_(0, self.y, self.weight)[self.y]
        kept = mass > self.weight
        if not kept.any():
            return torch.full_like(means[0, :, 0], torch.inf)
        x, seen, y, weight = x[kept], self.seen[kept], self.y[kept], self.weight[kept]
        growth = (mass[kept] / (mass[kept] - weight)).square()[:, None]
        own = (x - means[y]).square().sum(2) * seen * growth
        usual = (weight @ own) / (weight @ seen.to(own)).clamp_min(1e-300)
        far = distances(x, seen, means)
        far = far.scatter(1, y[:, None], own.sum(1, keepdim=True)).min(1).values
        share = far / torch.where(seen, usual, 0.0).sum(1).clamp_min(1e-300)
        return _USUALLY * share.quantile(_MOSTLY) * usual

    def _best_covariance(
        self,
        x: Tensor,
        ridges: Tensor,
        covariances: Sequence[Tensor],
        means: Tensor,
        prior: Tensor,
        mass: Tensor,
        often: Tensor,
    ) -> tuple[float, Tensor, Tensor, Callable[[], Neighbors | None]]:
        """That within classes or that of all (of no more sequences than numbers), and its ridge,
        by the log-loss of complete sequences, each judged by the moments of all others.

        The temperature at which that is least, one at least within classes: what is told apart
        perfectly says nothing of how sure to be; and what finds neighbors.
        """
        complete, same, span = self.seen.all(1), torch.eye(len(covariances[0])).to(x), None
        mass, often = mass.repeat_interleave(x.shape[2], 1), often.expand_as(x[0]).flatten()
        rows, places, found = x.flatten(1), means.flatten(1), []
        if len(x) < len(same) and complete.all():  # moments are in the span of the rows
            span = torch.linalg.qr(rows.T).Q
            rows, places, mass, often = (
                rows @ span,
                places @ span,
                mass[:, : len(x)],
                often[: len(x)],
            )
        ways = [*zip(covariances, (True, False), strict=True)]
        for covariance, within in ways if len(x) <= len(same) else ways[:1]:
            inner = covariance if span is None else span.T @ covariance @ span
            moments = places, inner, prior, mass, often
            left = LeftOut.of(rows, self.y, self.weight, *moments, complete, within)
            if left is None:
                usual = covariance + _USUAL / _RIDGES[-1] * ridges[-1] * same
                return 0.0, usual, torch.ones_like(prior[0]), lambda: None
            joints = [left.by_classes(ridge) for ridge in ridges]
            losses = [left.said(joint).loss for joint in joints]
            best = min(range(len(ridges)), key=losses.__getitem__)
            said = left.said(joints[best], float(within))
            found.append((losses[best], covariance + ridges[best] * same, said, left))
        loss, covariance, said, _ = found[_clearly_least([loss for loss, *_ in found])]
        order = self.y.argsort(stable=True)
        order = order[complete[order]]
        some = order[torch.linspace(0, len(order) - 1, min(len(order), _NEIGHBORS)).long()]
        every = ridges[::_COARSELY]
        beside = partial(found[0][3].neighbors, x, covariances[0], every, said, some)
        return loss, covariance, said.temperature, beside


def _clearly_least(losses: Sequence[float]) -> int:
    """Where the least is; the first place, unless another is clearly less."""
    return min(range(len(losses)), key=lambda at: losses[at] + _CLEAR * (at > 0))
