"""Sequences in Parquet files or chunks with one row per frame, which stay on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa

from mixtura.data.given import ArrayLike
from mixtura.data.lazy import Openable
from mixtura.data.long_frames import unique, warn_of_times
from mixtura.data.sequence_forms import Form
from mixtura.data.sequence_input import Sequences, finite, offsets_of
from mixtura.data.source import Reader, kind_of_arrow
from mixtura.data.streamed import Source
from mixtura.exceptions import InvalidInputError, UnsupportedError

#: What is known of sequences: their ids, lengths and frames, and what other columns say of each.
_Whole = tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]


def read_files(
    X: ArrayLike,
    id_column: str,
    time_column: str | None,
    answers: Sequence[str] = (),
    known: Sequence[str] | None = None,
) -> tuple[Sequences, dict[str, np.ndarray]]:
    """Sequences whose frames are in a temporary file, and what columns say of each of them.

    The rows of a sequence stand together. Memory is that of a block of rows, and of the longest
    sequence.

    Parameters
    ----------
    X : files as `mixtura.parquet.Source` takes them, or a `Source`.
    answers : columns that have one value per sequence, such as the label.
    known : channels that are read, where they are there; None: all other columns.
    """
    if isinstance(X, Openable) and not isinstance(X, Source):
        raise UnsupportedError(
            "sequences are learned from by one process: pass their files, or a "
            "mixtura.parquet.Source."
        )
    source = X if isinstance(X, Source) else Source(X)
    reader = Reader(source.given, source.columns, times=[time_column])
    other = [id_column, *([] if time_column is None else [time_column]), *answers]
    for name in other:
        if name not in reader.types:
            raise InvalidInputError(f"{reader.first} has no column {name!r}.")
    channels = [name for name in reader.types if name not in other]
    if known is not None:
        channels = [name for name in channels if name in known]
    elif time_column is None:
        warn_of_times(channels)
    _check_channels(channels, reader)
    parts: list[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]] = []
    with TemporaryFile() as file:
        for some, count, frames, told in _whole(reader, channels, id_column, time_column, answers):
            file.write(np.ascontiguousarray(frames).data)
            parts.append((some, count, told))
        file.flush()
        if not parts:
            raise InvalidInputError(f"{reader.first} has no sequences: there are no rows.")
        ids, lengths = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        offsets = offsets_of(lengths)
        shape = int(offsets[-1]), len(channels)
        mapped = np.asarray(np.memmap(file, np.float64, mode="r", shape=shape))
    known_ids, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise InvalidInputError(
            f"the rows of {id_column} {known_ids[counts > 1][0]!r} do not stand together: sort the "
            f"rows by {id_column!r}."
        )
    form = Form("long", "pandas", columns=(id_column, time_column))
    found = Sequences(mapped, offsets, channels, ids, form=form)
    return found, {name: np.concatenate([part[2][name] for part in parts]) for name in answers}


def _check_channels(channels: list[str], reader: Reader) -> None:
    """There are some, and they hold numbers."""
    if not channels:
        raise InvalidInputError(f"{reader.first} has no channels: all columns are spoken for.")
    wrong = [c for c in channels if kind_of_arrow(reader.types[c], c) == "text"]
    if wrong:
        raise InvalidInputError(
            f"the channels {wrong} hold words, and those of files hold numbers: name the columns "
            "to read, by Source(..., columns=), or pass a data frame."
        )


def _whole(
    reader: Reader, channels: list[str], who: str, when: str | None, answers: Sequence[str]
) -> Iterator[_Whole]:
    """Whole sequences, as many at a time as blocks of rows have."""
    kept: pa.Table | None = None
    for _, batch in reader.batches(reader.parts):
        table = pa.Table.from_batches([batch])
        table = table if kept is None else pa.concat_tables([kept, table])
        ids = _complete(table, who)
        last = len(ids) - int(np.argmax(ids[::-1] != ids[-1])) if (ids != ids[-1]).any() else 0
        if last:
            yield _sequences(table.slice(0, last), ids[:last], channels, when, answers)
        kept = table.slice(last)
    if kept is not None and len(kept):
        yield _sequences(kept, _complete(kept, who), channels, when, answers)


def _sequences(
    table: pa.Table, ids: np.ndarray, channels: list[str], when: str | None, answers: Sequence[str]
) -> _Whole:
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    lengths = np.diff(starts, append=len(ids))
    frames = np.stack([_numbers(table, name) for name in channels], 1)
    if when is not None:
        number = np.repeat(np.arange(len(starts)), lengths)
        frames = frames[np.lexsort((unique(_complete(table, when), when)[2], number))]
    finite(Sequences(frames, offsets_of(lengths)), ids[starts])
    told = {}
    for name in answers:
        values = _values(table, name)
        told[name] = values[starts]
        differs = ~_alike(values, np.repeat(told[name], lengths))
        if differs.any():
            raise InvalidInputError(
                f"the rows of the sequence {ids[np.argmax(differs)]!r} differ in {name!r}: a "
                "sequence has one label, and one weight."
            )
    return ids[starts], lengths, frames, told


def _values(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.to_numpy()


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """NaN where there is none."""
    return _values(table, name).astype(np.float64)


def _complete(table: pa.Table, name: str) -> np.ndarray:
    if table.column(name).null_count:
        raise InvalidInputError(
            f"the column {name!r} has missing values: fill them, or drop these rows."
        )
    return _values(table, name)


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays have the same, or both nothing."""
    return (one == other) | ((one != one) & (other != other))
