"""Probabilities that can be trusted: a map that leaves the decisions alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from mixtura.parts import storable

#: Where no row was held out: doubt of many rows, and rows that are imagined beside those of
#: training, half of them such that it is wrong about.
_LEAST_DOUBT, _IMAGINED = 0.05, 40.0


@storable
@dataclass(frozen=True)
class Calibration:
    """p = (1 - doubt) softmax(J / T) + doubt / C, of class log-joints J.

    The temperature undoes the saturation that margins cause. It fades as features go missing,
    T = temperature ** ((1 - share missing) ** fade), since less evidence saturates less. The doubt
    is the share of rows that a model is plainly wrong about; without it a few of them would set
    the temperature for all.
    """

    temperature: float = 1.0
    doubt: float = 0.0
    fade: float = 1.0

    @classmethod
    def typical(cls, margin: float, rows: float = math.inf) -> Calibration:
        """For a model trained on so many labeled rows to keep a log-margin.

        A handful of rows are kept apart by any margin, and say nothing of others.
        """
        doubt = max(_LEAST_DOUBT, _IMAGINED * 0.5 / (_IMAGINED + rows))
        return cls(temperature=max(1.0, margin / 4.0), doubt=doubt)

    def log_proba(
        self, class_log_joint: Tensor, missing: Tensor | None = None, evidence: Tensor | float = 0.0
    ) -> Tensor:
        """Calibrated log posteriors (..., C) of rows with shares (...) of their features missing.

        `evidence` (..., C) for the classes comes on top, as it is.
        """
        joint = class_log_joint / self.temperature
        if missing is not None:
            reach = (1.0 - missing) ** self.fade
            joint = class_log_joint / (self.temperature**reach)[..., None]
        joint = joint + evidence
        if self.doubt == 0.0:
            return joint.log_softmax(-1)
        return (joint.softmax(-1) * (1.0 - self.doubt) + self.doubt / joint.shape[-1]).log()
