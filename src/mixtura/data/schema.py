"""What a user passes as a table: real and categorical columns become one matrix of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixtura.data.columns import (
    BOOLEANS,
    NUMBERS,
    TEXT,
    check_kind,
    codes_of,
    decoded,
    distinct,
    kept,
    kind_of,
    read_column,
    restored,
)
from mixtura.data.given import ArrayLike
from mixtura.data.in_memory import (
    as_table,
    column_of,
    columns_of,
    is_frame,
    names_of,
    table_of,
    type_names,
)
from mixtura.data.lazy import SCAN_ROWS, LazyRows, chunks_of, shared
from mixtura.data.matrix import AnyReadings, Matrix
from mixtura.data.names import are_text, check_names, chosen_columns, column_label, some_of
from mixtura.data.table_forms import TableForm
from mixtura.exceptions import AmbiguousDataWarning, DegenerateDataWarning, InvalidInputError, warn

_MANY_CATEGORIES = 1_000
#: Different numbers of a column of text from which on they may have been meant as numbers.
_MANY_NUMBERS = 20
#: Tables of more rows are checked by scikit-learn, in little memory.
_SOME_ROWS = 1_000


#: For each column its sorted categories, or None; None altogether where all hold numbers.
Categories = tuple[np.ndarray | None, ...] | None


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, learned from the training rows.

    Attributes
    ----------
    names : of the columns of a data frame, where all or none are text; otherwise None. What is
        neither text nor a whole number goes by its text.
    categories : for each column its sorted categories, or None if it holds numbers; None
        altogether when no column is categorical.
    empty : positions of the columns in which nothing was observed. What they hold later, numbers or
        text, counts as missing, like categories that were not in the training rows.
    form : of the data frame that the training rows were; None of arrays and files.
    """

    names: tuple[object, ...] | None = None
    categories: Categories = None
    empty: tuple[int, ...] = ()
    form: TableForm | None = None

    @classmethod
    def learn(cls, X: ArrayLike, categorical_features: ArrayLike = None) -> Schema:
        """Columns are categorical by their type, or because `categorical_features` says so."""
        table = table_of(X)
        if table is None:
            return cls(None, None)
        names, types = names_of(table), type_names(table)
        chosen = chosen_columns(categorical_features, names, len(types))
        categories: list[np.ndarray | None] = [None] * len(types)
        observed: dict[int, int] = {}
        for place, type_name in enumerate(types):
            if place in chosen or type_name not in NUMBERS:
                label = column_label(names, place)
                kind, values = read_column(column_of(table, place), label)
                by_type = type_name in TEXT | BOOLEANS or kind in ("text", "booleans")
                if place in chosen or by_type:
                    categories[place], observed[place] = distinct(kind, values, label)
        return cls.of(names, categories, observed)

    @classmethod
    def of(
        cls,
        names: tuple[object, ...] | None,
        categories: Sequence[np.ndarray | None],
        observed: dict[int, int],
    ) -> Schema:
        """Columns by their categories, or None; `observed` counts the values of those that have."""
        _warn_about_identifiers(names, categories, observed)
        _warn_about_numbers(names, categories)
        return cls(names, None if all(c is None for c in categories) else tuple(categories))

    def with_empty(self, values: np.ndarray | LazyRows) -> Schema:
        """The same, knowing which columns of the training rows (n, D) are all NaN."""
        empty = np.ones(values.shape[1], dtype=bool)
        for _, rows in chunks_of(values, SCAN_ROWS):
            empty &= np.isnan(rows).all(0)
            if not empty.any():
                break
        empty = np.logical_and.reduce(shared(values, empty))
        return replace(self, empty=tuple(np.flatnonzero(empty).tolist()))

    def widened(self, values: np.ndarray) -> Schema:
        """The same after more rows (n, D), which may hold other numbers."""
        return self if self.form is None else replace(self, form=self.form.widened(values))

    def of_numbers(self) -> Schema:
        """The same for a model that takes numbers alone: text is refused."""
        for place, categories in enumerate(self.categories or ()):
            if kind_of(categories) == "text":
                raise InvalidInputError(
                    f"{column_label(self.names, place)} holds text, and this model takes numbers "
                    "alone: MixtureClassifier and others take categories, or turn it into numbers."
                )
        return Schema(self.names)

    def equals(self, other: Schema) -> bool:
        """Whether names and categories are the same."""

        def listed(schema: Schema) -> list[object]:
            return [None if c is None else c.tolist() for c in schema.categories or ()]

        return self.names == other.names and listed(self) == listed(other)

    def levels(self, n_features: int) -> np.ndarray:
        """(D,) the number of categories of each column, at least one; 0 for numbers."""
        known = self.categories or (None,) * n_features
        return np.array([0 if c is None else max(len(c), 1) for c in known], dtype=np.int64)

    def position(self, column: int | str, n_features: int) -> int:
        """Where a column stands, given by name or position."""
        names = [str(name) for name in self.names or ()]
        if isinstance(column, bool) or column not in (*names, *range(n_features)):
            raise InvalidInputError(
                f"there is no column {column!r}: give its position, below {n_features}, or its "
                "name in the data frame of the training rows."
            )
        return names.index(column) if isinstance(column, str) else int(column)

    def encode(self, X: ArrayLike, unexpected: str = "missing") -> ArrayLike:
        """X as a `Matrix` of numbers and codes; X itself where there is nothing to do.

        Columns that X lacks and categories that were not in the training rows count as missing, and
        say nothing by it, with a warning; or they are refused, if `unexpected` is "error". Columns
        that the training rows lack are refused, or left aside, with a warning, if it is "ignore".
        """
        table = table_of(X)
        if table is None:
            return X
        names, types = self.names_in(table), type_names(table)
        width, expected = len(types), len(self.names or self.categories or types)
        numeric = NUMBERS.issuperset(types)
        if names:
            check_names(names, self.names or (), unexpected)
        elif width != expected:
            if numeric:
                return X  # scikit-learn says what is wrong in the words that its users know
            raise InvalidInputError(
                f"X has {width} features, but the model was fitted with {expected}."
            )
        places = self._places(names, width)
        if numeric and None not in places and self._nothing_to_do(table, places):
            return X if places == list(range(width)) else columns_of(X, places)
        return self._matrix(table, places, unexpected)

    def plain(self, X: ArrayLike) -> np.ndarray | None:
        """X as a matrix of numbers, where nothing has to be told, converted or refused.

        That is so for some rows of finite numbers (or NaN) under the names of training, in their
        order. None for all else, which goes the long way; that takes ten times as long for a row.
        """
        if is_frame(X):
            names = tuple(X.columns)
        elif type(X) is np.ndarray and X.ndim == 2:
            names = None
        else:
            return None
        told = self.categories is not None or self.empty
        if told or names != self.names or not 0 < len(X) <= _SOME_ROWS:
            return None
        values = np.asarray(X, order="C")
        values = values.astype(np.float64) if values.dtype.kind in "iu" else values
        if values.dtype not in (np.float32, np.float64) or np.isinf(values).any():
            return None
        return values

    def in_order(self, X: ArrayLike) -> ArrayLike:
        """A data frame with its columns in the order of training, if it has these and no others."""
        names = self.names_in(X)
        if names is None or set(names) != set(self.names or ()):
            return X
        return columns_of(X, self._places(names, len(names)))

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Codes become categories: floats if all of these are numbers, otherwise objects."""
        values = np.asarray(values)
        if self.categories is None:
            return values
        columns = [decoded(v, c) for v, c in zip(values.T, self.categories, strict=True)]
        numeric = {"numbers", "nothing"}.issuperset(map(kind_of, self.categories))
        return np.column_stack(columns).astype(np.float64 if numeric else object)

    def within(self, values: np.ndarray) -> np.ndarray:
        """Draws (n, D) as numbers that the columns of a data frame hold: counts are whole, say."""
        return values if self.form is None else self.form.within(values)

    def table(self, values: np.ndarray) -> ArrayLike:
        """Decoded values (n, D) in the form of the training rows: a data frame, or an array."""
        if self.form is None:
            return self.decode(values)
        columns = [decoded(each, self._of(at)) for at, each in enumerate(values.T)]
        return self.form.build(self.names or range(len(columns)), columns)

    def like(self, values: np.ndarray, X: ArrayLike, untold: np.ndarray | None = None) -> ArrayLike:
        """The decoded values in the form of X: a data frame of its sort, or an array.

        What X holds in `untold` entries (n, D), which the model could not know, comes back.
        """
        X = as_table(X)
        if not is_frame(X):
            found = self.decode(values)
            return found if untold is None else kept(found, table_of(X), untold)
        names, values = self.names_in(X), np.asarray(values, dtype=np.float64)
        places = self._places(names, len(X.columns))
        known = self.names or tuple(X.columns)
        labels = [known[at] if p is None else X.columns[p] for at, p in enumerate(places)]
        columns = []
        for at, place in enumerate(places):
            categories, example = self._of(at), column_of(X, place or 0)
            kind, found = "", decoded(values[:, at], categories)
            if place is not None:
                kind = kind_of(categories)
                found = found if untold is None else kept(found, example, untold[:, at])
            columns.append(restored(found, kind, example))
        if not hasattr(X, "iloc"):
            return type(X)([c.alias(name) for c, name in zip(columns, labels, strict=True)])
        frame = columns_of(X, [place or 0 for place in places]).copy()
        for at, column in enumerate(columns):
            frame.isetitem(at, column)
        return frame if None not in places else frame.set_axis(labels, axis=1)

    def _nothing_to_do(self, table: ArrayLike, places: list[int | None]) -> bool:
        """Whether numbers may stay as they are: no codes, and what was empty still is."""
        empty = [place for at, place in enumerate(places) if place is not None and at in self.empty]
        later = (np.asarray(column_of(table, place), dtype=np.float64) for place in empty)
        return self.categories is None and all(np.isnan(values).all() for values in later)

    def _of(self, at: int) -> np.ndarray | None:
        return self.categories[at] if self.categories else None

    def _known(self, at: int) -> np.ndarray | None:
        """What a value must be among to count; None where any number does."""
        return np.empty(0) if at in self.empty else self._of(at)

    def names_in(self, X: ArrayLike) -> tuple[object, ...] | None:
        """The names that match the columns of X with those of training; None: positions do.

        Text is matched with text alone: the numbers of a frame without names are none.
        """
        names = names_of(X)
        alike = self.names and names and are_text(names) == are_text(self.names)
        return names if alike else None

    def _places(self, names: tuple[object, ...] | None, width: int) -> list[int | None]:
        """Where each training column stands in a table with these names; None for nowhere."""
        if names is None:
            return list(range(width))
        where = {name: place for place, name in enumerate(names)}
        return [where.get(name) for name in self.names or ()]

    def _matrix(self, table: ArrayLike, places: list[int | None], unexpected: str) -> Matrix:
        matrix = np.full((len(table), len(places)), np.nan)
        untold = np.ones(matrix.shape, dtype=bool)
        unseen = []
        for at, place in enumerate(places):
            if place is not None:
                label = column_label(self.names, at)
                categories = self._known(at)
                kind, values = read_column(column_of(table, place), label)
                check_kind(kind, kind_of(categories), label)
                matrix[:, at], untold[:, at], strange = codes_of(kind, values, categories, label)
                unseen += [f"{label}: {some_of(strange)}"] if strange else []
        self.tell_unseen(unseen, unexpected)
        return Matrix(matrix, untold if untold.any() else None)

    def recode(
        self, values: np.ndarray, own: np.ndarray | None, at: int
    ) -> tuple[np.ndarray, list[str]]:
        """Codes of a training column's categories, and which are none of them.

        `values` (n,) are the codes of other categories, or numbers where `own` is None.
        """
        known, label = self._known(at), column_label(self.names, at)
        if np.isnan(values).all():
            return values, []
        kind = kind_of(own)
        check_kind(kind, kind_of(known), label)
        if own is None or known is None:
            codes, _, strange = codes_of(kind, decoded(values, own).astype(float), known, label)
        else:
            given = own.tolist() if kind == "text" else own
            place, _, strange = codes_of(kind, given, known, label)
            codes = np.append(place, np.nan)[np.nan_to_num(values, nan=len(own)).astype(int)]
        return codes, [f"{label}: {some_of(strange)}"] if strange else []

    def tell_unseen(self, unseen: list[str], unexpected: str) -> None:
        """Warn of what training did not have, which counts as missing; or refuse it."""
        if unseen:
            what = "values" if self.empty else "categories"
            message = f"X holds {what} that the training rows do not ({'; '.join(unseen)})"
            if unexpected == "error":
                raise InvalidInputError(f"{message}: put None in their place, or train with them.")
            warn(f"{message}; they count as missing.", DegenerateDataWarning)

    def without_far(self, rows: AnyReadings, reach: np.ndarray) -> AnyReadings:
        """The rows, nothing known of numbers beyond two ends (2, D), of which a warning tells.

        Ends (2, 0) are none.
        """
        if not reach.size:
            return rows
        far = (rows.values < reach[0]) | (rows.values > reach[1])
        if not far.any():
            return rows
        then = "they count as missing for class probabilities"
        self.tell_far(rows.values, reach, np.arange(reach.shape[1]), then, rows.where)
        return rows.without(far)

    def tell_far(
        self,
        values: np.ndarray,
        reach: np.ndarray,
        column: np.ndarray,
        then: str,
        where: Callable[[int], str] = "row {}".format,
    ) -> None:
        """Warn of numbers (n, P), of columns (P,), beyond two ends (2, P): what `then` happens."""
        low, high = reach
        values = values[:, : len(low)]
        found = np.argwhere((values < low) | (values > high))
        if len(found):
            row, place = found[0]
            first = f"{where(int(row))}, {column_label(self.names, column[place])}"
            warn(
                f"{len(found)} number(s) of X lie far outside of the training rows (the first: "
                f"{values[row, place]:.6g} in {first}); "
                f"{then} ({low[place]:.6g} to {high[place]:.6g} is near there). Remedy: correct "
                "them, or pass NaN if they are wrong.",
                DegenerateDataWarning,
            )


def _warn_about_identifiers(
    names: tuple[object, ...] | None, categories: Sequence[ArrayLike], observed: dict[int, int]
) -> None:
    found = [
        f"{column_label(names, place)}: {len(categories[place])} in {n_observed} rows"
        for place, n_observed in observed.items()
        if len(categories[place]) > max(_MANY_CATEGORIES, n_observed / 2)
    ]
    if found:
        warn(
            f"columns with so many categories ({'; '.join(found)}) look like identifiers, which "
            "say nothing about other rows. Remedy: drop them.",
            DegenerateDataWarning,
        )


def _warn_about_numbers(names: tuple[object, ...] | None, categories: Sequence[ArrayLike]) -> None:
    found = [
        column_label(names, place)
        for place, known in enumerate(categories)
        if kind_of(known) == "text" and len(known) > _MANY_NUMBERS and all(map(_is_number, known))
    ]
    if found:
        warn(
            f"{', '.join(found)}: text, all of which are numbers, so that each is a category of "
            "its own. Remedy: if they are no codes, turn them into numbers, without signs such as "
            "$ and %, and without commas between thousands.",
            AmbiguousDataWarning,
        )


def _is_number(text: str) -> bool:
    try:
        float(text.strip("$€£¥% ").replace(",", ""))
    except ValueError:
        return False
    return True
