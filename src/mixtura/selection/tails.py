"""Whether the tails of classes are heavy, so that Student's t is worth a comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.engines import Engine

#: Numbers up to which scale matrices are full, rows that tell a class's tails, and deviations
#: beyond which a number lies far out: of Gaussian draws, three of 100,000 on either side.
_MOST_NUMBERS, _LEAST_ROWS, _FAR = 30, 10, 4.0
#: Share of the numbers that must lie far out on either side (skewed columns have one such side),
#: and of the others in a row where one does: the t has whole rows that lie far out.
_SHARE, _TOGETHER = 0.003, 0.15
#: Deviations of a Gaussian per median distance from its median.
_PER_DISTANCE = 1.4826


def has_heavy_tails(engine: Engine) -> bool:
    """By medians of the classes, and of the distances from them, which outliers do not move."""
    numbers = (engine.scaling.levels == 0).nonzero()[0]
    if not 1 < len(numbers) <= _MOST_NUMBERS:
        return False
    batch = engine.all_rows()
    x = batch.with_nan()
    counts = torch.zeros(5, dtype=torch.float64)
    for label in batch.y.unique():
        own = x[batch.y == label][:, numbers]
        if label >= 0 and len(own) >= _LEAST_ROWS:
            counts += _counts(own.double()).cpu()
    below, above, together, others, known = counts.tolist()
    return min(below, above) > _SHARE * known and together > _TOGETHER * others


def _counts(x: Tensor) -> Tensor:
    """(5,) of the numbers of a class (n, D): far below its median, far above, pairs of these in one
    row, pairs of these and any other number, and all."""
    away = x - x.nanmedian(0).values
    deviation = _PER_DISTANCE * away.abs().nanmedian(0).values
    spread = deviation > 0.0
    away = away[:, spread] / deviation[spread]
    below, above, known = ((mask).sum(1) for mask in (away < -_FAR, away > _FAR, ~away.isnan()))
    far = below + above
    sums = below, above, far * (far - 1), far * (known - 1), known
    return torch.stack([each.sum() for each in sums]).double()
