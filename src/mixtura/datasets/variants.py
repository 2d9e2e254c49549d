"""Harder versions of MNIST, generated from MNIST itself."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.utils import Bunch, check_random_state
from torch.nn import functional

from mixtura.datasets.generators import Seed
from mixtura.datasets.loading import load_dataset
from mixtura.exceptions import InvalidInputError

VARIANTS = (
    *("basic", "rotated", "background_random", "rotated_background_random"),
    *("background_images", "rotated_background_images"),
)

_SIDE = 28
_CHUNK = 4096
#: Photographs with a smaller deviation of their gray values are too flat for a background.
_FLAT = 20.0


def mnist_variant(
    kind: str, *, n_train: int = 12_000, n_test: int = 50_000, random_state: Seed = 0
) -> Bunch:
    """MNIST digits rotated, on noise or photographs, or both, with few training rows.

    Generated here by the recipe of Larochelle et al. (2007); these are not the files of that paper,
    and neither the digits chosen nor the random numbers are theirs.

    Parameters
    ----------
    kind : {"basic", "rotated", "background_random", "rotated_background_random", \
            "background_images", "rotated_background_images"}
        What is done to a digit: nothing; a turn by an angle uniform on [0, 2π), interpolated
        bilinearly; uniform gray noise wherever it is brighter than the digit; the last two; and
        the same with patches of photographs instead of noise, which are those of CIFAR-10 in
        gray (the paper's were others), flat ones left out.
    n_train, n_test : rows, drawn without replacement from all 70,000. The paper holds back the
        last 2,000 of its 12,000 training rows for validation.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        As :func:`load_dataset` gives, with the training rows first and one split.
    """
    if kind not in VARIANTS:
        raise InvalidInputError(f"kind={kind!r} is unknown; use one of {VARIANTS}.")
    mnist, n = load_dataset("mnist"), n_train + n_test
    if not (n_train >= 0 and n_test >= 0 and n <= len(mnist.data)):
        raise InvalidInputError(
            f"n_train + n_test must lie between 0 and {len(mnist.data)}; "
            f"got {n_train} and {n_test}."
        )
    rng = check_random_state(random_state)
    chosen = rng.permutation(len(mnist.data))[:n]
    data = mnist.data[chosen]
    if kind.startswith("rotated"):
        data = _rotate(data, rng.uniform(0.0, 2.0 * np.pi, size=n))
    if kind.endswith("background_random"):
        data = np.maximum(data, rng.randint(256, size=data.shape, dtype=np.uint8))
    if kind.endswith("background_images"):
        data = np.maximum(data, _patches(n, rng))
    rows = np.arange(n)
    changed = {
        "data": data,
        "target": mnist.target[chosen],
        "splits": [(rows[:n_train], rows[n_train:])],
        "name": f"mnist_{kind}",
        "DESCR": f"MNIST, variant {kind!r}: our own generation by the recipe of Larochelle et al. "
        f"(2007), not their files. {n_train} training and {n_test} test rows.\n\n{mnist.DESCR}",
    }
    return Bunch(**{**mnist, **changed})


def _rotate(images: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Each flattened image turned about its center; what comes in from outside is black."""
    turned = np.empty_like(images)
    for start in range(0, len(images), _CHUNK):
        rows = slice(start, start + _CHUNK)
        angle = torch.from_numpy(angles[rows]).float()
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        maps = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
        pixels = torch.from_numpy(images[rows]).float().view(-1, 1, _SIDE, _SIDE)
        grid = functional.affine_grid(maps, list(pixels.shape), align_corners=False)
        sampled = functional.grid_sample(pixels, grid, align_corners=False)
        turned[rows] = sampled.round_().flatten(1).to(torch.uint8).numpy()
    return turned


def _patches(count: int, rng: np.random.RandomState) -> np.ndarray:
    """(count, 784) patches of photographs, in gray."""
    colors = load_dataset("cifar10").data
    gray = colors.reshape(len(colors), 3, -1).mean(1, dtype=np.float32).astype(np.uint8)
    photos = gray[gray.std(1) >= _FLAT].reshape(-1, 32, 32)
    windows = np.lib.stride_tricks.sliding_window_view(photos, (_SIDE, _SIDE), axis=(1, 2))
    place = rng.randint(windows.shape[1], size=(2, count))
    return windows[rng.randint(len(photos), size=count), *place].reshape(count, -1)
