"""Pictures of classifiers in the plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mixtura.data.given import Classifier, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Height = Callable[[np.ndarray], np.ndarray]


def scatter(panel: Axes, X: np.ndarray, y: np.ndarray) -> None:
    """Rows in the colors of their classes."""
    panel.scatter(X[:, 0], X[:, 1], c=y, s=6, cmap="coolwarm", alpha=0.6, linewidths=0)


def draw_boundary(panel: Axes, X: np.ndarray, model: Classifier, color: str) -> None:
    """Where two classes are equally probable, over the region of the rows X."""
    contour(panel, X, lambda x: model.predict_proba(x)[:, 1], colors=color)


def contour(panel: Axes, X: np.ndarray, height: Height, **style: Setting) -> None:
    """Where a function of rows passes one half, over the region of the rows X."""
    low, high = X.min(0), X.max(0)
    across, up = np.linspace(low, high, 150).T
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    panel.contour(across, up, height(grid).reshape(150, 150), levels=[0.5], **style)
