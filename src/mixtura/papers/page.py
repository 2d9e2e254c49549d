"""One page with every cell of the papers' tables: theirs, ours, and which is better.

`python -m mixtura.papers.page docs/results` reads the lines that experiments kept, in the folder
`papers` of that one, and writes `papers.md` beside it. Of several lines for a cell the last counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixtura import papers
from mixtura.data.given import Parameters
from mixtura.files import replacing
from mixtura.papers.cells import Cell
from mixtura.papers.report import lines_of

_HEAD = """# The papers, cell by cell

Written by `python -m mixtura.papers.page docs/results` from the lines in `docs/results/papers`,
which the commands below keep (`<experiment>-cells.jsonl` in their folder): values of all seeds,
settings, command, commit and machine of each cell. "Ours" is mean ± deviation over seeds (draws,
splits), and their number; a deviation that was not kept is left out. Lines of earlier code name its
commit, and hold means alone. "No worse" compares means, rounded as the paper prints the row;
papers mostly print single runs. Sets and settings that differ from a paper's are named above each
table, and on pages of their own: [hybrid](hybrid.md), [extended Baum-Welch](ebw.md),
[sparse](sparse.md), [sequences](sequences.md), [networks](networks.md).
"""

#: Columns of methods that are not the library's, which stand beside ours in the papers' tables.
_OTHERS = ("GP", "logistic", "SVM", "1-NN DTW", "softmax", "L1 softmax", "margin softmax")


class Found(NamedTuple):
    """What was measured of a cell."""

    mean: float
    deviation: float | None
    number: int
    commit: str
    machine: str

    @classmethod
    def of(cls, line: Parameters) -> Found:
        """Of the line that a run kept; earlier ones have means alone."""
        where = line["commit"], line["machine"]
        if "values" not in line:
            return cls(line["mean"], line.get("deviation"), line["count"], *where)
        values = line["values"]
        return cls(float(np.mean(values)), float(np.std(values)), len(values), *where)

    def is_no_worse(self, cell: Cell, digits: int) -> bool:
        """Whether the mean, in so many decimals, is at least as good."""
        gain = round(self.mean, digits) - cell.published
        return gain >= 0.0 if cell.higher else gain <= 0.0

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread} ({self.number})"


class Count(NamedTuple):
    """Cells in all, that were measured, that are no worse, and that cannot be had.

    `own` and `own_good` are those measured and no worse without the methods of others.
    """

    cells: int
    measured: int
    good: int
    absent: int
    own: int
    own_good: int


def page(folder: Path) -> str:
    """The page, of the lines in a folder."""
    tables = [
        (name, cells, _measured(folder, name))
        for name in papers.names()
        if (cells := getattr(papers.find(name), "CELLS", []))
    ]
    counts = {name: _count(cells, found) for name, cells, found in tables}
    total = Count(*(int(each) for each in np.sum(list(counts.values()), axis=0)))
    summary = ["| table | cells | measured | no worse | cannot be had |", "|---|---|---|---|---|"]
    summary += [
        f"| {name} | {count.cells} | {count.measured} | {count.good} | {count.absent} |"
        for name, count in {**counts, "**all**": total}.items()
    ]
    share = 100 * total.good / max(total.measured, 1)
    verdict = (
        f"**{total.good} of {total.measured} measured cells ({share:.0f} %) are no worse than the "
        f"paper's**, {total.own_good} of {total.own} without the columns of methods that are not "
        f"the library's ({', '.join(_OTHERS)}); of {total.cells} cells, {total.absent} cannot "
        f"be had here and {total.cells - total.absent - total.measured} were not measured."
    )
    parts = ["\n".join(_table(*each)) for each in tables]
    return "\n".join([_HEAD, verdict, "", *summary, "", *parts])


def decimals(cells: list[Cell]) -> dict[str, int]:
    """The decimals of a row's figures: the most that any of them has, as 2.90 is a 2.9 here."""
    each = [(cell.row, len(f"{cell.published:.10g}".partition(".")[2])) for cell in cells]
    return dict(sorted(each, key=lambda pair: pair[1]))  # the last of a row counts


def _measured(folder: Path, name: str) -> dict[tuple[str, str], Found]:
    path = folder / f"{name}-cells.jsonl"
    lines = lines_of(path) if path.is_file() else []
    return {(line["row"], line["column"]): Found.of(line) for line in lines}


def _count(cells: list[Cell], found: dict[tuple[str, str], Found]) -> Count:
    pairs = [(cell, found[cell.row, cell.column]) for cell in cells if cell[:2] in found]
    own = [pair for pair in pairs if pair[0].column.partition(",")[0] not in _OTHERS]
    digits = decimals(cells)
    good, own_good = (
        sum(ours.is_no_worse(cell, digits[cell.row]) for cell, ours in each)
        for each in (pairs, own)
    )
    absent = sum(bool(cell.absent) for cell in cells)
    return Count(len(cells), len(pairs), good, absent, len(own), own_good)


def _table(name: str, cells: list[Cell], found: dict[tuple[str, str], Found]) -> Iterator[str]:
    yield f"## {name}\n\n{papers.account(name)}\n\nCommand: `mixtura reproduce {name}`.\n"
    yield "| | | paper | ours | verdict | commit, machine |\n|---|---|---|---|---|---|"
    digits = decimals(cells)
    for cell in cells:
        ours = found.get(cell[:2])
        start = f"| {cell.row} | {cell.column} | {cell.published:g} |"
        if ours is None:
            reason = f"absent: {cell.absent}" if cell.absent else "not measured"
            yield f"{start} | {reason} | |"
        else:
            verdict = "no worse" if ours.is_no_worse(cell, digits[cell.row]) else "**worse**"
            yield f"{start} {ours} | {verdict} | {ours.commit}, {ours.machine} |"
    yield ""


if __name__ == "__main__":
    results = Path(sys.argv[1])
    with replacing(results / "papers.md") as fresh:
        fresh.write_text(page(results / "papers"), encoding="utf-8")
