"""Labels: which rows have one, and the class of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.utils import column_or_1d

from mixtura.data.batch import UNLABELED
from mixtura.data.columns import BOOLEANS, is_missing, name_of_type, unmasked
from mixtura.data.given import ArrayLike
from mixtura.data.kept import Kept
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn

#: Rows that are counted at a time.
_AT_ONCE = 2**20


@dataclass(frozen=True)
class CodedLabels:
    """Labels of very many rows: the distinct ones (U,), and which of them each row has (n,)."""

    values: np.ndarray
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def joined(cls, parts: Sequence[CodedLabels]) -> CodedLabels:
        """The labels of several parts, one after another."""
        places: dict[object, int] = {}
        codes = Kept()
        for part in parts:
            known = np.array([places.setdefault(value, len(places)) for value in part.values])
            part.put(known.astype(np.min_scalar_type(len(places))), codes)
        return cls(np.array([*places], dtype=object), codes.whole())

    def put(self, values: np.ndarray, kept: Kept) -> None:
        """Add what `values` (U,) say of the label of each row, some rows at a time."""
        for start in range(0, len(self), _AT_ONCE):
            kept.add(values[self.codes[start : start + _AT_ONCE]])

    def recoded(self, values: np.ndarray) -> np.ndarray:
        """(n,) what `values` (U,) say of the label of each row."""
        kept = Kept()
        self.put(values, kept)
        return kept.whole()

    @property
    def counts(self) -> np.ndarray:
        """(U,) how many rows have each of the distinct labels."""
        found = np.zeros(len(self.values), dtype=np.int64)
        for start in range(0, len(self), _AT_ONCE):
            part = self.codes[start : start + _AT_ONCE]
            found += np.bincount(part, minlength=len(found))
        return found

    def plain(self) -> np.ndarray:
        """(n,) the labels themselves."""
        return self.values[self.codes]


def read_labels(y: ArrayLike) -> np.ndarray:
    """(n,) labels as they are: what stands beside text in a list does not become text."""
    if isinstance(y, list | tuple) and 0 < sum(isinstance(label, str) for label in y) < len(y):
        y = np.array(y, dtype=object)
    y = unmasked(y)
    if name_of_type(getattr(y, "dtype", "")) in BOOLEANS | {"int", "uint"}:
        plain = np.asarray(y)  # of types that hold NA, too, which must not become floats
        y = plain if plain.dtype.kind in "biu" else np.array([*y], dtype=object)
    return column_or_1d(y, warn=True)


def read_labels_of(y: ArrayLike, n_rows: int) -> np.ndarray:
    """Labels of so many rows."""
    labels = read_labels(y)
    if len(labels) != n_rows:
        raise InvalidInputError(f"y has {len(labels)} entries, but X has {n_rows} rows.")
    return labels


def resolve_unlabeled(
    y: np.ndarray, unlabeled: object, classes: np.ndarray | None = None
) -> object:
    """What marks unlabeled entries of y beside None and NaN; None for nothing.

    "auto" is -1, unless that is a class: one of the `classes` where these are known, and otherwise
    a label beside which y has less than two others.
    """
    if not isinstance(unlabeled, str) or unlabeled != "auto":
        return unlabeled
    if classes is not None:
        return None if UNLABELED in classes.tolist() else UNLABELED
    marked = _equals(y, UNLABELED)
    others = set(y[~marked & ~_is_nothing(y)].tolist()) if marked.any() else ()
    return UNLABELED if len(others) > 1 else None


def labeled_mask(y: np.ndarray, unlabeled: object, classes: np.ndarray | None = None) -> np.ndarray:
    """Which entries of y carry a label: not None, not NaN, and not what marks unlabeled rows."""
    return ~_is_nothing(y) & ~_equals(y, resolve_unlabeled(y, unlabeled, classes))


def find_labeled(y: np.ndarray, unlabeled: object, counts: np.ndarray | None = None) -> np.ndarray:
    """`labeled_mask` of training labels; a warning says if "auto" took -1 for unlabeled.

    An entry stands for one row, or for as many as `counts` (n,) says.
    """
    labeled = labeled_mask(y, unlabeled)
    counts = np.broadcast_to(1, len(y)) if counts is None else counts
    n_marked = int(counts[~labeled & ~_is_nothing(y)].sum())
    if n_marked and isinstance(unlabeled, str) and unlabeled == "auto":
        warn(
            f"{n_marked} of {counts.sum()} rows have the label -1 and are taken for unlabeled, "
            "since y has two other labels or more. If -1 is a class, set unlabeled=None; if it is "
            "none, unlabeled=-1 says so, and this warning goes.",
            AmbiguousDataWarning,
        )
    return labeled


def _is_nothing(y: np.ndarray) -> np.ndarray:
    """Which entries are None, NaN or NA."""
    return np.array([*map(is_missing, y)], dtype=bool) if y.dtype == object else y != y


def _equals(y: np.ndarray, marker: object) -> np.ndarray:
    """Which entries are the marker; text and numbers never equal each other."""
    if marker is None or (y.dtype != object and (y.dtype.kind in "US") != isinstance(marker, str)):
        return np.zeros(len(y), dtype=bool)
    if y.dtype == object:
        return np.array([not is_missing(label) and label == marker for label in y], dtype=bool)
    return y == marker


def class_masses(y: np.ndarray, weight: np.ndarray, n_classes: int) -> np.ndarray:
    """(C,) what the labeled rows of each class weigh; of very many, some at a time are counted."""
    mass = np.zeros(n_classes)
    for start in range(0, len(y), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        known = y[part] >= 0
        mass += np.bincount(y[part][known], weight[part][known], minlength=n_classes)
    return mass


def encode_labels(y: np.ndarray, classes: np.ndarray, unlabeled: object) -> np.ndarray:
    """Class indices of y, -1 for unlabeled entries; an unknown label is an error.

    "auto" takes -1 for a label if it is among the classes.
    """
    labeled = labeled_mask(y, unlabeled, classes)
    codes = np.full(len(y), UNLABELED, dtype=np.int64)
    given = y[labeled]
    if y.dtype == object:
        given = np.array(given.tolist()) if len(given) else classes[:0]
    same_kind = (given.dtype.kind in "US") == (np.array(classes.tolist()).dtype.kind in "US")
    found = np.zeros(len(given), dtype=np.int64)
    unknown = np.ones(len(given), dtype=bool)
    if same_kind:
        found = np.searchsorted(classes, given).clip(max=len(classes) - 1)
        unknown = classes[found] != given
    if unknown.any():
        raise InvalidInputError(
            f"y contains labels that are not among the classes {classes.tolist()}: "
            f"{np.unique(given[unknown])[:5].tolist()}."
        )
    codes[labeled] = found
    return codes
