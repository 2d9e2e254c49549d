"""Columns by their names: which ones are meant, and whether they are those of training."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from mixtura.data.columns import kind_of_type
from mixtura.data.given import ArrayLike
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn

_SHOWN = 5


def check_names(given: Sequence[object], known: Sequence[object], unexpected: str) -> None:
    """Refuse or warn about columns that training did not have, and about those that are lacking.

    Refusals are in scikit-learn's words.
    """
    strange = sorted(set(given) - set(known), key=str)
    absent = sorted(set(known) - set(given), key=str)
    refused = strange and unexpected != "ignore"
    if refused or (unexpected == "error" and list(given) != list(known)):
        message = "The feature names should match those that were passed during fit.\n"
        message += _listed("Feature names unseen at fit time:", strange)
        message += _listed("Feature names seen at fit time, yet now missing:", absent)
        if not strange and not absent:
            message += "Feature names must be in the same order as they were in fit.\n"
        if unexpected == "missing":
            message += "unexpected='ignore' leaves columns aside that were not there at fit time.\n"
        raise InvalidInputError(message)
    if len(absent) == len(known):
        raise InvalidInputError(f"X has no column of the training rows ({some_of(known)}).")
    if strange:
        warn(
            f"X has {len(strange)} column(s) that the training rows do not ({some_of(strange)}); "
            "they are ignored. Remedy: leave them out.",
            DegenerateDataWarning,
        )
    if absent:
        warn(
            f"X lacks {len(absent)} column(s) of the training rows ({some_of(absent)}); they count "
            "as missing. Remedy: pass them all, or train without these.",
            DegenerateDataWarning,
        )


def are_text(names: Sequence[object]) -> bool:
    return all(isinstance(name, str) for name in names)


def column_label(names: tuple[object, ...] | None, place: int) -> str:
    return f"column {names[place]!r}" if names else f"column {place}"


def _listed(title: str, names: Sequence[object]) -> str:
    shown = [*names[:_SHOWN], "..."] if len(names) > _SHOWN else names
    return "\n- ".join([title, *map(str, shown)]) + "\n" if names else ""


def some_of(values: Sequence[object]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")


def chosen_columns(given: ArrayLike, names: tuple[object, ...] | None, width: int) -> set[int]:
    """Positions of the columns that the user calls categorical."""
    if given is None or (isinstance(given, str) and given == "from_dtype"):
        return set()

    def refused(problem: str) -> InvalidInputError:
        return InvalidInputError(
            f"categorical_features={given!r} {problem}: X has {width} columns"
            f"{f', named {some_of(names)}' if names else ' without names'}; pass None, "
            "'from_dtype', or a list, of positions, of names of columns, or of a bool for each."
        )

    if not np.iterable(given) or isinstance(given, str | bytes):
        raise refused("is not understood")
    entries: list[ArrayLike] = list(given)
    kinds = {kind_of_type(type(entry)) for entry in entries}
    where: dict[object, int] = {place: place for place in range(width)}
    if kinds == {"booleans"}:
        if len(entries) != width:
            raise refused("is a mask of another length")
        entries = np.flatnonzero(entries).tolist()
    elif kinds == {"text"}:
        where = {name: place for place, name in enumerate(names or ())}
    elif len(kinds) > 1 or not all(isinstance(entry, Integral) for entry in entries):
        raise refused("is not understood")
    if strange := [entry for entry in entries if entry not in where]:
        raise refused(f"asks for what is not there ({some_of(strange)})")
    if len(set(entries)) < len(entries):
        raise refused("asks for a column twice")
    return {where[entry] for entry in entries}
