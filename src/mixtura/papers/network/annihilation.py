"""Mixture networks, Figure 6: the penalty of the read-out's weights decides how many components.

Caetano (2018), section 4.2: two classes of one Gaussian each, and six components in each class's
mixture at first. A component whose weight the penalty l1 sets to zero is erased. In the paper six
are left under a penalty of 0.001, and two, which is right, under 0.1. Centers and sizes are ours.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import Bunch

from mixtura.estimators import MixtureNetworkClassifier
from mixtura.papers.network.link import draw_ellipses, published
from mixtura.papers.pictures import scatter
from mixtura.papers.report import Report

PENALTIES = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)
#: Components left in a mixture.
PAPER = {0.001: 6, 0.1: 2}
N_COMPONENTS = 6
N_PER_CLASS = 200
DISTANCE = 6.0
RIDGE = 0.01


def run(report: Report) -> None:
    """A row for each penalty, and pictures of the paper's two."""
    rows = make_two_gaussians(report.seed)
    penalties = tuple(PAPER) if report.quick else PENALTIES
    models = {penalty: _fit(report, rows, penalty) for penalty in penalties}
    with report.figure(figsize=(9, 4)) as figure:
        panels = figure.subplots(1, len(PAPER), sharex=True, sharey=True)
        for panel, penalty in zip(panels, PAPER, strict=True):
            scatter(panel, rows.data, rows.target)
            draw_ellipses(panel, models[penalty], 0, color="black")
            panel.set_title(f"l1 = {penalty:g}: {models[penalty].n_components_[0]} components")


def make_two_gaussians(seed: int) -> Bunch:
    """Two round clouds beside each other."""
    target = np.repeat([0, 1], N_PER_CLASS)
    data = np.random.default_rng(seed).normal(size=(len(target), 2))
    data[:, 0] += DISTANCE * target
    return Bunch(data=data, target=target)


def _fit(report: Report, rows: Bunch, penalty: float) -> MixtureNetworkClassifier:
    model = published(rows, report, N_COMPONENTS, l1=penalty, l2=RIDGE, annihilate=True)
    first, second = model.n_components_
    report.row(
        "components",
        l1=penalty,
        first=first,
        second=second,
        paper=PAPER.get(penalty),
        accuracy=100 * float(model.score(rows.data, rows.target)),
    )
    return model
