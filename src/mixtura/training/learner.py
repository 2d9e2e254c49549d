"""Generative classifiers of weighted rows: one mixture per class, by maximum likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from mixtura.densities import HiddenMarkov
from mixtura.densities.side_by_side import SideBySide
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, FitResult, SpreadPrior
from mixtura.solvers.base import unstacked
from mixtura.training.groups import are_few

#: A single-class mixture for EM to begin with.
Begin = Callable[[Engine, torch.Generator], Mixture]

#: Mass of a class in a stage that leaves it out.
_ABSENT = 1e-100
#: Frames of sequences of classes that EM trains side by side at most, and how many times as many
#: the largest of them has as the smallest: the loop over time is that of the largest.
_FRAMES, _EVEN = 100_000, 2.0
#: Iterations of EM where others will follow.
_REFIT = 10


@dataclass(frozen=True)
class Learner:
    """Fits a generative classifier to weighted rows by maximum likelihood.

    Attributes
    ----------
    prior : of the spread, if any.
    rows, starts : that it was made from, and what EM begins with there, class by class.
    tied : whether the states of all classes emit alike.
    """

    begin: Begin
    em: EM
    n_classes: int
    prior: SpreadPrior | None = None
    rows: Engine | None = None
    starts: tuple[Mixture, ...] = ()
    tied: bool = False

    def informed(self, engine: Engine, rows: float, generator: torch.Generator) -> Learner:
        """The learner with a prior: so many rows of the spread that its starts show on average."""
        if rows == 0:
            return self
        engines = self._engines(engine)
        starts = tuple(self.begin(each, generator) for each in engines)
        share = torch.tensor([each.total_weight for each in engines])
        prior = SpreadPrior.pooled([start.density for start in starts], share, rows)
        return replace(self, prior=prior, rows=engine, starts=starts)

    def shortened(self) -> Learner:
        """The learner with a few iterations of EM: where others will follow."""
        return replace(self, em=self.em.limited(_REFIT))

    def fit(
        self,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
        absent: Mixture | None = None,
    ) -> Mixture:
        """A classifier from scratch; a class without rows has the density that it has in `absent`.

        That class's prior is then as good as zero.
        """
        engines, attempts = self._engines(engine), []

        def start(label: int, rows: Engine) -> Mixture:
            if absent is not None and not len(rows):
                return absent.of_class(label)
            return self.begin(rows, generator)

        begun = self.starts if engine is self.rows else ()
        for _ in range(self.em.n_init):
            starts = list(begun) or [start(*each) for each in enumerate(engines)]
            attempts.append(self._trained(starts, engine, engines, self.em, progress))
            begun = ()
        best = [
            min((each[label] for each in attempts), key=lambda result: result.objective)
            for label in range(self.n_classes)
        ]
        return self._join([each.model for each in best], engines)

    def improve(self, mixture: Mixture, engine: Engine, progress: Progress) -> Mixture:
        """A classifier that a little EM reaches from another."""
        engines, em = self._engines(engine), self.shortened().em
        starts = [mixture.of_class(label) for label in range(self.n_classes)]
        found = self._trained(starts, engine, engines, em, progress)
        return self._join([each.model for each in found], engines)

    def _trained(
        self,
        starts: list[Mixture],
        engine: Engine,
        engines: list[Engine],
        em: EM,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        """EM on the rows of every class that has some, side by side where they are few."""
        if self.tied:
            return self._tied(starts, engine, engines, em, progress)
        present = [label for label, rows in enumerate(engines) if len(rows)]
        tensors = (start.density.tensors().values() for start in starts)
        alike = len({tuple(value.shape for value in each) for each in tensors}) == 1
        alike = alike and (engine.uniform or starts[0].density.closed_form)
        run = partial(em.run, objective=Likelihood(), progress=progress)
        trained: dict[int, FitResult[Mixture]] = {}
        for labels in self._groups(present, engine, engines) if alike else []:
            own = torch.eye(self.n_classes, dtype=torch.bool, device=engine.device)[labels]
            assignment = Assignment(own, torch.zeros_like(own[0], dtype=torch.long))
            stack = MixtureStack.of([starts[label] for label in labels], assignment)
            if isinstance(stack.density, HiddenMarkov):
                kind = torch.tensor(labels, device=engine.device)
                stack = replace(stack, density=SideBySide.of(stack.density, kind))
            count = stack.density.location[..., 0].numel() // len(labels)  # states, too
            prior = SpreadPrior.stacked([self.prior] * len(labels), count)
            some = engine.labeled_among(own.any(0))
            found = run(stack, engine=some, prior=prior)
            if isinstance(found.model.density, SideBySide):
                plain = replace(found.model, density=found.model.density.plain())
                found = replace(found, model=plain)
            trained |= zip(labels, unstacked(found), strict=True)
        for label in present:
            if label not in trained:
                rows = engines[label]
                trained[label] = run(starts[label], engine=rows, prior=self.prior)
        return [
            trained.get(label, FitResult(start, 0.0, 0, True)) for label, start in enumerate(starts)
        ]

    def _tied(
        self,
        starts: list[Mixture],
        engine: Engine,
        engines: list[Engine],
        em: EM,
        progress: Progress,
    ) -> list[FitResult[Mixture]]:
        """EM on the rows of all classes, whose states emit alike."""
        joined, kind = self._join(starts, engines), torch.arange(self.n_classes)
        assert isinstance(joined.density, HiddenMarkov)
        density, prior = SideBySide.of(joined.density, kind.to(engine.device), tied=True), None
        if self.prior is not None:  # it is of each class, and statistics are summed over them
            prior = replace(self.prior, rows=self.prior.rows / self.n_classes)
        start = replace(joined, density=density)
        found = em.run(start, Likelihood(), engine, progress, prior=prior)
        assert isinstance(found.model.density, SideBySide)
        plain = replace(found.model, density=found.model.density.plain())
        each = [plain.of_class(label) for label in range(self.n_classes)]
        return [FitResult(one, found.objective, found.n_iter, found.converged) for one in each]

    def _groups(self, present: list[int], engine: Engine, engines: list[Engine]) -> list[list[int]]:
        """Classes that cost less together than one by one."""
        if engine.uniform:
            return [present] if present and are_few(engine, len(engine), self.n_classes) else []
        frames = {label: float(engines[label].sizes.sum()) for label in present}
        groups: list[list[int]] = []
        for label in sorted(present, key=lambda label: frames[label]):
            group = groups[-1] if groups else []
            even = group and frames[label] <= _EVEN * frames[group[0]]
            if even and (len(group) + 1) * frames[label] <= _FRAMES:
                group.append(label)
            else:
                groups.append([label])
        return [sorted(group) for group in groups if len(group) > 1]

    def _join(self, parts: list[Mixture], engines: list[Engine]) -> Mixture:
        masses = [max(engine.total_weight, _ABSENT) for engine in engines]
        mass = parts[0].log_weight.new_tensor(masses)
        return Mixture.join(parts, (mass / mass.sum()).log(), learn_prior=True)

    def _engines(self, engine: Engine) -> list[Engine]:
        return [engine.labeled_as(label).single_class() for label in range(self.n_classes)]
