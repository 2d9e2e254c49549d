"""Mixture networks, Table 1: errors on seven small sets, hyper-parameters by randomised search.

Caetano (2018), section 5.2: ten seeds, each with one half of the rows to train and the other to
test. The paper does not print its splits; most columns that it quotes come from halves. Settings
are drawn at random from `SETTINGS` and compared by cross-validation within the training half, all
on the same folds: by error, then by log-loss. Logistic regression and support vectors choose their
penalties (and widths) on those folds too. "best" is the best column of the paper's table.

Parts are named like "iris, network".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import Bunch

from mixtura import MixtureNetworkClassifier
from mixtura.experiments.report import Report
from mixtura.experiments.tables import (
    Parameters,
    Score,
    Split,
    fit,
    halves,
    in_peace,
    load,
    losses,
    score,
    summary,
)

#: Errors of the paper's network, of its logistic regression, of the support vectors that it
#: quotes, and the smallest of all columns.
PAPER: dict[str, tuple[float | None, ...]] = {
    "iris": (3.3, 7.9, 5.3, 3.3),
    "wdbc": (7.6, 4.9, 4.6, 4.6),
    "glass": (56.8, 45.8, 31.4, 31.4),
    "sonar": (33.6, 25.2, 18.4, 18.4),
    "wine": (7.1, 7.3, 2.3, 1.1),
    "colon": (20.9, 25.2, None, 16.1),
    "leukemia": (10.9, 32.9, 23.5, 10.9),
}
MODELS = ("network", "logistic", "SVM")
#: Sets with thousands of features and a few dozen rows.
GENES = ("colon", "leukemia")
SEEDS = 10
N_FOLDS, N_GENE_FOLDS = 5, 3
#: Settings that are drawn for each seed.
N_SETTINGS, N_QUICK = 30, 3

_STRUCTURES: dict[str, Parameters] = {
    "full": {"covariance": "full"},
    "equal": {"covariance": "full", "equal_covariances": True},
    "low rank": {"covariance": "low_rank"},
    "diagonal": {"covariance": "diag"},
}
_TRAININGS: dict[str, Parameters] = {
    "linked EM": {"end_to_end": False},
    **{f"conditional {share}": {"tradeoff": share} for share in (0.01, 0.1, 0.5)},
    **{f"margin {share}": {"objective": "margin", "tradeoff": share} for share in (0.01, 0.1, 0.5)},
}
_LINKS = (0.0, 10.0, 1000.0)
_RIDGES = (1e-3, 1e-2)


def _log_densities(
    structures: tuple[str, ...], counts: tuple[int, ...], trainings: tuple[str, ...]
) -> Iterator[tuple[str, Parameters]]:
    """Mixtures of the classes' own rows, and their log-densities."""
    for structure, count, training, ridge in product(structures, counts, trainings, _RIDGES):
        yield (
            f"log-density, {structure}, {count}, {training}, l2 {ridge}",
            {
                **{"embedding": "log_density", "specialize": 1.0, "n_components": count},
                **{"l2": ridge, **_STRUCTURES[structure], **_TRAININGS[training]},
            },
        )


def _posteriors(
    structures: tuple[str, ...], counts: tuple[int, ...], trainings: tuple[str, ...]
) -> Iterator[tuple[str, Parameters]]:
    """The paper's own: mixtures of all rows, linked to the read-out or not, and posteriors."""
    for structure, count, link, training in product(structures, counts, _LINKS, trainings):
        yield (
            f"posterior, {structure}, {count}, link {link:g}, {training}",
            {
                **{"embedding": "posterior", "specialize": 0.0, "n_components": count},
                **{"link": link, **_STRUCTURES[structure], **_TRAININGS[training]},
            },
        )


_SOME = ("linked EM", "conditional 0.1", "margin 0.1")
SETTINGS: dict[str, Parameters] = dict(
    [
        *_log_densities(tuple(_STRUCTURES), (1, 2, 3, 4), tuple(_TRAININGS)),
        *_posteriors(("low rank", "diagonal"), (5, 10, 20), _SOME),
    ]
)
GENE_SETTINGS: dict[str, Parameters] = dict(
    [
        *_log_densities(("diagonal",), (1, 2), ("linked EM", "conditional 0.1")),
        *_posteriors(("diagonal",), (5,), ("linked EM", "conditional 0.1")),
    ]
)


class Chosen(NamedTuple):
    """A setting, and its error on the folds."""

    name: str
    validation: float


def run(report: Report) -> None:
    """A row for each set and model, and what the search chose for each seed."""
    for name in ("iris", "wine") if report.quick else PAPER:
        for place, model in enumerate(MODELS):
            if report.wants(f"{name}, {model}"):
                rows = load(name)
                scores = _scores(report, rows, model)
                paper = {"paper": PAPER[name][place], "best": PAPER[name][-1]}
                report.row(
                    "errors", data=name, model=model, splits=len(scores), **summary(scores), **paper
                )


def network(parameters: Parameters, report: Report, seed: int) -> MixtureNetworkClassifier:
    """Only probabilities need the calibration, and these sets have no holes."""
    return MixtureNetworkClassifier(
        **{"calibrate": False, "missingness": "ignore", **parameters},
        device=report.device,
        random_state=seed,
    )


def _scores(report: Report, rows: Bunch, model: str) -> list[Score]:
    splits = halves(rows.target, 2 if report.quick else SEEDS, report.seed)
    scores = []
    for number, split in enumerate(splits):
        seed = report.seed + number
        if model == "network":
            scores.append(_searched(report, rows, split, seed))
        else:
            scores.append(score(_rival(model, rows, seed), rows, split))
    return scores


def _searched(report: Report, rows: Bunch, split: Split, seed: int) -> Score:
    """The best of some settings, fitted to the whole training half; seconds are of all that."""
    train, test = split
    X, y = rows.data[train], rows.target[train]
    began = time.perf_counter()
    space = settings(rows.name)
    best = search(report, X, y, _folds(rows.name, seed), seed, space)
    model = network(space[best.name], report, seed)
    fit(model, X, y)
    seconds = time.perf_counter() - began
    found = Score(*losses(model, rows.data[test], rows.target[test]), seconds)
    report.row(
        "choices",
        setting=best.name,
        data=rows.name,
        seed=seed,
        validation=best.validation,
        ours=found.error,
        seconds=seconds,
    )
    return found


def settings(name: str) -> dict[str, Parameters]:
    """What may be chosen for a set."""
    return GENE_SETTINGS if name in GENES else SETTINGS


def _folds(name: str, seed: int) -> StratifiedKFold:
    count = N_GENE_FOLDS if name in GENES else N_FOLDS
    return StratifiedKFold(count, shuffle=True, random_state=seed)


def search(
    report: Report,
    X: np.ndarray,
    y: np.ndarray,
    folds: StratifiedKFold,
    seed: int,
    space: dict[str, Parameters],
) -> Chosen:
    """The setting with the smallest error on held-back rows, then the smallest log-loss."""
    with in_peace():
        splits = list(folds.split(X, y))
    rows = Bunch(data=X, target=y)
    count = min(N_QUICK if report.quick else N_SETTINGS, len(space))
    drawn = np.random.default_rng(seed).choice(list(space), count, replace=False)
    means = {}
    for name in map(str, drawn):
        scores = [score(network(space[name], report, seed), rows, split) for split in splits]
        means[name] = tuple(np.mean(scores, axis=0)[:2])
    best = min(means, key=lambda name: means[name])
    return Chosen(best, float(means[best][0]))


def _rival(model: str, rows: Bunch, seed: int) -> Any:
    """Penalties, and widths in units of the usual one, by a grid on the same folds."""
    folds = _folds(rows.name, seed)
    if model == "logistic":
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
        return GridSearchCV(pipeline, {"logisticregression__C": 10.0 ** np.arange(-3, 3)}, cv=folds)
    grid = {
        "svc__C": 10.0 ** np.arange(-1, 4),
        "svc__gamma": 10.0 ** np.arange(-2.0, 1.5, 0.5) / rows.data.shape[1],
    }
    return GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=folds)
