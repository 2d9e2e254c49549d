"""Sequences by hidden states, by summaries, or by both: which of them has how much of a say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.engines import Engine
from mixtura.estimators.growing import Choice, calibrated_by, fit_best, most_compared, train_in_time
from mixtura.exceptions import DegenerateDataWarning, UnsupportedError, warn
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import AnyModel, Blend, Fitted
from mixtura.models.mixture import Mixture
from mixtura.models.summarized import Summarized
from mixtura.models.votes import Votes
from mixtura.numerics import spawn
from mixtura.objectives import OBJECTIVES, Objective, of_whole_rows
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.blend import blend_answers
from mixtura.selection.chooser import MOST_COMPARED, Chooser, Contender
from mixtura.selection.held_out import Answers
from mixtura.selection.typical import typical_sequences
from mixtura.solvers import EBW, EM, GROWING, LBFGS, Adam, Boosted, Solver
from mixtura.training.growth import ChainPlan
from mixtura.training.summaries import SummaryPlan

if TYPE_CHECKING:
    from mixtura.estimators.sequence import SequenceMixtureClassifier

#: What sequences are told apart by; "auto" leaves it to held-out sequences.
REPRESENTATIONS = ("auto", "states", "summary", "both")
#: Methods that train hidden Markov models on, and all methods.
_DISCRIMINATIVE = ("conditional", "margin", "smooth_margin")
METHODS = ("auto", "ml", *_DISCRIMINATIVE, *GROWING)
#: What "auto" compares: methods, and numbers of states.
_COMPARED = ("boosted", "conditional")
_STATES = (3, 6, 12)
#: What names of solvers are shorthand for.
_ITERATIONS = 100
SOLVERS: dict[str, Callable[[], Solver]] = {
    "lbfgs": partial(LBFGS, _ITERATIONS),
    "ebw": partial(EBW, _ITERATIONS),
    "adam": partial(
        Adam,
        _ITERATIONS,
        batch_size=100,
        learning_rate=2e-3,
        schedule="constant",
        early_stopping=False,
    ),
}
#: Weights of states and summaries where no sequence was held out, for lack of them or of time:
#: states are too sure then.
_UNTRIED = np.array([0.05, 0.95])
#: Unlabeled sequences that are learned from at most.
_UNLABELED = 1_000
#: Frames of held-out sequences that models are asked of together.
_FRAMES = 4_096

_Plan = ChainPlan | SummaryPlan
_Trial = Contender[_Plan, AnyModel]


@dataclass(frozen=True)
class Summaries:
    """A model of summaries, and how much of a say it has beside hidden Markov models.

    Attributes
    ----------
    weights : (2,) of the probabilities of hidden Markov models and of this model.
    average : calibration of the averages.
    """

    model: Summarized
    calibration: Calibration
    weights: np.ndarray
    average: Calibration

    @property
    def representation(self) -> str:
        """What has a say."""
        return "both" if self.weights.all() else ("states", "summary")[int(self.weights.argmax())]

    def beside(self, states: Fitted) -> Fitted:
        """Hidden Markov models, and this model beside them."""
        member = replace(states, model=self.model, calibration=self.calibration, typical=None)
        return replace(states, blend=Blend((member,), self.weights, self.average))


@dataclass(frozen=True)
class Represented:
    """What was fitted, and what was compared; one of the two may be left out.

    Attributes
    ----------
    method : of the hidden Markov models, as the user names it.
    """

    states: Choice[ChainPlan] | None
    summaries: Summaries | None
    table: list[dict[str, object]]
    method: str | Boosted | Objective = "ml"

    @property
    def representation(self) -> str:
        """What has a say."""
        if self.states is None:
            return "summary"
        return "states" if self.summaries is None else self.summaries.representation

    def fitted(
        self,
        scaling: Scaling,
        schema: Schema,
        classes: np.ndarray,
        engine: Engine,
        progress: Progress,
    ) -> Fitted:
        """The model of sequences that have been read."""
        if self.states is None:
            assert self.summaries is not None
            model, own = self.summaries.model, self.summaries.calibration
            shares = model.log_prior.exp().numpy()
            return Fitted(model, scaling, schema, classes, shares, own)
        chain, prior = self.states.grown.model.to("cpu", torch.float64), None
        typical, per_value = None, None
        if isinstance(chain, Mixture):
            prior = chain.log_prior.exp().numpy()
            told = [(m, rows) for m, rows in self.states.unseen() if isinstance(m, Mixture)]
            typical, per_value = typical_sequences(chain, engine, progress, told)
        own = self.states.calibration
        found = Fitted(chain, scaling, schema, classes, prior, own, typical, per_value=per_value)
        return found if self.summaries is None else self.summaries.beside(found)


def sums_up(estimator: SequenceMixtureClassifier) -> bool:
    """Whether there are to be summaries: they learn from unlabeled sequences, too."""
    wanted, method = estimator.representation, estimator.method
    return wanted in ("summary", "both") or (wanted == "auto" and method == "auto")


def represent(
    estimator: SequenceMixtureClassifier,
    engine: Engine,
    n_classes: int,
    generator: torch.Generator,
    progress: Progress,
) -> Represented:
    """Fit what the estimator asks for."""
    if not sums_up(estimator):
        return _states(estimator, engine, n_classes, generator, progress)
    method = estimator.method
    plan = _plan(estimator, "ml" if method == "auto" else method, engine, n_classes)
    counts = _STATES if estimator.n_states == "auto" else (_given_states(estimator, engine),)
    plans = [replace(plan, n_states=count) for count in counts]
    return _beside_summaries(estimator, plans, engine, generator, progress)


def _states(
    estimator: SequenceMixtureClassifier,
    engine: Engine,
    n_classes: int,
    generator: torch.Generator,
    progress: Progress,
) -> Represented:
    """Hidden Markov models alone."""
    methods = _COMPARED if estimator.method == "auto" else (estimator.method,)
    plans = [_plan(estimator, method, engine, n_classes) for method in methods]
    own = spawn(generator)
    if estimator.n_states == "auto":
        n_states, counted = _count_states(plans[0], engine, own, progress)
    else:
        n_states, counted = _given_states(estimator, engine), []
    found = fit_best(
        [replace(plan, n_states=n_states) for plan in plans],
        engine,
        generator,
        progress,
        calibrate=estimator.calibrate,
    )
    each = zip(methods, plans, strict=True)
    method = next(given for given, plan in each if plan.method == found.plan.method)
    return Represented(found, None, [*counted, *found.table], method)


def _plan(
    estimator: SequenceMixtureClassifier,
    method: str | Boosted | Objective,
    engine: Engine,
    n_classes: int,
) -> ChainPlan:
    chains = estimator._chains(engine.n_numbers, int(engine.sizes.max()))
    solver, stages = resolve(estimator.solver, SOLVERS), Boosted()
    if isinstance(method, Boosted):
        stages = resolve(method, {})
        method = stages.kind
    if chains.chain.sharing == "tied" and not chains.structure.closed_form:
        raise UnsupportedError(
            f"chain={estimator.chain!r} needs closed-form updates, which density="
            f"{estimator.density!r} lacks: use sharing='adapted', or another density."
        )
    if isinstance(method, Objective) or method in _DISCRIMINATIVE:
        method = of_whole_rows(method, OBJECTIVES)
        if solver.likelihood_only or (solver.closed_form_only and not chains.structure.closed_form):
            raise UnsupportedError(
                f"solver={estimator.solver!r} cannot train density={estimator.density!r} to "
                f"discriminate (method={estimator.method!r}): use solver='lbfgs' or 'adam', or "
                "method='ml'."
            )
    return ChainPlan(
        n_states=_STATES[0] if estimator.n_states == "auto" else int(estimator.n_states),
        method=method,
        chains=chains,
        em=resolve(estimator.init, {"em": EM}),
        prior_rows=estimator.prior_rows,
        growing=stages,
        n_classes=n_classes,
        solver=solver,
        tradeoff=estimator.tradeoff,
        every_stage=estimator.early_stopping and estimator.method != "ml",
    )


def _given_states(estimator: SequenceMixtureClassifier, engine: Engine) -> int:
    """How many states the user wants; a warning where a class has fewer frames."""
    engine = engine.only(engine.labeled)
    wanted, frames = int(estimator.n_states), torch.bincount(engine.y, engine.sizes.double())
    if (frames < wanted).any():
        warn(
            f"n_states={wanted} is more than the {int(frames.min())} frames of a class: some "
            "states have none. Remedy: fewer states, or n_states='auto'.",
            DegenerateDataWarning,
        )
    return wanted


def _count_states(
    plan: ChainPlan, engine: Engine, generator: torch.Generator, progress: Progress
) -> tuple[int, list[dict[str, object]]]:
    """How many states, and what was compared."""
    ways = [replace(plan, n_states=n, method="ml", every_stage=False) for n in _STATES]
    chooser = Chooser[ChainPlan, Mixture | Votes](
        engine.merged(), Answers.of, spawn(generator), progress, n_ways=len(ways), until=0.25
    )
    best = chooser.race(ways, "states")
    return best.way.n_states, chooser.table()


def _beside_summaries(
    estimator: SequenceMixtureClassifier,
    plans: Sequence[ChainPlan],
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
) -> Represented:
    """Summaries, and hidden Markov models by the best of some plans, unless not asked for.

    All meet the same held-out sequences. "auto" averages the two, or goes by one of them alone
    where that predicts held-out labels better. Summaries learn from unlabeled sequences, too,
    unless that predicts them worse; of labels that are too few to tell, it is expected to help.
    """
    calibrate, different = estimator.calibrate, _different(engine)
    most = most_compared(different) or MOST_COMPARED
    some, n_different = different.sample(most, spawn(generator)), len(different)
    del different  # a copy of all sequences: made again where summaries are of more than some
    summary = SummaryPlan(plans[0].n_classes)
    chooser = Chooser[_Plan, AnyModel](
        some, partial(Answers.of, chunk=_FRAMES), spawn(generator), progress, n_ways=len(plans) + 1
    )
    beside, first, states = chooser.try_out(summary, "representation"), None, None
    if not some.labeled.all():
        also = chooser.try_out(replace(summary, unlabeled=True), "unlabeled", beside=beside)
        beside = also if also.won else beside
    if estimator.representation != "summary":
        first = chooser.race(plans, "states")
        assert isinstance(first.way, ChainPlan)
        n_stages = first.stage() + 1 if first.parts and first.way.every_stage else None
        known = engine.only(engine.labeled)
        grown = train_in_time(first.way, n_stages, known, spawn(generator), progress)
        own = calibrated_by(first.held_out(), some) if calibrate else Calibration()
        states = Choice(first.way, grown, own, [], partial(chooser.unseen, first))
        if chooser.cut_short and not beside.won:
            return Represented(states, None, chooser.table())
    model, all_of_it = beside.whole, len(some) == n_different
    if not (all_of_it and isinstance(model, Summarized)):
        assert isinstance(beside.way, SummaryPlan)
        model = beside.way.train(some if all_of_it else _different(engine), spawn(generator))
    own = calibrated_by(beside.held_out(), some) if calibrate else Calibration()
    weights, average = _say(first, beside, estimator.representation == "auto")
    summaries = Summaries(model.to("cpu"), own, weights, average if calibrate else Calibration())
    return Represented(states, summaries, chooser.table())


def _different(engine: Engine) -> Engine:
    """Different sequences, of which some without a label stand for all."""
    found = engine.merged()
    return found.fewer_unlabeled(found, _UNLABELED)


def _say(first: _Trial | None, beside: _Trial, or_one: bool) -> tuple[np.ndarray, Calibration]:
    """(2,) weights of both by what they said of held-out sequences, and the average's calibration.

    `or_one`: all weight goes to one where the average does no better.
    """
    if first is None:
        return np.array([0.0, 1.0]), Calibration()
    n_folds = min(len(first.parts), len(beside.parts))
    both = first.held_out(n_folds), beside.held_out(n_folds)
    told = [each for each in both if isinstance(each, Answers)]
    if not n_folds or len(told) < 2:
        return _UNTRIED.copy(), Calibration()
    weights, average = blend_answers(told)
    best = min(told, key=lambda each: each.loss)
    if or_one and best.loss <= average.loss:
        return np.array([float(each is best) for each in told]), Calibration()
    return weights, average.calibration
