"""What mixtures over features and targets say of the targets, given the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import log_ndtr, logsumexp
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.given import ArrayLike
from mixtura.data.targets import without_targets
from mixtura.densities.gaussian import Gaussian
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.mixture import Mixture
from mixtura.numerics import LOG_2PI

#: Halvings of a bracket: what is left of it is rounding.
_HALVINGS = 60


def log_conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n,) log density of the targets that are observed, given the features."""
    known = without_targets(batch, n_targets)
    return (mixture.outputs(batch) - mixture.outputs(known))[:, 0]


def conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n, K, 1 + 2 T) what each component says of the targets, given the features.

    Log shares of the components, means and log deviations. A conditional variance is a ratio of
    determinants, which stand in the log densities at the means.
    """
    known, part = without_targets(batch, n_targets), mixture.density
    if not isinstance(part, Gaussian):
        raise UnsupportedError(
            f"{type(part).__name__} is no Gaussian, and what it says of some columns given others "
            "has no closed form: use a density of Gaussians, such as 'full' or 'low_rank'."
        )
    assert known.observed is not None
    share = mixture.log_joint(known).log_softmax(1)
    mean, without = part.expected(known)[..., -n_targets:], part.distances(known)[1]
    log_deviation = []
    for place in range(-n_targets, 0):
        observed = known.observed.clone()
        observed[:, place] = True
        beside = part.distances(Batch(known.x, observed, known.y, known.weight))[1]
        log_deviation.append(without - beside - 0.5 * LOG_2PI)
    return torch.cat([share[..., None], mean, torch.stack(log_deviation, 2)], 2)


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
        """The mixture of what several models say, by weights (M,)."""
        share = [each.log_share + np.log(w) for each, w in zip(parts, weights, strict=True)]
        mean, deviation = ([getattr(p, name) for p in parts] for name in ("mean", "deviation"))
        return cls(*(np.concatenate(each, axis=1) for each in (share, mean, deviation)))

    def expected(self) -> np.ndarray:
        """(n, T) means."""
        return np.einsum("nk,nkt->nt", np.exp(self.log_share), self.mean)

    def std(self) -> np.ndarray:
        """(n, T) standard deviations."""
        off = self.mean - self.expected()[:, None]
        squares = self.deviation**2 + off**2
        return np.sqrt(np.einsum("nk,nkt->nt", np.exp(self.log_share), squares))

    def log_tail(self, y: np.ndarray, upper: bool) -> np.ndarray:
        """(n, T) logs of the chances of more than y (n, T), or of less."""
        off = (y[:, None] - self.mean) / self.deviation
        return logsumexp(self.log_share[..., None] + log_ndtr(-off if upper else off), axis=1)

    def beyond(self, log_tail: np.ndarray, upper: bool) -> np.ndarray:
        """(n, T) numbers of which there is no more than such a chance (n, T) of larger ones.

        Of smaller ones, where `upper` is False. By halving: tails are accurate in logs.
        """
        sign = 1.0 if upper else -1.0
        # Beyond z deviations of a component lies less than exp(-z * z / 2) of it.
        reach = np.sqrt(np.maximum(-2.0 * log_tail, 0.0))[:, None] * self.deviation
        high = (sign * self.mean + reach).max(1)
        low = (sign * self.mean - 40.0 * self.deviation).min(1)
        for _ in range(_HALVINGS):
            middle = 0.5 * low + 0.5 * high
            inside = self.log_tail(sign * middle, upper) > log_tail
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return sign * high

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(n, T, Q) what a share (Q,) of the numbers will not exceed."""
        tails = np.log(np.minimum(shares, 1.0 - shares))
        like = np.ones_like(self.expected())
        ends = [self.beyond(t * like, q > 0.5) for q, t in zip(shares, tails, strict=True)]
        return np.stack(ends, axis=2)


def check_quantiles(quantiles: ArrayLike) -> np.ndarray:
    """(Q,) shares between zero and one."""
    shares = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if shares.ndim != 1 or not ((shares > 0.0) & (shares < 1.0)).all():
        raise InvalidInputError(f"quantiles must lie between 0 and 1, got {quantiles!r}.")
    return shares
