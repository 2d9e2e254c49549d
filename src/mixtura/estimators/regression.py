"""Which mixtures over features and targets a `MixtureRegressor` averages, and by which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

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
from mixtura.selection.chooser import MOST_COMPARED, Chooser, Contender
from mixtura.selection.held_out import HOLES, Losses
from mixtura.solvers import EM, LBFGS
from mixtura.training.groups import Recipe
from mixtura.training.joint import JointPlan, Trained

if TYPE_CHECKING:
    from mixtura.estimators.regressor import MixtureRegressor

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
)
#: Share of the likelihood of whole rows where there are several components.
_TRADEOFF = 0.5
#: Distinct rows per component, at least; columns beyond which several covariances have low rank.
_ROWS_PER_COMPONENT, _WIDE = 10, 60
#: Iterations of EM, at most, that L-BFGS begins with.
_START = 20
#: With fewer rows none are held out. Rows of evidence for weights that models deserve each by
#: itself; a model with less than such a share of an even weight gets none.
_FEWEST, _PRIOR_ROWS, _LITTLE = 8, 4.0, 0.5
#: Logs of densities are no smaller where models are weighed.
_LEAST = -1e6

_Trial = Contender[JointPlan, Trained]


def make_plans(estimator: MixtureRegressor, engine: Engine, n_targets: int) -> list[JointPlan]:
    """One for each model that the parameters of the estimator leave open."""
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
    ways = {}
    for own, structure, kind in _MODELS:
        if engine.n_features > _WIDE and own > 1:
            structure = LowRank(3, 0.01)
        n_components = own if isinstance(count, str) else min(int(count), most)
        if isinstance(count, str) and own > 1 and most < own * _ROWS_PER_COMPONENT:
            continue
        kind = kind if marginals == "auto" else marginals
        way = n_components, repr(fixed or structure), kind
        ways[way] = _plan(estimator, n_components, fixed or structure, kind, n_targets)
    return list(ways.values())


def _plan(
    estimator: MixtureRegressor, count: int, structure: Structure, marginals: str, n_targets: int
) -> JointPlan:
    tradeoff, given = estimator.tradeoff, estimator.prior_rows
    if isinstance(tradeoff, str):
        tradeoff = 1.0 if count == 1 else _TRADEOFF
    own = None if count > 1 else 0.0  # one component is what the prior would be
    prior_rows = own if isinstance(given, str) else given
    em = resolve(estimator.init, {"em": partial(EM, tol=1e-3)})
    enough = _START if tradeoff < 1.0 and estimator.init == "em" else None
    recipe = Recipe(structure, em, prior_rows, enough=enough)
    solver = resolve(estimator.solver, {"lbfgs": LBFGS})
    return JointPlan(recipe, count, float(tradeoff), n_targets, solver, marginals)


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
    mixture = trained.model.to(held_out.device)
    rows = held_out.chunks(held_out.chunk_rows(mixture))
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
        plans: Sequence[JointPlan],
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> Comparison:
        """All plans that time allows to try; they are weighed by what they say of held-out rows."""
        n_targets = plans[0].n_targets
        some = engine.merged().sample(MOST_COMPARED, spawn(generator))
        chooser = Chooser[JointPlan, Trained](
            some,
            partial(_judged, n_targets=n_targets),
            spawn(generator),
            progress,
            n_ways=len(plans),
            fewest=_FEWEST,
        )
        tried = []
        for plan in plans:
            scaling = _units(engine, plan.marginals, n_targets)
            tried.append(chooser.under(scaling).try_out(plan, "models"))
        weights = _weights(tried)
        choice = [
            {**row, "chosen": weight > 0.0, "weight": float(weight)}
            for row, weight in zip(chooser.table(), weights, strict=True)
        ]
        order = [place for place in np.argsort(-weights, kind="stable") if weights[place] > 0.0]
        kept = [tried[place] for place in order]
        if not chooser.saw_all(engine):
            for each in kept:
                each.whole = None  # it is one of a sample of the rows
        models = zip(*(each.models for each in kept), strict=True)
        held_back = chooser.held_back([[each.model for each in fold] for fold in models])
        held_back = _with_targets(held_back, n_targets)
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
            Fitted(result.model.model.to("cpu", torch.float64), _told_in(units, each.scaling))
            for result, each in zip(results, self.tried, strict=False)
        ]
        if others:
            weights = self.weights[:count] / self.weights[:count].sum()
            first = replace(first, blend=Blend(tuple(others), weights, Calibration()))
        held_back = self.held_back
        if held_back is not None:
            models = tuple(fold[:count] for fold in held_back.models)
            held_back = replace(held_back, models=models, y=units.invert(held_back.y))
        fewest = min(result.n_rows for result in results)
        return replace(first, held_back=held_back), replace(results[0], n_rows=fewest)


def _trained(
    trial: _Trial, engine: Engine, generator: torch.Generator, progress: Progress
) -> Outcome[Trained]:
    """The model of all rows; where time is limited, of a sample, and of more while it lasts."""
    way = trial.way

    def learn(rows: Engine, own: torch.Generator, latest: Trained | None) -> Trained:
        return way.train(rows.under(trial.scaling), own, progress)

    def loss(trained: Trained, rows: Engine) -> float:
        mixture, own = trained.model.to(rows.device), rows.under(trial.scaling)
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
    """(M,) how much say models have; none where time did not allow to try them."""
    found = np.zeros(len(trials))
    told = [place for place, each in enumerate(trials) if each.won and each.parts]
    if not told:
        found[0] = 1.0
        return found
    losses = [held_out.losses() for place in told if (held_out := trials[place].held_out())]
    own = np.nan_to_num(-np.stack(losses), nan=_LEAST).clip(_LEAST)
    held_out = trials[told[0]].held_out()
    assert held_out is not None
    weights = blend_weights(own, held_out.weight, _PRIOR_ROWS)
    keep = weights >= _LITTLE / len(weights)
    found[np.array(told)[keep]] = blend_weights(own[keep], held_out.weight, _PRIOR_ROWS)
    return found


def _with_targets(held_back: HeldBack | None, n_targets: int) -> HeldBack | None:
    """Rows held back, whose targets are what is to be answered."""
    if held_back is None:
        return None
    values = held_back.values.copy()
    values[:, -n_targets:] = np.nan
    return replace(held_back, values=values, y=held_back.values[:, -n_targets:])
