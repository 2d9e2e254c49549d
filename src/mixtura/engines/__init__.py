"""Engines answer one question: what is the sum of this over all rows?"""

from mixtura.engines.local import LocalEngine, hold_back

__all__ = ["LocalEngine", "hold_back"]
