"""Mixtures of groups of rows by EM: how many components, under which prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mixtura.densities import Structure, VectorDensity, numeric_part, with_numeric_part
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, FitResult, SpreadPrior
from mixtura.training.start import cluster_start, fit_single

_COUNTS = (2, 3, 4, 6, 8, 12, 16)
_ROWS_PER_COMPONENT = 10
_PRIOR_ITERATIONS = 20
#: Share of the time that is left which these may take.
_PRIOR_TIME = 0.25
_MOST_COMPARED = 20_000


@dataclass(frozen=True)
class Recipe:
    """How mixtures of groups of rows are fitted by EM.

    Attributes
    ----------
    structure : of the columns that hold numbers; nothing in it is left open.
    prior_rows : imagined rows per component with the pooled spread of all groups; None takes as
        many as the spread has dimensions plus two (a whole covariance), or three (variances).
    informative : whether components also differ in which entries are absent.
    """

    structure: Structure
    em: EM
    prior_rows: float | None = 0.0
    informative: bool = False

    @property
    def missingness(self) -> str:
        """How holes are taken, in the words of estimators."""
        return "informative" if self.informative else "ignore"

    @property
    def direct(self) -> bool:
        """Whether EM fits the structure itself, not another that it is then made from."""
        return self.structure.start is self.structure

    def start(self, engine: Engine, count: int, generator: torch.Generator) -> Mixture:
        """What EM begins with."""
        structure, informative = self.structure.start, self.informative
        return cluster_start(engine, count, structure, generator, informative=informative)

    def finish(self, start: Start) -> Start:
        """The mixtures in the structure itself, where EM was to fit another one."""
        if self.direct:
            return start
        results = [replace(result, model=self.finished(result.model)) for result in start.results]
        if start.prior is None:
            return Start(results, None)
        mixtures = [result.model for result in results]
        return Start(results, self.prior(mixtures, torch.ones(len(mixtures))))

    def finished(self, mixture: Mixture) -> Mixture:
        """A mixture that EM has begun or fitted, in the structure itself."""
        part = numeric_part(mixture.density)
        if not isinstance(part, VectorDensity):
            return mixture
        finished = self.structure.finish(part)
        return replace(mixture, density=with_numeric_part(mixture.density, finished))

    def prior(self, mixtures: list[Mixture], share: Tensor) -> SpreadPrior:
        """Imagined rows with the spread that mixtures show on average, each with its share."""
        return SpreadPrior.pooled([each.density for each in mixtures], share, self.prior_rows)


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
    prior = _pooled_prior(engines, recipe, generator, progress)

    def fit(engine: Engine, count: int) -> FitResult:
        em = recipe.em if count > 1 else replace(recipe.em, n_init=1)
        start = partial(recipe.start, engine, count, generator)
        return fit_single(start, engine, em, progress, prior)

    if counts is None:
        results = [_grow(engine, fit) for engine in engines]
    else:
        results = [fit(engine, count) for engine, count in zip(engines, counts, strict=True)]
    return recipe.finish(Start(results, prior))


def _grow(engine: Engine, fit: Callable[[Engine, int], FitResult]) -> FitResult:
    """More components while the Bayesian information criterion falls."""
    rows = effective_rows(engine)

    def criterion(result: FitResult) -> float:
        return 2.0 * result.objective * rows + result.model.n_parameters * math.log(rows)

    best = fit(engine, 1)
    for count in _COUNTS:
        if rows < _ROWS_PER_COMPONENT * count:
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
    engines: list[Engine], recipe: Recipe, generator: torch.Generator, progress: Progress
) -> SpreadPrior | None:
    """Imagined rows with the spread that one component per group shows on average."""
    if recipe.prior_rows == 0:
        return None
    em, silent = EM(_PRIOR_ITERATIONS, recipe.em.tol), progress.part(_PRIOR_TIME)
    fits = [
        em.run(recipe.start(engine, 1, generator), Likelihood(), engine, silent)
        for engine in engines
    ]
    share = torch.tensor([engine.total_weight for engine in engines])
    return recipe.prior([fit.model for fit in fits], share)
