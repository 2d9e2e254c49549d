"""MixtureNetworkClassifier: mixtures embed a row, a sparse read-out decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from numbers import Integral
from typing import NamedTuple, Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_consistent_length
from torch import Tensor

from mixtura.answers.condition import Given
from mixtura.data.batch import UNLABELED, Batch
from mixtura.data.curves import TAMED
from mixtura.data.given import ArrayLike, Numbers, RandomState
from mixtura.data.labels import CodedLabels, labeled_mask, read_labels
from mixtura.data.lazy import Opened
from mixtura.data.schema import Schema
from mixtura.densities import Structure
from mixtura.engines import Engine, engine_of
from mixtura.estimators.blending import curved, in_units
from mixtura.estimators.classifying import EVEN, DensityClassifier, prefer_unlabeled
from mixtura.estimators.network import NETWORK_CONSTRAINTS, NetworkEstimator, draw_rows
from mixtura.estimators.reading import check_count, check_weight, opened
from mixtura.estimators.rows import Rows, read_counts
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError, warn
from mixtura.models.calibration import Calibration
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import Conditional, Margin, Objective, SmoothMargin, of_whole_rows
from mixtura.progress import Progress
from mixtura.selection.chooser import Chooser, is_small, to_compare
from mixtura.selection.held_out import Answers, HeldOut
from mixtura.solvers.linked import LinkedResult
from mixtura.training.groups import NOTHING
from mixtura.training.networks import NetworkPlan

#: What names are shorthand for. Scores of a read-out are no log densities: a smaller margin than
#: elsewhere is enough.
_OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "conditional": Conditional,
    "margin": partial(Margin, 5.0),
    "smooth_margin": SmoothMargin,
}
#: Draws that rows of wanted classes are chosen from: at a time, and in all for each row.
_POOL, _MOST_DRAWS = 1_000, 10_000


class _Decision(NamedTuple):
    """What to train on which rows, what networks said of held-out rows, and what was compared; and
    mixtures of trials, with the rows that they had not seen."""

    plan: NetworkPlan
    engine: Engine
    held_out: HeldOut | None
    table: list[dict[str, object]]
    unseen: Sequence[tuple[Mixture, Engine]] = ()


@dataclass(eq=False, repr=False)
class MixtureNetworkClassifier(DensityClassifier, NetworkEstimator):
    """Mixtures embed a row, one per class; a sparse log-linear read-out of the embedding decides.

    Numbers, categories, holes and unlabeled rows are welcome: the mixtures learn from all rows,
    the read-out from the labeled ones. Without any label it is a mixture: it embeds, clusters,
    imputes, scores and samples.

    Parameters
    ----------
    n_components : "auto", int, or one int per class
        Components of each mixture; "auto" grows them while an information criterion falls, where
        mixtures specialize, and takes twice the cube root of the number of rows elsewhere.
    embedding : "auto", "posterior", "density", "log_density" or "simplex"
        What a component makes of a row: its posterior in the mixture; its density, as a share of
        its highest; the log of that; or a posterior with true zeros, the projection of the
        log-joints onto the simplex. "auto" compares posteriors and log-densities on held-out rows.
    objective : "conditional", "margin", "smooth_margin", or an `Objective`
        The discriminative term of end-to-end training; a name is shorthand for an object of
        `mixtura.objectives`, "margin" for `Margin(5.0)`.
    tradeoff : float in [0, 1]
        Share of the likelihood per observed value in it, so that one number serves few features and
        many.
    unlabeled_weight : "auto" or float in [0, 1]
        Weight of unlabeled rows in the likelihood; labeled rows then weigh one minus it. 0 sets
        them aside altogether; "auto" decides as in `MixtureClassifier`.
    density : "low_rank", "auto", "full", "diag", "spherical", "student", or a `Structure`
        What components are in the columns that hold numbers, as in `MixtureClassifier`; "auto"
        compares nothing here: it is "low_rank", or "full" for one or two columns. Where the rank is
        left open, components of all classes have no more than a direction for every eight rows that
        each of them has on average, or three.
    solver : "linked_em", or a `LinkedEM`
        Steps of EM and fits of the read-out in turn, then gradients through both; a name is
        shorthand for an object of `mixtura.solvers` with its settings: iterations, the penalties
        `l1` and `l2` of the read-out's weights, `link`, `annihilate`, `specialize` (how far
        mixtures keep to the rows of their class), `equal_covariances`, `end_to_end`. Where classes
        are uneven, the penalties are multiplied by the number of classes times the smallest class's
        share (but by 0.1 at least), or they would silence the components of rare classes first.
    init : "em", or an `EM`
        What the mixtures start from, `EM(max_iter=50, tol=0.001 * D, n_init=1)` for D columns of
        numbers (ten at least).
    calibrate : bool
        Make probabilities honest by what networks say of held-out rows, whole and with holes.
    marginals : "auto", "linear", "power", "ranks" or "tamed"
        How columns of numbers are mapped, as in `MixtureClassifier`; "tamed" is "power", or "ranks"
        for columns some of whose values lie far out even so. Where numbers lie far from the others
        of their column, "auto" compares it with "linear" on held-out rows.
    standardize : bool
        Work in units in which every feature has variance one.
    prior_rows, class_weight, categorical_features, unexpected, missingness,
    unlabeled, max_time, device
        As in `MixtureClassifier`, but for `prior_rows`, which is a number here.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_ : the labels; the mean of p(class | x) over p(x), the model's own prior:
        trained end to end, the shares of the (weighted) labeled rows, as near as can be
    coef_, intercept_ : read-out; a weight per component, a bias per class
    model_ : the fitted model; `network_`, `mixture_`, `scaling_`, `schema_` for short
    weights_, means_, covariances_, n_components_ : of the mixtures, class by class
    embedding_, specialize_, missingness_, marginals_ : what "auto" chose
    unlabeled_weight_ : likewise; None if all rows had labels, or none
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    choice_ : what was compared on held-out rows, as in `MixtureClassifier`
    history_
    n_iter_, converged_ : of linked EM, or of EM where that is enough; those of gradients are fixed

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureNetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MixtureNetworkClassifier(4, embedding="posterior", random_state=0).fit(X, y)
    >>> model.transform(X).shape[1] == model.coef_.shape[0]
    True
    """

    _parameter_constraints = NETWORK_CONSTRAINTS | {
        "n_components": [StrOptions({"auto"}), Integral, "array-like"],
        "objective": [StrOptions(set(_OBJECTIVES)), Objective],
    }

    n_components: Numbers | str = "auto"
    _: KW_ONLY
    objective: str | Objective = "conditional"
    unlabeled_weight: float | str = "auto"
    density: str | Structure = "low_rank"
    calibrate: bool = True

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike = None, sample_weight: ArrayLike = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing. Or files, as
            `MixtureClassifier` takes them.
        y : (n,) labels; None or NaN where there is none (or -1, see `unlabeled`). Without any
            (y=None, or None for every row) a mixture is fitted to the rows; NaN for every row is
            refused, as scikit-learn's checks ask.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing(X):
            rows, schema = self._read_any(*opened(self, X, y, sample_weight))
            generator = self._generator()
            with self._progress() as progress:
                decision = self._decide(rows, schema, spawn(generator), progress)
                plan, engine, held_out, table, unseen = decision
                aside = len(rows.y) - len(engine)
                result = self._train(plan, engine, generator, progress, aside)
            calibration = Calibration()
            if self.calibrate and isinstance(held_out, Answers):
                calibration = held_out.calibration
            shares = result.network.class_shares() if result.shares is None else result.shares
            self._publish(
                result,
                plan,
                engine,
                schema,
                progress,
                unseen,
                classes=rows.classes,
                class_prior=shares.cpu().numpy()[: len(rows.classes)],
                calibration=calibration,
                reach=self._reach(rows.X, schema, engine.scaling),
            )
            self.specialize_, self.choice_ = plan.specialize, table
            self.marginals_ = plan.marginals
            self.unlabeled_weight_ = plan.unlabeled_weight if rows.has_unlabeled else None
            return self

    def _read_any(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike
    ) -> tuple[Rows, Schema]:
        """Training rows, of which none may have a label."""
        if y is not None:
            labels = y.values if isinstance(y, CodedLabels) else read_labels(y)
            check_consistent_length(labels if isinstance(X, Opened) else X, labels)
            if labels.dtype.kind == "f" and np.isnan(labels).all():
                raise InvalidInputError("y holds NaN alone: pass y=None to fit without labels.")
            if labeled_mask(labels, self.unlabeled).any():
                return self._read_labeled(X, y, sample_weight)
        given, schema = self._read(X)
        weight = check_weight(sample_weight, len(given))
        nothing = np.full(len(given), UNLABELED)
        return Rows(given, nothing, weight, np.array([], dtype=int)).take(weight > 0), schema

    def _decide(
        self, rows: Rows, schema: Schema, generator: torch.Generator, progress: Progress
    ) -> _Decision:
        """What to train on which rows; unlabeled ones only if held-out labels say that they help.

        All else is chosen as it would be without them.
        """
        used, asks = rows.chosen_on(self.unlabeled_weight)
        units = "linear" if self.marginals == "auto" else self.marginals
        plans, engine = self._ready(used, schema, units)
        if used is not rows:
            plans = [replace(plan, unlabeled_weight=0.0) for plan in plans]
        without = self._choose(plans, engine, generator, progress)
        if not asks:
            return without
        plain = without.plan.whole()
        engine = self._ready(rows, schema, plain.marginals)[1]
        ways = plain, replace(plain, unlabeled_weight=EVEN)
        best, chooser = prefer_unlabeled(ways, rows, engine, generator, progress, _answers)
        table = [*without.table, *chooser.table()]
        if best is None:
            return without._replace(table=table)
        return _Decision(best.way, engine, best.held_out(), table)

    def _ready(
        self, rows: Rows, schema: Schema, marginals: str
    ) -> tuple[list[NetworkPlan], Engine]:
        """Plans for rows, and the rows in the model's units."""
        term, counts = of_whole_rows(self.objective, _OBJECTIVES), None
        if not isinstance(self.n_components, str):
            known = rows.classes if len(rows.classes) else np.zeros(1)
            counts = read_counts(self.n_components, known)
        scaling = self._scaled(rows.X, rows.weight, schema)
        engine = engine_of(rows.X, rows.y, rows.weight, scaling, self.device)
        engine = in_units(engine, marginals)
        given = self.unlabeled_weight
        if given == 0.0 and not len(rows.classes):
            raise InvalidInputError(
                "unlabeled_weight=0 sets unlabeled rows aside, and no row has a label: label some, "
                "or leave unlabeled_weight at 'auto'."
            )
        weight = EVEN if isinstance(given, str) else given
        n_classes = len(rows.classes)
        return self._plans(engine, n_classes, counts, term, weight, marginals), engine

    def _choose(
        self,
        plans: list[NetworkPlan],
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> _Decision:
        """The embedding and units that do best on held-out rows; whether holes mean something."""
        asks = self.missingness == "auto" and engine.has_holes
        curves = curved(engine, TAMED) if self._asks_units(engine) else None
        several = len(plans) > 1 or curves is not None
        compares = plans[0].n_classes > 1 and (several or self.calibrate or asks)
        some = to_compare(engine, spawn(generator)) if compares else None
        n_ways = len(plans) * (1 if curves is None else 2) + asks
        chooser = Chooser[NetworkPlan, LinkedResult](
            some, _answers, spawn(generator), progress, n_ways=n_ways
        )
        best, trial, own = self._best(chooser, plans, curves, asks, Answers.clearly_beats)
        plan, rows = best.way.whole(), engine
        if plan.marginals != plans[0].marginals:
            rows = engine.under(best.scaling)
        if chooser.saw_all(engine) and not progress.limited:
            if trial is not None:
                plan = plan.resumed({NOTHING: trial})
            elif best.models and not is_small(engine):
                plan = plan.settling(best.models[0])
        unseen = self._of_trials(own, best, rows)
        return _Decision(plan, rows, best.held_out(), chooser.table(), unseen)

    def sample(
        self,
        n_samples: int = 1,
        y: ArrayLike = None,
        *,
        given: Given | None = None,
        random_state: RandomState = None,
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw rows from the mixtures, and labels from what the network makes of them.

        Rows come as those of `MixtureClassifier.sample`. All have the values that are `given` by
        column, as of `condition`; not with `y`.

        With `y` (a label, or one per row) draws are accepted with the probability that the network
        gives to their label, until there are enough. Where a class is too rare for that, the
        likeliest draws of it fill up, with a warning; no draw is given twice.
        """
        model, mixture, classes = self._fitted, self.mixture_, self.classes_
        generator, count = self._generator(random_state), check_count(n_samples)
        if given is not None:
            if y is not None:
                raise UnsupportedError("a network has no density per class: leave y or given out.")
            return self._sample_given(given, count, None, generator)
        if y is not None:
            wanted = self._labels_to_draw(count, y, generator)
            rows = torch.zeros(count, self.n_features_in_, dtype=torch.float64)
            for label in wanted.unique().tolist():
                mine = (wanted == label).nonzero().flatten()
                rows[mine] = self._accepted(label, len(mine), generator)
            return model.decoded(rows), classes[wanted.numpy()]
        batch = draw_rows(mixture, count, generator)
        if not len(classes):
            return model.decoded(batch.x), batch.y.numpy()
        labels = torch.multinomial(self._chances(batch), 1, generator=generator).flatten()
        return model.decoded(batch.x), classes[labels.numpy()]

    def _chances(self, batch: Batch) -> Tensor:
        """(n, C) what the network makes of draws."""
        with torch.no_grad():
            return self.network_.class_log_joint(batch).softmax(1)

    def _accepted(self, label: int, count: int, generator: torch.Generator) -> Tensor:
        """Draws from p(x), each accepted with the probability of the class, until there are enough.

        After `_MOST_DRAWS` for each row that is wanted, the likeliest of the others fill up.
        """
        taken, spare, spent = [], [], 0
        missing = count
        while missing > 0 and spent < _MOST_DRAWS * count:
            batch = draw_rows(self.mixture_, max(_POOL, missing), generator)
            chance = self._chances(batch)[:, label]
            level = torch.rand(len(batch), dtype=torch.float64, generator=generator)
            taken.append(batch.x[level < chance][:missing])
            best = chance.masked_fill(level < chance, -1.0).topk(min(missing, len(batch)))
            spare.append((best.values, batch.x[best.indices]))
            missing, spent = missing - len(taken[-1]), spent + len(batch)
        if missing > 0:
            warn(
                f"only {count - missing} of {spent} draws were of class "
                f"{self.classes_.tolist()[label]!r}; the likeliest of the others fill up. Remedy: "
                "fewer draws, or a class that the network predicts more often.",
                DegenerateDataWarning,
            )
            chance, rows = map(torch.cat, zip(*spare, strict=True))
            taken.append(rows[chance.topk(missing).indices])
        return torch.cat(taken)


def _answers(trained: LinkedResult, held_out: Engine, generator: torch.Generator) -> Answers:
    """What a trained network says of held-out rows."""
    return Answers.of(trained.network, held_out, generator)
