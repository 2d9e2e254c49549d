"""`torchrun ... -m mixtura fit`: processes that learn from a share of the rows each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from mixtura.data.given import ArrayLike
from mixtura.distributed import Shard
from mixtura.parquet import Source


@dataclass(frozen=True)
class Processes:
    """This process, and how many there are."""

    rank: int = 0
    size: int = 1

    @classmethod
    @contextmanager
    def of_torchrun(cls) -> Iterator[Processes]:
        """Those that torchrun has started; this one alone where it has not."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            yield cls()
            return
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("gloo")
        try:
            yield cls(dist.get_rank(), size)
        finally:
            dist.destroy_process_group()

    def share(
        self, X: pd.DataFrame | Source, y: np.ndarray | str | None
    ) -> tuple[ArrayLike, np.ndarray | str | None]:
        """The rows of this process: row groups of files, or as many rows of a table as others."""
        if self.size == 1:
            return X, y
        if isinstance(X, Source):
            return Shard(X.share(self.rank, self.size)), y
        mine = slice(*(len(X) * each // self.size for each in (self.rank, self.rank + 1)))
        return Shard(X.iloc[mine]), y[mine] if isinstance(y, np.ndarray) else y
