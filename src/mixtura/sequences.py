"""Sequences in the forms of other libraries, for the estimators of sequences.

`from_panel` reads what aeon and sktime call a panel, `from_long` a table with one row per frame and
time stamps. Both give `Sequences`, which estimators, splitters and searches take as a list of n
sequences; what `impute` and `sample` give back has the form that these came in. `with_slopes` puts
the slope of every channel beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from numbers import Integral, Real

import numpy as np

from mixtura.data.given import ArrayLike
from mixtura.data.long_frames import as_numbers, column_names, steps_of
from mixtura.data.sequence_forms import Form
from mixtura.data.sequence_input import Sequences, offsets_of, read_sequences
from mixtura.exceptions import InvalidInputError
from mixtura.parts import Part

__all__ = ["Layout", "Sequences", "from_long", "from_panel", "with_slopes"]

#: A grid has no more frames than so many per row.
_MOST_FRAMES = 1_000


@dataclass
class Layout(Part):
    """How sequences lie in what estimators are given.

    Parameters
    ----------
    channels_first : bool
        Arrays are (d, T_i), or (n, d, T); so are those that come back.
    id_column, time_column : str
        Of a data frame, or files, with one row per frame: the column that tells sequences apart,
        and the one to sort them by (None leaves the rows in their order).
    """

    channels_first: bool = False
    id_column: str = "id"
    time_column: str | None = None

    _parameter_constraints = {
        "channels_first": ["boolean"],
        "id_column": [str],
        "time_column": [None, str],
    }


#: What the names of layouts are shorthand for.
LAYOUTS: dict[str, Callable[[], Layout]] = {
    "frames_first": Layout,
    "channels_first": partial(Layout, channels_first=True),
}


def from_long(
    table: ArrayLike,
    *,
    id_column: str = "id",
    time_column: str | None = None,
    step: float | timedelta | np.timedelta64 | None = None,
) -> Sequences:
    """Sequences from a table with one row per frame: of pandas, polars or Arrow.

    Parameters
    ----------
    table : columns that are not named below are channels.
    id_column : tells sequences apart; they come in the order in which their ids appear first.
    time_column : to sort the rows of a sequence by; None leaves them in their order. Dates with a
        time zone come back as UTC without one from polars and Arrow.
    step : of a regular grid of time, in the units of the times. Every sequence begins at its first
        row, a row belongs to the nearest moment of the grid, and moments without a row are lost
        frames. Two rows of one moment are refused. None takes rows as one frame after another, and
        warns of gaps.
    """
    if step is None:
        found = read_sequences(table, id_column=id_column, time_column=time_column)
        return replace(found, rows=None)
    if time_column is None:
        raise InvalidInputError("step is a step in time: name the column of times by time_column.")
    plain = read_sequences(table, id_column=id_column, time_column=time_column, gaps=True)
    return replace(_on_grid(plain, _in_units(step, plain.times)), rows=None)


def _in_units(step: float | timedelta | np.timedelta64, times: np.ndarray | None) -> float:
    """A positive step as a number, whole if it is; nanoseconds of dates."""
    assert times is not None
    dates = times.dtype.kind in "mM"
    if as_numbers(times) is None:
        raise InvalidInputError(
            f"times are of the type {times.dtype}: a grid needs numbers, or dates without a time "
            "zone."
        )
    lasting = isinstance(step, timedelta | np.timedelta64)  # the latter is Real, too
    if lasting != dates or not (lasting or isinstance(step, Real)):
        wanted = "a timedelta, such as timedelta(hours=1), as times are dates"
        wanted = wanted if dates else "a number, as times are"
        raise InvalidInputError(f"step={step!r}: give {wanted}.")
    if isinstance(step, timedelta | np.timedelta64):
        found: float = int(np.asarray(step, "m8[ns]").astype(np.int64))
    else:
        found = int(step) if isinstance(step, Integral) else float(step)
    if not 0.0 < found < np.inf:
        raise InvalidInputError(f"step={step!r} must be positive.")
    return found


def _on_grid(sequences: Sequences, step: float) -> Sequences:
    """Every frame at the nearest moment of its sequence's grid; lost frames between."""
    assert sequences.times is not None
    assert sequences.ids is not None
    numbers, before = as_numbers(sequences.times), sequences.offsets
    assert numbers is not None
    if not np.isfinite(numbers).all():
        raise InvalidInputError("times have an infinite value: drop these rows, or mend them.")
    began = np.repeat(numbers[before[:-1]], sequences.lengths)
    moment = np.rint((numbers - began) / step)
    last = moment[before[1:] - 1]
    if last.sum() > _MOST_FRAMES * len(moment):
        raise InvalidInputError(
            f"step makes {last.sum():.3g} frames of {len(moment)} rows: give a longer one."
        )
    lengths = last.astype(np.int64) + 1
    offsets = offsets_of(lengths)
    at = np.repeat(offsets[:-1], sequences.lengths) + moment.astype(np.int64)
    same = np.flatnonzero(np.diff(at) == 0)
    if len(same):
        owner = int(np.searchsorted(before, same[0], side="right")) - 1
        first, second = sequences.times[same[0] : same[0] + 2]
        raise InvalidInputError(
            f"the times {first} and {second} of the sequence {sequences.ids[owner]} are one moment "
            "of the grid: give a shorter step, or drop one of the rows."
        )
    frames = np.full((offsets[-1], sequences.frames.shape[1]), np.nan, sequences.frames.dtype)
    frames[at] = sequences.frames
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    times = np.repeat(numbers[before[:-1]], lengths) + step * inside
    if sequences.times.dtype.kind in "mM":
        times = times.astype(np.int64).astype(f"{sequences.times.dtype.kind}8[ns]")
    times[at] = sequences.times
    return replace(sequences, frames=frames, offsets=offsets, times=times)


def from_panel(panel: ArrayLike) -> Sequences:
    """Sequences from a panel of aeon or sktime, in which channels come before frames.

    Parameters
    ----------
    panel : one of
        an array (n, channels, frames), in which NaN at the end of all channels is padding;
        an array (n, frames) of one channel;
        a list of (channels, frames) arrays, or of data frames with one row per frame;
        a pandas data frame with an index of two levels, sequence and time;
        a nested one, with one row per sequence and one column per channel, whose cells are series.
    """
    if isinstance(panel, Sequences):
        return panel
    if hasattr(panel, "iloc") and hasattr(panel, "columns"):
        indexed = getattr(panel.index, "nlevels", 1)
        if indexed == 2:
            return _from_multiindex(panel)
        cells = panel.iloc[0] if indexed == 1 and len(panel) else [0.0]
        if all(len(np.shape(cell)) == 1 for cell in cells):
            return _from_nested(panel)
        raise InvalidInputError(
            "this data frame is no panel, which has an index of two levels (sequence, time) or "
            "cells that hold series: from_long reads one row per frame with a column of ids."
        )
    if isinstance(panel, list | tuple) and panel and all(hasattr(part, "iloc") for part in panel):
        return _from_tables(panel)
    if not isinstance(panel, list | tuple) and len(np.shape(panel)) == 2:
        panel = np.asarray(panel)[:, None]
    return read_sequences(panel, channels_first=True)


def _from_multiindex(panel: ArrayLike) -> Sequences:
    columns, index = column_names(panel), panel.index
    levels = [f"level {number} of the index" for number in (0, 1)]
    table = _Columns(zip(levels, map(index.get_level_values, (0, 1)), strict=True))
    table |= {name: panel[name] for name in columns}
    found = read_sequences(table, id_column=levels[0], time_column=levels[1])
    who, when = (None if name is None else str(name) for name in index.names)
    return replace(found, form=Form("multiindex", columns=(who, when)), rows=None)


class _Columns(dict):
    """As much of a data frame as reading one needs: columns of equal length, by name."""

    @property
    def columns(self) -> list[object]:
        return list(self)


def _from_nested(panel: ArrayLike) -> Sequences:
    names = column_names(panel)
    cells = [[np.asarray(cell, dtype=np.float64) for cell in panel[name]] for name in names]
    lengths = np.array([[len(cell) for cell in column] for column in cells])
    odd = (lengths != lengths[0]).any(0)
    if odd.any():
        place = int(np.argmax(odd))
        raise InvalidInputError(
            f"the channels of sequence {panel.index[place]!r} have {lengths[:, place].tolist()} "
            "frames: put NaN where one was not measured."
        )
    found = read_sequences([np.stack(parts, 1) for parts in zip(*cells, strict=True)])
    times, *others = (_times(panel[name]) for name in names)
    if not all(np.array_equal(times, other) for other in others):
        raise InvalidInputError(
            "the channels of a sequence have different times: give all of them the same, and put "
            "NaN where one was not measured."
        )
    return _in_order(replace(found, ids=np.asarray(panel.index)), names, times, Form("nested"))


def _times(cells: ArrayLike) -> np.ndarray:
    """Times of the frames of one sequence after another; places in arrays, which have none."""
    every = [cell.index if hasattr(cell, "iloc") else range(len(cell)) for cell in cells]
    return np.concatenate([np.asarray(times) for times in every])


def _in_order(found: Sequences, names: list[ArrayLike], times: np.ndarray, form: Form) -> Sequences:
    """The sequences with names and times, which must not go back."""
    if (steps_of(times, found.offsets) < 0).any():
        raise InvalidInputError("the times of a sequence go back: sort its frames by their index.")
    return replace(found, names=[str(name) for name in names], times=times, form=form)


def _from_tables(tables: ArrayLike) -> Sequences:
    names = column_names(tables[0])
    for place, table in enumerate(tables):
        if column_names(table) != names:
            raise InvalidInputError(
                f"the columns of sequence {place} are {column_names(table)}, but those of sequence "
                f"0 are {names}: every sequence needs the same channels."
            )
    found = read_sequences([np.asarray(table) for table in tables])
    return _in_order(found, names, _times(tables), Form("frames"))


def with_slopes(X: ArrayLike, window: int = 1) -> Sequences:
    """Sequences with the slope of every channel of numbers, by frame, after all channels.

    Parameters
    ----------
    X : what estimators take, or what `from_long` and `from_panel` make of other forms.
    window : frames before and after one that the slope of its channel is fitted to by least
        squares; fewer where a sequence begins or ends. It is missing where one of these values is,
        and in sequences of a single frame.
    """
    if not isinstance(window, Integral) or window < 1:
        raise InvalidInputError(f"window={window!r}: give a whole number, 1 or more.")
    found = read_sequences(X)
    numbers = [at for at in range(found.frames.shape[1]) if found.categories_of(at) is None]
    values = found.frames[:, numbers].astype(np.float64)
    place, owner = np.arange(len(values)), found.owner
    began, ends = found.offsets[owner], found.offsets[owner + 1]
    sums = np.zeros((3, len(values), 1))  # of one, of steps, and of their squares
    rise, tilt = np.zeros_like(values), np.zeros_like(values)
    for step in range(-window, window + 1):
        inside = ((place + step >= began) & (place + step < ends))[:, None]
        gain = values[np.clip(place + step, began, ends - 1)] - values
        sums += inside * np.array([1.0, step, step**2])[:, None, None]
        rise += inside * gain
        tilt += inside * gain * step
    count, steps, squares = sums
    with np.errstate(invalid="ignore"):
        slope = (count * tilt - steps * rise) / (count * squares - steps**2)
    names, codes = found.names, found.categories
    return replace(
        found,
        frames=np.column_stack([found.frames, slope]),
        names=None if names is None else [*names, *(f"slope of {names[at]}" for at in numbers)],
        categories=None if codes is None else (*codes, *[None] * len(numbers)),
        rows=None,
    )
