"""
A stream whose classes drift
============================

``partial_fit`` follows rows that come in parts. A model that learned from the first part alone
falls behind.
"""

import matplotlib.pyplot as plt
import numpy as np

from mixtura import MixtureClassifier

rng = np.random.default_rng(0)
settings = {"density": "diag", "objective": "likelihood", "random_state": 0}
first, follows = (MixtureClassifier(1, **settings) for _ in range(2))
errors = {"follows": [], "learned once": []}
for part in range(12):
    y = rng.integers(0, 2, 200)
    X = rng.normal(size=(200, 2)) + np.column_stack([1.5 * y, 0.25 * part * (1 - y)])
    if part:
        errors["follows"].append(100 * (1 - follows.score(X, y)))
        errors["learned once"].append(100 * (1 - first.score(X, y)))
    else:
        first.fit(X, y)
    follows.partial_fit(X, y, classes=[0, 1])
figure, axes = plt.subplots(layout="constrained")
for name, found in errors.items():
    axes.plot(range(1, 12), found, marker="o", label=name)
axes.set(xlabel="part of the stream", ylabel="error before it is learned (%)")
axes.legend(frameon=False)
