"""Mixtures trained three ways beside classifiers without a density, over several splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from mixtura.data.given import Setting
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional, SmoothMargin
from mixtura.papers.ebw._one_start import OneStart, Recipe, accuracy, choose
from mixtura.papers.ebw._rivals import PENALTIES, Score, hidden_layer, support_vector_machine
from mixtura.papers.report import Report
from mixtura.papers.tables import spread

Rows = tuple[np.ndarray, np.ndarray]
#: Training rows, test rows.
Split = tuple[Rows, Rows]
Recipes = dict[str, list[Recipe]]


def recipes(margins: Sequence[float], iterations: Sequence[int]) -> Recipes:
    """All that conditional and margin training may choose from."""
    wide = [SmoothMargin(margin) for margin in margins]
    return {
        "CL-GMM": [Recipe(Conditional(), count) for count in iterations],
        "MM-GMM": [Recipe(objective, count) for objective, count in product(wide, iterations)],
    }


def three_ways(
    report: Report, train: Rows, n_components: int, candidates: Recipes, **settings: Setting
) -> tuple[OneStart, dict[str, Mixture]]:
    """The mixture of maximum likelihood, and what each way of training makes of it."""
    chosen = choose(report, *train, n_components, candidates, **settings)
    start = OneStart.fit(report, *train, n_components, **settings)
    trained = {name: start.follow(recipe) for name, recipe in chosen.items()}
    return start, {"GMM": start.mixture, **trained}


def score_mixtures(
    report: Report, splits: list[Split], n_components: int, candidates: Recipes, **settings: Setting
) -> dict[str, list[Score]]:
    """Scores of the three mixtures on every split, each from a start of its own."""
    scores: dict[str, list[Score]] = {}
    for place, (train, test) in enumerate(splits):
        seeded = replace(report, seed=report.seed + place)
        start, mixtures = three_ways(seeded, train, n_components, candidates, **settings)
        rows = start.rows(*test)
        for name, mixture in mixtures.items():
            correct = (accuracy(mixture, start.engine), accuracy(mixture, rows))
            scores.setdefault(name, []).append(Score(*correct, mixture.n_parameters))
    return scores


def score_rivals(report: Report, splits: list[Split]) -> dict[str, list[Score]]:
    """Scores of the support vector machine and of the network on every split."""
    penalties = PENALTIES[1:2] if report.quick else PENALTIES
    return {
        "SVM": [support_vector_machine(*split, penalties) for split in splits],
        "NN-100": [hidden_layer(*split, report.seed + k) for k, split in enumerate(splits)],
    }


def summary(scores: list[Score]) -> dict[str, float]:
    """Cells of a table: means, and the deviation over splits."""
    train, test, parameters = zip(*scores, strict=True)
    return {
        "train": float(np.mean(train)),
        **spread(test),
        "parameters": round(np.mean(parameters)),
    }
