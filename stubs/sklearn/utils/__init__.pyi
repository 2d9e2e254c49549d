from typing import Any

import numpy as np

class InputTags:
    two_d_array: bool
    three_d_array: bool
    sparse: bool
    categorical: bool
    allow_nan: bool

class Tags:
    estimator_type: str | None
    input_tags: InputTags

class Bunch(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

def _safe_indexing(X: Any, indices: Any, *, axis: int = 0) -> Any: ...
def check_random_state(seed: Any) -> np.random.RandomState: ...
def column_or_1d(y: Any, *, dtype: Any = None, warn: bool = False) -> np.ndarray: ...
def compute_sample_weight(class_weight: Any, y: Any) -> np.ndarray: ...
def get_tags(estimator: object) -> Tags: ...
