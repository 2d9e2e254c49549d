"""Tables as files: read into data frames of pandas, and written whole or not at all."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import uuid
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from mixtura.exceptions import AmbiguousDataWarning, FileFormatError, InvalidInputError, warn

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: What a file is, by how its name ends; all else is read as text.
_KINDS = {
    **dict.fromkeys([".parquet", ".pq"], "parquet"),
    **dict.fromkeys([".arrow", ".feather", ".ipc"], "arrow"),
    **dict.fromkeys([".xlsx", ".xlsm", ".xls"], "excel"),
    **dict.fromkeys([".csv", ".tsv", ".txt"], "text"),
}
_NO_TABLES = {".json", ".jsonl", ".ndjson", ".xml", ".html", ".pkl", ".npy", ".npz"}
#: Packages that a kind needs beside pandas.
_NEEDS = {"parquet": ("pyarrow",), "arrow": ("pyarrow",), "excel": ("openpyxl",)}
_DELIMITERS = ",;\t|"
#: Letters that are looked at for delimiters, and lines of them; bytes that are decoded at a time.
_SAMPLE, _LINES, _BLOCK = 2**18, 100, 2**20
#: Letters that no line has more of.
_LONGEST = 2**26
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: What pandas names a column of the numbers that rows had: it is none of its data frames.
INDEX = re.compile(r"__index_level_\d+__")
_COMMA_NUMBER, _POINT_NUMBER = re.compile(r"-?\d+,\d+"), re.compile(r"-?\d+\.\d+")
#: Numbers whose thousands are set apart, by the mark that does it.
_GROUPED = {
    ",": r"\s*[-+]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d*)?\s*",
    ".": r"\s*[-+]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d*)?\s*",
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside `path` to write to; that file takes its place when the block ends well."""
    target = Path(path)
    check_place(target)
    fresh = target.with_name(f".{uuid.uuid4().hex}.{target.name}")
    try:
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except OSError as error:  # a full disk, say: which file it was about is not always told
        if error.errno is None or error.filename not in (None, fresh, os.fspath(fresh)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(target)) from error
    finally:
        fresh.unlink(missing_ok=True)


def check_place(path: Path, *read: Path) -> None:
    """Refuse a name under which no file can be written, or that of a file that is read."""
    if path.exists() and any(each.exists() and path.samefile(each) for each in read):
        raise InvalidInputError(f"{path} is read here, and stays as it is: write elsewhere.")
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not path.is_file():  # it would be replaced, for whoever else uses it
        raise InvalidInputError(f"{path} is a device or a pipe: give the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save {path.name} in.")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} cannot be written to: choose another.")


def check_file(path: Path) -> None:
    """Refuse to read what is no file."""
    if path.is_dir():
        raise InvalidInputError(
            f"{path} is a folder: give the name of a file, or a pattern of Parquet files, such as "
            f"'{path / '*.parquet'}'."
        )
    if path.exists() and not path.is_file():
        raise InvalidInputError(
            f"{path} is a device or a pipe, and tables are read more than once: write it into a "
            "file first."
        )
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}.")


def check_table_place(path: Path, *read: Path) -> None:
    """Refuse a name under which no table can be written, before any work is done."""
    check_place(path, *read)
    written = [suffix for suffix in _KINDS if suffix != ".xls"]  # that format is only read
    if path.suffix.lower() not in written:
        raise InvalidInputError(
            f"{path}: what is to be written there? Let the name end in {', '.join(written)}."
        )
    _check_packages(_KINDS[path.suffix.lower()])


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table in the format that the name asks for."""
    kind = _KINDS[path.suffix.lower()]
    with replacing(path) as fresh:
        if kind == "parquet":
            frame.to_parquet(fresh, index=False)
        elif kind == "arrow":
            frame.reset_index(drop=True).to_feather(fresh)
        elif kind == "excel":
            frame.to_excel(fresh, index=False)
        else:
            frame.to_csv(fresh, index=False, sep="\t" if path.suffix.lower() == ".tsv" else ",")


def read_frame(
    path: Path,
    missing: Collection[str] = (),
    text: Collection[object] = (),
    known: Collection[object] | None = None,
    unused: Collection[object] = (),
    only: str | None = None,
) -> pd.DataFrame:
    """Read a table.

    Parameters
    ----------
    path : delimited text, whose encoding and delimiter are found out (also compressed, .gz),
        Parquet, Arrow (Feather), or the first sheet of an Excel file.
    missing : what marks missing values beside empty fields and pandas' usual marks.
    text : columns whose cells are text even where they look like numbers.
    known : columns that are used; of delimited text, the cells of others stay as they are written.
    unused : columns that are not: they may hold anything.
    only : a column of text that alone is read; "NA", "None" and the like are words there.
    """
    check_file(path)
    kind = _KINDS.get(path.suffix.lower(), "text")
    _check_packages(kind)
    if path.suffix.lower() in _NO_TABLES:
        raise FileFormatError(
            f"{path.name} is no table: tables are read from {', '.join(_KINDS)}, and text also "
            "compressed (.gz)."
        )
    if kind == "text":
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return read_text(stream, path.name, missing, text, known, unused, only=only)  # type: ignore[arg-type]
    try:
        frame = _read_excel(path, only) if kind == "excel" else _read_arrow(path, kind)
    except (InvalidInputError, FileFormatError):
        raise
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path.name} is damaged or no {kind} file ({error}).") from error
    return _checked(as_text(without_marks(frame, missing), text), path.name, known, unused)


def read_text(
    stream: BinaryIO,
    label: str,
    missing: Collection[str] = (),
    text: Collection[object] = (),
    known: Collection[object] | None = None,
    unused: Collection[object] = (),
    most_columns: int = 100_000,
    only: str | None = None,
) -> pd.DataFrame:
    """The same for delimited text; `label` is what messages call it."""
    import pandas as pd

    try:
        encoding = _encoding(stream, label)
        lines = _first_lines(stream, encoding)
        delimiter, rows = _dialect(lines)
        if not rows:
            raise FileFormatError(f"{label} is empty: it needs a line of names, and rows.")
        if len(rows[0]) > most_columns:
            raise FileFormatError(
                f"{label} has {len(rows[0])} columns, more than {most_columns}: leave some out."
            )
        names, decimal = _names_of(rows[0], label), _decimal(rows[1:], delimiter)
        text = {*text, only} if known is None else {*text} | ({*names} - {*known})
        stream.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                stream,
                sep=delimiter,
                encoding=encoding,
                header=0,
                names=names,
                index_col=False,
                skipinitialspace=True,
                usecols=None if only is None else [only],
                na_values=["", *missing],
                keep_default_na=only is None,
                dtype=dict.fromkeys(set(text) & set(names), str),
                decimal=decimal,
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error, EOFError) as error:
        first = str(error).strip().partition("\n")[0]
        raise FileFormatError(
            f"{label} is no table with a delimiter of {_DELIMITERS!r} ({first}): "
            "every line needs as many fields as the first."
        ) from error
    except (gzip.BadGzipFile, UnicodeError) as error:
        raise FileFormatError(f"{label} is damaged ({error}).") from error
    return _checked(_ungrouped(frame, decimal, text), label, known, unused)


def _check_packages(kind: str) -> None:
    for package in ("pandas", *_NEEDS.get(kind, ())):
        if find_spec(package) is None:
            remedy = package if kind == "excel" else "'mixtura[cli]'"
            raise ImportError(f"Files of the kind {kind} need {package}: pip install {remedy}.")


def _checked(
    frame: pd.DataFrame, label: str, known: Collection[object] | None, unused: Collection[object]
) -> pd.DataFrame:
    if not len(frame):
        raise FileFormatError(f"{label} has names of columns and no rows: put rows below them.")
    used = (frame.columns if known is None else frame.columns.intersection([*known])).difference(
        [*unused], sort=False
    )
    numbers = frame[used].select_dtypes("float")
    infinite = np.isinf(numbers.to_numpy()).any(0)
    if infinite.any():
        name = numbers.columns[infinite.argmax()]
        raise InvalidInputError(
            f"{label} holds infinity in the column {name!r}: leave the field empty where a value "
            "is not known."
        )
    return frame


def without_marks(frame: pd.DataFrame, marks: Collection[str]) -> pd.DataFrame:
    """The table, with nothing in cells that hold a mark, be it as a word or as a number."""
    numbers = [float(mark) for mark in marks if _is_number(mark)]
    counted = frame.select_dtypes("number").columns
    held = frame.isin([*marks])
    held[counted] = frame[counted].isin(numbers)
    return frame.mask(held) if held.to_numpy().any() else frame


def as_text(frame: pd.DataFrame, names: Collection[object]) -> pd.DataFrame:
    """The table, with the cells of some columns as text, as it would be written."""
    return frame.assign(**{str(n): _as_text(frame[n]) for n in frame.columns if n in set(names)})


def _as_text(column: pd.Series) -> pd.Series:
    """Cells as text; whole numbers without a point, as they are written."""
    whole = column.dtype.kind == "f" and (column.dropna() % 1 == 0).all()
    cells = column.dropna()
    return (cells.astype("int64") if whole else cells).astype(str).reindex(column.index)


# -- Parquet, Arrow, Excel ---------------------------------------------------------------------


def _read_arrow(path: Path, kind: str) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path) if kind == "parquet" else _ipc_table(pa, path)
    _check_names(table.column_names, path.name)
    kept = [name for name in table.column_names if not INDEX.fullmatch(name)]
    return table.select(kept).to_pandas(ignore_metadata=True)


def _ipc_table(pyarrow: pa, path: Path) -> pa.Table:
    with pyarrow.OSFile(str(path)) as file:
        try:
            return pyarrow.ipc.open_file(file).read_all()
        except pyarrow.ArrowInvalid:
            file.seek(0)
            return pyarrow.ipc.open_stream(file).read_all()


def _read_excel(path: Path, only: str | None) -> pd.DataFrame:
    import pandas as pd

    cells = pd.read_excel(path, header=None, na_values=[""], keep_default_na=only is None)
    if not len(cells):
        raise FileFormatError(f"{path.name} is empty: it needs a line of names, and rows.")
    names = _names_of(["" if cell != cell else str(cell) for cell in cells.iloc[0]], path.name)
    frame = cells.iloc[1:].set_axis(names, axis=1).reset_index(drop=True).infer_objects()
    return frame if only is None else frame[[only]]


# -- delimited text ----------------------------------------------------------------------------


def _encoding(stream: BinaryIO, label: str) -> str:
    """The encoding by its mark, or the first that all of the text is valid in."""
    first = stream.read(4)
    for mark, name in _MARKS.items():
        if first.startswith(mark):
            return name
    if b"\0" in first + stream.read(_BLOCK):
        raise FileFormatError(
            f"{label} is not text: tables are read from delimited text, {', '.join(_KINDS)}."
        )
    for name in ("utf-8", "cp1252"):
        if _is_valid(stream, name):
            break
    else:
        name = "latin-1"
    if name != "utf-8":
        warn(f"{label} is not in UTF-8, and is read as {name}.", AmbiguousDataWarning)
    return name


def _is_valid(stream: BinaryIO, encoding: str) -> bool:
    stream.seek(0)
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while block := stream.read(_BLOCK):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _first_lines(stream: BinaryIO, encoding: str) -> list[str]:
    stream.seek(0)
    text = io.TextIOWrapper(stream, encoding, newline="")
    lines, size = list[str](), 0
    while len(lines) < _LINES and (size < _SAMPLE or len(lines) < 2):
        lines.append(text.readline(_LONGEST))
        size += len(lines[-1])
        if not lines[-1]:
            break
    text.detach()
    return [line for line in lines if line]


def _dialect(lines: list[str]) -> tuple[str, list[list[str]]]:
    """The delimiter that cuts most lines like the first, into most fields; and the fields."""
    found = []
    for delimiter in _DELIMITERS:
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        try:
            rows = [row for row in reader if row]
        except csv.Error:  # a field is longer than any is
            continue
        width = len(rows[0]) if rows else 0
        alike = sum(len(row) == width for row in rows) if width > 1 else 0
        found.append((alike, width, delimiter, rows))
    if not found:
        raise csv.Error("fields of more than 131072 letters")
    _, _, delimiter, rows = max(found, key=lambda each: each[:2])
    joined = [cell for row in rows for cell in row if "\n" in cell]
    if joined:
        _check_quotes(lines, delimiter)
    between = len(rows[0]) - 1 if rows else 0
    if between and any(cell.count(delimiter) == between * cell.count("\n") for cell in joined):
        raise csv.Error("two stray quotation marks make one field of whole lines")
    return delimiter, rows


def _check_quotes(lines: list[str], delimiter: str) -> None:
    """An error where a quotation mark swallows the end of a line and ends within a field."""
    try:
        for _ in csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True):
            pass
    except csv.Error as error:
        if "expected after" in str(error):  # else the sample of lines ends within quotation marks
            raise csv.Error("a quotation mark that is not closed joins lines") from error


def _names_of(cells: Sequence[str], label: str) -> list[str]:
    """Names of columns from the first line; those without one are counted."""
    if all(_is_number(cell) for cell in cells):
        raise FileFormatError(
            f"{label} begins with numbers ({', '.join(cells[:5])}): put a line with the names of "
            "the columns on top."
        )
    names = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, 1)]
    _check_names(names, label)
    return names


def _check_names(names: Sequence[str], label: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{label} has several columns named {', '.join(twice[:5])}: give each its own name."
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _decimal(rows: list[list[str]], delimiter: str) -> str:
    """A comma where numbers are written with it, and none with a point."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = delimiter != "," and any(map(_COMMA_NUMBER.fullmatch, cells))
    return "," if commas and not any(map(_POINT_NUMBER.fullmatch, cells)) else "."


def _ungrouped(frame: pd.DataFrame, decimal: str, text: Collection[object]) -> pd.DataFrame:
    """The table, with numbers for text such as "11,030" where all of a column is like that."""
    mark, found = {".": ",", ",": "."}[decimal], {}
    pattern = re.compile(_GROUPED[mark])
    for name in frame.columns:
        if name in text or frame[name].dtype.kind != "O":
            continue
        cells = frame[name].dropna()
        grouped = next((cell for cell in cells if mark in str(cell)), None)
        if grouped is None or not all(map(pattern.fullmatch, map(str, cells))):
            continue
        plain = cells.str.replace(mark, "").str.replace(decimal, ".").astype("float64")
        found[name] = plain.reindex(frame.index)
        warn(
            f"column {name!r} is read as numbers whose thousands are set apart, such as "
            f"{grouped!r}; --categorical {quote(name)} keeps it as text.",
            AmbiguousDataWarning,
        )
    return frame.assign(**found)
