"""MixtureClassifier: class mixtures trained to explain, to discriminate, or both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions

from mixtura.data import Scaling, Table, resolve_device
from mixtura.densities import STRUCTURES, Categorical, numeric_part
from mixtura.engines import Engine, LocalEngine, PunchedEngine
from mixtura.estimators.base import TABLE_CONSTRAINTS, run_over
from mixtura.estimators.comparison import (
    Contender,
    Solve,
    challenge,
    clearly_better,
    compare,
    judge,
)
from mixtura.estimators.plan import (
    EVEN,
    FEWEST_TRIED,
    NO_GAIN,
    NO_TIME,
    SMALL,
    TOO_FEW,
    TRIED,
    UNTIL,
    Plan,
    Rows,
    class_counts,
    make_plans,
    other_missingness,
    other_tradeoffs,
    read_rows,
    resized,
    shortened,
    warn_of_rows_set_aside,
)
from mixtura.estimators.predicting import DensityClassifier
from mixtura.estimators.streaming import StreamingClassifier
from mixtura.exceptions import InvalidInputError, warn
from mixtura.models.mixture import Mixture
from mixtura.objectives import (
    OBJECTIVES,
    Likelihood,
    LogMargin,
    Margin,
    Objective,
    beside_likelihood,
    log_margin,
)
from mixtura.parts import resolve
from mixtura.persistence import storable
from mixtura.selection.budget import Budget, Outcome, warn_if_cut_short
from mixtura.selection.calibration import Calibration, Unseen
from mixtura.training.base import FitResult, SpreadPrior
from mixtura.training.ebw import EBW
from mixtura.training.em import EM
from mixtura.training.gradient import LBFGS, SCHEDULES, Adam, evaluate
from mixtura.training.progress import Progress
from mixtura.training.selection import fit_groups

#: Parts that rows are held back in, to choose and to calibrate; and iterations of a trial there
#: where the model itself is trained by Adam.
_FOLDS, _TRIAL = 4, 40
#: Rows from which a start is found where another solver than EM goes on: more do not improve it.
_MOST_TO_START = 30_000
#: With fewer labeled rows (or fewer than one per class and fold), held-back ones decide nothing:
#: first choices are taken.
_FEWEST = 50


class Decision(NamedTuple):
    """What to train, on what, from where on, and what such models said of held-out rows."""

    plan: Plan
    engine: Engine
    previous: FitResult | None
    unseen: Unseen | None


class Trained(NamedTuple):
    """What training gave, and the rows that it was not shown (None: it was shown all)."""

    result: FitResult
    held_back: Engine | None


@storable
class MixtureClassifier(DensityClassifier, StreamingClassifier):
    """One mixture a class, trained generatively, discriminatively, or both.

    Components are Gaussian in the columns that hold numbers, and categorical in the others. NaN and
    None mean missing, in training and in prediction, and are marginalized exactly. Unlabeled rows
    take part in the likelihood where that helps.

    Parameters
    ----------
    n_components : "auto", int, or one int a class
        Components a class; "auto" grows them while an information criterion falls.
    covariance : "auto", "full", "diag", "spherical" or "low_rank"
        Structure of the covariances; "auto" compares low rank (full for one or two features) and
        diagonal on held-back rows.
    rank : "auto" or int
        Rank of the low-rank part; "auto" compares a quarter of the features (25 at most) and 3.
    parameterization : "covariance" or "precision"
        Which of the two is diagonal plus low rank.
    objective : "margin", "conditional", "smooth_margin", "likelihood", or an `Objective`
        The discriminative term; a name is shorthand for an object of `mixtura.objectives` with its
        own settings, such as `Margin(margin=20.0)`.
    tradeoff : "auto" or float in [0, 1]
        Share of the likelihood per observed value in the objective, so that one number serves few
        features and many: 1 is generative, 0 discriminative; "auto" compares 0.9 and 0.5.
    unlabeled_weight : "auto" or float in [0, 1]
        Weight of unlabeled rows in the likelihood term, where there are any; labeled rows then
        weigh one minus it, and 0 sets unlabeled rows aside. "auto" is 0.5 if labels that are held
        out in turn are clearly better predicted then, and 0, with a warning, if they are not or
        there are fewer than ten. In a stream the first part with unlabeled rows decides: those of
        later parts are set aside too, or count like labeled ones in online EM.
    solver : "auto", "em", "ebw", "adam" or "lbfgs"
        "auto": EM for the likelihood; L-BFGS on small data and Adam on large for the others.
    holes : float in [0, 0.5]
        Show the objective every row twice, whole and with so large a share of random holes (on
        average; they are marginalized, as everywhere): good where features will be missing at
        prediction. 0 is off; the likelihood objective needs none.
    class_prior : "empirical", "uniform" or array
        "empirical" starts at the class frequencies and is trained; the others stay as given.
    class_weight : None, "balanced" or dict
        Weights of the classes, as in scikit-learn.
    max_iter : "auto" or int
        Iterations (EM, EBW: 100; L-BFGS: 40) or epochs (Adam: about 3,000 steps) of the solver.
    max_time : float or None
        Seconds that training may take. It begins with a sample of the rows and takes larger ones
        while time remains; the best model is kept, and a warning says what was cut short. Every
        part of the training still takes a step, so a fit lasts a little longer. Comparing
        structures takes half of the time at most; the step size of Adam follows the clock.
    tol : float
        EM stops when the mean log-likelihood gains less; where another solver goes on, ten times
        as early.
    n_init, init_max_iter : int
        EM restarts a class, and iterations of each, for the start.
    init : "em" or "eigen"
        Low rank only: start from EM for the structure itself (factor analysers), or from the
        leading eigenpairs of full covariances.
    reg_covar : "auto" or float
        Smallest variance in any direction, as a share of the feature's own ("auto" compares 0.01
        and 0.1). Adam and L-BFGS bound full covariances less: each pivot of the Cholesky factor by
        a tenth of its root.
    prior_rows : "auto" or float
        Imagined rows a component, with the spread that the classes show on average, that keep
        covariances sound where real rows are few; 0 is plain maximum likelihood.
    standardize : bool
        Work in units in which every feature has variance one, so that rescaling a feature does
        not change the predictions.
    learning_rate, batch_size, schedule, averaging
        Adam's step size, minibatch ("auto": a hundredth of the rows, 100 to 1000), course of the
        step size ("constant", "cosine", "linear"), and decay of the parameter average (0: off).
    early_stopping : "auto" or bool
        Adam and L-BFGS: hold back `validation_fraction` of the labeled rows, keep the best
        iterate on them, and stop after `n_iter_no_change` iterations without gain. "auto": with
        Adam only.
    validation_fraction, n_iter_no_change
        The share of the labeled rows that early stopping holds back, and its patience.
    calibrate : bool
        Make probabilities honest by what the models of a comparison say of held-back rows, whole
        and with holes; the density is left alone. The likelihood objective needs none.
    categorical_features : None, "from_dtype" or array-like
        Columns that hold categories, by position, name or mask, beside those that their type shows
        (None and "from_dtype": these alone): text, categories and booleans in data frames and
        object arrays.
    unexpected : "missing", "ignore" or "error"
        What becomes of a category that was not in the training rows, and of a column that a data
        frame lacks at prediction: it counts as missing, with a warning (and tells nothing even
        where holes do), or, with "error", is refused, as are columns in another order. Columns
        that training did not have are refused, or, with "ignore", left aside with a warning.
    missingness : "auto", "ignore" or "informative"
        Whether holes mean something. "ignore" marginalizes them, which is right where entries are
        missing at random; "informative" also models, for every component, how often it lacks each
        entry, for forms where "not measured" tells something. Further holes at random are part of
        that model, and patterns unlike all of training tell nothing. "auto" is "informative" if
        the labels of held-back rows are clearly more probable then (by two standard errors, and
        0.02 nats per row), and no less so with further random holes; else, and always where the
        training rows have no holes, "ignore". `missingness_` is what was chosen.
    warm_start : bool
        Start from the model of the previous fit.
    unlabeled : "auto", None or a label
        What marks unlabeled rows beside None and NaN, which always do. "auto": -1, where y has at
        least two other labels, and a warning says how many rows these are; otherwise -1 is a class.
        None: nothing else. After fitting, and with the `classes` of `partial_fit`, "auto" takes -1
        for a class if it is one of them.
    device : "auto", "cpu", "cuda", ...
        Float32 data are trained by Adam, and predicted, in float32 where the floor of the variances
        is high enough for its rounding; all else runs in double precision.
    callbacks : list of callables
        Called with a dict after every iteration; training stops when one returns True.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, n_components_ (a class), weights_, means_, covariances_
    mixture_ : the fitted model, in standardized units
    scaling_ : the map between units
    temperature_, doubt_, fade_ : calibration of `predict_proba`: what class log-joints are divided
        by, the share of a plain guess mixed in, and how fast the temperature falls with the share
        of missing features
    covariance_, rank_, reg_covar_, tradeoff_, missingness_ : what "auto" chose
    unlabeled_weight_ : likewise; None if all rows had labels
    schema_ : names and categories of the columns
    margin_bound_ : upper bound of the number of training errors
    class_count_ : weight of the rows of each class seen so far
    history_, n_iter_, converged_

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MixtureClassifier(random_state=0).fit(X, y)
    >>> X[:, 2] = np.nan                      # a sensor drops out after training
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: dict = {
        "n_components": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
            "array-like",
        ],
        "covariance": [StrOptions({"auto", *(name for name, _ in STRUCTURES)})],
        "rank": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "parameterization": [StrOptions({"covariance", "precision"})],
        "objective": [StrOptions(set(OBJECTIVES)), Objective],
        "tradeoff": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "unlabeled_weight": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "solver": [StrOptions({"auto", "em", "ebw", "adam", "lbfgs"})],
        "holes": [Interval(Real, 0, 0.5, closed="both")],
        "class_prior": [StrOptions({"empirical", "uniform"}), "array-like"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init_max_iter": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"em", "eigen"})],
        "prior_rows": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "reg_covar": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "standardize": ["boolean"],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "schedule": [StrOptions(set(SCHEDULES))],
        "averaging": [Interval(Real, 0, 1, closed="left")],
        "early_stopping": [StrOptions({"auto"}), "boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "calibrate": ["boolean"],
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
        covariance: str = "auto",
        rank: Any = "auto",
        parameterization: str = "covariance",
        objective: str = "margin",
        tradeoff: Any = "auto",
        unlabeled_weight: Any = "auto",
        solver: str = "auto",
        holes: float = 0.0,
        class_prior: Any = "empirical",
        class_weight: Any = None,
        max_iter: Any = "auto",
        max_time: float | None = None,
        tol: float = 1e-3,
        n_init: int = 1,
        init_max_iter: int = 100,
        init: str = "em",
        reg_covar: Any = "auto",
        prior_rows: Any = "auto",
        standardize: bool = True,
        learning_rate: float = 5e-3,
        batch_size: Any = "auto",
        schedule: str = "cosine",
        averaging: float = 0.0,
        early_stopping: Any = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        calibrate: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        warm_start: bool = False,
        unlabeled: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.rank = rank
        self.parameterization = parameterization
        self.objective = objective
        self.tradeoff = tradeoff
        self.unlabeled_weight = unlabeled_weight
        self.solver = solver
        self.holes = holes
        self.class_prior = class_prior
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.max_time = max_time
        self.tol = tol
        self.n_init = n_init
        self.init_max_iter = init_max_iter
        self.init = init
        self.reg_covar = reg_covar
        self.prior_rows = prior_rows
        self.standardize = standardize
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.schedule = schedule
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.calibrate = calibrate
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.warm_start = warm_start
        self.unlabeled = unlabeled
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing.
        y : (n,) labels; None or NaN where there is none (or -1, see `unlabeled`).
        sample_weight : (n,) non-negative weights; a row of weight two counts as two rows.
        """
        with self._all_or_nothing():
            return self._fit_rows(self._read(X, y, sample_weight))

    def _read(self, X: Any, y: Any, sample_weight: Any, known: np.ndarray | None = None) -> Rows:
        X = self._check_X(X, reset=known is None or not hasattr(self, "mixture_"))
        return read_rows(self, X, y, sample_weight, known)

    def _fit_rows(self, rows: Rows) -> Self:
        with self._progress() as progress:
            plan, engine, previous, unseen = self._decide(rows, progress)
            outcome = self._train(plan, previous, engine, progress)
        result, held_back = outcome.model
        calibration = Calibration()
        if self.calibrate and not plan.generative:
            if held_back is not None:
                generator = self._generator()
                some = held_back.subsample(SMALL, generator)
                unseen = Unseen.judged(result.mixture, some, generator)
            calibration = self._typical_calibration() if unseen is None else unseen.calibrate()
        self.temperature_, self.doubt_ = calibration.temperature, calibration.doubt
        self.fade_ = calibration.fade
        self._conclude(result, engine, progress, plan)
        self._publish_scores(engine, progress, result.prior)
        aside = len(rows.y) - len(engine)
        self.converged_ &= not warn_if_cut_short(progress, outcome.n_rows, len(engine), aside)
        used = rows.labeled() if plan.unlabeled_weight == 0.0 else rows
        self.class_count_ = class_counts(used, self.class_prior_)
        return self

    @property
    def _term(self) -> Objective:
        """The discriminative term."""
        return resolve(self.objective, OBJECTIVES)

    def _decide(self, rows: Rows, progress: Progress) -> Decision:
        """What to train on which rows; unlabeled ones only if held-out labels say that they help.

        All else is chosen as it would be without them.
        """
        weight = self.unlabeled_weight
        if weight == "auto" and self.warm_start and hasattr(self, "mixture_"):
            weight = "auto" if self.unlabeled_weight_ is None else self.unlabeled_weight_
        left_open = weight == "auto" and len(rows.classes) > 1
        if not (left_open or weight == 0.0) or not rows.may_do_without_unlabeled:
            return self._decide_on(rows, progress)
        labeled = rows.labeled()
        without = self._decide_on(labeled, progress)
        without = without._replace(plan=replace(without.plan, unlabeled_weight=0.0))
        if not left_open:
            return without
        engine = self._training_table(rows)
        better: Contender | str = TOO_FEW
        if len(labeled.y) >= FEWEST_TRIED:
            better = self._better_with_unlabeled(without.plan, engine, progress)
        if isinstance(better, str):
            warn_of_rows_set_aside(rows, better)
            return without
        plan = resized(self, replace(without.plan, unlabeled_weight=EVEN), engine)
        unseen = None if without.unseen is None else Unseen.pool(better.parts)
        return Decision(plan, engine, None, unseen)

    def _decide_on(self, rows: Rows, progress: Progress) -> Decision:
        """What to train on these rows."""
        plans = make_plans(self, rows)
        previous = self._previous(rows, plans) if self.warm_start else None
        self.classes_ = rows.classes
        if previous is not None:
            plans = [self._resumed(plans)]
        engine = self._training_table(rows, None if previous is None else self.scaling_)
        plan, unseen = self._choose(plans, engine, progress, settled=previous is not None)
        return Decision(plan, engine, previous, unseen)

    def _training_table(self, rows: Rows, scaling: Scaling | None = None) -> Engine:
        scaling = scaling or self._measure_scaling(rows.X, rows.weight)
        device = resolve_device(self.device, rows.X.size)
        return LocalEngine(Table(rows.X, rows.y, rows.weight, scaling=scaling, device=device))

    def _better_with_unlabeled(
        self, plan: Plan, engine: Engine, progress: Progress
    ) -> Contender | str:
        """The plan with unlabeled rows, and what its models say of held-out ones; or why not."""
        generator = self._generator()
        some = engine.merged().sample(SMALL, generator).fewer_unlabeled(engine, TRIED)
        parts = list(some.folds(_FOLDS, generator))
        solve = self._trial(generator, progress, 0.5 / (2 * _FOLDS))
        in_time = (part for part in parts if progress.leaves_time(UNTIL))
        without = judge(shortened(plan), in_time, solve)
        if not without.parts or progress.time_spent >= UNTIL:
            return NO_TIME
        others = [replace(without.plan, unlabeled_weight=EVEN)]
        best = clearly_better(without, others, parts, solve, Unseen.surely_beats)
        return NO_GAIN if best is without else best

    def _train(
        self, plan: Plan, previous: FitResult | None, engine: Engine, progress: Progress
    ) -> Outcome[Trained]:
        """Train on all rows, or on as many as time allows."""

        def train(rows: Engine, latest: Trained | None) -> Trained:
            generator, held_back = self._generator(), None
            engine, sized = rows, resized(self, plan, rows)
            if self._stops_early(sized):
                engine, held_back = rows.hold_out(self.validation_fraction, generator)
            begin = previous if latest is None else latest.result
            result = self._solve(engine, held_back, sized, begin, generator, progress)
            return Trained(result, held_back)

        def loss(trained: Trained, rows: Engine) -> float:
            objective = self._objective(plan, rows)
            return evaluate(trained.result.mixture, objective, rows)[1]

        draw = partial(engine.sample, generator=self._generator())
        return Budget(progress, train, loss, draw).run(engine)

    def _typical_calibration(self) -> Calibration:
        """What calibration mostly finds, for want of rows to fit it on."""
        term = self._term
        return Calibration.typical(term.margin) if isinstance(term, LogMargin) else Calibration()

    def _choose(
        self, plans: list[Plan], engine: Engine, progress: Progress, settled: bool
    ) -> tuple[Plan, Unseen | None]:
        """The plan that does best on rows held back from it, and what it says of them.

        Trials take half of the allowed time at most.
        """
        plan = plans[0]
        calibrates = self.calibrate and not plan.generative and not self._stops_early(plan)
        others = [] if settled else other_tradeoffs(self, plan)
        informative = [] if settled else other_missingness(self, plan, engine)
        if not (len(plans) > 1 or others or informative or calibrates):
            return plan, None
        generator, different = self._generator(), engine.merged()
        if int((different.y >= 0).sum()) < max(_FEWEST, _FOLDS * len(self.classes_)):
            return plan, None
        parts = list(different.sample(SMALL, generator).folds(_FOLDS, generator))
        share = 0.5 / (_FOLDS * (len(plans) + len(others) + len(informative)))

        solve = self._trial(generator, progress, share)
        in_time = (part for part in parts if progress.leaves_time(0.5))
        best = compare(plans, in_time, solve)
        if best.parts and others and progress.leaves_time(0.5):
            best = challenge(best, other_tradeoffs(self, best.plan), parts, solve)
        if best.parts and informative and progress.leaves_time(0.5):
            best = clearly_better(best, other_missingness(self, best.plan, engine), parts, solve)
        return best.plan, Unseen.pool(best.parts) if best.parts else None

    def _trial(self, generator: torch.Generator, progress: Progress, share: float) -> Solve:
        """Trains a plan on some rows, in a share of the time that is left."""

        def solve(engine: Engine, plan: Plan) -> Mixture:
            if plan.solver == "adam":
                plan = replace(plan, solver="lbfgs", max_iter=_TRIAL)
            return self._solve(engine, None, plan, None, generator, progress.part(share)).mixture

        return solve

    def _previous(self, rows: Rows, plans: list[Plan]) -> FitResult | None:
        """The model of the previous fit, if there is one; it must fit the new rows."""
        if not hasattr(self, "mixture_"):
            return None
        previous, n_features = self.mixture_, rows.X.shape[1]
        levels = self._levels(n_features)
        kinds = [plan.recipe.density_class(int((levels == 0).sum())) for plan in plans]
        same = (
            previous.density.n_features == n_features
            and np.array_equal(self.classes_, rows.classes)
            and np.array_equal(levels, self.scaling_.levels)
            and plans[0].counts in (None, list(previous.layout.counts))
            and type(numeric_part(previous.density)) in (*kinds, Categorical)
            and self.missingness in ("auto", self.missingness_)
        )
        if not same:
            raise InvalidInputError(
                "warm_start=True needs the classes, features, components and covariance structure "
                "of the previous fit; set warm_start=False to start anew."
            )
        return FitResult(previous, float("nan"), 0, True, self._spread_prior())

    def _resumed(self, plans: list[Plan]) -> Plan:
        """The plan of the previous fit: what "auto" chose then is kept."""
        recipe = replace(plans[0].recipe, covariance=self.covariance_, rank=self.rank_)
        informative = self.missingness_ == "informative"
        recipe = replace(recipe, floor=self.reg_covar_, informative=informative)
        plan = replace(plans[0], recipe=recipe)
        chosen = self.tradeoff == "auto" and self.tradeoff_ < 1.0
        return replace(plan, tradeoff=self.tradeoff_) if chosen else plan

    def _stops_early(self, plan: Plan) -> bool:
        if self.early_stopping == "auto":
            return plan.solver == "adam"
        return self.early_stopping and plan.solver in ("adam", "lbfgs")

    def _solve(
        self,
        engine: Engine,
        held_back: Engine | None,
        plan: Plan,
        previous: FitResult | None,
        generator: torch.Generator,
        progress: Progress,
    ) -> FitResult:
        """Start anew or from the previous model, and train."""
        if plan.unlabeled_weight == 0.0:
            engine = engine.only(engine.labeled)
        few = self._rows_to_start(engine, plan, generator)
        if previous is None:
            start = self._start(few, plan, generator, progress)
        else:
            resumed = replace(previous.mixture, learn_prior=plan.learn_prior)
            start = replace(previous, mixture=resumed.to(engine.device))
        plan = replace(plan, prior=start.prior)
        has_unlabeled = bool(plan.unlabeled_weight)
        if plan.solver == "em" and not has_unlabeled and previous is None:
            return start
        if plan.solver != "em" and has_unlabeled and previous is None:
            start = self._meet_unlabeled(start, few, plan, progress)
        engine = self._engine(engine, plan, generator)
        objective = self._objective(plan, engine)
        trainer = self._trainer(plan, held_back, generator)
        result = trainer.run(start.mixture, objective, engine, progress)
        return replace(result, prior=start.prior)

    @staticmethod
    def _rows_to_start(engine: Engine, plan: Plan, generator: torch.Generator) -> Engine:
        """The rows that the start is found from: all if it is also the end."""
        if plan.solver == "em" or len(engine) <= _MOST_TO_START:
            return engine
        return engine.sample(_MOST_TO_START, generator)

    def _engine(self, engine: Engine, plan: Plan, generator: torch.Generator) -> Engine:
        """The rows as the solver is to meet them."""
        engine = engine.cast(plan.dtype) if plan.solver == "adam" else engine
        if self.holes and not plan.generative:
            return PunchedEngine(engine, self.holes, generator)
        return engine

    def _meet_unlabeled(
        self, start: FitResult, engine: Engine, plan: Plan, progress: Progress
    ) -> FitResult:
        """EM over all rows, so that discriminative training begins where the rows are."""
        if not start.mixture.density.closed_form:
            return start
        em = replace(plan.recipe.em, tol=self.tol, prior=plan.prior)
        met = em.run(start.mixture, Likelihood(plan.unlabeled_weight), engine, progress)
        return replace(met, prior=start.prior)

    def _spread_prior(self) -> SpreadPrior | None:
        if self.prior_spread_ is None:
            return None
        return SpreadPrior(self.prior_rows_, torch.from_numpy(self.prior_spread_))

    def _start(
        self, train: Engine, plan: Plan, generator: torch.Generator, progress: Progress
    ) -> FitResult:
        """EM on the labeled rows of every class; all rows stand in for a class not seen yet."""
        by_class = [train.labeled_as(label) for label in range(len(self.classes_))]
        engines = [(rows if len(rows) else train).single_class() for rows in by_class]
        start = fit_groups(engines, plan.counts, plan.recipe, generator, progress)
        parts = [result.mixture for result in start.results]
        joined = Mixture.join(parts, plan.log_prior.to(train.device), plan.learn_prior)
        n_iter = max(result.n_iter for result in start.results)
        converged = all(result.converged for result in start.results)
        return FitResult(joined, float("nan"), n_iter, converged, start.prior)

    def _objective(self, plan: Plan, engine: Engine) -> Objective:
        return beside_likelihood(
            Likelihood() if plan.generative else self._term,
            plan.tradeoff,
            unlabeled_weight=plan.unlabeled_weight or None,
            n_values=engine.values_per_row,
        )

    def _trainer(self, plan: Plan, held_back: Engine | None, generator: torch.Generator) -> Any:
        if plan.solver == "em":
            return EM(plan.max_iter, self.tol, plan.prior)
        if plan.solver == "ebw":
            return EBW(plan.max_iter, prior=plan.prior)
        patience = self.n_iter_no_change
        if plan.solver == "lbfgs":
            return LBFGS(plan.max_iter, validation=held_back, patience=patience, prior=plan.prior)
        return Adam(
            generator,
            max_epochs=plan.max_iter,
            batch_size=plan.batch_size,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            averaging=self.averaging,
            validation=held_back,
            patience=patience,
            prior=plan.prior,
        )

    def _conclude(self, result: FitResult, engine: Engine, progress: Progress, plan: Plan) -> None:
        mixture, prior = result.mixture, result.prior
        self._publish(mixture, engine.scaling)
        self.prior_rows_ = 0.0 if prior is None else prior.rows
        self.prior_spread_ = None if prior is None else prior.reference.cpu().numpy()
        self.covariance_ = plan.recipe.final_covariance(engine.n_numbers)
        self.missingness_ = "informative" if plan.recipe.informative else "ignore"
        self.rank_, self.reg_covar_ = plan.recipe.rank, plan.recipe.floor
        self.unlabeled_weight_ = plan.unlabeled_weight
        self.tradeoff_ = 1.0 if plan.generative else plan.tradeoff
        self.class_prior_ = self.mixture_.log_prior.exp().numpy()
        self.n_components_ = list(mixture.layout.counts)
        self.history_, self.n_iter_ = progress.history, result.n_iter
        self.converged_ = result.converged
        self.margin_bound_ = self._margin_bound(mixture, engine)
        unsettled = not result.converged and not progress.stopped
        if unsettled and plan.solver in ("em", "ebw"):
            warn(
                f"{plan.solver} stopped after max_iter={plan.max_iter} iterations without "
                "settling; raise max_iter.",
                ConvergenceWarning,
            )

    def _margin_bound(self, mixture: Mixture, engine: Engine) -> float:
        """sum of hinge(margin - log-margin) / margin: no fewer than the training errors."""
        if mixture.n_classes == 1:
            return 0.0
        class_log_joint = run_over(mixture, engine, lambda m, b: m.class_log_joint(b))
        y, weight = engine.y.cpu(), engine.weight.double().cpu()
        term = self._term if isinstance(self._term, LogMargin) else Margin()
        short = (term.margin - log_margin(class_log_joint, y, term.smoothness)).clamp_min(0.0)
        return float((short * weight)[y >= 0].sum() / term.margin)
