"""A report on a fitted regressor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from sklearn.metrics import PredictionErrorDisplay, mean_absolute_error, r2_score
from sklearn.utils import _safe_indexing

from mixtura.data.given import ArrayLike, Loaded
from mixtura.data.in_memory import as_table
from mixtura.exceptions import (
    DegenerateDataWarning,
    InvalidInputError,
    UnsupportedError,
    warning_once,
)
from mixtura.models.regression import Regression
from mixtura.plotting import ExplanationDisplay
from mixtura.plotting.holes import with_holes
from mixtura.report.card import LIMITS, Card, holes, kept_rows
from mixtura.report.html import Html
from mixtura.report.page import Section, bar, paragraph, picture, titled
from mixtura.report.quality import percent
from mixtura.report.subject import Sample
from mixtura.report.write import check_report, chosen, columns_table, dated, publish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows that are looked at, drawn, explained, and listed because they are missed most.
_MOST_ROWS, _DRAWN, _EXPLAINED, _LISTED = 5_000, 400, 40, 5
#: Columns that are shown of those that matter, and what intervals are to cover.
_COLUMNS, _COVERAGE = 15, 0.9
#: Shares of the entries that are taken away: intervals judge held-back rows under each row's holes.
_SHARES = (0.0, 0.3, 0.6)


@dataclass(frozen=True)
class _Numbers(Sample):
    """A fitted regressor, and rows whose targets y (n, T) are all known."""

    y: np.ndarray

    @cached_property
    def predicted(self) -> dict[float, np.ndarray]:
        """(m, T) of the first rows, by the share of entries that were taken away."""

        def ask(X: ArrayLike) -> np.ndarray:
            return self.estimator.predict(X).reshape(-1, self.y.shape[1])

        shares = _SHARES if self.takes_holes else _SHARES[:1]
        return {share: self.answers(share, ask) for share in shares}

    @cached_property
    def intervals(self) -> dict[float, np.ndarray]:
        """(m, T, 2) in the same way; empty where no rows were held back."""

        def ask(X: ArrayLike) -> np.ndarray:
            return self.estimator.predict_interval(X, _COVERAGE).reshape(-1, self.y.shape[1], 2)

        try:
            return {share: self.answers(share, ask, first=16) for share in self.predicted}
        except UnsupportedError:
            return {}


def write_numbers_report(
    estimator: Loaded,
    path: str | PathLike[str],
    X: ArrayLike,
    y: np.ndarray,
    *,
    max_time: float,
    seed: int,
) -> None:
    """Write a report for targets (n, T), NaN where there is none; see the method of regressors."""
    check_report(path, max_time)
    known = np.flatnonzero(~np.isnan(y).any(1))
    if len(known) < 2:
        raise InvalidInputError("y has numbers in fewer than two rows: pass two at least.")
    places = np.random.default_rng(seed).permutation(known)[:_MOST_ROWS]
    some = _safe_indexing(as_table(X), places)
    with warning_once():
        found = _Numbers(estimator, some, places, len(y), max_time, seed, y[places])
        publish(path, estimator, _lead(found), _sections(found), lambda: _card(found))


def _lead(found: _Numbers) -> list[str]:
    predicted = found.predicted[0.0]
    y = found.y[: len(predicted)]
    return [
        f"{len(y)} rows: R² {r2_score(y, predicted):.3f}, mean absolute error "
        f"{mean_absolute_error(y, predicted):.4g}.",
        dated("rows"),
    ]


def _sections(found: _Numbers) -> Iterator[Section]:
    yield Section("data", "The data and its holes", list(_data(found)))
    yield Section("model", "What was chosen, against what", list(chosen(found.estimator)))
    yield Section("quality", "Errors, and how sure it is", list(_quality(found)))
    if hasattr(found.estimator, "next_feature") and found.rows.values.shape[1] <= 200:
        yield Section("features", "Which columns matter", list(_features(found)))
    yield Section("rows", "Rows that it misses most", list(_misses(found)))


def _data(found: _Numbers) -> Iterator[Html]:
    missing = np.isnan(found.rows.values)
    told = f"{percent(float(missing.mean()))} of the entries are missing."
    if left := found.n_given - len(found.y):
        told += f" {left} of the {found.n_given} rows are left out: "
        told += f"their target is not known, or {_MOST_ROWS} others were drawn."
    yield paragraph(told)
    points = np.quantile(found.y, [0.0, 0.5, 1.0], axis=0)
    lines = [(f"target {at}", *(f"{v:.4g}" for v in each)) for at, each in enumerate(points.T)]
    yield titled(("", "smallest", "median", "largest"), lines, "Targets")
    yield columns_table(found.rows.values, found.estimator.model_.schema, found.columns)


def _quality(found: _Numbers) -> Iterator[Html]:
    yield paragraph(
        "R² is the share of the variance that is predicted; to guess the mean has 0. Entries were "
        "taken away at random, on top of those that the rows lack. Intervals are to hold the true "
        f"number in {percent(_COVERAGE)} of the rows, whatever is missing."
    )
    head = ["entries taken away", "target", "rows", "R²", "root mean square error"]
    if found.intervals:
        head += ["intervals cover", "of rows", "median width"]
    lines = [line for share in found.predicted for line in _lines(found, share)]
    yield titled(head, lines, "Errors and intervals, whole and with entries missing")
    said = found.predicted[0.0][:_DRAWN, 0]

    def draw(ax: Axes) -> None:
        shown = PredictionErrorDisplay(y_true=found.y[: len(said), 0], y_pred=said)
        shown.plot(ax=ax, kind="actual_vs_predicted")

    yield picture(
        draw,
        (5.5, 4.6),
        "True numbers against predicted ones.",
        f"True numbers against predicted ones, {len(said)} rows. On the line both agree.",
        1,
    )


def _lines(found: _Numbers, share: float) -> Iterator[tuple[object, ...]]:
    """What each target fares like."""
    for at, (true, said) in enumerate(zip(found.y.T, found.predicted[share].T, strict=True)):
        own = true[: len(said)]
        error = f"{np.sqrt(np.mean((own - said) ** 2)):.4g}"
        line = percent(share), at, len(said), f"{r2_score(own, said):.3f}", error
        if not found.intervals:
            yield line
            continue
        low, high = found.intervals[share][:, at].T
        inside = (low <= true[: len(low)]) & (true[: len(low)] <= high)
        yield *line, percent(float(inside.mean())), len(low), f"{np.median(high - low):.4g}"


def _features(found: _Numbers) -> Iterator[Html]:
    """Shapley values, and what one measurement alone would tell."""
    estimator = found.estimator
    some = found.take(np.arange(min(_EXPLAINED, len(found.y))))
    blank = with_holes(found.take(np.zeros(1, dtype=int)), 1.0, np.random.default_rng(found.seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # what time did not suffice for
        told = estimator.explain(some, max_time=found.max_time / 6.0)
        removed = np.nan_to_num(estimator.next_feature(blank, max_time=found.max_time / 12.0)[0])
    title = told.output_names[0] if told.output_names else None
    yield picture(
        lambda ax: ExplanationDisplay.from_explanation(
            told, target=title, max_features=_COLUMNS, title="expected number", ax=ax
        ),
        (6.5, 1.4 + 0.3 * min(_COLUMNS, len(found.columns))),
        "Mean absolute Shapley values of columns.",
        f"How much each column moves what is expected, over {len(told.values)} rows: Shapley "
        "values, the other columns integrated out. They say what the model uses, not what causes "
        "what.",
        2,
    )
    order = np.argsort(-removed, kind="stable")[:_COLUMNS]
    lines = [(found.columns[at], percent(removed[at]), bar(removed[at])) for at in order]
    about = "What one measurement alone is expected to remove of the variance"
    yield titled(("column", "of the variance", ""), lines, about)


def _misses(found: _Numbers) -> Iterator[Html]:
    """Whole rows whose predictions are farthest off, in deviations of the errors."""
    said = found.predicted[0.0]
    true = found.y[: len(said)]
    off = np.abs(true - said) / np.maximum(np.std(true - said, axis=0), np.finfo(np.float64).tiny)
    worst = np.argsort(-off.max(1), kind="stable")[:_LISTED]
    lines = [
        (
            int(found.places[at]),
            *(f"{true[at, t]:.4g} / {said[at, t]:.4g}" for t in range(true.shape[1])),
        )
        for at in worst
    ]
    head = ("row", *(f"target {t}: true / predicted" for t in range(true.shape[1])))
    yield titled(head, lines, "Rows that it misses most")


def _card(found: _Numbers) -> Card:
    n_columns, n_targets = found.rows.values.shape[1], found.y.shape[1]
    model = found.estimator.model_
    fitted = model.fitted if isinstance(model, Regression) else model
    cannot = [holes(found.estimator), "Beyond the rows of training its answers are guesses."]
    if not found.intervals:
        cannot.append("It held no rows back, and has no intervals without rows to calibrate them.")
    predicted, intervals = (
        [len(each) for each in by_share.values()] for by_share in (found.predicted, found.intervals)
    )
    return {
        "What it does": [
            f"Predicts {n_targets} number(s) from {n_columns} columns; missing entries are "
            "integrated out."
        ],
        "What it cannot do": [*cannot, *LIMITS],
        "How this was found out": [
            f"Time allowed predictions for {min(predicted)} rows at least, and intervals for "
            f"{min(intervals, default=0)}.",
            *kept_rows(fitted.held_back),
        ],
    }
