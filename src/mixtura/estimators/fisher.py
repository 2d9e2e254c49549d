"""FisherScores: how a fitted density would have to change to explain a row better."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
)
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags, get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import ArrayLike, Fittable, Setting
from mixtura.estimators.answering import DensityEstimator
from mixtura.estimators.base import Estimator
from mixtura.exceptions import UnsupportedError
from mixtura.models.mixture import Mixture

#: Rows at a time, and numbers they may need: each meets the copies of the model of all others.
_TOGETHER, _MOST_NUMBERS = 16, 2e7


class FisherScores(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MetaEstimatorMixin, Estimator
):
    """The gradient of the log density of each class by its parameters, row by row.

    Rows become vectors that say how they differ from what the model expects, whatever they were
    before: sequences of unequal length, or rows with holes. Scaled and handed to a support vector
    machine they are the Fisher kernel.

    Parameters
    ----------
    estimator : a generative estimator of mixtura, such as
        `SequenceMixtureClassifier(method="ml")`, `MixtureClassifier` or `MixtureDensity`.
        scikit-learn's `FrozenEstimator` around it keeps a fitted one as it is.

    Attributes
    ----------
    estimator_ : the fitted estimator.
    n_features_in_, feature_names_in_ : where the estimator has them

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn.svm import SVC
    >>> from mixtura import FisherScores, SequenceMixtureClassifier
    >>> from mixtura.datasets import make_hmm_sequences
    >>> generative = SequenceMixtureClassifier(2, method="ml", calibrate=False, random_state=0)
    >>> model = make_pipeline(FisherScores(generative), StandardScaler(), SVC())
    >>> rows = make_hmm_sequences(30, random_state=0)
    >>> model.fit(rows.data, rows.target).predict(rows.data).shape
    (60,)
    """

    _parameter_constraints: dict = {"estimator": [HasMethods(["fit"])]}

    def __init__(self, estimator: Fittable) -> None:
        self.estimator = estimator

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike = None, **fit_params: Setting) -> Self:
        """Fit a clone of the estimator."""
        _with_density(self.estimator)
        self.estimator_ = _with_density(clone(self.estimator).fit(X, y, **fit_params))
        mixture = self.estimator_.mixture_
        self._n_features_out = sum(
            value[0].numel() * len(value) for value in _parameters(mixture).values()
        )
        return self

    @property
    def n_features_in_(self) -> int:
        """Columns of X that `fit` saw."""
        check_is_fitted(self)
        return self.estimator_.n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of these columns."""
        check_is_fitted(self)
        return self.estimator_.feature_names_in_

    def transform(self, X: ArrayLike) -> np.ndarray:
        """(n, P) gradients, in the units that the model works in."""
        check_is_fitted(self)
        engine = self.estimator_._engine(X)
        mixture = self.estimator_.mixture_.to(engine.device)
        cost = float(engine.sizes.max()) * mixture.density.row_cost(engine.may_have_missing)
        height = int(np.clip((_MOST_NUMBERS / cost) ** 0.5, 1, _TOGETHER))
        parts = (
            fisher_scores(mixture, engine.batch(slice(start, start + height)))
            for start in range(0, len(engine), height)
        )
        return torch.cat([part.cpu() for part in parts]).double().numpy()


def _with_density(estimator: Fittable) -> DensityEstimator:
    """The estimator, out of its wrapping; an error if it has no density."""
    inner = estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
    if not isinstance(inner, DensityEstimator):
        raise UnsupportedError(
            f"{type(estimator).__name__} has no density of this library: use "
            "SequenceMixtureClassifier, MixtureClassifier, BoostedMixtureClassifier or "
            "MixtureDensity."
        )
    return inner


def _parameters(mixture: Mixture) -> dict[str, Tensor]:
    """What a gradient is taken by; a single component's weight is no parameter."""
    several = mixture.n_components > mixture.n_classes
    weight = {"log_weight": mixture.log_weight} if several else {}
    return {**mixture.density.free(), **weight}


def fisher_scores(mixture: Mixture, batch: Batch) -> Tensor:
    """d log p(x | c) / d parameters of class c, for all classes, (n, P).

    Every row has a copy of the model to itself, so that one backward pass gives all gradients.
    """
    n, n_components, layout = len(batch), mixture.n_components, mixture.layout
    copies = mixture.density.select(
        torch.arange(n_components, device=mixture.owner.device).repeat(n)
    )
    leaves = {k: v.detach().requires_grad_() for k, v in copies.free().items()}
    weight = mixture.log_weight.repeat(n, 1).requires_grad_()
    log_prob = copies.from_free(leaves).log_prob(batch).view(n, n, n_components)
    own = log_prob.diagonal(dim1=0, dim2=1).mT
    by_class = layout.logsumexp(own + weight) - layout.logsumexp(weight)
    if n_components > mixture.n_classes:
        leaves["log_weight"] = weight
    gradients = torch.autograd.grad(by_class.sum(), list(leaves.values()))
    return torch.cat([gradient.reshape(n, -1) for gradient in gradients], 1)
