"""What densities over vectors are compared with: distributions written another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import multivariate_normal

from mixtura.data.batch import Batch
from mixtura.densities import VectorDensity

#: component, rows (n, d), which d of the D features they hold (D,) -> log densities (n,).
Logpdf = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
#: component, a row (d,), which features it holds (D,), n, generator -> draws of the others.
ConditionalSampler = Callable[[int, np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Reference:
    """What a density is compared with, written another way."""

    logpdf: Logpdf
    conditional_sampler: ConditionalSampler | None = None

    @classmethod
    def normal(cls, density: VectorDensity) -> Reference:
        """Scipy's normal distribution with the dense covariances."""
        means, covariances = density.location.numpy(), density.covariances().numpy()

        def logpdf(component: int, x: np.ndarray, observed: np.ndarray) -> np.ndarray:
            mean, covariance = means[component], covariances[component]
            normal = multivariate_normal(mean[observed], covariance[np.ix_(observed, observed)])
            return np.atleast_1d(normal.logpdf(x))

        def draw(
            component: int, x: np.ndarray, observed: np.ndarray, n: int, rng: np.random.Generator
        ) -> np.ndarray:
            row = np.zeros_like(means[0])
            row[observed] = x
            mean, covariance = _regress(means[component], covariances[component], observed, row)
            return rng.multivariate_normal(mean, covariance, n)

        return cls(logpdf, draw)

    def log_prob(self, density: VectorDensity, batch: Batch) -> np.ndarray:
        """(n, K) of rows with holes; of nothing it is zero."""
        result = np.zeros((len(batch), density.n_components))
        for row, k, seen, x in _patterns(density, batch):
            if seen.any():
                result[row, k] = self.logpdf(k, x[seen][None], seen)[0]
        return result


def _patterns(
    density: VectorDensity, batch: Batch
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """(row, component, its observed features, the row) for every row and component."""
    seen = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    for row in range(len(batch)):
        for component in range(density.n_components):
            yield row, component, seen[row].numpy(), batch.x[row].numpy()


def dense_log_prob(density: VectorDensity, batch: Batch) -> np.ndarray:
    """(n, K) by scipy's normal distribution."""
    return Reference.normal(density).log_prob(density, batch)


def dense_conditional(density: VectorDensity, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Conditional means (n, K, D) and covariances (n, K, D, D) by dense linear algebra."""
    means, covariances = density.location.numpy(), density.covariances().numpy()
    shape = len(batch), density.n_components, density.n_features
    mean, covariance = np.zeros(shape), np.zeros((*shape, shape[2]))
    for row, k, seen, x in _patterns(density, batch):
        hidden = ~seen
        mean[row, k, seen] = x[seen]
        moments = _regress(means[k], covariances[k], seen, x)
        mean[row, k, hidden], covariance[row, k][np.ix_(hidden, hidden)] = moments
    return mean, covariance


def _regress(
    mean: np.ndarray, covariance: np.ndarray, seen: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the features that are not seen, given those of the row that are."""
    hidden, across = ~seen, covariance[np.ix_(seen, ~seen)]
    gain = np.linalg.solve(covariance[np.ix_(seen, seen)], across).T
    found = mean[hidden] + gain @ (x[seen] - mean[seen])
    return found, covariance[np.ix_(hidden, hidden)] - gain @ across
