"""Sequences without labels: summaries learn from them, where that helps."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.metrics import log_loss

from mixtura import SequenceMixtureClassifier, load
from mixtura.exceptions import DegenerateDataWarning
from mixtura.training.left_out import LeftOut
from mixtura.training.summaries import _Rows

SETTINGS = {"representation": "summary", "random_state": 0}


def drawn(seed, n):
    """Two classes of waves, of one frequency each, in much noise."""
    rng, y = np.random.default_rng(seed), np.arange(n) % 2
    time = np.linspace(0, 1, 40)[:, None]
    return [np.sin((9 + 2 * c) * time) + 0.7 * rng.normal(size=time.shape) for c in y], y


def test_unlabeled_sequences_count_by_their_chances(rng, monkeypatch):
    """By scipy's densities of the Gaussians that the labels alone give."""
    monkeypatch.setattr(LeftOut, "neighbors", lambda *_: None)
    y = np.where(np.arange(60) < 12, np.arange(60) % 2, -1)
    x = rng.normal(size=(60, 1, 3)) + np.arange(60)[:, None, None] % 2
    weight, seen = rng.uniform(0.5, 2.0, 60), np.ones((60, 1), dtype=bool)
    tensors = [torch.from_numpy(each) for each in (x, seen, y, weight)]
    rows = _Rows(
        ["only"],
        tensors[:1],
        *tensors[1:],
        [torch.zeros(0, 3).double()],
        torch.tensor([1.0, 9.0]).double(),
        torch.zeros(60).double(),
        tensors[2] >= 0,
    )
    first, model = rows.fit(2), rows.fit_to_all(2)
    flat, spare = x[:, 0], y < 0
    density = [multivariate_normal(mean.numpy()[0], first.covariance) for mean in first.means]
    joint = np.stack([each.logpdf(flat) for each in density], 1) + first.log_prior.numpy()
    chance = softmax(joint / float(first.temperature), 1)
    told = np.where(spare[:, None], chance * (chance > 0.02), np.eye(2)[y]) * weight[:, None]
    assert_allclose(model.means[:, 0], told.T @ flat / told.sum(0)[:, None], rtol=1e-9)
    assert_allclose(model.log_prior.exp(), told.sum(0) / told.sum(), rtol=1e-9)

    ends = torch.zeros(60).double(), torch.ones(60)

    def loss(factor):
        """Cross-entropy of what the first model says of sequences without a label."""
        own = model.at(torch.tensor(factor).double()).by_summary(*tensors[:2], *ends)
        return -(weight[:, None] * chance * own.log_softmax(1).numpy())[spare].sum()

    assert loss(1.0) < min(loss(0.7), loss(1.4))


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.filterwarnings("ignore::mixtura.exceptions.AmbiguousDataWarning")
@pytest.mark.parametrize("marker", [-1, None, np.nan])
def test_unlabeled_sequences_help(marker, tmp_path):
    """Five labels per class, and others: errors and log-loss on new sequences fall."""
    X, y = drawn(4, 130)
    X_test, y_test = drawn(1, 300)
    some = np.where(np.arange(130) < 10, y, marker).tolist()
    with pytest.warns(DegenerateDataWarning, match="10 different labeled") as said:
        model = SequenceMixtureClassifier(**SETTINGS).fit(X, some)
    assert not any("left out" in str(each.message) for each in said)
    alone = SequenceMixtureClassifier(**SETTINGS).fit(X[:10], y[:10])
    assert model.classes_.tolist() == [0, 1]
    assert model.score(X_test, y_test) > alone.score(X_test, y_test) + 0.02
    found = model.predict_proba(X_test)
    assert log_loss(y_test, found) < 0.9 * log_loss(y_test, alone.predict_proba(X_test))
    model.save(tmp_path / "model.safetensors")
    assert_allclose(load(tmp_path / "model.safetensors").predict_proba(X_test), found, rtol=1e-9)


@pytest.mark.parametrize("helps", [True, False])
def test_they_are_chosen_by_held_out_labels(helps, monkeypatch):
    """A model of them that has the classes the wrong way round is not taken."""
    if not helps:

        def turned(rows, n_classes):
            known = rows.only(rows.y >= 0)
            known.y.copy_(1 - known.y)
            return known.fit(n_classes)

        monkeypatch.setattr(_Rows, "fit_to_all", turned)
    X, y = drawn(4, 130)
    some = np.where(np.arange(130) < 24, y, -1)
    model = SequenceMixtureClassifier(unlabeled=-1, **SETTINGS).fit(X, some)
    without, having = (row for row in model.choice_ if row["method"] == "summary")
    assert (without["unlabeled"], having["unlabeled"]) == (False, True)
    assert having["chosen"] == helps == (having["loss"] < without["loss"])
    assert model.score(*drawn(1, 300)) > 0.7


def test_all_labels_known_is_as_before():
    """Nothing is compared."""
    X, y = drawn(0, 40)
    model = SequenceMixtureClassifier(**SETTINGS).fit(X, y)
    assert [row["question"] for row in model.choice_] == ["representation"]
