"""Losses and gradients of small problems in NumPy: PyTorch's overhead would be most of the time.

Of rows that are complete, or lack their targets, and Gaussians, or Student's t, of any kind that
has explicit derivatives; the loss of class log-joints stays the objective's own. Arrays over rows
have these last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.special import expit, gammaln, psi

from mixtura.constants import LOG_2PI
from mixtura.data.tables import Batch
from mixtura.densities import Density
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.student import LEAST_DOF, MOST_DOF, StudentT
from mixtura.engines import ContrastEngine, Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.numerics import lowest_log
from mixtura.objectives import Conditional, Hybrid, Margin, Objective
from mixtura.solvers.base import SpreadPrior
from mixtura.solvers.gradients import Function

#: Numbers held in memory for all rows, up to which overhead is what costs.
_SMALL = 1_000_000
_LOWEST = lowest_log(torch.float64)

Arrays = dict[str, np.ndarray]
#: A parameter: its name, its place in a problem's vector, the shape of all of it.
_Named = tuple[str, slice, torch.Size]
#: Losses (P, n) of class log-joints (P, C, n), and derivatives by these.
_LossAndSlope = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class _Imagined:
    """The rows of a prior, none without one; their spread is (..., D) or (..., D, D)."""

    def __init__(self, prior: SpreadPrior | None) -> None:
        self.rows = 0.0 if prior is None else prior.rows
        self.spread = np.zeros(1) if prior is None else prior.reference.numpy()


class _Gaussians(ABC):
    """K Gaussians of n rows, as functions of their free parameters by name."""

    def __init__(self, x: np.ndarray, imagined: _Imagined) -> None:
        self.x, self.imagined = x, imagined

    @abstractmethod
    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances (K, n), and log densities at the means (K, 1)."""

    @abstractmethod
    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        """Derivatives of minus half of distances and log determinants, imagined rows included.

        Of the former by shares of real rows (K, n), of the latter by the number of rows (K,).
        """

    @abstractmethod
    def log_prior(self) -> np.ndarray:
        """(K,) log densities of the imagined rows, up to a constant."""

    def log_prob(self, free: Arrays) -> np.ndarray:
        """(K, n) log densities."""
        squared, peak = self.distances(free)
        return peak - 0.5 * squared

    def slope(self, occupancy: np.ndarray) -> Arrays:
        """Derivatives of log densities, weighted by occupancies (K, n), imagined rows included."""
        return self.slope_of(occupancy, occupancy.sum(1))


class _LowRank(_Gaussians):
    """Covariance = diagonal + low rank, of rank zero where features are independent."""

    def __init__(
        self, density: DiagonalGaussian | LowRankGaussian, x: np.ndarray, imagined: _Imagined
    ) -> None:
        super().__init__(x, imagined)
        self._floor, self._with_squares = density.floor, np.concatenate([x, x * x], 1)
        self._name, self._eye = "raw_variance", np.eye(0)
        if isinstance(density, LowRankGaussian):
            self._name, self._eye = "raw_diagonal", np.eye(density.rank)

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        mean, size = free["mean"], self.x.shape[1]
        diagonal = self._floor + np.logaddexp(0.0, free[self._name])
        weight = 1.0 / diagonal
        moment, log_det = weight * mean, np.log(diagonal).sum(1)
        squared = np.concatenate([-2.0 * moment, weight], 1) @ self._with_squares.T
        squared += (moment * mean).sum(1)[:, None]
        if len(self._eye):
            loading = free["loading"]
            scaled = loading * weight[:, None]
            gram = scaled @ loading.swapaxes(1, 2) + self._eye
            inverse = np.linalg.inv(gram)
            projected = (scaled.reshape(-1, size) @ self.x.T).reshape(*scaled.shape[:2], -1)
            projected -= scaled @ mean[..., None]
            latent = inverse @ projected
            squared -= (projected * latent).sum(1)
            log_det = log_det + np.linalg.slogdet(gram)[1]
            self._factors = loading, scaled, inverse, latent
        self._diagonal, self._mean, self._weight = diagonal, mean, weight
        return squared, -0.5 * (log_det + size * LOG_2PI)[:, None]

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        mean, weight, mass = self._mean, self._weight, share.sum(1)[:, None]
        sums, size = share @ self._with_squares, self.x.shape[1]
        first, second = sums[:, :size], sums[:, size:]
        away = first - mass * mean
        by_mean = weight * away
        by_weight = (rows[:, None] + self.imagined.rows) / weight
        by_weight -= second - mean * (first + away) + self.imagined.rows * self.imagined.spread
        by_weight *= 0.5
        found = {}
        if len(self._eye):
            loading, scaled, inverse, latent = self._factors
            pull = share[:, None] * latent
            total = pull.sum(2)[..., None]
            by_gram = -0.5 * (pull @ latent.swapaxes(1, 2) + rows[:, None, None] * inverse)
            by_factors = by_gram @ loading
            by_scaled = (pull.reshape(-1, pull.shape[2]) @ self.x).reshape(loading.shape)
            by_scaled += by_factors - total * mean[:, None]
            by_weight += (by_scaled * loading).sum(1)
            by_mean = by_mean - (total.swapaxes(1, 2) @ scaled)[:, 0]
            found["loading"] = (by_scaled + by_factors) * weight[:, None]
        rate = np.expm1(self._floor - self._diagonal) * weight * weight
        return {"mean": by_mean, self._name: by_weight * rate, **found}

    def log_prior(self) -> np.ndarray:
        spread = np.log(self._diagonal) + self.imagined.spread * self._weight
        return -0.5 * self.imagined.rows * spread.sum(1)


class _Full(_Gaussians):
    """Any covariance, by its Cholesky factor."""

    def __init__(self, density: FullGaussian, x: np.ndarray, imagined: _Imagined) -> None:
        super().__init__(x, imagined)
        self._floor, self._eye = density._smallest_pivot, np.eye(x.shape[1])

    def distances(self, free: Arrays) -> tuple[np.ndarray, np.ndarray]:
        size = self.x.shape[1]
        self._pivots = self._floor + np.logaddexp(0.0, free["raw_diagonal"])
        factor = np.tril(free["below"], -1) + self._pivots[..., None] * self._eye
        self._half = half = np.linalg.inv(factor)
        away = (half.reshape(-1, size) @ self.x.T).reshape(*half.shape[:2], -1)
        away -= half @ free["mean"][..., None]
        self._away, self._log_det = away, 2.0 * np.log(self._pivots).sum(1)
        return (away * away).sum(1), -0.5 * (self._log_det + size * LOG_2PI)[:, None]

    def _imagined_spread(self) -> np.ndarray:
        """What whitening makes of the spread of imagined rows, (K, D, D)."""
        return self._half @ self.imagined.spread @ self._half.swapaxes(1, 2)

    def slope_of(self, share: np.ndarray, rows: np.ndarray) -> Arrays:
        back, weighted = self._half.swapaxes(1, 2), share[:, None] * self._away
        scatter = weighted @ self._away.swapaxes(1, 2)
        if self.imagined.rows:
            scatter += self.imagined.rows * self._imagined_spread()
        rows = (rows + self.imagined.rows)[:, None, None]
        by_factor = back @ (scatter - rows * self._eye)
        rate = -np.expm1(self._floor - self._pivots)
        return {
            "mean": (back @ weighted.sum(2)[..., None])[..., 0],
            "below": np.tril(by_factor, -1),
            "raw_diagonal": np.einsum("kdd->kd", by_factor) * rate,
        }

    def log_prior(self) -> np.ndarray:
        if not self.imagined.rows:
            return np.zeros(len(self._log_det))
        trace = np.einsum("kdd->k", self._imagined_spread())
        return -0.5 * self.imagined.rows * (self._log_det + trace)


class _Student:
    """The same for Student's t, around Gaussians with its scale matrices."""

    def __init__(self, scale: _Gaussians) -> None:
        self._scale = scale

    def log_prob(self, free: Arrays) -> np.ndarray:
        size = self._scale.x.shape[1]
        squared, peak = self._scale.distances(_inward(free))
        self._share = expit(free["raw_dof"])[:, None]
        self._dof = dof = LEAST_DOF * np.exp(self._share * np.log(MOST_DOF / LEAST_DOF))
        whole = 0.5 * (dof + size)
        self._weight = 2.0 * whole / (dof + squared)
        constant = gammaln(whole) - gammaln(0.5 * dof) - 0.5 * size * np.log(0.5 * dof)
        return peak + constant - whole * np.log1p(squared / dof)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        dof, rows = self._dof[:, 0], occupancy.sum(1)
        tail = self._weight - 1.0 - np.log(self._weight) + _gap(self._dof + self._scale.x.shape[1])
        by_dof = 0.5 * (rows * _gap(dof) - (occupancy * tail).sum(1))
        rate = np.log(MOST_DOF / LEAST_DOF) * dof * (self._share * (1.0 - self._share))[:, 0]
        inner = self._scale.slope_of(occupancy * self._weight, rows)
        return {"raw_dof": by_dof * rate, **{f"scale.{name}": v for name, v in inner.items()}}

    def log_prior(self) -> np.ndarray:
        return self._scale.log_prior()


class _Contrast:
    """Gaussians of rows, and after these of copies that lack the last columns.

    What they say of the first columns has the first of their own parameters.
    """

    def __init__(self, whole: _Gaussians, part: _Gaussians) -> None:
        self._whole, self._part = whole, part

    def log_prob(self, free: Arrays) -> np.ndarray:
        size = self._part.x.shape[1]
        first = {name: value[..., :size] for name, value in free.items()}
        if "below" in first:
            first["below"] = first["below"][:, :size]
        return np.concatenate([self._whole.log_prob(free), self._part.log_prob(first)], 1)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        count = len(self._whole.x)
        found = self._whole.slope(occupancy[:, :count])
        for name, value in self._part.slope(occupancy[:, count:]).items():
            found[name][tuple(map(slice, value.shape))] += value
        return found

    def log_prior(self) -> np.ndarray:
        return self._whole.log_prior()


_Kind = _Gaussians | _Student | _Contrast


def _gap(dof: np.ndarray) -> np.ndarray:
    return np.log(0.5 * dof) - psi(0.5 * dof)


def _inward(free: Arrays) -> Arrays:
    return {name.removeprefix("scale."): value for name, value in free.items()}


def _kind(density: Density, x: np.ndarray, imagined: _Imagined) -> _Gaussians | _Student | None:
    """Densities of rows (n, D); None where they have not been written."""
    if isinstance(density, StudentT):
        scale = _kind(density.scale, x, imagined)
        return _Student(scale) if isinstance(scale, _Gaussians) else None
    if isinstance(density, FullGaussian):
        return _Full(density, x, imagined)
    if isinstance(density, LowRankGaussian) or (
        isinstance(density, DiagonalGaussian) and not density.tied
    ):
        return _LowRank(density, x, imagined)
    return None


def small_function(
    model: Mixture | MixtureStack, objective: Objective, engine: Engine, prior: SpreadPrior | None
) -> Function | None:
    """Mean losses (P,) and gradients (P, d) at points (P, d), of rows in memory.

    None where rows are many, or have holes of their own, or densities are of other kinds.
    """
    few, lacking = len(engine) * model.row_cost(missing=False) <= _SMALL, _lacking(engine)
    here = engine.uniform and engine.device.type == "cpu" and engine.dtype == torch.float64
    if not (few and here) or lacking is None:
        return None
    batch = engine.all_rows()
    x = batch.x.numpy()[: len(engine)]
    kind: _Kind | None = _kind(model.density, x, _Imagined(prior))
    if lacking:
        part = _kind(model.density, x[:, :-lacking], _Imagined(None))
        if not isinstance(kind, _Gaussians) or not isinstance(part, _Gaussians):
            return None
        kind = _Contrast(kind, part)
    total = model.total_weight(engine.y, engine.weight).numpy()  # copies do not count
    return None if kind is None else _Mixtures(model, objective, batch, kind, total)


def _lacking(engine: Engine) -> int | None:
    """How many of the last columns copies of the rows lack; None where more is missing."""
    if isinstance(engine, ContrastEngine):
        return engine.copies_lack
    return None if engine.may_marginalize else 0


class _Mixtures:
    """P mixtures, each with K components in C classes."""

    def __init__(
        self,
        model: Mixture | MixtureStack,
        objective: Objective,
        batch: Batch,
        kind: _Kind,
        total: np.ndarray,
    ) -> None:
        self._kind, self._n_problems, self._shapes = kind, model.n_problems, list[_Named]()
        for name, value in model.free().items():
            first = self._shapes[-1][1].stop if self._shapes else 0
            place = slice(first, first + value.numel() // model.n_problems)
            self._shapes.append((name.removeprefix("density."), place, value.shape))
        self._owner = model.layout.owner.numpy()
        counts = np.asarray(model.layout.counts)
        self._starts = np.cumsum(counts) - counts
        self._log_prior = model.log_prior.numpy().reshape(model.n_problems, -1)
        y, weight = (each.view(len(batch), -1).mT for each in model.asked(batch))  # (P, n)
        self._weight, self._total = weight.numpy(), total
        self._loss_and_slope: _LossAndSlope = partial(_by_objective, objective, y.flatten())
        if isinstance(objective, Hybrid) and objective.likelihood.unlabeled_weight is None:
            own, term = (y[0].numpy(), np.arange(len(batch))), objective.discriminative
            if type(term) is Margin:
                self._loss_and_slope = partial(_by_margin, objective, term, own)
            elif type(term) is Conditional:
                self._loss_and_slope = partial(_by_conditional, objective, own)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        free = {name: points[:, place].reshape(shape) for name, place, shape in self._shapes}
        weight = free["log_weight"].reshape(self._n_problems, -1)
        weight = weight - self._summed(weight)[0][:, self._owner]
        prior = self._log_prior
        if "log_prior" in free:
            prior = free["log_prior"].reshape(prior.shape)
            prior = prior - np.logaddexp.reduce(prior, 1, keepdims=True)
        log_joint = self._kind.log_prob(free).reshape(*weight.shape, -1)
        log_joint += (weight + prior[:, self._owner])[..., None]
        by_class, within = self._summed(log_joint)
        losses, slope = self._loss_and_slope(by_class)
        loss = (losses * self._weight).sum(1)
        loss -= self._kind.log_prior().reshape(weight.shape).sum(1)
        occupancy = within * (slope * -self._weight[:, None])[:, self._owner]
        found = self._kind.slope(occupancy.reshape(-1, occupancy.shape[2]))
        mass = occupancy.sum(2)
        of_class = np.add.reduceat(mass, self._starts, 1)
        found["log_weight"] = mass - of_class[:, self._owner] * np.exp(weight)
        found["log_prior"] = of_class - of_class.sum(1, keepdims=True) * np.exp(prior)
        flat = [found[name].reshape(self._n_problems, -1) for name, _, _ in self._shapes]
        return loss / self._total, np.concatenate(flat, 1) / -self._total[:, None]

    def _summed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """Sums within each class in logs, (P, K, ...) to (P, C, ...), and shares (P, K, ...)."""
        if len(self._starts) == len(self._owner):
            return values, 1.0
        largest = np.maximum.reduceat(values, self._starts, 1)
        share = _exp_or_zero(values - largest[:, self._owner])
        total = np.add.reduceat(share, self._starts, 1)
        share /= total[:, self._owner]
        return largest + np.log(total), share


def _exp_or_zero(log: np.ndarray) -> np.ndarray:
    """As `numerics.exp_or_zero`."""
    found = np.exp(np.maximum(log, _LOWEST))
    found *= log > _LOWEST
    return found


def _by_objective(
    objective: Objective, y: torch.Tensor, joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Losses (P, n) of class log-joints (P, C, n) and labels (P * n,), and their derivatives."""
    outputs = torch.from_numpy(joint.swapaxes(1, 2).reshape(-1, joint.shape[1]))
    losses, slope = (each.numpy() for each in objective.loss_and_slope(outputs, y))
    by_row = slope.reshape(len(joint), joint.shape[2], -1)
    return losses.reshape(len(joint), -1), by_row.swapaxes(1, 2)


def _by_margin(
    objective: Hybrid, term: Margin, own: tuple[np.ndarray, np.ndarray], joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of the likelihood and the margin, by the places of the rows' own classes."""
    mine = joint[:, *own]
    rivals = term.smoothness * joint
    rivals[:, *own] = -np.inf
    largest = rivals.max(1)
    slope = _exp_or_zero(rivals - largest[:, None])
    total = slope.sum(1)
    short = term.margin - mine + (largest + np.log(total)) / term.smoothness
    rest = (1.0 - objective.tradeoff) * (short > 0.0)
    slope *= (rest / total)[:, None]
    slope[:, *own] = -rest - objective.tradeoff
    return rest * short - objective.tradeoff * mine, slope


def _by_conditional(
    objective: Hybrid, own: tuple[np.ndarray, np.ndarray], joint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of the likelihood and the conditional likelihood."""
    rest, largest = 1.0 - objective.tradeoff, joint.max(1)
    slope = _exp_or_zero(joint - largest[:, None])
    total = slope.sum(1)
    losses = rest * (largest + np.log(total)) - joint[:, *own]
    slope *= (rest / total)[:, None]
    slope[:, *own] -= 1.0
    return losses, slope
