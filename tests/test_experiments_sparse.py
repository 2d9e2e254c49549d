"""The experiments on sparse mixtures, in their small versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from mixtura.experiments import reproduce
from mixtura.experiments.report import Report


def quick(name: str, folder: Path, pictures: bool = True) -> Report:
    """Run the small version; a data set that is not at hand is a reason to skip."""
    try:
        report = reproduce(name, folder=folder, quick=True, device="cpu")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for suffix in ("csv", "png") if pictures else ("csv",):
        files = list(folder.glob(f"{name}*.{suffix}"))
        assert files
        assert all(file.stat().st_size > 100 for file in files)
    return report


def pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


def test_table_of_kernel_machines(tmp_path: Path) -> None:
    rows = quick("sparse-table1", tmp_path, pictures=False).tables["errors"]
    for name, most in (("ripley", 10.5), ("titanic", 24.5)):
        sparse = pick(rows, data=name, model="sparse mixture")
        assert sparse["ours"] < most
        assert sparse["weights"] < pick(rows, data=name, model="SVM")["weights"] / 4


def test_boundaries_and_the_course_of_training(tmp_path: Path) -> None:
    report = quick("sparse-figure1", tmp_path)
    errors = {row["model"]: row["error"] for row in report.tables["errors"]}
    assert errors["sparse mixture"] < errors["softmax"]
    course = report.tables["training"]
    assert [row["weights"] for row in course] == sorted(
        (row["weights"] for row in course), reverse=True
    )
    assert course[-1]["components"] < course[0]["components"]
    assert course[-1]["evidence"] > course[0]["evidence"]


def test_components_on_the_checkerboard(tmp_path: Path) -> None:
    few, enough = quick("sparse-figure7", tmp_path).tables["components"]
    assert enough["test_error"] < few["test_error"] / 2
    assert min(few["reduction"], enough["reduction"]) > 98.0
    assert enough["components"] <= 8


def test_last_layers(tmp_path: Path) -> None:
    rows = quick("sparse-table2", tmp_path).tables["error"]
    softmax, sparse = (pick(rows, head=head) for head in ("softmax", "sparse mixture"))
    assert softmax["ours"] < 50.0
    assert sparse["ours"] < 50.0
    assert sparse["weights"] > 0
