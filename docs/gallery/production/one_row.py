"""
One row in production
=====================

The same model file behind the estimator (PyTorch) and behind ``mixtura.runtime``, which needs
NumPy alone.
"""

import tempfile
from pathlib import Path
from timeit import repeat

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from mixtura import MixtureClassifier, load, runtime

X, y = load_wine(return_X_y=True)
row = np.where(np.arange(13) % 3 == 0, np.nan, X[:1])  # every third measurement is missing
times = {"mixtura.load": [], "mixtura.runtime.load": []}
densities = ["diag", "low_rank", "full"]
for density in densities:
    model = MixtureClassifier(1, density=density, objective="likelihood", random_state=0).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wine.safetensors"
        model.save(path)
        readers = load(path), runtime.load(path)
    for taken, reader in zip(times.values(), readers, strict=True):
        seconds = min(repeat(lambda ask=reader.predict_proba: ask(row), number=20, repeat=5))
        taken.append(1e3 * seconds / 20)
figure, axes = plt.subplots(layout="constrained")
for shift, (name, taken) in zip((-0.2, 0.2), times.items(), strict=True):
    axes.bar(np.arange(3) + shift, taken, 0.4, label=name)
axes.set(ylabel="milliseconds for one row with holes", yscale="log")
axes.set_xticks(range(3), densities)
axes.legend(frameon=False)
