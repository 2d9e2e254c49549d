"""What estimators without labels answer: components are clusters."""

from __future__ import annotations

import numpy as np
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning

from mixtura.data.given import ArrayLike
from mixtura.engines import Engine
from mixtura.estimators.answering import DensityEstimator
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.selection.budget import Outcome, warn_if_cut_short
from mixtura.solvers import FitResult
from mixtura.solvers.gradients import evaluate

Fit = FitResult[Mixture]


class Clustering(DensityMixin, DensityEstimator):
    """Answers of a density whose components are clusters of rows, or of sequences."""

    def _tell(self, outcome: Outcome[Fit], n_rows: int, progress: Progress) -> None:
        """How training on so many rows went; a warning where it has not settled."""
        result = outcome.model
        self.history_, self.n_iter_ = progress.history, result.n_iter
        cut_short = warn_if_cut_short(progress, outcome.n_rows, n_rows)
        self.converged_ = result.converged and not cut_short
        if not result.converged and not progress.stopped:
            warn(
                "EM stopped before it had settled; raise max_iter or tol of the solver.",
                ConvergenceWarning,
            )

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        return self.mixture_.n_components

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable component of each row, or sequence."""
        return self.responsibilities(X).argmax(1)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(component | x), (n, K)."""
        return self.responsibilities(X)

    def score(self, X: ArrayLike, y: ArrayLike = None) -> float:
        """Mean log density of the rows, or sequences."""
        return float(self.score_samples(X).mean())


def minus_log_likelihood(result: Fit, rows: Engine) -> float:
    """Of the rows, per weight, under a mixture."""
    return evaluate(result.model, Likelihood(), rows)[1]


def affordable(n_components: int, n_rows: int, what: str = "rows") -> int:
    """No more components than there are rows; a warning where more are asked for."""
    if n_components > n_rows:
        warn(
            f"n_components={n_components} exceeds the {n_rows} {what}; one component per "
            f"{what.removesuffix('s')} is fitted. Remedy: a smaller n_components, or 'auto'.",
            DegenerateDataWarning,
        )
    return min(int(n_components), n_rows)
