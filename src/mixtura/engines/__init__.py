"""Engines hold the rows; what is above them sees sums, minibatches, samples and splits."""

from mixtura.engines.base import Engine
from mixtura.engines.wrapped import ContrastEngine, PreparedEngine, PunchedEngine, is_copy

__all__ = ["ContrastEngine", "Engine", "PreparedEngine", "PunchedEngine", "is_copy"]
