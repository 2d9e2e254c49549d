"""Sequence mixtures beyond the paper: speakers, spoken digits, and letters in many classes.

Methods and names are those of Kim and Pavlovic (2007), and margin training. Japanese Vowels (nine
speakers) in the official split; Free Spoken Digits, 1,000 sequences to train on and 1,000 to test,
drawn from all speakers, whom the file does not name; Character Trajectories (a hundred series of
twenty letters) in five folds.

Parts are named like "vowels, BxCML (pairwise)".
"""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from mixtura.data.given import Parameters
from mixtura.datasets import load_dataset
from mixtura.papers.report import Report
from mixtura.papers.sequence._methods import (
    MODELS,
    PAIRWISE,
    RIVALS,
    Fold,
    Sequences,
    evaluate,
    method,
    summary,
)

FOLDS = 5
METHODS = (*MODELS, *PAIRWISE, *RIVALS)
FILES = {
    "vowels": "japanese_vowels",
    "digits": "free_spoken_digits",
    "letters": "character_trajectories_100",
}
SETTINGS: dict[str, Parameters] = {
    "vowels": {"n_states": 3, "density": "full"},
    "digits": {"n_states": 6, "chain": "left_to_right"},
    "letters": {"n_states": 8, "chain": "left_to_right"},
}
_QUICK_PARTS = ("vowels",)
_QUICK_METHODS = ("ML", "BxCML", "1-NN DTW")


def run(report: Report) -> None:
    """A row for each set and method."""
    for part in _QUICK_PARTS if report.quick else FILES:
        for name in _QUICK_METHODS if report.quick else METHODS:
            if report.wants(f"{part}, {name}"):
                _show(report, part, name)


def load(part: str, seed: int) -> tuple[Sequences, np.ndarray, list[Fold]]:
    """Sequences, labels, and the splits to test on."""
    rows = load_dataset(FILES[part])
    if rows.splits:
        return rows.data, rows.target, rows.splits
    splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    if part == "digits":
        splitter = StratifiedShuffleSplit(1, train_size=1000, test_size=1000, random_state=seed)
    return rows.data, rows.target, list(splitter.split(rows.data, rows.target))


def _show(report: Report, part: str, name: str) -> None:
    data, target, folds = load(part, report.seed)
    make = method(name, **SETTINGS[part])
    scores = evaluate(make, data, target, folds, report.seed)
    report.row("errors", data=part, model=name, folds=len(scores), **summary(scores))
