"""What failing sensors leave in sequences: channels stuck at one value, and spikes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixtura.data.sequence_input import Sequences
from mixtura.exceptions import DegenerateDataWarning, warn

#: Spikes of failures are so many times as high as in training, and so many deviations at least.
_HIGHER, _HIGH = 2.0, 1.0
#: Frames that are looked at together.
_AT_ONCE = 65_536


def limits_of(sequences: Sequences, scale: np.ndarray) -> np.ndarray:
    """(3, D + 1) what channels go beyond that have failed, and all together; or are infinite.

    The share of a sequence with one value: halfway from the most in training to all of it; how many
    frames that are: the most in training; and heights of spikes. `scale` (D,) are deviations.
    """
    most = np.zeros((3, len(scale) + 1))
    for _, part in _parts(sequences):
        for at, (held, total) in enumerate(_stretches(part)):
            share = (held / total)[total > 1].max(initial=0.0)
            most[:2, at] = np.maximum(most[:2, at], (share, held.max(initial=1)))
        for at, heights in enumerate(_heights(part)):
            most[2, at] = max(most[2, at], heights.max(initial=0.0))
    high = np.maximum(_HIGHER * most[2], _HIGH * np.append(scale, np.inf))
    found = np.stack([0.5 + most[0] / 2.0, most[1], high])
    words = [sequences.categories_of(at) is not None for at in range(len(scale))]
    return np.where([*words, False], np.inf, found)


def stuck(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(F, D) entries in stretches of one value that are beyond the limits; (3, 0) are none."""
    found, width = np.zeros(sequences.frames.shape, dtype=bool), sequences.frames.shape[1]
    for frames, part in _parts(sequences):
        each = zip(limits.T, _stretches(part), strict=False)
        for at, (limit, (held, total)) in enumerate(each):
            failed = (held > limit[0] * total) & (held > limit[1])
            found[frames][failed, at if at < width else slice(None)] = True
    return found


def are_stuck(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(n,) sequences with such a stretch, which densities take for likely."""
    return _any(sequences, stuck(sequences, limits))


def failures(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(F, D) entries that are stuck or spikes, of which warnings tell; limits (3, 0) are none."""
    still = stuck(sequences, limits)
    spikes = np.zeros_like(still)
    for frames, part in _parts(sequences):
        for at, (limit, heights) in enumerate(zip(limits[2], _heights(part), strict=False)):
            spikes[frames, at] = heights > limit
    _tell(sequences, still, "repeat one value far longer than those of training did")
    _tell(sequences, spikes, "have spikes far higher than those of training had")
    return still | spikes


def _tell(sequences: Sequences, failed: np.ndarray, what: str) -> None:
    if failed.any():
        frame, at = (int(each) for each in np.argwhere(failed)[0])
        label = sequences.names[at] if sequences.names else at
        warn(
            f"{_any(sequences, failed).sum()} sequence(s) of X {what} (the first: "
            f"{sequences.frames[frame, at]:.6g} in {sequences.where(frame)}, channel {label!r}), "
            "as sensors do that fail; these values count as missing for class probabilities. "
            "Remedy: pass NaN where a sensor failed, or train with such sequences.",
            DegenerateDataWarning,
        )


def _any(sequences: Sequences, mask: np.ndarray) -> np.ndarray:
    """(n,) sequences with an entry in a mask (F, D)."""
    return np.logical_or.reduceat(mask.any(1), sequences.offsets[:-1])


def _parts(sequences: Sequences) -> Iterator[tuple[slice, Sequences]]:
    """Some sequences at a time, which need little memory, and where their frames stand."""
    offsets = sequences.offsets
    starts = np.flatnonzero(np.diff(offsets[:-1] // _AT_ONCE, prepend=-1))
    for first, last in zip(starts, np.append(starts[1:], len(sequences)), strict=True):
        frames, own = slice(offsets[first], offsets[last]), offsets[first : last + 1]
        yield frames, Sequences(np.asarray(sequences.frames[frames]), own - own[0])


def _stretches(sequences: Sequences) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(F,) frames of the stretch that each belongs to, and of its sequence, by each channel.

    Last, by all channels: a stretch ends where one of them changes. Frames that are missing do not
    end a stretch, and do not count: they have 0 of 1.
    """
    owner = sequences.owner
    seen_in_any, changes_in_any = np.zeros((2, len(owner)), dtype=bool)
    for values in sequences.frames.T:
        seen, changes = ~np.isnan(values), np.zeros(len(values), dtype=bool)
        shown, whose = values[seen], owner[seen]
        first = np.ones(min(1, len(shown)), dtype=bool)
        changes[seen] = np.append(first, (shown[1:] != shown[:-1]) | (whose[1:] != whose[:-1]))
        yield _counted(seen, changes, owner)
        seen_in_any |= seen
        changes_in_any |= changes
    yield _counted(seen_in_any, changes_in_any, owner)


def _counted(
    seen: np.ndarray, changes: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(F,) frames that are seen between changes, and in all of a sequence."""
    held, total = np.zeros_like(owner), np.ones_like(owner)
    count = np.diff(np.flatnonzero(changes[seen]), append=seen.sum())
    held[seen], total[seen] = np.repeat(count, count), np.bincount(owner[seen])[owner[seen]]
    return held, total


def _heights(sequences: Sequences) -> Iterator[np.ndarray]:
    """(F,) by channel: how far values are above or below both of their neighbors, else zero."""
    owner = sequences.owner
    inside = owner[:-2] == owner[2:]
    for values in sequences.frames.T:
        found = np.zeros(len(values))
        with np.errstate(over="ignore"):
            before, after = values[1:-1] - values[:-2], values[1:-1] - values[2:]
        peak = inside & (np.sign(before) * np.sign(after) > 0)
        found[1:-1] = np.where(peak, np.minimum(np.abs(before), np.abs(after)), 0.0)
        yield found
