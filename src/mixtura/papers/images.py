"""Image sets as the papers prepare them: pixels in [0, 1], or whitened principal components."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.utils import Bunch

from mixtura.datasets import load_dataset, mnist_variant

#: Sets that are read from a file, by the name they have here.
_FILES = {"mnist": "mnist", "fashion": "fashion_mnist", "cifar10": "cifar10"}
_VARIANTS = {"basic": "basic", "rotated": "rotated", "background-random": "background_random"}
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
    name : "mnist", "fashion", "cifar10", "basic", "rotated" or "background-random"; with "-pca50"
        behind it, the 50 leading principal components of the training rows, whitened.
    n_train, n_test : random rows to keep, the same in every call; all by default.
    """
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
