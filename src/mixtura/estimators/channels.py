"""What estimators of sequences share: reading channels, and how long sequences are."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_n_features
from torch import Tensor

from mixtura.data import Scaling
from mixtura.data.given import ArrayLike
from mixtura.data.packing import Packing
from mixtura.data.schema import Schema, check_names
from mixtura.data.sequence_input import Sequences, read_sequences
from mixtura.exceptions import InvalidInputError


class ReadsSequences(Protocol):
    """Parameters that say how sequences are read, as in `SequenceMixtureClassifier`."""

    channels_first: bool
    id_column: str
    time_column: str | None
    unexpected: str
    feature_names_in_: np.ndarray


def read_channels(
    estimator: ReadsSequences, X: ArrayLike, schema: Schema | None = None
) -> tuple[Sequences, Schema]:
    """Checked sequences, and the names of their channels; they are learned if there are none."""
    assert isinstance(estimator, BaseEstimator)
    sequences = read_sequences(
        X,
        channels_first=estimator.channels_first,
        id_column=estimator.id_column,
        time_column=estimator.time_column,
    )
    if schema is None:
        schema = Schema(None if sequences.names is None else tuple(sequences.names))
        vars(estimator).pop("feature_names_in_", None)
        if schema.names is not None:
            estimator.feature_names_in_ = np.array(schema.names, dtype=object)
        _check_n_features(estimator, sequences.frames, reset=True)
        return sequences, schema
    sequences = _aligned(sequences, schema, estimator.unexpected)
    _check_n_features(estimator, sequences.frames, reset=False)
    return sequences, schema


def _aligned(sequences: Sequences, schema: Schema, unexpected: str) -> Sequences:
    """The channels of training in their order, where both have names; NaN for one lacking."""
    names, known = sequences.names, schema.names
    if names is None or known is None:
        return sequences
    check_names(names, known, unexpected)
    frames = np.full((len(sequences.frames), len(known)), np.nan, sequences.frames.dtype)
    for at, name in enumerate(known):
        if name in names:
            frames[:, at] = sequences.frames[:, names.index(name)]
    return replace(sequences, frames=frames, names=[str(name) for name in known])


def length_quantiles(lengths: np.ndarray) -> np.ndarray:
    """(101,) quantiles of the lengths (n,) of sequences."""
    return np.quantile(lengths, np.linspace(0.0, 1.0, 101), method="nearest")


def lengths_to_draw(
    lengths: ArrayLike, quantiles: np.ndarray, generator: torch.Generator
) -> Tensor:
    """(n,) lengths of draws: as asked for, or from quantiles (n, 101) of those of training."""
    n_samples, count = quantiles.shape
    if lengths is None:
        place = torch.randint(count, (n_samples,), generator=generator)
        lengths = quantiles[np.arange(n_samples), place.numpy()]
    counts = np.asarray(lengths)
    if counts.shape not in ((), (n_samples,)) or counts.dtype.kind not in "iu":
        raise InvalidInputError(
            f"lengths={lengths!r}: give a whole number, or one for each of the {n_samples} "
            "sequences."
        )
    if (counts < 1).any():
        raise InvalidInputError("lengths must be positive: a sequence has a frame at least.")
    return torch.from_numpy(np.broadcast_to(counts, n_samples).astype(np.int64))


def drawn_sequences(packed: Tensor, lengths: Tensor, scaling: Scaling, schema: Schema) -> Sequences:
    """Packed frames that a model drew, in the user's units."""
    frames = scaling.invert(packed[Packing.of(lengths).place].numpy())
    names = None if schema.names is None else [str(name) for name in schema.names]
    return Sequences(frames, np.append(0, lengths.cumsum(0).numpy()), names)
