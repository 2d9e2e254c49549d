"""Kills at random moments of training, of saving and of writing answers: what is left behind?

python -m benchmarks.kills [KILLS] forks a process per trial, ends it by SIGKILL at a random moment,
and looks whether the fit that goes on ends with the bits of one that was not interrupted, and
whether the file that was being written is the old one or the new one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mixtura import MixtureClassifier, MixtureDensity, load
from mixtura.parquet import write
from mixtura.solvers import EM, LBFGS, Adam

ROWS, FEATURES = 60_000, 20
MODELS = {
    "EM, table in memory": MixtureDensity(8, density="full", solver=EM(12, tol=0.0)),
    "L-BFGS, Parquet": MixtureClassifier(1, density="diag", tradeoff=0.5, solver=LBFGS(8)),
    "Adam, Parquet": MixtureClassifier(1, density="diag", tradeoff=0.5, solver=Adam(6)),
}


def begin(work: Callable[[], object]) -> int:
    """A process that does this and nothing else; its number."""
    child = os.fork()
    if child:
        return child
    try:
        warnings.simplefilter("ignore")
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)


def finish(work: Callable[[], object]) -> float:
    """Do it in a process of its own; seconds."""
    began = time.perf_counter()
    status = os.waitpid(begin(work), 0)[1]
    if status:
        raise RuntimeError("the work failed.")
    return time.perf_counter() - began


def kill(work: Callable[[], object], within: float, rng: np.random.Generator) -> bool:
    """Begin it, and kill it at a random moment; whether it had not ended before."""
    child = begin(work)
    time.sleep(rng.uniform(0.0, within))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def content(path: Path) -> str:
    """All bits of answers, or of a model; its file has them in one order or another."""
    if path.name == "answers":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    model = load(path)
    parts = model.weights_, model.means_, model.covariances_, model.score_quantiles_
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def generate() -> None:
    import pandas as pd

    rng = np.random.default_rng(0)
    y = rng.integers(2, size=ROWS)
    X = rng.normal(size=(ROWS, FEATURES)) + y[:, None] * rng.normal(size=FEATURES)
    frame = pd.DataFrame(X, columns=[f"x{place}" for place in range(FEATURES)])
    frame.assign(y=y).to_parquet("rows.parquet", row_group_size=10_000)
    np.save("rows.npy", X)


def fit(name: str, out: str, checkpoint: str | None = None) -> None:
    model = MODELS[name].set_params(random_state=0)
    X = np.load("rows.npy") if "memory" in name else "rows.parquet"
    model.fit(X, None if "memory" in name else "y", checkpoint=checkpoint).save(out)


def train(name: str, count: int, rng: np.random.Generator) -> Counter[str]:
    """Kills of a fit."""
    found = Counter[str]()
    seconds = finish(lambda: fit(name, "whole"))
    while found["killed"] < count:
        Path("out").unlink(missing_ok=True)
        if not kill(lambda: fit(name, "out", "run.ckpt"), seconds, rng):
            continue
        found["killed"] += 1
        found["with a checkpoint"] += Path("run.ckpt").exists()
        finish(lambda: fit(name, "out", "run.ckpt"))
        found["same bits"] += content(Path("out")) == content(Path("whole"))
        found["checkpoint gone"] += not Path("run.ckpt").exists()
    return found


def rewrite(
    name: str, make: Callable[[int], object], count: int, rng: np.random.Generator
) -> Counter[str]:
    """Kills of a process that writes two files over each other, again and again."""
    found, path = Counter[str](), Path(name)
    good = []
    for turn in (0, 1):
        finish(lambda turn=turn: make(turn))
        good.append(content(path))
    assert good[0] != good[1]

    def forever() -> None:
        for turn in range(10**9):
            make(turn % 2)

    for _ in range(count):
        found["killed"] += kill(forever, 2.0, rng)
        found["old or new"] += content(path) in good
        left = [each for each in Path().glob(f".*{name}")]
        found["left beside it"] += len(left)
        for each in left:
            each.unlink()
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    rng = np.random.default_rng()
    torch.set_num_threads(1)  # what is forked from a process whose operations had several hangs
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        finish(generate)
        each = max(1, count // 5)
        for name in MODELS:
            print(f"| {name} | {dict(train(name, each, rng))} |", flush=True)
        for turn, name in enumerate(("EM, table in memory", "L-BFGS, Parquet")):
            finish(lambda name=name, turn=turn: fit(name, f"{turn}.safetensors"))

        def save(turn: int) -> None:
            load(f"{turn}.safetensors").save("saved")

        def answer(turn: int) -> None:
            model = load("1.safetensors")
            write((model.predict, model.score_samples)[turn], "rows.parquet", "answers")

        print(f"| saving | {dict(rewrite('saved', save, each, rng))} |", flush=True)
        print(f"| writing answers | {dict(rewrite('answers', answer, each, rng))} |", flush=True)


if __name__ == "__main__":
    main()
