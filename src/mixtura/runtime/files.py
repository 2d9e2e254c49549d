"""Model files without PyTorch: a safetensors file is a length, a JSON header and raw numbers."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from mixtura.constants import MOST_TEXT
from mixtura.data.given import ArrayLike
from mixtura.exceptions import FileFormatError, UnsupportedError

FORMAT_VERSION = 4
#: Most bytes of a header, whose JSON takes some twenty times as much memory when it is read.
_MOST_HEADER = 2**24
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BOOL": "bool", "U8": "uint8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16"},
}
#: A stored dict without items.
NOTHING: dict[str, list] = {"items": []}
#: What the objects of a file become, by the names of their classes.
KINDS: dict[str, Callable] = {}
Class = TypeVar("Class", bound=type)
Found = TypeVar("Found")
Arrays = dict[str, np.ndarray]


def kind(cls: Class) -> Class:
    """Class decorator: what stands for the class of this name in a file."""
    KINDS[cls.__name__] = cls
    return cls


def read_file(
    path: str | os.PathLike[str],
    build: Callable[[ArrayLike, Arrays], Found],
    most_header: int = _MOST_HEADER,
) -> Found:
    """What `build` makes of a file; errors say which file it is, and what to do."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no model file at {path}.")
    try:
        return build(*read(Path(path).read_bytes(), most_header))
    except (FileFormatError, UnsupportedError) as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:  # whatever goes wrong, the file is the cause
        raise FileFormatError(
            f"{path} is damaged or not a model file ({error!r}): restore it from a copy, or save "
            "again."
        ) from error


def read(content: bytes, most_header: int = _MOST_HEADER) -> tuple[ArrayLike, Arrays]:
    """The stored estimator as JSON, and the arrays that it names; sound as far as that tells."""
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= len(content) - 8:
        raise ValueError("its header does not fit in it")
    if size > most_header:
        raise ValueError(f"its header has {size} bytes, more than {most_header}")
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != "mixtura":
        raise FileFormatError("it is a safetensors file, but not a mixtura model.")
    version = int(metadata["version"])
    if version != FORMAT_VERSION:
        age = "newer" if version > FORMAT_VERSION else "older"
        remedy = "upgrade mixtura" if version > FORMAT_VERSION else "fit and save the model again"
        raise FileFormatError(
            f"it was written by {age} mixtura (format {version}, this one reads "
            f"{FORMAT_VERSION}): {remedy}."
        )
    numbers = memoryview(content)[8 + size :]
    arrays = {name: _array(numbers, **entry) for name, entry in header.items()}
    if sum(array.nbytes for array in arrays.values()) != len(numbers):
        raise ValueError("its arrays overlap, or leave something over")
    if metadata["sha256"] != digest(metadata["model"], arrays):
        raise ValueError("the checksum does not fit the content")
    return json.loads(metadata["model"]), arrays


def _array(
    numbers: memoryview, dtype: str, shape: list[int], data_offsets: list[int]
) -> np.ndarray:
    start, end = data_offsets
    kind, count = np.dtype(_DTYPES[dtype]).newbyteorder("<"), math.prod(shape)
    if not 0 <= start <= end <= len(numbers) or count * kind.itemsize != end - start:
        raise ValueError("an array does not fit in it")
    return np.frombuffer(numbers[start:end], kind).reshape(shape)


def digest(model: str, arrays: Arrays) -> str:
    """What tells a file that changed on its way."""
    total = hashlib.sha256(model.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} torch.{array.dtype.name} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def named(value: ArrayLike) -> dict[str, ArrayLike]:
    """The JSON of a stored dict, by name; not unpacked."""
    return dict(value["items"])


def class_name(value: ArrayLike, known: Mapping[str, Callable]) -> str:
    """The name of an object's class, if it is one of mixtura's own, and known."""
    module, _, name = value["path"].partition(":")
    if not module.startswith("mixtura.") or name not in known:
        raise UnsupportedError(
            f"a {name} (of {module}) cannot be computed without PyTorch: use the estimator itself, "
            "or mixtura.load."
        )
    return name


class Unpacker:
    """Makes values of JSON and of the arrays that it names: `of_<kind>` for each kind of them."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._met: dict[object, np.ndarray] = {}

    def value(self, stored: ArrayLike) -> ArrayLike:
        """What a value of the JSON stands for."""
        if not isinstance(stored, dict):
            return stored
        of_kind = getattr(self, f"of_{stored['kind']}", None)
        if of_kind is None:
            raise UnsupportedError(f"it holds what nobody has a use for: {stored['kind']!r}.")
        return of_kind(stored)

    def of_object(self, stored: ArrayLike) -> ArrayLike:
        found = KINDS[class_name(stored, KINDS)]
        computed = self.of_dict(stored.get("computed", NOTHING))
        return found(**self.of_dict(stored["settings"]), **computed)

    def of_tensor(self, stored: ArrayLike) -> ArrayLike:
        return self._arrays[stored["name"]]

    def of_array(self, stored: ArrayLike) -> np.ndarray | np.generic:
        dtype = np.dtype(stored["dtype"])
        if dtype.kind not in "biuf":
            raise ValueError(f"numbers of the type {dtype}")
        if "scalar" in stored:
            return dtype.type(stored["scalar"])
        found = self._arrays[stored["name"]].astype(dtype)
        told = dtype, found.shape, hashlib.sha256(found.tobytes()).digest()
        return self._met.setdefault(told, found)  # what models share is told at a glance

    def of_objects(self, stored: ArrayLike) -> np.ndarray:
        dtype, items = np.dtype(stored["dtype"]), stored["items"]
        if dtype.kind not in "OUS" or dtype.itemsize * len(items) > MOST_TEXT:
            raise ValueError(f"{len(items)} values of the type {dtype}")
        found = np.empty(len(items), dtype)
        for place, item in enumerate(items):
            found[place] = self.value(item)
        return found.reshape(stored["shape"])

    def of_dict(self, stored: ArrayLike) -> dict[ArrayLike, ArrayLike]:
        return {name: self.value(item) for name, item in stored["items"]}

    def of_list(self, stored: ArrayLike) -> list[ArrayLike]:
        return [self.value(item) for item in stored["items"]]

    def of_tuple(self, stored: ArrayLike) -> tuple[ArrayLike, ...]:
        return tuple(self.of_list(stored))


def unpack(value: ArrayLike, arrays: Arrays) -> ArrayLike:
    """What a value of the JSON stands for in the runtime."""
    return Unpacker(arrays).value(value)
