"""Hybrid mixtures, Figure 1: likelihood, margin and error against the trade-off, MNIST (pca50).

Roth et al. (2018): hybrid margin with the desired log-margin 100, 100 epochs, no early stopping.
The margin shown is the mean log-margin, each row counted up to the desired one: it is what the
objective's second term wants to raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mixtura.data.given import Parameters
from mixtura.estimators import MixtureClassifier
from mixtura.papers.hybrid._training import Fit
from mixtura.papers.hybrid.table1 import load, train_cell
from mixtura.papers.images import Images
from mixtura.papers.pictures import framed
from mixtura.papers.report import Lines, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, EPOCHS = 100.0, 100
TRADEOFFS = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_QUICK_TRADEOFFS = (0.0, 0.1, 0.5, 1.0)
_PANELS = {
    "likelihood": "mean log-likelihood",
    "margin": "mean log-margin, at most 100",
    "error": "error (%)",
}


def run(report: Report) -> None:
    """One model per trade-off, measured on training and test rows."""
    images = load(report, "mnist-pca50")
    for tradeoff in _QUICK_TRADEOFFS if report.quick else TRADEOFFS:
        if report.wants(str(tradeoff)):
            fit = train_hybrid(report, images, "mnist-pca50", tradeoff)
            cells = _measure(fit.model, images.X_train, images.y_train, "train")
            cells |= _measure(fit.model, images.X_test, images.y_test, "test")
            report.row("sweep", tradeoff=tradeoff, **cells, seconds=fit.seconds)
    with report.figure(figsize=(12, 3.8)) as figure:
        _plot(figure, report.tables.get("sweep", []))


def train_hybrid(report: Report, images: Images, name: str, tradeoff: float) -> Fit:
    """A hybrid margin model as the figures have it: fixed margin, and the last epoch counts."""
    part = f"{name}/full/LL+LM"
    fixed: Parameters = {"objective__margin": MARGIN, "solver__early_stopping": False}
    if not report.quick:
        fixed["solver__max_iter"] = EPOCHS
    return train_cell(report, images, part, tradeoff=tradeoff, **fixed)


def _measure(model: MixtureClassifier, X: np.ndarray, y: np.ndarray, of: str) -> dict[str, float]:
    joint = model.class_log_density(X) + np.log(model.class_prior_)
    own = joint[np.arange(len(y)), y]
    joint[np.arange(len(y)), y] = -np.inf
    margin = own - joint.max(1)
    return {
        f"{of}_likelihood": float(own.mean()),
        f"{of}_margin": float(margin.clip(max=MARGIN).mean()),
        f"{of}_error": 100 * float(np.mean(margin <= 0)),
    }


def _plot(figure: Figure, rows: Lines) -> None:
    places = range(len(rows))
    for axes, (name, label) in zip(figure.subplots(1, 3), _PANELS.items(), strict=True):
        for part in ("train", "test"):
            axes.plot(places, [row[f"{part}_{name}"] for row in rows], marker="o", label=part)
        axes.set_xticks(places, [f"{row['tradeoff']:g}" for row in rows])
        framed(axes, "trade-off λ (0: discriminative, 1: generative)", label)
        if axes.get_ylim()[0] < -1000:
            # Without the likelihood's share the density may fall by orders of magnitude.
            axes.set_yscale("symlog", linthresh=100)
