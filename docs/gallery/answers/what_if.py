"""
What if
=======

The distribution of iris given a petal length of 4.8 cm, by class: exactly, as a model of its
own that predicts and samples.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_iris

from mixtura import MixtureClassifier

iris = load_iris(as_frame=True)
X, y = iris.data, iris.target_names[iris.target]
model = MixtureClassifier(1, density="full", objective="likelihood", random_state=0).fit(X, y)
length, width = "petal length (cm)", "petal width (cm)"
figure, axes = plt.subplots(layout="constrained")
axes.scatter(X[length], X[width], s=10, color="lightgray", label="all of iris")
for species in ("versicolor", "virginica"):
    rows, _ = model.sample(60, y=species, given={length: 4.8}, random_state=0)
    axes.scatter(rows[length], rows[width], s=10, label=f"{species}, drawn at 4.8 cm")
axes.set(xlabel=length, ylabel=width)
axes.legend(frameon=False)
