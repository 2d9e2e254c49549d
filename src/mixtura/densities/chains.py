"""Hidden Markov chains over many sequences at once: the only loop is the one over time.

Frames are packed by time: all first frames, then all second ones, ..., the longest sequence first,
so that what is alive at a moment is one slice, and nothing is padded. A few long sequences are cut
into pieces: all pieces at once are gone through from each state, and then joined.

Probabilities are scaled at every moment rather than kept as logarithms, which is several times as
fast. Where every start and every transition has a probability of `LEAST` or more, this is exact: a
path that underflows could be replaced by one that outweighs it by a hundred orders of magnitude.
Forbidden ones count with the probability `_FORBIDDEN`. The likelihood then has paths too many; how
many forbidden starts and transitions are expected given the frames bounds their share in it. Where
that is not negligible, everything is computed in logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixtura.data.packing import Cut, Packing

#: Smallest probability of a start or a transition that is not forbidden.
LEAST = 1e-100
#: What a forbidden one counts with (its square must not underflow), and how many of them may be
#: expected in all sequences.
_FORBIDDEN, _NEVER = 1e-140, 1e-12
#: Sequences of so many frames are cut where all transitions of a moment are no more than so many
#: numbers: below that, a moment costs what a step of a loop costs.
_LONG, _STEP = 100, 1_500


def _library(tensor: Tensor) -> Any:
    """On a CPU NumPy: small operations cost it a third of what they cost PyTorch."""
    return np if tensor.device.type == "cpu" else torch


def _array(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _moments(alive: list[int], *tensors: Tensor) -> list[list[Any]]:
    """Views of packed tensors (K, ..., F), one per moment."""
    edges = list(pairwise(accumulate(alive, initial=0)))
    arrays = map(_array, tensors)
    return [[array[..., low:high] for low, high in edges] for array in arrays]


@dataclass(frozen=True)
class Posterior:
    """Weighted sums of what a chain did, as far as the frames tell.

    Attributes
    ----------
    state : (K, F, S), of being in a state at a frame.
    start : (K, S), of starting in a state.
    transition : (K, S, S), of going from a state to another.
    """

    state: Tensor
    start: Tensor
    transition: Tensor

    @property
    def by_frame(self) -> Tensor:
        """(F, K * S) `state`, the states of a chain next to each other."""
        return self.state.transpose(0, 1).flatten(1).contiguous()


class Forward(Protocol):
    """A forward pass of K chains of S states, and what follows from it."""

    @property
    def log_prob(self) -> Tensor:
        """(n, K) log-likelihood of every sequence under every chain."""

    def log_filtered(self) -> Tensor:
        """(K, F, S) log p(state | frames so far), up to a constant per frame."""

    def posterior(self, weight: Tensor, goes_on: Tensor | None = None) -> Posterior:
        """The backward pass; each sequence counts with its weight (n, K), of any sign.

        `goes_on` (K, F) says after which frames moves count: not those beyond an end.
        """


def forward(
    log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
) -> Forward:
    """From log emissions (K, F, S), log starts (K, S) and log transitions (K, S, S), normalized."""
    chain = log_emission, log_start, log_transition, packing
    scaled = ScaledForward.run(*chain)
    return scaled if scaled.n_forbidden() <= _NEVER else LogForward.run(*chain)


@dataclass(frozen=True)
class ScaledForward:
    """Probabilities, scaled at every moment. Frames come last here, in the order of the loops.

    Attributes
    ----------
    emission : (K, S, F) probability of each frame by state, relative to the likeliest.
    alpha : (K, S, F) p(state | frames so far).
    scale : (K, 1, F) probability of each frame given those before, relative likewise.
    start, transition : (K, S) and (K, S, S), as they count.
    joints : of the pieces, where sequences are cut.
    """

    log_prob: Tensor
    emission: Tensor
    alpha: Tensor
    scale: Tensor
    start: Tensor
    transition: Tensor
    packing: Packing
    joints: _Joints | None

    @classmethod
    def run(
        cls, log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
    ) -> ScaledForward:
        start, transition = (
            torch.where(each.isneginf(), _FORBIDDEN, each.exp())
            for each in (log_start, log_transition)
        )
        cut = packing.cut if _worth_cutting(packing, transition) else None
        emission = _looped(log_emission, cut)
        largest = emission.amax(1, keepdim=True)
        emission.sub_(largest).exp_()
        if cut is None:
            joints = None
            alpha, scale = _filtered(emission, start[..., None], transition, packing.alive)
        else:
            joints = _Joints.of(cut, emission, start, transition)
            alpha, scale = _filtered(emission, joints.first, transition, cut.pieces.alive)
        log_prob = packing.total(_packed(scale.log() + largest, cut)[..., 0])
        return cls(log_prob, emission, alpha, scale, start, transition, packing, joints)

    def log_filtered(self) -> Tensor:
        return self._packed(self.alpha.log())

    def _packed(self, frames: Tensor) -> Tensor:
        return _packed(frames, None if self.joints is None else self.joints.cut)

    @cached_property
    def _ahead(self) -> tuple[Tensor, Tensor]:
        """Probability (K, S, F) of all frames after each one given its state, and `coming`.

        That is the probability of the next frame and all after it given the state of the next one;
        zero where there is none. Both are relative to what the frames so far let expect.
        """
        if self.joints is not None:
            beta, coming = self.joints.ends(self.transition)
            alive = self.joints.cut.pieces.alive
        else:
            beta, coming = torch.ones_like(self.alpha), torch.zeros_like(self.alpha)
            alive = self.packing.alive
        return _smoothed(self.emission / self.scale, beta, coming, self.transition, alive)

    def n_forbidden(self) -> float:
        """How many forbidden starts and transitions are expected."""
        no_start, no_move = self.start == _FORBIDDEN, self.transition == _FORBIDDEN
        if not (no_start.any() or no_move.any()):
            return 0.0
        beta, coming = self._ahead
        starts = self._packed(self.alpha * beta)[:, : self.packing.n_first].sum(1)
        moves = self.alpha @ coming.mT * self.transition
        return float(starts[no_start].sum() + moves[no_move].sum())

    def posterior(self, weight: Tensor, goes_on: Tensor | None = None) -> Posterior:
        beta, coming = self._ahead
        cut = None if self.joints is None else self.joints.cut
        left = self.alpha * weight.mT[:, None, self.packing.owner if cut is None else cut.owner]
        state = self._packed(left * beta)
        if goes_on is not None:
            left *= _looped(goes_on[..., None], cut)
        pairs = left @ coming.mT * self.transition
        return Posterior(state, state[:, : self.packing.n_first].sum(1), pairs)


def _looped(frames: Tensor, cut: Cut | None) -> Tensor:
    """Packed frames (K, F, S) as loops take them, (K, S, F): long rows are faster than short."""
    if cut is not None:
        frames = frames.transpose(0, 1).index_select(0, cut.order).transpose(0, 1)
    return frames.mT.clone(memory_format=torch.contiguous_format)


def _packed(frames: Tensor, cut: Cut | None) -> Tensor:
    """The other way round."""
    if cut is None:
        return frames.mT
    return frames.permute(2, 0, 1).contiguous().index_select(0, cut.place).transpose(0, 1)


def _filtered(
    emission: Tensor, first: Tensor, transition: Tensor, alive: list[int]
) -> tuple[Tensor, Tensor]:
    """Alpha and scale, where `first` (K, S, n or 1) says how probable the first states are."""
    alpha, n_states = torch.empty_like(emission), emission.shape[1]
    reach = emission.new_empty(len(emission), n_states + 1, emission.shape[2])
    onward, last = _array(_counted(transition.mT)), _array(_counted(first))
    xp = _library(emission)
    moments = _moments(alive, emission, alpha, reach)
    for count, seen, now, onto in zip(alive, *moments, strict=True):
        xp.multiply(last[:, :n_states, :count], seen, out=now)
        xp.divide(now, last[:, n_states:, :count], out=now)
        last = xp.matmul(onward, now, out=onto)
    scale = reach[:, n_states:]
    return alpha.div_(scale), scale


def _counted(chance: Tensor) -> Tensor:
    """One more row, which counts all paths: the sum that frames are scaled by."""
    return torch.nn.functional.pad(chance, (0, 0, 0, 1), value=1.0)


def _smoothed(
    ahead: Tensor, beta: Tensor, coming: Tensor, transition: Tensor, alive: list[int]
) -> tuple[Tensor, Tensor]:
    """Beta and `coming`, of which last frames are given, from emissions by their scale."""
    xp, backward = _library(beta), _array(transition)
    aheads, betas, comings = _moments(alive, ahead, beta, coming)
    for moment in range(len(alive) - 1, 0, -1):
        count = alive[moment]
        onto = comings[moment - 1][..., :count]
        xp.multiply(aheads[moment], betas[moment], out=onto)
        xp.matmul(backward, onto, out=betas[moment - 1][..., :count])
    return beta, coming


# -- long sequences, in pieces -----------------------------------------------------------------


def _worth_cutting(packing: Packing, transition: Tensor) -> bool:
    longest = len(packing.alive)
    return longest >= _LONG and transition.numel() * len(packing.owner) <= _STEP * longest


@dataclass(frozen=True)
class _Joints:
    """P pieces of sequences, by their numbers: what the others say of each.

    Attributes
    ----------
    begin : (K, S, P) p(first state | frames before).
    step : (K, S, S, P) probability of a piece and the state after it (third) given its first state
        (second), up to a factor per piece.
    """

    cut: Cut
    begin: Tensor
    step: Tensor

    @classmethod
    def of(cls, cut: Cut, emission: Tensor, start: Tensor, transition: Tensor) -> _Joints:
        by_length = _steps(emission, transition, cut.pieces.alive)
        step = torch.empty_like(by_length)
        step[..., cut.number] = by_length
        begin = torch.empty_like(step[:, 0])
        alive = cut.numbers.alive
        begins, steps = _moments(alive, begin, step)
        begins[0][...] = _array(start[..., None])
        for place, count in enumerate(alive[1:]):
            onto = (begins[place][:, :, None, :count] * steps[place][..., :count]).sum(1)
            begins[place + 1][...] = onto / onto.sum(1)[:, None]
        return cls(cut, begin, step)

    @property
    def first(self) -> Tensor:
        """(K, S, P) `begin`, the longest pieces first."""
        return self.begin[..., self.cut.number]

    def ends(self, transition: Tensor) -> tuple[Tensor, Tensor]:
        """Beta and `coming` (K, S, F) of the last frames of pieces; one and zero of the others."""
        future, alive = torch.ones_like(self.begin), self.cut.numbers.alive
        begins, steps, futures = _moments(alive, self.begin, self.step, future)
        for place in range(len(alive) - 1, 0, -1):
            onto = (steps[place] * futures[place][:, None]).sum(2)
            onto /= (begins[place] * onto).sum(1)[:, None]
            futures[place - 1][..., : alive[place]] = onto
        coming = future.new_zeros(*future.shape[:2], len(self.cut.owner))
        beta, last = torch.ones_like(coming), self.cut.pieces.last()
        future = future[..., self.cut.numbers.place]
        beta[..., last] = transition @ future
        coming[..., last] = future
        coming[..., last[self.cut.final]] = 0.0
        return beta, coming


def _steps(emission: Tensor, transition: Tensor, alive: list[int]) -> Tensor:
    """(K, S, S, P) `step` of pieces, the longest first: all states go through a piece at once."""
    n_chains, n_states, _ = emission.shape
    last = torch.eye(n_states).to(emission)[..., None].repeat(n_chains, 1, 1, alive[0])
    xp, onward = _library(emission), _array(transition.mT[:, None].contiguous())
    lasts, nows = _array(last), _array(torch.empty_like(last))
    for count, seen in zip(alive, *_moments(alive, emission), strict=True):
        onto, now = lasts[..., :count], nows[..., :count]
        xp.multiply(onto, (seen / onto.sum((1, 2))[:, None])[:, None], out=now)
        xp.matmul(onward, now, out=onto)
    return last


@dataclass(frozen=True)
class LogForward:
    """Logarithms throughout: for chains in which some transitions are forbidden."""

    log_prob: Tensor
    log_alpha: Tensor
    log_emission: Tensor
    log_transition: Tensor
    packing: Packing

    @classmethod
    def run(
        cls, log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
    ) -> LogForward:
        log_alpha = torch.empty_like(log_emission)
        seen, alphas = (part.split(packing.alive, 1) for part in (log_emission, log_alpha))
        torch.add(log_start[:, None], seen[0], out=alphas[0])
        for moment, count in enumerate(packing.alive[1:], 1):
            paths = alphas[moment - 1][:, :count, :, None] + log_transition[:, None]
            torch.add(paths.logsumexp(2), seen[moment], out=alphas[moment])
        log_prob = log_alpha[:, packing.last()].logsumexp(2).mT
        return cls(log_prob, log_alpha, log_emission, log_transition, packing)

    def log_filtered(self) -> Tensor:
        return self.log_alpha

    def posterior(self, weight: Tensor, goes_on: Tensor | None = None) -> Posterior:
        packing, since = self.packing, self.packing.n_first
        log_beta = torch.zeros_like(self.log_alpha)
        betas, seen = (part.split(packing.alive, 1) for part in (log_beta, self.log_emission))
        for moment in range(len(betas) - 1, 0, -1):
            coming = (seen[moment] + betas[moment])[:, :, None] + self.log_transition[:, None]
            betas[moment - 1][:, : packing.alive[moment]] = coming.logsumexp(3)
        share = weight.mT[:, packing.owner, None]
        whole = self.log_prob.mT[:, packing.owner, None]
        state = (self.log_alpha + log_beta - whole).exp_().mul_(share)
        before, moved = packing.previous(), share[:, since:]
        if goes_on is not None:
            moved = moved * goes_on[:, before, None]
        came = (self.log_alpha[:, before] - whole[:, since:]).unbind(2)
        onto = (self.log_emission + log_beta)[:, since:]
        pairs = [
            ((source[..., None] + onto + moves[:, None]).exp_() * moved).sum(1)
            for source, moves in zip(came, self.log_transition.unbind(1), strict=True)
        ]
        return Posterior(state, state[:, :since].sum(1), torch.stack(pairs, 1))


class _LogProb(torch.autograd.Function):
    """By Fisher's identity the gradient of a log-likelihood is the expected one of its chain."""

    @staticmethod
    def forward(
        ctx: Any, log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
    ) -> Tensor:
        ctx.done = forward(log_emission, log_start, log_transition, packing)
        return ctx.done.log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        expected = ctx.done.posterior(grad)
        return expected.state, expected.start, expected.transition, None


def log_prob(
    log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
) -> Tensor:
    """(n, K) log-likelihood of every sequence under every chain, with its gradient."""
    return _LogProb.apply(log_emission, log_start, log_transition, packing)


def viterbi(
    log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
) -> Tensor:
    """(K, F) the likeliest path of every chain through every sequence, at packed frames."""
    best = torch.empty_like(log_emission)
    came = torch.zeros(log_emission.shape, dtype=torch.long, device=log_emission.device)
    parts = (tensor.split(packing.alive, 1) for tensor in (log_emission, best, came))
    moments = list(zip(*parts, strict=True))
    torch.add(log_start[:, None], moments[0][0], out=moments[0][1])
    for (_, before, _), (seen, now, source) in pairwise(moments):
        reach = before[:, : now.shape[1], :, None] + log_transition[:, None]
        value, place = reach.max(2)
        torch.add(value, seen, out=now)
        source.copy_(place)
    path = best.argmax(2)
    states = path.split(packing.alive, 1)
    for moment in range(len(moments) - 1, 0, -1):
        source, state = moments[moment][2], states[moment]
        states[moment - 1][:, : state.shape[1]] = source.gather(2, state[..., None])[..., 0]
    return path
