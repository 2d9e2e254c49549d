"""Saved models without PyTorch and scikit-learn: NumPy is all that `load` needs.

Answers are those of the estimator, in double precision.
"""

from __future__ import annotations

import os
from pathlib import Path

from mixtura.data.given import ArrayLike
from mixtura.exceptions import FileFormatError, UnsupportedError
from mixtura.runtime.files import read
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
    if not Path(path).is_file():
        raise FileNotFoundError(f"no model file at {path}.")
    try:
        return predictor(*read(Path(path).read_bytes()))
    except (FileFormatError, UnsupportedError) as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:  # whatever goes wrong, the file is the cause
        raise FileFormatError(
            f"{path} is damaged or not a model file ({error!r}): restore it from a copy."
        ) from error
