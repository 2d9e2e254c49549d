"""Tables whose last columns are targets: rows without them, and with holes in all else."""

from __future__ import annotations

from dataclasses import replace

import torch

from mixtura.data.batch import Batch


def without_targets(batch: Batch, n_targets: int) -> Batch:
    """The rows, with nothing observed in their last columns."""
    first = batch.x.shape[1] - n_targets
    observed = torch.ones_like(batch.x, dtype=torch.bool)
    observed = observed if batch.observed is None else batch.observed.clone()
    observed[:, first:] = False
    return replace(batch, x=batch.x * observed, observed=observed)


def beside_features(batch: Batch, n_targets: int, share: float) -> Batch:
    """The rows and, beside each, a copy without its targets, of negative weight."""
    less = without_targets(batch, n_targets)
    assert less.observed is not None
    seen = torch.ones_like(less.observed) if batch.observed is None else batch.observed
    return Batch(
        torch.cat([batch.x, less.x]),
        torch.cat([seen, less.observed]),
        batch.y.repeat(2),
        torch.cat([batch.weight, (share - 1.0) * batch.weight]),
    )


def with_punched_features(
    batch: Batch, share: float, generator: torch.Generator, n_targets: int
) -> Batch:
    """The rows and, beside each, a copy with random holes in all but its targets."""
    both, first = batch.with_punched(share, generator), batch.x.shape[1] - n_targets
    assert both.observed is not None
    for values in (both.x, both.observed):
        values[len(batch) :, first:] = values[: len(batch), first:]
    return both
