"""Summaries of sequences, each judged by the moments of all others: what classes, and what
neighbors would say of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mixtura.models.summarized import Neighbors, sums_by_class

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


class _Kept(NamedTuple):
    """What is (m, P) of those that are kept, and squares of it: every ridge asks for them."""

    x: Tensor
    lacks: Tensor
    away: Tensor
    x_squares: Tensor
    lacks_squares: Tensor
    away_squares: Tensor


@dataclass(frozen=True)
class LeftOut:
    """Complete sequences, in a basis where the covariance is diagonal.

    Attributes
    ----------
    x : (n, P) of all, and means (C, P) of classes, with their labels y (n,) and weights (n,).
    spread : (P,) variances, without a ridge.
    log_prior : (C,) of the classes.
    kept : (n,) whether a class has others, so that a sequence can be left out.
    lacks : (n, P) whose square, times a share (n,), covariances lack without the sequence.
    away : (n, P) how far it is from the mean of its class, then.
    share : (n,) of all weight.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    means: Tensor
    spread: Tensor
    log_prior: Tensor
    kept: Tensor
    lacks: Tensor
    away: Tensor
    share: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        means: Tensor,
        covariance: Tensor,
        log_prior: Tensor,
        mass: Tensor,
        often: Tensor,
        complete: Tensor,
        within: bool,
    ) -> LeftOut | None:
        """Of sequences (n, P), some complete (n,); None where those left out are of one class.

        Where others lack channels, moments without a sequence are nearly what they would be.

        Parameters
        ----------
        mass : (C, P) weights of the sequences of a class that have a number.
        often : (P,) by which deviations are divided in the covariance (P, P).
        within : whether that is of deviations from means of classes, or from the mean of all.
        """
        others = mass[y] - weight[:, None]
        kept = complete & (others > 0.0).all(1)
        if len(y[kept].unique()) < 2:
            return None
        growth, off = mass[y] / others, x - means[y]
        away, share = off * growth, weight / weight.sum()
        if not within:
            total = mass.sum(0)
            growth, off = total / (total - weight[:, None]), x - (mass * means).sum(0) / total
        lacks = off * growth.sqrt() / often
        spread, basis = torch.linalg.eigh(covariance)
        x, means, lacks, away = (each @ basis for each in (x, means, lacks, away))
        return cls(x, y, weight, means, spread, log_prior, kept, lacks, away, share)

    @cached_property
    def _mine(self) -> _Kept:
        found = [each[self.kept] for each in (self.x, self.lacks, self.away)]
        return _Kept(*found, *(each.square() for each in found))

    def by_classes(self, ridge: Tensor) -> Tensor:
        """(m, C) log-joints of those that are kept."""
        mine, precision = self._mine, 1.0 / (self.spread + ridge)
        lacks, factor = self._lacking(precision)
        distance = self._between(precision, self.means, lacks, factor)
        own = (mine.away_squares @ precision) + factor * (lacks * mine.away).sum(1).square()
        return self.log_prior - 0.5 * distance.scatter(1, self.y[self.kept, None], own[:, None])

    def distances(self, ridge: Tensor) -> Tensor:
        """(m, n) squares, between those that are kept and all; infinite from themselves."""
        at = self.kept.nonzero()
        precision = 1.0 / (self.spread + ridge)
        between = self._between(precision, self.x, *self._lacking(precision))
        return between.scatter(1, at, torch.inf)

    def _between(self, precision: Tensor, places: Tensor, lacks: Tensor, factor: Tensor) -> Tensor:
        """(m, k) squares, between those that are kept and places (k, P).

        What covariances lack without them is taken out of these (Sherman and Morrison).
        """
        x = self._mine.x
        square, squares = self._mine.x_squares @ precision, places.square() @ precision
        distance = square[:, None] + squares - 2.0 * (x * precision) @ places.T
        along = (lacks * x).sum(1, keepdim=True) - lacks @ places.T
        return (distance + factor[:, None] * along.square()).clamp_min(0.0)

    def _lacking(self, precision: Tensor) -> tuple[Tensor, Tensor]:
        """(m, P) what covariances lack, by the precision (P,), and (m,) how much that counts."""
        share = self.share[self.kept]
        left = (1.0 - share * (self._mine.lacks_squares @ precision)).clamp_min(1e-6)
        return self._mine.lacks * precision, share / left

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
                said = some.said(self.log_prior + sums_by_class(scores, counts))
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
        each = self.x, self.y, self.weight, self.kept, self.lacks, self.away, self.share
        x, y, weight, kept, lacks, away, share = (values[places] for values in each)
        kept = kept & (_mass(y, weight, len(self.means)) > weight)
        own = x, y, weight, self.means, self.spread, self.log_prior, kept
        return LeftOut(*own, lacks, away, share)

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
