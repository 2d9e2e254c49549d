"""The tables of the benchmarks: open ones, scikit-learn's, and seeded draws of awkward shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.datasets import make_blobs, make_moons
from sklearn.utils import Bunch

from benchmarks.arff import FILES, read_arff
from mixtura.datasets import load_dataset

MOST_ROWS = 2_000
#: Every so many-th feature of spectra, curves and genes.
THINNED = {
    **{"jasper_ridge": 4, "phoneme_esl": 4, "gunpoint": 2, "arrowhead": 4, "coffee": 4},
    **{"colon": 20, "leukemia": 70},
}
#: Sequences of any length: their moments become the features.
SEQUENCES = ("japanese_vowels", "free_spoken_digits", "pickup_gesture")
#: Left out: images, other selections of Pima and Ljubljana, 95 signs, words and letters that are
#: seen rarely.
OPEN = (
    *("iris", "wine", "wdbc", "digits", "glass", "sonar", "pima", "pima_missing", "banana"),
    *("waveform", "titanic", "ripley_synth", "peterson_barney", "jasper_ridge", "phoneme_esl"),
    *("colon", "leukemia", "breast_cancer_wisconsin", "breast_cancer_ljubljana", "hepatitis"),
    *("horse_colic", "annealing", "mammographic", "labor", "mushroom", "adult"),
    *("synthetic_control", "italy_power_demand", "gunpoint", "arrowhead", "coffee", *SEQUENCES),
)
Drawn = tuple[np.ndarray, np.ndarray, list[int]]


def load_table(
    name: str, thinned: bool = True, entries: float = np.inf, rows: int = MOST_ROWS
) -> Bunch:
    """Rows, classes 0, 1, ..., and a mask of categorical columns; large sets: a random part.

    No more than so many rows and entries.
    """
    if name in GENERATORS:
        data, target, columns = GENERATORS[name](np.random.default_rng(0))
        categorical = np.isin(np.arange(data.shape[1]), columns)
    else:
        found = read_arff(FILES[name]) if name in FILES else load_dataset(name)
        data, target, categorical = found.data, found.target, found.categorical
    if name in SEQUENCES:
        data = np.array([np.concatenate([frames.mean(0), frames.std(0)]) for frames in data])
        categorical = np.zeros(data.shape[1], bool)
    step = THINNED.get(name, 1) if thinned else 1
    data = np.asarray(data, dtype=float)[:, ::step]
    most = int(min(rows, entries // data.shape[1]))
    some = np.random.default_rng(0).permutation(len(target))[:most]
    return Bunch(
        data=data[some],
        target=np.unique(target[some], return_inverse=True)[1],
        categorical=categorical[::step],
    )


# -- draws: rows, classes, categorical columns -------------------------------------------------


def skewed(rng: np.random.Generator) -> Drawn:
    """Sums of gamma variables, whose shapes tell three classes."""
    y = rng.integers(0, 3, 900)
    shape = rng.uniform(0.3, 2.0, (3, 8))
    return rng.gamma(shape[y]) @ rng.random((8, 8)) ** 4, y, []


def lognormal(rng: np.random.Generator) -> Drawn:
    """Exponentials of correlated Gaussian variables; four classes of unequal size."""
    y = rng.choice(4, 1000, p=(0.4, 0.3, 0.2, 0.1))
    noise = rng.normal(size=(1000, 10)) @ rng.normal(size=(10, 10)) / 3
    return np.exp(rng.normal(size=(4, 10))[y] + noise), y, []


def heavy_tailed(rng: np.random.Generator) -> Drawn:
    """Student's t with two degrees of freedom, correlated: whole rows lie far out."""
    y = rng.integers(0, 3, 900)
    noise = rng.normal(size=(900, 6)) @ rng.normal(size=(6, 6)) / 2
    return rng.normal(size=(3, 6))[y] + noise / np.sqrt(rng.chisquare(2, (900, 1)) / 2), y, []


def gross_errors(rng: np.random.Generator) -> Drawn:
    """Student's t with 1.2 degrees of freedom per entry: single values lie far out."""
    y = rng.integers(0, 2, 600)
    return 0.7 * rng.normal(size=(2, 12))[y] + rng.standard_t(1.2, (600, 12)), y, []


def zero_inflated(rng: np.random.Generator) -> Drawn:
    """Frequencies of 30 words in short texts: most are zero."""
    y = rng.integers(0, 2, 1500)
    rate = np.exp(rng.normal(-1.5, 1.0, 30) + rng.normal(0, 0.4, (2, 30)))
    counts = rng.poisson(rate[y] * rng.gamma(2.0, 1.0, (1500, 1)))
    return 100 * counts / (1 + counts.sum(1, keepdims=True)), y, []


def censored(rng: np.random.Generator) -> Drawn:
    """Concentrations with a limit of detection; two diseases, 7 % of the rows, by thresholds."""
    latent = rng.normal(size=(2000, 6)) @ (np.eye(6) + 0.4 * rng.normal(size=(6, 6)))
    high, low = latent[:, 0] + 0.3 * latent[:, 1], latent[:, 2]
    y = np.where(high > np.quantile(high, 0.96), 1, np.where(low < np.quantile(low, 0.03), 2, 0))
    values = np.exp(latent + 0.2 * rng.normal(size=latent.shape))
    limit = np.quantile(values, (0.0, 0.5, 0.0, 0.3, 0.7, 0.0), axis=0).diagonal()
    return np.maximum(values, limit), y, []


def crossed(rng: np.random.Generator) -> Drawn:
    """Categories that matter in pairs, beside thresholds and slopes that depend on them."""
    codes, x = rng.integers(0, 4, (1500, 5)), rng.normal(size=(1500, 4))
    score = np.where(codes[:, 0] == codes[:, 1], 2.0, -1.0) + 2.0 * (x[:, 1] > 0.5)
    score = score + np.array([-2.0, -1.0, 1.0, 2.0])[codes[:, 2]] * x[:, 0]
    y = score + rng.logistic(scale=0.5, size=1500) > 0.3
    return np.hstack([codes, x]), y, [0, 1, 2, 3, 4]


def mixed_skewed(rng: np.random.Generator) -> Drawn:
    """Three classes with category chances of their own; the numbers' scale is a category's."""
    y = rng.integers(0, 3, 800)
    chance = rng.dirichlet(np.full(5, 2.0), (3, 4)).cumsum(2)
    codes = (rng.random((800, 4, 1)) > chance[y][..., :-1]).sum(2)
    numbers = rng.gamma(rng.uniform(0.5, 2.0, (3, 4))[y]) * np.exp(0.5 * codes[:, :1])
    return np.hstack([codes, numbers]), y, [0, 1, 2, 3]


def moons(rng: np.random.Generator) -> Drawn:
    """Two half circles."""
    return *make_moons(1000, noise=0.15, random_state=0), []


def blobs(rng: np.random.Generator) -> Drawn:
    """Five round classes in ten dimensions."""
    return *make_blobs(1000, n_features=10, centers=5, cluster_std=3.0, random_state=0), []


GENERATORS: dict[str, Callable[[np.random.Generator], Drawn]] = {
    make.__name__: make
    for make in (
        *(skewed, lognormal, heavy_tailed, gross_errors, zero_inflated, censored, crossed),
        *(mixed_skewed, moons, blobs),
    )
}
TABLES = (*OPEN, *GENERATORS)
