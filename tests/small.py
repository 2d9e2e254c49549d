"""Small rows and settings, for several tests."""

import numpy as np
import torch

from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.engines import engine_of

X = np.random.default_rng(0).normal(size=(30, 3)) + np.repeat(np.arange(3), 10)[:, None] * 3.0
Y = np.repeat([0, 1, 2], 10)


def with_value(value, row=3, column=1):
    changed = X.copy()
    changed[row, column] = value
    return changed


def in_columns(x, y, weight=None, holes=None):
    """An engine of rows as they are."""
    n, width = x.shape
    weight = np.ones(n) if weight is None else weight
    x = x if holes is None else np.where(holes, np.nan, x)
    return engine_of(Matrix(x), y, weight, Scaling.identity(width), "cpu")


def mean_prior(estimator):
    """(C,) of the models that are averaged, by their weights."""
    model, blend = estimator.model_, estimator.model_.blend
    priors = [member.model.log_prior.exp() for member in (model, *blend.members)]
    return np.average(torch.stack(priors), axis=0, weights=blend.weights)


#: A quick generative fit, in which every statistic has a closed form.
PLAIN = {"n_components": 1, "density": "full", "objective": "likelihood", "prior_rows": 0}
