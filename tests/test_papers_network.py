"""The experiments on mixture networks, in their small versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier

pytest.importorskip("matplotlib")

from mixtura import MixtureNetworkClassifier
from mixtura.data.batch import UNLABELED
from mixtura.papers import reproduce
from mixtura.papers.network import table1
from mixtura.papers.network.regression import RadialBasis
from mixtura.papers.report import Report
from mixtura.papers.tables import hide_labels


def quick(name: str, folder: Path, pictures: bool = True, only: str = "", seed: int = 0) -> Report:
    """Run the small version; a data set that is not at hand is a reason to skip."""
    try:
        report = reproduce(name, folder=folder, quick=True, device="cpu", only=only, seed=seed)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for suffix in ("csv", "png") if pictures else ("csv",):
        files = list(folder.glob(f"{name}*.{suffix}"))
        assert files
        assert all(file.stat().st_size > 50 for file in files)
    return report


def pick(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


def test_the_link_moves_weights(tmp_path: Path) -> None:
    report = quick("network-link", tmp_path)
    free, tied = report.tables["iris"]
    assert max(free["between_means"], free["between_weights"]) < 1e-6
    assert free["weights_to_read_out"] > 0.1
    assert tied["weights_to_read_out"] < 0.02
    assert tied["between_weights"] > 0.1
    free, tied = report.tables["gaussians"]
    assert tied["ours"] > free["ours"] + 5.0
    assert tied["ours"] > 95.0
    assert tied["lower_weight"] < 0.05 < 0.25 < free["lower_weight"]


def test_components_that_are_not_used_are_erased(tmp_path: Path) -> None:
    # Of five starts one leaves three components under the weak penalty, the others five or six.
    weak, strong = quick("network-annihilation", tmp_path, seed=1).tables["components"]
    assert strong["first"] == strong["second"] == strong["paper"]
    assert min(weak["first"], weak["second"]) >= 4
    assert min(weak["accuracy"], strong["accuracy"]) > 98.0


def test_the_embedding_brings_classes_together(tmp_path: Path) -> None:
    report = quick("network-embedding", tmp_path, only="wine")
    (row,) = report.tables["nearest neighbor"]
    assert row["embedded"] < row["original"] / 2


def test_a_search_on_the_training_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1, "N_QUICK", 1)
    monkeypatch.setattr(table1, "N_FOLDS", 2)
    monkeypatch.setattr(table1, "N_CUTS", 1)
    report = quick("network-table1", tmp_path, pictures=False, only="wine, network")
    (row,) = report.tables["errors"]
    assert row["ours"] < 10.0
    assert {row["setting"] for row in report.tables["choices"]} <= set(table1.SETTINGS)


def test_a_committee_averages_what_networks_say() -> None:
    X, y = load_iris(return_X_y=True)
    plain = {"calibrate": False, "random_state": 0, "density": "diag"}
    networks = [MixtureNetworkClassifier(n, **plain) for n in (1, 2)]
    committee = table1.Committee(networks, (1.0, 1.0)).fit(X[::3], y[::3])
    vote = VotingClassifier([(str(n), each) for n, each in enumerate(networks)], voting="soft")
    expected = vote.fit(X[::3], y[::3]).predict_proba(X)
    np.testing.assert_allclose(committee.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_array_equal(committee.predict(X), vote.predict(X))


def test_labels_that_are_hidden(tmp_path: Path) -> None:
    rows = quick("network-table2", tmp_path, pictures=False, only="iris").tables["errors"]
    assert [row["labels"] for row in rows] == [100, 25]
    assert max(row["ours"] for row in rows) < 12.0


def test_mixed_tables_and_ranks(tmp_path: Path) -> None:
    report = quick("network-mixed", tmp_path, pictures=False, only="labor")
    errors = report.tables["errors"]
    trees = pick(errors, model="trees")["ours"]
    assert max(pick(errors, model=name)["ours"] for name in ("mixture", "network")) < trees
    assert sum(row["error"] for row in report.tables["ranks"]) == pytest.approx(6.0)


def test_regression_beside_others(tmp_path: Path) -> None:
    rows = quick("network-regression", tmp_path, pictures=False, only="given").tables["R2"]
    assert {row["model"] for row in rows} == {"network", "RBF", "ridge", "trees"}
    assert min(row["ours"] for row in rows) > 0.25


def test_some_labels_of_each_class_stay() -> None:
    target = np.repeat([0, 1, 2], [40, 20, 2])
    shown = hide_labels(target, 0.25, seed=0)
    kept = shown != UNLABELED
    assert np.bincount(shown[kept]).tolist() == [10, 5, 1]
    assert (shown[kept] == target[kept]).all()


def test_radial_basis_functions_are_as_wide_as_centers_are_apart(rng: np.random.Generator) -> None:
    X = np.repeat([[0.0, 0.0], [3.0, 4.0]], 20, axis=0) + 1e-6 * rng.normal(size=(40, 2))
    basis = RadialBasis(2, random_state=0).fit(X)
    assert basis.widths_ == pytest.approx(np.full(2, 5.0), abs=1e-3)
    assert np.sort(basis.transform(X[:1]).ravel()) == pytest.approx([np.exp(-0.5), 1.0], abs=1e-3)
