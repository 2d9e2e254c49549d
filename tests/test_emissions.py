"""Frames with words in them, and how long states last: hmmlearn, scipy, and all paths."""

from itertools import pairwise, product

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM
from scipy.special import logsumexp
from scipy.stats import norm

from mixtura import SequenceDensity, SequenceMixtureClassifier, load
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.sequences import from_long, from_panel
from mixtura.solvers import EM

QUICK, WORDS = {"random_state": 0}, ["go", "run", "sit"]


def make_log(n, seed):
    """A number and a word per frame; the classes differ in the words of the second state."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(n):
        state, length = 0, rng.integers(10, 15)
        for _ in range(length):
            state = 1 - state if rng.random() < 0.3 else state
            chances = ([0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8])[state * (1 + number % 2)]
            rows.append((number, rng.normal(3 * state), rng.choice(WORDS, p=chances)))
    return pd.DataFrame(rows, columns=["id", "x", "w"]), np.arange(n) % 2


@pytest.fixture(scope="module")
def log():
    """Sequences to train on, and others of which words and numbers are lost."""
    (train, y), (test, labels) = make_log(24, 0), make_log(40, 1)
    holed = test.copy()
    holed.loc[::3, "w"], holed.loc[::4, "x"] = None, np.nan
    return train, y, test, holed, labels


@pytest.fixture(scope="module")
def density(log):
    return SequenceDensity(1, n_states=2, solver=EM(5, tol=10.0), **QUICK).fit(log[0])


@pytest.fixture(scope="module")
def classifier(log):
    model = SequenceMixtureClassifier(2, method="ml", init=EM(10), calibrate=False, **QUICK)
    return model.fit(log[0], log[1])


def all_paths(model, frames):
    """Log joints of all paths through the frames of a sequence, by scipy and tables of chances."""
    chain, scaling = model.mixture_.density, model.scaling_
    words = model.schema_.categories[1].tolist()
    chances = chain.emission.parts[1].log_chance.numpy()
    mean, sd = model.means_[0, :, 0], np.sqrt(model.covariances_[0, :, 0, 0])
    emission = np.zeros((len(frames), 2))
    for t, (x, word) in enumerate(zip(frames.x, frames.w, strict=True)):
        emission[t] += norm.logpdf(x, mean, sd) if x == x else 0.0
        emission[t] += chances[:, words.index(word)] if isinstance(word, str) else 0.0
    assert scaling.scale[1] == 1.0
    start, moves = chain.log_start[0].numpy(), chain.log_transition[0].numpy()
    for path in product(range(2), repeat=len(frames)):
        steps = sum(moves[one, other] for one, other in pairwise(path))
        yield start[path[0]] + steps + emission[np.arange(len(frames)), path].sum()


def test_words_and_numbers_with_holes(log, density):
    """The density is the sum over all paths; those of frames sum up to it."""
    holed = log[3]
    found, frames = density.score_samples(holed), density.score_frames(holed)
    for number in (0, 1):
        expected = logsumexp(list(all_paths(density, holed[holed.id == number][:9])))
        short = holed[holed.id == number][:9]
        np.testing.assert_allclose(density.score_samples(short), [expected], 1e-9)
        np.testing.assert_allclose(np.nansum(frames[number]), found[number], 1e-9)


def test_words_alone_are_those_of_hmmlearn(log):
    """Scores, and one step of Baum-Welch."""
    words = [list(part.w) for _, part in log[0].groupby("id")]
    solver = EM(1, tol=0.0)
    with pytest.warns(match="settled"):
        model = SequenceDensity(
            1, n_states=2, solver=solver, prior_rows=0.0, categorical_features=[0], **QUICK
        ).fit(words)
    chain = model.mixture_.density
    peer = CategoricalHMM(2, init_params="", n_iter=1, tol=0.0)
    peer.startprob_ = np.exp(chain.log_start[0].numpy())
    peer.transmat_ = np.exp(chain.log_transition[0].numpy())
    peer.emissionprob_ = np.exp(chain.emission.parts[0].log_chance.numpy())
    codes = [np.searchsorted(WORDS, part)[:, None] for part in words]
    np.testing.assert_allclose(
        model.score_samples(words), [peer.score(part) for part in codes], 1e-9
    )
    batch = model._engine(words).all_rows()
    updated, _ = chain.maximize(chain.statistics(batch, torch.ones(len(words), 1).double()))
    peer.fit(np.concatenate(codes), [len(part) for part in codes])
    chances = updated.emission.parts[0].log_chance.exp()
    np.testing.assert_allclose(chances, peer.emissionprob_, 1e-6, 1e-6)  # chances have a floor
    np.testing.assert_allclose(updated.log_transition[0].exp(), peer.transmat_, 1e-6)


@pytest.mark.parametrize("kind", ["pandas", "polars", "long", "tables", "arrays"])
def test_every_form_gives_the_same(kind, log, density):
    """And what is imputed and drawn has it."""
    holed = log[3]
    parts = [part[["x", "w"]] for _, part in holed.groupby("id")]
    X = {
        "pandas": holed,
        "polars": pl.from_pandas(holed),
        "long": from_long(holed),
        "tables": from_panel(parts),
        "arrays": [part.to_numpy() for part in parts],
    }[kind]
    np.testing.assert_allclose(density.score_samples(X), density.score_samples(holed), 1e-9)
    filled = density.impute(X)
    expected = density.impute(holed)
    if kind == "polars":
        filled = filled.to_pandas()
    elif kind in ("tables", "arrays"):
        filled = pd.DataFrame(np.concatenate([np.asarray(p) for p in filled]), columns=["x", "w"])
    assert filled.w.tolist() == expected.w.tolist()
    assert set(expected.w) == {"go", "run", "sit"}
    known = holed.w.notna()
    assert (expected.w[known] == holed.w[known]).all()


def test_draws_have_words(log, density):
    drawn, _ = density.sample(3, lengths=4, random_state=0)
    assert drawn.columns.tolist() == ["id", "x", "w"]
    assert set(drawn.w) <= {"go", "run", "sit"}
    futures = density.forecast(log[2], 2, n_draws=3, random_state=0)
    assert futures.shape == (3, 40, 2, 2)
    assert set(futures[..., 1].flat) <= {"go", "run", "sit"}


def test_words_tell_classes_apart(log, classifier, tmp_path):
    """Without them the classes are the same; a stored model answers alike."""
    _, _, test, holed, labels = log
    assert classifier.score(test, labels) > 0.9
    assert classifier.score(test.assign(w=None), labels) < 0.7
    parts = classifier.explain(test[test.id < 3])
    assert (np.abs(parts.values[:, 1, 0]) > 2 * np.abs(parts.values[:, 0, 0])).all()
    classifier.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(holed), classifier.predict_proba(holed))


@pytest.mark.parametrize("options", [{"representation": "summary"}, {"multiclass": "pairwise"}])
def test_words_in_summaries_and_pairs(options, log):
    train, y, test, _, labels = log
    if "multiclass" in options:
        y, labels = np.arange(24) % 3, np.where(labels == 0, np.arange(40) % 3, 1)
        options |= {"method": "ml", "n_states": 2, "init": EM(3, tol=1.0)}
    model = SequenceMixtureClassifier(calibrate=False, **options, **QUICK).fit(train, y)
    assert model.predict_proba(test.assign(w=None)).shape == (40, len(set(y)))
    if "multiclass" not in options:
        assert model.score(test, labels) > 0.8
        assert model.score(test.assign(w=None), labels) < 0.7


def test_unknown_words(log, classifier):
    """They count as missing, with a warning; numbers in the place of words are refused."""
    test = log[2]
    odd = test.assign(w=test.w.where(test.w != "sit", "fly"))
    with pytest.warns(DegenerateDataWarning, match="column 'w': 'fly'"):
        found = classifier.predict_proba(odd)
    known = classifier.predict_proba(test.assign(w=test.w.where(test.w != "sit")))
    np.testing.assert_array_equal(found, known)
    with pytest.raises(InvalidInputError, match="held text in training and holds numbers"):
        classifier.predict(test.assign(w=1.0))
    with pytest.raises(InvalidInputError, match="held numbers in training and holds text"):
        classifier.predict(test.assign(x="a"))


def test_numbers_may_be_categories():
    """Where the user says so: their order then tells nothing."""
    X = [np.array([[5, 0.0], [9, 1.0], [5, 0.5]]), np.array([[7, 0.0], [9, 1.0], [7, 0.5]])] * 8
    model = SequenceMixtureClassifier(
        1, method="ml", categorical_features=[0], calibrate=False, init=EM(3), **QUICK
    ).fit(X, [0, 1] * 8)
    assert model.schema_.categories[0].tolist() == [5.0, 7.0, 9.0]
    assert model.score(X, [0, 1] * 8) == 1.0
    assert set(model.sample(4, lengths=3)[0][0][:, 0]) <= {5.0, 7.0, 9.0}
