"""The figures of docs/coming.md: the same small jobs by mixtura and by other libraries.

    python -m benchmarks.coming [gaussian_mixture] [pomegranate] [hmmlearn] [lightgbm]

Needs `pip install hmmlearn lightgbm pomegranate`. Mean and deviation over five
splits; seconds of fits are medians.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from mixtura import MixtureClassifier, MixtureDensity, SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences

SEEDS = range(5)
Measured = Iterator[tuple[str, dict[str, float]]]


def holed(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    """X with a share of its entries missing at random."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def tumors(seed: int) -> list[np.ndarray]:
    """Halves of breast cancer in units of deviations: rows and labels to train and to test."""
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=seed)
    scaler = StandardScaler().fit(X_train)
    return [scaler.transform(X_train), scaler.transform(X_test), y_train, y_test]


def timed(fit: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    fit()
    return time.perf_counter() - began


def gaussian_mixture(seed: int) -> Measured:
    """A density of ten columns, whole and from rows of which 30 % is missing."""
    X_train, X_test, _, _ = (each[..., :10] for each in tumors(seed))
    rows = holed(X_train, 0.3, seed)
    peer = GaussianMixture(3, random_state=seed)
    seconds = timed(lambda: peer.fit(X_train))
    filled = GaussianMixture(3, random_state=seed).fit(SimpleImputer().fit_transform(rows))
    yield (
        "GaussianMixture(3)",
        {
            "log density per test row": peer.score(X_test),
            "trained with 30 % missing": filled.score(X_test),
            "seconds": seconds,
        },
    )
    ours = MixtureDensity(3, density="full", random_state=seed)
    seconds = timed(lambda: ours.fit(X_train))
    again = MixtureDensity(3, density="full", random_state=seed).fit(rows)
    yield (
        'MixtureDensity(3, density="full")',
        {
            "log density per test row": ours.score(X_test),
            "trained with 30 % missing": again.score(X_test),
            "seconds": seconds,
        },
    )


def _errors(predict: Callable[[np.ndarray], np.ndarray], X: np.ndarray, y: np.ndarray, seed: int):
    """Errors in % at 0, 30 and 60 % of the entries missing."""
    shares = (0.0, 0.3, 0.6)
    return {
        f"error, {share:.0%} missing": 100.0 * np.mean(predict(holed(X, share, seed)) != y)
        for share in shares
    }


def pomegranate(seed: int) -> Measured:
    """A Gaussian per class with variances alone; entries are missing at prediction."""
    import torch
    from pomegranate.bayes_classifier import BayesClassifier
    from pomegranate.distributions import Normal

    def masked(rows: np.ndarray) -> torch.masked.MaskedTensor:
        values = torch.as_tensor(np.nan_to_num(rows), dtype=torch.float32)
        return torch.masked.MaskedTensor(values, mask=torch.as_tensor(~np.isnan(rows)))

    X_train, X_test, y_train, y_test = tumors(seed)
    peer = BayesClassifier([Normal(covariance_type="diag") for _ in range(2)])
    rows = torch.as_tensor(X_train, dtype=torch.float32)
    seconds = timed(lambda: peer.fit(rows, torch.as_tensor(y_train)))
    found = _errors(lambda rows: peer.predict(masked(rows)).numpy(), X_test, y_test, seed)
    yield "BayesClassifier of Normal", {**found, "seconds": seconds}
    settings = {"density": "diag", "objective": "likelihood", "random_state": seed}
    for name, ours in (
        ('MixtureClassifier(1, density="diag", objective="likelihood")', {"n_components": 1}),
        ("MixtureClassifier()", {"density": "auto", "objective": "margin"}),
    ):
        model = MixtureClassifier(**{**settings, **ours})
        seconds = timed(lambda model=model: model.fit(X_train, y_train))
        yield name, {**_errors(model.predict, X_test, y_test, seed), "seconds": seconds}


def lightgbm(seed: int) -> Measured:
    """Boosted trees; entries are missing at prediction."""
    from lightgbm import LGBMClassifier

    X_train, X_test, y_train, y_test = tumors(seed)
    for name, model in (
        ("LGBMClassifier()", LGBMClassifier(verbose=-1, random_state=seed)),
        ("MixtureClassifier()", MixtureClassifier(random_state=seed)),
    ):
        seconds = timed(lambda model=model: model.fit(X_train, y_train))
        loss = log_loss(y_test, model.predict_proba(holed(X_test, 0.3, seed)))
        found = _errors(model.predict, X_test, y_test, seed)
        yield name, {**found, "log-loss, 30% missing": loss, "seconds": seconds}


def hmmlearn(seed: int) -> Measured:
    """One hidden Markov model per class; frames are lost at prediction."""
    from hmmlearn.hmm import GaussianHMM

    train, test = (make_hmm_sequences(25, random_state=10 * seed + part) for part in (0, 1))
    rng = np.random.default_rng(seed)
    lost = [rng.random(len(each)) < 0.3 for each in test.data]
    kept = [each[~gone] for each, gone in zip(test.data, lost, strict=True)]
    missing = [np.where(g[:, None], np.nan, s) for s, g in zip(test.data, lost, strict=True)]
    peers = []

    def fit() -> None:
        for label in np.unique(train.target):
            own = [s for s, t in zip(train.data, train.target, strict=True) if t == label]
            peer = GaussianHMM(3, covariance_type="full", n_iter=100, random_state=seed)
            peers.append(peer.fit(np.concatenate(own), [len(each) for each in own]))

    seconds = timed(fit)

    def error(sequences: list[np.ndarray]) -> float:
        scores = np.array([[peer.score(each) for peer in peers] for each in sequences])
        return 100.0 * np.mean(scores.argmax(1) != test.target)

    whole, left = error(test.data), error(kept)
    yield (
        "GaussianHMM per class",
        {"error": whole, "error, 30 % of frames lost": left, "seconds": seconds},
    )
    settings = {"density": "full", "calibrate": False, "random_state": seed}
    model = SequenceMixtureClassifier(3, method="ml", **settings)
    seconds = timed(lambda: model.fit(train.data, train.target))
    whole, left = (100.0 * (1.0 - model.score(rows, test.target)) for rows in (test.data, missing))
    yield (
        'SequenceMixtureClassifier(3, method="ml")',
        {"error": whole, "error, 30 % of frames lost": left, "seconds": seconds},
    )


JOBS = {job.__name__: job for job in (gaussian_mixture, pomegranate, hmmlearn, lightgbm)}


def cell(name: str, values: list[float]) -> str:
    """The mean and the deviation, or of seconds the median."""
    if name == "seconds":
        return f"{np.median(values):.2g}"
    return f"{np.mean(values):.3g} ± {np.std(values, ddof=1):.2g}"


def main(names: list[str]) -> None:
    """Print a table per job."""
    warnings.simplefilter("ignore")
    for name in names or JOBS:
        found: dict[str, list[dict[str, float]]] = {}
        for seed in SEEDS:
            for who, measured in JOBS[name](seed):
                found.setdefault(who, []).append(measured)
        columns = list(next(iter(found.values()))[0])
        print(
            f"\n{name}\n\n| | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|"
        )
        for who, runs in found.items():
            cells = [cell(column, [run[column] for run in runs]) for column in columns]
            print(f"| `{who}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
