"""A report on a fitted classifier, as one HTML file; or its model card alone, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from os import PathLike
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from mixtura.data.given import ArrayLike, Loaded
from mixtura.data.schema import Schema
from mixtura.exceptions import InvalidInputError, warning_once
from mixtura.files import check_place, replacing
from mixtura.plotting import ChoiceDisplay
from mixtura.plotting.base import require_matplotlib
from mixtura.plotting.training import candidates
from mixtura.report import portrait, quality
from mixtura.report.card import Card, card, card_html, card_markdown
from mixtura.report.html import Html, listed, tag
from mixtura.report.page import Section, bar, page, paragraph, picture, scrolling, titled
from mixtura.report.quality import percent
from mixtura.report.subject import Subject
from mixtura.report.summary import choice_table, facts

#: Columns that are listed.
_COLUMNS = 60


def write_report(
    estimator: Loaded,
    path: str | PathLike[str],
    X: ArrayLike,
    y: ArrayLike,
    *,
    max_time: float,
    seed: int,
) -> None:
    """Write a report; see the method of classifiers."""
    check_report(path, max_time)
    with warning_once():
        subject = Subject.read(estimator, X, y, max_time, seed)
        publish(path, estimator, _lead(subject), _sections(subject), lambda: card(subject))


def check_report(path: str | PathLike[str], max_time: float) -> None:
    """An error where a report cannot be written."""
    if not max_time > 0.0:
        raise InvalidInputError(f"max_time must be above zero, got {max_time!r}.")
    check_place(Path(path))
    if Path(path).suffix.lower() not in (".html", ".htm", ".md"):
        raise InvalidInputError(
            f"{path}: a report is an HTML page, or a card in Markdown. Let the name end in .html "
            "or .md; browsers print the page as PDF."
        )
    if not _is_card(path):
        require_matplotlib()


def _is_card(path: str | PathLike[str]) -> bool:
    return Path(path).suffix.lower() == ".md"


def publish(
    path: str | PathLike[str],
    estimator: object,
    lead: Sequence[str],
    sections: Iterator[Section],
    found: Callable[[], Card],
) -> None:
    """Write sections as a page, or, under a name that ends in .md, the card alone."""
    assert isinstance(estimator, BaseEstimator)
    name = type(estimator).__name__
    if _is_card(path):
        text = card_markdown(f"Model card of a {name}", lead, list(facts(estimator)), found())
    else:
        shown = tag("div", *(paragraph(each) for each in lead), class_="lead")
        last = Section("card", "What it can and cannot do", list(card_html(found())))
        text = page(f"Report on a {name}", shown, [*sections, last])
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def dated(what: str) -> str:
    """What figures of a report hold for, and when they were found."""
    return (
        f"These figures hold for {what} that the model has not seen in training; if it has, they "
        f"flatter it. Written on {date.today().isoformat()}."
    )


def _lead(subject: Subject) -> list[str]:
    wrong, low, high = quality.error_of(subject)
    n_rows, n_labeled = len(subject.proba[0.0]), subject.n_given - subject.n_unlabeled
    return [
        f"{n_rows} rows of {len(subject.classes)} classes"
        + (f", drawn at random from {n_labeled}" if n_rows < n_labeled else "")
        + f": error {percent(wrong)} (95 % interval {percent(low)} to {percent(high)}).",
        dated("rows"),
    ]


def _sections(subject: Subject) -> Iterator[Section]:
    """Those that the model can answer."""
    parts: dict[str, tuple[str, Callable[[Subject], Iterable[Html]]]] = {
        "data": ("The data and its holes", _data),
        "model": ("What was chosen, against what", lambda each: chosen(each.estimator)),
        "quality": ("Error and calibration", quality.scores),
        "confusion": ("What is taken for what", quality.confusions),
        "features": ("Which columns matter", portrait.features),
        "classes": ("The classes, in pictures and words", portrait.classes),
        "rows": ("Typical and strange rows", portrait.examples),
        "next": ("What to measure next", portrait.measurements),
    }
    known = subject.has_density and subject.is_table and len(subject.classes) > 1
    if subject.is_wide or not known:
        parts = {name: parts[name] for name in ("data", "model", "quality", "confusion")}
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
    yield titled(head, lines, "Classes")
    yield columns_table(subject.rows.values, subject.model.schema, subject.columns)


def columns_table(values: np.ndarray, schema: Schema, names: Sequence[str]) -> Html:
    """What the columns (n, D) of rows are like."""
    about, count = "Columns", len(names)
    if count > _COLUMNS:
        about = f"The first {_COLUMNS} of {count} columns"
    kinds = schema.categories or (None,) * count
    lines = [(name, *_column(values[:, at], kinds[at])) for at, name in enumerate(names[:_COLUMNS])]
    wide = "column", "kind", "smallest / median / largest, or categories", "missing", ""
    return titled(wide, lines, about)


def _column(values: np.ndarray, known: np.ndarray | None) -> tuple[object, ...]:
    """What one column is like."""
    seen = values[~np.isnan(values)]
    share = 1.0 - len(seen) / len(values)
    if known is not None:
        kind, content = f"{len(known)} categories", listed(known.tolist(), 6)
    else:
        points = np.quantile(seen, [0.0, 0.5, 1.0]) if len(seen) else []
        kind, content = "numbers", " / ".join(f"{each:.4g}" for each in points)
    return kind, content, percent(share), bar(share)


def chosen(estimator: object) -> Iterator[Html]:
    """What an estimator is, and what was compared to find it."""
    assert isinstance(estimator, BaseEstimator)
    yield titled((), facts(estimator), "The model")
    compared = candidates(getattr(estimator, "choice_", None) or [])
    judged = [each for each in compared if each.loss is not None]
    if not judged:
        yield paragraph("Nothing was compared: all was set, or rows were too few to hold some out.")
        return
    yield scrolling(choice_table(compared, "Compared on held-out rows of training"), "Candidates")
    if sum(each.question == "density" for each in judged) > 1:
        yield paragraph(
            "Densities are compared after a few iterations, and the best is then trained to the "
            "end: its loss is of then, and may be above one that lost."
        )
    if len(judged) > 1:
        questions = len({each.question for each in judged})
        yield picture(
            ChoiceDisplay(compared).plot,
            (7.5, 1.2 + 0.3 * (min(len(judged), 30) + questions)),
            "Losses of what was compared; the table above has the same figures.",
            "Losses on held-out rows: the smaller the better. Filled dots were chosen.",
            6,
        )
