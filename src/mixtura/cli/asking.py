"""What commands ask of a model file, and how its answers become tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.utils import get_tags

from mixtura.cli.columns import check_columns, labels, numbers
from mixtura.cli.output import Facts
from mixtura.cli.scores import scores
from mixtura.data.columns import kind_of
from mixtura.data.given import ArrayLike, Loaded, Parameters
from mixtura.data.schema import Schema
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, UnsupportedError, warn
from mixtura.files import check_table_place, read_frame, write_frame
from mixtura.persistence import load

#: Columns of a table, by name.
Columns = Mapping[str, ArrayLike]
_TRUE = {"true", "yes", "1"}


def load_model(path: Path, question: str = "score_samples") -> Loaded:
    """The model of a file, which takes tables, and answers the question."""
    model = load(path)
    if not hasattr(model, question) or not hasattr(model, "schema_"):
        raise UnsupportedError(
            f"{path} holds a {type(model).__name__}, which this command is not for: `mixtura fit` "
            "makes models that it is for."
        )
    if hasattr(model, "unexpected"):
        model.set_params(unexpected="ignore")
    return model


def text_columns(schema: Schema) -> list[object]:
    """Names of the columns whose categories are text."""
    pairs = zip(schema.names or (), schema.categories or (), strict=False)
    return [name for name, categories in pairs if kind_of(categories) == "text"]


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
    ) -> Asked:
        """All is checked before any work."""
        if out is not None:
            check_table_place(out)
        found = load_model(model, question)
        target = getattr(found, "target_name_", None)
        text = text_columns(found.schema_)
        if np.asarray(getattr(found, "classes_", ())).dtype.kind in "UO":
            text.append(target)
        frame = read_frame(data, missing or (), text)
        check_columns(frame, kept or [], "--id")
        return cls(found, frame, frame.drop(columns=[target], errors="ignore"), kept)

    def first(self, count: int) -> Asked:
        """The same for so many rows at most."""
        if len(self.X) <= count:
            return self
        warn(f"the first {count} of {len(self.X)} rows are taken.", AmbiguousDataWarning)
        return replace(self, frame=self.frame.iloc[:count], X=self.X.iloc[:count])

    def write(self, columns: Columns, out: Path) -> None:
        """Write what is kept of the file, and columns beside it, or in place of its own."""
        kept = self.frame if self.kept is None else self.frame[self.kept]
        found = pd.DataFrame(dict(columns), index=kept.index)
        beside = [name for name in kept.columns if name not in found.columns]
        write_frame(pd.concat([kept[beside], found], axis=1), out)

    # -- predictions ---------------------------------------------------------------------------

    def predictions(self, coverage: float | None, outliers: float | None) -> Columns:
        """The prediction, and class probabilities; sets and oddities where they are asked for.

        Of a density, the component of each row, and its log density.
        """
        found: dict[str, ArrayLike] = {"prediction": self.model.predict(self.X)}
        if self._is_density:
            found = {"component": found["prediction"]}
            found["log_density"] = self.model.score_samples(self.X)
        elif hasattr(self.model, "classes_"):
            names = [f"p({label})" for label in self.model.classes_]
            found |= zip(names, self.model.predict_proba(self.X).T, strict=True)
        if coverage is not None:
            self._need("predict_set", "--coverage")
            sets = self.model.predict_set(self.X, coverage)
            found["set"] = [" | ".join(map(str, self.model.classes_[row])) for row in sets]
        if outliers is not None:
            self._need("is_outlier", "--outliers")
            found["unlike_training"] = self.model.is_outlier(self.X, outliers)
        return found

    @property
    def _is_density(self) -> bool:
        return get_tags(self.model).estimator_type == "density_estimator"

    def _need(self, question: str, option: str) -> None:
        if not hasattr(self.model, question):
            raise UnsupportedError(
                f"{option}: a {type(self.model).__name__} has no {question}; leave the option out."
            )

    def summary(self, found: Columns) -> Facts:
        """What was predicted, in short."""
        if self._is_density:
            return {"mean_log_density": float(found["log_density"].mean())}
        predicted = found["prediction"]
        if hasattr(self.model, "classes_"):
            return {"predicted": {str(c): int((predicted == c).sum()) for c in self.model.classes_}}
        return {"mean": float(predicted.mean()), "deviation": float(predicted.std())}

    # -- the truth -----------------------------------------------------------------------------

    def truth(self, target: str | None) -> np.ndarray | None:
        """The column that the model is to predict; None for a density."""
        if self._is_density:
            return None
        classifies = hasattr(self.model, "classes_")
        target = target or getattr(self.model, "target_name_", None)
        if target is None:
            raise InvalidInputError(
                "this model does not know the name of what it predicts: add --target."
            )
        check_columns(self.frame, [target], "--target")
        column = self.frame[target]
        return labels(column) if classifies else numbers(column)

    def scores(self, truth: np.ndarray | None) -> Facts:
        """How good the model is."""
        return scores(self.model, self.X, truth)

    # -- why -----------------------------------------------------------------------------------

    def explanations(
        self, output: str | None, max_time: float, seed: int
    ) -> tuple[Columns, list[Facts]]:
        """What columns add, for each row; and how much that is on average, largest first.

        Of classifiers it is what they add for the class that is predicted.
        """
        why = self.model.explain(self.X, output, max_time=max_time, random_state=seed)
        values, base, size = why.values, why.base_values, np.abs(why.values).mean(0)
        found: dict[str, ArrayLike] = {}
        if values.ndim == 3:
            rows, guess = np.arange(len(values)), (base + values.sum(1)).argmax(1)
            found["prediction"] = self.model.classes_[guess]
            values, base, size = values[rows, :, guess], base[rows, guess], size.mean(1)
        found["base value"] = base
        names = why.feature_names
        found |= {f"{name} adds": column for name, column in zip(names, values.T, strict=True)}
        order = np.argsort(-size)
        mean: list[Facts] = [
            {"column": names[at], "mean absolute value": float(size[at])} for at in order
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
    schema, known = model.schema_, {}
    names = schema.names or [f"column {place}" for place in range(1, model.n_features_in_ + 1)]
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in names:
            raise InvalidInputError(
                f"--given {text}: write COLUMN=VALUE, with a column of the model: "
                f"{', '.join(map(str, names[:10]))}."
            )
        at = names.index(name)
        known[name] = _cell(value, schema.categories[at] if schema.categories else None, text)
    options: Parameters = {"given": known or None, "random_state": seed}
    if label is not None:
        options["y"] = _class(model, label)
    rows, drawn = model.sample(count, **options)
    frame = pd.DataFrame(rows, columns=list(names)).infer_objects()
    if hasattr(model, "classes_"):
        frame[getattr(model, "target_name_", None) or "class"] = drawn
    return frame


def _class(model: Loaded, label: str) -> object:
    if not hasattr(model, "classes_"):
        raise InvalidInputError(f"--class {label}: this model knows no classes.")
    known = {str(each): each for each in model.classes_}
    if label not in known:
        raise InvalidInputError(f"--class {label}: the classes are {', '.join(known)}.")
    return known[label]


def _cell(text: str, categories: np.ndarray | None, label: str) -> object:
    """A value of a column, as the model has it."""
    kind = kind_of(categories)
    if kind == "booleans":
        return text.lower() in _TRUE
    if kind == "text":
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--given {label}: the column holds numbers.") from None
