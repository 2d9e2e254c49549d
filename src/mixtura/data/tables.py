"""The one place where what a user passes becomes tensors."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data.curves import Curves
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.parts import storable

UNLABELED = -1
_SCAN_ROWS = 16_384
_LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True)
class Batch:
    """Rows ready for a model, in the model's units.

    Attributes
    ----------
    x : (n, D), zero where a feature is missing.
    observed : (n, D) bool, or None when nothing is missing.
    y : (n,) class index, -1 for unlabeled rows.
    weight : (n,) non-negative weights.
    absent : (n, D) what the rows came without: 1 for absent, 0 for present, -1 for no telling.
        None: all that is not observed is absent. Holes that are punched into a row are none of its
        own.
    """

    x: Tensor
    observed: Tensor | None
    y: Tensor
    weight: Tensor
    absent: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: slice | Tensor) -> Batch:
        """The rows at `index` (slice, mask or indices)."""
        observed = None if self.observed is None else self.observed[index]
        absent = None if self.absent is None else self.absent[index]
        return Batch(self.x[index], observed, self.y[index], self.weight[index], absent)

    def to(self, dtype: torch.dtype) -> Batch:
        """The same rows in another floating type."""
        return replace(self, x=self.x.to(dtype), weight=self.weight.to(dtype))

    def lacks(self) -> Tensor:
        """(n, D) what the rows came without, as in `absent`."""
        if self.absent is not None:
            return self.absent
        if self.observed is None:
            return torch.zeros_like(self.x, dtype=torch.int8)
        return (~self.observed).to(torch.int8)

    def unpacked(self, values: Tensor) -> Tensor:
        """Values by row, in the order in which the rows were given: as they are."""
        return values

    def as_met(self) -> Batch:
        """The rows as at prediction, where a hole that was punched is absent like any other."""
        if self.absent is None or self.observed is None:
            return self
        absent = torch.where(self.absent < 0, self.absent, (~self.observed).to(self.absent))
        return replace(self, absent=absent)

    def missing_share(self) -> Tensor:
        """(n,) share of the features that each row lacks."""
        if self.observed is None:
            return self.weight.new_zeros(len(self), dtype=torch.float64)
        return (~self.observed).double().mean(1)

    def sum_observed(self, values: Tensor) -> Tensor:
        """(n,) sums of values, (D,) or (n, D), over the observed features of each row."""
        if self.observed is None:
            return values.sum(-1).expand(len(self))
        return (self.observed * values).sum(1)

    def with_punched(self, share: float, generator: torch.Generator) -> Batch:
        """The rows and, beside each, a copy with random holes; the two share its weight.

        Every copy loses a share of its features of its own, `share` on average.
        """
        rate = 2.0 * share * torch.rand(len(self), 1, generator=generator)
        kept = (torch.rand(self.x.shape, generator=generator) >= rate).to(self.x.device)
        whole = torch.ones_like(kept) if self.observed is None else self.observed
        return Batch(
            torch.cat([self.x, self.x * kept]),
            torch.cat([whole, whole & kept]),
            self.y.repeat(2),
            self.weight.repeat(2) / 2.0,
            self.lacks().repeat(2, 1),
        )


@storable
@dataclass(frozen=True)
class Scaling:
    """Map between the user's units and units in which every feature has variance one.

    It is affine, or goes on along one increasing curve per column. Codes of categories stay as they
    are.

    Attributes
    ----------
    location, scale : (D,).
    levels : (D,) number of categories of each column, 0 for numbers.
    curves : of the values in units of variance one; None for straight lines.
    """

    location: np.ndarray
    scale: np.ndarray
    levels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    curves: Curves | None = None

    def __post_init__(self) -> None:
        if not len(self.levels):
            object.__setattr__(self, "levels", np.zeros(len(self.scale), dtype=np.int64))

    @classmethod
    def identity(cls, n_features: int) -> Scaling:
        return cls(np.zeros(n_features), np.ones(n_features))

    def sparing(self, levels: np.ndarray) -> Scaling:
        """The same map, but for columns with categories."""
        location, scale = (
            np.where(levels > 0, *each) for each in ((0.0, self.location), (1.0, self.scale))
        )
        return Scaling(location, scale, levels)

    @classmethod
    def measure(cls, X: np.ndarray, weight: np.ndarray, names: np.ndarray | None = None) -> Scaling:
        """Weighted mean and deviation of each column, ignoring NaN; safe for any magnitude."""
        location, mass = _weighted_nanmean(X, weight, lambda x: x)
        low, high = _nan_range(X)
        half = np.maximum(high / 2 - location / 2, location / 2 - low / 2)  # a range may overflow
        unit = np.where(half > 0, half, 1.0)
        variance, _ = _weighted_nanmean(X, weight, lambda x: ((x / 2 - location / 2) / unit) ** 2)
        magnitude = np.maximum(np.abs(low), np.abs(high))
        constant = high / 2 - low / 2 <= 4 * np.finfo(X.dtype).eps * magnitude
        labels = np.arange(X.shape[1]) if names is None else np.asarray(names, dtype=object)
        _warn_about_columns(labels[mass == 0], "have no observed value")
        _warn_about_columns(labels[constant & (mass > 0)], "are constant")
        fallback = np.where(magnitude > 0, magnitude, 1.0)
        location = np.where(constant, low, location)  # a mean is rounded, and a constant is not
        scale = np.where(constant, fallback, 2.0 * np.sqrt(variance) * unit)
        return cls(location, np.maximum(scale, np.finfo(np.float64).tiny))

    def apply(self, X: np.ndarray) -> np.ndarray:
        """Into the model's units, in float64 so that offsets do not eat the digits."""
        with np.errstate(over="ignore"):  # tables clamp what is infinite
            values = (X - self.location) / self.scale
        return values if self.curves is None else self.curves.apply(values)

    def invert(self, X: np.ndarray) -> np.ndarray:
        """Back into the user's units; what lies beyond the largest number becomes it."""
        values = X if self.curves is None else self.curves.invert(X)
        with np.errstate(over="ignore"):
            return np.clip(values * self.scale + self.location, -_LARGEST, _LARGEST)

    def moved(self, values: np.ndarray, before: Scaling) -> np.ndarray:
        """Values in the units of another map, in these; by curves alone where that is enough."""
        pairs = (self.location, before.location), (self.scale, before.scale)
        if before.curves is None and all(np.array_equal(*pair) for pair in pairs):
            return values if self.curves is None else self.curves.apply(values)
        return self.apply(before.invert(values))

    def log_scale(self, x: Tensor) -> Tensor:
        """(D,) or (n, D) logs of user's units per unit of the model, at values x (n, D) of it."""
        plain = torch.from_numpy(np.log(self.scale)).to(x.device)
        if self.curves is None:
            return plain
        slope = self.curves.log_slope(x.double().cpu().numpy())
        return plain - torch.from_numpy(slope).to(x.device)


def _weighted_nanmean(
    X: np.ndarray, weight: np.ndarray, function: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    total, mass = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for start in range(0, len(X), _SCAN_ROWS):
        rows = np.asarray(X[start : start + _SCAN_ROWS], dtype=np.float64)
        seen = ~np.isnan(rows)
        share = weight[start : start + _SCAN_ROWS, None]
        mass_here = (share * seen).sum(0)
        mass += mass_here
        part = np.divide(share * seen, mass_here, out=np.zeros(rows.shape), where=mass_here > 0)
        mean_here = (part * np.where(seen, function(rows), 0.0)).sum(0)
        total += (mean_here - total) * np.divide(
            mass_here, mass, out=np.zeros_like(mass), where=mass > 0
        )
    return total, mass


def _nan_range(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest observed value of each column; zeros where there is none."""
    low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for start in range(0, len(X), _SCAN_ROWS):
        rows = np.asarray(X[start : start + _SCAN_ROWS], dtype=np.float64)
        low = np.fmin(low, np.fmin.reduce(rows, axis=0))
        high = np.fmax(high, np.fmax.reduce(rows, axis=0))
    seen = high >= low
    return np.where(seen, low, 0.0), np.where(seen, high, 0.0)


def _warn_about_columns(labels: np.ndarray, what: str) -> None:
    if len(labels):
        names = ", ".join(map(str, labels[:10]))
        warn(
            f"{len(labels)} column(s) {what} in the training rows ({names}); they carry no "
            "information. Remedy: drop them.",
            DegenerateDataWarning,
        )


class Table:
    """Rows of a user's matrix as batches of tensors.

    A matrix in memory is converted once and stays on the device. A memory-mapped matrix stays on
    disk, and each batch is read and converted when asked for.
    """

    #: Most rows of a chunk, by device.
    most_rows: ClassVar[dict[str, int]] = {"cpu": 16_384, "cuda": 262_144}
    #: Whether all batches of as many rows have tensors of the same shapes.
    uniform = True

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        scaling: Scaling,
        device: torch.device,
        dtype: torch.dtype = torch.float64,
        untold: np.ndarray | None = None,
    ) -> None:
        self.scaling, self.device, self.dtype = scaling, device, dtype
        n = len(X)
        y = np.zeros(n, dtype=np.int64) if y is None else y
        self.y = torch.as_tensor(y, device=device)
        self.weight = torch.ones(n, dtype=dtype, device=device)
        if weight is not None:
            self.weight = torch.as_tensor(weight, dtype=dtype, device=device)
        self._mapped = X if is_memory_mapped(X) else None
        self._order: np.ndarray | None = None
        self._absent: Tensor | None = None
        if self._mapped is None:
            self._x, self._observed = self._convert(X)
            self._absent = None if untold is None else self._told(X, untold)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n_features(self) -> int:
        return len(self.scaling.location)

    @property
    def sizes(self) -> Tensor:
        """(n,) how many densities of single frames the density of each row is made of."""
        return torch.ones_like(self.weight)

    @property
    def may_have_missing(self) -> bool:
        return self._mapped is not None or self._observed is not None

    @property
    def has_holes(self) -> bool:
        """Whether an entry is missing; of a file, every part is looked at."""
        mapped = self._mapped
        if mapped is None:
            return self._observed is not None
        starts = range(0, len(mapped), _SCAN_ROWS)
        return any(np.isnan(mapped[start : start + _SCAN_ROWS]).any() for start in starts)

    @property
    def _farthest(self) -> float:
        """The largest value: squares and their sums stay finite."""
        return float(torch.finfo(self.dtype).max ** 0.25)

    def _convert(self, X: np.ndarray) -> tuple[Tensor, Tensor | None]:
        values = self.scaling.apply(X)
        x = torch.from_numpy(values)
        farthest = self._farthest
        if -farthest <= values.min(initial=0.0) and values.max(initial=0.0) <= farthest:  # no NaN
            return x.to(self.device, self.dtype), None
        missing = x.isnan()
        x = x.clamp_(-farthest, farthest).to(self.device, self.dtype)
        if not missing.any():
            return x, None
        missing = missing.to(self.device)
        return x.masked_fill(missing, 0.0), ~missing

    def _told(self, X: np.ndarray, untold: np.ndarray) -> Tensor:
        """What the rows came without, where that is not known of all entries."""
        codes = np.where(untold, -1, np.isnan(X)).astype(np.int8)
        return torch.from_numpy(codes).to(self.device)

    def batch(self, index: slice | Tensor) -> Batch:
        """The rows at `index`."""
        if self._mapped is None:
            observed = None if self._observed is None else self._observed[index]
            absent = None if self._absent is None else self._absent[index]
            return Batch(self._x[index], observed, self.y[index], self.weight[index], absent)
        at = index if isinstance(index, slice) else index.cpu().numpy()
        rows = self._mapped[at if self._order is None else self._order[at]]
        return Batch(*self._convert(rows), self.y[index], self.weight[index])

    def chunks(self, n_rows: int) -> Iterator[Batch]:
        """All rows in order, `n_rows` at a time."""
        if self._mapped is None and len(self) <= n_rows:
            yield Batch(self._x, self._observed, self.y, self.weight, self._absent)
            return
        for start in range(0, len(self), n_rows):
            yield self.batch(slice(start, start + n_rows))

    def take(self, index: np.ndarray) -> Self:
        """A table of the rows at the integer positions `index`."""
        part = copy(self)
        at = torch.as_tensor(index, device=self.device)
        part.y, part.weight = self.y[at], self.weight[at]
        if self._mapped is None:
            part._x = self._x[at]
            part._observed = None if self._observed is None else self._observed[at]
            part._absent = None if self._absent is None else self._absent[at]
        else:
            part._order = index if self._order is None else self._order[index]
        return part

    def row_keys(self) -> np.ndarray:
        """(n,) numbers as good as random, the same for copies of a row (but for rounding)."""
        factors = odd_factors(self.n_features)
        return np.concatenate([hashed(batch, factors) for batch in self.chunks(_SCAN_ROWS)])

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
        if self._mapped is None:
            values = scaling.moved(self._x.double().cpu().numpy(), self.scaling)
            x = torch.from_numpy(values).clamp(-self._farthest, self._farthest).to(self._x)
            part._x = x if self._observed is None else x.masked_fill(~self._observed, 0.0)
        return part

    def cast(self, dtype: torch.dtype) -> Self:
        """The same rows in another floating type."""
        if dtype == self.dtype:
            return self
        part = copy(self)
        part.dtype, part.weight = dtype, self.weight.to(dtype)
        if self._mapped is None:
            part._x = self._x.to(dtype)
        return part


def odd_factors(count: int) -> np.ndarray:
    """Random odd numbers, always the same ones."""
    return 2 * np.random.default_rng(0).integers(2**63, size=count, dtype=np.uint64) + 1


def hashed(batch: Batch, factors: np.ndarray) -> np.ndarray:
    """Hashes of rows by odd factors (D,): sums of products of bits, modulo 2 ** 64.

    The last bits do not count: weights and copies may move the units of rows by rounding.
    """
    bits = batch.x.double().cpu().contiguous().numpy().view(np.uint64)
    bits = (bits + np.uint64(1 << 23)) >> np.uint64(24)
    bits = bits + batch.lacks().cpu().numpy().astype(np.uint64)
    return ((bits ^ (bits >> np.uint64(20))) * factors).sum(1)


def is_memory_mapped(X: np.ndarray) -> bool:
    """Whether the array is a view of a file."""
    base: object = X
    while base is not None:
        if isinstance(base, (np.memmap, mmap.mmap)):
            return True
        base = getattr(base, "base", None)
    return False


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
