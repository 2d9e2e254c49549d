"""
Holes that mean something
=========================

A laboratory value is measured where somebody worried. The more that depends on the class, the
more "not measured" tells: ``missingness="auto"`` finds out.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss

from mixtura import MixtureClassifier

rng = np.random.default_rng(0)
strengths = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
losses = {"ignore": [], "informative": [], "auto": []}
for strength in strengths:
    ill = rng.integers(0, 2, 800)
    X = rng.normal(size=(800, 3)) + 0.7 * ill[:, None]
    unmeasured = rng.random(800) < 0.5 + strength * (0.5 - ill)  # the healthy are measured less
    X[unmeasured, 0] = np.nan
    for missingness, found in losses.items():
        model = MixtureClassifier(
            1, density="full", objective="likelihood", missingness=missingness, random_state=0
        )
        proba = model.fit(X[:400], ill[:400]).predict_proba(X[400:])
        found.append(log_loss(ill[400:], proba))
figure, axes = plt.subplots(layout="constrained")
for (missingness, found), style in zip(losses.items(), ("-", "-", "k:"), strict=True):
    axes.plot(strengths, found, style, marker="o", label=f'missingness="{missingness}"')
axes.set_xlabel("chance of being measured: ill less healthy")
axes.set_ylabel("log-loss of 400 other rows (nats)")
axes.legend(frameon=False)
