"""MNIST for the benchmarks: from $MIXTURA_DATA, as pixels or whitened principal components."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA


def load_mnist(n_components: int | None = None) -> tuple[np.ndarray, ...]:
    """X_train, y_train, X_test, y_test; pixels in [0, 1], or whitened principal components."""
    folder = os.environ.get("MIXTURA_DATA")
    path = Path(folder or ".") / "mnist" / "mnist.npz"
    if not folder or not path.exists():
        sys.exit(f"needs {path}: set MIXTURA_DATA to a folder that has it.")
    with np.load(path) as file:
        arrays = [file[name] for name in ("X_train", "y_train", "X_test", "y_test")]
    train, test = (a.reshape(len(a), -1).astype(np.float32) / 255 for a in arrays[::2])
    if n_components is not None:
        pca = PCA(n_components, whiten=True, random_state=0).fit(train)
        train, test = (pca.transform(a).astype(np.float32) for a in (train, test))
    return train, arrays[1].astype(np.int64), test, arrays[3].astype(np.int64)
