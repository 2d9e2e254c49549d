"""
"I have never seen this"
========================

A classifier of the digits 0 to 7 meets 8 and 9. It is a density too, so it can say that these
are unlike anything it has seen.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from mixtura import MixtureClassifier
from mixtura.densities import LowRank

warnings.filterwarnings("ignore", ".*constant")  # some pixels are always white
X, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
X, y = X[order], y[order]
train = np.flatnonzero(y < 8)[:900]
known, unknown = np.flatnonzero(y < 8)[900:], np.flatnonzero(y >= 8)
model = MixtureClassifier(
    1, density=LowRank(rank=10, floor=0.05), objective="likelihood", random_state=0
)
model.fit(X[train], y[train])
figure, axes = plt.subplots(layout="constrained")
for rows, name in ((known, "0 to 7"), (unknown, "8 and 9")):
    told = model.is_outlier(X[rows], share=0.05).mean()
    label = f"{name}: {told:.0%} are called outliers"
    scores = model.score_samples(X[rows]).clip(-400)
    axes.hist(scores, bins=40, alpha=0.6, density=True, label=label)
axes.set(xlabel="log density", yticks=[])
axes.legend(frameon=False)
