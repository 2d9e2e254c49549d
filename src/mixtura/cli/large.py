"""Tables that stay in Parquet files: too large to be read at once, or in many files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow.parquet import FileMetaData, ParquetFile

from mixtura.asking import marks_of, predictions, schema_of, target_of, text_columns
from mixtura.cli.columns import check_columns, note_replaced
from mixtura.cli.output import Facts
from mixtura.data.given import Loaded
from mixtura.data.lazy import files_named
from mixtura.data.source import Reader
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.files import as_text, check_place, without_marks
from mixtura.parquet import answers_to, write_tables

#: Numbers in a Parquet file from which on it is not read at once, and rows that tell what its
#: columns are.
_MOST, _LOOKED_AT = 2**26, 10_000


@dataclass(frozen=True)
class Large:
    """Parquet files that a path or pattern names, and how many rows they have."""

    pattern: str
    files: list[str]
    n_rows: int

    @classmethod
    def find(cls, path: Path) -> Large | None:
        """None for a file that is read at once."""
        if path.suffix.lower() not in (".parquet", ".pq"):
            return None
        pattern = str(path)
        files = files_named(pattern)
        sizes = [_metadata(each) for each in files]
        n_numbers = sum(size.num_rows * size.num_columns for size in sizes)
        if not files or (path.exists() and n_numbers <= _MOST):
            return None
        n_rows = sum(size.num_rows for size in sizes)
        if not n_rows:
            raise InvalidInputError(f"the files that {path} names have no rows.")
        return cls(pattern, files, n_rows)

    def head(self) -> pd.DataFrame:
        """The first rows."""
        return next(self._batches()).to_pandas()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for path in self.files:
            with ParquetFile(path) as file:
                yield from file.iter_batches(_LOOKED_AT)

    def predict(
        self,
        model: Loaded,
        out: Path,
        kept: list[str] | None,
        coverage: float | None,
        outliers: float | None,
        missing: Collection[str],
    ) -> Facts:
        """Write predictions beside the columns, chunk by chunk; and say what was predicted."""
        if out.suffix.lower() not in (".parquet", ".pq"):
            raise InvalidInputError(f"--out {out}: what is read from large files goes to .parquet.")
        check_place(out, *map(Path, self.files))
        counts, marks, head = Counter[str](), marks_of(model, missing), self.head()
        check_columns(head, kept or [], "--id")
        features = set(schema_of(model).names or ())
        reader = Reader(self.pattern, [*head.columns], times={*head.columns} - features)

        def answered(batch: pa.RecordBatch) -> pa.Table:
            frame = as_text(without_marks(batch.to_pandas(), marks), text_columns(model))
            X = frame.drop(columns=[target_of(model)], errors="ignore")
            found = predictions(model, X, coverage, outliers)
            if hasattr(model, "classes_"):
                counts.update(map(str, found["prediction"].tolist()))
            note_replaced(batch.schema.names, found)
            beside = [name for name in kept or batch.schema.names if name not in found]
            return pa.table(
                {name: batch.column(name) for name in beside}
                | {name: pa.array(column) for name, column in found.items()}
            )

        write_tables(answers_to(reader, answered), out)
        facts: Facts = {"rows": self.n_rows}
        return {**facts, "predicted": dict(counts)} if hasattr(model, "classes_") else facts


def _metadata(path: str) -> FileMetaData:
    try:
        return ParquetFile(path).metadata
    except (ValueError, OSError) as error:
        raise FileFormatError(f"{path} is damaged or no Parquet file ({error}).") from error
