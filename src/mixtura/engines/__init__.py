"""Engines hold the rows; what is above them sees sums, minibatches, samples and splits."""

from __future__ import annotations

import numpy as np
import torch

from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.data.sequence_input import Sequences
from mixtura.engines.base import Engine
from mixtura.engines.sequences import SequenceEngine
from mixtura.engines.table import resolve_device
from mixtura.engines.views import Contrast, Prepared, Punched, View, is_copy

__all__ = [
    "Contrast",
    "Engine",
    "Prepared",
    "Punched",
    "SequenceEngine",
    "View",
    "engine_of",
    "is_copy",
    "resolve_device",
]


def engine_of(
    rows: Matrix | Sequences,
    y: np.ndarray | None,
    weight: np.ndarray | None,
    scaling: Scaling,
    device: Device,
    dtype: torch.dtype = torch.float64,
) -> Engine:
    """Rows that have been read, in the model's units, with labels and weights (n,).

    Sequences are in double precision always.
    """
    place = resolve_device(device, rows.values.size)
    if isinstance(rows, Sequences):
        return SequenceEngine(rows.frames, rows.lengths, y, weight, scaling=scaling, device=place)
    return Engine(
        *(rows.values, y, weight),
        scaling=scaling,
        device=place,
        dtype=dtype,
        untold=rows.untold,
        journal=rows.journal,
    )
