"""Few labels: what an estimator gains or loses by the unlabeled rows, on many open tables.

    MIXTURA_DATA=... python -m benchmarks.few_labels [--draws 3] [--jobs 2] [--folder few_labels]

Of 70 % of the rows (2,000 rows of a table at most) a share of each class is labeled, the others
are not; the rest is test rows. Every estimator is fitted to all rows and to the labeled ones
alone. Writes one CSV line per fit as it ends (a run that was broken off goes on from there), and
prints and writes a table of errors in per cent.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from benchmarks.tables import load_table
from mixtura import MixtureClassifier, MixtureNetworkClassifier
from mixtura.papers.tables import halves, hide_labels

TEST_SHARE = 0.3
SHARES = (0.05, 0.1, 0.25)
TABLES = (
    *("iris", "wine", "wdbc", "digits", "glass", "sonar", "pima", "peterson_barney", "banana"),
    *("waveform", "titanic", "ripley_synth", "jasper_ridge", "phoneme_esl", "hepatitis"),
    *("breast_cancer_wisconsin", "breast_cancer_ljubljana", "horse_colic", "annealing"),
    *("mammographic", "mushroom", "moons", "blobs", "japanese_vowels", "free_spoken_digits"),
    *("synthetic_control", "italy_power_demand"),
)
MODELS: dict[str, Callable[..., Any]] = {
    "default": MixtureClassifier,
    "likelihood": lambda **settings: MixtureClassifier(objective="likelihood", **settings),
    "network": MixtureNetworkClassifier,
}


class Job(NamedTuple):
    """One fit: a table, a model, the share of labels, and the draw of rows and labels."""

    table: str
    model: str
    share: float
    draw: int


class Result(NamedTuple):
    """Errors (in per cent) with all rows and with the labeled ones alone, and seconds to fit."""

    table: str
    model: str
    share: float
    draw: int
    labels: int
    weight: float
    error: float
    error_alone: float
    seconds: float


def run(job: Job) -> Result:
    """Fit to all rows, and to the labeled ones alone."""
    table = load_table(job.table)
    ((train, test),) = halves(table.target, 1, job.draw, TEST_SHARE)
    rows, labels = table.data[train], hide_labels(table.target[train], job.share, job.draw)
    known = labels >= 0
    settings = {"random_state": job.draw, "categorical_features": table.categorical}

    def error(model: Any) -> float:
        return 100.0 * float(np.mean(model.predict(table.data[test]) != table.target[test]))

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model = MODELS[job.model](**settings).fit(rows, labels)
        seconds = time.perf_counter() - began
        found = error(model)
        alone = error(MODELS[job.model](**settings).fit(rows[known], labels[known]))
    return Result(*job, int(known.sum()), model.unlabeled_weight_, found, alone, seconds)


def summarize(results: list[Result]) -> str:
    """Per table and in all: errors alone and with all rows, by model and share of labels."""
    heads = [
        f"{model} {share:.0%}"
        for model in MODELS
        for share in SHARES
        if any((r.model, r.share) == (model, share) for r in results)
    ]
    lines = [f"| table | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for table in (*sorted({r.table for r in results}), "mean"):
        mine = [r for r in results if table in (r.table, "mean")]
        cells = [_cell([r for r in mine if f"{r.model} {r.share:.0%}" == head]) for head in heads]
        lines.append(f"| {table} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(results: list[Result]) -> str:
    """Error on the labeled rows alone, with all rows, and how often these were used."""
    if not results:
        return ""
    alone, found = (np.mean([getattr(r, k) for r in results]) for k in ("error_alone", "error"))
    used = sum(r.weight > 0 for r in results)
    return f"{alone:.1f} → {found:.1f} ({used}/{len(results)})"


def read(path: Path) -> list[Result]:
    """The fits of an earlier run."""
    if not path.exists():
        return []
    kinds = (str, str, float, int, int, float, float, float, float)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Result(*(kind(each) for kind, each in zip(kinds, row, strict=True))) for row in rows]


def complete(jobs: list[Job], path: Path, processes: int) -> list[Result]:
    """Run what is missing in the file, and add it."""
    results = read(path)
    missing = [job for job in jobs if job not in {result[: len(job)] for result in results}]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if not results:
            writer.writerow(Result._fields)
        pool = Parallel(processes, return_as="generator_unordered")
        for result in pool(delayed(run)(job) for job in missing):
            writer.writerow(result)
            file.flush()
            results.append(result)
    return sorted(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one per core")
    parser.add_argument("--folder", type=Path, default=Path("few_labels"))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    chosen = parser.parse_args()
    jobs = [
        Job(table, model, share, draw)
        for model in chosen.models
        for draw in range(chosen.draws)
        for share in SHARES
        for table in chosen.tables
    ]
    results = complete(jobs, chosen.folder / "few_labels.csv", chosen.jobs)
    (chosen.folder / "few_labels.md").write_text(summarize(results) + "\n")
    print(summarize(results))


if __name__ == "__main__":
    main()
