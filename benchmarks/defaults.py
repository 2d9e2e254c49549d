"""The defaults on many numeric tables, beside what people use: the study behind the rules.

    MIXTURA_DATA=... python benchmarks/defaults.py [--splits 5] [--jobs 2] [--ours '{"holes": 0.2}']

Models see complete training rows; at prediction 0, 30 or 60 % of the features of every row are
missing at random. Rivals impute (mean, iterative) or take NaN natively. Writes one CSV line a
model, table, split and share, and prints means over tables.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from mixtura import MixtureClassifier
from mixtura.datasets import load_dataset

SHARES = (0.0, 0.3, 0.6)
MOST_ROWS = 2000
OURS = "mixtura"
COLUMNS = ("table", "model", "split", "missing", "error", "log_loss", "calibration", "fit_seconds")
FIXED_LENGTH = ("synthetic_control", "italy_power_demand", "gunpoint", "arrowhead", "coffee")
TABLES = (
    *("iris", "wine", "wdbc", "digits", "glass", "sonar", "pima", "pima_ripley", "peterson_barney"),
    *("banana", "waveform", "titanic", "ripley_synth", "jasper_ridge", "phoneme_esl"),
    *("breast_cancer_wisconsin", "japanese_vowels", "free_spoken_digits", *FIXED_LENGTH),
)


def load_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels; sequences become one row each, large sets a random part."""
    bunch = load_dataset(name)
    X, y = bunch.data, np.unique(bunch.target, return_inverse=True)[1]
    if isinstance(X, list):
        X = np.array([row.ravel() if name in FIXED_LENGTH else _moments(row) for row in X])
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(X))[:MOST_ROWS]
    return np.asarray(X, dtype=float)[rows], y[rows]


def _moments(frames: np.ndarray) -> np.ndarray:
    return np.concatenate([frames.mean(0), frames.std(0)])


class MixturesByBIC(ClassifierMixin, BaseEstimator):
    """One scikit-learn mixture per class, structure and size by BIC."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> MixturesByBIC:
        self.classes_, counts = np.unique(y, return_counts=True)
        self.log_prior_ = np.log(counts / counts.sum())
        self.models_ = [self._best(X[y == label]) for label in self.classes_]
        return self

    def _best(self, X: np.ndarray) -> GaussianMixture:
        candidates = [
            GaussianMixture(count, covariance_type=kind, reg_covar=1e-3, random_state=0).fit(X)
            for kind in ("full", "diag", "spherical")
            for count in (1, 2, 3, 4, 6)
            if count < len(X)
        ]
        return min(candidates, key=lambda model: model.bic(X))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        joint = np.stack([m.score_samples(X) for m in self.models_], 1) + self.log_prior_
        joint = np.exp(joint - joint.max(1, keepdims=True))
        return joint / joint.sum(1, keepdims=True)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]


class FilledIn(ClassifierMixin, BaseEstimator):
    """A classifier that needs complete, scaled rows, with an imputer in front.

    The imputer learns from training rows with a third of the entries taken away: from complete
    rows an iterative imputer would learn nothing.
    """

    def __init__(self, model: Any, iterative: bool = False) -> None:
        self.model, self.iterative = model, iterative

    def fit(self, X: np.ndarray, y: np.ndarray) -> FilledIn:
        self.scaler_ = StandardScaler().fit(X)
        nearest = None if X.shape[1] <= 30 else 10
        self.imputer_ = SimpleImputer(keep_empty_features=True)
        if self.iterative:
            self.imputer_ = IterativeImputer(
                max_iter=5, n_nearest_features=nearest, keep_empty_features=True, random_state=0
            )
        scaled = self.scaler_.transform(X)
        holes = np.random.default_rng(0).random(X.shape) < 1 / 3
        self.imputer_.fit(np.where(holes, np.nan, scaled))
        self.model_ = clone(self.model).fit(self.imputer_.transform(scaled), y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.model_.predict_proba(self.imputer_.transform(self.scaler_.transform(X)))


def rivals() -> dict[str, Any]:
    """Classifiers that need complete rows get an imputer in front; trees take NaN."""
    grid = {"C": [1, 10, 100], "gamma": ["scale", 0.01, 0.1]}
    search = GridSearchCV(SVC(random_state=0), grid, cv=3)
    plain = {
        "logistic": LogisticRegression(max_iter=1000),
        "SVM": CalibratedClassifierCV(search, cv=3, ensemble=False),
        "QDA": QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=0.1),
        "naive Bayes": GaussianNB(),
        "mixtures by BIC": MixturesByBIC(),
    }
    return {
        **{f"{name}, mean": FilledIn(model) for name, model in plain.items()},
        **{f"{name}, iterative": FilledIn(plain[name], True) for name in ("logistic", "SVM")},
        "boosting": HistGradientBoostingClassifier(random_state=0),
    }


def calibration_error(proba: np.ndarray, y: np.ndarray, n_bins: int = 10) -> float:
    """Expected calibration error of the predicted class's probability."""
    confidence, right = proba.max(1), proba.argmax(1) == y
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = [abs((right - confidence)[bins == b].sum()) for b in range(n_bins)]
    return float(sum(gaps) / len(y))


def measure(table: str, name: str, model: Any, split: int, n_splits: int) -> list[dict[str, Any]]:
    """One model on one split: a record for each share of missing features."""
    X, y = load_table(table)
    splitter = StratifiedShuffleSplit(n_splits, test_size=0.3, random_state=1)
    train, test = list(splitter.split(X, y))[split]
    draw = np.random.default_rng(split).random((len(test), X.shape[1]))
    records = []
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model.fit(X[train], y[train])
        spent = time.perf_counter() - began
        for share in SHARES:
            proba = model.predict_proba(np.where(draw < share, np.nan, X[test]))
            own = proba[np.arange(len(test)), y[test]].clip(1e-15)
            error = 100 * float((proba.argmax(1) != y[test]).mean())
            loss = float(-np.log(own).mean())
            gap = 100 * calibration_error(proba, y[test])
            values = (table, name, split, share, error, loss, gap, spent)
            records.append(dict(zip(COLUMNS, values, strict=True)))
    return records


def jobs(tables: list[str], ours: dict[str, Any], wanted: list[str], n_splits: int) -> Iterator:
    """All fits of the models whose name contains one of the wanted words."""
    models = {OURS: MixtureClassifier(random_state=0, **ours)} | rivals()
    models = {name: m for name, m in models.items() if any(word in name for word in wanted)}
    for table in tables:
        for name, model in models.items():
            for split in range(n_splits):
                yield delayed(measure)(table, name, model, split, n_splits)


def summarize(records: list[dict[str, Any]]) -> None:
    """Means over tables, ranks by error on complete rows, and the errors table by table."""
    models = sorted({r["model"] for r in records}, key=lambda name: (name != OURS, name))
    tables = list(dict.fromkeys(r["table"] for r in records))
    keys = ("error", "log_loss", "calibration")
    sums: dict[tuple, list[float]] = defaultdict(list)
    for record in records:
        for key in keys:
            place = record["model"], record["table"], float(record["missing"]), key
            sums[place].append(float(record[key]))
    cells = {place: float(np.mean(values)) for place, values in sums.items()}
    errors = np.array([[cells[m, t, 0.0, "error"] for t in tables] for m in models])
    ranks = np.apply_along_axis(rankdata, 0, errors).mean(1)
    head = "".join(f"{f'{share:.0%}: error':>12}  log-loss  calib." for share in SHARES)
    print(f"{len(tables)} tables{'':18}rank{head}  median s")
    for model, rank in zip(models, ranks, strict=True):
        means = [
            np.mean([cells[model, t, share, key] for t in tables])
            for share in SHARES
            for key in keys
        ]
        shown = "".join(
            f"{e:12.2f}{loss:10.3f}{c:8.2f}"
            for e, loss, c in zip(means[::3], means[1::3], means[2::3], strict=True)
        )
        seconds = np.median([float(r["fit_seconds"]) for r in records if r["model"] == model])
        print(f"{model:26}{rank:6.2f}{shown}{seconds:10.2f}")
    print(f"\nerror with 0 / 30 % missing: {' | '.join(models)}")
    for table in tables:
        pairs = ((cells[m, table, 0.0, "error"], cells[m, table, 0.3, "error"]) for m in models)
        print(f"{table:26}" + " ".join(f"{a:6.2f} /{b:6.2f}" for a, b in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ours", type=json.loads, default={}, help="parameters as JSON")
    parser.add_argument("--models", nargs="*", default=[""], help="parts of the names to keep")
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--output", type=Path, default=Path("defaults.csv"))
    options = parser.parse_args()
    work = jobs(options.tables, options.ours, options.models, options.splits)
    records = []
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for part in Parallel(options.jobs, return_as="generator_unordered")(work):
            writer.writerows(part)
            file.flush()
            records += part
    summarize(records)


if __name__ == "__main__":
    main()
