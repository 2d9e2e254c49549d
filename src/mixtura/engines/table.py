"""The one place where what a user passes becomes tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cache
from typing import ClassVar, Generic, Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch, hashed, index_of, odd_factors, spread
from mixtura.data.journal import Journal, Sums
from mixtura.data.kept import Kept
from mixtura.data.lazy import (
    SCAN_ROWS,
    LargeRows,
    LazyRows,
    MappedRows,
    Marked,
    chunks_of,
    is_memory_mapped,
)
from mixtura.data.meter import spent_on, waited_for
from mixtura.data.scaling import Scaling
from mixtura.data.sequences import AnyBatch
from mixtura.data.sharded import ShardedRows
from mixtura.exceptions import InvalidInputError

#: Sums over fewer numbers are not worth to be written down.
_WORTH = 2**20
#: Numbers of a table up to which chunks are kept, with what follows from them.
_KEPT = 2**22
#: Rows whose labels and weights are looked at together.
_AT_ONCE = 2**20
#: Rows that are put into other units at a time.
_MOVED_ROWS = 512
#: Bytes of an array that goes back to the system when it is done with, and of a page.
_LARGE, _PAGE = 2**25, 2**13


class Table(Generic[AnyBatch]):
    """Rows of a user's matrix as batches of tensors: what engines keep.

    A matrix in memory is converted once and stays on the device. Lazy rows, or a memory-mapped
    matrix, stay on disk, and a large one of complete rows stays as it is where the units are lines
    and a CPU works on them: each batch is read and converted when asked for; a part of few rows
    comes into memory.

    Attributes
    ----------
    y : (n,) class of each row, -1 where it has none; or its target, NaN where it has none.
    weight : (n,) weights: positive, but for copies that count against others.
    scaling : the map from the user's units into those of the rows.
    single : whether the rows came in float32; they are in double precision all the same.
    """

    #: Most rows (or frames) of a chunk, by device.
    most_rows: ClassVar[dict[str, int]] = {"cpu": 16_384, "cuda": 1_048_576}
    #: Most numbers of a chunk of complete rows on a CPU: arrays below `_LARGE` can be kept.
    most_numbers: ClassVar[int] = 4_000_000
    #: Numbers of complete rows up to which a matrix is copied, in the units of the model, on a CPU.
    most_copied: ClassVar[float] = 2**24

    def __init__(
        self,
        X: np.ndarray | LazyRows,
        y: np.ndarray | Tensor | None = None,
        weight: np.ndarray | Tensor | None = None,
        *,
        scaling: Scaling,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
        untold: np.ndarray | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.scaling, self.device, self.dtype = scaling, device, dtype
        if device.type == "cpu":
            _keep_freed_memory()
        self._journal = journal
        self.single = getattr(X, "dtype", None) == np.float32
        self._chunks: dict[int, list[AnyBatch]] = {}
        self._lazy = self._left_in_place(X)
        self.y = _column(0 if y is None else y, len(X), None, device)
        self.weight = _column(1.0 if weight is None else weight, len(X), dtype, device)
        self._observed: Tensor | None = None
        self._absent: Tensor | None = None
        if self._lazy is not None:
            whole = not self.y.is_floating_point() and self.y.stride() != (0,)
            self.y = self.y.int() if whole and self.y.element_size() > 4 else self.y
        else:
            assert isinstance(X, np.ndarray)
            self.y, self.weight = self.y.contiguous(), self.weight.contiguous()
            self._x, self._observed = self._convert(X)
            self._absent = None if untold is None else self._absence_codes(X, untold)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n_features(self) -> int:
        return len(self.scaling.location)

    @property
    def uniform(self) -> bool:
        """Whether all batches of as many rows have tensors of the same shapes, on the device."""
        return self._lazy is None or self._in_place

    @property
    def _in_place(self) -> bool:
        """Whether rows are read from an array in memory."""
        return isinstance(self._lazy, LargeRows)

    @property
    def n_sharing(self) -> int:
        """Processes that share the work on a minibatch: each has its rows of it."""
        return 1 if self._lazy is None else self._lazy.n_processes

    @property
    def is_recorded(self) -> bool:
        """Whether sums are written down, so that a fit can be interrupted."""
        return self._journal is not None and len(self) * self.n_features >= _WORTH

    @property
    def sizes(self) -> Tensor:
        """(n,) how many densities of single frames the density of each row is made of."""
        return torch.ones((), dtype=self.dtype, device=self.device).expand(len(self))

    @property
    def _told_missing(self) -> bool | None:
        """Whether an entry is missing; None where only a look at all rows would tell."""
        return self._observed is not None if self._lazy is None else self._lazy.has_missing

    @property
    def has_holes(self) -> bool:
        """Whether an entry is missing; of a file, every part is looked at, if need be."""
        told, lazy = self._told_missing, self._lazy
        if told is not None or lazy is None:
            return bool(told)
        starts = range(0, len(lazy), SCAN_ROWS)
        return any(np.isnan(lazy[start : start + SCAN_ROWS]).any() for start in starts)

    @property
    def _farthest(self) -> float:
        """The largest value: squares and their sums stay finite."""
        return float(torch.finfo(self.dtype).max ** 0.25)

    def _left_in_place(self, X: np.ndarray | LazyRows) -> LazyRows | None:
        """Rows that stay where they are; None for those that are converted once."""
        if isinstance(X, LazyRows):
            return X
        if is_memory_mapped(X):
            return MappedRows(X)
        quick = self.device.type == "cpu" and not self._shaped  # a line takes little time
        if X.size <= self.most_copied or not quick:
            return None
        holes = (np.isnan(part).any() for _, part in chunks_of(X, SCAN_ROWS))
        return None if any(holes) else LargeRows(X)

    def _convert(self, X: np.ndarray | Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows on the device, zero where an entry is missing; and which entries are not."""
        step = len(X) if self.device.type == "cpu" else self.most_rows["cuda"]
        parts = [self._converted(X[at : at + step]) for at in range(0, len(X), step or 1)]
        if len(parts) == 1:
            return parts[0]
        x = torch.cat([x for x, _ in parts] or [self._in_units(X).to(self.dtype)])
        if all(observed is None for _, observed in parts):
            return x, None
        return x, torch.cat([_whole(x) if seen is None else seen for x, seen in parts])

    def _converted(self, X: np.ndarray | Tensor) -> tuple[Tensor, Tensor | None]:
        x, farthest = self._in_units(X), self._farthest
        if x.is_cuda and self._lazy is not None and self._lazy.has_missing is False:
            return x.clamp_(-farthest, farthest).to(self.dtype), None  # without waiting for the GPU
        low, high = (float(each) for each in x.aminmax())
        if -farthest <= low and high <= farthest:  # no NaN
            return x.to(self.dtype), None
        missing = x.isnan()
        x = x.clamp_(-farthest, farthest).to(self.dtype)
        return (x.masked_fill(missing, 0.0), ~missing) if missing.any() else (x, None)

    def _in_units(self, X: np.ndarray | Tensor) -> Tensor:
        """In the model's units, in float64 so that offsets do not eat the digits."""
        rows = X if isinstance(X, Tensor) else self._moved(X)
        if self._shaped:
            return rows
        units = self.scaling.location, self.scaling.scale
        location, scale = (torch.from_numpy(each).to(self.device) for each in units)
        return rows.sub(location).mul_(scale.reciprocal())  # half the time of quotients

    def _moved(self, X: np.ndarray) -> Tensor:
        """On the device; in the model's units already where these are more than a line."""
        rows = self.scaling.apply(X) if self._shaped else _shareable(X)
        return torch.from_numpy(rows).to(self.device, non_blocking=True)

    @property
    def _shaped(self) -> bool:
        return self.scaling.curves is not None or self.scaling.indicators is not None

    def _absence_codes(self, X: np.ndarray, untold: np.ndarray) -> Tensor:
        """What the rows came without, where that is not known of all entries."""
        codes = np.where(untold, -1, np.isnan(X)).astype(np.int8)
        return torch.from_numpy(codes).to(self.device)

    def _rows_at(self, index: slice | Tensor) -> AnyBatch:
        """The rows at `index`."""
        if self._lazy is None:
            observed = None if self._observed is None else self._observed[index]
            absent = None if self._absent is None else self._absent[index]
            return self._batch(self._x[index], observed, index, absent)
        with spent_on("read"):
            rows = self._lazy[index if isinstance(index, slice) else index.cpu().numpy()]
        return self._batch(*self._convert(rows), index)

    def own_batch(self, index: Tensor) -> AnyBatch:
        """Of the rows at `index` those of this process; one that counts for nothing if none is."""
        assert isinstance(self._lazy, ShardedRows)
        with spent_on("read"):
            mine, rows = self._lazy.at_hand(index.cpu().numpy())
        if not len(rows):
            return self._nobody()
        return self._batch(*self._convert(rows), index[torch.from_numpy(mine).to(index.device)])

    def _batch(
        self, x: Tensor, observed: Tensor | None, at: slice | Tensor, absent: Tensor | None = None
    ) -> AnyBatch:
        """Tensors of the rows at some places, with their labels and weights."""
        y, weight = _as_index(self.y[at]), self.weight[at]
        rows = Batch(x, observed, y, weight, absent, self.scaling.origin)
        return rows  # type: ignore[return-value]  # sequences make batches of their own

    def _rows_in_order(self, n_rows: int) -> Iterator[AnyBatch]:
        """The rows at hand, `n_rows` at a time: all, or those of this process."""
        if self._lazy is not None:
            chunks = waited_for(self._lazy.chunks(n_rows))
            for at, rows in self._moved_ahead(chunks) if self.device.type == "cuda" else chunks:
                yield self._batch(*self._convert(rows), at)
            return
        yield from self._chunks.get(n_rows) or self._parts(n_rows)

    def _moved_ahead(
        self, chunks: Iterator[tuple[slice, np.ndarray]]
    ) -> Iterator[tuple[slice, Tensor]]:
        """The same rows on the GPU, which gets the next ones while it works on the last."""
        copying, working = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        ahead: list[tuple[slice, Tensor]] = []
        for at, rows in chunks:
            with torch.cuda.stream(copying):
                moved, there = self._moved(rows), copying.record_event()
            moved.record_stream(working)
            yield from ahead
            working.wait_event(there)
            ahead = [(at, moved)]
        yield from ahead

    def _parts(self, n_rows: int) -> Iterator[AnyBatch] | list[AnyBatch]:
        """Chunks of rows in memory."""
        starts = range(0, max(len(self), 1), n_rows)
        parts = (self._rows_at(slice(start, start + n_rows)) for start in starts)
        if self._x.numel() > _KEPT:
            return parts
        self._chunks.clear()  # views of the same rows share what is kept
        self._chunks[n_rows] = list(parts)
        return self._chunks[n_rows]

    def minibatch_indices(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Positions of all rows in random order, `size` at a time."""
        if self._lazy is not None:
            minibatches = self._lazy.minibatches
            if self.n_sharing > 1 and isinstance(self._lazy, ShardedRows):
                minibatches = self._lazy.own_minibatches
            yield from (index.to(self.device) for index in minibatches(size, generator))
            return
        order = torch.randperm(len(self), generator=generator).to(self.device)
        yield from order.split(size)

    def __getstate__(self) -> dict[str, object]:
        """Copies may get other rows."""
        return {**vars(self), "_chunks": {}}

    def take(self, index: np.ndarray | Marked) -> Self:
        """The rows at the integer positions `index`."""
        part = copy(self)
        if self._lazy is not None and not self._lazy.comes_whole(index):
            part.y, part.weight = _taken(self.y, index), _taken(self.weight, index)
            part._lazy = self._lazy.view(index)
            return part
        index = np.asarray(index)
        at = torch.as_tensor(index, device=self.device)
        part.y, part.weight = _as_index(self.y[at]), self.weight[at]
        if self._lazy is None:
            part._x = self._x[at]
            part._observed = None if self._observed is None else self._observed[at]
            part._absent = None if self._absent is None else self._absent[at]
        else:
            part._x, part._observed = self._convert(self._lazy[index])
            if self._lazy.has_missing and part._observed is None:
                part._observed = _whole(part._x)
            part._lazy = None
        return part

    def row_keys(self) -> np.ndarray:
        """(n,) numbers as good as random, the same for copies of a row (but for rounding)."""
        factors = odd_factors(self.n_features)
        keys = [
            torch.from_numpy(hashed(batch, factors).view(np.int64))  # type: ignore[arg-type]
            for batch in self._rows_in_order(SCAN_ROWS)
        ]
        return self.joined(keys).numpy().view(np.uint64)

    def recorded(self, compute: Callable[[], Sums]) -> Sums:
        """Sums that a journal has, or that are computed and written into it, if there is one."""
        if self._journal is None or not self.is_recorded:
            return compute()
        return self._journal.next(compute, self.device)

    def reduced(self, sums: Sums, function: Callable[[AnyBatch], Sums]) -> Sums:
        """Sums over all rows, from those that `function` gives for the rows at hand."""
        if self._lazy is None:
            return sums
        return self._lazy.reduced(sums or function(self._nobody()))

    def _nobody(self) -> AnyBatch:
        """A row that counts for nothing."""
        x = torch.zeros(1, self.n_features, dtype=self.dtype, device=self.device)
        nothing = torch.zeros_like(self.weight[:1])
        row = Batch(x, None, _as_index(torch.zeros_like(self.y[:1])), nothing)
        return row  # type: ignore[return-value]  # sequences are in memory

    def joined(self, parts: list[Tensor]) -> Tensor:
        """What was found for each row, from that for the chunks at hand."""
        if self._lazy is not None:
            parts = [part for found in self._lazy.shared(parts) for part in found]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def with_answers(self, y: Tensor | None = None, weight: Tensor | None = None) -> Self:
        """The same rows with other labels or weights, (n,)."""
        part = copy(self)
        part.y = self.y if y is None else y
        part.weight = self.weight if weight is None else weight
        return part

    def under(self, scaling: Scaling) -> Self:
        """The same rows in other units."""
        part = copy(self)
        part.scaling = scaling
        if self._lazy is not None and not (self._in_place and part._shaped):
            return part
        count = len(self) if self._in_place else len(self._x)  # of sequences, those are frames
        x = torch.empty(count, len(scaling.scale), dtype=self.dtype, device=self.device)
        for start in range(0, len(x), _MOVED_ROWS):  # of one row there may be many numbers
            rows = slice(start, start + _MOVED_ROWS)
            values = self._moved_to(scaling, rows)
            x[rows] = torch.from_numpy(values).clamp(-self._farthest, self._farthest)
        if scaling.origin is not None:
            first = index_of(scaling.origin[0], self.device)
            observed, absent = self._observed, self._absent
            part._observed = None if observed is None else spread(observed, scaling.origin)
            part._absent = None if absent is None else absent[:, first]
        part._x = x if part._observed is None else x.masked_fill_(~part._observed, 0.0)
        part._lazy = None
        return part

    def _moved_to(self, scaling: Scaling, rows: slice) -> np.ndarray:
        """Rows in memory in other units."""
        if self._lazy is not None:
            return scaling.apply(self._lazy[rows])
        return scaling.moved(self._x[rows].double().cpu().numpy(), self.scaling)

    def lazily(self) -> Self:
        """The same rows, put into units when they are asked for: one may have many numbers then.

        Rows in memory that know why entries are missing stay there.
        """
        part = copy(self)
        if isinstance(self._lazy, LargeRows):
            part._lazy = self._lazy.mapped()
            return part
        if self._lazy is not None or self._absent is not None:
            return self
        x = self._x if self._observed is None else self._x.masked_fill(~self._observed, np.nan)
        part._lazy = MappedRows(self.scaling.invert(x.double().cpu().numpy()))
        part._lazy.has_missing = self._observed is not None
        part._chunks, part._observed = {}, None
        del part._x
        return part

    def in_units(self, scaling: Scaling) -> Iterator[Self]:
        """The same rows in other units, so many at a time as have a bounded number of numbers."""
        step = max(1, self.most_numbers // len(scaling.scale))
        if (self._lazy is not None and not self._in_place) or len(self) <= step:
            yield self.under(scaling)
            return
        for start in range(0, len(self), step):
            some = np.arange(start, min(start + step, len(self)))
            yield self.take(some).under(scaling)

    def cast(self, dtype: torch.dtype) -> Self:
        """The same rows in another floating type."""
        if dtype == self.dtype:
            return self
        part = copy(self)
        one = self.weight.stride() == (0,)  # what all rows share is kept once
        weight = self.weight[:1].to(dtype).expand(len(self)) if one else self.weight.to(dtype)
        part.dtype, part.weight = dtype, weight
        if self._lazy is None:
            part._x = self._x.to(dtype)
        return part


@cache
def _keep_freed_memory() -> None:
    """Let the arrays of the next chunk of rows lie where those of the last one lay.

    The C library of Linux gives free memory back to the system once there is twice as much of it as
    the largest array had that was freed so far, and pages that come back have to be cleared: some
    passes over rows took 1.7 times as long as others. An array of almost 32 MiB makes that 64 MiB
    for the rest of the process, without its pages being touched. Free memory may hold two of them,
    so that the third is the one that counts.
    """
    arrays = [torch.empty(_LARGE - _PAGE, dtype=torch.uint8) for _ in range(3)]
    arrays.clear()


def _column(
    given: np.ndarray | Tensor | float, n_rows: int, dtype: torch.dtype | None, device: torch.device
) -> Tensor:
    """(n,) a value per row; one that all rows have is kept once."""
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        given = given[0].item() if n_rows and given.strides == (0,) else given.copy()
    if isinstance(given, int | float):
        return torch.full((), given, dtype=dtype, device=device).expand(n_rows)
    return torch.as_tensor(given, dtype=dtype, device=device)


def _shareable(X: np.ndarray) -> np.ndarray:
    """The same numbers, as PyTorch can look at: a copy of what it cannot."""
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    fit = X.dtype == dtype and X.flags.writeable and min(X.strides) >= 0
    return X if fit else np.array(X, dtype)


def _whole(x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.bool)


def row_by_row(function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """(n,) what a function gives for values (n,) of rows; it may be asked about some at a time."""
    if len(columns[0]) <= _AT_ONCE:
        return function(*columns)
    parts = zip(*(each.split(_AT_ONCE) for each in columns), strict=True)
    return _joined((function(*each) for each in parts), columns[0].device)


def _taken(values: Tensor, index: np.ndarray | Marked) -> Tensor:
    """The values at many places, some at a time; what is kept once stays so."""
    if values.stride() == (0,):
        return values[:1].expand(len(index))
    if len(index) <= _AT_ONCE:
        return values[torch.as_tensor(np.asarray(index), device=values.device)]
    places = (index[at : at + _AT_ONCE] for at in range(0, len(index), _AT_ONCE))
    parts = (values[torch.as_tensor(each, device=values.device)] for each in places)
    return _joined(parts, values.device)


def _joined(parts: Iterable[Tensor], device: torch.device) -> Tensor:
    """A value per row, as they come: those of very many rows are no memory of the process."""
    if device.type != "cpu":
        return torch.cat([*parts])
    kept = Kept()
    for part in parts:
        kept.add(part.numpy())
    return torch.from_numpy(kept.whole())


def _as_index(y: Tensor) -> Tensor:
    """Labels that may be kept as small numbers, as places of classes; targets as they are."""
    return y if y.is_floating_point() else y.long()


def resolve_device(device: str | torch.device, size: int) -> torch.device:
    """'auto' takes the GPU where there is one and the table is large enough to keep it busy."""
    if device == "auto":
        return torch.device("cuda" if size >= 1_000_000 and torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(
            f"device={device!r} cannot be used here ({str(error).splitlines()[0]}); "
            "use device='cpu' or 'auto'."
        ) from error
    return resolved
