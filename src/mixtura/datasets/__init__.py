"""Data: generators of the textbook problems, and one loader for the real sets."""

from mixtura.datasets.generators import (
    make_checkerboard,
    make_hmm_sequences,
    make_lobes,
    make_ripley,
    make_spirals,
    make_waveform,
    spirals_bayes_rate,
)
from mixtura.datasets.loading import list_datasets, load_dataset
from mixtura.datasets.timit import load_timit
from mixtura.datasets.variants import mnist_variant

__all__ = [
    "list_datasets",
    "load_dataset",
    "load_timit",
    "make_checkerboard",
    "make_hmm_sequences",
    "make_lobes",
    "make_ripley",
    "make_spirals",
    "make_waveform",
    "mnist_variant",
    "spirals_bayes_rate",
]
