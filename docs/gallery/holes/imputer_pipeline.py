"""
Imputation in a pipeline
========================

:class:`mixtura.MixtureImputer` fills holes for learners that take none. How far are its values
from the true ones, beside scikit-learn's imputers, as more of breast cancer is missing?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.preprocessing import StandardScaler

from mixtura import MixtureImputer

X = StandardScaler().fit_transform(load_breast_cancer().data)
shares = [0.1, 0.3, 0.5]
imputers = {"mean": SimpleImputer(), "KNN": KNNImputer(), "mixture": MixtureImputer(random_state=0)}
errors = {name: [] for name in imputers}
for share in shares:
    holes = np.random.default_rng(0).random(X.shape) < share
    for name, imputer in imputers.items():
        filled = imputer.fit_transform(np.where(holes, np.nan, X))
        errors[name].append(np.sqrt(np.mean((filled - X)[holes] ** 2)))
figure, axes = plt.subplots(layout="constrained")
for name, found in errors.items():
    axes.plot(shares, found, marker="o", label=name)
axes.set(xlabel="share of the entries that is missing", ylabel="error (deviations)", ylim=(0, None))
axes.legend(frameon=False)
