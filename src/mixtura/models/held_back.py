"""Rows that are held back from training, for prediction sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.parts import storable

#: More rows would make the coverage of sets no truer than a percent or so.
MOST_HELD_BACK = 1_000


@storable
@dataclass(frozen=True)
class HeldBack:
    """Labeled rows, in folds, and for each fold a model that has not seen its rows.

    Attributes
    ----------
    values : (n, D) in the user's units, categories as codes, NaN where missing.
    y : (n,) class indices; or (n, T) numbers, in the user's units.
    weight : (n,) of the rows, one on average.
    fold : (n,) number of the model that has not seen the row.
    models : for each fold the mixtures, or the network, of the rows of the others, in place of that
        of the fitted model and those that are averaged with it; none where the model itself has
        seen none of the rows. Empty where a step of EM without the rows of a fold tells them.
    total_weight, prior : of such a step: weight of all rows of training; imagined rows and their
        spread.
    """

    values: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    fold: np.ndarray
    models: tuple[tuple[Mixture | Network, ...], ...] = ((),)
    total_weight: float = 0.0
    prior: tuple[float, Tensor] | None = None

    @classmethod
    def unseen(cls, values: np.ndarray, y: np.ndarray) -> HeldBack:
        """Rows that the model itself has not seen."""
        return cls(values, y, np.ones(len(y)), np.zeros(len(y), dtype=int))

    @classmethod
    def of(
        cls, engine: Engine, fold: Tensor, models: Iterable[Sequence[Mixture | Network]]
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
        return cls(values, batch.y.cpu().numpy(), weight / weight.mean(), own, kept)
