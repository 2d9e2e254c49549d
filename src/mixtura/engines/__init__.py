"""Engines answer one question: what is the sum of this over all rows?"""

from mixtura.engines.local import (
    LocalEngine,
    fewer_unlabeled,
    folds,
    hold_back,
    labeled_only,
    merged,
    some_rows,
)
from mixtura.engines.prepared import PreparedEngine
from mixtura.engines.punched import PunchedEngine, is_copy

__all__ = [
    "LocalEngine",
    "PreparedEngine",
    "PunchedEngine",
    "fewer_unlabeled",
    "folds",
    "hold_back",
    "is_copy",
    "labeled_only",
    "merged",
    "some_rows",
]
