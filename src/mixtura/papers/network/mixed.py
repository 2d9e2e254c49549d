"""Mixture networks beyond the paper: mixtures, networks and trees on mixed tables with holes.

Census Income in its official split, and five small sets with many missing entries over repeated
five-fold cross-validation. Mixtures ignore what is missing, learn from it, or decide ("auto"); the
trees know categories and holes by themselves. The mean ranks are over the sets that all models of
the run have seen.

Parts are named like "labor, network".
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.utils import Bunch

from mixtura import MixtureClassifier, MixtureNetworkClassifier
from mixtura.data.given import Classifier, Parameters
from mixtura.papers.report import Report
from mixtura.papers.tables import (
    Score,
    Split,
    boosted_trees,
    load,
    score,
    summary,
    without_warnings,
)
from mixtura.solvers import LinkedEM

SETS = ("adult", "hepatitis", "horse_colic", "annealing", "mammographic", "labor")
N_FOLDS, N_REPEATS = 5, 2
#: By name: the class and its parameters; the trees are none of ours.
MODELS: dict[str, tuple[type, Parameters] | None] = {
    "mixture": (MixtureClassifier, {}),
    "mixture, ignore": (MixtureClassifier, {"missingness": "ignore"}),
    "mixture, informative": (MixtureClassifier, {"missingness": "informative"}),
    "mixture, auto": (MixtureClassifier, {"missingness": "auto"}),
    "network": (MixtureNetworkClassifier, {}),
    "trees": None,
}
_QUICK: Parameters = {"n_components": 1, "calibrate": False, "missingness": "ignore"}
_QUICK_NETWORK: Parameters = {
    **_QUICK,
    "embedding": "log_density",
    "solver": LinkedEM(end_to_end=False),
}


def run(report: Report) -> None:
    """A row for each set and model, then mean ranks."""
    for name in ("labor", "hepatitis") if report.quick else SETS:
        for model in MODELS:
            if report.wants(f"{name}, {model}") and not _is_left_out(report, model):
                scores = _scores(report, name, model)
                report.row("errors", data=name, model=model, splits=len(scores), **summary(scores))
    _rank(report)


def _is_left_out(report: Report, model: str) -> bool:
    """What would be shown twice, and variants in the small version."""
    default = MixtureClassifier().missingness
    return model == f"mixture, {default}" or (report.quick and model.startswith("mixture, "))


def _scores(report: Report, name: str, model: str) -> list[Score]:
    rows = load(name)
    return [
        score(_make(report, rows, model, report.seed + number), rows, split)
        for number, split in enumerate(_splits(report, rows))
    ]


def _splits(report: Report, rows: Bunch) -> list[Split]:
    if rows.name == "adult":
        return rows.splits
    n_folds, n_repeats = (2, 1) if report.quick else (N_FOLDS, N_REPEATS)
    folds = RepeatedStratifiedKFold(n_splits=n_folds, n_repeats=n_repeats, random_state=report.seed)
    with without_warnings():
        return list(folds.split(rows.data, rows.target))


def _make(report: Report, rows: Bunch, model: str, seed: int) -> Classifier:
    recipe = MODELS[model]
    if recipe is None:
        return boosted_trees(rows, seed)
    kind, parameters = recipe
    if report.quick:
        parameters = _QUICK_NETWORK if kind is MixtureNetworkClassifier else _QUICK
    return kind(
        **parameters, categorical_features=rows.categorical, device=report.device, random_state=seed
    )


def _rank(report: Report) -> None:
    """Places of the models, best first, in the mean over sets."""
    rows = report.tables.get("errors", [])
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells = {(row["data"], row["model"]): row for row in rows}
    sets = [
        name
        for name in dict.fromkeys(row["data"] for row in rows)
        if all((name, model) in cells for model in models)
    ]
    if len(models) < 2 or not sets:
        return
    places = {
        measure: np.mean(
            [rankdata([cells[name, model][measure] for model in models]) for name in sets], axis=0
        )
        for measure in ("ours", "log_loss")
    }
    for place, model in enumerate(models):
        report.row(
            "ranks",
            model=model,
            sets=len(sets),
            error=float(places["ours"][place]),
            log_loss=float(places["log_loss"][place]),
        )
