"""What failing sensors leave in sequences: channels stuck at one value, and spikes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mixtura.data.sequence_input import Sequences
from mixtura.exceptions import DegenerateDataWarning, warn

#: Spikes of failures are so many times as high as in training, and so many deviations at least.
_HIGHER, _HIGH = 2.0, 1.0


def limits_of(sequences: Sequences, scale: np.ndarray) -> np.ndarray:
    """(3, D + 1) what channels go beyond that have failed, and all together; or are infinite.

    The share of a sequence with one value: halfway from the most in training to all of it; how many
    frames that are: the most in training; and heights of spikes. `scale` (D,) are deviations.
    """
    owner, found = _owner(sequences), np.full((3, len(scale) + 1), np.inf)
    numbers = [at for at in range(len(scale)) if sequences.categories_of(at) is None]
    for at, (held, total) in enumerate(_stretches(sequences)):
        if at in (*numbers, len(scale)):
            share = (held / total)[total > 1].max(initial=0.0)
            found[0, at], found[1, at] = 0.5 + share / 2.0, held.max(initial=1)
    for at in numbers:
        heights = _heights(sequences.frames[:, at], owner)
        found[2, at] = max(_HIGHER * heights.max(initial=0.0), _HIGH * scale[at])
    return found


def stuck(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(F, D) entries in stretches of one value that are beyond the limits; (3, 0) are none."""
    found, width = np.zeros(sequences.frames.shape, dtype=bool), sequences.frames.shape[1]
    for at, (limit, (held, total)) in enumerate(zip(limits.T, _stretches(sequences), strict=False)):
        failed = (held > limit[0] * total) & (held > limit[1])
        found[failed, at if at < width else slice(None)] = True
    return found


def are_stuck(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(n,) sequences with such a stretch, which densities take for likely."""
    return np.logical_or.reduceat(stuck(sequences, limits).any(1), sequences.offsets[:-1])


def failures(sequences: Sequences, limits: np.ndarray) -> np.ndarray:
    """(F, D) entries that are stuck or spikes, of which warnings tell; limits (3, 0) are none."""
    still, owner = stuck(sequences, limits), _owner(sequences)
    spikes = np.zeros_like(still)
    for at in np.flatnonzero(np.isfinite(limits[2])):
        spikes[:, at] = _heights(sequences.frames[:, at], owner) > limits[2, at]
    _tell(sequences, still, "repeat one value far longer than those of training did", owner)
    _tell(sequences, spikes, "have spikes far higher than those of training had", owner)
    return still | spikes


def _tell(sequences: Sequences, failed: np.ndarray, what: str, owner: np.ndarray) -> None:
    if failed.any():
        frame, at = (int(each) for each in np.argwhere(failed)[0])
        label = sequences.names[at] if sequences.names else at
        warn(
            f"{len(np.unique(owner[failed.any(1)]))} sequence(s) of X {what} (the first: "
            f"{sequences.frames[frame, at]:.6g} in {sequences.where(frame)}, channel {label!r}), "
            "as sensors do that fail; these values count as missing for class probabilities. "
            "Remedy: pass NaN where a sensor failed, or train with such sequences.",
            DegenerateDataWarning,
        )


def _owner(sequences: Sequences) -> np.ndarray:
    """(F,) the sequence of each frame."""
    return np.repeat(np.arange(len(sequences)), sequences.lengths)


def _stretches(sequences: Sequences) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(F,) frames of the stretch that each belongs to, and of its sequence, by each channel.

    Last, by all channels: a stretch ends where one of them changes. Frames that are missing do not
    end a stretch, and do not count: they have 0 of 1.
    """
    owner = _owner(sequences)
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


def _heights(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """(F,) how far values of a channel are above or below both of their neighbors, else zero."""
    found = np.zeros(len(values))
    with np.errstate(over="ignore"):
        before, after = values[1:-1] - values[:-2], values[1:-1] - values[2:]
    peak = (np.sign(before) * np.sign(after) > 0) & (owner[:-2] == owner[2:])
    found[1:-1] = np.where(peak, np.minimum(np.abs(before), np.abs(after)), 0.0)
    return found
