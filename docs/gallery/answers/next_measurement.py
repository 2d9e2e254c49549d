"""
What to measure next
====================

Each wine begins with nothing measured. One measurement after the other is made: that which
tells most about this wine, given what is known of it, or one at random.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier

X, y = load_wine(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
model = MixtureClassifier(1, density="full", objective="likelihood", random_state=0)
model.fit(X_train, y_train)
rng = np.random.default_rng(0)
ways = {"the one that tells most": model.next_feature, "at random": None}
figure, axes = plt.subplots(layout="constrained")
for name, worth in ways.items():
    known, errors = np.full_like(X_test, np.nan), []
    for _ in range(7):
        errors.append(100 * (1 - model.score(known, y_test)))
        gain = worth(known) if worth else rng.random(known.shape) * np.isnan(known)
        chosen = np.arange(len(known)), gain.argmax(1)
        known[chosen] = X_test[chosen]
    axes.plot(errors, marker="o", label=f"measure {name}")
axes.set(xlabel="measurements per wine", ylabel="error (%)")
axes.legend(frameon=False)
