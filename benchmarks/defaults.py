"""The default classifier beside what people use, on many tables and in six conditions.

    MIXTURA_DATA=... python -m benchmarks.defaults [--jobs 16] [--only ours] [--output FILE]
    MIXTURA_TABLES=FOLDER python -m benchmarks.defaults --tables NAME ...
    python -m benchmarks.defaults_report [FILE ...]

Of every table 70 % of the rows train a model and 30 % test it, in three random splits. Entries
are lost at random at prediction only, in training and prediction, or in training by class and at
prediction at random; or one label in ten is known. One line of JSON per model, table, split and
condition is written as it is found; what the file already has is not measured again. The second
command takes tables from a folder of ARFF files; the third writes docs/results/defaults.md.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from benchmarks.arff import FILES
from benchmarks.classifiers import ABSENT, CLASSIFIERS, SPREADING
from benchmarks.speed import origin
from benchmarks.tables import MOST_ROWS, TABLES, load_table
from mixtura import MixtureClassifier
from mixtura.data.batch import UNLABELED
from mixtura.papers.tables import halves, hide_labels, punch_at_random

OUTPUT = Path("defaults.jsonl")
OURS = "mixtura"
TEST_SHARE, LABELED, BOTH, LEAST = 0.3, 0.1, 0.3, 1e-15
MOST_ENTRIES = 50_000
#: What a record measures.
KEY = ("table", "model", "split", "condition")
Record = dict[str, Any]


class Condition(NamedTuple):
    """Its title, what is done to training rows, and the share of entries that test rows lack."""

    title: str
    training: str
    missing: float


CONDITIONS = {
    "complete": Condition("complete rows", "complete", 0.0),
    "missing30": Condition("30 % missing at prediction", "complete", 0.3),
    "missing60": Condition("60 % missing at prediction", "complete", 0.6),
    "both30": Condition("30 % missing in training and prediction", "both", BOTH),
    "labels10": Condition("10 % of the labels", "labels", 0.0),
    "telling": Condition("holes that tell in training, not at prediction", "by class", BOTH),
}


class Task(NamedTuple):
    """One fit, and the conditions that it is tested in."""

    table: str
    model: str
    split: int
    conditions: tuple[str, ...]
    rows: int = MOST_ROWS


def half(table: str) -> str:
    """A or B, by the first word of the name: versions of one set stay together."""
    return "AB"[crc32(table.partition("_")[0].encode()) % 2]


def calibration_error(proba: np.ndarray, y: np.ndarray, n_bins: int = 10) -> float:
    """Expected calibration error of the predicted class's probability; proba (n, classes)."""
    return _gap(proba.max(1), proba.argmax(1) == y, n_bins)


def calibration_by_chance(proba: np.ndarray, n_draws: int = 20) -> float:
    """The same in the mean, were all probabilities right: few rows have a gap by chance alone."""
    confidence, rng = proba.max(1), np.random.default_rng(0)
    return float(
        np.mean([_gap(confidence, rng.random(len(proba)) < confidence) for _ in range(n_draws)])
    )


def _gap(confidence: np.ndarray, right: np.ndarray, n_bins: int = 10) -> float:
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=n_bins)
    return float(np.abs(gaps).sum() / len(right))


def punch_by_class(X: np.ndarray, y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Each class has half of the columns, its own draw, in which it lacks twice the share."""
    rng = np.random.default_rng(seed)
    lacks = rng.random((y.max() + 1, X.shape[1])) < 0.5
    return np.where(lacks[y] & (rng.random(X.shape) < 2 * share), np.nan, X)


def training_rows(X: np.ndarray, y: np.ndarray, kind: str, seed: int) -> tuple[np.ndarray, ...]:
    """What a model is fitted to: rows with their holes, and labels, some of them hidden."""
    if kind == "labels":
        return X, hide_labels(y, LABELED, seed)
    if kind == "both":
        return punch_at_random(X, BOTH, seed + 1000), y
    return (punch_by_class(X, y, BOTH, seed) if kind == "by class" else X), y


def measure(task: Task, settings: dict[str, Any]) -> list[Record]:
    """One record per condition, or one that says why the fit failed."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        try:
            return list(_measured(task, settings))
        except Exception as error:
            failed = {"failed": f"{type(error).__name__}: {error}"[:300]}
            return [_key(task, condition) | failed for condition in task.conditions]


def _key(task: Task, condition: str) -> Record:
    return dict(zip(KEY, (*task[:3], condition), strict=True))


def _measured(task: Task, settings: dict[str, Any]) -> Iterator[Record]:
    entries = MOST_ENTRIES if task.rows == MOST_ROWS else np.inf
    rows = load_table(task.table, entries=entries, rows=task.rows)
    ((train, test),) = halves(rows.target, 1, task.split, TEST_SHARE)
    kind = CONDITIONS[task.conditions[0]].training
    X, y = training_rows(rows.data[train], rows.target[train], kind, task.split)
    if task.model == OURS:
        known = {"categorical_features": rows.categorical, "unlabeled": UNLABELED}
        model = MixtureClassifier(random_state=task.split, **known, **settings)
    else:
        model = CLASSIFIERS[task.model](rows, task.split)
        if task.model != SPREADING:
            X, y = X[y != UNLABELED], y[y != UNLABELED]
    began = time.process_time()
    model.fit(X, y)
    fitted = time.process_time() - began
    for name in task.conditions:
        met = punch_at_random(rows.data[test], CONDITIONS[name].missing, task.split)
        began = time.process_time()
        proba = model.predict_proba(met)
        spent = time.process_time() - began
        yield (
            _key(task, name)
            | scores(proba, rows.target[test])
            | {
                "fit_seconds": round(fitted, 4),
                "predict_seconds": round(spent, 4),
            }
        )


def scores(proba: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Error in per cent, log-loss in nats, calibration errors; proba (n, classes)."""
    proba = np.nan_to_num(proba).clip(LEAST)
    proba = proba / proba.sum(1, keepdims=True)
    return {
        "error": 100 * float(np.mean(proba.argmax(1) != y)),
        "log_loss": float(-np.log(proba[np.arange(len(y)), y]).mean()),
        "calibration": calibration_error(proba, y),
        "calibration_by_chance": calibration_by_chance(proba),
    }


def read(*paths: Path) -> list[Record]:
    """The records of files; the last of several that measure the same."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    records = [json.loads(line) for line in lines]
    return list({tuple(record[k] for k in KEY): record for record in records}.values())


def tasks(options: argparse.Namespace, done: set[tuple]) -> Iterator[Task]:
    """All fits that the file lacks, split by split."""
    rivals = [name for name in CLASSIFIERS if name not in ABSENT]
    models = {"ours": [OURS], "rivals": rivals}.get(options.only, [OURS, *rivals])
    kinds = dict.fromkeys(CONDITIONS[name].training for name in options.conditions)
    for split in range(options.splits):
        for table in options.tables:
            for model in models:
                for kind in kinds if model != SPREADING else kinds.keys() & {"labels"}:
                    asked = tuple(
                        name
                        for name in options.conditions
                        if CONDITIONS[name].training == kind
                        and (table, model, split, name) not in done
                    )
                    if asked:
                        yield Task(table, model, split, asked, options.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="of a table, at most")
    parser.add_argument("--only", choices=("ours", "rivals"))
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=(*TABLES, *FILES))
    parser.add_argument("--ours", type=json.loads, default={}, help="settings of ours, as JSON")
    parser.add_argument("--origin", help="commit and machine, where git cannot tell")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    if ABSENT:
        print(f"not installed, left out: {', '.join(ABSENT)}")
    options.output.touch()
    measured = [record for record in read(options.output) if "failed" not in record]
    work = list(tasks(options, {tuple(record[k] for k in KEY) for record in measured}))
    source = {"origin": options.origin or origin()}
    print(f"{len(work)} fits, of {len(set(options.tables))} tables", flush=True)
    with options.output.open("a", encoding="utf-8") as file:
        pool = Parallel(options.jobs, return_as="generator_unordered")
        for count, found in enumerate(pool(delayed(measure)(t, options.ours) for t in work), 1):
            file.writelines(json.dumps(record | source) + "\n" for record in found)
            file.flush()
            if count % 100 == 0 or "failed" in found[0]:
                print(f"{count} of {len(work)}:", *found[0].values(), flush=True)


if __name__ == "__main__":
    main()
