"""The experiments on extended Baum-Welch, in their small versions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from mixtura.papers import reproduce
from mixtura.papers.report import Report

NOISE = 1.5
SOLVERS = ("EBW", "EBW, one D", "L-BFGS", "Adam")


def quick(name: str, folder: Path) -> Report:
    """Run the small version; a data set that is not at hand is a reason to skip."""
    try:
        report = reproduce(name, folder=folder, quick=True, device="cpu")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for suffix in ("csv", "png"):
        files = list(folder.glob(f"{name}*.{suffix}"))
        assert files
        assert all(file.stat().st_size > 100 for file in files)
    return report


def pick(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if wanted.items() <= row.items()]


def assert_curves_fall(rows: list[dict[str, Any]]) -> None:
    """Losing features never helps, up to noise, and losing most of them hurts."""
    for model in ("GMM", "CL-GMM", "MM-GMM"):
        curve = [row["ours"] for row in pick(rows, model=model)]
        assert len(curve) > 2
        assert all(after < before + NOISE for before, after in pairwise(curve))
        assert curve[-1] < curve[0]


def assert_zones_move(rows: list[dict[str, Any]]) -> None:
    """Training makes fewer rows wrong and more of them safe; no row is lost."""
    assert rows[-1]["wrong"] < rows[0]["wrong"]
    assert rows[-1]["beyond"] > rows[0]["beyond"]
    totals = [row["wrong"] + row["within"] + row["beyond"] for row in rows]
    assert max(totals) - min(totals) <= 2


def test_discriminative_training_gains_on_the_spirals(tmp_path: Path) -> None:
    rows = quick("ebw-spirals", tmp_path).tables["accuracy"]
    for setting in {row["setting"] for row in rows}:
        (generative,) = pick(rows, setting=setting, model="GMM")
        for model in ("CL-GMM", "MM-GMM"):
            (trained,) = pick(rows, setting=setting, model=model)
            assert generative["ours"] + 1.0 < trained["ours"] < trained["bayes"] + NOISE


def test_every_factor_improves_on_its_start(tmp_path: Path) -> None:
    report = quick("ebw-convergence", tmp_path)
    assert {row["recipe"] for row in report.tables["convergence"]} == {"one D", "adaptive"}
    assert all(row["best"] > row["start"] for row in report.tables["convergence"])
    assert_zones_move(report.tables["zones"])


def test_a_damping_per_component_gains_more_in_as_many_steps(tmp_path: Path, clock: Any) -> None:
    """By a clock that counts steps, so that solvers are compared by their work."""
    rows = quick("ebw-solvers", tmp_path).tables["race"]
    problems = {row["problem"] for row in rows}
    assert len(problems) == 2
    for problem in problems:
        ours, published, newton, adam = (
            row for solver in SOLVERS for row in pick(rows, problem=problem, solver=solver)
        )
        assert ours["steps"] == published["steps"] == newton["steps"]
        reached = [[float(row[at]) for at in row if at.startswith("at_")] for row in (ours, adam)]
        assert reached[0] == sorted(reached[0], reverse=True)
        assert reached[0][-1] < float(published["at_0.6s"])
        assert reached[0][-1] == pytest.approx(float(newton["at_0.6s"]), rel=0.05)
        assert ours["seconds_to_adam"] is not None


def test_missing_bands(tmp_path: Path) -> None:
    report = quick("ebw-hyperspectral", tmp_path)
    rows = report.tables["accuracy"]
    for count in (1, 3):
        scores = {row["model"]: row["ours"] for row in pick(rows, components=count)}
        assert min(scores["CL-GMM"], scores["MM-GMM"]) > scores["GMM"] + 1.0
    mixtures = [row["parameters"] for row in rows if row["components"]]
    assert max(mixtures) < min(row["parameters"] for row in rows if not row["components"])
    assert_curves_fall(report.tables["missing"])


def test_speech(tmp_path: Path) -> None:
    report = quick("ebw-speech", tmp_path)
    rows = pick(report.tables["accuracy"], data="phonemes")
    assert min(row["ours"] for row in rows) > 85.0
    for count in (1, 2):
        scores = {row["model"]: row["ours"] for row in pick(rows, components=count)}
        assert min(scores["CL-GMM"], scores["MM-GMM"]) > scores["GMM"]
    assert_curves_fall(report.tables["missing"])
    assert_zones_move(report.tables["zones"])
