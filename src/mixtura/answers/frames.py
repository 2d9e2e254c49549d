"""What mixtures of hidden Markov models say of single frames, past and to come."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import ArrayLike, Device
from mixtura.data.sequence_input import Sequences
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import EmissionMixtures, HiddenMarkov
from mixtura.densities.gaussian import Gaussian
from mixtura.exceptions import UnsupportedError
from mixtura.models.fitted import Fitted, log_scale_of, run_over
from mixtura.models.mixture import Mixture
from mixtura.predictive import Predictive, check_quantiles


def _chains(mixture: Mixture) -> HiddenMarkov:
    assert isinstance(mixture.density, HiddenMarkov)
    return mixture.density


def decoded(fitted: Fitted, rows: Sequences, device: Device) -> list[np.ndarray]:
    """The likeliest path (T_i,) of each sequence through the states of its likeliest component."""

    def paths(mixture: Mixture, batch: SequenceBatch) -> Tensor:
        found = _chains(mixture).paths(batch, mixture.posterior(batch).argmax(1))
        return batch.unpacked(found)

    found = run_over(fitted.mixture, fitted.engine(rows, device), paths).numpy()
    return rows.with_values(found.astype(np.int64)).split()


def state_proba(fitted: Fitted, rows: Sequences, device: Device) -> list[np.ndarray]:
    """Chances (T_i, K, S) of component and state of each frame, given all of its sequence."""

    def chances(mixture: Mixture, batch: SequenceBatch) -> Tensor:
        return batch.unpacked(_chains(mixture).states(batch, mixture.posterior(batch)))

    found = run_over(fitted.mixture, fitted.engine(rows, device), chances).numpy()
    shape = _chains(fitted.mixture).log_start.shape
    return rows.with_values(found.reshape(-1, *shape)).split()


def _log_predicted(mixture: Mixture, batch: SequenceBatch) -> Tensor:
    """(F, K, S D) of components and states of their chains."""
    return _chains(mixture).log_predicted(batch, mixture.log_joint_weight)


def frame_scores(
    fitted: Fitted, rows: Sequences, device: Device, by_channel: bool = False
) -> np.ndarray:
    """(F,) log p(frame | frames before), in the user's units; NaN where nothing is observed.

    By channel (F, D) log p(value | frames before), each on its own.
    """

    def scores(mixture: Mixture, batch: SequenceBatch) -> Tensor:
        chains, frames = _chains(mixture), batch.frames
        ahead, emission = (
            chains.by_state(_log_predicted(mixture, batch)).flatten(1),
            chains.emission,
        )
        log_scale = log_scale_of(fitted.scaling, batch.x)
        parts = _channels(frames) if by_channel else [frames]
        found = [
            (ahead + emission.log_prob(part)).logsumexp(1) - part.sum_observed(log_scale)
            for part in parts
        ]
        empty = torch.stack([part.missing_share() == 1.0 for part in parts], 1)
        by_part = batch.unpacked(torch.stack(found, 1).masked_fill(empty, torch.nan))
        return by_part if by_channel else by_part[:, 0]

    return run_over(fitted.mixture, fitted.engine(rows, device), scores).numpy()


def _channels(frames: Batch) -> list[Batch]:
    """The frames with each channel alone."""
    seen = frames.observed
    whole = torch.ones_like(frames.x, dtype=torch.bool) if seen is None else seen
    alone = torch.eye(whole.shape[1], dtype=torch.bool, device=whole.device)
    return [replace(frames, x=frames.x * own, observed=whole & own) for own in alone]


@dataclass(frozen=True, repr=False)
class Forecast:
    """What the next frames of n sequences will be: exact mixtures, in the units of X.

    Attributes
    ----------
    proba : (n, steps, K, S) chances of component and state of each frame to come.
    mean, std : (n, steps, d) of each value.
    """

    proba: np.ndarray
    _values: Predictive

    def _by_frame(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(*self.proba.shape[:2], *values.shape[1:])

    @property
    def mean(self) -> np.ndarray:
        return self._by_frame(self._values.expected())

    @property
    def std(self) -> np.ndarray:
        return self._by_frame(self._values.std())

    def quantiles(self, quantiles: ArrayLike = (0.05, 0.5, 0.95)) -> np.ndarray:
        """(n, steps, d, Q) what a share `quantiles` (Q,) of each value will not exceed."""
        return self._by_frame(self._values.quantiles(check_quantiles(quantiles)))


def _log_shares(fitted: Fitted, rows: Sequences, steps: int, device: Device) -> np.ndarray:
    """(n, steps, K, S D) log chances of component and chain's state of the next frames.

    They are lost ones after the last, whose states follow from the frames before.
    """
    ends = np.repeat(rows.offsets[1:], steps)
    offsets = rows.offsets + steps * np.arange(len(rows) + 1)
    longer = replace(rows, frames=np.insert(rows.frames, ends, np.nan, axis=0), offsets=offsets)
    engine = fitted.engine(longer, device)
    found = run_over(fitted.mixture, engine, lambda m, b: b.unpacked(_log_predicted(m, b)))
    return found.numpy()[offsets[1:, None] + np.arange(-steps, 0)]


def forecast(fitted: Fitted, rows: Sequences, steps: int, device: Device) -> Forecast:
    """The distributions of the next frames."""
    chains = _chains(fitted.mixture)
    mixed = chains.emission if isinstance(chains.emission, EmissionMixtures) else None
    each = chains.emission if mixed is None else mixed.each
    if not isinstance(each, Gaussian):
        raise UnsupportedError(
            "forecasts have a closed form where frames are numbers alone and densities Gaussian: "
            "for words and for Student's t ask for draws, n_draws=100."
        )
    log_share = chains.by_state(torch.from_numpy(_log_shares(fitted, rows, steps, device))).numpy()
    deviation = each.covariances().diagonal(dim1=1, dim2=2).sqrt().numpy()
    by_state = log_share.reshape(-1, chains.log_start.numel(), 1)
    within = 0.0 if mixed is None else mixed.log_share.numpy()
    values = Predictive(
        (by_state + within).reshape(len(by_state), -1),
        fitted.scaling.invert(each.location.numpy())[None],
        (deviation * fitted.scaling.scale)[None],
    )
    return Forecast(np.exp(log_share), values)


def draw_futures(
    fitted: Fitted,
    rows: Sequences,
    steps: int,
    n_draws: int,
    generator: torch.Generator,
    device: Device,
) -> np.ndarray:
    """(n_draws, n, steps, D) random next frames, those of a draw belonging together."""
    chains = _chains(fitted.mixture)
    chance = torch.from_numpy(np.exp(_log_shares(fitted, rows, 1, device)[:, 0])).flatten(1)
    drawn = torch.multinomial(chance, n_draws, True, generator=generator).mT.flatten()
    size = chains.n_states * chains.n_phases
    component, first = drawn // size, drawn % size
    lengths = torch.full_like(first, steps)
    frames = chains.sample(component, generator, lengths=lengths, first=first)
    by_time = frames.unflatten(0, (steps, n_draws, len(rows))).permute(1, 2, 0, 3)
    shape = by_time.shape
    return fitted.decoded(by_time.reshape(-1, shape[-1])).reshape(shape)
