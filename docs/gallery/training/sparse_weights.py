"""
What is left of the components
==============================

Sparse Bayesian learning begins with three components per class and quadratic forms of the
features; what the evidence does not ask for is removed.
"""

import matplotlib.pyplot as plt
from sklearn.inspection import DecisionBoundaryDisplay

from mixtura import SparseMixtureClassifier
from mixtura.datasets import make_ripley

rows = make_ripley(random_state=0)
model = SparseMixtureClassifier(3, form="primal", random_state=0).fit(rows.data, rows.target)
print("components per class:", model.n_components_, " weights:", model.n_coef_)
kernel = SparseMixtureClassifier(2, kernel="rbf", random_state=0).fit(rows.data, rows.target)
figure, grid = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for axes, each, title in zip(grid, (model, kernel), ("products", "kernels"), strict=True):
    options = {"grid_resolution": 80, "alpha": 0.3, "response_method": "predict_proba"}
    DecisionBoundaryDisplay.from_estimator(each, rows.data, ax=axes, **options)
    axes.scatter(*rows.data.T, c=rows.target, s=8)
    axes.set(title=f"{title}: {each.n_coef_} weights", xticks=[], yticks=[])
grid[1].scatter(*kernel.relevance_vectors_.T, s=90, facecolor="none", edgecolor="k")
