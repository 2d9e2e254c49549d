"""What a user passes becomes tensors: tables, sequences, schemas and labels."""

from mixtura.data.labels import (
    encode_labels,
    find_labeled,
    labeled_mask,
    read_labels,
    read_labels_of,
    resolve_unlabeled,
)
from mixtura.data.tables import UNLABELED, Batch, Matrix, Scaling, Table, resolve_device

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
