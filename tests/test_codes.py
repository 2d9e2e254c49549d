"""Numbers that are codes: what near ones tell says nothing, so each has an indicator of its own."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from mixtura import MixtureClassifier, load
from mixtura.selection.codes import gain_of_values


@pytest.fixture(scope="module")
def plots():
    """Forty plots of fifteen rows, numbered at random; a treatment per plot; a number of noise."""
    rng = np.random.default_rng(0)
    plot = np.repeat(rng.permutation(40), 15)
    treatment = rng.integers(3, size=40)[plot]
    order = rng.permutation(600)
    X = np.column_stack([plot, rng.normal(size=600), rng.integers(100, size=600)]).astype(float)
    return X[order], treatment[order]


def by_hand(codes, y, n_classes=3):
    """The loss of each label by the other rows of its code, and one row of all classes."""
    share = [np.mean(y == c) for c in range(n_classes)]
    losses = []
    for i in range(len(y)):
        others = [j for j in range(len(y)) if codes[j] == codes[i] and j != i]
        same = sum(y[j] == y[i] for j in others)
        losses.append(-np.log((same + share[y[i]]) / (len(others) + 1)))
    return np.array(losses)


def test_gain_is_that_of_rows_left_out_in_turn(plots):
    X, y = plots
    edges = np.quantile(X[:, 0], np.arange(1, 16) / 16)
    group = [sum(value >= edge for edge in edges) for value in X[:, 0]]
    wanted = np.mean(by_hand(group, y) - by_hand(X[:, 0], y))
    assert gain_of_values(X[:, 0], y, np.ones(600)) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("n_codes", [9, 10, 12, 14, 16, 20, 60])
def test_codes_are_found(n_codes, rng):
    """Whose classes are a draw, but for a twentieth of the rows."""
    odd = rng.permutation(n_codes) % 2
    code = rng.integers(n_codes, size=400)
    y = np.where(rng.random(400) < 0.05, 1 - odd[code], odd[code])
    assert gain_of_values(code.astype(float), y, np.ones(400)) > 0.02


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_what_weights_sum_to_does_not_matter(scale, plots, rng):
    X, y = plots
    y = np.where(rng.random(600) < 0.2, rng.integers(3, size=600), y)
    weight = rng.integers(1, 4, size=600).astype(float)
    found = gain_of_values(X[:, 0], y, weight)
    assert found > 0.02
    assert gain_of_values(X[:, 0], y, scale * weight) == pytest.approx(found, rel=1e-9)


def test_order_names_and_units_do_not_matter(plots, rng):
    X, y = plots
    wanted, order = gain_of_values(X[:, 0], y, np.ones(600)), rng.permutation(600)
    for number, label in (
        (X[order, 0], y[order]),
        (X[:, 0], np.array([2, 0, 1])[y]),
        (1e6 + 7.0 * X[:, 0], y),
        (X[:, 0].astype(np.float32), y),
    ):
        found = gain_of_values(number, label, np.ones(600))
        assert found == pytest.approx(wanted, rel=1e-9)


def test_rows_without_number_or_label_do_not_count(plots, rng):
    X, y = plots
    number, label = X[:, 0].copy(), y.copy()
    number[rng.random(600) < 0.2], label[rng.random(600) < 0.2] = np.nan, -1
    known = ~np.isnan(number) & (label >= 0)
    wanted = gain_of_values(number[known], label[known], np.ones(known.sum()))
    assert wanted > 0.0
    assert gain_of_values(number, label, np.ones(600)) == wanted
    assert gain_of_values(number, np.full(600, -1), np.ones(600)) == 0.0


@pytest.mark.parametrize("kind", ["noise", "threshold", "curve", "continuous"])
def test_numbers_are_no_codes(kind, rng):
    """Where near numbers tell the same, or nothing."""
    number = rng.integers(60, size=800).astype(float)
    y = (rng.random(800) < {"curve": (number / 30 - 1) ** 2}.get(kind, 0.5)).astype(int)
    if kind == "threshold":
        y = (number + rng.normal(size=800) > 30).astype(int)
    if kind == "continuous":
        number = number + rng.random(800)
    assert gain_of_values(number, y, np.ones(800)) == 0.0


def test_classes_by_code(plots, tmp_path):
    """The default is as good as trees, also with holes, and after saving."""
    X, y = plots
    model = MixtureClassifier(random_state=0).fit(X[:400], y[:400])
    trees = HistGradientBoostingClassifier(random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) >= max(trees.score(X[400:], y[400:]), 0.95)
    knots = model.model_.blend.members[model.marginals_.index("indicators") - 1].scaling.indicators
    assert (knots.column == 0).sum() == 39
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    code_alone = np.where([False, True, True], np.nan, X[400:])
    assert model.score(code_alone, y[400:]) >= 0.95
