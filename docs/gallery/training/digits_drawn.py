"""
Digits drawn from a classifier
==============================

A classifier that is a density can be asked for rows of a class: one way to see what it has
learned.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from mixtura import MixtureClassifier
from mixtura.densities import LowRank

warnings.filterwarnings("ignore", ".*constant")  # some pixels are always white
X, y = load_digits(return_X_y=True)
model = MixtureClassifier(
    2, density=LowRank(rank=10, floor=0.05), objective="likelihood", random_state=0
)
model.fit(X, y)
figure, grid = plt.subplots(4, 10, figsize=(8, 3.4), layout="constrained")
for digit in range(10):
    images, _ = model.sample(4, y=digit, random_state=digit)
    for axes, image in zip(grid[:, digit], images, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        axes.set_axis_off()
