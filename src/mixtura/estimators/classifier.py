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
from mixtura.densities import DENSITIES, Structure
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
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome, warn_if_cut_short
from mixtura.selection.calibration import Calibration, Unseen
from mixtura.solvers import EM, SOLVERS, FitResult, Solver, SpreadPrior
from mixtura.solvers.gradients import evaluate
from mixtura.training.groups import fit_groups

#: Parts that rows are held back in, to choose and to calibrate.
_FOLDS = 4
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
    density : "auto", "full", "diag", "spherical", "low_rank", "student", or a `Structure`
        What components are in the columns that hold numbers; a name is shorthand for an object of
        `mixtura.densities` with its own settings, such as `LowRank(rank=5, floor=0.1)`. "auto"
        compares low rank (full for one or two features), a smaller rank, a higher floor of the
        variances, and variances alone, on held-back rows.
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
    solver : "auto", "em", "ebw", "adam", "lbfgs", or a `Solver`
        A name is shorthand for an object of `mixtura.solvers` with its own settings, such as
        `Adam(learning_rate=1e-3)`. "auto": EM for the likelihood; L-BFGS on small data and Adam on
        large for the others.
    init : "em", or an `EM`
        Where another solver goes on, it starts from EM on the rows of each class: that is
        `EM(max_iter=100, tol=0.01, n_init=1)`, unless another is given.
    holes : float in [0, 0.5]
        Show the objective every row twice, whole and with so large a share of random holes (on
        average; they are marginalized, as everywhere): good where features will be missing at
        prediction. 0 is off; the likelihood objective needs none.
    class_prior : "empirical", "uniform" or array
        "empirical" starts at the class frequencies and is trained; the others stay as given.
    class_weight : None, "balanced" or dict
        Weights of the classes, as in scikit-learn.
    max_time : float or None
        Seconds that training may take. It begins with a sample of the rows and takes larger ones
        while time remains; the best model is kept, and a warning says what was cut short. Every
        part of the training still takes a step, so a fit lasts a little longer. Comparing
        structures takes half of the time at most; the step size of Adam follows the clock.
    prior_rows : "auto" or float
        Imagined rows a component, with the spread that the classes show on average, that keep
        covariances sound where real rows are few; 0 is plain maximum likelihood.
    standardize : bool
        Work in units in which every feature has variance one, so that rescaling a feature does
        not change the predictions.
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
    density_, tradeoff_, missingness_ : what "auto" chose
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
        "density": [StrOptions(set(DENSITIES)), Structure],
        "objective": [StrOptions(set(OBJECTIVES)), Objective],
        "tradeoff": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "unlabeled_weight": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "solver": [StrOptions({"auto", *SOLVERS}), Solver],
        "init": [StrOptions({"em"}), EM],
        "holes": [Interval(Real, 0, 0.5, closed="both")],
        "class_prior": [StrOptions({"empirical", "uniform"}), "array-like"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "prior_rows": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "standardize": ["boolean"],
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
        density: str | Structure = "auto",
        objective: str | Objective = "margin",
        tradeoff: Any = "auto",
        unlabeled_weight: Any = "auto",
        solver: str | Solver = "auto",
        init: str | EM = "em",
        holes: float = 0.0,
        class_prior: Any = "empirical",
        class_weight: Any = None,
        max_time: float | None = None,
        prior_rows: Any = "auto",
        standardize: bool = True,
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
        self.density = density
        self.objective = objective
        self.tradeoff = tradeoff
        self.unlabeled_weight = unlabeled_weight
        self.solver = solver
        self.init = init
        self.holes = holes
        self.class_prior = class_prior
        self.class_weight = class_weight
        self.max_time = max_time
        self.prior_rows = prior_rows
        self.standardize = standardize
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
                unseen = Unseen.judged(result.model, some, generator)
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
            if sized.solver.held_out_share:
                engine, held_back = rows.hold_out(sized.solver.held_out_share, generator)
            begin = previous if latest is None else latest.result
            result = self._solve(engine, held_back, sized, begin, generator, progress)
            return Trained(result, held_back)

        def loss(trained: Trained, rows: Engine) -> float:
            objective = self._objective(plan, rows)
            return evaluate(trained.result.model, objective, rows)[1]

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
        calibrates = self.calibrate and not plan.generative and not plan.solver.held_out_share
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
            plan = replace(plan, solver=plan.solver.for_trials())
            return self._solve(engine, None, plan, None, generator, progress.part(share)).model

        return solve

    def _previous(self, rows: Rows, plans: list[Plan]) -> FitResult | None:
        """The model of the previous fit, if there is one; it must fit the new rows."""
        if not hasattr(self, "mixture_"):
            return None
        previous, n_features = self.mixture_, rows.X.shape[1]
        same = (
            previous.density.n_features == n_features
            and np.array_equal(self.classes_, rows.classes)
            and np.array_equal(self._levels(n_features), self.scaling_.levels)
            and plans[0].counts in (None, list(previous.layout.counts))
            and self.density_ in [plan.recipe.structure for plan in plans]
            and self.missingness in ("auto", self.missingness_)
        )
        if not same:
            raise InvalidInputError(
                "warm_start=True needs the classes, features, components and density of "
                "the previous fit; set warm_start=False to start anew."
            )
        return FitResult(previous, float("nan"), 0, True, self._spread_prior())

    def _resumed(self, plans: list[Plan]) -> Plan:
        """The plan of the previous fit: what "auto" chose then is kept."""
        informative = self.missingness_ == "informative"
        recipe = replace(plans[0].recipe, structure=self.density_, informative=informative)
        plan = replace(plans[0], recipe=recipe)
        chosen = self.tradeoff == "auto" and self.tradeoff_ < 1.0
        return replace(plan, tradeoff=self.tradeoff_) if chosen else plan

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
        by_em, has_unlabeled = isinstance(plan.solver, EM), bool(plan.unlabeled_weight)
        few = self._rows_to_start(engine, plan, generator)
        if previous is not None:
            resumed = replace(previous.model, learn_prior=plan.learn_prior)
            start = replace(previous, model=resumed.to(engine.device))
        else:
            start = self._start(few, plan, generator, progress)
            if by_em and not has_unlabeled:
                return start
            if has_unlabeled and not by_em:
                start = self._meet_unlabeled(start, few, plan, progress)
        rows = self._engine(engine, plan, generator)
        result = plan.solver.run(
            start.model,
            self._objective(plan, rows),
            rows,
            progress,
            generator=generator,
            held_out=held_back,
            prior=start.prior,
        )
        return replace(result, prior=start.prior)

    @staticmethod
    def _rows_to_start(engine: Engine, plan: Plan, generator: torch.Generator) -> Engine:
        """The rows that the start is found from: all if it is also the end."""
        if isinstance(plan.solver, EM) or len(engine) <= _MOST_TO_START:
            return engine
        return engine.sample(_MOST_TO_START, generator)

    def _engine(self, engine: Engine, plan: Plan, generator: torch.Generator) -> Engine:
        """The rows as the solver is to meet them."""
        engine = engine.cast(plan.dtype) if plan.solver.single_precision else engine
        if self.holes and not plan.generative:
            return PunchedEngine(engine, self.holes, generator)
        return engine

    def _meet_unlabeled(
        self, start: FitResult, engine: Engine, plan: Plan, progress: Progress
    ) -> FitResult:
        """EM over all rows, so that discriminative training begins where the rows are."""
        if not start.model.density.closed_form:
            return start
        em, likelihood = plan.recipe.em, Likelihood(plan.unlabeled_weight)
        em = replace(em, tol=0.1 * em.tol)
        met = em.run(start.model, likelihood, engine, progress, prior=start.prior)
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
        parts = [result.model for result in start.results]
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

    def _conclude(self, result: FitResult, engine: Engine, progress: Progress, plan: Plan) -> None:
        mixture, prior = result.model, result.prior
        self._publish(mixture, engine.scaling)
        self.prior_rows_ = 0.0 if prior is None else prior.rows
        self.prior_spread_ = None if prior is None else prior.reference.cpu().numpy()
        self.density_ = plan.recipe.structure
        self.missingness_ = "informative" if plan.recipe.informative else "ignore"
        self.unlabeled_weight_ = plan.unlabeled_weight
        self.tradeoff_ = 1.0 if plan.generative else plan.tradeoff
        self.class_prior_ = self.mixture_.log_prior.exp().numpy()
        self.n_components_ = list(mixture.layout.counts)
        self.history_, self.n_iter_ = progress.history, result.n_iter
        self.converged_ = result.converged
        self.margin_bound_ = self._margin_bound(mixture, engine)
        solver = plan.solver
        if solver.settles and not result.converged and not progress.stopped:
            warn(
                f"{type(solver).__name__} stopped after max_iter={solver.max_iter} iterations "
                "without settling; raise max_iter of the solver.",
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
