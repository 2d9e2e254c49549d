"""Hybrid mixtures, Table 1: test errors on image sets by objective and covariance structure.

Roth, Peharz, Tschiatschek and Pernkopf (2018), "Hybrid generative-discriminative training of
Gaussian mixture models". LL is the likelihood, LM the large margin, CLL the conditional likelihood,
a sum is their hybrid. "full" is a full covariance for LL (diagonal plus low rank for pixels) and
diagonal plus low rank for the others. The paper's searches end at rank 25, and at 20 components per
class, 100 if diagonal; ours at 200 of each, which some cells have.
CIFAR-10 is a JPEG copy; the variants of MNIST are made anew, by the paper's description.
Every cell is a mean over several seeds (start, batches and validation rows), with its deviation.
The best epoch is chosen on validation rows, which no model is trained on, not even those of LL.

A part is named like "mnist-pca50/full/LL+LM".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from mixtura.data.given import Parameters, Setting
from mixtura.densities import LowRank
from mixtura.papers.cells import Cell, grid
from mixtura.papers.hybrid._prepared import Prepared
from mixtura.papers.hybrid._search import Task, draw, search, shape
from mixtura.papers.hybrid._training import (
    COMMON,
    OBJECTIVES,
    STRUCTURES,
    Fit,
    density,
    error_rate,
    from_whole,
    layered,
    train,
)
from mixtura.papers.images import Images, load_images
from mixtura.papers.report import Report
from mixtura.solvers import EM

SEEDS = 3
#: Further starts of EM for the likelihood alone; the fewest errors on validation rows win.
RESTARTS = 4
#: What a search tries: components per class, and floor of the variances.
SHAPES = {
    "full": ((8, 0.1), (16, 0.3), (4, 0.3), (16, 0.1), (2, 0.1), (8, 0.03), (4, 0.1)),
    "diagonal": ((50, 0.1), (100, 0.3), (20, 0.3), (100, 0.1), (50, 0.03), (20, 0.1)),
}
#: In the second round: fine for sets of many rows. In the third: coarse for those of few; with
#: ranks, and imagined rows of whole covariances to start with, which rank 50 keeps.
FINE = {"full": ((16, 0.01),), "diagonal": ((100, 0.01),)}
COARSE = {
    "full": ((4, 0.1, 50, 200), (8, 0.1, 50, 500), (8, 0.1, 25, 200), (8, 0.1, 10), (20, 0.03)),
    "diagonal": ((10, 0.1), (5, 0.1), (10, 0.3), (20, 0.03), (10, 0.03)),
}
#: In the fourth: many components, high floors, precisions of low rank, as in the authors' code, and
#: whole covariances of many components.
MANY: dict[str, tuple[tuple[float | str, ...], ...]] = {
    "full": (
        (32, 0.03),
        (20, 0.03, 25, 50, "precision"),
        (8, 0.1, 25, 200, "precision"),
        (4, 0.1, 25, 200, "precision"),
        (16, 1.0),
        (8, 1.0),
        (16, 0.1, 50, 50),
        (16, 0.3, 50, 200),
    ),
    "diagonal": ((200, 0.1), (200, 0.3), (100, 1.0), (200, 1.0)),
}
#: The same for pixels; photographs behind digits ask for more than rank 25. From the third round
#: on: high floors.
PIXELS: dict[str, list[tuple[tuple[float, ...], ...]]] = {
    "full": [
        ((16, 0.1), (4, 0.1), (8, 0.03)),
        ((1, 0.1, 100), (2, 0.1, 50), (1, 0.03, 200), (8, 0.1, 10)),
        ((4, 0.3), (2, 0.3), (1, 0.3)),
        ((16, 0.3), (16, 1.0)),
    ],
    "diagonal": [
        ((100, 0.1), (50, 0.03), (10, 0.1), (2, 0.1)),
        ((200, 0.1), (20, 0.1), (5, 0.1), (100, 0.03), (20, 0.3)),
        ((100, 0.3), (100, 1.0), (20, 1.0), (5, 0.3)),
        ((50, 1.0), (200, 1.0)),
    ],
}
#: In the second round of the likelihood: components among which each class chooses, with a floor
#: (rank and imagined rows).
COUNTS: dict[str, list[tuple[Sequence[int], tuple[float, ...]]]] = {
    "full": [((2, 4, 6, 8, 12, 16), (0.05, 50, prior)) for prior in (50, 200, 1000)],
    "diagonal": [((5, 10, 20, 35, 50, 75, 100, 200), (floor,)) for floor in (0.1, 0.3, 0.5)],
}
#: Features up to which the likelihood alone gets whole covariances.
_WHOLE = 100
_images = lru_cache(1)(load_images)

_PIXELS: Parameters = {
    "density__floor": 0.03,
    "solver__learning_rate": 5e-4,
    "objective__margin": 100.0,
    "tradeoff": 0.1,
}
_REDUCED: Parameters = {
    "density__floor": 0.01,
    "solver__learning_rate": 2e-3,
    "objective__margin": 60.0,
    "tradeoff": 0.25,
}
_STIFF: Parameters = {"density__floor": 0.1}
#: EM for whole 784 x 784 covariances would factorize each of them in every iteration.
_THIN: Parameters = _STIFF | {"density": LowRank()}
_DIAGONAL: Parameters = {"n_components": 100, "solver__learning_rate": 5e-3, "tradeoff": 0.02}
#: The conditional likelihood saturates sooner, and then only overfits.
_GENTLE: Parameters = _STIFF | {"solver__learning_rate": 2e-4}

#: Trade-offs are the paper's, of whole log-likelihoods; `train` converts them.
#: Parameters of the classifier by part: a set, a set and structure, or a single cell; the more
#: exact name wins. Figures and quick runs have these; what a search has found is in the file of
#: this module's name.
SETTINGS: dict[str, Parameters] = {
    "mnist": _PIXELS,
    "mnist/full": {"n_components": [19, 20, 20, 17, 18, 20, 11, 20, 16, 9]},
    "mnist/full/LL": _THIN,
    "mnist/full/LL+CLL": _GENTLE,
    "mnist/full/CLL": _GENTLE,
    "mnist/diagonal": _DIAGONAL,
    "mnist-pca50": _REDUCED,
    "mnist-pca50/full": {"n_components": [20, 4, 15, 12, 10, 8, 15, 13, 20, 15]},
    "mnist-pca50/full/LL": _STIFF,
    "mnist-pca50/full/LL+LM": {"solver__max_iter": 30},
    "mnist-pca50/full/LL+CLL": _GENTLE,
    "mnist-pca50/full/LM": {"solver__learning_rate": 5e-4},
    "mnist-pca50/full/CLL": _GENTLE,
    "mnist-pca50/diagonal": _DIAGONAL,
}

#: The paper's errors in percent, in the order of STRUCTURES and OBJECTIVES; None: not in it.
PAPER: dict[str, tuple[float, ...] | None] = {
    "mnist-pca50": (1.66, 1.42, 1.81, 1.51, 1.66, 4.09, 2.53, 3.05, 2.53, 2.79),
    "rotated-pca50": (
        *(11.710, 9.962, 11.710, 11.656, 12.224),
        *(19.686, 16.466, 19.998, 16.356, 18.124),
    ),
    "cifar10-pca50": (50.67, 48.58, 51.14, 50.34, 53.00, 56.79, 52.59, 56.23, 52.52, 55.47),
    "rotated-background-pca50": (
        *(52.134, 49.414, 50.184, 49.466, 51.858),
        *(60.512, 52.430, 57.416, 52.562, 59.094),
    ),
    "background-random-pca50": (
        *(8.238, 7.878, 7.814, 8.432, 9.816),
        *(11.890, 9.912, 10.994, 9.660, 11.712),
    ),
    "basic-pca50": (3.162, 3.122, 3.346, 3.146, 3.408, 6.410, 4.754, 6.478, 4.738, 5.552),
    "background-pca50": (
        *(21.470, 18.840, 20.684, 19.392, 22.312),
        *(30.540, 22.446, 28.402, 22.944, 28.150),
    ),
    "fashion-pca50": None,
    "mnist": (1.86, 1.76, 1.73, 1.57, 1.68, 4.08, 2.40, 3.47, 2.32, 3.22),
    "basic": (3.198, 2.862, 2.968, 2.984, 3.030, 5.758, 4.516, 5.470, 4.284, 5.088),
    "rotated": (
        *(11.284, 9.854, 10.610, 11.116, 11.662),
        *(19.104, 14.010, 16.426, 14.114, 17.058),
    ),
    "background-random": (
        *(16.132, 11.356, 10.786, 14.762, 13.624),
        *(12.972, 12.644, 12.790, 13.000, 12.532),
    ),
    "background": (
        *(24.842, 19.228, 19.392, 19.894, 19.992),
        *(43.522, 22.512, 26.416, 22.280, 27.376),
    ),
    "rotated-background": (
        *(57.750, 50.578, 52.192, 52.002, 53.482),
        *(75.718, 57.014, 64.032, 56.416, 65.194),
    ),
}
#: What the paper has beside these, and why it is not here.
ABSENT: dict[str, tuple[str, tuple[float, ...]]] = {
    "cifar10": (
        "3,072 pixels: 160 components of rank 25 on them were not run",
        (49.96, 46.27, 49.48, 46.42, 49.70, 61.32, 53.72, 57.70, 53.96, 57.90),
    ),
    "TIMIT": (
        "the data are licensed",
        (25.433, 20.386, 23.423, 20.649, 23.381, 28.373, 22.535, 26.834, 22.355, 26.751),
    ),
}
_COLUMNS = [f"{structure} {term}" for structure in STRUCTURES for term in OBJECTIVES]
CELLS = grid(_COLUMNS, {name: row for name, row in PAPER.items() if row}) + [
    cell
    for name, (reason, row) in ABSENT.items()
    for cell in grid(_COLUMNS, {name: row}, absent=reason)
]

_QUICK_SET = "mnist-pca50"
_QUICK: Parameters = {
    "n_components": 2,
    "density__floor": 0.1,
    "density__rank": 10,
    "init": EM(max_iter=10, tol=0.01),
    "solver__max_iter": 4,
    "solver__learning_rate": 0.03,
    "solver__averaging": 0.0,
}


def run(report: Report) -> None:
    """All cells with the settings that a search has found, or finds; a few for a quick run."""
    if not report.quick:
        search(report, tasks(), SEEDS, Path(__file__).with_suffix(".jsonl"))
        return
    parts = [f"{_QUICK_SET}/{kind}/{term}" for kind in STRUCTURES for term in OBJECTIVES]
    images = load(report, _QUICK_SET)
    for part, paper in zip(parts, PAPER[_QUICK_SET] or (), strict=True):
        if report.wants(part):
            _show_cell(report, part, images, paper)


def tasks() -> list[Task]:
    """What a search looks for: the likelihood alone, then what Adam trains."""
    return [
        Task(
            f"{name}/{structure}/{{}}",
            {
                term: Cell(name, column, paper)
                for term, column, paper in _columns(name, structure)
                if (term == "LL") == generative
            },
            [[shape(*each) for each in shapes] for shapes in _rounds(name, structure, generative)],
            draw,
            partial(_prepare, name, structure, "LL" if generative else "LM"),
            generative,
        )
        for generative in (True, False)
        for name in PAPER
        for structure in STRUCTURES
    ]


def _columns(name: str, structure: str) -> list[tuple[str, str, float]]:
    """Objectives, their columns, and the paper's errors; NaN where it has none."""
    place = STRUCTURES.index(structure) * len(OBJECTIVES)
    errors = PAPER[name] or (math.nan,) * len(_COLUMNS)
    return list(zip(OBJECTIVES, _COLUMNS[place:], errors[place:], strict=False))


def _rounds(
    name: str, structure: str, generative: bool
) -> Sequence[Sequence[tuple[float | str, ...]]]:
    """The shapes that each round adds."""
    if not name.endswith("-pca50"):
        return PIXELS[structure]
    if not generative:
        return [SHAPES[structure], FINE[structure], COARSE[structure], MANY[structure]]
    return [SHAPES[structure], [(n, *rest) for counts, rest in COUNTS[structure] for n in counts]]


def _prepare(name: str, structure: str, term: str, report: Report, form: Parameters) -> Prepared:
    """Rows of a seed; the start is the likelihood's own model, or its precursor."""
    images = _images(name)
    rows, held = train_test_split(
        np.arange(len(images.y_train)),
        test_size=COMMON["solver__validation_fraction"],
        stratify=images.y_train,
        random_state=report.seed,
    )
    X, y = images.X_train[rows], images.y_train[rows]
    whole = X.shape[1] <= _WHOLE
    kind = density(structure, term if whole else "LM")
    chosen = {**COMMON, **form, "density": kind, **OBJECTIVES["LL"]}
    if term != "LL":
        chosen["solver"] = EM(tol=1e-3 * X.shape[1])
    if whole and term != "LL" and "prior_rows" in form:
        model, mixture = from_whole(report, X, y, chosen)
        starts = [mixture]
    else:
        seeds = [report.seed + 1_000 * each for each in range(1 + RESTARTS * (term == "LL"))]
        models = [train(report, X, y, {**chosen, "random_state": seed}).model for seed in seeds]
        model, starts = models[0], [each.mixture_ for each in models]
    parts = (X, y), (images.X_train[held], images.y_train[held]), (images.X_test, images.y_test)
    return Prepared.of(report, {"em": lambda: starts}, model.scaling_, parts)


def load(report: Report, name: str, quick_rows: int = 2000) -> Images:
    """An image set, or a few of its rows for a quick run."""
    return load_images(name, **({"n_train": quick_rows, "n_test": 2000} if report.quick else {}))


def _show_cell(report: Report, part: str, images: Images, paper: float) -> None:
    """A cell by the classifier itself, once."""
    fit = train_cell(report, images, part)
    name, structure, objective = part.split("/")
    report.row(
        "errors",
        set=name,
        covariance=structure,
        objective=objective,
        ours=error_rate(fit.model, images.X_test, images.y_test),
        paper=paper,
        validation=_validation_error(fit),
        seconds=fit.seconds,
    )


def _validation_error(fit: Fit) -> float | None:
    """The error of the epoch that was kept; None where there was nothing to choose."""
    course = [
        record["validation_error"] for record in fit.model.history_ if "validation_error" in record
    ]
    return 100 * min(course) if course else None


def train_cell(report: Report, images: Images, part: str, **changes: Setting) -> Fit:
    """The model of a cell of the table, with some of its parameters changed."""
    chosen = parameters(part, report.quick, **changes)
    X, y = images.X_train, images.y_train
    if part.endswith("/LL"):  # nothing to choose, but what others choose by is not trained on
        share = chosen["solver__validation_fraction"]
        X, _, y, _ = train_test_split(X, y, test_size=share, stratify=y, random_state=report.seed)
    return train(report, X, y, chosen)


def parameters(part: str, quick: bool = False, **changes: Setting) -> Parameters:
    """All that is set for a cell of the table, with some of it changed."""
    _, structure, objective = part.split("/")
    changes = (_QUICK if quick else {}) | changes
    merged = COMMON | layered(SETTINGS, part) | changes | OBJECTIVES[objective]
    return {"density": density(structure, objective)} | merged
