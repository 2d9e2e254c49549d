"""
Explaining and discriminating
=============================

The same six components per class, trained by likelihood and then by extended Baum-Welch to
separate two spirals.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.inspection import DecisionBoundaryDisplay

from mixtura import MixtureClassifier
from mixtura.datasets import make_spirals

warnings.filterwarnings("ignore", ".*without settling")
rows = make_spirals(400, radius=26.0, random_state=0)
test = make_spirals(400, radius=26.0, random_state=1)
figure, grid = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for axes, objective, solver in zip(grid, ("likelihood", "conditional"), ("em", "ebw"), strict=True):
    model = MixtureClassifier(
        6, density="diag", objective=objective, solver=solver, tradeoff=0.0, random_state=0
    )
    model.fit(rows.data, rows.target)
    options = {"grid_resolution": 80, "alpha": 0.3, "response_method": "predict"}
    DecisionBoundaryDisplay.from_estimator(model, rows.data, ax=axes, **options)
    axes.scatter(*rows.data.T, c=rows.target, s=4)
    axes.set(title=f"{objective}: {1 - model.score(test.data, test.target):.0%} error")
    axes.set(xticks=[], yticks=[])
