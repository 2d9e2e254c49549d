"""How many components, of which structure, under which prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from mixtura.densities import (
    STRUCTURES,
    Density,
    FullGaussian,
    LowRankGaussian,
    LowRankPrecision,
    numeric_part,
    with_numeric_part,
)
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.training.base import FitResult, SpreadPrior
from mixtura.training.em import EM
from mixtura.training.progress import Progress
from mixtura.training.start import Structure, cluster_start, fit_single

_COUNTS = (2, 3, 4, 6, 8, 12, 16)
_ROWS_A_COMPONENT = 10
_NARROW = 2
_PRIOR_ITERATIONS = 20
#: Share of the time that is left which these may take.
_PRIOR_TIME = 0.25
_MOST_COMPARED = 20_000


@dataclass(frozen=True)
class Recipe:
    """How mixtures of single classes are fitted by EM.

    Attributes
    ----------
    covariance : a structure, or "auto".
    eigen : start low rank from the leading eigenpairs of full covariances, rather than from EM
        for the structure itself.
    prior_rows : imagined rows a component with the pooled spread of all groups; None takes as many
        as the spread has dimensions plus two (a whole covariance), or three (variances).
    informative : whether components also differ in which entries are absent.
    """

    covariance: str
    rank: int
    floor: float
    em: EM
    parameterization: str = "covariance"
    eigen: bool = False
    n_init: int = 1
    prior_rows: float | None = 0.0
    informative: bool = False

    def structure(self, n_numbers: int) -> Structure:
        """The structure to fit by EM; "auto" is low rank unless numeric columns are very few."""
        covariance, options = self.covariance, {}
        if covariance == "auto":
            covariance = "full" if n_numbers <= _NARROW else "low_rank"
        if covariance == "low_rank" and self.eigen:
            covariance = "full"
        elif covariance == "low_rank":
            options = {"rank": self.rank}
        return Structure(covariance, self.floor, options, self.informative)

    def final_covariance(self, n_numbers: int) -> str:
        """The structure that a start ends in."""
        covariance = self.structure(n_numbers).covariance
        return "low_rank" if self._reduces and covariance == "full" else covariance

    def density_class(self, n_numbers: int) -> type[Density]:
        """The kind of density that the numbers end in."""
        return STRUCTURES[self.final_covariance(n_numbers), self.parameterization][0]

    @property
    def _reduces(self) -> bool:
        return self.eigen and self.covariance in ("auto", "low_rank")

    def finish(self, start: Start) -> Start:
        """Leading eigenpairs of full covariances, where the start asks for them."""
        first = numeric_part(start.results[0].mixture.density)
        if not (self._reduces and isinstance(first, FullGaussian)):
            return start
        kind = LowRankPrecision if self.parameterization == "precision" else LowRankGaussian
        results = []
        for result in start.results:
            density = result.mixture.density
            thin = kind.from_full(cast(FullGaussian, numeric_part(density)), self.rank)
            mixture = replace(result.mixture, density=with_numeric_part(density, thin))
            results.append(replace(result, mixture=mixture))
        if start.prior is None:
            return Start(results, None)
        mixtures = [result.mixture for result in results]
        return Start(results, _prior(self, mixtures, torch.ones(len(mixtures))))


@dataclass(frozen=True)
class Start:
    """Single-class mixtures of one structure, and the prior they were fitted under."""

    results: list[FitResult]
    prior: SpreadPrior | None


def fit_groups(
    engines: list[Engine],
    counts: list[int] | None,
    recipe: Recipe,
    generator: torch.Generator,
    progress: Progress,
) -> Start:
    """A single-class mixture of each group of rows.

    `counts` gives each group its number of components; None chooses them.
    """
    structure = recipe.structure(engines[0].n_numbers)
    prior = _pooled_prior(engines, structure, recipe, generator, progress)
    em = replace(recipe.em, prior=prior)

    def fit(engine: Engine, count: int) -> FitResult:
        start = partial(cluster_start, engine, count, structure, generator)
        return fit_single(start, engine, em, progress, recipe.n_init if count > 1 else 1)

    if counts is None:
        results = [_grow(engine, fit) for engine in engines]
    else:
        results = [fit(engine, count) for engine, count in zip(engines, counts, strict=True)]
    return recipe.finish(Start(results, prior))


def _grow(engine: Engine, fit: Callable[[Engine, int], FitResult]) -> FitResult:
    """More components while the Bayesian information criterion falls."""
    rows = effective_rows(engine)

    def criterion(result: FitResult) -> float:
        return 2.0 * result.objective * rows + result.mixture.n_parameters * math.log(rows)

    best = fit(engine, 1)
    for count in _COUNTS:
        if rows < _ROWS_A_COMPONENT * count:
            break
        candidate = fit(engine, count)
        if criterion(candidate) >= criterion(best):
            break
        best = candidate
    return best


def effective_rows(engine: Engine) -> float:
    """How much evidence the rows hold: no more than their weight.

    Rows of numbers that are repeated count once; where there are categories, repetition is what is
    to be expected.
    """
    if any(engine.levels):
        return engine.total_weight
    rows = float(len(engine))
    if rows <= _MOST_COMPARED:
        rows = len(torch.unique(engine.all_rows().x, dim=0))
    return min(rows, engine.total_weight)


def _pooled_prior(
    engines: list[Engine],
    structure: Structure,
    recipe: Recipe,
    generator: torch.Generator,
    progress: Progress,
) -> SpreadPrior | None:
    """Imagined rows with the spread that one component a group shows on average."""
    if recipe.prior_rows == 0:
        return None
    em, silent = EM(_PRIOR_ITERATIONS, recipe.em.tol), progress.part(_PRIOR_TIME)
    fits = [
        em.run(cluster_start(engine, 1, structure, generator), Likelihood(), engine, silent)
        for engine in engines
    ]
    share = torch.tensor([engine.total_weight for engine in engines])
    return _prior(recipe, [fit.mixture for fit in fits], share)


def _prior(recipe: Recipe, mixtures: list[Mixture], share: Tensor) -> SpreadPrior:
    return SpreadPrior.pooled([mixture.density for mixture in mixtures], share, recipe.prior_rows)
