"""
Few labels, many rows
=====================

Of 400 rows of breast cancer, some have labels. The others take part in the likelihood
(``unlabeled_weight=0.5``) or do not; "auto" uses them where labels that are held out in turn
are clearly better predicted then, for which there must be ten at least: here it is too careful
where labels are very few.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from mixtura import MixtureClassifier

warnings.filterwarnings("ignore", ".*set aside")
X, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
X, y = X[order][:, :10], y[order]
counts = [6, 12, 24, 48, 100]
weights = {"set aside": 0.0, "take part": 0.5, "auto": "auto"}
errors = {name: np.zeros((5, len(counts))) for name in weights}
for draw in range(5):
    places = np.random.default_rng(draw).permutation(400)
    for at, count in enumerate(counts):
        few = np.full(400, np.nan)
        few[places[:count]] = y[places[:count]]
        for name, weight in weights.items():
            model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
            model.set_params(unlabeled_weight=weight).fit(X[:400], few)
            errors[name][draw, at] = 100 * (1 - model.score(X[400:], y[400:]))
figure, axes = plt.subplots(layout="constrained")
for (name, found), style in zip(errors.items(), ("-", "-", "k:"), strict=True):
    axes.semilogx(counts, found.mean(0), style, marker="o", label=f"unlabeled rows: {name}")
axes.set(xlabel="labels among 400 rows", ylabel="error on 169 other rows (%)")
axes.set_xticks(counts, counts)
axes.legend(frameon=False)
