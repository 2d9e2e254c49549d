"""A report on a fitted classifier, as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date
from os import PathLike
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from mixtura.data.given import ArrayLike
from mixtura.exceptions import warning_once
from mixtura.files import check_place, replacing
from mixtura.plotting import ChoiceDisplay
from mixtura.plotting.base import require_matplotlib
from mixtura.plotting.training import candidates
from mixtura.report import portrait, quality
from mixtura.report.card import card
from mixtura.report.html import Html, listed, table, tag
from mixtura.report.page import Section, bar, page, paragraph, picture, scrolling
from mixtura.report.quality import percent
from mixtura.report.subject import Reported, Subject
from mixtura.report.summary import choice_table, facts

#: Columns that are listed.
_COLUMNS = 60


def write_report(
    estimator: Reported,
    path: str | PathLike[str],
    X: ArrayLike,
    y: ArrayLike,
    *,
    max_time: float = 60.0,
    seed: int = 0,
) -> None:
    """Write a report; see the method of classifiers."""
    require_matplotlib()
    check_place(Path(path))
    with warning_once():
        subject = Subject.read(estimator, X, y, max_time, seed)
        title = f"Report on a {type(estimator).__name__}"
        text = page(title, _lead(subject), list(_sections(subject)))
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def _lead(subject: Subject) -> Html:
    wrong, low, high = quality.error_of(subject)
    n_rows, n_labeled = len(subject.proba[0.0]), subject.n_given - subject.n_unlabeled
    parts = [
        f"{n_rows} rows of {len(subject.classes)} classes"
        + (f", drawn at random from {n_labeled}" if n_rows < n_labeled else "")
        + f": error {percent(wrong)} (95 % interval {percent(low)} to {percent(high)}).",
        "These figures hold for rows that the model has not seen in training; if it has, they "
        f"flatter it. Written on {date.today().isoformat()}.",
    ]
    return tag("div", *(paragraph(each) for each in parts), class_="lead")


def _sections(subject: Subject) -> Iterator[Section]:
    """Those that the model can answer."""
    parts: dict[str, tuple[str, Callable[[Subject], Iterable[Html]]]] = {
        "data": ("The data and its holes", _data),
        "model": ("What was chosen, against what", _chosen),
        "quality": ("Error and calibration", quality.scores),
        "confusion": ("What is taken for what", quality.confusions),
        "features": ("Which columns matter", portrait.features),
        "classes": ("The classes, in pictures and words", portrait.classes),
        "rows": ("Typical and strange rows", portrait.examples),
        "next": ("What to measure next", portrait.measurements),
        "card": ("What it can and cannot do", card),
    }
    known = subject.has_density and subject.is_table and len(subject.classes) > 1
    if subject.is_wide or not known:
        parts = {name: parts[name] for name in ("data", "model", "quality", "confusion", "card")}
    for name, (title, written) in parts.items():
        yield Section(name, title, list(written(subject)))


def _data(subject: Subject) -> Iterator[Html]:
    missing = np.isnan(subject.rows.values)
    told = [f"{percent(float(missing.mean()))} of the entries are missing."]
    if subject.is_table:
        told.append(f"{percent(float((~missing.any(1)).mean()))} of the rows are complete.")
    if subject.n_unlabeled:
        told.append(f"{subject.n_unlabeled} rows without a label are left out.")
    yield paragraph(" ".join(told))
    counts = np.bincount(subject.labels, minlength=len(subject.classes))
    prior = subject.model.class_prior
    trained = [""] * len(counts) if prior is None else [percent(each) for each in prior]
    shares = [percent(each) for each in counts / counts.sum()]
    head = "class", "rows here", "share here", "share in training"
    lines = zip(subject.classes, counts.tolist(), shares, trained, strict=True)
    yield scrolling(table(head, lines, "Classes"), "Classes")
    about, count = "Columns", len(subject.columns)
    if count > _COLUMNS:
        about = f"The first {_COLUMNS} of {count} columns"
    columns = [_column(subject, at) for at in range(min(count, _COLUMNS))]
    wide = "column", "kind", "smallest / median / largest, or categories", "missing", ""
    yield scrolling(table(wide, columns, about), about)


def _column(subject: Subject, at: int) -> tuple[object, ...]:
    """What one column is like."""
    values, categories = subject.rows.values[:, at], subject.model.schema.categories
    known = None if categories is None else categories[at]
    seen = values[~np.isnan(values)]
    share = 1.0 - len(seen) / len(values)
    if known is not None:
        kind, content = f"{len(known)} categories", listed(known.tolist(), 6)
    else:
        points = np.quantile(seen, [0.0, 0.5, 1.0]) if len(seen) else []
        kind, content = "numbers", " / ".join(f"{each:.4g}" for each in points)
    return subject.columns[at], kind, content, percent(share), bar(share)


def _chosen(subject: Subject) -> Iterator[Html]:
    estimator = subject.estimator
    assert isinstance(estimator, BaseEstimator)
    yield scrolling(table((), facts(estimator), "The model"), "The model")
    compared = candidates(getattr(estimator, "choice_", None) or [])
    met = [each for each in compared if each.loss is not None]
    if not met:
        yield paragraph("Nothing was compared: all was set, or rows were too few to hold some out.")
        return
    yield scrolling(choice_table(compared, "Compared on held-out rows of training"), "Candidates")
    if sum(each.question == "density" for each in met) > 1:
        yield paragraph(
            "Densities are compared after a few iterations, and the best is then trained to the "
            "end: its loss is of then, and may be above one that lost."
        )
    if len(met) > 1:
        questions = len({each.question for each in met})
        yield picture(
            ChoiceDisplay(compared).plot,
            (7.5, 1.2 + 0.3 * (min(len(met), 30) + questions)),
            "Losses of what was compared; the table above has the same figures.",
            "Losses on held-out rows: the smaller the better. Filled dots were chosen.",
            6,
        )
