"""What solvers by gradient share: free parameters as a vector, and the best iterate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.engines import Engine
from mixtura.objectives import Objective
from mixtura.progress import Record
from mixtura.solvers.base import AnyModel, HasOutputs

Free = dict[str, Tensor]
#: Losses (P,) and gradients (P, d) at points (P, d), one per problem.
Function = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def evaluate(model: HasOutputs, objective: Objective, engine: Engine) -> tuple[float, float]:
    """Error rate and mean loss over labeled rows, and over all rows."""

    def sums(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            class_log_joint = model.outputs(batch)
        labeled = batch.weight * (batch.y >= 0)
        return {
            "loss": (objective.loss(class_log_joint, batch.y) * batch.weight).sum(),
            "wrong": (labeled * (class_log_joint.argmax(1) != batch.y)).sum(),
            "labeled": labeled.sum(),
        }

    total = engine.sum(sums, model)
    error = float(total["wrong"]) / max(float(total["labeled"]), 1e-300)
    return error, float(total["loss"]) / engine.total_weight


class Best(Generic[AnyModel]):
    """The best model so far.

    With held-out rows it is the one with the fewest errors on them, then the smallest loss; without
    them it is the latest.
    """

    def __init__(self, start: AnyModel, objective: Objective, held_out: Engine | None) -> None:
        self.model, self.score, self.at = start, (math.inf, math.inf), 0
        self._objective, self._held_out = objective, held_out
        if held_out is not None:
            self._take(start, evaluate(start, objective, held_out), 0)

    def offer(self, model: AnyModel, loss: float, record: Record) -> None:
        """Take the model of an iteration if it is better; its record is told what decided."""
        iteration = record["iteration"]
        score = (-float(iteration), loss)
        if self._held_out is not None:
            score = evaluate(model, self._objective, self._held_out)
            record |= {"validation_error": score[0], "validation_objective": score[1]}
        self._take(model, score, iteration)

    def waited(self, patience: int, iteration: int, gained_at: int | None = None) -> bool:
        """Whether so many iterations have brought no gain, on held-out rows if there are any.

        Where there are none, `gained_at` is the iteration that brought the last one.
        """
        at = self.at if self._held_out is not None else gained_at
        return at is not None and iteration - at >= patience

    def _take(self, model: AnyModel, score: tuple[float, float], iteration: int) -> None:
        better = math.isfinite(score[1]) and score < self.score
        if better and all(bool(value.isfinite().all()) for value in model.free().values()):
            self.model, self.score, self.at = model, score, iteration


def gradient_of(loss: Callable[[Free], Tensor], free: Free) -> Free:
    """Losses (P,), and the gradient of their sum by every free parameter."""
    leaves = {name: value.detach().requires_grad_() for name, value in free.items()}
    value = loss(leaves)
    gradients = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return {"loss": value.detach(), **dict(zip(leaves, gradients, strict=True))}


class Packed:
    """Named tensors as one vector per problem, for an optimizer that knows only vectors."""

    def __init__(self, template: Free, n_problems: int = 1) -> None:
        self._template, self._n_problems = template, n_problems
        self._sizes = [value.numel() // n_problems for value in template.values()]

    def pack(self, tensors: Free) -> np.ndarray:
        """(P, d), in double precision."""
        parts = [tensors[name].detach().reshape(self._n_problems, -1) for name in self._template]
        return torch.cat(parts, 1).double().cpu().numpy()

    def unpack(self, vectors: np.ndarray) -> Free:
        """The tensors of (P, d)."""
        like = next(iter(self._template.values()))
        parts = torch.from_numpy(vectors).to(like).split(self._sizes, 1)
        named = zip(self._template.items(), parts, strict=True)
        return {name: part.reshape(value.shape) for (name, value), part in named}

    def mean(self, sums: Callable[[Free], Free], weight: Tensor) -> Function:
        """What `sums` gives of tensors, losses and gradients, by weights (P,), as a function."""
        total = weight.double().cpu().numpy()

        def function(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = sums(self.unpack(points))
            loss = found.pop("loss").double().cpu().numpy() / total
            return loss, self.pack(found) / total[:, None]

        return function
