"""Classifiers without a density, and how many numbers they keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

_HIDDEN = 100
PENALTIES = (1.0, 10.0, 100.0)


class Score(NamedTuple):
    """Percent correct on training and test rows, and the parameters kept for it."""

    train: float
    test: float
    parameters: int


def support_vector_machine(train: tuple, test: tuple, penalties: Sequence[float]) -> Score:
    """Radial basis functions, penalty by cross-validation; counted are the support vectors."""
    pipeline = make_pipeline(StandardScaler(), SVC())
    search = GridSearchCV(pipeline, {"svc__C": penalties}, cv=3).fit(*train)
    kept = search.best_estimator_[-1].support_vectors_.size
    return Score(100 * search.score(*train), 100 * search.score(*test), int(kept))


def hidden_layer(train: tuple, test: tuple, seed: int) -> Score:
    """A hundred tanh units, stopped early on held-out rows."""
    network = MLPClassifier(
        (_HIDDEN,), activation="tanh", early_stopping=True, max_iter=500, random_state=seed
    )
    model = make_pipeline(StandardScaler(), network).fit(*train)
    kept = sum(np.size(part) for part in (*network.coefs_, *network.intercepts_))
    return Score(100 * model.score(*train), 100 * model.score(*test), int(kept))
