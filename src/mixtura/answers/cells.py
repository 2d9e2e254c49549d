"""What comes and goes where answers are explained.

That are the columns of a row; of a sequence, its channels, whole or cut into intervals of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixtura.answers.subsets import Subsets
from mixtura.data.matrix import Matrix
from mixtura.data.sequence_input import Sequences
from mixtura.exceptions import InvalidInputError
from mixtura.models.fitted import Observations

#: How many parts sequences are cut into, or the frames at which all but the first begin.
Intervals = int | Sequence[int] | None


@dataclass(frozen=True)
class Cells:
    """Entries of rows that come and go together: channel d in interval t is number t D + d.

    Attributes
    ----------
    starts : (m,) where intervals begin: shares of the length of a sequence, or frames.
    names : of the intervals.
    """

    starts: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, intervals: Intervals) -> Cells:
        """One interval, equal parts of each sequence, or the same frames of all."""
        if intervals is None:
            return cls(np.zeros(1), [""])
        given = np.asarray(intervals)
        if given.shape == () and given.dtype.kind in "iu" and given > 0:
            ends = np.linspace(0.0, 1.0, int(given) + 1)
            pairs = zip(100.0 * ends[:-1], 100.0 * ends[1:], strict=True)
            return cls(ends[:-1], [f"{low:.3g} to {high:.3g} %" for low, high in pairs])
        if given.ndim != 1 or given.dtype.kind not in "iu" or (np.diff(given, prepend=0) < 1).any():
            raise InvalidInputError(
                f"intervals={intervals!r}: give the number of equal parts to cut sequences into, "
                "or ascending frames above zero, at which the second and later ones begin."
            )
        starts, last = np.append(0, given), [*(given - 1).tolist(), "the end"]
        names = [f"frames {low} to {high}" for low, high in zip(starts, last, strict=True)]
        return cls(starts, names)

    def _numbers(self, rows: Observations) -> np.ndarray:
        """(F, D) the cell of each entry of all frames; (1, D) for rows, which are all alike."""
        n_columns = rows.values.shape[1]
        if isinstance(rows, Matrix):
            return np.arange(n_columns)[None]
        place = rows.moment
        if self.starts.dtype.kind == "f":
            place = place / np.repeat(rows.lengths, rows.lengths)
        interval = np.searchsorted(self.starts, place, side="right") - 1
        return interval[:, None] * n_columns + np.arange(n_columns)

    def seen(self, rows: Observations) -> np.ndarray:
        """(n, m D) the cells that rows, or sequences, have anything of."""
        observed = ~np.isnan(rows.values)
        if isinstance(rows, Matrix):
            return observed
        found = np.zeros((len(rows), len(self.starts) * observed.shape[1]), dtype=bool)
        own = rows.owner[:, None] * found.shape[1]
        found.ravel()[(own + self._numbers(rows))[observed]] = True
        return found

    def masked(self, rows: Observations, subsets: Subsets) -> Observations:
        """Every row (or sequence) once for each subset of cells, with no telling of the others."""
        n_columns = rows.values.shape[1]
        kept = subsets.columns(len(self.starts) * n_columns)
        many = rows.take(np.tile(np.arange(len(rows)), len(kept)))
        shape = len(kept), len(rows.values), n_columns
        kept = np.broadcast_to(kept[:, self._numbers(rows)], shape).reshape(-1, n_columns)
        values = np.where(kept, many.values, np.nan)
        if isinstance(many, Sequences):
            return many.with_values(values)
        return Matrix(values, ~kept if many.untold is None else many.untold | ~kept)
