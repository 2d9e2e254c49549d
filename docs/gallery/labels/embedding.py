"""
Mixtures as an embedding
========================

A network of mixtures embeds rows by the log densities of components, which learn from all rows;
the read-out learns from the few labels. The embedding, of which two principal components are
drawn, is good for other learners too.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA

from mixtura import MixtureNetworkClassifier
from mixtura.solvers import LinkedEM

X, y = load_wine(return_X_y=True)
few = np.where(np.random.default_rng(0).random(len(y)) < 0.15, y, np.nan)
solver = LinkedEM(max_iter=100, end_to_end=False)
network = MixtureNetworkClassifier(
    2,
    embedding="log_density",
    unlabeled_weight=0.5,
    solver=solver,
    missingness="ignore",
    random_state=0,
)
network.fit(X, few)
unlabeled = np.isnan(few)
score = network.score(X[unlabeled], y[unlabeled])
places = PCA(2).fit_transform(network.transform(X))
figure, axes = plt.subplots(layout="constrained")
axes.scatter(*places.T, c=y, s=14, alpha=0.6)
axes.scatter(*places[~unlabeled].T, c=y[~unlabeled], s=60, edgecolor="k", label="with a label")
axes.set_title(f"{score:.0%} of the {unlabeled.sum()} wines without a label are told right")
axes.legend(frameon=False)
