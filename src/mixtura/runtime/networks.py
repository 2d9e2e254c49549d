"""Mixture networks in NumPy, for prediction: twins of those of `mixtura.models.network`.

The draws that stand for what is missing, the peaks of the components and the classes' shares of all
rows are computed when a model is saved, and stored with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mixtura.runtime.batch import Batch
from mixtura.runtime.files import kind
from mixtura.runtime.mixed import Product
from mixtura.runtime.models import Mixture, log_softmax


def _nearest_on_simplex(values: np.ndarray) -> np.ndarray:
    """Rows (n, k) shifted down, and cut off at zero, until they sum to one."""
    ranked = -np.sort(values.max(1, keepdims=True) - values, 1)
    total = ranked.cumsum(1) - 1.0
    support = (ranked * np.arange(1, values.shape[1] + 1) > total).sum(1, keepdims=True)
    threshold = np.take_along_axis(total, support - 1, 1) / support
    return (values - values.max(1, keepdims=True) - threshold).clip(0.0)


@kind
@dataclass(frozen=True)
class Network:
    mixture: Mixture
    weight: np.ndarray
    bias: np.ndarray
    embedding: str
    shift: np.ndarray
    scale: np.ndarray
    n_draws: int
    draws: np.ndarray
    log_peak: np.ndarray
    class_shares: np.ndarray

    @property
    def row_cost(self) -> int:
        return self.mixture.row_cost * (1 + self.draws.shape[1])

    def _embed(self, log_joint: np.ndarray) -> np.ndarray:
        """(n, K) what the components make of complete rows."""
        mixture = self.mixture
        layout, embedding = mixture.layout, self.embedding
        if embedding == "posterior":
            return np.exp(log_joint - layout.logsumexp(log_joint)[:, layout.owner])
        if embedding == "simplex":
            parts = np.split(log_joint, np.cumsum(layout.counts)[:-1], axis=1)
            return np.concatenate([_nearest_on_simplex(part) for part in parts], 1)
        log_density = log_joint - mixture.log_prior[layout.owner]
        if embedding == "log_density":
            return log_density
        return np.exp(log_density - self.log_peak - mixture.log_weight)

    def _scores(self, log_joint: np.ndarray) -> np.ndarray:
        """(n, C) before the softmax."""
        embedded = (self._embed(log_joint) - self.shift) / self.scale
        return self.mixture.layout.sum(embedded * self.weight) + self.bias

    def _over_draws(
        self, batch: Batch, log_joint: np.ndarray, answer: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """(n, draws, C) `answer` to log-joints; to those of complete rows there is one draw."""
        if batch.observed is None:
            return answer(log_joint)[:, None]
        count, n_draws = len(batch), self.draws.shape[1]
        edges = np.exp(log_softmax(log_joint)).cumsum(1)
        level = (np.arange(n_draws) + 0.5) / n_draws
        component = (edges[:, :, None] < level).sum(1).clip(max=edges.shape[1] - 1).ravel()
        rows = replace(batch, absent=batch.lacks()).take(np.arange(count).repeat(n_draws))
        drawn = self.draws[component, np.tile(np.arange(n_draws), count)]
        whole = self.mixture.density.agree(rows, component, drawn)
        found = answer(self.mixture.log_joint(Batch(whole, None, rows.absent)))
        return found.reshape(count, n_draws, -1)

    def class_log_joint(self, batch: Batch) -> np.ndarray:
        """log p(x) + log p(c | x), (n, C)."""
        log_joint = self.mixture.log_joint(batch)
        found = self._over_draws(batch, log_joint, lambda joint: log_softmax(self._scores(joint)))
        found = np.logaddexp.reduce(found, axis=1) - np.log(found.shape[1])
        density = self.mixture.density
        if not (isinstance(density, Product) and density.informative):
            blank = ~batch.seen.any(1)
            found[blank] = np.log(self.class_shares)
        return found + np.logaddexp.reduce(log_joint, axis=1, keepdims=True)


@kind
@dataclass(frozen=True)
class RegressionNetwork(Network):
    def predicted(self, batch: Batch) -> np.ndarray:
        """(n,) expected targets, in units of their deviation."""
        log_joint = self.mixture.log_joint(batch)
        return self._over_draws(batch, log_joint, self._scores).mean(1)[:, 0]
