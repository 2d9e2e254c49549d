"""MixtureDensity: an unsupervised mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import DensityMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from mixtura.data import Table, resolve_device
from mixtura.densities import DENSITIES, HolePattern, Structure
from mixtura.engines import Engine, LocalEngine, PunchedEngine, is_copy
from mixtura.estimators.base import (
    TABLE_CONSTRAINTS,
    MixtureEstimator,
    check_count,
    check_weight,
    log_density,
)
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.parts import resolve
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome, warn_if_cut_short
from mixtura.selection.calibration import HOLES, clear_gain
from mixtura.solvers import EM, FitResult
from mixtura.solvers.gradients import evaluate
from mixtura.training.groups import Recipe, fit_groups

#: What names are shorthand for: where nothing discriminates, a lower floor is safe.
_DENSITIES: dict[str, Callable[[], Structure]] = {
    name: partial(kind, floor=1e-5)  # type: ignore[call-arg]
    for name, kind in DENSITIES.items()
}
#: With fewer rows, held-back ones decide nothing; more are not needed.
_FEWEST, _TRIED = 50, 10_000


@storable
class MixtureDensity(DensityMixin, MixtureEstimator):
    """A mixture fitted by EM, with missing values marginalized.

    Numbers are Gaussian, categories categorical; a component holds both.

    Parameters
    ----------
    n_components : "auto" or int
        "auto" grows the number while the information criterion falls.
    density : "full", "auto", "diag", "spherical", "low_rank", "student", or a `Structure`
        What components are in the columns that hold numbers; a name is shorthand for an object of
        `mixtura.densities` with `floor=1e-5`.
    solver : "em", or an `EM`
        "em" is `EM(max_iter=100, tol=1e-3, n_init=1)`.
    missingness : "auto", "ignore" or "informative"
        Whether components also differ in which entries are absent, as in `MixtureClassifier`;
        "auto" looks whether that makes the entries and holes of held-back rows clearly likelier,
        and no less likely with further random holes. `missingness_` is what was chosen.
    max_time, standardize, categorical_features, unexpected, warm_start, device, callbacks
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    weights_, means_, covariances_, n_components_, mixture_, scaling_, schema_, missingness_,
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

    _parameter_constraints: dict = {
        "n_components": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "density": [StrOptions(set(_DENSITIES)), Structure],
        "solver": [StrOptions({"em"}), EM],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "standardize": ["boolean"],
        **TABLE_CONSTRAINTS,
        "warm_start": ["boolean"],
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        density: str | Structure = "full",
        solver: str | EM = "em",
        max_time: float | None = None,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        warm_start: bool = False,
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.density = density
        self.solver = solver
        self.max_time = max_time
        self.standardize = standardize
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.warm_start = warm_start
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _check_X(self, X: Any, *, reset: bool) -> Any:
        if issparse(X):
            raise InvalidInputError(
                "X is a sparse matrix, and a density wants all its entries: pass X.toarray(), or "
                "categories as they are, in a data frame."
            )
        return super()._check_X(X, reset=reset)

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to the rows of X; y is ignored."""
        with self._all_or_nothing():
            return self._fit(X, sample_weight)

    def _fit(self, X: Any, sample_weight: Any) -> Self:
        X = self._check_X(X, reset=True)
        weight = check_weight(sample_weight, len(X))
        if (weight == 0).any():
            X, weight = X[weight > 0], weight[weight > 0]
        previous = getattr(self, "mixture_", None) if self.warm_start else None
        if previous is not None and previous.density.n_features != X.shape[1]:
            raise InvalidInputError(
                f"warm_start=True needs the {previous.density.n_features} features of the previous "
                f"fit, got {X.shape[1]}; set warm_start=False to start anew."
            )
        if previous is not None and self.missingness not in ("auto", self.missingness_):
            raise InvalidInputError(
                f"warm_start=True goes on with missingness={self.missingness_!r}; set "
                "warm_start=False to start anew."
            )
        scaling = self._measure_scaling(X, weight) if previous is None else self.scaling_
        device = resolve_device(self.device, X.size)
        engine = LocalEngine(Table(X, weight=weight, scaling=scaling, device=device))
        with self._progress() as progress:
            outcome = self._train(engine, previous, progress)
        result = outcome.model
        self._publish(result.model, scaling)
        self._publish_scores(engine, progress)
        informative = getattr(self.mixture_.density, "informative", False)
        self.missingness_ = "informative" if informative else "ignore"
        self.n_components_ = result.model.n_components
        self.history_, self.n_iter_ = progress.history, result.n_iter
        self.converged_ = result.converged
        self.converged_ &= not warn_if_cut_short(progress, outcome.n_rows, len(engine))
        if not result.converged and not progress.stopped:
            warn(
                "EM stopped before it had settled; raise max_iter or tol of the solver.",
                ConvergenceWarning,
            )
        return self

    def _train(
        self, engine: Engine, previous: Mixture | None, progress: Progress
    ) -> Outcome[FitResult]:
        """Train on all rows, or on as many as time allows."""
        em = resolve(self.solver, {"em": EM})
        structure = resolve(self.density, _DENSITIES).candidates(engine.n_numbers)[0]
        recipe = Recipe(structure, em)
        if previous is None and self._holes_tell(engine, recipe, progress):
            recipe = replace(recipe, informative=True)

        def train(rows: Engine, latest: FitResult | None) -> FitResult:
            begin = previous if latest is None else latest.model
            if begin is None:
                return self._fit_recipe(rows, recipe, progress)
            return em.run(begin.to(rows.device), Likelihood(), rows, progress)

        def loss(result: FitResult, rows: Engine) -> float:
            return evaluate(result.model, Likelihood(), rows)[1]

        draw = partial(engine.sample, generator=self._generator())
        return Budget(progress, train, loss, draw).run(engine)

    def _fit_recipe(self, engine: Engine, recipe: Recipe, progress: Progress) -> FitResult:
        counts = None if self.n_components == "auto" else [self._affordable(len(engine))]
        return fit_groups([engine], counts, recipe, self._generator(), progress).results[0]

    def _holes_tell(self, engine: Engine, recipe: Recipe, progress: Progress) -> bool:
        """Whether components are to differ in which entries are absent.

        "auto": if held-back rows, with their holes, are clearly likelier then than with holes that
        come independently of everything, and no less likely with further holes at random.
        """
        open_question = self.missingness == "auto" and engine.has_holes
        if not open_question or len(engine) < _FEWEST:
            return self.missingness == "informative"
        some = engine.sample(_TRIED, self._generator())
        train, held_back = some.hold_out(0.25, self._generator())
        assert held_back is not None
        ignoring, telling = (
            self._fit_recipe(train, replace(recipe, informative=each), progress.part(0.25)).model
            for each in (False, True)
        )
        seen = train.all_rows()
        ones, levels = seen.weight.double()[:, None], (2,) * seen.x.shape[1]
        holes = HolePattern.from_clusters(seen.lacks().double(), ones, levels)
        engine, parts = PunchedEngine(held_back, HOLES, self._generator()), []
        for batch in engine.chunks(engine.chunk_rows(telling.density)):
            met = batch.as_met()
            alone = holes.log_prob(replace(met, x=met.lacks().double(), observed=None))[:, 0]
            gain = log_density(telling, met) - log_density(ignoring, met) - alone
            parts.append(torch.stack([gain, is_copy(batch), batch.weight]).cpu())
        gain, punched, weight = torch.cat(parts, 1).double().numpy()
        return clear_gain(gain, punched > 0, weight)

    def _affordable(self, n_rows: int) -> int:
        if self.n_components > n_rows:
            warn(
                f"n_components={self.n_components} exceeds the {n_rows} rows; one component a row "
                "is fitted. Remedy: a smaller n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        return min(int(self.n_components), n_rows)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable component of each row."""
        return self.responsibilities(X).argmax(1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(component | x), (n, K)."""
        return self.responsibilities(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + self.mixture_.n_parameters * np.log(len(scores)))

    def aic(self, X: Any) -> float:
        """Akaike information criterion on X; small is good."""
        scores = self.score_samples(X)
        return float(-2.0 * scores.sum() + 2.0 * self.mixture_.n_parameters)

    def sample(
        self, n_samples: int = 1, *, random_state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows, and the component each came from."""
        check_is_fitted(self)
        generator = self._generator(random_state)
        weight = self.mixture_.log_weight.exp()
        component = torch.multinomial(
            weight, check_count(n_samples), replacement=True, generator=generator
        )
        rows = self._drawn(self.mixture_.density.sample(component, generator))
        return rows, component.numpy()
