"""Models grown stage by stage, each stage a candidate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral

import torch
from torch import Tensor

from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.votes import Votes
from mixtura.numerics import spawn
from mixtura.objectives import Conditional, Objective, beside_likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, GROWING, Boosted, Solver, SpreadPrior
from mixtura.training.boosting import Boosting, adaboost
from mixtura.training.groups import Recipe
from mixtura.training.learner import Learner
from mixtura.training.start import Chains

#: Rows per class and stage: fewer show no spread.
_STAGE_ROWS = 2
#: Iterations of the first leg of discriminative training (each further leg has twice as many), and
#: of all legs where a solver does not say; what a leg must gain per sequence for another to follow.
_LEG, _MOST_LEGS, _GAIN = 10, 100, 1e-3
#: Imagined sequences of the model that classes are adapted from.
_IMAGINED = 2.0
#: Share of the sequences and of the time that a temperature is found by; those that are compared.
_HELD_BACK, _TIME = 0.25, 0.2
_TEMPERATURES = torch.logspace(0.0, 3.0, 31, dtype=torch.float64)


@dataclass(frozen=True)
class Grown:
    """A model that growing came by.

    Attributes
    ----------
    shares : of its stages in it, or of their votes.
    prior : that the stages were trained under.
    loss : at the end of discriminative training.
    """

    model: Mixture | Votes
    shares: list[float]
    prior: SpreadPrior | None = None
    loss: float = math.inf


def grow(
    method: str,
    learner: Learner,
    n_stages: int,
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
    temperature: float = 1.0,
    pairwise: bool = False,
) -> Iterator[Grown]:
    """What there is after every stage; no more stages than rows can support."""
    n_stages = min(n_stages, max(1, len(engine.merged()) // (_STAGE_ROWS * learner.n_classes)))
    shares: list[float] = []
    if method == "adaboost":
        voters: list[Mixture] = []
        for voter, vote in adaboost(learner, n_stages, engine, generator, progress):
            voters, shares = [*voters, voter], [*shares, vote]
            yield Grown(Votes(tuple(voters), tuple(shares)), shares)
        return
    how = Boosting(learner, method == "boosted", n_stages)
    boosting = replace(how, temperature=temperature, pairwise=pairwise)
    for mixture, step in boosting.grow(engine, generator, progress):
        shares = [*(share * (1.0 - step) for share in shares), step]
        yield Grown(mixture, shares, learner.prior)


@dataclass(frozen=True, kw_only=True)
class Growth(ABC):
    """A way to grow a model, of which every stage may be chosen, or the last alone."""

    every_stage: bool

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""

    @abstractmethod
    def train(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterator[Grown]:
        """What there is after every stage."""

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterable[Mixture | Votes]:
        """The models that may be chosen."""
        found = (each.model for each in self.train(engine, generator, progress))
        return found if self.every_stage else deque(found, maxlen=1)


@dataclass(frozen=True)
class GrowthPlan(Growth):
    """How a classifier of rows is grown: nothing is left open.

    Attributes
    ----------
    recipe : of each stage.
    n_components : per class and stage.
    """

    method: str
    recipe: Recipe
    n_components: int
    n_stages: int
    n_classes: int

    @property
    def settings(self) -> dict[str, object]:
        return {"missingness": self.recipe.missingness}

    def train(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterator[Grown]:
        def begin(rows: Engine, generator: torch.Generator) -> Mixture:
            return self.recipe.finished(self.recipe.start(rows, self.n_components, generator))

        learner = Learner(begin, self.recipe.em, self.n_classes)
        learner = learner.informed(engine, self.recipe.prior_rows or 0.0, generator)
        return grow(self.method, learner, self.n_stages, engine, generator, progress)


@dataclass(frozen=True)
class ChainPlan(Growth):
    """How classes of sequences get hidden Markov models: nothing is left open.

    Attributes
    ----------
    method : one of `GROWING`, or "ml"; or the objective of discriminative training.
    em : of maximum likelihood; `tol` is per frame.
    growing : settings of the first.
    solver, tradeoff : of discriminative training.
    """

    n_states: int
    method: str | Objective
    chains: Chains
    em: EM
    prior_rows: float
    growing: Boosted
    n_classes: int
    solver: Solver
    tradeoff: float

    @property
    def settings(self) -> dict[str, object]:
        return {"n_states": self.n_states, "method": self.method}

    def train(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> Iterator[Grown]:
        """What there is after every stage, or after every leg of discriminative training.

        That begins with EM on all sequences and, where `em` asks for several starts, on one of each
        class; the path that ends best is taken. Unlabeled sequences are left out.
        """
        engine = engine.only(engine.labeled)
        held_out, discriminative = None, isinstance(self.method, Objective) and self.n_classes > 1
        if discriminative and self.solver.held_out_share:
            engine, held_out = engine.hold_out(self.solver.held_out_share, generator)
        learner = self._learner(engine, generator, progress)
        if isinstance(self.method, str) and self.method in GROWING:
            yield from self._grown(self.method, learner, engine, generator, progress)
            return
        first = Grown(learner.fit(engine, generator, progress), [1.0], learner.prior)
        yield first
        if not (discriminative and isinstance(self.method, Objective)):
            return
        legs = partial(self._legs, self.method, engine, held_out, generator, progress)
        if self.em.n_init == 1:
            yield from legs(first)
            return
        once, starts = replace(learner, em=replace(learner.em, n_init=1)), [first]
        for _ in range(1, self.em.n_init):
            few = once.fit(_one_of_each(engine, generator), generator, progress)
            starts.append(replace(first, model=few))
        paths = (list(legs(start)) for start in starts)
        yield from min(filter(None, paths), key=lambda path: path[-1].loss, default=[])

    def _learner(self, engine: Engine, generator: torch.Generator, progress: Progress) -> Learner:
        """What fits a class, or all of them, from scratch; `Chain.sharing` says what they share."""
        em = replace(self.em, tol=self.em.tol * float(engine.sizes.mean()))
        begin, how = partial(self.chains.start, n_states=self.n_states), self.chains.chain.sharing
        learner = Learner(begin, em, self.n_classes)
        if how is None:
            return learner.informed(engine, self.prior_rows, generator)
        whole = engine.single_class()
        one = replace(learner, n_classes=1).informed(whole, self.prior_rows, generator)
        pooled, prior = one.fit(whole, generator, progress.part(1.0)), one.prior
        if how == "adapted":
            frames = _IMAGINED * float(engine.sizes.mean()) / self.n_states
            prior = SpreadPrior.adapted(pooled.density, max(frames, self.prior_rows))
        em, tied = replace(em, n_init=1), how == "tied"
        return replace(learner, begin=lambda *_: pooled, em=em, prior=prior, tied=tied)

    def _grown(
        self,
        method: str,
        learner: Learner,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> Iterator[Grown]:
        """Every stage; or, if stages are then trained together, the last, and what comes of it."""
        temperature, stages = 1.0, self.growing
        if method == "boosted" and stages.n_stages > 1 and progress.leaves_time(_TIME):
            temperature = _temperature(learner, engine, spawn(generator), progress)
        setting = temperature, stages.rivals == "strongest"
        grown = grow(method, learner, stages.n_stages, engine, generator, progress, *setting)
        if not (stages.together and method == "boosted" and self.n_classes > 1):
            yield from grown
            return
        last = deque(grown, maxlen=1).pop()
        yield last
        yield from self._legs(Conditional(), engine, None, generator, progress, last)

    def _legs(
        self,
        method: Objective,
        engine: Engine,
        held_out: Engine | None,
        generator: torch.Generator,
        progress: Progress,
        first: Grown,
    ) -> Iterator[Grown]:
        """Legs of training, each twice as long as the one before, while they gain anything."""
        mixture, prior = first.model, first.prior
        assert isinstance(mixture, Mixture)
        if prior is not None and prior.around is not None:
            prior = SpreadPrior.stacked([prior] * mixture.density.n_components, self.n_states)
        objective = beside_likelihood(method, self.tradeoff, n_values=engine.values_per_row)
        leg, done, gain, loss = _LEG, 0, math.inf, math.inf
        given = self.solver.max_iter
        most = int(given) if isinstance(given, Integral) else _MOST_LEGS
        while done < most and gain > _GAIN and not progress.stopped:
            leg = min(leg, most - done)
            result = self.solver.limited(leg).run(
                mixture,
                objective,
                engine,
                progress,
                generator=generator,
                held_out=held_out,
                prior=prior,
            )
            mixture, gain, loss = result.model, loss - result.objective, result.objective
            yield replace(first, model=mixture, loss=loss)
            done, leg = done + leg, 2 * leg


def _one_of_each(engine: Engine, generator: torch.Generator) -> Engine:
    """A random sequence of each class."""
    order = torch.randperm(len(engine), generator=generator).to(engine.device)
    chosen = torch.zeros_like(engine.labeled)
    for label in engine.classes:
        chosen[order[(engine.y[order] == label).nonzero()[0]]] = True
    return engine.only(chosen)


def _temperature(
    learner: Learner, engine: Engine, generator: torch.Generator, progress: Progress
) -> float:
    """The least one at which a classifier doubts its own sequences half as often as it should.

    That is, half as often as it errs on sequences that were held back from it. One where training
    leaves as many doubts, or where classes have too few sequences to hold some back.
    """
    rest, held_back = engine.merged().hold_out(_HELD_BACK, generator)
    if held_back is None:
        return 1.0
    model = learner.shortened().fit(rest, generator, progress.part(_TIME))
    own, others = (each.concat(model.class_log_joint, model.density) for each in (rest, held_back))
    wrong = (others.argmax(1) != held_back.y.cpu()).double() @ _shares(held_back)
    chance = (own / _TEMPERATURES[:, None, None]).softmax(2)
    right = chance.gather(2, rest.y.cpu().expand(len(chance), -1)[..., None])[..., 0]
    doubt = 1.0 - right @ _shares(rest)
    enough = doubt >= 0.5 * wrong
    enough[-1] = True  # the highest, where none leaves as many doubts
    return float(_TEMPERATURES[int(enough.double().argmax())])


def _shares(engine: Engine) -> Tensor:
    """(n,) of the weights of all rows."""
    return engine.weight.double().cpu() / engine.total_weight
