"""What models say of rows they were not trained on: it decides between them, and calibrates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.sequences import AnyBatch
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine, Punched, is_copy
from mixtura.engines.base import HasRowCost
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import AnyModel
from mixtura.models.mixture import Mixture
from mixtura.models.summarized import Summarized
from mixtura.numerics import one_thread
from mixtura.solvers.small import small_log_joint

_LARGEST_DOUBT = 0.5
#: Of the log temperature, the fade, and the log odds of doubt against the largest one.
_BOUNDS = ((-3.0, 8.0), (0.0, 3.0), (-30.0, 30.0))
_TINY = np.finfo(float).tiny
#: Share of the loss by which less is not worth a step to a better calibration.
_TOL = 1e-7
#: Held-out rows are judged whole and with so many holes: as they may come.
HOLES = 0.3
#: A gain is clear if it is more than so many standard errors, and so many nats per row. Holes at
#: random pass either in a few of a hundred comparisons, and both hardly ever.
_CLEAR, WORTH = 2.0, 0.02
#: A loss is larger for good by so many standard errors of so many rows: those of fewer are rough.
_FAR, _FEWEST_FAR = 4.0, 25


@dataclass(frozen=True)
class HeldOut(ABC):
    """Held-out rows, each as it is and with random holes, and what a model makes of them.

    Attributes
    ----------
    weight : (n,) of the rows.
    punched : (n,) whether random holes were punched into the row.
    """

    weight: np.ndarray
    punched: np.ndarray

    @abstractmethod
    def losses(self) -> np.ndarray:
        """(n,) losses."""

    @classmethod
    def pool(cls, parts: list[Self]) -> Self:
        """The rows of several models together."""
        names = [entry.name for entry in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.weight)

    @cached_property
    def loss(self) -> float:
        """The mean by weight; infinite where it is no number."""
        mean = float(self.weight @ self.losses()) / float(self.weight.sum())
        return mean if np.isfinite(mean) else np.inf

    def beats(self, other: HeldOut) -> bool:
        """Whether the loss of the same rows is smaller."""
        return self.loss < other.loss

    def clearly_beats(self, other: HeldOut) -> bool:
        """Whether rows as they are gain clearly, and those with punched holes do not lose."""
        mine, theirs = self._both(self.losses()), other._both(other.losses())
        gain, weight = theirs - mine, self._both(self.weight)
        if not np.isfinite(gain).all():
            return False
        mean, error = mean_and_error(gain[0], weight[0])
        return mean > max(_CLEAR * error, WORTH) and float(weight[1] @ gain[1]) >= 0.0

    def surely_beats(self, other: HeldOut) -> bool:
        """Whether losses (and errors) fall by more than their standard error over rows.

        The two copies of a row, whole and with holes, are one piece of evidence here.
        """
        return self._falls(self._both(self.losses()), other._both(other.losses()))

    def far_behind(self, other: HeldOut) -> bool:
        """Whether the loss is larger by so many standard errors that others will hardly turn it."""
        if not np.isfinite([self.loss, other.loss]).all():
            return self.loss > other.loss
        enough = len(self) >= 2 * _FEWEST_FAR
        mine, theirs = self._both(self.losses()), other._both(other.losses())
        return enough and self._falls(theirs, mine, _FAR)

    def _both(self, values: np.ndarray) -> np.ndarray:
        """(2, n / 2) values of rows as they are, and with holes, in the order of the rows.

        Models are asked for chunks of rows, of a length that depends on them: each has its rows
        and its copies in an order of its own.
        """
        return np.stack([values[~self.punched], values[self.punched]])

    def _falls(self, to: np.ndarray, of: np.ndarray, n_errors: float = 1.0) -> bool:
        """Whether means (2, n / 2) of rows and copies fall by more than so many errors."""
        mean, error = mean_and_error((of - to).mean(0), self._both(self.weight).mean(0))
        return mean > max(n_errors * error, 1e-9)


def with_holes(
    held_out: Engine[AnyBatch],
    generator: torch.Generator,
    model: HasRowCost,
    chunk: int | None = None,
) -> Iterator[AnyBatch]:
    """Held-out rows, each beside a copy with holes; so many at a time, or as memory allows."""
    engine = held_out.seen(Punched(HOLES, generator))
    return engine.chunks(chunk or engine.chunk_rows(model))


@dataclass(frozen=True)
class Losses(HeldOut):
    """Losses that need no calibration, (n,): squared errors, or minus log densities."""

    values: np.ndarray

    @classmethod
    def of(cls, batches: Iterable[AnyBatch], losses: Callable[[AnyBatch], Tensor]) -> Losses:
        """Those (n,) of batches of rows that stand beside copies of themselves with holes."""
        parts = []
        for batch in batches:
            with torch.no_grad():
                tensors = batch.weight.double(), is_copy(batch), losses(batch).double()
            parts.append(cls(*(tensor.cpu().numpy() for tensor in tensors)))
        return cls.pool(parts)

    def losses(self) -> np.ndarray:
        return self.values


class Expected(NamedTuple):
    """What is expected of calibrations before any row is held out.

    Widths are those of the priors of the log temperature and the fade; `doubt` rows are evidence
    for a little doubt: enough to keep a handful of held-out rows from claiming certainty.
    """

    log_temperature: float
    widths: tuple[float, float]
    doubt: float


@dataclass(frozen=True)
class Answers(HeldOut):
    """Class log-joints; their loss is minus the calibrated log probability of the label.

    Attributes
    ----------
    class_log_joint : (n, C).
    missing : (n,) share of the features that the model could not see.
    y : (n,) labels.
    evidence : (n, C) what the entries that rows lack tell of the classes, where training counted on
        that: the model alone does not say it.
    frames : (m,) numbers of frames of rows that are sequences, where log-joints are sums over them.
        They depend on each other, so that sums are expected to be too large by the square root.
    """

    class_log_joint: np.ndarray
    missing: np.ndarray
    y: np.ndarray
    evidence: np.ndarray
    frames: np.ndarray = field(default_factory=lambda: np.ones(1))
    expected: ClassVar[Expected] = Expected(0.0, (3.0, 0.5), 0.5)

    @classmethod
    def of(
        cls,
        model: AnyModel,
        held_out: Engine,
        generator: torch.Generator,
        evidence: HoleEvidence | None = None,
        chunk: int | None = None,
    ) -> Answers:
        """What the model says of held-out rows, whole and with holes.

        So many rows (or frames) at a time: models of different kinds see the same holes, and rows
        in the same order, if that is the same. None leaves it to the memory that the model takes.
        """
        model = model.to(held_out.device)
        parts = []
        for batch in with_holes(held_out, generator, model, chunk):
            asked, joint = batch.for_prediction(), None
            if isinstance(model, Mixture) and isinstance(asked, Batch):
                joint = small_log_joint(model, asked)
            joint = model.class_log_joint(asked).double() if joint is None else joint
            by_holes = torch.zeros_like(joint)
            if evidence is not None:
                by_holes = evidence.to(joint.device).log_prob(hole_patterns(batch))
            known = batch.weight.double(), is_copy(batch)
            terms = 1.0 if isinstance(model, Summarized) else len(batch.x) / len(batch)
            frames = joint.new_full((len(batch),), terms)
            tensors = (*known, joint, batch.missing_share(), batch.y, by_holes, frames)
            parts.append(cls(*(tensor.cpu().numpy() for tensor in tensors)))
        return cls.pool(parts)

    def losses(self) -> np.ndarray:
        return self.losses_under(self.calibration)

    def losses_under(self, calibration: Calibration) -> np.ndarray:
        """(n,) minus the log probability of each label."""
        return -self._log_proba(calibration)[np.arange(len(self)), self.y]

    def _log_proba(self, calibration: Calibration) -> np.ndarray:
        given = self.class_log_joint, self.missing, self.evidence
        return calibration.log_proba(*map(torch.from_numpy, given)).numpy()

    @property
    def wrong(self) -> np.ndarray:
        """(n,) whether another class is more probable than the label."""
        return self._log_proba(self.calibration).argmax(1) != self.y

    def alone(self) -> Self:
        """What the model says by itself."""
        return replace(self, evidence=np.zeros_like(self.evidence))

    @property
    def holes_tell(self) -> bool:
        """Whether evidence lowers the losses of rows as they are, by more than its error.

        By half of what a clear gain is, at least: a model of holes would not gain it elsewhere.
        """
        gain, whole = self.alone().losses() - self.losses(), ~self.punched
        mean, error = mean_and_error(gain[whole], self.weight[whole])
        return mean > max(error, 0.5 * WORTH)

    def clearly_beats(self, other: HeldOut) -> bool:
        """Whether it does, each by itself."""
        assert isinstance(other, Answers)
        return HeldOut.clearly_beats(self.alone(), other.alone())

    def surely_beats(self, other: HeldOut) -> bool:
        assert isinstance(other, Answers)
        mine, theirs = self._both(self.wrong.astype(float)), other._both(other.wrong.astype(float))
        fewer = bool((mine == theirs).all()) or self._falls(mine, theirs)
        return fewer and super().surely_beats(other)

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration under which the labels are most probable, a little prior included."""
        starts = [np.array([start, 1.0, -3.0]) for start in (0.0, 2.0, 4.0)]
        start = min(starts, key=lambda point: self._loss_and_slope(point)[0])
        with one_thread(self.class_log_joint.size):
            options = {"bounds": _BOUNDS, "options": {"ftol": _TOL}}
            found = minimize(self._loss_and_slope, start, jac=True, method="L-BFGS-B", **options)
        log_temperature, fade, odds = found.x
        return Calibration(
            temperature=float(np.exp(log_temperature)),
            doubt=float(_LARGEST_DOUBT * expit(odds)),
            fade=float(fade),
        )

    @cached_property
    def _fixed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """What does not depend on calibration: log shares of features that are seen, rows that show
        none, what rows count, places of labels."""
        nothing = self.missing >= 1.0
        log_seen = np.log(np.where(nothing, 1.0, 1.0 - self.missing))
        # Every row stands here twice. Rows are the evidence, whatever their weights sum to.
        share = 0.5 * len(self) / float(self.weight.sum()) * self.weight
        return log_seen, nothing, share, (np.arange(len(self)), self.y)

    def _loss_and_slope(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss of the rows, and its derivatives by log temperature, fade, and log odds of doubt."""
        log_temperature, fade, odds = point
        joint, (log_seen, nothing, share, at) = self.class_log_joint, self._fixed
        reach = np.exp(fade * log_seen)
        reach[nothing] = 0.0 if fade > 0.0 else 1.0
        logits = joint * np.exp(-log_temperature * reach)[:, None]
        chance = logits + self.evidence
        chance = np.exp(chance - chance.max(1, keepdims=True))
        chance /= chance.sum(1, keepdims=True)
        own, doubt = chance[at], _LARGEST_DOUBT * expit(odds)
        found = np.maximum((1.0 - doubt) * own + doubt / joint.shape[1], _TINY)
        by_log = share * (1.0 - doubt) * own / found
        by_log = by_log * (logits[at] - np.einsum("nc,nc->n", chance, logits))
        middle, widths, rows = self.expected
        off = (point[:2] - [middle + 0.5 * np.log(self.frames.mean()), 1.0]) / widths
        loss = share @ -np.log(found) + 0.5 * off @ off - rows * np.log(doubt)
        by_doubt = share @ ((own - 1.0 / joint.shape[1]) / found) - rows / doubt
        slope = [by_log @ reach, log_temperature * (by_log @ (reach * log_seen))]
        by_odds = by_doubt * doubt * (1.0 - doubt / _LARGEST_DOUBT)
        return float(loss), np.array([*(slope + off / widths), by_odds])


class Averages(Answers):
    """Answers of models that are calibrated, averaged: these are less sure than they might be.

    Such averages differ less from one table to the next than single models do, so that more is
    expected of them.
    """

    expected = Expected(-0.3, (0.5, 1.5), 0.2)


def mean_and_error(gain: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The weighted mean of (n,) gains, and its standard error."""
    share = weight / weight.sum()
    mean = float(share @ gain)
    return mean, float(np.sqrt(share @ (gain - mean) ** 2 * (share @ share)))
