"""Discriminative mixtures: extended Baum-Welch, Adam and L-BFGS against the clock.

Beyond the paper, which says that gradients need a step size: all solvers start at the same EM fit
and minimize the same objective over all training rows. Adam is given the best of several step
sizes, each with a cosine schedule that follows the clock to its end; its objective is that of its
iterate over all rows, in batches that the classifier would choose. A curve shows the best objective
so far. The last column says when a solver was where Adam ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from mixtura.objectives import Conditional, Objective, SmoothMargin
from mixtura.papers.ebw._one_start import OneStart
from mixtura.papers.ebw.hyperspectral import draw_pixels
from mixtura.papers.ebw.speech import phonemes
from mixtura.papers.ebw.spirals import MARGIN, PUBLISHED_FACTOR, SETTINGS, start_on_spirals
from mixtura.papers.pictures import framed
from mixtura.papers.report import Report
from mixtura.solvers import EBW, LBFGS, Adam, Solver
from mixtura.solvers.gradients import evaluate

_STEPS, _QUICK_STEPS = (3e-3, 1e-2, 3e-2, 1e-1), (3e-2,)
#: What the classifier takes for 10 000 rows and less.
_BATCH = 100
#: Shares of the time allowed at which objectives are compared.
_SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Gains of five iterations of extended Baum-Welch, as shares, from which L-BFGS goes on.
_FLAT = 3e-3
#: More than any solver can do in the time.
_ENDLESS = 100_000


class Curve(NamedTuple):
    """Seconds since the start, and the best objective up to then."""

    seconds: np.ndarray
    objective: np.ndarray

    def at(self, seconds: float) -> float:
        """The objective reached by a time."""
        done = np.searchsorted(self.seconds, seconds, side="right")
        return float(self.objective[done - 1])

    def time_to(self, goal: float) -> float | None:
        """When an objective was reached; None if it never was."""
        reached = np.flatnonzero(self.objective <= goal)
        return float(self.seconds[reached[0]]) if len(reached) else None


def run(report: Report) -> None:
    """Every solver on every problem."""
    allowed = 0.6 if report.quick else 5.0
    for name, (make, objective) in _problems(report).items():
        if report.wants(name):
            curves = _race(report, make(), objective, allowed)
            _tabulate(report, name, curves, allowed)
            with report.figure(name, figsize=(6, 4)) as figure:
                panel = figure.subplots()
                for solver, curve in curves.items():
                    panel.plot(curve.seconds, curve.objective, label=solver)
                panel.set_xscale("symlog", linthresh=0.1)
                framed(panel, "seconds", "objective")


def _problems(report: Report) -> dict[str, tuple[Callable[[], OneStart], Objective]]:
    n_rows = 1500 if report.quick else 5000
    starts: dict[str, Callable[[], OneStart]] = {
        f"spirals {setting.radius:g}": partial(start_on_spirals, report, setting, n_rows, draw=0)
        for setting in SETTINGS[: 1 if report.quick else 2]
    }
    if not report.quick:
        starts["phonemes"] = lambda: OneStart.fit(report, *phonemes().splits[0][0], 4)
        starts["pixels"] = lambda: OneStart.fit(report, *draw_pixels(report.seed)[0], 5)
    objectives = {"conditional": Conditional(), "margin": SmoothMargin(MARGIN)}
    return {
        f"{data} {name}": (start, objective)
        for data, start in starts.items()
        for name, objective in objectives.items()
    }


def _race(
    report: Report, start: OneStart, objective: Objective, allowed: float
) -> dict[str, Curve]:
    published = EBW(_ENDLESS, factor=PUBLISHED_FACTOR, per_component=False, patience=_ENDLESS)
    solvers: dict[str, Solver] = {
        "EBW": EBW(_ENDLESS, patience=_ENDLESS),
        "EBW, one D": published,
        "EBW, then L-BFGS": EBW(_ENDLESS, tol=_FLAT, patience=5, finish=LBFGS(_ENDLESS, tol=0.0)),
        "L-BFGS": LBFGS(_ENDLESS, tol=0.0),
    }
    follow = partial(_follow, report.seed, start, objective, allowed)
    curves = {name: follow(solver) for name, solver in solvers.items()}
    steps = _QUICK_STEPS if report.quick else _STEPS
    tried = [follow(Adam(_ENDLESS, _BATCH, step, patience=_ENDLESS)) for step in steps]
    return {**curves, "Adam": min(tried, key=lambda curve: curve.at(allowed))}


def _follow(
    seed: int, start: OneStart, objective: Objective, allowed: float, solver: Solver
) -> Curve:
    history = start.train(
        objective,
        solver,
        max_time=allowed,
        generator=torch.Generator().manual_seed(seed),
        # Adam's own record is a mean over the epoch; as "held-out" rows, these show its iterate.
        held_out=start.engine if isinstance(solver, Adam) else None,
    ).history
    before = evaluate(start.mixture, objective, start.engine)[1]
    course = [(r["seconds"], r.get("validation_objective", r["objective"])) for r in history]
    points = [(0.0, before), *course]
    seconds, reached = np.array(points).T
    # The epoch under way when time is up counts: it is where the schedule ends.
    return Curve(seconds.clip(max=allowed), np.minimum.accumulate(reached))


def _tabulate(report: Report, problem: str, curves: dict[str, Curve], allowed: float) -> None:
    goal = curves["Adam"].at(allowed)
    for name, curve in curves.items():
        report.row(
            "race",
            problem=problem,
            solver=name,
            **{f"at_{share * allowed:g}s": f"{curve.at(share * allowed):.4f}" for share in _SHARES},
            steps=len(curve.seconds) - 1,
            seconds_to_adam=curve.time_to(goal),
        )
