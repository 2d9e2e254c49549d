"""All rows of a file beside a sample of them in memory: errors on rows that neither has seen.

python -m benchmarks.sample FOLDER [ROWS] [SEEDS] fits the hybrid objective to a fifth of the rows,
in memory, to all rows of a Parquet file, and to these within the seconds that the sample took.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from mixtura import MixtureClassifier
from mixtura.solvers import EM, LBFGS

FEATURES, CLUSTERS, HELD_OUT = 10, 8, 100_000


def rows(n_rows: int, seed: int) -> pd.DataFrame:
    """Two classes of eight overlapping clusters each."""
    rng = np.random.default_rng(seed)
    centers = 0.9 * rng.normal(size=(2 * CLUSTERS, FEATURES))
    cluster = rng.integers(2 * CLUSTERS, size=n_rows)
    X = centers[cluster] + rng.normal(size=(n_rows, FEATURES))
    return pd.DataFrame(X, columns=[f"x{at}" for at in range(FEATURES)]).assign(y=cluster % 2)


def main() -> None:
    n_rows = int(float(sys.argv[2])) if len(sys.argv) > 2 else 1_000_000
    found, path = [], Path(sys.argv[1]) / "sample.parquet"
    warnings.simplefilter("ignore")
    for seed in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
        frame = rows(n_rows + HELD_OUT, seed)
        held_out, frame = frame[:HELD_OUT], frame[HELD_OUT:]
        frame.to_parquet(path, row_group_size=100_000)
        some, options = frame[: n_rows // 5], {"tradeoff": 0.5, "calibrate": False}
        model = MixtureClassifier(CLUSTERS, density="diag", random_state=seed, **options)
        model.set_params(solver=LBFGS(15), init=EM(10), missingness="ignore")
        began = time.perf_counter()
        errors = [1.0 - model.fit(some.drop(columns="y"), some["y"]).score(*split(held_out))]
        seconds = time.perf_counter() - began
        for limit in (None, seconds):
            model.set_params(max_time=limit).fit(str(path), "y")
            errors.append(1.0 - model.score(*split(held_out)))
        found.append(errors)
        print(seed, f"{seconds:.1f} s,", " ".join(f"{each:.3%}" for each in errors), flush=True)
    path.unlink()
    for name, each in zip(("sample", "all rows", "max_time"), np.transpose(found), strict=True):
        print(f"| {name} | {each.mean():.2%} ± {each.std(ddof=1):.2%} |")


def split(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Features and labels."""
    return frame.drop(columns="y"), frame["y"]


if __name__ == "__main__":
    main()
