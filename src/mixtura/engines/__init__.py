"""Engines hold the rows; what is above them sees sums, minibatches, samples and splits."""

from mixtura.data import Batch
from mixtura.engines.base import Engine
from mixtura.engines.wrapped import ContrastEngine, PreparedEngine, PunchedEngine, is_copy

__all__ = ["ContrastEngine", "Engine", "LocalEngine", "PreparedEngine", "PunchedEngine", "is_copy"]
LocalEngine = Engine[Batch]
