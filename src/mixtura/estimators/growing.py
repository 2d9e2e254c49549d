"""Classifiers grown stage by stage; held-back rows choose the order, and calibrate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixtura.engines import Engine
from mixtura.estimators.base import MixtureEstimator, run_over
from mixtura.estimators.plan import SMALL
from mixtura.estimators.predicting import DensityClassifier
from mixtura.exceptions import DegenerateDataWarning, NoDensityError, warn
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome, warn_if_cut_short
from mixtura.selection.calibration import Calibration, Unseen
from mixtura.solvers import SpreadPrior
from mixtura.solvers.gradients import evaluate
from mixtura.training.boosting import Ballot, Boosting, Learner, adaboost

#: Methods that grow a classifier, for `grow`.
GROWING = ("boosted", "boosted_generative", "adaboost")

#: Parts that rows are held back in; with fewer labeled rows, in all or per class on average,
#: nothing is held back.
_FOLDS, _FEWEST, _FEWEST_OF_CLASS = 4, 20, 3
#: Rows per class and stage: fewer show no spread.
_STAGE_ROWS = 2
#: A vote that nobody casts.
_SILENCE = 1e-3


@dataclass(frozen=True)
class Votes:
    """Classifiers that vote: not a density, but it answers like one."""

    ballots: list[Ballot]

    def row_cost(self, missing: bool) -> int:
        """That of the costliest: they vote one after another."""
        return max(voter.row_cost(missing) for voter, _ in self.ballots)

    def to(self, *args: Any) -> Votes:
        return Votes([Ballot(voter.to(*args), vote) for voter, vote in self.ballots])

    def class_log_joint(self, batch: Any) -> Tensor:
        """Log shares of the votes, (n, C)."""
        total = batch.weight.new_tensor(_SILENCE, dtype=torch.float64)
        for voter, vote in self.ballots:
            joint = voter.class_log_joint(batch)
            total = total + vote * torch.nn.functional.one_hot(joint.argmax(1), joint.shape[1])
        return (total / total.sum(1, keepdim=True)).log()


@dataclass(frozen=True)
class Candidate:
    """A `Mixture` or `Votes` that training came by, the shares of its stages, and its prior."""

    model: Any
    shares: list[float]
    prior: SpreadPrior | None = None


#: Trains on some rows and gives candidates, the simplest first.
Train = Callable[[Engine, torch.Generator, Progress], list[Candidate]]


def grow(
    method: str,
    learner: Learner,
    n_stages: int,
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
) -> list[Candidate]:
    """A candidate after every stage of a growing method; no more stages than rows can support."""
    n_stages = min(n_stages, max(1, len(engine.merged()) // (_STAGE_ROWS * learner.n_classes)))
    if method == "adaboost":
        ballots = list(adaboost(learner, n_stages, engine, generator, progress))
        return [
            Candidate(Votes(ballots[:count]), [ballot.vote for ballot in ballots[:count]])
            for count in range(1, len(ballots) + 1)
        ]
    boosting = Boosting(learner, method == "boosted", n_stages)
    mixtures, steps = zip(*boosting.grow(engine, generator, progress), strict=True)

    def add(shares: list[float], step: float) -> list[float]:
        return [*(share * (1.0 - step) for share in shares), step]

    shares = accumulate(steps[1:], add, initial=[1.0])
    return [Candidate(*pair, learner.prior) for pair in zip(mixtures, shares, strict=True)]


class Choice(NamedTuple):
    """Of several ways to train, the one that does best on held-back rows, and how far to go."""

    train: Train
    stage: int | None = None
    unseen: Unseen | None = None

    def or_else(self, other: Choice, beats: Callable[[Unseen, Unseen], bool]) -> Choice:
        """The other choice, if that is better on the same rows."""
        if self.unseen is None or other.unseen is None:
            return other
        if len(self.unseen) != len(other.unseen):  # time was up before all folds were met
            return self
        return other if beats(other.unseen, self.unseen) else self


def _too_few(engine: Engine) -> bool:
    """Whether what is left of the classes would be too little, were some rows held back."""
    return len(engine) < max(_FEWEST, _FEWEST_OF_CLASS * len(engine.y.unique()))


def choose(
    trains: Sequence[Train],
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
    *,
    to_the_end: bool = False,
    beats: Callable[[Unseen, Unseen], bool] = Unseen.beats,
    until: float = 0.5,
) -> Choice:
    """Try every way on parts of different rows; the parts that it was not shown decide.

    `to_the_end` looks at what each way ends with alone; `beats` tells when a later way is better.
    No trial begins once a share `until` of the allowed time has gone.
    """
    best = Choice(trains[0])
    if _too_few(engine):
        return best
    seed = int(torch.randint(2**31, (1,), generator=generator))
    share = until / (len(trains) * _FOLDS)
    for train in trains:
        again = torch.Generator().manual_seed(seed)
        judged = []
        for part, held_back in engine.folds(_FOLDS, again):
            if not progress.leaves_time(until):
                break
            found = train(part, again, progress.part(share))
            found = found[-1:] if to_the_end else found
            judged.append([Unseen.judged(each.model, held_back, again) for each in found])
        stages = range(max(map(len, judged), default=0))
        pooled = [Unseen.pool([p[min(s, len(p) - 1)] for p in judged]) for s in stages]
        if pooled:
            stage = min(stages, key=lambda s: pooled[s].calibrated_loss())
            best = best.or_else(Choice(train, stage, pooled[stage]), beats)
    return best._replace(stage=None) if to_the_end else best


class GrownClassifier(DensityClassifier, MixtureEstimator):
    """What classifiers share whose order and calibration are chosen on held-back rows."""

    def _train_best(
        self,
        trains: Sequence[Train],
        engine: Engine,
        progress: Progress,
        *,
        in_steps: bool = True,
        beats: Callable[[Unseen, Unseen], bool] = Unseen.beats,
    ) -> tuple[int, Candidate]:
        """Choose a way and how far to go, train on all rows, keep what comes of it; which and what.

        `in_steps` tells that a way has several candidates to choose from, `beats` when a later way
        is better.
        """
        generator = self._generator()
        different = (engine.sample(SMALL, generator) if progress.limited else engine).merged()
        choice = Choice(trains[0])
        if len(trains) > 1 or self.calibrate or (self.early_stopping and in_steps):
            to_the_end = not self.early_stopping
            choice = choose(
                trains, different, generator, progress, to_the_end=to_the_end, beats=beats
            )
        outcome = self._train_in_time(choice, engine, generator, progress)
        warn_if_cut_short(progress, outcome.n_rows, len(engine))
        chosen = outcome.model
        calibration = Calibration()
        if self.calibrate and choice.unseen is not None:
            calibration = choice.unseen.calibrate()
        elif self.calibrate and _too_few(different):
            warn(
                f"{len(different)} different labeled rows are too few to hold some back: "
                "probabilities are not calibrated, and first choices are taken. Remedy: "
                f"{_FEWEST} rows or more, and {_FEWEST_OF_CLASS} per class, or calibrate=False.",
                DegenerateDataWarning,
            )
        self.temperature_, self.doubt_ = calibration.temperature, calibration.doubt
        self.fade_ = calibration.fade
        self.stage_weights_ = np.array(chosen.shares)
        self.n_stages_ = len(self.stage_weights_)
        self.history_ = progress.history
        self.n_iter_ = max(1, len(self.history_))
        model = chosen.model.to("cpu", torch.float64)
        if isinstance(model, Votes):
            self.voters_ = [voter for voter, _ in model.ballots]
        else:
            self.mixture_ = model
            self.class_prior_ = model.log_prior.exp().numpy()
        return trains.index(choice.train), chosen

    @staticmethod
    def _train_in_time(
        choice: Choice, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Outcome[Candidate]:
        """What the chosen way gives on all rows, or on as many as time allows."""

        def train(rows: Engine, latest: Candidate | None) -> Candidate:
            found = choice.train(rows, generator, progress)
            return found[-1 if choice.stage is None else min(choice.stage, len(found) - 1)]

        def loss(candidate: Candidate, rows: Engine) -> float:
            return evaluate(candidate.model, Conditional(), rows)[1]

        draw = partial(engine.sample, generator=generator)
        return Budget(progress, train, loss, draw, resumes=False).run(engine)

    def _forget(self) -> None:
        """Drop what an earlier fit left: not every method leaves the same."""
        for name in [name for name in vars(self) if name.endswith(("_", "_n_features_out"))]:
            delattr(self, name)

    def _density_model(self) -> Mixture:
        if not {"voters_", "pairwise_"}.isdisjoint(vars(self)):
            raise NoDensityError(
                "this model decides by votes, of stages (method='adaboost') or of pairs of classes "
                "(multiclass='pairwise'), and has no density: use another method, or 'direct'."
            )
        return super()._density_model()

    def _class_log_joint(self, rows: Any) -> np.ndarray:
        """log p(x, c) of checked rows in the model's units, or log shares of the votes, (n, C)."""
        model: Any = self.__dict__.get("mixture_")
        if model is None:
            votes = map(float, self.stage_weights_)
            model = Votes([Ballot(*pair) for pair in zip(self.voters_, votes, strict=True)])
        return run_over(model, self._table(rows), lambda m, b: m.class_log_joint(b)).numpy()
