"""Parts of an estimator that are objects: what a name is shorthand for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

from mixtura.exceptions import InvalidInputError

AnyPart = TypeVar("AnyPart", bound="Part")
#: What many parameters may be: how many, how much (nothing, too, or not), and which share.
COUNT = Interval(Integral, 1, None, closed="left")
AMOUNT = Interval(Real, 0, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
SHARE = Interval(Real, 0, 1, closed="both")


class Part(BaseEstimator):
    """Settings that are cloned, searched (`objective__margin`), printed and stored by name.

    A part is a dataclass: its fields are its parameters. One from a user's own module can be stored
    as well, by the path of its import.
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {}


def resolve(given: str | AnyPart, names: Mapping[str, Callable[[], AnyPart]]) -> AnyPart:
    """The part that a name is shorthand for, or the one that was given, with sound settings."""
    if isinstance(given, str):
        return names[given]()
    given._validate_params()
    return given


@runtime_checkable
class Stored(Protocol):
    """An object that is no dataclass and says what it is made from."""

    def stored(self) -> dict[str, object]:
        """Arguments of its class, by name."""


#: Classes whose objects a model file may hold, beside parts: they and their subclasses.
_STORABLE: list[type] = [Part]
Class = TypeVar("Class", bound=type)


def storable(cls: Class) -> Class:
    """Class decorator: objects of it, and of subclasses, may stand in a model file."""
    _STORABLE.append(cls)
    return cls


def is_storable(value: object) -> bool:
    """Whether a model file may hold an object."""
    return isinstance(value, tuple(_STORABLE))


def import_path(value: object) -> str:
    """Where the class of an object can be found again; an error where it cannot."""
    kind = type(value)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or find_class(path) is not kind:
        raise InvalidInputError(
            f"{kind.__name__} cannot be found again by {path!r}, so that a model file cannot hold "
            "it. Remedy: define it at the top level of a module that can be imported."
        )
    return path


def find_class(path: str) -> type | None:
    """The class at an import path; None where there is none that may be stored."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, tuple(_STORABLE)) else None
