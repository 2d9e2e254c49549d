"""Probabilities that can be trusted: a map that leaves the decisions alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from mixtura.parts import storable


@storable
@dataclass(frozen=True)
class Calibration:
    """p = (1 - doubt) softmax(J / T) + doubt / C, of class log-joints J.

    The temperature undoes the saturation that margins cause. It fades as features go missing,
    T = temperature ** ((1 - share missing) ** fade), since less evidence saturates less. The doubt
    is the share of rows that are plain surprises; without it a few of them would set the
    temperature for all.
    """

    temperature: float = 1.0
    doubt: float = 0.0
    fade: float = 1.0

    @classmethod
    def typical(cls, margin: float) -> Calibration:
        """For a model trained to keep a log-margin."""
        return cls(temperature=max(1.0, margin / 4.0), doubt=0.05)

    def log_proba(self, class_log_joint: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Calibrated log posteriors (n, C) of rows with a share (n,) of their features missing."""
        temperature = self.temperature ** ((1.0 - missing) ** self.fade)
        sharp = log_softmax(class_log_joint / temperature[:, None], axis=1)
        if self.doubt == 0.0:
            return sharp
        guess = np.log(self.doubt / class_log_joint.shape[1])
        return np.logaddexp(sharp + np.log1p(-self.doubt), guess)
