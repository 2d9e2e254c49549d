"""Milliseconds a row of scoring rows whose patterns of missing features all differ.

python benchmarks/missing_speed.py                    # D = 784, 170 components, rank 25
python benchmarks/missing_speed.py --device cuda --rows 20000
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from epoch_speed import make_mixture, synchronize

from mixtura.data import Scaling, Table
from mixtura.engines import LocalEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--components", type=int, default=17, help="components per class")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    x = rng.normal(size=(options.rows, options.features))
    device = torch.device(options.device)
    mixture = make_mixture(torch.from_numpy(x), options.components, generator).to(device)
    for dtype in (torch.float64, torch.float32):
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            rows = np.where(rng.random(x.shape) < share, np.nan, x)
            scaling = Scaling.identity(options.features)
            table = Table(rows, scaling=scaling, device=device, dtype=dtype)
            engine = LocalEngine(table)
            small = LocalEngine(table.subset(np.arange(min(64, len(rows)))))
            small.concat(mixture.class_log_joint, mixture.density)
            synchronize(table.weight)
            began = time.perf_counter()
            engine.concat(mixture.class_log_joint, mixture.density)
            synchronize(table.weight)
            spent = (time.perf_counter() - began) / len(rows)
            print(
                f"{str(dtype)[6:]}, {share:.0%} missing, {options.device}: "
                f"{1e3 * spent:.4f} ms a row (chunks of {engine.chunk_rows(mixture.density)} rows)"
            )


if __name__ == "__main__":
    main()
