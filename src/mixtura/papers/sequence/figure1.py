"""Sequence mixtures, Figure 1: where the second component of a boosted mixture goes.

Kim and Pavlovic (2007). Above, the densities of the classes; in the middle, what rows weigh for
the second component, `1 / F(c, x)` if the joint likelihood is to grow, `(1 - F(c | x)) / F(c, x)`
if the conditional; below, the first components and the second ones of both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax
from scipy.stats import norm
from sklearn.utils import Bunch

from mixtura import BoostedMixtureClassifier
from mixtura.datasets import make_lobes
from mixtura.datasets.generators import LOBE_CENTERS, LOBE_DEVIATIONS, LOBE_WEIGHTS
from mixtura.papers.report import Panel, Report

LOBES = ("center", "far lobe", "boundary")
_SECOND = {"generative": "boosted_generative", "discriminative": "boosted"}
_COLORS = ("tab:blue", "tab:red")
_STYLES = {"first": ":", "generative": "--", "discriminative": "-"}
_GRID = np.linspace(-10.0, 10.0, 801)


class Lobe(NamedTuple):
    """A component of one class on the line."""

    mean: float
    deviation: float

    def density(self, x: np.ndarray) -> np.ndarray:
        return norm.pdf(x, self.mean, self.deviation)


def run(report: Report) -> None:
    """A row for each component of the three models, and the picture."""
    rows = make_lobes(random_state=report.seed)
    models = {name: _fit(rows, method, 2, report.seed) for name, method in _SECOND.items()}
    first = _lobes(_fit(rows, "boosted", 1, report.seed), stage=0)
    components = {"first": first}
    components |= {name: _lobes(model, stage=1) for name, model in models.items()}
    for name, lobes in components.items():
        for label, lobe in enumerate(lobes):
            report.row(
                "components",
                model=name,
                label=label,
                mean=lobe.mean,
                deviation=lobe.deviation,
                place=place(lobe.mean, label),
            )
    with report.figure(figsize=(8, 8)) as figure:
        panels = figure.subplots(3, 1, sharex=True)
        _draw_truth(panels[0])
        _draw_weights(panels[1], rows, weights(rows, first))
        _draw_components(panels[2], components)


def _fit(rows: Bunch, method: str, n_stages: int, seed: int) -> BoostedMixtureClassifier:
    model = BoostedMixtureClassifier(
        method=method, n_stages=n_stages, early_stopping=False, calibrate=False, random_state=seed
    )
    return model.fit(rows.data, rows.target)


def _lobes(model: BoostedMixtureClassifier, stage: int) -> list[Lobe]:
    """What a stage added to each class; nothing if it stopped before."""
    owner = np.asarray(model.mixture_.layout.owner)
    lobes = []
    for label in range(2):
        mine = np.flatnonzero(owner == label)
        if len(mine) > stage:
            k = mine[stage]
            lobes.append(Lobe(float(model.means_[k, 0]), float(model.covariances_[k, 0, 0] ** 0.5)))
    return lobes


def place(mean: float, label: int) -> str:
    """The lobe of the true density that is nearest."""
    return LOBES[np.abs((1 - 2 * label) * LOBE_CENTERS - mean).argmin()]


def weights(rows: Bunch, first: list[Lobe]) -> dict[str, np.ndarray]:
    """What the rows weigh for the second component, the largest weight being one."""
    joint = 0.5 * np.stack([lobe.density(rows.data[:, 0]) for lobe in first], axis=1)
    own = np.arange(len(rows.target)), rows.target
    generative = 1 / joint[own]
    discriminative = (1 - softmax(np.log(joint), axis=1)[own]) * generative
    both = {"generative": generative, "discriminative": discriminative}
    return {name: weight / weight.max() for name, weight in both.items()}


def _draw_truth(panel: Panel) -> None:
    for label, color in enumerate(_COLORS):
        lobes = norm.pdf(_GRID[:, None], (1 - 2 * label) * LOBE_CENTERS, LOBE_DEVIATIONS)
        panel.plot(_GRID, lobes @ LOBE_WEIGHTS, color=color, label=f"class {label}")
    panel.set_ylabel("density")
    panel.legend(frameon=False)


def _draw_weights(panel: Panel, rows: Bunch, shown: dict[str, np.ndarray]) -> None:
    """Discriminative weights upwards, generative ones downwards."""
    for label, color in enumerate(_COLORS):
        mine = rows.target == label
        x = rows.data[mine, 0]
        panel.vlines(x, 0, shown["discriminative"][mine], color=color, linewidth=0.8)
        panel.vlines(x, -shown["generative"][mine], 0, color=color, linewidth=0.8)
    panel.axhline(0, color="black", linewidth=0.5)
    panel.set_ylabel("generative | discriminative weight")


def _draw_components(panel: Panel, components: dict[str, list[Lobe]]) -> None:
    for name, lobes in components.items():
        for label, lobe in enumerate(lobes):
            title = f"{name}, class {label}"
            height = lobe.density(_GRID)
            panel.plot(_GRID, height, _STYLES[name], color=_COLORS[label], label=title)
    panel.set_ylabel("components")
    panel.legend(
        frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3
    )
