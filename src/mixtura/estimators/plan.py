"""What `MixtureClassifier` is to train, and how: its parameters, resolved for given rows.

Contradictions are refused here, before any work is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixtura.conformal import HeldBack
from mixtura.data.atoms import SUFFIX
from mixtura.data.curves import KINDS
from mixtura.data.scaling import Scaling
from mixtura.densities import DENSITIES, Auto, Diagonal, Full, LowRank, Structure, Student
from mixtura.engines import Engine
from mixtura.estimators.classifying import EVEN
from mixtura.estimators.rows import Rows, class_prior
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.fitted import working_type
from mixtura.models.held_back import held_back_of
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import OBJECTIVES, Conditional, Likelihood, Margin, Objective
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.chooser import MOST_COMPARED, Chooser, Contender, to_compare, too_few
from mixtura.selection.design import lacks_by_design
from mixtura.selection.held_out import Answers, HeldOut
from mixtura.selection.tails import has_heavy_tails
from mixtura.solvers import EM, LBFGS, SOLVERS, Adam, FitResult, Solver, SpreadPrior
from mixtura.solvers.em import enough_gain
from mixtura.training.beginnings import CLUSTERS, NAMED, QUADRATIC, TELLING
from mixtura.training.groups import Recipe
from mixtura.training.hybrid import Plan, Trained

if TYPE_CHECKING:
    from mixtura.estimators.classifier import MixtureClassifier

#: The maps that make indicators of categories and numbers, where pairs of them count, and where
#: each counts by itself, so that there may be more: of models beside a first one.
INDICATORS, ADDITIVE = "indicators", "additive"
_POWER, _RANKS = KINDS
#: All models that may stand beside a first one.
_OTHERS = (*KINDS, INDICATORS, ADDITIVE, *NAMED)
#: How columns of numbers may be mapped.
MARGINALS = tuple(kind + atoms for atoms in ("", SUFFIX) for kind in ("raw", "linear", *KINDS))
#: Where the trade-off is left to "auto": first choice first. The study behind them is
#: docs/results/defaults.md.
_TRADEOFFS = (0.9, 0.5)
#: That of the conditional likelihood, which models beside the first are trained by, but for rules,
#: curves and squares.
_CONDITIONAL = 0.5
#: Iterations that tell which of several candidates is best, those that are left for it, those that
#: lead from one trained mixture to another one nearby, those of a model beside the first, and those
#: that all rows are left where a trial without some of them was the start; each ends where one
#: lowers the objective by less than this share.
_GLIMPSE, _REST, _FURTHER, _BESIDE, _LAST = 12, 28, 20, 25, 15
_GAIN = 5e-4
#: The share of the time that is left in which trials go on that the clock had cut short.
_LATE = 0.25
#: How many times the components of a class a model beside the first has; rows that each needs, at
#: least and for so many features.
_MORE, _ROWS_PER_COMPONENT, _FEATURES_PER_ROW = 3, 7, 4
#: The share of missing entries that counts as many.
MANY_MISSING = 0.2
#: A start is good enough for L-BFGS after so many iterations.
_ENOUGH = 10
#: What few labels are trusted to tell: a covariance that the classes share, since so many rows are
#: imagined with it, of so many columns at most; or variances. Labels up to which it is compared
#: with other structures, and those from which probabilities go by held-out rows.
_SHARED, _SHARED_ROWS, _NARROW, _VARIANCES = Full(0.3), 1e3, 128, Diagonal(0.3)
_FEW, _CALIBRATING = 100, 8
#: How columns go together within the one component that a class has in some models beside the
#: first: of few columns, and of more.
_WHOLE, _PAIRS, _PAIRS_OF_MANY = 30, Full(0.1), LowRank(10, 0.1)
#: Columns per label above which nothing is learned of how they go together.
_PER_LABEL = 10


@dataclass(frozen=True)
class Decision:
    """What to train on which rows, from where on, and what such models said of held-out rows.

    Attributes
    ----------
    every : the rows that units are learned from, unlabeled ones too.
    chooser : what decided, and `trial` what it decided for.
    saw_all : whether it has all rows, not a sample of them.
    also : what decided that unlabeled rows are set aside, or all else before them.
    trusts_holes : whether every model may take the absence of entries for a sign.
    """

    plan: Plan
    engine: Engine
    every: Engine
    chooser: Chooser[Plan, Trained]
    trial: Contender[Plan, Trained]
    previous: FitResult[Mixture] | None = None
    held_out: HeldOut | None = None
    saw_all: bool = False
    also: Chooser[Plan, Trained] | None = None
    trusts_holes: bool = False

    @property
    def choice(self) -> list[dict[str, object]]:
        """What was compared, in that order."""
        order = (
            [self.also, self.chooser] if self.plan.unlabeled_weight else [self.chooser, self.also]
        )
        return [row for each in order if each is not None for row in each.table()]


def make_plans(
    estimator: MixtureClassifier, rows: Rows, n_numbers: int, counts: list[int] | None
) -> list[Plan]:
    """One plan for every structure that is left open, the first choice first.

    `n_numbers` columns hold numbers, and classes have so many components; None leaves them open.
    """
    term: Objective = resolve(estimator.objective, OBJECTIVES)
    if isinstance(term, Likelihood) and term.unlabeled_weight is not None:
        raise InvalidInputError(
            f"objective={term!r}: the weight of unlabeled rows is a parameter of the estimator, "
            "unlabeled_weight; pass objective='likelihood'."
        )
    alone = len(rows.classes) == 1
    generative = isinstance(term, Likelihood) or estimator.tradeoff == 1.0 or alone
    structures = resolve(estimator.density, DENSITIES).candidates(n_numbers)
    by_em = generative and structures[0].closed_form
    solver = choose_solver(estimator.solver, rows.weight.sum(), by_em)
    _refuse_contradictions(estimator, solver, generative, structures[0])
    init = resolve(estimator.init, {"em": partial(EM, tol=enough_gain(n_numbers))})
    brief = estimator.solver == "auto" and estimator.init == "em" and isinstance(solver, LBFGS)
    if estimator.solver == "auto" and isinstance(solver, EM) and estimator.init != "em":
        solver = init
    prior_rows, given = estimator.prior_rows, estimator.unlabeled_weight
    weight = EVEN if isinstance(given, str) else given
    tradeoff = _TRADEOFFS[0] if estimator.tradeoff == "auto" else float(estimator.tradeoff)
    first = Plan(
        solver=solver,
        term=term,
        tradeoff=1.0 if generative else tradeoff,
        recipe=Recipe(
            structure=structures[0],
            em=solver if isinstance(solver, EM) else init,
            prior_rows=None if isinstance(prior_rows, str) else prior_rows,
            informative=estimator.missingness == "informative",
            enough=_ENOUGH if brief else None,
        ),
        counts=counts,
        log_prior=torch.from_numpy(np.log(class_prior(estimator.class_prior, rows))),
        learn_prior=isinstance(estimator.class_prior, str) and estimator.class_prior == "empirical",
        dtype=working_type(rows.X.values.dtype, n_numbers, float(structures[0].floor)),
        holes=term.holes,
        marginals="linear" if estimator.marginals == "auto" else estimator.marginals,
        unlabeled_weight=weight if rows.has_unlabeled else None,
    )
    if generative:
        return [first]
    return [replace(first, recipe=replace(first.recipe, structure=each)) for each in structures]


def choose_solver(given: str | Solver, weight: float, by_em: bool) -> Solver:
    """What was asked for; "auto" is EM where that is enough, and else goes by the rows' weight."""
    if given != "auto":
        return resolve(given, SOLVERS)
    if by_em:
        return EM()
    return LBFGS() if weight <= MOST_COMPARED else Adam()


def resized(estimator: MixtureClassifier, plan: Plan, engine: Engine) -> Plan:
    """The plan with the solver that it would have for these rows."""
    if isinstance(plan.solver, EM):
        return plan
    return replace(plan, solver=choose_solver(estimator.solver, engine.total_weight, False))


def leaves_density_open(estimator: MixtureClassifier) -> bool:
    """Whether no density is named: who names one has chosen, for X as it is."""
    return isinstance(resolve(estimator.density, DENSITIES), Auto)


def other_tradeoffs(
    estimator: MixtureClassifier, plan: Plan, begin: Sequence[Trained] = ()
) -> list[Plan]:
    """The plan with the other trade-offs that "auto" leaves open, from trained mixtures on."""
    if plan.generative or estimator.tradeoff != "auto" or not leaves_density_open(estimator):
        return []
    return [replace(plan, tradeoff=tradeoff, begin=begin) for tradeoff in _TRADEOFFS[1:]]


def choose(
    estimator: MixtureClassifier,
    plans: list[Plan],
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
    previous: FitResult[Mixture] | None = None,
    stream: bool = False,
) -> Decision:
    """The plan that does best on held-out rows; trials take half of the time at most.

    Where labels are too few for that, classes share a covariance, unless more rows will come.
    """
    plan, settled = plans[0], previous is not None
    tradeoffs = [] if settled else other_tradeoffs(estimator, plan)
    asks = estimator.missingness == "auto" and engine.has_holes and not settled
    calibrates = estimator.calibrate and not plan.generative and not plan.solver.held_out_share
    several = len(plans) > 1
    maps = len(_OTHERS) + 1 if several and estimator.marginals == "auto" else 0
    # The best of several is tried twice, and so are leaves.
    n_ways = several + len(tradeoffs) + asks + maps
    some = None
    if n_ways or calibrates:
        some = to_compare(engine, spawn(generator))
    if some is not None and too_few(some):
        tradeoffs, asks = [], False
    if several and some is not None and leaves_density_open(estimator):
        if has_heavy_tails(some):
            plans = [*plans, replace(plan, recipe=replace(plan.recipe, structure=_student(plan)))]
        if resolve(estimator.density, DENSITIES) == Auto() and not stream:
            plans = _for_few(plans, some)
    n_ways += len(plans)
    first, enough = spawn(generator), _CALIBRATING
    chooser = Chooser[Plan, Trained](some, answers, first, progress, n_ways=n_ways, fewest=enough)
    ways = [_quick(estimator, each, _GLIMPSE) for each in plans] if several else plans
    best = chooser.race(ways, "density")
    if best.models and several:
        further = replace(best.way, solver=plan.solver, begin=best.models)
        chooser.deepen(best, _quick(estimator, further, _REST))
    others = other_tradeoffs(estimator, best.way, best.models) if tradeoffs else []
    others = [_quick(estimator, each, _FURTHER) for each in others]
    best = chooser.challenge(best, others, question="tradeoff")
    told = best.held_out()
    if isinstance(told, Answers) and not plan.generative:  # what holes tell has been counted
        asks = asks and told.holes_tell
    others = [best.way.informative()] if asks else []
    best = chooser.challenge(best, others, Answers.clearly_beats, "missingness")
    calibrates = estimator.calibrate and not plan.generative
    if calibrates and progress.hurried and not all(each.converged for each in best.models):
        # Models that learn longer than those that were tried are surer of themselves.
        further = replace(best.way, solver=plan.solver, begin=best.models)
        chooser.deepen(best, _quick(estimator, further, _REST), _LATE)
    chosen = replace(best.way, solver=plan.solver, begin=())
    saw_all = chooser.saw_all(engine)
    trusts = estimator.missingness == "informative" or (
        best.way.recipe.informative and some is not None and lacks_by_design(some)
    )
    told = best.held_out()
    return Decision(
        chosen, engine, engine, chooser, best, previous, told, saw_all, trusts_holes=trusts
    )


def _for_few(plans: list[Plan], rows: Engine) -> list[Plan]:
    """Ways to compare: one more where labels are few, and that alone where they are too few."""
    shared = rows.n_numbers <= _NARROW and plans[0].recipe.prior_rows is None
    recipe = replace(plans[0].recipe, structure=_VARIANCES)
    if shared:
        recipe = replace(recipe, structure=_SHARED, prior_rows=_SHARED_ROWS)
    way = replace(plans[0], recipe=recipe)
    if too_few(rows):
        return [way]
    return [*plans, way] if int(rows.labeled.sum()) <= _FEW else plans


def from_trial(
    estimator: MixtureClassifier, plan: Plan, trial: Contender[Plan, Trained]
) -> tuple[Plan, Trained | None]:
    """A few iterations from the first model of a trial on, where their number is left to us."""
    if estimator.solver != "auto" or not isinstance(plan.solver, LBFGS) or not trial.models:
        return plan, None
    return plan.limited(_LAST, _GAIN), trial.models[0]


def _student(plan: Plan) -> Student:
    """What is compared where rows lie far out."""
    return Student(floor=float(plan.recipe.structure.floor))


def held_back(
    decision: Decision, unseen: Engine | None, beside: Sequence[Contender[Plan, Trained]] = ()
) -> HeldBack | None:
    """Rows that no model has seen, if there are such ones; or else those of the comparison, with
    the models that were tried without them; None if none was."""
    if unseen is not None and not decision.saw_all:
        return held_back_of(unseen, unseen.labeled.long().cpu() - 1, [()])
    models = zip(*(trial.models for trial in (decision.trial, *beside)), strict=False)
    found = decision.chooser.held_back([[each.model for each in fold] for fold in models])
    if found is None or not any(trial.units for trial in beside):
        return found
    none: list[Scaling | None] = [None] * len(found.models)
    units = (trial.units or none for trial in beside)
    return replace(found, units=tuple(zip(*units, strict=False)))


def ways_beside(
    estimator: MixtureClassifier, decision: Decision, kinds: Sequence[str]
) -> list[Plan]:
    """Plans of models beside the one that was decided on, one per kind of marginals.

    Models that differ err on different rows: the first of them gets the second best structure, and
    more components than a criterion of each class's likelihood asks for; as many of rows that lack
    many entries and were all compared on, where more cost much and gain nothing. Where held-out
    rows can tell temperatures, all are trained by the conditional likelihood for a margin (but
    powers, where they may take the first one's place), and classes share the covariance of ranks:
    what tells them apart is linear in these (of very many columns they share the variances); one
    component per class with a spread of its own makes it quadratic. Where it was "auto" that took
    the absence of entries for a sign, they do so only if rows lack entries by design: else rows to
    come may lack them for other reasons.
    """
    best, second = decision.trial, decision.chooser.runner_up("density") or decision.trial
    term = decision.plan.term
    plain = isinstance(term, Margin) and replace(term, holes=0.0) == Margin()
    by_default = plain and estimator.tradeoff == "auto"
    open_term = by_default and bool(best.models)
    ways = list[Plan]()
    open_counts = estimator.n_components == "auto"
    more = open_counts and not (decision.saw_all and _lacks_many(decision.engine))
    met = {
        "components": open_counts,
        "trial": bool(best.models),
        "objective": open_term,
        "solver": estimator.solver == "auto",
        "holes": not best.way.recipe.informative or decision.trusts_holes,  # trees would go by them
    }
    begun = {kind: NAMED.get(kind, CLUSTERS) for kind in kinds}
    kinds = [kind for kind, begin in begun.items() if all(met[each] for each in begin.needs)]
    for kind, trial in zip(kinds, [second, *[best] * len(kinds)], strict=False):
        counts = [*trial.models[0].model.layout.counts] if trial.models else decision.plan.counts
        if more and counts is not None and not ways:
            counts = _more(counts, decision.engine)
        recipe = trial.way.recipe
        if best is second and recipe.structure == _SHARED and not ways:
            recipe = replace(recipe, structure=_VARIANCES, prior_rows=None)
        begin, em = begun[kind], decision.plan.recipe.em
        recipe = replace(recipe, em=em, informative=decision.trusts_holes)
        way = replace(decision.plan, recipe=recipe, counts=counts, beginning=begin)
        way = replace(way, marginals=begin.units or kind)
        if open_term and open_counts and kind.startswith(_RANKS):
            numbers = decision.engine.n_numbers
            wide = numbers > _PER_LABEL * int(decision.engine.labeled.sum())
            way = _by_one(way, _VARIANCES if wide else _pairs(numbers), _SHARED_ROWS)
        if begin is QUADRATIC:
            way = _by_one(way, _pairs(decision.engine.n_numbers))
        if open_term and (decision.saw_all or not kind.startswith(_POWER)):
            tradeoff = TELLING if kind == ADDITIVE else _CONDITIONAL
            way = replace(way, term=Conditional(), tradeoff=tradeoff)
        ways.append(_quick(estimator, begin.adapted(way), _BESIDE))
    return ways


def _lacks_many(engine: Engine) -> bool:
    """Whether rows, which are few, lack many entries of the columns that any has."""
    rows = engine.all_rows()
    if rows.observed is None:
        return False
    told = rows.by_column(rows.observed)
    lacking = 1.0 - told[:, told.any(0)].double().mean(1)
    return float(rows.weight.double() @ lacking) > MANY_MISSING * engine.total_weight


def by_indicators(way: Plan, n_columns: int) -> Plan:
    """Over so many indicators, which are no columns to lack, by pairs of them or each by itself."""
    way = replace(way, recipe=replace(way.recipe, informative=False))
    if way.marginals == ADDITIVE:
        return _by_one(way, _VARIANCES, _SHARED_ROWS)
    return _by_one(way, _pairs(n_columns))


def _by_one(way: Plan, structure: Structure, imagined: float | None = None) -> Plan:
    """One component per class; all have the same spread if so many rows are imagined with it."""
    recipe = replace(way.recipe, structure=structure)
    if imagined is not None and recipe.prior_rows is None:
        recipe = replace(recipe, prior_rows=imagined)
    return replace(way, recipe=recipe, counts=[1] * len(way.log_prior))


def _pairs(n_columns: int) -> Structure:
    """How numbers and indicators go together."""
    return _PAIRS if n_columns <= _WHOLE else _PAIRS_OF_MANY


def _more(counts: list[int], engine: Engine) -> list[int]:
    """More components per class, where its rows allow."""
    known = engine.labeled
    rows = torch.bincount(engine.y[known], engine.weight[known], minlength=len(counts))
    needed = max(_ROWS_PER_COMPONENT, engine.n_features / _FEATURES_PER_ROW)
    allowed = (rows / needed).int().tolist()
    return [max(n, min(_MORE * n, most)) for n, most in zip(counts, allowed, strict=True)]


def answers(trained: Trained, held_out: Engine, generator: torch.Generator) -> Answers:
    """What a trained mixture says of held-out rows."""
    return Answers.of(trained.model, held_out, generator, trained.evidence)


def _quick(estimator: MixtureClassifier, plan: Plan, max_iter: int) -> Plan:
    """The plan with fewer iterations after EM, where their number is left to us."""
    chosen = estimator.solver != "auto" or not plan.together
    return plan if chosen else plan.limited(max_iter, _GAIN)


def previous_fit(estimator: MixtureClassifier, rows: Rows, plans: list[Plan]) -> FitResult[Mixture]:
    """The model of the previous fit; it must fit the new rows."""
    previous, structures = estimator.mixture_, [plan.recipe.structure for plan in plans]
    if leaves_density_open(estimator):
        structures += [_student(plans[0]), _SHARED, _VARIANCES]
    same = (
        previous.density.n_features == rows.X.values.shape[1]
        and np.array_equal(estimator.classes_, rows.classes)
        and plans[0].counts in (None, estimator.n_components_)
        and estimator.density_ in structures
        and estimator.missingness in ("auto", estimator.missingness_)
        and estimator.marginals in ("auto", estimator.marginals_[0])
    )
    if not same:
        raise InvalidInputError(
            "warm_start=True needs the classes, features, components, density and marginals "
            "of the previous fit; set warm_start=False to start anew."
        )
    return FitResult(previous, float("nan"), 0, True, spread_prior(estimator))


def resumed(estimator: MixtureClassifier, plan: Plan) -> Plan:
    """The plan of the previous fit: what "auto" chose then is kept."""
    informative = estimator.missingness_ == "informative"
    recipe = replace(plan.recipe, structure=estimator.density_, informative=informative)
    chosen = estimator.tradeoff == "auto" and estimator.tradeoff_ < 1.0
    tradeoff = estimator.tradeoff_ if chosen else plan.tradeoff
    return replace(plan, recipe=recipe, tradeoff=tradeoff, marginals=estimator.marginals_[0])


def spread_prior(estimator: MixtureClassifier) -> SpreadPrior | None:
    """The prior of the covariances of the previous fit."""
    if estimator.prior_spread_ is None:
        return None
    return SpreadPrior(estimator.prior_rows_, torch.from_numpy(estimator.prior_spread_))


def _refuse_contradictions(
    estimator: MixtureClassifier, solver: Solver, generative: bool, structure: Structure
) -> None:
    if solver.likelihood_only and not generative:
        raise UnsupportedError(
            f"solver={estimator.solver!r} maximizes the likelihood, not "
            f"objective={estimator.objective!r} with tradeoff={estimator.tradeoff!r}: use "
            "solver='ebw', 'adam' or 'lbfgs', or tradeoff=1."
        )
    if solver.closed_form_only and not structure.closed_form:
        raise UnsupportedError(
            f"solver={estimator.solver!r} needs closed-form updates, and "
            f"density={estimator.density!r} has none: use solver='adam' or 'lbfgs', or a density "
            "that has them, such as 'low_rank'."
        )
