"""How good the answers of a model are, for rows whose answer is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
    mean_absolute_error,
    r2_score,
    root_mean_squared_error,
)

from mixtura.cli.output import Facts
from mixtura.data.given import Loaded
from mixtura.data.labels import encode_labels
from mixtura.exceptions import InvalidInputError
from mixtura.plotting.classifiers import Reliability

#: Classes of which a confusion matrix is shown.
_MOST_CLASSES = 20


def scores(model: Loaded, X: pd.DataFrame, y: np.ndarray | None) -> Facts:
    """Of a classifier, of a regressor, or of a density."""
    if y is None:
        return {"mean_log_density": float(model.score_samples(X).mean())}
    known = ~pd.isna(y)
    if not known.any():
        raise InvalidInputError("the target is empty in every row: there is nothing to compare.")
    X, y = X[known], np.array(y[known].tolist())
    if hasattr(model, "classes_"):
        return _of_classes(model, X, y)
    return _of_numbers(y, model.predict(X))


def _of_numbers(y: np.ndarray, predicted: np.ndarray) -> Facts:
    return {
        "root_mean_squared_error": float(root_mean_squared_error(y, predicted)),
        "mean_absolute_error": float(mean_absolute_error(y, predicted)),
        "r2": float(r2_score(y, predicted)) if len(y) > 1 else None,
    }


def _of_classes(model: Loaded, X: pd.DataFrame, y: np.ndarray) -> Facts:
    codes = encode_labels(y, model.classes_, model.unlabeled)
    X, codes = X[codes >= 0], codes[codes >= 0]
    if not len(codes):
        raise InvalidInputError("every row is marked as unlabeled: there is nothing to compare.")
    proba = model.predict_proba(X)
    guess, labels = proba.argmax(1), np.arange(len(model.classes_))
    facts: dict[str, object] = {
        "error": float(np.mean(guess != codes)),
        "log_loss": float(log_loss(codes, proba, labels=labels)),
        "calibration_error": Reliability.of(proba, codes).error,
    }
    if len(labels) <= _MOST_CLASSES:
        names, counts = (
            [str(c) for c in model.classes_],
            confusion_matrix(codes, guess, labels=labels),
        )
        facts["confusion"] = [
            {"true \\ predicted": name, **dict(zip(names, row.tolist(), strict=True))}
            for name, row in zip(names, counts, strict=True)
        ]
    return facts
