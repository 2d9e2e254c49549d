"""How sure a regression is: intervals that cover the true number as often as they promise.

A number is as likely as what lies beyond it, on its side of the predicted distribution; it is
inside the interval of a row unless too few held-back rows, masked as this row is, have numbers as
unlikely as that. So intervals are as wide, and as skew, as the distributions are, and held-back
rows say how far out they end. Of a network, which predicts means alone, the distance from these
takes the place of what lies beyond: rows that lack the same entries have intervals of one width.
"""

from __future__ import annotations

import numpy as np

from mixtura.conformal import HeldBack, conformal_thresholds
from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.models.fitted import Fitted, run_over
from mixtura.models.network import Network
from mixtura.models.regression import Regression, predictive
from mixtura.predictive import in_parts


def predict_interval(
    model: Regression, held_back: HeldBack, rows: Matrix, coverage: float, device: Device
) -> np.ndarray:
    """(n, T, 2) lower and upper ends; infinite where held-back rows are too few."""

    def rarity(own: Fitted, whole: Matrix, y: np.ndarray) -> np.ndarray:
        return predictive(own, whole.within(model.reach), model.n_targets, device).rarity(y)

    least = conformal_thresholds(model.fitted, model.whole(rows), held_back, rarity, coverage)

    def ends(some: Matrix, own: np.ndarray) -> np.ndarray:
        return model.predictive(some, device).interval(own)

    return in_parts(ends, rows, least)


def network_means(model: Fitted, rows: Matrix, device: Device) -> np.ndarray:
    """(n,) what a network predicts."""
    assert isinstance(model.model, Network)
    engine = model.engine(rows, device)
    return model.predicted(run_over(model.model, engine, lambda m, b: m.outputs(b)).numpy())
