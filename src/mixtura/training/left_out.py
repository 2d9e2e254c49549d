"""Summaries of sequences, each judged by the moments of all others: what classes, and what
neighbors would say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mixtura.models.summarized import Neighbors

#: Temperatures of answers that are compared.
_TEMPERATURES = torch.logspace(-0.5, 3, 15, dtype=torch.float64)
#: Widths of neighbors' Gaussians that are compared, by the median distance; sequences of evidence
#: that neighbors have no say, the least share of it, and steps that find it.
_WIDTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_AGAINST, _LEAST, _STEPS = 5.0, 0.05, 50


class Said(NamedTuple):
    """The mean loss of sequences left out at the best temperature, and log probabilities (n,) of
    their labels."""

    loss: float
    temperature: Tensor
    own: Tensor


@dataclass(frozen=True)
class LeftOut:
    """Complete sequences, in a basis where covariances within classes are diagonal.

    Attributes
    ----------
    x : (n, P) of all, and means (C, P) of classes, with their labels y (n,) and weights (n,).
    spread : (P,) variances within classes, without a ridge.
    log_prior : (C,) of the classes.
    kept : (n,) whether a class has others, so that a sequence can be left out.
    share : (n, 1) how much of the square of a deviation covariances lack without the sequence.
    growth : (n,) how many times as far from the mean of its class it is, then.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    means: Tensor
    spread: Tensor
    log_prior: Tensor
    kept: Tensor
    share: Tensor
    growth: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        means: Tensor,
        covariance: Tensor,
        log_prior: Tensor,
        complete: Tensor,
    ) -> LeftOut | None:
        """Of sequences (n, P), some of them complete (n,); None where none can be left out."""
        mass = _mass(y, weight, len(means))
        kept = complete & (mass > weight)
        if not kept.any():
            return None
        if len(x) < len(covariance) and complete.all():  # moments are in the span of the rows
            span = torch.linalg.qr(x.T).Q
            x, means, covariance = x @ span, means @ span, span.T @ covariance @ span
        spread, basis = torch.linalg.eigh(covariance)
        growth = mass / (mass - weight)
        share = (weight * growth / weight.sum())[:, None]
        moments = means @ basis, spread, log_prior
        return cls(x @ basis, y, weight, *moments, kept, share, growth)

    def by_classes(self, ridge: Tensor) -> Tensor:
        """(m, C) log-joints of those that are kept."""
        kept, precision = self.kept, 1.0 / (self.spread + ridge)
        rows = self.x[kept], self.y[kept], self.means, precision
        return self.log_prior - 0.5 * left_out(*rows, self.share[kept], self.growth[kept])

    def distances(self, ridge: Tensor) -> Tensor:
        """(m, n) squares, between those that are kept and all; infinite from themselves.

        Their own deviation from their class is taken out of the covariance (Sherman and Morrison).
        """
        kept, scaled = self.kept, self.x / (self.spread + ridge)
        square = (scaled * self.x).sum(1)
        distance = square[kept, None] + square - 2.0 * scaled[kept] @ self.x.T
        off = (self.x - self.means[self.y])[kept]
        along = off @ scaled.T
        at = kept.nonzero().flatten()
        along = along.gather(1, at[:, None]) - along
        share, deviation = self.share[kept], (off * off / (self.spread + ridge)).sum(1)
        left = (1.0 - share * deviation[:, None]).clamp_min(1e-6)
        distance = (distance + share / left * along.square()).clamp_min(0.0)
        return distance.scatter(1, at[:, None], torch.inf)

    def said(self, joint: Tensor, least: float = 0.0) -> Said:
        """What log-joints (m, C) of those that are kept are worth, at the best temperature."""
        y, weight = self.y[self.kept], self.weight[self.kept]
        temperatures = _TEMPERATURES.to(joint).clamp_min(least)
        scaled = (joint / temperatures[:, None, None]).log_softmax(2)
        own = scaled.gather(2, y.expand(len(scaled), -1)[..., None])[..., 0]
        best = int((own @ weight).nan_to_num(-torch.inf).argmax())
        return Said(-float(own[best] @ weight / weight.sum()), temperatures[best], own[best])

    def neighbors(
        self, rows: Tensor, covariance: Tensor, ridges: Tensor, classes: Said, places: Tensor
    ) -> Neighbors | None:
        """Those of the best ridge and width, where they tell sequences better than classes alone.

        Parameters
        ----------
        rows : (n, D, r) the summaries as they are, and their covariance within classes.
        classes : what Gaussians of classes said.
        places : (M,) of complete sequences that may be neighbors, those of a class side by side.
        """
        some, n_classes = self._only(places), len(self.means)
        counts, every = (y.bincount(minlength=n_classes) for y in (some.y, self.y))
        if not some.kept.any() or (counts < every.clamp_max(1)).any():
            return None
        mass = _mass(some.y, some.weight, n_classes)
        same = some.y[some.kept, None] == some.y
        log_weight = some.weight.log() - (mass - same * some.weight[some.kept, None]).log()
        best, found = None, ridges[0]
        for each in ridges:
            distance = some.distances(each)
            usual = distance[distance.isfinite()].median().clamp_min(1e-300)
            for width in _WIDTHS:
                scores = log_weight - 0.5 * distance / (width * usual)
                joint = [part.logsumexp(1) for part in scores.split(counts.tolist(), 1)]
                said = some.said(self.log_prior + torch.stack(joint, 1))
                if best is None or said.loss < best[0].loss:
                    best, found = (said, width * usual), each
        assert best is not None
        said, square = best
        alone = self.weight.masked_scatter(self.kept, classes.own)[places][some.kept]
        share = some._shared(alone, said.own)
        if share < _LEAST:
            return None
        whole = covariance + found * torch.eye(len(covariance)).to(covariance)
        weight = (some.weight / mass).log()
        return Neighbors(rows[places], counts, weight, whole * square, said.temperature, share)

    def _only(self, places: Tensor) -> LeftOut:
        """Some of the sequences (M,), by the moments of all; others of a class are among them."""
        each = self.x, self.y, self.weight, self.kept, self.share, self.growth
        x, y, weight, kept, share, growth = (values[places] for values in each)
        kept = kept & (_mass(y, weight, len(self.means)) > weight)
        return replace(self, x=x, y=y, weight=weight, kept=kept, share=share, growth=growth)

    def _shared(self, classes: Tensor, own: Tensor) -> Tensor:
        """How much of a say neighbors should have, by log probabilities (m,) of labels, by EM."""
        weight = self.weight[self.kept]
        weight, share = weight / weight.mean(), torch.tensor(0.5).to(own)
        for _ in range(_STEPS):
            odds = own - classes + share.logit()
            share = weight @ odds.sigmoid() / (len(own) + _AGAINST)
        return share


def _mass(y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """(n,) weights of the classes of sequences."""
    return weight.new_zeros(n_classes).index_add_(0, y, weight)[y]


def left_out(
    x: Tensor, y: Tensor, means: Tensor, precision: Tensor, share: Tensor, growth: Tensor
) -> Tensor:
    """(n, C) squared distances of rows from all means, by moments without the row itself.

    Without it the covariance lacks `share` (n, 1) times the square of its deviation, and its own
    mean is `growth` (n,) times as far away (Sherman and Morrison).

    Parameters
    ----------
    x : (n, P) in a basis where covariances are diagonal; precision (P,) is their inverse.
    """
    scaled, own = x * precision, y[:, None]
    cross, inner = scaled @ means.T, (means * precision) @ means.T
    square = (scaled * x).sum(1, keepdim=True)
    distance = square - 2.0 * cross + inner.diagonal()
    along = square - cross - cross.gather(1, own) + inner[y]
    deviation = along.gather(1, own)
    left = (1.0 - share * deviation).clamp_min(1e-6)
    distance = distance + share / left * along.square()
    return distance.scatter(1, own, growth[:, None].square() * deviation / left)
