"""Hidden Markov chains over many sequences at once: the only loop is the one over time.

Frames are packed by time: all first frames, then all second ones, ..., the longest sequence first,
so that what is alive at a moment is one slice, and nothing is padded.

Where every start and every transition has a probability of `LEAST` or more, probabilities are
scaled at every moment rather than kept as logarithms, which is several times as fast. There it is
exact: a path that underflows could be replaced by one that outweighs it by a hundred orders of
magnitude. Chains with forbidden transitions are computed in logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mixtura.data.packing import Packing

#: Smallest probability of a start or a transition that is not forbidden.
LEAST = 1e-100


def _library(tensor: Tensor) -> Any:
    """On a CPU NumPy: small operations cost it a third of what they cost PyTorch."""
    return np if tensor.device.type == "cpu" else torch


def _array(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _moments(alive: list[int], *tensors: Tensor) -> list[list[Any]]:
    """Views of packed tensors (K, F, ...), one a moment."""
    edges = list(pairwise(accumulate(alive, initial=0)))
    arrays = map(_array, tensors)
    return [[array[:, low:high] for low, high in edges] for array in arrays]


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


class Forward(Protocol):
    """A forward pass of K chains of S states, and what follows from it."""

    @property
    def log_prob(self) -> Tensor:
        """(n, K) log-likelihood of every sequence under every chain."""

    def log_filtered(self) -> Tensor:
        """(K, F, S) log p(state | frames so far), up to a constant a frame."""

    def posterior(self, weight: Tensor) -> Posterior:
        """The backward pass; each sequence counts with its weight (n, K), of any sign."""


def forward(
    log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
) -> Forward:
    """From log emissions (K, F, S), log starts (K, S) and log transitions (K, S, S)."""
    chain = log_emission, log_start, log_transition, packing
    least = min(float(log_start.min()), float(log_transition.min()))
    return LogForward.run(*chain) if math.isinf(least) else ScaledForward.run(*chain)


@dataclass(frozen=True)
class ScaledForward:
    """Probabilities, scaled at every moment.

    Attributes
    ----------
    emission : (K, F, S) probability of each frame by state, relative to the likeliest.
    alpha : (K, F, S) p(state | frames so far).
    scale : (K, F, 1) probability of each frame given those before, relative likewise.
    """

    log_prob: Tensor
    emission: Tensor
    alpha: Tensor
    scale: Tensor
    transition: Tensor
    packing: Packing

    @classmethod
    def run(
        cls, log_emission: Tensor, log_start: Tensor, log_transition: Tensor, packing: Packing
    ) -> ScaledForward:
        largest = log_emission.amax(2, keepdim=True)
        emission = (log_emission - largest).exp_()
        alpha, n_states = torch.empty_like(emission), emission.shape[2]
        transition = log_transition.exp()
        # One more column counts all paths: the sum that frames are scaled by.
        onward = _array(torch.nn.functional.pad(transition, (0, 1), value=1.0))
        reach = emission.new_empty(*emission.shape[:2], n_states + 1)
        last = _array(torch.nn.functional.pad(log_start.exp(), (0, 1), value=1.0)[:, None])
        moments = _moments(packing.alive, emission, alpha, reach)
        xp = _library(emission)
        for count, seen, now, onto in zip(packing.alive, *moments, strict=True):
            xp.multiply(last[:, :count, :n_states], seen, out=now)
            xp.multiply(now, 1.0 / last[:, :count, n_states:], out=now)
            last = xp.matmul(now, onward, out=onto)
        scale = reach[:, :, n_states:]
        log_prob = packing.total((scale.log() + largest)[..., 0])
        return cls(log_prob, emission, alpha.div_(scale), scale, transition, packing)

    def log_filtered(self) -> Tensor:
        return self.alpha.log()

    def posterior(self, weight: Tensor) -> Posterior:
        packing, since = self.packing, self.packing.n_first
        beta = torch.ones_like(self.alpha)
        ahead = self.emission / self.scale
        xp, backward = _library(beta), _array(self.transition.mT.contiguous())
        betas, aheads = _moments(packing.alive, beta, ahead)
        for moment in range(len(betas) - 1, 0, -1):
            coming = xp.multiply(aheads[moment], betas[moment], out=aheads[moment])
            before = betas[moment - 1][:, : packing.alive[moment]]
            xp.matmul(coming, backward, out=before)
        share = weight.mT[:, packing.owner, None]
        state = (self.alpha * beta).mul_(share)
        left = self.alpha[:, packing.previous()] * share[:, since:]
        pairs = left.mT @ ahead[:, since:]
        return Posterior(state, state[:, :since].sum(1), pairs * self.transition)


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

    def posterior(self, weight: Tensor) -> Posterior:
        packing, since = self.packing, self.packing.n_first
        log_beta = torch.zeros_like(self.log_alpha)
        betas, seen = (part.split(packing.alive, 1) for part in (log_beta, self.log_emission))
        for moment in range(len(betas) - 1, 0, -1):
            coming = (seen[moment] + betas[moment])[:, :, None] + self.log_transition[:, None]
            betas[moment - 1][:, : packing.alive[moment]] = coming.logsumexp(3)
        share = weight.mT[:, packing.owner, None]
        whole = self.log_prob.mT[:, packing.owner, None]
        state = (self.log_alpha + log_beta - whole).exp_().mul_(share)
        came = (self.log_alpha[:, packing.previous()] - whole[:, since:]).unbind(2)
        onto = (self.log_emission + log_beta)[:, since:]
        pairs = [
            ((source[..., None] + onto + moves[:, None]).exp_() * share[:, since:]).sum(1)
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
