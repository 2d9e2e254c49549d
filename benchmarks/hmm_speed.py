"""Scoring and one Baum-Welch iteration of a Gaussian hidden Markov model: ours and hmmlearn.

    python benchmarks/hmm_speed.py [--sequences 500] [--lengths 50 200] [--left-to-right]
        [--repeats 5] [--threads 1] [--device cuda]

Ten channels, six states, diagonal covariances, the same parameters for both; seconds are the best
of several repeats. hmmlearn (pip install hmmlearn) always computes on the CPU, with its faster
`implementation="scaling"`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from hmmlearn.hmm import GaussianHMM
from threadpoolctl import threadpool_limits
from torch import Tensor

from mixtura.data import Scaling
from mixtura.data.sequences import SequenceBatch, SequenceTable
from mixtura.densities import DiagonalGaussian, HiddenMarkov
from mixtura.engines import LocalEngine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM

STATES, CHANNELS = 6, 10


class Parameters(NamedTuple):
    """A hidden Markov model with diagonal Gaussians."""

    start: np.ndarray
    moves: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


class Side(NamedTuple):
    """Two things to time; both return the log-likelihood of all sequences, under the old model."""

    score: Callable[[], float]
    iterate: Callable[[], float]


def draw(
    n_sequences: int, shortest: int, longest: int, left_to_right: bool, seed: int = 0
) -> tuple[list[np.ndarray], Parameters]:
    """Sequences of a random model, and another model to begin with."""
    rng = np.random.default_rng(seed)
    mean = 1.5 * rng.normal(size=(STATES, CHANNELS))
    first, moves = np.full(STATES, 1 / STATES), 0.85 * np.eye(STATES) + 0.15 / STATES
    lengths = rng.integers(shortest, longest + 1, n_sequences)
    leaves = rng.random((n_sequences, longest)) < 0.15
    leaves[:, 0] = True
    drawn = rng.integers(0, STATES, leaves.shape)
    since = np.maximum.accumulate(np.where(leaves, np.arange(longest), 0), axis=1)
    state = np.take_along_axis(drawn, since, axis=1)
    if left_to_right:
        first, moves = np.eye(STATES)[0], np.triu(moves) / np.triu(moves).sum(1, keepdims=True)
        state = (np.arange(longest) * STATES // lengths[:, None]).clip(max=STATES - 1)
    frames = mean[state] + rng.normal(size=(*state.shape, CHANNELS))
    data = [sequence[:length] for sequence, length in zip(frames, lengths, strict=True)]
    guess = mean + 0.5 * rng.normal(size=mean.shape)
    return data, Parameters(first, moves, guess, np.full(mean.shape, 1.5))


def hmmlearn(data: list[np.ndarray], start: Parameters, device: torch.device) -> Side:
    frames, lengths = np.concatenate(data), [len(sequence) for sequence in data]

    def fresh() -> GaussianHMM:
        model = GaussianHMM(STATES, "diag", n_iter=1, init_params="", implementation="scaling")
        model.startprob_, model.transmat_ = start.start, start.moves
        model.means_, model.covars_ = start.mean, start.variance
        return model

    scored = fresh()
    return Side(
        lambda: scored.score(frames, lengths),
        lambda: fresh().fit(frames, lengths).monitor_.history[0],
    )


def ours(data: list[np.ndarray], start: Parameters, device: torch.device) -> Side:
    mean, variance, first, moves = (
        torch.from_numpy(part).to(device)
        for part in (start.mean, start.variance, start.start, start.moves)
    )
    model = HiddenMarkov.from_states(
        DiagonalGaussian(mean=mean, variance=variance, floor=1e-6),
        first,
        moves,
        left_to_right=not start.moves.all(),
    )
    lengths = np.array([len(sequence) for sequence in data])
    scaling = Scaling.identity(CHANNELS)
    table = SequenceTable(np.concatenate(data), lengths, scaling=scaling, device=device)
    engine, mixture = LocalEngine(table), Mixture.single(model)

    def score() -> float:
        def total(batch: SequenceBatch) -> dict[str, Tensor]:
            return {"log_prob": fresh.log_prob(batch).sum()}

        fresh = replace(model)  # without what it may remember
        with torch.no_grad():
            return float(engine.sum(total, fresh)["log_prob"])

    def iterate() -> float:
        fresh = replace(mixture, density=replace(model))
        return -EM(1).run(fresh, Likelihood(), engine, Progress()).objective * len(data)

    return Side(score, iterate)


def best(run: Callable[[], float], repeats: int, device: torch.device) -> tuple[float, float]:
    """Seconds of the fastest repeat, and what was computed."""
    run()
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        value = run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return min(spent), value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--lengths", type=int, nargs=2, default=(50, 200))
    parser.add_argument("--left-to-right", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    data, start = draw(options.sequences, *options.lengths, options.left_to_right)
    print(f"{len(data)} sequences, {sum(map(len, data))} frames, {options.device}:")
    sides = [make(data, start, device) for make in (hmmlearn, ours)]
    for task in Side._fields:
        with threadpool_limits(options.threads):
            theirs, mine = (best(getattr(side, task), options.repeats, device) for side in sides)
        print(
            f"  {task:<8} hmmlearn {1e3 * theirs[0]:8.1f} ms, ours {1e3 * mine[0]:8.1f} ms, "
            f"{theirs[0] / mine[0]:6.1f} x; log-likelihoods {theirs[1]:.6f} and {mine[1]:.6f}, "
            f"off by {abs(theirs[1] / mine[1] - 1):.1e}"
        )


if __name__ == "__main__":
    main()
