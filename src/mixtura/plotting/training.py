"""How a model came about: the course of training, and what was compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from mixtura.data.given import Loaded
from mixtura.exceptions import UnsupportedError
from mixtura.plotting.base import (
    MUTED,
    Display,
    color,
    dots,
    legend_beside,
    lines,
    require_matplotlib,
    shown,
)
from mixtura.progress import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Columns of the table of choices that are no settings, and candidates that are drawn at most.
_TOLD, _MOST = ("question", "rows", "loss", "chosen"), 30
#: Settings of a part whose values are words.
_WORDS = re.compile(r", \w+='[^']*'")


@dataclass
class HistoryDisplay(Display):
    """The objective after every iteration of the training.

    A stage may have several runs, such as one for each class. Their objectives do not compare: each
    run is drawn from its largest value, 1, to its smallest, 0. The legend says what these are,
    where a stage has one run.

    Attributes
    ----------
    runs : stage, and objectives (n,), of each.
    lines_ : artists, one per run.
    """

    runs: list[tuple[str, np.ndarray]]

    @classmethod
    def from_estimator(cls, estimator: Loaded, *, ax: Axes | None = None) -> Self:
        """Draw the training of a fitted estimator."""
        require_matplotlib()
        check_is_fitted(estimator)
        records = getattr(estimator, "history_", None)
        if not records:
            raise UnsupportedError(
                f"this {type(estimator).__name__} kept no history: its training had no iterations."
            )
        return cls(list(_runs(records))).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax, self.lines_, begin = self._axes(ax), [], 1
        stages = list(dict.fromkeys(stage for stage, _ in self.runs))
        for stage, objective in self.runs:
            number, span = stages.index(stage), float(np.ptp(objective)) or 1.0
            at, height = begin + np.arange(len(objective)), (objective - objective.min()) / span
            style = {**dots(number), **lines(number)}
            size = 4 if len(objective) < 15 else 0
            self.lines_ += ax.plot(at, height, markersize=size, linewidth=1.6, **style)
            begin += len(objective)
        ax.set(xlabel="iteration", ylabel="objective, of its range")
        ax.locator_params("x", integer=True)
        firsts = [next(at for at, run in enumerate(self.runs) if run[0] == s) for s in stages]
        handles = [self.lines_[at] for at in firsts]
        legend_beside(ax, handles, [self._label(stage) for stage in stages], "stage")
        return self

    def _label(self, stage: str) -> str:
        own = [objective for name, objective in self.runs if name == stage]
        if len(own) > 1:
            return f"{stage}, {len(own)} runs"
        return f"{stage}: {own[0].max():.4g} to {own[0].min():.4g}"


def _runs(records: Sequence[Record]) -> Iterator[tuple[str, np.ndarray]]:
    """Records in a row of one stage, whose iterations are counted on."""
    current: list[Record] = []
    for record in records:
        if current and not _goes_on(current[-1], record):
            yield _run(current)
            current = []
        current.append(record)
    yield _run(current)


def _goes_on(before: Record, record: Record) -> bool:
    same_stage = record.get("stage") == before.get("stage")
    return same_stage and record.get("iteration", 1) > before.get("iteration", 0)


def _run(records: Sequence[Record]) -> tuple[str, np.ndarray]:
    objective = np.array([record["objective"] for record in records])
    return records[0].get("stage", "training"), objective


@dataclass(frozen=True)
class Candidate:
    """What was compared with others: the question, the settings that differ, and how it did."""

    question: str
    settings: str
    rows: int
    loss: float | None
    chosen: bool


def candidates(table: Sequence[dict[str, object]]) -> list[Candidate]:
    """The table of a choice; of settings, those that were in question and those that differ."""
    found = []
    for question, run in groupby(table, key=lambda row: str(row["question"])):
        rows = list(run)
        names = [name for name in rows[0] if name not in _TOLD]
        asked = [question] if question in names else []
        differ = [name for name in names if len({str(row.get(name)) for row in rows}) > 1]
        others = [name for name in differ if name != question]
        told = (
            [str(row[n]) for n in asked] + [f"{n}={row.get(n)}" for n in others] for row in rows
        )
        texts = _shortened([", ".join(each) for each in told])
        for row, text in zip(rows, texts, strict=True):
            loss = row["loss"] if isinstance(row["loss"], float) else None
            n_rows, chosen = row["rows"], bool(row["chosen"])
            assert isinstance(n_rows, int)
            found.append(Candidate(question, text or question, n_rows, loss, chosen))
    return found


def _shortened(texts: list[str]) -> list[str]:
    """Without the settings of parts that are words, where all can be told apart by the others."""
    short = [_WORDS.sub("", text) for text in texts]
    return short if len(set(short)) == len(set(texts)) else texts


@dataclass
class ChoiceDisplay(Display):
    """What "auto" compared on held-out rows: the loss of every candidate, question by question.

    Attributes
    ----------
    candidates : in the order in which they entered.
    chosen_, others_ : artists.
    """

    candidates: list[Candidate]

    @classmethod
    def from_estimator(cls, estimator: Loaded, *, ax: Axes | None = None) -> Self:
        """Draw `choice_` of a fitted estimator."""
        require_matplotlib()
        check_is_fitted(estimator)
        found = candidates(getattr(estimator, "choice_", None) or [])
        if not any(each.loss is not None for each in found):
            raise UnsupportedError(
                f"this {type(estimator).__name__} compared nothing: all was set, or its rows were "
                "too few to hold some out."
            )
        return cls(found).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        judged = [each for each in self.candidates if each.loss is not None][:_MOST]
        groups = [list(run) for _, run in groupby(judged, key=lambda each: each.question)]
        ax = self._axes(ax, 7.5, 1.2 + 0.3 * (len(judged) + len(groups)))
        heads = np.cumsum([0.0, *(len(group) + 1.4 for group in groups[:-1])])
        for head, group in zip(heads, groups, strict=True):
            ax.annotate(
                f"{group[0].question}?",
                (0.01, head),
                xycoords=ax.get_yaxis_transform(),
                va="center",
                fontsize="small",
                fontweight="bold",
            )
        at = np.concatenate(
            [head + 1.0 + np.arange(len(group)) for head, group in zip(heads, groups, strict=True)]
        )
        loss = np.array([each.loss for each in judged])
        won = np.array([each.chosen for each in judged])
        self.others_ = ax.scatter(loss[~won], at[~won], 36, facecolors="none", edgecolors=MUTED)
        self.chosen_ = ax.scatter(loss[won], at[won], 44, color=color(0))
        ax.set_yticks(at, [shown(each.settings, 48) for each in judged], fontsize="small")
        ax.set_ylim(at[-1] + 0.7, -0.7)
        ax.margins(x=0.08)
        ax.grid(axis="x", alpha=0.3)
        ax.set(xlabel="loss on held-out rows")
        legend_beside(ax, [self.chosen_, self.others_], ["chosen", "not chosen"], "")
        return self
