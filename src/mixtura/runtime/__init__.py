"""Saved models without PyTorch and scikit-learn: NumPy is all that `load` needs.

Answers are those of the estimator, in double precision.
"""

from __future__ import annotations

import os

from mixtura.data.given import ArrayLike
from mixtura.runtime.files import read_file
from mixtura.runtime.predictors import predictor

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> ArrayLike:
    """Read what `save` of an estimator of tables wrote, for prediction.

    Nothing of the file is executed, and no module that it names is imported.

    Raises
    ------
    FileNotFoundError : there is no such file.
    UnsupportedError : it holds what needs PyTorch: sequences, a density of your own.
    FileFormatError : the file is damaged, not a mixtura model, or of another version's format.
    """
    return read_file(path, predictor)
