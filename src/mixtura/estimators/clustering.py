"""What estimators without labels answer: components are clusters."""

from __future__ import annotations

import numpy as np
from sklearn.base import DensityMixin

from mixtura.data.given import ArrayLike
from mixtura.estimators.answering import DensityEstimator
from mixtura.exceptions import DegenerateDataWarning, warn


class Clustering(DensityMixin, DensityEstimator):
    """Answers of a density whose components are clusters of rows, or of sequences."""

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


def affordable(n_components: int, n_rows: int, what: str = "rows") -> int:
    """No more components than there are rows; a warning where more are asked for."""
    if n_components > n_rows:
        warn(
            f"n_components={n_components} exceeds the {n_rows} {what}; one component per "
            f"{what.removesuffix('s')} is fitted. Remedy: a smaller n_components, or 'auto'.",
            DegenerateDataWarning,
        )
    return min(int(n_components), n_rows)
