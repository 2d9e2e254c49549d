"""MixtureClassifier: class mixtures trained to explain, to discriminate, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from mixtura.data.curves import KINDS
from mixtura.data.given import ArrayLike, Checkpoint, Numbers
from mixtura.data.lazy import Openable, source_of
from mixtura.data.schema import Schema
from mixtura.densities import Structure
from mixtura.engines import Engine
from mixtura.estimators.base import CONSTRAINTS
from mixtura.estimators.blending import Ensemble, Trial, best_of, in_time, kinds_for, try_beside
from mixtura.estimators.checkpoint import checkpointed
from mixtura.estimators.classifying import DensityClassifier
from mixtura.estimators.deciding import calibrated, decide, train, typical_rows
from mixtura.estimators.plan import MARGINALS, Decision, held_back, leaves_density_open, ways_beside
from mixtura.estimators.reading import opened
from mixtura.estimators.rows import Rows
from mixtura.estimators.stream import (
    next_step,
    read_stream_classes,
    used_rows,
    warn_of_a_small_part,
)
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import Fitted
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import OBJECTIVES, Objective
from mixtura.parts import AMOUNT, COUNT, SHARE
from mixtura.progress import Progress
from mixtura.selection.budget import warn_if_cut_short
from mixtura.selection.chooser import MOST_COMPARED
from mixtura.selection.typical import held_back_rows
from mixtura.solvers import EM, SOLVERS, FitResult, Solver
from mixtura.training.hybrid import Plan, class_counts, margin_bound


@dataclass(eq=False, repr=False)
class MixtureClassifier(DensityClassifier):
    """One mixture per class, trained generatively, discriminatively, or both.

    Components are Gaussian in the columns that hold numbers, and categorical in the others. NaN and
    None mean missing, in training and in prediction, and are marginalized exactly. Unlabeled rows
    take part in the likelihood where that helps. What "auto" compares, and from which numbers of
    rows on, is in the guide (docs/guide/auto.md), and in `choice_` after a fit.

    Parameters
    ----------
    n_components : "auto", int, or one int per class
        Components per class; "auto" grows them while an information criterion falls.
    density : "auto", "full", "diag", "spherical", "low_rank", "student", or a `Structure`
        What components are in the columns that hold numbers; a name is shorthand for an object of
        `mixtura.densities` with its own settings, such as `LowRank(rank=5, floor=0.1)`. "auto"
        compares low rank (full for one or two features), a smaller rank, a higher floor of the
        variances, and variances alone, on held-out rows; where rows lie far out also Student's t,
        and where labels are few a covariance that all classes share.
    objective : "margin", "conditional", "smooth_margin", "likelihood", or an `Objective`
        The discriminative term; a name is shorthand for an object of `mixtura.objectives` with its
        own settings, such as `Margin(margin=20.0)`; `Margin(holes=0.3)` also sees every row with
        so large a share of random holes, for features that will be missing at prediction.
    tradeoff : "auto" or float in [0, 1]
        Share of the likelihood per observed value in the objective, so that one number serves few
        features and many: 1 is generative, 0 discriminative; "auto" compares 0.9 and 0.5.
    unlabeled_weight : "auto" or float in [0, 1]
        Weight of unlabeled rows in the likelihood term, where there are any; labeled rows then
        weigh one minus it, and 0 sets unlabeled rows aside. "auto" is 0.5 if labels that are held
        out in turn are surely better predicted then, and 0, with a warning, if they are not or are
        too few to tell. In a stream the first call decides.
    solver : "auto", "em", "ebw", "adam", "lbfgs", or a `Solver`
        A name is shorthand for an object of `mixtura.solvers` with its own settings, such as
        `Adam(learning_rate=1e-3)`. "auto": EM for the likelihood; for the others L-BFGS of up to
        3,000 rows, and Adam of more.
    init : "em", or an `EM`
        Where another solver goes on, it starts from EM on the rows of each class: that is
        `EM(max_iter=100, tol=0.001 * D, n_init=1)` for D columns of numbers (ten at least), unless
        another is given; no more than 10 iterations before the L-BFGS of solver="auto". Where EM is
        what solver="auto" chooses, it is the one given here.
    class_prior : "empirical", "uniform" or array
        "empirical" starts at the class frequencies and is trained; the others stay as given.
    class_weight : None, "balanced" or dict
        Weights of the classes, as in scikit-learn; "balanced" needs all rows at once, and is
        refused in `partial_fit`.
    max_time : float or None
        Seconds that training may take. It begins with a sample of the rows and takes larger ones
        while time remains; the best model is kept, and a warning says what was cut short. Every
        part of the training still takes a step, so a fit lasts a little longer.
    prior_rows : "auto" or float
        Imagined rows per component, with the spread that the classes show on average, that keep
        covariances sound where real rows are few; 0 is plain maximum likelihood.
    marginals : "auto", "linear", "power", "ranks", "raw", or one of these four with "+atoms"
        How columns of numbers are mapped before components, which are Gaussian, are fitted to them;
        densities, draws and imputations stay in the units of X. "linear" brings them to
        variance one, so that rescaling a feature does not change the predictions; "raw" leaves them
        as they are, so that floors of variances are in their units; "power" takes for each column
        the power (of Yeo and Johnson) under which its values look most like Gaussian draws; "ranks"
        the normal scores of smoothed ranks. "+atoms" gives values that many rows share, such as
        zeros, a probability of their own per component. "auto" averages the class
        probabilities of the first three, of a model of indicators, of one whose class log-odds are
        quadratic ("quadratic") where few entries are missing, of one whose class log-odds are
        linear ("slopes") where rows are few beside columns, of one with a component per row
        ("kernels") where rows are not many, of one that goes by the rules of boosted trees
        ("rules") where they are not few, and of one that began with the leaves of a tree ("leaves")
        where that helps, where no density is named; all other answers are those of the first,
        "linear" model.
    calibrate : bool
        Make probabilities honest by what the models of a comparison say of held-out rows, whole
        and with holes; the density is left alone. The likelihood objective needs none.
    categorical_features : None, "from_dtype" or array-like
        Columns that hold categories, by position, name or mask, beside those that their type shows
        (None and "from_dtype": these alone): text, categories and booleans in data frames and
        object arrays.
    unexpected : "missing", "ignore" or "error"
        What becomes of a category that was not in the training rows, of a value in a column that
        was empty there, and of a column that a data frame lacks at prediction: it counts as
        missing, with a warning (and tells nothing even where holes do), or, with "error", is
        refused, as are columns in another order. Columns that training did not have are refused,
        or, with "ignore", left aside with a warning. In a stream, an empty column may fill later.
        Numbers more than three deviations beyond the range of training count as missing for class
        probabilities, with a warning, whatever this is.
    missingness : "auto", "ignore" or "informative"
        Whether holes mean something. "ignore" marginalizes them, which is right where entries are
        missing at random; "informative" also models, for every component, how often it lacks each
        entry, for forms where "not measured" tells something. "auto" is "informative" if the labels
        of held-out rows are clearly more probable then, and no less so with further random holes.
    warm_start : bool
        Start from the model of the previous fit. Its rows should be like the new ones: variances of
        a few rows, ten per class or less, may stay too small for all others.
    unlabeled : "auto", None or a label
        What marks unlabeled rows beside None and NaN, which always do. "auto": -1, where y has at
        least two other labels, and a warning says how many rows these are; otherwise -1 is a class.
        None: nothing else. After fitting, and with the `classes` of `partial_fit`, "auto" takes -1
        for a class if it is one of them.
    device : "auto", "cpu", "cuda", ...
        Float32 data are trained by Adam, and predicted by a single model, in float32 where the
        floor of the variances is high enough for its rounding; all else runs in double precision.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, n_components_ (per class), weights_, means_, covariances_ : of the first
        model, where several are averaged
    model_ : the fitted model: `model_.mixture` is its density, in standardized units, and
        `model_.scaling` the map between units; `mixture_` and `scaling_` for short
    temperature_, doubt_, fade_ : calibration of `predict_proba`: what class log-joints are divided
        by, the share of a plain guess mixed in, and how fast the temperature falls with the share
        of missing features
    density_, tradeoff_, missingness_ : what "auto" chose
    marginals_ : kinds of maps of the models whose class probabilities are averaged
    unlabeled_weight_ : likewise; None if all rows had labels
    schema_ : names and categories of the columns
    margin_bound_ : upper bound of the number of training errors
    class_count_ : weight of the rows of each class seen so far
    drift_ : of a stream, the mean log density of the rows of each part after the first, before
        they were learned from
    choice_ : what was compared on held-out rows: settings, rows, loss, and what was chosen
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

    _parameter_constraints = CONSTRAINTS | {
        "n_components": [StrOptions({"auto"}), COUNT, "array-like"],
        "objective": [StrOptions(set(OBJECTIVES)), Objective],
        "tradeoff": [StrOptions({"auto"}), SHARE],
        "solver": [StrOptions({"auto", *SOLVERS}), Solver],
        "class_prior": [StrOptions({"empirical", "uniform"}), "array-like"],
        "prior_rows": [StrOptions({"auto"}), AMOUNT],
        "marginals": [StrOptions({"auto", *MARGINALS})],
    }

    n_components: Numbers | str = "auto"
    _: KW_ONLY
    density: str | Structure = "auto"
    objective: str | Objective = "margin"
    tradeoff: float | str = "auto"
    unlabeled_weight: float | str = "auto"
    solver: str | Solver = "auto"
    init: str | EM = "em"
    class_prior: Numbers | str = "empirical"
    prior_rows: float | str = "auto"
    marginals: str = "auto"
    calibrate: bool = True
    missingness: str = "auto"
    warm_start: bool = False

    @property
    def n_components_(self) -> list[int]:
        """Components of each class."""
        return list(self.mixture_.layout.counts)

    @property
    def _keeps_units(self) -> bool:
        return self.marginals.startswith("raw")

    @property
    def _resumes(self) -> bool:
        """Whether a fit goes on from the one before it."""
        return self.warm_start and hasattr(self, "model_")

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike = None,
        *,
        checkpoint: Checkpoint | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing. Or rows that stay on disk: a
            path or pattern of Parquet files, or a `mixtura.parquet.Source`.
        y : (n,) labels; None or NaN where there is none (or -1, see `unlabeled`). Of files, the
            name of a column.
        sample_weight : (n,) non-negative weights; a row of weight two counts as two rows.
        checkpoint : path of a file that keeps the sums over many rows. The same fit, with the same
            path, goes on where it was interrupted, and ends with the same model to the bit; then
            the file is gone. (path, seconds) writes no more often than that.
        """
        with self._all_or_nothing(X):
            rows, schema = self._read_labeled(*opened(self, X, y, sample_weight))
            with checkpointed(self, rows.X, (rows.y, rows.weight), checkpoint) as values:
                return self._fit_rows(replace(rows, X=values), schema)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike = None,
        sample_weight: ArrayLike = None,
        *,
        memory: float | None = None,
    ) -> Self:
        """Learn from one more part of a stream.

        The first call starts a model from its rows and needs all `classes`. It also settles units,
        the kind of density and the calibration, and should have tens of rows per class: later parts
        mend what is learned, but probabilities stay as doubtful as so few rows made them. Later
        calls take one step of online EM, where densities have closed-form updates, and one epoch of
        Adam over theirs, where they have none or the objective is not the likelihood. With the
        likelihood, one full or diagonal component per class, `prior_rows=0` and complete rows, the
        stream ends where `fit` on all rows would, unless a part has less variance than the floor in
        some direction: what is raised to it there stays so. After a `fit` that averaged several
        models (see `marginals`) the first of them goes on alone. With the default floor and prior
        the two are close (iris in three parts: within 0.07).

        Where n_components="auto", classes get further components where new rows, of which some are
        held out, are clearly better explained by them, and lose those that stand for less than ten
        rows; both for densities with closed-form updates. X may be files (see `fit`): they are read
        once, in order, and each part (of about a million numbers) is a step.

        With `memory`, all that came before weighs no more than so many rows: the stream forgets,
        and follows what changes. `drift_` has the mean log density of the rows of every later call,
        before they were learned from: where it falls, rows have changed.
        """
        if memory is not None and not (isinstance(memory, Real) and memory > 0):
            raise InvalidInputError(f"memory={memory!r}: give a positive number of rows, or None.")
        source = source_of(X)
        if isinstance(source, Openable):
            with self._all_or_nothing(X):
                for part in source.parts(y, sample_weight):
                    self.partial_fit(*part[:2], classes, part[2], memory=memory)
            return self
        resumes = hasattr(self, "model_")
        known = read_stream_classes(self, classes, self.classes_ if resumes else None)
        with self._all_or_nothing(X):
            before = replace(self.schema_, empty=()) if resumes else None
            rows, schema = self._read_labeled(X, y, sample_weight, before, known)
            schema = replace(schema, empty=())  # what is empty so far may fill later
            if resumes:
                return self._update(rows, schema.widened(rows.X.values), memory)
            self._fit_rows(rows, schema, beside=False)
            if self.model_.calibration != Calibration():
                warn_of_a_small_part(rows)
            return self

    def _fit_rows(self, rows: Rows, schema: Schema, beside: bool = True) -> Self:
        if self._resumes and not schema.equals(self.schema_):
            raise InvalidInputError(
                "warm_start=True needs the columns and categories of the previous fit; set "
                "warm_start=False to start anew."
            )
        generator = self._generator()
        with self._progress() as progress:
            decision = decide(self, rows, schema, spawn(generator), progress, stream=not beside)
            others: Sequence[Trial] = []
            if beside:
                decision, others = self._with_other_maps(decision)
            powers = (each for each in others if each.way.name.startswith(KINDS[0]))
            units = [decision.engine.scaling, *(each.scaling for each in powers)]
            own = spawn(generator) if others else generator
            outcome = train(self, decision, generator, progress)
            ensemble = None
            if others := in_time(others, progress):
                ensemble = Ensemble.train(self, decision, others, outcome.model, own, progress)
        trained, engine, plan = outcome.model, decision.engine, decision.plan
        calibration = Calibration()
        if self.calibrate and not plan.generative:
            calibration = calibrated(decision, trained.result, trained.held_out, generator)
        typical = typical_rows(decision, trained, progress)
        self._publish(
            trained.result, plan, engine, schema, rows.classes, calibration, progress, typical
        )
        if ensemble is not None:
            self.model_ = ensemble.beside(self.model_, self.calibrate)
            others = ensemble.trials
            self.marginals_ = (plan.marginals, *(each.way.name for each in others))
            if plan.recipe.informative and not decision.trusts_holes:
                _warn_of_holes(len(self.marginals_))
        shown = held_back(decision, trained.held_out, others)
        if shown is None and plan.generative:
            shown = held_back_rows(trained.result.model, engine, trained.result.prior)
        reach = self._reach(rows.X, schema, *units)
        lacks = np.zeros(0)
        if plan.recipe.informative and isinstance(values := rows.X.values, np.ndarray):
            lacks = rows.weight @ np.isnan(values) / rows.weight.sum()
        self.model_ = replace(self.model_, held_back=shown, reach=reach, lacks=lacks)
        self.choice_ = decision.choice
        self.__dict__.pop("drift_", None)  # of an earlier stream
        if not beside:
            self.drift_ = list[float]()
        aside = len(rows.y) - len(engine)
        self.converged_ &= not warn_if_cut_short(progress, outcome.n_rows, len(engine), aside)
        self.class_count_ = class_counts(engine, self.class_prior_)
        return self

    def _with_other_maps(self, decision: Decision) -> tuple[Decision, list[Trial]]:
        """What was decided, in better units if there are, and models in others if "auto" asks."""
        asked = self.marginals == "auto" and leaves_density_open(self) and not self.warm_start
        if not asked or decision.plan.generative:
            return decision, []
        others = try_beside(decision, ways_beside(self, decision, kinds_for(decision.every)))
        if decision.saw_all or decision.engine.total_weight <= MOST_COMPARED:
            return decision, others
        return best_of(decision, others)

    def _publish(
        self,
        result: FitResult[Mixture],
        plan: Plan,
        engine: Engine,
        schema: Schema,
        classes: np.ndarray,
        calibration: Calibration,
        progress: Progress,
        typical: np.ndarray,
    ) -> None:
        """The fitted model, and how it came about."""
        mixture, prior, solver = result.model.to("cpu", torch.float64), result.prior, plan.solver
        self.model_ = Fitted(
            model=mixture,
            scaling=engine.scaling,
            schema=schema,
            classes=classes,
            class_prior=mixture.log_prior.exp().numpy(),
            calibration=calibration,
            typical=typical,
        )
        self.prior_rows_ = 0.0 if prior is None else prior.rows
        self.prior_spread_ = None if prior is None else prior.reference.cpu().numpy()
        self.density_, self.tradeoff_ = plan.recipe.structure, plan.tradeoff
        self.unlabeled_weight_, self.marginals_ = plan.unlabeled_weight, (plan.marginals,)
        self.history_, self.n_iter_ = progress.history, result.n_iter
        self.converged_ = result.converged
        self.margin_bound_ = margin_bound(mixture, plan.term, engine)
        if solver.settles and not result.converged and not progress.stopped:
            warn(
                f"{type(solver).__name__} stopped after max_iter={solver.max_iter} iterations "
                f"without settling; raise it: solver={type(solver).__name__}(max_iter=...).",
                ConvergenceWarning,
            )

    def _update(self, rows: Rows, schema: Schema, memory: float | None) -> Self:
        """One step from the present model on the rows of one call."""
        rows, weight = used_rows(self, rows)
        if not len(rows.y):
            return self
        with self._progress() as progress:
            step = next_step(self, rows, memory, self._generator(), progress)
        calibration, plan, reach = self.model_.calibration, step.plan, self.model_.reach
        classes, typical = self.classes_, step.typical
        self._publish(
            step.result, plan, step.engine, schema, classes, calibration, progress, typical
        )
        if reach.size:  # of an earlier version's model it is not known
            low, high = self._reach(rows.X, schema, step.engine.scaling)
            reach = np.stack([np.fmin(reach[0], low), np.fmax(reach[1], high)])
        self.model_ = replace(self.model_, reach=reach)
        self.unlabeled_weight_ = plan.unlabeled_weight if weight is None else weight
        self.class_count_ = step.class_count
        self.drift_ = [*getattr(self, "drift_", ()), step.drift]
        return self


def _warn_of_holes(n_models: int) -> None:
    """Where missing entries tell classes apart, and one of so many models goes by that."""
    warn(
        f"Which entries are missing tells classes apart in these rows. One of the {n_models} "
        "models that are averaged goes by that; the others do not, since rows to come may lack "
        "entries for other reasons. Remedy: missingness='informative' if they will lack them for "
        "the same reasons, 'ignore' if not.",
        AmbiguousDataWarning,
    )
