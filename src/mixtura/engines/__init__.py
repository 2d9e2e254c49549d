"""Engines answer one question: what is the sum of this over all rows?"""

from mixtura.engines.local import LocalEngine, folds, hold_back, some_rows
from mixtura.engines.punched import PunchedEngine, is_copy

__all__ = ["LocalEngine", "PunchedEngine", "folds", "hold_back", "is_copy", "some_rows"]
