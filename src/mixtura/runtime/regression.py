"""Regressions in NumPy, for prediction: twins of those of `mixtura.models.regression`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixtura.conformal import HeldBack, conformal_thresholds
from mixtura.constants import LOG_2PI
from mixtura.data.matrix import Matrix
from mixtura.predictive import (
    FeaturesAndTargets,
    Predictive,
    in_parts,
    members_of,
    of_features,
    say_of,
)
from mixtura.runtime.batch import Batch
from mixtura.runtime.files import kind
from mixtura.runtime.gaussians import Gaussian
from mixtura.runtime.models import Fitted, Mixture, log_softmax


@kind
@dataclass(frozen=True)
class Regression(FeaturesAndTargets[Fitted]):
    def predicted(self, rows: Matrix) -> np.ndarray:
        """(n,) or (n, T) expected targets: conditional means, averaged."""
        cost = max(each.mixture.row_cost for each in members_of(self.fitted))

        def some(rows: Matrix) -> np.ndarray:
            near = self.near(rows)
            means = self.fitted.run(near, self._means, cost)  # (n, M, T)
            found = np.einsum("mn,nmt->nt", say_of(self.fitted, near.values), means)
            scaling, last = self.fitted.scaling, slice(-self.n_targets, None)
            return found * scaling.scale[last] + scaling.location[last]

        found = in_parts(some, rows)
        return found[:, 0] if self.flat else found

    def _means(self, batch: Batch) -> np.ndarray:
        """(n, M, T) what each model expects, in its units."""
        means = [
            each.mixture.impute(self.fitted.under(batch, each.scaling))[:, -self.n_targets :]
            for each in members_of(self.fitted)
        ]
        return np.stack(means, 1)

    def predictive(self, rows: Matrix) -> Predictive:
        """The distributions of the targets given features."""
        return self._predictive(self.fitted, self.near(rows))

    def _predictive(self, fitted: Fitted, whole: Matrix) -> Predictive:
        scaling, last = self.fitted.scaling, slice(-self.n_targets, None)
        parts = []
        for each in members_of(fitted):

            def found(batch: Batch, each: Fitted = each) -> np.ndarray:
                return self._conditional(each.mixture, fitted.under(batch, each.scaling))

            told = fitted.run(whole, found, each.mixture.row_cost)
            parts.append(Predictive.of(told, scaling.location[last], scaling.scale[last]))
        return Predictive.average(parts, say_of(fitted, whole.values))

    def _conditional(self, mixture: Mixture, batch: Batch) -> np.ndarray:
        """(n, K, 1 + 2 T) log shares of components, and their means and log deviations."""
        part, observed = mixture.density, batch.observed
        if not isinstance(part, Gaussian) or observed is None:
            raise ValueError("its targets are known, or not Gaussian")
        share, (patterns, place) = log_softmax(mixture.log_joint(batch)), batch.patterns
        blank, log_deviation = np.zeros(patterns.shape), []  # they depend on what is seen alone
        without = part.distances(Batch(blank, patterns))[1]
        for target in range(-self.n_targets, 0):
            also = patterns.copy()
            also[:, target] = True
            beside = part.distances(Batch(blank, also))[1]
            found = 0.5 * (beside - without - LOG_2PI)
            log_deviation.append(found if place is None else found[place])
        mean = part.expected(batch)[..., -self.n_targets :]
        return np.concatenate([share[..., None], mean, np.stack(log_deviation, 2)], 2)

    def interval(self, rows: Matrix, held_back: HeldBack, coverage: float) -> np.ndarray:
        """(n, T, 2) lower and upper ends; infinite where held-back rows are too few."""

        def rarity(own: Fitted, whole: Matrix, y: np.ndarray) -> np.ndarray:
            return self._predictive(own, whole.within(self.reach)).rarity(y)

        least = conformal_thresholds(self.fitted, self.whole(rows), held_back, rarity, coverage)

        def ends(some: Matrix, own: np.ndarray) -> np.ndarray:
            return self.predictive(some).interval(own)

        return in_parts(ends, rows, least)

    def log_density(self, rows: Matrix, y: np.ndarray | None = None) -> np.ndarray:
        """(n,) log p(y | x) of what is known of y (n, T), or log p(x), in the user's units."""
        if y is None:
            members, weights = of_features(self.fitted)
            return self._averaged(self._log_densities(members, self.whole(rows)), weights[:, None])
        members, near = members_of(self.fitted), self.near(rows)
        beside = self._log_densities(members, self.whole(rows, y).within(self.reach))
        given = beside - self._log_densities(members, near)
        return self._averaged(given, say_of(self.fitted, near.values))

    @staticmethod
    def _log_densities(members: Sequence[Fitted], whole: Matrix) -> np.ndarray:
        """(M, n) of what is known of rows, under each of some models."""
        return np.stack([each.log_density(whole) for each in members])

    @staticmethod
    def _averaged(log_density: np.ndarray, share: np.ndarray) -> np.ndarray:
        """(n,) of log densities (M, n) by shares, of which some may be zero."""
        with np.errstate(divide="ignore"):
            return np.logaddexp.reduce(log_density + np.log(share), axis=0)
