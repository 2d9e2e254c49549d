"""EM over generated Parquet files: seconds per iteration, what reading takes, and memory.

python -m benchmarks.scale FOLDER [ROWS ...] writes the files that are absent (161 bytes per row),
then measures each size in processes of their own: EM with 16 full covariances, then the hybrid
objective with 8 diagonal ones for each of two classes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetWriter, read_table

from mixtura import MixtureClassifier, MixtureDensity
from mixtura.parquet import Source
from mixtura.solvers import EM, LBFGS

FEATURES, COMPONENTS = 20, 16
NAMES = [f"x{place}" for place in range(FEATURES)]
PART, GROUP, CHUNK = 1_000_000, 100_000, 16_384


def generate(path: Path, n_rows: int) -> None:
    """Rows of sixteen round clusters, in row groups of 100,000."""
    rng, writer = np.random.default_rng(0), None
    centers = 3.0 * rng.normal(size=(COMPONENTS, FEATURES))
    for start in range(0, n_rows, PART):
        count = min(PART, n_rows - start)
        cluster = rng.integers(COMPONENTS, size=count)
        X = centers[cluster] + rng.normal(size=(count, FEATURES))
        label = {"label": (cluster % 2).astype(np.int8)}
        table = pa.table(dict(zip(NAMES, X.T, strict=True)) | label)
        writer = writer or ParquetWriter(path, table.schema, compression=None, use_dictionary=False)
        writer.write_table(table, row_group_size=GROUP)
    writer.close()


def per_iteration(iterations: int, X: object, y: object = None) -> tuple[float, float]:
    """Seconds of an iteration by the clock, and of CPU, all threads together: the least of some."""
    stamps: list[tuple[float, float]] = []

    def note(record: object) -> None:
        stamps.append((time.perf_counter(), time.process_time()))

    options = {"random_state": 0, "device": "cpu"}
    model = MixtureDensity(COMPONENTS, density="full", solver=EM(iterations, tol=0.0), **options)
    if y is not None:
        solver = LBFGS(iterations)
        model = MixtureClassifier(COMPONENTS // 2, density="diag", solver=solver, **options)
        model.set_params(tradeoff=0.5, init=EM(2, tol=0.0), calibrate=False)
    model.set_params(missingness="ignore").set_callbacks(note)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    clock, cpu = np.diff(stamps, axis=0)[-(iterations - 1) :].min(0)
    return float(clock), float(cpu)


def peak_memory() -> float:
    """The most that this process has had in memory so far, in MiB."""
    told = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", told)[1]) / 1024


def measure(path: Path, n_rows: int, target: str | None) -> str:
    """One line of the table."""
    before = peak_memory()
    source = Source(path, columns=[*NAMES, *([target] if target else [])])
    iterations = 8 if n_rows <= PART else 3
    streamed, cpu = per_iteration(iterations, source, target)
    peak = peak_memory()
    rows = source.opened(target, None, None).rows
    began = time.process_time()
    for _ in rows.chunks(CHUNK):
        pass
    reading = time.process_time() - began
    memory = ""
    if n_rows <= PART:
        table = read_table(path)
        X = np.column_stack([table[name].to_numpy() for name in NAMES])
        inside = per_iteration(iterations, X, target and table[target].to_numpy())
        memory = f"{streamed / inside[0]:.2f} | {cpu / inside[1]:.2f}"
    return (
        f"| {target or 'EM'} | {n_rows:,} | {streamed:.3f} | {1e6 * streamed / n_rows:.2f} "
        f"| {cpu:.3f} | {reading / cpu:.0%} | {memory or ' | '} | {before:.0f} | {peak:.0f} |"
    )


def main() -> None:
    if sys.argv[1] == "one":
        target = sys.argv[4] if len(sys.argv) > 4 else None
        print(measure(Path(sys.argv[2]), int(sys.argv[3]), target), flush=True)
        return
    print("| trained | rows | s | µs per row | CPU s | reading | memory | by CPU | MiB | peak |")
    print("|---" * 10 + "|", flush=True)
    for n_rows in map(int, map(float, sys.argv[2:] or ("1e5", "1e6", "2e7"))):
        path = Path(sys.argv[1]) / f"{n_rows}.parquet"
        if not path.exists():
            generate(path, n_rows)
        command = [sys.executable, "-m", "benchmarks.scale", "one", str(path), str(n_rows)]
        subprocess.run(command, check=True)
        subprocess.run([*command, "label"], check=True)


if __name__ == "__main__":
    main()
