"""The experiments on sparse mixtures, in their small versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from mixtura.papers import reproduce
from mixtura.papers.report import Report
from mixtura.papers.sparse import table2


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
    for name in ("ripley", "titanic"):
        sparse, rival = (pick(rows, data=name, model=model) for model in ("sparse mixture", "SVM"))
        assert sparse["ours"] < sparse["paper"] + 0.5
        assert sparse["weights"] < rival["weights"] / 4
    # Of Titanic, with settings by validation, the two splits of a quick run are a draw.
    sparse, rival = (pick(rows, data="ripley", model=model) for model in ("sparse mixture", "SVM"))
    assert sparse["ours"] < rival["ours"]


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
    few, many = quick("sparse-figure7", tmp_path).tables["components"]
    assert many["test_error"] < 15.0 < few["test_error"]
    assert min(few["reduction"], many["reduction"]) > 98.0
    assert 4 <= many["components"] <= many["initial"] / 2  # there are eight Gaussians


def test_last_layers(tmp_path: Path) -> None:
    rows = quick("sparse-table2", tmp_path, pictures=False).tables["error"]
    softmax, sparse = (pick(rows, head=head) for head in ("softmax", "sparse mixture"))
    assert max(softmax["ours"], sparse["ours"]) < 20.0
    assert softmax["sparsity"] < 0.05 < sparse["sparsity"]


def test_features_of_digits_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blank, labels = torch.zeros(60, 1, 28, 28), torch.arange(60) % 10
    images = table2.Images(blank, labels, blank, labels)
    features = (rng.normal(size=(60, 2)), rng.normal(size=(60, 2)))
    outcome = table2.Outcome(3.0, 0.0, 20, 1.0, features)
    report = Report("trial", tmp_path)
    table2._draw(report, dict.fromkeys(table2.DRAWN, (images, outcome)))
    (picture,) = tmp_path.iterdir()
    assert picture.stat().st_size > 10_000
