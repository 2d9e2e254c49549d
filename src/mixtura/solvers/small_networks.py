"""Losses and gradients of small networks in NumPy, as `small` has those of mixtures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mixtura.engines import Engine
from mixtura.models.network import RegressionNetwork
from mixtura.models.read_out import Completed, ReadOut, with_holes
from mixtura.objectives import Objective
from mixtura.solvers.elastic_net import NetworkPrior
from mixtura.solvers.gradients import Function
from mixtura.solvers.small import Gradient, are_few, exp_or_zero, is_small
from mixtura.solvers.small_densities import Arrays, kind_of, with_draws

#: Derivatives by one thing of those by another.
_Back = Callable[[np.ndarray], np.ndarray]


def small_read_out(
    model: ReadOut, objective: Objective, engine: Engine, prior: NetworkPrior
) -> Function | None:
    """Mean losses (P,) and gradients (P, d) at points (P, d), of rows in memory.

    None where rows are many, or densities are of other kinds. Rows with holes come beside draws of
    what is missing.
    """
    mixture = model.mixture
    if not is_small(mixture, engine, engine.may_marginalize):
        return None
    batch = next(iter(engine.chunks(len(engine))))
    kind = kind_of(mixture.density, batch, prior.spread)
    if isinstance(batch, Completed) and kind is not None:
        if not are_few(len(batch.drawn[0]) * mixture.row_cost(False), holes=True):
            return None
        each = zip(model.mixtures, batch.drawn, strict=True)
        kind = with_draws(kind, len(batch), [(own.density, rows) for own, rows in each])
    total = model.total_weight(engine.y, engine.weight).numpy()
    if kind is None:
        return None
    return _OfNetworks(mixture, objective, batch, kind, total, model, prior)


@dataclass
class _OfNetworks(Gradient):
    """Of networks: a read-out of what log-joints say, of rows and then of draws."""

    _network: ReadOut
    _prior: NetworkPrior

    def __post_init__(self) -> None:
        super().__post_init__()
        units = self._network.shift, self._network.scale
        self._shift, self._scale = (each.numpy().reshape(self._n_problems, -1) for each in units)
        self._relative = self._network.embedding == "posterior"
        self._predicts = isinstance(self._network, RegressionNetwork)
        if isinstance(self._batch, Completed):
            chance = self._batch.log_chance.view(-1, self._n_problems).mT.numpy()
            self._lacks = with_holes(self._batch).nonzero().flatten().numpy()
            self._chance = chance.reshape(self._n_problems, 1, -1, len(self._lacks))

    def at(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = self._shapes[-1][1].stop
        own, self._read, self._bias = np.split(points, [first, first + len(self._owner)], 1)
        self._by_read, self._by_bias = np.zeros_like(self._read), np.zeros_like(self._bias)
        self._mass = np.zeros_like(self._log_prior)
        loss, slope = super().at(own)
        net, read, rows = self._prior.net, torch.from_numpy(self._read), self._prior.rows.numpy()
        loss += rows * net.penalty(read).numpy() / self._total
        by_read = self._by_read + rows[:, None] * net.slope(read).numpy()
        of_read = np.concatenate([by_read, self._by_bias], 1) / self._total[:, None]
        return loss, np.concatenate([slope, of_read], 1)

    def _explained(
        self, named: Arrays, weight: np.ndarray, prior: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives by read-outs and by p(x) are kept."""
        log_joint, n_rows = self._log_joint(named, weight, prior), self._weight.shape[1]
        density, scores, back = self._looked(log_joint[..., :n_rows], prior)
        answer, chance = self._answered(scores)
        drawn = self._drawn(log_joint[..., n_rows:], prior) if log_joint.shape[2] > n_rows else None
        if drawn is not None:
            answer[..., self._lacks] = drawn[0]
        whole = np.concatenate([density, answer], 1) if self._predicts else density + answer
        losses, slope = self._loss_and_slope(whole)
        slope = slope * self._weight[:, None]
        by_density, by_answer = slope.sum(1, keepdims=True), slope
        if self._predicts:
            by_density, by_answer = slope[:, :1], slope[:, 1:].copy()
        by_draws = []
        if drawn is not None:
            by_draws = [drawn[1](by_answer[..., self._lacks])]
            by_answer = by_answer.copy()
            by_answer[..., self._lacks] = 0.0
        by_rows = back(by_density, by_answer - chance * by_answer.sum(1, keepdims=True))
        by_joint = np.concatenate([by_rows, *by_draws], 2)
        return (losses * self._weight).sum(1), -by_joint

    def _answered(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """log p(c | x) of scores (P, C, ...), and its exponentials; or predictions."""
        if self._predicts:
            return scores, 0.0
        log_total, chance = _over(scores, 1)
        return scores - log_total, chance

    def _drawn(self, log_joint: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, _Back]:
        """Answers of rows with holes (P, C, h), the mean over draws (m,); and derivatives by
        log-joints of draws (P, K, m), of those by answers.

        Draws count by how much likelier they are than they were when they were made.
        """
        density, scores, back = self._looked(log_joint, prior)
        by_draw = *scores.shape[:2], -1, len(self._lacks)
        answer, chance = self._answered(scores.reshape(by_draw))
        log_total, share = _over(density.reshape(self._chance.shape) - self._chance, 2)
        if self._predicts:
            found, part = (answer * share).sum(2), share
        else:
            log_share = density.reshape(self._chance.shape) - self._chance - log_total
            log_found, part = _over(answer + log_share, 2)
            found = log_found[:, :, 0]

        def slopes(slope: np.ndarray) -> np.ndarray:
            by_answer = part * slope[:, :, None]  # (P, C, draws, h)
            by_share = by_answer * answer if self._predicts else by_answer
            by_share = by_share.sum(1, keepdims=True)
            by_density = by_share - share * by_share.sum(2, keepdims=True)
            by_score = by_answer - chance * by_answer.sum(1, keepdims=True)
            return back(by_density.reshape(density.shape), by_score.reshape(scores.shape))

        return found, slopes

    def _looked(
        self, log_joint: np.ndarray, prior: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
        """log p(x) (P, 1, n) and scores (P, C, n); derivatives by log-joints of those by both.

        Units of the embedding, and the class priors in log-joints, are taken into the read-out.
        """
        owner, (by_class, within) = self._owner, self._summed(log_joint)
        embedded = np.broadcast_to(within, log_joint.shape) if self._relative else log_joint
        shift = self._shift if self._relative else self._shift + prior[:, owner]
        steep = self._read / self._scale
        level = self._bias - np.add.reduceat(steep * shift, self._starts, 1)
        reached = np.add.reduceat(embedded * steep[..., None], self._starts, 1)
        density, share = _over(by_class, 1)

        def slopes(by_density: np.ndarray, by_score: np.ndarray) -> np.ndarray:
            pull, by_bias = by_score[:, owner], by_score.sum(2)
            by_read = np.einsum("pkn,pkn->pk", pull, embedded) - shift * by_bias[:, owner]
            self._by_read += by_read / self._scale
            self._by_bias += by_bias
            by_class = share * by_density
            self._mass -= by_class.sum(2)
            by_joint = pull * steep[..., None]
            if self._relative:  # a share gains what it does, less what all shares of its class do
                return (by_joint + (by_class - by_score * reached)[:, owner]) * within
            return by_joint + by_class[:, owner] * within

        return density, reached + level[..., None], slopes

    def _for_priors(self, mass: np.ndarray) -> np.ndarray:
        """Embeddings know nothing of them."""
        return self._mass


def _over(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums over an axis in logs, of length one along it, and shares of what they sum."""
    largest = values.max(axis, keepdims=True)
    share = exp_or_zero(values - largest)
    total = share.sum(axis, keepdims=True)
    share /= total
    return largest + np.log(total), share
