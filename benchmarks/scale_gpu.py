"""A pass of EM over many rows on a GPU: in its memory, and streamed from that of the host.

python -m benchmarks.scale_gpu [ROWS] prints seconds per pass (diagonal covariances, 16 components,
16 columns, the fastest of three) beside those that the bytes alone take, over the memory
of the device (HBM) and over PCIe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from mixtura import MixtureDensity
from mixtura.data.lazy import LazyRows, MappedRows
from mixtura.data.scaling import Scaling
from mixtura.densities import Statistics
from mixtura.engines import Engine
from mixtura.objectives import Likelihood
from mixtura.solvers import EM
from mixtura.solvers.base import expected

FEATURES, COMPONENTS, CHUNK = 16, 16, 1_048_576


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of three."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    n_rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000_000
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held = torch.empty(n_rows, FEATURES, pin_memory=device.type == "cuda")
    generator = torch.Generator(device).manual_seed(0)
    for part in held.split(4_000_000):
        part.copy_(torch.randn(part.shape, generator=generator, device=device))
    X = held.numpy()
    model = MixtureDensity(COMPONENTS, density="diag", solver=EM(5, tol=10.0), random_state=0)
    mixture = model.set_params(device="cpu").fit(X[:50_000]).mixture_.to(device)
    step = partial(expected, mixture, Likelihood())
    units = {"scaling": Scaling.identity(FEATURES), "device": device}

    def one_pass(rows: np.ndarray | LazyRows, dtype: torch.dtype) -> tuple[float, Statistics]:
        engine = Engine(rows, **units, dtype=dtype)
        taken = fastest(lambda: engine.sum(step, mixture.density), device)
        return taken, engine.sum(step, mixture.density)

    def copy() -> None:
        for part in held.split(CHUNK):
            part.to(device, non_blocking=True)

    bus = fastest(copy, device)
    host = MappedRows(X)
    host.has_missing = False
    print(f"{n_rows:,} x {FEATURES} on {device}, {held.nbytes / 1e9:.1f} GB of float32")
    for dtype in (torch.float32, torch.float64):
        there = held.to(device, dtype)
        memory = fastest(there.sum, device)
        del there
        (streamed, ours), (resident, theirs) = one_pass(host, dtype), one_pass(X, dtype)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-6 * n_rows)
        print(f"{dtype}, streamed: {streamed:.3f} s per pass, the bytes over PCIe {bus:.3f} s")
        print(f"{dtype}, in device memory: {resident:.4f} s per pass, over HBM {memory:.4f} s")


if __name__ == "__main__":
    main()
