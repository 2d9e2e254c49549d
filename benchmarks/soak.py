"""A stream of thirty days with two shifts: error, drift and memory over time.

python -m benchmarks.soak [ROWS PER DAY] learns from every day after it has answered for it, with
and without forgetting.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

from benchmarks.scale import peak_memory
from mixtura import MixtureClassifier

DAYS, SHIFTS, FEATURES = 30, (10, 20), 6


def day(number: int, n_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes, whose places change at every shift."""
    epoch = sum(number >= shift for shift in SHIFTS)
    centers = np.random.default_rng(epoch).normal(size=(2, FEATURES))
    y = rng.integers(2, size=n_rows)
    return centers[y] + rng.normal(size=(n_rows, FEATURES)), y


def stream(memory: float | None, n_rows: int) -> list[tuple[float, float, float, int]]:
    """Per day errors and the mean log density before learning, MiB at most, and components."""
    rng, found = np.random.default_rng(0), []
    model = MixtureClassifier(density="full", objective="likelihood", random_state=0)
    for number in range(DAYS):
        X, y = day(number, n_rows, rng)
        if number:
            error = 1.0 - model.score(X, y)
            told = float(model.score_samples(X).mean())
            found.append((error, told, peak_memory(), sum(model.n_components_)))
        model.partial_fit(X, y, classes=[0, 1], memory=memory)
    assert np.allclose(model.drift_, [told for _, told, *_ in found])
    return found


def main() -> None:
    n_rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 100_000
    warnings.simplefilter("ignore")
    forgets, keeps = stream(n_rows, n_rows), stream(None, n_rows)
    for number, (one, other) in enumerate(zip(forgets, keeps, strict=True), 1):
        print(
            f"| {number} | {one[0]:.1%} | {one[1]:.2f} | {one[3]} "
            f"| {other[0]:.1%} | {other[1]:.2f} | {other[3]} | {other[2]:.0f} |"
        )


if __name__ == "__main__":
    main()
