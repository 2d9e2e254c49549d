"""Mixture networks, Table 2: errors when a share of the labels is hidden, on seven small sets.

Caetano (2018), section 5.3: the halves of Table 1, and one setting per set for all shares. Rows
without a label shape the mixtures only. "labeled_only" is the same network without those rows.
The paper's figures for all labels are those of its Table 1.

Parts are named by the set.
"""

from __future__ import annotations

from mixtura.data.given import Parameters
from mixtura.papers.cells import grid
from mixtura.papers.network.table1 import GENES, SEEDS, network
from mixtura.papers.network.table1 import PAPER as COMPLETE
from mixtura.papers.report import Report
from mixtura.papers.tables import fit, halves, hide_labels, labeled, load, losses, score, summary
from mixtura.solvers import LinkedEM

SHARES = (1.0, 0.85, 0.5, 0.25)
#: Errors with 85, 50 and 25 % of the labels.
PAPER: dict[str, tuple[float, ...]] = {
    "iris": (3.2, 3.2, 7.2),
    "wdbc": (7.2, 7.6, 8.8),
    "glass": (57.5, 57.7, 57.9),
    "sonar": (32.4, 35.7, 40.2),
    "wine": (10.1, 21.0, 36.4),
    "colon": (20.6, 23.9, 29.4),
    "leukemia": (10.9, 12.6, 14.4),
}
CELLS = grid([f"{100 * share:g} %" for share in SHARES[1:]], PAPER)
_COMMON: Parameters = {"n_components": 1, "embedding": "log_density", "specialize": 1.0}
_GENES: Parameters = {"density": "diag", "tradeoff": 0.0, "solver": LinkedEM(l1=0.0, l2=0.01)}
SETTINGS: dict[str, Parameters] = {
    name: _COMMON | (_GENES if name in GENES else {"density": "low_rank"}) for name in PAPER
} | {"glass": {"n_components": 12, "embedding": "posterior", "density": "diag"}}


def run(report: Report) -> None:
    """A row for each set and share."""
    for name in ("iris", "wine") if report.quick else PAPER:
        if report.wants(name):
            paper = dict(zip(SHARES, (COMPLETE[name][0], *PAPER[name]), strict=True))
            for share in SHARES[::3] if report.quick else SHARES:
                _show(report, name, share, paper[share])


def _show(report: Report, name: str, share: float, paper: float | None) -> None:
    rows = load(name)
    scores, alone = [], []
    for number, split in enumerate(halves(rows.target, 2 if report.quick else SEEDS, report.seed)):
        train, test = split
        seed = report.seed + number
        shown = hide_labels(rows.target[train], share, seed)
        scores.append(score(network(SETTINGS[name], report, seed), rows, split, shown))
        without = network(SETTINGS[name], report, seed)
        fit(without, *labeled(rows.data[train], shown))
        alone.append(losses(without, rows.data[test], rows.target[test])[0])
    report.cell(name, f"{100 * share:g} %", [each.error for each in scores])
    report.row(
        "errors",
        data=name,
        labels=round(100 * share),
        splits=len(scores),
        **summary(scores),
        labeled_only=sum(alone) / len(alone),
        paper=paper,
    )
