"""EM over generated Parquet files: CPU seconds per iteration, what reading takes, and memory.

python -m benchmarks.scale FOLDER [ROWS ...] writes the files that are absent (168 bytes per row),
then measures each size in a process of its own.
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

from mixtura import MixtureDensity
from mixtura.parquet import Source
from mixtura.solvers import EM

FEATURES, COMPONENTS, ITERATIONS = 20, 16, 4
PART, GROUP, CHUNK = 1_000_000, 100_000, 16_384


def generate(path: Path, n_rows: int) -> None:
    """Rows of sixteen round clusters, in row groups of 100,000."""
    rng, writer = np.random.default_rng(0), None
    centers = 3.0 * rng.normal(size=(COMPONENTS, FEATURES))
    for start in range(0, n_rows, PART):
        count = min(PART, n_rows - start)
        X = centers[rng.integers(COMPONENTS, size=count)] + rng.normal(size=(count, FEATURES))
        table = pa.table({f"x{place}": column for place, column in enumerate(X.T)})
        writer = writer or ParquetWriter(path, table.schema, compression=None, use_dictionary=False)
        writer.write_table(table, row_group_size=GROUP)
    writer.close()


def cpu_per_iteration(X: object) -> float:
    """CPU seconds of an iteration of EM, all threads together: the smallest of some."""
    stamps: list[float] = []
    model = MixtureDensity(COMPONENTS, density="full", solver=EM(ITERATIONS, tol=0.0))
    model.set_params(missingness="ignore", random_state=0)
    model.set_params(callbacks=[lambda record: stamps.append(time.process_time())])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return float(np.diff(stamps).min())


def peak_memory() -> float:
    """The most that this process has had in memory so far, in MiB."""
    told = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", told)[1]) / 1024


def measure(path: Path, n_rows: int) -> str:
    """One line of the table."""
    before = peak_memory()
    streamed = cpu_per_iteration(str(path))
    peak = peak_memory()
    rows = Source(path).opened(None, None, None).rows
    began = time.process_time()
    for _ in rows.chunks(CHUNK):
        pass
    reading = time.process_time() - began
    memory = ""
    if n_rows <= PART:
        table = read_table(path)
        X = np.column_stack([column.to_numpy() for column in table.columns])
        memory = f"{streamed / cpu_per_iteration(X):.2f}"
    return (
        f"| {n_rows:,} | {streamed:.2f} | {1e6 * streamed / n_rows:.2f} | {reading / streamed:.0%} "
        f"| {memory} | {before:.0f} | {peak:.0f} |"
    )


def main() -> None:
    if sys.argv[1] == "one":
        print(measure(Path(sys.argv[2]), int(sys.argv[3])), flush=True)
        return
    for n_rows in map(int, map(float, sys.argv[2:] or ("1e5", "1e6", "1e7"))):
        path = Path(sys.argv[1]) / f"{n_rows}.parquet"
        if not path.exists():
            generate(path, n_rows)
        command = [sys.executable, "-m", "benchmarks.scale", "one", str(path), str(n_rows)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
