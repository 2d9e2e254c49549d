"""Discriminative mixtures, Figures 2 and 3b: convergence against F, and the margin zones.

Pernkopf and Wohlmayr (2010), on the spirals: conditional log-likelihood and log D of the margin
against the iterations, for the published recipe (one D, F fixed) and for ours, whose F is only the
first; then the number of rows that are wrong, within the margin, and beyond it. Steps that ours
takes back show as dips. The paper's curves come without numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mixtura.objectives import Conditional, Objective, SmoothMargin
from mixtura.papers.ebw._margin_zones import show_zones, zone_course
from mixtura.papers.ebw._one_start import OneStart
from mixtura.papers.ebw.spirals import MARGIN, SETTINGS, start_on_spirals
from mixtura.papers.pictures import framed
from mixtura.papers.report import Panel, Report
from mixtura.solvers import EBW

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)
_QUICK_FACTORS = (2.0, 8.0)
_RECIPES = {"one D": False, "adaptive": True}
#: An objective, and what the paper plots instead of our mean loss, divided by the rows.
_CRITERIA: dict[str, tuple[Objective, Callable[[np.ndarray], np.ndarray]]] = {
    "CLL": (Conditional(), lambda loss: -loss),
    "log D": (SmoothMargin(MARGIN), lambda loss: math.log(2.0) - loss),
}


def run(report: Report) -> None:
    """All curves from one start, then the zones."""
    start = start_on_spirals(report, SETTINGS[0], 1000 if report.quick else 5000, draw=0)
    iterations = 30 if report.quick else 200
    wanted = [name for name in _CRITERIA if report.wants(name)]
    if wanted:
        with report.figure("criteria", figsize=(11, 4.5 * len(wanted))) as figure:
            grid = figure.subplots(len(wanted), len(_RECIPES), squeeze=False)
            for panels, name in zip(grid, wanted, strict=True):
                for panel, recipe in zip(panels, _RECIPES, strict=True):
                    _show(report, panel, start, name, recipe, iterations)
    if report.wants("zones"):
        show_zones(report, "zones", zone_course(start, MARGIN, iterations))


def _show(
    report: Report, panel: Panel, start: OneStart, name: str, recipe: str, iterations: int
) -> None:
    objective, convert = _CRITERIA[name]
    for factor in _QUICK_FACTORS if report.quick else FACTORS:
        solver = EBW(iterations, factor=factor, per_component=_RECIPES[recipe], patience=iterations)
        history = start.train(objective, solver).history
        loss = np.array([record["objective"] for record in history])
        curve = convert(loss) * len(start.engine)
        panel.plot(curve, label=f"F = {factor:g}")
        report.row(
            "convergence",
            criterion=name,
            recipe=recipe,
            factor=factor,
            start=float(curve[0]),
            after_10=float(curve[10]),
            last=float(curve[-1]),
            best=float(curve.max()),
            falls=int((np.diff(curve) < 0).sum()),
        )
    framed(panel, "iteration", name, f"{name}, {recipe}")
