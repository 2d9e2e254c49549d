"""Predicted numbers as distributions: moments, quantiles, tails and intervals. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Generic, TypeVar

import numpy as np

from mixtura.constants import LOG_2PI
from mixtura.data.given import ArrayLike
from mixtura.data.indicators import Indicators
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.data.trees import Trees
from mixtura.exceptions import InvalidInputError

#: So many deviations below its mean the logs of a normal's chances are a series; its terms.
_FAR, _SERIES = 20.0, (105.0, -15.0, 3.0, -1.0, 0.0)
#: Logs of chances between which numbers are sought that have them.
_LEAST, _HALF = -1e100, math.log(0.5)
#: Most steps to a number of a given chance, and the last one's length in deviations.
_STEPS, _LAST = 100, 1e-12
#: Rows that are asked of at a time.
_AT_ONCE = 2**16


def log_normal_below(off: np.ndarray) -> np.ndarray:
    """Logs of the chances that a standard normal is less, also where these underflow."""
    away = (np.abs(off) / math.sqrt(2.0)).ravel().tolist()
    near = 0.5 * np.fromiter(map(math.erfc, away), np.float64, len(away)).reshape(off.shape)
    far = np.minimum(off, -_FAR)
    series = np.log1p(np.polyval(_SERIES, far**-2.0)) - np.log(-far)
    with np.errstate(divide="ignore"):  # what underflows is far
        close = np.where(off > 0.0, np.log1p(-near), np.log(near))
    return np.where(off < -_FAR, series - 0.5 * (far**2 + LOG_2PI), close)


@dataclass(frozen=True)
class Predictive:
    """Mixtures of Gaussians over each of T numbers, one per row.

    Attributes
    ----------
    log_share : (n, K).
    mean, deviation : (n, K, T) of the components; (1, K, T) where they are those of every row.
    """

    log_share: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, found: np.ndarray, location: np.ndarray, scale: np.ndarray) -> Predictive:
        """What `conditional` has found, of targets with this location and scale (T,)."""
        share, (mean, deviation) = found[..., 0], np.split(found[..., 1:], 2, axis=2)
        return cls(share, mean * scale + location, np.exp(deviation) * scale)

    @classmethod
    def average(cls, parts: Sequence[Predictive], weights: np.ndarray) -> Predictive:
        """The mixture of what several models say, by weights (M, n)."""
        with np.errstate(divide="ignore"):  # who has no say
            log_weight = np.log(weights)[..., None]
        share = [each.log_share + w for each, w in zip(parts, log_weight, strict=True)]
        mean, deviation = ([getattr(p, name) for p in parts] for name in ("mean", "deviation"))
        return cls(*(np.concatenate(each, axis=1) for each in (share, mean, deviation)))

    def expected(self) -> np.ndarray:
        """(n, T) means."""
        return np.einsum("nk,nkt->nt", np.exp(self.log_share), self.mean)

    def std(self) -> np.ndarray:
        """(n, T) standard deviations."""
        return self.moments()[..., 1]

    def moments(self) -> np.ndarray:
        """(n, T, 2) means and standard deviations."""
        mean = self.expected()
        squares = self.deviation**2 + (self.mean - mean[:, None]) ** 2
        variance = np.einsum("nk,nkt->nt", np.exp(self.log_share), squares)
        return np.stack([mean, np.sqrt(variance)], axis=2)

    def log_tail(self, y: np.ndarray, upper: bool) -> np.ndarray:
        """(n, T) logs of the chances of more than y (n, T), or of less."""
        off = (y[:, None] - self.mean) / self.deviation
        own = log_normal_below(-off if upper else off)
        return np.logaddexp.reduce(self.log_share[..., None] + own, axis=1)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """(n, T) at numbers y (n, T)."""
        off = (y[:, None] - self.mean) / self.deviation
        own = -0.5 * (off**2 + LOG_2PI) - np.log(self.deviation)
        return np.logaddexp.reduce(self.log_share[..., None] + own, axis=1)

    def beyond(self, log_tail: np.ndarray, upper: bool) -> np.ndarray:
        """(n, T) numbers of which there is no more than such a chance (n, T) of larger ones.

        Of smaller ones, where `upper` is False. By Newton's steps for the logs, in which tails are
        accurate; a bracket is halved where a step leaves it, or is no half of the last but one.
        """
        sign = 1.0 if upper else -1.0
        # Beyond z deviations of a component lies less than exp(-z * z / 2) of it.
        reach = np.sqrt(np.maximum(-2.0 * log_tail, 0.0))[:, None] * self.deviation
        high = (sign * self.mean + reach).max(1)
        low = (sign * self.mean - 40.0 * self.deviation).min(1)
        at, width = np.clip(sign * self.expected() + self.std(), low, high), high - low
        for _ in range(_STEPS):
            more = self.log_tail(sign * at, upper) - log_tail
            low, high = np.where(more > 0.0, at, low), np.where(more > 0.0, high, at)
            with np.errstate(over="ignore", invalid="ignore"):  # where there are no numbers
                step = more * np.exp(log_tail + more - self.log_density(sign * at))
            least = self.deviation.min(1) * _LAST + 4.0 * np.spacing(np.abs(at))
            inside = (at + step > low) & (at + step < high) & (2.0 * np.abs(step) < width)
            done = np.abs(step) <= least
            step = np.where(inside | done, step, 0.5 * low + 0.5 * high - at)
            at, width = at + step, np.abs(step)
            if done.all():
                break
        return sign * at

    def rarity(self, y: np.ndarray) -> np.ndarray:
        """(n, T) logs of the chances of what lies beyond y (n, T), on its side."""
        with np.errstate(invalid="ignore"):  # where a target is not known
            return np.minimum(*(self.log_tail(y, upper) for upper in (False, True)))

    def interval(self, least: np.ndarray) -> np.ndarray:
        """(n, T, 2) between which numbers have a `rarity` of at least (n, T)."""
        nowhere, chance = np.isneginf(least), least.clip(_LEAST, _HALF)
        ends = [np.where(nowhere, end, self.beyond(chance, end > 0.0)) for end in (-np.inf, np.inf)]
        return np.stack(ends, axis=2)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(n, T, Q) what a share (Q,) of the numbers will not exceed."""
        tails = np.log(np.minimum(shares, 1.0 - shares))
        like = np.ones_like(self.expected())
        ends = [self.beyond(t * like, q > 0.5) for q, t in zip(shares, tails, strict=True)]
        return np.stack(ends, axis=2)


def in_parts(ask: Callable[..., np.ndarray], rows: Matrix, *beside: np.ndarray) -> np.ndarray:
    """What is asked of rows, and of what stands beside each, some at a time.

    Distributions have some hundred numbers per row: those of very many rows would fill memory.
    """
    parts = (slice(start, start + _AT_ONCE) for start in range(0, len(rows), _AT_ONCE))
    return np.concatenate([ask(rows.take(p), *(each[p] for each in beside)) for p in parts])


def check_quantiles(quantiles: ArrayLike) -> np.ndarray:
    """(Q,) shares between zero and one."""
    try:
        shares = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    except (TypeError, ValueError):
        shares = np.zeros(0)
    if shares.ndim != 1 or not len(shares) or not ((shares > 0.0) & (shares < 1.0)).all():
        raise InvalidInputError(f"quantiles must be shares between 0 and 1, got {quantiles!r}.")
    return shares


#: A fitted model, which has in its `blend` those that are averaged with it.
AnyFitted = TypeVar("AnyFitted")


def members_of(fitted: AnyFitted) -> list[AnyFitted]:
    """All models that are averaged."""
    blend = fitted.blend  # type: ignore[attr-defined]
    return [fitted, *(() if blend is None else blend.members)]


def weights_of(fitted: AnyFitted) -> np.ndarray:
    """(M,) how much say each has."""
    blend = fitted.blend  # type: ignore[attr-defined]
    return np.ones(1) if blend is None else blend.weights


def trees_of(fitted: AnyFitted) -> list[Trees | None]:
    """What stands beside the columns of each of the models that are averaged."""
    units = [each.scaling.indicators for each in members_of(fitted)]  # type: ignore[attr-defined]
    return [each if isinstance(each, Trees) else None for each in units]


def say_of(fitted: AnyFitted, values: np.ndarray) -> np.ndarray:
    """(M, n) how much say each has on rows (n, D): none beside trees that do not tell."""
    told = [True if each is None else each.told(values) for each in trees_of(fitted)]
    share = np.stack(
        [
            w * np.broadcast_to(each, len(values))
            for w, each in zip(weights_of(fitted), told, strict=True)
        ]
    )
    return share / share.sum(0)


def of_features(fitted: AnyFitted) -> tuple[list[AnyFitted], np.ndarray]:
    """The models that know features by themselves, and how much say they have."""
    plain = [each is None for each in trees_of(fitted)]
    share = weights_of(fitted)[plain]
    return [*compress(members_of(fitted), plain)], share / share.sum()


@dataclass(frozen=True)
class FeaturesAndTargets(Generic[AnyFitted]):
    """Models of the features, as numbers, and of the targets, which are the last columns.

    Attributes
    ----------
    fitted : a mixture, others that are averaged with it, the units of their columns, and rows that
        are held back.
    schema : names and categories of the columns that users pass.
    indicators : the features as numbers.
    n_targets : how many targets there are.
    flat : whether they were given, and are to be answered, as (n,).
    reach : (2, P) between which features, as numbers, predictions of targets follow them.
    """

    fitted: AnyFitted
    schema: Schema
    indicators: Indicators
    n_targets: int
    flat: bool
    reach: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    @property
    def n_columns(self) -> int:
        """How many columns rows of features have."""
        return self.indicators.n_columns

    def whole(self, rows: Matrix, y: np.ndarray | None = None) -> Matrix:
        """Rows of features, as numbers, beside targets (n, T); none are known unless given."""
        missing = np.full((len(rows), self.n_targets), np.nan)
        return Matrix(self.indicators.beside(rows.values, missing if y is None else y))

    def near(self, rows: Matrix) -> Matrix:
        """The same, targets unknown, with numbers no farther out than predictions follow them."""
        return self.whole(rows).within(self.reach)

    def checked(self, rows: Matrix) -> Matrix:
        """The rows; a warning says where numbers lie farther out."""
        column, then = self.indicators.column, "predictions are those for the nearest"
        self.schema.tell_far(self.whole(rows).values, self.reach, column, then)
        return rows
