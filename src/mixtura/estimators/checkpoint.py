"""Fits that can be interrupted: sums over their rows are kept in a file until they have ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from os import PathLike

import numpy as np

from mixtura.data import Matrix
from mixtura.data.journal import Journal
from mixtura.data.lazy import chunks_of
from mixtura.data.sharded import OWN, ShardedRows
from mixtura.estimators.base import DensityEstimator
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.fitted import Observations

#: Rows that are read at a time to tell whether a checkpoint is of the same table.
_AT_ONCE = 2**16


@contextmanager
def checkpointed(
    estimator: DensityEstimator,
    rows: Observations,
    answers: tuple[np.ndarray, ...],
    path: str | PathLike[str] | None,
) -> Iterator[Observations]:
    """The rows; with a path, sums over them are those of its file, or are written into it.

    `answers` are labels and weights (n,). The file is gone once the fit has ended well.
    """
    if path is None:
        yield rows
        return
    settings = estimator.get_params(deep=False)
    if not isinstance(settings["random_state"], int | np.integer):
        raise InvalidInputError(
            "a checkpoint needs a random_state that is an int: a fit that is resumed draws as it "
            "did before."
        )
    if settings["max_time"] is not None or settings["warm_start"]:
        raise UnsupportedError(
            "a checkpoint tells what a fit comes to from its rows and parameters alone: set "
            "max_time=None and warm_start=False."
        )
    if not isinstance(rows, Matrix) or isinstance(rows.values, ShardedRows):
        raise UnsupportedError("a checkpoint is of a table, or of files, in one process.")
    told = {name: repr(value) for name, value in settings.items() if name not in OWN}
    digest = hashlib.sha256()
    for each in chain(answers, (part for _, part in chunks_of(rows.values, _AT_ONCE))):
        digest.update(np.ascontiguousarray(each).data)
    journal = Journal(path, f"{told} {rows.values.shape} {digest.hexdigest()}")
    finished = False
    try:
        yield replace(rows, journal=journal)
        finished = True
    finally:
        journal.close(finished)
