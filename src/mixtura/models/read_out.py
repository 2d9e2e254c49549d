"""Read-outs: class scores that are log-linear in what components make of a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.densities import Density
from mixtura.densities.base import inside, nested
from mixtura.models.mixture import Mixture, Weighted
from mixtura.models.stack import MixtureStack


def _row_by_row(log_joint: Tensor, like: Tensor) -> Tensor:
    """Values (n, K), or those of P networks (n * P, K), as (n, ...) beside parameters (..., K)."""
    return log_joint.reshape(-1, *like.shape)


def _posterior(mixture: Weighted, log_joint: Tensor) -> Tensor:
    """p(component | x, class): each class's sum to one."""
    return mixture.layout.softmax(log_joint)


def _log_density(mixture: Weighted, log_joint: Tensor) -> Tensor:
    """log of weight times density, without the class prior."""
    prior = mixture.layout.by_component(mixture.log_prior).to(log_joint.dtype)
    return (_row_by_row(log_joint, prior) - prior).view_as(log_joint)


def _density(mixture: Weighted, log_joint: Tensor) -> Tensor:
    """Density as a share of the component's highest, which is a radial basis function."""
    peak = mixture.density.log_peak().view_as(mixture.log_weight) + mixture.log_weight
    log_density = _row_by_row(_log_density(mixture, log_joint), peak)
    return (log_density - peak.to(log_joint.dtype)).exp().view_as(log_joint)


def _simplex(mixture: Weighted, log_joint: Tensor) -> Tensor:
    """The point of each class's simplex nearest to the log-joints: posteriors with true zeros."""
    parts = log_joint.split(list(mixture.layout.counts), 1)
    return torch.cat([_nearest_on_simplex(part) for part in parts], 1)


def _nearest_on_simplex(values: Tensor) -> Tensor:
    """Rows (n, k) shifted down, and cut off at zero, until they sum to one."""
    values = values - values.amax(1, keepdim=True)
    ranked = values.sort(1, descending=True).values
    place = torch.arange(1, values.shape[1] + 1, device=values.device)
    total = ranked.cumsum(1) - 1.0
    support = (ranked * place > total).sum(1, keepdim=True)
    threshold = total.gather(1, support - 1) / support
    return (values - threshold).clamp_min(0.0)


#: What components make of a row, from their log-joints (n, K).
EMBEDDINGS: dict[str, Callable[[Weighted, Tensor], Tensor]] = {
    "posterior": _posterior,
    "density": _density,
    "log_density": _log_density,
    "simplex": _simplex,
}
#: Derivatives by log-joints (n, K), and by parameters.
Slopes = tuple[Tensor, dict[str, Tensor]]
#: Draws of what is missing in a row that its answer is the mean of.
N_DRAWS = 128
_INNER = "mixture."


@dataclass(frozen=True, kw_only=True)
class Completed(Batch):
    """Rows beside draws of what is missing in them, which stay while a network is trained.

    Attributes
    ----------
    drawn : the rows with holes, completed; all of them for each draw. One batch per network.
    log_chance : (draws * rows with holes * networks,) log p(x) of these under what drew them.
    """

    drawn: tuple[Batch, ...]
    log_chance: Tensor


def with_holes(batch: Batch) -> Tensor:
    """(n,) which rows lack something."""
    if batch.observed is None:
        return torch.zeros_like(batch.weight, dtype=torch.bool)
    return ~batch.observed.all(1)


@dataclass(frozen=True)
class ReadOut(ABC):
    """Scores of classes, log-linear in what components make of a row: of a network, or of several.

    Leading dimensions of all parameters go over networks, if there are several; to mixtures and
    scores each row is then as many rows.
    """

    mixture: Mixture | MixtureStack
    weight: Tensor
    bias: Tensor
    embedding: str
    shift: Tensor
    scale: Tensor
    n_draws: int = N_DRAWS

    @property
    def density(self) -> Density:
        return self.mixture.density

    @property
    def n_classes(self) -> int:
        return self.mixture.n_classes

    @property
    def n_problems(self) -> int:
        return self.mixture.n_problems

    def asked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Labels and weights of the rows; of each for every network, if there are several."""
        return self.mixture.asked(batch)

    def total_weight(self, y: Tensor, weight: Tensor) -> Tensor:
        """(P,) what all rows weigh for each network."""
        return self.mixture.total_weight(y, weight)

    @property
    @abstractmethod
    def mixtures(self) -> list[Mixture]:
        """The mixtures of every network."""

    @property
    def explicit(self) -> bool:
        """Whether derivatives go by the statistics of rows, not by autograd through densities."""
        return self.density.explicit and self.embedding in ("posterior", "log_density")

    def row_cost(self, missing: bool) -> int:
        """Numbers held for one row while gradients are followed."""
        return self.density.row_cost(missing)

    def outputs_of(self, log_joint: Tensor) -> Tensor:
        """What objectives look at, (n, C), of complete rows."""
        answer = self._answer(self.scores(self._embed_complete(log_joint)))
        return self._output(log_joint.logsumexp(1, keepdim=True), answer)

    def outputs_over(self, log_joint: Tensor, drawn_joint: Tensor, batch: Completed) -> Tensor:
        """The same of rows of which some have holes, by the log-joints of their draws."""
        lacking = with_holes(batch).repeat_interleave(self.n_problems)
        log_chance = drawn_joint.logsumexp(1) - batch.log_chance
        parts = self._answer(self.scores(self._embed_complete(drawn_joint))), log_chance
        found = self._average(*(part.unflatten(0, (-1, int(lacking.sum()))) for part in parts))
        known = self._answer(self.scores(self._embed_complete(log_joint)))
        answer = known.masked_scatter(lacking[:, None], found)
        return self._output(log_joint.logsumexp(1, keepdim=True), answer)

    def _answer(self, scores: Tensor) -> Tensor:
        """log p(c | x), (n, C)."""
        return scores.log_softmax(1)

    def _average(self, answers: Tensor, log_ratio: Tensor) -> Tensor:
        """Over draws, weighted by importance: (draws, n, C), (draws, n) -> (n, C)."""
        return (answers + log_ratio.log_softmax(0)[..., None]).logsumexp(0)

    def _output(self, log_density: Tensor, answer: Tensor) -> Tensor:
        """log p(x) + log p(c | x), (n, C)."""
        return log_density + answer

    def _slopes(self, scores: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives by log p(x) (n, 1) and by scores, of those by outputs (n, C)."""
        total = slope.sum(1, keepdim=True)
        return total, slope - scores.softmax(1) * total

    def read(self, log_joint: Tensor) -> tuple[Tensor, Callable[[Tensor], Slopes]]:
        """The outputs of complete rows, and what derivatives (n, C) by them are by all else.

        By log-joints (n, K), beside those by read-out and class priors: embeddings may leave out
        what log-joints hold of the latter.
        """
        embedded, share = self._embed_complete(log_joint), log_joint.softmax(1)
        scores, layout = self.scores(embedded), self.mixture.layout
        log_density = log_joint.amax(1, keepdim=True) - share.amax(1, keepdim=True).log()

        def slopes(slope: Tensor) -> Slopes:
            by_density, by_score = self._slopes(scores, slope)
            pull = layout.by_component(by_score)
            by_weight = _row_by_row(pull * embedded, self.weight).sum(0)
            by_joint = (_row_by_row(pull, self.weight) * (self.weight / self.scale)).view_as(pull)
            by_prior = torch.zeros_like(self.mixture.log_prior)
            if self.embedding == "posterior":  # f_k (g_k - sum over the class of f_j g_j)
                found = _row_by_row(embedded, self.weight) * self.scale + self.shift
                own = found.view_as(pull) * by_joint
                by_joint = own - found.view_as(pull) * layout.by_component(layout.sum(own))
            else:
                by_prior = -layout.sum(_row_by_row(by_joint, self.weight).sum(0))
            by_joint = torch.addcmul(by_joint, by_density, share)
            by_bias = _row_by_row(by_score, self.bias).sum(0)
            return by_joint, {"weight": by_weight, "bias": by_bias, "log_prior": by_prior}

        return self._output(log_density, self._answer(scores)), slopes

    def _embed_complete(self, log_joint: Tensor) -> Tensor:
        found = EMBEDDINGS[self.embedding](self.mixture, log_joint)
        shift, scale = self.shift.to(found.dtype), self.scale.to(found.dtype)
        return ((_row_by_row(found, shift) - shift) / scale).view_as(found)

    def scores(self, embedded: Tensor) -> Tensor:
        """(n, C) before the softmax."""
        weight, bias = self.weight.to(embedded.dtype), self.bias.to(embedded.dtype)
        found = self.mixture.layout.sum(_row_by_row(embedded, weight) * weight) + bias
        return found.view(-1, bias.shape[-1])

    def free(self) -> dict[str, Tensor]:
        """Unconstrained parameters of mixtures and read-out."""
        return {**nested(self.mixture.free(), _INNER), "weight": self.weight, "bias": self.bias}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        mixture = self.mixture.from_free(inside(free, _INNER))
        return replace(self, mixture=mixture, weight=free["weight"], bias=free["bias"])

    def with_read_out(self, weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> Self:
        """The network with another read-out, of an embedding in other units."""
        return replace(self, weight=weight, bias=bias, shift=shift, scale=scale)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Another device or floating type."""
        read_out = (self.weight, self.bias, self.shift, self.scale)
        moved = replace(self, mixture=self.mixture.to(device, dtype))
        return moved.with_read_out(*(part.to(device, dtype).contiguous() for part in read_out))
