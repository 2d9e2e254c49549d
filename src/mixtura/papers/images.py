"""Image sets as the papers prepare them: pixels in [0, 1], or whitened principal components.

`python -m mixtura.papers.images FOLDER NAME...` writes sets as small files (components in half
precision), which `load_images` prefers where `MIXTURA_DATA` has them in its folder `images`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.utils import Bunch

from mixtura.datasets import load_dataset, mnist_variant
from mixtura.files import replacing

#: Sets that are read from a file, by the name they have here.
_FILES = {"mnist": "mnist", "fashion": "fashion_mnist", "cifar10": "cifar10"}
_VARIANTS = {
    "basic": "basic",
    "rotated": "rotated",
    "background-random": "background_random",
    "background": "background_images",
    "rotated-background": "rotated_background_images",
}
_REDUCED = "-pca50"
_COMPONENTS = 50


class Images(NamedTuple):
    """Training and test rows in single precision."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_images(name: str, *, n_train: int | None = None, n_test: int | None = None) -> Images:
    """An image set by name.

    Parameters
    ----------
    name : "mnist", "fashion", "cifar10", "basic", "rotated", "background-random", "background"
        (photographs) or "rotated-background"; with "-pca50" behind it, the 50 leading principal
        components of the training rows, whitened.
    n_train, n_test : random rows to keep, the same in every call; all by default.
    """
    prepared = Path(os.environ.get("MIXTURA_DATA", ".")) / "images" / f"{name}.npz"
    if n_train is None and n_test is None and prepared.is_file():
        with np.load(prepared, allow_pickle=False) as file:
            X_train, y_train, X_test, y_test = (file[field] for field in Images._fields)
        return Images(X_train.astype(np.float32), y_train, X_test.astype(np.float32), y_test)
    source = name.removesuffix(_REDUCED)
    rng = np.random.default_rng(0)
    if source in _VARIANTS:
        bunch = mnist_variant(_VARIANTS[source])
    else:
        bunch = load_dataset(_FILES[source])
    train, test = bunch.splits[0]
    train, test = _some(train, n_train, rng), _some(test, n_test, rng)
    images = Images(*_pixels(bunch, train), *_pixels(bunch, test))
    return _principal_components(images) if name.endswith(_REDUCED) else images


def _some(rows: np.ndarray, count: int | None, rng: np.random.Generator) -> np.ndarray:
    return rows if count is None else rng.choice(rows, min(count, len(rows)), replace=False)


def _pixels(bunch: Bunch, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return bunch.data[rows].astype(np.float32) / 255, bunch.target[rows]


def _principal_components(images: Images) -> Images:
    # From the covariance: exact, and a single pass over rows that outnumber their features.
    pca = PCA(_COMPONENTS, whiten=True, svd_solver="covariance_eigh").fit(images.X_train)
    return images._replace(
        X_train=pca.transform(images.X_train), X_test=pca.transform(images.X_test)
    )


def write(name: str, folder: Path) -> None:
    """A set of principal components as a small file."""
    images = load_images(name)
    folder.mkdir(parents=True, exist_ok=True)
    half = {field: each.astype(np.float16) for field, each in images._asdict().items()}
    labels = {"y_train": images.y_train.astype(np.int64), "y_test": images.y_test.astype(np.int64)}
    with replacing(folder / f"{name}.npz") as fresh, fresh.open("wb") as file:
        np.savez_compressed(file, **{**half, **labels})


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        write(wanted, Path(sys.argv[1]))
