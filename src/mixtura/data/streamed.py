"""Rows that are read from a source anew on every pass: one scan to know them, then blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, cycle
from os import PathLike
from typing import Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from mixtura.data.columns import check_kind, codes_of, distinct, kind_of
from mixtura.data.given import ArrayLike
from mixtura.data.kept import Kept
from mixtura.data.labels import CodedLabels
from mixtura.data.lazy import LazyRows, Marked, Openable, Opened
from mixtura.data.names import chosen_columns
from mixtura.data.schema import Schema
from mixtura.data.source import Reader, kind_of_arrow
from mixtura.exceptions import InvalidInputError

#: Rows that are put together out of columns while they are in the cache.
_CACHED = 4_096
#: Numbers in the window of rows that minibatches are drawn from; and of a block, at least.
_WINDOW, _BLOCK = 2**23, 2**18

_Block = tuple[int, np.ndarray]


class Source(Openable):
    """A table that is read in parts, again on every pass, and never in memory as a whole.

    Estimators that learn from sums over rows take it in place of X; y and sample_weight are then
    names of columns, or arrays.

    Parameters
    ----------
    given : a path of a Parquet file, a pattern such as `rows/*.parquet`, or a list of these; or
        whatever gives the same chunks each time it is gone through: Arrow record batches or tables,
        data frames of pandas or polars, dictionaries of columns; or a data set whose
        `iter(batch_size=...)` gives such dictionaries, as those of Hugging Face's datasets do.
    columns : names of those that are read, labels and weights included; None reads all.
    """

    def __init__(
        self, given: str | PathLike[str] | Iterable[ArrayLike], columns: Sequence[str] | None = None
    ) -> None:
        self.given, self.columns = given, columns
        self._share: tuple[int, int] | None = None

    def share(self, rank: int, size: int) -> Source:
        """The row groups of one process of `size`, for a `mixtura.distributed.Shard` of it."""
        part = copy(self)
        part._share = rank, size
        return part

    def opened(
        self, y: ArrayLike, sample_weight: ArrayLike, categorical_features: ArrayLike
    ) -> Opened:
        reader, answers, names = self._reader_and_names(y, sample_weight)
        types = reader.types
        chosen = chosen_columns(categorical_features, names, len(names))
        columns = [_Column(name, types[name], at in chosen) for at, name in enumerate(names)]
        if not columns:
            raise InvalidInputError(f"there is no column beside {', '.join(map(repr, answers))}.")
        weights = {*_names(sample_weight, types)} - {*_names(y, types)}
        kept = {name: _Answers(types[name], name, name in weights) for name in answers}
        scan = _Scan(columns, kept)
        counts = [sum(map(scan.add, reader.batches([part]))) for part in reader.parts]
        schema = scan.schema() if sum(counts) else Schema(names)
        rows = StreamedRows(reader, columns, counts, scan.has_missing)
        labels, weight = (scan.answer(each) for each in (y, sample_weight))
        return Opened(rows, schema.with_empty(rows), labels, _plain(weight))

    def parts(
        self, y: ArrayLike, sample_weight: ArrayLike
    ) -> Iterator[tuple[ArrayLike, ArrayLike, ArrayLike]]:
        if any(not isinstance(each, str | None) for each in (y, sample_weight)):
            raise InvalidInputError("y and sample_weight of a stream are names of its columns.")
        reader, answers, names = self._reader_and_names(y, sample_weight)
        frame = None
        for _, batch in reader.batches(reader.parts):
            frame = batch.to_pandas()
            given = (frame[each] if each in answers else None for each in (y, sample_weight))
            yield frame[list(names)], *given
        if frame is None:
            raise InvalidInputError("the files or chunks have no rows: pass some that have.")

    def _reader_and_names(
        self, y: ArrayLike, sample_weight: ArrayLike
    ) -> tuple[Reader, list[str], tuple[str, ...]]:
        """What reads the rows, the columns of labels and weights, and all others."""
        reader = Reader(self.given, self.columns, self._share)
        answers = [*_names(y, reader.types), *_names(sample_weight, reader.types)]
        for name in answers:
            if name not in reader.types:
                raise InvalidInputError(
                    f"{reader.first} has no column {name!r} for y or sample_weight, but "
                    f"{', '.join(map(repr, reader.types))}."
                )
        return reader, answers, tuple(name for name in reader.types if name not in answers)


@dataclass
class _Column:
    """A column of features: numbers, or categories once these are known."""

    name: str
    type: pa.DataType
    chosen: bool
    categories: np.ndarray | None = None
    seen: pa.Array | None = None
    n_observed: int = 0
    low: float = np.inf
    high: float = -np.inf

    def __post_init__(self) -> None:
        self.kind = kind_of_arrow(self.type, self.name)

    @property
    def label(self) -> str:
        return f"column {self.name!r}"

    @property
    def coded(self) -> bool:
        """Whether it holds categories."""
        return self.chosen or self.kind in ("text", "booleans")

    def look(self, column: pa.Array) -> None:
        """Take note of the categories."""
        encoded = _encoded(column)
        found = encoded.dictionary.take(encoded.indices.unique().drop_null())
        self.n_observed += len(column) - column.null_count
        if self.seen is not None:
            found = pa.concat_arrays([self.seen, found.cast(self.seen.type)])
        self.seen = found.unique()

    def widen(self, numbers: np.ndarray) -> bool:
        """Take note of the range of numbers (n,); whether one of them is NaN."""
        missing = bool(np.isnan(numbers.min(initial=np.inf)))
        low, high = (np.fmin, np.fmax) if missing else (np.minimum, np.maximum)  # these are faster
        self.low = min(self.low, float(low.reduce(numbers, initial=np.inf)))
        self.high = max(self.high, float(high.reduce(numbers, initial=-np.inf)))
        return missing

    @property
    def range(self) -> tuple[float, float]:
        """The least and largest number, or code of a category."""
        if self.categories is None:
            return self.low, self.high
        return 0.0, len(self.categories) - 1.0

    def learn(self) -> None:
        """The categories are those seen so far."""
        if self.coded and self.seen is not None:
            self.categories, _ = distinct(self.kind, self._values(self.seen), self.label)

    def _values(self, distinct: pa.Array) -> ArrayLike:
        if self.kind == "text":
            return distinct.to_pylist()
        whole = pa.types.is_integer(distinct.type)
        return distinct.to_numpy(zero_copy_only=False) if whole else _floats(distinct)

    def read(self, column: pa.Array) -> np.ndarray:
        """(n,) numbers or codes, NaN where missing."""
        if self.categories is None:
            return _floats(column)
        encoded = _encoded(column)
        codes, _, strange = codes_of(
            self.kind, self._values(encoded.dictionary), self.categories, self.label
        )
        if strange:
            raise InvalidInputError(
                f"{self.label} holds {strange[0]!r}, and did not in the first pass: rows must stay "
                "as they are."
            )
        places = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        return np.append(codes, np.nan)[places]


@dataclass
class _Scan:
    """What one pass over all rows tells about the columns."""

    columns: list[_Column]
    answers: dict[str, _Answers]
    has_missing: bool = False

    def add(self, placed: tuple[str, pa.RecordBatch]) -> int:
        """Take note of a batch, of so many rows."""
        place, batch = placed
        for name, answers in self.answers.items():
            answers.add(batch.column(name), place)
        for column in self.columns:
            values = batch.column(column.name)
            self.has_missing |= values.null_count > 0
            if column.coded:
                column.look(values)
            if column.kind == "numbers":
                self.has_missing |= column.widen(_floats(values))
                if column.low == -np.inf or column.high == np.inf:
                    raise InvalidInputError(
                        f"{place}: {column.label} holds infinity: put NaN where a value is missing."
                    )
        return len(batch)

    def answer(self, given: ArrayLike) -> ArrayLike:
        """Labels, targets or weights that were given by name; others as they are."""
        names = _names(given, self.answers)
        if len(names) < 2:
            return self.answers[names[0]].found() if names else given
        found = [self.answers[name].found() for name in names]
        return np.column_stack([_plain(each) for each in found])

    def schema(self) -> Schema:
        """Names, and the categories that were seen."""
        for column in self.columns:
            column.learn()
        observed = {at: each.n_observed for at, each in enumerate(self.columns) if each.coded}
        names = tuple(each.name for each in self.columns)
        return Schema.of(names, [each.categories for each in self.columns], observed)


@dataclass
class _Answers:
    """A column of labels or weights, which are kept; labels of a few kinds as small numbers."""

    type: pa.DataType
    name: str
    weighs: bool
    _kept: Kept = field(default_factory=Kept)
    _codes: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = kind_of_arrow(self.type, self.name)
        self.coded = not self.weighs and (kind != "numbers" or pa.types.is_integer(self.type))
        if self.weighs and kind == "text":
            raise InvalidInputError(
                f"the column {self.name!r} of weights is of the type {self.type}: weights are "
                "numbers."
            )

    def add(self, column: pa.Array, place: str) -> None:
        """Keep those of a batch, which stands at `place`."""
        if self.coded:
            column = _decoded(column)  # a dictionary may have labels that no row has
            encoded = column.dictionary_encode()
            known = [*encoded.dictionary.to_pylist(), *([None] if column.null_count else [])]
            codes = np.array([self._codes.setdefault(value, len(self._codes)) for value in known])
            places = encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
            self._kept.add(codes.astype(np.min_scalar_type(len(self._codes)))[places])
            return
        numbers = _floats(column)
        odd = np.isinf(numbers) | (~(numbers >= 0) if self.weighs else False)
        if odd.any():
            wanted = "weights are finite and not negative" if self.weighs else "leave such rows out"
            raise InvalidInputError(
                f"{place}: column {self.name!r} holds {numbers[odd][0]}: {wanted}."
            )
        self._kept.add(numbers)

    def found(self) -> ArrayLike:
        values = self._kept.whole()
        if not self.coded:
            return values
        labels = [*self._codes]
        whole = all(isinstance(label, int) for label in labels)
        return CodedLabels(np.array(labels, dtype=None if whole else object), values)


class StreamedRows(LazyRows):
    """Rows of files or chunks. One block of them is in memory, and one thread reads the next.

    Rows are read forward: what lies behind is read anew, from the beginning of its part. A window
    that minibatches are drawn from is in memory beside.
    """

    def __init__(
        self, reader: Reader, columns: list[_Column], counts: list[int], has_missing: bool
    ) -> None:
        single = all(each.type == pa.float32() and not each.coded for each in columns)
        dtype = np.dtype(np.float32 if single else np.float64)
        super().__init__((sum(counts), len(columns)), dtype)
        self.has_missing = has_missing
        self._columns = columns
        self._edges = np.append(0, np.cumsum(counts))
        self._cursor = _Cursor(_Blocks(reader, columns, self._edges, dtype))
        self._window: _Window | None = None

    @property
    def range_here(self) -> np.ndarray | None:
        if self._order is not None:
            return None
        return np.array([column.range for column in self._columns]).T

    def recode(self, schema: Schema) -> None:
        """Take other categories, among which are those of these rows."""
        every = schema.categories or [None] * len(self._columns)
        for column, categories in zip(self._columns, every, strict=True):
            check_kind(column.kind, kind_of(categories), column.label)
            column.categories = categories
        self._cursor.forget()

    def view(self, index: np.ndarray | Marked) -> Self:
        part = super().view(index)
        part._window = None
        return part

    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            first, last, _ = index.indices(self._whole[0])
            pieces = [np.empty((0, self._whole[1]), self.dtype)] if first >= last else []
            while first < last:
                start, values = self._cursor.block_at(first)
                pieces.append(values[first - start : last - start])
                first = start + len(values)
            return _joined(pieces)
        order = None if (index[1:] >= index[:-1]).all() else np.argsort(index, kind="stable")
        wanted = index if order is None else index[order]
        found = np.empty((len(index), self._whole[1]), self.dtype)
        done = 0
        while done < len(wanted):
            start, values = self._cursor.block_at(int(wanted[done]))
            end = int(np.searchsorted(wanted, start + len(values)))
            here = slice(done, end) if order is None else order[done:end]
            found[here] = values[wanted[done:end] - start]
            done = end
        return found

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        if self._window is not None and not isinstance(index, slice):
            found = self._window.rows(index)
            if found is not None:
                return found
        return super().__getitem__(index)

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Parts come in random order; a window goes over them, and within it order is random."""
        edges = self._edges
        if self._order is not None:
            edges = np.searchsorted(self._order, self._edges)
        stretches = [
            (int(edges[part]), int(edges[part + 1]))
            for part in torch.randperm(len(edges) - 1, generator=generator).tolist()
        ]
        most = max(1, _WINDOW // (self._whole[1] * size)) * size
        for pieces in _windows(stretches, most):
            self._window = _Window.of(pieces, super().__getitem__)
            positions = torch.from_numpy(self._window.positions)
            yield from positions[torch.randperm(len(positions), generator=generator)].split(size)
        self._window = None


@dataclass(frozen=True)
class _Window:
    """Rows in memory: their positions, ascending, and values."""

    positions: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, pieces: list[tuple[int, int]], read: Callable[[slice], np.ndarray]) -> _Window:
        """Stretches of rows, read in the given order."""
        parts = {first: read(slice(first, last)) for first, last in pieces}
        positions = np.concatenate([np.arange(*piece) for piece in sorted(pieces)])
        return cls(positions, np.concatenate([parts[first] for first, _ in sorted(pieces)]))

    def rows(self, index: np.ndarray) -> np.ndarray | None:
        """The rows at these positions; None if one of them is not here."""
        place = np.searchsorted(self.positions, index).clip(max=len(self.positions) - 1)
        return self.values[place] if np.array_equal(self.positions[place], index) else None


def _windows(stretches: list[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    """Stretches one after another, cut so that each window has `most` rows, but for the last."""
    window: list[tuple[int, int]] = []
    room = most
    for first, last in stretches:
        while last - first >= room:
            yield [*window, (first, first + room)]
            first, window, room = first + room, [], most
        if last > first:
            window.append((first, last))
            room -= last - first
    if window:
        yield window


@dataclass(frozen=True)
class _Blocks:
    """Reads the rows of parts, which begin and end at `edges`.

    Attributes
    ----------
    goes_round : whether the first block follows the last, so that it is at hand when the next pass
        begins: in files, which nobody sees being read.
    """

    reader: Reader
    columns: list[_Column]
    edges: np.ndarray
    dtype: np.dtype

    @property
    def goes_round(self) -> bool:
        return any(part.path is not None for part in self.reader.parts)

    def since(self, part: int) -> Iterator[_Block]:
        """Where blocks begin, and their rows, from the beginning of a part on.

        Small parts share one; where that has all rows, there is no other.
        """
        every, waiting = range(len(self.reader.parts)), list[np.ndarray]()
        start = read = int(self.edges[part])
        for number in chain(every[part:], cycle(every) if self.goes_round else ()):
            for values in self._of(number):
                waiting.append(values)
                read += len(values)
                if (read - start) * len(self.columns) >= _BLOCK:
                    yield start, _joined(waiting)
                    start, waiting = read, []
            first, now = (int(end - self.edges[number]) for end in (self.edges[number + 1], read))
            if first != now:
                raise InvalidInputError(
                    f"{self.reader.parts[number].name}: {first} rows in the first pass, and "
                    f"{now} now. Rows must stay as they are."
                )
            if number == every[-1]:
                if waiting:
                    yield start, _joined(waiting)
                    if not start:
                        return
                start, read, waiting = 0, 0, []

    def _of(self, number: int) -> Iterator[np.ndarray]:
        """The rows of a part, some at a time."""
        names = [column.name for column in self.columns]
        for _, batch in self.reader.batches([self.reader.parts[number]], names):
            columns = [column.read(batch.column(column.name)) for column in self.columns]
            values = np.empty((len(batch), len(columns)), self.dtype)
            for first in range(0, len(batch), _CACHED):  # so many rows stay in a core's cache
                some = slice(first, first + _CACHED)
                for at, column in enumerate(columns):
                    values[some, at] = column[some]
            yield values


class _Cursor:
    """A place in the rows: one block is at hand, and the next is being read."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks, self._thread = blocks, ThreadPoolExecutor(1)
        self.forget()

    def forget(self) -> None:
        """Read anew: what rows hold, or mean, is another."""
        self._next: Future[_Block] | None = None
        self._at: _Block = (0, np.empty((0, 0)))

    def block_at(self, row: int) -> _Block:
        """The block that holds a row."""
        edges = self._blocks.edges
        if not 0 <= row < edges[-1]:
            raise IndexError(f"there is no row {row} among {edges[-1]}.")
        part = int(np.searchsorted(edges, row, side="right")) - 1
        start, values = self._at
        if start <= row < start + len(values):
            return self._at
        end = start + len(values)
        end = 0 if self._blocks.goes_round and end == edges[-1] else end
        if self._next is None or row < end or edges[part] > end:
            self._reading = self._blocks.since(part)
            self._next = self._thread.submit(next, self._reading)
            start, values = self._at = (int(edges[part]), values[:0])
        while not start <= row < start + len(values):
            try:
                start, values = self._at = self._next.result()
            except BaseException:
                self._next = None
                raise
            self._next = self._thread.submit(next, self._reading, self._at)
        return self._at


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _names(given: ArrayLike, known: Collection[str]) -> list[str]:
    """The columns that are meant: a name, or several different ones that are known."""
    if isinstance(given, str):
        return [given]
    listed = given if isinstance(given, list | tuple) else ()
    names = [each for each in listed if isinstance(each, str) and each in known]
    return names if len({*names}) == len(listed) else []


def _plain(found: ArrayLike) -> ArrayLike:
    return found.plain() if isinstance(found, CodedLabels) else found


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _floats(column: pa.Array) -> np.ndarray:
    """Numbers, NaN where there is none."""
    column = _decoded(column)
    if column.null_count or not pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)  # long numbers are rounded, as in memory
    return column.to_numpy(zero_copy_only=False)
