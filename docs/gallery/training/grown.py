"""
Mixtures that grow where classes meet
=====================================

Both classes have three lobes, of which the small ones meet. Boosting adds one component per class
at a time, where the model is not sure yet.
"""

import matplotlib.pyplot as plt
import numpy as np

from mixtura import BoostedMixtureClassifier
from mixtura.datasets import make_lobes

rows, test = (make_lobes(200, random_state=seed) for seed in (0, 1))
figure, axes = plt.subplots(layout="constrained")
for label in (0, 1):
    values = rows.data[rows.target == label, 0]
    axes.hist(values, bins=40, density=True, alpha=0.3, label=f"class {label}")
at = np.linspace(rows.data.min(), rows.data.max(), 200)
for n_stages in (1, 3):
    model = BoostedMixtureClassifier(n_stages, calibrate=False, random_state=0)
    model.fit(rows.data, rows.target)
    error = 1 - model.score(test.data, test.target)
    label = f"chance of class 1, {n_stages} per class: {error:.1%} error"
    axes.plot(at, model.predict_proba(at[:, None])[:, 1], label=label)
axes.set(xlabel="x", ylim=(0, 1.5))
axes.legend(frameon=False, loc="upper right")
