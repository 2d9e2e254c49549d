"""A limit of time: training begins with a sample of the rows, and takes more while time remains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from mixtura.engines import Engine
from mixtura.exceptions import warn
from mixtura.numerics import anew, spawn
from mixtura.progress import Progress

Model = TypeVar("Model")

#: Rows of the first sample (of sequences: frames, and so many sequences at least). The next one is
#: as large as can be expected to take this share of the time that is left, but no more than so many
#: times the last.
_FIRST, _FEWEST, _SHARE, _MOST_GROWTH = 1_000, 20, 0.5, 10.0
#: Where that is not even twice the last sample, the model of the last one is trained further, on so
#: many times its rows; where it is less than this, there is no time for that either.
_LEAST_GROWTH, _FURTHER, _TOO_LITTLE = 2.0, 4.0, 0.2
#: Rows that the models of different samples are compared on; some are among those of a sample.
_JUDGED = 3_000


@dataclass(frozen=True)
class Outcome(Generic[Model]):
    """A trained model, and what it was trained on."""

    model: Model
    n_rows: int


@dataclass(frozen=True)
class Budget(Generic[Model]):
    """Trains within the time that a clock allows.

    Attributes
    ----------
    train : trains on rows, from a given model on; anew, by a generator, where that is None.
    loss : of a model on rows that are the same for all models.
    generator : of training, which always begins alike, and of samples.
    resumes : whether training can go on from a model.
    """

    progress: Progress
    train: Callable[[Engine, torch.Generator, Model | None], Model]
    loss: Callable[[Model, Engine], float]
    generator: torch.Generator
    resumes: bool = True

    def run(self, engine: Engine) -> Outcome[Model]:
        """The model of all rows if time allows; else the best of those of growing samples.

        They are compared on rows of which some are in the samples, too: none is withheld for that.
        """
        first, draws = spawn(self.generator), spawn(self.generator)
        if not self.progress.limited:
            return Outcome(self.train(engine, anew(first), None), len(engine))
        judged, size, latest = engine.sample(_JUDGED, draws), first_rows(engine), None
        found: list[Outcome[Model]] = []
        while not self.progress.stopped:
            began, sample = self.progress.seconds, engine.sample(size, draws)
            whole = len(sample) == len(engine)
            model = self.train(engine if whole else sample, anew(first), latest)
            found.append(Outcome(model, len(sample)))
            seconds = max(self.progress.seconds - began, 1e-9)
            growth = min(_MOST_GROWTH, _SHARE * self.progress.seconds_left / seconds)
            if whole or growth < (_TOO_LITTLE if self.resumes else _LEAST_GROWTH):
                break
            if latest is not None or growth < _LEAST_GROWTH:
                latest, growth = model, _FURTHER
            size = int(size * growth)
        if not self.progress.stopped or len(found) == 1:
            return found[-1]
        losses = np.array([self.loss(outcome.model, judged) for outcome in found])
        return found[int(np.where(np.isnan(losses), np.inf, losses).argmin())]


def first_rows(engine: Engine) -> int:
    """Rows to begin with."""
    return max(_FEWEST, int(_FIRST / float(engine.sizes.double().mean())))


def warn_if_cut_short(progress: Progress, used: int, n_rows: int, aside: int = 0) -> bool:
    """Whether training ended before it had used all rows or settled; a warning if by the clock.

    It says so where only shares of the time ended, those of work on the side. So many more rows
    than `n_rows` were set aside before.
    """
    late = progress.out_of_time
    unfinished = used < n_rows or late
    if progress.stopped and not late:  # a callback wanted it so
        return unfinished
    done = []
    if used < n_rows or (aside and late):
        rest = f" ({aside:,} are set aside)" if aside else ""
        done.append(f"it used {used:,} of the {n_rows + aside:,} rows{rest}")
    if late:
        done.append("it stopped before it had settled")
    what, shares = "the fit", ""
    if not done:  # the model itself has settled
        what = "the preparation of the fit"
        shares = (
            f" ({progress.seconds_left:.2g} s are left, but each part has its share of the time)"
        )
    if progress.hurried:
        done.append("starts and candidates were not all trained to the end, so they may vary")
    if done:
        warn(
            f"max_time={progress.max_time:g} s cut {what} short{shares}: {', and '.join(done)}. "
            "Remedy: a longer max_time, or fewer components, so that the time suffices.",
            ConvergenceWarning,
        )
    return unfinished
