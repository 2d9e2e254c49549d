"""Model files without PyTorch: a safetensors file is a length, a JSON header and raw numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from mixtura.constants import MOST_TEXT
from mixtura.data.given import ArrayLike
from mixtura.exceptions import FileFormatError, UnsupportedError

FORMAT_VERSION = 3
#: Most bytes of a header, whose JSON takes some twenty times as much memory when it is read.
_MOST_HEADER = 2**24
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BOOL": "bool", "U8": "uint8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
}
#: What the objects of a file become, by the names of their classes.
KINDS: dict[str, Callable] = {}
Class = TypeVar("Class", bound=type)
Arrays = dict[str, np.ndarray]


def kind(cls: Class) -> Class:
    """Class decorator: what stands for the class of this name in a file."""
    KINDS[cls.__name__] = cls
    return cls


def read(content: bytes) -> tuple[ArrayLike, Arrays]:
    """The stored estimator as JSON, and the arrays that it names; sound as far as that tells."""
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= len(content) - 8:
        raise ValueError("its header does not fit in it")
    if size > _MOST_HEADER:
        raise ValueError(f"its header has {size} bytes, more than {_MOST_HEADER}")
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != "mixtura":
        raise FileFormatError("it is a safetensors file, but not a mixtura model.")
    if int(metadata["version"]) != FORMAT_VERSION:
        raise FileFormatError(
            f"it has the format {metadata['version']}, and this mixtura reads "
            f"{FORMAT_VERSION}: save the model again with the mixtura that is here."
        )
    numbers = memoryview(content)[8 + size :]
    arrays = {name: _array(numbers, **entry) for name, entry in header.items()}
    if metadata["sha256"] != _digest(metadata["model"], arrays):
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


def _digest(model: str, arrays: Arrays) -> str:
    """As `save` has it: what tells a file that changed on its way."""
    total = hashlib.sha256(model.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} torch.{array.dtype.name} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def unpack(value: ArrayLike, arrays: Arrays) -> ArrayLike:
    """What a value of the JSON stands for."""
    if not isinstance(value, dict):
        return value
    if value["kind"] not in _UNPACKERS:
        raise UnsupportedError(f"it holds what the runtime has no use for: {value['kind']!r}.")
    return _UNPACKERS[value["kind"]](value, arrays)


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


def _object(value: ArrayLike, arrays: Arrays) -> ArrayLike:
    found = KINDS[class_name(value, KINDS)]
    parts = [*value["settings"]["items"], *value.get("computed", {"items": []})["items"]]
    return found(**{name: unpack(each, arrays) for name, each in parts})


def _numbers(value: ArrayLike, arrays: Arrays) -> ArrayLike:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biuf" and "scalar" not in value:
        raise ValueError(f"numbers of the type {dtype}")
    return dtype.type(value["scalar"]) if "scalar" in value else arrays[value["name"]].astype(dtype)


def _objects(value: ArrayLike, arrays: Arrays) -> np.ndarray:
    dtype, items = np.dtype(value["dtype"]), value["items"]
    if dtype.kind not in "OUS" or dtype.itemsize * len(items) > MOST_TEXT:
        raise ValueError(f"{len(items)} values of the type {dtype}")
    found = np.empty(len(items), dtype)
    found[:] = [unpack(item, arrays) for item in items]
    return found.reshape(value["shape"])


def _items(value: ArrayLike, arrays: Arrays) -> list[ArrayLike]:
    return [unpack(item, arrays) for item in value["items"]]


_UNPACKERS: dict[str, Callable[[ArrayLike, Arrays], ArrayLike]] = {
    "object": _object,
    "tensor": lambda value, arrays: arrays[value["name"]],
    "array": _numbers,
    "objects": _objects,
    "dict": lambda value, arrays: {k: unpack(v, arrays) for k, v in value["items"]},
    "list": _items,
    "tuple": lambda value, arrays: tuple(_items(value, arrays)),
}
