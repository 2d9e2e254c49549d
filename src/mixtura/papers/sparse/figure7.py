"""Sparse mixtures, Figures 6 and 7: what is left of more and more components on a checkerboard.

Hayashi and Uchida (2021), appendix B: two classes of eight Gaussians each, 320 training and 1600
test rows, five draws. The weight reduction is relative to one weight for every kernel of every
component, as in the paper, though training here starts from the most informative of them.
"""

from __future__ import annotations

import numpy as np

from mixtura import SparseMixtureClassifier
from mixtura.datasets import make_checkerboard
from mixtura.papers.pictures import draw_boundary, scatter
from mixtura.papers.report import Report

COMPONENTS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
DRAWS = 5
#: Initial components whose boundaries are drawn.
DRAWN = (2, 4, 8, 16)


def run(report: Report) -> None:
    """A row for each initial number of components; curves and boundaries."""
    counts = (2, 16) if report.quick else COMPONENTS
    measured, first = [], {}
    for count in counts:
        fits = [_fit(report, count, draw) for draw in range(1 if report.quick else DRAWS)]
        measured.append([cells for _, cells in fits])
        first[count] = fits[0][0]
        _show(report, count, measured[-1])
    _draw_curves(report, counts, measured)
    _draw_boundaries(report, {count: first[count] for count in counts if count in DRAWN})


def _fit(report: Report, count: int, draw: int) -> tuple[SparseMixtureClassifier, dict[str, float]]:
    seed = 1000 * report.seed + draw
    train = make_checkerboard(20, random_state=seed)
    test = make_checkerboard(100, random_state=seed + 500)
    model = SparseMixtureClassifier(count, random_state=seed)
    model.fit(train.data, train.target)
    possible = (2 * count - 1) * (1 + len(train.data))
    return model, {
        "train_error": 100 * (1 - model.score(train.data, train.target)),
        "test_error": 100 * (1 - model.score(test.data, test.target)),
        "components": sum(model.n_components_) / 2,
        "weights": model.n_coef_,
        "reduction": 100 * (1 - model.n_coef_ / possible),
    }


def _show(report: Report, count: int, cells: list[dict[str, float]]) -> None:
    means = {name: float(np.mean([cell[name] for cell in cells])) for name in cells[0]}
    report.row("components", initial=count, **means)


def _draw_curves(
    report: Report, counts: tuple[int, ...], measured: list[list[dict[str, float]]]
) -> None:
    titles = {
        "error [%]": ("train_error", "test_error"),
        "components per class": ("components",),
        "weights": ("weights",),
        "weight reduction [%]": ("reduction",),
    }
    with report.figure("curves", figsize=(14, 3.4)) as figure:
        for panel, (title, names) in zip(
            figure.subplots(1, len(titles)), titles.items(), strict=True
        ):
            for name in names:
                values = np.array([[cell[name] for cell in cells] for cells in measured])
                panel.errorbar(counts, values.mean(1), values.std(1), label=name, capsize=2)
            panel.set(title=title, xlabel="initial components per class")
            if len(names) > 1:
                panel.legend()


def _draw_boundaries(report: Report, models: dict[int, SparseMixtureClassifier]) -> None:
    rows = make_checkerboard(20, random_state=1000 * report.seed)
    with report.figure("boundaries", figsize=(3.6 * len(models), 3.8)) as figure:
        panels = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
        for panel, (count, model) in zip(panels, models.items(), strict=True):
            scatter(panel, rows.data, rows.target)
            draw_boundary(panel, rows.data, model, "black")
            panel.scatter(*model.relevance_vectors_.T, s=40, facecolors="none", edgecolors="black")
            panel.set_title(f"{count} components per class at first")
