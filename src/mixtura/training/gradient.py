"""Gradient training of any density on any objective: Adam on minibatches, L-BFGS on all rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from mixtura.data import Batch
from mixtura.densities import add_statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Objective
from mixtura.training.base import FitResult, Penalty
from mixtura.training.progress import Progress

Free = dict[str, Tensor]

#: Share of the full step size at each point (0 to 1) of training.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1.0 - progress,
}


def evaluate(mixture: Mixture, objective: Objective, engine: Engine) -> tuple[float, float]:
    """Error rate and mean loss over labeled rows, and over all rows."""

    def sums(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            class_log_joint = mixture.class_log_joint(batch)
        labeled = batch.weight * (batch.y >= 0)
        return {
            "loss": (objective.loss(class_log_joint, batch.y) * batch.weight).sum(),
            "wrong": (labeled * (class_log_joint.argmax(1) != batch.y)).sum(),
            "labeled": labeled.sum(),
        }

    total = engine.sum(sums, mixture)
    error = float(total["wrong"]) / max(float(total["labeled"]), 1e-300)
    return error, float(total["loss"]) / engine.total_weight


@dataclass
class Best:
    """The best model so far: fewest validation errors, then the smallest loss."""

    mixture: Mixture
    score: tuple[float, float] = (math.inf, math.inf)
    at: int = 0

    def offer(self, mixture: Mixture, score: tuple[float, float], iteration: int) -> None:
        """Take the model if it is better, and sound."""
        if math.isfinite(score[1]) and score < self.score and _is_finite(mixture):
            self.mixture, self.score, self.at = mixture, score, iteration


def _is_finite(mixture: Mixture) -> bool:
    return all(bool(value.isfinite().all()) for value in mixture.free().values())


@dataclass(frozen=True)
class Adam:
    """Adam on minibatches; the model of the best epoch on the validation rows is kept.

    Parameters
    ----------
    validation : rows to choose the epoch by; None keeps the last epoch.
    patience : epochs without improvement before training stops; None never stops early.
    averaging : decay of an exponential average of the iterates (not of the start) that is used
        instead of the last one; 0 switches it off.
    """

    generator: torch.Generator
    max_epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 2e-3
    schedule: str = "constant"
    averaging: float = 0.0
    validation: Engine | None = None
    patience: int | None = None
    prior: Penalty | None = None
    stage: str = "Adam"

    def run(
        self, mixture: Mixture, objective: Objective, engine: Engine, progress: Progress
    ) -> FitResult:
        model = mixture.to(engine.dtype)
        free = {k: v.detach().clone().requires_grad_() for k, v in model.free().items()}
        average = {k: v.detach().clone() for k, v in free.items()}
        step = make_step(model, objective, free, engine, self)
        best = Best(mixture)
        if self.validation is not None:
            best.offer(mixture, evaluate(mixture, objective, self.validation), 0)
        progress.start(self.stage, self.max_epochs)
        n_batches = math.ceil(len(engine) / self.batch_size)
        for epoch in range(1, self.max_epochs + 1):
            total, seen = torch.zeros((), dtype=engine.dtype, device=engine.device), 0
            indices = engine.minibatch_indices(self.batch_size, self.generator)
            for number, index in enumerate(indices):
                done = max((epoch - 1 + number / n_batches) / self.max_epochs, progress.time_spent)
                rate = self.learning_rate * SCHEDULES[self.schedule](min(done, 1.0))
                total += step(index, rate) * len(index)
                seen += len(index)
                if self.averaging:
                    self._average(average, free, (epoch - 1) * n_batches + number + 1)
                if progress.time_spent >= 1.0:
                    break
            loss = float(total) / seen
            trained = average if self.averaging else free
            candidate = model.from_free({k: v.detach().clone() for k, v in trained.items()})
            record = {"stage": self.stage, "iteration": epoch, "objective": loss}
            self._judge(best, candidate.to(torch.float64), objective, loss, epoch, record)
            settled = self._settled(best, epoch)
            if progress.step(record) or not math.isfinite(loss) or settled:
                break
        return FitResult(best.mixture, best.score[1], epoch, settled and not progress.stopped)

    def _judge(
        self,
        best: Best,
        candidate: Mixture,
        objective: Objective,
        loss: float,
        epoch: int,
        record: dict,
    ) -> None:
        if self.validation is None:
            best.offer(candidate, (-float(epoch), loss), epoch)
            return
        error, validation_loss = evaluate(candidate, objective, self.validation)
        record |= {"validation_error": error, "validation_objective": validation_loss}
        best.offer(candidate, (error, validation_loss), epoch)

    def _settled(self, best: Best, epoch: int) -> bool:
        waiting = self.validation is not None and self.patience is not None
        return waiting and epoch - best.at >= (self.patience or 0)

    def _average(self, average: Free, free: Free, n_steps: int) -> None:
        """Take in the latest of `n_steps` iterates; the start has no share, as no iterate is it."""
        share = (1.0 - self.averaging) / (1.0 - self.averaging**n_steps)
        leaves = [value.detach() for value in free.values()]
        torch._foreach_lerp_(list(average.values()), leaves, share)


Step = Callable[[Tensor, float], Tensor]


def make_step(
    model: Mixture, objective: Objective, free: Free, engine: Engine, settings: Adam
) -> Step:
    """One update from the rows at an index: eager, or the whole of it as one CUDA graph.

    It returns the weighted mean loss of all rows, estimated from these without bias: their losses
    are divided by the weight that as many rows have on average. By their own weight would be
    wrong: in minibatches of one row, weights would then count for nothing.
    """
    prior, total_weight = settings.prior, engine.total_weight
    row_share = len(engine) / total_weight

    def loss_of(batch: Batch, scale: float | Tensor) -> Tensor:
        current = model.from_free(free)
        loss = objective.total(current.class_log_joint(batch), batch.y, batch.weight * scale)
        return loss if prior is None else loss + prior.penalty(current) / total_weight

    on_cuda = engine.device.type == "cuda"
    rate = torch.tensor(settings.learning_rate, device=engine.device) if on_cuda else 1.0
    optimizer = torch.optim.Adam(free.values(), lr=rate, fused=True, capturable=on_cuda)
    size = min(settings.batch_size, len(engine))
    if on_cuda and engine.uniform and not engine.may_have_missing:
        return GraphedStep(loss_of, engine, optimizer, size, row_share)

    def step(index: Tensor, learning_rate: float) -> Tensor:
        _set_rate(optimizer, learning_rate)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(engine.batch(index), row_share / len(index))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """New step size; inside a captured graph it lives in a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


class GraphedStep:
    """Forward, backward and Adam captured once and replayed for every minibatch.

    A graph has fixed shapes: a shorter last batch is filled up with rows that count for nothing.
    """

    def __init__(
        self,
        loss_of: Callable[[Batch, Tensor], Tensor],
        engine: Engine,
        optimizer: torch.optim.Optimizer,
        size: int,
        row_share: float,
    ) -> None:
        self._row_share, self._optimizer, self._rate = row_share, optimizer, math.nan
        self._index = torch.zeros(size, dtype=torch.long, device=engine.device)
        self._scale = torch.zeros(size, dtype=engine.dtype, device=engine.device)
        self._fill(size)

        def update() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(engine.batch(self._index), self._scale)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self._index.copy_(torch.arange(size, device=engine.device))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
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
        self._rewind(parameters, before)

    def _rewind(self, parameters: list[Tensor], before: list[Tensor]) -> None:
        """Undo what warming up did to the parameters and to Adam's memory."""
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
            for state in self._optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def _fill(self, n_rows: int) -> None:
        """Let the first rows of a minibatch count."""
        self._scale.fill_(self._row_share / n_rows)[n_rows:] = 0.0
        self._filled = n_rows

    def __call__(self, index: Tensor, learning_rate: float) -> Tensor:
        if learning_rate != self._rate:
            _set_rate(self._optimizer, learning_rate)
            self._rate = learning_rate
        if len(index) != self._filled:
            self._fill(len(index))
        self._index[: len(index)].copy_(index)
        self._graph.replay()
        return self._loss


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS on all rows; with validation rows, the best iterate on them is kept."""

    max_iter: int = 200
    tol: float = 1e-7
    validation: Engine | None = None
    patience: int | None = None
    prior: Penalty | None = None
    stage: str = "L-BFGS"

    def run(
        self, mixture: Mixture, objective: Objective, engine: Engine, progress: Progress
    ) -> FitResult:
        progress.start(self.stage, self.max_iter)
        packed = Packed(mixture.free())

        def sums(leaves: Free) -> Free:
            data = engine.sum(
                lambda batch: _gradient_sums(mixture, objective, leaves, batch), mixture
            )
            if self.prior is None:
                return data
            return add_statistics(data, _penalty_gradient(mixture, self.prior, leaves))

        best = Best(mixture)
        if self.validation is not None:
            best.offer(mixture, evaluate(mixture, objective, self.validation), 0)
        iteration = 0

        def after_step(intermediate_result) -> None:  # type: ignore[no-untyped-def]
            nonlocal iteration
            iteration += 1
            loss = float(intermediate_result.fun)
            record = {"stage": self.stage, "iteration": iteration, "objective": loss}
            candidate = mixture.from_free(packed.unpack(intermediate_result.x))
            score = (-float(iteration), loss)
            if self.validation is not None:
                score = evaluate(candidate, objective, self.validation)
                record |= {"validation_error": score[0], "validation_objective": score[1]}
            best.offer(candidate, score, iteration)
            waited = self.validation is not None and self.patience is not None
            if progress.step(record) or (waited and iteration - best.at >= (self.patience or 0)):
                raise StopIteration

        outcome = minimize(
            packed.mean(sums, engine.total_weight),
            packed.pack(mixture.free()),
            jac=True,
            method="L-BFGS-B",
            callback=after_step,
            options={"maxiter": self.max_iter, "ftol": self.tol, "gtol": 1e-8, "maxcor": 20},
        )
        settled = iteration < self.max_iter and not progress.stopped
        return FitResult(best.mixture, float(outcome.fun), max(1, iteration), settled)


def gradient_of(loss: Callable[[Free], Tensor], free: Free) -> Free:
    """A loss, and its gradient by every free parameter."""
    leaves = {name: value.detach().requires_grad_() for name, value in free.items()}
    value = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return {"loss": value.detach(), **dict(zip(leaves, gradients, strict=True))}


def _gradient_sums(mixture: Mixture, objective: Objective, leaves: Free, batch: Batch) -> Free:
    def loss(free: Free) -> Tensor:
        joint = mixture.from_free(free).class_log_joint(batch)
        return objective.total(joint, batch.y, batch.weight)

    return gradient_of(loss, leaves)


def _penalty_gradient(mixture: Mixture, prior: Penalty, leaves: Free) -> Free:
    return gradient_of(lambda free: prior.penalty(mixture.from_free(free)), leaves)


@dataclass
class Packed:
    """Named tensors as one vector, for an optimizer that knows only vectors."""

    template: Free
    shapes: dict[str, torch.Size] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = {name: value.shape for name, value in self.template.items()}

    def mean(
        self, sums: Callable[[Free], Free], total_weight: float
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Summed losses and gradients of free parameters, as means of a vector."""

        def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
            found = sums(self.unpack(vector))
            loss = float(found.pop("loss")) / total_weight
            return loss, self.pack(found) / total_weight

        return value_and_gradient

    def pack(self, tensors: Free) -> np.ndarray:
        flat = [tensors[name].detach().double().flatten().cpu() for name in self.shapes]
        return torch.cat(flat).numpy()

    def unpack(self, vector: np.ndarray) -> Free:
        like = next(iter(self.template.values()))
        parts = (
            torch.from_numpy(vector.copy())
            .to(like)
            .split([s.numel() for s in self.shapes.values()])
        )
        return {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
