"""Hybrid mixtures, Figure 3: error against missing features on MNIST, and time per row.

Roth et al. (2018): hybrid margin with the desired log-margin 100, rank 25, trained on complete
rows; from each test row the same number of pixels is taken away at random. Times are those of rows
whose patterns all differ, under 170 components; the paper's are of one core of an i5-4690.

Parts are named like "error/0.5" and "time/25".
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from mixtura.data.batch import Batch
from mixtura.data.given import Parameters
from mixtura.data.scaling import Scaling
from mixtura.densities import FullGaussian, Gaussian
from mixtura.engines import Engine, resolve_device
from mixtura.models.mixture import Mixture
from mixtura.papers.hybrid._training import error_rate
from mixtura.papers.hybrid.figure1 import train_hybrid
from mixtura.papers.hybrid.table1 import load, train_cell
from mixtura.papers.images import Images
from mixtura.papers.pictures import curves, framed
from mixtura.papers.report import Report
from mixtura.papers.tables import punch
from mixtura.solvers import EM

TRADEOFFS = (0.0, 0.1, 0.5, 1.0)
RANKS = ("5", "10", "25", "full")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_QUICK_SHARES = (0.0, 0.2, 0.6, 0.9)
_TIMED_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Test rows by device; a full covariance costs the cube of the features for every row.
_ROWS = {"cpu": 1000, "cuda": 10_000}
_FULL_ROWS = {"cpu": 2, "cuda": 50}
#: Where the even trade-off and the generative model are compared, and what is hoped for.
_RANGES = (("below 30 % missing", "below 0", 0, 29), ("from 60 % missing", "up to 0.5", 60, 100))
#: Milliseconds per row that the paper's text gives.
_PAPER = {("25", 0.1): 500.0, ("full", 0.1): 6600.0}


def run(report: Report) -> None:
    """Errors of one model per trade-off, then times of one model per rank."""
    images = load(report, "mnist", quick_rows=600)
    for tradeoff in TRADEOFFS:
        if report.wants(f"error/{tradeoff}"):
            _show_errors(report, images, tradeoff)
    _summarize(report)
    for rank in RANKS[-2:] if report.quick else RANKS:
        if report.wants(f"time/{rank}"):
            _show_times(report, images, rank)
    with report.figure(figsize=(11, 4)) as figure:
        errors, times = figure.subplots(1, 2)
        curves(errors, report.tables.get("errors", []), "tradeoff", "missing", "tradeoff = {}")
        framed(errors, "features missing (%)", "test error (%)")
        curves(times, report.tables.get("times", []), "rank", "missing", "rank = {}")
        framed(times, "features missing (%)", "milliseconds per row")
        times.set_yscale("log")


def _device(report: Report, images: Images) -> torch.device:
    return resolve_device(report.device, images.X_test.size)


def _pick(report: Report, images: Images, most: dict[str, int]) -> np.ndarray:
    """As many test rows as the device can do, evenly spread: their order is not random."""
    available = len(images.X_test)
    able = most["cuda" if _device(report, images).type == "cuda" else "cpu"]
    count = min(able, available // 4 if report.quick else available)
    return np.linspace(0, available - 1, count).astype(int)


def _show_errors(report: Report, images: Images, tradeoff: float) -> None:
    fit = train_hybrid(report, images, "mnist", tradeoff)
    rows = _pick(report, images, _ROWS)
    for share in _QUICK_SHARES if report.quick else SHARES:
        began = time.perf_counter()
        holed = punch(images.X_test[rows], share, report.seed)
        error = error_rate(fit.model, holed, images.y_test[rows])
        spent = time.perf_counter() - began
        cells = {"tradeoff": tradeoff, "missing": round(100 * share), "ours": error}
        report.row("errors", **cells, rows=len(rows), seconds=spent)


def _summarize(report: Report) -> None:
    """Errors of the even trade-off minus those of the generative model, in points."""
    rows = report.tables.get("errors", [])
    errors = {(row["tradeoff"], row["missing"]): row["ours"] for row in rows}
    for where, goal, low, high in _RANGES:
        gaps = [
            error - errors[1.0, missing]
            for (tradeoff, missing), error in errors.items()
            if tradeoff == 0.5 and low <= missing <= high and (1.0, missing) in errors
        ]
        if gaps:
            report.row("summary", where=where, best=min(gaps), worst=max(gaps), goal=goal)


def _show_times(report: Report, images: Images, rank: str) -> None:
    mixture = _mixture_to_time(report, images, rank)
    rows = _pick(report, images, _FULL_ROWS if rank == "full" else _ROWS)
    for share in _TIMED_SHARES[:1] if report.quick else _TIMED_SHARES:
        holed = punch(images.X_test[rows], share, report.seed)
        seconds = _score(mixture, holed, _device(report, images))
        report.row(
            "times",
            rank=rank,
            missing=round(100 * share),
            ours=1e3 * seconds / len(rows),
            paper=_PAPER.get((rank, share)),
            components=mixture.n_components,
            rows=len(rows),
            seconds=seconds,
        )


def _mixture_to_time(report: Report, images: Images, rank: str) -> Mixture:
    """A model of the right shape; how well it is fitted does not matter to the clock."""
    few = Images(*(part[:2000] for part in images))
    shape: Parameters = {
        "n_components": 1 if report.quick else 17,
        "density__rank": 5 if rank == "full" else int(rank),
        "tradeoff": 1.0,
        "solver": EM(tol=1e9),
    }
    mixture = train_cell(report, few, "mnist/full/LL+LM", **shape).model.mixture_
    if rank != "full":
        return mixture
    thin = mixture.density
    assert isinstance(thin, Gaussian)
    factor = torch.linalg.cholesky(thin.covariances())
    return replace(mixture, density=FullGaussian(mean=thin.mean, floor=thin.floor, factor=factor))


def _score(mixture: Mixture, X: np.ndarray, device: torch.device) -> float:
    """Seconds to score rows that lie on the device already: the best of three times."""
    scaling = Scaling.identity(X.shape[1])
    engine = Engine[Batch](X, scaling=scaling, device=device, dtype=torch.float32)
    moved = mixture.to(device)
    engine.take(np.arange(1)).concat(moved.class_log_joint, moved.density)
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        engine.concat(moved.class_log_joint, moved.density)
        spent.append(time.perf_counter() - began)
    return min(spent)
