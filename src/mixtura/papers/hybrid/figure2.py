"""Hybrid mixtures, Figure 2: digits drawn from models of MNIST for several trade-offs.

Roth et al. (2018): hybrid margin with the desired log-margin 100, diagonal plus low rank, beside a
generative model with diagonal covariances. The figure of merit is the mean log-likelihood of the
test images.
"""

from __future__ import annotations

import numpy as np

from mixtura.estimators import MixtureClassifier
from mixtura.papers.hybrid._training import Fit, error_rate
from mixtura.papers.hybrid.figure1 import train_hybrid
from mixtura.papers.hybrid.table1 import load, train_cell
from mixtura.papers.images import Images
from mixtura.papers.report import Report

TRADEOFFS = (0.0, 0.1, 0.5, 1.0)
_SIDE = 28
_DRAWS = 10


def run(report: Report) -> None:
    """One model per panel: its digits, and how well it explains new ones."""
    images = load(report, "mnist", quick_rows=600)
    panels = {}
    for name, tradeoff in _models().items():
        if report.wants(name):
            fit = _train(report, images, tradeoff)
            panels[name] = _draw(fit.model, report.seed)
            report.row(
                "models",
                model=name,
                test_likelihood=float(fit.model.score_samples(images.X_test).mean()),
                test_error=error_rate(fit.model, images.X_test, images.y_test),
                seconds=fit.seconds,
            )
    with report.figure(figsize=(16, 3.5)) as figure:
        for place, (name, picture) in enumerate(panels.items()):
            axes = figure.add_subplot(1, len(panels), place + 1)
            axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
            axes.set_title(name)
            axes.set_axis_off()


def _models() -> dict[str, float | None]:
    """Trade-offs by the name of the panel; None is the generative model, diagonal covariances."""
    return {**{f"low rank, λ = {value:g}": value for value in TRADEOFFS}, "diagonal, λ = 1": None}


def _train(report: Report, images: Images, tradeoff: float | None) -> Fit:
    if tradeoff is None:
        return train_cell(report, images, "mnist/diagonal/LL")
    return train_hybrid(report, images, "mnist", tradeoff)


def _draw(model: MixtureClassifier, seed: int) -> np.ndarray:
    """A sheet of digits, one class per row."""
    labels = np.repeat(model.classes_, _DRAWS)
    pixels, _ = model.sample(len(labels), y=labels, random_state=seed)
    sheet = pixels.reshape(len(model.classes_), _DRAWS, _SIDE, _SIDE).swapaxes(1, 2)
    return sheet.reshape(-1, _DRAWS * _SIDE).clip(0, 1)
