"""
Features that are missing at prediction
=======================================

Three classifiers learn from whole wines. At prediction more and more measurements are missing:
the mixture integrates them out, trees send them down a branch that they have not learned, and
KNN imputation fills them in.
"""

from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import KNNImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mixtura import MixtureClassifier
from mixtura.plotting import MissingDisplay

X, y = load_wine(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
contestants = {
    "MixtureClassifier()": MixtureClassifier(random_state=0),
    "boosted trees": HistGradientBoostingClassifier(random_state=0),
    "KNN imputation, SVM": make_pipeline(KNNImputer(), StandardScaler(), SVC()),
}
axes = None
for name, model in contestants.items():
    model.fit(X_train, y_train)
    axes = MissingDisplay.from_estimator(model, X_test, y_test, name=name, ax=axes).ax_
