"""Classes' hidden Markov models side by side, against each by itself and against hmmlearn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import make_chains, make_sequences

from mixtura import SequenceMixtureClassifier
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import Density, EmissionMixtures, HiddenMarkov, chains
from mixtura.densities.side_by_side import SideBySide
from mixtura.training import learner

LENGTHS = [7, 30, 1, 12, 2, 9, 30, 4]
#: Labels that the models are of, in any order, and those of the sequences: one has none here.
KIND = torch.tensor([4, 0, 2, 7])
LABELS = torch.tensor([0, 4, 2, 0, 4, 0, 2, 0])


def sequences(density, generator, holes=False):
    """Labeled sequences of many lengths."""
    return replace(make_sequences(density, LENGTHS, generator, holes=holes), y=LABELS)


def occupancies(generator):
    """(n, K) weights of any sign, none where a sequence is not a model's own."""
    own = LABELS[:, None] == KIND
    return torch.randn(len(LABELS), len(KIND), dtype=torch.float64, generator=generator) * own


def lasting(generator):
    """Models with chances for how long states last."""
    emission = make_chains("diag", generator, n_components=4, n_states=3).emission
    counts = 0.1 + torch.rand(3, 3, dtype=torch.float64, generator=generator)
    parts = [
        HiddenMarkov.from_states(emission.select(torch.arange(3) + 3 * k), counts[k % 3], counts, 3)
        for k in range(4)
    ]
    return Density.stack(parts)


def mixed(generator):
    """Models whose states emit mixtures of two Gaussians."""
    chains = make_chains("diag", generator, n_components=4, n_states=3)
    each = make_chains("diag", generator, n_components=8, n_states=3).emission
    return replace(chains, emission=EmissionMixtures.of(each, torch.ones(12, 2).double()))


CASES = {
    "diagonal": lambda generator: make_chains("diag", generator, n_components=4, n_states=3),
    "full": lambda generator: make_chains("full", generator, n_components=4, n_states=3),
    "left to right": lambda generator: make_chains(
        "diag", generator, n_components=4, n_states=3, left_to_right=True
    ),
    "durations": lasting,
    "mixtures": mixed,
}


@pytest.mark.parametrize("how", ["", "holes", "in pieces", "in logs"])
@pytest.mark.parametrize("case", CASES)
def test_each_is_as_by_itself(case, how, generator, monkeypatch):
    """Log densities and statistics are those of the model and its own sequences alone."""
    density = CASES[case](generator)
    batch = sequences(density, generator, holes=how == "holes")
    if how == "in pieces":
        monkeypatch.setattr(chains, "_LONG", 1)
    if how == "in logs":
        monkeypatch.setattr(chains, "_NEVER", -1.0)
    weight = occupancies(generator)
    together = SideBySide.of(density, KIND)
    log_prob, statistics = together.expectation(batch)
    expected = torch.where(LABELS[:, None] == KIND, density.log_prob(batch), 0.0)
    np.testing.assert_allclose(log_prob, expected, 1e-11, 1e-11)
    expected = density.statistics(batch, weight)
    for name, found in statistics(weight).items():
        np.testing.assert_allclose(found, expected[name], 1e-10, 1e-10)
    np.testing.assert_allclose(together.plain().log_prob(batch), density.log_prob(batch))


def test_a_part_of_the_models(generator):
    """Some of them go on with their own sequences, whatever was kept for all."""
    density = CASES["diagonal"](generator)
    batch = sequences(density, generator)
    together = SideBySide.of(density, KIND)
    whole = together.log_prob(batch)
    some = torch.tensor([2, 1])
    mine = torch.isin(LABELS, KIND[some])
    rows = batch.unpacked(batch.x).split(LENGTHS)
    x = torch.cat([row for row, own in zip(rows, mine, strict=True) if own])
    lengths = torch.tensor(LENGTHS)[mine]
    part = SequenceBatch.of(x, None, lengths, LABELS[mine], batch.weight[mine])
    found = together.select(some).log_prob(part)
    np.testing.assert_allclose(found, whole[mine][:, some], 1e-12, 1e-12)
    assert together.select(some).kind.tolist() == KIND[some].tolist()


def test_baum_welch_agrees_with_hmmlearn(generator):
    """One step of all models, each on its own sequences."""
    hmm = pytest.importorskip("hmmlearn.hmm")
    density = make_chains("diag", generator, n_components=4, n_states=3, floor=1e-9)
    batch = sequences(density, generator)
    together, own = SideBySide.of(density, KIND), (LABELS[:, None] == KIND).double()
    updated, _ = together.maximize(together.expectation(batch)[1](own))
    rows = batch.unpacked(batch.x).split(LENGTHS)
    for place in (0, 1, 2):
        model = hmm.GaussianHMM(
            3, covars_prior=0.0, covars_weight=1, min_covar=0.0, init_params="", n_iter=1
        )
        one = density.select(torch.tensor([place]))
        model.startprob_ = one.log_start[0].exp().numpy()
        model.transmat_ = one.log_transition[0].exp().numpy()
        model.means_ = one.location[0].numpy()
        model.covars_ = one.emission.variance.numpy()
        mine = [row.numpy() for row, y in zip(rows, LABELS, strict=True) if y == KIND[place]]
        model.fit(np.concatenate(mine), list(map(len, mine)))
        found = updated.select(torch.tensor([place]))
        np.testing.assert_allclose(found.location[0], model.means_, 1e-8, 1e-8)
        np.testing.assert_allclose(found.log_transition[0].exp(), model.transmat_, 1e-8, 1e-10)


@pytest.fixture
def many_classes():
    """Twelve classes with a few sequences each, one of them with many more frames."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 4)
    lengths = np.where(y == 5, 60, rng.integers(6, 12, len(y)))
    X = [rng.normal(label % 5, 1.0, (n, 2)) for label, n in zip(y, lengths, strict=True)]
    X[7][1, 0] = np.nan
    return X, y


@pytest.mark.parametrize("topology", ["ergodic", "left_to_right"])
def test_a_fit_is_the_one_of_class_by_class(topology, many_classes, monkeypatch):
    """To rounding; and one loop over time serves all classes but the one that is much larger."""
    X, y = many_classes
    model = SequenceMixtureClassifier(
        n_states=2, method="ml", chain=topology, calibrate=False, random_state=0
    )
    sizes = []
    of = SideBySide.of.__func__
    monkeypatch.setattr(
        SideBySide,
        "of",
        classmethod(lambda cls, *args: sizes.append(len(args[1])) or of(cls, *args)),
    )
    found = model.fit(X, y).predict_log_proba(X), model.score_samples(X)
    assert sizes == [11]
    monkeypatch.setattr(learner, "_FRAMES", 0)
    expected = model.fit(X, y).predict_log_proba(X), model.score_samples(X)
    assert sizes == [11]
    np.testing.assert_allclose(found[0], expected[0], 1e-9, 1e-9)
    np.testing.assert_allclose(found[1], expected[1], 1e-9, 1e-9)
    assert type(model.model_.model.density) is HiddenMarkov
