"""Mixture networks, Table 3: Mushroom and Census Income, categories, holes and hidden labels.

Caetano (2018), section 5.3.1. Mushroom is split into halves, Census Income as published; what is
missing stays missing. Beside the network, boosted trees with native categories learn from the
labeled rows alone.

Parts are named like "mushroom, 5, network".
"""

from __future__ import annotations

from sklearn.utils import Bunch

from mixtura import MixtureNetworkClassifier
from mixtura.data.given import Classifier, Parameters
from mixtura.papers.cells import grid
from mixtura.papers.report import Report
from mixtura.papers.tables import (
    Score,
    Split,
    boosted_trees,
    halves,
    hide_labels,
    labeled,
    load,
    score,
    summary,
)

SHARES = (1.0, 0.85, 0.5, 0.25, 0.05)
PAPER: dict[str, tuple[float, ...]] = {
    "mushroom": (0.8, 0.9, 1.5, 2.3, 6.8),
    "adult": (18.6, 18.2, 18.7, 18.9, 18.8),
}
MODELS = ("network", "trees")
CELLS = grid([f"{100 * share:g} %" for share in SHARES], PAPER)
#: Splits of Mushroom; draws of labels from the one split of Census Income.
SEEDS = {"mushroom": 10, "adult": 3}
#: As in the paper, what is missing means nothing; errors need no calibration.
_COMMON: Parameters = {"missingness": "ignore", "calibrate": False}
SETTINGS: dict[str, Parameters] = {
    "mushroom": {"n_components": 20, "embedding": "posterior", **_COMMON},
    "adult": {"n_components": 40, "embedding": "posterior", **_COMMON},
}
_QUICK_ROWS = 2000


def run(report: Report) -> None:
    """A row for each set, share of labels and model."""
    for name in PAPER:
        shares = zip(SHARES, PAPER[name], strict=True)
        for share, paper in list(shares)[::4] if report.quick else shares:
            for model in MODELS:
                if report.wants(f"{name}, {round(100 * share)}, {model}"):
                    scores = _scores(report, name, share, model)
                    if model == "network":
                        report.cell(name, f"{100 * share:g} %", [each.error for each in scores])
                    report.row(
                        "errors",
                        data=name,
                        labels=round(100 * share),
                        model=model,
                        splits=len(scores),
                        **summary(scores),
                        paper=paper if model == "network" else None,
                    )


def _scores(report: Report, name: str, share: float, model: str) -> list[Score]:
    rows = load(name, _QUICK_ROWS if report.quick else None)
    count = 2 if report.quick else SEEDS[name]
    splits = rows.splits * count or halves(rows.target, count, report.seed)
    return [
        _score(_model(report, rows, model, report.seed + number), rows, split, share, number)
        for number, split in enumerate(splits)
    ]


def _model(report: Report, rows: Bunch, model: str, seed: int) -> Classifier:
    if model == "trees":
        return boosted_trees(rows, seed)
    return MixtureNetworkClassifier(
        **SETTINGS[rows.name],
        categorical_features=rows.categorical,
        unlabeled_weight=0.5,
        device=report.device,
        random_state=seed,
    )


def _score(model: Classifier, rows: Bunch, split: Split, share: float, number: int) -> Score:
    train, test = split
    shown = hide_labels(rows.target[train], share, number)
    if not isinstance(model, MixtureNetworkClassifier):
        train, shown = labeled(train, shown)
    return score(model, rows, (train, test), shown)
