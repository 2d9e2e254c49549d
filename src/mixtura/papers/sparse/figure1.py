"""Sparse mixtures, Figures 1 and 3: boundaries on Ripley's rows, and a training in snapshots.

Hayashi and Uchida (2021). Black is the boundary between the classes; in the pictures of the
training, thin lines are those between a component and all others, at first three per class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Bunch

from mixtura import MixtureClassifier, SparseMixtureClassifier
from mixtura.data.given import Classifier, Parameters
from mixtura.datasets import make_ripley
from mixtura.papers.pictures import contour, draw_boundary, scatter
from mixtura.papers.report import Panel, Report
from mixtura.progress import Record

#: Updates of the precisions after which the training is looked at; all of them are fewer than the
#: last.
SNAPSHOTS = (1, 4, 10, 10_000)


def run(report: Report) -> None:
    """Errors of five classifiers, their boundaries, and how the last of them came about."""
    train = make_ripley(random_state=report.seed)
    test = make_ripley(1000 if report.quick else 20_000, random_state=report.seed + 1)
    models = _models(report.seed)
    with report.figure("boundaries", figsize=(15, 3.4)) as figure:
        panels = figure.subplots(1, len(models), sharex=True, sharey=True)
        for panel, (name, model) in zip(panels, models.items(), strict=True):
            model.fit(train.data, train.target)
            error = 100 * (1 - model.score(test.data, test.target))
            report.row("errors", model=name, error=error, weights=getattr(model, "n_coef_", None))
            _draw(panel, model, train, f"{name}: {error:.1f} %")
    _snapshots(report, train)


def _models(seed: int) -> Parameters:
    """Softmax, the kernel machines, and mixtures: dense and sparse."""
    return {
        "softmax": LogisticRegression(),
        "Gaussian process": GaussianProcessClassifier(ConstantKernel(1.0) * RBF(1.0)),
        "relevance vectors": SparseMixtureClassifier(1, kernel="rbf", random_state=seed),
        "dense mixture": MixtureClassifier(
            3, density="full", objective="conditional", tradeoff=0.0, random_state=seed
        ),
        "sparse mixture": SparseMixtureClassifier(3, random_state=seed),
    }


def _draw(panel: Panel, model: Classifier, rows: Bunch, title: str) -> None:
    scatter(panel, rows.data, rows.target)
    draw_boundary(panel, rows.data, model, "black")
    panel.set_title(title)


def _snapshots(report: Report, rows: Bunch) -> None:
    with report.figure("training", figsize=(14, 3.6)) as figure:
        panels = figure.subplots(1, len(SNAPSHOTS), sharex=True, sharey=True)
        for panel, n_iter in zip(panels, SNAPSHOTS, strict=True):
            model = SparseMixtureClassifier(3, random_state=report.seed)
            model.set_callbacks(_stop_after(n_iter)).fit(rows.data, rows.target)
            report.row(
                "training",
                iterations=model.n_iter_,
                evidence=model.evidence_,
                components=sum(model.n_components_),
                weights=model.n_coef_,
            )
            _draw(panel, model, rows, f"{model.n_iter_} iterations, {model.n_coef_} weights")
            _draw_components(panel, model, rows.data)


def _stop_after(n_iter: int) -> Callable[[Record], bool]:
    """A callback that ends the first start there, and lets no other begin."""
    count = itertools.count(1)
    return lambda record: next(count) == n_iter


def _draw_components(panel: Panel, model: SparseMixtureClassifier, X: np.ndarray) -> None:
    for place, label in enumerate(np.repeat([0, 1], model.n_components_)):
        color = "tab:blue" if label == 0 else "tab:red"

        def share(x: np.ndarray, place: int = place) -> np.ndarray:
            return model.responsibilities(x)[:, place]

        contour(panel, X, share, colors=color, linewidths=0.7)
