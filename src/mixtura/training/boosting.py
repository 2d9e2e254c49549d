"""Mixtures grown one generative classifier at a time, each fitted to what the others leave.

F = sum_m alpha_m f_m, and every f_m is a whole classifier: a class prior and a density per class.
A new f maximizes a weighted likelihood; its weights are the functional gradient of the objective,
the joint log-likelihood (BxML) or the conditional one (BxCML). AdaBoost with the same classifiers
as voters is here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional, Likelihood, Objective
from mixtura.progress import Progress
from mixtura.training.learner import Learner

#: The lightest rows are left out, as long as they are no more than this share of the weight.
_NEGLIGIBLE = 1e-9
#: Log odds of a new stage that the line search looks at, before it looks closer so many times.
_LOG_ODDS, _ZOOMS = (-9.0, 4.5, 28), 3
#: Numbers that it looks at together.
_NUMBERS = 1_000_000
#: Single rows that a generative stage tries to begin with.
_SINGLES = 5
#: Share of a stage in the mixture when several are compared, after so many refits.
_GLIMPSE, _GLIMPSES = 0.02, 1
#: A voter is believed to err at least this often.
_FLAW = 1e-3


class Stage(NamedTuple):
    """A mixture after its latest classifier was added.

    Attributes
    ----------
    addition : the classifier.
    share : its weight in the mixture.
    joint : (n, C) class log-joint of the rows under the mixture.
    own : (n,) log-joint of the rows and their classes under the classifier alone.
    value : the objective's mean.
    """

    addition: Mixture
    share: float
    joint: Tensor
    own: Tensor
    value: float


@dataclass(frozen=True)
class Boosting:
    """Grows a mixture while the mean objective gains more than `tol`.

    Attributes
    ----------
    discriminative : whether the objective is the conditional likelihood, or the joint one.
    temperature : of the posteriors that the conditional likelihood is of. Log densities of long
        rows differ by hundreds of nats, rightly or wrongly: at a temperature of one training rows
        are certain after the first stage, and nothing is left to gain.
    pairwise : whether a row weighs by its strongest rival class alone.
    refits : how often a stage is fitted again, with the weights of the mixture that it is part of
        by then. (Those of the mixture without it end on a single sequence: where rows are long,
        their densities differ by hundreds of orders of magnitude.)
    """

    learner: Learner
    discriminative: bool
    n_stages: int
    refits: int = 5
    tol: float = 1e-4
    temperature: float = 1.0
    pairwise: bool = False

    def grow(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterator[tuple[Mixture, float]]:
        """The mixture after each stage, and the share that the stage has in it."""
        progress.start("boosting", self.n_stages)
        rows = _Rows(engine, Likelihood())
        if self.discriminative:
            rows = _Rows(engine, Conditional(), self.temperature, self.pairwise)
        first = mixture = self.learner.fit(engine, generator, progress.part(1.0))
        joint = rows.joint(mixture)
        value = rows.value(joint)
        for number in range(1, self.n_stages + 1):
            share = 1.0
            if number > 1:
                stage = self._stage(rows, joint, first, generator, progress)
                if not stage.value - value > self.tol:
                    return
                mixture = mixture.blend(stage.addition, stage.share)
                joint, value, share = stage.joint, stage.value, stage.share
            yield mixture, share
            if progress.step({"stage": "boosting", "iteration": number, "objective": -value}):
                return

    def _stage(
        self,
        rows: _Rows,
        joint: Tensor,
        first: Mixture,
        generator: torch.Generator,
        progress: Progress,
    ) -> Stage:
        """The classifier, fitted and fitted again, that the mixture gains most by."""

        def fit(log_weight: Tensor, learner: Learner = self.learner) -> Mixture:
            part = rows.weighted(log_weight)
            return learner.fit(part, generator, progress.part(1.0), absent=first)

        def again(stage: Stage) -> Mixture:
            log_weight = stage.own - rows.own(stage.joint)
            if self.discriminative:
                log_weight = log_weight + rows.rivalry(stage.joint)
            part = rows.weighted(log_weight)
            return self.learner.improve(stage.addition, part, progress.part(1.0))

        if self.discriminative:
            addition = fit(rows.rivalry(joint))
        else:
            brief, starts = self.learner.shortened(), rows.unlikely(joint, generator)
            tried = [rows.added(joint, fit(start, brief)) for start in starts]
            for _ in range(_GLIMPSES if progress.time_spent < 1.0 else 0):
                tried = [rows.added(joint, again(stage)) for stage in tried]
            addition = rows.best_of_each_class(tried)
        best = rows.best_share(joint, addition)
        for _ in range(self.refits):
            if progress.time_spent >= 1.0:
                break
            stage = rows.best_share(joint, again(best))
            if not stage.value - best.value > 0.1 * self.tol:
                break
            best = stage
        return best


class _Rows:
    """What is to be explained, and how well it is: log-joints count by their temperature."""

    def __init__(
        self,
        engine: Engine,
        objective: Objective,
        temperature: float = 1.0,
        pairwise: bool = False,
    ) -> None:
        self._engine, self._objective, self._temperature = engine, objective, temperature
        self._pairwise = pairwise
        self._y, self._weight = engine.y.cpu().long(), engine.weight.double().cpu()

    def joint(self, mixture: Mixture) -> Tensor:
        """(n, C) class log-joint."""
        return self._engine.concat(mixture.class_log_joint, mixture.density)

    def value(self, joint: Tensor) -> float:
        """The objective's mean."""
        losses = self._objective.loss(joint / self._temperature, self._y)
        return -float(losses @ self._weight / self._weight.sum())

    def own(self, joint: Tensor) -> Tensor:
        """(n,) log-joint with the row's class."""
        return joint.gather(1, self._y[:, None])[:, 0]

    def rivalry(self, joint: Tensor) -> Tensor:
        """(n,) log probability that a row is of another class: 1 - F(c | a).

        Of pairs: that it is of its strongest rival and not of its own class.
        """
        joint = joint / self._temperature
        rivals = joint.scatter(1, self._y[:, None], -torch.inf)
        rival = rivals.amax(1) if self._pairwise else rivals.logsumexp(1)
        return rival - torch.logaddexp(rival, self.own(joint))

    def unlikely(self, joint: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Log weights to begin a generative stage with, where w itself favors no row.

        The less likely half of every class; and, since they may be unlikely in several ways, single
        ones of them: the least likely, and a few at random.
        """
        likely = self.own(joint) / self._engine.sizes.cpu()
        found = torch.full((1 + _SINGLES, len(likely)), -torch.inf, dtype=torch.float64)
        for label in self._y.unique():
            mine = (self._y == label).nonzero().flatten()
            mine = mine[likely[mine].argsort(stable=True)]
            mass = self._weight[mine]
            ends = mass.cumsum(0)
            half = ends[-1] / 2.0
            found[0, mine] = ((half - ends + mass) / mass).clamp(0.0, 1.0).log()
            at = half * torch.rand(_SINGLES, generator=generator, dtype=torch.float64)
            at[0] = 0.0
            drawn = torch.searchsorted(ends, at)
            found[torch.arange(1, 1 + _SINGLES), mine[drawn]] = -mass[drawn].log()
        return list(found)

    def best_of_each_class(self, stages: list[Stage]) -> Mixture:
        """Of several classifiers the densities that each class gains most by."""
        gains = self._weight * torch.stack([self.own(stage.joint) for stage in stages])
        found = [stage.addition for stage in stages]
        classes = range(found[0].n_classes)
        best = [int(gains[:, self._y == label].sum(1).argmax()) for label in classes]
        parts = [found[place].of_class(label) for label, place in zip(classes, best, strict=True)]
        return Mixture.join(parts, found[0].log_prior, learn_prior=True)

    def weighted(self, log_weight: Tensor) -> Engine:
        """The rows that matter, with weights of one at most."""
        weight = (log_weight - log_weight.max()).exp().nan_to_num(0.0) * self._weight
        ascending, order = weight.sort(stable=True)
        light = ascending.cumsum(0) <= _NEGLIGIBLE * weight.sum()
        weight[order[light]] = 0.0
        return self._engine.weighted(weight.to(self._engine.weight))

    def added(self, joint: Tensor, addition: Mixture) -> Stage:
        """A classifier added with a small share, for comparison with others."""
        alone = self.joint(addition)
        blended = _blended(joint, alone, torch.tensor(_GLIMPSE, dtype=torch.float64).logit())
        return Stage(addition, _GLIMPSE, blended, self.own(alone), self.value(blended))

    def best_share(self, joint: Tensor, addition: Mixture) -> Stage:
        """The line search: the share of a classifier under which the objective is largest."""
        alone = self.joint(addition)
        low, high, count = _LOG_ODDS
        for _ in range(_ZOOMS + 1):
            grid = torch.linspace(low, high, count, dtype=torch.float64)
            values = self._values(joint, alone, grid)
            place = int(values.argmax())
            low, high = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, count - 1)])
        blended = _blended(joint, alone, grid[place])
        share = float(grid[place].sigmoid())
        return Stage(addition, share, blended, self.own(alone), float(values[place]))

    def _values(self, joint: Tensor, alone: Tensor, log_odds: Tensor) -> Tensor:
        """The objective's mean under each of several log odds (G,) of an addition."""
        found = []
        for some in log_odds.split(max(1, _NUMBERS // joint.numel())):
            blended = _blended(joint, alone, some[:, None, None]).flatten(0, 1)
            losses = self._objective.loss(blended / self._temperature, self._y.repeat(len(some)))
            found.append(losses.view(len(some), -1) @ self._weight)
        return -torch.cat(found) / self._weight.sum()


def _blended(joint: Tensor, added: Tensor, log_odds: Tensor) -> Tensor:
    """log of the convex combination of two joint densities."""
    log_share = torch.nn.functional.logsigmoid
    return torch.logaddexp(joint + log_share(-log_odds), added + log_share(log_odds))


class Ballot(NamedTuple):
    """A classifier, and the weight of its vote."""

    voter: Mixture
    vote: float


def adaboost(
    learner: Learner, n_stages: int, engine: Engine, generator: torch.Generator, progress: Progress
) -> Iterator[Ballot]:
    """AdaBoost for several classes (SAMME): voters see what the voters before got wrong.

    With two classes it is AdaBoost.M1, the paper's BBN; with more, M1 would give up once a voter
    errs on half of the weight, and its votes lack log(C - 1).
    """
    progress.start("AdaBoost", n_stages)
    rows = _Rows(engine, Likelihood())
    y, given = engine.y.cpu().long(), engine.weight.double().cpu()
    log_weight = torch.zeros_like(given)
    guess = 1.0 - 1.0 / learner.n_classes
    first: Mixture | None = None
    for number in range(1, n_stages + 1):
        part = rows.weighted(log_weight)
        voter = learner.fit(part, generator, progress.part(1.0), absent=first)
        first = first or voter
        wrong = (rows.joint(voter).argmax(1) != y).double()
        share = given * (log_weight - log_weight.max()).exp()
        error = float((share * wrong).sum() / share.sum())
        if error >= guess and number > 1:
            return
        odds = (1.0 - max(error, _FLAW)) / max(error, _FLAW)
        vote = max(math.log(odds) + math.log(max(learner.n_classes - 1.0, 1.0)), _FLAW)
        yield Ballot(voter, vote)
        stop = progress.step({"stage": "AdaBoost", "iteration": number, "objective": error})
        if stop or error == 0.0:
            return
        log_weight = log_weight + vote * wrong
