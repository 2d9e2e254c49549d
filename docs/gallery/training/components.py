"""
What a class looks like
=======================

The components over the two columns that tell most, as outlines that hold half and 90 % of their
rows.
"""

from sklearn.datasets import load_wine

from mixtura import MixtureClassifier
from mixtura.plotting import ComponentsDisplay

X, y = load_wine(return_X_y=True, as_frame=True)
model = MixtureClassifier(2, density="full", objective="likelihood", random_state=0).fit(X, y)
ComponentsDisplay.from_estimator(model, X, y)

# %%
# In a notebook a fitted model says what it is:
model
