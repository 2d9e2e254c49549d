"""Class mixtures by EM, and what discriminative training makes of that one start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from mixtura.data.batch import Batch
from mixtura.data.given import Parameters, Setting
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal
from mixtura.engines import Engine, resolve_device
from mixtura.estimators import MixtureClassifier
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional, Objective
from mixtura.papers.report import Report
from mixtura.progress import Callback, Progress, Record
from mixtura.solvers import EBW, EM, Solver
from mixtura.solvers.gradients import evaluate

#: Smallest variance, as a share of the feature's own.
FLOOR = 1e-3
_HELD_OUT = 0.25


class Trained(NamedTuple):
    """A mixture, and the course of its training."""

    mixture: Mixture
    history: list[Record]


@dataclass(frozen=True)
class Recipe:
    """What to train for, and how long."""

    objective: Objective
    iterations: int


@dataclass(frozen=True)
class OneStart:
    """Class mixtures of maximum likelihood, and the rows they were fitted to.

    Attributes
    ----------
    mixture : the start of all training.
    engine : the training rows.
    """

    mixture: Mixture
    engine: Engine
    scaling: Scaling = field(repr=False)

    @classmethod
    def fit(
        cls, report: Report, X: np.ndarray, y: np.ndarray, n_components: int, **settings: Setting
    ) -> OneStart:
        """EM without a prior, in standardized units; y are class indices from zero."""
        defaults: Parameters = {"density": Diagonal(FLOOR), "random_state": report.seed}
        model = MixtureClassifier(
            n_components,
            objective="likelihood",
            solver=EM(max_iter=500, tol=1e-5),
            prior_rows=0,
            device=report.device,
            **(defaults | settings),
        ).fit(X, y)
        device = resolve_device(report.device, X.size)
        engine = Engine[Batch](X, y, np.ones(len(X)), scaling=model.scaling_, device=device)
        return cls(model.mixture_.to(device), engine, model.scaling_)

    def rows(self, X: np.ndarray, y: np.ndarray) -> Engine:
        """Further rows in the units of the model, NaN where missing."""
        device = self.engine.device
        return Engine(X, y, np.ones(len(X)), scaling=self.scaling, device=device)

    def train(
        self,
        objective: Objective,
        solver: Solver,
        callbacks: Iterable[Callback] = (),
        max_time: float | None = None,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
    ) -> Trained:
        """Training from the start, for so many seconds at most."""
        progress = Progress(callbacks, max_time=max_time)
        result = solver.run(
            self.mixture, objective, self.engine, progress, generator=generator, held_out=held_out
        )
        return Trained(result.model, progress.history)

    def follow(self, recipe: Recipe) -> Mixture:
        """Training by extended Baum-Welch."""
        return self.train(recipe.objective, EBW(recipe.iterations)).mixture


def accuracy(mixture: Mixture, engine: Engine) -> float:
    """Percent of the rows that are classified correctly."""
    return 100.0 * (1.0 - evaluate(mixture, Conditional(), engine)[0])


def choose(
    report: Report,
    X: np.ndarray,
    y: np.ndarray,
    n_components: int,
    candidates: dict[str, list[Recipe]],
    **settings: Setting,
) -> dict[str, Recipe]:
    """For each name the recipe that does best on held-out training rows."""
    kept, held = train_test_split(
        np.arange(len(y)), test_size=_HELD_OUT, stratify=y, random_state=report.seed
    )
    start = OneStart.fit(report, X[kept], y[kept], n_components, **settings)
    rows = start.rows(X[held], y[held])
    return {
        name: max(recipes, key=lambda recipe: accuracy(start.follow(recipe), rows))
        for name, recipes in candidates.items()
    }
