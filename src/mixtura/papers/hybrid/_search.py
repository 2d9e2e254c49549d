"""Settings for the cells of the paper's tables by search, the same way for every cell.

Cells that share rows are one task. Its shapes (components per class, floor) are tried in turn, each
with random settings of the objective and the step size: `N_TRIALS` mixtures per objective and
shape, side by side. The fewest errors on the validation rows of the first seed win. In a second
round, settings near the winner of each cell and one more shape are tried with more steps. The
winner of that is trained anew for every seed. No test row is looked at before that.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mixtura.data import Scaling, Table, resolve_device
from mixtura.data.given import Parameters
from mixtura.engines import LocalEngine
from mixtura.models.mixture import Mixture
from mixtura.papers.hybrid import _side_by_side as side_by_side
from mixtura.papers.hybrid._side_by_side import Outcome, Trial
from mixtura.papers.hybrid._training import COMMON
from mixtura.papers.report import Report, lines_of
from mixtura.solvers import Adam

#: Draws of the settings per shape and objective, uniform in their logarithms.
N_TRIALS = 8
LEARNING_RATES, MARGINS, SHARES = (2e-4, 3e-2), (5.0, 150.0), (3e-3, 0.9)
#: Minibatches of a trial of the first round; at least as many minibatches and epochs of the others.
SHORT, LONG, LONG_EPOCHS = 4_000, 8_000, 24
#: How far settings of the second round are from those of the first, at most, as a factor.
NEAR = 3.0
#: Rows and their labels.
Labeled = tuple[np.ndarray, np.ndarray]


class Prepared(NamedTuple):
    """Rows of a seed on the device, and mixtures of maximum likelihood to start with.

    Attributes
    ----------
    starts : by the name that settings give them; of several, the best on held-out rows is taken.
    batch_size : rows of a minibatch.
    """

    starts: Mapping[str, Sequence[Mixture]]
    engine: LocalEngine
    held_out: LocalEngine
    test: LocalEngine
    batch_size: int

    @classmethod
    def of(
        cls,
        report: Report,
        starts: Mapping[str, Sequence[Mixture]],
        scaling: Scaling,
        parts: Sequence[Labeled],
        batch_size: int = COMMON["solver__batch_size"],
    ) -> Prepared:
        """Training, validation and test rows, in single precision."""
        device = resolve_device(report.device, parts[0][0].size)
        train, held_out, test = (
            LocalEngine(
                Table(
                    X, y.astype(np.int64) + 1, scaling=scaling, device=device, dtype=torch.float32
                )
            )
            for X, y in parts
        )
        return cls(starts, train, held_out, test, batch_size)

    def epochs(self, long: bool) -> int:
        """Epochs of a trial."""
        share = self.batch_size / len(self.engine)
        return max(round(LONG * share), LONG_EPOCHS) if long else round(SHORT * share)

    def train(
        self, settings: Sequence[Parameters], epochs: int, seed: int, deadline: float
    ) -> list[Outcome]:
        """The mixtures of some settings, side by side."""
        starts = [self.starts[each.get("start", "em")] for each in settings]
        places = [place for place, mine in enumerate(starts) for _ in mine]
        begin = [start for mine in starts for start in mine]
        found = side_by_side.train(
            begin,
            [_trial(settings[place]) for place in places],
            self.engine,
            self.held_out,
            Adam(epochs, self.batch_size, averaging=COMMON["solver__averaging"]),
            torch.Generator().manual_seed(seed),
            deadline,
        )
        return [
            min((one for one, its in zip(found, places, strict=True) if its == place), key=_error)
            for place in range(len(settings))
        ]

    def errors(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Errors of mixtures on test rows, in percent."""
        stack = side_by_side.stacked([outcome.mixture for outcome in outcomes])
        return side_by_side.error_rates(stack, self.test).tolist()


@dataclass(frozen=True)
class Task:
    """Cells of a table that share rows.

    Attributes
    ----------
    label : what `only` is compared with.
    cells : row and column of each objective's cell.
    shapes : settings that change the shape of the mixtures.
    draw : random settings for an objective.
    prepare : rows and starts of a seed, for a shape.
    more : shapes of the second round; without any there is none.
    generative : whether the starts are all that is wanted.
    """

    label: str
    cells: dict[str, tuple[str, str]]
    shapes: list[Parameters]
    draw: Callable[[str, np.random.Generator], Parameters]
    prepare: Callable[[Report, Parameters], Prepared]
    more: Sequence[Parameters] = ()
    generative: bool = False


def search(report: Report, tasks: Sequence[Task], n_seeds: int, stored: Path) -> None:
    """All tasks with a cell that no earlier run has measured, in this order.

    Unless a search was asked for, the settings are those that are stored, where there are any.
    """
    if not (report.search or report.kept("choices")):
        for line in lines_of(stored):
            report.keep("choices", line)
    left = [task for task in tasks if report.wants(task.label) and not _is_done(report, task)]
    seeds, deadline = range(report.seed, report.seed + n_seeds), time.time() + report.max_time
    if report.jobs == 1:
        for task in left:
            work(report, task, seeds, deadline)
        return
    with ProcessPoolExecutor(
        report.jobs, get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        for each in [pool.submit(work, report, task, seeds, deadline) for task in left]:
            each.result()


def work(report: Report, task: Task, seeds: range, deadline: float) -> None:
    """One task, as far as time allows."""
    try:
        if len(_chosen(report, task, 1)) < len(task.cells):
            _first_round(report, task, deadline)
            report.note(f"{task.label}: searched")
        if task.more and len(_chosen(report, task, 2)) < len(task.cells):
            _second_round(report, task, deadline)
            report.note(f"{task.label}: searched again")
        _measure(report, task, seeds, deadline)
        report.note(f"{task.label}: measured")
    except TimeoutError:
        report.note(f"{task.label}: out of time")


def _is_done(report: Report, task: Task) -> bool:
    """Whether what the last round has chosen was measured."""
    chosen = _chosen(report, task, 2 if task.more else 1)
    measured = {(line["row"], line["column"]): line["settings"] for line in report.kept("cells")}
    return all(
        term in chosen and measured.get(cell) == chosen[term] for term, cell in task.cells.items()
    )


def _chosen(report: Report, task: Task, number: int) -> dict[str, Parameters]:
    """What a round has chosen for the cells of a task."""
    kept = {
        (line["row"], line["column"]): line["settings"]
        for line in report.kept("choices")
        if line["round"] == number
    }
    return {term: kept[cell] for term, cell in task.cells.items() if cell in kept}


def _first_round(report: Report, task: Task, deadline: float) -> None:
    rng = np.random.default_rng(zlib.crc32(task.label.encode()))
    count = 1 if task.generative else N_TRIALS
    drawn = [
        (term, form | task.draw(term, rng))
        for form in task.shapes
        for term in task.cells
        for _ in range(count)
    ]
    _choose(report, task, drawn, 1, deadline)


def _second_round(report: Report, task: Task, deadline: float) -> None:
    rng = np.random.default_rng(zlib.crc32(task.label.encode()) + 1)
    drawn = []
    for term, winner in _chosen(report, task, 1).items():
        drawn += [(term, winner)] + [(term, _near(winner, rng)) for _ in range(N_TRIALS - 1)]
        drawn += [(t, s | task.draw(t, rng)) for s in task.more for t in [term] * N_TRIALS]
    _choose(report, task, drawn, 2, deadline)


def _near(settings: Parameters, rng: np.random.Generator) -> Parameters:
    """Settings of the objective and the step size that differ from these by factors."""
    moved = {"solver__learning_rate": 1.0, "objective__margin": np.inf, "tradeoff": 0.95}
    near = {
        name: min(between((settings[name] / NEAR, settings[name] * NEAR), rng), most)
        for name, most in moved.items()
        if settings.get(name)
    }
    return settings | near


def _choose(
    report: Report, task: Task, drawn: list[tuple[str, Parameters]], number: int, deadline: float
) -> None:
    """Keep, for each cell, the settings with the fewest errors on validation rows."""
    tried: dict[str, list[tuple[float, Parameters]]] = {term: [] for term in task.cells}
    for form in [*task.shapes, *task.more]:
        mine = [(term, each) for term, each in drawn if form.items() <= each.items()]
        if mine:
            prepared = _prepared(report, task, form, deadline)
            epochs = 0 if task.generative else prepared.epochs(number == 2)
            found = prepared.train([each for _, each in mine], epochs, report.seed, deadline)
            for (term, settings), outcome in zip(mine, found, strict=True):
                tried[term].append((outcome.validation, settings))
    for term, (row, column) in task.cells.items():
        error, settings = min(tried[term], key=lambda each: each[0])
        line = {"row": row, "column": column, "round": number, "settings": settings}
        report.keep("choices", {**line, "validation": round(error, 3), "trials": len(tried[term])})


def _measure(report: Report, task: Task, seeds: range, deadline: float) -> None:
    """Errors on test rows of what was chosen, for every seed."""
    chosen = _chosen(report, task, 2 if task.more else 1)
    errors: dict[str, list[float]] = {term: [] for term in chosen}
    for seed in seeds:
        for form in [*task.shapes, *task.more]:
            mine = {t: each for t, each in chosen.items() if form.items() <= each.items()}
            if mine:
                prepared = _prepared(replace(report, seed=seed), task, form, deadline)
                epochs = 0 if task.generative else prepared.epochs(long=True)
                found = prepared.train(list(mine.values()), epochs, seed, deadline)
                for term, error in zip(mine, prepared.errors(found), strict=True):
                    errors[term].append(error)
    for term, values in errors.items():
        report.cell(*task.cells[term], values, chosen[term])


def _prepared(report: Report, task: Task, form: Parameters, deadline: float) -> Prepared:
    if time.time() > deadline:
        raise TimeoutError
    return task.prepare(report, form)


def shape(n_components: int, floor: float) -> Parameters:
    """Settings that decide the shape of a mixture."""
    return {"n_components": n_components, "density__floor": floor}


def between(limits: tuple[float, float], rng: np.random.Generator) -> float:
    """A number whose logarithm is uniform, to two digits."""
    return float(f"{np.exp(rng.uniform(*np.log(limits))):.2g}")


def draw(term: str, rng: np.random.Generator) -> Parameters:
    """Random settings of an objective, in the names of the classifier's parameters."""
    if term == "LL":
        return {}
    settings = {"solver__learning_rate": between(LEARNING_RATES, rng), "tradeoff": 0.0}
    if "LM" in term:
        settings["objective__margin"] = between(MARGINS, rng)
    if term.startswith("LL+"):
        settings["tradeoff"] = between(SHARES, rng)
    return settings


def _trial(settings: Parameters) -> Trial:
    return Trial(
        settings.get("tradeoff", 1.0),
        settings.get("objective__margin"),
        settings.get("solver__learning_rate", 1.0),
        1.0 - settings.get("unlabeled_weight", 0.0),
    )


def _error(outcome: Outcome) -> float:
    return outcome.validation
