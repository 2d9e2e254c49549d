"""Probabilities that can be trusted: calibration on rows the training did not see."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from mixtura.engines import Engine, PunchedEngine, is_copy
from mixtura.models.mixture import Mixture

_LARGEST_DOUBT = 0.5
_LOG_TEMPERATURES, _FADES = (-3.0, 8.0), (0.0, 3.0)
#: Widths of the priors of the log temperature and the fade, and rows of evidence for a little
#: doubt: enough to keep a handful of held-back rows from claiming certainty.
_PRIOR_WIDTHS, _PRIOR_DOUBT = np.array([3.0, 0.5]), 0.5
#: Held-back rows are judged whole and with so many holes: as they may be met.
HOLES = 0.3
#: A gain is clear if it is more than so many standard errors, and so many nats per row. Holes at
#: random pass either in a few of a hundred comparisons, and both hardly ever.
_CLEAR, _WORTH = 2.0, 0.02


@dataclass(frozen=True)
class Calibration:
    """p = (1 - doubt) softmax(J / T) + doubt / C, which leaves the decisions alone.

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


@dataclass(frozen=True)
class Unseen:
    """What a model says of rows it was not trained on.

    Attributes
    ----------
    class_log_joint : (n, C).
    missing : (n,) share of the features that the model could not see.
    y, weight : (n,) labels and weights.
    punched : (n,) whether random holes were punched into the row; every row stands here as it is
        and with such holes.
    """

    class_log_joint: np.ndarray
    missing: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    punched: np.ndarray

    @classmethod
    def judged(cls, mixture: Mixture, held_back: Engine, generator: torch.Generator) -> Unseen:
        """Held-back rows as the mixture would meet them, whole and with holes."""
        mixture = mixture.to(held_back.device)
        engine = PunchedEngine(held_back, HOLES, generator)
        parts = []
        for batch in engine.chunks(engine.chunk_rows(mixture)):
            joint = mixture.class_log_joint(batch.as_met())
            missing = batch.missing_share()
            tensors = (joint.double(), missing, batch.y, batch.weight.double(), is_copy(batch))
            parts.append(cls(*(tensor.cpu().numpy() for tensor in tensors)))
        return cls.pool(parts)

    @classmethod
    def pool(cls, parts: list[Unseen]) -> Unseen:
        """The rows of several models together."""
        names = [entry.name for entry in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.y)

    def losses(self, calibration: Calibration) -> np.ndarray:
        """(n,) minus the log probability of each label."""
        log_proba = calibration.log_proba(self.class_log_joint, self.missing)
        return -log_proba[np.arange(len(self)), self.y]

    def log_loss(self, calibration: Calibration) -> float:
        """Minus the summed log probability of the labels."""
        return float(self.weight @ self.losses(calibration))

    def beats(self, other: Unseen) -> bool:
        """Whether the labels of the same rows are more probable."""
        return self.calibrated_loss() < other.calibrated_loss()

    def clearly_beats(self, other: Unseen) -> bool:
        """Whether they are so by `clear_gain`."""
        gain = other.losses(other.calibrate()) - self.losses(self.calibrate())
        return clear_gain(gain, self.punched, self.weight)

    def surely_beats(self, other: Unseen) -> bool:
        """Whether loss and errors are smaller by more than their standard errors over rows.

        The two copies of a row, whole and with holes, are one piece of evidence here.
        """
        gain = other.losses(other.calibrate()) - self.losses(self.calibrate())
        saved = other.wrong.astype(float) - self.wrong
        gain, saved, weight = (
            0.5 * (each[~self.punched] + each[self.punched]) for each in (gain, saved, self.weight)
        )
        fewer = not saved.any() or exceeds_its_error(saved, weight)
        return fewer and exceeds_its_error(gain, weight)

    @property
    def wrong(self) -> np.ndarray:
        """(n,) whether another class is more probable than the label."""
        return self.class_log_joint.argmax(1) != self.y

    def calibrated_loss(self) -> float:
        """Mean log-loss after calibration."""
        return self.log_loss(self.calibrate()) / float(self.weight.sum())

    def calibrate(self) -> Calibration:
        """The calibration under which the labels are most probable."""

        def unpack(point: np.ndarray) -> Calibration:
            return Calibration(
                temperature=float(np.exp(np.clip(point[0], *_LOG_TEMPERATURES))),
                doubt=float(_LARGEST_DOUBT * expit(point[2])),
                fade=float(np.clip(point[1], *_FADES)),
            )

        def loss(point: np.ndarray) -> float:
            found = unpack(point)
            prior = 0.5 * np.square((point[:2] - [0.0, 1.0]) / _PRIOR_WIDTHS).sum()
            prior -= _PRIOR_DOUBT * np.log(found.doubt + 1e-300)
            return rows_per_weight * self.log_loss(found) + prior

        # Every row stands here twice. Rows are the evidence, whatever their weights sum to.
        rows_per_weight = 0.5 * len(self) / float(self.weight.sum())
        starts = [np.array([start, 1.0, -3.0]) for start in (0.0, 2.0)]
        found = [minimize(loss, start, method="Nelder-Mead") for start in starts]
        return unpack(min(found, key=lambda result: result.fun).x)


def clear_gain(gain: np.ndarray, punched: np.ndarray, weight: np.ndarray) -> bool:
    """Whether held-back rows gain clearly as they are, and do not lose where holes are punched.

    Parameters
    ----------
    gain, punched, weight : (n,) what each row gains, whether it has punched holes, and its weight.
    """
    mean, error = mean_and_error(gain[~punched], weight[~punched])
    return mean > max(_CLEAR * error, _WORTH) and float(weight[punched] @ gain[punched]) >= 0.0


def exceeds_its_error(gain: np.ndarray, weight: np.ndarray) -> bool:
    """Whether a weighted mean (of n rows) is above zero by more than its standard error."""
    mean, error = mean_and_error(gain, weight)
    return mean > max(error, 1e-9)


def mean_and_error(gain: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The weighted mean of (n,) gains, and its standard error."""
    share = weight / weight.sum()
    mean = float(share @ gain)
    return mean, float(np.sqrt(share @ (gain - mean) ** 2 * (share @ share)))
