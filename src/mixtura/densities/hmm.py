"""Hidden Markov models: densities over sequences whose frames are drawn by hidden states."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from mixtura.data.batch import Batch
from mixtura.data.given import Setting
from mixtura.data.sequences import SequenceBatch
from mixtura.densities.base import Density, Statistics, inward, keep_valid, outward
from mixtura.densities.chains import LEAST, Forward, Packing, Posterior, forward, log_prob, viterbi

INNER = "emission."
#: Log of the least share of its largest density that a frame, maybe a glitch, has in any state.
_AT_LEAST = -20.0
#: Chances of staying that durations begin with.
_STAY = 0.05, 0.95


@dataclass(frozen=True, kw_only=True)
class HiddenMarkov(Density[SequenceBatch]):
    """K hidden Markov models of S states, all states of all models in one stack of emissions.

    Attributes
    ----------
    emission : K * S densities of frames, those of a model next to each other.
    log_start : (K, S).
    log_transition : (K, S, S), from row to column.
    log_duration : (K, S, D, 2) of leaving a state, and of staying, after so many frames of it, the
        last one for all that follow (hidden semi-Markov models); moves are then to other states.
        None: in every frame the same, by the moves to itself.
    left_to_right : whether states may only be left for later ones, and the first comes first.
    visits : frames per state that one imagined sequence has, where updates are damped.
    """

    emission: Density[Batch]
    log_start: Tensor
    log_transition: Tensor
    log_duration: Tensor | None = None
    left_to_right: bool = False
    visits: float = 10.0

    @classmethod
    def from_states(
        cls,
        emission: Density[Batch],
        start: Tensor,
        transition: Tensor,
        durations: int = 1,
        **options: Setting,
    ) -> HiddenMarkov:
        """One model from the emissions of its states and counts of starts (S,) and moves (S, S).

        `durations` is D, or 1 for a model without chances of its own for them.
        """
        counts = {"start": start[None], "transition": transition[None]}
        if durations > 1:
            stay = (transition.diagonal() / transition.sum(1)).clamp(*_STAY)
            lasted = torch.stack([1.0 - stay, stay], 1)[None, :, None]
            counts["duration"] = lasted.repeat(1, 1, durations, 1)
        blank = {f"log_{name}": value for name, value in counts.items()}
        found = cls(emission=emission, **blank, **options)  # type: ignore[arg-type]
        return found._with_counts(counts)

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.emission.closed_form

    @property
    def n_states(self) -> int:
        """States of each chain, S."""
        return self.log_start.shape[1]

    @property
    def n_phases(self) -> int:
        """States of the chain per state: one for each number of frames that it has lasted."""
        return 1 if self.log_duration is None else self.log_duration.shape[2]

    @property
    def location(self) -> Tensor:
        return self._by_state(self.emission.location)

    @property
    def n_parameters(self) -> int:
        states = self.n_states
        moves = states * (states - 1) // 2 if self.left_to_right else states**2 - 1
        leaving = states - (self.left_to_right or states == 1)  # the last one is never left
        moves += leaving * (self.n_phases - 1)
        return moves + states * self.emission.n_parameters

    def row_cost(self, missing: bool) -> int:
        return 8 * self.log_start.numel() * self.n_phases + self.emission.row_cost(missing)

    # -- emissions are a stack of K * S; everything else has K first ---------------------------

    def _by_state(self, value: Tensor) -> Tensor:
        return value.unflatten(0, self.log_start.shape)

    def _outward(self, inner: dict[str, Tensor]) -> dict[str, Tensor]:
        return outward(inner, self.log_start.shape, INNER)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **self._outward(self.emission.tensors())}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        emission = self.emission.with_tensors(inward(tensors, INNER))
        own = {name: value for name, value in tensors.items() if not name.startswith(INNER)}
        return replace(self, emission=emission, **own)  # type: ignore[arg-type]

    # -- the chain: after each number of frames a state is another one, with the same emissions ---

    @property
    def _moves(self) -> tuple[Tensor, Tensor]:
        """Log starts (K, S D) and moves (K, S D, S D) of the chain."""
        if self.log_duration is None:
            return self.log_start, self.log_transition
        later = (0, self.n_phases - 1)  # a state begins with its first phase
        start = pad(self.log_start[..., None], later, value=-torch.inf)
        alone = self._allowed["transition"].diagonal()[:, None]  # no other state follows
        leave, stay = self.log_duration.unbind(-1)
        leave, stay = leave.masked_fill(alone, -torch.inf), stay.masked_fill(alone, 0.0)
        left = pad(
            (leave[..., None] + self.log_transition[:, :, None])[..., None], later, value=-torch.inf
        )
        moves = torch.where(self._staying, stay[..., None, None], left)
        return start.flatten(1), moves.flatten(3).flatten(1, 2)

    @property
    def _staying(self) -> Tensor:
        """(S, D, S, D) which moves of the chain are from a phase of a state to the next one."""
        states, phases = self.n_states, self.n_phases
        same = torch.eye(states, dtype=torch.bool, device=self.log_start.device)
        phase = torch.arange(phases, device=self.log_start.device)
        after = (phase + 1).clamp_max(phases - 1)[:, None] == phase
        return same[:, None, :, None] & after[None, :, None]

    def by_state(self, log_chance: Tensor) -> Tensor:
        """(..., S) log chances of states, from those of the chain's (..., S D)."""
        if self.log_duration is None:
            return log_chance
        return log_chance.unflatten(-1, (-1, self.n_phases)).logsumexp(-1)

    # -- likelihood ----------------------------------------------------------------------------

    def _log_emission(self, batch: SequenceBatch) -> Tensor:
        """(K, F, S D); bounded, at least a share of what the likeliest state of all gives."""
        flat = self.emission.log_prob(batch.frames)
        if batch.bounded:
            flat = flat.maximum(flat.amax(1, keepdim=True) + _AT_LEAST)
        found = flat.unflatten(1, self.log_start.shape).transpose(0, 1)
        return found if self.log_duration is None else found.repeat_interleave(self.n_phases, 2)

    def _chain(self, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor, Packing]:
        return self._log_emission(batch), *self._moves, batch.packing

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
        """Sums over what the chain did; `state` is by state."""
        with torch.no_grad():
            return self._states(self._forward(batch).posterior(weight))

    def _states(self, found: Posterior) -> Posterior:
        """What the chain did, `state` by state."""
        if self.log_duration is None:
            return found
        return replace(found, state=found.state.unflatten(2, (-1, self.n_phases)).sum(3))

    def statistics(self, batch: SequenceBatch, occupancy: Tensor) -> Statistics:
        expected = self._posterior(batch, occupancy)
        return {
            "mass": occupancy.sum(0),
            **self._counts(expected),
            **self._outward(self.emission.statistics(batch.frames, expected.by_frame)),
        }

    def _counts(self, expected: Posterior) -> Statistics:
        """Of starts, moves between states, and of leaving and staying."""
        if self.log_duration is None:
            return {"start": expected.start, "transition": expected.transition}
        each = (-1, self.n_phases)
        moves = expected.transition.unflatten(2, each).unflatten(1, each)  # (K, S, D, S, D)
        left, stayed = moves[..., 0], moves.masked_fill(~self._staying, 0.0).sum((3, 4))
        return {
            "start": expected.start.unflatten(1, each)[..., 0],
            "transition": left.sum(2),
            "duration": torch.stack([left.sum(3), stayed], -1),
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
            **{name: torch.zeros_like(value) for name, value in self._own_counts().items()},
            **self._outward(inner),
        }

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        return self.emission.spread_about(reference, center.flatten(0, 1))

    def center(self, statistics: Statistics) -> Tensor:
        return self._by_state(self.emission.center(inward(statistics, INNER)))

    def own_statistics(self) -> Statistics:
        """Every state is visited equally often, so that damping holds the rare ones too."""
        inner = self.emission.own_statistics()
        return {
            "mass": torch.ones_like(self.log_start[:, 0]),
            **self._own_counts(),
            **self._outward({name: self.visits * value for name, value in inner.items()}),
        }

    def _own_counts(self) -> Statistics:
        if self.log_duration is None:
            return {
                "start": self.log_start.exp(),
                "transition": self.visits * self.log_transition.exp(),
            }
        duration = self.visits / self.n_phases * self.log_duration.exp()
        leaves = duration[..., 0].sum(2, keepdim=True)
        transition = leaves * self.log_transition.exp()
        return {"start": self.log_start.exp(), "transition": transition, "duration": duration}

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """A state that has no frames stays as it is, and so do the moves from it."""
        inner, tiny = inward(statistics, INNER), torch.finfo(self.log_start.dtype).tiny
        emission, valid = self.emission.maximize(inner)
        empty = inner["mass"].abs() <= tiny
        emission = keep_valid(self.emission, emission, ~empty)
        rounding = -1e-9 * (1.0 + statistics["transition"].abs().sum((1, 2)))
        counts, sound = {}, torch.ones_like(rounding, dtype=torch.bool)
        for name, log_chance in self._chances().items():
            sound &= (statistics[name].flatten(1) >= rounding[:, None]).all(1)
            counts[name] = statistics[name].clamp_min(0.0)
            never = counts[name].sum(-1, keepdim=True) <= tiny
            counts[name] = torch.where(never, log_chance.exp(), counts[name])
        updated = replace(self, emission=emission)._with_counts(counts)
        return updated, self._by_state(valid | empty).all(1) & sound

    def _chances(self) -> dict[str, Tensor]:
        """Log chances by name, which sum to one along the last axis."""
        found = {"start": self.log_start, "transition": self.log_transition}
        return found if self.log_duration is None else found | {"duration": self.log_duration}

    @property
    def _allowed(self) -> dict[str, Tensor]:
        """Which of them the topology has: starts (S,), moves (S, S), durations (2,)."""
        size = self.log_start.shape[-1]
        moves = torch.ones(size, size, dtype=torch.bool, device=self.log_start.device)
        found = {"start": moves.tril()[0] if self.left_to_right else moves[0]}
        moves = moves.triu() if self.left_to_right else moves
        if self.log_duration is not None:
            same = torch.eye(size, dtype=torch.bool, device=moves.device)
            others = moves & ~same
            moves = torch.where(others.any(1, keepdim=True), others, same)  # the last has none
            found["duration"] = moves.new_ones(2)
        return found | {"transition": moves}

    def _with_counts(self, counts: dict[str, Tensor]) -> Self:
        """Probabilities in proportion to counts, none below `LEAST` but the forbidden ones."""

        def normalized(counts: Tensor, allowed: Tensor) -> Tensor:
            counts = torch.where(allowed, counts.clamp_min(torch.finfo(counts.dtype).tiny), 0.0)
            shares = (counts / counts.sum(-1, keepdim=True)).clamp_min(LEAST)
            return torch.where(allowed, shares, 0.0).log()

        return self._with_chances(
            {name: normalized(counts[name], allowed) for name, allowed in self._allowed.items()}
        )

    def _with_chances(self, log_chance: dict[str, Tensor]) -> Self:
        return replace(self, **{f"log_{name}": value for name, value in log_chance.items()})  # type: ignore[arg-type]

    def free(self) -> dict[str, Tensor]:
        chances = self._chances()
        return {
            **{name: chances[name].masked_fill(~mask, 0.0) for name, mask in self._allowed.items()},
            **self._outward(self.emission.free()),
        }

    def from_free(self, free: dict[str, Tensor]) -> Self:
        def normalized(free: Tensor, allowed: Tensor) -> Tensor:
            logs = free.masked_fill(~allowed, -torch.inf).log_softmax(-1)
            return torch.where(allowed, logs.clamp_min(math.log(LEAST)), -torch.inf)

        chances = {name: normalized(free[name], mask) for name, mask in self._allowed.items()}
        emission = self.emission.from_free(inward(free, INNER))
        return replace(self, emission=emission)._with_chances(chances)

    def covariances(self) -> Tensor:
        return self._by_state(self.emission.covariances())

    # -- states, draws, holes ------------------------------------------------------------------

    def states(self, batch: SequenceBatch, share: Tensor) -> Tensor:
        """(F, K * S) chances of the states given all frames, under components' shares (n, K)."""
        return self._posterior(batch, share).by_frame

    @torch.no_grad()
    def log_predicted(self, batch: SequenceBatch, log_weight: Tensor) -> Tensor:
        """(F, K, S D) log chances of component and chain's state given the frames before each one.

        `log_weight` (K,) are those of the components before the first. All components are one
        chain here that never moves between them, and chances are normalized at every moment, so
        that a frame that is impossible says nothing of the next ones.
        """
        packing = batch.packing
        moments = self._log_emission(batch).transpose(0, 1).split(packing.alive)  # each (n, K, S)
        log_start, log_transition = self._moves
        ahead = (log_weight[:, None] + log_start).expand_as(moments[0])
        found = [ahead]
        for before, now in pairwise(moments):
            reached = (ahead + before)[: len(now)].flatten(1).log_softmax(1).view_as(now)
            ahead = (reached[..., None] + log_transition).logsumexp(2)
            found.append(ahead)
        return torch.cat(found)

    def paths(self, batch: SequenceBatch, component: Tensor) -> Tensor:
        """The likeliest states (F,) of every packed frame under its sequence's component (n,)."""
        with torch.no_grad():
            path = viterbi(*self._chain(batch))
        owner = batch.packing.owner
        found = path[component[owner], torch.arange(len(owner), device=owner.device)]
        return found // self.n_phases

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        """Packed frames of sequences of `lengths` (n,).

        They begin in states `first` (n,) of the chain, where these are given.
        """
        packing = Packing.of(options["lengths"])
        start, transition = (each.exp() for each in self._moves)
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
        drawn = component[rank] * self.n_states + torch.cat(states) // self.n_phases
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
        moves = self._moves[1][component[owner[: packing.n_first]]]
        states: list[Tensor] = []
        for logits in reversed(filtered.split(packing.alive)):
            if states:
                after = states[-1]
                count = torch.arange(len(after), device=owner.device)
                logits = logits.clone()
                logits[: len(after)] += moves[count, :, after]
            drawn = torch.multinomial(logits.softmax(1).cpu(), 1, generator=generator).flatten()
            states.append(drawn.to(owner.device))
        state = torch.cat(states[::-1]) // self.n_phases
        return self.emission.complete(
            batch.frames, component[owner] * self.n_states + state, generator
        )
