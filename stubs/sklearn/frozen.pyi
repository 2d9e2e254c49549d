from typing import Any, Generic, TypeVar

from sklearn.base import BaseEstimator

_Estimator = TypeVar("_Estimator")

class FrozenEstimator(BaseEstimator, Generic[_Estimator]):
    estimator: _Estimator
    def __init__(self, estimator: _Estimator) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
