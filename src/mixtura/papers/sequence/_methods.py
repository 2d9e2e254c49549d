"""Sequences: the methods compared on them, folds, and what is taken away from them.

The rivals are Kim and Pavlovic's (2007): support vectors on Fisher scores, and the nearest
neighbor under dynamic time warping, whose distances are dtaidistance's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mixtura import FisherScores, SequenceMixtureClassifier
from mixtura.data.given import Predictor, Setting
from mixtura.papers.tables import spread

Sequences = list[np.ndarray]
#: Training rows, test rows.
Fold = tuple[np.ndarray, np.ndarray]
#: From a seed to a classifier.
Maker = Callable[[int], Predictor]

#: The paper's names of the ways to train hidden Markov models.
MODELS = {
    "ML": "ml",
    "CML": "conditional",
    "margin": "smooth_margin",
    "BBN": "adaboost",
    "BxML": "boosted_generative",
    "BxCML": "boosted",
}
#: One model for each pair of classes, their probabilities coupled: the paper's PWC. The paper's BBN
#: lets pairs vote instead (MWV), and is AdaBoost.M1; ours is SAMME, the same for two classes.
PAIRWISE = tuple(f"{name} (pairwise)" for name in ("ML", "CML", "BBN", "BxML", "BxCML"))
RIVALS = ("FSVM", "1-NN DTW")
_PENALTIES = 10.0 ** np.arange(-1, 4)
#: In units of the usual width, one over the number of scores.
_WIDTHS = 10.0 ** np.arange(-2, 2)


class Score(NamedTuple):
    """Error in percent on the test part of a fold, and seconds to fit."""

    error: float
    seconds: float


def method(name: str, n_states: int, **settings: Setting) -> Maker:
    """A way to train by the paper's name, or a rival."""
    if name == "1-NN DTW":
        return lambda seed: NearestWarped()
    if name == "FSVM":
        return lambda seed: fisher_machine(n_states, random_state=seed, **settings)
    base, _, suffix = name.partition(" ")
    multiclass = "pairwise" if suffix else "direct"
    return lambda seed: SequenceMixtureClassifier(
        n_states, method=MODELS[base], multiclass=multiclass, random_state=seed, **settings
    )


def evaluate(
    make: Maker, data: Sequences, target: np.ndarray, folds: Iterable[Fold], seed: int
) -> list[Score]:
    """A fresh classifier on each fold."""
    return [
        score(make(seed + k), data, target, train, test) for k, (train, test) in enumerate(folds)
    ]


def score(
    model: Predictor, data: Sequences, target: np.ndarray, train: np.ndarray, test: np.ndarray
) -> Score:
    """Fit on one part and test on the other."""
    began = time.perf_counter()
    model.fit(take(data, train), target[train])
    seconds = time.perf_counter() - began
    return Score(error(model, take(data, test), target[test]), seconds)


def error(model: Predictor, data: Sequences, target: np.ndarray) -> float:
    """Percent that a fitted classifier gets wrong."""
    return 100 * float(np.mean(model.predict(data) != target))


def summary(scores: Sequence[Score]) -> dict[str, float]:
    """Cells of a table: mean and deviation of the error over folds, seconds per fit."""
    errors, seconds = zip(*scores, strict=True)
    return {**spread(errors), "seconds": float(np.mean(seconds))}


def take(data: Sequences, rows: Iterable[int]) -> Sequences:
    """Some of the sequences."""
    return [data[row] for row in rows]


# -- rivals --------------------------------------------------------------------------------------


def fisher_machine(n_states: int, **settings: Setting) -> Pipeline:
    """Radial support vectors on Fisher scores; penalty and width by inner cross-validation."""
    model = SequenceMixtureClassifier(n_states, method="ml", **settings)
    return make_pipeline(FisherScores(model), StandardScaler(), _SearchedMachine())


class _SearchedMachine(ClassifierMixin, BaseEstimator):
    """The grid of widths is relative to the number of columns, which only the data tell."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> _SearchedMachine:
        grid = {"C": _PENALTIES, "gamma": _WIDTHS / X.shape[1]}
        n_folds = min(3, np.unique(y, return_counts=True)[1].min())
        self.search_ = GridSearchCV(SVC(), grid, cv=n_folds).fit(X, y)
        self.classes_ = self.search_.classes_
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.search_.predict(X)


class NearestWarped(ClassifierMixin, BaseEstimator):
    """The nearest neighbor under dynamic time warping, channels in units of their deviation.

    A channel that a sequence lacks altogether is left out of its distances.
    """

    def fit(self, X: Sequences, y: np.ndarray) -> NearestWarped:
        self.classes_, self.codes_ = np.unique(y, return_inverse=True)
        self.scale_ = np.concatenate(X).std(0)
        self.scale_[self.scale_ == 0.0] = 1.0
        self.sequences_ = [frames / self.scale_ for frames in X]
        return self

    def predict(self, X: Sequences) -> np.ndarray:
        return self.classes_[[self._nearest(frames / self.scale_) for frames in X]]

    def _nearest(self, frames: np.ndarray) -> int:
        seen = ~np.isnan(frames).all(0)
        both = [np.ascontiguousarray(other[:, seen]) for other in (frames, *self.sequences_)]
        return self.codes_[np.argmin(_warped_distances(both))]


def _warped_distances(sequences: Sequences) -> np.ndarray:
    """From the first sequence to all others."""
    try:
        from dtaidistance import dtw_ndim
    except ImportError as missing:
        raise ImportError(
            "Dynamic time warping needs dtaidistance: pip install 'mixtura[bench]'."
        ) from missing
    block = ((0, 1), (1, len(sequences)))
    options = {"compact": True, "parallel": False, "use_c": True}
    return np.array(dtw_ndim.distance_matrix(sequences, block=block, **options))


class Interpolate(TransformerMixin, BaseEstimator):
    """Fills holes along time, from the nearest frames that are there.

    Parameters
    ----------
    blank : fill channels without any frame too, by their training mean.
    """

    def __init__(self, blank: bool = True) -> None:
        self.blank = blank

    def fit(self, X: Sequences, y: np.ndarray | None = None) -> Interpolate:
        self.mean_ = np.nanmean(np.concatenate(X), axis=0)
        return self

    def transform(self, X: Sequences) -> Sequences:
        return [self._fill(frames) for frames in X]

    def _fill(self, frames: np.ndarray) -> np.ndarray:
        filled, moments = frames.copy(), np.arange(len(frames))
        for channel, mean in zip(filled.T, self.mean_, strict=True):
            seen = np.flatnonzero(~np.isnan(channel))
            if len(seen):
                channel[:] = np.interp(moments, seen, channel[seen])
            elif self.blank:
                channel[:] = mean
        return filled


# -- holes ---------------------------------------------------------------------------------------


def without_frames(data: Sequences, share: float, rng: np.random.Generator) -> Sequences:
    """A share of the frames of each sequence is missing, but never all of them."""
    return [_punched(frames, rng.permutation(len(frames)), share) for frames in data]


def without_values(data: Sequences, share: float, rng: np.random.Generator) -> Sequences:
    """A share of the values of each sequence is missing, whatever their frame or channel."""
    holes = (rng.permutation(frames.size).reshape(frames.shape) for frames in data)
    return [_punched(frames, order, share) for frames, order in zip(data, holes, strict=True)]


def without_channels(data: Sequences, count: int, rng: np.random.Generator) -> Sequences:
    """So many channels of each sequence are missing, others for each."""
    lost = (rng.permutation(frames.shape[1]) < count for frames in data)
    return [np.where(gone, np.nan, frames) for frames, gone in zip(data, lost, strict=True)]


def _punched(frames: np.ndarray, order: np.ndarray, share: float) -> np.ndarray:
    """Without the cells or rows that come first in a random order."""
    holes = order < min(round(share * order.size), order.size - 1)
    return np.where(holes if holes.ndim == 2 else holes[:, None], np.nan, frames)
