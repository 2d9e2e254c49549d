"""Sequences from generators: shapes, transients, dynamics and phases that tell classes apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: One (T, d) sequence of a class.
Draw = Callable[[int, np.random.Generator], np.ndarray]


def cylinder_bell_funnel(label: int, rng: np.random.Generator) -> np.ndarray:
    """(128, 1): a plateau, a ramp up or a ramp down between random moments, in noise.

    After Saito (1994), *Local feature extraction and its applications using a library of bases*.
    """
    first, width = rng.integers(16, 33), rng.integers(32, 97)
    time = np.arange(1, 129)
    inside = (time >= first) & (time <= first + width)
    rise = (time - first) / width
    shape = (np.ones(128), rise, 1.0 - rise)[label]
    return ((6.0 + rng.normal()) * inside * shape + rng.normal(size=128))[:, None]


def transient(label: int, rng: np.random.Generator) -> np.ndarray:
    """(T, 1), T 120 to 180: a step at a random moment that rings, or not, and decays, or not.

    Of the kind of the Trace set, readings of a plant's instruments.
    """
    length = rng.integers(120, 181)
    since = np.arange(length) - length * rng.uniform(0.25, 0.6)
    rings, decays = divmod(label, 2)
    after = np.exp(-np.maximum(since, 0.0) / (25.0 if decays else 1e9)) * (since >= 0)
    wave = 0.6 * rings * np.sin(0.5 * since) * np.exp(-np.maximum(since, 0.0) / 15.0)
    height = rng.uniform(0.8, 1.2)
    return (height * (after + wave * (since >= 0)) + 0.15 * rng.normal(size=length))[:, None]


def switching(label: int, rng: np.random.Generator) -> np.ndarray:
    """(T, 2), T 60 to 120: autoregressions that switch between two coefficients.

    Classes differ in one of the two coefficients, or in how long it stays; every channel has the
    same variance in all of them.
    """
    length, stay = rng.integers(60, 121), (0.95, 0.95, 0.6)[label]
    coefficients = ((0.9, -0.5), (0.9, 0.2), (0.9, -0.5))[label]
    state, last, frames = int(rng.integers(2)), rng.normal(size=2), []
    for _ in range(length):
        state ^= int(rng.random() > stay)
        weight = coefficients[state]
        last = weight * last + np.sqrt(1.0 - weight**2) * rng.normal(size=2)
        frames.append(last)
    return np.array(frames)


def phases(label: int, rng: np.random.Generator) -> np.ndarray:
    """(T, 3), T 40 to 80: oscillations, of which each channel by itself says nothing of the class.

    The second follows the first or goes ahead of it, and so does the third follow the second.
    """
    length = rng.integers(40, 81)
    steps = 2 * np.array([label // 2, label % 2]) - 1
    lag = 0.5 * np.pi * np.append(0, steps.cumsum())
    angle = rng.uniform(0.2, 0.4) * np.arange(length)[:, None] + rng.uniform(0, 2 * np.pi)
    return np.sin(angle + lag) + 0.5 * rng.normal(size=(length, 3))


#: By name: the generator, its number of classes, and sequences of a class to train on and to test.
GENERATED: dict[str, tuple[Draw, int, int, int]] = {
    "Cylinder, bell, funnel": (cylinder_bell_funnel, 3, 10, 100),
    "Transients": (transient, 4, 15, 75),
    "Switching autoregressions": (switching, 3, 50, 100),
    "Phases": (phases, 4, 25, 75),
}


def draw(name: str, seed: int) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray], np.ndarray]:
    """Training sequences and labels, test sequences and labels."""
    one, n_classes, *counts = GENERATED[name]
    rng, parts = np.random.default_rng(seed), []
    for count in counts:
        labels = np.repeat(np.arange(n_classes), count)
        parts += [[one(label, rng) for label in labels], labels]
    return tuple(parts)
