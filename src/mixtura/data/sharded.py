"""Rows of which every process holds a shard: samples go to all, sums are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from sklearn.utils.validation import check_array
from torch import Tensor

from mixtura.data.columns import distinct, kind_of
from mixtura.data.given import ArrayLike, Parameters
from mixtura.data.in_memory import as_table
from mixtura.data.journal import Journal, Sums
from mixtura.data.labels import CodedLabels, read_labels_of
from mixtura.data.lazy import Found, LazyRows, Marked, Openable, Opened, source_of
from mixtura.data.matrix import Matrix
from mixtura.data.meter import spent_on
from mixtura.data.schema import Schema
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.version import version

#: So many rows, of a sample, are given to all processes.
_FEW_ROWS = 30_000

#: Parameters of an estimator that each process may set for itself.
OWN = {"device", "verbose"}

Made = TypeVar("Made")


class Shard(Openable):
    """The rows of this process, in place of X, where each process of a group holds some.

    All call `fit` with shards of the same columns, and all get the same model: that of one process
    with the rows of the first, of the second, and so on. Labels and weights are those of the shard.

    Parameters
    ----------
    X : a table, which may have no rows; or a path of Parquet files, or a `mixtura.parquet.Source`.
    group : of `torch.distributed`; None is the default group.
    """

    def __init__(self, X: ArrayLike, group: dist.ProcessGroup | None = None) -> None:
        self.X, self.group = X, group

    def opened(
        self, y: ArrayLike, sample_weight: ArrayLike, categorical_features: ArrayLike
    ) -> Opened:
        peers = Peers(self.group)
        mine = peers.together(lambda: self._local(y, sample_weight, categorical_features))
        schema = _merged(peers.gathered(mine.schema if len(mine) else None))
        values = peers.together(lambda: mine.encoded(schema))
        rows = ShardedRows(values, peers)
        labels = peers.gathered(mine.y)
        weight = peers.gathered(mine.weight)
        return Opened(
            rows, schema.with_empty(rows), _joined_labels(labels), _joined(weight, rows.counts)
        )

    def check_fit(self, settings: Parameters) -> None:
        """Refuse what would let processes part: other settings, seeds, or clocks."""
        told = {name: repr(value) for name, value in settings.items() if name not in OWN}
        own = {"the version of mixtura": version(), "the version of PyTorch": torch.__version__}
        Peers(self.group).check_alike({**own, **told})
        if not isinstance(settings["random_state"], int | np.integer):
            raise InvalidInputError(
                "random_state must be an int where processes work on one model, so that all draw "
                "the same."
            )
        if settings["max_time"] is not None:
            raise UnsupportedError(
                "max_time is told by the clock of each process, and they would part: set "
                "max_time=None, and max_iter of the solver."
            )

    def _local(self, y: ArrayLike, weight: ArrayLike, categorical_features: ArrayLike) -> _Local:
        """What this process was given."""
        source = source_of(self.X)
        if isinstance(source, Openable):
            found = source.opened(y, weight, categorical_features)
            return _Local(found.rows, found.schema, found.y, found.weight)
        table = as_table(self.X)
        schema = Schema.learn(table, categorical_features)
        y = None if y is None else read_labels_of(y, len(table))
        return _Local(table, schema, y, None if weight is None else np.asarray(weight))


class Peers:
    """The processes of a group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInputError(
                "a Shard needs the other processes: call torch.distributed.init_process_group in "
                "each of them, started by torchrun, say."
            )
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        nccl = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda" if nccl else "cpu")

    def gathered(self, found: Found) -> list[Found]:
        """What each process has found, in their order."""
        everyone: list[Found | None] = [None] * self.size
        with self._reaching():
            dist.all_gather_object(everyone, found, self._group)
        return everyone  # type: ignore[return-value]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over processes of a tensor that all have."""
        moved = values.to(self._device)
        with self._reaching():
            dist.all_reduce(moved, group=self._group)
        return moved.to(values.device)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """An exchange; where a process has died, the others say so."""
        try:
            with spent_on("communicate"):
                yield
        except RuntimeError as error:
            raise ConnectionError(
                f"rank {self.rank} has lost the other processes: one of them has failed, been "
                f"killed, or cannot be reached ({str(error).partition(chr(10))[0]}). Look for the "
                "error of that one, and start all of them again; a fit with checkpoint= goes on "
                "where it was, with as many processes as there are."
            ) from error

    def together(self, work: Callable[[], Made]) -> Made:
        """What work gives here; where it fails in one process, all say in which, and why."""
        failure = None
        try:
            made = work()
        except Exception as error:
            failure = error
        messages = self.gathered(None if failure is None else str(failure))
        for rank, message in enumerate(messages):
            if message is not None:
                raise InvalidInputError(f"rank {rank}: {message}") from failure
        return made

    def check_alike(self, settings: dict[str, str]) -> None:
        """Refuse settings that are not the same in all processes."""
        first, *others = self.gathered(settings)
        for rank, other in enumerate(others, 1):
            for name in first:
                if first[name] != other[name]:
                    raise InvalidInputError(
                        f"{name} must be the same in all processes: it is {first[name]} in rank 0, "
                        f"and {other[name]} in rank {rank}."
                    )


@dataclass(frozen=True)
class _Local:
    """What one process was given: a table or lazy rows, their columns, labels and weights."""

    rows: ArrayLike
    schema: Schema
    y: ArrayLike
    weight: ArrayLike

    def __len__(self) -> int:
        return len(self.rows)

    def encoded(self, schema: Schema) -> np.ndarray | LazyRows:
        """The rows as numbers and codes, by the categories of all processes."""
        if isinstance(self.rows, LazyRows):
            self.rows.recode(schema)
            return self.rows
        if not len(self):
            return np.empty((0, self.rows.shape[1]))
        given = schema.encode(self.rows)
        values = given.values if isinstance(given, Matrix) else given
        return check_array(values, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X")


def _merged(schemas: Sequence[Schema | None]) -> Schema:
    """The columns of all processes that have rows, with the categories of all."""
    known = {rank: schema for rank, schema in enumerate(schemas) if schema is not None}
    if not known:
        raise InvalidInputError("no process has rows: nothing to fit.")
    first, given = next(iter(known.items()))
    for rank, schema in known.items():
        if schema.names != given.names:
            raise InvalidInputError(
                f"rank {rank} has the columns {schema.names}, and rank {first} {given.names}."
            )
    width = max(len(schema.categories or ()) for schema in known.values())
    if not width:
        return given
    told = [schema.categories or (None,) * width for schema in known.values()]
    _refuse_mixed(known, told)
    categories = []
    for place, column in enumerate(zip(*told, strict=True)):
        found = [each for each in column if each is not None]
        kinds = {kind_of(each) for each in found} - {"nothing"}
        if len(kinds) > 1:
            raise InvalidInputError(f"column {place} holds {' and '.join(sorted(kinds))}.")
        kind = (kinds or {"nothing"}).pop()
        values = [value for each in found for value in each.tolist()]
        several = values if kind == "text" else np.array(values)
        categories.append(distinct(kind, several, f"column {place}")[0] if found else None)
    return Schema(given.names, tuple(categories))


def _refuse_mixed(known: Mapping[int, Schema], told: Sequence[Sequence[np.ndarray | None]]) -> None:
    """A column is text at all ranks that have values of it, or at none."""
    for place, column in enumerate(zip(*told, strict=True)):
        kinds = {
            kind_of(each): rank
            for (rank, schema), each in zip(known.items(), column, strict=True)
            if place not in schema.empty
        }
        others = [kind for kind in kinds if kind not in ("text", "nothing")]
        if "text" in kinds and others:
            names = next(iter(known.values())).names
            raise InvalidInputError(
                f"column {place if names is None else repr(names[place])} holds text at rank "
                f"{kinds['text']} and {others[0]} at rank {kinds[others[0]]}: give it one type."
            )


def _joined(parts: list[np.ndarray | None], counts: Sequence[int]) -> np.ndarray | None:
    """Weights of all rows; one where a process has none."""
    if all(part is None for part in parts):
        return None
    told = zip(parts, counts, strict=True)
    return np.concatenate([np.ones(n) if part is None else part for part, n in told])


def _joined_labels(parts: list[ArrayLike]) -> ArrayLike:
    """Labels of all rows; None where no process has any."""
    if all(part is None for part in parts):
        return None
    for rank, part in enumerate(parts):
        if part is None:
            raise InvalidInputError(f"rank {rank} has no labels, and others have.")
    if all(isinstance(part, CodedLabels) for part in parts):
        return CodedLabels.joined(parts)
    plain = [part.plain() if isinstance(part, CodedLabels) else part for part in parts]
    plain = [part for part in plain if len(part)] or plain[:1]
    alike = len({part.dtype.kind in "OUS" for part in plain}) == 1
    return np.concatenate(plain if alike else [part.astype(object) for part in plain])


class _SharedJournal(Journal):
    """Sums that all processes find again: rank 0 has the file."""

    def __init__(self, path: str | PathLike[str], fit: str, seconds: float, peers: Peers) -> None:
        self._peers, self._keeps = peers, peers.rank == 0
        peers.together(lambda: Journal.__init__(self, path, fit, seconds) if self._keeps else None)

    def next(self, compute: Callable[[], Sums], device: torch.device) -> Sums:
        known = self._peers.gathered(self._entry() if self._keeps else None)[0]
        return self._sums(known, compute, device)

    def _append(self, content: bytes) -> None:
        if self._keeps:
            super()._append(content)

    def close(self, finished: bool) -> None:
        if self._keeps:
            super().close(finished)


class ShardedRows(LazyRows):
    """Rows of all processes, those of the first before those of the second, and so on.

    All processes must ask for the same rows: each gives those that it holds.
    """

    _own: LazyRows | None = None  # those that minibatches are read from

    def __init__(self, local: np.ndarray | LazyRows, peers: Peers) -> None:
        self._local, self._peers = local, peers
        self.counts = peers.gathered(len(local))
        widths = peers.gathered(local.shape[1])
        for rank, width in enumerate(widths):
            if width != widths[0]:
                raise InvalidInputError(
                    f"rank {rank} has {width} features, and rank 0 has {widths[0]}."
                )
        super().__init__((sum(self.counts), widths[0]), np.dtype(np.float64))
        self.n_processes = peers.size
        missing = local.has_missing if isinstance(local, LazyRows) else np.isnan(local).any()
        self.has_missing = any(peers.gathered(bool(missing)))
        self._start = sum(self.counts[: peers.rank])
        self._stop = self._start + len(local)

    def comes_whole(self, index: np.ndarray | Marked) -> bool:
        """So do few rows, and those in another order than they have here."""
        ordered = isinstance(index, Marked) or bool((index[1:] >= index[:-1]).all())
        return len(index) <= _FEW_ROWS or not ordered

    @property
    def _here(self) -> tuple[int, int]:
        """Between which places stand the rows of this process."""
        if self._order is None:
            return self._start, self._stop
        first, last = np.searchsorted(self._order, [self._start, self._stop]).tolist()
        return first, last

    @property
    def n_here(self) -> int:
        return self._here[1] - self._here[0]

    @property
    def range_here(self) -> np.ndarray | None:
        local = self._local
        return local.range_here if self._order is None and isinstance(local, LazyRows) else None

    def _read(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self._whole[0]))
        mine = (index >= self._start) & (index < self._stop)
        found = np.zeros((len(index), self._whole[1]))
        found[mine] = self._local[index[mine] - self._start]
        return self._peers.summed(torch.from_numpy(found)).numpy()

    def chunks(self, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
        first, last = self._here
        for start in range(first, last, n_rows):
            at = slice(start, min(start + n_rows, last))
            if self._order is None:
                yield at, self._local[at.start - self._start : at.stop - self._start]
            else:
                yield at, self._local[self._order[at] - self._start]

    def own_minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The same as `minibatches`, where each process reads its own rows alone.

        In place of these stand others of its rows, where they lie in files.
        """
        (first, last), local, order = self._here, self._local, self._order
        if not isinstance(local, LazyRows):
            yield from self.minibatches(size, generator)
            return
        self._own = local if order is None else local.view(order[first:last] - self._start)
        coming, ready = None, torch.empty(0, dtype=torch.long)
        for index in self.minibatches(size, generator):
            coming = coming or self._own.minibatches(
                size,
                torch.Generator().manual_seed(int(index[0])),  # all draw the same before
            )
            mine = (index >= first) & (index < last)
            while len(ready) < mine.sum():
                ready = torch.cat([ready, first + next(coming)])
            index[mine], ready = ready.tensor_split([int(mine.sum())])
            yield index
        self._own = None

    def at_hand(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the places (n,) are those of rows of this process, and these rows."""
        first, last = self._here
        mine = (index >= first) & (index < last)
        if self._own is not None:
            return mine, self._own[index[mine] - first]
        places = index[mine] if self._order is None else self._order[index[mine]]
        return mine, self._local[places - self._start]

    def shared(self, found: Found) -> list[Found]:
        return self._peers.gathered(found)

    def journal(self, path: str | PathLike[str], fit: str, seconds: float) -> Journal:
        """The journal of all processes, which the first of them keeps."""
        return _SharedJournal(path, fit, seconds, self._peers)

    def reduced(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """One exchange, of as many numbers as there are in the sums."""
        flat = torch.cat([value.detach().double().flatten() for value in sums.values()])
        parts = self._peers.summed(flat).split([value.numel() for value in sums.values()])
        named = zip(sums.items(), parts, strict=True)
        return {name: part.view(value.shape).to(value) for (name, value), part in named}
