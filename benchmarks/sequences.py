"""Classifiers of sequences: complete, with frames lost, with channels failed at prediction.

    MIXTURA_DATA=... python -m benchmarks.sequences run FILE [--workers 2] [--models ours ...]
    python -m benchmarks.sequences show FILE...

`run` appends one JSON line per set, seed and model, and skips those that the file has. Seed 0 is
the official split where there is one; others draw as many training sequences anew. In test
sequences 30 % of the frames are lost, or one of up to four channels fails in all of them;
"refitted" is the error of our own model when it is fitted without that channel (another one of
these with each seed). Seconds are those of the processor for one fit (set
OMP_NUM_THREADS=1). Rivals see frames interpolated along
time, and channels that failed as the mean of training; MiniRocket and QUANT, which are aeon's
(pip install aeon), also sequences of one length. Sets of `benchmarks.series_files` are
run where --sets names them.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit

from benchmarks.series import GENERATED, draw
from benchmarks.series_files import OPEN, read_open
from mixtura import SequenceMixtureClassifier
from mixtura.datasets import load_dataset, make_hmm_sequences
from mixtura.papers.sequence._methods import Interpolate, NearestWarped, take, without_frames
from mixtura.papers.sequence.table2 import SIGNS

Sequences = list[np.ndarray]
Split = tuple[Sequences, np.ndarray, Sequences, np.ndarray]
#: Files, and how many sequences to train on and to test where no split is official.
FILES = {
    "GunPoint": ("gunpoint", 50, 150),
    "ArrowHead": ("arrowhead", 36, 175),
    "Italy power": ("italy_power_demand", 67, 1029),
    "Coffee": ("coffee", 28, 28),
    "Synthetic control": ("synthetic_control", 300, 300),
    "Pickup gesture": ("pickup_gesture", 50, 50),
    "Characters (100)": ("character_trajectories_100", 80, 20),
    "Japanese Vowels": ("japanese_vowels", 270, 370),
    "Spoken digits": ("free_spoken_digits", 1000, 1000),
    "ASL words": ("asl_words", 710, 178),
    "Auslan, ten signs": ("auslan", 350, 350),
}
SETS = (*FILES, "Four hidden Markov models", *GENERATED, *OPEN)
LOST, CHANNELS, STATES = 0.3, 4, 6


def load(name: str, seed: int) -> Split:
    """Training sequences and labels, test sequences and labels."""
    if name in GENERATED:
        return draw(name, seed)
    if name in OPEN:
        split = X, y, X_test, y_test = read_open(name)
        both = X + X_test, np.append(y, y_test)
        return _drawn(*both, len(X), len(X_test), seed) if seed else split
    if name not in FILES:
        train, test = (make_hmm_sequences(n, random_state=2 * seed + n) for n in (100, 101))
        return train.data, train.target, test.data, test.target
    file, n_train, n_test = FILES[name]
    rows = load_dataset(file)
    X, y = rows.data, np.asarray(rows.target)
    if isinstance(X, np.ndarray):
        X = list(X[:, :, None])
    if name.startswith("Auslan"):
        names = list(rows.target_names)
        some = np.flatnonzero(np.isin(y, [names.index(sign) for sign in SIGNS]))
        X, y = take(X, some), y[some]
    if rows.get("splits") and (seed == 0 or file == "asl_words"):
        train, test = rows.splits[0]
    else:
        return _drawn(X, y, n_train, min(n_test, len(X) - n_train), seed)
    return take(X, train), y[train], take(X, test), y[test]


def _drawn(X: Sequences, y: np.ndarray, n_train: int, n_test: int, seed: int) -> Split:
    splitter = StratifiedShuffleSplit(1, train_size=n_train, test_size=n_test, random_state=seed)
    train, test = next(splitter.split(y, y))
    return take(X, train), y[train], take(X, test), y[test]


# -- models ----------------------------------------------------------------------------------------


class Chains:
    """One hidden Markov model of hmmlearn per class, on standardized channels."""

    def fit(self, X: Sequences, y: np.ndarray) -> Chains:
        from hmmlearn.hmm import GaussianHMM

        logging.getLogger("hmmlearn").setLevel(logging.ERROR)
        frames = np.concatenate(X)
        self.mean, self.scale = frames.mean(0), frames.std(0) + 1e-12
        self.classes, self.models = np.unique(y), []
        for label in self.classes:
            mine = [(X[at] - self.mean) / self.scale for at in np.flatnonzero(y == label)]
            lengths = [len(frames) for frames in mine]
            model = GaussianHMM(min(STATES, sum(lengths)), "diag", n_iter=100, random_state=0)
            self.models.append(model.fit(np.concatenate(mine), lengths))
        return self

    def predict(self, X: Sequences) -> np.ndarray:
        scores = [[self._score(m, (f - self.mean) / self.scale) for m in self.models] for f in X]
        return self.classes[np.argmax(scores, 1)]

    @staticmethod
    def _score(model: Any, frames: np.ndarray) -> float:
        try:
            return model.score(frames)
        except ValueError:  # a model whose training broke down
            return -np.inf


class EqualLengths:
    """A classifier of aeon for sequences of one length, the median of training."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: Sequences, y: np.ndarray) -> EqualLengths:
        self.length = max(16, int(np.median([len(frames) for frames in X])))
        self.model.fit(self._panel(X), y)
        return self

    def predict(self, X: Sequences) -> np.ndarray:
        return self.model.predict(self._panel(X))

    def _panel(self, X: Sequences) -> np.ndarray:
        wanted = (np.arange(self.length) + 0.5) / self.length
        return np.array(
            [
                [np.interp(wanted, (np.arange(len(f)) + 0.5) / len(f), channel) for channel in f.T]
                for f in X
            ]
        )


def minirocket(seed: int) -> EqualLengths:
    from aeon.classification.convolution_based import MiniRocketClassifier

    return EqualLengths(MiniRocketClassifier(random_state=seed))


def quant(seed: int) -> EqualLengths:
    from aeon.classification.interval_based import QUANTClassifier

    return EqualLengths(QUANTClassifier(random_state=seed))


MODELS: dict[str, Callable[[int], Any]] = {
    "ours": lambda seed: SequenceMixtureClassifier(random_state=seed),
    "summary": lambda seed: SequenceMixtureClassifier(representation="summary", random_state=seed),
    "hmmlearn": lambda seed: Chains(),
    "warping": lambda seed: NearestWarped(),
    "MiniRocket": minirocket,
    "QUANT": quant,
}
OURS = ("ours", "summary")


# -- runs ------------------------------------------------------------------------------------------


def run(name: str, seed: int, model: str) -> dict[str, Any]:
    """One fit, and its errors in percent under all conditions."""
    X, y, X_test, y_test = load(name, seed)
    mends = Interpolate().fit(X)

    def error(fitted: Any, given: Sequences) -> float:
        whole = given if model in OURS else mends.transform(given)
        return 100.0 * float(np.mean(fitted.predict(whole) != y_test))

    began = time.process_time()
    fitted = MODELS[model](seed).fit(X, y)
    line = {"set": name, "seed": seed, "model": model, "seconds": time.process_time() - began}
    line["complete"] = error(fitted, X_test)
    lost = without_frames(X_test, LOST, np.random.default_rng(seed))
    line["lost"] = error(fitted, lost)
    channels = _failing(X[0].shape[1])
    failed = [[np.where(_only(at, f), np.nan, f) for f in X_test] for at in channels]
    line["failed"] = [error(fitted, each) for each in failed]
    if model == "ours" and channels:
        at = seed % len(channels)
        again = _refitted(seed, X, y, X_test, y_test, channels[at])
        line["refitted"] = [line["failed"][at], again]
    return line


def _failing(n_channels: int) -> list[int]:
    """Channels that fail, evenly spaced; none where there is one."""
    count = min(CHANNELS, n_channels)
    return [] if n_channels == 1 else np.linspace(0, n_channels - 1, count).astype(int).tolist()


def _only(channel: int, frames: np.ndarray) -> np.ndarray:
    return np.arange(frames.shape[1]) == channel


def _refitted(
    seed: int, X: Sequences, y: np.ndarray, X_test: Sequences, y_test: np.ndarray, channel: int
) -> float:
    less, less_test = ([np.delete(f, channel, 1) for f in part] for part in (X, X_test))
    found = MODELS["ours"](seed).fit(less, y).predict(less_test)
    return 100.0 * float(np.mean(found != y_test))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def quietly(name: str, seed: int, model: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(name, seed, model)


def run_all(file: Path, wanted: Iterable[tuple[str, int, str]], workers: int) -> None:
    """One process per worker; each line is written once it is there."""
    done = {(line["set"], line["seed"], line["model"]) for line in read(file)}
    append(file, quietly, (each for each in wanted if each not in done), workers)


def append(
    file: Path, function: Callable[..., object], given: Iterable[tuple[Any, ...]], workers: int
) -> None:
    """Lines of a function of what is given; what fails is told, and left out."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        left = {pool.submit(function, *each): each for each in given}
        for future in as_completed(left):
            if error := future.exception():
                print(*left[future], repr(error), flush=True)
                continue
            with file.open("a") as out:
                out.write(json.dumps(future.result()) + "\n")
            print(future.result(), flush=True)


# -- tables ----------------------------------------------------------------------------------------


def show(lines: list[dict[str, Any]]) -> None:
    """Mean errors and seconds over the seeds that all models have."""
    models = [model for model in MODELS if any(line["model"] == model for line in lines)]
    for what in ("complete", "lost", "failed", "seconds"):
        print(f"\n{what}\n| | {' | '.join(models)} |\n|{'---|' * (len(models) + 1)}")
        columns = defaultdict(list)
        for name in SETS:
            cells = [_cell(lines, name, model, what) for model in models]
            if any(cell is None for cell in cells):
                continue
            print(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
            for model, cell in zip(models, cells, strict=True):
                columns[model].append(cell)
        means = [f"{np.mean(columns[model]):.1f}" for model in models]
        print(f"| mean | {' | '.join(means)} |")
    print("\nour own model with a channel failed, and refitted without it")
    for name in SETS:
        both = [x["refitted"] for x in lines if x["set"] == name and "refitted" in x]
        if both:
            print(f"| {name} | {' | '.join(f'{mean:.1f}' for mean in np.mean(both, 0))} |")


def _cell(lines: list[dict[str, Any]], name: str, model: str, what: str) -> float | None:
    mine = [x for x in lines if x["set"] == name]
    seeds = {m: {x["seed"] for x in mine if x["model"] == m} for m in {x["model"] for x in lines}}
    shared = set.intersection(*seeds.values())
    found = [
        np.mean(x[what])
        for x in mine
        if x["model"] == model and x["seed"] in shared and x[what] != []
    ]
    return float(np.mean(found)) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--sets", nargs="+", default=[n for n in SETS if n not in OPEN])
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.what == "run":
        every = ((n, s, m) for s in given.seeds for n in given.sets for m in given.models)
        run_all(given.files[0], every, given.workers)
    else:
        show([line for file in given.files for line in read(file)])


if __name__ == "__main__":
    main()
