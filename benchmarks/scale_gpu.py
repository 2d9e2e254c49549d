"""A pass of EM over many rows on a GPU: in its memory, and streamed from that of the host.

python -m benchmarks.scale_gpu [ROWS] prints milliseconds per pass (diagonal covariances, 8 and 16
components, 16 columns, the fastest of three; with what an M step adds, in brackets) beside those
that the bytes alone take, over the memory of the device (HBM) and over PCIe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from mixtura import MixtureDensity
from mixtura.data.lazy import MappedRows
from mixtura.data.scaling import Scaling
from mixtura.densities import Statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.solvers import EM
from mixtura.solvers.em import em_update, expected_sums

FEATURES, CHUNK = 16, 1_048_576


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
    units = {"scaling": Scaling.identity(FEATURES), "device": device}

    def one_pass(mixture: Mixture, engine: Engine) -> tuple[float, float, Statistics]:
        def sums() -> Statistics:
            return expected_sums(mixture, Likelihood(), engine)

        def iteration() -> None:
            found = sums()
            found.pop("loss")
            em_update(mixture, found)

        return 1e3 * fastest(sums, device), 1e3 * fastest(iteration, device), sums()

    def copy() -> None:
        for part in held.split(CHUNK):
            part.to(device, non_blocking=True)

    bus = 1e3 * fastest(copy, device)
    host = MappedRows(X)
    host.has_missing = False
    mixtures = []
    for count in (8, 16):
        model = MixtureDensity(count, density="diag", solver=EM(5, tol=10.0), random_state=0)
        mixtures.append(model.set_params(device="cpu").fit(X[:50_000]).mixture_.to(device))
    print(f"{n_rows:,} x {FEATURES} on {device}, {held.nbytes / 1e9:.1f} GB of float32")
    for dtype in (torch.float32, torch.float64):
        resident, streamed = (Engine(rows, **units, dtype=dtype) for rows in (X, host))
        memory = 1e3 * fastest(resident.batch(slice(None)).x.sum, device)
        for mixture in mixtures:
            taken, with_step, theirs = one_pass(mixture, resident)
            from_host, _, ours = one_pass(mixture, streamed)
            for name, value in theirs.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-6 * n_rows)
            print(
                f"{dtype}, {mixture.n_components} components: {taken:.2f} ({with_step:.2f}) ms in "
                f"device memory, over HBM {memory:.2f}; streamed {from_host:.0f}, PCIe {bus:.0f}"
            )
        del resident


if __name__ == "__main__":
    main()
