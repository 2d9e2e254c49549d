"""Mixture networks, Figures 2 to 5: what the link from the read-out to the mixtures does.

Caetano (2018), section 4.1. Iris in its first two dimensions: without a link the mixtures of the
three classes are the same, under a very strong one the weights of components are those of the
read-out. Then two classes over three Gaussians, of which the lower one lies across the boundary:
its component tells nothing, and with a link it has to go, so that the others reach its rows. The
paper prints neither centers nor sizes of these; ours are `CENTERS`. It has 91.1 % right without the
link and 98.8 % with it, where the lower component keeps a weight of 0.037.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import Bunch

from mixtura import MixtureNetworkClassifier
from mixtura.data.given import Setting
from mixtura.datasets import load_dataset
from mixtura.papers.pictures import draw_boundary, scatter
from mixtura.papers.report import Panel, Report
from mixtura.papers.tables import fit
from mixtura.solvers import LinkedEM

IRIS_LINKS = (0.0, 1e10)
LINKS = (0.0, 1e4)
#: Accuracy, and the weight of the lower component.
PAPER = {0.0: (91.1, 0.372), 1e4: (98.8, 0.037)}
CENTERS = np.array([[-1.5, 0.0], [1.5, 0.0], [0.0, -2.0]])
DEVIATION = 0.7
N_ROWS = 900
_ANGLES = np.linspace(0.0, 2.0 * np.pi, 61)


def run(report: Report) -> None:
    """How mixtures differ by link, in numbers and pictures."""
    if report.wants("iris"):
        _show_iris(report)
    if report.wants("three Gaussians"):
        _show_gaussians(report)


def published(
    rows: Bunch, report: Report, n_components: int, **settings: Setting
) -> MixtureNetworkClassifier:
    """The paper's network: posteriors in mixtures of all rows, and nothing but linked EM."""
    model = MixtureNetworkClassifier(
        n_components,
        embedding="posterior",
        density="full",
        solver=LinkedEM(end_to_end=False, **settings),
        calibrate=False,
        device=report.device,
        random_state=report.seed,
    )
    fit(model, rows.data, rows.target)
    return model


def draw_ellipses(
    panel: Panel, model: MixtureNetworkClassifier, label: int, **style: Setting
) -> None:
    """One standard deviation around the components of a class, as wide as their weight."""
    owner = np.asarray(model.mixture_.layout.owner)
    circle = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    for k in np.flatnonzero(owner == label):
        outline = model.means_[k][:, None] + np.linalg.cholesky(model.covariances_[k]) @ circle
        panel.plot(*outline, linewidth=0.3 + 4.0 * model.weights_[k], **style)


# -- Iris ----------------------------------------------------------------------------------------


def _show_iris(report: Report) -> None:
    flowers = load_dataset("iris")
    rows = Bunch(data=flowers.data[:, :2], target=flowers.target)
    with report.figure("iris", figsize=(12, 7)) as figure:
        panels = figure.subplots(len(IRIS_LINKS), 3, sharex=True, sharey=True)
        for line, link in zip(panels, IRIS_LINKS, strict=True):
            model = published(rows, report, 4, link=link, l1=0.0, max_iter=1000)
            report.row("iris", link=link, **_differences(model), accuracy=_accuracy(model, rows))
            for label, panel in enumerate(line):
                scatter(panel, rows.data, rows.target)
                draw_ellipses(panel, model, label, color="black")
                panel.set_title(f"{flowers.target_names[label]}, link {link:g}")


def _differences(model: MixtureNetworkClassifier) -> dict[str, float]:
    """The largest between classes, and between the weights of mixtures and of the read-out."""
    n_classes = len(model.classes_)
    weights = model.weights_.reshape(n_classes, -1)
    means = model.means_.reshape(n_classes, weights.shape[1], -1)
    use = np.abs(model.coef_).reshape(weights.shape)
    share = use / use.sum(1, keepdims=True)
    return {
        "between_means": float(np.ptp(means, axis=0).max()),
        "between_weights": float(np.ptp(weights, axis=0).max()),
        "weights_to_read_out": float(np.abs(weights - share).max()),
    }


def _accuracy(model: MixtureNetworkClassifier, rows: Bunch) -> float:
    return 100 * float(model.score(rows.data, rows.target))


# -- three Gaussians -----------------------------------------------------------------------------


def make_three_gaussians(seed: int) -> Bunch:
    """Rows to the left and to the right of a line, in three clouds, one of them across it."""
    rng = np.random.default_rng(seed)
    cloud = rng.integers(3, size=N_ROWS)
    data = CENTERS[cloud] + DEVIATION * rng.normal(size=(N_ROWS, 2))
    return Bunch(data=data, target=(data[:, 0] > 0).astype(int), cloud=cloud)


def _show_gaussians(report: Report) -> None:
    rows = make_three_gaussians(report.seed)
    with report.figure("gaussians", figsize=(11, 8)) as figure:
        panels = figure.subplots(len(LINKS), 2, sharex=True, sharey=True)
        for line, link in zip(panels, LINKS, strict=True):
            model = published(rows, report, 3, link=link)
            accuracy, use = _accuracy(model, rows), np.abs(model.coef_[:3])
            report.row(
                "gaussians",
                link=link,
                ours=accuracy,
                paper=PAPER[link][0],
                lower_weight=float(model.weights_[use.argmin()]),  # of what the read-out uses least
                paper_weight=PAPER[link][1],
                weights=" ".join(f"{weight:.3f}" for weight in model.weights_[:3]),
            )
            for label, panel in enumerate(line):
                scatter(panel, rows.data, rows.target)
                draw_ellipses(panel, model, label, color="black")
                draw_boundary(panel, rows.data, model, "tab:green")
                panel.set_title(f"class {label}, link {link:g}: {accuracy:.1f} %")
