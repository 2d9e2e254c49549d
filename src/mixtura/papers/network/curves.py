"""Mixture networks beyond the paper: error against the share of labels and of missing entries.

Mushroom, the Wisconsin breast cancers and mammographic masses, halves to train and to test. Left,
labels are hidden: the mixtures learn from all rows, the trees from the labeled ones. Right, holes
are punched at random into the test rows (solid) or into training rows as well (dashed).

Parts are named like "wdbc, labels", "wdbc, missing" and "wdbc, trained with holes".
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import Bunch

from mixtura import MixtureClassifier, MixtureNetworkClassifier
from mixtura.data.given import Classifier, Parameters, Setting
from mixtura.papers.pictures import framed
from mixtura.papers.report import Lines, Panel, Report
from mixtura.papers.tables import (
    Split,
    boosted_trees,
    fit,
    halves,
    hide_labels,
    labeled,
    load,
    losses,
    punch_at_random,
    spread,
)

SEEDS = 5
LABELS = (1.0, 0.5, 0.25, 0.1, 0.05)
HOLES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
KINDS: dict[str, tuple[float, ...]] = {
    "labels": LABELS,
    "missing": HOLES,
    "trained with holes": HOLES,
}
MODELS = ("network", "mixture", "trees")
_LOG_DENSITY: Parameters = {"n_components": 2, "embedding": "log_density"}
SETTINGS: dict[str, Parameters] = {
    "mushroom": {"n_components": 20, "embedding": "posterior"},
    "wdbc": _LOG_DENSITY,
    "mammographic": _LOG_DENSITY,
}
#: Holes at random mean nothing, and errors need no calibration.
_COMMON: Parameters = {"missingness": "ignore", "calibrate": False}
_MOST_ROWS, _QUICK_ROWS = 2000, 200


def run(report: Report) -> None:
    """A row for each set, kind, share and model, and a picture for each set."""
    for name in ("wdbc",) if report.quick else SETTINGS:
        kinds = [kind for kind in KINDS if report.wants(f"{name}, {kind}")]
        if kinds:
            rows = load(name, _QUICK_ROWS if report.quick else _MOST_ROWS)
            for kind in kinds:
                _show(report, rows, kind)
            _draw(report, name)


def _show(report: Report, rows: Bunch, kind: str) -> None:
    splits = halves(rows.target, 1 if report.quick else SEEDS, report.seed)
    shares = KINDS[kind][:: len(KINDS[kind]) - 1] if report.quick else KINDS[kind]
    for model in MODELS:
        errors = [
            _errors(report, rows, split, kind, shares, model, report.seed + number)
            for number, split in enumerate(splits)
        ]
        for share, found in zip(shares, zip(*errors, strict=True), strict=True):
            what = {"data": rows.name, "kind": kind, "model": model}
            report.row("errors", **what, share=round(100 * share), **spread(found))


def _errors(
    report: Report,
    rows: Bunch,
    split: Split,
    kind: str,
    shares: tuple[float, ...],
    model: str,
    seed: int,
) -> list[float]:
    """Test errors after something was taken away, the same for all models."""
    (train, test), found = split, []
    fitted = None
    for share in shares:
        if fitted is None or kind != "missing":
            X, y = _training(rows.data[train], rows.target[train], kind, share, seed)
            fitted = _make(report, rows, model, seed)
            fit(fitted, *(labeled(X, y) if model == "trees" else (X, y)))
        holes = 0.0 if kind == "labels" else share
        seen = punch_at_random(rows.data[test], holes, seed)
        found.append(losses(fitted, seen, rows.target[test])[0])
    return found


def _training(
    X: np.ndarray, y: np.ndarray, kind: str, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train with, without some of their labels or entries."""
    if kind == "labels":
        return X, hide_labels(y, share, seed)
    return (punch_at_random(X, share, seed + 1000) if kind == "trained with holes" else X), y


def _make(report: Report, rows: Bunch, model: str, seed: int) -> Classifier:
    if model == "trees":
        return boosted_trees(rows, seed)
    common = {
        **_COMMON,
        "categorical_features": rows.categorical,
        "unlabeled_weight": 0.5,
        "device": report.device,
        "random_state": seed,
    }
    if model == "mixture":
        return MixtureClassifier(**common)
    return MixtureNetworkClassifier(**SETTINGS[rows.name], **common)


def _draw(report: Report, name: str) -> None:
    rows = [row for row in report.tables["errors"] if row["data"] == name]
    with report.figure(name, figsize=(10, 4)) as figure:
        labels, missing = figure.subplots(1, 2)
        for place, model in enumerate(MODELS):
            mine = [row for row in rows if row["model"] == model]
            color = f"C{place}"
            _plot(labels, mine, "labels", "o-", color=color, label=model)
            _plot(missing, mine, "missing", "o-", color=color, label=model)
            _plot(missing, mine, "trained with holes", "s--", color=color)
        labels.set_xscale("log")
        framed(labels, "labels (%)", "test error (%)", name)
        framed(missing, "missing entries (%)", "test error (%)", name)


def _plot(panel: Panel, rows: Lines, kind: str, line: str, **style: Setting) -> None:
    mine = [row for row in rows if row["kind"] == kind]
    panel.plot([row["share"] for row in mine], [row["ours"] for row in mine], line, **style)
