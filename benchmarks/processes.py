"""EM over rows that 1 to 8 processes share: seconds per iteration; is the model the same?

Seconds are those of the fastest iteration, by the clock and by the CPU of the first process.

python -m benchmarks.processes [ROWS | FILE] [COUNT ...]: so many rows in all, 20 numbers each, 16
full covariances, one thread per process, gloo. Rows are generated in eight parts, whoever holds
them; or they are the row groups of a Parquet file, as that of `benchmarks.scale`.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.scale import NAMES
from mixtura import MixtureDensity
from mixtura.distributed import Shard
from mixtura.parquet import Source
from mixtura.solvers import EM

PARTS, FEATURES, COMPONENTS, ITERATIONS = 8, 20, 16, 12


def make_rows(n_rows: int, parts: range) -> np.ndarray:
    """Those of some of the eight parts: sixteen round clusters."""
    centers = 3.0 * np.random.default_rng(0).normal(size=(COMPONENTS, FEATURES))
    found = []
    for part in parts:
        rng = np.random.default_rng(1 + part)
        cluster = rng.integers(COMPONENTS, size=n_rows // PARTS)
        found.append(centers[cluster] + rng.normal(size=(len(cluster), FEATURES)))
    return np.concatenate(found)


def share_of(given: str, rank: int, count: int) -> np.ndarray | Source:
    """The rows of one process of so many."""
    if given.endswith(".parquet"):
        return Source(given, columns=NAMES).share(rank, count)
    each = PARTS // count
    return make_rows(int(float(given)), range(rank * each, (rank + 1) * each))


def work(rank: int, count: int, given: str, folder: str) -> None:
    """One process of so many."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet{count}", rank=rank, world_size=count)
    rows, stamps = Shard(share_of(given, rank, count)), list[tuple[float, float]]()
    model = MixtureDensity(COMPONENTS, density="full", device="cpu", random_state=0)
    model.set_params(solver=EM(ITERATIONS, tol=0.0))
    model.set_callbacks(lambda record: stamps.append((time.perf_counter(), time.process_time())))
    warnings.simplefilter("ignore")
    model.fit(rows)
    if rank == 0:
        taken = np.min(np.diff(stamps, axis=0), axis=0)
        torch.save((taken, model.means_), f"{folder}/{count}")
    dist.destroy_process_group()


def main() -> None:
    rows = sys.argv[1] if len(sys.argv) > 1 else "1e6"
    context = multiprocessing.get_context("spawn")
    print("| processes | s | times one | CPU s | times one | largest difference of means |")
    print("|---|---|---|---|---|---|")
    first: tuple[np.ndarray, np.ndarray] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, sys.argv[2:] or ("1", "2", "4", "8")):
            Path(folder, f"meet{count}").unlink(missing_ok=True)
            given = [(rank, count, rows, folder) for rank in range(count)]
            processes = [context.Process(target=work, args=each) for each in given]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            taken, means = torch.load(Path(folder) / str(count), weights_only=False)
            first = first or (taken, means)
            pairs = zip(taken, first[0] / taken, strict=True)
            beside = " | ".join(f"{each:.3f} | {times:.2f}" for each, times in pairs)
            print(f"| {count} | {beside} | {abs(means - first[1]).max():.1e} |", flush=True)


if __name__ == "__main__":
    main()
