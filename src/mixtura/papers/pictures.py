"""Curves, and classifiers in the plane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mixtura.data.given import Classifier, Setting
from mixtura.papers.report import Lines, Panel

Height = Callable[[np.ndarray], np.ndarray]


def framed(panel: Panel, x: str, y: str, title: str = "") -> None:
    """What is on the axes, a grid, and what the curves are."""
    panel.set(xlabel=x, ylabel=y, title=title)
    panel.grid(alpha=0.3)
    if panel.lines:
        panel.legend(frameon=False)


def curves(panel: Panel, rows: Lines, by: str, x: str, label: str = "{}") -> None:
    """Our figures against a column of a table, a curve for each value of another."""
    for value in dict.fromkeys(row[by] for row in rows):
        mine = [row for row in rows if row[by] == value]
        across, ours = ([row[name] for row in mine] for name in (x, "ours"))
        panel.plot(across, ours, marker="o", label=label.format(value))


def scatter(panel: Panel, X: np.ndarray, y: np.ndarray) -> None:
    """Rows in the colors of their classes."""
    panel.scatter(X[:, 0], X[:, 1], c=y, s=6, cmap="coolwarm", alpha=0.6, linewidths=0)


def draw_boundary(panel: Panel, X: np.ndarray, model: Classifier, color: str) -> None:
    """Where two classes are equally probable, over the region of the rows X."""
    contour(panel, X, lambda x: model.predict_proba(x)[:, 1], colors=color)


def contour(panel: Panel, X: np.ndarray, height: Height, **style: Setting) -> None:
    """Where a function of rows passes one half, over the region of the rows X."""
    low, high = X.min(0), X.max(0)
    across, up = np.linspace(low, high, 150).T
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    panel.contour(across, up, height(grid).reshape(150, 150), levels=[0.5], **style)
