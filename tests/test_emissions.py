"""Frames with words in them, and how long states last: hmmlearn, scipy, and all paths."""

from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from chains import make_sequences
from scipy.special import logsumexp, softmax
from scipy.stats import norm
from sklearn.base import clone

from mixtura import SequenceDensity, SequenceMixtureClassifier, load
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import Chain, Density, HiddenMarkov
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError
from mixtura.models.fitted import in_deviations
from mixtura.selection import typical
from mixtura.sequences import from_long, from_panel
from mixtura.solvers import EM
from mixtura.testing.parts import make_density
from mixtura.testing.references import dense_log_prob

pd = pytest.importorskip("pandas")

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
    hmm = pytest.importorskip("hmmlearn.hmm")
    peer = hmm.CategoricalHMM(2, init_params="", n_iter=1, tol=0.0)
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


def test_a_lost_channel_makes_no_outliers(rng):
    """Words and numbers differ in how likely one is; strange numbers are seen without words too."""
    state = (rng.random((160, 16)) < 0.3).cumsum(1) % 2
    words = np.where(rng.random(state.shape) < 0.8, np.where(state, "run", "go"), "sit")
    values = {"x": rng.normal(3 * state).ravel(), "w": words.ravel()}
    frames = pd.DataFrame({"id": np.repeat(np.arange(160), 16), **values})
    model = SequenceDensity(1, n_states=2, solver=EM(5, tol=10.0), **QUICK)
    model.fit(frames[frames.id < 60])
    test = frames[frames.id >= 60]
    for some in (test, test.assign(w=None), test.assign(x=np.nan)):
        assert model.is_outlier(some, 0.1).mean() <= 0.2
    strange = test.assign(w=None, x=test.x + 9.0 * (test.index % 3 == 0))
    assert model.is_outlier(strange, 0.1).mean() > 0.9


@pytest.mark.parametrize("kind", ["pandas", "polars", "long", "tables", "arrays"])
def test_every_form_gives_the_same(kind, log, density):
    """And what is imputed and drawn has it."""
    holed = log[3]
    parts = [part[["x", "w"]] for _, part in holed.groupby("id")]
    X = {
        "pandas": lambda: holed,
        "polars": lambda: pytest.importorskip("polars").from_pandas(holed),
        "long": lambda: from_long(holed),
        "tables": lambda: from_panel(parts),
        "arrays": lambda: [part.to_numpy() for part in parts],
    }[kind]()
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
    with pytest.raises(UnsupportedError, match="ask for draws"):
        density.forecast(log[2], 2)


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


@pytest.mark.parametrize("later", [3.0, "fly"])
def test_a_channel_that_training_had_no_value_of(log, later):
    """What it holds later counts as missing, as in tables."""
    blank = log[0].assign(extra=None)
    with pytest.warns(DegenerateDataWarning, match="no observed value"):
        model = SequenceDensity(1, n_states=1, solver=EM(3, tol=1e9), **QUICK).fit(blank)
    with pytest.warns(DegenerateDataWarning, match=f"column 'extra': {later!r}"):
        found = model.score_samples(blank.assign(extra=later))
    np.testing.assert_array_equal(found, model.score_samples(blank))


def test_numbers_may_be_categories():
    """Where the user says so: their order then tells nothing."""
    X = [np.array([[5, 0.0], [9, 1.0], [5, 0.5]]), np.array([[7, 0.0], [9, 1.0], [7, 0.5]])] * 8
    model = SequenceMixtureClassifier(
        1, method="ml", categorical_features=[0], calibrate=False, init=EM(3), **QUICK
    ).fit(X, [0, 1] * 8)
    assert model.schema_.categories[0].tolist() == [5.0, 7.0, 9.0]
    assert model.score(X, [0, 1] * 8) == 1.0
    assert set(model.sample(4, lengths=3)[0][0][:, 0]) <= {5.0, 7.0, 9.0}


# -- how long states last ----------------------------------------------------------------------


def make_durations(generator, left_to_right=False):
    """Two models of three states, with chances of lasting one and two frames, and of more."""
    rand = partial(torch.rand, dtype=torch.float64, generator=generator)
    parts = [
        HiddenMarkov.from_states(
            make_density("diag", "covariance", generator, n_components=3, n_features=2),
            0.1 + rand(3),
            0.1 + rand(3, 3),
            3,
            left_to_right=left_to_right,
        )
        for _ in range(2)
    ]
    whole = Density.stack(parts)
    counts = {**whole._own_counts(), "duration": 0.1 + rand(2, 3, 3, 2)}
    return whole._with_counts(counts)


def segments(length, n_states):
    """All ways to cut a sequence into segments of states, (state, frames) each."""
    if length == 0:
        yield ()
    for frames in range(1, length + 1):
        for rest in segments(length - frames, n_states):
            for state in range(n_states):
                if not rest or rest[0][0] != state:
                    yield ((state, frames), *rest)


def log_joints(chain, k, emission):
    """Log joint of each way to cut frames (T, S): starts, durations, moves; the last may go on."""
    leave, stay = chain.log_duration[k].exp().unbind(-1)
    start, moves = chain.log_start[k].exp(), chain.log_transition[k].exp()

    def beyond(state, frames):
        """Chance of so many frames at least; one where no other state may follow."""
        if moves[state, state] > 0.0:
            return 1.0
        return float(np.prod([stay[state, min(i, 2)] for i in range(frames - 1)]))

    for way in segments(len(emission), 3):
        chance = float(start[way[0][0]]) * beyond(*way[-1])
        for (state, frames), (other, _) in pairwise(way):
            lasts = beyond(state, frames) * float(leave[state, min(frames - 1, 2)])
            chance *= lasts * float(moves[state, other])
        states = np.repeat(*np.array(way).T)
        with np.errstate(divide="ignore"):
            yield np.log(chance) + emission[np.arange(len(states)), states].sum(), states


@pytest.mark.parametrize("left_to_right", [False, True])
def test_durations_are_sums_over_all_segmentations(left_to_right, generator):
    """Log-likelihoods, chances of states, the likeliest path, with frames and values missing."""
    chain = make_durations(generator, left_to_right)
    batch = make_sequences(chain, [3, 5, 1], generator, holes=True)
    found, emission = chain.log_prob(batch), dense_log_prob(chain.emission, batch.frames)
    state = chain.states(batch, torch.ones(3, 2).double()).unflatten(1, (2, 3)).numpy()
    best = [chain.paths(batch, torch.full((3,), k)) for k in (0, 1)]
    for number, k in product(range(3), range(2)):
        places = (batch.packing.owner == number).nonzero().flatten().numpy()
        joints, paths = zip(
            *log_joints(chain, k, emission.reshape(-1, 2, 3)[places, k]), strict=True
        )
        np.testing.assert_allclose(found[number, k], logsumexp(joints), 1e-9, 1e-12)
        visits = np.einsum("p,pts->ts", softmax(joints), np.eye(3)[np.array(paths)])
        np.testing.assert_allclose(state[places, k], visits, 1e-7, 1e-9)
        taken = next(i for i, path in enumerate(paths) if path.tolist() == best[k][places].tolist())
        np.testing.assert_allclose(joints[taken], max(joints), 1e-9, 1e-12)


def test_updates_of_durations(generator):
    """EM never goes down, gradients are finite differences, and own statistics change nothing."""
    chain = make_durations(generator)
    batch, ones = make_sequences(chain, [6, 5, 4], generator), torch.ones(3, 2).double()
    before = chain.log_prob(batch).sum(0)
    for _ in range(3):
        chain, valid = chain.maximize(chain.statistics(batch, ones))
        after = chain.log_prob(batch).sum(0)
        assert valid.all()
        assert (after >= before - 1e-9).all()
        before = after
    own, _ = chain.maximize(chain.own_statistics())
    np.testing.assert_allclose(own.log_duration, chain.log_duration, 1e-6)
    np.testing.assert_allclose(own.log_transition.exp(), chain.log_transition.exp(), 1e-6, 1e-12)
    free = chain.free()

    def total(duration):
        return chain.from_free({**free, "duration": duration}).log_prob(batch).sum()

    at, step = free["duration"].detach().requires_grad_(), 1e-5
    direction = torch.randn(at.shape, dtype=at.dtype, generator=generator)
    (slope,) = torch.autograd.grad(total(at), at)
    with torch.no_grad():
        rise = total(at + step * direction) - total(at - step * direction)
    np.testing.assert_allclose(rise / (2 * step), (slope * direction).sum(), 1e-5)


def test_states_that_last_five_frames(tmp_path):
    """Classes that differ in how long states last alone; a forecast knows when a state ends."""
    rng = np.random.default_rng(0)

    def alternating(n, lasts):
        parts = [np.repeat(np.arange(6) % 2, [lasts() for _ in range(6)]) for _ in range(n)]
        return [4.0 * part[:, None] + 0.3 * rng.normal(size=(len(part), 1)) for part in parts]

    X = alternating(20, lambda: 5) + alternating(20, lambda: rng.geometric(0.2))
    y = np.arange(40) // 20
    model = SequenceMixtureClassifier(
        2, method="ml", chain=Chain(durations=6), calibrate=False, init=EM(20), **QUICK
    ).fit(X[::2], y[::2])
    plain = clone(model).set_params(chain__durations=1).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) >= 0.95 > plain.score(X[1::2], y[1::2])
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X[1::2]), model.predict_proba(X[1::2]))
    density = SequenceDensity(1, n_states=2, chain=Chain(durations=6), solver=EM(20), **QUICK).fit(
        X[:20]
    )
    begun = [part[:8] for part in X[:3]]  # three frames of the second state
    coming = density.forecast(begun, steps=3)
    assert (coming.mean[:, :2, 0] > 3.0).all()
    assert (coming.mean[:, 2, 0] < 1.0).all()
    futures = density.forecast(begun, 3, n_draws=4, random_state=0)
    assert ((futures[..., 0] > 2.0) == [True, True, False]).mean() > 0.95
    lengths = np.diff(np.flatnonzero(np.diff(density.sample(1, lengths=60)[0][0][:, 0] > 2.0)))
    assert (lengths == 5).mean() > 0.8
    lost = [part.copy() for part in begun]
    lost[0][3:6] = np.nan
    assert np.isfinite(density.impute(lost)[0]).all()


# -- outliers ----------------------------------------------------------------------------------


def test_short_sequences_are_as_typical_as_long_ones():
    """Scores per value of sequences whose values vary by themselves and together, by generator."""
    rng = np.random.default_rng(0)
    count = rng.integers(2, 200, 4000)
    scores = rng.normal(-1.0 - 2.0 / count, np.sqrt(0.8 / count + 0.01))
    found = typical._per_value(scores, count, np.ones(len(count)))
    np.testing.assert_allclose(found, (-1.0, -2.0, 0.8, 0.01), 0.15)
    away = in_deviations(scores, count, found)
    least = np.quantile(away, 0.1)
    assert np.mean(away[count < 10] < least) == pytest.approx(0.1, abs=0.04)
    assert np.mean(away[count > 100] < least) == pytest.approx(0.1, abs=0.02)
    np.testing.assert_allclose(
        typical._per_value(np.array([1.0, 3.0]), np.array([5.0, 5.0]), np.ones(2)),
        (2.0, 0, 0.5, 0.9),
    )


def test_thresholds_hold_for_new_sequences():
    """A share of short ones, of long ones, and of single frames; few were trained on."""
    train, test = (
        make_hmm_sequences(n, length=(3, 40), random_state=seed).data
        for n, seed in ((30, 0), (60, 1))
    )
    model = SequenceDensity(2, n_states=2, solver=EM(10, tol=0.1), **QUICK).fit(train)
    short = [part[:3] for part in test if len(part) > 10]
    for sequences in (test, short):
        assert 0.03 < model.is_outlier(sequences, 0.1).mean() < 0.2
    for by_channel in (False, True):
        frames = np.concatenate(model.outlier_frames(test, 0.05, by_channel=by_channel))
        assert frames.mean() == pytest.approx(0.05, abs=0.015)


def test_no_more_durations_than_frames():
    """Of the longest sequence of training: what is beyond was never seen, and takes memory."""
    X = [np.array([[0.0], [1.0], [0.5]]), np.array([[1.0]])] * 6
    model = SequenceDensity(
        1, n_states=2, chain=Chain(durations=10**6), solver=EM(3, tol=9.0), **QUICK
    ).fit(X)
    chain = model.mixture_.density
    assert chain.n_phases == 3
    free = 1 + 2 * 3 + 2 * 2  # a start, leaving two states, means and variances
    assert [chain.n_parameters, replace(chain, left_to_right=True).n_parameters] == [free, free - 4]
    options = {"method": "ml", "calibrate": False, "init": EM(3, tol=9.0), **QUICK}
    both = SequenceMixtureClassifier(2, chain=Chain(durations=10**6), **options).fit(X, [0, 1] * 6)
    assert both.predict_proba([[0.0] * 9]).shape == (1, 2)
