"""Mixtures of hidden Markov models of sequences without labels, by EM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mixtura.data.sequences import SequenceBatch
from mixtura.densities import Density, HiddenMarkov
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, FitResult, SpreadPrior
from mixtura.training.start import Chains, cluster

#: States of the model of all sequences that clusters of them go by, at most, and its iterations.
_MOST_STATES, _ITERATIONS = 12, 10
#: Clusterings that EM begins with, of which the best after so many iterations goes on.
_STARTS, _GLIMPSE = 5, 5


@dataclass(frozen=True)
class ChainMixturePlan:
    """How a mixture of hidden Markov models is fitted: nothing is left open.

    Attributes
    ----------
    em : `tol` is per frame.
    prior_rows : imagined frames per state, with the spread that states show on average.
    """

    n_components: int
    n_states: int
    chains: Chains
    em: EM
    prior_rows: float

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {"n_components": self.n_components, "n_states": self.n_states}

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> list[Mixture]:
        """The mixture of these sequences."""
        return [self.train(engine, generator, progress).model]

    def train(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> FitResult[Mixture]:
        """The best of several starts."""
        starts = (self._start(engine, generator, progress) for _ in range(self.em.n_init))
        attempts = [self.improved(start, engine, progress) for start in starts]
        return min(attempts, key=lambda each: each.objective)

    def improved(self, start: Mixture, engine: Engine, progress: Progress) -> FitResult[Mixture]:
        """What EM makes of a mixture."""
        prior, tol = None, self.em.tol * float(engine.sizes.mean())
        if self.prior_rows:
            prior = SpreadPrior.pooled([start.density], torch.ones(1), self.prior_rows)
        run = replace(self.em, tol=tol).run
        return run(start.to(engine.device), Likelihood(), engine, progress, prior=prior)

    def _start(self, engine: Engine, generator: torch.Generator, progress: Progress) -> Mixture:
        """One model of each cluster of sequences."""
        own = partial(self.chains.start, generator=generator, n_states=self.n_states)
        if self.n_components == 1:
            return own(engine)
        n_states = max(self.n_states, min(_MOST_STATES, self.n_states * self.n_components))
        whole = self.chains.start(engine, generator, n_states)
        brief = replace(self, em=self.em.limited(_ITERATIONS))
        whole = brief.improved(whole, engine, progress.part(1.0)).model
        features = engine.concat(partial(_visits, whole), whole).to(engine.weight)
        glimpse, tried = replace(self, em=self.em.limited(_GLIMPSE)), []
        for _ in range(_STARTS):
            labels = cluster(features, engine.weight[:, None], self.n_components, generator)[:, 0]
            start = _joined([engine.only(labels == k) for k in range(self.n_components)], own)
            tried.append(glimpse.improved(start, engine, progress.part(1.0)))
        return min(tried, key=lambda each: each.objective).model


def _joined(groups: list[Engine], begin: Callable[[Engine], Mixture]) -> Mixture:
    """One component per group of sequences, weighted by their number; none for empty groups."""
    some = [group for group in groups if len(group)]
    found = Mixture.single(Density.stack([begin(group).density for group in some]))
    mass = found.log_weight.new_tensor([group.total_weight for group in some])
    return found.with_masses(found.density, mass)


def _visits(mixture: Mixture, batch: SequenceBatch) -> Tensor:
    """(n, S + S * S) roots of how often each sequence is in a state, and moves between two.

    Distances between roots of chances are those of Hellinger.
    """
    assert isinstance(mixture.density, HiddenMarkov)
    packing, ones = batch.packing, batch.x.new_ones(len(batch), 1)
    state = mixture.density.states(batch, ones)  # (F, S)
    moves = state[packing.previous()][:, :, None] * state[packing.n_first :][:, None]
    moves = torch.nn.functional.pad(moves.flatten(1), (0, 0, packing.n_first, 0))
    visits = packing.total(torch.cat([state, moves], 1).mT) / packing.lengths[:, None]
    return visits.clamp_min(0.0).sqrt()
