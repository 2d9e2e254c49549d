"""
What was compared, and how it was trained
=========================================

``MixtureClassifier()`` compares candidates on rows that it holds back, and keeps what it found
in ``choice_`` and ``history_``.
"""

from sklearn.datasets import load_iris

from mixtura import MixtureClassifier
from mixtura.plotting import ChoiceDisplay, HistoryDisplay

X, y = load_iris(return_X_y=True)
model = MixtureClassifier(random_state=0).fit(X, y)
ChoiceDisplay.from_estimator(model)

# %%
HistoryDisplay.from_estimator(model)
