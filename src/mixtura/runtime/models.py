"""Fitted models in NumPy, for prediction: twins of those of `mixtura.models`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from mixtura.conformal import HeldBack, conformal_sets
from mixtura.constants import SHARES, SILENCE
from mixtura.data.atoms import Atoms
from mixtura.data.curves import Curves
from mixtura.data.given import ArrayLike
from mixtura.data.indicators import LARGEST, Indicators, held_within
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.table_forms import TableForm
from mixtura.data.trees import Trees
from mixtura.exceptions import NoDensityError, UnsupportedError
from mixtura.runtime.batch import Batch, Density
from mixtura.runtime.files import KINDS, kind

_SHARED = (Schema, TableForm, Scaling, Curves, Atoms, Indicators, Trees, HeldBack)
KINDS |= {each.__name__: each for each in _SHARED}
#: The largest value of a row in the model's units, as in `Table`.
FARTHEST = LARGEST**0.25
#: Numbers that are held at a time; so many whose logarithms are best summed pair by pair.
_AT_ONCE, _FEW = 2**23, 200


def log_softmax(values: np.ndarray) -> np.ndarray:
    """Of rows (..., C), however far from zero they are."""
    values = values - np.maximum.reduce(values, axis=-1, keepdims=True)
    return values - np.logaddexp.reduce(values, axis=-1, keepdims=True)


class Model(Protocol):
    """What gives rows class log-joints."""

    @property
    def row_cost(self) -> int: ...
    def class_log_joint(self, batch: Batch) -> np.ndarray: ...


# -- models ------------------------------------------------------------------------------------


@kind
@dataclass(frozen=True)
class Layout:
    counts: tuple[int, ...]

    @cached_property
    def owner(self) -> np.ndarray:
        """(K,) the class of each component."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *self.counts[:-1]])

    def logsumexp(self, values: np.ndarray) -> np.ndarray:
        """Sums within each class, in logs: (n, K) -> (n, C)."""
        if len(self.owner) == len(self.counts):
            return values
        if values.size <= _FEW:
            return np.logaddexp.reduceat(values, self._starts, axis=1)
        largest = np.maximum(np.maximum.reduceat(values, self._starts, axis=1), -LARGEST)
        shares = values - largest.take(self.owner, 1)
        np.exp(shares, out=shares)
        return largest + np.log(np.add.reduceat(shares, self._starts, axis=1))

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sums within each class."""
        return np.add.reduceat(values, self._starts, axis=1)


@kind
@dataclass(frozen=True)
class Mixture:
    density: Density
    log_weight: np.ndarray
    layout: Layout
    log_prior: np.ndarray
    learn_prior: bool = True

    def __post_init__(self) -> None:
        sizes = self.density.n_components, len(self.log_weight), len(self.log_prior)
        counts = self.layout.counts
        if sizes != (sum(counts), sum(counts), len(counts)) or min(counts) < 1:
            raise ValueError(f"{sizes[0]} components, where classes have {counts}")

    @property
    def row_cost(self) -> int:
        return self.density.row_cost

    @cached_property
    def log_joint_weight(self) -> np.ndarray:
        return self.log_weight + self.log_prior[self.layout.owner]

    def log_joint(self, batch: Batch) -> np.ndarray:
        """log p(x, c, k), (n, K)."""
        return self.density.log_prob(batch) + self.log_joint_weight

    def class_log_joint(self, batch: Batch) -> np.ndarray:
        """log p(x, c), (n, C)."""
        return self.layout.logsumexp(self.log_joint(batch))

    def log_density(self, batch: Batch) -> np.ndarray:
        """(n, 1)."""
        return np.logaddexp.reduce(self.log_joint(batch), axis=1, keepdims=True)

    def posterior(self, batch: Batch) -> np.ndarray:
        """p(component | x), (n, K)."""
        return np.exp(log_softmax(self.log_joint(batch)))

    def impute(self, batch: Batch) -> np.ndarray:
        """(n, D) conditional means of what is missing."""
        return self.density.fill(batch, self.posterior(batch))

    def typicality(self, batch: Batch) -> np.ndarray:
        """(n, 1) log density of the rows with conditional means in their holes."""
        x = batch.x if batch.observed is None else self.impute(batch)
        untold = np.full(batch.x.shape, -1, dtype=np.int8)
        return self.log_density(Batch(x, None, untold))


@kind
@dataclass(frozen=True)
class Votes:
    voters: tuple[Mixture, ...]
    weights: tuple[float, ...]

    @property
    def row_cost(self) -> int:
        return max(voter.row_cost for voter in self.voters)

    def class_log_joint(self, batch: Batch) -> np.ndarray:
        """Log shares of the votes, (n, C)."""
        each = np.arange(len(batch))
        total = np.full((len(batch), len(self.voters[0].log_prior)), SILENCE)
        for voter, weight in zip(self.voters, self.weights, strict=True):
            total[each, voter.class_log_joint(batch).argmax(1)] += weight
        return np.log(total / total.sum(1, keepdims=True))


@kind
@dataclass(frozen=True)
class Calibration:
    """Numbers, or (M, 1) those of several models."""

    temperature: float | np.ndarray = 1.0
    doubt: float | np.ndarray = 0.0
    fade: float | np.ndarray = 1.0

    @cached_property
    def _log_doubt(self) -> tuple[np.ndarray, np.ndarray]:
        """Log weights of the posterior, and of a guess; (M, 1, 1) of several."""
        doubt = np.asarray(self.doubt)[..., None]
        with np.errstate(divide="ignore"):
            return np.log1p(-doubt), np.log(doubt)

    def log_proba(self, class_log_joint: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """Calibrated log posteriors (..., n, C) of rows that lack a share (n,) of their features.

        None lack nothing; those that lack all get posteriors as they are.
        """
        reach = np.ones(1) if missing is None else (1.0 - missing) ** self.fade
        sharp = log_softmax(class_log_joint / (self.temperature**reach)[..., None])
        sure, guess = self._log_doubt
        found = np.logaddexp(sharp + sure, guess - math.log(sharp.shape[-1]))
        if missing is None or not (blank := missing == 1.0).any():
            return found
        return np.where(blank[:, None], log_softmax(class_log_joint), found)


# -- a fitted model ----------------------------------------------------------------------------


@kind
@dataclass(frozen=True)
class Blend:
    members: tuple[Fitted, ...]
    weights: np.ndarray
    calibration: Calibration

    @cached_property
    def _log_weights(self) -> np.ndarray:
        return np.log(self.weights)[:, None, None]

    def averaged(self, log_proba: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """(n, C) log p(c | x), from what the models say, (M, n, C)."""
        average = np.logaddexp.reduce(log_proba + self._log_weights, axis=0)
        return self.calibration.log_proba(average, missing)


@kind
@dataclass(frozen=True)
class Fitted:
    model: Model
    scaling: Scaling
    schema: Schema
    classes: np.ndarray | None = None
    class_prior: np.ndarray | None = None
    calibration: Calibration = Calibration()
    typical: np.ndarray | None = None
    target: tuple[float, float] = (0.0, 1.0)
    blend: Blend | None = None
    held_back: HeldBack | None = None
    per_value: tuple[float, float, float, float] | None = None
    without: tuple[tuple[Mixture, ...], ...] = ()
    reach: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))
    lengths: tuple[int, int] = (0, 0)
    bounded: bool = False
    limits: np.ndarray = field(default_factory=lambda: np.zeros((3, 0)))
    lacks: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def n_columns(self) -> int:
        """How many columns rows have."""
        return len(self.scaling.scale)

    @property
    def mixture(self) -> Mixture:
        """The density of rows."""
        found = getattr(self.model, "mixture", self.model)
        if not isinstance(found, Mixture):
            raise NoDensityError("this model is discriminative, and has no density.")
        return found

    def _batch(self, rows: Matrix) -> Batch:
        """Rows in the model's units."""
        x = held_within(self.scaling.apply(rows.values), -FARTHEST, FARTHEST)
        lacks = np.isnan(x)
        absent = None if rows.untold is None else np.where(rows.untold, -1, lacks)
        if not lacks.any():
            return Batch(x, None, absent)
        return Batch(np.where(lacks, 0.0, x), ~lacks, absent)

    def run(self, rows: Matrix, function: Callable[[Batch], np.ndarray], cost: int) -> np.ndarray:
        """`function`, (m, ...), of all rows, some at a time; those without holes by themselves."""
        with np.errstate(over="ignore", divide="ignore"):  # what is infinite is clipped
            return self._run(rows, function, cost)

    def _run(self, rows: Matrix, function: Callable[[Batch], np.ndarray], cost: int) -> np.ndarray:
        if len(rows) == 1:
            return function(self._batch(rows))
        complete, size = ~np.isnan(rows.values).any(1), max(1, _AT_ONCE // cost)
        found: list[np.ndarray] = []
        order = np.concatenate([np.flatnonzero(complete), np.flatnonzero(~complete)])
        edge = int(complete.sum())
        for first, last in ((0, edge), (edge, len(rows))):
            for start in range(first, last, size):
                some = order[start : min(start + size, last)]
                found.append(function(self._batch(rows.take(some))))
        return np.concatenate(found)[order.argsort()]

    def checked(self, rows: Matrix) -> Matrix:
        """The rows, nothing known of numbers far outside of training; a warning names the first."""
        return self.schema.without_far(rows, self.reach)

    def log_proba(self, rows: Matrix) -> np.ndarray:
        """(n, C) log p(c | x); a row with nothing observed gets the prior, of averages theirs."""
        return self.run(rows, self._log_proba, self.row_cost)

    @cached_property
    def row_cost(self) -> int:
        """Numbers held in memory for one row of all models."""
        members = () if self.blend is None else self.blend.members
        return max(each.model.row_cost for each in (self, *members))

    def _log_proba(self, batch: Batch) -> np.ndarray:
        seen = batch.observed
        missing = None if seen is None else (~seen).sum(1) / seen.shape[1]
        own = self.model.class_log_joint(batch)
        if self.blend is None:
            return self.calibration.log_proba(own, missing)
        joints = np.empty((1 + len(self.blend.members), *own.shape))
        joints[0] = own
        for units, members in self._by_units:
            there = self.under(batch, units)
            for place, model in members:
                joints[place] = model.class_log_joint(there)
        return self.blend.averaged(self._calibrations.log_proba(joints, missing), missing)

    @cached_property
    def _calibrations(self) -> Calibration:
        """Those of all models that are averaged."""
        assert self.blend is not None
        each = [astuple(model.calibration) for model in (self, *self.blend.members)]
        return Calibration(*np.array(each).T[..., None])

    @cached_property
    def _by_units(self) -> list[tuple[Scaling, list[tuple[int, Model]]]]:
        """The members and their places, those that share units together."""
        assert self.blend is not None
        found: list[tuple[Scaling, list[tuple[int, Model]]]] = []
        for place, each in enumerate(self.blend.members, 1):
            same = (members for units, members in found if _alike(units, each.scaling))
            mine = next(same, None)
            if mine is None:
                found.append((each.scaling, mine := []))
            mine.append((place, each.model))
        return found

    def under(self, batch: Batch, scaling: Scaling) -> Batch:
        """The same rows in other units."""
        x, seen = scaling.moved(batch.x, self.scaling), batch.observed
        x = held_within(x, -FARTHEST, FARTHEST)
        if scaling.indicators is None:
            return Batch(x if seen is None else x * seen, seen, batch.absent)
        if seen is None:
            return Batch(x, None)
        seen = np.logical_and.reduce([seen[:, each] for each in scaling.indicators.sources])
        return Batch(x * seen, seen)

    def log_density(self, rows: Matrix) -> np.ndarray:
        """(n,) log p(x), in the user's units."""

        def found(batch: Batch) -> np.ndarray:
            log_scale = np.where(batch.seen, self.scaling.log_scale(batch.x), 0.0)
            return self.mixture.log_density(batch)[:, 0] - log_scale.sum(1)

        return self.run(rows, found, self.mixture.row_cost)

    def responsibilities(self, rows: Matrix) -> np.ndarray:
        """(n, K) p(component | x)."""
        return self.run(rows, self.mixture.posterior, self.mixture.row_cost)

    def imputed(self, rows: Matrix) -> np.ndarray:
        """(n, D) the rows with conditional means in their holes."""
        values = rows.values

        def found(batch: Batch) -> np.ndarray:
            return self.scaling.invert(self.mixture.impute(batch))

        filled = self.run(rows, found, self.mixture.row_cost)
        return np.where(np.isnan(values), filled, values).astype(values.dtype)

    def is_outlier(self, rows: Matrix, share: float) -> np.ndarray:
        """(n,) which rows are less typical than all but a share of those like training's."""
        found = self.run(rows, self.mixture.typicality, self.mixture.row_cost)[:, 0]
        assert self.typical is not None  # every density has them
        return found < np.interp(share, SHARES, self.typical)

    def predict_set(self, rows: Matrix, held_back: HeldBack, coverage: float) -> np.ndarray:
        """(n, C) whether each class is in the set of each row."""
        held_back = replace(held_back, models=held_back.models or self.without)
        if not held_back.models:
            raise UnsupportedError(
                "the models without the rows that are held back were too large to be stored: pass "
                "rows that it has not seen, calibration=(X, y)."
            )
        return conformal_sets(self, rows, held_back, _proba, coverage)


def _alike(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether two maps, or their parts, are the same."""
    if is_dataclass(one) and type(one) is type(other):
        return all(
            _alike(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    return one is other or np.array_equal(one, other)


def _proba(fitted: Fitted, rows: Matrix) -> np.ndarray:
    return np.exp(fitted.log_proba(rows))
