"""A density of one's own, in one file: logistic components, with tails heavier than a Gaussian's.

Features are independent within a component, so what is missing is integrated out by leaving it out.
The maximum of the likelihood has no closed form: Adam and L-BFGS need none, and the M step of EM
goes by gradients. `MixtureClassifier(density=Logistic(floor=0.05))` is fitted, cloned, searched
(`density__floor`), and stored in model files by the path of its import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mixtura.densities import Batch, Structure, VectorDensity, rand

#: A logistic distribution of scale one has this standard deviation.
_DEVIATION = math.pi / math.sqrt(3.0)


@dataclass(frozen=True, kw_only=True)
class LogisticDensity(VectorDensity):
    """K products of logistic distributions.

    Attributes
    ----------
    mean, scale : (K, D).
    floor : the smallest variance that a feature may have.
    """

    mean: Tensor
    scale: Tensor
    floor: float

    @classmethod
    def from_clusters(cls, x, membership, floor, generator, **options):
        """A start with the means and variances of the clusters."""
        share = membership / membership.sum(0)
        mean = share.mT @ x
        variance = (share.mT @ x.square() - mean.square()).clamp_min(1.01 * floor)
        return cls(mean=mean, scale=variance.sqrt() / _DEVIATION, floor=floor)

    @property
    def location(self) -> Tensor:
        return self.mean

    def log_prob(self, batch: Batch) -> Tensor:
        mean, scale = self.mean.to(batch.x), self.scale.to(batch.x)
        z = (batch.x[:, None] - mean) / scale
        each = -z - 2.0 * softplus(-z) - scale.log()
        return (each if batch.observed is None else each * batch.observed[:, None]).sum(2)

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        level = rand(len(component), self.n_features, generator).to(self.mean)
        return self.mean[component] + self.scale[component] * level.logit(eps=1e-12)

    # -- gradients: any values of free parameters are a density -----------------------------------

    @property
    def _least(self) -> float:
        return math.sqrt(self.floor) / _DEVIATION

    def free(self) -> dict[str, Tensor]:
        above = (self.scale - self._least).clamp_min(1e-9 * self._least)
        return {"mean": self.mean, "log_scale": above.log()}

    def from_free(self, free: dict[str, Tensor]) -> LogisticDensity:
        return replace(self, mean=free["mean"], scale=self._least + free["log_scale"].exp())

    # -- answers: within a component, what is observed tells nothing of what is missing ------------

    def covariances(self) -> Tensor:
        return (_DEVIATION * self.scale).square().diag_embed()

    def expected(self, batch: Batch) -> Tensor:
        if batch.observed is None:
            return super().expected(batch)
        return torch.where(batch.observed[:, None], batch.x[:, None], self.mean.to(batch.x))

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        return batch.x if batch.observed is None else torch.where(batch.observed, batch.x, drawn)


@dataclass
class Logistic(Structure):
    """Logistic components; `floor` is the smallest variance, as a share of the feature's own."""

    floor: float = 0.01

    closed_form = False

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> LogisticDensity:
        return LogisticDensity.from_clusters(x, membership, self.floor, generator)


if __name__ == "__main__":
    from scipy.stats import logistic
    from sklearn.datasets import load_wine

    from mixtura import MixtureClassifier
    from mixtura.testing import check_density

    X, y = load_wine(return_X_y=True)
    model = MixtureClassifier(1, density=Logistic(), random_state=0).fit(X, y)
    density = model.mixture_.density

    def reference(component, x, observed):
        mean, scale = density.mean[component, observed], density.scale[component, observed]
        return logistic.logpdf(x, mean, scale).sum(1)

    check_density(density, torch.Generator().manual_seed(0), reference_logpdf=reference)
    print(f"as scipy has it, and {model.score(X, y):.3f} right")
