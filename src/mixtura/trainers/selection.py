"""How many components, and of which structure: information criteria decide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mixtura.densities import STRUCTURES, FullGaussian
from mixtura.engines import LocalEngine
from mixtura.mixture import Mixture
from mixtura.progress import Progress
from mixtura.trainers.base import FitResult
from mixtura.trainers.em import EM
from mixtura.trainers.start import Structure, bic, fit_single

_COUNTS = (2, 3, 4, 6, 8, 12, 16)
_ROWS_A_COMPONENT = 10
_WIDEST_FULL = 100


@dataclass(frozen=True)
class Recipe:
    """How mixtures of single classes are fitted by EM.

    Attributes
    ----------
    covariance : a structure, or "auto".
    eigen : start low rank from the leading eigenpairs of full covariances, rather than from EM
        for the structure itself.
    """

    covariance: str
    rank: int
    floor: float
    em: EM
    parameterization: str = "covariance"
    eigen: bool = False
    n_init: int = 1

    def structures(self, n_features: int) -> list[Structure]:
        """The structures to choose from."""
        if self.covariance != "auto":
            return [self._structure(self.covariance)]
        if n_features == 1:
            return [self._structure("diag")]
        rich = "low_rank" if n_features > _WIDEST_FULL else "full"
        return [self._structure("diag"), self._structure(rich)]

    def _structure(self, covariance: str) -> Structure:
        if covariance != "low_rank":
            return Structure(covariance, floor=self.floor)
        if self.eigen:
            return Structure("full", floor=self.floor)
        return Structure("low_rank", floor=self.floor, options={"rank": self.rank})

    def finish(self, mixture: Mixture) -> Mixture:
        """Leading eigenpairs of full covariances, where the start asks for them."""
        density = mixture.density
        if not (self.eigen and self.covariance == "low_rank" and isinstance(density, FullGaussian)):
            return mixture
        kind = STRUCTURES["low_rank", self.parameterization][0]
        return replace(mixture, density=kind.from_full(density, self.rank))  # type: ignore[attr-defined]


def fit_groups(
    engines: list[LocalEngine],
    counts: list[int] | None,
    recipe: Recipe,
    generator: torch.Generator,
    progress: Progress,
) -> list[FitResult]:
    """A single-class mixture of each group of rows, all of the one structure that suits them best.

    `counts` gives each group its number of components; None chooses them.
    """
    attempts = []
    for structure in recipe.structures(engines[0].table.n_features):
        results = [
            _fit_group(
                engine,
                None if counts is None else counts[i],
                structure,
                recipe,
                generator,
                progress,
            )
            for i, engine in enumerate(engines)
        ]
        score = sum(_score(r, engine) for r, engine in zip(results, engines, strict=True))
        attempts.append((score, results))
    _, best = min(attempts, key=lambda attempt: attempt[0])
    return [replace(result, mixture=recipe.finish(result.mixture)) for result in best]


def _score(result: FitResult, engine: LocalEngine) -> float:
    return bic(result.mixture, result.objective, engine.total_weight)


def _fit_group(
    engine: LocalEngine,
    count: int | None,
    structure: Structure,
    recipe: Recipe,
    generator: torch.Generator,
    progress: Progress,
) -> FitResult:
    def fit(n_components: int) -> FitResult:
        return fit_single(
            engine, n_components, structure, recipe.em, generator, progress, recipe.n_init
        )

    if count is not None:
        return fit(count)
    best = fit(1)
    for n_components in _COUNTS:
        if engine.total_weight < _ROWS_A_COMPONENT * n_components:
            break
        candidate = fit(n_components)
        if _score(candidate, engine) >= _score(best, engine):
            break
        best = candidate
    return best
