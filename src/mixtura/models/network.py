"""Mixture networks: mixtures embed a row, a log-linear read-out of the embedding decides.

What is missing in a row is integrated out by draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Product
from mixtura.densities.base import Even
from mixtura.models.mixture import Mixture
from mixtura.models.read_out import Completed, ReadOut, with_holes
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.parts import storable

#: Embeddings that compare the components of a class; the others take each by itself.
RELATIVE = ("posterior", "simplex")
#: The seed of all draws.
_SEED = 0
#: Draws from all components that the classes' shares are measured by, for each draw of what is
#: missing; and the fewest of a component.
_FOR_CHANCES, _LEAST_CHANCES = 32, 4
#: Numbers that draws of several rows may hold at a time.
_NUMBERS = 20_000_000


def _mean(values: Tensor, log_ratio: Tensor) -> Tensor:
    """Over draws, weighted by importance: (draws, n, C), (draws, n) -> (n, C)."""
    return (values * log_ratio.softmax(0)[..., None]).sum(0)


@storable
@dataclass(frozen=True)
class Network(ReadOut):
    """One mixture per class embeds a row; the score of a class reads its own embedding.

    p(c | x) = softmax_c(bias_c + sum over the components k of class c of weight_k * f_k(x)), and
    p(x) is that of all mixtures together: a joint model of rows and classes, for any objective.
    What is missing in a row is integrated out: p(c | observed) is the mean of p(c | x) over draws
    of the rest from p(rest | observed). The draws of a row depend on the row alone.

    Attributes
    ----------
    mixture : the mixtures.
    weight : (K,).
    bias : (C,).
    embedding : one of `EMBEDDINGS`.
    shift, scale : (K,) units of the embedding.
    n_draws : draws of what is missing in a row.
    """

    mixture: Mixture

    @classmethod
    def blank(cls, mixture: Mixture, embedding: str) -> Self:
        """A network that knows nothing of classes yet."""
        zero = torch.zeros_like(mixture.log_weight)
        bias = torch.zeros_like(mixture.log_prior)
        return cls(mixture, zero, bias, embedding, zero, torch.ones_like(zero))

    @property
    def mixtures(self) -> list[Mixture]:
        """The mixtures of every network: of one."""
        return [self.mixture]

    @property
    def fewest(self) -> int:
        """Components of a class that its embedding needs to tell rows apart."""
        return 2 if self.embedding in RELATIVE else 1

    def embed(self, batch: Batch) -> Tensor:
        """(n, K) what the components make of each row.

        Posteriors are those given what is observed. Densities of rows with different holes cannot
        be compared: of such rows it is the mean over draws of what is missing.
        """
        log_joint = self.mixture.log_joint(batch)
        if self.embedding in RELATIVE:
            return self._embed_complete(log_joint)
        return self._over_draws(batch, log_joint, lambda embedded: embedded, _mean)

    def _over_draws(
        self,
        batch: Batch,
        log_joint: Tensor,
        function: Callable[[Tensor], Tensor],
        average: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """`function` of the embedding (n, K); of rows with holes its average over draws."""
        lacking = with_holes(batch)
        if not lacking.any():
            return function(self._embed_complete(log_joint))
        full, holes = (~lacking).nonzero().flatten(), lacking.nonzero().flatten()
        if isinstance(batch, Completed):
            pairs = [self._reduced(batch.drawn[0], function, batch.log_chance)]
        else:
            completions = self._completions(batch.take(holes), log_joint[holes])
            pairs = [self._reduced(drawn, function) for drawn in completions]
        parts = (torch.cat(part) for part in zip(*pairs, strict=True))
        found = average(*(part.unflatten(0, (-1, len(holes))) for part in parts))
        if not len(full):
            return found
        known = function(self._embed_complete(log_joint[full]))
        blank = found.new_zeros(len(batch), found.shape[1])
        return blank.index_copy(0, full, known.to(found.dtype)).index_copy(0, holes, found)

    def _reduced(
        self, drawn: Batch, function: Callable[[Tensor], Tensor], before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`function` of the embedding of draws, and (n,) how much likelier each is than `before`.

        Own draws are as likely as ever, but p(missing | observed) moves with the parameters, and so
        does their share: the derivative of a mean over draws holds that of log p.
        """
        log_joint = self.mixture.log_joint(drawn)
        log_chance = log_joint.logsumexp(1)
        ratio = log_chance - (log_chance.detach() if before is None else before.to(log_chance))
        return function(self._embed_complete(log_joint)), ratio

    @torch.no_grad()
    def completed(self, batch: Batch) -> Batch:
        """The rows beside draws of what is missing, by this network."""
        lacking = with_holes(batch)
        if not lacking.any():
            return batch
        rows = batch.take(lacking)
        parts = list(self._completions(rows, self.mixture.log_joint(rows)))
        x, y, weight, lacks = (
            torch.cat(each)
            for each in zip(*((p.x, p.y, p.weight, p.lacks()) for p in parts), strict=True)
        )
        drawn = Batch(x, None, y, weight, lacks)
        log_chance = self.mixture.log_joint(drawn).logsumexp(1)
        given = batch.x, batch.observed, batch.y, batch.weight, batch.absent
        return Completed(*given, drawn=(drawn,), log_chance=log_chance)

    @torch.no_grad()
    def _completions(self, batch: Batch, log_joint: Tensor) -> Iterator[Batch]:
        """Rows completed by draws given what is observed, some draws of all rows at a time.

        Of a row's draws each component has its posterior share, to one draw.
        """
        count, n_draws = len(batch), self.n_draws
        level = (torch.arange(n_draws, dtype=torch.float64) + 0.5) / n_draws
        edges = log_joint.double().softmax(1).cumsum(1)
        component = torch.searchsorted(edges, level.to(edges.device).expand(count, -1).contiguous())
        component = component.clamp_max(log_joint.shape[1] - 1)
        together = max(1, _NUMBERS // (count * self._draw_cost))
        untold = replace(batch, absent=batch.lacks())
        for draws in torch.arange(n_draws, device=edges.device).split(together):
            rows = torch.arange(count, device=edges.device).repeat(len(draws))
            chosen = component[:, draws].mT.flatten()
            drawn = self._draws[chosen, draws.repeat_interleave(count)]
            many = untold.take(rows)
            whole = self.density.agree(many, chosen, drawn)
            yield replace(many, x=whole, observed=None)

    @torch.no_grad()
    def own_log_prob(self) -> Tensor:
        """(K * draws, K) log densities of rows drawn from each component; holes tell nothing."""
        affordable = _NUMBERS // self.density.row_cost(False)
        each = min(_FOR_CHANCES * self.n_draws, affordable) // self.density.n_components
        rows = replace(self, n_draws=max(_LEAST_CHANCES, each))._draws.flatten(0, 1)
        untold = torch.full(rows.shape, -1, dtype=torch.int8, device=rows.device)
        drawn = Batch(rows, None, untold[:, 0].long(), torch.ones_like(rows[:, 0]), untold)
        size = max(1, affordable)
        parts = [
            self.density.log_prob(drawn.take(slice(start, start + size)))
            for start in range(0, len(rows), size)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def class_chances(self, own_log_prob: Tensor | None = None) -> Tensor:
        """(K, C) the mean of p(c | x) over the rows of each component.

        Networks that differ in weights alone may share the log densities of these rows.
        """
        log_prob = self.own_log_prob() if own_log_prob is None else own_log_prob
        chances = self.outputs_of(self.mixture.weighted(log_prob)).softmax(1)
        return chances.unflatten(0, (self.density.n_components, -1)).mean(1)

    def class_shares(self) -> Tensor:
        """(C,) the mean of p(c | x) over all rows: the class prior of the joint model."""
        return self.mixture.log_joint_weight.exp() @ self.class_chances()

    def with_joint_weight(self, log_joint_weight: Tensor) -> Self:
        """The network with other weights of all components in p(x), (K,).

        Log-densities keep their values, which hold the weights; posteriors change with them.
        """
        mixture = self.mixture
        prior = mixture.by_class(log_joint_weight[None])[0]
        weight = log_joint_weight - mixture.layout.by_component(prior)
        shift = self.shift
        if self.embedding == "log_density":
            shift = shift + weight - mixture.log_weight
        changed = replace(mixture, log_weight=weight, log_prior=prior)
        return replace(self, mixture=changed, shift=shift)

    @cached_property
    def _draws(self) -> Tensor:
        """(K, draws, D) draws from every component, always the same ones."""
        component = torch.arange(self.density.n_components, device=self.weight.device)
        even = Even(self.n_draws, _SEED)
        drawn = self.density.sample(component.repeat_interleave(self.n_draws), even)
        return drawn.unflatten(0, (-1, self.n_draws))

    def computed(self) -> dict[str, object]:
        """What answers need beside the parameters, for those who cannot draw."""
        shares, peak = self.class_shares(), self.density.log_peak()
        return {"draws": self._draws, "log_peak": peak, "class_shares": shares}

    def class_log_joint(self, batch: Batch) -> Tensor:
        """log p(x) + log p(c | x), (n, C)."""
        log_joint = self.mixture.log_joint(batch)
        return log_joint.logsumexp(1, keepdim=True) + self.class_log_proba(batch, log_joint)

    def outputs(self, batch: Batch) -> Tensor:
        """What objectives look at: the class log-joint."""
        return self.class_log_joint(batch)

    def class_log_proba(self, batch: Batch, log_joint: Tensor) -> Tensor:
        """log p(c | x), (n, C); rows of which nothing is known get the classes' shares."""
        found = self._over_draws(
            batch, log_joint, lambda embedded: self._answer(self.scores(embedded)), self._average
        )
        blank = self._blank_rows(batch)
        if not blank.any():
            return found
        return torch.where(blank[:, None], self.class_shares().log().to(found), found)

    def _blank_rows(self, batch: Batch) -> Tensor:
        """(n,) which rows tell nothing, not even by their holes; none where draws stay."""
        looks_at_holes = isinstance(self.density, Product) and self.density.informative
        if batch.observed is None or looks_at_holes or isinstance(batch, Completed):
            return torch.zeros_like(batch.weight, dtype=torch.bool)
        return ~batch.observed.any(1)

    def row_cost(self, missing: bool) -> int:
        """Numbers held for one row while gradients are followed."""
        own = super().row_cost(missing)
        return own + self.n_draws * self._draw_cost if missing else own

    @property
    def _draw_cost(self) -> int:
        """Numbers held for one draw of what is missing: it agrees with one component's rest."""
        partly = self.density.row_cost(True) // self.density.n_components
        return self.density.row_cost(False) + partly

    def select(self, keep: Tensor) -> Self:
        """The network of the components at `keep`, ascending; every class keeps one at least."""
        kept = replace(self, mixture=self.mixture.select(keep))
        return kept.with_read_out(self.weight[keep], self.bias, self.shift[keep], self.scale[keep])


@dataclass(frozen=True)
class RegressionNetwork(Network):
    """One mixture, and a prediction instead of scores: the target is Gaussian around it."""

    def _answer(self, scores: Tensor) -> Tensor:
        return scores

    def _average(self, answers: Tensor, log_ratio: Tensor) -> Tensor:
        return _mean(answers, log_ratio)

    def _output(self, log_density: Tensor, answer: Tensor) -> Tensor:
        return torch.cat([log_density, answer], 1)

    def _slopes(self, scores: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        return slope[:, :1], slope[:, 1:]

    def outputs(self, batch: Batch) -> Tensor:
        """What objectives look at: log p(x) and the prediction, (n, 2)."""
        log_joint = self.mixture.log_joint(batch)
        prediction = self._over_draws(batch, log_joint, self.scores, self._average)
        return torch.cat([log_joint.logsumexp(1, keepdim=True), prediction], 1)


@dataclass(frozen=True)
class NetworkStack(ReadOut):
    """P networks of one layout, trained side by side on complete rows that they share."""

    mixture: MixtureStack

    @classmethod
    def of(cls, networks: Sequence[Network], assignment: Assignment) -> NetworkStack:
        """Networks of one layout and embedding."""
        mixture = MixtureStack.of([each.mixture for each in networks], assignment)

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(each, name) for each in networks])

        units, first = (stacked("shift"), stacked("scale")), networks[0]
        read_out = stacked("weight"), stacked("bias"), first.embedding
        return cls(mixture, *read_out, *units, n_draws=first.n_draws)

    def networks(self) -> list[Network]:
        """The networks of the stack."""
        return [
            Network(
                mixture,
                self.weight[place],
                self.bias[place],
                self.embedding,
                self.shift[place],
                self.scale[place],
                self.n_draws,
            )
            for place, mixture in enumerate(self.mixtures)
        ]

    @property
    def mixtures(self) -> list[Mixture]:
        """The mixtures of every network."""
        return [self.mixture[place] for place in range(self.n_problems)]

    def completed(self, batch: Batch) -> Batch:
        """The rows beside draws of what is missing, by each network."""
        parts = [each.completed(batch) for each in self.networks()]
        known = [part for part in parts if isinstance(part, Completed)]
        if not known:
            return batch
        drawn = tuple(part.drawn[0] for part in known)
        log_chance = torch.stack([part.log_chance for part in known], 1).flatten()
        return replace(known[0], drawn=drawn, log_chance=log_chance)

    def outputs(self, batch: Batch) -> Tensor:
        """What objectives look at, (n * P, C)."""
        return self.outputs_of(self.mixture.log_joint(batch))
