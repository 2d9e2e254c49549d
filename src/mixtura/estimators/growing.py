"""Classifiers whose models come in stages: which way, how far, and how sure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import torch

from mixtura.engines import Engine
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.models.calibration import Calibration
from mixtura.models.mixture import Mixture
from mixtura.models.votes import Votes
from mixtura.numerics import spawn
from mixtura.objectives import Conditional
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, warn_if_cut_short
from mixtura.selection.chooser import FEWEST, FEWEST_PER_CLASS, MOST_COMPARED, Chooser, too_few
from mixtura.selection.held_out import Answers, HeldOut
from mixtura.solvers.gradients import evaluate
from mixtura.training.growth import Grown, Growth

#: Frames of sequences that choices are made on, at most, and sequences at least.
_MOST_FRAMES, _FEWEST_SEQUENCES = 250_000, 100

AnyGrowth = TypeVar("AnyGrowth", bound=Growth)


@dataclass(frozen=True)
class Choice(Generic[AnyGrowth]):
    """A chosen way, its model of all rows, its calibration, and what was compared.

    `unseen` tells models of other rows, and the rows that were held out from each.
    """

    plan: AnyGrowth
    grown: Grown
    calibration: Calibration
    table: list[dict[str, object]]
    unseen: Callable[[], Sequence[tuple[object, Engine]]]


def fit_best(
    plans: Sequence[AnyGrowth],
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
    *,
    calibrate: bool,
    beats: Callable[..., bool] = HeldOut.beats,
) -> Choice[AnyGrowth]:
    """Choose a way and a stage on held-out rows, and train on all rows, or as time allows.

    The first plan is kept unless another `beats` it.
    """
    draws = spawn(generator)
    most = MOST_COMPARED if progress.limited else most_compared(engine)
    different = (engine if most is None else engine.sample(most, draws)).merged()
    every_stage = plans[0].every_stage
    compares = len(plans) > 1 or calibrate or every_stage
    chooser = Chooser[AnyGrowth, Mixture | Votes](
        different if compares else None, Answers.of, spawn(generator), progress, n_ways=len(plans)
    )
    best = chooser.challenge(chooser.race(plans[:1], "method"), plans[1:], beats, "method")
    n_stages = best.stage() + 1 if best.parts and every_stage else None
    grown = train_in_time(best.way, n_stages, engine, generator, progress)
    calibration = calibrated_by(best.held_out(), different) if calibrate else Calibration()
    return Choice(best.way, grown, calibration, chooser.table(), partial(chooser.unseen, best))


def most_compared(engine: Engine) -> int | None:
    """How many sequences are compared on, at most, so that frames are not too many; None: all."""
    frames = float(engine.sizes.sum())
    if frames <= max(_MOST_FRAMES, len(engine)):
        return None
    return int(np.clip(_MOST_FRAMES * len(engine) / frames, _FEWEST_SEQUENCES, MOST_COMPARED))


def train_in_time(
    plan: Growth,
    n_stages: int | None,
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
) -> Grown:
    """The model of so many stages (None: of all) of all rows, or of as many as time allows."""

    def train(rows: Engine, own: torch.Generator, latest: Grown | None) -> Grown:
        return deque(islice(plan.train(rows, own, progress), n_stages), maxlen=1).pop()

    def loss(grown: Grown, rows: Engine) -> float:
        return evaluate(grown.model, Conditional(), rows)[1]

    outcome = Budget(progress, train, loss, generator, resumes=False).run(engine)
    warn_if_cut_short(progress, outcome.n_rows, len(engine))
    return outcome.model


def calibrated_by(held_out: HeldOut | None, different: Engine) -> Calibration:
    """By what models said of rows they had not seen; doubt, and a warning, where rows are few."""
    if isinstance(held_out, Answers):
        return held_out.calibration
    if not too_few(different):
        return Calibration()
    n_labeled = int(different.labeled.sum())
    warn(
        f"{n_labeled} different labeled rows (or sequences) are too few to hold some out: first "
        "choices are taken, and probabilities are kept away from 0 and 1, the more the fewer there "
        f"are. Remedy: {FEWEST} or more, and {FEWEST_PER_CLASS} per class.",
        DegenerateDataWarning,
    )
    return Calibration.typical(0.0, float(n_labeled))
