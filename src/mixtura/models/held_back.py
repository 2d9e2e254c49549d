"""Rows that are held back from training, for prediction sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from mixtura.conformal import HeldBack
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network

#: More rows would make the coverage of sets no truer than a percent or so.
MOST_HELD_BACK = 1_000


def held_back_of(
    engine: Engine, fold: Tensor, models: Iterable[Sequence[Mixture | Network]]
) -> HeldBack | None:
    """Rows that are in a fold (n,), or some of them; None where there are none."""
    held = (fold >= 0).nonzero().flatten()
    if not len(held):
        return None
    some = held[torch.linspace(0, len(held) - 1, min(len(held), MOST_HELD_BACK)).long()]
    batch = engine.take(some.numpy()).all_rows()
    values = engine.scaling.invert(batch.x.double().cpu().numpy())
    if batch.observed is not None:
        values[~batch.observed.cpu().numpy()] = np.nan
    weight, own = batch.weight.double().cpu().numpy(), fold[some].numpy()
    kept = tuple(tuple(each.to("cpu", torch.float64) for each in fold) for fold in models)
    return HeldBack(values, batch.y.cpu().numpy(), weight / weight.mean(), own, kept)
