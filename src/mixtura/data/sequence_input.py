"""What a user passes as sequences: lists of arrays, padded arrays, long data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing, column_or_1d

from mixtura.data.columns import decoded, plain, unmasked
from mixtura.data.given import ArrayLike
from mixtura.data.long_frames import (
    channel,
    check_columns,
    column_names,
    complete,
    grouped,
    is_frame,
    is_missing,
    places_of,
    unique,
    warn_of_gaps,
    warn_of_times,
)
from mixtura.data.schema import Categories
from mixtura.data.sequence_forms import Form, library_of, with_columns
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn

_ACCEPTED = (
    "a list of (T, d) arrays, an (n, T, d) array padded with NaN, a data frame with one row per "
    "frame, or what mixtura.sequences.from_panel and from_long make of panels and time stamps"
)
#: Arrays with so many times as many channels as frames are asked about.
_WIDE = 4


@dataclass(frozen=True)
class Sequences:
    """n sequences, the frames of one after those of another.

    frames : (F, D), NaN where missing.
    offsets : (n + 1,), sequence i holds the frames `offsets[i]` up to `offsets[i + 1]`.
    names : of the channels, where X was a data frame.
    categories : of each channel, sorted, which its frames have the codes of; None for numbers, and
        where all channels hold numbers.
    ids, times : (n,) of the sequences and (F,) of the frames, where X had them.
    form : what X was.
    rows : (F,) the row of a data frame that each frame was.
    """

    frames: np.ndarray
    offsets: np.ndarray
    names: list[str] | None = None
    ids: np.ndarray | None = None
    times: np.ndarray | None = None
    form: Form = field(default_factory=Form)
    rows: np.ndarray | None = None
    categories: Categories = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,): to scikit-learn's splitters, sequences are rows."""
        return (len(self),)

    def __getitem__(self, key: ArrayLike) -> ArrayLike:
        """The frames (T_i, d) of one sequence, or the sequences that a mask or integers choose."""
        key = key[0] if isinstance(key, tuple) else key
        if isinstance(key, Integral):
            return self.take(np.arange(len(self))[[int(key)]]).frames
        return self.take(key)

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each sequence, (n,)."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> np.ndarray:
        """The sequence of each frame, (F,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def moment(self) -> np.ndarray:
        """When each frame is in its sequence, from 0, (F,)."""
        return np.arange(len(self.frames)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, index: np.ndarray | slice) -> Sequences:
        """The sequences that a mask or integers choose."""
        chosen = np.arange(len(self))[index]
        lengths = self.lengths[chosen]
        offsets = offsets_of(lengths)
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return replace(
            self,
            frames=self.frames[at],
            offsets=offsets,
            ids=None if self.ids is None else self.ids[chosen],
            times=None if self.times is None else self.times[at],
            rows=None if self.rows is None else self.rows[at],
        )

    def cut(self, most: int) -> Sequences:
        """Pieces of the sequences, of at most so many frames, as sequences of their own."""
        count = -(-self.lengths // most)
        number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        starts = np.repeat(self.offsets[:-1], count) + most * number
        offsets = np.append(starts, self.offsets[-1])
        return Sequences(self.frames, offsets, self.names, categories=self.categories)

    @property
    def values(self) -> np.ndarray:
        """All frames, (F, D)."""
        return self.frames

    def with_values(self, values: np.ndarray) -> Self:
        """The same sequences with other frames, (F, D)."""
        return replace(self, frames=values)

    def where(self, frame: int) -> str:
        """A frame, in words."""
        place = int(np.searchsorted(self.offsets, frame, side="right")) - 1
        return f"frame {frame - self.offsets[place]} of sequence {place}"

    def without(self, far: np.ndarray) -> Self:
        """The same sequences with nothing known of some entries, a mask (F, D)."""
        return self.with_values(np.where(far, np.nan, self.frames))

    @property
    def unpadded_form(self) -> Form:
        """The form of other sequences like these, of any length."""
        return replace(self.form, length=0)

    def like(self, values: np.ndarray, X: ArrayLike) -> ArrayLike:
        """Other frames (F, D) in the form of X, which these sequences were read from."""
        if self.rows is None or not is_frame(X):
            return self.form.build(self.with_values(values))
        known, columns = {str(name): name for name in column_names(X)}, {}
        for at, name in enumerate(self.names or ()):
            if np.isnan(self.frames[:, at]).any():  # others stay as they are, to the type
                shown = decoded(values[:, at], self.categories_of(at))
                column = columns[known.get(name, name)] = np.empty(len(values), shown.dtype)
                column[self.rows] = shown
        return with_columns(X, columns)

    def categories_of(self, at: int) -> np.ndarray | None:
        """Those of one channel; None for numbers."""
        return None if self.categories is None else self.categories[at]

    def by_name(self) -> dict[str, np.ndarray]:
        """Each channel (F,) by its name, as a user knows it."""
        names = self.names or [str(at) for at in range(self.frames.shape[1])]
        every = enumerate(zip(names, self.frames.T, strict=True))
        return {name: decoded(values, self.categories_of(at)) for at, (name, values) in every}

    def split(self) -> list[np.ndarray]:
        """One (T_i, d) array per sequence."""
        return np.split(self.frames, self.offsets[1:-1])


def read_sequences(
    X: ArrayLike,
    *,
    channels_first: bool = False,
    id_column: str = "id",
    time_column: str | None = None,
    gaps: bool = False,
) -> Sequences:
    """Sequences in any of the forms that people keep them in; X itself is left alone.

    Parameters
    ----------
    X : list of (T_i, d) arrays, (n, T, d) array, data frame, or `Sequences`
        Sequences of an array end before the first of the wholly missing frames at their end. A data
        frame has one row per frame; sequences come in the order in which their ids appear first,
        and all columns that are not named below are channels.
    channels_first : bool
        Arrays are (d, T_i) or (n, d, T).
    id_column, time_column : str
        Of a data frame: which sequence a row belongs to, and what to sort its rows by; None leaves
        them in their order.
    gaps : bool
        Whether gaps in time are seen to; otherwise there is a warning where there are any.
    """
    if isinstance(X, Sequences):
        return X
    if is_frame(X):
        return _from_frame(X, id_column, time_column, gaps)
    if (entries := _entries(X)) is not None:
        return _from_list(entries, channels_first)
    return _from_array(as_array(X, "X"), channels_first)


def per_sequence(y: ArrayLike, X: ArrayLike, id_column: str = "id") -> ArrayLike:
    """Labels of the sequences in X, in the order in which `read_sequences` gives them.

    Labels of a data frame may come one per sequence (by id, where y is a series whose index are the
    ids) or one per frame.
    """
    if isinstance(X, Sequences) and y is not None and X.ids is not None:
        return _by_id(y, X.ids)
    if y is None or not is_frame(X):
        return y
    check_columns(X, id_column, None)
    ids, codes = grouped(X, id_column)
    y = _by_id(y, ids)
    labels = column_or_1d(y)
    if len(labels) == len(ids):
        return y
    if len(labels) != len(codes):
        raise InvalidInputError(
            f"y has {len(labels)} entries, but X has {len(ids)} sequences in {len(codes)} rows: "
            "give one label per sequence, in the order in which their ids appear, or one per row."
        )
    first = np.unique(codes, return_index=True)[1]
    known, theirs = ~is_missing(y, labels), first[codes]
    differs, both = known != known[theirs], known & known[theirs]
    differs[both] = labels[both] != labels[theirs[both]]
    if differs.any():
        odd = int(codes[differs].min())
        one, other = labels[first[odd]], labels[differs & (codes == odd)][0]
        raise InvalidInputError(
            f"the rows of {id_column} {plain(ids[odd])!r} carry different labels, "
            f"{plain(one)!r} and {plain(other)!r}: a sequence has one label."
        )
    return _safe_indexing(y, first)


def _by_id(y: ArrayLike, ids: np.ndarray) -> ArrayLike:
    """A series whose index are the ids in their order; anything else as it is."""
    index = getattr(y, "index", None)
    if index is None or callable(index):
        return y
    places = places_of(ids, np.asarray(index))
    if places is None:
        return y
    own = np.arange(len(ids))
    if np.array_equal(index, own) and not np.array_equal(places, own):
        warn(
            "y has pandas' own index, 0, 1, ..., and the ids of X are these numbers in another "
            "order: its entries are taken by id. Remedy, where they stand in the order in which "
            "ids appear: y.to_numpy(); else y[ids] with the ids in that order.",
            AmbiguousDataWarning,
        )
    return _safe_indexing(y, places)


# -- lists and arrays --------------------------------------------------------------------------


def _entries(X: ArrayLike) -> list[ArrayLike] | None:
    """The entries of a list or of an array of objects."""
    if isinstance(X, list | tuple):
        return list(X)
    if isinstance(X, torch.Tensor):
        return None
    array = np.asarray(X)
    return list(array) if array.dtype == object and array.ndim == 1 else None


def as_array(value: ArrayLike, name: str, words: bool = False) -> np.ndarray:
    """An array of real numbers, or an error that says what `name` is instead.

    With `words` also one of objects, some of which are text.
    """
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
        if words and array.ndim and _has_words(array):
            return np.asarray(unmasked(value), dtype=object)
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


def _has_words(array: np.ndarray) -> bool:
    cells = array.flat if array.dtype == object else ()
    return array.dtype.kind == "U" or any(isinstance(cell, str) for cell in cells)


def float_type(parts: Sequence[np.ndarray]) -> type:
    return np.float32 if all(part.dtype == np.float32 for part in parts) else np.float64


def _from_list(entries: list[ArrayLike], channels_first: bool) -> Sequences:
    if not entries:
        raise InvalidInputError(f"X has no sequences: pass {_ACCEPTED}.")
    parts = [_frames(entry, place, channels_first) for place, entry in enumerate(entries)]
    shapes = np.array([part.shape for part in parts])
    _check_shapes(shapes, channels_first)
    form, offsets = Form(channels_first=channels_first), offsets_of(shapes[:, 0])
    if any(part.dtype == object for part in parts):
        whole = np.concatenate([part.astype(object) for part in parts])
        frames, categories = _stacked(range(whole.shape[1]), whole.T)
    else:
        frames, categories = np.concatenate(parts, dtype=float_type(parts)), None
    return finite(Sequences(frames, offsets, form=form, categories=categories))


def _stacked(names: Sequence[object], columns: ArrayLike) -> tuple[np.ndarray, Categories]:
    """(F, D) numbers and codes of all channels, and their categories."""
    found = [channel(column) for column in columns]
    wrong = [str(name) for name, column in zip(names, found, strict=True) if column is None]
    if wrong:
        raise InvalidInputError(
            f"the channels {wrong} hold neither numbers alone nor words alone: encode or drop "
            "them, or name the column to sort by: layout=Layout(time_column=...)."
        )
    parts, categories = zip(*(column for column in found if column is not None), strict=True)
    coded = None if all(each is None for each in categories) else categories
    return np.stack(parts, axis=1, dtype=float_type(parts)), coded


def _frames(entry: ArrayLike, place: int, channels_first: bool) -> np.ndarray:
    """One sequence as (T, d)."""
    array = as_array(entry, f"sequence {place}", words=True)
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
            axes, other = ("(T, d)", "frames") if channels_first else ("(d, T)", "channels")
            hint = f"if they are {axes} arrays, set layout='{other}_first'"
            hint += "." if channels_first else ", or pass mixtura.sequences.from_panel(X)."
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
            "X[:, :, None], or mixtura.sequences.from_panel(X), for one series of one channel per "
            "row, or [X] for one sequence."
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
    length, width = array.shape[1:]
    if not channels_first and width >= _WIDE * length:
        warn(
            f"X has the shape {array.shape}, which is read as {length} frames of {width} channels. "
            "Remedy: if channels come first, as in aeon and sktime, pass "
            "mixtura.sequences.from_panel(X); if not, a list of its rows.",
            AmbiguousDataWarning,
        )
    array = array.astype(float_type([array]), copy=False)
    padding = np.logical_and.accumulate(np.isnan(array).all(2)[:, ::-1], axis=1)[:, ::-1]
    padding[:, 0] = False  # a sequence of nothing but NaN keeps a frame
    form = Form("array", channels_first=channels_first, length=length)
    return finite(Sequences(array[~padding], offsets_of((~padding).sum(1)), form=form))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def finite(sequences: Sequences, ids: np.ndarray | None = None) -> Sequences:
    infinite = np.isinf(sequences.frames).any(1)
    if infinite.any():
        place = int(sequences.owner[infinite.argmax()])
        which = f"sequence {place}" if ids is None else f"the sequence {plain(ids[place])!r}"
        raise InvalidInputError(
            f"{which} contains infinity: clip it, or put NaN where the value is not known."
        )
    return sequences


# -- data frames -------------------------------------------------------------------------------


def _from_frame(X: ArrayLike, id_column: str, time_column: str | None, gaps: bool) -> Sequences:
    channels = check_columns(X, id_column, time_column)
    if not channels:
        raise InvalidInputError(
            f"X has no channels: its columns {column_names(X)} are all spoken for."
        )
    ids, codes = grouped(X, id_column)
    frames, categories = _stacked(channels, [X[name] for name in channels])
    order, times = np.argsort(codes, kind="stable"), None
    offsets = offsets_of(np.bincount(codes))
    if time_column is not None:
        times = complete(X, time_column)
        order = np.lexsort((unique(times, time_column)[2], codes))
        times = times[order]
        if not gaps:
            warn_of_gaps(times, offsets)
    else:
        warn_of_times(channels)
    names = [str(name) for name in channels]
    form = Form("long", library_of(X), columns=(id_column, time_column))
    found = Sequences(frames[order], offsets, names, ids, times, form, order, categories)
    return finite(found, ids)
