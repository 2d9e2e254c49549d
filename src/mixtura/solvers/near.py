"""Which components matter to which rows with holes, from one evaluation to the next."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import MixtureStack
from mixtura.objectives import Objective

#: Nats below what counts that components are still looked at, and nats that any of these may move
#: by until all others are looked at again.
_SLACK, _MOVED = 20.0, 2.0
#: Evaluations after which all are looked at again in any case, at the next step that is taken.
_OLD = 8
#: Numbers held in memory for all rows, and for one of them per component, from which it pays to
#: look for what matters; and the share of all pairs that may matter.
_MANY, _COSTLY, _MOST = 1_000_000, 500, 0.4


class Near:
    """Pairs of rows and components that matter to an objective.

    Where a class lies far below the best one, losses do not change with it: its components keep the
    log-joints that they had when all were looked at, until those that matter have moved. What came
    near since then because of other rows is found by `look_again`, which changes the loss.
    """

    def __init__(self, model: Mixture | MixtureStack, objective: Objective, engine: Engine) -> None:
        self._reach, self._cost, self._at = objective.reach, model.row_cost(True), 0
        rows = engine.all_rows()
        self._y, self._learn = model.asked(rows)[0], learning(model, rows)
        self._room = engine.chunk_rows(model)
        self._log_joint = engine.concat(model.log_joint, model)  # (n P, K)
        self._among = self._matters(model, self._log_joint, slice(None), slice(None))  # (n, P K)
        self._share = float(self._among.double().mean())
        self._since = 0  # evaluations, since all were looked at

    @classmethod
    def of(cls, model: Mixture | MixtureStack, objective: Objective, engine: Engine) -> Near | None:
        """What is known of rows before training; None where it would not save time."""
        cost = model.row_cost(True)
        costly = len(engine) * cost > _MANY and cost > _COSTLY * model.density.n_components
        here = engine.uniform and engine.device.type == "cpu" and engine.view is None
        here &= engine.has_holes and not engine.is_recorded
        if not (costly and here) or math.isinf(objective.reach):
            return None
        found = cls(model, objective, engine)
        return found if found._share <= _MOST else None

    def row_cost(self, missing: bool) -> int:
        """Numbers held in memory for one row."""
        return math.ceil(min(1.0, 2.0 * self._share + 0.05) * self._cost)

    def begin(self) -> None:
        """Another evaluation."""
        self._at = 0
        self._since += 1

    @property
    def old(self) -> bool:
        """Whether it is time to look at all components again."""
        return self._since >= _OLD

    def look_again(self) -> None:
        """The next evaluation looks at all components."""
        self._since = -1

    def expectation(
        self, model: Mixture | MixtureStack, batch: Batch
    ) -> tuple[Tensor, Tensor, Callable[[Tensor], Statistics]]:
        """Of the next chunk: log-joints (n P, K), which of them matter (n, P K), statistics."""
        rows = slice(self._at, self._at + len(batch))
        each = slice(rows.start * model.n_problems, rows.stop * model.n_problems)
        self._at, before, among = rows.stop, self._log_joint[each], self._among[rows]
        moved = torch.arange(len(batch))
        if self._since > 0:
            log_joint, statistics = self._some(model, batch, among, before)
            far = ((log_joint - before).abs() > _MOVED).view(len(batch), -1).any(1)
            moved = far.nonzero()[:, 0]
        if len(moved):
            parts = [model.log_joint(batch.take(some)) for some in moved.split(self._room)]
            before.view(len(batch), -1)[moved] = torch.cat(parts).view(len(moved), -1)
            among[moved] = self._matters(model, before, each, rows)[moved]
            log_joint, statistics = self._some(model, batch, among, before)
        return log_joint, among, statistics

    @staticmethod
    def _some(
        model: Mixture | MixtureStack, batch: Batch, among: Tensor, before: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Statistics]]:
        """Log-joints, those that do not matter as they were; and statistics."""
        log_prob, statistics = model.density.expectation_among(batch, among)
        return model.weighted(log_prob).where(among.view_as(before), before), statistics

    def _matters(
        self, model: Mixture | MixtureStack, log_joint: Tensor, each: slice, rows: slice
    ) -> Tensor:
        """(n, P K) whether log-joints (n P, K) come near the best class, or that of the row."""
        by_class, y = model.by_class(log_joint), self._y[each, None]
        best, own = by_class.amax(1, keepdim=True), by_class.gather(1, y.clamp_min(0))
        lowest = torch.where(model.layout.owner == y, own, best - self._reach) - _SLACK
        learn = self._learn[rows]
        return (log_joint >= lowest).view_as(learn) & learn


def learning(model: Mixture | MixtureStack, batch: Batch) -> Tensor:
    """(n, P K) whether the components of each problem learn from the rows."""
    counts = (model.asked(batch)[1] != 0).view(len(batch), -1)
    return counts.repeat_interleave(model.layout.n_components, 1)
