"""Unlabeled rows count only where held-out labels say that they help."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from mixtura import MixtureClassifier, MixtureNetworkClassifier, load
from mixtura.data.scaling import Scaling
from mixtura.engines import Engine
from mixtura.exceptions import AmbiguousDataWarning
from mixtura.selection.held_out import Answers
from mixtura.solvers import EM, LBFGS, LinkedEM

LIKELIHOOD = {"n_components": 1, "density": "diag", "objective": "likelihood", "random_state": 0}
MARGIN = {"n_components": 1, "density": "diag", "solver": LBFGS(10), "random_state": 0}
LINKED = {"solver": LinkedEM(10, end_to_end=False), "init": EM(10, 0.01)}
NETWORK = {"embedding": "log_density", "density": "diag", "n_components": 1, "random_state": 0}
MODELS = {
    "likelihood": (MixtureClassifier, LIKELIHOOD),
    "clusters": (MixtureClassifier, LIKELIHOOD | {"n_components": 3}),
    "margin": (MixtureClassifier, MARGIN),
    "network": (MixtureNetworkClassifier, NETWORK | LINKED),
}


def clusters_are_classes(seed):
    """Two wide clusters, ten labels of each, and 380 rows without one."""
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], 300)
    X = rng.normal(size=(600, 8)) + 1.1 * y[:, None]
    order = rng.permutation(600)
    X, y = X[order], y[order]
    shown = np.full(600, -1)
    for label in (0, 1):
        shown[np.flatnonzero(y[:400] == label)[:8]] = label
    return X[:400], shown[:400], X[400:], y[400:]


def clusters_are_not_classes(seed):
    """The classes differ in one feature; the clusters of the rows lie along all the others."""
    rng = np.random.default_rng(seed)
    y = np.tile([0, 1], 300)
    X = np.repeat(rng.choice([-4.0, 4.0], size=(600, 1)), 6, axis=1) + rng.normal(size=(600, 6))
    X[:, 0] = 1.5 * (2 * y - 1) + rng.normal(size=600)
    shown = np.where(np.arange(400) < 40, y[:400], -1)
    return X[:400], shown, X[400:], y[400:]


def quietly(model, *data):
    """The fitted model, and what it says of unlabeled rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data)
    messages = [str(w.message) for w in caught if w.category is AmbiguousDataWarning]
    return model, [message for message in messages if "set aside" in message]


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_mislead_are_set_aside(name):
    """The model is then that of the labeled rows alone, in any units, and a warning says why."""
    kind, settings = MODELS[name]
    units = {"standardize": False} if name == "network" else {"marginals": "raw"}
    settings = settings | units
    X, shown, X_test, _ = clusters_are_not_classes(0)
    model, messages = quietly(kind(**settings), X, shown)
    alone = kind(**settings).fit(X[:40], shown[:40])
    np.testing.assert_array_equal(model.predict_proba(X_test), alone.predict_proba(X_test))
    assert model.unlabeled_weight_ == 0.0
    assert len(messages) == 1
    assert "360 unlabeled rows are set aside: they did not clearly help" in messages[0]


def test_rows_that_help_are_used():
    """Where clusters are classes, a few labels and many rows beat the labels alone."""
    errors, used = [], 0
    for seed in range(4):
        X, shown, X_test, y_test = clusters_are_classes(seed)
        model, messages = quietly(MixtureClassifier(**LIKELIHOOD), X, shown)
        alone = MixtureClassifier(**LIKELIHOOD).fit(X[shown >= 0], shown[shown >= 0])
        used += model.unlabeled_weight_ == 0.5
        assert (model.unlabeled_weight_ == 0.0) == bool(messages)
        errors.append([1 - each.score(X_test, y_test) for each in (model, alone)])
    with_rows, without = np.mean(errors, axis=0)
    assert used >= 2
    assert with_rows < without - 0.005


@pytest.mark.parametrize("name", MODELS)
def test_too_few_labels_to_tell(name):
    """Fewer than twenty labels decide nothing: the safer choice, and a warning."""
    kind, settings = MODELS[name]
    X, shown, *_ = clusters_are_not_classes(0)
    shown[9:] = -1
    model, messages = quietly(kind(**settings), X, shown)
    assert model.unlabeled_weight_ == 0.0
    assert ["labels are too few" in message for message in messages] == [True]


@pytest.mark.parametrize("name", MODELS)
def test_too_little_time_to_tell(name):
    """Nothing was compared, and nothing else is said; rows set aside are counted."""
    kind, settings = MODELS[name]
    X, shown, *_ = clusters_are_not_classes(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = kind(max_time=1e-3, **settings).fit(X, shown)
    messages = [str(each.message) for each in caught]
    assert model.unlabeled_weight_ == 0.0
    assert sum("set aside: max_time left too little time to tell" in m for m in messages) == 1
    assert sum("40 of the 400 rows (360 are set aside)" in m for m in messages) == 1
    assert not any("did not clearly help" in m for m in messages)


@pytest.mark.parametrize("weight", ["auto", 0.0])
def test_a_stream_keeps_the_first_decision(weight):
    """Rows that the first part set aside are set aside in later ones, whole parts of them too."""
    X, shown, *_ = clusters_are_not_classes(0)
    settings = LIKELIHOOD | {"marginals": "raw"}
    alone = MixtureClassifier(**settings).partial_fit(X[:40], shown[:40], classes=[0, 1])
    alone.partial_fit(X[:40], shown[:40])
    model = MixtureClassifier(unlabeled_weight=weight, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.partial_fit(X, shown, classes=[0, 1]).partial_fit(X[:40], shown[:40])
        model.partial_fit(X[40:], shown[40:])
    np.testing.assert_array_equal(model.means_, alone.means_)
    np.testing.assert_array_equal(model.class_count_, alone.class_count_)
    assert model.unlabeled_weight_ == 0.0


@pytest.mark.parametrize("way", ["partial_fit", "warm_start"])
def test_labeled_rows_first(way):
    """Unlabeled rows that come later are not taken without a comparison."""
    X, shown, _, _ = clusters_are_not_classes(0)
    labeled = shown >= 0
    model = MixtureClassifier(**LIKELIHOOD)
    if way == "partial_fit":
        model.partial_fit(X[labeled], shown[labeled], classes=[0, 1])
        for part in (shown < 0, np.full(len(X), True)):  # whatever classes a part shows
            with pytest.warns(AmbiguousDataWarning, match="set aside: the first part of this str"):
                model.partial_fit(X[part], shown[part])
    else:
        model.set_params(warm_start=True).fit(X[labeled], shown[labeled])
        with pytest.warns(AmbiguousDataWarning, match="set aside: they did not clearly help"):
            model.fit(X, shown)
    assert model.unlabeled_weight_ == 0.0


@pytest.mark.parametrize("name", MODELS)
def test_a_given_weight_is_obeyed(name, tmp_path):
    """Without a comparison or a word; and it is kept in a file."""
    kind, settings = MODELS[name]
    X, shown, *_ = clusters_are_not_classes(0)
    model, messages = quietly(kind(unlabeled_weight=0.3, **settings), X, shown)
    assert (model.unlabeled_weight_, messages) == (0.3, [])
    model.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").unlabeled_weight_ == 0.3
    none, messages = quietly(kind(unlabeled_weight=0.0, **settings), X, shown)
    alone = kind(**settings).fit(X[:40], shown[:40])
    np.testing.assert_array_equal(none.predict_proba(X), alone.predict_proba(X))
    assert (none.unlabeled_weight_, alone.unlabeled_weight_) == (0.0, None)
    assert messages == []


def test_training_that_goes_on_keeps_the_choice():
    """A warm start sets aside what the first fit set aside, without comparing anew."""
    X, shown, *_ = clusters_are_not_classes(0)
    model, _ = quietly(MixtureClassifier(warm_start=True, **LIKELIHOOD), X, shown)
    model, messages = quietly(model, X, shown)
    assert (model.unlabeled_weight_, messages) == (0.0, [])


def test_training_goes_on_with_unlabeled_rows():
    """Where they help, a warm start takes them from the model that there is, in its units."""
    X, shown, *_ = clusters_are_classes(1)
    model = MixtureClassifier(warm_start=True, **LIKELIHOOD).fit(X[shown >= 0], shown[shown >= 0])
    before = model.scaling_
    model.fit(X, shown)
    assert model.unlabeled_weight_ == 0.5
    np.testing.assert_array_equal(model.scaling_.location, before.location)
    np.testing.assert_array_equal(model.scaling_.scale, before.scale)


def test_a_given_weight_is_that_of_the_likelihood():
    """EM with the weight equals EM with that sample weight of each row, in NumPy's own steps."""
    X, y = load_wine(return_X_y=True)
    X = (X[:, :4] - X[:, :4].mean(0)) / X[:, :4].std(0)
    shown = np.where(np.arange(len(y)) % 5 == 0, y, -1)
    settings = {**LIKELIHOOD, "prior_rows": 0.0, "marginals": "raw"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixtureClassifier(unlabeled_weight=0.25, solver=EM(300, 0.0), **settings)
        model.fit(X, shown)
    weight = np.where(shown >= 0, 0.75, 0.25)
    means = np.stack([X[shown == c].mean(0) for c in range(3)])
    spread = np.stack([X[shown == c].var(0) for c in range(3)])
    prior = np.bincount(shown[shown >= 0]) / (shown >= 0).sum()
    for _ in range(300):
        joint = -0.5 * ((X[:, None] - means) ** 2 / spread + np.log(spread)).sum(2) + np.log(prior)
        share = np.exp(joint - joint.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        share[shown >= 0] = np.eye(3)[shown[shown >= 0]]
        share *= weight[:, None]
        mass = share.sum(0)
        means = share.T @ X / mass[:, None]
        spread = np.stack([share[:, c] @ (X - means[c]) ** 2 / mass[c] for c in range(3)])
        prior = mass / mass.sum()
    np.testing.assert_allclose(model.means_, means, atol=1e-4)
    np.testing.assert_allclose(model.class_prior_, prior, atol=1e-4)


def test_surely_better():
    """Loss and errors fall by more than a standard error over rows; a row and its copy are one."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=40)

    def says(strength):
        joint = rng.normal(size=(80, 2))
        joint[np.arange(80), y.repeat(2)] += strength
        rows = np.ones(80), np.arange(80) % 2 == 1
        return Answers(*rows, joint, np.zeros(80), y.repeat(2), np.zeros((80, 2)))

    poor, fair, good = says(0.0), says(0.6), says(4.0)
    for one, other in ((good, poor), (poor, good), (fair, poor), (poor, poor)):
        gain = other.losses() - one.losses()
        saved = (other.class_log_joint.argmax(1) != other.y) * 1.0
        saved -= one.class_log_joint.argmax(1) != one.y
        sure = []
        for each in (gain, saved):
            rows = [(each[i] + each[i + 1]) / 2 for i in range(0, 80, 2)]
            sure.append(np.mean(rows) > np.std(rows) / np.sqrt(40))
        assert one.surely_beats(other) == all(sure)
    assert good.surely_beats(poor)
    assert not poor.surely_beats(poor)


def test_fewer_unlabeled_rows_weigh_as_much():
    """A sample keeps the balance of unlabeled and labeled weight."""
    y = np.where(np.arange(100) < 10, 0, -1)
    weight = np.linspace(1.0, 2.0, 100)
    scaling, device = Scaling.identity(1), torch.device("cpu")
    engine = Engine(np.arange(100.0)[:, None], y, weight, scaling=scaling, device=device)
    few = engine.fewer_unlabeled(engine, 20)
    known = few.y >= 0
    assert (int(known.sum()), int((~known).sum())) == (10, 20)
    balance = float(few.weight[~known].sum() / few.weight[known].sum())
    assert balance == pytest.approx(weight[10:].sum() / weight[:10].sum())
