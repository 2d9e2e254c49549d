"""
No labels: how many clusters
============================

A mixture of Gaussians over iris for each number of components. An information criterion says
how many there are, and the species, which the mixture never saw, say whether that makes sense.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_iris

from mixtura import MixtureDensity

iris = load_iris()
numbers = range(1, 7)
models = [MixtureDensity(n, density="full", random_state=0).fit(iris.data) for n in numbers]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(numbers, [model.bic(iris.data) for model in models], marker="o")
left.set(xlabel="components", ylabel="BIC (less is better)")
clusters = models[2].predict(iris.data)
right.scatter(*iris.data[:, 2:].T, c=clusters, s=14)
right.set(xlabel="petal length (cm)", ylabel="petal width (cm)", title="three components")
print(pd.crosstab(iris.target_names[iris.target], clusters))
