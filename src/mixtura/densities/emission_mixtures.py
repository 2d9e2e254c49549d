"""What states of hidden Markov models emit where one density per state is not enough: mixtures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities.base import Density, Statistics, inward, keep_valid, outward

_INNER = "each."
#: Smallest share of one of the mixed densities.
_LEAST = 1e-12


@dataclass(frozen=True, kw_only=True)
class EmissionMixtures(Density[Batch]):
    """K mixtures of M densities each, all of which are one stack.

    Attributes
    ----------
    each : K * M densities, those of a mixture next to each other.
    log_share : (K, M), of which the chances sum to one.
    """

    each: Density[Batch]
    log_share: Tensor

    @classmethod
    def of(cls, each: Density[Batch], count: Tensor) -> EmissionMixtures:
        """Shares in proportion to counts (K, M)."""
        return cls(each=each, log_share=_log_shares(count))

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.each.closed_form

    @property
    def location(self) -> Tensor:
        """(K, M, D)."""
        return self._by_mixture(self.each.location)

    @property
    def n_parameters(self) -> int:
        return self.log_share.shape[1] * (self.each.n_parameters + 1) - 1

    def row_cost(self, missing: bool) -> int:
        return 4 * self.log_share.numel() + self.each.row_cost(missing)

    # -- everything has K first, but for `each` --------------------------------------------------

    def _by_mixture(self, value: Tensor) -> Tensor:
        return value.unflatten(0, self.log_share.shape)

    def _outward(self, inner: dict[str, Tensor]) -> dict[str, Tensor]:
        return outward(inner, self.log_share.shape, _INNER)

    def tensors(self) -> dict[str, Tensor]:
        return {"log_share": self.log_share, **self._outward(self.each.tensors())}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        each = self.each.with_tensors(inward(tensors, _INNER))
        return replace(self, each=each, log_share=tensors["log_share"])

    # -- likelihood ------------------------------------------------------------------------------

    def _log_joint(self, batch: Batch) -> Tensor:
        """(n, K, M) log p(row, which of the densities it is from)."""
        found = self.each.log_prob(batch)
        return found.unflatten(1, self.log_share.shape) + self.log_share.to(found)

    def log_prob(self, batch: Batch) -> Tensor:
        return self._log_joint(batch).logsumexp(2)

    @torch.no_grad()
    def _divided(self, batch: Batch, share: Tensor) -> Tensor:
        """(n, K * M) shares (n, K) of mixtures, divided among what they mix."""
        return (self._log_joint(batch).softmax(2) * share[..., None]).flatten(1)

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        divided = self._divided(batch, occupancy)
        return {
            "mass": occupancy.sum(0),
            "share": self._by_mixture(divided.sum(0)),
            **self._outward(self.each.statistics(batch, divided)),
        }

    # -- priors and updates ----------------------------------------------------------------------

    @property
    def spread(self) -> Tensor:
        return self._by_mixture(self.each.spread)

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        return self._by_mixture(self.each.spread_log_prob(reference)).sum(1)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        """One row is one row of each that is mixed; their shares are not told."""
        return {
            "mass": torch.ones_like(self.log_share[:, 0]),
            "share": torch.zeros_like(self.log_share),
            **self._outward(self.each.spread_statistics(reference, center.flatten(0, 1))),
        }

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        return self.each.spread_about(reference, center.flatten(0, 1))

    def center(self, statistics: Statistics) -> Tensor:
        return self._by_mixture(self.each.center(inward(statistics, _INNER)))

    def own_statistics(self) -> Statistics:
        share = self.log_share.exp()
        inner = self._outward(self.each.own_statistics())
        told = {
            name: value * share.view(*share.shape, *[1] * (value.ndim - 2))
            for name, value in inner.items()
        }
        return {"mass": share.sum(1), "share": share, **told}

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        """What has no rows stays as it is."""
        inner, count = inward(statistics, _INNER), statistics["share"]
        each, valid = self.each.maximize(inner)
        empty = inner["mass"].abs() <= torch.finfo(count.dtype).tiny
        each = keep_valid(self.each, each, ~empty)
        sound = (count >= -1e-9 * (1.0 + count.abs().sum(1, keepdim=True))).all(1)
        never = count.sum(1, keepdim=True) <= 0.0
        count = torch.where(never, self.log_share.exp(), count)
        updated = replace(self, each=each, log_share=_log_shares(count))
        return updated, self._by_mixture(valid | empty).all(1) & sound

    def free(self) -> dict[str, Tensor]:
        return {"share": self.log_share, **self._outward(self.each.free())}

    def from_free(self, free: dict[str, Tensor]) -> Self:
        each = self.each.from_free(inward(free, _INNER))
        return replace(self, each=each, log_share=free["share"].log_softmax(1))

    def covariances(self) -> Tensor:
        """(K, M, D, D)."""
        return self._by_mixture(self.each.covariances())

    # -- draws, holes ----------------------------------------------------------------------------

    def _drawn(self, component: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
        """Which of all densities rows are from, by shares (n, M) within their components (n,)."""
        place = torch.multinomial(share.cpu(), 1, generator=generator).flatten()
        return component * self.log_share.shape[1] + place.to(component.device)

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        share = self.log_share[component].exp()
        return self.each.sample(self._drawn(component, share, generator), generator)

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        return self.each.fill(batch, self._divided(batch, share))

    @torch.no_grad()
    def complete(self, batch: Batch, component: Tensor, generator: torch.Generator) -> Tensor:
        rows = torch.arange(len(component), device=component.device)
        share = self._log_joint(batch)[rows, component].softmax(1)
        return self.each.complete(batch, self._drawn(component, share, generator), generator)


def _log_shares(count: Tensor) -> Tensor:
    """In proportion to counts (K, M), none below `_LEAST`."""
    share = count.clamp_min(torch.finfo(count.dtype).tiny)
    return (share / share.sum(1, keepdim=True)).clamp_min(_LEAST).log()
