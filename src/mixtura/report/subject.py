"""What a report is about: a fitted classifier, and rows with labels that it may not have seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

from mixtura.data.given import ArrayLike, Loaded
from mixtura.data.in_memory import as_table
from mixtura.data.labels import encode_labels, read_labels_of
from mixtura.data.matrix import Matrix
from mixtura.data.sequence_input import Sequences
from mixtura.engines import Engine
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.fitted import Fitted, Observations
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.plotting.base import class_names, column_names, fitted_model
from mixtura.plotting.components import MOST_COLUMNS, nats_alone
from mixtura.plotting.holes import with_holes

#: Rows that are looked at, and entries of these.
_MOST_ROWS, _MOST_ENTRIES = 5_000, 2_000_000
#: Characters of a name.
_LONGEST = 120
#: Shares of the entries that are taken away.
SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75)


def _cut(name: str) -> str:
    """A name that is not too long."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def in_time(
    n_rows: int, seconds: float, answer: Callable[[np.ndarray], np.ndarray], first: int = 32
) -> np.ndarray:
    """Answers to the rows 0, 1, ..., to as many as time allows, and to the first ones at least."""
    began, parts, done, size = time.perf_counter(), [], 0, first
    while done < n_rows:
        rows = np.arange(done, min(done + size, n_rows))
        parts.append(answer(rows))
        done += len(rows)
        spent = time.perf_counter() - began
        if spent >= seconds:
            break
        size = max(1, min(2 * size, int(done * (seconds - spent) / max(spent, 1e-9))))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Sample:
    """A fitted estimator, and some of the rows that were given, in random order.

    Attributes
    ----------
    X : n rows in the form that the user gave them.
    places : (n,) where the rows stand among those given.
    n_given : how many rows were given.
    max_time : seconds that the answers may take together, about.
    seed : of all that is random.
    """

    estimator: Loaded
    X: ArrayLike
    places: np.ndarray
    n_given: int
    max_time: float
    seed: int

    def take(self, rows: np.ndarray) -> ArrayLike:
        """Some of the rows, in the form in which they were given."""
        return _safe_indexing(self.X, rows)

    @cached_property
    def rows(self) -> Observations:
        """The rows, checked."""
        return self.estimator._rows(self.X)

    @property
    def columns(self) -> list[str]:
        names = column_names(self.estimator.model_.schema, self.rows.values.shape[1])
        return [_cut(name) for name in names]

    @property
    def takes_holes(self) -> bool:
        return bool(get_tags(self.estimator).input_tags.allow_nan)

    def answers(
        self, share: float, ask: Callable[[ArrayLike], np.ndarray], first: int = 32
    ) -> np.ndarray:
        """What the first rows are answered, less a share of their entries, as time allows."""
        generator = np.random.default_rng(self.seed)

        def answer(rows: np.ndarray) -> np.ndarray:
            return ask(with_holes(self.take(rows), share, generator))

        return in_time(len(self.places), self.max_time / 12.0, answer, first)


@dataclass(frozen=True)
class Subject(Sample):
    """A fitted classifier, and rows that have labels.

    Attributes
    ----------
    labels : (n,) class indices.
    n_unlabeled : how many rows were given without a label.
    """

    model: Fitted
    labels: np.ndarray
    n_unlabeled: int

    @classmethod
    def read(
        cls, estimator: Loaded, X: ArrayLike, y: ArrayLike, max_time: float, seed: int
    ) -> Subject:
        """Check everything before any work."""
        model = fitted_model(estimator)
        if model.classes is None or not len(model.classes):
            raise UnsupportedError("the model knows no classes: a report is about a classifier.")
        y = estimator._by_row(y, X)
        if get_tags(estimator).input_tags.three_d_array:
            rows = estimator._rows(X)
            assert isinstance(rows, Sequences)
            X, width = rows.split(), int(rows.values.size / max(len(rows), 1))
        else:
            X, width = as_table(X), len(model.scaling.location)
        codes = encode_labels(
            read_labels_of(y, _num_samples(X)), model.classes, estimator.unlabeled
        )
        known = np.flatnonzero(codes >= 0)
        if not len(known):
            raise InvalidInputError("y has no label: a report compares predictions with labels.")
        most = max(200, min(_MOST_ROWS, _MOST_ENTRIES // max(width, 1)))
        places = np.random.default_rng(seed).permutation(known)[:most]
        some = _safe_indexing(X, places)
        estimator._rows(some)  # an error where columns are not those of training
        sample = estimator, some, places, len(codes), max_time, seed
        return cls(*sample, model, codes[places], len(codes) - len(known))

    # -- what there is ---------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        return [_cut(name) for name in class_names(self.model.classes)]

    @property
    def has_density(self) -> bool:
        return isinstance(self.model.model, Mixture | Network)

    @property
    def is_table(self) -> bool:
        return isinstance(self.rows, Matrix)

    @property
    def is_wide(self) -> bool:
        """Whether it would take minutes to find out what the columns tell."""
        return len(self.model.scaling.location) > MOST_COLUMNS

    # -- answers ---------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """The rows in the model's units."""
        return self.model.engine(self.rows, self.estimator.device)

    @cached_property
    def proba(self) -> dict[float, np.ndarray]:
        """(m, C) probabilities of the first rows, by the share of entries that were taken away."""
        shares = SHARES if self.takes_holes else SHARES[:1]
        return {share: self.answers(share, self.estimator.predict_proba) for share in shares}

    @cached_property
    def nats(self) -> np.ndarray:
        """(D,) what each column on its own is expected to tell about the class."""
        return nats_alone(self.model, self.estimator.device)

    @cached_property
    def telling(self) -> np.ndarray:
        """(D,) columns, those first that tell most on their own."""
        return np.argsort(-self.nats, kind="stable")
