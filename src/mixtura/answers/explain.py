"""Why a model answers as it does: Shapley values of the columns of each row.

The value of a subset of columns is the model's own answer with the others integrated out, that is,
the answer to the row with those entries missing: there is no background data, and nothing is
refitted. p(c | x_S) is the expectation of p(c | X) given X_S = x_S.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from mixtura.answers.cells import Cells
from mixtura.answers.question import Question
from mixtura.answers.subsets import Columns, Subsets, all_subsets
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.fitted import Observations
from mixtura.numerics import spawn
from mixtura.progress import Progress, Record

OUTPUTS = ("probability", "log_odds", "log_density")
#: The same where numbers are predicted.
NUMBERS = ("mean", "log_density")
METHODS = ("auto", "exact", "permutation")
#: Columns (or groups) of which all subsets are looked at: as a rule, and on demand.
_EXACT, _MOST_EXACT = 13, 20
#: Orders that are drawn and their reverses, and those that it takes to tell a standard error.
_PAIRS, _FEWEST_PAIRS = 32, 2
#: Seconds that the orders of a round take at most, or as long as all before them.
_ROUND = 10.0
#: Numbers that a chunk may hold.
_NUMBERS = 20_000_000
#: Columns of the user, in groups that come and go together.
Groups = Mapping[str, Sequence[int | str]] | Sequence[Sequence[int | str]] | None


@dataclass(frozen=True)
class Explanation:
    """Shapley values, under the names that shap has for them.

    Attributes
    ----------
    values : (n, P, C) of each column (or group) for each class or target; (n, P) where answers are
        single numbers.
    base_values : (n, C) or (n,) the answer to a row with nothing observed.
    data : (n, P) the rows, categories as codes; NaN where missing, and for groups of columns.
    display_data : (n, P) the same with the names of categories.
    feature_names : P names.
    output_names : C names; None where answers are single numbers.
    error_std : standard errors of the values, zero where they are exact.
    """

    values: np.ndarray
    base_values: np.ndarray
    data: np.ndarray | None
    display_data: np.ndarray | None
    feature_names: list[str]
    output_names: list[str] | None
    error_std: np.ndarray

    def for_shap(self) -> object:
        """A `shap.Explanation`, which the plots of shap take; itself where there is no shap."""
        try:
            from shap import Explanation as Shap
        except ImportError:
            return self
        return Shap(**vars(self))


@dataclass(frozen=True)
class Players:
    """What comes and goes together: columns of the user, alone or in groups."""

    names: list[str]
    columns: list[Columns]

    @classmethod
    def of(cls, schema: Schema, n_columns: int, groups: Groups) -> Players:
        """The groups, and every other column on its own."""
        if not isinstance(groups, Mapping):
            groups = {" + ".join(map(str, columns)): columns for columns in groups or ()}
        found = {
            str(name): tuple(schema.position(column, n_columns) for column in columns)
            for name, columns in groups.items()
        }
        taken = [column for columns in found.values() for column in columns]
        if len(set(taken)) < len(taken) or not all(found.values()):
            raise InvalidInputError("groups must have columns, and no column two groups.")
        labels = [str(name) for name in schema.names or range(n_columns)]
        alone = {labels[place]: (place,) for place in range(n_columns) if place not in taken}
        return cls([*found, *alone], [*found.values(), *alone.values()])

    @classmethod
    def in_time(cls, schema: Schema, n_columns: int, groups: Groups, cells: Cells) -> Players:
        """All columns, or the groups and other columns, within each interval."""
        own = cls([""], [tuple(range(n_columns))])
        if groups is not None:
            own = cls.of(schema, n_columns, groups)
        pairs = list(product(zip(own.names, own.columns, strict=True), enumerate(cells.names)))
        return cls(
            [f"{name}, {when}" if name else when for (name, _), (_, when) in pairs],
            [tuple(t * n_columns + at for at in columns) for (_, columns), (t, _) in pairs],
        )

    def data(self, values: np.ndarray, blank: object) -> np.ndarray:
        """(n, P) values (n, D) of those that are single columns."""
        found = np.full((len(values), len(self.columns)), blank, dtype=values.dtype)
        for place, columns in enumerate(self.columns):
            if len(columns) == 1:
                found[:, place] = values[:, columns[0]]
        return found


@lru_cache(maxsize=16)
def shapley_weights(count: int) -> Tensor:
    """(m, 2^m) what the values of all subsets of m players count in the Shapley value of each."""
    member = all_subsets(count)
    weight = np.array([1.0 / (count * math.comb(count - 1, size)) for size in range(count)] + [0.0])
    size = member.sum(1, keepdims=True)
    return torch.from_numpy(np.where(member, weight[size - 1], -weight[size]).T.copy())


@dataclass(frozen=True)
class _Block:
    """Rows that have the same columns: which rows, which players, and what they have of these."""

    rows: np.ndarray
    players: np.ndarray
    groups: list[Columns]

    @classmethod
    def split(cls, seen: np.ndarray, players: Players) -> Iterator[_Block]:
        """All rows, or sequences, by the cells (n, m) that they have anything of."""
        patterns, place = np.unique(seen, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            groups = [tuple(c for c in columns if pattern[c]) for columns in players.columns]
            here = np.array([at for at, group in enumerate(groups) if group], dtype=np.int64)
            yield cls(np.flatnonzero(place.ravel() == number), here, [groups[at] for at in here])

    def parts(self, size: int) -> Iterator[_Block]:
        """So many rows at a time."""
        for start in range(0, len(self.rows), size):
            yield replace(self, rows=self.rows[start : start + size])


@dataclass(frozen=True)
class _Shapley:
    """Shapley values of rows that are given, by one way or another.

    What they say, once or more often: values (R, m, n, C) of the groups of a block, and the answer
    to nothing (n, C).
    """

    question: Question
    rows: Observations

    def exact(self, block: _Block) -> tuple[Tensor, Tensor]:
        """From all subsets."""
        found = self._values(block, Subsets(block.groups))
        weights = shapley_weights(len(block.groups))
        return (weights @ found.flatten(1)).view(1, -1, *found.shape[1:]), found[0]

    def in_orders(self, block: _Block, orders: np.ndarray) -> tuple[Tensor, Tensor]:
        """What each group adds to those before it, (R, m, n, C), in orders (R, m) of them."""
        found = self._values(block, Subsets(block.groups, orders)).unflatten(0, (len(orders), -1))
        each, place = np.arange(len(orders))[:, None], orders.argsort(1)
        return found.diff(dim=1)[each, place], found[0, 0]

    def in_random_orders(
        self, block: _Block, count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The means over random orders and their reverses, (count, m, n, C)."""
        size = len(block.groups)
        orders = np.stack([torch.randperm(size, generator=generator) for _ in range(count)])
        found, base = self.in_orders(block, np.vstack([orders, orders[:, ::-1]]))
        return 0.5 * (found[:count] + found[count:]), base

    def most_pairs(self, block: _Block) -> int:
        """Orders that may be looked at together: of each, columns are sorted for all components."""
        per_subset = self.question.cost * (1 + self.rows.values.shape[1])
        return max(1, _NUMBERS // (2 * per_subset * (len(block.groups) + 1)))

    def _values(self, block: _Block, subsets: Subsets) -> Tensor:
        """(s, n, C) answers, from as many rows at a time as may be held."""
        per_row = self.question.cost + self.rows.values.size // len(self.rows)
        size = max(1, _NUMBERS // (per_row * len(subsets.shown)))
        parts = [
            self.question.values(self.rows.take(part.rows), subsets) for part in block.parts(size)
        ]
        return torch.cat(parts, 1)


class _Means:
    """Means of what is said of all rows and players, once or more often."""

    def __init__(self, n_rows: int, n_players: int, n_outputs: int) -> None:
        self._sums = torch.zeros(n_rows, n_players, n_outputs, dtype=torch.float64)
        self._squares, self._counts = torch.zeros_like(self._sums), torch.zeros(n_rows, 1, 1)
        self.base = torch.zeros(n_rows, n_outputs, dtype=torch.float64)

    def add(self, block: _Block, said: tuple[Tensor, Tensor]) -> None:
        at, values = np.ix_(block.rows, block.players), said[0].transpose(1, 2)
        self.base[block.rows] = said[1]
        self._sums[at] += values.sum(0)
        self._squares[at] += values.square().sum(0)
        self._counts[block.rows] += len(values)

    @property
    def values(self) -> Tensor:
        """(n, P, C)."""
        return self._sums / self._counts

    @property
    def errors(self) -> Tensor:
        """(n, P, C) standard errors; zero where all was said at once."""
        spread = (self._squares / self._counts - self.values.square()).clamp_min(0.0)
        return (spread / (self._counts - 1.0).clamp_min(1.0)).sqrt()


def explain(
    question: Question,
    rows: Observations,
    method: str,
    groups: Groups,
    *,
    generator: torch.Generator,
    progress: Progress,
) -> Explanation:
    """Shapley values of the cells of rows; see the method of estimators."""
    schema, width, cells = question.schema, rows.values.shape[1], question.cells
    players = Players.of(schema, width, groups)
    if len(cells.names) > 1:
        players = Players.in_time(schema, width, groups, cells)
    means = _means(question, rows, players, method, generator, progress)
    values, base, errors = (each.numpy() for each in (means.values, means.base, means.errors))
    if question.names is None:
        values, errors, base = values[..., 0], errors[..., 0], base[:, 0]
    if question.output == "log_density":
        base = question.log_density(rows) - values.sum(1)
    data = shown = None
    if isinstance(rows, Matrix):
        data = players.data(rows.values.astype(np.float64), np.nan)
        shown = players.data(schema.decode(rows.values).astype(object), None)
    return Explanation(values, base, data, shown, players.names, question.names, errors)


def _means(
    question: Question,
    rows: Observations,
    players: Players,
    method: str,
    generator: torch.Generator,
    progress: Progress,
) -> _Means:
    """From all subsets where a row has few columns, from random orders where it has many."""
    blocks = list(_Block.split(question.cells.seen(rows), players))
    adds_up = question.adds_up()
    most = {"auto": _EXACT, "exact": _MOST_EXACT, "permutation": 0}[method]
    many = [block for block in blocks if len(block.groups) > most and not adds_up]
    if many and method == "exact":
        raise InvalidInputError(
            f"method='exact' takes rows with at most {_MOST_EXACT} observed columns or groups: use "
            "method='permutation', or groups of columns."
        )
    shapley, means = _Shapley(question, rows), _Means(len(rows), len(players.names), question.size)
    for block in blocks:
        if adds_up:
            means.add(block, shapley.in_orders(block, np.arange(len(block.groups))[None]))
        elif len(block.groups) <= most:
            means.add(block, shapley.exact(block))
    if many:
        _add_random_orders(means, shapley, many, generator, progress)
    return means


def _add_random_orders(
    means: _Means, shapley: _Shapley, many: list[_Block], seed: torch.Generator, progress: Progress
) -> None:
    """Those of blocks with many columns: some pairs of orders at a time, as time allows."""
    own = [(block, spawn(seed)) for block in many]
    most, done = min(map(shapley.most_pairs, many)), 0
    work = sum(len(block.rows) * (len(block.groups) + 1) for block in many) * shapley.question.cost
    long = 2 * _PAIRS * work > _NUMBERS or progress.seconds_left < _ROUND
    progress.start("random orders", _PAIRS)
    while done < _PAIRS:
        pace = done / max(progress.seconds, 1e-9)
        wanted = min(max(done, pace * _ROUND), pace * progress.seconds_left, most, _PAIRS - done)
        count = max(1, int(wanted)) if done else min(_FEWEST_PAIRS if long else _PAIRS, most)
        for block, draws in own:
            means.add(block, shapley.in_random_orders(block, count, draws))
        done += count
        record: Record = {"iteration": done, "objective": float(means.errors.max())}
        if progress.step(record, count) and _FEWEST_PAIRS <= done < _PAIRS:
            warn(
                f"max_time allowed {done} of {_PAIRS} pairs of random orders: error_std "
                "says how far the values may be off. Remedy: fewer rows, groups of columns, or "
                "more time.",
                DegenerateDataWarning,
            )
            break
