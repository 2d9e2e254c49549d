"""Questions to the model of a file: rows of a table in, columns of a table out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.utils import get_tags

from mixtura.data.columns import kind_of
from mixtura.data.given import ArrayLike, Loaded
from mixtura.data.schema import Schema
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.persistence import load

#: Columns of a table, by name.
Columns = dict[str, ArrayLike]


def load_model(path: Path, question: str = "score_samples") -> Loaded:
    """The model of a file, which takes tables, and answers the question."""
    model = load(path)
    if not hasattr(model, question) or not hasattr(getattr(model, "model_", None), "schema"):
        raise UnsupportedError(
            f"{path} holds a {type(model).__name__}, which this command is not for: `mixtura fit` "
            "with classes as --target makes models that it is for."
        )
    if getattr(model.model_, "n_targets", 1) > 1:
        raise UnsupportedError(
            f"{path} predicts {model.model_.n_targets} numbers per row, and this is for models of "
            "one: load it in Python."
        )
    if hasattr(model, "unexpected"):
        model.set_params(unexpected="ignore")
    return model


def is_density(model: Loaded) -> bool:
    """Whether there is nothing that the model predicts."""
    return get_tags(model).estimator_type == "density_estimator"


def schema_of(model: Loaded) -> Schema:
    """Names and categories of the columns."""
    return model.model_.schema


def target_of(model: Loaded) -> str | None:
    """The name of what the model predicts, if it knows it."""
    return getattr(model, "target_name_", None)


def marks_of(model: Loaded, more: Collection[str] | None = None) -> list[str]:
    """What marks missing values in tables: as in the file of training, and more."""
    return [*map(str, getattr(model, "missing_marks_", ())), *(more or ())]


def text_columns(model: Loaded) -> list[object]:
    """Names of the columns whose values are text, be they numbers to look at; also the target."""
    schema = schema_of(model)
    pairs = zip(schema.names or (), schema.categories or (), strict=False)
    found = [name for name, categories in pairs if kind_of(categories) == "text"]
    labels = np.asarray(getattr(model, "classes_", ()))
    return [*found, target_of(model)] if labels.dtype.kind in "UO" else found


def predictions(
    model: Loaded, X: ArrayLike, coverage: float | None = None, outliers: float | None = None
) -> Columns:
    """The prediction and class probabilities; of a density, component and log density.

    Also sets of classes, or intervals of numbers, that cover the true one, and whether a row is
    odd, at a share of usual rows, where these are asked for.
    """
    found: Columns = {"prediction": model.predict(X)}
    if is_density(model):
        found = {"component": found["prediction"], "log_density": model.score_samples(X)}
    elif hasattr(model, "classes_"):
        names = [f"p({label})" for label in model.classes_]
        found |= zip(names, model.predict_proba(X).T, strict=True)
    if coverage is not None and hasattr(model, "predict_interval"):
        found["low"], found["high"] = model.predict_interval(X, coverage).T
    elif coverage is not None:
        _check_answers(model, "predict_set")
        sets = model.predict_set(X, coverage)
        found["set"] = [" | ".join(map(str, model.classes_[row])) for row in sets]
    if outliers is not None:
        _check_answers(model, "is_outlier")
        found["unlike_training"] = model.is_outlier(X, outliers)
    return found


def _check_answers(model: Loaded, question: str) -> None:
    if not hasattr(model, question):
        raise UnsupportedError(f"a {type(model).__name__} has no {question}: do not ask for it.")


@dataclass(frozen=True)
class Reasons:
    """What columns add to one answer for each row.

    Attributes
    ----------
    names : P names of columns.
    labels : (n,) the class that the answers are about; None where they are not about classes.
    base : (n,) the answer to a row with nothing observed.
    adds : (n, P) what each column adds to it.
    size : (P,) mean absolute values over rows and classes.
    """

    names: list[str]
    labels: np.ndarray | None
    base: np.ndarray
    adds: np.ndarray
    size: np.ndarray


def reasons(
    model: Loaded,
    X: ArrayLike,
    output: str | None = None,
    label: object = None,
    *,
    max_time: float,
    seed: int = 0,
) -> Reasons:
    """Shapley values for one class, or for that which is predicted; or of single numbers."""
    why = model.explain(X, output, max_time=max_time, random_state=seed)
    values, base, size = why.values, why.base_values, np.abs(why.values).mean(0)
    if values.ndim == 2:
        return Reasons(why.feature_names, None, base, values, size)
    rows, chosen = np.arange(len(values)), (base + values.sum(1)).argmax(1)
    if label is not None:
        chosen[:] = np.flatnonzero(model.classes_ == class_of(model, label))[0]
    return Reasons(
        why.feature_names,
        model.classes_[chosen],
        base[rows, chosen],
        values[rows, :, chosen],
        size.mean(1),
    )


def class_of(model: Loaded, label: object) -> object:
    """The class that is written like this."""
    known = {str(each): each for each in getattr(model, "classes_", ())}
    if str(label) not in known:
        raise InvalidInputError(
            f"there is no class {label}: {', '.join(known) or 'this model knows none'}."
        )
    return known[str(label)]
