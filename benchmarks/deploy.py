"""One row with holes, and a thousand: the estimator, the runtime and onnxruntime side by side.

    python benchmarks/deploy.py [--seeds 3]

Prints the tables of docs/results/deploy.md. All answer in one process, on one thread, one after the
other, and the shortest of many times counts: others on the machine only make times longer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_wine

from mixtura import MixtureClassifier, MixtureNetworkClassifier, runtime
from mixtura.densities import Diagonal, Full, LowRank, Student
from mixtura.exceptions import UnsupportedError

HOLES, MANY = 0.4, 1_000
PLAIN = {"objective": "likelihood", "marginals": "linear"}
MODELS: dict[str, Callable[[int], MixtureClassifier]] = {
    "diagonal": lambda seed: MixtureClassifier(2, density=Diagonal(), random_state=seed, **PLAIN),
    "full": lambda seed: MixtureClassifier(2, density=Full(), random_state=seed, **PLAIN),
    "low rank": lambda seed: MixtureClassifier(2, density=LowRank(3), random_state=seed, **PLAIN),
    "Student's t": lambda seed: MixtureClassifier(2, density=Student(), random_state=seed, **PLAIN),
    "`MixtureClassifier()`": lambda seed: MixtureClassifier(random_state=seed),
    "`MixtureNetworkClassifier()`": lambda seed: MixtureNetworkClassifier(random_state=seed),
}
IMPORT = """
import json, time
import numpy

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before, begin = resident(), time.process_time()
from mixtura import {what}
print(json.dumps([time.process_time() - begin, (resident() - before) / 1e6]))
"""


def shortest(function: Callable[[], object], seconds: float = 2.0) -> float:
    """Milliseconds of the shortest of many calls, one after another."""
    found, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        found = min(found, time.perf_counter() - begin)
    return 1e3 * found


def readers(model: MixtureClassifier, folder: Path) -> list[Callable[[np.ndarray], np.ndarray]]:
    """What gives probabilities: the estimator, the runtime, and onnxruntime where it can."""
    model.save(folder / "model")
    found = [model.predict_proba, runtime.load(folder / "model").predict_proba]
    try:
        model.export(folder / "model.onnx")
    except UnsupportedError:
        return found
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    return [*found, lambda rows: session.run(["probabilities"], {"X": rows})[0]]


def measured(name: str, seed: int, folder: Path) -> tuple[list[float], list[float], float]:
    """Times of one row and of many, and the largest difference of probabilities."""
    X, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(seed)
    many = X[rng.integers(len(X), size=MANY)]
    many = np.where(rng.random(many.shape) < HOLES, np.nan, many)
    asked = readers(MODELS[name](seed).fit(X, y), folder)
    answers = [ask(many) for ask in asked]
    off = max(np.abs(answer - answers[0]).max() for answer in answers[1:])
    times = [[shortest(partial(ask, rows)) for ask in asked] for rows in (many[:1], many)]
    return *times, off


def imports() -> None:
    """CPU seconds and megabytes beside those of NumPy."""
    print("\n| import | CPU seconds | MB more than NumPy |\n|---|---|---|")
    for what in ("runtime", "MixtureClassifier"):
        command = [sys.executable, "-c", IMPORT.format(what=what)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(5)]
        print(f"| `from mixtura import {what}` | {' | '.join(f'{v:.2f}' for v in min(runs))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| model | rows | estimator | runtime | onnxruntime | largest difference |")
    print("|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for name in MODELS:
            one, many, off = zip(
                *(measured(name, seed, Path(folder)) for seed in seeds), strict=True
            )
            for count, times in ((1, one), (MANY, many)):
                mean, deviation = np.mean(times, 0), np.std(times, 0)
                cells = [f"{m:.3g} ± {d:.1g}" for m, d in zip(mean, deviation, strict=True)]
                cells += ["-"] * (3 - len(cells))
                print(f"| {name} | {count} | {' | '.join(cells)} | {max(off):.0e} |", flush=True)
    imports()


if __name__ == "__main__":
    main()
