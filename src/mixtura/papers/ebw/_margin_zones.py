"""How many rows are wrong, right but within the margin, and beyond it, as training goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mixtura.objectives import SmoothMargin
from mixtura.papers.ebw._one_start import OneStart
from mixtura.papers.pictures import framed
from mixtura.papers.report import Report
from mixtura.progress import Record
from mixtura.solvers import EBW

ZONES = ("wrong", "within", "beyond")


@dataclass
class _CountedMargin(SmoothMargin):
    """A smooth margin that notes the zone of every row whose loss it is asked for."""

    noted: list[Tensor] = field(default_factory=list)

    def _of_shortfall(self, short: Tensor) -> tuple[Tensor, Tensor]:
        zone = (short < self.margin).long() + (short <= 0.0).long()
        self.noted.append(torch.bincount(zone, minlength=len(ZONES)))
        return super()._of_shortfall(short)


def zone_course(start: OneStart, margin: float, iterations: int) -> np.ndarray:
    """Rows in each zone before every update by extended Baum-Welch, (iterations, 3).

    A step that is taken back leaves the rows where they were.
    """
    objective = _CountedMargin(margin)
    course: list[np.ndarray] = []

    lowest = math.inf

    def take(record: Record) -> None:
        nonlocal lowest
        counts = torch.stack(objective.noted).sum(0).cpu().numpy()
        objective.noted.clear()
        taken = record["objective"] <= lowest
        course.append(counts * (len(start.engine) / counts.sum()) if taken else course[-1])
        lowest = min(lowest, record["objective"])

    start.train(objective, EBW(iterations), [take])
    return np.array(course)


def show_zones(report: Report, table: str, course: np.ndarray) -> None:
    """A few rows of the course, and its picture."""
    for place in np.unique(np.geomspace(1, len(course), 8).astype(int)):
        counts = dict(zip(ZONES, course[place - 1].round().astype(int).tolist(), strict=True))
        report.row(table, iteration=int(place), **counts)
    with report.figure(table, figsize=(6, 4)) as figure:
        panel = figure.subplots()
        labels = ("wrong", "right, within the margin", "beyond the margin")
        for counts, label, color in zip(course.T, labels, ("C3", "C2", "C9"), strict=True):
            panel.plot(counts, label=label, color=color)
        framed(panel, "iteration", "training rows")
