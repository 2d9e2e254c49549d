"""How good a classifier is on the rows of a report: errors, calibration, what it confuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixtura.plotting import CalibrationDisplay, MissingDisplay
from mixtura.plotting.classifiers import Reliability, wilson
from mixtura.report.html import Html, joined, tag
from mixtura.report.page import paragraph, picture, scrolling, titled
from mixtura.report.subject import Subject

#: Classes of which a whole confusion matrix is shown, and pairs that are shown of more.
_MOST_CLASSES, _PAIRS = 15, 15
#: Shares of missing entries of which calibration is drawn.
_DRAWN = (0.0, 0.3, 0.6)
#: How dark the darkest cell is.
_SHADE = 0.45


def error_of(subject: Subject) -> tuple[float, float, float]:
    """The error on whole rows, and the ends of its 95 % interval."""
    proba = subject.proba[0.0]
    wrong = float((proba.argmax(1) != subject.labels[: len(proba)]).mean())
    low, high = wilson(np.array(wrong), np.array(len(proba)))
    return wrong, float(low), float(high)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def scores(subject: Subject) -> Iterator[Html]:
    """Errors, losses and calibration, whole and with entries missing."""
    lines, found, errors = [], {}, []
    for share, proba in subject.proba.items():
        labels = subject.labels[: len(proba)]
        each = Reliability.of(proba, labels)
        wrong = float((proba.argmax(1) != labels).mean())
        errors.append([wrong])
        if share in _DRAWN:
            found[share] = each
        own = proba[np.arange(len(labels)), labels]
        loss = -np.log(own.clip(np.finfo(np.float64).eps)).mean()
        cells = percent(share), len(labels), percent(wrong), f"{loss:.4f}", percent(each.error)
        lines.append(cells)
    counts = np.bincount(subject.labels)
    guess = 1.0 - counts.max() / counts.sum()
    yield paragraph(
        f"Always guessing the most frequent class would be wrong in {percent(guess)} of the rows. "
        "Missing entries were taken away at random, on top of those that the rows lack."
    )
    head = "entries taken away", "rows", "error", "log-loss", "calibration error"
    yield titled(head, lines, "Errors, whole and with entries missing")
    yield picture(
        CalibrationDisplay(found).plot,
        (5.5, 4.6),
        "Share of rows that are predicted rightly against the probability of the predicted class.",
        "Calibration: on the diagonal the model is as often right as it says. Bars are 95 % "
        "intervals.",
        1,
    )
    if len(errors) > 1:
        drawn = MissingDisplay(np.array(list(subject.proba)), np.array(errors), "error")
        yield picture(
            drawn.plot,
            (5.5, 3.4),
            f"Error against missing entries: from {percent(errors[0][0])} of whole rows to "
            f"{percent(errors[-1][0])}.",
            "Error as entries go missing.",
            2,
        )


def confusions(subject: Subject) -> Iterator[Html]:
    """What is taken for what, and how each class fares."""
    proba, names = subject.proba[0.0], subject.classes
    labels, guess = subject.labels[: len(proba)], proba.argmax(1)
    counts = np.bincount(labels * len(names) + guess, minlength=len(names) ** 2)
    counts = counts.reshape(len(names), len(names))
    if len(names) <= _MOST_CLASSES:
        yield scrolling(_matrix(counts, names), "Confusion matrix")
    else:
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
        at = [divmod(int(place), len(names)) for place in order if wrong.flat[place]]
        lines = [(names[true], names[said], int(wrong[true, said])) for true, said in at]
        head = "true class", "predicted", "rows"
        yield titled(head, lines, "Classes that are confused most often")
    right, true, said = np.diag(counts), counts.sum(1), counts.sum(0)
    fates = [
        (name, int(true[at]), _share(right[at], said[at]), _share(right[at], true[at]))
        for at, name in enumerate(names)
    ]
    wide = "class", "rows", "right where predicted (precision)", "found (recall)"
    yield titled(wide, fates, "Each class")


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else "no rows"


def _matrix(counts: np.ndarray, names: list[str]) -> Html:
    """Rows are true classes; the darker a cell, the larger its share of the row."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names_above = [tag("th", name, scope="col", class_="cell") for name in names]
    head = tag("tr", tag("td"), *names_above)
    lines = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            *(
                tag(
                    "td", count, class_="cell", style=f"background:rgba(0,114,178,{_SHADE * s:.3f})"
                )
                for count, s in zip(row, shares, strict=True)
            ),
        )
        for name, row, shares in zip(names, counts, share, strict=True)
    ]
    title = tag("caption", "Confusion matrix: true classes in rows, predictions in columns")
    return tag("table", title, tag("thead", head), tag("tbody", joined(lines)))
