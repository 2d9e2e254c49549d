"""Rows that are drawn come as those of training did: a data frame of the same types."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np

from mixtura.data.columns import name_of_type
from mixtura.data.given import ArrayLike
from mixtura.data.in_memory import column_of, is_frame
from mixtura.data.lazy import SCAN_ROWS, chunks_of

_LIBRARIES = ("pandas", "polars")


@dataclass(frozen=True)
class TableForm:
    """What the data frame of the training rows was like.

    Attributes
    ----------
    library : of the frame.
    types : names of the types of its columns.
    listed : the categories that a type of a column lists, in its order; None of other types.
    ordered : positions of the columns whose categories are ordered.
    bounds : (2, D) which numbers columns hold. Those that held whole numbers alone hold such from
        the least to the largest of training, others any, or, if none was negative, none below the
        least of training.
    """

    library: str
    types: tuple[str, ...]
    listed: tuple[np.ndarray | None, ...]
    ordered: tuple[int, ...]
    bounds: np.ndarray

    @classmethod
    def of(cls, X: ArrayLike, values: np.ndarray) -> TableForm | None:
        """That of X, whose numbers and codes are (n, D); None of arrays, and of other libraries."""
        library = type(X).__module__.partition(".")[0]
        if not is_frame(X) or library not in _LIBRARIES:
            return None
        dtypes = [column_of(X, place).dtype for place in range(values.shape[1])]
        listed = tuple(_listed(dtype) for dtype in dtypes)
        ordered = tuple(at for at, dtype in enumerate(dtypes) if getattr(dtype, "ordered", False))
        return cls(library, tuple(map(str, dtypes)), listed, ordered, _bounds(values))

    def widened(self, values: np.ndarray) -> TableForm:
        """The same after more rows, (n, D)."""
        (low, high), (least, largest) = self.bounds, _bounds(values)
        low, high = np.minimum(low, least), np.maximum(high, largest)
        low[np.isinf(high) & (low < 0.0)] = -np.inf
        return replace(self, bounds=np.stack([low, high]))

    def within(self, values: np.ndarray) -> np.ndarray:
        """Numbers (n, D) as the columns hold them."""
        low, high = self.bounds
        held = np.where(np.isfinite(high), np.rint(values), values).clip(low, high)
        return np.where(low <= high, held, values)  # nothing is known of empty columns

    def build(self, names: Sequence[object], columns: Sequence[np.ndarray]) -> ArrayLike:
        """A data frame of columns (n,), of the types of training where they can hold the values."""
        try:
            library = import_module(self.library)
        except ImportError as error:
            raise ImportError(
                f"the training rows were a table of {self.library}, and so are those that are "
                f"drawn: pip install {self.library}."
            ) from error
        series = [library.Series(values.tolist()) for values in columns]
        for at, values in enumerate(columns):
            fraction = values.dtype != object and (values % 1).any()
            if not (fraction and name_of_type(self.types[at]) in ("int", "uint")):
                with suppress(Exception):  # each library has errors of its own
                    series[at] = self._cast(library, series[at], at)
        return library.DataFrame(dict(zip(names, series, strict=True)))

    def _cast(self, library: ArrayLike, column: ArrayLike, at: int) -> ArrayLike:
        """A series of the type that its column had."""
        name, listed = self.types[at], self.listed[at]
        if self.library == "polars":
            kind = getattr(library, name.partition("(")[0])
            return column.cast(kind if listed is None else kind(listed))
        typed = name if listed is None else library.CategoricalDtype(listed, at in self.ordered)
        return column.astype(typed)


def _listed(dtype: ArrayLike) -> np.ndarray | None:
    """The categories that a type lists; None of others, and of those that are no text or number."""
    if name_of_type(dtype) not in ("category", "enum"):
        return None
    found = np.array(list(dtype.categories))
    return found if found.dtype.kind in "biufU" else None


def _bounds(values: np.ndarray) -> np.ndarray:
    """(2, D) the least and the largest of whole numbers; of others the least, if not negative."""
    low, high = np.fmin.reduce(values, initial=np.inf), np.fmax.reduce(values, initial=-np.inf)
    fractions = np.zeros(values.shape[1], dtype=bool)
    for _, rows in chunks_of(values, SCAN_ROWS):
        fractions |= (np.floor(rows) < rows).any(0)
    low = np.where(fractions & (low < 0.0), -np.inf, low)
    return np.stack([low, np.where(fractions, np.inf, high)])
