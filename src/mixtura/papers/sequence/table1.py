"""Sequence mixtures, Table 1: hidden Markov models of the wrong structure, boosted into mixtures.

Kim and Pavlovic (2007), section 5.1: each class is a mixture of an easy and a hard hidden Markov
model, the base model a single one per class. The paper prints neither parameters nor sizes; ours
are those of `make_hmm_sequences`, with which log-likelihoods are not comparable, only their order.
On ours, one model of two states per class cannot fit both halves of it by likelihood: ML is worse
than the paper's. CML starts ten times, from EM on all sequences (where it ends in poor optima) and
on one of each class, and the largest conditional likelihood of all training sequences is kept.
Boosted mixtures stop after four stages at most, the ensemble of classifiers after ten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax
from sklearn.utils import Bunch

from mixtura import SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences
from mixtura.papers.cells import grid
from mixtura.papers.report import Report
from mixtura.papers.sequence._methods import MODELS, error
from mixtura.papers.tables import spread
from mixtura.solvers import EM, LBFGS, Boosted

#: Test error in percent, joint and conditional log-likelihood per sequence.
_PAPER: dict[str, tuple[float | None, ...]] = {
    "ML": (19.60, -165.21, -1.97),
    "CML": (9.80, -174.99, -1.11),
    "BBN": (6.40, None, None),
    "BxML": (4.20, -139.12, -0.44),
    "BxCML": (0.60, -154.62, -0.02),
}
CELLS = [
    *grid(["error"], {name: row[:1] for name, row in _PAPER.items()}),
    *grid(
        ["joint LL", "conditional LL"],
        {name: row[1:] for name, row in _PAPER.items()},
        absent="the paper's models are not printed, and likelihoods of others say nothing",
    ),
]
DRAWS = 10
N_TRAIN, N_TEST = 200, 250
N_STATES = 2
STAGES = {"BBN": 10, "BxML": 4, "BxCML": 4}
#: Starts of CML.
STARTS = 10


class Outcome(NamedTuple):
    """Test error in percent, and log-likelihoods per test sequence, where there is a density."""

    error: float
    joint: float
    conditional: float
    stages: int


def run(report: Report) -> None:
    """A row for each way to train: means over several draws."""
    draws = 1 if report.quick else DRAWS
    for name in _PAPER:
        if report.wants(name):
            outcomes = [train(name, report.seed + 2 * draw, report.quick) for draw in range(draws)]
            _show(report, name, outcomes)


def train(name: str, seed: int, quick: bool = False) -> Outcome:
    """Fit on one draw and test on another."""
    n_train, n_test = (30, 100) if quick else (N_TRAIN, N_TEST)
    rows = make_hmm_sequences(n_train, random_state=seed)
    test = make_hmm_sequences(n_test, random_state=seed + 1)
    model = _fitted(name, rows, seed, quick)
    wrong = error(model, test.data, test.target)
    return Outcome(wrong, *_log_likelihoods(name, model, test), getattr(model, "n_stages_", 1))


def _fitted(name: str, rows: Bunch, seed: int, quick: bool) -> SequenceMixtureClassifier:
    most, several = 20 if quick else 100, name == "CML" and not quick
    model = SequenceMixtureClassifier(
        N_STATES,
        method=Boosted(MODELS[name], STAGES[name]) if name in STAGES else MODELS[name],
        solver=LBFGS(most),
        init=EM(most, n_init=STARTS if several else 1),
        early_stopping=not (quick or several),
        calibrate=not (quick or several),
        random_state=seed,
    )
    return model.fit(rows.data, rows.target)


def _log_likelihoods(
    name: str, model: SequenceMixtureClassifier, rows: Bunch
) -> tuple[float, float]:
    """Mean log p(x, c) and log p(c | x) per sequence x of class c."""
    if name == "BBN":
        return np.nan, np.nan
    joint = model.class_log_density(rows.data) + np.log(model.class_prior_)
    own = np.arange(len(rows.target)), rows.target
    return float(joint[own].mean()), float(log_softmax(joint, axis=1)[own].mean())


def _show(report: Report, name: str, outcomes: list[Outcome]) -> None:
    _, joint, conditional, stages = map(float, np.mean(outcomes, axis=0))
    errors = [outcome.error for outcome in outcomes]
    report.cell(name, "error", errors)
    report.row(
        "errors",
        model=name,
        **spread(errors),
        paper=_PAPER[name][0],
        joint=None if np.isnan(joint) else joint,
        paper_joint=_PAPER[name][1],
        conditional=None if np.isnan(conditional) else conditional,
        paper_conditional=_PAPER[name][2],
        stages=stages,
    )
