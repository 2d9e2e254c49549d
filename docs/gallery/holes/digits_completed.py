"""
Half a digit
============

A density of digits, fitted without labels, completes those of which the lower half is missing:
by the conditional mean, and by three draws.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from mixtura import MixtureDensity
from mixtura.densities import LowRank

warnings.filterwarnings("ignore", ".*constant")  # some pixels are always white
X = load_digits().data
density = LowRank(rank=8, floor=0.05)
model = MixtureDensity(10, density=density, random_state=0).fit(X[:1500])
halves = X[1500:1508].copy()
halves[:, 32:] = np.nan  # the lower four lines of pixels
mean = model.impute(halves)
draws = model.impute(halves, n_draws=3, random_state=0)

figure, grid = plt.subplots(5, 8, figsize=(8, 5.4), layout="constrained")
titles = ["half", "mean", "draw", "draw", "draw"]
for row, images, title in zip(grid, [halves, mean, *draws], titles, strict=True):
    for axes, image in zip(row, images, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        axes.set(xticks=[], yticks=[])
    row[0].set_ylabel(title)
