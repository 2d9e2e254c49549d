"""Settings for the cells of Table 1 by search, the same way for every cell.

Shapes (components per class, floor) are tried in the order below, each with random settings of the
objective and the step size for each of the four objectives that Adam trains: `N_TRIALS` mixtures
per objective and shape, side by side. The likelihood by itself is tried with the shapes alone. The
fewest errors on the validation rows of the first seed win; the winner of each cell is then trained
anew for every seed, with more steps. No test row is looked at before that.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from mixtura.data import Table, resolve_device
from mixtura.data.given import Parameters
from mixtura.densities import LowRank
from mixtura.engines import LocalEngine
from mixtura.estimators import MixtureClassifier
from mixtura.models.mixture import Mixture
from mixtura.papers.hybrid import _side_by_side as side_by_side
from mixtura.papers.hybrid._training import (
    COMMON,
    OBJECTIVES,
    STRUCTURES,
    density,
    error_rate,
    train,
)
from mixtura.papers.images import Images, load_images
from mixtura.papers.report import Report
from mixtura.solvers import EM, Adam

#: Components per class, and floor of the variances.
SHAPES = {
    "full": ((8, 0.1), (16, 0.3), (4, 0.3), (16, 0.1), (2, 0.1), (8, 0.03), (4, 0.1)),
    "diagonal": ((50, 0.1), (100, 0.3), (20, 0.3), (100, 0.1), (50, 0.03), (20, 0.1)),
}
#: Draws of the other settings per shape and objective, uniform in their logarithms.
N_TRIALS = 8
LEARNING_RATES, MARGINS, SHARES = (2e-4, 1e-2), (5.0, 150.0), (3e-3, 0.9)
#: Minibatches that a trial sees, and that a winner sees.
SHORT, LONG = 4_000, 12_000
#: Features up to which the likelihood alone gets whole covariances.
_WHOLE = 100

_Tried = dict[str, list[tuple[float, Parameters]]]


class Job(NamedTuple):
    """Cells of one set and covariance structure: that of the likelihood, or those of Adam."""

    name: str
    structure: str
    terms: Sequence[str]

    @property
    def label(self) -> str:
        """What `only` is compared with."""
        return f"{self.name}/{self.structure}/{'LL' if 'LL' in self.terms else 'trained'}"

    def part(self, term: str) -> str:
        """A cell, as Table 1 names it."""
        return f"{self.name}/{self.structure}/{term}"


class Rows(NamedTuple):
    """Training, validation and test rows of a seed."""

    X: np.ndarray
    y: np.ndarray
    X_held: np.ndarray
    y_held: np.ndarray

    @classmethod
    def split(cls, images: Images, seed: int) -> Rows:
        """The share of validation rows is the paper's."""
        share = COMMON["solver__validation_fraction"]
        X, X_held, y, y_held = train_test_split(
            *(images.X_train, images.y_train),
            test_size=share,
            stratify=images.y_train,
            random_state=seed,
        )
        return cls(X, y, X_held, y_held)


def search(report: Report, names: Sequence[str], n_seeds: int) -> None:
    """All cells of these sets that no earlier run has measured, the likelihood's first."""
    measured = {(line["row"], line["column"]) for line in report.kept("cells")}
    adam = [term for term in OBJECTIVES if term != "LL"]
    jobs = [
        Job(name, structure, terms)
        for terms in (["LL"], adam)
        for name in names
        for structure in STRUCTURES
    ]
    open_jobs = [
        job
        for job in jobs
        if report.wants(job.label)
        and not {(job.name, f"{job.structure} {term}") for term in job.terms} <= measured
    ]
    deadline = time.time() + report.max_time
    with ProcessPoolExecutor(report.jobs, mp_context=get_context("spawn")) as pool:
        seeds = range(report.seed, report.seed + n_seeds)
        running = [pool.submit(_work, report, job, seeds, deadline) for job in open_jobs]
        for each in running:
            each.result()


def _work(report: Report, job: Job, seeds: range, deadline: float) -> None:
    """One job, as far as time allows."""
    torch.set_num_threads(1)
    steps: tuple[Callable[..., None], ...] = (_search_adam, _measure_adam)
    if "LL" in job.terms:
        steps = _search_likelihood, _measure_likelihood
    try:
        _check(deadline)
        images = load_images(job.name)
        if len(_chosen(report, job)) < len(job.terms):
            steps[0](report, job, images, deadline)
            report.note(f"{job.label}: searched")
        steps[1](report, job, images, seeds, deadline)
        report.note(f"{job.label}: measured")
    except TimeoutError:
        report.note(f"{job.label}: out of time")


def _check(deadline: float) -> None:
    if time.time() > deadline:
        raise TimeoutError


def _chosen(report: Report, job: Job) -> dict[str, Parameters]:
    """What a search has chosen for the cells of a job."""
    kept = {line["part"]: line["settings"] for line in report.kept("choices")}
    return {term: kept[job.part(term)] for term in job.terms if job.part(term) in kept}


def _choose(report: Report, job: Job, tried: _Tried) -> None:
    """Keep the settings with the fewest errors on validation rows."""
    for term, found in tried.items():
        error, settings = min(found, key=lambda each: each[0])
        line = {"part": job.part(term), "settings": settings, "validation": round(error, 3)}
        report.keep("choices", {**line, "trials": len(found)})


def _shapes(job: Job) -> list[Parameters]:
    return [
        {"n_components": count, "density__floor": floor} for count, floor in SHAPES[job.structure]
    ]


# -- the likelihood alone ----------------------------------------------------------------------


def _search_likelihood(report: Report, job: Job, images: Images, deadline: float) -> None:
    rows, tried = Rows.split(images, report.seed), []
    for shape in _shapes(job):
        _check(deadline)
        model = _by_em(report, job, rows, shape)
        tried.append((error_rate(model, rows.X_held, rows.y_held), shape))
    _choose(report, job, {"LL": tried})


def _measure_likelihood(
    report: Report, job: Job, images: Images, seeds: range, deadline: float
) -> None:
    settings, errors = _chosen(report, job)["LL"], []
    for seed in seeds:
        _check(deadline)
        rows = Rows.split(images, seed)
        model = _by_em(replace(report, seed=seed), job, rows, settings)
        errors.append(error_rate(model, images.X_test, images.y_test))
    report.cell(job.name, f"{job.structure} LL", errors, settings)


def _by_em(
    report: Report, job: Job, rows: Rows, shape: Parameters, start: bool = False
) -> MixtureClassifier:
    """Maximum likelihood: the cell LL, or where the others start."""
    structure = density(job.structure, "LM" if start else "LL")
    if job.structure == "full" and rows.X.shape[1] > _WHOLE:
        structure = LowRank()
    chosen = {**COMMON, **shape, "density": structure, **OBJECTIVES["LL"]}
    if start:
        chosen["solver"] = EM(tol=1e-3 * rows.X.shape[1])
    return train(report, rows.X, rows.y, chosen).model


# -- what Adam trains --------------------------------------------------------------------------


class _Prepared(NamedTuple):
    """Rows of a seed on the device, and a start."""

    start: Mixture
    engine: LocalEngine
    held_out: LocalEngine
    test: LocalEngine

    @classmethod
    def of(cls, report: Report, job: Job, images: Images, shape: Parameters) -> _Prepared:
        rows = Rows.split(images, report.seed)
        model = _by_em(report, job, rows, shape, start=True)
        device = resolve_device(report.device, rows.X.size)

        def engine(X: np.ndarray, y: np.ndarray) -> LocalEngine:
            kinds = side_by_side.kinds(torch.from_numpy(y.astype(np.int64)))
            return LocalEngine(
                Table(X, kinds, scaling=model.scaling_, device=device, dtype=torch.float32)
            )

        return cls(
            model.mixture_,
            engine(rows.X, rows.y),
            engine(rows.X_held, rows.y_held),
            engine(images.X_test, images.y_test),
        )

    def train(
        self, trials: Sequence[side_by_side.Trial], n_steps: int, seed: int, deadline: float
    ) -> list[side_by_side.Outcome]:
        size = COMMON["solver__batch_size"]
        epochs = max(1, round(n_steps * size / len(self.engine)))
        return side_by_side.train(
            [self.start] * len(trials),
            trials,
            self.engine,
            self.held_out,
            Adam(epochs, size, averaging=COMMON["solver__averaging"]),
            torch.Generator().manual_seed(seed),
            deadline,
        )


def _search_adam(report: Report, job: Job, images: Images, deadline: float) -> None:
    tried: _Tried = {term: [] for term in job.terms}
    rng = np.random.default_rng(zlib.crc32(job.label.encode()))
    for shape in _shapes(job):
        _check(deadline)
        drawn = [(term, shape | _draw(term, rng)) for term in job.terms for _ in range(N_TRIALS)]
        prepared = _Prepared.of(report, job, images, shape)
        trials = [_trial(settings) for _, settings in drawn]
        found = prepared.train(trials, SHORT, report.seed, deadline)
        for (term, settings), outcome in zip(drawn, found, strict=True):
            tried[term].append((outcome.validation, settings))
    _choose(report, job, tried)


def _measure_adam(report: Report, job: Job, images: Images, seeds: range, deadline: float) -> None:
    chosen = _chosen(report, job)
    errors: dict[str, list[float]] = {term: [] for term in chosen}
    for seed in seeds:
        seeded = replace(report, seed=seed)
        for shape in _shapes(job):
            mine = {t: each for t, each in chosen.items() if shape.items() <= each.items()}
            if mine:
                _check(deadline)
                prepared = _Prepared.of(seeded, job, images, shape)
                trials = [_trial(settings) for settings in mine.values()]
                found = prepared.train(trials, LONG, seed, deadline)
                stack = side_by_side.stacked([outcome.mixture for outcome in found])
                rates = side_by_side.error_rates(stack, prepared.test).tolist()
                for term, error in zip(mine, rates, strict=True):
                    errors[term].append(error)
    for term, values in errors.items():
        report.cell(job.name, f"{job.structure} {term}", values, chosen[term])


def _draw(term: str, rng: np.random.Generator) -> Parameters:
    """Random settings of an objective, in the names of the classifier's parameters."""

    def between(limits: tuple[float, float]) -> float:
        return float(f"{np.exp(rng.uniform(*np.log(limits))):.2g}")

    settings = {"solver__learning_rate": between(LEARNING_RATES), "tradeoff": 0.0}
    if "LM" in term:
        settings["objective__margin"] = between(MARGINS)
    if term.startswith("LL+"):
        settings["tradeoff"] = between(SHARES)
    return settings


def _trial(settings: Parameters) -> side_by_side.Trial:
    return side_by_side.Trial(
        settings["tradeoff"], settings.get("objective__margin"), settings["solver__learning_rate"]
    )
