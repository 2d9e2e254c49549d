"""Where rows come from that are read anew on every pass: Parquet files, or chunks of tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from os import fspath, stat
from pathlib import Path

from mixtura.data.columns import BOOLEANS, NUMBERS, TEXT, name_of_type
from mixtura.data.given import ArrayLike
from mixtura.data.lazy import files_named, is_path
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.files import INDEX, check_file

try:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData, ParquetFile, read_metadata
except ImportError:
    raise ImportError(
        "Rows in files and chunks are read by pyarrow: pip install 'mixtura[parquet]'."
    ) from None

#: Numbers that are read together, and rows of data sets that are asked for.
_BLOCK, _ROWS = 2**20, 10_000


@dataclass(frozen=True)
class Part:
    """Rows that are read one after another.

    Attributes
    ----------
    name : for messages.
    path, group : of a row group of a Parquet file; None: all chunks of an iterable.
    n_rows : of a row group.
    """

    name: str
    path: str | None = None
    group: int = 0
    n_rows: int = 0


class Reader:
    """Reads files or chunks in parts; all must have the columns of the first, and their types.

    Attributes
    ----------
    parts : in their order.
    types : by name of the column.
    first : where the first part stands, for messages.
    """

    def __init__(
        self,
        given: ArrayLike,
        columns: Sequence[str] | None = None,
        share: tuple[int, int] | None = None,
        times: Collection[str | None] = (),
    ) -> None:
        """Open all files; the parts are all, or the `share` (rank, size) of one process.

        Columns of `times` may have any type, and so may those that are copied.
        """
        if columns is not None and (isinstance(columns, str) or not len(columns)):
            raise InvalidInputError(f"columns={columns!r}: give a list of names, or None for all.")
        self._columns, self._times = None if columns is None else list(columns), times
        self._chunks: Iterable[ArrayLike] = ()
        self._last_footer: tuple[object, FileMetaData | None] = None, None
        self.types: dict[str, pa.DataType] = {}
        self.first = ""
        listed = [given] if is_path(given) or _is_table(given) else given
        if callable(getattr(listed, "iter", None)):
            listed = _Batches(listed)
        if isinstance(listed, list | tuple) and listed and all(map(is_path, listed)):
            self.parts = [part for path in _found(listed) for part in self._opened(path)]
        elif not isinstance(listed, Iterable):
            raise InvalidInputError(
                f"rows cannot be read from this {type(given).__name__}: pass files, a table, or a "
                "list of tables."
            )
        elif iter(listed) is listed:
            raise InvalidInputError(
                f"rows are gone through several times, and a {type(given).__name__} gives them "
                "once: pass a list, or an object whose __iter__ begins anew."
            )
        else:
            self._chunks, self.parts = listed, [Part("chunks")]
            for place, batch in self._arrow(self.parts[0]):
                self._check(batch.schema, place)
                break
        if not self.types:
            raise InvalidInputError("the source has no chunks: pass one that has.")
        if share is not None:
            self.parts = self._share(*share)

    def _share(self, rank: int, size: int) -> list[Part]:
        """The row groups of one process: about as many rows as others have, side by side."""
        if self._chunks:
            raise InvalidInputError(
                "chunks cannot be shared out among processes: give each its own, by "
                "Shard(Source(...))."
            )
        ends = list(accumulate(part.n_rows for part in self.parts))
        middles = [end - part.n_rows / 2 for end, part in zip(ends, self.parts, strict=True)]
        owners = [int(size * middle / max(ends[-1], 1)) for middle in middles]
        return [part for part, owner in zip(self.parts, owners, strict=True) if owner == rank]

    def _opened(self, path: str) -> list[Part]:
        """The row groups of a file, which must have the columns of those before it."""
        try:
            with ParquetFile(path) as file:
                self._check(file.schema_arrow, path)
                found = file.metadata
                sizes = [found.row_group(each).num_rows for each in range(found.num_row_groups)]
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise FileFormatError(f"{path} cannot be read as Parquet: {_line(error)}") from error
        return [
            Part(f"{path}, row group {group}", path, group, size)
            for group, size in enumerate(sizes)
        ]

    def _check(self, schema: pa.Schema, place: str) -> None:
        """Refuse columns, or types of them, that are not those of the first part."""
        found = dict(zip(schema.names, schema.types, strict=True))
        if len(found) < len(schema.names):
            raise InvalidInputError(f"{place} has several columns of one name.")
        if self._columns is None:  # pandas' numbers of rows are no column of its data frames
            found = {name: kind for name, kind in found.items() if not INDEX.fullmatch(name)}
        wanted = self._columns or list(self.types or found)
        for name in wanted:
            if name not in found:
                raise InvalidInputError(
                    f"{place} has no column {name!r}, but {', '.join(map(repr, found))}."
                )
        if not self.types:
            self.types, self.first = {name: found[name] for name in wanted}, place
        strange = [name for name in found if name not in self.types]
        if strange and self._columns is None:
            raise InvalidInputError(
                f"{place} has columns that {self.first} does not have "
                f"({', '.join(map(repr, strange))}): name those to read, by Source(..., columns=)."
            )
        for name in wanted:
            self._check_type(name, found[name], place)

    def _check_type(self, name: str, found: pa.DataType, place: str) -> None:
        """Refuse a column of another type than before; one without values has any type."""
        both = (self.types[name], self.first), (found, place)
        kinds = [self._kind(kind, name, where) for kind, where in both]
        if kinds[0] == "nothing" and not self._chunks:
            self.types[name] = found
        elif kinds[1] not in (kinds[0], "nothing"):
            raise InvalidInputError(
                f"column {name!r} is of the type {found} in {place}, and {self.types[name]} in "
                f"{self.first}: give it one type everywhere."
            )

    def _kind(self, given: pa.DataType, name: str, place: str = "") -> str:
        return str(given) if name in self._times else kind_of_arrow(given, name, place)

    def batches(
        self, parts: Iterable[Part], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Some parts, one after another, in record batches; and where each stands, for messages."""
        names = columns or list(self.types)
        for part in parts:
            for place, batch in self._arrow(part, names):
                if part.path is None:
                    self._check(batch.schema, place)
                yield place, self._typed(batch, names)

    def _typed(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Columns to read; those without a value have the type that they have elsewhere."""
        found = {name: batch.column(name) for name in names}
        empty = [name for name, column in found.items() if pa.types.is_null(column.type)]
        found |= {name: found[name].cast(self.types[name]) for name in empty}
        return pa.RecordBatch.from_pydict(found)

    def _footer(self, path: str) -> FileMetaData:
        """What the end of a file says of its row groups: read once for all of them."""
        now = stat(path)
        key = path, now.st_mtime_ns, now.st_size
        last, footer = self._last_footer
        if footer is None or last != key:
            footer = read_metadata(path)
            self._last_footer = key, footer
        return footer

    def _arrow(self, part: Part, names: Sequence[str] = ()) -> Iterator[tuple[str, pa.RecordBatch]]:
        size = max(1_024, _BLOCK // max(len(names), 1))
        if part.path is None:
            for number, chunk in enumerate(self._chunks):
                for batch in _as_arrow(chunk, number).to_batches(max_chunksize=size):
                    yield f"chunk {number}", batch
            return
        text = [name for name in names if self._kind(self.types[name], name) == "text"]
        size = ceil(part.n_rows / max(1, ceil(part.n_rows / size)))  # batches of equal sizes
        options = {"read_dictionary": text, "pre_buffer": False}
        try:
            with ParquetFile(part.path, metadata=self._footer(part.path), **options) as file:
                for batch in file.iter_batches(
                    max(1, size), row_groups=[part.group], columns=names, use_threads=False
                ):
                    yield part.name, batch
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{part.name} cannot be read: {_line(error)}") from error


def kind_of_arrow(given: pa.DataType, name: str, place: str = "") -> str:
    """What a column of an Arrow type holds: numbers, text, booleans or nothing.

    `place` says where it stands, for messages.
    """
    value = getattr(given, "value_type", given) if str(given).startswith("dictionary") else given
    type_name = name_of_type(value)
    for kind, names in (("numbers", NUMBERS), ("text", TEXT), ("booleans", BOOLEANS)):
        if type_name in names:
            return kind
    if type_name == "null":
        return "nothing"
    raise InvalidInputError(
        f"column {name!r} is of the type {given}{place and f' in {place}'}, which is neither "
        "numbers nor categories: turn it into a number or a category, or leave it out by "
        "Source(..., columns=)."
    )


def _found(given: Sequence[ArrayLike]) -> list[str]:
    """The files that paths and patterns name."""
    found = []
    for each in given:
        if not (files := files_named(each)):
            raise InvalidInputError(
                f"no file is named {fspath(each)!r}: give a path, or a pattern."
            )
        for file in files:
            check_file(Path(file))
        found += files
    return found


@dataclass(frozen=True)
class _Batches:
    """A data set like those of Hugging Face, many rows at a time: `iter` gives columns by name."""

    given: ArrayLike

    def __iter__(self) -> Iterator[ArrayLike]:
        return iter(self.given.iter(batch_size=_ROWS))


def _is_table(given: ArrayLike) -> bool:
    """Whether this is what a chunk may be."""
    frame = hasattr(given, "iloc") or hasattr(given, "to_arrow")
    return frame or isinstance(given, pa.RecordBatch | pa.Table | dict)


def _as_arrow(chunk: ArrayLike, number: int) -> pa.Table:
    if isinstance(chunk, pa.RecordBatch):
        return pa.Table.from_batches([chunk])
    if hasattr(chunk, "to_arrow"):
        return chunk.to_arrow()
    if hasattr(chunk, "iloc"):
        return pa.Table.from_pandas(chunk, preserve_index=False)
    if isinstance(chunk, pa.Table):
        return chunk
    if isinstance(chunk, dict):
        try:
            return pa.table({name: _column(values) for name, values in chunk.items()})
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidInputError(
                f"chunk {number} is no table ({_line(error)}): give it columns of equal lengths, "
                "each of one type."
            ) from error
    raise InvalidInputError(
        f"chunk {number} is a {type(chunk).__name__}: chunks are Arrow record batches or tables, "
        "data frames of pandas or polars, or dictionaries of columns."
    )


def _column(values: ArrayLike) -> ArrayLike:
    """A column; in lists and arrays of Python's objects, NaN beside text is nothing, too."""
    objects = (
        isinstance(values, list | tuple)
        or getattr(getattr(values, "dtype", None), "kind", "") == "O"
    )
    return pa.array(values, from_pandas=True) if objects else values


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
