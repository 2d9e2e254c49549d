"""Discriminative mixtures, Figures 3 and 4: classes of speech sounds, with features missing.

Pernkopf and Wohlmayr (2010) classify frames of TIMIT, which is licensed. Two free sets stand in:
the five phonemes of The Elements of Statistical Learning (20 principal components of
log-periodograms, test speakers unseen), and the ten vowels of Peterson and Barney (logs of pitch
and three formants, folds by speaker). The paper's figures (TIMIT, both genders, 4 classes, M = 100)
stand beside ours for orientation only. Margin and iterations are chosen on held-out training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.model_selection import GroupKFold

from mixtura.datasets import load_dataset
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
from mixtura.papers.ebw._margin_zones import show_zones, zone_course
from mixtura.papers.ebw._missing_features import show_missing
from mixtura.papers.ebw._one_start import OneStart
from mixtura.papers.ebw._rivals import Score
from mixtura.papers.report import Report

_FEATURES, _REPETITIONS = 20, 5
_MARGINS, _ITERATIONS = (1.0, 3.0, 10.0), (5, 20, 80)
#: Components of the models behind the curves.
_CURVE_COMPONENTS = 2
#: TIMIT: percent correct, and parameters.
_PAPER = {
    "GMM": (90.17, 16_404),
    "CL-GMM": (92.54, 16_404),
    "MM-GMM": (92.30, 16_404),
    "NN-100": (92.58, None),
    "SVM": (92.78, 4_048_500),
}
CELLS = grid(
    ["accuracy"],
    {name: [accuracy] for name, (accuracy, _) in _PAPER.items()},
    higher=True,
    absent="TIMIT is licensed; free sets stand in",
)


class SpeechSet(NamedTuple):
    """Splits of a set, and the components to try."""

    splits: list[Split]
    components: tuple[int, ...]


def run(report: Report) -> None:
    """Accuracy on both sets; curves on the first, which has features to lose."""
    sets: dict[str, Callable[[], SpeechSet]] = {"phonemes": phonemes, "vowels": vowels}
    for name, load in sets.items():
        if report.wants(f"accuracy {name}"):
            _show_accuracy(report, name, load())
    train, test = phonemes().splits[0]
    if report.wants("missing"):
        start, mixtures = three_ways(report, train, _CURVE_COMPONENTS, _candidates(report))
        missing = [0, 5, 10, 15] if report.quick else list(range(_FEATURES))
        show_missing(report, start, mixtures, *test, missing, 3 if report.quick else 100)
    if report.wants("zones"):
        start = OneStart.fit(report, *train, _CURVE_COMPONENTS)
        show_zones(report, "zones", zone_course(start, _MARGINS[1], 30 if report.quick else 100))


def phonemes() -> SpeechSet:
    """The one official split, to be repeated from several starts."""
    bunch = load_dataset("phoneme_esl")
    train, test = bunch.splits[0]
    pca = PCA(_FEATURES, svd_solver="full").fit(bunch.data[train])
    halves = [(pca.transform(bunch.data[rows]), bunch.target[rows]) for rows in (train, test)]
    return SpeechSet([(halves[0], halves[1])] * _REPETITIONS, (1, 2, 4, 8))


def vowels() -> SpeechSet:
    """Folds that share no speaker."""
    bunch = load_dataset("peterson_barney")
    X, y = np.log(bunch.data), bunch.target
    folds = GroupKFold(_REPETITIONS).split(X, y, bunch.speaker)
    return SpeechSet([((X[a], y[a]), (X[b], y[b])) for a, b in folds], (1, 2, 4))


def _candidates(report: Report) -> Recipes:
    return recipes([10.0], [20]) if report.quick else recipes(_MARGINS, _ITERATIONS)


def _show_accuracy(report: Report, name: str, speech: SpeechSet) -> None:
    splits = speech.splits[:1] if report.quick else speech.splits
    components = speech.components[:2] if report.quick else speech.components
    for count in components:
        scores = score_mixtures(report, splits, count, _candidates(report))
        _show_rows(report, name, scores, count)
    _show_rows(report, name, score_rivals(report, splits))


def _show_rows(
    report: Report, name: str, scores: dict[str, list[Score]], count: int | None = None
) -> None:
    for model, found in scores.items():
        paper, parameters = _PAPER[model]
        report.row(
            "accuracy",
            data=name,
            model=model,
            components=count,
            **summary(found),
            paper_timit=paper,
            paper_parameters=parameters,
        )
