"""Which mixtures over features and targets a `MixtureRegressor` averages, and by which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import logsumexp

from mixtura.conformal import HeldBack
from mixtura.data.curves import Curves
from mixtura.data.scaling import Scaling
from mixtura.data.targets import with_punched_features
from mixtura.densities import DENSITIES, Auto, Full, LowRank, Structure, Student
from mixtura.engines import Engine
from mixtura.estimators.blending import curved
from mixtura.estimators.rows import distinct_rows
from mixtura.exceptions import UnsupportedError
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import Blend, Fitted
from mixtura.models.regression import log_conditional
from mixtura.numerics import spawn
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.blend import blend_weights
from mixtura.selection.budget import Budget, Outcome
from mixtura.selection.chooser import MOST_COMPARED, Chooser, Contender, is_small
from mixtura.selection.held_out import HOLES, HeldOut, Losses
from mixtura.solvers import EM, LBFGS
from mixtura.training.groups import Recipe
from mixtura.training.joint import BesideTrees, JointPlan, Trained

if TYPE_CHECKING:
    from mixtura.estimators.regressor import MixtureRegressor

#: Models of numbers and of what trees make of them; rows with a target from which they pay, and
#: numbers up to which they are soon grown.
_TREES, _FOR_TREES, _MOST_FOR_TREES = "trees", 1_000, 100
#: What "auto" compares: components, structure, marginals. The first is taken where rows are too few
#: to compare any. The study behind them is docs/results/answers.md.
_MODELS: tuple[tuple[int, Structure, str], ...] = (
    (1, Full(0.1), "linear"),
    (1, Full(1.0), "linear"),
    (1, Full(1e-4), "linear"),
    (4, Full(1e-3), "linear"),
    (4, Full(1e-3), "ranks"),
    (8, Full(1e-3), "power"),
    (4, LowRank(3, 0.01), "linear"),
    (8, Full(1e-3), _TREES),
)
#: Share of the likelihood of whole rows where there are several components.
_TRADEOFF = 0.5
#: Distinct rows per component, at least; columns beyond which several covariances have low rank.
_ROWS_PER_COMPONENT, _WIDE = 10, 60
#: Iterations of EM, at most, that L-BFGS begins with.
_START = 20
#: Shares of the iterations of L-BFGS after which candidates are compared first, and that a model
#: of some of the rows takes with all of them.
_GLIMPSE, _SHARE = 0.3, 0.35
#: With fewer rows none are held out. Rows of evidence for weights that models deserve each by
#: itself; a model with less than such a share of an even weight gets none.
_FEWEST, _PRIOR_ROWS, _LITTLE = 8, 4.0, 0.5
#: Logs of densities are no smaller where models are weighed.
_LEAST = -1e6
#: Rows that models are asked about together, so that all see the same holes.
_TOGETHER = 256

_Way = JointPlan | BesideTrees
_Trial = Contender[_Way, Trained]


def make_plans(estimator: MixtureRegressor, engine: Engine, y: np.ndarray) -> list[_Way]:
    """One for each model that the parameters leave open, of rows with targets y (n, T)."""
    count, marginals = estimator.n_components, estimator.marginals
    given = resolve(estimator.density, DENSITIES)
    if isinstance(given, Student):
        raise UnsupportedError(
            f"density={estimator.density!r}: targets are predicted by mixtures of Gaussians; use "
            "'full', 'low_rank', 'diag' or 'spherical'."
        )
    fixed = None if isinstance(given, Auto) else given.candidates(engine.n_features)[0]
    rows = engine.take(np.arange(min(len(engine), MOST_COMPARED))).all_rows()
    most = distinct_rows(rows.x.cpu().numpy(), np.arange(len(rows)), MOST_COMPARED)
    open_yet = fixed is None and count == marginals == "auto"
    narrow = engine.n_features <= _MOST_FOR_TREES
    told = engine.weight.double().cpu().numpy() @ ~np.isnan(y)  # weights count rows
    trees = open_yet and narrow and told.min() >= _FOR_TREES
    ways = dict[tuple[int, str, str], _Way]()
    for own, structure, kind in _MODELS:
        if engine.n_features > _WIDE and own > 1:
            structure = LowRank(3, 0.01)
        n_components = own if isinstance(count, str) else min(int(count), most)
        if isinstance(count, str) and own > 1 and most < own * _ROWS_PER_COMPONENT:
            continue
        if kind == _TREES and not trees:
            continue
        own_kind = kind if marginals == "auto" else marginals
        way = n_components, repr(fixed or structure), own_kind
        ways[way] = _plan(estimator, n_components, fixed or structure, own_kind, y.shape[1])
    return list(ways.values())


def _plan(
    estimator: MixtureRegressor, count: int, structure: Structure, marginals: str, n_targets: int
) -> _Way:
    tradeoff, given = estimator.tradeoff, estimator.prior_rows
    if isinstance(tradeoff, str):
        tradeoff = 1.0 if count == 1 else _TRADEOFF
    own = None if count > 1 else 0.0  # one component is what the prior would be
    prior_rows = own if isinstance(given, str) else given
    em = resolve(estimator.init, {"em": partial(EM, tol=1e-3)})
    enough = _START if tradeoff < 1.0 and estimator.init == "em" else None
    recipe = Recipe(structure, em, prior_rows, enough=enough)
    solver = resolve(estimator.solver, {"lbfgs": LBFGS})
    plan = JointPlan(recipe, count, float(tradeoff), n_targets, solver, marginals)
    return BesideTrees(replace(plan, marginals="linear")) if marginals == _TREES else plan


def _units(engine: Engine, kind: str, n_targets: int) -> Scaling:
    """The units of a model: curves of a kind for the features, and lines for the targets."""
    if kind == "linear":
        return engine.scaling
    scaling = curved(engine, kind)
    assert scaling.curves is not None
    at, to = scaling.curves.at, scaling.curves.to.copy()
    to[-n_targets:] = at[-n_targets:]
    return replace(scaling, curves=Curves(at, to))


def _judged(
    trained: Trained, held_out: Engine, generator: torch.Generator, *, n_targets: int
) -> Losses:
    """Minus the log densities of targets given features, whole and with holes."""
    mixture = trained.mixture.to(held_out.device)
    if trained.scaling is not held_out.scaling:
        held_out = held_out.under(trained.scaling)
    rows = held_out.chunks(_TOGETHER)
    both = (with_punched_features(batch, HOLES, generator, n_targets) for batch in rows)
    return Losses.of(both, lambda batch: -log_conditional(mixture, batch, n_targets))


@dataclass(frozen=True)
class Comparison:
    """Models that are to be averaged, that of the largest weight first.

    Attributes
    ----------
    weights : (M,).
    held_back : rows that were held out, with the models of each fold.
    choice : what was compared, on how many rows, with which loss, and the weight of each.
    """

    tried: Sequence[_Trial]
    weights: np.ndarray
    held_back: HeldBack | None
    choice: list[dict[str, object]]

    @classmethod
    def of(
        cls,
        plans: Sequence[_Way],
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> Comparison:
        """All plans that time allows to try; they are weighed by what they say of held-out rows."""
        n_targets = plans[0].n_targets
        some = engine.merged().sample(MOST_COMPARED, spawn(generator))
        chooser = Chooser[_Way, Trained](
            some,
            partial(_judged, n_targets=n_targets),
            spawn(generator),
            progress,
            n_ways=len(plans),
            fewest=_FEWEST,
        )
        tried, whole = list[_Trial](), is_small(some) and chooser.saw_all(engine)
        for plan in plans:
            own = chooser.under(_units(engine, plan.marginals, n_targets))
            first = plan
            if isinstance(plan, JointPlan) and not whole:
                first = plan.limited(_GLIMPSE)
            tried.append(own.try_out(first, "models", whole=whole))
        if not whole:
            _go_on(chooser, tried, plans)
        weights = _weights(tried)
        choice = [
            {**row, "chosen": weight > 0.0, "weight": float(weight)}
            for row, weight in zip(chooser.table(), weights, strict=True)
        ]
        beside = np.array([isinstance(each.way, BesideTrees) for each in tried])
        order = [each for each in np.lexsort((-weights, beside)).tolist() if weights[each] > 0.0]
        kept = [tried[place] for place in order]
        if not chooser.saw_all(engine):
            for each in kept:
                each.whole = None  # it is one of a sample of the rows
        folds = list(zip(*(each.models for each in kept), strict=True))
        held_back = chooser.held_back([[each.mixture for each in fold] for fold in folds])
        held_back = _with_targets(held_back, n_targets)
        if held_back is not None:
            found = [isinstance(each.way, BesideTrees) for each in kept[1:]]
            units = tuple(
                tuple(
                    each.scaling if own else None for own, each in zip(found, fold[1:], strict=True)
                )
                for fold in folds
            )
            held_back = replace(held_back, units=units)
        return cls(kept, weights[order], held_back, choice)

    def train(
        self, engine: Engine, units: Scaling, generator: torch.Generator, progress: Progress
    ) -> tuple[Fitted, Outcome[Trained]]:
        """The models of all rows, or of as many as time allows; and how the first was trained.

        They tell targets in the user's `units`, T columns. The rows of the outcome are those of the
        model that learned from the fewest.
        """
        results: list[Outcome[Trained]] = []
        for each in self.tried:
            if results and progress.stopped:
                break
            if results and each.whole:
                results.append(Outcome(each.whole, len(engine)))
            else:
                results.append(_trained(each, engine, spawn(generator), progress))
        count = len(results)
        first, *others = [
            Fitted(each.mixture.to("cpu", torch.float64), _told_in(units, each.scaling))
            for each in (result.model for result in results)
        ]
        if others:
            weights = self.weights[:count] / self.weights[:count].sum()
            first = replace(first, blend=Blend(tuple(others), weights, Calibration()))
        held_back = self.held_back
        if held_back is not None:
            models = tuple(fold[:count] for fold in held_back.models)
            own = tuple(
                tuple(each and _told_in(units, each) for each in fold[: count - 1])
                for fold in held_back.units
            )
            held_back = replace(held_back, models=models, units=own, y=units.invert(held_back.y))
        fewest = min(result.n_rows for result in results)
        return replace(first, held_back=held_back), replace(results[0], n_rows=fewest)


def _go_on(chooser: Chooser[_Way, Trained], tried: Sequence[_Trial], plans: Sequence[_Way]) -> None:
    """Train those further that are not far behind the best; the others are left out."""
    started = [
        (each, plan)
        for each, plan in zip(tried, plans, strict=True)
        if each.models and isinstance(plan, JointPlan)
    ]
    best = min((each for each, _ in started), key=Contender.loss, default=None)
    for each, plan in started:
        each.won = best is not None and not each.is_hopeless(best, len(each.parts))
        if each.won and plan.tradeoff < 1.0:
            later = plan.going_on(each.models, 1.0 - _GLIMPSE)
            chooser.under(each.scaling).deepen(each, later)
        each.way = plan


def _trained(
    trial: _Trial, engine: Engine, generator: torch.Generator, progress: Progress
) -> Outcome[Trained]:
    """The model of all rows; where time is limited, of a sample, and of more while it lasts."""
    way = trial.way

    def learn(rows: Engine, own: torch.Generator, latest: Trained | None) -> Trained:
        begin = [latest] if latest else trial.models[:1] if trial.whole is None else []
        plan = way.going_on(begin, _SHARE) if begin else way
        return plan.train(rows.under(trial.scaling), own, progress)

    def loss(trained: Trained, rows: Engine) -> float:
        mixture, own = trained.mixture.to(rows.device), rows.under(trained.scaling)
        told = own.concat(lambda batch: log_conditional(mixture, batch, way.n_targets), mixture)
        return -float(own.weight.double().cpu() @ told.double())

    if not progress.limited:
        return Outcome(learn(engine, generator, None), len(engine))
    return Budget(progress, learn, loss, generator, resumes=False).run(engine)


def _told_in(units: Scaling, scaling: Scaling) -> Scaling:
    """The units of a model of standardized targets, for targets in units of the user."""
    first = len(scaling.scale) - len(units.scale)
    location = np.append(scaling.location[:first], units.location)
    scale = np.append(scaling.scale[:first], scaling.scale[first:] * units.scale)
    return replace(scaling, location=location, scale=scale)


def _weights(trials: Sequence[_Trial]) -> np.ndarray:
    """(M,) how much say models have; none where time did not allow to try them.

    Those that know features by themselves are weighed on all rows, whole and with holes. What they
    say together and what stands beside trees, which holes silence, is weighed on whole rows.
    """
    found = np.zeros(len(trials))
    told = [place for place, each in enumerate(trials) if each.won and each.parts]
    beside = [place for place in told if isinstance(trials[place].way, BesideTrees)]
    plain = [place for place in told if place not in beside]
    if not plain:
        found[0] = 1.0
        return found
    own, rows = _said([trials[place] for place in plain])
    weights = _blended(own, rows.weight)
    found[plain] = weights
    if beside:
        whole = ~rows.punched
        together = logsumexp(own, axis=0, b=weights[:, None])
        said = np.vstack([together, _said([trials[place] for place in beside])[0]])
        share = _blended(said[:, whole], rows.weight[whole], least=1)
        found[plain] *= share[0]
        found[beside] = share[1:]
    return found


def _said(trials: Sequence[_Trial]) -> tuple[np.ndarray, HeldOut]:
    """(M, n) log densities of the targets of held-out rows, and these."""
    rows = [held_out for each in trials if (held_out := each.held_out())]
    losses = np.stack([each.losses() for each in rows])
    return np.nan_to_num(-losses, nan=_LEAST).clip(_LEAST), rows[0]


def _blended(own: np.ndarray, weight: np.ndarray, least: int = 0) -> np.ndarray:
    """(M,) weights by what models said (M, n) of rows: none for little, but of the first ones."""
    found = blend_weights(own, weight, _PRIOR_ROWS)
    keep = found >= _LITTLE / len(found)
    keep[:least] = True
    found[keep] = blend_weights(own[keep], weight, _PRIOR_ROWS)
    return np.where(keep, found, 0.0)


def _with_targets(held_back: HeldBack | None, n_targets: int) -> HeldBack | None:
    """Rows held back, whose targets are what is to be answered."""
    if held_back is None:
        return None
    values = held_back.values.copy()
    values[:, -n_targets:] = np.nan
    return replace(held_back, values=values, y=held_back.values[:, -n_targets:])
