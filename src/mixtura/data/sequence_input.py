"""What a user passes as sequences: lists of arrays, padded arrays, long data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing, column_or_1d

from mixtura.data.columns import unmasked
from mixtura.data.given import ArrayLike
from mixtura.data.scaling import Scaling
from mixtura.data.sequences import SequenceTable
from mixtura.exceptions import InvalidInputError

_ACCEPTED = (
    "a list of (T, d) arrays, an (n, T, d) array padded with NaN, or a data frame with one row per "
    "frame"
)


@dataclass(frozen=True)
class Sequences:
    """n sequences, the frames of one after those of another.

    frames : (F, D), NaN where missing.
    offsets : (n + 1,), sequence i holds the frames `offsets[i]` up to `offsets[i + 1]`.
    names : of the channels, where X was a data frame.
    """

    frames: np.ndarray
    offsets: np.ndarray
    names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each sequence, (n,)."""
        return np.diff(self.offsets)

    def take(self, index: np.ndarray | slice) -> Sequences:
        """The sequences that a mask or integers choose."""
        chosen = np.arange(len(self))[index]
        lengths = self.lengths[chosen]
        offsets = _offsets(lengths)
        moved = np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return Sequences(self.frames[np.arange(offsets[-1]) + moved], offsets, self.names)

    def cut(self, most: int) -> Sequences:
        """Pieces of the sequences, of at most so many frames, as sequences of their own."""
        count = -(-self.lengths // most)
        number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        starts = np.repeat(self.offsets[:-1], count) + most * number
        return Sequences(self.frames, np.append(starts, self.offsets[-1]), self.names)

    @property
    def values(self) -> np.ndarray:
        """All frames, (F, D)."""
        return self.frames

    def table(
        self,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        scaling: Scaling,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
    ) -> SequenceTable:
        """The sequences as tensors, always in double precision, with labels and weights (n,)."""
        return SequenceTable(self.frames, self.lengths, y, weight, scaling=scaling, device=device)

    def with_values(self, values: np.ndarray) -> Sequences:
        """The same sequences with other frames, (F, D)."""
        return Sequences(values, self.offsets, self.names)

    def split(self) -> list[np.ndarray]:
        """One (T_i, d) array per sequence."""
        return np.split(self.frames, self.offsets[1:-1])

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums of one value per frame over each sequence, (n,)."""
        return np.add.reduceat(values, self.offsets[:-1])


def read_sequences(
    X: ArrayLike,
    *,
    channels_first: bool = False,
    id_column: str = "id",
    time_column: str | None = None,
) -> Sequences:
    """Sequences in any of the forms that people keep them in; X itself is left alone.

    Parameters
    ----------
    X : list of (T_i, d) arrays, (n, T, d) array, or data frame
        Sequences of an array end before the first of the wholly missing frames at their end. A data
        frame has one row per frame; sequences come in the order in which their ids appear first,
        and all columns that are not named below are channels.
    channels_first : bool
        Arrays are (d, T_i) or (n, d, T).
    id_column, time_column : str
        Of a data frame: which sequence a row belongs to, and what to sort its rows by; None leaves
        them in their order.
    """
    if _is_frame(X):
        return _from_frame(X, id_column, time_column)
    entries = _entries(X)
    if entries is not None:
        return _from_list(entries, channels_first)
    return _from_array(_numbers(X, "X"), channels_first)


def per_sequence(y: ArrayLike, X: ArrayLike, id_column: str = "id") -> ArrayLike:
    """Labels of the sequences in X, in the order in which `read_sequences` gives them.

    Labels of a data frame may come one per sequence (by id, where y is a series whose index are the
    ids) or one per frame.
    """
    if y is None or not _is_frame(X):
        return y
    _check_columns(X, id_column, None)
    ids, codes = _grouped(X, id_column)
    index = getattr(y, "index", None)
    if index is not None and not callable(index):
        places = _places(ids, np.asarray(index))
        if places is not None:
            return _safe_indexing(y, places)
    labels = column_or_1d(y)
    if len(labels) == len(ids):
        return y
    if len(labels) != len(codes):
        raise InvalidInputError(
            f"y has {len(labels)} entries, but X has {len(ids)} sequences in {len(codes)} rows: "
            "give one label per sequence, in the order in which their ids appear, or one per row."
        )
    first = np.unique(codes, return_index=True)[1]
    known, theirs = ~_missing(y, labels), first[codes]
    differs, both = known != known[theirs], known & known[theirs]
    differs[both] = labels[both] != labels[theirs[both]]
    if differs.any():
        odd = int(codes[differs].min())
        one, other = labels[first[odd]], labels[differs & (codes == odd)][0]
        raise InvalidInputError(
            f"the rows of {id_column} {_plain(ids[odd])!r} carry different labels, "
            f"{_plain(one)!r} and {_plain(other)!r}: a sequence has one label."
        )
    return _safe_indexing(y, first)


# -- lists and arrays --------------------------------------------------------------------------


def _entries(X: ArrayLike) -> list[ArrayLike] | None:
    """The entries of a list or of an array of objects."""
    if isinstance(X, list | tuple):
        return list(X)
    if isinstance(X, torch.Tensor):
        return None
    array = np.asarray(X)
    return list(array) if array.dtype == object and array.ndim == 1 else None


def _numbers(value: ArrayLike, name: str) -> np.ndarray:
    """An array of real numbers, or an error that says what `name` is instead."""
    if issparse(value):
        raise InvalidInputError(
            f"{name} is a sparse matrix, and sequences are dense: pass {_ACCEPTED}."
        )
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            exact = value.dtype == torch.float32 or not value.is_floating_point()
            value = (value if exact else value.double()).numpy()
        array = np.asarray(unmasked(value))
        if array.dtype == object and array.ndim:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{name} cannot be read as an array of numbers ({error}): pass {_ACCEPTED}."
        ) from error
    if array.ndim == 0:
        raise InvalidInputError(
            f"{name} is a single {type(value).__name__}: pass {_ACCEPTED}; for one sequence, [X]."
        )
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{name} holds values of the type {array.dtype}: frames are made of real numbers."
        )
    return array


def _float_type(parts: Sequence[np.ndarray]) -> type:
    return np.float32 if all(part.dtype == np.float32 for part in parts) else np.float64


def _from_list(entries: list[ArrayLike], channels_first: bool) -> Sequences:
    if not entries:
        raise InvalidInputError(f"X has no sequences: pass {_ACCEPTED}.")
    parts = [_frames(entry, place, channels_first) for place, entry in enumerate(entries)]
    shapes = np.array([part.shape for part in parts])
    _check_shapes(shapes, channels_first)
    frames: np.ndarray = np.concatenate(parts, dtype=_float_type(parts))
    return _finite(Sequences(frames, _offsets(shapes[:, 0])))


def _frames(entry: ArrayLike, place: int, channels_first: bool) -> np.ndarray:
    """One sequence as (T, d)."""
    array = _numbers(entry, f"sequence {place}")
    if array.ndim > 2:
        raise InvalidInputError(
            f"sequence {place} has the shape {array.shape}: a sequence has two axes, time and "
            "channels."
        )
    if array.ndim == 1:
        return array[:, None]
    return array.T if channels_first else array


def _check_shapes(shapes: np.ndarray, channels_first: bool) -> None:
    lengths, widths = shapes.T
    if (lengths == 0).any():
        raise InvalidInputError(
            f"sequence {int(np.argmax(lengths == 0))} is empty: leave it out, or give it one frame "
            "of NaN."
        )
    odd = widths != widths[0]
    if odd.any():
        hint = "every sequence needs the same channels, NaN where one was not measured."
        if (lengths == lengths[0]).all():
            axes = "(T, d)" if channels_first else "(d, T)"
            hint = f"if they are {axes} arrays, set channels_first={not channels_first}."
        place = int(np.argmax(odd))
        raise InvalidInputError(
            f"sequence {place} has {widths[place]} channel(s), but sequence 0 has {widths[0]}: "
            f"{hint}"
        )
    if widths[0] == 0:
        raise InvalidInputError("the sequences have no channels: a frame needs one number or more.")


def _from_array(array: np.ndarray, channels_first: bool) -> Sequences:
    if array.ndim == 1:
        raise InvalidInputError(
            f"X is one row of {len(array)} numbers: pass [X] for one sequence of one channel."
        )
    if array.ndim == 2:
        raise InvalidInputError(
            f"X is a matrix of the shape {array.shape}, which may mean two things: pass "
            "X[:, :, None] for one series of one channel per row, or [X] for one sequence."
        )
    if array.ndim > 3:
        raise InvalidInputError(
            f"X has {array.ndim} axes: an array of sequences has three, (n, T, d)."
        )
    if channels_first:
        array = array.swapaxes(1, 2)
    if not len(array):
        raise InvalidInputError(f"X has no sequences: pass {_ACCEPTED}.")
    _check_shapes(np.array([array.shape[1:]]), channels_first)
    array = array.astype(_float_type([array]), copy=False)
    padding = np.logical_and.accumulate(np.isnan(array).all(2)[:, ::-1], axis=1)[:, ::-1]
    padding[:, 0] = False  # a sequence of nothing but NaN keeps a frame
    return _finite(Sequences(array[~padding], _offsets((~padding).sum(1))))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _finite(sequences: Sequences, ids: np.ndarray | None = None) -> Sequences:
    infinite = np.isinf(sequences.frames).any(1)
    if infinite.any():
        place = int(np.searchsorted(sequences.offsets, np.argmax(infinite), side="right")) - 1
        which = f"sequence {place}" if ids is None else f"the sequence {_plain(ids[place])!r}"
        raise InvalidInputError(
            f"{which} contains infinity: clip it, or put NaN where the value is not known."
        )
    return sequences


# -- data frames -------------------------------------------------------------------------------


def _is_frame(X: ArrayLike) -> bool:
    return hasattr(X, "columns") and hasattr(X, "__getitem__")


def _check_columns(X: ArrayLike, id_column: str, time_column: str | None) -> list[ArrayLike]:
    """Names of the channels."""
    columns = list(X.columns)
    for parameter, name in (("id_column", id_column), ("time_column", time_column)):
        if name is not None and name not in columns:
            raise InvalidInputError(
                f"X has no column {name!r}; it has {columns}: name the right one by {parameter}."
            )
    twice = sorted({str(name) for name in columns if columns.count(name) > 1})
    if twice:
        raise InvalidInputError(f"X has several columns named {twice}: give each its own name.")
    return [name for name in columns if name not in (id_column, time_column)]


def _from_frame(X: ArrayLike, id_column: str, time_column: str | None) -> Sequences:
    channels = _check_columns(X, id_column, time_column)
    if not channels:
        raise InvalidInputError(
            f"X has no channels: its columns {list(X.columns)} are all spoken for."
        )
    ids, codes = _grouped(X, id_column)
    columns = [_channel(X[name]) for name in channels]
    wrong = [str(name) for name, column in zip(channels, columns, strict=True) if column is None]
    if wrong:
        raise InvalidInputError(
            f"the columns {wrong} do not hold numbers: encode or drop them, or name the one to "
            "sort by as time_column."
        )
    parts = [column for column in columns if column is not None]
    order = np.argsort(codes, kind="stable")
    if time_column is not None:
        order = np.lexsort((_ranks(X, time_column), codes))
    frames: np.ndarray = np.stack([part[order] for part in parts], axis=1, dtype=_float_type(parts))
    offsets = _offsets(np.bincount(codes))
    return _finite(Sequences(frames, offsets, [str(name) for name in channels]), ids)


def _grouped(X: ArrayLike, id_column: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids in the order of their first rows, and the place of each row's id among them."""
    ids = _complete(X, id_column)
    if not len(ids):
        raise InvalidInputError("X has no sequences: the data frame has no rows.")
    # Rows of an id mostly stand together: sort the runs, not the rows.
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    distinct, first, codes = _unique(ids[starts], id_column)
    order = np.argsort(first)
    codes = np.argsort(order)[codes]
    return distinct[order], np.repeat(codes, np.diff(np.append(starts, len(ids))))


def _ranks(X: ArrayLike, time_column: str) -> np.ndarray:
    return _unique(_complete(X, time_column), time_column)[2]


def _complete(X: ArrayLike, name: str) -> np.ndarray:
    """The values of a column where nothing may be missing."""
    values = np.asarray(X[name])
    missing = _missing(X[name], values)
    if missing.any():
        raise InvalidInputError(
            f"the column {name!r} has {int(missing.sum())} missing value(s), the first in row "
            f"{int(np.argmax(missing))}: fill them, or drop these rows."
        )
    return values


def _unique(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        return np.unique(values, return_index=True, return_inverse=True)
    except TypeError as error:
        raise InvalidInputError(
            f"the column {name!r} mixes values that have no order ({error}): make them all one "
            "type."
        ) from error


def _missing(column: ArrayLike, values: np.ndarray) -> np.ndarray:
    """Where a column, of which `values` is the array, has no value."""
    for question in ("isna", "is_null"):
        if values.dtype == object and hasattr(column, question):
            return np.asarray(getattr(column, question)(), dtype=bool)
    return values != values


def _channel(column: ArrayLike) -> np.ndarray | None:
    """Numbers, NaN where one is missing; None for a column of anything else."""
    values = np.asarray(column)
    if values.dtype == object:
        known = ~_missing(column, values)
        try:
            given = np.array(values[known].tolist())
            if given.ndim != 1 or given.dtype.kind not in "fiubO":
                return None
            values = np.full(len(values), np.nan)
            values[known] = given
        except (TypeError, ValueError):
            return None
    return values if values.dtype.kind in "fiub" else None


def _places(ids: np.ndarray, index: np.ndarray) -> np.ndarray | None:
    """Where each id stands in an index; None unless the index holds each of them once."""
    if index.ndim != 1 or len(index) != len(ids):
        return None
    place = {value: at for at, value in enumerate(index.tolist())}
    places = [place.get(value) for value in ids.tolist()]
    return None if len(place) < len(ids) or None in places else np.array(places)


def _plain(value: ArrayLike) -> ArrayLike:
    return value.item() if isinstance(value, np.generic) else value
