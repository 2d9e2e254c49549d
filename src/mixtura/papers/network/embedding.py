"""Mixture networks, Figure 7: classes before and after the embedding.

Caetano (2018), section 4.3: t-SNE of Iris, Wine and Leukemia as they are (in units of their
deviation) and as the mixtures embed them. As a number, the error of the nearest neighbor among
all other rows in both spaces; the paper has the picture alone. The rows are those of the training.

Parts are named by the set.
"""

from __future__ import annotations

import numpy as np
from sklearn.manifold import TSNE
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from mixtura import MixtureNetworkClassifier
from mixtura.data.given import Parameters
from mixtura.papers.report import Report
from mixtura.papers.tables import fit, load

_LOG_DENSITY: Parameters = {"n_components": 2, "embedding": "log_density", "calibrate": False}
SETTINGS: dict[str, Parameters] = {
    "iris": _LOG_DENSITY,
    "wine": _LOG_DENSITY,
    "leukemia": {**_LOG_DENSITY, "density": "diag"},
}


def run(report: Report) -> None:
    """A row and two panels for each set."""
    names = ("iris", "wine") if report.quick else tuple(SETTINGS)
    wanted = [name for name in names if report.wants(name)]
    with report.figure(figsize=(8, 3.5 * max(1, len(wanted)))) as figure:
        panels = figure.subplots(max(1, len(wanted)), 2, squeeze=False)
        for line, name in zip(panels, wanted, strict=False):
            _show(report, name, line)


def _show(report: Report, name: str, panels: np.ndarray) -> None:
    rows = load(name)
    model = MixtureNetworkClassifier(
        **SETTINGS[name], device=report.device, random_state=report.seed
    )
    fit(model, rows.data, rows.target)
    spaces = {
        "original": StandardScaler().fit_transform(rows.data),
        "embedded": model.transform(rows.data),
    }
    errors = {space: nearest_error(X, rows.target) for space, X in spaces.items()}
    report.row(
        "nearest neighbor",
        data=name,
        **errors,
        features=rows.data.shape[1],
        components=sum(model.n_components_),
    )
    for panel, (space, X) in zip(panels, spaces.items(), strict=True):
        flat = TSNE(random_state=report.seed, perplexity=min(30.0, len(X) / 4)).fit_transform(X)
        panel.scatter(*flat.T, c=rows.target, s=10, cmap="viridis")
        panel.set_title(f"{name}, {space}: {errors[space]:.1f} %")
        panel.set_xticks([])
        panel.set_yticks([])


def nearest_error(X: np.ndarray, y: np.ndarray) -> float:
    """Percent of rows whose nearest neighbor is of another class."""
    correct = cross_val_score(KNeighborsClassifier(1), X, y, cv=LeaveOneOut())
    return 100 * (1 - float(correct.mean()))
