"""Fits that can be interrupted: sums over their rows are kept in a file until they have ended."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real

import numpy as np

from mixtura.data.batch import odd_factors
from mixtura.data.given import Checkpoint
from mixtura.data.journal import Journal
from mixtura.data.lazy import LazyRows, chunks_of, shared
from mixtura.data.matrix import Matrix
from mixtura.data.sharded import OWN, ShardedRows
from mixtura.estimators.answering import DensityEstimator
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.fitted import Observations
from mixtura.version import version

#: Rows that are read at a time to tell whether a checkpoint is of the same table.
_AT_ONCE = 2**16


@contextmanager
def checkpointed(
    estimator: DensityEstimator,
    rows: Observations,
    answers: tuple[np.ndarray, ...],
    checkpoint: Checkpoint | None,
) -> Iterator[Observations]:
    """The rows; with a checkpoint, sums over them are those of its file, or are written into it.

    `answers` are labels and weights (n,). The file is gone once the fit has ended well.
    """
    if checkpoint is None:
        yield rows
        return
    path, *rest = checkpoint if isinstance(checkpoint, tuple | list) else (checkpoint, 0.0)
    if len(rest) != 1 or not isinstance(rest[0], Real) or not 0.0 <= rest[0] < math.inf:
        raise InvalidInputError(
            f"checkpoint must be a path, or (path, seconds) with seconds >= 0: got {checkpoint!r}."
        )
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
    if not isinstance(rows, Matrix):
        raise UnsupportedError("a checkpoint is of a table, or of files.")
    told = {name: repr(value) for name, value in settings.items() if name not in OWN}
    digest = hashlib.sha256()
    for each in answers:
        for start in range(0, len(each), _AT_ONCE):
            digest.update(np.ascontiguousarray(each[start : start + _AT_ONCE]).data)
    fit = f"{version()} {told} {rows.values.shape} {_key(rows.values)} {digest.hexdigest()}"
    values: np.ndarray | LazyRows = rows.values
    make = values.journal if isinstance(values, ShardedRows) else Journal
    journal = make(path, fit, float(rest[0]))
    finished = False
    try:
        yield replace(rows, journal=journal)
        finished = True
    finally:
        journal.close(finished)


def _key(values: np.ndarray | LazyRows) -> int:
    """A number of 64 bits that tells rows, in their order, from others.

    It is a sum over rows, so that it is the same however many processes hold them.
    """
    total = np.zeros((), np.uint64)
    factors = odd_factors(values.shape[1])
    for at, rows in chunks_of(values, _AT_ONCE):
        bits = np.ascontiguousarray(rows, dtype=np.float64).view(np.uint64)
        keys = ((bits ^ (bits >> np.uint64(29))) * factors).sum(1)
        place = np.arange(at.start, at.start + len(rows), dtype=np.uint64)
        total += ((keys ^ (keys >> np.uint64(32))) * (2 * place + 1) * factors[0]).sum()
    return sum(map(int, shared(values, total))) % 2**64
