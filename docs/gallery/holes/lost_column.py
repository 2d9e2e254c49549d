"""
Which measurement would be missed most
======================================

Each measurement of breast cancer, three columns, is lost in turn. A mixture needs no second
training to tell what that costs.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier

data = load_breast_cancer()
X_train, X_test, y_train, y_test = train_test_split(
    data.data, data.target, test_size=0.5, random_state=0
)
model = MixtureClassifier(marginals="power", random_state=0).fit(X_train, y_train)
whole = log_loss(y_test, model.predict_proba(X_test))

costs = {}
for measurement in range(10):  # of each there are a mean, an error and a worst value
    lost = X_test.copy()
    lost[:, measurement::10] = np.nan
    costs[data.feature_names[measurement]] = log_loss(y_test, model.predict_proba(lost)) - whole
names = sorted(costs, key=costs.get)
figure, axes = plt.subplots(layout="constrained")
axes.barh(names, [costs[name] for name in names])
axes.set_xlabel("rise of the log-loss without this measurement (nats per row)")
