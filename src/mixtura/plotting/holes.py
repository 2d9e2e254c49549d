"""The same rows with entries missing at random."""

from __future__ import annotations

import numpy as np

from mixtura.data.given import ArrayLike


def with_holes(X: ArrayLike, share: float, generator: np.random.Generator) -> ArrayLike:
    """Rows of which each entry is missing with a chance `share`, in the form that they have.

    X is an array, a data frame, or a list of sequences (T_i, d).
    """
    if share == 0.0:
        return X
    if isinstance(X, list):
        return [with_holes(each, share, generator) for each in X]
    gone = generator.random(np.shape(X)) < share
    if hasattr(X, "iloc"):
        return X.mask(gone)
    if hasattr(X, "columns"):
        columns = {
            name: [None if hole else value for value, hole in zip(X[name], holes, strict=True)]
            for name, holes in zip(X.columns, gone.T, strict=True)
        }
        return type(X)(columns, schema=X.schema)
    X = np.asarray(X)
    kept = X.astype(np.float64) if X.dtype.kind in "biu" else X.copy()
    kept[gone] = np.nan
    return kept
