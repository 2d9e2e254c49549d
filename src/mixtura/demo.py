"""The demonstration: digits with missing pixels, ours beside what people use, and a report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mixtura.data.given import Classifier, Parameters
from mixtura.densities import Auto
from mixtura.estimators import MixtureClassifier
from mixtura.objectives import Margin
from mixtura.papers.pictures import framed
from mixtura.papers.report import writable_folder
from mixtura.solvers import LBFGS

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
HYBRID = "mixtura, hybrid margin"


def contestants(seed: int) -> dict[str, Classifier]:
    """The classifiers, ours first."""
    density = Auto(floor=0.05, rank=16)
    ours: Parameters = {"n_components": 1, "density": density, "random_state": seed}
    trained = {**ours, "solver": LBFGS(30)}
    margin = {**trained, "objective": Margin(50.0)}
    return {
        "mixtura, likelihood": MixtureClassifier(objective="likelihood", **ours),
        "mixtura, conditional": MixtureClassifier(objective="conditional", tradeoff=0.0, **trained),
        "mixtura, margin": MixtureClassifier(tradeoff=0.0, **margin),
        HYBRID: MixtureClassifier(tradeoff=0.98, **margin),
        "logistic regression, mean imputation": make_pipeline(
            SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=1000)
        ),
        "gradient boosting, native NaN": HistGradientBoostingClassifier(random_state=seed),
    }


def compare(seed: int) -> Iterator[tuple[str, Classifier, list[float], float]]:
    """Name, fitted model, test errors by share of missing pixels, and seconds to fit."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.4, stratify=y, random_state=seed
    )
    draw = np.random.default_rng(seed).random(X_test.shape)
    for name, model in contestants(seed).items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some pixels are black in every image for training
            model.fit(X_train, y_train)
            spent = time.perf_counter() - began
            errors = [
                float(np.mean(model.predict(np.where(draw < share, np.nan, X_test)) != y_test))
                for share in SHARES
            ]
        yield name, model, errors, spent


def run(folder: Path, seed: int = 0) -> None:
    """Run the comparison, print the table, and save the pictures."""
    folder = writable_folder(folder)
    print("1,797 handwritten digits, 8 x 8 pixels. Training images are complete; in test images a")
    print("share of the pixels is missing. Test error in %:\n")
    print(f"{'missing pixels':<38}" + "".join(f"{share:>7.0%}" for share in SHARES) + "    fit")
    curves, ours = {}, {}
    for name, model, errors, spent in compare(seed):
        curves[name] = errors
        if isinstance(model, MixtureClassifier):
            ours[name] = model
        cells = "".join(f"{100 * error:7.1f}" for error in errors)
        print(f"{name:<38}{cells}  {spent:4.1f} s", flush=True)
    pictures = [
        _plot_curves(curves, folder / "missing-pixels.png"),
        _plot_samples(ours[HYBRID], folder / "digits-drawn-from-the-model.png", seed),
    ]
    print("\nMixtures integrate missing pixels out; nothing is imputed and nothing is retrained.")
    print("And the classifier is still a density: it draws digits. Pictures:")
    for picture in pictures:
        print(f"  {picture}")
    print("\n442 patients, nine numbers and a category, of which one entry in ten is missing: does")
    print("diabetes progress faster than in half of them?", flush=True)
    error, path = _report(patients_model(seed), folder / "report.html", seed)
    print(f"Test error {error:.1%}. All about that model, on one page:\n  {path}")


def patients_model(seed: int) -> MixtureClassifier:
    """What the report is about."""
    return MixtureClassifier(random_state=seed)


def _report(model: MixtureClassifier, path: Path, seed: int) -> tuple[float, Path]:
    """Test error of the model on a real table of mixed columns, and a report on it."""
    table = load_diabetes(as_frame=True, scaled=False)
    rows = table.data.assign(sex=table.data["sex"].map({1.0: "1", 2.0: "2"}))
    rows = rows.mask(np.random.default_rng(seed).random(rows.shape) < 0.1)
    y = np.where(table.target > table.target.median(), "faster", "slower")
    X_train, X_test, y_train, y_test = train_test_split(
        rows, y, test_size=0.4, stratify=y, random_state=seed
    )
    model.fit(X_train, y_train).report(path, X_test, y_test, max_time=20.0)
    return 1.0 - model.score(X_test, y_test), path


def _plot_curves(curves: dict[str, list[float]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, errors in curves.items():
        style = "-" if name.startswith("mixtura") else "--"
        axes.plot(
            [100 * s for s in SHARES], [100 * e for e in errors], style, marker="o", label=name
        )
    title = "Digits: error against missing pixels"
    framed(axes, "pixels missing at prediction (%)", "test error (%)", title)
    figure.savefig(path, dpi=130)
    return path


def _plot_samples(model: MixtureClassifier, path: Path, seed: int) -> Path:
    from matplotlib.figure import Figure

    columns = 12
    figure = Figure(figsize=(columns * 0.6, 6.2), layout="constrained")
    grid = figure.subplots(10, columns)
    for digit, row in enumerate(grid):
        images, _ = model.sample(columns, y=digit, random_state=seed + digit)
        for axes, image in zip(row, images, strict=True):
            axes.imshow(image.reshape(8, 8).clip(0, 16), cmap="gray_r", vmin=0, vmax=16)
            axes.set_axis_off()
    figure.suptitle("Digits drawn from the hybrid model, one class per row")
    figure.savefig(path, dpi=110)
    return path
