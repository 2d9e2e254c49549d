"""Adam on minibatches: any density, any objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.data.journal import Sums
from mixtura.data.meter import counted
from mixtura.engines import Engine
from mixtura.numerics import one_thread
from mixtura.objectives import Objective
from mixtura.parts import COUNT, POSITIVE
from mixtura.progress import Progress, Record
from mixtura.solvers.base import CONSTRAINTS, AnyModel, FitResult, Model, Penalty, Solver
from mixtura.solvers.gradients import Best, Free
from mixtura.solvers.lbfgs import LBFGS
from mixtura.solvers.small import small_differentiation

#: Share of the full step size at each point (0 to 1) of training.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1.0 - progress,
}
#: Where their number is left to "auto": steps in all, those without a gain, and epochs of both.
_STEPS, _EPOCHS = 3_000, (3, 60)
_PATIENCE, _WAITED = 1_000, (1, 10)


@dataclass
class Adam(Solver):
    """Adam on minibatches; with early stopping, the best epoch on held-out rows is kept.

    Parameters
    ----------
    max_iter : epochs; "auto" makes about 3,000 steps.
    batch_size : rows of a minibatch; "auto" is a hundredth of all, 100 to 1,000.
    learning_rate : the step size.
    schedule : its course, "constant", "cosine" or "linear".
    averaging : decay of an exponential average of the iterates (not of the start) that is used
        instead of the last one; 0 switches it off.
    early_stopping : hold out `validation_fraction` of the labeled rows, keep the best epoch on
        them, and stop after `patience` epochs without a gain; "auto" waits for about 1,000 steps,
        ten epochs at most.
    """

    max_iter: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate: float = 5e-3
    schedule: str = "cosine"
    averaging: float = 0.0
    early_stopping: bool = True
    validation_fraction: float = 0.1
    patience: int | str = "auto"

    single_precision = True
    _parameter_constraints = CONSTRAINTS | {
        "max_iter": [StrOptions({"auto"}), COUNT],
        "batch_size": [StrOptions({"auto"}), COUNT],
        "learning_rate": [POSITIVE],
        "schedule": [StrOptions(set(SCHEDULES))],
        "averaging": [Interval(Real, 0, 1, closed="left")],
        "patience": [StrOptions({"auto"}), COUNT],
    }

    def for_trials(self) -> Solver:
        return LBFGS()

    def epochs_and_size(self, n_rows: int) -> tuple[int, int]:
        """Epochs, and rows of a minibatch, where there are so many rows in all."""
        size = self.batch_size
        size = min(max(100, n_rows // 100), 1000) if isinstance(size, str) else size
        if isinstance(self.max_iter, str):
            return int(np.clip(_STEPS / (n_rows / size), *_EPOCHS)), size
        return self.max_iter, size

    def run(
        self,
        model: AnyModel,
        objective: Objective,
        engine: Engine,
        progress: Progress,
        *,
        generator: torch.Generator | None = None,
        held_out: Engine | None = None,
        prior: Penalty | None = None,
    ) -> FitResult[AnyModel]:
        generator = generator or torch.Generator()
        n_epochs, size = self.epochs_and_size(len(engine) + len(held_out or ()))
        working = model.to(dtype=engine.dtype)
        free = {k: v.detach().clone().requires_grad_() for k, v in working.free().items()}
        average = {k: v.detach().clone() for k, v in free.items()}
        moments = Moments(free)
        state = _State(free, average, moments, generator)
        step = make_step(working.from_free, objective, free, engine, size, prior, moments)
        best = Best(model, objective, held_out)
        progress.start("Adam", n_epochs)
        n_batches, patience = math.ceil(len(engine) / size), self.patience
        if isinstance(patience, str):
            patience = int(np.clip(_PATIENCE / n_batches, *_WAITED))
        numbers = size * model.row_cost(engine.may_have_missing)

        def steps() -> Sums:
            total, seen = torch.zeros((), dtype=engine.dtype, device=engine.device), 0
            with one_thread(numbers):
                indices = counted(engine.minibatch_indices(size, generator), len(engine))
                for number, index in enumerate(indices):
                    done = max((epoch - 1 + number / n_batches) / n_epochs, progress.time_spent)
                    rate = self.learning_rate * SCHEDULES[self.schedule](min(done, 1.0))
                    total += step(index, rate) * len(index)
                    seen += len(index)
                    if self.averaging:
                        self.average(average, free, (epoch - 1) * n_batches + number + 1)
                    if progress.time_spent >= 1.0:
                        break
            return {**state.stored(), "loss": total / seen}

        for epoch in range(1, n_epochs + 1):
            known = engine.recorded(steps)
            state.take(known)
            loss = float(known["loss"])
            trained = average if self.averaging else free
            candidate = working.from_free({k: v.detach().clone() for k, v in trained.items()})
            record: Record = {"stage": "Adam", "iteration": epoch, "objective": loss}
            best.offer(candidate.to(dtype=torch.float64), loss, record)
            settled = best.waited(patience, epoch)
            if progress.step(record) or not math.isfinite(loss) or settled:
                break
        settled = settled and not progress.stopped
        return FitResult(best.model, best.score[1], epoch, settled)

    def average(self, average: Free, free: Free, n_steps: int) -> None:
        """Take in the latest of `n_steps` iterates; the start has no share, as no iterate is it."""
        share = (1.0 - self.averaging) / (1.0 - self.averaging**n_steps)
        leaves = [value.detach() for value in free.values()]
        torch._foreach_lerp_(list(average.values()), leaves, share)


class Moments:
    """Adam over free parameters, by one kernel, and its memory of their gradients.

    PyTorch's own class would load a compiler first, which takes longer than many a fit.
    """

    def __init__(self, free: Free) -> None:
        self._leaves = list(free.values())
        self._first, self._second = ([torch.zeros_like(v) for v in self._leaves] for _ in range(2))
        self._steps = [leaf.new_zeros((), dtype=torch.float32) for leaf in self._leaves]
        like = self._leaves[0]  # in a tensor, the step size can change while a graph stays
        kind = torch.float32 if like.is_cuda else torch.float64
        self._rate = torch.ones((), dtype=kind, device=like.device)

    def set_rate(self, rate: float) -> None:
        """The step size from now on."""
        self._rate.fill_(rate)

    @property
    def tensors(self) -> list[Tensor]:
        """All that is remembered."""
        return [*self._first, *self._second, *self._steps]

    @torch.no_grad()
    def step(self) -> None:
        """Move by the gradients that the parameters have."""
        torch._foreach_add_(self._steps, 1.0)
        torch._fused_adam_(
            self._leaves,
            [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self._leaves],
            *(self._first, self._second, [], self._steps),
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


@dataclass(frozen=True)
class _State:
    """All that epochs change: parameters, averages of them, Adam's memory, and what is random."""

    free: Free
    average: Free
    moments: Moments
    generator: torch.Generator

    def _tensors(self) -> Sums:
        averages = {f"average of {name}": value for name, value in self.average.items()}
        memory = {f"moment {place}": value for place, value in enumerate(self.moments.tensors)}
        return {**self.free, **averages, **memory}

    def stored(self) -> Sums:
        """By name."""
        return {**self._tensors(), "random": self.generator.get_state()}

    @torch.no_grad()
    def take(self, stored: Sums) -> None:
        """Be as it was stored."""
        self.generator.set_state(stored["random"].cpu())
        for name, value in self._tensors().items():
            value.copy_(stored[name])


Step = Callable[[Tensor, float], Tensor]


def make_step(
    build: Callable[[Free], Model],
    objective: Objective,
    free: Free,
    engine: Engine,
    batch_size: int,
    prior: Penalty | None = None,
    moments: Moments | None = None,
) -> Step:
    """One update from the rows at an index: eager, or the whole of it as one CUDA graph.

    `build` makes the model of the free parameters, which may be a stack. A step returns the
    weighted mean loss of all rows, estimated from these without bias: their losses are divided by
    the weight that as many rows have on average. By their own weight would be wrong: in minibatches
    of one row, weights would then count for nothing.
    """
    moments, total_weight = moments or Moments(free), engine.total_weight
    row_share = len(engine) / total_weight

    def differentiated(batch: Batch, scale: float | Tensor) -> Tensor:
        """The loss; the free parameters get its gradient."""
        current = build(free)
        y, weight = current.asked(replace(batch, weight=batch.weight * scale))
        loss = objective.total(current.outputs(batch), y, weight)
        loss = loss if prior is None else loss + prior.penalty(current).sum() / total_weight
        for leaf in free.values():
            leaf.grad = None
        loss.backward()
        return loss.detach()

    size = min(batch_size, len(engine))
    if engine.device.type == "cuda" and engine.uniform and not engine.may_marginalize:
        return GraphedStep(differentiated, engine, free, moments, size, row_share)

    model = build({name: leaf.detach() for name, leaf in free.items()})
    small = small_differentiation(model, objective, free, engine, size, prior)
    n_sharing = engine.n_sharing
    rows_at = engine.batch if n_sharing == 1 else engine.own_batch

    def alone(index: Tensor, scale: float) -> Tensor:
        return differentiated(rows_at(index), scale) if small is None else small(index, scale)

    def shared(index: Tensor) -> Tensor:
        """The mean over n processes of the loss and gradient of their rows, n times."""
        loss = alone(index, n_sharing * row_share / len(index))
        blank = {name: torch.zeros_like(leaf) for name, leaf in free.items() if leaf.grad is None}
        given = {name: leaf.grad for name, leaf in free.items() if leaf.grad is not None}
        sums = engine.reduced({**blank, **given, "loss": loss}, lambda _: {})
        for name, leaf in free.items():
            leaf.grad = sums[name] / n_sharing
        return sums["loss"] / n_sharing

    def step(index: Tensor, learning_rate: float) -> Tensor:
        loss = shared(index) if n_sharing > 1 else alone(index, row_share / len(index))
        moments.set_rate(learning_rate)
        moments.step()
        return loss

    return step


class GraphedStep:
    """Forward, backward and Adam captured once and replayed for every minibatch.

    A graph has fixed shapes: a shorter last batch is filled up with rows that count for nothing.
    """

    def __init__(
        self,
        differentiate: Callable[[Batch, Tensor], Tensor],
        engine: Engine,
        free: Free,
        moments: Moments,
        size: int,
        row_share: float,
    ) -> None:
        self._row_share, self._moments, self._rate = row_share, moments, math.nan
        self._index = torch.zeros(size, dtype=torch.long, device=engine.device)
        self._scale = torch.zeros(size, dtype=engine.dtype, device=engine.device)
        self._fill(size)

        def update() -> Tensor:
            loss = differentiate(engine.batch(self._index), self._scale)
            moments.step()
            return loss

        self._index.copy_(torch.arange(size, device=engine.device))
        changed = [*free.values(), *moments.tensors]
        before = [value.detach().clone() for value in changed]
        with torch.cuda.device(engine.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    update()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = update()
        with torch.no_grad():  # undo what warming up did
            torch._foreach_copy_(changed, before)

    def _fill(self, n_rows: int) -> None:
        """Let the first rows of a minibatch count."""
        self._scale.fill_(self._row_share / n_rows)[n_rows:] = 0.0
        self._filled = n_rows

    def __call__(self, index: Tensor, learning_rate: float) -> Tensor:
        if learning_rate != self._rate:
            self._moments.set_rate(learning_rate)
            self._rate = learning_rate
        if len(index) != self._filled:
            self._fill(len(index))
        self._index[: len(index)].copy_(index)
        self._graph.replay()
        return self._loss
