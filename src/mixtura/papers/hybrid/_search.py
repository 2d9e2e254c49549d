"""Settings for the cells of the paper's tables by search, the same way for every cell.

Cells that share rows are one task. Its shapes (components per class, floor and so on) are tried
in turn, each with random settings of the objective and the step size: `N_TRIALS` mixtures per
objective and shape, side by side. The fewest errors on the validation rows of the first seed win.
In further rounds, settings near the winner of each cell and more shapes are tried with more steps.
For the likelihood alone, which trains every class by itself, later rounds also choose the number of
components of each class, as the paper does. In the last round the best settings of a cell, others
near the very best, and others near the best with or without the likelihood (for hybrids, also that
itself with new trade-offs) are trained for every seed, and the fewest errors on all their
validation rows win: those of one seed are too few to tell good settings from lucky ones. The last
winner is trained anew for every seed. No test row is looked at before that.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixtura.data.given import Parameters
from mixtura.papers.cells import Cell
from mixtura.papers.hybrid._prepared import STEPS, Joint, Prepared
from mixtura.papers.report import Lines, Report, lines_of
from mixtura.papers.tables import spread

#: Draws of the settings per shape and objective, uniform in their logarithms.
N_TRIALS = 8
LEARNING_RATES, MARGINS, SHARES = (2e-4, 3e-2), (5.0, 150.0), (3e-3, 0.9)
#: Settings that decide the shape of a mixture.
SHAPE = (
    "n_components",
    "density__floor",
    "density__rank",
    "prior_rows",
    "density__parameterization",
)
#: The last round of every task, whatever there was before it, and how many settings of a cell come
#: into it: the best, and of both kinds of new ones.
LAST, FINALISTS, NEWCOMERS = len(STEPS), 4, 4
#: Whose settings are tried for an objective in the last round, the first that are known.
RELATIVES = {"LL+LM": ("LM",), "LL+CLL": ("CLL",), "LM": ("LL+LM", "CLL"), "CLL": ("LL+CLL", "LM")}
#: How far settings of a round are from the winner of the one before, at most, as a factor.
NEAR = 3.0


@dataclass(frozen=True)
class Task:
    """Cells of a table that share rows.

    Attributes
    ----------
    label : what `only` is compared with, with the objective in place of the braces.
    cells : the cell of each objective.
    rounds : settings that change the shape of the mixtures, those that each round before the last
        adds.
    draw : random settings for an objective.
    prepare : rows and starts of a seed, for a shape.
    generative : whether the starts are all that is wanted.
    """

    label: str
    cells: dict[str, Cell]
    rounds: Sequence[Sequence[Parameters]]
    draw: Callable[[str, np.random.Generator], Parameters]
    prepare: Callable[[Report, Parameters], Prepared]
    generative: bool = False

    def wanted(self, report: Report) -> dict[str, Cell]:
        """The cells that were asked for."""
        return {
            term: cell for term, cell in self.cells.items() if report.wants(self.label.format(term))
        }


def search(report: Report, tasks: Sequence[Task], n_seeds: int, stored: Path) -> None:
    """All tasks with a cell that no earlier run has measured, in this order.

    Unless a search was asked for, the settings are those that are stored, where there are any.
    """
    if not (report.search or report.kept("choices")):
        for line in lines_of(stored):
            report.keep("choices", line)
    left = [task for task in tasks if not _is_done(report, task)]
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
    """One task, as far as time allows; without a search, by what was found before."""
    name = task.label.format(", ".join(task.wanted(report)))
    try:
        for number in (*range(1, len(task.rounds) + 1), LAST):
            done = {line["round"] for line in _choices(report, task).values()}
            is_known = len(_choices(report, task)) == len(task.wanted(report))
            if not is_known or (report.search and min(done) < number):
                _search_round(report, task, number, seeds, deadline)
                report.note(f"{name}: searched, round {number}")
        _measure(report, task, seeds, deadline)
        report.note(f"{name}: measured")
    except TimeoutError:
        report.note(f"{name}: out of time")


def _is_done(report: Report, task: Task) -> bool:
    """Whether what was chosen last, in a search by the last round, was measured."""
    chosen = _choices(report, task, LAST if report.search else None)
    measured = {(line["row"], line["column"]): line["settings"] for line in report.kept("cells")}
    return all(
        term in chosen and measured.get(cell[:2]) == chosen[term]["settings"]
        for term, cell in task.wanted(report).items()
    )


def _choices(report: Report, task: Task, number: int | None = None) -> dict[str, Parameters]:
    """What a round, or the last that did, has chosen for cells: lines by objective."""
    lines = sorted(report.kept("choices"), key=lambda line: line["round"])
    kept = {
        (line["row"], line["column"]): line for line in lines if number in (None, line["round"])
    }
    wanted = task.wanted(report)
    return {term: kept[cell[:2]] for term, cell in wanted.items() if cell[:2] in kept}


def _search_round(report: Report, task: Task, number: int, seeds: range, deadline: float) -> None:
    """Keep, for each cell, the settings with the fewest errors on validation rows."""
    rngs = {  # what is drawn for a cell does not depend on which others are asked for
        term: np.random.default_rng(zlib.crc32(" ".join(cell[:2]).encode()) + number - 1)
        for term, cell in task.wanted(report).items()
    }
    count = 1 if task.generative else N_TRIALS
    if number == LAST:
        drawn = _finalists(report, task, rngs)
    else:
        drawn, seeds = [], seeds[:1]
        for term, line in _choices(report, task, number - 1).items():
            winner = line["settings"]
            drawn += [(term, winner)]
            drawn += [(term, _near(winner, rngs[term])) for _ in range(count - 1)]
        drawn += [
            (term, form | task.draw(term, rng))
            for form in task.rounds[number - 1]
            for term, rng in rngs.items()
            for _ in range(count)
        ]
    joints = _try(report, task, drawn, number, seeds, deadline)
    if 1 < number < LAST and joints:
        mixed = [("LL", form) for form in _per_class(joints)]
        _try(report, task, mixed, number, seeds, deadline)
    for term in rngs:
        tried = _tried(report, task, term, number)
        best = min(tried, key=lambda line: line["validation"])
        report.keep("choices", {**best, "trials": len(tried)})


def _finalists(
    report: Report, task: Task, rngs: Mapping[str, np.random.Generator]
) -> list[tuple[str, Parameters]]:
    """The best settings of each cell so far, some near the best, and near those of its relative.

    The relative of a hybrid is its discriminative part alone, whose steps are also tried with other
    trade-offs, and the other way round; with few labels, where all are hybrids, it is that of the
    other objective. The likelihood alone has nothing to move: more of its best come.
    """
    count = FINALISTS + 2 * NEWCOMERS * task.generative
    best = {term: _best(report, cell)[:count] for term, cell in task.cells.items()}
    drawn = [(term, settings) for term in rngs for settings in best[term]]
    for term, rng in rngs.items() if not task.generative else ():
        own = best[term][0]
        (other, *_) = next((best[name] for name in RELATIVES[term] if best.get(name)), [own])
        pair = own, _adapted(other, own)
        drawn += [(term, _near(each, rng)) for each in pair for _ in range(NEWCOMERS)]
        if own["tradeoff"] and not other["tradeoff"]:
            shares = [between(SHARES, rng) for _ in range(NEWCOMERS)]
            drawn += [(term, pair[1] | {"tradeoff": share}) for share in shares]
    return drawn


def _adapted(other: Parameters, own: Parameters) -> Parameters:
    """Settings of another objective for one's own, with its trade-off unless both are hybrids."""
    mixed = {name: value for name, value in own.items() if name not in SHAPE}
    mixed |= {name: value for name, value in other.items() if name in own or name in SHAPE}
    return mixed if own["tradeoff"] and other["tradeoff"] else mixed | {"tradeoff": own["tradeoff"]}


def _best(report: Report, cell: Cell) -> list[Parameters]:
    """All settings that were tried for a cell before the last round, the best first."""
    known = [
        line
        for line in (*report.kept("choices"), *report.kept("trials"))
        if (line["row"], line["column"]) == cell[:2] and line["round"] < LAST
    ]
    found: list[Parameters] = []
    for line in sorted(known, key=lambda line: line["validation"]):
        if line["settings"] not in found:
            found.append(line["settings"])
    return found


def _try(
    report: Report,
    task: Task,
    drawn: Sequence[tuple[str, Parameters]],
    number: int,
    seeds: range,
    deadline: float,
) -> list[Joint]:
    """Keep what settings reach on validation rows, unless earlier runs have; joints of starts."""
    joints = []
    terms = task.wanted(report)
    known = [line["settings"] for t in terms for line in _tried(report, task, t, number)]
    for form, mine in _by_form(drawn):
        if all(settings in known for _, settings in mine) and (
            number == LAST or not task.generative
        ):
            continue
        errors = []
        for seed in seeds:
            prepared = _prepared(replace(report, seed=seed), task, form, deadline)
            epochs = 0 if task.generative else prepared.epochs(number)
            found = prepared.train([each for _, each in mine], epochs, seed, deadline)
            errors.append([outcome.validation for outcome in found])
        for (term, settings), validation in zip(mine, np.mean(errors, 0), strict=True):
            row, column = task.cells[term][:2]
            line = {"row": row, "column": column, "round": number, "settings": settings}
            report.keep("trials", {**line, "validation": round(validation, 3)})
        if task.generative:
            joints.append(prepared.joint(form))
    return joints


def _tried(report: Report, task: Task, term: str, number: int) -> Lines:
    """What a round has tried for a cell."""
    where = [*task.cells[term][:2], number]
    lines = report.kept("trials")
    return [line for line in lines if [line["row"], line["column"], line["round"]] == where]


def _by_form(
    drawn: Iterable[tuple[str, Parameters]],
) -> list[tuple[Parameters, list[tuple[str, Parameters]]]]:
    """Settings, those of one shape together."""
    groups: list[tuple[Parameters, list[tuple[str, Parameters]]]] = []
    for term, settings in drawn:
        form = {name: settings[name] for name in SHAPE if name in settings}
        mine = next((group for known, group in groups if known == form), None)
        if mine is None:
            groups.append((form, mine := []))
        mine.append((term, settings))
    return groups


def _per_class(joints: Sequence[Joint]) -> Iterator[Parameters]:
    """Shapes with as many components of each class as make the fewest errors, else as given.

    As classes are trained one by one, the columns of the log-joints of several shapes can be mixed.
    """
    for _, group in groupby(joints, lambda each: [each.form.get(name) for name in SHAPE[1:]]):
        mine = list(group)
        options = torch.stack([each.log_joint for each in mine])  # (O, n, C)
        label, classes = mine[0].label, range(options.shape[2])
        best = int(_cost(options, label).argmin())
        chosen, current, before = [best] * len(classes), options[best].clone(), None
        while before != chosen:
            before = list(chosen)
            for place in classes:
                trial = current.repeat(len(mine), 1, 1)
                trial[:, :, place] = options[:, :, place]
                cost = _cost(trial, label)
                if cost.min() < cost[chosen[place]]:
                    chosen[place] = int(cost.argmin())
                current[:, place] = options[chosen[place], :, place]
        counts = [mine[each].form["n_components"] for each in chosen]
        yield {**mine[0].form, "n_components": counts}


def _cost(log_joint: Tensor, label: Tensor) -> Tensor:
    """Errors among rows by option; of equal ones, the smaller conditional loss is better. (O,)."""
    own = label[:, None].expand(len(log_joint), -1, 1)
    loss = -log_joint.log_softmax(2).gather(2, own).double().mean((1, 2))
    return (log_joint.argmax(2) != label).double().sum(1) + loss / (1.0 + loss)


def _near(settings: Parameters, rng: np.random.Generator) -> Parameters:
    """Settings of the objective and the step size that differ from these by factors."""
    moved = {"solver__learning_rate": 1.0, "objective__margin": np.inf, "tradeoff": 0.95}
    near = {
        name: min(between((settings[name] / NEAR, settings[name] * NEAR), rng), most)
        for name, most in moved.items()
        if settings.get(name)
    }
    return settings | near


def _measure(report: Report, task: Task, seeds: range, deadline: float) -> None:
    """Errors on test rows of what was chosen, for every seed, by as many steps as of its round."""
    choices = _choices(report, task)
    for number in (2, LAST):
        chosen = {
            term: line["settings"]
            for term, line in choices.items()
            if (line["round"] == LAST) == (number == LAST)
        }
        errors: dict[str, list[float]] = {term: [] for term in chosen}
        for seed in seeds:
            for form, mine in _by_form(chosen.items()):
                prepared = _prepared(replace(report, seed=seed), task, form, deadline)
                epochs = 0 if task.generative else prepared.epochs(number)
                found = prepared.train([each for _, each in mine], epochs, seed, deadline)
                for (term, _), error in zip(mine, prepared.errors(found), strict=True):
                    errors[term].append(error)
        for term, values in errors.items():
            cell = task.cells[term]
            report.cell(cell.row, cell.column, values, chosen[term])
            where = {"row": cell.row, "column": cell.column}
            report.row("errors", **where, **spread(values), paper=cell.published)


def _prepared(report: Report, task: Task, form: Parameters, deadline: float) -> Prepared:
    if time.time() > deadline:
        raise TimeoutError
    return task.prepare(report, form)


def shape(*values: float | str) -> Parameters:
    """Settings that decide the shape of a mixture: its components and so on, as in `SHAPE`."""
    return dict(zip(SHAPE, values, strict=False))


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
