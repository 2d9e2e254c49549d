"""One model of the rows of a Dask cluster: partitions are placed, then the workers train it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from os import PathLike
from typing import TypeVar

import torch.distributed as dist
from sklearn.base import clone

from mixtura.data.given import ArrayLike
from mixtura.data.sharded import Shard
from mixtura.estimators import MixtureClassifier, MixtureDensity
from mixtura.exceptions import InvalidInputError

try:
    import pandas as pd
    from distributed import Client, Future, wait
except ImportError:
    raise ImportError("mixtura.dask needs Dask: pip install 'mixtura[dask]'.") from None

__all__ = ["fit"]

AnyEstimator = TypeVar("AnyEstimator", MixtureClassifier, MixtureDensity)

#: Seconds between two looks at whether all workers live.
_LOOK = 5.0


def fit(
    client: Client,
    estimator: AnyEstimator,
    frame: ArrayLike,
    y: str | None = None,
    sample_weight: str | None = None,
    *,
    checkpoint: str | PathLike[str] | None = None,
) -> AnyEstimator:
    """Fit an estimator to a data frame of Dask, on all workers of a cluster.

    Each worker gets partitions that stand side by side, and a process group of PyTorch (gloo) is
    started among them; the model is that of one process with all rows. Workers must be processes of
    their own, and idle.

    Parameters
    ----------
    client : of the cluster.
    estimator : a `MixtureClassifier` or `MixtureDensity` whose random_state is an int; it stays as
        it is.
    frame : a `dask.dataframe.DataFrame`, or whatever else has `to_delayed` and gives data frames of
        pandas.
    y, sample_weight : names of columns, or None.
    checkpoint : path of a file on the first worker, as in `MixtureClassifier.fit`.

    Returns
    -------
    The fitted estimator.
    """
    if not hasattr(frame, "to_delayed"):
        raise InvalidInputError(
            f"frame is a {type(frame).__name__}: pass a data frame of Dask, or call estimator.fit."
        )
    parts = frame.to_delayed()
    workers = _processes(client)[: len(parts)]
    size = len(workers)
    owners = [workers[place * size // len(parts)] for place in range(len(parts))]
    held = [client.compute(part, workers=[at]) for part, at in zip(parts, owners, strict=True)]
    meeting = client.submit(_address, workers=workers[:1], pure=False).result()
    tasks = [
        client.submit(
            _work,
            clone(estimator),
            [part for part, owner in zip(held, owners, strict=True) if owner == worker],
            (y, sample_weight, checkpoint),
            (meeting, rank, size),
            workers=[worker],
            pure=False,
        )
        for rank, worker in enumerate(workers)
    ]
    try:
        _watch(client, tasks, workers)
        return tasks[0].result()  # type: ignore[return-value]  # rank 0 gives one
    finally:
        client.cancel(tasks)


def _processes(client: Client) -> list[str]:
    """Addresses of the workers."""
    found = client.run(_identity)
    if not found:
        raise InvalidInputError("the cluster has no workers: start some.")
    if len({_identity(), *found.values()}) <= len(found):
        raise InvalidInputError(
            "workers are threads of one process, and a process group needs processes: start the "
            "cluster with processes=True."
        )
    return sorted(found)


def _identity() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _address() -> str:
    """Where the processes of a group can meet: a free port of this machine."""
    from distributed import get_worker

    host = get_worker().address.rpartition(":")[0].rpartition("/")[2]
    with socket.socket() as free:
        free.bind(("", 0))
        return f"tcp://{host}:{free.getsockname()[1]}"


def _work(
    estimator: AnyEstimator,
    parts: list[pd.DataFrame],
    told: tuple[str | None, str | None, str | PathLike[str] | None],
    group: tuple[str, int, int],
) -> AnyEstimator | None:
    """Fit, as one process of a group; the first gives the model back."""
    (y, weight, checkpoint), (meeting, rank, size) = told, group
    if dist.is_initialized():
        raise InvalidInputError("the workers are at another fit: one at a time.")
    dist.init_process_group("gloo", meeting, rank=rank, world_size=size)
    try:
        dist.barrier()  # who ends, by an error, while others still look for it leaves them waiting
        rows = pd.concat(parts, ignore_index=True)
        absent = [name for name in (y, weight) if name is not None and name not in rows]
        if absent:
            raise InvalidInputError(
                f"frame has no column {absent[0]!r} for y or sample_weight, but "
                f"{', '.join(map(repr, rows))}."
            )
        answers = [None if name is None else rows.pop(name).to_numpy() for name in (y, weight)]
        estimator.fit(Shard(rows), *answers, checkpoint=checkpoint)
    finally:
        dist.destroy_process_group()
    return estimator if rank == 0 else None


def _watch(client: Client, tasks: list[Future], workers: list[str]) -> None:
    """Wait until all have ended well; a worker that is gone, or an error, ends the waiting."""
    while pending := [task for task in tasks if task.status == "pending"]:
        with suppress(TimeoutError):
            wait(pending, timeout=_LOOK, return_when="FIRST_COMPLETED")
        for task in tasks:
            if task.status == "error":
                task.result()
        gone = [worker for worker in workers if worker not in client.nthreads()]
        if gone:
            raise ConnectionError(
                f"the worker {gone[0]} is gone: fit again. With checkpoint= a fit goes on where it "
                "was, with as many workers as there are."
            )
