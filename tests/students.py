"""Student's t of every structure, and scipy's, for several tests."""

from dataclasses import replace

import numpy as np
import torch
from scipy.stats import multivariate_t

from mixtura.testing import Reference, make_density


def reference_of(density):
    """Scipy's t, and its conditional draws, with the dense scale matrices."""
    locations, scales = density.location.numpy(), density.scale.covariances().numpy()
    dof = density.dof.numpy()

    def logpdf(k, x, seen):
        marginal = multivariate_t(locations[k][seen], scales[k][np.ix_(seen, seen)], df=dof[k])
        return np.reshape(marginal.logpdf(x), len(x))

    def draw(k, x, seen, n, rng):
        missed, own = x - locations[k][seen], scales[k][np.ix_(seen, seen)]
        across = scales[k][np.ix_(~seen, seen)]
        mean = locations[k][~seen] + across @ np.linalg.solve(own, missed)
        rest = scales[k][np.ix_(~seen, ~seen)] - across @ np.linalg.solve(own, across.T)
        more = dof[k] + seen.sum()
        factor = (dof[k] + missed @ np.linalg.solve(own, missed)) / more
        found = multivariate_t(mean, factor * rest, df=more).rvs(n, random_state=rng)
        return found.reshape(n, -1)

    return Reference(logpdf, draw)


def make_student(structure, generator, **sizes):
    """Components with tails from heavy to nearly normal."""
    density = make_density(*structure, generator, **sizes)
    dof = torch.tensor([4.5, 9.0, 60.0], dtype=torch.float64)
    return replace(density, dof=dof[: density.n_components])
