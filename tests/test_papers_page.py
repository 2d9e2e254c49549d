"""The page that shows every cell of the papers' tables."""

import json

import pytest

from mixtura import papers
from mixtura.papers.cells import Cell
from mixtura.papers.hybrid import table1
from mixtura.papers.page import Found, decimals, page


def test_cells_are_those_of_the_papers():
    """As many as the papers print, each once."""
    for name, count in {"hybrid-table1": 150, "hybrid-table2": 32, "network-table3": 10}.items():
        cells = papers.find(name).CELLS
        assert len({cell[:2] for cell in cells}) == len(cells) == count
    assert Cell("mnist-pca50", "full LL+LM", 1.42) in table1.CELLS
    assert Cell("cifar10-pca50", "diagonal CLL", 55.47) in table1.CELLS


@pytest.mark.parametrize(
    ("mean", "cell", "others", "good"),
    [
        (1.4249, Cell("", "", 1.42), [], True),
        (1.4251, Cell("", "", 1.42), [], False),
        (85.9, Cell("", "", 86.05, True), [], False),
        (86.1, Cell("", "", 86.05, True), [], True),
        (250.4, Cell("", "", 250), [], True),
        (2.93, Cell("", "", 2.9), [Cell("", "", 2.84)], False),
    ],
)
def test_verdicts_heed_the_digits_of_the_paper(mean, cell, others, good):
    """An error of 1.4249 is 1.42; accuracies are better when higher; 2.90 has two decimals."""
    digits = decimals([cell, *others])[""]
    assert Found(mean, None, 3, "", "").is_no_worse(cell, digits) == good


def test_the_page_counts(tmp_path):
    """The last line of a cell counts; cells that cannot be had are named with their reason."""
    lines = [
        {"row": "mnist-pca50", "column": "full LL", "values": [9.0]},
        {"row": "mnist-pca50", "column": "full LL", "values": [1.5, 1.7]},
        {"row": "mnist-pca50", "column": "full CLL", "mean": 2.0, "count": 1},
    ]
    where = {"commit": "abc", "machine": "two cores"}
    text = "\n".join(json.dumps(line | where) for line in lines)
    (tmp_path / "hybrid-table1-cells.jsonl").write_text(text + "\n", encoding="utf-8")
    other = {"row": "ripley", "column": "GP, weights", "values": [250.0]} | where
    (tmp_path / "sparse-table1-cells.jsonl").write_text(json.dumps(other), encoding="utf-8")
    found = page(tmp_path)
    assert "**2 of 3 measured cells (67 %) are no worse than the paper's**, 1 of 2 without" in found
    assert "| hybrid-table1 | 150 | 2 | 1 | 20 |" in found
    assert "| mnist-pca50 | full LL | 1.66 | 1.60 ± 0.10 (2) | no worse | abc, two cores |" in found
    assert "| mnist-pca50 | full CLL | 1.66 | 2.00 (1) | **worse** | abc, two cores |" in found
    assert "| TIMIT | full LL | 25.433 | | absent: the data are licensed | |" in found
    assert "| mnist-pca50 | full LM | 1.51 | | not measured | |" in found
