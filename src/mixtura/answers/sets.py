"""How sure a model is: sets of classes that cover the true one as often as they promise."""

from __future__ import annotations

import numpy as np

from mixtura.conformal import HeldBack, conformal_sets
from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.models.fitted import Fitted
from mixtura.selection.typical import with_models


def predict_set(
    model: Fitted, held_back: HeldBack, rows: Matrix, coverage: float, device: Device
) -> np.ndarray:
    """(n, C) whether each class is in the set of each row."""
    if not held_back.models:
        held_back = with_models(model, held_back, device)

    def proba(own: Fitted, rows: Matrix) -> np.ndarray:
        return np.exp(own.log_proba(own.engine(rows, device)))

    return conformal_sets(model, rows, held_back, proba, coverage)
