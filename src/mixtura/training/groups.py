"""Mixtures of groups of rows by EM, side by side: how many components, under which prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mixtura.densities import Structure, VectorDensity
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import numeric_part, with_numeric_part
from mixtura.engines import Engine
from mixtura.engines.table import row_by_row
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, FitResult, SpreadPrior
from mixtura.solvers.base import unstacked
from mixtura.training.start import distinct_rows, stack_start

_COUNTS = (2, 3, 4, 6, 8, 12, 16)
#: A component that stands for fewer is not worth its parameters.
ROWS_PER_COMPONENT = 10
_PRIOR_ITERATIONS = 20
#: Share of the time that is left which these may take.
_PRIOR_TIME = 0.25
_MOST_COMPARED = 20_000
#: Rows times groups that are worked on together, without and with holes: with more, arithmetic is
#: what costs, and each group should go through its own rows only.
_TOGETHER = {False: 20_000, True: 5_000}


@dataclass(frozen=True)
class Recipe:
    """How mixtures of groups of rows are fitted by EM.

    Attributes
    ----------
    structure : of the columns that hold numbers; nothing in it is left open.
    prior_rows : imagined rows per component with the pooled spread of all groups; None takes as
        many as the spread has dimensions plus two (a whole covariance), or three (variances).
    informative : whether components also differ in which entries are absent.
    enough : iterations that the start of another solver takes at most.
    """

    structure: Structure
    em: EM
    prior_rows: float | None = 0.0
    informative: bool = False
    enough: int | None = None

    @property
    def missingness(self) -> str:
        """How holes are taken, in the words of estimators."""
        return "informative" if self.informative else "ignore"

    @property
    def direct(self) -> bool:
        """Whether EM fits the structure itself, not another that it is then made from."""
        return self.structure.start is self.structure

    def start(
        self, engine: Engine, count: int, generator: torch.Generator, own_units: bool = False
    ) -> Mixture:
        """What EM begins with: the moments of k-means clusters."""
        rows, everyone = engine.single_class(), Assignment.everyone(1, engine.device)
        return self.stack_start(rows, everyone, count, generator, own_units)[0]

    def stack_start(
        self,
        engine: Engine,
        assignment: Assignment,
        count: int,
        generator: torch.Generator,
        own_units: bool = False,
    ) -> MixtureStack:
        """What EM begins with, in every problem."""
        options = {"informative": self.informative, "own_units": own_units}
        return stack_start(engine, assignment, count, self.structure.start, generator, **options)

    def finish(self, start: Start) -> Start:
        """The mixtures in the structure itself, where EM was to fit another one."""
        if self.direct:
            return start
        results = [
            [replace(each, model=self.finished(each.model)) for each in row]
            for row in start.results
        ]
        priors = start.priors and [self._prior([each.model for each in row]) for row in results]
        return Start(results, priors)

    def finished(self, mixture: Mixture) -> Mixture:
        """A mixture that EM has begun or fitted, in the structure itself."""
        part = numeric_part(mixture.density)
        if not isinstance(part, VectorDensity):
            return mixture
        finished = self.structure.finish(part)
        return replace(mixture, density=with_numeric_part(mixture.density, finished))

    def _prior(self, mixtures: list[Mixture]) -> SpreadPrior:
        """Imagined rows with the spread that mixtures show on average."""
        share = torch.ones(len(mixtures))
        return SpreadPrior.pooled([each.density for each in mixtures], share, self.prior_rows)


@dataclass(frozen=True)
class Groups:
    """Groups of rows in a grid: those of C classes, in each of T trials.

    Attributes
    ----------
    engine : the rows; each carries the number of its kind as label.
    sees : (T, C, M) whether a group has the rows of a kind.
    label : (M,) the class of a kind.
    """

    engine: Engine
    sees: Tensor
    label: Tensor
    _parts: dict[tuple[int, ...], tuple[Engine, Assignment]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def everyone(cls, engine: Engine, n_groups: int = 1, folds: Folds | None = None) -> Groups:
        """So many groups of all rows; in each trial, of those of the other folds."""
        folds = folds or Folds.none(engine)
        nothing = folds.number.new_full((), -1).expand(len(engine))
        kind, label, shown = folds.kinds(nothing, 0)
        sees = shown[:, None].expand(-1, n_groups, -1)
        return cls(engine.with_answers(y=kind.to(engine.device)), sees, label.clamp_min(0))

    @classmethod
    def by_class(cls, engine: Engine, n_classes: int, folds: Folds) -> Groups:
        """The labeled rows of each class, in each trial those of the other folds.

        All rows stand in for a class without any.
        """
        kind, label, shown = folds.kinds(engine.y, n_classes)
        shown = shown[:, None] & (label >= 0)  # (T, 1, M)
        sees = shown & (label == torch.arange(n_classes, device=label.device)[:, None])
        rows = engine.with_answers(y=kind)
        present = rows.label_counts(len(label)) > 0
        sees = torch.where((sees & present).any(2, keepdim=True), sees, shown)
        if not (shown & present).any(2).all():  # nothing has a label
            return cls(rows, torch.ones_like(sees), label.clamp_min(0))
        return cls(rows.only(engine.labeled), sees, label.clamp_min(0))

    def part(self, classes: Sequence[int]) -> tuple[Engine, Assignment]:
        """The rows of some classes, and which of them are in which group: trial by trial."""
        key = tuple(classes)
        if key in self._parts:
            return self._parts[key]
        sees = self.sees[:, list(classes)].flatten(0, 1)
        part = self.engine.labeled_among(sees.any(0)), Assignment(sees, self.label)
        if len(self.sees) > 1:  # others may try these rows
            self._parts[key] = part
        return part

    def portions(self, classes: Sequence[int]) -> list[list[int]]:
        """The classes in portions that are worked on together."""
        found: list[list[int]] = [[]]
        size = self.engine.label_counts(self.sees.shape[2])
        rows = (self.sees.any(0) * size).sum(1).tolist()
        for each in classes:
            together = [*found[-1], each]
            count, n_groups = sum(rows[one] for one in together), len(together) * len(self.sees)
            if found[-1] and not are_few(self.engine, count, n_groups):
                found.append([each])
            else:
                found[-1] = together
        return found

    def effective_rows(self) -> Tensor:
        """(T, C) how much evidence each group holds: see the function of that name."""
        assignment = Assignment(self.sees.flatten(0, 1), self.label)
        weight = assignment.total(self.engine.y, self.engine.weight).view(self.sees.shape[:2])
        classes = range(self.sees.shape[1])
        known = [self.part([each])[0] for each in classes]
        share = [effective_rows(rows) / rows.total_weight for rows in known]
        return weight * torch.tensor(share, dtype=weight.dtype, device=weight.device)


#: A trial that holds this out learns from all rows.
NOTHING = -2


@dataclass(frozen=True)
class Folds:
    """Trials, each of which learns from the rows of all folds but one.

    Attributes
    ----------
    number : (n,) the fold of each row; -1 for rows that are never held out.
    held_out : the fold that each trial does without.
    kept : what missing entries of the rows of an engine tell, for all who learn from these, as
        long as there is such an engine.
    groups : the rows of each class, likewise.
    """

    number: Tensor
    held_out: Sequence[int]
    kept: WeakKeyDictionary[Engine, HoleEvidence] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )
    groups: WeakKeyDictionary[Engine, Groups] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )

    @classmethod
    def none(cls, engine: Engine) -> Folds:
        """One trial, that learns from all rows."""
        kind = torch.long if engine.y.is_floating_point() else engine.y.dtype
        nowhere = torch.full((), -1, dtype=kind, device=engine.device)
        return cls(nowhere.expand(len(engine)), [NOTHING])

    def only(self, mask: Tensor) -> Folds:
        """Those of some rows."""
        return Folds(self.number[mask.to(self.number.device)], self.held_out)

    def shown(self, engine: Engine, trial: int) -> Engine:
        """The rows that a trial learns from."""
        held_out = self.held_out[trial]
        return engine if held_out == NOTHING else engine.only(self.number != held_out)

    def kinds(self, y: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """(n,) the kind of each row; (M,) its class; (T, M) whether a trial learns from it."""
        number, n_rows = self.number.to(y.device), len(y)
        if number.stride() == y.stride() == (0,):  # what all rows have in common is kept once
            number, y = number[:1], y[:1]
        kind = row_by_row(lambda fold, label: (fold + 1) * (n_classes + 1) + label + 1, number, y)
        kind = kind.expand(n_rows)
        every = torch.arange((int(number.max()) + 2) * (n_classes + 1), device=y.device)
        fold, label = every // (n_classes + 1) - 1, every % (n_classes + 1) - 1
        return kind, label, fold != torch.tensor(self.held_out, device=y.device)[:, None]

    def assignment(self, y: Tensor, n_classes: int) -> tuple[Tensor, Assignment]:
        """(n,) the kind of each row, and which trials learn from it."""
        kind, label, shown = self.kinds(y, n_classes)
        return kind, Assignment(shown, label)


@dataclass(frozen=True)
class Start:
    """Single-class mixtures of one structure, T lists of C, and the priors of the trials."""

    results: list[list[FitResult[Mixture]]]
    priors: list[SpreadPrior] | None

    def prior(self, trial: int = 0) -> SpreadPrior | None:
        """The prior of a trial."""
        return None if self.priors is None else self.priors[trial]

    def joined(
        self, log_prior: Tensor, learn_prior: bool, times: int = 1
    ) -> list[FitResult[Mixture]]:
        """One mixture of all classes per trial, each class so many times, and how EM ended."""
        return [
            FitResult(
                Mixture.join([each.model for each in results] * times, log_prior, learn_prior),
                float("nan"),
                max(each.n_iter for each in results),
                all(each.converged for each in results),
                self.prior(trial),
            )
            for trial, results in enumerate(self.results)
        ]


#: The mixtures of one class in all trials, and how EM ended.
_Fits = list[FitResult[Mixture]]


def fit_groups(
    groups: Groups,
    counts: list[int] | None,
    recipe: Recipe,
    generator: torch.Generator,
    progress: Progress,
) -> Start:
    """A single-class mixture of each group of rows.

    `counts` gives each class its number of components, in all trials; None chooses them.
    """
    training = _Training(groups, recipe, generator, progress)
    classes = list(range(groups.sees.shape[1]))
    if counts is None:
        found = training.grow(classes)
    else:
        found = {}
        for count in sorted(set(counts)):
            found |= training.fit([c for c in classes if counts[c] == count], count)
    by_class = [found[label] for label in classes]
    trials = [list(each) for each in zip(*by_class, strict=True)]
    return recipe.finish(Start(trials, training.priors))


class _Training:
    """EM over groups of rows, those of several classes and trials side by side."""

    def __init__(
        self, groups: Groups, recipe: Recipe, generator: torch.Generator, progress: Progress
    ) -> None:
        self._groups, self._recipe, self._generator = groups, recipe, generator
        self._progress = progress
        self._em = recipe.em if recipe.enough is None else recipe.em.limited(recipe.enough)
        self._singles: dict[tuple[int, int], Mixture] = {}
        self.priors = self._pooled() if recipe.prior_rows != 0 else None

    def _pooled(self) -> list[SpreadPrior]:
        """Of each trial, with the spread that one component per group shows on average."""
        em = EM(self._recipe.enough or _PRIOR_ITERATIONS, self._em.tol)
        silent = self._progress.part(_PRIOR_TIME)
        n_trials, n_classes = self._groups.sees.shape[:2]
        shares = []
        for portion in self._groups.portions(range(n_classes)):
            rows, assignment = self._groups.part(portion)
            stack = self._recipe.stack_start(rows, assignment, 1, self._generator)
            stack = em.run(stack, Likelihood(), rows, silent).model
            shares.append(stack.total_weight(rows.y, rows.weight).view(n_trials, -1))
            for place in range(len(stack)):
                self._singles[place // len(portion), portion[place % len(portion)]] = stack[place]
        return [
            SpreadPrior.pooled(
                [self._singles[trial, label].density for label in range(n_classes)],
                share,
                self._recipe.prior_rows,
            )
            for trial, share in enumerate(torch.cat(shares, 1))
        ]

    def fit(self, classes: Sequence[int], count: int) -> dict[int, _Fits]:
        """Mixtures of so many components, of some classes."""
        found: dict[int, _Fits] = {}
        for portion in self._groups.portions(classes) if classes else []:
            found |= self._fit_portion(portion, count)
        return found

    def _fit_portion(self, classes: list[int], count: int) -> dict[int, _Fits]:
        rows, assignment = self._groups.part(classes)
        priors = [prior for prior in self.priors or () for _ in classes]
        prior = SpreadPrior.stacked(priors, count)
        attempts = []
        for _ in range(self._em.n_init if count > 1 else 1):
            start = self._start(classes, count, rows, assignment)
            result = self._em.run(start, Likelihood(), rows, self._progress, prior=prior)
            attempts.append(unstacked(result))
        results = [min(each, key=lambda one: one.objective) for each in zip(*attempts, strict=True)]
        return {label: results[place :: len(classes)] for place, label in enumerate(classes)}

    def _start(
        self, classes: list[int], count: int, rows: Engine, assignment: Assignment
    ) -> MixtureStack:
        """What EM begins with: single components are known where a prior was asked for."""
        if count > 1 or not self._singles:
            return self._recipe.stack_start(rows, assignment, count, self._generator)
        every = [(trial, label) for trial in range(len(self._groups.sees)) for label in classes]
        return MixtureStack.of([self._singles[each] for each in every], assignment)

    def grow(self, classes: list[int]) -> dict[int, _Fits]:
        """More components while the Bayesian information criterion falls, over all trials."""
        rows = self._groups.effective_rows().cpu()
        found, growing = self.fit(classes, 1), classes

        def criterion(label: int, fits: _Fits) -> float:
            evidence, size = rows[:, label], fits[0].model.n_parameters
            losses = torch.tensor([fit.objective for fit in fits], dtype=evidence.dtype)
            return float((2.0 * losses * evidence + size * evidence.log()).sum())

        for count in _COUNTS:
            least = ROWS_PER_COMPONENT * count
            growing = [label for label in growing if float(rows[:, label].min()) >= least]
            tried = self.fit(growing, count)
            growing = [c for c in growing if criterion(c, tried[c]) < criterion(c, found[c])]
            found |= {label: tried[label] for label in growing}
            if not growing:
                break
        return found


def are_few(engine: Engine, n_rows: int, n_groups: int) -> bool:
    """Whether so many groups of an engine's rows cost less together than one by one."""
    return n_rows * n_groups <= _TOGETHER[engine.may_marginalize]


def effective_rows(engine: Engine) -> float:
    """How much evidence the rows hold: no more than their weight.

    Rows of numbers that are repeated count once; where there are categories, indicators or atoms,
    repetition is what is to be expected.
    """
    scaling = engine.scaling
    if any(engine.levels) or scaling.atoms is not None or scaling.indicators is not None:
        return engine.total_weight
    rows = float(len(engine))
    if rows <= _MOST_COMPARED:
        rows = len(distinct_rows(engine.all_rows().x)[0])
    return min(rows, engine.total_weight)
