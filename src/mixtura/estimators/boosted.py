"""BoostedMixtureClassifier: a mixture grown where the classes meet."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions

from mixtura.data.given import ArrayLike
from mixtura.densities import DENSITIES, Auto, Full, Structure
from mixtura.engines import Engine, engine_of
from mixtura.estimators.base import CONSTRAINTS
from mixtura.estimators.classifying import DensityClassifier
from mixtura.estimators.growing import fit_best
from mixtura.estimators.reading import opened
from mixtura.estimators.rows import component_counts
from mixtura.models.fitted import Fitted
from mixtura.models.mixture import Mixture
from mixtura.parts import COUNT, resolve
from mixtura.selection.held_out import Answers
from mixtura.selection.typical import typical_quantiles
from mixtura.solvers import EM, GROWING
from mixtura.solvers.em import enough_gain
from mixtura.training.groups import Recipe
from mixtura.training.growth import GrowthPlan


@dataclass(eq=False, repr=False)
class BoostedMixtureClassifier(DensityClassifier):
    """A mixture grown one generative classifier at a time.

    The first stage has the density of each class; every further one is fitted to the rows that the
    mixture so far gets wrong, and is added with the weight that a line search finds. The result is
    an ordinary mixture: it marginalizes what is missing, scores and samples.

    Parameters
    ----------
    n_components : int
        Components per class in every stage.
    method : "boosted", "boosted_generative" or "adaboost"
        Stages raise the conditional likelihood, or the joint one; or they vote, as in AdaBoost
        (SAMME, which for two classes is AdaBoost.M1), and there is no density.
    n_stages : int
        Stages at most; fewer where the objective stops to gain, or classes have fewer than two
        rows per stage.
    early_stopping : bool
        Choose the number of stages on held-out rows.
    calibrate : bool
        Make probabilities honest by what models say of held-out rows, whole and with holes; the
        density is left alone.
    density : "auto", "full", "diag", "spherical", "low_rank", "student", or a `Structure`
        As in `MixtureClassifier`; "auto" is "full" where classes have as many rows as there are
        features, on average, and "low_rank" where they have fewer.
    solver : "em", or an `EM`
        Of every stage; `EM(max_iter=100, tol=0.001 * D, n_init=1)` for D columns of numbers (ten at
        least).
    standardize : bool
        Work in units in which every feature has variance one.
    prior_rows, class_weight, categorical_features, unexpected, missingness,
    unlabeled, max_time, device
        As in `MixtureClassifier`; `prior_rows` is a number, and unlabeled rows are left out, with a
        warning.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, weights_, means_, covariances_ : components of a class in the order of
        the stages
    density_ : what "auto" chose
    stage_weights_ : weight of every stage, or of its vote
    n_stages_ : how many there are
    model_ : the fitted model; `mixture_`, its density in standardized units (none with "adaboost"),
        and `scaling_`, the map between units
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    choice_ : what was compared on held-out rows, as in `MixtureClassifier`
    history_ : the objective after every stage

    Examples
    --------
    >>> from mixtura import BoostedMixtureClassifier
    >>> from mixtura.datasets import make_lobes
    >>> rows = make_lobes(random_state=0)
    >>> model = BoostedMixtureClassifier(random_state=0).fit(rows.data, rows.target)
    >>> model.n_stages_ > 1
    True
    """

    _parameter_constraints = CONSTRAINTS | {
        "n_components": [COUNT],
        "method": [StrOptions(set(GROWING))],
    }

    n_components: int = 1
    _: KW_ONLY
    method: str = "boosted"
    n_stages: int = 10
    early_stopping: bool = True
    calibrate: bool = True
    density: str | Structure = "auto"
    solver: str | EM = "em"
    prior_rows: float = 1.0
    missingness: str = "auto"
    standardize: bool = True

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit the model to the labeled rows.

        Parameters
        ----------
        X : (n, D), NaN where missing; or files, as `MixtureClassifier` takes them.
        y : (n,) labels.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing(X):
            rows, schema = self._read_labeled(*opened(self, X, y, sample_weight))
            rows, n_classes = rows.only_labeled(), len(rows.classes)
            counts = component_counts(self.n_components, rows)
            assert counts is not None  # only "auto" leaves them open
            scaling = self._scaled(rows.X, rows.weight, schema)
            engine = engine_of(rows.X, rows.y, rows.weight, scaling, self.device)
            structure = self._structure(engine, n_classes)
            em = resolve(self.solver, {"em": partial(EM, tol=enough_gain(engine.n_numbers))})
            asks = self.missingness == "auto" and engine.has_holes
            kinds = [False, True] if asks else [self.missingness == "informative"]
            recipes = [Recipe(structure, em, self.prior_rows, informative) for informative in kinds]
            sizes = min(counts), self.n_stages, n_classes
            several = self.early_stopping and self.n_stages > 1
            plans = [GrowthPlan(self.method, each, *sizes, every_stage=several) for each in recipes]
            with self._progress() as progress:
                found = fit_best(
                    plans,
                    engine,
                    self._generator(),
                    progress,
                    calibrate=self.calibrate,
                    beats=Answers.clearly_beats,
                )
            model, prior, typical = found.grown.model.to("cpu", torch.float64), None, None
            if isinstance(model, Mixture):
                prior = model.log_prior.exp().numpy()
                typical = typical_quantiles(model, engine, found.grown.prior, progress)
            known = rows.classes, prior, found.calibration, typical
            reach = self._reach(rows.X, schema, scaling)
            self.model_ = Fitted(model, scaling, schema, *known, reach=reach)
            self.stage_weights_ = np.array(found.grown.shares)
            self.n_stages_, self.density_ = len(self.stage_weights_), structure
            self.choice_, self.history_ = found.table, progress.history
            self.n_iter_ = max(1, len(self.history_))
            return self

    def _structure(self, engine: Engine, n_classes: int) -> Structure:
        given = resolve(self.density, DENSITIES)
        first = given.candidates(engine.n_numbers)[0]
        enough = engine.n_numbers * n_classes <= len(engine.merged())
        return Full(float(first.floor)) if isinstance(given, Auto) and enough else first
