"""Which entries a row lacks, where that tells something: evidence with a bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities.base import Statistics
from mixtura.densities.categorical import Categorical
from mixtura.densities.patterns import distinct_patterns

#: Rows up to which patterns that several of them share are not looked for.
_FEW = 200
#: Where each row has a pattern of its own.
_EACH = slice(None)
#: Smallest chance of either, absent or present, that a maximum-likelihood update leaves.
_FLOOR = 0.01


@lru_cache(maxsize=256)
def _tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # whoever asks first, gradients may need it later
        return torch.tensor(values, dtype=dtype, device=device)


@dataclass(frozen=True, kw_only=True)
class HolePattern(Categorical):
    """K densities of patterns m of missing entries, m_d = 1 where an entry is absent.

    p_k(m) = sum_r w_r prod_d Bernoulli(m_d; theta_kd + rho_r (1 - theta_kd)) + broad q(m): a
    component lacks each entry with a chance of its own, and a row may lack further ones at random,
    of rate rho_r; else components of middling chances would attract every such row.
    q(m) = 1 / ((T + 1) binomial(T, |m|)) is the same for all components; T entries are told. Of a
    pattern that no component explains q is nearly all, and cancels among them. q is a mean over all
    rates of Bernoullis of one rate, so entries that are not told (not observed in a batch) are
    integrated out by not counting them.

    Columns have two categories, present and absent; `log_chance` (K, 2 D) has both by turns.

    Attributes
    ----------
    broad : share of q.
    further : share of rows with further holes, evenly over their rates.
    rates : rho, the first of which is zero.
    """

    floor: float = _FLOOR
    broad: float = 0.1
    further: float = 0.1
    rates: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)

    @classmethod
    def from_clusters(
        cls, codes: Tensor, membership: Tensor, levels: tuple[int, ...], floor: float = _FLOOR
    ) -> HolePattern:
        """The frequencies in weighted clusters of patterns, membership (n, K)."""
        found = Categorical.from_clusters(codes, membership, levels, floor)
        return cls(log_chance=found.log_chance, levels=levels, floor=floor)

    def row_cost(self, missing: bool) -> int:
        return super().row_cost(missing) + 4 * len(self.rates) * self.n_components

    def _constant(self, values: tuple[float, ...]) -> Tensor:
        return _tensor(values, self.log_chance.dtype, self.log_chance.device)

    # -- what the terms are --------------------------------------------------------------------

    @property
    def _log_share(self) -> Tensor:
        """(R,) log w."""
        some = len(self.rates) - 1
        shares = [1.0 - self.broad - self.further] + [self.further / some] * some
        return self._constant(tuple(shares)).log()

    def _chances(self) -> tuple[Tensor, Tensor]:
        """Log chances (K, R, D) that an entry is present, and absent, at each rate."""
        present, absent = self.log_chance[:, None, ::2], self.log_chance[:, None, 1::2]
        rate = self._constant(self.rates)[:, None]
        return present + (-rate).log1p(), torch.logaddexp(absent, present + rate.log())

    def _by_rate(self) -> Categorical:
        """The K R products, one after another."""
        log_chance = torch.stack(self._chances(), -1).flatten(2).flatten(0, 1)
        return Categorical(log_chance=log_chance, levels=self.levels)

    def _log_terms(self, batch: Batch) -> Tensor:
        """All terms of p_k(m) in logs, (n, K, R + 1), that of q last."""
        own = self._by_rate().log_prob(batch).unflatten(1, (self.n_components, -1))
        own = own + self._log_share.to(own)
        broad = (_log_broad(*_counts(batch)) + math.log(self.broad)).to(own)
        return torch.cat([own, broad[:, None, None].expand(-1, self.n_components, 1)], 2)

    # -- the protocol --------------------------------------------------------------------------

    def log_prob(self, batch: Batch) -> Tensor:
        return self.expectation(batch)[0]

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        return self.expectation(batch)[1](occupancy)

    def expectation(self, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        patterns, place = _distinct(batch)
        terms = self._log_terms(patterns)
        found = terms.logsumexp(2)
        if isinstance(place, Tensor):  # unlike indices, that adds up gradients in order
            found = found.index_select(0, place)
        return found, partial(self._sums, patterns, place, terms)

    def _sums(
        self, patterns: Batch, place: Tensor | slice, terms: Tensor, occupancy: Tensor
    ) -> Statistics:
        """Expected counts of a component's own holes: what is absent may be a further one."""
        of_pattern = occupancy
        if isinstance(place, Tensor):
            of_pattern = occupancy.new_zeros(terms.shape[:2]).index_add_(0, place, occupancy)
        share = of_pattern[..., None] * terms.softmax(2)[..., :-1].to(occupancy)
        found = self._by_rate().statistics(patterns, share.flatten(1))["count"]
        present, absent = (
            found.unflatten(0, (self.n_components, -1)).unflatten(2, (-1, 2)).unbind(3)
        )
        own = absent * (self.log_chance[:, None, 1::2] - self._chances()[1]).exp()
        count = torch.stack([present + absent - own, own], 3).sum(1).flatten(1)
        return {"mass": occupancy.sum(0), "count": count}

    def own_statistics(self) -> Statistics:
        own = super().own_statistics()
        return {**own, "count": (1.0 - self.broad) * own["count"]}

    def _likeliest(self) -> tuple[Tensor, Tensor]:
        """Log densities (K, D + 1) of the likeliest patterns with 0, 1, ..., D holes, and at which
        of these numbers each column becomes one of them, (K, D)."""
        order = self.log_chance[:, 1::2].argsort(1, descending=True)
        at = order[:, None].expand(-1, len(self.rates), -1)
        present, absent = (chance.gather(2, at) for chance in self._chances())
        own = present.sum(2, keepdim=True) + torch.nn.functional.pad(
            (absent - present).cumsum(2), (1, 0)
        )
        size = torch.arange(own.shape[2], device=own.device)
        broad = _log_broad(size, torch.full_like(size, len(self.levels))) + math.log(self.broad)
        total = torch.logaddexp((own + self._log_share[:, None]).logsumexp(1), broad.to(own))
        return total, order.argsort(1)

    def log_peak(self) -> Tensor:
        return self._likeliest()[0].amax(1)

    @property
    def location(self) -> Tensor:
        """The likeliest patterns, (K, D)."""
        log_prob, place = self._likeliest()
        return (place < log_prob.argmax(1, keepdim=True)).to(self.log_chance)

    # -- given what is told --------------------------------------------------------------------

    def _absence(self, batch: Batch, share: Tensor) -> Tensor:
        """(n, D) chance that each entry is absent, given those that are told."""
        term = share[..., None] * self._log_terms(batch).softmax(2).to(share)
        absent, told = _counts(batch)
        succession = ((absent + 1.0) / (told + 2.0)).to(share)
        own = term[..., :-1].flatten(1) @ self._chances()[1].exp().flatten(0, 1).to(share)
        return own + (term[..., -1].sum(1) * succession)[:, None]

    def chances(self, batch: Batch, share: Tensor, column: int) -> Tensor:
        known = super().chances(batch, share, column)
        if batch.observed is None:
            return known
        absent = self._absence(batch, share)[:, column]
        expected = torch.stack([1.0 - absent, absent], 1)
        return torch.where(batch.observed[:, column, None], known, expected)

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        if batch.observed is None:
            return batch.x
        likelier = (self._absence(batch, share) > 0.5).to(batch.x)
        return torch.where(batch.observed, batch.x, likelier)

    def complete(self, batch: Batch, component: Tensor, generator: torch.Generator) -> Tensor:
        """A term by its posterior, then every entry by the rate of that term."""
        if batch.observed is None:
            return batch.x
        each = torch.arange(len(batch), device=component.device)
        posterior = self._log_terms(batch)[each, component].double().softmax(1).cpu()
        term = torch.multinomial(posterior, 1, generator=generator).to(batch.x.device)
        rates = self._chances()[1].exp()[component].to(batch.x)
        own = rates[each, term[:, 0].clamp_max(len(self.rates) - 1)]
        rate = torch.where(term < len(self.rates), own, _broad_rate(batch, generator))
        drawn = (_uniform(rate, generator) < rate).to(batch.x)
        return torch.where(batch.observed, batch.x, drawn)

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        """Patterns that are told whole. What is told of others moves the rest: use `complete`."""
        if batch.observed is not None and not batch.observed.all():
            raise NotImplementedError("draws of hole patterns do not agree with parts of them.")
        return batch.x

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        blank = self.log_chance.new_zeros(len(component), len(self.levels))
        untold = torch.zeros_like(blank, dtype=torch.bool)
        rows = Batch(blank, untold, component, blank.new_ones(len(component)))
        return self.complete(rows, component, generator)


def _distinct(batch: Batch) -> tuple[Batch, Tensor | slice]:
    """Different patterns, and which of them each row has: its own, unless rows share many."""
    return batch.once(_distinct, lambda: _shared(batch)) if len(batch) > _FEW else (batch, _EACH)


def _shared(batch: Batch) -> tuple[Batch, Tensor | slice]:
    told = [batch.x != 0.0] + ([] if batch.observed is None else [batch.observed])
    patterns, place = distinct_patterns(torch.cat(told, 1))
    if 2 * len(patterns) > len(batch):
        return batch, _EACH
    each = torch.arange(len(batch), device=place.device)
    return batch.take(place.new_empty(len(patterns)).scatter_(0, place, each)), place


def _counts(batch: Batch) -> tuple[Tensor, Tensor]:
    """(n,) how many entries are absent, and how many are told."""
    if batch.observed is None:
        return batch.x.sum(1), torch.full_like(batch.y, batch.x.shape[1])
    return torch.where(batch.observed, batch.x, 0.0).sum(1), batch.observed.sum(1)


def _log_broad(absent: Tensor, told: Tensor) -> Tensor:
    """log q = log(absent! (told - absent)! / (told + 1)!), a difference of large numbers."""
    absent, told = absent.double(), told.double()
    return torch.lgamma(absent + 1.0) + torch.lgamma(told - absent + 1.0) - torch.lgamma(told + 2.0)


def _broad_rate(batch: Batch, generator: torch.Generator) -> Tensor:
    """(n, D) the rate of q given what is told, drawn from Beta(absent + 1, told - absent + 1).

    So is the uniform order statistic distributed that has `absent` others below it and
    `told - absent` above.
    """
    absent, told = _counts(batch)
    level = _uniform(torch.nn.functional.pad(batch.x, (0, 1)), generator)
    unused = torch.arange(level.shape[1], device=level.device) > told[:, None]
    ordered = level.masked_fill(unused, 2.0).sort(1).values
    return ordered.gather(1, absent.long()[:, None]).expand_as(batch.x)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers between 0 and 1; drawn on the CPU, so that a seed means the same on every device."""
    return torch.rand(like.shape, dtype=torch.float64, generator=generator).to(like)
