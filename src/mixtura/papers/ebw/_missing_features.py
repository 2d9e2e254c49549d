"""Accuracy of several mixtures on test rows that have lost features, the same ones for all."""

from __future__ import annotations

import numpy as np

from mixtura.models.mixture import Mixture
from mixtura.papers.ebw._one_start import OneStart, accuracy
from mixtura.papers.pictures import framed
from mixtura.papers.report import Lines, Panel, Report
from mixtura.papers.tables import punch, spread


def show_missing(
    report: Report,
    start: OneStart,
    mixtures: dict[str, Mixture],
    X: np.ndarray,
    y: np.ndarray,
    counts: list[int],
    repetitions: int,
) -> None:
    """Mean and deviation for every number of missing features, as a table and a picture."""
    for count in counts:
        drawn = [
            start.rows(punch(X, count / X.shape[1], report.seed + draw), y)
            for draw in range(repetitions if count else 1)
        ]
        for name, mixture in mixtures.items():
            scores = [accuracy(mixture, rows) for rows in drawn]
            report.row("missing", missing=count, model=name, **spread(scores))
    with report.figure("missing", figsize=(6, 4)) as figure:
        _plot(figure.subplots(), report.tables["missing"])


def _plot(axes: Panel, rows: Lines) -> None:
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        count, mean, deviation = (
            np.array([row[column] for row in mine]) for column in ("missing", "ours", "deviation")
        )
        (line,) = axes.plot(count, mean, label=name)
        axes.fill_between(
            count, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.2
        )
    framed(axes, "missing features", "accuracy (%)")
