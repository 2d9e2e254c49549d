"""Sequences of two classes, and their summaries, for the tests of these."""

import numpy as np
import torch

from mixtura.data.scaling import Scaling
from mixtura.data.sequence_input import read_sequences
from mixtura.engines import engine_of
from mixtura.training.summaries import _Rows

ANY_LENGTH = torch.tensor([0.0, torch.inf]).double()


def summed_up(*known):
    """Summaries of sequences that lack no frame, with labels that are known."""
    n = len(known[3])
    return _Rows(*known, torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.bool))


def sequence_engine(X, y=None):
    X = read_sequences(X)
    scaling = Scaling.identity(X.values.shape[1])
    return engine_of(X, y, None, scaling, "cpu")


def waves(rng, n, n_channels=2, lengths=(20, 40)):
    """Two classes that differ in the frequency of every channel."""
    X, y = [], np.arange(n) % 2
    for label in y:
        time = np.linspace(0, 1, rng.integers(*lengths))[:, None]
        phase = rng.uniform(0, 1, n_channels)
        X.append(np.sin(2 * np.pi * ((2 + 2 * label) * time + phase)))
        X[-1] += 0.3 * rng.normal(size=X[-1].shape)
    return X, y
