"""A component per leaf of a tree: for classes that rules tell apart."""

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from small import mean_prior

from mixtura import MixtureClassifier, load
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal
from mixtura.engines import engine_of
from mixtura.selection.chooser import Chooser
from mixtura.solvers import EM
from mixtura.training.groups import Recipe
from mixtura.training.leaves import leaf_start


def engine_for(X, y, weight=None, levels=None):
    levels = np.zeros(X.shape[1], int) if levels is None else np.array(levels)
    scaling = Scaling(np.zeros(len(levels)), np.ones(len(levels)), levels)
    return engine_of(Matrix(X), y, np.ones(len(y)) if weight is None else weight, scaling, "cpu")


def start(engine, n_classes=2, prior_rows=0.0):
    recipe = Recipe(Diagonal(0.01), EM(), prior_rows=prior_rows)
    log_prior = torch.full((n_classes,), 1.0 / n_classes, dtype=torch.float64).log()
    return leaf_start(engine, recipe, log_prior, True, torch.Generator().manual_seed(0))


@pytest.fixture
def squares(rng):
    """Two classes on the fields of a board of four by four."""
    X = rng.uniform(0, 4, size=(600, 3))
    return X, (X[:, 0].astype(int) + X[:, 1].astype(int)) % 2


def rules(rng, n):
    """Six columns of four categories; a few questions, one after another, tell the class."""
    X = rng.integers(4, size=(n, 6)).astype(float)
    inner = np.where(X[:, 1] % 2 == 0, X[:, 2] > 1, (X[:, 3] == 0) | (X[:, 4] == 2))
    return X, np.where(X[:, 0] == 3, X[:, 5] < 2, inner).astype(int)


def test_components_are_the_rows_of_a_class_in_a_leaf(squares):
    X, y = squares
    mixture = start(engine_for(X, y)).model
    settings = {"max_leaf_nodes": 30, "min_weight_fraction_leaf": 3 / 600, "random_state": 0}
    leaf = DecisionTreeClassifier(**settings).fit(X, y).apply(X)
    groups = {(c, node): X[(y == c) & (leaf == node)] for c in (0, 1) for node in set(leaf)}
    few = [
        np.concatenate([g for (c, _), g in groups.items() if c == k and len(g) < 3] or [X[:0]])
        for k in (0, 1)
    ]
    wanted = [[g for (c, _), g in groups.items() if c == k and len(g) >= 3] for k in (0, 1)]
    wanted = [[*own, rest] if len(rest) else own for own, rest in zip(wanted, few, strict=True)]
    assert mixture.layout.counts == tuple(map(len, wanted))
    flat = sorted((g.mean(0).tolist(), g.var(0).tolist(), len(g)) for own in wanted for g in own)
    mean, weight = mixture.density.mean.numpy(), mixture.log_weight.exp().numpy()
    variance = mixture.density.variance.numpy()
    sizes = weight * np.repeat(np.bincount(y), mixture.layout.counts)
    found = sorted(zip(mean.tolist(), variance.tolist(), sizes, strict=True))
    for (own_mean, own_variance, size), (a, b, n) in zip(found, flat, strict=True):
        np.testing.assert_allclose(own_mean, a)
        np.testing.assert_allclose(own_variance, np.maximum(b, 0.01))  # the floor
        assert size == pytest.approx(n)


def test_weights_are_repetitions_and_order_does_not_matter(squares, rng):
    X, y = squares
    weight = rng.integers(1, 4, len(y))
    order = rng.permutation(weight.sum())
    copies = np.repeat(np.arange(len(y)), weight)[order]
    weighted = start(engine_for(X, y, weight.astype(float)), prior_rows=1.0).model
    repeated = start(engine_for(X[copies], y[copies]), prior_rows=1.0).model
    rows = engine_for(X, y).all_rows()
    np.testing.assert_allclose(weighted.class_log_joint(rows), repeated.class_log_joint(rows))


def test_names_of_classes_do_not_matter(squares):
    X, y = squares
    rows = engine_for(X, y).all_rows()
    found, other = (start(engine_for(X, each), prior_rows=1.0).model for each in (y, 1 - y))
    np.testing.assert_allclose(other.class_log_joint(rows).flip(1), found.class_log_joint(rows))


def test_order_of_columns_does_not_matter_where_each_question_is_the_best(rng):
    """Two steps tell four classes; a tree chooses at random where questions are as good."""
    X = rng.uniform(size=(400, 3))
    y = np.where(X[:, 0] < 0.6, X[:, 1] < 0.5, 2 + (X[:, 2] < 0.5)).astype(int)
    plain, turned = (start(engine_for(each, y), n_classes=4).model for each in (X, X[:, ::-1]))
    wanted = plain.class_log_joint(engine_for(X, y).all_rows())
    found = turned.class_log_joint(engine_for(X[:, ::-1], y).all_rows())
    np.testing.assert_allclose(found, wanted)


def test_a_class_without_rows_has_those_of_all(squares):
    X, y = squares
    mixture = start(engine_for(X, 2 * y), n_classes=3).model
    assert mixture.layout.counts[1] == 1
    place = mixture.layout.counts[0]
    np.testing.assert_allclose(mixture.density.mean[place], X.mean(0))
    np.testing.assert_allclose(mixture.log_prior.exp(), 1 / 3)


def test_categories_stand_in_the_order_in_which_they_tell_of_classes(rng):
    """A tree needs one question then, whatever the codes."""
    codes = rng.integers(10, size=400).astype(float)
    y = np.isin(codes, [0, 3, 4, 8]).astype(int)
    mixture = start(engine_for(codes[:, None], y, levels=[10])).model
    chance = mixture.density.parts[0].log_chance.exp().numpy()
    assert mixture.layout.counts == (1, 1)
    np.testing.assert_allclose(chance[1, [0, 3, 4, 8]].sum(), 1.0, atol=1e-4)


def test_rules_are_learned_as_a_tree_does(rng, tmp_path):
    X, y = rules(rng, 700)
    new, told = rules(rng, 2000)
    model = MixtureClassifier(categorical_features=list(range(6)), random_state=0).fit(X, y)
    assert "leaves" in model.marginals_
    tree = DecisionTreeClassifier(random_state=0).fit(X, y)
    assert model.score(new, told) >= tree.score(new, told) - 0.005
    empty = model.predict_proba(np.full((1, 6), np.nan))
    np.testing.assert_allclose(empty[0], mean_prior(model), rtol=1e-9)
    single = MixtureClassifier(categorical_features=list(range(6)), random_state=0)
    single = single.fit(X.astype(np.float32), y).predict_proba(new.astype(np.float32))
    np.testing.assert_allclose(single, model.predict_proba(new), atol=1e-6)
    new[rng.random(new.shape) < 0.2] = np.nan
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors").predict_proba(new)
    np.testing.assert_array_equal(again, model.predict_proba(new))


def test_leaves_that_tell_no_better_stay_away(rng):
    """A line tells the classes apart: steps along the axes do not."""
    X = rng.normal(size=(500, 10))
    y = (X.sum(1) + 2.0 * rng.normal(size=500) > 0).astype(int)
    model = MixtureClassifier(random_state=0).fit(X, y)
    tried = [row for row in model.choice_ if row["marginals"] == "leaves"]
    assert [row["chosen"] for row in tried] == [False]
    assert "leaves" not in model.marginals_


def test_who_chooses_the_solver_or_the_components_has_no_leaves(rng):
    X, y = rules(rng, 300)
    for settings in ({"solver": "lbfgs"}, {"n_components": 2}, {"tradeoff": 0.5}):
        model = MixtureClassifier(categorical_features=list(range(6)), random_state=0, **settings)
        assert all(row["marginals"] != "leaves" for row in model.fit(X, y).choice_)


def test_the_time_of_trials_is_shared_out_among_all_models(squares, monkeypatch):
    """Kernels have a share of it, and leaves two: as many as are tried, and tried again."""
    shares, tried = [], []
    begin, enter, deepen = Chooser.__init__, Chooser.enter, Chooser.deepen

    def begun(self, *given, n_ways, **options):
        shares.append(n_ways)
        begin(self, *given, n_ways=n_ways, **options)

    def entered(self, way, question):
        tried.append(way.name)
        return enter(self, way, question)

    def deepened(self, contender, way):
        tried.append(way.name)
        deepen(self, contender, way)

    for name, function in {"__init__": begun, "enter": entered, "deepen": deepened}.items():
        monkeypatch.setattr(Chooser, name, function)
    MixtureClassifier(random_state=0).fit(*squares)
    assert [tried.count(name) for name in ("power", "leaves", "kernels")] == [1, 2, 1]
    assert shares == [len(tried) + 1]  # slopes are for rows with many columns
