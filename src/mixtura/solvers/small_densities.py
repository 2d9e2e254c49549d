"""Densities of few rows in NumPy: Gaussians, Student's t, categories, and products of these."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from scipy.special import expit, gammaln, psi

from mixtura.data.batch import Batch
from mixtura.densities import Categorical, Density, Product
from mixtura.densities.base import inside, nested, numbered
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.hole_pattern import HolePattern
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.student import LEAST_DOF, MOST_DOF, StudentT, dof_of
from mixtura.densities.submatrices import WHOLE
from mixtura.solvers.base import SpreadPrior
from mixtura.solvers.small_gaussians import (
    Arrays,
    ContrastedFull,
    FullCovariance,
    FullOfHoles,
    Gaussians,
    Imagined,
    Kind,
    LowRank,
    LowRankOfHoles,
    Patterns,
)

_RANGE, _SCALE = np.log(MOST_DOF / LEAST_DOF), "scale."


class _Student(Kind):
    """The same for Student's t, around Gaussians with its scale matrices."""

    def __init__(self, scale: Gaussians) -> None:
        self._scale = scale

    def natural(self, free: Arrays) -> Arrays:
        dof = LEAST_DOF * np.exp(expit(free["raw_dof"]) * _RANGE)
        return {"dof": dof, **nested(self._scale.natural(inside(free, _SCALE)), _SCALE)}

    def log_prob(self, named: Arrays) -> np.ndarray:
        size = self._scale.sizes
        squared, peak = self._scale.distances(inside(named, _SCALE))
        squared = np.maximum(squared, 0.0)
        self._dof = dof = named["dof"][:, None]
        whole = 0.5 * (dof + size)
        self._weight = 2.0 * whole / (dof + squared)
        constant = gammaln(whole) - gammaln(0.5 * dof) - 0.5 * size * np.log(0.5 * dof)
        return peak + constant - whole * np.log1p(squared / dof)

    def _tail(self, occupancy: np.ndarray) -> np.ndarray:
        """(K,) what tells the degrees of freedom."""
        tail = self._weight - 1.0 - np.log(self._weight) + _gap(self._dof + self._scale.sizes)
        return (occupancy * tail).sum(1)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        dof, rows = self._dof[:, 0], occupancy.sum(1)
        by_dof = 0.5 * (rows * _gap(dof) - self._tail(occupancy))
        share = np.log(dof / LEAST_DOF) / _RANGE
        inner = self._scale.slope_of(occupancy * self._weight, occupancy)
        return {"raw_dof": by_dof * _RANGE * dof * share * (1.0 - share), **nested(inner, _SCALE)}

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        inner, valid = self._scale.maximized_of(occupancy * self._weight, occupancy)
        imagined = self._scale.imagined.rows
        tail = self._tail(occupancy) + imagined * _gap(self._dof[:, 0])
        mass = occupancy.sum(1) + imagined
        dof = dof_of(torch.from_numpy(tail / mass)).numpy()
        return {"dof": dof, **nested(inner, _SCALE)}, valid & (tail > 0.0)

    def log_prior(self) -> np.ndarray:
        return self._scale.log_prior()

    def some(self, rows: np.ndarray) -> Self:
        return type(self)(self._scale.some(rows))


class _Categories(Kind):
    """Categories, by their indicators (n, S)."""

    def __init__(self, density: Categorical, batch: Batch, imagined: Imagined) -> None:
        self._own, self._imagined = density.indicators(batch).numpy(), imagined
        self._density = density
        levels = np.array(density.levels)
        self._starts = np.cumsum(levels) - levels
        self._column = np.arange(len(levels)).repeat(levels)

    def _total(self, values: np.ndarray) -> np.ndarray:
        """(K, S) at each category the sum over its column."""
        return np.add.reduceat(values, self._starts, 1)[:, self._column]

    def natural(self, free: Arrays) -> Arrays:
        logit = free["logit"]
        shifted = logit - np.maximum.reduceat(logit, self._starts, 1)[:, self._column]
        return {"log_chance": shifted - np.log(self._total(np.exp(shifted)))}

    def log_prob(self, named: Arrays) -> np.ndarray:
        self._log_chance = named["log_chance"]
        return self._log_chance @ self._own.T

    def _count(self, occupancy: np.ndarray) -> np.ndarray:
        return occupancy @ self._own + self._imagined.rows * self._imagined.spread

    def slope(self, occupancy: np.ndarray) -> Arrays:
        count = self._count(occupancy)
        return {"logit": count - self._total(count) * np.exp(self._log_chance)}

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        mass, count = occupancy.sum(1) + self._imagined.rows, self._count(occupancy)
        sums = {"mass": torch.from_numpy(mass), "count": torch.from_numpy(count)}
        old = replace(self._density, log_chance=torch.from_numpy(self._log_chance))
        new, valid = old.maximize(sums)
        return {"log_chance": new.log_chance.numpy()}, valid.numpy()

    def log_prior(self) -> np.ndarray:
        return self._imagined.rows * (self._log_chance * self._imagined.spread).sum(1)

    def some(self, rows: np.ndarray) -> Self:
        part = copy(self)
        part._own = self._own[rows]
        return part


class _HolePatterns(_Categories):
    """Which entries rows lack, by the terms of `HolePattern`: holes of a component's own and
    further ones at several rates (K, R, n), or any."""

    def __init__(self, density: HolePattern, batch: Batch, imagined: Imagined) -> None:
        super().__init__(density, batch, imagined)
        terms = density._log_terms(batch)
        self._broad, rate = terms[:, 0, -1].numpy(), np.array(density.rates)[:, None]
        self._share = density._log_share.numpy()[:, None]
        with np.errstate(divide="ignore"):
            self._further, self._none = np.log(rate), np.log1p(-rate)

    def log_prob(self, named: Arrays) -> np.ndarray:
        self._log_chance = chance = named["log_chance"]
        present = chance[:, None, ::2]
        self._absent = np.logaddexp(chance[:, None, 1::2], present + self._further)  # (K, R, D)
        by_rate = np.stack([present + self._none, self._absent], 3)
        terms = by_rate.reshape(-1, chance.shape[1]) @ self._own.T
        terms = terms.reshape(*by_rate.shape[:2], -1) + self._share
        largest = np.maximum(terms.max(1), self._broad)
        self._terms = np.exp(terms - largest[:, None])
        total = self._terms.sum(1) + np.exp(self._broad - largest)
        self._terms /= total[:, None]
        return largest + np.log(total)

    def _count(self, occupancy: np.ndarray) -> np.ndarray:
        """What is absent may be a further hole."""
        share = occupancy[:, None] * self._terms
        found = share.reshape(-1, share.shape[2]) @ self._own
        found = found.reshape(*self._absent.shape, 2)
        own = found[..., 1] * np.exp(self._log_chance[:, None, 1::2] - self._absent)
        count = np.stack([found.sum(3) - own, own], 3).sum(1).reshape(len(share), -1)
        return count + self._imagined.rows * self._imagined.spread

    def some(self, rows: np.ndarray) -> Self:
        part = super().some(rows)
        part._broad = self._broad[rows]
        return part


class _Fixed(Kind):
    """Log densities (K, n) that have nothing to learn."""

    def __init__(self, log_prob: np.ndarray) -> None:
        self._log_prob = log_prob

    def natural(self, free: Arrays) -> Arrays:
        return {}

    def log_prob(self, named: Arrays) -> np.ndarray:
        return self._log_prob

    def slope(self, occupancy: np.ndarray) -> Arrays:
        return {}

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        return {}, np.ones(len(occupancy), dtype=bool)

    def log_prior(self) -> np.ndarray:
        return np.zeros(len(self._log_prob))

    def some(self, rows: np.ndarray) -> Self:
        return type(self)(self._log_prob[:, rows])


class _Product(Kind):
    """Densities of some columns each, multiplied; names of part 1 begin with "1."."""

    def __init__(self, parts: list[Kind]) -> None:
        self._parts = parts

    def _inward(self, named: Arrays) -> list[Arrays]:
        return [inside(named, f"{number}.") for number in range(len(self._parts))]

    def natural(self, free: Arrays) -> Arrays:
        pairs = zip(self._parts, self._inward(free), strict=True)
        return numbered([part.natural(own) for part, own in pairs])

    def log_prob(self, named: Arrays) -> np.ndarray:
        pairs = zip(self._parts, self._inward(named), strict=True)
        first, *rest = [part.log_prob(own) for part, own in pairs]
        return sum(rest, first)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        return numbered([part.slope(occupancy) for part in self._parts])

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        found, valid = zip(*(part.maximized(occupancy) for part in self._parts), strict=True)
        return numbered(found), np.logical_and.reduce(valid)

    def log_prior(self) -> np.ndarray:
        first, *rest = [part.log_prior() for part in self._parts]
        return sum(rest, first)

    def some(self, rows: np.ndarray) -> Self:
        return type(self)([part.some(rows) for part in self._parts])


class _Contrast(Kind):
    """Gaussians of rows, and after these of copies that lack the last columns.

    What they say of the first columns has the first of their own parameters.
    """

    def __init__(self, whole: Gaussians, part: Gaussians) -> None:
        self._whole, self._part = whole, part

    def natural(self, free: Arrays) -> Arrays:
        return self._whole.natural(free)

    def log_prob(self, named: Arrays) -> np.ndarray:
        size = self._part.x.shape[1]
        first = {name: value[:, :size] for name, value in named.items()}
        if "factor" in first:
            first["factor"] = first["factor"][..., :size]
        return np.concatenate([self._whole.log_prob(named), self._part.log_prob(first)], 1)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        count = len(self._whole.x)
        found = self._whole.slope(occupancy[:, :count])
        for name, value in self._part.slope(occupancy[:, count:]).items():
            found[name][tuple(map(slice, value.shape))] += value
        return found

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        raise NotImplementedError("EM sees rows as they are")

    def log_prior(self) -> np.ndarray:
        return self._whole.log_prior()

    def some(self, rows: np.ndarray) -> Self:
        return type(self)(self._whole.some(rows), self._part.some(rows))


class _WithDraws(Kind):
    """Densities of n rows, and after these of draws, of which each problem has its own."""

    def __init__(self, rows: Kind, n_rows: int, draws: list[Kind]) -> None:
        self._rows, self._n_rows, self._draws = rows, n_rows, draws

    def natural(self, free: Arrays) -> Arrays:
        return self._rows.natural(free)

    def log_prob(self, named: Arrays) -> np.ndarray:
        count = len(self._draws)
        parts = {name: np.split(value, count) for name, value in named.items()}
        drawn = [
            each.log_prob({name: part[place] for name, part in parts.items()})
            for place, each in enumerate(self._draws)
        ]
        return np.concatenate([self._rows.log_prob(named), np.concatenate(drawn)], 1)

    def slope(self, occupancy: np.ndarray) -> Arrays:
        of_rows, of_draws = np.split(occupancy, [self._n_rows], 1)
        parts = zip(self._draws, np.split(of_draws, len(self._draws)), strict=True)
        found = [each.slope(part) for each, part in parts]
        return {
            name: value + np.concatenate([each[name] for each in found])
            for name, value in self._rows.slope(of_rows).items()
        }

    def maximized(self, occupancy: np.ndarray) -> tuple[Arrays, np.ndarray]:
        raise NotImplementedError("EM sees rows as they are")

    def log_prior(self) -> np.ndarray:
        return self._rows.log_prior()

    def some(self, rows: np.ndarray) -> Self:
        raise NotImplementedError("draws belong to all rows")


def _gap(dof: np.ndarray) -> np.ndarray:
    return np.log(0.5 * dof) - psi(0.5 * dof)


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
    if type(density) is HolePattern:
        return _HolePatterns(density, batch, imagined) if density.is_small else None
    if type(density) is Categorical:
        return _Categories(density, batch, imagined) if density.is_small else None
    if isinstance(density, StudentT):
        scale = kind_of(density.scale, batch, prior)
        return _Student(scale) if isinstance(scale, Gaussians) else None
    x, observed = batch.x.numpy(), batch.observed
    holes = None if observed is None else batch.once(Patterns, lambda: Patterns(observed))
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


def with_draws(kind: Kind, n_rows: int, draws: list[tuple[Density, Batch]]) -> Kind | None:
    """Densities of rows, and after these of draws of each problem; None where one has no kind."""
    found = [kind_of(density, rows, None) for density, rows in draws]
    known = [each for each in found if each is not None]
    return _WithDraws(kind, n_rows, known) if len(known) == len(found) else None


def contrast(
    density: Density, batch: Batch, lacking: int, prior: SpreadPrior | None
) -> Kind | None:
    """Densities of complete rows, and after these of copies that lack the last columns."""
    if isinstance(density, FullGaussian):
        return ContrastedFull(density, batch.x.numpy(), Imagined(prior), lacking)
    whole = kind_of(density, batch, prior)
    part = kind_of(density, replace(batch, x=batch.x[:, :-lacking]), None)
    if not isinstance(whole, Gaussians) or not isinstance(part, Gaussians):
        return None
    return _Contrast(whole, part)
