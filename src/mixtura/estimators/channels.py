"""What estimators of sequences share: reading channels, and how long sequences are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _check_n_features
from torch import Tensor

from mixtura.answers.cells import Intervals
from mixtura.answers.explain import Groups
from mixtura.answers.frames import decoded
from mixtura.data.columns import distinct
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.lazy import Openable, are_files, is_path
from mixtura.data.names import check_names, chosen_columns
from mixtura.data.packing import Packing
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences, read_sequences
from mixtura.densities import CHAINS, DENSITIES, Chain, Structure
from mixtura.estimators.answering import DensityEstimator
from mixtura.estimators.base import CONSTRAINTS
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.parts import COUNT, resolve
from mixtura.sequences import LAYOUTS, Layout
from mixtura.training.start import Chains

#: Constraints of the parameters of hidden Markov models, of reading sequences, and of fitting.
CHAIN_CONSTRAINTS: dict[str, list[object]] = CONSTRAINTS | {
    "n_states": [StrOptions({"auto"}), COUNT],
    "chain": [StrOptions(set(CHAINS)), Chain],
    "layout": [StrOptions(set(LAYOUTS)), Layout],
}


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceEstimator(DensityEstimator):
    """An estimator of sequences by hidden Markov models: what these are, and how it reads them."""

    density: str | Structure = "diag"
    chain: str | Chain = "ergodic"
    prior_rows: float = 1.0
    layout: str | Layout = "frames_first"
    standardize: bool = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.input_tags.categorical = tags.input_tags.sparse = False
        return tags

    @property
    def _layout(self) -> Layout:
        return resolve(self.layout, LAYOUTS)

    def _opened(
        self,
        X: ArrayLike,
        y: ArrayLike = None,
        weight: ArrayLike = None,
        schema: Schema | None = None,
    ) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
        """Sequences of files, with labels and weights that columns hold; others as they are."""
        if not (is_path(X) or are_files(X) or isinstance(X, Openable)):
            return X, y, weight
        named = [each for each in (y, weight) if isinstance(each, str)]
        known = None if schema is None else schema.names
        read = import_module("mixtura.data.sequence_files").read_files  # pyarrow is optional
        layout = self._layout
        sequences, told = read(X, layout.id_column, layout.time_column, named, known)
        y, weight = (told[each] if isinstance(each, str) else each for each in (y, weight))
        return sequences, y, weight

    def _read(self, X: ArrayLike, schema: Schema | None = None) -> tuple[Sequences, Schema]:
        opened = self._opened(X, schema=schema)[0]
        sequences = read_sequences(opened, **self._layout.get_params())
        if schema is None:
            vars(self).pop("feature_names_in_", None)
            if sequences.names is not None:
                self.feature_names_in_ = np.array(sequences.names, dtype=object)
            _check_n_features(self, sequences.frames, reset=True)
            schema = _learned(sequences, self.categorical_features)
            return _coded(sequences, schema, self.unexpected), schema
        sequences = _aligned(sequences, schema, self.unexpected)
        _check_n_features(self, sequences.frames, reset=False)
        return _coded(sequences, schema, self.unexpected), schema

    def _chains(self, n_numbers: int, longest: int) -> Chains:
        """What models of so many channels of numbers, and of such sequences, are made of."""
        structure = resolve(self.density, DENSITIES).candidates(n_numbers)[0]
        chain = resolve(self.chain, CHAINS)
        return Chains(structure, replace(chain, durations=min(chain.durations, longest)))

    def _rows(self, X: ArrayLike) -> Sequences:
        return self._read(X, self._fitted.schema)[0]

    def explain(
        self,
        X: ArrayLike,
        output: str | None = None,
        *,
        method: str = "auto",
        groups: Groups = None,
        intervals: Intervals = None,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Why the model answers as it does: Shapley values of the channels, or of parts in time.

        What is left out is integrated out: channels and frames by hidden Markov models, channels
        by summaries. Summaries are no density of frames, so that parts in time are explained for
        `representation="states"`, and for the log density.

        Parameters
        ----------
        X : sequences, as for `fit`.
        groups : channels that come and go together, by name or position.
        intervals : what to cut sequences into: the number of equal parts of each, or a list of
            ascending frames at which the second and later intervals begin. All channels of an
            interval come and go together; with `groups`, each group, and each other channel, does
            within each interval.
        output, method, max_time, random_state, and what is returned
            As in `MixtureClassifier.explain`, with channels, intervals or both in place of columns.
        """
        self._fitted  # noqa: B018  an error where there is none
        own = getattr(self, "representation_", "states")
        if intervals is not None and own != "states" and output != "log_density":
            raise UnsupportedError(
                f"representation_ is {own!r}, and summaries of sequences cannot leave out frames: "
                "explain channels, or output='log_density', or fit with representation='states'."
            )
        return self._explained(X, output, method, groups, intervals, max_time, random_state)

    def decode(self, X: ArrayLike) -> list[np.ndarray]:
        """The likeliest path (T_i,) of each sequence through the states of its component."""
        return decoded(self._fitted, self._rows(X), self.device)


def _learned(sequences: Sequences, categorical_features: ArrayLike) -> Schema:
    """Names of the channels; categories of those that hold words, or that the user names."""
    frames = sequences.frames
    names = None if sequences.names is None else tuple(sequences.names)
    found = [sequences.categories_of(at) for at in range(frames.shape[1])]
    for at in chosen_columns(categorical_features, names, len(found)):
        if found[at] is None:
            found[at] = distinct("numbers", frames[:, at], f"channel {at}")[0]
    observed = {
        at: int((frames[:, at] == frames[:, at]).sum())
        for at, each in enumerate(found)
        if each is not None
    }
    return Schema.of(names, found, observed).with_empty(frames)


def _coded(sequences: Sequences, schema: Schema, unexpected: str) -> Sequences:
    """Frames of the codes that training gave to words; those it did not have are missing."""
    if sequences.categories is None and schema.categories is None and not schema.empty:
        return sequences
    pairs = enumerate(sequences.frames.T)
    found = [schema.recode(values, sequences.categories_of(at), at) for at, values in pairs]
    schema.tell_unseen([each for _, strange in found for each in strange], unexpected)
    frames = np.stack([codes for codes, _ in found], 1)
    return replace(sequences, frames=frames, categories=schema.categories)


def _aligned(sequences: Sequences, schema: Schema, unexpected: str) -> Sequences:
    """The channels of training in their order, where both have names; NaN for one lacking."""
    names, known = sequences.names, schema.names
    if names is None or known is None or names == list(known):
        return sequences
    check_names(names, known, unexpected)
    frames = np.full((len(sequences.frames), len(known)), np.nan, sequences.frames.dtype)
    categories: list[np.ndarray | None] = [None] * len(known)
    for at, name in enumerate(known):
        if name in names:
            place = names.index(name)
            frames[:, at], categories[at] = (
                sequences.frames[:, place],
                sequences.categories_of(place),
            )
    return replace(
        sequences,
        frames=frames,
        names=[str(name) for name in known],
        categories=None if sequences.categories is None else tuple(categories),
    )


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
    offsets = np.append(0, lengths.cumsum(0).numpy())
    return Sequences(frames, offsets, names, categories=schema.categories)
