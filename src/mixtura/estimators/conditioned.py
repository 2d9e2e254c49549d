"""A fitted estimator given some columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mixtura.answers.condition import Condition, with_given
from mixtura.answers.intervals import network_means
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.matrix import Matrix
from mixtura.exceptions import UnsupportedError
from mixtura.models.network import RegressionNetwork

if TYPE_CHECKING:
    from mixtura.estimators.answering import DensityEstimator
    from mixtura.estimators.regressor import MixtureRegressor


@dataclass(frozen=True)
class ConditionedModel:
    """What `condition` gives: the model of rows some columns of which are given.

    Rows have the columns of the training rows; what they hold in the given ones does not count.
    """

    estimator: DensityEstimator
    condition: Condition = field(repr=False)

    def _rows(self, X: ArrayLike) -> Matrix:
        return self.condition.rows(self.estimator._table(X))

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """(n,) log density of what is observed of the other columns, given these."""
        return self.condition.log_density(self._rows(X))

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(class | x), (n, C)."""
        model = self.condition.model
        if model.classes is None:
            raise UnsupportedError("this model knows no classes: use predict, or score_samples.")
        return np.exp(model.log_proba(model.engine(self._rows(X), self.condition.device)))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """(n,) the most probable class of each row; of a network that predicts numbers, these."""
        model = self.condition.model
        if isinstance(model.model, RegressionNetwork):
            return network_means(model, self._rows(X), self.condition.device)
        found = self.predict_proba(X).argmax(1)
        assert model.classes is not None
        return model.classes[found]

    def impute(
        self, X: ArrayLike, *, n_draws: int | None = None, random_state: RandomState = None
    ) -> ArrayLike:
        """Rows with the given values, and what else is missing filled in, as by `impute`."""
        return self.estimator._filled(self._rows(X), X, None, n_draws, random_state)

    def sample(self, n_samples: int = 1, *, random_state: RandomState = None) -> ArrayLike:
        """(n_samples, D) rows with the given values; `sample(given=...)` has labels beside them."""
        return self.estimator._draw_given(self.condition, n_samples, random_state)


@dataclass(frozen=True)
class ConditionedRegressor:
    """What `condition` of a regressor gives, likewise.

    Attributes
    ----------
    given : (1, D) the given values, NaN elsewhere.
    """

    estimator: MixtureRegressor
    given: Matrix = field(repr=False)

    def _rows(self, X: ArrayLike) -> Matrix:
        return with_given(self.estimator._rows(X), self.given)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The expected targets of each row, (n,) or (n, T)."""
        return self.estimator._expected(self._rows(X))

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """(n,) log density of what is observed of the other columns, given these."""
        densities = (self.estimator._log_density(rows) for rows in (self._rows(X), self.given))
        return np.subtract(*densities)

    def impute(
        self, X: ArrayLike, *, n_draws: int | None = None, random_state: RandomState = None
    ) -> ArrayLike:
        """Rows with the given values, and what else is missing filled in, as by `impute`."""
        return self.estimator._filled(self._rows(X), X, None, n_draws, random_state)

    def sample(
        self, n_samples: int = 1, *, random_state: RandomState = None
    ) -> tuple[ArrayLike, np.ndarray]:
        """Rows (n_samples, D) with the given values, and targets (n_samples,), or of several."""
        return self.estimator._draw_given(self.given, n_samples, random_state)
