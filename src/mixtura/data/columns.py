"""One column of a user's table: its kind, its values, their codes, and the way back."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Real

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.exceptions import InvalidInputError

# Types of columns by the letters that their names begin with: NumPy, pandas and polars agree here.
NUMBERS = {"int", "uint", "float", "longdouble", "double", "halffloat", "decimal", "sparse"}
BOOLEANS = {"bool", "boolean"}
TEXT = {"category", "categorical", "enum", "string", "large_string", "str"}
#: The types that hold the values of each kind as they are.
_HOLDS = {
    "numbers": {"int", "uint", "float", "category", "object"},
    "booleans": {"bool", "boolean", "category", "object"},
    "text": TEXT | {"object"},
    "nothing": TEXT | {"boolean", "object"},
}
_MISSING = {"NoneType", "NAType", "NaTType"}
#: Whole numbers up to here are floats exactly.
_EXACT = 2**53


def is_missing(value: object) -> bool:
    """Whether a cell is None, NaN or NA."""
    return type(value).__name__ in _MISSING or bool(value != value)


def plain(value: ArrayLike) -> ArrayLike:
    """A number of NumPy as Python's; all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def unmasked(given: ArrayLike) -> ArrayLike:
    """What is given; of NumPy's masked arrays, an array with NaN where they are masked."""
    if not isinstance(given, np.ma.MaskedArray) or not np.ma.is_masked(given):
        return given
    numeric = given.dtype.kind in "biuf"
    dtype = np.result_type(given.dtype, np.float32) if numeric else np.dtype(object)
    return np.ma.filled(given.astype(dtype), np.nan)


def name_of_type(dtype: object) -> str:
    """What the name of a type begins with, in small letters."""
    return re.split("[^a-z_]", str(getattr(dtype, "name", dtype)).lower())[0]


def read_column(column: ArrayLike, label: str) -> tuple[str, ArrayLike]:
    """The kind of a column (a key of `_HOLDS`) and its values.

    Text comes as a list, with None for what is missing, all else as an array, with NaN.
    """
    type_name = name_of_type(column.dtype)
    if type_name not in NUMBERS | BOOLEANS | TEXT | {"object", "null"}:
        raise InvalidInputError(
            f"{label} is of the type {column.dtype}, which is neither numbers nor categories: "
            "turn it into a number or a category, or drop it."
        )
    values = None if type_name in TEXT | {"object"} else np.asarray(column)
    if values is None or values.dtype == object:
        cells = column.to_list() if hasattr(column, "to_list") else column.tolist()
        if type_name == "category" and not all(map(kind_of_type, map(type, column.cat.categories))):
            # Of intervals, say: names tell them apart, and cells may be of another type than these.
            names = [*map(str, column.cat.categories), None]
            cells = [names[code] for code in column.cat.codes]
        kind, values = _read_cells(cells, label)
    else:
        kind = "booleans" if values.dtype == bool else "numbers"
    nothing = kind != "text" and np.isnan(values).all()
    return "nothing" if nothing else kind, values


def _read_cells(cells: list[ArrayLike], label: str) -> tuple[str, ArrayLike]:
    """The same for Python objects; looks at types, not at cells, wherever that is enough."""
    types = set(map(type, cells))
    missing = {t for t in types if t.__name__ in _MISSING}
    for strange in (t for t in types - missing if not kind_of_type(t)):
        raise TypeError(
            f"{label}, row {[*map(type, cells)].index(strange)}: argument must be a string or a "
            f"number, not {strange.__name__!r}; turn it into text by str(), or put None there."
        )
    if missing or len(types) > 1:
        cells = [None if type(cell) in missing or cell != cell else cell for cell in cells]
    kinds = [kind_of_type(t) for t in set(map(type, cells)) - {type(None)}]
    if len(set(kinds)) > 1:
        of_rows = [kind_of_type(type(cell)) for cell in cells]
        first = sorted((of_rows.index(kind), kind) for kind in set(kinds))
        raise InvalidInputError(
            f"{label} mixes {' and '.join(f'{kind} (row {row})' for row, kind in first)}: make "
            "all of it one type, such as text by str(), with None where a value is missing (as a "
            "'?' among numbers mostly says)."
        )
    kind = kinds[0] if kinds else "numbers"
    return kind, cells if kind == "text" else np.array(cells, dtype=np.float64)


def kind_of_type(cell: type) -> str:
    """What a cell of this type is; empty for what no column may hold."""
    if issubclass(cell, bool | np.bool_):
        return "booleans"
    if issubclass(cell, Real | Decimal):
        return "numbers"
    return "text" if issubclass(cell, str) else ""


def kind_of(categories: np.ndarray | None) -> str:
    """What a training column held."""
    if categories is None or not len(categories):
        return "numbers" if categories is None else "nothing"
    return {"O": "text", "U": "text", "b": "booleans"}.get(categories.dtype.kind, "numbers")


def check_kind(now: str, before: str, label: str) -> None:
    """Text and all else must not take each other's place; booleans are the numbers 0 and 1."""
    if "nothing" not in (now, before) and (now == "text") != (before == "text"):
        raise InvalidInputError(
            f"{label} held {before} in training and holds {now} now: give it the type it had."
        )


def distinct(kind: str, values: ArrayLike, label: str) -> tuple[np.ndarray, int]:
    """The sorted categories of a column, and how many of its values are there."""
    if kind == "text":
        n_observed = len(values) - values.count(None)
        found = np.array(sorted(map(str, set(values) - {None})), dtype=object)
    else:
        observed = _finite(values, label)
        n_observed = len(observed)
        found = np.unique(observed).astype(bool if kind == "booleans" else observed.dtype)
        if found.dtype.kind in "iu" and len(found) and np.abs(found).max() > _EXACT:
            raise InvalidInputError(
                f"{label} holds whole numbers above {_EXACT}, which are not told apart as numbers: "
                "turn them into text by str()."
            )
    return found, n_observed


def _finite(values: np.ndarray, label: str) -> np.ndarray:
    """The observed values of a numeric categorical column."""
    if np.isinf(values).any():
        raise InvalidInputError(
            f"{label} is categorical and holds infinity (row {np.argmax(np.isinf(values))}): put "
            "NaN where the category is not known."
        )
    return values[~np.isnan(values)]


def codes_of(
    kind: str, values: ArrayLike, categories: np.ndarray | None, label: str
) -> tuple[np.ndarray, np.ndarray, list[ArrayLike]]:
    """Positions of the values among the categories, which are not there, and what these are."""
    nothing = np.zeros(len(values), dtype=bool)
    if categories is None or kind == "nothing":
        return values, nothing, []
    if kind == "text":
        code = {category: place for place, category in enumerate(categories.tolist())}
        unseen = set(values) - {None} - code.keys()
        if unseen:
            nothing = np.array([value in unseen for value in values], dtype=bool)
        codes = np.array([*map(code.get, values)], dtype=np.float64)
        return codes, nothing, sorted(map(str, unseen))
    _finite(values, label)
    places = np.searchsorted(categories, values)
    known = np.append(categories, np.nan)[places] == values
    strange = ~known & (values == values)
    return np.where(known, places, np.nan), strange, np.unique(values[strange]).tolist()


def decoded(values: np.ndarray, categories: np.ndarray | None) -> np.ndarray:
    """The categories of the codes; numbers as they are."""
    if categories is None:
        return values
    numeric = kind_of(categories) == "numbers"
    found = np.full(len(values), np.nan if numeric else None, dtype=float if numeric else object)
    if len(categories):
        known = ~np.isnan(values)
        found[known] = categories[np.rint(values[known]).clip(0, len(categories) - 1).astype(int)]
    return found


def kept(values: np.ndarray, given: ArrayLike, where: np.ndarray) -> np.ndarray:
    """The values, and in some places what was given."""
    cells = np.asarray(given, dtype=object)[where]
    text = any(isinstance(cell, str) for cell in cells)
    values = values.astype(object if text else values.dtype)
    values[where] = cells
    return values


def restored(values: np.ndarray, kind: str, example: ArrayLike) -> ArrayLike:
    """A column of the type of the example where that holds values of this kind as they are."""
    name, dtype = name_of_type(example.dtype), example.dtype
    if (
        name not in _HOLDS.get(kind, ())
        or (name == "bool" and None in values)
        or (name in ("int", "uint") and (values[values == values] % 1).any())
    ):
        return _series(values, example, None)
    if name == "category":
        values = _of_categories(values, example.cat.categories) if kind == "text" else values
        strange = set(values[values == values].tolist()) - {None, *example.cat.categories}
        if strange:
            dtype = example.cat.add_categories(sorted(strange)).dtype
    try:
        return _series(values, example, dtype)
    except Exception:  # each library has errors of its own, and the values are what matters
        return _series(values, example, None)


def _of_categories(values: np.ndarray, categories: ArrayLike) -> np.ndarray:
    """The categories, intervals say, of names that were read in their place; other names stay."""
    own, found = {str(each): each for each in categories}, np.empty(len(values), dtype=object)
    for place, name in enumerate(values.tolist()):
        found[place] = own.get(name, name)
    return found


def _series(values: np.ndarray, example: ArrayLike, dtype: ArrayLike) -> ArrayLike:
    if hasattr(example, "iloc"):
        return type(example)(values, index=example.index, dtype=dtype)
    given = values.tolist() if values.dtype == object else values
    column = type(example)(example.name, given, nan_to_null=True)
    return column if dtype is None else column.cast(dtype)
