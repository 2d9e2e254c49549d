"""What a pass of EM costs per row, by components and features: measured, and a law fitted to it.

python -m benchmarks.cost [PROCESSES] trains each case in a process of its own, one thread each, on
rows in memory, complete and with a fifth of the entries missing.
"""

from __future__ import annotations

import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
from scipy.optimize import nnls

from mixtura import MixtureDensity
from mixtura.solvers import EM

DENSITIES, SHARES = ("diag", "full"), (0.0, 0.2)
COMPONENTS, FEATURES = (4, 16, 64), (5, 10, 20, 40, 80)
#: Rows by share missing, and the most numbers K D^2 of a case with holes.
ROWS, MOST = {0.0: 100_000, 0.2: 5_000}, 30_000

Case = tuple[str, int, int, float]


def measure(case: Case) -> float:
    """Seconds of CPU per row and pass: the least of some."""
    torch.set_num_threads(1)
    density, n_components, n_features, missing = case
    rng, n_rows = np.random.default_rng(0), ROWS[missing]
    centers = 3.0 * rng.normal(size=(n_components, n_features))
    X = centers[rng.integers(n_components, size=n_rows)] + rng.normal(size=(n_rows, n_features))
    X[rng.random(X.shape) < missing] = np.nan
    stamps: list[float] = []
    model = MixtureDensity(n_components, density=density, solver=EM(5, tol=0.0), device="cpu")
    model.set_params(missingness="ignore", random_state=0)
    model.set_callbacks(lambda record: stamps.append(time.process_time()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    return float(np.diff(stamps).min()) / n_rows


def law(cases: list[Case], seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Nanoseconds per row: 1, D, K, K D, K D^2 and K D^3 times; the largest ratio to a case."""
    K, D = np.array([case[1:3] for case in cases], dtype=float).T
    terms = np.stack([np.ones_like(D), D, K, K * D, K * D**2, K * D**3], axis=1)
    share = terms / seconds[:, None]  # relative errors count
    found, _ = nnls(share, np.ones(len(cases)))
    ratio = share @ found
    return 1e9 * found, float(np.maximum(ratio, 1.0 / ratio).max())


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    cases = [
        case
        for case in product(DENSITIES, COMPONENTS, FEATURES, SHARES)
        if not case[3] or case[1] * case[2] ** 2 <= MOST
    ]
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        seconds = np.array(list(pool.map(measure, cases)))
    print("| | missing | µs per row and pass, K D | 1 | D | K | K D | K D² | K D³ | within |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for density, share in product(DENSITIES, SHARES):
        mine = [at for at, case in enumerate(cases) if (case[0], case[3]) == (density, share)]
        found, within = law([cases[at] for at in mine], seconds[mine])
        each = ", ".join(f"{cases[at][1]} {cases[at][2]}: {1e6 * seconds[at]:.2f}" for at in mine)
        terms = " | ".join(f"{term:.3g}" for term in found)
        print(f"| {density} | {share:.0%} | {each} | {terms} | {within:.2f} |", flush=True)


if __name__ == "__main__":
    main()
