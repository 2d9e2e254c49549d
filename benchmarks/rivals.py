"""Steps of EM, Adam and Baum-Welch from the same start: ours, and those of other libraries."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.nn.functional import softplus

from mixtura import engines
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.densities import DiagonalGaussian, FullGaussian, HiddenMarkov, LowRankGaussian
from mixtura.engines import Engine, SequenceEngine
from mixtura.models.mixture import Layout, Mixture
from mixtura.objectives import Likelihood, Margin, beside_likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM, Adam

CLASSES, RANK, MARGIN, TRADEOFF, SMOOTHNESS = 10, 25, 60.0, 0.25, 10.0
STATES, CHANNELS = 6, 10
Run = Callable[[int], object]
#: Steps of a short and a long run: their difference leaves out what is done once.
SHORT, LONG = 2, 8


def per_step(run: Run, repeats: int = 3) -> float:
    """Seconds per step, the fastest of several repeats."""

    def spent(steps: int) -> float:
        began = time.perf_counter()
        run(steps)
        return time.perf_counter() - began

    run(SHORT)
    short, long = (min(spent(steps) for _ in range(repeats)) for steps in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


# -- EM ----------------------------------------------------------------------------------------


def engine_of(X: np.ndarray, y: np.ndarray | None = None, device: str = "cpu") -> Engine:
    """Rows as an estimator would hold them, in their own units."""
    return engines.engine_of(Matrix(X), y, np.ones(len(X)), Scaling.identity(X.shape[1]), device)


def em_step(side: str, kind: str, shape: tuple[int, int, int], dtype: str) -> float:
    """Seconds per step of EM from unit covariances; rows, features, components: the shape."""
    warnings.simplefilter("ignore")
    (n_rows, size, count), rng = shape, np.random.default_rng(0)
    mean = 1.5 * rng.normal(size=(count, size))
    X = (rng.normal(size=(n_rows, size)) + mean[rng.integers(0, count, n_rows)]).astype(dtype)
    spread = np.ones((count, size)) if kind == "diag" else np.tile(np.eye(size), (count, 1, 1))
    return per_step(EM_SIDES[side](X, mean, spread, kind))


def _em_ours(X: np.ndarray, mean: np.ndarray, spread: np.ndarray, kind: str) -> Run:
    name, engine = {"full": "factor", "diag": "variance"}[kind], engine_of(X)
    structure = FullGaussian if kind == "full" else DiagonalGaussian
    tensors = {"mean": torch.from_numpy(mean), name: torch.from_numpy(spread)}
    start = Mixture.single(structure(**tensors, floor=1e-9))
    return lambda steps: EM(steps, tol=-1.0).run(start, Likelihood(), engine, Progress())


def _em_scikit_learn(X: np.ndarray, mean: np.ndarray, spread: np.ndarray, kind: str) -> Run:
    start = {"means_init": mean.astype(X.dtype), "precisions_init": spread.astype(X.dtype)}
    settings: Any = {"covariance_type": kind, "tol": 0.0, "init_params": "random_from_data"}
    weight = np.full(len(mean), 1 / len(mean), X.dtype)
    return lambda steps: GaussianMixture(
        len(mean), max_iter=steps, weights_init=weight, **start, **settings
    ).fit(X)


def _em_torchgmm(X: np.ndarray, mean: np.ndarray, spread: np.ndarray, kind: str) -> Run:
    """Its training module: the estimator takes two passes over the rows per step."""
    import pytorch_lightning as lightning
    from torchgmm.bayes.gmm.lightning_module import GaussianMixtureLightningModule
    from torchgmm.bayes.gmm.model import GaussianMixtureModel, GaussianMixtureModelConfig

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    rows = torch.from_numpy(X)
    loader = torch.utils.data.DataLoader([rows], batch_size=None)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")

    def run(steps: int) -> None:
        model = GaussianMixtureModel(GaussianMixtureModelConfig(len(mean), X.shape[1], kind))
        model = model.to(rows.dtype)
        with torch.no_grad():
            model.component_probs.fill_(1 / len(mean))
            model.means.copy_(torch.from_numpy(mean))
            model.precisions_cholesky.copy_(torch.from_numpy(spread))
        module = GaussianMixtureLightningModule(model, convergence_tolerance=0)
        off = dict.fromkeys(quiet, False)
        lightning.Trainer(max_epochs=steps, accelerator="cpu", devices=1, **off).fit(module, loader)

    return run


EM_SIDES = {"ours": _em_ours, "scikit-learn": _em_scikit_learn, "torchgmm": _em_torchgmm}


# -- Adam on the hybrid margin -----------------------------------------------------------------


def low_rank_mixture(x: Tensor, per_class: int, generator: torch.Generator) -> Mixture:
    """Ten classes of components around random rows."""
    count, size = CLASSES * per_class, x.shape[1]
    rows = torch.randint(len(x), (count,), generator=generator).to(x.device)
    loading = 0.1 * torch.randn(count, size, RANK, generator=generator).to(x)
    density = LowRankGaussian(
        mean=x[rows].clone(), diagonal=torch.ones(count, size).to(x), loading=loading, floor=0.1
    )
    weight = torch.full((count,), 1.0 / per_class).log().to(x)
    prior = torch.full((CLASSES,), 1.0 / CLASSES).log().to(x)
    return Mixture(density, weight, Layout([per_class] * CLASSES, x.device), prior, False)


def epoch(side: str, n_rows: int, size: int, per_class: int, device: str) -> float:
    """Seconds of one epoch in minibatches of 100, the first not counted."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n_rows, size, generator=generator).to(device)
    y = torch.randint(CLASSES, (n_rows,), generator=generator).to(device)
    mixture = low_rank_mixture(x, per_class, generator)
    marks: list[float] = []

    def mark(*_: object) -> None:
        if x.is_cuda:
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    if side == "plain":
        _plain_epochs(x, y, mixture, mark)
    else:
        engine = engine_of(x.double().cpu().numpy(), y.cpu().numpy(), device).cast(x.dtype)
        solver = Adam(3, batch_size=100, learning_rate=2e-3, schedule="constant")
        objective = beside_likelihood(Margin(MARGIN, SMOOTHNESS), TRADEOFF)
        solver.run(mixture, objective, engine, Progress([mark]))
    return float(np.diff(marks).min())


def _plain_epochs(x: Tensor, y: Tensor, mixture: Mixture, mark: Callable[[], None]) -> None:
    """The formulas as they stand in the paper, in eager PyTorch."""
    density = mixture.density
    raw = torch.log(torch.expm1(density.diagonal - density.floor))
    free = [mixture.log_weight, density.mean, raw, density.loading]
    free = [value.clone().requires_grad_() for value in free]
    optimizer = torch.optim.Adam(free, lr=2e-3)
    eye = torch.eye(RANK, dtype=x.dtype, device=x.device)
    own = torch.nn.functional.one_hot(y, CLASSES).bool()

    def step(index: Tensor) -> None:
        logits, mean, raw, loading = free
        diagonal = density.floor + softplus(raw)
        scaled = loading / diagonal[..., None]
        factor = torch.linalg.cholesky(eye + loading.mT @ scaled)
        whitened = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)
        difference = x[index][:, None] - mean
        direct = (difference.square() / diagonal).sum(2)
        inner = torch.einsum("krd,nkd->nkr", whitened, difference).square().sum(2)
        log_det = diagonal.log().sum(1) + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        log_prob = -0.5 * (direct - inner + log_det + x.shape[1] * 1.8378770664093453)
        weights = logits.view(CLASSES, -1).log_softmax(1).flatten()
        joint = (log_prob + weights).view(len(index), CLASSES, -1).logsumexp(2)
        mine = joint[own[index]]
        rivals = joint.masked_fill(own[index], -torch.inf)
        margin = mine - (SMOOTHNESS * rivals).logsumexp(1) / SMOOTHNESS
        loss = -TRADEOFF * mine + (1 - TRADEOFF) * (MARGIN - margin).clamp_min(0)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()

    for _ in range(3):
        for index in torch.randperm(len(x)).to(x.device).split(100):
            step(index)
        mark()


# -- Baum-Welch --------------------------------------------------------------------------------


def sequences(n_sequences: int, shortest: int, longest: int, seed: int = 0) -> list[np.ndarray]:
    """Six states that are left with probability 0.15, ten channels."""
    rng = np.random.default_rng(seed)
    mean = 1.5 * rng.normal(size=(STATES, CHANNELS))
    leaves = rng.random((n_sequences, longest)) < 0.15
    drawn = rng.integers(0, STATES, leaves.shape)
    since = np.maximum.accumulate(np.where(leaves, np.arange(longest), 0), axis=1)
    frames = mean[np.take_along_axis(drawn, since, axis=1)]
    frames = frames + rng.normal(size=frames.shape)
    lengths = rng.integers(shortest, longest + 1, n_sequences)
    return [sequence[:length] for sequence, length in zip(frames, lengths, strict=True)]


def baum_welch(side: str, shape: tuple[int, int, int], left_to_right: bool) -> float:
    """Seconds per iteration; number, smallest and largest length of the sequences: the shape."""
    warnings.simplefilter("ignore")
    data = sequences(*shape)
    frames, lengths = np.concatenate(data), np.array([len(sequence) for sequence in data])
    first, moves = np.full(STATES, 1 / STATES), 0.85 * np.eye(STATES) + 0.15 / STATES
    if left_to_right:
        first, moves = np.eye(STATES)[0], np.triu(moves) / np.triu(moves).sum(1, keepdims=True)
    mean = frames[np.random.default_rng(0).integers(0, len(frames), STATES)]
    variance = np.full(mean.shape, 2.0)
    if side == "hmmlearn":
        from hmmlearn.hmm import GaussianHMM

        def run(steps: int) -> object:
            model = GaussianHMM(
                STATES, "diag", n_iter=steps, tol=-np.inf, init_params="", implementation="scaling"
            )
            model.startprob_, model.transmat_ = first, moves
            model.means_, model.covars_ = mean, variance
            return model.fit(frames, lengths)

        return per_step(run)
    states = DiagonalGaussian(
        mean=torch.from_numpy(mean), variance=torch.from_numpy(variance), floor=1e-6
    )
    chain = HiddenMarkov.from_states(
        states, *map(torch.from_numpy, (first, moves)), left_to_right=left_to_right
    )
    scaling, device = Scaling.identity(CHANNELS), torch.device("cpu")
    engine = SequenceEngine(frames, lengths, scaling=scaling, device=device)
    start = Mixture.single(chain)
    return per_step(lambda steps: EM(steps, tol=-1.0).run(start, Likelihood(), engine, Progress()))
