"""
More than a mean
================

Where one x goes with two values of y, their mean is never right. A mixture over both predicts
the whole distribution.
"""

import matplotlib.pyplot as plt
import numpy as np

from mixtura import MixtureRegressor

rng = np.random.default_rng(0)
y = rng.uniform(-2.0, 2.0, 400)
x = y**2 + 0.3 * rng.normal(size=400)
model = MixtureRegressor(6, density="full", marginals="linear", random_state=0)
model.fit(x[:, None], y)
at = np.linspace(0.0, 4.0, 60)
draws = model.sample(at[:, None], 20, random_state=0)
figure, axes = plt.subplots(layout="constrained")
axes.plot(x, y, ".", color="lightgray", label="rows")
axes.plot(np.tile(at, 20), draws.ravel(), "C0.", markersize=2, label="draws given x")
axes.plot(at, model.predict(at[:, None]), "C3", label="mean given x")
axes.set(xlabel="x", ylabel="y")
axes.legend(frameon=False)
