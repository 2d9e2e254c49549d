"""How much each of several models has a say, by what they said of held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import softmax

from mixtura.models.fitted import log_average
from mixtura.selection.held_out import Answers, Averages

#: Rows of evidence for the weights that models deserve each by itself, were so small a share of
#: the rows known; how far apart these may be, in logs; steps of EM that find the best weights.
_PRIOR_ROWS, _SHARE, _DEEPEST, _STEPS = 20.0, 0.05, 30.0, 100


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
