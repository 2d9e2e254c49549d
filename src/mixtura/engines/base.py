"""What an engine is: it holds rows; what is above it sees sums, minibatches, samples, splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from mixtura.data.journal import Sums
from mixtura.data.lazy import SCAN_ROWS, Marked
from mixtura.data.meter import counted
from mixtura.data.sequences import AnyBatch
from mixtura.engines.table import Table, row_by_row
from mixtura.engines.views import View
from mixtura.numerics import each_apart, spawn

#: Numbers a chunk may hold: few enough to bound memory, enough to keep the device busy.
_CHUNK_NUMBERS = {"cpu": 20_000_000, "cuda": 250_000_000}
#: Of more rows, a random sample is searched for copies.
_SEARCHED = 100_000
#: Of more rows, no order of all of them is made; so many are looked at together.
_MANY, _AT_ONCE = 2**22, 2**20
#: Numbers of copies that can be told from others, and how near to whole ones weights make them.
_EXACT, _NEAR = 2.0**40, 1e-3
#: Rows are of few kinds if these are fewer, or if such a share of those that repeat has several
#: labels.
_KINDS, _SEVERAL = 20, 0.05


class HasRowCost(Protocol):
    """A model, or its density, that says what a row of it costs."""

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory for one row."""


class Engine(Table[AnyBatch]):
    """Rows (or sequences), their labels and weights, and how to work through them.

    Sums, minibatches and chunks see the rows as its `view` shows them: as they are, if it is None.
    """

    view: View[AnyBatch] | None = None

    def seen(self, view: View[AnyBatch] | None) -> Self:
        """The same rows, as a view shows them; as they are, for None."""
        other = copy(self)
        vars(other).update(vars(self), view=view)  # what is kept of the rows, too
        return other

    def __getstate__(self) -> dict[str, object]:
        """Copies may get other rows, which their view has not seen."""
        return {**super().__getstate__(), "view": copy(self.view)}

    @property
    def doubled(self) -> bool:
        """Whether every row stands beside a copy of itself."""
        return self.view is not None and self.view.doubles

    @property
    def n_sharing(self) -> int:
        """One, where a view draws: all processes must draw the same."""
        return super().n_sharing if self.view is None else 1

    @property
    def may_have_missing(self) -> bool:
        """Whether an entry may be missing."""
        return self.doubled or self._told_missing is not False

    @property
    def n_here(self) -> int:
        """Rows that all chunks have together: all, or those of this process; copies included."""
        count = len(self) if self._lazy is None else self._lazy.n_here
        return 2 * count if self.doubled else count

    def batch(self, index: slice | Tensor) -> AnyBatch:
        """The rows at `index`, to learn from."""
        rows = self._rows_at(index)
        return rows if self.view is None else self.view.batch(rows)

    def chunks(self, n_rows: int) -> Iterator[AnyBatch]:
        """The rows at hand in order, `n_rows` at a time: all, or those of this process."""
        rows = self._rows_in_order(max(1, n_rows // 2) if self.doubled else n_rows)
        return rows if self.view is None else self.view.chunks(rows)

    @property
    def levels(self) -> tuple[int, ...]:
        """(D,) number of categories of each column, 0 for numbers."""
        return tuple(self.scaling.levels.tolist())

    @property
    def n_numbers(self) -> int:
        """How many columns hold numbers."""
        return self.levels.count(0)

    @property
    def may_marginalize(self) -> bool:
        """Whether entries may be integrated out: those that are missing, and atoms."""
        return self.may_have_missing or self.scaling.atoms is not None

    @property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    @property
    def values_per_row(self) -> float:
        """Observed values of a row, copies aside, in all frames: the mean by weight, at least 1."""
        mass = float(self.weight.sum(dtype=torch.float64))
        if self._lazy is not None and self._told_missing is not False:
            observed = torch.zeros((), dtype=torch.float64, device=self.device)
            for batch in self._rows_in_order(SCAN_ROWS):
                observed += batch.weight.double() @ (1.0 - batch.missing_share())
            observed = self._lazy.reduced({"observed": observed})["observed"]
            return max(self.n_features * float(observed) / mass, 1.0)
        seen = torch.ones((), dtype=torch.float64, device=self.device).expand(len(self))
        if self._told_missing is not False:
            parts = [batch.missing_share() for batch in self._rows_in_order(SCAN_ROWS)]
            seen = 1.0 - self.joined(parts)
        each = (values.split(_AT_ONCE) for values in (self.weight, self.sizes, seen))
        total = sum(
            float(weight.double() @ (size.double() * self.n_features * some))
            for weight, size, some in zip(*each, strict=True)
        )
        return max(total / mass, 1.0)

    def all_rows(self) -> AnyBatch:
        """One batch of all rows: for samples, which are small."""
        return self.batch(slice(None))

    # -- sums ----------------------------------------------------------------------------------

    def chunk_rows(self, model: HasRowCost) -> int:
        """Rows per chunk, so that memory is bounded whatever the number of rows."""
        cost = model.row_cost(self.may_have_missing)
        if not cost:
            return max(1, len(self))
        kind = "cpu" if self.device.type == "cpu" else "cuda"
        room = _CHUNK_NUMBERS[kind]
        if kind == "cpu" and not self.may_have_missing:
            room = min(room, self.most_numbers)
        return max(1, min(self.most_rows[kind], room // cost))

    def sum(
        self,
        function: Callable[[AnyBatch], Sums],
        model: HasRowCost,
        *,
        side_by_side: bool = False,
    ) -> Sums:
        """The sum of what `function` gives for each chunk.

        Threads may work on several chunks `side_by_side` where it keeps nothing from one to others.
        """
        return self.recorded(lambda: self._summed(function, model, side_by_side))

    def _summed(
        self, function: Callable[[AnyBatch], Sums], model: HasRowCost, side_by_side: bool
    ) -> Sums:
        total: Sums = {}
        n_rows = self.chunk_rows(model)
        batches = counted(self.chunks(n_rows), self.n_here)
        apart = side_by_side and self.device.type == "cpu" and self.n_here > n_rows
        for found in (each_apart if apart else map)(function, batches):
            for name, value in found.items():
                total[name] = value if name not in total else total[name].add_(value)
        return self.reduced(total, function)

    def concat(self, function: Callable[[AnyBatch], Tensor], model: HasRowCost) -> Tensor:
        """What `function` gives for each chunk, one after another, on the CPU."""
        with torch.no_grad():
            batches = counted(self.chunks(self.chunk_rows(model)), self.n_here)
            return self.joined([function(batch).cpu() for batch in batches])

    # -- parts ---------------------------------------------------------------------------------

    @property
    def labeled(self) -> Tensor:
        """(n,) which rows have a label, or a target."""
        return row_by_row(lambda y: ~y.isnan() if y.is_floating_point() else y >= 0, self.y)

    @property
    def classes(self) -> list[int]:
        """Those that rows have labels of, in order."""
        y = self.y[:1] if self.y.stride() == (0,) else self.y
        parts = (part[part >= 0].bincount().nonzero() for part in y.split(_AT_ONCE))
        return sorted({label for part in parts for label in part.flatten().tolist()})

    def label_counts(self, n_classes: int) -> Tensor:
        """(C,) how many rows have each label, where all have one."""
        parts = (part.bincount(minlength=n_classes) for part in self.y.split(_AT_ONCE))
        return sum(parts, torch.zeros(n_classes, dtype=torch.long, device=self.device))

    def only(self, mask: Tensor) -> Self:
        """The rows of a mask (n,)."""
        return self if bool(mask.all()) else self.take(_places(mask))

    def labeled_as(self, label: int) -> Self:
        """The rows of one class."""
        return self.take(_places(row_by_row(lambda y: y == label, self.y)))

    def labeled_among(self, wanted: Tensor) -> Self:
        """The rows whose label is wanted, of all labels (C,)."""
        if bool(wanted.all()):
            return self
        return self.only(row_by_row(lambda y: wanted[y.long()], self.y))

    def single_class(self) -> Self:
        """The same rows, all counted as class 0: what an unsupervised model sees."""
        nothing = torch.zeros((), dtype=torch.long, device=self.device)
        return self.with_answers(y=nothing.expand(len(self)))

    def weighted(self, weight: Tensor) -> Self:
        """The rows that have a weight, with these weights (n,)."""
        part = self.take(_places(weight != 0))
        return part.with_answers(weight=weight[weight != 0].to(part.weight))

    def subsample(self, most: int, generator: torch.Generator) -> Self:
        """At most `most` random rows."""
        if len(self) <= most:
            return self
        return self.take(_drawn(len(self), most, generator).sort().values.numpy())

    def sample(self, most: int, generator: torch.Generator) -> Self:
        """About `most` labeled rows, every class its share, and as many unlabeled ones."""
        if len(self) > _MANY:
            return self.take(self._sampled_places(most, generator))
        if self.y.is_floating_point():
            order = self._order(generator)
            known = self.labeled.cpu()[order]
            return self.take(torch.cat([order[known][:most], order[~known][:most]]).numpy())
        n_labeled = int(self.labeled.sum())
        keep = [
            mine[: max(2, math.ceil(len(mine) * most / n_labeled))]
            for mine in self._shuffled_by_class(generator)
        ]
        unlabeled = (self.y.cpu() < 0).nonzero().flatten()
        order = torch.randperm(len(unlabeled), generator=generator)[:most]
        index = torch.cat([*keep, unlabeled[order]]).sort().values
        return self if len(index) == len(self) else self.take(index.numpy())

    def _sampled_places(self, most: int, generator: torch.Generator) -> np.ndarray:
        """The same of very many rows: places, ascending, in memory that does not grow with them."""
        counts = self._kind_counts()
        share = most / max(counts[1:].sum(), 1)
        wanted = np.minimum(counts, np.maximum(2, np.ceil(counts * share)).astype(np.int64))
        wanted[0] = min(counts[0], most)
        ranks = [
            np.sort(_drawn(int(count), int(some), generator).numpy())
            for count, some in zip(counts, wanted, strict=True)
        ]
        start, passed, places = 0, np.zeros_like(counts), []
        for kind in self._kinds():
            here = np.bincount(kind, minlength=len(counts))
            first = start + np.argsort(kind, kind="stable")
            for own, rank, before, count in zip(
                np.split(first, np.cumsum(here)[:-1]), ranks, passed, here, strict=True
            ):
                low, high = np.searchsorted(rank, [before, before + count])
                places.append(own[rank[low:high] - before])
            start, passed = start + len(kind), passed + here
        return np.sort(np.concatenate(places))

    def _kinds(self) -> Iterator[np.ndarray]:
        """What rows are, some at a time: 0 without a label, else one more than the class, or 1."""
        yield from map(_kind_of, self.y.split(_AT_ONCE))

    def _kind_counts(self) -> np.ndarray:
        """How many rows have no label, and how many are of each class."""
        counts = np.zeros(1, dtype=np.int64)
        for kind in self._kinds():
            found = np.bincount(kind, minlength=len(counts))
            counts = found + np.pad(counts, (0, len(found) - len(counts)))
        return counts

    def fewer_unlabeled(self, whole: Engine, most: int) -> Self:
        """The first `most` of the unlabeled rows, beside the labeled ones.

        They weigh as much beside these as all unlabeled rows do in the `whole` that this is a
        sample of.
        """
        known = self.labeled
        few = self.only(known | ((~known).cumsum(0) <= most))
        factor = _odds(whole) / max(_odds(few), 1e-300)
        return few.with_answers(weight=torch.where(few.labeled, few.weight, factor * few.weight))

    def merged(self, most: int | None = None) -> Self:
        """Different rows, each with the weight of all its copies; at most so many of them.

        Their order goes by class, is random within it, and is the same however often and in which
        order rows are given: weights are repetitions. Of very many rows a random sample is merged,
        in which every class has its share.
        """
        if len(self) > _SEARCHED:
            return self.sample(_SEARCHED, torch.Generator().manual_seed(0))._merged(most)
        return self._merged(most)

    def _merged(self, most: int | None) -> Self:
        key = self.row_keys()
        y = self.y.cpu()
        label = y.numpy().view(np.int64) if y.is_floating_point() else y.numpy()  # targets by bits
        order = np.lexsort((key, label))
        differs = (np.diff(key[order]) != 0) | (np.diff(label[order]) != 0)
        starts = np.flatnonzero(np.append(True, differs))
        weight = np.add.reduceat(self.weight.cpu().numpy()[order], starts)
        count = min(most or len(starts), len(starts))
        kept = np.linspace(0, len(starts) - 1, count).astype(np.int64)
        part = self.take(order[starts[kept]])
        return part.with_answers(weight=torch.from_numpy(weight[kept]).to(part.weight))

    # -- splits --------------------------------------------------------------------------------

    def in_parts(self, most: int) -> Self:
        """Different rows that stand for several as so many rows, or as `most`, of equal weights.

        Were all copies of a row with one label held out together, models would have seen but its
        other labels: rows of few kinds have such. Where hardly any of those that repeat has several
        labels, weights or a bootstrap repeat them, and part of a row would give the rest away.
        """
        weight, y = self.weight.double().cpu().numpy(), self.y.cpu().numpy()
        parts, known = np.ones(len(self), dtype=np.int64), np.asarray(_places(self.labeled))
        for label in self.classes:
            parts[y == label] = np.minimum(_repetitions(weight[y == label]), most)
        _, place, count = np.unique(self.row_keys()[known], return_inverse=True, return_counts=True)
        several = count[place][parts[known] > 1] > 1
        if len(known) >= _KINDS and (not len(several) or several.mean() < _SEVERAL):
            return self
        split = torch.from_numpy(np.repeat(weight / parts, parts)).to(self.weight)
        return self.take(np.repeat(np.arange(len(self)), parts)).with_answers(weight=split)

    def hold_out(self, share: float, generator: torch.Generator) -> tuple[Self, Self | None]:
        """Rows to train on, and a share of the labeled rows of every class (None if none).

        Copies of a row are on one side, as in `in_parts`, or they would give each other away; those
        of very many rows are not looked for.
        """
        if len(self) > _MANY:
            held = self._held_out(share, generator)
            return self.split(held) if held.any() else (self, None)
        held, key = torch.zeros(len(self), dtype=torch.bool), self._copies()
        for mine in self._shuffled_by_class(generator):
            count = int(len(mine) * share)
            if key is not None:
                mine, count = _together(mine, key, count)
            held[mine[:count]] = True
        return self.split(held) if held.any() else (self, None)

    def _held_out(self, share: float, generator: torch.Generator) -> Tensor:
        """(n,) bool, a share of the labeled rows of every class, of very many rows: in memory that
        does not grow with them."""
        left = self._kind_counts()  # rows that are to come
        wanted = (left * share).astype(np.int64)
        wanted[0] = 0
        rng = np.random.default_rng(spawn(generator).initial_seed())

        def drawn(y: Tensor) -> Tensor:
            held, kinds = np.zeros(len(y), dtype=bool), _kind_of(y)
            for kind in np.unique(kinds).tolist():
                mine = np.flatnonzero(kinds == kind)
                count = rng.hypergeometric(wanted[kind], left[kind] - wanted[kind], len(mine))
                held[rng.choice(mine, count, replace=False)] = True
                left[kind] -= len(mine)
                wanted[kind] -= count
            return torch.from_numpy(held)

        return row_by_row(drawn, self.y)

    def _copies(self) -> np.ndarray | None:
        """(n,) keys that copies of labeled rows share; None where they are to be split, or none is.

        Very many rows are not looked at.
        """
        if len(self) > _SEARCHED:
            return None
        key, known = self.row_keys(), np.asarray(_places(self.labeled))
        order, place = np.unique(key[known], return_inverse=True)
        if not _KINDS <= len(order) < len(known):
            return None
        both = np.stack([place, np.unique(self.y.cpu().numpy()[known], return_inverse=True)[1]])
        pairs, count = np.unique(both, axis=1, return_counts=True)
        several = (np.bincount(pairs[0]) > 1)[pairs[0]][count > 1]
        return None if len(several) and several.mean() >= _SEVERAL else key

    def fold_numbers(self, count: int, generator: torch.Generator) -> Tensor:
        """(n,) the fold of `count` that each labeled row is held out in; -1 for the others.

        A class with a single row is never without it.
        """
        fold = torch.full((len(self),), -1)
        first = 0
        for mine in self._shuffled_by_class(generator):
            if len(mine) > 1:
                fold[mine] = torch.arange(first, first + len(mine)) % count
                first += len(mine)
        return fold

    def _shuffled_by_class(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Positions of the labeled rows of each class; of all rows with a target."""
        y, order = self.y.cpu(), self._order(generator)
        if y.is_floating_point():
            yield order[~y[order].isnan()]
            return
        if y.stride() == (0,) and self.classes:  # the one class of all rows
            yield order
            return
        own = y[order]
        for label in self.classes:
            yield order[own == label]

    def _order(self, generator: torch.Generator) -> Tensor:
        """All places in random order, as small numbers."""
        kind = torch.int32 if len(self) < 2**31 else torch.int64
        return torch.randperm(len(self), generator=generator, dtype=kind)

    def split(self, held: Tensor) -> tuple[Self, Self]:
        """The rows to train on, and those that a mask (n,) holds out."""
        return self.take(_places(~held)), self.take(_places(held))


def _together(places: Tensor, key: np.ndarray, count: int) -> tuple[Tensor, int]:
    """Places in the same order, but copies next to each other; the count without a part of them."""
    _, first, place = np.unique(key[places.numpy()], return_index=True, return_inverse=True)
    order = np.argsort(first[place], kind="stable")
    group = first[place][order]
    count = count if count == len(group) else int(np.searchsorted(group, group[count]))
    return places[torch.from_numpy(order)], count


def _repetitions(weight: np.ndarray) -> np.ndarray:
    """How many rows each of a class (n,) stands for: multiples of the smallest weight, or of what
    all have in common if they are whole numbers. One each if weights are something else."""
    whole = weight.max() < _EXACT and (weight == weight.round()).all()
    unit = np.gcd.reduce(weight.astype(np.int64)) if whole else weight.min()
    copies = weight / unit
    told = copies.max() < _EXACT and np.allclose(copies, copies.round(), rtol=0.0, atol=_NEAR)
    return copies.round().astype(np.int64) if told else np.ones(len(weight), dtype=np.int64)


def _places(mask: Tensor) -> np.ndarray | Marked:
    """Where a mask (n,) is true; of very many rows by marks."""
    if len(mask) > _MANY:
        return Marked(mask.cpu().numpy())
    return mask.nonzero().flatten().cpu().numpy()


def _kind_of(y: Tensor) -> np.ndarray:
    """What rows are: 0 without a label, else one more than the class, or 1 if that is a number."""
    return ((~y.isnan()).to(torch.int8) if y.is_floating_point() else y + 1).cpu().numpy()


def _drawn(count: int, some: int, generator: torch.Generator) -> Tensor:
    """`some` of `count` places, at random; of very many, no order of all is made."""
    if count <= max(_MANY, 8 * some):
        kind = torch.int32 if count < 2**31 else torch.int64
        return torch.randperm(count, generator=generator, dtype=kind)[:some]
    drawn = torch.randint(count, (2 * some + 100,), generator=generator).numpy()
    first = np.sort(np.unique(drawn, return_index=True)[1])[:some]
    return torch.from_numpy(drawn[first])


def _odds(engine: Engine) -> float:
    """Weight of the unlabeled rows by that of the labeled ones."""
    known = engine.labeled
    return float(engine.weight[~known].sum() / engine.weight[known].sum())
