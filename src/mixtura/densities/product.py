"""Several kinds of columns at once: independent of each other within a component.

A column of numbers may have values that many rows share, its atoms. Each has a chance of its own
per component; the number is then as good as missing, and integrated out of the density of the
numbers. All other numbers have the chance that is left, and that density.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Self, TypeVar

import torch
from torch import Tensor

from mixtura.constants import SAME
from mixtura.data.atoms import Atoms, Values
from mixtura.data.batch import Batch, index_of
from mixtura.densities.base import Density, Statistics, VectorDensity, inside, numbered
from mixtura.densities.categorical import Categorical

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Product(Density[Batch]):
    """Densities over disjoint groups of columns, multiplied.

    Attributes
    ----------
    parts : stacks of K densities each.
    columns : the columns of each part.
    informative : whether one more part, the last, looks at which entries are absent.
    atoms : values of numbers that have chances, which one more part has, before that; None: no
        such part.
    """

    parts: tuple[Density, ...]
    columns: tuple[tuple[int, ...], ...]
    informative: bool = False
    atoms: Atoms | None = None

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return all(part.closed_form for part in self.parts)

    @property
    def n_components(self) -> int:
        return self.parts[0].n_components

    @property
    def n_features(self) -> int:
        return sum(map(len, self.columns))

    @property
    def n_parameters(self) -> int:
        return sum(part.n_parameters for part in self.parts)

    @property
    def prior_rows(self) -> float:
        return max(part.prior_rows for part in self.parts)

    def row_cost(self, missing: bool) -> int:
        missing = missing or self.atoms is not None
        return self.n_features + sum(part.row_cost(missing) for part in self.parts)

    # -- names: what belongs to part 1 begins with "1." ------------------------------------------

    def _inward(self, named: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return [inside(named, f"{number}.") for number in range(len(self.parts))]

    def tensors(self) -> dict[str, Tensor]:
        return numbered([part.tensors() for part in self.parts])

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        pairs = zip(self.parts, self._inward(tensors), strict=True)
        return replace(self, parts=tuple(part.with_tensors(inner) for part, inner in pairs))

    def find(self, column: int) -> tuple[int, int]:
        """The part that a column belongs to, and its place there."""
        return next((i, c.index(column)) for i, c in enumerate(self.columns) if column in c)

    def view(self, batch: Batch, part: int) -> Batch:
        """What a part looks at."""
        return list(self._views(batch))[part]

    # -- columns -------------------------------------------------------------------------------

    def _views(self, batch: Batch) -> Iterator[Batch]:
        """What each part looks at."""
        rows, codes, atoms = batch, None, self.atoms
        if atoms is not None:
            rows, codes = batch.once(atoms, lambda: without_atoms(batch, atoms))
        for columns in self.columns:
            yield _view(rows, columns)
        if codes is not None:
            yield codes
        if self.informative:
            yield batch.once(hole_patterns, lambda: hole_patterns(batch))

    def _each(self, batch: Batch, function: Callable[[Density, Batch], Answer]) -> list[Answer]:
        return [
            function(part, view) for part, view in zip(self.parts, self._views(batch), strict=True)
        ]

    def _placed(self, values: list[Tensor]) -> Tensor:
        """One value per column of each group (..., d), all in the order of the columns (..., D)."""
        given = [column for columns in self.columns for column in columns]
        order = tuple(sorted(range(len(given)), key=given.__getitem__))
        return torch.cat(values[: len(self.columns)], -1)[..., index_of(order, values[0].device)]

    # -- the protocol --------------------------------------------------------------------------

    def log_prob(self, batch: Batch) -> Tensor:
        first, *rest = self._each(batch, lambda part, view: part.log_prob(view))
        return sum(rest, first)

    def log_peak(self) -> Tensor:
        first, *rest = [part.log_peak() for part in self.parts]
        return sum(rest, first)

    def statistics(self, batch: Batch, occupancy: Tensor) -> Statistics:
        inner = self._each(batch, lambda part, view: part.statistics(view, occupancy))
        return {"mass": occupancy.sum(0), **numbered(inner)}

    def expectation(self, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        return self._joint(self._each(batch, lambda part, view: part.expectation(view)))

    def expectation_among(
        self, batch: Batch, among: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        return self._joint(
            self._each(batch, lambda part, view: part.expectation_among(view, among))
        )

    def _joint(
        self, found: list[tuple[Tensor, Callable[[Tensor], Statistics]]]
    ) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """Log densities and statistics of all parts together."""
        first, *rest = [log_prob for log_prob, _ in found]

        def statistics(occupancy: Tensor) -> Statistics:
            inner = [function(occupancy) for _, function in found]
            return {"mass": occupancy.sum(0), **numbered(inner)}

        return sum(rest, first), statistics

    @property
    def location(self) -> Tensor:
        return self._placed([part.location for part in self.parts])

    @property
    def spread(self) -> Tensor:
        """Those of all parts, flat, side by side."""
        return torch.cat([part.spread.flatten(1) for part in self.parts], 1)

    def spreads(self, spread: Tensor) -> list[Tensor]:
        """A flat spread (..., P), as each part has it."""
        shapes = [part.spread.shape[1:] for part in self.parts]
        flat = spread.split([shape.numel() for shape in shapes], -1)
        return [
            piece.reshape(*spread.shape[:-1], *shape)
            for piece, shape in zip(flat, shapes, strict=True)
        ]

    def _centers(self, center: Tensor) -> list[Tensor]:
        found = [center[:, index_of(columns, center.device)] for columns in self.columns]
        return found + [center] * (len(self.parts) - len(found))

    def spread_log_prob(self, reference: Tensor) -> Tensor:
        pairs = zip(self.parts, self.spreads(reference), strict=True)
        first, *rest = [part.spread_log_prob(spread) for part, spread in pairs]
        return sum(rest, first)

    def spread_statistics(self, reference: Tensor, center: Tensor) -> Statistics:
        trios = zip(self.parts, self.spreads(reference), self._centers(center), strict=True)
        inner = [part.spread_statistics(spread, where) for part, spread, where in trios]
        return {"mass": torch.ones_like(inner[0]["mass"]), **numbered(inner)}

    def spread_about(self, reference: Tensor, center: Tensor) -> Tensor:
        trios = zip(self.parts, self.spreads(reference), self._centers(center), strict=True)
        return torch.cat([part.spread_about(*told).flatten(1) for part, *told in trios], 1)

    def center(self, statistics: Statistics) -> Tensor:
        pairs = zip(self.parts, self._inward(statistics), strict=True)
        return self._placed([part.center(inner) for part, inner in pairs])

    def own_statistics(self) -> Statistics:
        inner = [part.own_statistics() for part in self.parts]
        return {"mass": torch.ones_like(inner[0]["mass"]), **numbered(inner)}

    def maximize(self, statistics: Statistics) -> tuple[Self, Tensor]:
        pairs = zip(self.parts, self._inward(statistics), strict=True)
        parts, valid = zip(*(part.maximize(inner) for part, inner in pairs), strict=True)
        return replace(self, parts=parts), torch.stack(valid).all(0)

    @property
    def explicit(self) -> bool:  # type: ignore[override]
        return all(part.explicit for part in self.parts)

    def slope(self, statistics: Statistics) -> dict[str, Tensor]:
        pairs = zip(self.parts, self._inward(statistics), strict=True)
        return numbered([part.slope(inner) for part, inner in pairs])

    def free(self) -> dict[str, Tensor]:
        return numbered([part.free() for part in self.parts])

    def from_free(self, free: dict[str, Tensor]) -> Self:
        pairs = zip(self.parts, self._inward(free), strict=True)
        return replace(self, parts=tuple(part.from_free(inner) for part, inner in pairs))

    def covariances(self) -> Tensor:
        """Between columns of different groups there is none; that of codes is not a number."""
        own = [part.covariances() for part in self.parts[: len(self.columns)]]
        whole = own[0].new_zeros(self.n_components, self.n_features, self.n_features)
        for columns, block in zip(self.columns, own, strict=True):
            index = index_of(columns, whole.device)
            whole[:, index[:, None], index] = block
        return whole

    def sample(self, component: Tensor, generator: torch.Generator, **options: Tensor) -> Tensor:
        return self._joined(self._drawn(component, generator))

    def _drawn(self, component: Tensor, generator: torch.Generator) -> list[Tensor]:
        return [part.sample(component, generator) for part in self.parts]

    def _joined(self, values: list[Tensor]) -> Tensor:
        """Rows (n, D) from what all parts drew."""
        rows, atoms = self._placed(values), self.atoms
        if atoms is None:
            return rows
        codes, index = values[len(self.columns)], index_of(atoms.columns, rows.device)
        table = _table(atoms.values, rows.device).to(rows)
        own = table.gather(1, (codes.long().mT - 1).clamp_min(0)).mT
        return rows.index_copy(1, index, torch.where(codes > 0, own, rows[:, index]))

    def fill(self, batch: Batch, share: Tensor) -> Tensor:
        filled = self._placed(self._each(batch, lambda part, view: part.fill(view, share)))
        return filled if self.atoms is None else self._with_atoms(filled, batch, share, self.atoms)

    def _with_atoms(self, filled: Tensor, batch: Batch, share: Tensor, atoms: Atoms) -> Tensor:
        """The same, where numbers may be atoms: means of these and of the numbers."""
        if batch.observed is None:
            return batch.x
        numbers, chances = self.parts[0], self.parts[len(self.columns)]
        assert isinstance(numbers, VectorDensity)
        assert isinstance(chances, Categorical)
        places = [self.columns[0].index(column) for column in atoms.columns]
        expected = numbers.expected(self.view(batch, 0))[..., places]
        other, mean = (each.to(share) for each in chances.means(atoms.values))
        means = torch.einsum("nk,nka->na", share, other * expected) + share @ mean
        filled = filled.index_copy(1, index_of(atoms.columns, filled.device), means.to(filled))
        return torch.where(batch.observed, batch.x, filled)

    def complete(self, batch: Batch, component: Tensor, generator: torch.Generator) -> Tensor:
        return self._agreed(batch, component, self._drawn(component, generator))

    def agree(self, batch: Batch, component: Tensor, drawn: Tensor) -> Tensor:
        if self.atoms is not None:  # a draw that is an atom has lost its number
            raise self._unwritten("way to move draws", "`complete`, which draws them,")
        index = [index_of(columns, drawn.device) for columns in self.columns]
        return self._agreed(batch, component, [drawn[:, each] for each in index])

    def _agreed(self, batch: Batch, component: Tensor, drawn: list[Tensor]) -> Tensor:
        """Draws of all parts but the last, if that looks at holes, given what is observed."""
        trios = zip(self.parts, self._views(batch), drawn, strict=False)
        shown = len(self.columns) + (self.atoms is not None)
        return self._joined(
            [part.agree(view, component, own) for part, view, own in islice(trios, shown)]
        )


def numeric_part(density: Density) -> Density:
    """The density of the numbers: that of the first columns of a product; or all there is."""
    return density.parts[0] if isinstance(density, Product) else density


def with_numeric_part(density: Density, part: Density) -> Density:
    """The density with another of the numbers."""
    if not isinstance(density, Product):
        return part
    return replace(density, parts=(part, *density.parts[1:]))


def without_atoms(batch: Batch, atoms: Atoms) -> tuple[Batch, Batch]:
    """The rows, numbers that are atoms unobserved; and which they are, (n, A), 0 for none."""
    x, told = batch.x, batch.observed
    values, index = _table(atoms.values, x.device), index_of(atoms.columns, x.device)
    hit = (x[:, index, None].double() - values).abs() <= SAME * values.abs().clamp_min(1.0)
    codes = (hit * torch.arange(1, values.shape[1] + 1, device=x.device)).amax(2)
    held = torch.zeros_like(x, dtype=torch.bool).index_copy_(1, index, codes > 0)
    observed = ~held if told is None else told & ~held
    told = None if told is None else told[:, index]
    rows = replace(batch, x=batch.x.masked_fill(held, 0.0), observed=observed)
    return rows, Batch(codes.to(batch.x), told, batch.y, batch.weight)


@lru_cache(maxsize=256)
def _table(values: Values, device: torch.device) -> Tensor:
    """(A, M) the values of atoms, NaN where a column has fewer."""
    most = max(map(len, values))
    rows = [[*each, *[torch.nan] * (most - len(each))] for each in values]
    with torch.inference_mode(False):  # whoever asks first, gradients may need it later
        return torch.tensor(rows, dtype=torch.float64, device=device)


def hole_patterns(batch: Batch) -> Batch:
    """Which entries the rows lack: 1 for absent, 0 for present, not observed where none tells."""
    lacks = batch.by_column(batch.lacks())
    told = None if batch.absent is None else lacks >= 0
    return Batch(lacks.clamp_min(0).to(batch.x), told, batch.y, batch.weight)


def _view(batch: Batch, columns: tuple[int, ...]) -> Batch:
    """The rows, of some columns."""
    if columns == tuple(range(batch.x.shape[1])):
        return batch
    return batch.once(columns, lambda: _some_columns(batch, columns))


def _some_columns(batch: Batch, columns: tuple[int, ...]) -> Batch:
    index = index_of(columns, batch.x.device)
    observed = None if batch.observed is None else batch.observed[:, index]
    if observed is not None and observed.all():
        observed = None
    return Batch(batch.x[:, index], observed, batch.y, batch.weight)
