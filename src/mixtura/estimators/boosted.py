"""BoostedMixtureClassifier: a mixture grown where the classes meet."""

from __future__ import annotations

from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions

from mixtura.data import Table, resolve_device
from mixtura.densities import DENSITIES, Structure
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.base import TABLE_CONSTRAINTS
from mixtura.estimators.growing import GROWING, Candidate, GrownClassifier, grow
from mixtura.estimators.plan import Rows, component_counts, labeled_rows, read_rows
from mixtura.models.mixture import Mixture
from mixtura.parts import resolve
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.selection.calibration import Unseen
from mixtura.solvers import EM
from mixtura.training.boosting import Learner
from mixtura.training.start import cluster_start


@storable
class BoostedMixtureClassifier(GrownClassifier):
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
        Choose the number of stages on held-back rows.
    calibrate : bool
        Make probabilities honest by what models say of held-back rows, whole and with holes; the
        density is left alone.
    density : "auto", "full", "diag", "spherical", "low_rank", "student", or a `Structure`
        As in `MixtureClassifier`; "auto" is "full" where classes have as many rows as there are
        features, on average, and "low_rank" where they have fewer.
    solver : "em", or an `EM`
        Of every stage.
    prior_rows : float
        Imagined rows per component, with the spread that the classes show on average, that keep
        covariances sound where real rows are few; 0 is plain maximum likelihood.
    standardize, class_weight, categorical_features, unexpected, missingness,
    unlabeled, max_time, device, callbacks
        As in `MixtureClassifier`; unlabeled rows are left out, with a warning.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, weights_, means_, covariances_ : components of a class in the order of
        the stages
    density_ : what "auto" chose
    stage_weights_ : weight of every stage, or of its vote
    n_stages_ : how many there are
    mixture_ : the fitted model, in standardized units; with "adaboost" there are `voters_` instead
    scaling_ : the map between units
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
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

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions(set(GROWING))],
        "n_stages": [Interval(Integral, 1, None, closed="left")],
        "early_stopping": ["boolean"],
        "calibrate": ["boolean"],
        "density": [StrOptions(set(DENSITIES)), Structure],
        "solver": [StrOptions({"em"}), EM],
        "prior_rows": [Interval(Real, 0, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "standardize": ["boolean"],
        **TABLE_CONSTRAINTS,
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        method: str = "boosted",
        n_stages: int = 10,
        early_stopping: bool = True,
        calibrate: bool = True,
        density: str | Structure = "auto",
        solver: str | EM = "em",
        prior_rows: float = 1.0,
        class_weight: Any = None,
        max_time: float | None = None,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        unlabeled: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.n_stages = n_stages
        self.early_stopping = early_stopping
        self.calibrate = calibrate
        self.density = density
        self.solver = solver
        self.prior_rows = prior_rows
        self.class_weight = class_weight
        self.max_time = max_time
        self.standardize = standardize
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.unlabeled = unlabeled
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to the labeled rows.

        Parameters
        ----------
        X : (n, D), NaN where missing.
        y : (n,) labels.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing():
            self._forget()
            X = self._check_X(X, reset=True)
            return self._fit_rows(labeled_rows(read_rows(self, X, y, sample_weight)))

    def _fit_rows(self, rows: Rows) -> Self:
        scaling = self._measure_scaling(rows.X, rows.weight)
        device = resolve_device(self.device, rows.X.size)
        engine = LocalEngine(Table(rows.X, rows.y, rows.weight, scaling=scaling, device=device))
        self.classes_, self.scaling_ = rows.classes, scaling
        self.density_ = self._structure(engine)
        counts = component_counts(self.n_components, rows)
        assert counts is not None  # only "auto" leaves them open
        open_question = self.missingness == "auto" and engine.has_holes
        choices = [False, True] if open_question else [self.missingness == "informative"]
        em = resolve(self.solver, {"em": EM})
        trains = [partial(self._train, em, min(counts), informative) for informative in choices]
        with self._progress() as progress:
            best, chosen = self._train_best(
                trains, engine, progress, in_steps=self.n_stages > 1, beats=Unseen.clearly_beats
            )
        self.missingness_ = "informative" if choices[best] else "ignore"
        if "voters_" not in self.__dict__:
            self._publish(self.mixture_, scaling)
            self._publish_scores(engine, progress, chosen.prior)
        return self

    def _structure(self, engine: Engine) -> Structure:
        given = self.density
        if given == "auto":
            enough = engine.n_numbers * len(self.classes_) <= len(engine.merged())
            given = "full" if enough else "low_rank"
        return resolve(given, DENSITIES).candidates(engine.n_numbers)[0]

    def _train(
        self,
        em: EM,
        n_components: int,
        informative: bool,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[Candidate]:
        def begin(engine: Engine, generator: torch.Generator) -> Mixture:
            structure = self.density_
            return cluster_start(
                engine, n_components, structure, generator, informative=informative
            )

        learner = Learner(begin, em, len(self.classes_))
        learner = learner.informed(engine, self.prior_rows, generator)
        return grow(self.method, learner, self.n_stages, engine, generator, progress)
