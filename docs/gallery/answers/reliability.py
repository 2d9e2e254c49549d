"""
Probabilities that are honest, holes or not
===========================================

How often the model is right where it says 80 %? On the diagonal as often as it says, whole and
with entries missing.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier
from mixtura.plotting import CalibrationDisplay

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
model = MixtureClassifier(marginals="power", random_state=0).fit(X_train, y_train)
CalibrationDisplay.from_estimator(model, X_test, y_test, missing=(0.0, 0.6, 0.9))
