"""
Sets that cover, whatever is missing
====================================

A set holds the true class nine times in ten, if asked to. As more is missing sets grow; how
often they cover stays.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier

X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
model = MixtureClassifier(1, density="full", objective="likelihood", random_state=0)
model.fit(X_train, y_train)
shares = np.linspace(0.0, 0.8, 5)
covered, size = [], []
for share in shares:
    holes = np.random.default_rng(1).random((10, *X_test.shape)) < share
    sets = np.array([model.predict_set(np.where(hole, np.nan, X_test)) for hole in holes])
    covered.append(sets[:, np.arange(len(y_test)), y_test].mean())
    size.append(sets.sum(2).mean())
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(shares, covered, marker="o")
left.axhline(0.9, color="gray", linestyle=":")
left.set(xlabel="share of missing entries", ylabel="sets that cover", ylim=(0.5, 1.02))
right.plot(shares, size, marker="o")
right.set(xlabel="share of missing entries", ylabel="classes per set", ylim=(0, 3))
