"""EM from the same start, the same iterations and threads: ours, scikit-learn, torchgmm.

    python benchmarks/em_speed.py [--repeats 3] [--threads 2]

torchgmm (pip install torchgmm) is left out where it is not installed. Its estimator takes two
passes over the data for each step of EM on a full batch; to be fair it is driven here through its
own training module, which takes one.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from mixtura.data import Scaling, Table
from mixtura.densities import Diagonal, Full
from mixtura.engines import LocalEngine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM
from mixtura.training.start import cluster_start

CASES = {"full": (20_000, 50, 10), "diag": (100_000, 32, 16)}
STRUCTURES = {"full": Full(floor=1e-9), "diag": Diagonal(floor=1e-9)}
Run = Callable[[np.ndarray, Mixture, str, int], float]


def ours(X: np.ndarray, start: Mixture, kind: str, iterations: int) -> float:
    table = Table(X, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))
    result = EM(iterations, tol=-1.0).run(start, Likelihood(), LocalEngine(table), Progress())
    return -result.objective


def scikit_learn(X: np.ndarray, start: Mixture, kind: str, iterations: int) -> float:
    precision = torch.linalg.inv(start.density.covariances())
    if kind == "diag":
        precision = precision.diagonal(dim1=1, dim2=2)
    model = GaussianMixture(
        start.n_components,
        covariance_type=kind,
        max_iter=iterations,
        tol=0.0,
        reg_covar=0.0,
        weights_init=start.log_weight.exp().numpy(),
        means_init=start.density.mean.numpy(),
        precisions_init=precision.numpy(),
        init_params="random_from_data",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(X).lower_bound_)


def torchgmm(X: np.ndarray, start: Mixture, kind: str, iterations: int) -> float:
    import pytorch_lightning as lightning
    from torchgmm.bayes.core import cholesky_precision
    from torchgmm.bayes.gmm.lightning_module import GaussianMixtureLightningModule
    from torchgmm.bayes.gmm.model import GaussianMixtureModel, GaussianMixtureModelConfig

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    config = GaussianMixtureModelConfig(start.n_components, X.shape[1], kind)
    model = GaussianMixtureModel(config).double()
    spread = start.density.covariances() if kind == "full" else start.density.variance
    with torch.no_grad():
        model.component_probs.copy_(start.log_weight.exp())
        model.means.copy_(start.density.mean)
        model.precisions_cholesky.copy_(cholesky_precision(spread, kind))
    module = GaussianMixtureLightningModule(
        model, convergence_tolerance=0, covariance_regularization=0.0
    )
    loader = torch.utils.data.DataLoader([torch.from_numpy(X)], batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=iterations,
        accelerator="cpu",
        devices=1,
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader)
    return -float(trainer.callback_metrics["nll"])


def time_run(
    run: Run, X: np.ndarray, start: Mixture, kind: str, repeats: int
) -> tuple[float, float]:
    """Seconds an iteration: the difference of a long and a short run, the median of several."""
    spent = []
    for _ in range(repeats):
        marks = []
        for iterations in (5, 25):
            began = time.perf_counter()
            value = run(X, start, kind, iterations)
            marks.append(time.perf_counter() - began)
        spent.append((marks[1] - marks[0]) / 20)
    return float(np.median(spent)), value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    for kind, (n_rows, size, count) in CASES.items():
        centers = 1.5 * rng.normal(size=(count, size))
        X = rng.normal(size=(n_rows, size)) + centers[rng.integers(0, count, n_rows)]
        table = Table(X, scaling=Scaling.identity(size), device=torch.device("cpu"))
        generator = torch.Generator().manual_seed(0)
        start = cluster_start(LocalEngine(table), count, STRUCTURES[kind], generator)
        print(f"{kind}, {n_rows} x {size}, {count} components:")
        reference = None
        for run in (scikit_learn, torchgmm, ours):
            try:
                with threadpool_limits(options.threads):
                    seconds, value = time_run(run, X, start, kind, options.repeats)
            except ImportError:
                print(f"  {run.__name__:<13} not installed")
                continue
            reference = reference or seconds
            print(
                f"  {run.__name__:<13} {1e3 * seconds:7.1f} ms an iteration, "
                f"{reference / seconds:4.2f} x scikit-learn, mean log-likelihood {value:.6f}"
            )


if __name__ == "__main__":
    main()
