"""The model card: what a model is for, what it was seen to do, and what it cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from mixtura.conformal import HeldBack
from mixtura.plotting.base import printable
from mixtura.plotting.classifiers import wilson
from mixtura.report.html import Html, listed, tag
from mixtura.report.page import bullets
from mixtura.report.quality import percent
from mixtura.report.subject import Subject

#: Rows of a class from which on its figures mean something; share of rows that are strange.
_ENOUGH, _STRANGE = 20, 0.01


Card = dict[str, list[str]]
#: What no model here can do.
LIMITS = (
    "It says nothing of causes: to change a column of a row need not change the answer.",
    "It does not notice by itself when the world changes: check it on new rows.",
    "Whether it is fair to groups of people was not looked at.",
)
_MARKS = re.compile(r"([\\`*_\[\]<>|#~&$])")


def card(subject: Subject) -> Card:
    """What it does, and what it cannot do, under headings."""
    return {
        "What it does": list(_does(subject)),
        "What it cannot do": [*_cannot(subject), *LIMITS],
        "How this was found out": list(_method(subject)),
    }


def card_html(found: Card) -> Iterator[Html]:
    """As a part of a page."""
    for title, items in found.items():
        yield tag("h3", title)
        yield bullets(items)


def card_markdown(
    title: str, lead: Sequence[str], facts: Sequence[tuple[str, str]], found: Card
) -> str:
    """As a file of its own, with the header that model hubs read."""
    described = {"The model": [f"{name}: {value}" for name, value in facts], **found}
    parts = [
        "\n".join([f"## {name}\n", *(f"- {_plain(each)}" for each in items)])
        for name, items in described.items()
    ]
    head = "---\nlibrary_name: mixtura\ntags:\n- mixture-model\n---"
    return "\n\n".join([head, f"# {title}", *map(_plain, lead), *parts]) + "\n"


def _plain(text: str) -> str:
    """On one line, without markup."""
    return _MARKS.sub(r"\\\1", " ".join(printable(text).split()))


def _does(subject: Subject) -> Iterator[str]:
    kind = "rows of a table" if subject.is_table else "sequences"
    yield f"Tells {len(subject.classes)} classes of {kind} apart: {listed(subject.classes, 12)}."
    if subject.takes_holes:
        yield "Takes rows with missing entries, which it integrates out."
    else:
        yield "Needs complete rows: missing entries are refused."
    if subject.model.held_back is not None:
        yield "Gives sets of classes that hold the true one as often as asked for (predict_set)."


def _cannot(subject: Subject) -> Iterator[str]:
    if subject.takes_holes:
        yield holes(subject.estimator)
    yield from _strangers(subject)
    counts = np.bincount(subject.labels, minlength=len(subject.classes))
    few = [name for name, count in zip(subject.classes, counts, strict=True) if count < _ENOUGH]
    if few:
        yield (
            f"Classes with fewer than {_ENOUGH} rows here, of which little can be said: "
            f"{listed(few, 12)}."
        )
    if not subject.has_density:
        yield "It has no density: it cannot say that a row is unlike all it has seen."
    yield "It knows no other classes: what is none of them gets one of them all the same."


def holes(estimator: object) -> str:
    """What it takes missing entries for."""
    if getattr(estimator, "missingness_", "ignore") == "informative":
        return (
            "What is missing counts as evidence, as it was in training: where entries go missing "
            "for other reasons, its answers mislead."
        )
    return (
        "It takes missing entries to be missing for reasons that the other entries tell, or for "
        "none: where a hole itself is a sign, it does not see it."
    )


def kept_rows(held_back: HeldBack | None) -> Iterator[str]:
    """That a model, and its files, have rows of training."""
    if held_back is not None:
        yield (
            f"The model and its files hold {len(held_back.y)} training rows, which its sets or "
            "intervals go by: do not pass them on where those are confidential."
        )


def _strangers(subject: Subject) -> Iterator[str]:
    model = subject.model
    if model.typical is None:
        return
    strange = model.is_outlier(subject.engine(), _STRANGE)
    share = float(strange.mean())
    surely_more = wilson(strange.mean(), np.array(len(strange)))[0] > _STRANGE
    more = ": these rows are not like those of training" if surely_more else ""
    yield (
        f"Of rows unlike those of training its probabilities mean little. {percent(share)} of the "
        f"rows here are so strange as {percent(_STRANGE)} of rows like those of training "
        f"are{more}. is_outlier finds them, and predict(reject=...) refuses them."
    )


def _method(subject: Subject) -> Iterator[str]:
    n_labeled = subject.n_given - subject.n_unlabeled
    if len(subject.labels) < n_labeled:
        yield f"{len(subject.labels)} of the {n_labeled} labeled rows were looked at, at random."
    if subject.is_wide:
        yield f"Of {len(subject.columns)} columns, it was not found out which matter."
    answered = len(subject.proba[0.0])
    if answered < len(subject.labels):
        yield f"Time allowed predictions for {answered} of these rows."
    holed = min(len(each) for each in subject.proba.values())
    if holed < answered:
        yield f"Time allowed predictions with missing entries for {holed} rows at least."
    yield "Calibration errors are means over groups of rows; intervals of shares are Wilson's."
    yield from kept_rows(subject.model.held_back)
