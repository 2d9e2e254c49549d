"""Hidden Markov models: densities over sequences whose frames are drawn by hidden states."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from mixtura.data import Batch
from mixtura.data.given import Setting
from mixtura.data.sequences import SequenceBatch
from mixtura.densities.base import Density, Statistics, keep_valid
from mixtura.densities.chains import LEAST, Forward, Packing, Posterior, forward, log_prob, viterbi

_INNER = "emission."


@dataclass(frozen=True, kw_only=True)
class HiddenMarkov(Density[SequenceBatch]):
    """K hidden Markov models of S states, all states of all models in one stack of emissions.

    Attributes
    ----------
    emission : K * S densities of frames, those of a model next to each other.
    log_start : (K, S).
    log_transition : (K, S, S), from row to column.
    left_to_right : whether states may only be left for later ones, and the first comes first.
    visits : frames per state that one imagined sequence has, where updates are damped.
    """

    emission: Density[Batch]
    log_start: Tensor
    log_transition: Tensor
    left_to_right: bool = False
    visits: float = 10.0

    @classmethod
    def from_states(
        cls, emission: Density[Batch], start: Tensor, transition: Tensor, **options: Setting
    ) -> HiddenMarkov:
        """One model from the emissions of its states and counts of starts (S,) and moves (S, S)."""
        blank = cls(
            emission=emission, log_start=start[None], log_transition=transition[None], **options
        )
        return blank._with_counts(start[None], transition[None])

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.emission.closed_form

    @property
    def n_states(self) -> int:
        return self.log_start.shape[1]

    @property
    def location(self) -> Tensor:
        return self._by_state(self.emission.location)

    @property
    def n_parameters(self) -> int:
        states = self.n_states
        moves = states * (states - 1) // 2 if self.left_to_right else states**2 - 1
        return moves + states * self.emission.n_parameters

    def row_cost(self, missing: bool) -> int:
        return 8 * self.log_start.numel() + self.emission.row_cost(missing)

    # -- emissions are a stack of K * S; everything else has K first ---------------------------

    def _by_state(self, value: Tensor) -> Tensor:
        return value.unflatten(0, self.log_start.shape)

    def _outward(self, inner: dict[str, Tensor]) -> dict[str, Tensor]:
        return {_INNER + name: self._by_state(value) for name, value in inner.items()}

    @staticmethod
    def _inward(named: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: value for name, value in named.items() if name.startswith(_INNER)}
        return {name.removeprefix(_INNER): value.flatten(0, 1) for name, value in own.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **self._outward(self.emission.tensors())}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        emission = self.emission.with_tensors(self._inward(tensors))
        own = {name: value for name, value in tensors.items() if not name.startswith(_INNER)}
        return replace(self, emission=emission, **own)  # type: ignore[arg-type]

    # -- likelihood ----------------------------------------------------------------------------

    def _log_emission(self, batch: SequenceBatch) -> Tensor:
        """(K, F, S)."""
        flat = self.emission.log_prob(batch.frames)
        return flat.unflatten(1, self.log_start.shape).transpose(0, 1)

    def _chain(self, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor, Packing]:
        return self._log_emission(batch), self.log_start, self.log_transition, batch.packing

    def log_prob(self, batch: SequenceBatch) -> Tensor:
        if torch.is_grad_enabled():
            return log_prob(*self._chain(batch))
        return self._forward(batch).log_prob

    def _forward(self, batch: SequenceBatch) -> Forward:
        """A batch keeps the latest forward pass over it: statistics need it too."""
        kept = batch.kept.get("forward")
        if kept is None or kept[0] is not self:
            kept = batch.kept["forward"] = self, forward(*self._chain(batch))
        return kept[1]

    def _posterior(self, batch: SequenceBatch, weight: Tensor) -> Posterior:
        with torch.no_grad():
            return self._forward(batch).posterior(weight)

    def statistics(self, batch: SequenceBatch, occupancy: Tensor) -> Statistics:
        expected = self._posterior(batch, occupancy)
        return {
            "mass": occupancy.sum(0),
            "start": expected.start,
            "transition": expected.transition,
            **self._outward(self.emission.statistics(batch.frames, expected.by_frame)),
        }

    # -- priors and updates --------------------------------------------------------------------

    @property
    def spread(self) -> Tensor:
        return self._by_state(self.emission.spread)

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return self._by_state(self.emission.spread_log_prob(reference)).sum(1)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        """One row is one frame of every state; starts and moves are not told."""
        inner = self.emission.spread_statistics(reference, center.flatten(0, 1))
        return {
            "mass": torch.ones_like(self.log_start[:, 0]),
            "start": torch.zeros_like(self.log_start),
            "transition": torch.zeros_like(self.log_transition),
            **self._outward(inner),
        }

    def center(self, statistics: Statistics) -> Tensor:
        return self._by_state(self.emission.center(self._inward(statistics)))

    def own_statistics(self) -> Statistics:
        """Every state is visited equally often, so that damping holds the rare ones too."""
        inner = self.emission.own_statistics()
        return {
            "mass": torch.ones_like(self.log_start[:, 0]),
            "start": self.log_start.exp(),
            "transition": self.visits * self.log_transition.exp(),
            **self._outward({name: self.visits * value for name, value in inner.items()}),
        }

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """A state that has no frames stays as it is, and so do the moves from it."""
        inner, tiny = self._inward(statistics), torch.finfo(self.log_start.dtype).tiny
        emission, valid = self.emission.maximize(inner)
        empty = inner["mass"].abs() <= tiny
        emission = keep_valid(self.emission, emission, ~empty)
        start, transition = statistics["start"], statistics["transition"]
        rounding = -1e-9 * (1.0 + statistics["transition"].abs().sum((1, 2)))
        sound = (start >= rounding[:, None]).all(1)
        sound &= (transition >= rounding[:, None, None]).all((1, 2))
        left = transition.clamp_min(0.0)
        stays = left.sum(2, keepdim=True) <= tiny
        left = torch.where(stays, self.log_transition.exp(), left)
        updated = replace(self, emission=emission)._with_counts(start.clamp_min(0.0), left)
        return updated, self._by_state(valid | empty).all(1) & sound

    @property
    def _allowed(self) -> tuple[Tensor, Tensor]:
        """Starts (S,) and moves (S, S) that the topology has."""
        all_moves = torch.ones_like(self.log_transition[0], dtype=torch.bool)
        if not self.left_to_right:
            return all_moves[0], all_moves
        return all_moves.tril()[0], all_moves.triu()

    def _with_counts(self, start: Tensor, transition: Tensor) -> Self:
        """Probabilities in proportion to counts, none below `LEAST` but the forbidden ones."""
        first, moves = self._allowed

        def normalized(counts: Tensor, allowed: Tensor) -> Tensor:
            counts = torch.where(allowed, counts.clamp_min(torch.finfo(counts.dtype).tiny), 0.0)
            shares = (counts / counts.sum(-1, keepdim=True)).clamp_min(LEAST)
            return torch.where(allowed, shares, 0.0).log()

        return replace(
            self,
            log_start=normalized(start, first),
            log_transition=normalized(transition, moves),
        )

    def free(self) -> dict[str, Tensor]:
        first, moves = self._allowed
        return {
            "start": self.log_start.masked_fill(~first, 0.0),
            "transition": self.log_transition.masked_fill(~moves, 0.0),
            **self._outward(self.emission.free()),
        }

    def from_free(self, free: dict[str, Tensor]) -> Self:
        def normalized(free: Tensor, allowed: Tensor) -> Tensor:
            logs = free.masked_fill(~allowed, -torch.inf).log_softmax(-1)
            return torch.where(allowed, logs.clamp_min(math.log(LEAST)), -torch.inf)

        first, moves = self._allowed
        return replace(
            self,
            emission=self.emission.from_free(self._inward(free)),
            log_start=normalized(free["start"], first),
            log_transition=normalized(free["transition"], moves),
        )

    def covariances(self) -> Tensor:
        return self._by_state(self.emission.covariances())

    # -- states, draws, holes ------------------------------------------------------------------

    def states(self, batch: SequenceBatch, share: Tensor) -> Tensor:
        """(F, K * S) chances of the states given all frames, under components' shares (n, K)."""
        return self._posterior(batch, share).by_frame

    @torch.no_grad()
    def log_predicted(self, batch: SequenceBatch, log_weight: Tensor) -> Tensor:
        """(F, K * S) log chances of component and state given the frames before each one.

        `log_weight` (K,) are those of the components before the first. All components are one
        chain here that never moves between them, and chances are normalized at every moment, so
        that a frame that is impossible says nothing of the next ones.
        """
        packing = batch.packing
        moments = self._log_emission(batch).transpose(0, 1).split(packing.alive)  # each (n, K, S)
        ahead = (log_weight[:, None] + self.log_start).expand_as(moments[0])
        found = [ahead]
        for before, now in pairwise(moments):
            reached = (ahead + before)[: len(now)].flatten(1).log_softmax(1).view_as(now)
            ahead = (reached[..., None] + self.log_transition).logsumexp(2)
            found.append(ahead)
        return torch.cat(found).flatten(1)

    def paths(self, batch: SequenceBatch, component: Tensor) -> Tensor:
        """The likeliest states (F,) of every packed frame under its sequence's component (n,)."""
        with torch.no_grad():
            path = viterbi(*self._chain(batch))
        owner = batch.packing.owner
        return path[component[owner], torch.arange(len(owner), device=owner.device)]

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        """Packed frames of sequences of `lengths` (n,), begun in states `first` (n,), if given."""
        packing = Packing.of(options["lengths"])
        start, transition = self.log_start.exp(), self.log_transition.exp()
        longest_first = packing.owner[: packing.n_first]
        component = component[longest_first]
        if "first" in options:
            state = options["first"][longest_first]
        else:
            state = torch.multinomial(start[component], 1, generator=generator).flatten()
        states = [state]
        for count in packing.alive[1:]:
            chance = transition[component[:count], state[:count]]
            state = torch.multinomial(chance, 1, generator=generator).flatten()
            states.append(state)
        rank = torch.cat([torch.arange(count) for count in packing.alive])
        drawn = component[rank] * self.n_states + torch.cat(states)
        return self.emission.sample(drawn, generator)

    def fill(self, batch: SequenceBatch, share: Tensor) -> Tensor:
        return self.emission.fill(batch.frames, self._posterior(batch, share).by_frame)

    def complete(
        self, batch: SequenceBatch, component: Tensor, generator: torch.Generator
    ) -> Tensor:
        """States are drawn given all frames, from the last to the first; then what they lack."""
        packing = batch.packing
        owner, places = packing.owner, torch.arange(len(packing.owner), device=component.device)
        with torch.no_grad():
            filtered = self._forward(batch).log_filtered()[component[owner], places]
        moves = self.log_transition[component[owner[: packing.n_first]]]
        states: list[Tensor] = []
        for logits in reversed(filtered.split(packing.alive)):
            if states:
                after = states[-1]
                count = torch.arange(len(after), device=owner.device)
                logits = logits.clone()
                logits[: len(after)] += moves[count, :, after]
            drawn = torch.multinomial(logits.softmax(1).cpu(), 1, generator=generator).flatten()
            states.append(drawn.to(owner.device))
        state = torch.cat(states[::-1])
        return self.emission.complete(
            batch.frames, component[owner] * self.n_states + state, generator
        )
