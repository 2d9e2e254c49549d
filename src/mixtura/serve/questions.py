"""What clients ask of a model, and its answers: plain objects on both sides, as JSON has them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pandas as pd

from mixtura.asking import (
    class_of,
    is_density,
    marks_of,
    predictions,
    reasons,
    schema_of,
    target_of,
    text_columns,
)
from mixtura.data.columns import kind_of, plain
from mixtura.data.given import ArrayLike, Loaded
from mixtura.exceptions import InvalidInputError
from mixtura.files import read_text

#: Facts by name, of which JSON can be made.
Facts = dict[str, object]
#: Cells by row and column, None where missing.
Rows = list[list[object]]
_KINDS = {"numbers": "number", "nothing": "number", "text": "text", "booleans": "boolean"}
#: Digits that typical values are shown with, and rows that one request may have explained.
_DIGITS, MOST_EXPLAINED = 4, 20
#: Columns that a table may have beside those of the model.
_MORE_COLUMNS = 1000


@dataclass(frozen=True)
class Column:
    """A column of the model: what clients call it, what it holds, and which categories."""

    name: str
    kind: str
    categories: tuple[object, ...] | None

    def check(self, value: object, row: int) -> object:
        """A cell as the model takes it: of the right kind, finite, None where missing."""
        if value is None:
            return None
        if self.kind == "number":
            right = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            right = isinstance(value, str if self.kind == "text" else bool)
        if not right:
            raise InvalidInputError(
                f"row {row}, {self.name!r}: {_short(value)} is no {self.kind}; null is for what is "
                "missing."
            )
        if self.kind == "number" and not _is_finite(value):
            raise InvalidInputError(f"row {row}, {self.name!r}: {_short(value)} is too large.")
        return value


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except OverflowError:
        return False


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def read_json(body: bytes) -> object:
    """A JSON text without NaN and Infinity, and without names that stand twice in an object."""
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise InvalidInputError("the JSON is nested too deeply.") from None
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"the body is no JSON: {error}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInputError(f"{name} is no number of JSON: null is for what is missing.")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInputError("a name stands twice in an object: each may stand once.")
    return found


@dataclass(frozen=True)
class Questions:
    """A model, its columns, and all that can be asked of it."""

    model: Loaded
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, model: Loaded) -> Questions:
        """The questions to a model that takes tables."""
        schema, count = schema_of(model), model.n_features_in_
        names = schema.names or [f"column {place}" for place in range(1, count + 1)]
        columns = []
        for place, name in enumerate(names):
            categories = schema.categories[place] if schema.categories else None
            known = None if categories is None else tuple(categories.tolist())
            columns.append(Column(str(name), _KINDS[kind_of(categories)], known))
        return cls(model, tuple(columns))

    @property
    def names(self) -> list[str]:
        """Of what the model answers: the last parts of the addresses."""
        asked = {"explain": "explain", "next": "next_feature", "impute": "impute"}
        return ["predict", *(name for name, question in asked.items() if self._has(question))]

    def _has(self, question: str) -> bool:
        return hasattr(self.model, question)

    # -- rows ----------------------------------------------------------------------------------

    def rows(self, given: object, most: int) -> Rows:
        """Checked rows of a request, [{column: value}], with a cell per column."""
        if not isinstance(given, list) or not 1 <= len(given) <= most:
            raise InvalidInputError(f"rows must be a list of 1 to {most} objects.")
        known = {column.name for column in self.columns}
        for number, row in enumerate(given):
            if not isinstance(row, Mapping):
                raise InvalidInputError(f"row {number} must be an object of values by column.")
            for name in row.keys() - known:
                raise InvalidInputError(
                    f"row {number}: there is no column {_short(name)!r}; /schema lists them."
                )
        return [
            [column.check(row.get(column.name), number) for column in self.columns]
            for number, row in enumerate(given)
        ]

    def table_of(self, rows: Rows) -> ArrayLike:
        """Rows as the model takes them: a data frame if it was fitted to one."""
        names = schema_of(self.model).names
        if all(column.kind == "number" for column in self.columns):
            values = np.array(rows, dtype=np.float64)
            return values if names is None else pd.DataFrame(values, columns=list(names))
        types = {"number": np.float64}
        cells = [
            np.array([row[place] for row in rows], dtype=types.get(column.kind, object))
            for place, column in enumerate(self.columns)
        ]
        frame = pd.DataFrame(dict(enumerate(cells)))
        return frame.to_numpy() if names is None else frame.set_axis(list(names), axis=1)

    # -- answers -------------------------------------------------------------------------------

    def schema(self) -> Facts:
        """What the model is about: its columns, with typical values, and its classes."""
        nothing = self.table_of([[None] * len(self.columns)])
        typical = _cells(self.model.impute(nothing))[0] if self._has("impute") else None
        classes = [plain(label) for label in getattr(self.model, "classes_", ())]
        columns: list[Facts] = []
        for place, column in enumerate(self.columns):
            facts: Facts = {"name": column.name, "kind": column.kind}
            if column.categories is not None:
                facts["categories"] = list(column.categories)
            if typical is not None:
                facts["typical"] = _rounded(typical[place])
            columns.append(facts)
        return {
            "model": type(self.model).__name__,
            "target": target_of(self.model),
            "classes": classes or None,
            "columns": columns,
            "questions": self.names,
        }

    def predict(
        self, X: ArrayLike, coverage: float | None = None, outliers: float | None = None
    ) -> list[Facts]:
        """What is predicted; of classes also their probabilities, likeliest first."""
        classes = np.asarray(getattr(self.model, "classes_", ()))
        if len(classes):
            found = [_of_classes(classes, row) for row in self.model.predict_proba(X)]
        elif is_density(self.model):
            found = [{"log_density": float(v)} for v in self.model.score_samples(X)]
        else:
            found = [{"prediction": plain(v)} for v in self.model.predict(X)]
        if coverage is not None and self._has("predict_set"):
            for facts, row in zip(found, self.model.predict_set(X, coverage), strict=True):
                facts["set"] = [plain(label) for label in classes[row]]
        if coverage is not None and self._has("predict_interval"):
            for facts, ends in zip(found, self.model.predict_interval(X, coverage), strict=True):
                facts["interval"] = [float(end) if np.isfinite(end) else None for end in ends]
        if outliers is not None and self._has("is_outlier"):
            for facts, odd in zip(found, self.model.is_outlier(X, outliers), strict=True):
                facts["unlike_training"] = bool(odd)
        return found

    def explain(self, X: ArrayLike, label: object, max_time: float) -> list[Facts]:
        """What columns add to the probability of a class, to a number, or to the log density."""
        label = None if label is None else class_of(self.model, label)
        why = reasons(self.model, X, None, label, max_time=max_time)
        found: list[Facts] = []
        about: Facts = {} if is_density(self.model) else {"target": target_of(self.model)}
        for row, base in enumerate(why.base):
            order = np.argsort(-np.abs(why.adds[row]), kind="stable")
            facts = about if why.labels is None else {"class": plain(why.labels[row])}
            adds = {why.names[at]: float(why.adds[row, at]) for at in order}
            answer = float(base + why.adds[row].sum())
            found.append({**facts, "base": float(base), "adds": adds, "answer": answer})
        return found

    def next(self, X: ArrayLike) -> list[Facts]:
        """What each missing entry is expected to tell, most first.

        Nats about the class, or shares of the variance of a number.
        """
        unit, found = "nats" if self._has("classes_") else "shares", list[Facts]()
        for row in self.model.next_feature(X, random_state=0):
            order = [at for at in np.argsort(-row, kind="stable") if row[at] > 0.0]
            found.append({unit: {self.columns[at].name: float(row[at]) for at in order}})
        return found

    def impute(self, X: ArrayLike) -> list[Facts]:
        """What the missing entries probably are."""
        filled, names = _cells(self.model.impute(X)), [column.name for column in self.columns]
        found: list[Facts] = []
        for row, holes in enumerate(pd.isna(_cells(X))):
            missing = np.flatnonzero(holes)
            found.append({"filled": {names[at]: plain(filled[row, at]) for at in missing}})
        return found

    def table(self, body: bytes, most: int) -> bytes:
        """Delimited text with predictions beside its columns."""
        widest = len(self.columns) + _MORE_COLUMNS
        names = schema_of(self.model).names
        frame = read_text(
            io.BytesIO(body),
            "the table",
            marks_of(self.model),
            text=text_columns(self.model),
            known=names and [*names, target_of(self.model)],
            most_columns=widest,
        )
        if len(frame) > most:
            raise InvalidInputError(f"the table has {len(frame)} rows: send {most} at a time.")
        X = frame.drop(columns=[target_of(self.model)], errors="ignore")
        found = pd.DataFrame(predictions(self.model, X), index=frame.index)
        beside = frame[[name for name in frame.columns if name not in found.columns]]
        return pd.concat([beside, found], axis=1).to_csv(index=False).encode()


def _of_classes(classes: np.ndarray, proba: np.ndarray) -> Facts:
    order = np.argsort(-proba, kind="stable")
    shares = {str(classes[at]): float(proba[at]) for at in order}
    return {"prediction": plain(classes[order[0]]), "probabilities": shares}


def _cells(table: ArrayLike) -> np.ndarray:
    return np.asarray(table, dtype=object)


def _rounded(value: ArrayLike) -> object:
    value = plain(value)
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
