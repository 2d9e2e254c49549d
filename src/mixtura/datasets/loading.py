"""From a name to rows: files first, then the cache, then OpenML."""

from __future__ import annotations

import difflib
import io
import os
import zipfile
import zlib
from http.client import HTTPException
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from sklearn.datasets import fetch_openml
from sklearn.utils import Bunch

from mixtura.datasets.registry import REGISTRY, Entry
from mixtura.exceptions import FileFormatError, InvalidInputError
from mixtura.files import replacing

Arrays = dict[str, np.ndarray]


def list_datasets() -> list[str]:
    """Names that :func:`load_dataset` knows, in alphabetical order."""
    return sorted(REGISTRY)


def load_dataset(name: str) -> Bunch:
    """Load a real data set.

    The file is looked for in the folder that the environment variable ``MIXTURA_DATA`` names, then
    in the cache folder (``MIXTURA_CACHE``, else ``mixtura`` in ``XDG_CACHE_HOME`` or ``~/.cache``).
    Where neither has it and OpenML does, it is fetched from there and kept in the cache.

    Parameters
    ----------
    name : one of :func:`list_datasets`.

    Returns
    -------
    Bunch
        ``data``: (n, D) float64, NaN where a value is missing; uint8 pixels for images; a list of
        (T, d) arrays for sequences. ``target``: (n,) class indices. ``target_names``,
        ``feature_names``. ``categorical``: (D,) bool; such columns hold codes that index the array
        of levels in ``categories`` (a list of length D, None for numeric columns). ``splits``: list
        of official (train, test) row indices, possibly empty. ``name``, ``source``, ``DESCR``, and
        what else a set comes with, such as ``speaker``.

    Raises
    ------
    InvalidInputError
        The name is unknown.
    FileNotFoundError
        The set is nowhere to be had; the message says where it was looked for.
    FileFormatError
        The file is damaged.
    """
    entry = _entry(name)
    if entry.embedded is not None:
        return _assemble(entry, _from_sklearn(entry.embedded()))
    path = _obtain(entry)
    try:
        return _assemble(entry, _read(path))
    except KeyError as error:
        raise FileFormatError(f"{path} has no array {error}: it is not {name!r}.") from error


def _entry(name: str) -> Entry:
    if name in REGISTRY:
        return REGISTRY[name]
    close = difflib.get_close_matches(str(name), REGISTRY, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidInputError(
        f"There is no data set {name!r}.{hint} Known: {', '.join(list_datasets())}."
    )


# -- where files are ---------------------------------------------------------------------------


def _cache_folder() -> Path:
    if folder := os.environ.get("MIXTURA_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mixtura"


def _obtain(entry: Entry) -> Path:
    """The file of a data set, fetched if it has to be."""
    given = os.environ.get("MIXTURA_DATA")
    cached = _cache_folder() / entry.file
    for path in ([Path(given) / entry.file] if given else []) + [cached]:
        if path.is_file():
            return path
    if entry.openml is None:
        raise _missing(entry, "it cannot be fetched from OpenML")
    try:
        fetched = fetch_openml(data_id=entry.openml, as_frame=True, cache=False)
    except (OSError, HTTPException, ImportError, ValueError) as error:
        raise _missing(
            entry, f"fetching data set {entry.openml} from OpenML failed ({error})"
        ) from error
    _store(cached, _from_openml(entry, fetched))
    return cached


def _missing(entry: Entry, reason: str) -> FileNotFoundError:
    given = os.environ.get("MIXTURA_DATA", "not set")
    remedy = "" if entry.openml is None else ", or connect to the internet and install pandas"
    return FileNotFoundError(
        f"Data set {entry.name!r} needs the file {entry.file}. It is neither in MIXTURA_DATA "
        f"({given}) nor in the cache ({_cache_folder()}), and {reason}. "
        f"Set MIXTURA_DATA to a folder that has {entry.file}{remedy}."
    )


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(
            f"{path} is damaged ({error}). Replace it, or delete it to have it fetched again."
        ) from error


def _store(path: Path, arrays: Arrays) -> None:
    """Whoever looks sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh, fresh.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


# -- other people's layouts into ours ----------------------------------------------------------


def _from_sklearn(raw: Bunch) -> Arrays:
    return {
        "X": raw.data,
        "y": raw.target,
        "class_names": np.asarray(raw.target_names, dtype=str),
        "feature_names": np.asarray(raw.feature_names, dtype=str),
    }


def _from_openml(entry: Entry, fetched: Bunch) -> Arrays:
    """The arrays of a file of ours, from a data frame with categorical columns."""
    frame, license = fetched.data, fetched.details.get("license", "not stated")
    symbolic = frame.select_dtypes(exclude="number").astype("category")
    codes = symbolic.apply(lambda column: column.cat.codes.astype(float))
    X = frame.assign(**codes.where(codes >= 0)).to_numpy(dtype=float, na_value=np.nan)
    class_names, y = np.unique(fetched.target.astype(str).to_numpy(str), return_inverse=True)
    levels = {name: "|".join(map(str, symbolic[name].cat.categories)) for name in symbolic}
    return {
        **_parted(X.astype(np.uint8) if entry.kind == "image" else X, y, entry.openml_train),
        "class_names": class_names,
        "feature_names": np.array(frame.columns, dtype=str),
        "is_categorical": np.array([name in levels for name in frame.columns]),
        "levels": np.array([levels.get(name, "") for name in frame.columns]),
        "source": np.array(f"OpenML data set {entry.openml}, license: {license}."),
    }


def _parted(X: np.ndarray, y: np.ndarray, rows: slice | None) -> Arrays:
    if rows is None:
        return {"X": X, "y": y}
    train = np.zeros(len(y), dtype=bool)
    train[rows] = True
    return {"X_train": X[train], "y_train": y[train], "X_test": X[~train], "y_test": y[~train]}


# -- our layout into a Bunch -------------------------------------------------------------------


def _assemble(entry: Entry, arrays: Arrays) -> Bunch:
    parts = entry.parts or (("_train", "_test") if "y_train" in arrays else ("",))
    blocks = [_rows(entry.kind, arrays, part) for part in parts]
    data = list(chain(*blocks)) if entry.kind == "sequence" else np.concatenate(blocks)
    if entry.zero_is_missing and isinstance(data, np.ndarray):
        columns = list(entry.zero_is_missing)
        data[:, columns] = np.where(data[:, columns] == 0, np.nan, data[:, columns])
    target, target_names = _labels(entry, arrays, _joined(arrays, "y", parts))
    width = data[0].shape[-1]
    bunch = Bunch(
        data=data,
        target=target,
        target_names=target_names,
        **_columns(arrays, width),
        splits=_splits(arrays, [len(block) for block in blocks]),
        name=entry.name,
        source=str(arrays.get("source", entry.source)),
        **{key: _joined(arrays, key, parts) for key in entry.extras},
    )
    bunch.DESCR = _describe(entry, bunch)
    return bunch


def _joined(arrays: Arrays, key: str, parts: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([arrays[key + part] for part in parts])


def _rows(kind: str, arrays: Arrays, part: str) -> np.ndarray | list[np.ndarray]:
    if "jpeg" + part in arrays:
        return _decode(arrays["jpeg" + part], arrays["off" + part])
    X = arrays["X" + part]
    if kind == "image":
        return X.reshape(len(X), -1)
    X = X.astype(np.float64)
    return np.split(X, arrays["off" + part][1:-1]) if kind == "sequence" else X


def _decode(stream: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """JPEG files, one after the other, as rows of three color planes each."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("JPEG images need Pillow: pip install pillow.") from error
    files = [stream[start:stop].tobytes() for start, stop in pairwise(offsets)]
    images = [np.asarray(Image.open(io.BytesIO(file), formats=["JPEG"])) for file in files]
    return np.stack(images).transpose(0, 3, 1, 2).reshape(len(images), -1)


def _labels(entry: Entry, arrays: Arrays, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class indices, never the labels themselves: -1 would pass for an unlabeled row."""
    names = arrays.get("class_names")
    if names is None:
        names, y = np.unique(y, return_inverse=True)
    return y.astype(np.int64), np.array(entry.target_names or names, dtype=str)


def _columns(arrays: Arrays, width: int) -> dict[str, object]:
    names = arrays.get("feature_names", arrays.get("channel_names"))
    categorical = arrays.get("is_categorical", np.zeros(width, dtype=bool))
    levels = arrays.get("levels", np.full(width, ""))
    return {
        "feature_names": [f"x{i}" for i in range(width)] if names is None else names.tolist(),
        "categorical": categorical,
        "categories": [
            np.array(text.split("|") if text else [], dtype=str) if discrete else None
            for text, discrete in zip(levels.tolist(), categorical, strict=True)
        ],
    }


def _splits(arrays: Arrays, sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    if "splits_train" in arrays:
        return list(zip(arrays["splits_train"], arrays["splits_test"], strict=True))
    if len(sizes) == 1:
        return []
    rows = np.arange(sum(sizes))
    return [(rows[: sizes[0]], rows[sizes[0] :])]


def _describe(entry: Entry, bunch: Bunch) -> str:
    width, n = len(bunch.feature_names), len(bunch.target)
    if entry.kind == "sequence":
        lengths = [len(sequence) for sequence in bunch.data]
        shape = f"{n} sequences of {min(lengths)} to {max(lengths)} frames, {width} channels"
    else:
        shape = f"{n} rows, {width} features ({int(bunch.categorical.sum())} categorical)"
    return (
        f"{entry.description}\n\n{shape}, {len(bunch.target_names)} classes; "
        f"official splits: {len(bunch.splits)}.\nSource: {bunch.source}"
    )
