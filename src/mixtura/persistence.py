"""Fitted estimators as one safetensors file with a JSON header: versioned, no pickle."""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as to_bytes
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from torch import Tensor

from mixtura.constants import FAR
from mixtura.data.given import ArrayLike
from mixtura.densities import Density
from mixtura.exceptions import (
    DegenerateDataWarning,
    FileFormatError,
    InvalidInputError,
    UnsupportedError,
)
from mixtura.files import replacing
from mixtura.models.fitted import Fitted
from mixtura.models.network import Network
from mixtura.models.regression import Regression
from mixtura.numerics import one_thread
from mixtura.parts import Part, Stored, find_class, import_path, is_storable
from mixtura.runtime import gaussians, mixed  # noqa: F401  what models may hold
from mixtura.runtime.files import (
    FORMAT_VERSION,
    NOTHING,
    Arrays,
    Unpacker,
    digest,
    read_file,
    unpack,
)
from mixtura.runtime.models import Fitted as NumpyFitted
from mixtura.selection.typical import with_models

#: What a model is asked when it is read, and where another one may be inside it.
_QUESTIONS = ("predict_proba", "predict", "score_samples", "transform")
_INNER = ("pairwise_", "estimator_", "estimators_")
#: Numbers of a mixture up to which the models without rows that are held back are stored.
_MOST_COMPUTED = 2**19
#: Where a model keeps its twin in NumPy.
_TWIN = "_twin"
#: Most bytes of a header, as safetensors has it.
_MOST_HEADER = 100_000_000


class _Packer:
    """Splits nested values into JSON and named tensors."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}

    def pack(self, value: object, name: str) -> object:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if is_storable(value):
            return {"kind": "object", "path": import_path(value), **self._content(value, name)}
        if isinstance(value, FrozenEstimator):
            return {"kind": "frozen", "estimator": self.pack(value.estimator, name)}
        if isinstance(value, Tensor):
            self.arrays[name] = value.detach().cpu().contiguous().clone().numpy()
            return {"kind": "tensor", "name": name}
        if isinstance(value, np.ndarray):
            return self._pack_array(value, name)
        if isinstance(value, np.generic):
            return {"kind": "array", "dtype": value.dtype.str, "scalar": value.item()}
        if isinstance(value, dict):
            keys = [k.item() if isinstance(k, np.generic) else k for k in value]
            pairs = zip(keys, value.values(), strict=True)
            return {"kind": "dict", "items": [[k, self.pack(v, f"{name}.{k}")] for k, v in pairs]}
        if isinstance(value, torch.device):
            return {"kind": "device", "name": str(value)}
        if isinstance(value, list | tuple):
            items = [self.pack(v, f"{name}.{i}") for i, v in enumerate(value)]
            return {"kind": type(value).__name__, "items": items}
        if isinstance(value, BaseEstimator):
            raise InvalidInputError(
                f"{name} holds a {type(value).__name__}, and a model file stores estimators of "
                "mixtura alone. Remedy: pickle the whole, or use one of mixtura's estimators."
            )
        raise InvalidInputError(
            f"{name} holds a {type(value).__name__}, which a model file cannot store. Set it to "
            "None before saving (a random state, say, belongs to a run, not to a model)."
        )

    def _content(self, value: object, name: str) -> dict[str, object]:
        """What an object is made from, and the state that an estimator has beside it."""
        state = {}
        if isinstance(value, BaseEstimator):
            made_from = value.get_params(deep=False)
            state = {k: v for k, v in vars(value).items() if k not in {*made_from, "_callbacks"}}
        elif is_dataclass(value):
            made_from = {each.name: getattr(value, each.name) for each in fields(value)}
        elif isinstance(value, Stored):
            made_from = value.stored()
        computed = _computed(value)
        parts = {"settings": made_from, "state": state, "computed": computed}
        parts = {key: part for key, part in parts.items() if part or key == "settings"}
        return {key: self.pack(part, f"{name}.{key}") for key, part in parts.items()}

    def _pack_array(self, value: np.ndarray, name: str) -> dict[str, object]:
        if value.dtype.kind in "OUS":
            items = [v.item() if isinstance(v, np.generic) else v for v in value.ravel().tolist()]
            dtype = "O" if value.dtype.kind == "O" else value.dtype.str
            packed = [self.pack(v, name) for v in items]
            return {"kind": "objects", "dtype": dtype, "shape": value.shape, "items": packed}
        self.arrays[name] = np.ascontiguousarray(value).copy()
        return {"kind": "array", "dtype": value.dtype.str, "name": name}


def _computed(value: object) -> dict[str, object]:
    """What `mixtura.runtime` cannot compute itself: draws of networks, models without some rows."""
    if isinstance(value, Network):
        return value.computed()
    if not isinstance(value, Fitted) or value.held_back is None or value.held_back.models:
        return {}
    numbers = sum(tensor.numel() for tensor in value.mixture.density.tensors().values())
    if numbers > _MOST_COMPUTED:
        return {}
    return {"without": with_models(value, value.held_back, "cpu").models}


class _Unpacker(Unpacker):
    """Makes estimators, with tensors and classes of the file's own."""

    def of_object(self, stored: dict) -> object:
        kind = find_class(stored["path"])
        if kind is None:
            raise FileFormatError(
                f"it holds an object of a class that is not here: {stored['path']} cannot be "
                "imported here. Remedy: make its module importable, as when the model was saved."
            )
        found = kind(**self.of_dict(stored["settings"]))
        if isinstance(found, Density) and not all(
            each.is_floating_point() for each in found.tensors().values()
        ):
            raise ValueError(f"parameters of a {kind.__name__} that are whole numbers or truths")
        for name, item in self.of_dict(stored.get("state", NOTHING)).items():
            setattr(found, name, item)
        return found

    def of_frozen(self, stored: dict) -> FrozenEstimator:
        return FrozenEstimator(self.value(stored["estimator"]))

    def of_tensor(self, stored: dict) -> Tensor:
        # Copies lie in memory as those of a fit do, so that sums are the same to the bit.
        return torch.tensor(self._arrays[stored["name"]])

    def of_device(self, stored: dict) -> torch.device:
        return torch.device(stored["name"])


def content_of(estimator: BaseEstimator) -> bytes:
    """What a file of an estimator holds."""
    packer = _Packer()
    model = json.dumps(packer.pack(estimator, "model"))
    metadata = {
        "format": "mixtura",
        "version": str(FORMAT_VERSION),
        "model": model,
        "sha256": digest(model, packer.arrays),
    }
    return to_bytes(packer.arrays, metadata)


def numpy_twin(model: Fitted) -> NumpyFitted | None:
    """The model in NumPy, which answers for a few rows in a fraction of the time.

    None where `mixtura.runtime` has none. It is made once, and kept beside the model's fields.
    """
    kept = vars(model)
    if _TWIN not in kept:
        packer = _Packer()
        try:
            value = packer.pack(replace(model, held_back=None), "model")
            kept[_TWIN] = unpack(value, packer.arrays)
        except (InvalidInputError, UnsupportedError):  # a density from a user's file
            kept[_TWIN] = None
    return kept[_TWIN]


def save_estimator(estimator: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write an estimator atomically: the old file stays until the new one is complete."""
    content = content_of(estimator)
    with replacing(path) as fresh:
        fresh.write_bytes(content)


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save` wrote.

    A file names the modules of parts that are a user's own, and reading it imports them: read files
    of people you trust.

    Raises
    ------
    FileNotFoundError : there is no such file.
    FileFormatError : the file is damaged, not a mixtura model, or of another version's format.
    """
    with one_thread(0):  # what is forked from a process whose operations had several hangs
        return read_file(path, _estimator, _MOST_HEADER)


def _estimator(stored: object, arrays: Arrays) -> BaseEstimator:
    try:
        estimator = _Unpacker(arrays).value(stored)
        assert isinstance(estimator, BaseEstimator)
        estimator._validate_params()
        _check_answer(_plain_copy(estimator))
    except UnsupportedError as error:
        raise ValueError(str(error)) from error
    return estimator


def _plain_copy(value: object) -> object:
    """A fitted estimator, and those inside it, on the CPU, for arrays without names of columns."""
    if isinstance(value, list):
        return [_plain_copy(each) for each in value]
    if not isinstance(value, BaseEstimator) or isinstance(value, Part):
        return value
    plain = copy(value)
    state = {name: _plain_copy(each) for name, each in vars(value).items()}
    state.pop("feature_names_in_", None)
    usual = {"device": "cpu:0", "layout": "frames_first"}  # by the model, not by its twin
    plain.__dict__ = state | {name: usual[name] for name in usual if name in state}
    return plain


def _check_answer(estimator: object) -> None:
    """A row of zeros, one far away and one of nothing get finite answers: the parts fit."""
    tags, model = get_tags(estimator).input_tags, _innermost_model(estimator)
    rows = np.full((2 + tags.allow_nan, model.n_columns), np.nan)
    rows[0], rows[1] = 0.0, FAR
    rows[:, list(model.schema.empty)] = np.nan  # what was empty in training is not asked about
    for asked in (rows, rows[:-1]):  # what fits three rows by chance does not fit two
        shown = model.schema.decode(asked)
        given = [shown] if tags.three_d_array else shown
        if not np.isfinite(_first_answer(estimator, given)).all():
            raise ValueError("its answers are not finite")


def _first_answer(estimator: object, given: ArrayLike) -> np.ndarray:
    """The first answer; a model without a density or labels has none to some questions."""
    for name in (name for name in _QUESTIONS if hasattr(estimator, name)):
        with suppress(UnsupportedError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # a row is far away
            return getattr(estimator, name)(given)
    raise ValueError("it answers nothing")


def _innermost_model(estimator: object) -> Fitted | Regression:
    """The model of an estimator, or of one inside it."""
    state = vars(estimator)
    if "model_" in state:
        return state["model_"]
    inner = next(state[name] for name in _INNER if name in state)
    return _innermost_model(inner[0] if isinstance(inner, list) else inner)
