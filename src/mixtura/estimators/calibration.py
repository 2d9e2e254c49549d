"""Probabilities that can be trusted: a temperature fitted on rows the training did not see."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from mixtura.engines import LocalEngine
from mixtura.estimators.base import run_over
from mixtura.mixture import Mixture


def fit_temperature(mixture: Mixture, held_back: LocalEngine) -> float:
    """The temperature under which held-back labels are most probable."""
    class_log_joint = run_over(mixture, held_back.table, lambda m, b: m.class_log_joint(b))
    y, weight = held_back.table.y.cpu(), held_back.table.weight.double().cpu()

    def loss(log_temperature: float) -> float:
        log_proba = (class_log_joint / np.exp(log_temperature)).log_softmax(1)
        return -float((weight * log_proba.gather(1, y[:, None])[:, 0]).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 8.0), method="bounded").x))
