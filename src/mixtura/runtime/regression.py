"""Regressions in NumPy, for prediction: twins of those of `mixtura.models.regression`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixtura.data.indicators import Indicators
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.runtime.batch import Batch
from mixtura.runtime.files import KINDS, kind
from mixtura.runtime.models import Fitted

KINDS["Indicators"] = Indicators


@kind
@dataclass(frozen=True)
class Regression:
    fitted: Fitted
    schema: Schema
    indicators: Indicators
    n_targets: int
    flat: bool

    @property
    def n_columns(self) -> int:
        return self.indicators.n_columns

    @property
    def _members(self) -> list[tuple[Fitted, float]]:
        """All models that are averaged, and how much say each has."""
        if self.fitted.blend is None:
            return [(self.fitted, 1.0)]
        models = self.fitted, *self.fitted.blend.members
        return list(zip(models, self.fitted.blend.weights.tolist(), strict=True))

    def _whole(self, rows: Matrix) -> Matrix:
        """Rows of features, as numbers, beside targets that are missing."""
        targets = np.full((len(rows), self.n_targets), np.nan)
        return Matrix(np.column_stack([self.indicators.apply(rows.values), targets]))

    def predicted(self, rows: Matrix) -> np.ndarray:
        """(n,) or (n, T) expected targets: conditional means, averaged."""
        cost = max(each.mixture.row_cost for each, _ in self._members)
        found = self.fitted.run(self._whole(rows), self._predicted, cost)
        return found[:, 0] if self.flat else found

    def _predicted(self, batch: Batch) -> np.ndarray:
        scaling, last = self.fitted.scaling, slice(-self.n_targets, None)
        means = (
            weight * each.mixture.impute(self.fitted.under(batch, each.scaling))[:, last]
            for each, weight in self._members
        )
        return sum(means) * scaling.scale[last] + scaling.location[last]

    def log_density(self, rows: Matrix) -> np.ndarray:
        """(n,) log p(x)."""
        whole = self._whole(rows)
        found = [each.log_density(whole) + np.log(weight) for each, weight in self._members]
        return np.logaddexp.reduce(found, axis=0)
