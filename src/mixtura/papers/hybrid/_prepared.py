"""Rows of a seed with mixtures to start from, and the training of several settings on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.given import Parameters
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine, resolve_device
from mixtura.models.mixture import Mixture
from mixtura.papers.hybrid import _side_by_side as side_by_side
from mixtura.papers.hybrid._side_by_side import Outcome, Trial
from mixtura.papers.hybrid._training import COMMON
from mixtura.papers.report import Report
from mixtura.solvers import Adam

#: Minibatches of a trial, and at least so many epochs, by round; the last is that of cells, too.
STEPS, EPOCHS = (4_000, 8_000, 8_000, 8_000, 24_000), (0, 24, 24, 24, 24)
QUICK_STEPS = 20
#: Rows and their labels.
Labeled = tuple[np.ndarray, np.ndarray]
#: Mixtures of maximum likelihood by the name that settings give them, made when asked for.
Starts = Mapping[str, Callable[[], Sequence[Mixture]]]


class Joint(NamedTuple):
    """What the mixtures of one shape say of the validation rows: log-joints (n, C), labels (n,)."""

    form: Parameters
    log_joint: Tensor
    label: Tensor


class Prepared(NamedTuple):
    """Rows of a seed on the device, and mixtures of maximum likelihood to start with.

    Attributes
    ----------
    starts : of several of a name, the best on held-out rows is taken.
    batch_size : rows of a minibatch.
    quick : whether a few minibatches are enough.
    """

    starts: Starts
    engine: Engine
    held_out: Engine
    test: Engine
    batch_size: int
    quick: bool

    @classmethod
    def of(
        cls,
        report: Report,
        starts: Starts,
        scaling: Scaling,
        parts: Sequence[Labeled],
        batch_size: int = COMMON["solver__batch_size"],
    ) -> Prepared:
        """Training, validation and test rows, in single precision."""
        device = resolve_device(report.device, parts[0][0].size)
        made = partial(Engine[Batch], scaling=scaling, device=device, dtype=torch.float32)
        train, held_out, test = (made(X, y.astype(np.int64) + 1) for X, y in parts)
        return cls(starts, train, held_out, test, batch_size, report.quick)

    def epochs(self, number: int) -> int:
        """Epochs of a trial of a round."""
        share = self.batch_size / len(self.engine)
        if self.quick:
            return math.ceil(QUICK_STEPS * share)
        return max(round(STEPS[number - 1] * share), EPOCHS[number - 1])

    def train(
        self, settings: Sequence[Parameters], epochs: int, seed: int, deadline: float
    ) -> list[Outcome]:
        """The mixtures of some settings, side by side."""
        names = [each.get("start", "em") for each in settings]
        made = {name: self.starts[name]() for name in set(names)}
        starts = [made[name] for name in names]
        places = [place for place, mine in enumerate(starts) for _ in mine]
        begin = [start for mine in starts for start in mine]
        found = side_by_side.train(
            begin,
            [_trial(settings[place]) for place in places],
            self.engine,
            self.held_out,
            Adam(epochs, self.batch_size, averaging=COMMON["solver__averaging"]),
            torch.Generator().manual_seed(seed),
            deadline,
        )
        return [
            min(
                (one for one, its in zip(found, places, strict=True) if its == place),
                key=attrgetter("validation"),
            )
            for place in range(len(settings))
        ]

    def joint(self, form: Parameters) -> Joint:
        """What the start says of the validation rows."""
        start = self.starts["em"]()[0].to(self.engine.device, self.engine.dtype)
        rows = self.held_out.batch(torch.arange(len(self.held_out), device=self.held_out.device))
        return Joint(form, start.class_log_joint(rows), rows.y - 1)

    def errors(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Errors of mixtures on test rows, in percent."""
        stack = side_by_side.stacked([outcome.mixture for outcome in outcomes])
        return side_by_side.error_rates(stack, self.test).tolist()


def _trial(settings: Parameters) -> Trial:
    return Trial(
        settings.get("tradeoff", 1.0),
        settings.get("objective__margin"),
        settings.get("solver__learning_rate", 1.0),
        1.0 - settings.get("unlabeled_weight", 0.0),
    )
