"""
Why this class
==============

Shapley values of the columns of one wine: what each of them adds to the probability of its
class. They are exact, and nothing was sampled: each subset of the columns has its answer in
closed form.
"""

from sklearn.datasets import load_wine

from mixtura import MixtureClassifier
from mixtura.plotting import ExplanationDisplay

X, y = load_wine(return_X_y=True, as_frame=True)
model = MixtureClassifier(1, density="full", objective="likelihood", random_state=0).fit(X, y)
wine = X.iloc[[70]].copy()
wine[["hue", "proline"]] = None  # not measured: they add nothing
ExplanationDisplay.from_estimator(model, wine)

# %%
# The values of a row sum to its answer less the answer to an empty row:
why = model.explain(wine)
print(why.values[0].sum(0) + why.base_values[0], model.predict_proba(wine)[0])
