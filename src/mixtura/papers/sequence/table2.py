"""Sequence mixtures, Table 2: gun or finger, and pairs of signs of Australian sign language.

Kim and Pavlovic (2007), section 5.2. All 200 series of GunPoint in ten folds, as one channel and
with its slope beside it. Of Auslan ten everyday signs, "hello" and "sorry" among them as in the
paper, which does not name the others, twenty recordings of each. It does not say whose: we take
those of the one signer who has twenty, and in a part of its own four of each of the five signers,
evenly spaced over their sessions, with slopes. States and floor of that part are those with which a
method errs least on pairs of ten other signs (fifteen pairs, five folds), which a search compares
anew; CML and BxML have those of ML (the figure of 1-NN DTW is without slopes). Of the 40 sequences
of each of the 45 pairs one is left out at a time, as in the paper, but in slow methods (CML, BxML,
BxCML) and with one signer, where there are ten folds. The paper's gait data are not public.

Parts are named like "gunpoint slopes, BxCML".
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import LeaveOneOut, StratifiedKFold
from sklearn.utils import Bunch

from mixtura.data.given import Parameters
from mixtura.datasets import load_dataset
from mixtura.densities import Diagonal
from mixtura.papers.cells import grid
from mixtura.papers.report import Report
from mixtura.papers.sequence._methods import (
    RIVALS,
    Score,
    Sequences,
    evaluate,
    method,
    summary,
    take,
)
from mixtura.sequences import with_slopes

METHODS = ("ML", "CML", "BBN", "BxML", "BxCML", *RIVALS)
#: The paper's errors in percent, in the order of METHODS.
_PAPER = {
    "gunpoint": (36.22, 26.06, 28.78, 19.28, 17.28, 22.67, 22.33),
    "auslan": (8.67, 5.45, 4.90, 6.33, 5.18, 10.90, 12.06),
}
#: Georgia-Tech gait, USF gait (two sets), which are not to be had.
_GAIT = {
    "ML": (11.50, 20.24, 55.36),
    "ML (PWC)": (11.50, None, 55.36),
    "CML": (3.38, 17.11, 50.89),
    "CML (PWC)": (3.63, None, 39.29),
    "BBN": (10.13, 17.11, 55.36),
    "BBN (MWV)": (3.50, None, 42.86),
    "BxML": (11.87, 19.35, 48.21),
    "BxML (PWC)": (14.25, None, 50.00),
    "BxCML": (5.75, 13.84, 54.46),
    "BxCML (PWC)": (6.87, None, 35.71),
    "FSVM (PWC)": (7.12, 12.95, 39.29),
    "FSVM (WTA)": (2.87, None, 44.64),
    "1-NN DTW": (8.38, 22.17, 54.46),
}
CELLS = [
    *grid(METHODS, _PAPER),
    *grid(["GT gait", "USF set 1", "USF set 2"], _GAIT, absent="the data are not to be had"),
]
#: Which of our parts are the paper's; its Auslan has five signers.
PUBLISHED = {"gunpoint": "gunpoint", "auslan signers": "auslan"}
SIGNS = ("hello", "sorry", "thank", "please", "yes", "no", "name", "know", "happy", "love")
PER_SIGN = 20
SIGNERS: dict[str, tuple[str, ...]] = {
    "auslan": ("waleed",),
    "auslan signers": ("adam", "andrew", "john", "stephen", "waleed"),
}
FOLDS = 10
#: The fingers of the glove have four positions each: small variances mean nothing there.
_GLOVE = {"n_states": 6, "density": Diagonal(0.3)}
_LEFT_TO_RIGHT = {"chain": "left_to_right"}
SETTINGS: dict[str, Parameters] = {
    "gunpoint": {"n_states": 10},
    "gunpoint slopes": {"n_states": 10},
    "auslan": _GLOVE,
    "auslan signers": {**_LEFT_TO_RIGHT, "n_states": 15, "density": Diagonal(0.1)},
}
#: What methods have that prefer other settings than ML, on pairs of other signs.
OWN: dict[tuple[str, str], Parameters] = {
    ("auslan signers", "FSVM"): {**_LEFT_TO_RIGHT, "n_states": 3, "density": Diagonal(0.3)}
}
#: What a search compares there: states, floors, every so many of the other signs, and of the pairs.
STATES, FLOORS, _NINTH, _THIRD = (2, 3, 4, 8, 15), (0.1, 0.3), 9, 3
SEARCHED = ("ML", "BBN", "BxCML", "FSVM")
#: Methods too slow to leave out one sequence at a time.
SLOW = ("CML", "BxML", "BxCML")
#: Parts with slopes, and frames on either side that these are fitted to.
SLOPES = {"gunpoint slopes": 1, "auslan signers": 2}
_QUICK_METHODS = ("ML", "BxCML", "1-NN DTW")


class Task(NamedTuple):
    """Labeled sequences."""

    data: Sequences
    target: np.ndarray


def run(report: Report) -> None:
    """A row for each part of the table and method."""
    for part in SETTINGS:
        methods = _QUICK_METHODS if report.quick else METHODS
        wanted = [name for name in methods if report.wants(f"{part}, {name}")]
        tasks = _tasks(part, report.quick) if wanted else []
        for name in wanted:
            _show(report, part, name, _scores(report, part, name, tasks))


def _tasks(part: str, quick: bool) -> list[Task]:
    if part in SIGNERS:
        tasks = sign_pairs(SIGNS[:2] if quick else SIGNS, SIGNERS[part])
    else:
        rows = load_dataset("gunpoint")
        series = [row[:, None] for row in rows.data[:: 5 if quick else 1]]
        tasks = [Task(series, rows.target[:: 5 if quick else 1])]
    return _sloped(part, tasks)


def _sloped(part: str, tasks: list[Task]) -> list[Task]:
    if part not in SLOPES:
        return tasks
    return [Task(with_slopes(data, SLOPES[part]).split(), target) for data, target in tasks]


def sign_pairs(signs: tuple[str, ...], signers: tuple[str, ...]) -> list[Task]:
    """Every sign against every other, with as many sequences of each signer."""
    rows = load_dataset("auslan")
    names = list(rows.target_names)
    chosen = {sign: _spread(rows, names.index(sign), signers) for sign in signs}
    return [
        Task(take(rows.data, pair), rows.target[pair])
        for one, other in combinations(signs, 2)
        for pair in [np.concatenate([chosen[one], chosen[other]])]
    ]


def _spread(rows: Bunch, label: int, signers: tuple[str, ...]) -> np.ndarray:
    """Recordings of a sign, evenly spaced over those of each signer."""
    picked = []
    for signer in signers:
        mine = np.flatnonzero((rows.target == label) & (rows.signer == signer))
        picked.append(
            mine[np.linspace(0, len(mine) - 1, PER_SIGN // len(signers)).round().astype(int)]
        )
    return np.concatenate(picked)


def _scores(report: Report, part: str, name: str, tasks: list[Task]) -> list[Score]:
    """Of all folds of all tasks."""
    chosen = OWN.get((part, name), SETTINGS[part])
    if report.search and part == "auslan signers" and name in SEARCHED:
        chosen = _searched(report, name)
    if part == "auslan signers" and name not in SLOW and not report.quick:
        folds = LeaveOneOut()
    else:
        folds = _folds(report, 2 if report.quick else FOLDS)
    return _tested(report, name, chosen, tasks, folds)


def _searched(report: Report, name: str) -> Parameters:
    """States and floor with which a method errs least on pairs of other signs."""
    others = [str(sign) for sign in load_dataset("auslan").target_names if sign not in SIGNS]
    pairs = sign_pairs(tuple(others[::_NINTH]), SIGNERS["auslan signers"])[::_THIRD]
    tasks = _sloped("auslan signers", pairs)
    found: list[tuple[float, Parameters]] = []
    for count, floor in product(STATES, FLOORS):
        chosen = {**_LEFT_TO_RIGHT, "n_states": count, "density": Diagonal(floor)}
        scores = _tested(report, name, chosen, tasks, _folds(report, 5))
        found.append((float(np.mean([score.error for score in scores])), chosen))
        how = {"model": name, "n_states": count, "floor": floor}
        report.row("search", **how, validation=found[-1][0])
    return min(found, key=lambda each: each[0])[1]


def _folds(report: Report, count: int) -> StratifiedKFold:
    return StratifiedKFold(count, shuffle=True, random_state=report.seed)


def _tested(
    report: Report,
    name: str,
    chosen: Parameters,
    tasks: list[Task],
    folds: StratifiedKFold | LeaveOneOut,
) -> list[Score]:
    make = method(name, **chosen)
    return [
        score
        for data, target in tasks
        for score in evaluate(make, data, target, folds.split(data, target), report.seed)
    ]


def _show(report: Report, part: str, name: str, scores: list[Score]) -> None:
    paper = _PAPER[part.split()[0]][METHODS.index(name)]
    if part in PUBLISHED:
        report.cell(PUBLISHED[part], name, [score.error for score in scores])
    report.row("errors", data=part, model=name, folds=len(scores), **summary(scores), paper=paper)
