"""What `fit` and `tune` do: rows and a target from a file, an estimator for them, a model file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier, MixtureDensity, MixtureRegressor
from mixtura.cli.columns import (
    check_classes,
    check_columns,
    check_words,
    check_zeros,
    classes,
    is_whole,
    may_lack_words,
    numbers,
    usable,
)
from mixtura.cli.large import Large
from mixtura.cli.output import Facts
from mixtura.cli.processes import Processes
from mixtura.cli.scores import scores
from mixtura.densities import DENSITIES
from mixtura.exceptions import InvalidInputError
from mixtura.files import check_place, read_frame
from mixtura.objectives import OBJECTIVES
from mixtura.parquet import Source as Streamed
from mixtura.parts import Part
from mixtura.progress import Record
from mixtura.solvers import EM, SOLVERS

AnyModel = MixtureClassifier | MixtureDensity | MixtureRegressor
#: What names of parts are shorthand for.
_PARTS: Mapping[str, Mapping[str, Callable[[], Part]]] = {
    "density": DENSITIES,
    "objective": OBJECTIVES,
    "solver": SOLVERS,
    "init": {"em": EM},
}
#: What an estimator has chosen.
_CHOICES = ("density_", "tradeoff_", "n_components_", "marginals_", "missingness_")
#: Rows, and what they are to be predicted as; None where nothing is.
Rows = tuple[pd.DataFrame, np.ndarray | None]


@dataclass(frozen=True)
class Source:
    """A file, and what its columns are for."""

    data: Path
    target: str | None
    drop: list[str] | None
    id: list[str] | None
    categorical: list[str] | None
    missing: list[str] | None
    regression: bool

    def rows(self) -> Rows:
        """The columns to learn from, and the target."""
        unused = [*(self.drop or ()), *(self.id or ())]
        frame = read_frame(self.data, self.missing or (), self.categorical or (), unused=unused)
        X = self._features(frame)
        return X, None if self.target is None else self._target(frame[self.target])

    def _features(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns to learn from; a word about others, and about options that name none."""
        target, categorical = [self.target] if self.target else [], self.categorical or []
        named = {"--target": target, "--drop": self.drop or [], "--id": self.id or []}
        for option, names in {**named, "--categorical": categorical}.items():
            check_columns(frame, names, option)
        left_out = {name for names in named.values() for name in names}
        return usable(frame.drop(columns=list(left_out)), categorical)

    def stream(self, large: Large) -> tuple[list[str], Streamed]:
        """The same for files that are read again on every pass; the target goes by its name."""
        if self.missing or self.regression:
            option = "--missing" if self.missing else "--regression"
            raise InvalidInputError(
                f"{option} is for tables that are read at once, and {self.data} is too large, or "
                "many files: leave it out, or take a sample."
            )
        head = large.head()
        columns = [str(name) for name in self._features(head).columns]
        target = [] if self.target is None else [self.target]
        if target and self.target not in (self.categorical or ()):
            check_classes(head[self.target])
        return columns, Streamed(large.pattern, columns=[*columns, *target])

    def _target(self, column: pd.Series) -> np.ndarray:
        if self.regression:
            return numbers(column)
        chosen, whole = column.name in (self.categorical or ()), is_whole(column)
        if (whole and not chosen) or may_lack_words(column):
            written = read_frame(self.data, self.missing or (), only=self.target)[self.target]
            if whole:
                check_zeros(column, written)
                return classes(column)
            if not chosen:
                check_words(column, written)
            column = written
        return classes(column, chosen)


@dataclass
class Task:
    """Rows to learn from, rows to test on if any, the estimator, and where it goes."""

    model: AnyModel
    X: pd.DataFrame | Streamed
    y: np.ndarray | str | None
    test: Rows | None
    n_rows: int
    columns: list[str]
    seed: int
    source: Source
    out: Path
    _seconds: float = 0.0

    @classmethod
    def read(
        cls, source: Source, out: Path, test_size: float, settings: list[str] | None, seed: int
    ) -> Task:
        """All is checked before any work."""
        check_place(out, source.data)
        model = _estimator(source, settings or [], seed)
        if large := Large.find(source.data):
            if test_size:
                raise InvalidInputError(
                    "--test-size is for tables that are read at once: hold a file back, and let "
                    "`mixtura evaluate` read that."
                )
            check_place(out, *map(Path, large.files))
            columns, X = source.stream(large)
            task = cls(model, X, source.target, None, large.n_rows, columns, seed, source, out)
        else:
            rows, test = source.rows(), None
            if test_size:
                rows, test = _split(*rows, test_size, seed)
            columns = [str(name) for name in rows[0].columns]
            task = cls(model, *rows, test, len(rows[0]), columns, seed, source, out)
        kept = [name for name in source.categorical or () if name in columns]
        model.set_params(categorical_features=kept or None)
        return task

    @property
    def name(self) -> str:
        """That of the estimator."""
        return type(self.model).__name__

    def fit(
        self,
        max_time: float | None,
        step: Callable[[Record], None],
        checkpoint: Path | None,
        processes: Processes,
    ) -> None:
        """Fit the estimator to the rows."""
        began = time.perf_counter()
        limit = {} if max_time is None else {"max_time": max_time}
        X, y = processes.share(self.X, self.y)
        kept = {} if checkpoint is None else {"checkpoint": checkpoint}
        if kept and isinstance(self.model, MixtureRegressor):
            raise InvalidInputError("--checkpoint is for classes and densities: leave it out.")
        self.model.set_callbacks(step).set_params(**limit).fit(X, y, **kept)
        self._seconds = time.perf_counter() - began

    def tune(self, trials: int, folds: int, timeout: float | None, storage: Path | None) -> Facts:
        """Search for the best settings, and keep the estimator that has them."""
        if not isinstance(self.X, pd.DataFrame):
            raise InvalidInputError(
                f"tune is for tables that are read at once, and {self.source.data} is too large, "
                "or many files: take a sample."
            )
        from mixtura.tuning import tune

        began = time.perf_counter()
        self.model, study = tune(
            self.model,
            self.X,
            self.y,
            n_trials=trials,
            cv=folds,
            timeout=timeout,
            storage=storage,
            random_state=self.seed,
        )
        self._seconds = time.perf_counter() - began
        return {
            "trials": len(study.trials),
            "score_as_given": study.trials[0].value,
            "best_score": study.best_value,
            "best_settings": {name: str(value) for name, value in study.best_params.items()},
        }

    def facts(self) -> Facts:
        """What was learned from."""
        holes: Facts = {}
        if isinstance(self.X, pd.DataFrame):
            holes = {"missing_cells": int(self.X.isna().sum().sum())}
        if isinstance(self.y, np.ndarray):
            holes = {**holes, "without_target": int(pd.isna(self.y).sum())}
        facts: Facts = {"model": self.name, "rows": self.n_rows, "columns": len(self.columns)}
        return {**facts, **holes, "seconds": self._seconds}

    def chosen(self) -> Facts:
        """What was left to the estimator to choose."""
        found = {name[:-1]: getattr(self.model, name, None) for name in _CHOICES}
        return {name: str(value) for name, value in found.items() if value is not None}

    def tested(self) -> Facts:
        """How good the model is on rows that it has not seen."""
        if self.test is None:
            return {}
        return {"test_rows": len(self.test[0]), **scores(self.model, *self.test)}

    def save(self) -> Path:
        """Write the model file; it knows the name of its target, and marks of missing values."""
        self.model.target_name_ = self.source.target
        self.model.missing_marks_ = self.source.missing or []
        self.model.save(self.out)
        return self.out


def _estimator(source: Source, settings: list[str], seed: int) -> AnyModel:
    if source.regression and source.target is None:
        raise InvalidInputError("--regression needs a --target, the column of numbers to predict.")
    kind = MixtureRegressor if source.regression else MixtureClassifier
    model = (MixtureDensity if source.target is None else kind)(random_state=seed)
    known = model.get_params(deep=False)
    for setting in sorted(settings, key=lambda each: "__" in each.partition("=")[0]):
        name, equals, value = setting.partition("=")
        part, nested, _ = name.partition("__")
        if not equals or part not in known:
            raise InvalidInputError(
                f"--set {setting}: write NAME=VALUE, where NAME is one of {', '.join(known)}, or a "
                "setting of one that is named, as in density=low_rank and density__rank=3."
            )
        given, names = getattr(model, part), _PARTS.get(part, {})
        if nested and isinstance(given, str | int | float | None):  # a part, by its name, or none
            if not isinstance(given, str) or given not in names:
                told = f"name one first: --set {part}={' or '.join(names)}"
                raise InvalidInputError(
                    f"--set {setting}: {part} is {json.dumps(given)}, which has no settings"
                    f"{'; ' + told if names else ''}."
                )
            model.set_params(**{part: names[given]()})
        model.set_params(**{name: _value(value)})
    return model.set_params(unexpected="ignore")


def _value(text: str) -> object:
    """A number, a list, true, false or null; or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _split(X: pd.DataFrame, y: np.ndarray | None, share: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to learn from and rows to test on; those without a target are learned from."""
    places = np.arange(len(X)) if y is None else np.flatnonzero(pd.notna(y))
    by = None if y is None or y.dtype.kind == "f" else y[places].astype(str)
    if by is not None and np.unique(by, return_counts=True)[1].min() < 2:
        by = None
    test = train_test_split(places, test_size=share, random_state=seed, stratify=by)[1]
    learned = np.setdiff1d(np.arange(len(X)), test)
    parts = [(X.iloc[at], None if y is None else y[at]) for at in (learned, test)]
    return parts[0], parts[1]
