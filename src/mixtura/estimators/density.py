"""MixtureDensity: an unsupervised mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import _fit_context
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from mixtura.answers.condition import Given, draw_by_chance
from mixtura.data.batch import Batch
from mixtura.data.given import ArrayLike, Checkpoint, RandomState
from mixtura.data.schema import Schema
from mixtura.densities import DENSITIES, Auto, Diagonal, Full, HolePattern, LowRank, Structure
from mixtura.engines import Engine, engine_of
from mixtura.estimators.base import CONSTRAINTS
from mixtura.estimators.checkpoint import checkpointed
from mixtura.estimators.clustering import Clustering, Fit, affordable, minus_log_likelihood
from mixtura.estimators.reading import check_count, check_weight, opened
from mixtura.exceptions import InvalidInputError
from mixtura.models.fitted import Fitted, Observations, log_density
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import Likelihood
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome
from mixtura.selection.chooser import MOST_COMPARED, Chooser
from mixtura.selection.held_out import Losses, with_holes
from mixtura.selection.typical import typical_quantiles
from mixtura.solvers import EM, FitResult
from mixtura.training.groups import Groups, Recipe, fit_groups

#: Floors that are compared: where nothing discriminates, a low one is safe if rows are many.
_FLOORS = 1e-5, 0.01
#: What names are shorthand for.
_DENSITIES: dict[str, Callable[[], Structure]] = {
    name: partial(kind, floor=_FLOORS[0])  # type: ignore[call-arg]
    for name, kind in DENSITIES.items()
}


_Model = tuple[Mixture, HolePattern | None]


@dataclass(frozen=True)
class _Way:
    """A recipe, as one of several ways to train."""

    recipe: Recipe
    fit: Callable[[Engine, Recipe, torch.Generator, Progress], FitResult[Mixture]]

    @property
    def settings(self) -> dict[str, object]:
        return {"density": self.recipe.structure, "missingness": self.recipe.missingness}

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> list[_Model]:
        """A mixture; if it says nothing of holes, one pattern of them for all rows beside it."""
        mixture = self.fit(engine, self.recipe, generator, progress).model
        if self.recipe.informative:
            return [(mixture, None)]
        seen = engine.all_rows()
        ones, levels = seen.weight.double()[:, None], (2,) * seen.x.shape[1]
        return [(mixture, HolePattern.from_clusters(seen.lacks().double(), ones, levels))]


def _judged(model: _Model, held_out: Engine, generator: torch.Generator) -> Losses:
    """Minus the log density of rows and of which entries they lack, whole and with more holes."""
    mixture, holes = model

    def losses(batch: Batch) -> Tensor:
        seen = batch.for_prediction()
        found = log_density(mixture, seen).double()
        if holes is None:
            return -found
        lacks = replace(seen, x=seen.lacks().double(), observed=None)
        return -(found + holes.log_prob(lacks)[:, 0])

    return Losses.of(with_holes(held_out, generator, mixture), losses)


@dataclass(eq=False, repr=False)
class MixtureDensity(Clustering):
    """A mixture fitted by EM, with missing values marginalized.

    Numbers are Gaussian, categories categorical; a component holds both.

    Parameters
    ----------
    n_components : "auto" or int
        "auto" grows the number while the information criterion falls.
    density : "auto", "full", "diag", "spherical", "low_rank", "student", or a `Structure`
        What components are in the columns that hold numbers; a name is shorthand for an object of
        `mixtura.densities` with `floor=1e-5`. "auto" compares full covariances with that floor and
        with one of 0.01, low rank and variances alone, by the likelihood of held-out rows.
    solver : "em", or an `EM`
        "em" is `EM(max_iter=100, tol=1e-3, n_init=1)`.
    missingness : "auto", "ignore" or "informative"
        Whether components also differ in which entries are absent, as in `MixtureClassifier`;
        "auto" looks whether that makes the entries and holes of held-out rows clearly likelier,
        and no less likely with further random holes. `missingness_` is what was chosen.
    standardize : bool
        Work in units in which every feature has variance one.
    max_time, categorical_features, unexpected, warm_start, device
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    weights_, means_, covariances_, n_components_
    model_ : the fitted model; `mixture_`, `scaling_` and `schema_` for short
    density_, missingness_ : what was chosen
    choice_ : what was compared on held-out rows
    history_, n_iter_, converged_

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureDensity
    >>> X = load_iris().data
    >>> model = MixtureDensity(3, random_state=0).fit(X)
    >>> model.score_samples(X).shape
    (150,)
    """

    _parameter_constraints = CONSTRAINTS | {"density": [StrOptions(set(_DENSITIES)), Structure]}

    n_components: int | str = "auto"
    _: KW_ONLY
    density: str | Structure = "auto"
    solver: str | EM = "em"
    missingness: str = "auto"
    warm_start: bool = False
    standardize: bool = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _read(self, X: ArrayLike, schema: Schema | None = None) -> tuple[Observations, Schema]:
        if issparse(X):
            raise InvalidInputError(
                "X is a sparse matrix, and a density wants all its entries: pass X.toarray(), or "
                "categories as they are, in a data frame."
            )
        return super()._read(X, schema)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike = None,
        sample_weight: ArrayLike = None,
        *,
        checkpoint: Checkpoint | None = None,
    ) -> Self:
        """Fit the mixture to the rows of X; y is ignored.

        X may stay on disk, and a fit that is interrupted go on, as in `MixtureClassifier.fit`; a
        column that y names is left out.
        """
        with self._all_or_nothing(X):
            X, _, sample_weight = opened(self, X, y, sample_weight)
            rows, schema = self._read(X)
            weight = check_weight(sample_weight, len(rows))
            if (weight == 0).any():
                rows, weight = rows.take(weight > 0), weight[weight > 0]
            with checkpointed(self, rows, (weight,), checkpoint) as values:
                return self._fit_rows(values, weight, schema)

    def _fit_rows(self, rows: Observations, weight: np.ndarray, schema: Schema) -> Self:
        previous = self._previous(schema) if self.warm_start else None
        scaling = self.scaling_ if previous else self._scaled(rows, weight, schema)
        engine = engine_of(rows, None, weight, scaling, self.device)
        with self._progress() as progress:
            outcome = self._train(engine, previous, progress)
        mixture = outcome.model.model
        typical = typical_quantiles(mixture, engine, None, progress)
        self.model_ = Fitted(mixture.to("cpu", torch.float64), scaling, schema, typical=typical)
        self._tell(outcome, len(engine), progress)
        return self

    def _previous(self, schema: Schema) -> Mixture | None:
        """The mixture of the previous fit, if there is one; it must fit the new rows."""
        if not hasattr(self, "model_"):
            return None
        previous, n_features = self.mixture_, self.n_features_in_
        if not schema.equals(self.schema_) or previous.density.n_features != n_features:
            raise InvalidInputError(
                "warm_start=True needs the columns and categories of the previous fit, which had "
                f"{previous.density.n_features}, got {n_features}; set warm_start=False to start "
                "anew."
            )
        if self.missingness not in ("auto", self.missingness_):
            raise InvalidInputError(
                f"warm_start=True goes on with missingness={self.missingness_!r}; set "
                "warm_start=False to start anew."
            )
        return previous

    def _train(
        self, engine: Engine, previous: Mixture | None, progress: Progress
    ) -> Outcome[FitResult[Mixture]]:
        """Train on all rows, or on as many as time allows."""
        em, generator = resolve(self.solver, {"em": EM}), self._generator()
        informative = self.missingness == "informative"
        recipes = [Recipe(each, em, informative=informative) for each in self._structures(engine)]
        recipe, self.choice_ = recipes[0], []
        if previous is None:
            recipe = self._choose(engine, recipes, spawn(generator), progress)
            self.density_ = recipe.structure

        def train(rows: Engine, own: torch.Generator, latest: Fit | None) -> Fit:
            begin = previous if latest is None else latest.model
            if begin is None:
                return self._fit_recipe(rows, recipe, own, progress)
            return em.run(begin.to(rows.device), Likelihood(), rows, progress)

        return Budget(progress, train, minus_log_likelihood, generator).run(engine)

    def _fit_recipe(
        self, engine: Engine, recipe: Recipe, generator: torch.Generator, progress: Progress
    ) -> FitResult[Mixture]:
        counts = None
        if not isinstance(self.n_components, str):
            counts = [affordable(self.n_components, len(engine))]
        start = fit_groups(Groups.everyone(engine), counts, recipe, generator, progress)
        found = start.results[0][0]
        if recipe.direct:
            return found
        return recipe.em.run(found.model, Likelihood(), engine, progress)

    def _structures(self, engine: Engine) -> list[Structure]:
        """What components may be, the first choice first."""
        structure = resolve(self.density, _DENSITIES)
        if self.density not in ("auto", Auto()) or not engine.n_numbers:
            return structure.candidates(engine.n_numbers)
        found: list[Structure] = [Full(_FLOORS[0]), Full(_FLOORS[1])]
        if engine.n_numbers > 1:
            low_rank = LowRank(floor=_FLOORS[1]).candidates(engine.n_numbers)[0]
            found += [low_rank, Diagonal(_FLOORS[1])]
        return found

    def _choose(
        self, engine: Engine, recipes: list[Recipe], generator: torch.Generator, progress: Progress
    ) -> Recipe:
        """What components are to be, and whether they differ in which entries are absent.

        They do if held-out rows, with their holes, are clearly likelier then than with holes that
        come independently of everything, and no less likely with further holes at random. Of a
        single component both say the same.
        """
        asks = self.missingness == "auto" and self.n_components != 1 and engine.has_holes
        several = len(recipes) > 1
        some = engine.merged().sample(MOST_COMPARED, spawn(generator)) if asks or several else None
        n_ways = len(recipes) + asks
        chooser = Chooser[_Way, _Model](some, _judged, spawn(generator), progress, n_ways=n_ways)
        ways = [_Way(recipe, self._fit_recipe) for recipe in recipes]
        best = chooser.race(ways, "density" if several else "missingness")
        informative = replace(best.way.recipe, informative=True)
        others = [_Way(informative, self._fit_recipe)] if asks else []
        best = chooser.challenge(best, others, Losses.clearly_beats, "missingness")
        self.choice_ = chooser.table()
        return best.way.recipe

    def bic(self, X: ArrayLike) -> float:
        """Bayesian information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + self.mixture_.n_parameters * np.log(len(scores)))

    def aic(self, X: ArrayLike) -> float:
        """Akaike information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + 2.0 * self.mixture_.n_parameters)

    def sample(
        self, n_samples: int = 1, *, given: Given | None = None, random_state: RandomState = None
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw rows, as `MixtureClassifier.sample` does, and the component each came from.

        All rows have the values that are `given` by column, as of `condition`.
        """
        mixture, generator = self.mixture_, self._generator(random_state)
        if given is not None:
            drawn = self._condition(given).draw(check_count(n_samples), None, generator)
            chance = self._fitted.responsibilities(self._fitted.engine(drawn, self.device))
            return self.schema_.table(drawn.values), draw_by_chance(chance, generator)
        component = torch.multinomial(
            mixture.log_weight.exp(), check_count(n_samples), replacement=True, generator=generator
        )
        rows = self._fitted.decoded(mixture.density.sample(component, generator))
        return rows, component.numpy()
