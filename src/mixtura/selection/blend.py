"""How much each of several models has a say, by what they said of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Self, TypeVar

import numpy as np
import torch
from scipy.special import softmax

from mixtura.models.calibration import Calibration
from mixtura.models.fitted import log_average
from mixtura.selection.held_out import Answers, Averages, HeldOut

Other = TypeVar("Other")

#: Rows of evidence for the weights that models deserve each by itself, were so small a share of
#: the rows known; how far apart these may be, in logs; steps of EM that find the best weights.
_PRIOR_ROWS, _SHARE, _DEEPEST, _STEPS = 20.0, 0.05, 30.0, 100
#: A model beside the first with less weight has no say.
_LITTLE = 0.01


@dataclass(frozen=True)
class Say:
    """What becomes of several models that are averaged, the first of which the others join.

    Attributes
    ----------
    weights : (M,) of their class probabilities.
    own : their calibrations, None where nothing is known of them.
    average : that of the averages.
    """

    weights: np.ndarray
    own: Sequence[Calibration | None]
    average: Calibration

    @classmethod
    def of(cls, answers: Sequence[HeldOut | None], trusts_holes: bool) -> Self:
        """By what they said of held-out rows; the same for all where that is not known of all."""
        known = [each for each in answers if isinstance(each, Answers)]
        if len(known) < len(answers):
            count = len(answers)
            return cls(np.full(count, 1.0 / count), [None] * count, Calibration())
        if trusts_holes:  # and who does not look at them has not that to go by
            known = [each.alone() for each in known]
        weights, average = blend_answers(known)
        return cls(weights, [each.calibration for each in known], average.calibration)

    def heard(self, others: Sequence[Other]) -> tuple[Self, list[Other]]:
        """Without those that have none, but for one; `others` are all but the first."""
        weights = self.weights[1:]
        kept = [True, *(weights >= min(_LITTLE, weights.max(initial=0.0)))]
        weights, own = self.weights[kept], [*compress(self.own, kept)]
        say = type(self)(weights / weights.sum(), own, self.average)
        return say, [*compress(others, kept[1:])]


def blend_answers(answers: Sequence[Answers]) -> tuple[np.ndarray, Averages]:
    """(M,) weights under which the averages of M models predict labels best, and the averages.

    The models answered for the same rows.
    """
    first = answers[0]
    missing = torch.from_numpy(first.missing)
    log_proba = torch.stack(
        [
            each.calibration.log_proba(torch.from_numpy(each.class_log_joint), missing)
            for each in answers
        ]
    )
    weights = blend_weights(-np.stack([each.losses() for each in answers]), first.weight)
    joint = log_average(log_proba, weights).numpy()
    average = Averages(first.weight, first.punched, joint, first.missing, first.y, first.evidence)
    return weights, average


def blend_weights(
    log_own: np.ndarray, weight: np.ndarray, prior_rows: float = _PRIOR_ROWS
) -> np.ndarray:
    """(M,) by EM, of the chances, in logs (M, n), that models gave to the answers of rows."""
    rows = 0.5 * len(weight)  # every row stands here twice, whole and with holes
    behind, share = log_own - log_own.max(0), weight / weight.sum() * rows
    own, gain = np.exp(behind), _SHARE * (behind @ share)
    prior = softmax(np.maximum(gain, gain.max() - _DEEPEST))
    found = np.full(len(own), 1.0 / len(own))
    for _ in range(_STEPS):
        joint = found[:, None] * own
        occupancy = joint / np.maximum(joint.sum(0), 1e-300)
        found = (occupancy @ share + prior_rows * prior) / (rows + prior_rows)
        found = found / found.sum()
    return found
