"""Engines answer one question: what is the sum of this over all rows?"""

from mixtura.engines.local import LocalEngine

__all__ = ["LocalEngine"]
