"""The rows of one machine: in memory, or in a memory-mapped file."""

from __future__ import annotations

from mixtura.data import Batch
from mixtura.engines.wrapped import Wrapped


class LocalEngine(Wrapped[Batch]):
    """Rows of a `Table`."""
