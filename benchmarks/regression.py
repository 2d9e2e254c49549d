"""What `MixtureRegressor` is worth: R2, CRPS and coverage, whole and with entries missing.

    MIXTURA_DATA=... python benchmarks/regression.py [--targets diabetes ...] [--jobs 10]
    MIXTURA_DATA=... python benchmarks/regression.py --several [--jobs 6]
    MIXTURA_DATA=... python benchmarks/regression.py --cover 3 [--targets wine ...]

One line of JSON per target, fold and model; then the tables of docs/results/answers.md. Features
of the test rows go missing at random; all models are trained on whole rows, but for those that say
"holes", which see a copy of each row with as many entries missing beside it. `--several` predicts
three columns at once, of tables with holes in features and targets, and shows how intervals cover.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from joblib import Parallel, delayed
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.metrics import mean_pinball_loss, r2_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import Bunch

from mixtura import MixtureRegressor
from mixtura.datasets import load_dataset

SHARES = (0.0, 0.3)
COVERAGE = 0.9
#: Quantiles that the continuous ranked probability score is computed from.
LEVELS = np.arange(0.05, 1.0, 0.1)
RIDGES = 10.0 ** np.arange(-3, 4)
#: Rules were chosen on these, and on others that are not shown.
CHOSEN_ON = ("friedman1", "friedman2", "pima", "abalone-like")
Rows = tuple[np.ndarray, np.ndarray]


def column(table: str, name: str) -> Rows:
    """A column of an open table from the others."""
    rows = load_dataset(table)
    data, place = np.asarray(rows.data, dtype=float), list(rows.feature_names).index(name)
    known = ~np.isnan(data[:, place])
    return np.delete(data[known], place, axis=1), data[known, place]


def concrete() -> Rows:
    """Strength of concrete by mixture and age: ingredients that are often zero, and products."""
    rng, n = np.random.default_rng(7), 600
    cement, age = rng.uniform(100, 540, n), rng.choice([3, 7, 14, 28, 56, 90, 180, 365], n)
    slag = rng.gamma(1, 70, n) * (rng.random(n) < 0.55)
    ash = rng.gamma(2, 50, n) * (rng.random(n) < 0.45)
    plasticizer = rng.gamma(1.5, 5, n) * (rng.random(n) < 0.6)
    water, coarse, fine = (rng.normal(*each, n) for each in ((182, 21), (973, 78), (774, 80)))
    strength = 28 * np.log((cement + 0.8 * slag + 0.5 * ash) / water) + 5 + 0.6 * plasticizer
    y = np.maximum(strength * (0.35 + 0.2 * np.log(age)), 2) * np.exp(0.1 * rng.normal(size=n))
    return np.column_stack([cement, slag, ash, water, plasticizer, coarse, fine, age]), y


def abalone() -> Rows:
    """Age of shells by sex, a category, and seven sizes and weights that nearly say the same."""
    rng, n = np.random.default_rng(8), 800

    def about(size: np.ndarray, spread: float) -> np.ndarray:
        return size * np.exp(spread * rng.normal(size=n))

    age = 3 + rng.gamma(4, 1.8, n)
    length = about(0.75 * (1 - np.exp(-0.25 * age)), 0.07)
    diameter, height = about(0.8 * length, 0.03), about(0.27 * length, 0.1)
    whole = about(9 * length * diameter * height, 0.08)
    parts = about(0.45 * whole, 0.1), about(0.22 * whole, 0.12)
    shell = about(0.28 * whole * (age / 10) ** 0.3, 0.1)
    sex = np.where(age + 2 * rng.normal(size=n) < 8, 2, rng.integers(0, 2, n))
    return np.column_stack([sex, length, diameter, height, whole, *parts, shell]), np.round(age)


TARGETS: dict[str, Callable[[], Rows]] = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "friedman1": lambda: make_friedman1(500, noise=1.0, random_state=0),
    "friedman2": lambda: make_friedman2(400, noise=60.0, random_state=0),
    "friedman3": lambda: make_friedman3(400, noise=0.15, random_state=0),
    "pima": lambda: column("pima_missing", "mass"),
    "wine": lambda: column("wine", "color_intensity"),
    "glass": lambda: column("glass", "RI"),
    "wdbc": lambda: column("wdbc", "mean fractal dimension"),
    "concrete-like": concrete,
    "abalone-like": abalone,
}


def punch(X: np.ndarray, share: float, seed: int) -> np.ndarray:
    return np.where(np.random.default_rng([seed, 1]).random(X.shape) < share, np.nan, X)


def with_holes(rows: Bunch) -> Rows:
    """Training rows beside copies with holes."""
    return np.vstack([rows.X, punch(rows.X, SHARES[1], 9)]), np.tile(rows.y, 2)


def ridge(categories: np.ndarray) -> object:
    """Indicators of categories; what is missing is imputed from all else."""
    codes = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    numbers = make_pipeline(StandardScaler(), IterativeImputer(random_state=0, max_iter=5))
    columns = make_column_transformer((numbers, ~categories), (codes, categories))
    return make_pipeline(columns, RidgeCV(RIDGES))


def trees(categories: np.ndarray, **loss: object) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(random_state=0, categorical_features=categories, **loss)


def of_mixtures(rows: Bunch) -> Callable:
    """Means, quantiles and intervals."""
    model = MixtureRegressor(categorical_features=rows.categories, random_state=0)
    model.fit(rows.X, rows.y)
    return lambda X: (
        model.predict(X),
        model.predict_quantiles(X, LEVELS),
        model.predict_interval(X, COVERAGE),
    )


def of_quantiles(rows: Bunch, holes: bool = False) -> Callable:
    """Boosted trees for each quantile; the outermost are the interval."""
    X, y = with_holes(rows) if holes else (rows.X, rows.y)
    models = [trees(rows.categories, loss="quantile", quantile=q).fit(X, y) for q in LEVELS]

    def answer(X: np.ndarray) -> tuple:
        found = np.sort([each.predict(X) for each in models], axis=0).T
        return None, found, found[:, [0, -1]]

    return answer


def of_means(make: Callable, holes: bool = False) -> Callable:
    def fitted(rows: Bunch) -> Callable:
        model = make(rows.categories).fit(*(with_holes(rows) if holes else (rows.X, rows.y)))
        return lambda X: (model.predict(X), None, None)

    return fitted


MODELS: dict[str, Callable[[Bunch], Callable]] = {
    "MixtureRegressor": of_mixtures,
    "ridge": of_means(ridge),
    "ridge, holes": of_means(ridge, holes=True),
    "HistGradientBoosting": of_means(trees),
    "HistGradientBoosting, holes": of_means(trees, holes=True),
    "quantile boosting": of_quantiles,
}


def scores(y: np.ndarray, mean: object, quantiles: object, interval: object) -> dict[str, float]:
    """R2, CRPS in deviations of the target, coverage and width of the intervals."""
    found = {} if mean is None else {"r2": r2_score(y, mean)}
    if quantiles is not None:
        losses = [
            mean_pinball_loss(y, q, alpha=a) for q, a in zip(quantiles.T, LEVELS, strict=True)
        ]
        lower, upper = interval.T
        found["crps"] = 2.0 * np.mean(losses) / y.std()
        found["covers"] = np.mean((y >= lower) & (y <= upper))
        found["width"] = np.median(upper - lower) / y.std()
    return found


def lines(name: str, n_folds: int) -> Iterator[dict]:
    """What each model scores on each fold."""
    warnings.simplefilter("ignore")
    X, y = TARGETS[name]()
    categories = np.arange(X.shape[1]) < (name == "abalone-like")
    for fold, (train, test) in enumerate(KFold(n_folds, shuffle=True, random_state=0).split(X)):
        rows = Bunch(X=X[train], y=y[train], categories=categories)
        for model, make in MODELS.items():
            began = time.process_time()
            answer = make(rows)
            line = {"target": name, "fold": fold, "model": model}
            line["seconds"] = time.process_time() - began
            for share in SHARES:
                found = scores(y[test], *answer(punch(X[test], share, fold)))
                line |= {f"{key} {share:.0%}": float(value) for key, value in found.items()}
            print(json.dumps(line), flush=True)
            yield line


def table(found: list[dict], keys: list[str], models: list[str]) -> None:
    """Means and deviations over folds, a row per target, in Markdown; and the means of these."""
    names = [f"{model}, {key}" for key in keys for model in models]
    print("\n| target | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names)))
    means = {}
    for target in dict.fromkeys(line["target"] for line in found):
        mine = [line for line in found if line["target"] == target]
        each = [
            [line[key] for line in mine if line["model"] == model]
            for key in keys
            for model in models
        ]
        star, means[target] = "*" if target in CHOSEN_ON else "", np.mean(each, axis=1)
        cells = (f"{np.mean(values):.3f} ± {np.std(values):.3f}" for values in each)
        print(f"| {target}{star} | " + " | ".join(cells) + " |")
    unstarred = {target: own for target, own in means.items() if target not in CHOSEN_ON}
    for name, some in (("mean of targets", means), ("mean without *", unstarred)):
        if some:
            own = np.mean(list(some.values()), axis=0)
            print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in own) + " |")


#: Tables three columns of which are predicted from the others.
SEVERAL = {
    "wine": ("alcohol", "color_intensity", "proline"),
    "glass": ("RI", "Na", "Ca"),
    "wdbc": ("mean radius", "mean smoothness", "mean fractal dimension"),
    "pima_missing": ("glucose", "mass", "age"),
    "breast_cancer_wisconsin": (0, 3, 8),
    "peterson_barney": (1, 2, 3),
}


def of_several(table: str, n_folds: int) -> list[str]:
    """A line per target: coverage of its intervals, whole and with holes, and R2."""
    warnings.simplefilter("ignore")
    rows, found = load_dataset(table), []
    data, names = np.asarray(rows.data, dtype=float), list(rows.feature_names)
    data = data[np.random.default_rng(0).permutation(len(data))[:1_000]]
    place = [each if isinstance(each, int) else names.index(each) for each in SEVERAL[table]]
    X, y = np.delete(data, place, axis=1), data[:, place]
    for fold, (train, test) in enumerate(KFold(n_folds, shuffle=True, random_state=0).split(X)):
        model = MixtureRegressor(random_state=0)
        model.fit(punch(X[train], 0.3, fold + 50), punch(y[train], 0.3, fold + 90))
        for share in SHARES:
            holes = punch(X[test], share, fold)
            lower, upper = model.predict_interval(holes, COVERAGE).transpose(2, 0, 1)
            inside = np.where(np.isnan(y[test]), np.nan, (lower <= y[test]) & (y[test] <= upper))
            width = np.median(upper - lower, axis=0) / np.nanstd(y, axis=0)
            found.append([np.nanmean(inside, axis=0), width])
    cells = np.moveaxis(np.reshape(found, (n_folds, len(SHARES) * 2, 3)), 2, 0)
    return [
        f"| {table} | {names[at]} | "
        + " | ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(own.mean(0), own.std(0), strict=True))
        + " |"
        for at, own in zip(place, cells, strict=True)
    ]


def covered(name: str, n_folds: int, n_seeds: int) -> str:
    """A line: coverage over several divisions into folds, and three draws of holes for each."""
    warnings.simplefilter("ignore")
    (X, y), found = TARGETS[name](), []
    for seed in range(n_seeds):
        folds = KFold(n_folds, shuffle=True, random_state=seed).split(X)
        for fold, (train, test) in enumerate(folds):
            model = MixtureRegressor(random_state=seed).fit(X[train], y[train])
            for share in np.repeat(SHARES, (1, 3)):
                draw = len(found) % 4 - 1 if share else 0
                holes = punch(X[test], share, 1_000 * seed + 10 * fold + draw)
                lower, upper = model.predict_interval(holes, COVERAGE).T
                found.append(np.mean((lower <= y[test]) & (y[test] <= upper)))
    each = np.reshape(found, (n_seeds, n_folds, 4)).mean(1)
    cells = each[:, 0], each[:, 1:].mean(1)
    return f"| {name} | " + " | ".join(f"{np.mean(c):.3f} ± {np.std(c):.3f}" for c in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes, one per target")
    parser.add_argument("--several", action="store_true", help="three targets at once")
    parser.add_argument("--cover", type=int, metavar="SEEDS", help="coverage alone, more often")
    options = parser.parse_args()
    if options.cover:
        print("| target | covers 0% | covers 30% |\n|---|---|---|")
        for name in options.targets:
            print(covered(name, options.folds, options.cover), flush=True)
        return
    if options.several:
        heads = [f"{share:.0%}: {what}" for share in SHARES for what in ("covers", "width")]
        print("| table | target | " + " | ".join(heads) + " |\n|" + "---|" * (2 + len(heads)))
        each = Parallel(options.jobs)(
            delayed(of_several)(table, options.folds) for table in SEVERAL
        )
        print("\n".join(line for lines in each for line in lines))
        return
    each = Parallel(options.jobs)(
        delayed(lambda name: list(lines(name, options.folds)))(name) for name in options.targets
    )
    found = [line for lines in each for line in lines]
    means = [model for model in MODELS if model != "quantile boosting"]
    spread = ["MixtureRegressor", "quantile boosting"]
    table(found, ["r2 0%"], means)
    table(found, ["r2 30%"], means)
    table(found, ["crps 0%", "crps 30%"], spread)
    table(found, ["covers 0%", "covers 30%", "width 0%", "width 30%"], spread)
    table(found, ["seconds"], list(MODELS))


if __name__ == "__main__":
    main()
