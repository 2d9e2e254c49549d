"""What mixtures over features and targets say of the targets, given the features."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data import Batch
from mixtura.data.targets import without_targets
from mixtura.densities.gaussian import Gaussian
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture


def log_conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n,) log density of the targets that are observed, given the features."""
    known = without_targets(batch, n_targets)
    return (mixture.outputs(batch) - mixture.outputs(known))[:, 0]


def conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n, K, 1 + 2 T) what each component says of the targets, given the features.

    Log shares of the components, means and log deviations. A conditional variance is a ratio of
    determinants, which stand in the log densities at the means.
    """
    known, part = without_targets(batch, n_targets), mixture.density
    if not isinstance(part, Gaussian):
        raise UnsupportedError(
            f"{type(part).__name__} is no Gaussian, and what it says of some columns given others "
            "has no closed form: use a density of Gaussians, such as 'full' or 'low_rank'."
        )
    assert known.observed is not None
    share = mixture.log_joint(known).log_softmax(1)
    mean, without = part.expected(known)[..., -n_targets:], part.distances(known)[1]
    log_deviation = []
    for place in range(-n_targets, 0):
        observed = known.observed.clone()
        observed[:, place] = True
        beside = part.distances(Batch(known.x, observed, known.y, known.weight))[1]
        log_deviation.append(without - beside - 0.5 * LOG_2PI)
    return torch.cat([share[..., None], mean, torch.stack(log_deviation, 2)], 2)
