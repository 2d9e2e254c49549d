"""Tables in Parquet files: `Source` gives estimators their rows, `write` takes their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from mixtura.data.given import ArrayLike
from mixtura.data.source import Reader
from mixtura.data.streamed import Source
from mixtura.exceptions import InvalidInputError
from mixtura.files import check_place, replacing

__all__ = ["Source", "write"]


def write(
    answer: Callable[[ArrayLike], ArrayLike],
    source: str | PathLike[str] | Source,
    target: str | PathLike[str],
    *,
    keep: Sequence[str] = (),
) -> None:
    """Write what a fitted model answers for the rows of a source into one Parquet file.

    Rows are read, answered for and written chunk by chunk; the file stands at its place once it is
    complete, and until then what stood there before does.

    Parameters
    ----------
    answer : a method of a fitted estimator, such as `model.predict_proba` or `model.impute`.
    source : a path or pattern of Parquet files, or a `Source`.
    target : path of the file. Its columns are those of a data frame that is answered, or are named
        for the method: one column, or one per class or component.
    keep : columns of the source to copy beside the answers, such as an identifier.
    """
    model = getattr(answer, "__self__", None)
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InvalidInputError(
            "answer must be a method of an estimator that was fitted to columns with names, such "
            "as model.predict_proba."
        )
    source = source if isinstance(source, Source) else Source(source)
    reader = Reader(source.given, source.columns, times={*keep} - {*names})
    check_place(Path(target), *(Path(part.path) for part in reader.parts if part.path))
    absent = [name for name in keep if name not in reader.types]
    if absent:
        raise InvalidInputError(f"{reader.first} has no column {absent[0]!r} to keep.")
    known = [name for name in names if name in reader.types]

    def answered(batch: pa.RecordBatch) -> pa.Table:
        found = _columns(answer, model, answer(batch.select(known).to_pandas()))
        if twice := [name for name in keep if name in found]:
            raise InvalidInputError(f"keep={twice}: answers have that name; rename the column.")
        return pa.Table.from_pydict({name: batch.column(name) for name in keep} | found)

    write_tables(answers_to(reader, answered), target)


def answers_to(
    reader: Reader, answered: Callable[[pa.RecordBatch], pa.Table]
) -> Iterator[pa.Table]:
    """What is answered for the rows of all parts; what is wrong with rows is said with their place.

    A column that is text in all files is no dictionary in the answers.
    """
    for place, batch in reader.batches(reader.parts):
        columns = {name: _plain(batch.column(name)) for name in batch.schema.names}
        try:
            yield answered(pa.RecordBatch.from_pydict(columns))
        except InvalidInputError as error:
            raise InvalidInputError(f"{place}: {error}") from error


def write_tables(tables: Iterable[pa.Table], target: str | PathLike[str]) -> None:
    """Write tables, one below the other, into one file; its types are those of the first."""
    with replacing(target) as path:
        writer = None
        try:
            for table in tables:
                writer = writer or ParquetWriter(path, table.schema)
                writer.write_table(_as_first(table, writer.schema))
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InvalidInputError("the files or chunks have no rows to answer for.")


def _columns(
    answer: Callable[..., ArrayLike], model: object, found: ArrayLike
) -> dict[str, pa.Array]:
    """Answers by the names of their columns."""
    if hasattr(found, "iloc"):
        table = pa.Table.from_pandas(found, preserve_index=False).unify_dictionaries()
        return {name: _plain(table.column(name)) for name in table.column_names}
    found, name = np.asarray(found), getattr(answer, "__name__", "answer")
    if found.ndim == 1:
        return {name: pa.array(found)}
    classes = getattr(model, "classes_", ())
    labels = classes if len(classes) == found.shape[1] else range(found.shape[1])
    return {f"{name}_{label}": pa.array(each) for label, each in zip(labels, found.T, strict=True)}


def _as_first(table: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        return table.cast(schema)
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"not all rows fit the types of the first ones ({str(error).splitlines()[0]}): give "
            "each column one type in all files."
        ) from error


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Categories as the text that they are: those of other chunks may be others."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
