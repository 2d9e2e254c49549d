"""What commands ask of a model file, and how its answers become tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mixtura.asking import (
    Columns,
    class_of,
    is_density,
    load_model,
    marks_of,
    reasons,
    schema_of,
    target_of,
    text_columns,
)
from mixtura.cli.columns import check_columns, labels, note_replaced, numbers
from mixtura.cli.output import Facts
from mixtura.data.columns import kind_of
from mixtura.data.given import Loaded, Parameters
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, warn
from mixtura.files import check_table_place, read_frame, write_frame

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Asked:
    """A model, the rows of a file, and the columns of these that the model is to see."""

    model: Loaded
    frame: pd.DataFrame
    X: pd.DataFrame
    kept: list[str] | None = None

    @classmethod
    def read(
        cls,
        model: Path,
        data: Path,
        missing: list[str] | None,
        question: str = "score_samples",
        out: Path | None = None,
        kept: list[str] | None = None,
        given: str | None = None,
    ) -> Asked:
        """All is checked before any work; `given` names a column of answers."""
        if out is not None:
            check_table_place(out, model, data)
        found = load_model(model, question)
        names, target = schema_of(found).names, target_of(found)
        known = None if names is None else [*names, target, given]
        marks, answer = marks_of(found, missing), given or target
        frame = read_frame(data, marks, text_columns(found), known)
        if answer in frame and hasattr(found, "classes_") and frame[answer].isna().any():
            words = read_frame(data, marks, only=answer)[answer].astype(object)
            if (named := words.isin(found.classes_)).any():  # NA may be a class
                frame[answer] = words.where(named, frame[answer])
        check_columns(frame, kept or [], "--id")
        unused = [target, *(name for name in kept or () if name not in (names or (name,)))]
        return cls(found, frame, frame.drop(columns=unused, errors="ignore"), kept)

    def first(self, count: int) -> Asked:
        """The same for so many rows at most."""
        if len(self.X) <= count:
            return self
        warn(f"the first {count} of {len(self.X)} rows are taken.", AmbiguousDataWarning)
        return replace(self, frame=self.frame.iloc[:count], X=self.X.iloc[:count])

    def write_beside(self, answers: Columns, out: Path) -> None:
        """Write what is kept of the file, and answers beside it."""
        note_replaced(self.frame.columns if self.kept is None else self.kept, answers)
        self.write(answers, out)

    def write(self, columns: Columns, out: Path) -> None:
        """Write what is kept of the file, and columns beside it, or in place of its own."""
        kept = self.frame if self.kept is None else self.frame[self.kept]
        found = pd.DataFrame(dict(columns), index=kept.index)
        beside = [name for name in kept.columns if name not in found.columns]
        places = kept.columns.append(found.columns).unique()  # as in the file
        write_frame(pd.concat([kept[beside], found], axis=1)[places], out)

    # -- predictions ---------------------------------------------------------------------------

    def summary(self, found: Columns) -> Facts:
        """What was predicted, in short."""
        if is_density(self.model):
            return {"mean_log_density": float(found["log_density"].mean())}
        predicted = found["prediction"]
        if hasattr(self.model, "classes_"):
            return {"predicted": {str(c): int((predicted == c).sum()) for c in self.model.classes_}}
        return {"mean": float(predicted.mean()), "deviation": float(predicted.std())}

    # -- the truth -----------------------------------------------------------------------------

    def truth(self, target: str | None) -> np.ndarray | None:
        """The column that the model is to predict; None for a density."""
        if is_density(self.model):
            return None
        classifies = hasattr(self.model, "classes_")
        target = target or target_of(self.model)
        if target is None:
            raise InvalidInputError(
                "this model does not know the name of what it predicts: add --target."
            )
        check_columns(self.frame, [target], "--target")
        column = self.frame[target]
        return labels(column) if classifies else numbers(column)

    # -- why -----------------------------------------------------------------------------------

    def explanations(
        self, output: str | None, max_time: float, seed: int
    ) -> tuple[Columns, list[Facts]]:
        """What columns add, for each row; and how much that is on average, largest first.

        Of classifiers it is what they add for the class that is predicted.
        """
        why = reasons(self.model, self.X, output, max_time=max_time, seed=seed)
        found: Columns = {} if why.labels is None else {"prediction": why.labels}
        found["base value"] = why.base
        pairs = zip(why.names, why.adds.T, strict=True)
        found |= {f"{name} adds": column for name, column in pairs}
        mean: list[Facts] = [
            {"column": why.names[at], "mean absolute value": float(why.size[at])}
            for at in np.argsort(-why.size)
        ]
        return found, mean

    def filled(self, draw: bool, seed: int) -> Columns:
        """The columns of training, with nothing missing."""
        if draw:
            return self.model.impute(self.X, n_draws=1, random_state=seed)[0]
        return self.model.impute(self.X)


# -- draws -------------------------------------------------------------------------------------


def draw(model: Loaded, count: int, label: str | None, given: list[str], seed: int) -> pd.DataFrame:
    """So many rows, with their classes where there are any."""
    schema, known = schema_of(model), {}
    places = range(1, model.n_features_in_ + 1)
    names = [*map(str, schema.names or (f"column {place}" for place in places))]
    for text in given:
        name = max((each for each in names if text.startswith(f"{each}=")), key=len, default="")
        if not name:
            raise InvalidInputError(
                f"--given {text}: write COLUMN=VALUE, with a column of the model: "
                f"{', '.join(names[:10])}."
            )
        at, value = names.index(name), text[len(name) + 1 :]
        known[name] = _cell(value, schema.categories[at] if schema.categories else None, text)
    options: Parameters = {"given": known or None, "random_state": seed}
    if label is not None:
        options["y"] = class_of(model, label)
    rows, drawn = model.sample(count, **options)
    frame = pd.DataFrame(rows).set_axis(names, axis=1).infer_objects()
    if hasattr(model, "classes_"):
        frame[target_of(model) or "class"] = drawn
    return frame


def _cell(text: str, categories: np.ndarray | None, label: str) -> object:
    """A value of a column, as the model has it."""
    kind = kind_of(categories)
    if kind == "booleans":
        if text.lower() not in _BOOLEANS:
            raise InvalidInputError(f"--given {label}: the column holds true and false.")
        return _BOOLEANS[text.lower()]
    if kind == "text":
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--given {label}: the column holds numbers.") from None
