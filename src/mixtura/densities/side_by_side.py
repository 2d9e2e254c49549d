"""Hidden Markov models of classes side by side: each sequence is asked of its own model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.packing import Packing
from mixtura.data.sequences import SequenceBatch
from mixtura.densities.base import Density, Statistics, inside, nested
from mixtura.densities.chains import Forward, forward
from mixtura.densities.hmm import INNER, HiddenMarkov


@dataclass(frozen=True, kw_only=True)
class SideBySide(HiddenMarkov):
    """K hidden Markov models that one loop over time serves, though none shares its sequences.

    The longest sequences of all models go through it together, then the second longest, ..., as
    though all were as long as the longest of them: what follows the end of one tells nothing.

    Attributes
    ----------
    kind : (K,) label of the sequences of each model. What others would say of them is not asked:
        their log densities are zero, and sequences are to have no weight there.
    tied : whether the states of all models emit alike: they are updated by the frames of all.
    """

    kind: Tensor
    tied: bool = False

    @classmethod
    def of(cls, plain: HiddenMarkov, kind: Tensor, tied: bool = False) -> SideBySide:
        """The models of sequences with these labels."""
        return cls(**_fields(plain), kind=kind, tied=tied)  # type: ignore[arg-type]

    def plain(self) -> HiddenMarkov:
        """The models, whatever sequences they are of."""
        own = _fields(self)
        del own["kind"], own["tied"]
        return HiddenMarkov(**own)  # type: ignore[arg-type]

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        if self.tied:
            inner = nested(inside(statistics, INNER), INNER)
            whole = {name: sums.sum(0, True).expand_as(sums) for name, sums in inner.items()}
            statistics = statistics | whole
        return super().maximize(statistics)

    def row_cost(self, missing: bool) -> int:
        """That of one model, and of as many frames that tell nothing."""
        return 2 * max(1, super().row_cost(missing) // len(self.kind))

    def log_prob(self, batch: SequenceBatch) -> Tensor:
        return self.expectation(batch)[0]

    def statistics(self, batch: SequenceBatch, occupancy: Tensor) -> Statistics:
        return self.expectation(batch)[1](occupancy)

    @torch.no_grad()
    def expectation(self, batch: SequenceBatch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        grid, emissions = self._grid(batch), self._emissions()
        log_emission = batch.x.new_zeros(len(self.kind), len(grid.packing.owner), self.n_states)
        for own, emission, place, frames in zip(log_emission, emissions, *grid.parts, strict=True):
            own[place] = emission.log_prob(frames)
        log_emission = log_emission.repeat_interleave(self.n_phases, 2)
        done = forward(log_emission, *self._moves, grid.packing)
        found = batch.x.new_zeros(len(batch), len(self.kind))
        found[grid.sequence, grid.model] = done.log_prob[grid.slot, grid.model]
        return found, partial(self._sums, grid, emissions, done)

    def _sums(
        self, grid: _Grid, emissions: list[Density[Batch]], done: Forward, occupancy: Tensor
    ) -> Statistics:
        weight = torch.zeros_like(done.log_prob)
        weight[grid.slot, grid.model] = occupancy[grid.sequence, grid.model]
        expected = self._states(done.posterior(weight, grid.goes_on))
        each = zip(emissions, expected.state, *grid.parts, strict=True)
        sums = [
            emission.statistics(frames, state[place]) for emission, state, place, frames in each
        ]
        inner = {name: torch.cat([part[name] for part in sums]) for name in sums[0]}
        return {"mass": occupancy.sum(0), **self._counts(expected), **self._outward(inner)}

    def _emissions(self) -> list[Density[Batch]]:
        """Those of the states of each model."""
        named = {
            name: value.split(self.n_states) for name, value in self.emission.tensors().items()
        }
        return [
            self.emission.with_tensors(dict(zip(named, each, strict=True)))
            for each in zip(*named.values(), strict=True)
        ]

    def _grid(self, batch: SequenceBatch) -> _Grid:
        """It is made once, as long as the models are those of the same sequences."""
        labels = tuple(self.kind.tolist())
        if labels not in batch.lasting:
            batch.lasting.clear()
            batch.lasting[labels] = _Grid.of(batch, self.kind)
        return batch.lasting[labels]


def _fields(density: Density) -> dict[str, object]:
    return {field.name: getattr(density, field.name) for field in fields(density)}


@dataclass(frozen=True)
class _Grid:
    """Where the sequences of K models are: slot after slot, each as long as its longest sequence.

    Attributes
    ----------
    packing : of the slots.
    sequence, model, slot : (n,) sequences, the model of each, and its slot.
    goes_on : (K, F) whether a sequence goes on after each packed frame of its slot.
    parts : places of the frames of each model among those of slots; and these frames.
    """

    packing: Packing
    sequence: Tensor
    model: Tensor
    slot: Tensor
    goes_on: Tensor
    parts: tuple[tuple[Tensor, ...], tuple[Batch, ...]]

    @classmethod
    def of(cls, batch: SequenceBatch, kind: Tensor) -> _Grid:
        given, count = batch.packing, len(kind)
        model = (batch.y[:, None] == kind).to(torch.uint8).argmax(1)
        sequence = given.lengths.argsort(descending=True, stable=True)
        sequence = sequence[model[sequence].argsort(stable=True)]  # model by model, longest first
        lengths, model = given.lengths[sequence], model[sequence]
        each = torch.bincount(model, minlength=count)
        slot = torch.arange(len(model), device=model.device)
        slot -= (each.cumsum(0) - each)[model]
        longest = lengths.new_zeros(int(each.max())).scatter_reduce_(0, slot, lengths, "amax")
        packing = Packing.of(longest)
        own = lengths.new_zeros(count, len(longest))
        own[model, slot] = lengths
        goes_on = packing.moments() + 1 < own[:, packing.owner]
        by_sequence = torch.empty(2, len(model), dtype=torch.long, device=model.device)
        by_sequence[:, sequence] = torch.stack([model, slot])
        owner_model, owner_slot = by_sequence[:, given.owner]
        began = longest.cumsum(0) - longest
        place = packing.place[began[owner_slot] + given.moments()]
        order = owner_model.argsort(stable=True)
        sizes = torch.bincount(owner_model, minlength=count).tolist()
        # A model without sequences in this chunk looks at a frame that has no weight.
        rows = [some if len(some) else order[:1] for some in order.split(sizes)]
        parts = tuple(place[some] for some in rows), tuple(map(batch.frames.take, rows))
        return cls(packing, sequence, model, slot, goes_on.to(batch.x), parts)
