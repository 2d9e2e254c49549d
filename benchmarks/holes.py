"""Missing not at random: what `missingness` gains, and what it costs where other holes are met.

    MIXTURA_DATA=... python -m benchmarks.holes sweep [--splits 4] [--jobs 2] [--tables labor ...]
    MIXTURA_DATA=... python -m benchmarks.holes chance [--draws 50] [--jobs 2]

`sweep` trains on tables whose holes may mean something; at prediction 0, 30 or 60 % more entries
are missing at random. `chance` trains on tables with 20 % of the entries missing at random and
counts how often "auto" says that these holes mean something. Both write one CSV line per result and
print means.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from benchmarks.tables import load_table
from mixtura import BoostedMixtureClassifier, MixtureClassifier, MixtureNetworkClassifier
from mixtura.papers.tables import punch_at_random

SHARES = (0.0, 0.3, 0.6)
CHOICES = ("ignore", "informative", "auto")
MIXED = ("annealing", "horse_colic", "hepatitis", "mammographic", "labor", "adult")
TEST_SIZE, BY_CHANCE = 0.3, 0.2
MODELS = {
    "mixture": MixtureClassifier,
    "network": MixtureNetworkClassifier,
    "boosted": BoostedMixtureClassifier,
}
STRUCTURES = ("auto", "full", "diag", "low_rank")
Line = dict[str, Any]


def load(name: str) -> Bunch:
    """A table; "digits, blocks" has holes of our making."""
    rows = load_table(name.partition(",")[0])
    if name.endswith("blocks"):
        rows.data = with_blocks(rows.data, rows.target)
    return rows


def with_blocks(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Two of the classes always lack a block of columns of their own, one lacks a third half."""
    rng = np.random.default_rng(1)
    X, block = X.astype(float), np.array_split(np.arange(X.shape[1]), 4)
    for label, share in ((0, 1.0), (1, 1.0), (2, 0.5)):
        lacks = (y == label) & (rng.random(len(y)) < share)
        X[np.ix_(lacks, block[label])] = np.nan
    return X


def sweep(name: str, model: str, choice: str, seed: int) -> list[Line]:
    """One model on one split: a line per share of further holes."""
    rows = load(name)
    splitter = StratifiedShuffleSplit(1, test_size=TEST_SIZE, random_state=seed)
    ((train, test),) = splitter.split(rows.data, rows.target)
    made = MODELS[model](
        missingness=choice, categorical_features=rows.categorical, random_state=seed
    )
    fitted = _fit(made, rows.data[train], rows.target[train])
    lines = []
    for share in SHARES:
        given = fitted.predict_proba(punch_at_random(rows.data[test], share, seed))
        own = given[np.arange(len(test)), np.searchsorted(fitted.classes_, rows.target[test])]
        wrong = fitted.classes_[given.argmax(1)] != rows.target[test]
        lines.append(
            {
                "table": name, "model": model, "missingness": choice, "split": seed,
                "further": share, "error": 100.0 * wrong.mean(),
                "log_loss": -np.log(np.maximum(own, 1e-15)).mean(), "chosen": fitted.missingness_,
            }
        )  # fmt: skip
    return lines


def chance(name: str, structure: str, seed: int) -> list[Line]:
    """Holes at random: whether they were taken for more, and what an empty row then gets."""
    rows = load(name)
    X = punch_at_random(rows.data, BY_CHANCE, seed)
    made = MixtureClassifier(density=structure, random_state=seed)
    fitted = _fit(made, X, rows.target)
    empty = fitted.predict_proba(np.full((1, X.shape[1]), np.nan))[0]
    shares = np.bincount(rows.target) / len(rows.target)
    return [
        {
            "table": name, "structure": structure, "draw": seed, "chosen": fitted.missingness_,
            "empty row off by": float(np.abs(empty - shares).max()),
        }
    ]  # fmt: skip


def _fit(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def run(function: Callable[..., list[Line]], tasks: Iterable[tuple], args: Any) -> list[Line]:
    """All tasks, several at a time; their lines are written as they come."""
    lines: list[Line] = []
    parallel = Parallel(n_jobs=args.jobs, return_as="generator_unordered")
    with Path(args.out).open("w", newline="") as file:
        for found in parallel(delayed(function)(*task) for task in tasks):
            writer = csv.DictWriter(file, list(found[0]))
            if not lines:
                writer.writeheader()
            writer.writerows(found)
            file.flush()
            lines += found
    return lines


def print_sweep(lines: list[Line]) -> None:
    """Mean errors by table, model, and share of further holes."""
    cells: dict[tuple, list[float]] = defaultdict(list)
    taken: dict[tuple, list[bool]] = defaultdict(list)
    for line in lines:
        cells[line["table"], line["model"], line["missingness"], line["further"]].append(
            line["error"]
        )
        if line["missingness"] == "auto":
            taken[line["table"], line["model"]].append(line["chosen"] == "informative")
    for table, model in taken:
        share = np.mean(taken[table, model])
        print(f"{table}, {model}: informative in {100 * share:.0f} % of the splits")
        for choice in CHOICES:
            means = [np.mean(cells[table, model, choice, share]) for share in SHARES]
            print(f"  {choice:12}" + "".join(f"{mean:8.2f}" for mean in means))


def print_chance(lines: list[Line]) -> None:
    """How many draws were taken for more than chance, by table and structure."""
    cells: dict[tuple, list[Line]] = defaultdict(list)
    for line in lines:
        cells[line["table"], line["structure"]].append(line)
    for cell, mine in cells.items():
        taken = sum(line["chosen"] == "informative" for line in mine)
        worst = max(line["empty row off by"] for line in mine)
        print(*cell, f"{taken} of {len(mine)}, empty row off by {worst:.3f} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sweep", "chance"))
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--models", nargs="+", default=["mixture"], choices=list(MODELS))
    parser.add_argument("--out", default="holes.csv")
    args = parser.parse_args()
    if args.what == "sweep":
        tasks: Any = [
            (table, model, choice, split)
            for split in range(args.splits)
            for table in args.tables or (*MIXED, "digits, blocks")
            for model in args.models
            for choice in CHOICES
        ]
        print_sweep(run(sweep, tasks, args))
    else:
        tasks = [
            (table, structure, draw)
            for draw in range(args.draws)
            for table in args.tables or ("wine", "iris", "wdbc")
            for structure in STRUCTURES
        ]
        print_chance(run(chance, tasks, args))


if __name__ == "__main__":
    main()
