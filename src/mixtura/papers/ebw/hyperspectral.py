"""Discriminative mixtures, Figure 5: pixels of a hyperspectral scene, with bands missing.

Pernkopf and Wohlmayr (2010) use the Washington, D.C., Mall scene (191 bands, 7 classes, 5000 pixels
per class), which may not be passed on. Here it is Jasper Ridge: 198 bands, 4 classes whose labels
are the largest abundance of a published unmixing, not a survey; the paper's figures stand beside
ours for orientation only. Margin and iterations are chosen on held-out training pixels.
"""

from __future__ import annotations

from sklearn.model_selection import train_test_split

from mixtura.datasets import load_dataset
from mixtura.densities import LowRank
from mixtura.papers.cells import grid
from mixtura.papers.ebw._comparison import (
    Recipes,
    Split,
    recipes,
    score_mixtures,
    score_rivals,
    summary,
    three_ways,
)
from mixtura.papers.ebw._missing_features import show_missing
from mixtura.papers.ebw._one_start import FLOOR
from mixtura.papers.ebw._rivals import Score
from mixtura.papers.report import Report

_COMPONENTS, _QUICK_COMPONENTS = (1, 3, 5, 10), (1, 3)
_LOW_RANK = LowRank(rank=5, floor=FLOOR)
_MARGINS, _ITERATIONS = (3.0, 10.0, 30.0), 100
_N_TRAIN, _SPLITS = 4000, 3
#: Washington, D.C., Mall, by model and components: percent correct.
_PAPER = {
    "GMM": (81.94, 81.00, 82.67, 84.36, None),
    "CL-GMM": (83.59, 84.69, 87.18, 88.38, None),
    "MM-GMM": (85.59, 85.94, 88.28, 88.88, None),
    "SVM": (None, None, None, None, 88.98),
}
CELLS = grid(
    [*(f"M = {count}" for count in _COMPONENTS), ""],
    _PAPER,
    higher=True,
    absent="the scene of the Mall is not to be had",
)
_PUBLISHED = {cell[:2]: cell.published for cell in CELLS}
_PARAMETERS = {"M = 10": 26_817, "": 2_279_394}


def run(report: Report) -> None:
    """Accuracy by components, the rivals, then curves of missing bands."""
    n_splits = 1 if report.quick else _SPLITS
    splits = [draw_pixels(report.seed + k, report.quick) for k in range(n_splits)]
    candidates = recipes([10.0], [30]) if report.quick else recipes(_MARGINS, [_ITERATIONS])
    for count in _QUICK_COMPONENTS if report.quick else _COMPONENTS:
        if report.wants(f"diagonal {count}"):
            scores = score_mixtures(report, splits, count, candidates)
            _show(report, scores, "diagonal", count)
    if report.wants("low rank") and not report.quick:
        scores = score_mixtures(report, splits, 1, candidates, density=_LOW_RANK)
        _show(report, scores, "low rank", 1)
    if report.wants("rivals"):
        _show(report, score_rivals(report, splits))
    if report.wants("missing"):
        _show_missing(report, splits[0], candidates)


def draw_pixels(seed: int, quick: bool = False) -> Split:
    """Random training and test pixels of the scene."""
    scene = load_dataset("jasper_ridge")
    share = 8 if quick else 1
    X, X_test, y, y_test = train_test_split(
        scene.data,
        scene.target,
        train_size=_N_TRAIN // share,
        test_size=(len(scene.target) - _N_TRAIN) // share,
        stratify=scene.target,
        random_state=seed,
    )
    return (X, y), (X_test, y_test)


def _show(
    report: Report,
    scores: dict[str, list[Score]],
    covariance: str | None = None,
    count: int | None = None,
) -> None:
    """One row per model; a structure the paper does not have stands alone."""
    column = f"M = {count}" if count else ""
    for name, found in scores.items():
        paper = None if covariance == "low rank" else _PUBLISHED.get((name, column))
        report.row(
            "accuracy",
            model=name,
            covariance=covariance,
            components=count,
            **summary(found),
            paper_dc_mall=paper,
            paper_parameters=_PARAMETERS.get(column) if paper else None,
        )


def _show_missing(report: Report, split: Split, candidates: Recipes) -> None:
    train, test = split
    start, mixtures = three_ways(report, train, 3 if report.quick else 10, candidates)
    missing = [0, 50, 150, 190] if report.quick else [0, *range(10, 191, 20), 194, 197]
    show_missing(report, start, mixtures, *test, missing, 2 if report.quick else 100)
