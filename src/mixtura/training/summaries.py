"""Gaussians over summaries of sequences: one covariance for all classes, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
#: Chances of a class below which an unlabeled sequence counts for nothing in it, and temperatures.
_LITTLE, _TEMPERATURES = 0.02, torch.logspace(-0.5, 2.0, 26, dtype=torch.float64)


@dataclass(frozen=True)
class SummaryPlan:
    """How classes of sequences get Gaussians over summaries: nothing is left open.

    Attributes
    ----------
    unlabeled : whether sequences without a label count for the classes that a model of the others
        says they are of. (All tell what sequences differ in, anyway.)
    kept : summaries of the latest sequences: folds, and plans of the same sequences, share them.
    """

    n_classes: int
    unlabeled: bool = False
    together: bool = True
    kept: dict[Engine, _Rows] = field(default_factory=dict, compare=False, repr=False)

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {"method": "summary", "unlabeled": self.unlabeled}

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[Summarized]:
        """One model per fold, of the sequences of the others; all share the summary."""
        rows = self._rows(engine, generator)
        return [self._fit(rows.only(folds.number != fold)) for fold in folds.held_out]

    def train(self, engine: Engine, generator: torch.Generator) -> Summarized:
        """The model of all sequences."""
        return self._fit(self._rows(engine.sample(_MOST, generator), generator))

    def _rows(self, engine: Engine, generator: torch.Generator) -> _Rows:
        if engine not in self.kept:
            self.kept.clear()
            self.kept[engine] = _Rows.of(engine, generator)
        return self.kept[engine]

    def _fit(self, rows: _Rows) -> Summarized:
        return (rows.fit_to_all if self.unlabeled else rows.fit)(self.n_classes)


@dataclass(frozen=True)
class _Rows:
    """Summaries of sequences, by several weights of their numbers; labels are -1 where unknown.

    Attributes
    ----------
    x : (n, D, r) of each weight, and seen (n, D) which channels there are.
    lost : (m, D r) of each, what lost frames change in m sequences.
    lengths : (2,) of the shortest and the longest of all sequences.
    lacks : (n,) shares of frames that are lost.
    judged : (n,) whether a label is known, and not what a model says.
    """

    summaries: list[Summary]
    x: list[Tensor]
    seen: Tensor
    y: Tensor
    weight: Tensor
    lost: list[Tensor]
    lengths: Tensor
    lacks: Tensor
    judged: Tensor

    @classmethod
    def of(cls, engine: Engine, generator: torch.Generator) -> _Rows:
        some = engine.subsample(_LEARNED, generator)
        summary, x, seen = Summary.learn(some.all_rows(), engine.levels)
        copies, there = summary(some.seen(Punched(_LOST, generator)).all_rows(), len(some))
        lost = (copies - x) * there[..., None]
        lost = lost[lost.flatten(1).any(1)]
        parts = [(x, seen, some.all_rows().lost_frames())]
        if some is not engine:
            chunks = engine.chunks(engine.most_rows["cpu"])
            parts = [(*summary(batch), batch.lost_frames()) for batch in chunks]
        x, seen, lacks = (torch.cat(each) for each in zip(*parts, strict=True))
        summaries = summary.parts()
        apart, changes = ([*each.chunk(len(summaries), 2)] for each in (x, lost))
        changes = [each.flatten(1) for each in changes]
        lengths = torch.stack([*engine.sizes.double().aminmax()])
        own = engine.y, engine.weight.double()
        return cls(summaries, apart, seen, *own, changes, lengths, lacks, engine.labeled)

    def only(self, index: Tensor) -> _Rows:
        """The sequences of a mask (n,), or of places (m,)."""
        each = self.seen, self.y, self.weight, self.lacks, self.judged
        seen, y, weight, lacks, judged = (values[index] for values in each)
        own, known = [x[index] for x in self.x], (self.lost, self.lengths)
        return _Rows(self.summaries, own, seen, y, weight, *known, lacks, judged)

    def fit(self, n_classes: int) -> Summarized:
        """The weight of numbers, and the ridge, that predict labels best that are left out."""
        known = self.only(self.y >= 0)
        each = zip(self.summaries, known.x, self.lost, strict=True)
        found = [known._fit(n_classes, *one) for one in each]
        _, model, beside = found[_clearly_least([loss for loss, *_ in found])]
        return replace(model, neighbors=beside())

    def fit_to_all(self, n_classes: int) -> Summarized:
        """A step of EM: unlabeled sequences count for each class by their chance to be of it.

        Labels that are known judge weights and ridges; but as each had a say in these chances,
        the model is to be as sure of the others as that of the labels alone was.
        """
        known, others = (mask.nonzero().flatten() for mask in (self.y >= 0, self.y < 0))
        spare = self.only(others)
        chance = spare._told(self.fit(n_classes)).exp()
        place, label = (chance > _LITTLE).nonzero(as_tuple=True)
        rows = self.only(torch.cat([known, others[place]]))
        share = torch.cat([torch.ones_like(self.weight[known]), chance[place, label]])
        y = torch.cat([self.y[known], label])
        model = replace(rows, y=y, weight=share * rows.weight).fit(n_classes)
        said = (spare._told(model) / _TEMPERATURES.to(chance)[:, None, None]).log_softmax(2)
        losses = -torch.einsum("n,nc,tnc->t", spare.weight, chance, said)
        return model.at(_TEMPERATURES.to(chance)[losses.argmin()])

    def _told(self, model: Summarized) -> Tensor:
        """(n, C) log p(class), by a model of one of the summaries."""
        x = next(x for s, x in zip(self.summaries, self.x, strict=True) if s is model.summary)
        lengths = self.lengths[1:].expand(len(x))
        return model.by_summary(x, self.seen, self.lacks, lengths).log_softmax(1)

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
        kept = self.judged & (mass > self.weight)
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
            judged = complete & self.judged
            left = LeftOut.of(rows, self.y, self.weight, *moments, judged, within)
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
