"""Tables of labeled rows: splits, labels and entries taken away, boosted trees, and scores."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import Bunch

from mixtura.data.batch import UNLABELED
from mixtura.data.given import Classifier, Predictor
from mixtura.datasets import load_dataset
from mixtura.exceptions import DegenerateDataWarning

#: Training rows, test rows.
Split = tuple[np.ndarray, np.ndarray]

_LEAST = 1e-15


def spread(values: Sequence[float]) -> dict[str, float]:
    """Cells of a table: mean and deviation over seeds, splits or draws."""
    return {"ours": float(np.mean(values)), "deviation": float(np.std(values))}


class Score(NamedTuple):
    """Error in percent and log-loss on the test part of a split, and seconds to fit."""

    error: float
    log_loss: float
    seconds: float


def load(name: str, most: int | None = None) -> Bunch:
    """A set, or so many of its rows, drawn at random; its splits are lost then."""
    rows = load_dataset(name)
    if most is None or len(rows.target) <= most:
        return rows
    few = np.random.default_rng(0).permutation(len(rows.target))[:most]
    return Bunch(**{**rows, "data": rows.data[few], "target": rows.target[few], "splits": []})


def halves(target: np.ndarray, count: int, seed: int, test_size: float = 0.5) -> list[Split]:
    """One half of each class to train, the other (or another share) to test."""
    splitter = StratifiedShuffleSplit(count, test_size=test_size, random_state=seed)
    return list(splitter.split(target, target))


def hide_labels(target: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of a share of the rows of each class, one at least; the others become unlabeled."""
    rng = np.random.default_rng(seed)
    shown = np.full_like(target, UNLABELED)
    for label in np.unique(target):
        mine = rng.permutation(np.flatnonzero(target == label))
        shown[mine[: max(1, round(share * len(mine)))]] = label
    return shown


def punch(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Rows without a share of their features, the same number in each.

    With the same seed, what is missing at a share is missing at every larger one.
    """
    order = np.random.default_rng(seed).random(X.shape).argsort(1).argsort(1)
    return np.where(order < round(share * X.shape[1]), np.float32(np.nan), X)


def punch_at_random(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Every entry is lost with the same probability."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def boosted_trees(rows: Bunch, seed: int) -> HistGradientBoostingClassifier:
    """Trees that know categories and holes by themselves."""
    return HistGradientBoostingClassifier(
        categorical_features=np.asarray(rows.categorical, dtype=bool), random_state=seed
    )


def fit(model: Predictor, X: np.ndarray, y: np.ndarray) -> float:
    """Fit without warnings of what parts of small sets lack; the seconds it took."""
    began = time.perf_counter()
    with without_warnings():
        model.fit(X, y)
    return time.perf_counter() - began


@contextmanager
def without_warnings() -> Iterator[None]:
    """Without the warnings that few rows and rare categories bring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The least populated class in y")
        warnings.filterwarnings("ignore", ".*categor")
        yield


def score(model: Classifier, rows: Bunch, split: Split, shown: np.ndarray | None = None) -> Score:
    """Fit on one part and test on the other; `shown` are the labels of the training part."""
    train, test = split
    seconds = fit(model, rows.data[train], rows.target[train] if shown is None else shown)
    return Score(*losses(model, rows.data[test], rows.target[test]), seconds)


def losses(model: Classifier, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Error in percent, and log-loss; NaN of a model without probabilities."""
    with without_warnings():
        error = 100 * float(np.mean(model.predict(X) != y))
        if not hasattr(model, "predict_proba"):
            return error, np.nan
        found = model.predict_proba(X)
    own = found[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return error, float(-np.log(np.maximum(own, _LEAST)).mean())


def labeled(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that have a label."""
    return X[y != UNLABELED], y[y != UNLABELED]


def summary(scores: Sequence[Score]) -> dict[str, float | None]:
    """Cells of a table: mean and deviation of the error, and means of the others."""
    _, log_loss, seconds = np.mean(scores, axis=0)
    return {
        **spread([score.error for score in scores]),
        "log_loss": None if np.isnan(log_loss) else float(log_loss),
        "seconds": float(seconds),
    }
