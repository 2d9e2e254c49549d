"""From a file to rows and labels: which columns a model may use, and what the target is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from mixtura.data.columns import BOOLEANS, NUMBERS, TEXT, name_of_type
from mixtura.data.names import some_of
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn

if TYPE_CHECKING:
    import pandas as pd

#: Kinds of columns that are used, and what is said of one that is not.
_USED = {"numbers", "booleans", "text", "categories", "int", "float", "decimal"}
_LEFT_OUT = {"dates": "holds dates (numbers, such as days since one of them, could be used), and"}
#: Values that are looked at to tell dates from other words.
_LOOKED_AT = 200
_DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]\d.*)?|\d{1,2}([./])\d{1,2}\2\d{2,4}( .*)?|\d{4}/\d{1,2}/\d{1,2}.*"
)
#: Different numbers, as words, from which on a column with other words is not one of categories.
_FEW = 20
#: What the first column is called where a file has no name for it: pandas and R write numbers of
#: rows there.
_UNNAMED = "column 1"
#: Rows from which on a column that is different in each is taken for one of identifiers.
_MANY_ROWS = 20
#: Different numbers of a target from which on it is not one of classes: fractions; whole numbers,
#: and of these also the share of the rows.
_MOST_FRACTIONS, _MOST_WHOLE, _WHOLE_SHARE = 20, 50, 0.05


def check_columns(frame: pd.DataFrame, names: Collection[str], option: str) -> None:
    """Refuse names that are not those of columns."""
    known = [str(name) for name in frame.columns]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"there are {some_of(known)}."
            if len(known) == 1:
                remedy = f"the only one is {known[0]!r}. Delimiters are comma, semicolon, tab, |."
            raise InvalidInputError(f"{option} {name}: there is no such column; {remedy}")


def usable(frame: pd.DataFrame, categorical: Collection[str] = ()) -> pd.DataFrame:
    """The columns that hold numbers or categories, with a word about those that may not help."""
    kept = []
    for name, column in frame.items():
        kind = "categories" if name in categorical else _kind(column)
        if kind not in _USED:
            reason = _LEFT_OUT.get(kind, f"holds neither numbers nor categories ({kind}), and")
            warn(f"column {name!r} {reason} is left out.", AmbiguousDataWarning)
            continue
        if name == _UNNAMED and kind == "numbers" and (column.diff().iloc[1:] == 1).all():
            warn(
                f"{name}, which has no name and counts the rows, is left out. To keep it, name it.",
                AmbiguousDataWarning,
            )
            continue
        kept.append(name)
        if kind == "text":
            _check_marks(column)
        if kind == "text" or column.dtype.kind in "iu":
            _hint_at_identifiers(column, kind)
    if not kept:
        raise InvalidInputError("no column is left to learn from: keep one beside the target.")
    return frame[kept]


def may_lack_words(column: pd.Series) -> bool:
    """Whether pandas may have taken words, such as NA or None, for missing labels."""
    import pandas as pd

    if column.notna().all() or _kind(column) != "text":
        return False
    return bool(pd.to_numeric(column.dropna(), errors="coerce").isna().any())


def check_words(column: pd.Series, written: pd.Series) -> None:
    """Refuse words of which nobody has said whether they are classes or missing labels."""
    lost = written[column.isna()].dropna()
    if len(lost):
        word = quote(str(lost.iloc[0]))
        raise InvalidInputError(
            f"--target {column.name}: is {word}, in {lost.eq(lost.iloc[0]).sum()} rows, a class, "
            f"or a missing label? Add --categorical {quote(str(column.name))} for the one, "
            f"--missing {word} for the other."
        )


def is_whole(column: pd.Series) -> bool:
    """Whether all are whole numbers."""
    whole = _kind(column) == "numbers" and (column.dropna().astype("float64") % 1 == 0).all()
    return bool(whole)


def check_zeros(column: pd.Series, written: pd.Series) -> None:
    """Refuse labels such as 01 and 1, which are one number."""
    text = written.dropna().astype(str).str.strip()
    padded = text[text.str.fullmatch(r"0\d+")]
    plain = set(text[~text.index.isin(padded.index)])
    for each in padded.unique():
        if (short := each.lstrip("0") or "0") in plain:
            raise InvalidInputError(
                f"--target {column.name}: {each} and {short} are one number. Add --categorical "
                f"{quote(str(column.name))} if they are two classes, or write them alike."
            )


def classes(column: pd.Series, chosen: bool = False) -> np.ndarray:
    """(n,) labels, None where there is none; `chosen` says that numbers are classes."""
    name, known = column.name, column.dropna()
    if _kind(column) == "dates":
        raise InvalidInputError(f"--target {name}: dates are no classes; choose another column.")
    n_different = known.nunique()
    if n_different < 2:
        found = f"only {known.iloc[0]}" if n_different else "nothing"
        raise InvalidInputError(
            f"--target {name}: the column holds {found}, and there is nothing to tell apart. Leave "
            "--target out for a density of the rows."
        )
    if not chosen:
        check_classes(column)
    if _kind(column) == "text" and len(known) >= _MANY_ROWS and 2 * n_different > len(known):
        raise InvalidInputError(
            f"--target {name}: {n_different} different values in {len(known)} rows are no classes, "
            "each of which needs several rows. Choose another column."
        )
    return labels(column)


def check_classes(column: pd.Series) -> None:
    """Refuse numbers that are too many to be classes."""
    name, known = column.name, column.dropna()
    if _is_continuous(known, known.nunique()):
        raise InvalidInputError(
            f"--target {name}: {known.nunique()} different numbers are no classes. Use "
            f"--regression to predict numbers, or --categorical {quote(str(name))} if they are "
            "classes after all."
        )


def labels(column: pd.Series) -> np.ndarray:
    """(n,) labels as they are written, whole numbers without a point; None where there is none."""
    known = column.dropna()
    if is_whole(column):
        known = known.astype("int64")
    found = np.full(len(column), None, dtype=object)
    found[column.notna().to_numpy()] = known.tolist()
    return found if len(known) < len(column) else np.array(found.tolist())


def numbers(column: pd.Series) -> np.ndarray:
    """(n,) numbers to predict, NaN where there is none."""
    if _kind(column) not in ("numbers", "booleans") or column.notna().sum() == 0:
        raise InvalidInputError(
            f"--target {column.name}: --regression needs numbers; leave it out for classes."
        )
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _is_continuous(known: pd.Series, n_different: int) -> bool:
    if _kind(known) != "numbers":
        return False
    if (known.astype("float64") % 1 != 0).any():
        return n_different > _MOST_FRACTIONS
    return n_different > max(_MOST_WHOLE, _WHOLE_SHARE * len(known))


def _kind(column: pd.Series) -> str:
    """What a column holds: numbers, booleans, text, dates, or something else (by its type)."""
    name = name_of_type(column.dtype)
    if name in NUMBERS | BOOLEANS:
        return "numbers" if name in NUMBERS else "booleans"
    if name == "datetime":
        return "dates"
    if name == "category":
        return "numbers" if name_of_type(column.cat.categories.dtype) in NUMBERS else "text"
    if name not in TEXT | {"object"}:
        return name
    cells = column.dropna().iloc[:_LOOKED_AT].tolist()
    types = {type(cell) for cell in cells}
    if types <= {str}:
        dates = bool(cells) and all(map(_DATE.fullmatch, cells))
        return "dates" if dates else "text"
    if types <= {bool}:
        return "booleans"
    first = type(cells[0]).__name__.lower()
    return "dates" if first in ("date", "datetime", "timestamp") else first


def _check_marks(column: pd.Series) -> None:
    """Words among numbers: marks of missing values, or categories of which some are numbers."""
    import pandas as pd

    different = pd.Series(column.dropna().astype(str).unique())
    words = different[pd.to_numeric(different, errors="coerce").isna()].tolist()
    if not words or len(words) > 0.5 * len(different):
        return
    marks = " ".join(f"--missing {quote(word)}" for word in words[:3])
    message = f"column {column.name!r} holds numbers and words ({some_of(words)})"
    if len(different) - len(words) > _FEW:
        raise InvalidInputError(
            f"{message}. If these mark missing values, add {marks}; if all are categories, "
            f"--categorical {quote(str(column.name))}."
        )
    warn(
        f"{message}, and is taken for categories. If these mark missing values, add {marks}.",
        AmbiguousDataWarning,
    )


def _hint_at_identifiers(column: pd.Series, kind: str) -> None:
    counted = kind == "text" or column.is_monotonic_increasing
    if len(column) >= _MANY_ROWS and counted and column.is_unique:
        warn(
            f"column {column.name!r} is different in every row, as identifiers are, which say "
            f"nothing about other rows. Remedy: --drop {quote(str(column.name))}.",
            AmbiguousDataWarning,
        )


def note_replaced(names: Iterable[str], answers: Iterable[str]) -> None:
    """A word about columns of a file that are not written, since answers have their names."""
    if lost := sorted(set(names) & set(answers)):
        warn(
            f"answers stand in place of the columns {some_of(lost)} of the file: "
            "rename these to keep them.",
            AmbiguousDataWarning,
        )
