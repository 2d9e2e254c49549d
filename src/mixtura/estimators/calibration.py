"""Probabilities that can be trusted: calibration on rows the training did not see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from mixtura.engines import LocalEngine
from mixtura.estimators.base import run_over
from mixtura.mixture import Mixture

_LARGEST_DOUBT = 0.5
_LOG_TEMPERATURES = -3.0, 8.0


@dataclass(frozen=True)
class Calibration:
    """p = (1 - doubt) softmax(J / temperature) + doubt / C, which leaves the decisions alone.

    The temperature undoes the saturation that margins cause. The doubt is the share of rows that
    are plain surprises; without it a few of them would set the temperature for all.
    """

    temperature: float = 1.0
    doubt: float = 0.0

    def log_proba(self, class_log_joint: np.ndarray) -> np.ndarray:
        """Calibrated log posteriors (n, C)."""
        sharp = log_softmax(class_log_joint / self.temperature, axis=1)
        if self.doubt == 0.0:
            return sharp
        guess = np.log(self.doubt / class_log_joint.shape[1])
        return np.logaddexp(sharp + np.log1p(-self.doubt), guess)


def fit_calibration(mixture: Mixture, held_back: LocalEngine) -> Calibration:
    """The calibration under which held-back labels are most probable."""
    joint = run_over(mixture, held_back.table, lambda m, b: m.class_log_joint(b)).numpy()
    y = held_back.table.y.cpu().numpy()
    weight = held_back.table.weight.double().cpu().numpy()

    def unpack(point: np.ndarray) -> Calibration:
        temperature = np.exp(np.clip(point[0], *_LOG_TEMPERATURES))
        return Calibration(float(temperature), float(_LARGEST_DOUBT * expit(point[1])))

    def loss(point: np.ndarray) -> float:
        return -float(weight @ unpack(point).log_proba(joint)[np.arange(len(y)), y])

    starts = [np.array([start, -3.0]) for start in (0.0, 2.0)]
    found = [minimize(loss, start, method="Nelder-Mead") for start in starts]
    return unpack(min(found, key=lambda result: result.fun).x)
