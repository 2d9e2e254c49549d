"""
Which columns matter
====================

The mean size of the Shapley values over all wines, for the class that each of them gets.
"""

from sklearn.datasets import load_wine

from mixtura import MixtureClassifier
from mixtura.plotting import ExplanationDisplay

X, y = load_wine(return_X_y=True, as_frame=True)
model = MixtureClassifier(1, density="full", objective="likelihood", random_state=0).fit(X, y)
ExplanationDisplay.from_estimator(model, X.iloc[::4])
