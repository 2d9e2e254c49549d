"""What a user passes becomes tensors: tables, sequences, schemas and labels.

Names are imported when they are first used: `schema` and `columns` need neither PyTorch nor
scikit-learn, and `mixtura.runtime` reads tables by them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixtura.data.labels import (
        encode_labels,
        find_labeled,
        labeled_mask,
        read_labels,
        read_labels_of,
        resolve_unlabeled,
    )
    from mixtura.data.matrix import Matrix
    from mixtura.data.scaling import Scaling
    from mixtura.data.tables import UNLABELED, Batch, Table, resolve_device

__all__ = [
    "UNLABELED",
    "Batch",
    "Matrix",
    "Scaling",
    "Table",
    "encode_labels",
    "find_labeled",
    "labeled_mask",
    "read_labels",
    "read_labels_of",
    "resolve_device",
    "resolve_unlabeled",
]
#: Names that are not those of `tables`.
_HOMES = {"Matrix": "matrix"} | {name: "labels" for name in __all__ if "label" in name}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'tables')}"), name)
    globals()[name] = found
    return found
