"""Types of what users pass."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

#: A table, sequences, labels or weights: arrays, data frames, sparse matrices, lists. Its parts and
#: entries are as various; what they are is found out where they are read.
ArrayLike: TypeAlias = Any
#: One number, or one per class.
Numbers: TypeAlias = float | Sequence[float] | np.ndarray
#: Weights of classes by label, or "balanced".
ClassWeight: TypeAlias = Mapping[Any, float] | str | None
RandomState: TypeAlias = int | np.random.RandomState | None
Device: TypeAlias = "str | torch.device"
#: What one parameter of an estimator may be, and parameters by name.
Setting: TypeAlias = Any
Parameters: TypeAlias = dict[str, Setting]
#: Where a fit is kept while it lasts; and seconds between two times that it is written there.
Checkpoint: TypeAlias = str | PathLike[str] | tuple[str | PathLike[str], float]
#: A fitted estimator, of a file or a user: what it can answer is asked of it.
Loaded: TypeAlias = Any


class Fittable(Protocol):
    """What scikit-learn calls an estimator: ours, another's, or a pipeline."""

    @property
    def fit(self) -> Callable[..., Self]: ...
    def get_params(self, deep: bool = True) -> Parameters: ...
    def set_params(self, **params: Setting) -> Self: ...


class Predictor(Protocol):
    """What scikit-learn calls a predictor: ours, or another's."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self: ...
    def predict(self, X: ArrayLike) -> np.ndarray: ...
    def score(self, X: ArrayLike, y: ArrayLike) -> float: ...


class Classifier(Predictor, Protocol):
    """What scikit-learn calls a classifier, with probabilities."""

    @property
    def classes_(self) -> np.ndarray: ...
    def predict_proba(self, X: ArrayLike) -> np.ndarray: ...
