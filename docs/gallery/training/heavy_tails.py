"""
Rows that lie far out
=====================

One row in twenty is nonsense. A Gaussian bends to it, Student's t does not.
"""

import matplotlib.pyplot as plt
import numpy as np

from mixtura import MixtureDensity
from mixtura.plotting import ComponentsDisplay

rng = np.random.default_rng(0)
X = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], 300)
far = rng.random(300) < 0.05
X[far] = rng.uniform(-15.0, 15.0, (far.sum(), 2))
clean = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], 300)
figure, grid = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for axes, density in zip(grid, ("full", "student"), strict=True):
    model = MixtureDensity(1, density=density, random_state=0).fit(X)
    ComponentsDisplay.from_estimator(model, X, ax=axes)
    axes.set_title(f'density="{density}": {model.score(clean):.2f} nats per clean row')
