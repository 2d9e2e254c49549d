"""Densities of few rows in NumPy: Gaussians, Student's t, categories, and products of these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import expit, gammaln, psi

from mixtura.data.batch import Batch
from mixtura.densities import Categorical, Density, Product
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.student import LEAST_DOF, MOST_DOF, StudentT
from mixtura.densities.submatrices import WHOLE
from mixtura.solvers.base import SpreadPrior
from mixtura.solvers.small_gaussians import (
    Arrays,
    FullCovariance,
    FullOfHoles,
    Gaussians,
    Imagined,
    Kind,
    LowRank,
    LowRankOfHoles,
    Patterns,
)


class _Student(Kind):
    """The same for Student's t, around Gaussians with its scale matrices."""

    def __init__(self, scale: Gaussians) -> None:
        self._scale = scale

    def log_prob(self, free: Arrays) -> np.ndarray:
        size = self._scale.sizes
        squared, peak = self._scale.distances(_inward(free))
        self._share = expit(free["raw_dof"])[:, None]
        self._dof = dof = LEAST_DOF * np.exp(self._share * np.log(MOST_DOF / LEAST_DOF))
        whole = 0.5 * (dof + size)
        self._weight = 2.0 * whole / (dof + squared)
        constant = gammaln(whole) - gammaln(0.5 * dof) - 0.5 * size * np.log(0.5 * dof)
        return peak + constant - whole * np.log1p(squared / dof)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        dof, rows = self._dof[:, 0], occupancy.sum(1)
        tail = self._weight - 1.0 - np.log(self._weight) + _gap(self._dof + self._scale.sizes)
        by_dof = 0.5 * (rows * _gap(dof) - (occupancy * tail).sum(1))
        rate = np.log(MOST_DOF / LEAST_DOF) * dof * (self._share * (1.0 - self._share))[:, 0]
        inner = self._scale.slope_of(occupancy * self._weight, occupancy)
        return {"raw_dof": by_dof * rate, **{f"scale.{name}": v for name, v in inner.items()}}

    def log_prior(self) -> np.ndarray:
        return self._scale.log_prior()


class _Categories(Kind):
    """Categories, by their indicators (n, S)."""

    def __init__(self, density: Categorical, batch: Batch, imagined: Imagined) -> None:
        self._own, self._imagined = density.indicators(batch).numpy(), imagined
        levels = np.array(density.levels)
        self._starts = np.cumsum(levels) - levels
        self._column = np.arange(len(levels)).repeat(levels)

    def _total(self, values: np.ndarray) -> np.ndarray:
        """(K, S) at each category the sum over its column."""
        return np.add.reduceat(values, self._starts, 1)[:, self._column]

    def log_prob(self, free: Arrays) -> np.ndarray:
        logit = free["logit"]
        shifted = logit - np.maximum.reduceat(logit, self._starts, 1)[:, self._column]
        self._log_chance = shifted - np.log(self._total(np.exp(shifted)))
        return self._log_chance @ self._own.T

    def slope(self, occupancy: np.ndarray) -> Arrays:
        count = occupancy @ self._own + self._imagined.rows * self._imagined.spread
        return {"logit": count - self._total(count) * np.exp(self._log_chance)}

    def log_prior(self) -> np.ndarray:
        return self._imagined.rows * (self._log_chance * self._imagined.spread).sum(1)


class _Fixed(Kind):
    """Log densities (K, n) that have nothing to learn."""

    def __init__(self, log_prob: np.ndarray) -> None:
        self._log_prob = log_prob

    def log_prob(self, free: Arrays) -> np.ndarray:
        return self._log_prob

    def slope(self, occupancy: np.ndarray) -> Arrays:
        return {}

    def log_prior(self) -> np.ndarray:
        return np.zeros(len(self._log_prob))


class _Product(Kind):
    """Densities of some columns each, multiplied; names of part 1 begin with "1."."""

    def __init__(self, parts: list[Kind]) -> None:
        self._parts = parts

    def log_prob(self, free: Arrays) -> np.ndarray:
        inner: list[Arrays] = [{} for _ in self._parts]
        for name, value in free.items():
            number, dot, rest = name.partition(".")
            if dot:
                inner[int(number)][rest] = value
        found = [part.log_prob(own) for part, own in zip(self._parts, inner, strict=True)]
        return sum(found[1:], found[0])

    def slope(self, occupancy: np.ndarray) -> Arrays:
        found = enumerate(part.slope(occupancy) for part in self._parts)
        return {f"{i}.{name}": value for i, inner in found for name, value in inner.items()}

    def log_prior(self) -> np.ndarray:
        first, *rest = [part.log_prior() for part in self._parts]
        return sum(rest, first)


class _Contrast(Kind):
    """Gaussians of rows, and after these of copies that lack the last columns.

    What they say of the first columns has the first of their own parameters.
    """

    def __init__(self, whole: Gaussians, part: Gaussians) -> None:
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


def _gap(dof: np.ndarray) -> np.ndarray:
    return np.log(0.5 * dof) - psi(0.5 * dof)


def _inward(free: Arrays) -> Arrays:
    return {name.removeprefix("scale."): value for name, value in free.items()}


def kind_of(density: Density, batch: Batch, prior: SpreadPrior | None) -> Kind | None:
    """Densities of rows; None where they have not been written."""
    imagined = Imagined(prior)
    if isinstance(density, Product):
        priors = [None] * len(density.parts) if prior is None else prior.split(density.spreads)
        views = (density.view(batch, number) for number in range(len(density.parts)))
        found = [kind_of(*each) for each in zip(density.parts, views, priors, strict=True)]
        parts = [each for each in found if each is not None]
        return _Product(parts) if len(parts) == len(found) else None
    if isinstance(density, HoleEvidence):
        return _Fixed(density.log_prob(batch).mT.contiguous().numpy())
    if type(density) is Categorical:
        return _Categories(density, batch, imagined) if density.is_small else None
    if isinstance(density, StudentT):
        scale = kind_of(density.scale, batch, prior)
        return _Student(scale) if isinstance(scale, Gaussians) else None
    x, holes = batch.x.numpy(), None if batch.observed is None else Patterns(batch.observed)
    if isinstance(density, FullGaussian):
        if holes is None:
            return FullCovariance(density, x, imagined)
        return FullOfHoles(density, x, imagined, holes) if x.shape[1] <= WHOLE else None
    if isinstance(density, LowRankGaussian) or (
        isinstance(density, DiagonalGaussian) and not density.tied
    ):
        if holes is None:
            return LowRank(density, x, imagined)
        return LowRankOfHoles(density, x, imagined, holes)
    return None


def contrast(
    density: Density, batch: Batch, lacking: int, prior: SpreadPrior | None
) -> Kind | None:
    """Densities of complete rows, and after these of copies that lack the last columns."""
    whole = kind_of(density, batch, prior)
    part = kind_of(density, replace(batch, x=batch.x[:, :-lacking]), None)
    if not isinstance(whole, Gaussians) or not isinstance(part, Gaussians):
        return None
    return _Contrast(whole, part)
