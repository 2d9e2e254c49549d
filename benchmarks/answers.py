"""What the answers are worth: sets that cover, features bought one at a time, imputation, time.

    MIXTURA_DATA=... python benchmarks/answers.py sets [--seeds 20] [--jobs 16] [--tables iris ...]

and so for `features`, `imputers` and `explain`.

Each prints a table of docs/results/answers.md. `sets` compares with MAPIE where it is installed
(pip install mapie lightgbm), and leaves out what is not.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.model_selection import train_test_split
from sklearn.utils import Bunch

from mixtura import MixtureClassifier, MixtureImputer
from mixtura.datasets import load_dataset

SHARES = (0.0, 0.3, 0.6)
COVERAGE = 0.9
NUMBERS = ("iris", "wine", "glass", "wdbc", "pima", "breast_cancer_wisconsin", "peterson_barney")
MIXED = ("hepatitis", "mammographic", "horse_colic")
BOUGHT = (1, 2, 3, 5, 8)
DRAWS, NARROW = 50, 13
MOST_ROWS, MOST_TEST = 1_600, 150
Cells = dict[str, list[float]]


def load_table(name: str, seed: int) -> Bunch:
    """Training and test rows, sixty and forty of a hundred."""
    table = load_dataset(name)
    some = np.random.default_rng(0).permutation(len(table.target))[:MOST_ROWS]
    X = np.asarray(table.data, dtype=np.float64)[some]
    y = np.unique(table.target, return_inverse=True)[1][some]
    split = train_test_split(X, y, test_size=0.4, stratify=y, random_state=seed)
    categorical = table.get("categorical")
    if categorical is None:
        categorical = np.zeros(X.shape[1], dtype=bool)
    return Bunch(train=split[0], test=split[1], y=split[2], truth=split[3], kinds=categorical)


def punch(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    return np.where(np.random.default_rng([seed, 1]).random(X.shape) < share, np.nan, X)


def show(title: list[str], lines: Iterator[tuple[str, Cells]], spread: Callable = np.std) -> None:
    """Mean and deviation over seeds, one line of a Markdown table at a time."""
    print("| " + " | ".join(title) + " |\n|" + "---|" * len(title))
    for name, cells in lines:
        shown = [f"{np.mean(v):.3f} ± {spread(v):.3f}" if len(v) else "" for v in cells.values()]
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)


def standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=min(1, len(values) - 1)) / np.sqrt(len(values)))


# -- sets --------------------------------------------------------------------------------------


def rivals() -> dict[str, Callable[[int], object]]:
    """What MAPIE wraps."""
    try:
        import mapie  # noqa: F401
        from lightgbm import LGBMClassifier
    except ImportError:
        return {}
    return {
        "LightGBM": lambda seed: LGBMClassifier(verbose=-1, random_state=seed, n_jobs=1),
        "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    }


def by_mapie(make: Callable[[int], object], rows: Bunch, seed: int) -> Callable:
    """Split conformal sets: three tenths of the training rows, whole, are held back."""
    from mapie.classification import SplitConformalClassifier

    X, held, y, known = train_test_split(
        rows.train, rows.y, test_size=0.3, stratify=rows.y, random_state=seed
    )
    found = SplitConformalClassifier(make(seed).fit(X, y), confidence_level=COVERAGE, prefit=True)
    found.conformalize(held, known)
    return lambda rows: found.predict_set(rows)[1][..., 0]


def ways(rows: Bunch, seed: int) -> Iterator[tuple[str, Callable]]:
    """What gives sets: of rows that were held back, or, for comparison, that the model has seen."""
    model = MixtureClassifier(categorical_features=rows.kinds, random_state=seed)
    model.fit(rows.train, rows.y)
    yield "mixtura", lambda test: model.predict_set(test, COVERAGE)
    seen = partial(model.predict_set, coverage=COVERAGE, calibration=(rows.train, rows.y))
    yield "mixtura, rows it has seen", seen
    for name, make in rivals().items():
        yield f"MAPIE, {name}", by_mapie(make, rows, seed)


def covered(name: str, seed: int) -> dict[str, dict[tuple[float, str], float]]:
    """Coverage and mean size of the sets of one split, as features of the test rows go missing."""
    warnings.simplefilter("ignore")
    rows, found = load_table(name, seed), {}
    for way, predict in ways(rows, seed):
        found[way] = cells = {}
        for share in SHARES:
            shown = predict(punch(rows.test, share, seed))
            cells[share, "covers"] = shown[np.arange(len(rows.truth)), rows.truth].mean()
            cells[share, "size"] = shown.sum(1).mean()
    return found


def sets(seeds: int, tables: Sequence[str], jobs: int) -> None:
    """Coverage and mean size of sets, with standard errors over splits."""
    keys = list(product(SHARES, ("covers", "size")))

    def lines() -> Iterator[tuple[str, Cells]]:
        total: dict[str, Cells] = {}
        with Parallel(jobs) as parallel:
            for name in tables:
                found = parallel(delayed(covered)(name, seed) for seed in range(seeds))
                for way in found[0]:
                    cells = {key: [each[way][key] for each in found] for key in keys}
                    yield f"{name} | {way}", cells
                    means = total.setdefault(way, {key: [] for key in keys})
                    for key, values in cells.items():
                        means[key].append(np.mean(values))
        yield from ((f"mean of tables | {way}", cells) for way, cells in total.items())

    heads = [f"{100 * share:.0f} %: {what}" for share, what in keys]
    show(["table", "sets of", *heads], lines(), standard_error)


# -- features ----------------------------------------------------------------------------------


def orders(model: MixtureClassifier, rows: Bunch, seed: int) -> dict[str, Callable]:
    """What to buy next, given what has been bought: (n, D) numbers, the largest of which is it."""
    rng = np.random.default_rng(seed)
    by_chance = rng.random(rows.test.shape)
    some = rows.train[:100]
    importance = np.abs(model.explain(some).values).mean((0, 2))
    return {
        "information": lambda bought: model.next_feature(bought),
        "importance": lambda bought: np.broadcast_to(importance, bought.shape),
        "random": lambda bought: by_chance,
    }


def features(seeds: int, tables: Sequence[str], jobs: int) -> None:
    """Error against the number of features bought, beginning with none."""

    def lines() -> Iterator[tuple[str, Cells]]:
        total: dict[str, Cells] = {}
        for name in tables:
            cells: dict[str, Cells] = {}
            for seed in range(seeds):
                rows = load_table(name, seed)
                rows.test, rows.truth = rows.test[:MOST_TEST], rows.truth[:MOST_TEST]
                model = MixtureClassifier(categorical_features=rows.kinds, random_state=seed)
                model.fit(rows.train, rows.y)
                for order, worth in orders(model, rows, seed).items():
                    own = cells.setdefault(order, {str(count): [] for count in (*BOUGHT, "all")})
                    for count, error in enumerate(bought_errors(model, rows, worth), 1):
                        if count in BOUGHT:
                            own[str(count)].append(error)
                    own["all"].append(np.mean(model.predict(rows.test) != rows.truth))
            for order, own in cells.items():
                yield f"{name} | {order}", own
                means = total.setdefault(order, {count: [] for count in own})
                for count in (count for count in own if own[count]):
                    means[count].append(np.mean(own[count]))
        yield from ((f"mean of tables | {order}", own) for order, own in total.items())

    show(["table", "order", *(f"{count}" for count in BOUGHT), "all"], lines())


def bought_errors(model: MixtureClassifier, rows: Bunch, worth: Callable) -> Iterator[float]:
    """Error with one, two, ... features."""
    bought, each = np.full(rows.test.shape, np.nan), np.arange(len(rows.test))
    asked = np.zeros(bought.shape, dtype=bool)
    for _ in range(min(max(BOUGHT), bought.shape[1])):
        best = np.where(asked, -1.0, worth(bought)).argmax(1)
        asked[each, best] = True
        bought[each, best] = rows.test[each, best]
        yield float(np.mean(model.predict(bought) != rows.truth))


# -- imputers ----------------------------------------------------------------------------------


def imputer_of(name: str, rows: Bunch, seed: int) -> BaseEstimator:
    trees = ExtraTreesRegressor(20, random_state=seed, min_samples_leaf=3)
    return {
        "MixtureImputer": MixtureImputer(categorical_features=rows.kinds, random_state=seed),
        "IterativeImputer": IterativeImputer(random_state=seed),
        "IterativeImputer, trees": IterativeImputer(trees, max_iter=5, random_state=seed),
        "KNNImputer": KNNImputer(),
    }[name]


def draws_of(imputer: BaseEstimator, holes: Bunch, seed: int) -> np.ndarray:
    """(m, n, D) where it has draws; those of chained regressions take long on wide tables."""
    if isinstance(imputer, MixtureImputer):
        return imputer.estimator_.impute(holes.test, n_draws=DRAWS)
    chained = isinstance(imputer, IterativeImputer) and imputer.estimator is None
    if chained and holes.test.shape[1] <= NARROW:
        drawer = IterativeImputer(sample_posterior=True, random_state=seed).fit(holes.train)
        return np.stack([drawer.transform(holes.test) for _ in range(DRAWS)])
    return np.zeros((0, *holes.test.shape))


def imputers(seeds: int, tables: Sequence[str], jobs: int, share: float = 0.3) -> None:
    """Thirty in a hundred entries of training and test rows are hidden, and told again."""
    names = ("MixtureImputer", "IterativeImputer", "IterativeImputer, trees", "KNNImputer")
    heads = ["RMSE", "wrong categories", "90 % intervals cover", "seconds"]

    def lines() -> Iterator[tuple[str, Cells]]:
        total: dict[str, Cells] = {name: {head: [] for head in heads} for name in names}
        for table, name in product(tables, names):
            cells: Cells = {head: [] for head in heads}
            for seed in range(seeds):
                rows = load_table(table, seed)
                holes = Bunch(
                    train=punch(rows.train, share, seed), test=punch(rows.test, share, seed + 100)
                )
                began = time.perf_counter()
                imputer = imputer_of(name, rows, seed).fit(holes.train)
                filled = imputer.transform(holes.test)
                cells["seconds"].append(time.perf_counter() - began)
                drawn = draws_of(imputer, holes, seed)
                hidden = np.isnan(holes.test) & ~np.isnan(rows.test)
                numbers, codes = hidden & ~rows.kinds, hidden & rows.kinds
                scale = np.nanstd(rows.train, axis=0)
                off = ((filled - rows.test) / np.where(scale > 0, scale, 1.0))[numbers]
                cells["RMSE"].append(np.sqrt(np.mean(off**2)))
                if codes.any():
                    wrong = np.abs(filled - rows.test)[codes] >= 0.5
                    cells["wrong categories"].append(wrong.mean())
                if len(drawn):
                    # Weibull's quantiles: between them lies 0.9 of the next draw, of however many.
                    low, high = np.quantile(
                        drawn[:, numbers], [0.05, 0.95], axis=0, method="weibull"
                    )
                    inside = (low <= rows.test[numbers]) & (rows.test[numbers] <= high)
                    cells["90 % intervals cover"].append(inside.mean())
            yield f"{table} | {name}", cells
            for head in (head for head in heads if cells[head]):
                total[name][head].append(np.mean(cells[head]))
        yield from ((f"mean of tables | {name}", cells) for name, cells in total.items())

    show(["table", "imputer", *heads], lines())


# -- explanations ------------------------------------------------------------------------------


def explain(seeds: int, tables: Sequence[str], jobs: int) -> None:
    """Milliseconds per row: all subsets together, one prediction per subset, random orders."""
    heads = ["table", "columns", "subsets", "together", "one by one, in one call", "ratio"]
    heads.append("random orders")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name in tables:
        rows = load_table(name, 0)
        model = MixtureClassifier(random_state=0).fit(rows.train, rows.y)
        X, width = rows.test[:20], rows.test.shape[1]
        shown = [seconds(partial(model.explain, X, method="permutation"), seeds) / len(X)]
        if width <= 13:
            member = (np.arange(2**width)[:, None] >> np.arange(width)) % 2 == 1
            masked = np.where(member, X[:1], np.nan)
            together = seconds(partial(model.explain, X), seeds) / len(X)
            alone = seconds(partial(model.predict_proba, masked), seeds)
            shown = [together, alone, alone / together / 1e3, *shown]
        cells = [""] * (4 - len(shown)) + [f"{1e3 * each:.2f}" for each in shown]
        print(f"| {name} | {width} | {2**width} | " + " | ".join(cells) + " |", flush=True)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The least processor time that it takes."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["sets", "features", "imputers", "explain"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes, of `sets`")
    parser.add_argument("--tables", nargs="+", default=[*NUMBERS, *MIXED])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    globals()[given.what](given.seeds, given.tables, given.jobs)
