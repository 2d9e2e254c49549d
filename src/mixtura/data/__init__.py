"""What a user passes becomes tensors: tables, sequences, schemas and labels."""

from mixtura.data.labels import (
    encode_labels,
    find_labeled,
    labeled_mask,
    read_labels,
    resolve_unlabeled,
)
from mixtura.data.tables import UNLABELED, Batch, Scaling, Table, resolve_device

__all__ = [
    "UNLABELED",
    "Batch",
    "Scaling",
    "Table",
    "encode_labels",
    "find_labeled",
    "labeled_mask",
    "read_labels",
    "resolve_device",
    "resolve_unlabeled",
]
