"""Mixture networks, Table 2: errors when a share of the labels is hidden, on seven small sets.

Caetano (2018), section 5.3: the halves of Table 1, each with the setting that its search prefers
with all labels of the training half, as in the paper. Rows without a label shape the mixtures only,
and only where held-out labels say that this helps, which is the default. "labeled_only" is the same
network without those rows. The paper's figures for all labels are those of its Table 1.

Parts are named by the set.
"""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.utils import Bunch

from mixtura.papers.cells import grid
from mixtura.papers.network.table1 import PAPER as COMPLETE
from mixtura.papers.network.table1 import SEEDS, Chosen, committee, search
from mixtura.papers.report import Report
from mixtura.papers.tables import Split, halves, hide_labels, labeled, load, score, summary

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
_QUICK = Chosen(("log-density, low_rank, 3, conditional 0.05",), (1.0,), 0.0)


def run(report: Report) -> None:
    """A row for each set and share."""
    for name in ("iris", "wine") if report.quick else PAPER:
        if report.wants(name):
            rows = load(name)
            splits = halves(rows.target, 2 if report.quick else SEEDS, report.seed)
            if report.quick:
                choices = [_QUICK] * len(splits)
            else:
                choices = [
                    search(report, rows, train, seed)
                    for seed, (train, _) in enumerate(splits, report.seed)
                ]
            paper = dict(zip(SHARES, (COMPLETE[name][0], *PAPER[name]), strict=True))
            for share in SHARES[::3] if report.quick else SHARES:
                _show(report, rows, list(zip(splits, choices, strict=True)), share, paper[share])


def _show(
    report: Report,
    rows: Bunch,
    cases: Sequence[tuple[Split, Chosen]],
    share: float,
    paper: float | None,
) -> None:
    """One share of the labels, on all halves, each with its own setting."""
    scores, alone = [], []
    for seed, (split, best) in enumerate(cases, report.seed):
        train, test = split
        shown = hide_labels(rows.target[train], share, seed)
        found = score(committee(report, rows.name, best, seed), rows, split, shown)
        scores.append(found)
        kept, known = labeled(train, shown)
        if len(kept) < len(train):  # else it is the same
            found = score(committee(report, rows.name, best, seed), rows, (kept, test), known)
        alone.append(found.error)
    report.cell(rows.name, f"{100 * share:g} %", [each.error for each in scores])
    report.row(
        "errors",
        data=rows.name,
        labels=round(100 * share),
        splits=len(scores),
        **summary(scores),
        labeled_only=sum(alone) / len(alone),
        paper=paper,
    )
