"""
Intervals that widen as features go missing
===========================================

The progress of diabetes, predicted from ten columns and from five of them. Intervals are
calibrated for what each row lacks.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from mixtura import MixtureRegressor

X, y = load_diabetes(return_X_y=True)
model = MixtureRegressor(2, density="full", marginals="linear", random_state=0)
model.fit(X[:300], y[:300])
rows, truth = X[300:], y[300:]
fewer = rows.copy()
fewer[:, [2, 3, 5, 7, 8]] = np.nan  # without weight, pressure and three values of the blood
figure, grid = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for axes, given, name in zip(grid, (rows, fewer), ("ten columns", "five columns"), strict=True):
    low, high = model.predict_interval(given, coverage=0.8).T
    mean = model.predict(given)
    order = mean.argsort()
    axes.fill_between(range(len(truth)), low[order], high[order], alpha=0.3)
    axes.plot(truth[order], ".", markersize=4)
    inside = np.mean((low <= truth) & (truth <= high))
    axes.set_title(f"{name}: {inside:.0%} inside, {np.mean(high - low):.0f} wide")
    axes.set_xlabel("patients, by the predicted mean")
grid[0].set_ylabel("progress of the disease")
