"""Sequences of which few are labeled, or of which there are few; and methods beside each other.

    MIXTURA_DATA=... python -m benchmarks.few_sequences run FILE --what unlabeled [--workers 2]
    python -m benchmarks.few_sequences show FILE...

`run` appends one JSON line per fit, with its error in percent, log-loss and seconds of the
processor, and skips those that the file has. Sets are those of `benchmarks.sequences`, with at most
400 training and 300 test sequences. "unlabeled": five labels per class, or a tenth of them (two at
least), with and without the other sequences. "sharing": 2, 5 or 10 sequences per class and
`Chain(sharing=...)`, of hidden Markov models alone and of the default. "methods": what "auto" may
choose, and what it does, "boosting": settings of `Boosted`; at most 100 training sequences.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from benchmarks.sequences import append, load, read
from mixtura import SequenceMixtureClassifier
from mixtura.densities import Chain
from mixtura.solvers import Boosted

SETS = (
    *("GunPoint", "Italy power", "Synthetic control", "Japanese Vowels", "ECG", "PenDigits"),
    *("Transients", "ArrowHead", "Spoken digits", "Auslan, ten signs", "OSULeaf"),
    *("Characters (100)", "Four hidden Markov models", "Pickup gesture"),
)
BOOSTED = ("Spoken digits", "Japanese Vowels", "Synthetic control", "Auslan, ten signs")
TRAIN, COMPARED, TEST = 400, 100, 300
LABELS: dict[str, Callable[[int], int]] = {
    "5 per class": lambda n: 5,
    "10 %": lambda n: max(2, round(0.1 * n)),
    **{f"{count} sequences": lambda n, count=count: count for count in (2, 5, 10)},  # type: ignore[misc]
    "all": lambda n: n,
}
Model = partial[SequenceMixtureClassifier]
_model = partial(partial, SequenceMixtureClassifier)
_ml = partial(_model, method="ml", calibrate=False)
MODELS: dict[str, dict[str, Model]] = {
    "unlabeled": {"without": _model(), "with": _model(unlabeled=-1)},
    "sharing": {
        "own": _ml(6),
        "adapted": _ml(6, chain=Chain(sharing="adapted")),
        "tied": _ml(6, chain=Chain(sharing="tied")),
        "tied, 24 states": _ml(24, chain=Chain(sharing="tied")),
        "default": _model(),
        "default, adapted": _model(chain=Chain(sharing="adapted")),
    },
    "methods": {
        "auto": _model(),
        "both": _model(representation="both"),
        "summary": _model(representation="summary"),
        "states": _model(method="ml"),
        "states, auto": _model(representation="states"),
        "boosted": _model(method="boosted"),
        "conditional": _model(method="conditional"),
    },
    "boosting": {
        "as it is": _model(6, method=Boosted(n_stages=4)),
        "strongest rival": _model(6, method=Boosted(n_stages=4, rivals="strongest")),
        "trained together": _model(6, method=Boosted(n_stages=4, together=True)),
        "both": _model(6, method=Boosted(n_stages=4, rivals="strongest", together=True)),
    },
}
KNOWN = {"unlabeled": ("5 per class", "10 %"), "sharing": [k for k in LABELS if "seq" in k]}


def cells(what: list[str], seeds: list[int]) -> Iterator[tuple[str, str, str, str, int]]:
    """All that there is to be fitted."""
    for seed in seeds:
        for one in what:
            for name in BOOSTED if one == "boosting" else SETS:
                for known in KNOWN.get(one, ("all",)):
                    for model in MODELS[one]:
                        yield one, name, known, model, seed


def fit(what: str, name: str, known: str, model: str, seed: int) -> dict[str, Any]:
    """One fit."""
    warnings.simplefilter("ignore")
    X, y, X_test, y_test = load(name, seed)
    rng, most = np.random.default_rng(100 + seed), TRAIN if what in KNOWN else COMPARED
    some, tested = (rng.permutation(len(v))[:m] for v, m in ((X, most), (X_test, TEST)))
    classes, code = np.unique(y[some], return_inverse=True)
    labeled = np.zeros(len(some), dtype=bool)
    for label in range(len(classes)):
        mine = rng.permutation(np.flatnonzero(code == label))
        labeled[mine[: LABELS[known](len(mine))]] = True
    if model == "with":
        code = np.where(labeled, code, -1)
    else:
        some, code = some[labeled], code[labeled]
    began = time.process_time()
    fitted = MODELS[what][model](random_state=seed).fit([X[at] for at in some], code)
    seconds = time.process_time() - began
    chance = fitted.predict_proba([X_test[at] for at in tested])
    right = np.searchsorted(classes, y_test[tested])
    line = {"what": what, "set": name, "known": known, "model": model, "seed": seed}
    line |= {"error": 100.0 * float(np.mean(chance.argmax(1) != right)), "seconds": seconds}
    loss = log_loss(right, chance.clip(1e-9), labels=range(len(classes)))
    return line | {"loss": float(loss), "n": len(code)}


def run_all(file: Path, what: list[str], seeds: list[int], workers: int) -> None:
    """One process per worker; each line is written once it is there."""
    names = "what", "set", "known", "model", "seed"
    done = {tuple(line[name] for name in names) for line in read(file)}
    append(file, fit, (each for each in cells(what, seeds) if each not in done), workers)


def show(lines: list[dict[str, Any]]) -> None:
    """Means over the seeds, of error and log-loss, by set; and of all sets."""
    for what, models in MODELS.items():
        for known in KNOWN.get(what, ("all",)):
            found = defaultdict(list)
            for line in lines:
                if (line["what"], line["known"]) == (what, known):
                    own = line["error"], line["loss"], line["seconds"]
                    found[line["set"], line["model"]].append(own)
            means = {key: np.mean(value, 0) for key, value in found.items()}
            sets = [name for name in SETS if all((name, model) in means for model in models)]
            print(f"\n{what}, {known}\n| | {' | '.join(models)} |\n|{'---|' * (len(models) + 1)}")
            rows = {name: [means[name, model] for model in models] for name in sets}
            if rows:
                rows["mean"] = np.mean([*rows.values()], 0)
            for name, row in rows.items():
                print(
                    f"| {name} | {' | '.join(f'{e:.1f}, {b:.3f}, {s:.1f} s' for e, b, s in row)} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["run", "show"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--what", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.action == "run":
        run_all(given.files[0], given.what, given.seeds, given.workers)
    else:
        show([line for file in given.files for line in read(file)])


if __name__ == "__main__":
    main()
