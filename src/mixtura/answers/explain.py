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

import numpy as np
import torch
from torch import Tensor

from mixtura.answers.subsets import Columns, Subsets, all_subsets, log_probs
from mixtura.data import Matrix
from mixtura.data.given import Device
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences
from mixtura.densities import Categorical, Density, DiagonalGaussian, HolePattern, Product
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.fitted import Fitted, Observations, log_density, run_over
from mixtura.models.mixture import Mixture
from mixtura.progress import Progress, Record

OUTPUTS = ("probability", "log_odds", "log_density")
METHODS = ("auto", "exact", "permutation")
#: Columns (or groups) of which all subsets are looked at: as a rule, and on demand.
_EXACT, _MOST_EXACT = 13, 20
#: Orders that are drawn and their reverses, and those that it takes to tell a standard error.
_PAIRS, _FEWEST_PAIRS = 32, 2
#: Numbers that a chunk may hold.
_NUMBERS = 20_000_000
#: Columns of the user, in groups that come and go together.
Groups = Mapping[str, Sequence[int | str]] | Sequence[Sequence[int | str]] | None


@dataclass(frozen=True)
class Explanation:
    """Shapley values, under the names that shap has for them.

    Attributes
    ----------
    values : (n, P, C) of each column (or group) for each class; (n, P) of a log density.
    base_values : (n, C) or (n,) the answer to a row with nothing observed.
    data : (n, P) the rows, categories as codes; NaN where missing, and for groups of columns.
    display_data : (n, P) the same with the names of categories.
    feature_names : P names.
    output_names : C names; None of a log density.
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

    def data(self, values: np.ndarray, blank: object) -> np.ndarray:
        """(n, P) values (n, D) of those that are single columns."""
        found = np.full((len(values), len(self.columns)), blank, dtype=values.dtype)
        for place, columns in enumerate(self.columns):
            if len(columns) == 1:
                found[:, place] = values[:, columns[0]]
        return found


@dataclass(frozen=True)
class Question:
    """What a model is asked of parts of rows."""

    model: Fitted
    output: str
    device: Device

    @property
    def _source(self) -> object:
        return self.model.mixture if self.output == "log_density" else self.model.model

    @property
    def size(self) -> int:
        """How many numbers an answer has."""
        classes = self.model.classes
        return 1 if self.output == "log_density" or classes is None else len(classes)

    @property
    def cost(self) -> int:
        """Numbers that are held per row and subset, beside the row itself."""
        source = self._source
        return 4 * self.size + (8 * source.n_components if isinstance(source, Mixture) else 0)

    def values(self, rows: Observations, subsets: Subsets) -> Tensor:
        """(s, n, C) answers to each subset of columns of rows that lack the same ones."""
        found, blend = self._own_values(rows, subsets), self.model.blend
        if blend is None or self.output == "log_density":
            return self._shown(found[0])
        others = [replace(self, model=each)._own_values(rows, subsets) for each in blend.members]
        every = torch.stack([found[0], *(own for own, _ in others)])
        return self._shown(blend.averaged(every.flatten(1, 2), found[1]).view_as(found[0]))

    def _own_values(self, rows: Observations, subsets: Subsets) -> tuple[Tensor, Tensor]:
        """What the model itself says in logs, (s, n, C), and shares that are missing, (s n,)."""
        if isinstance(rows, Matrix) and isinstance(self._source, Mixture):
            joint, missing = self._of_mixture(self._source, rows, subsets)
        else:
            joint, missing = self._of_any(rows, subsets)
        if self.output == "log_density":
            found = joint.logsumexp(1, keepdim=True)
        else:
            found = self.model.calibrated(joint, missing)
        return found.unflatten(0, (-1, len(rows))), missing

    def _shown(self, log_values: Tensor) -> Tensor:
        if self.output == "log_density":
            return log_values
        if self.output == "probability":
            return log_values.exp()
        own = torch.eye(log_values.shape[-1], dtype=torch.bool)
        others = log_values[..., None, :].masked_fill(own, -torch.inf)
        return log_values - others.logsumexp(-1)

    def _of_mixture(
        self, mixture: Mixture, rows: Matrix, subsets: Subsets
    ) -> tuple[Tensor, Tensor]:
        """Class log-joints (s n, C), and shares of the columns that are missing, (s n,)."""
        engine = self.model.engine(rows, self.device)
        batch = engine.all_rows()
        mixture = mixture if engine.device.type == "cpu" else mixture.to(engine.device)
        kept = torch.from_numpy(subsets.columns(engine.n_features)).to(engine.device)
        if batch.observed is not None:
            kept = kept & batch.observed[0]
        found = log_probs(mixture.density, batch.to(torch.float64), subsets).flatten(0, 1)
        missing = replace(batch, observed=kept).missing_share().repeat_interleave(len(rows))
        return mixture.by_class(mixture.weighted(found)).cpu(), missing.cpu()

    def _of_any(self, rows: Observations, subsets: Subsets) -> tuple[Tensor, Tensor]:
        """The same by the answers to rows with holes, of any model."""
        engine = self.model.engine(masked(rows, subsets), self.device)
        missing = engine.concat(lambda batch: batch.missing_share(), self.model.model)
        if self.output == "log_density":
            joint = run_over(self.model.mixture, engine, log_density)[:, None]
        else:
            joint = torch.from_numpy(self.model.class_log_joint(engine))
        return joint, missing

    def adds_up(self) -> bool:
        """Whether answers are sums over columns: then every order tells the Shapley values."""
        source, calibration = self._source, self.model.calibration
        if not isinstance(source, Mixture) or source.n_components > source.n_classes:
            return False
        parts = source.density.parts if isinstance(source.density, Product) else [source.density]
        if self.output == "log_density":
            fit = source.n_classes == 1
        else:
            plain = calibration == replace(calibration, temperature=1.0, doubt=0.0)
            plain = plain and self.model.blend is None
            fit = self.output == "log_odds" and source.n_classes == 2 and plain
        return fit and all(map(_is_independent, parts))


def _is_independent(density: Density) -> bool:
    kinds = (Categorical, DiagonalGaussian)
    return isinstance(density, kinds) and not isinstance(density, HolePattern)


def masked(rows: Observations, subsets: Subsets) -> Observations:
    """Every row (or sequence) once for each subset of columns, with no telling of the others."""
    kept = subsets.columns(rows.values.shape[1])
    many = rows.take(np.tile(np.arange(len(rows)), len(kept)))
    each = rows.lengths if isinstance(rows, Sequences) else np.ones(len(rows), dtype=np.int64)
    kept = np.repeat(kept, each.sum(), axis=0)
    values = np.where(kept, many.values, np.nan)
    if isinstance(many, Sequences):
        return many.with_values(values)
    return Matrix(values, ~kept if many.untold is None else many.untold | ~kept)


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
    def split(cls, rows: Observations, players: Players) -> Iterator[_Block]:
        """All rows, or sequences; these have a column if they have anything of it."""
        seen = ~np.isnan(rows.values)
        if isinstance(rows, Sequences):
            seen = np.logical_or.reduceat(seen, rows.offsets[:-1])
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

    What they say: values (m, n, C) of the groups of a block, and the answer to nothing (n, C).
    """

    question: Question
    rows: Observations

    def exact(self, block: _Block) -> tuple[Tensor, Tensor]:
        """From all subsets."""
        found = self._values(block, Subsets(block.groups))
        return torch.einsum("ms,snc->mnc", shapley_weights(len(block.groups)), found), found[0]

    def in_order(self, block: _Block, order: Tensor) -> tuple[Tensor, Tensor]:
        """What each group adds to those before it."""
        found = self._values(block, Subsets([block.groups[at] for at in order], nested=True))
        return found.diff(dim=0)[order.argsort()], found[0]

    def in_random_orders(self, block: _Block, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The mean over a random order and its reverse."""
        order = torch.randperm(len(block.groups), generator=generator)
        one, base = self.in_order(block, order)
        return 0.5 * (one + self.in_order(block, order.flip(0))[0]), base

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
        at, values = np.ix_(block.rows, block.players), said[0].transpose(0, 1)
        self.base[block.rows] = said[1]
        self._sums[at] += values
        self._squares[at] += values.square()
        self._counts[block.rows] += 1

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
    model: Fitted,
    rows: Observations,
    output: str,
    method: str,
    groups: Groups,
    *,
    generator: torch.Generator,
    progress: Progress,
    device: Device,
) -> Explanation:
    """Shapley values of the columns of rows; see the method of estimators."""
    players = Players.of(model.schema, rows.values.shape[1], groups)
    question = Question(model, output, device)
    means = _means(question, rows, players, method, generator, progress)
    values, base, errors = (each.numpy() for each in (means.values, means.base, means.errors))
    names = None if model.classes is None else [str(label) for label in model.classes.tolist()]
    if output == "log_density":
        values, errors, names = values[..., 0], errors[..., 0], None
        base = model.log_density(model.engine(rows, device)) - values.sum(1)
    data = shown = None
    if isinstance(rows, Matrix):
        data = players.data(rows.values.astype(np.float64), np.nan)
        shown = players.data(model.schema.decode(rows.values).astype(object), None)
    return Explanation(values, base, data, shown, players.names, names, errors)


def _means(
    question: Question,
    rows: Observations,
    players: Players,
    method: str,
    generator: torch.Generator,
    progress: Progress,
) -> _Means:
    """From all subsets where a row has few columns, from random orders where it has many."""
    blocks, adds_up = list(_Block.split(rows, players)), question.adds_up()
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
            means.add(block, shapley.in_order(block, torch.arange(len(block.groups))))
        elif len(block.groups) <= most:
            means.add(block, shapley.exact(block))
    progress.start("random orders", _PAIRS if many else 0)
    for number in range(_PAIRS if many else 0):
        for block in many:
            means.add(block, shapley.in_random_orders(block, generator))
        record: Record = {"iteration": number, "objective": float(means.errors.max())}
        if progress.step(record) and number + 1 >= _FEWEST_PAIRS:
            warn(
                f"max_time allowed {number + 1} of {_PAIRS} pairs of random orders: error_std "
                "says how far the values may be off. Remedy: fewer rows, groups of columns, or "
                "more time.",
                DegenerateDataWarning,
            )
            break
    return means
