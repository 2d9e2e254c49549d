"""SequenceDensity: hmmlearn, all paths of small models, and what it answers."""

import pickle
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from mixtura import SequenceDensity, load
from mixtura.datasets import make_hmm_sequences
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError
from mixtura.solvers import EM

QUICK = {"solver": EM(3, tol=0.5), "random_state": 0}
EXACT = 1e-9


@pytest.fixture(scope="module")
def rows():
    return make_hmm_sequences(15, length=(8, 12), random_state=0)


@pytest.fixture(scope="module")
def model(rows):
    """Two components of two states, which depend on each other in both channels."""
    model = SequenceDensity(2, n_states=2, density="full", solver=EM(5, tol=10.0), random_state=0)
    return model.fit([3.0 * sequence + 1.0 for sequence in rows.data])


@pytest.fixture(scope="module")
def holed(rows):
    """Short sequences with a value, a channel, a frame, and everything lost."""
    X = [3.0 * sequence[:4] + 1.0 for sequence in rows.data[:5]]
    X[1][2, 0], X[2][:, 1], X[3][1:3], X[4][:] = np.nan, np.nan, np.nan, np.nan
    return X


# -- all paths ---------------------------------------------------------------------------------


def log_normal(model, k, s, frame):
    """Log density of what is observed of a frame, in a state."""
    seen = ~np.isnan(frame)
    if not seen.any():
        return 0.0
    covariance = model.covariances_[k, s][np.ix_(seen, seen)]
    return multivariate_normal.logpdf(frame[seen], model.means_[k, s][seen], covariance)


def joints(model, sequence):
    """All paths (P, T), and log p(component, path, frames) of them, (K, P)."""
    chains, moments = model.mixture_.density, np.arange(len(sequence))
    start, moves = chains.log_start.numpy(), chains.log_transition.numpy()
    paths = np.array(list(product(range(model.n_states_), repeat=len(sequence))))
    seen = np.array(
        [
            [[log_normal(model, k, s, x) for s in range(model.n_states_)] for x in sequence]
            for k in range(model.n_components_)
        ]
    )
    moved = moves[:, paths[:, :-1], paths[:, 1:]].sum(2)
    emitted = seen[:, moments, paths].sum(2)
    return paths, np.log(model.weights_)[:, None] + start[:, paths[:, 0]] + moved + emitted


def shares(model, sequence):
    """(T, K, S) chances of component and state at each frame, given all."""
    paths, logs = joints(model, sequence)
    chance = np.exp(logs - logsumexp(logs))
    return np.einsum("kp,pts->tks", chance, np.eye(model.n_states_)[paths])


def test_scores_clusters_and_states_are_those_of_all_paths(model, holed):
    scores, proba = model.score_samples(holed), model.predict_proba(holed)
    states, decoded = model.state_proba(holed), model.decode(holed)
    for place, sequence in enumerate(holed):
        paths, logs = joints(model, sequence)
        np.testing.assert_allclose(scores[place], logsumexp(logs), EXACT, EXACT)
        expected = logsumexp(logs, axis=1) - logsumexp(logs)
        np.testing.assert_allclose(proba[place], np.exp(expected), EXACT, EXACT)
        np.testing.assert_allclose(states[place], shares(model, sequence), EXACT, EXACT)
        np.testing.assert_array_equal(decoded[place], paths[logs[proba[place].argmax()].argmax()])
    np.testing.assert_array_equal(model.predict(holed), proba.argmax(1))
    assert model.score(holed) == scores.mean()


def test_imputations_are_those_of_all_paths(model, holed):
    filled = model.impute(holed)
    for sequence, found in zip(holed, filled, strict=True):
        for frame, whole, share in zip(sequence, found, shares(model, sequence), strict=True):
            seen, mean = ~np.isnan(frame), 0.0
            for (k, s), chance in np.ndenumerate(share):
                center, covariance = model.means_[k, s], model.covariances_[k, s]
                gain = covariance[:, seen] @ np.linalg.pinv(covariance[np.ix_(seen, seen)])
                mean = mean + chance * (center + gain @ (frame - center)[seen])
            np.testing.assert_allclose(whole, mean, EXACT, EXACT)
            np.testing.assert_array_equal(whole[seen], frame[seen])


def test_frames_are_scored_given_those_before(model, holed):
    """By the ratio of the densities of what has been seen; each value by itself, too."""
    for by_channel in (False, True):
        some = holed[1:4]
        scores = model.score_frames(some, by_channel=by_channel)
        for sequence, found in zip(some, scores, strict=True):
            for t, at in np.ndindex(len(sequence), 2 if by_channel else 1):
                now = sequence[: t + 1].copy()
                if by_channel:
                    now[t, 1 - at] = np.nan
                ago = now.copy()
                ago[t] = np.nan
                expected = logsumexp(joints(model, now)[1]) - logsumexp(joints(model, ago)[1])
                if np.isnan(now[t]).all():
                    expected = np.nan
                score = found[t, at] if by_channel else found[t]
                np.testing.assert_allclose(score, expected, EXACT, EXACT)
    whole = [np.nansum(each) for each in model.score_frames(holed)]
    np.testing.assert_allclose(whole, model.score_samples(holed), EXACT, EXACT)


def test_forecasts_are_those_of_all_paths(model, holed):
    """States, means, deviations and quantiles of lost frames after the last."""
    coming = model.forecast(holed, steps=2)
    quantiles = coming.quantiles([0.05, 0.5, 0.9])
    deviation = np.sqrt(np.diagonal(model.covariances_, axis1=2, axis2=3))
    for place, sequence in enumerate(holed):
        longer = np.vstack([sequence, np.full((2, 2), np.nan)])
        share = shares(model, longer)[-2:]
        np.testing.assert_allclose(coming.proba[place], share, EXACT, EXACT)
        mean = np.einsum("tks,ksd->td", share, model.means_)
        square = np.einsum("tks,ksd->td", share, model.means_**2 + deviation**2)
        np.testing.assert_allclose(coming.mean[place], mean, EXACT)
        np.testing.assert_allclose(coming.std[place], np.sqrt(square - mean**2), 1e-8)
        np.testing.assert_allclose(model.impute([longer])[0][-2:], mean, EXACT)
        for at, level in enumerate([0.05, 0.5, 0.9]):
            for t in range(2):
                below = norm.cdf(quantiles[place, t, :, at], model.means_, deviation)
                reached = np.einsum("ks,ksd->d", share[t], below)
                np.testing.assert_allclose(reached, level, 1e-9)


def test_drawn_futures(model, holed):
    """Frames that belong together: each has its mean, and their covariance is that of paths."""
    drawn = model.forecast(holed[:1], 2, n_draws=3000, random_state=0)
    assert drawn.shape == (3000, 1, 2, 2)
    coming, flat = model.forecast(holed[:1], 2), drawn[:, 0].reshape(-1, 4)
    error = coming.std.ravel() / np.sqrt(3000)
    assert (np.abs(flat.mean(0) - coming.mean.ravel()) < 4.0 * error).all()
    longer = np.vstack([holed[0], np.full((2, 2), np.nan)])
    paths, logs = joints(model, longer)
    chance = np.exp(logs - logsumexp(logs))
    pairs = np.zeros((2, 2, 2))  # of component and the last two states
    np.add.at(pairs, (slice(None), paths[:, -2], paths[:, -1]), chance)
    product_of_means = np.einsum("kab,kad,kbe->de", pairs, model.means_, model.means_)
    expected = product_of_means - np.outer(coming.mean[0, 0], coming.mean[0, 1])
    found = np.cov(flat.T)[:2, 2:]
    spread = np.outer(coming.std[0, 0], coming.std[0, 1])
    assert (np.abs(found - expected) < 5.0 * spread / np.sqrt(3000)).all()


# -- hmmlearn ----------------------------------------------------------------------------------


def test_hmmlearn_agrees(rows):
    """Scores, posteriors and Viterbi paths of one component, and what EM comes to."""
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    X, lengths = np.concatenate(rows.data), [len(sequence) for sequence in rows.data]
    plain = {"standardize": False, "prior_rows": 0.0, "random_state": 0}
    model = SequenceDensity(1, n_states=2, solver=EM(500, 1e-9), **plain).fit(rows.data)
    chains = model.mixture_.density
    other = hmmlearn.GaussianHMM(2, init_params="", params="")
    other.startprob_, other.transmat_ = chains.log_start[0].exp(), chains.log_transition[0].exp()
    other.means_, other.covars_ = model.means_[0], np.diagonal(model.covariances_[0], 0, 1, 2)
    np.testing.assert_allclose(model.score_samples(rows.data).sum(), other.score(X, lengths))
    states = np.concatenate(model.state_proba(rows.data))[:, 0]
    np.testing.assert_allclose(states, other.predict_proba(X, lengths), 1e-6, 1e-9)
    np.testing.assert_array_equal(
        np.concatenate(model.decode(rows.data)), other.predict(X, lengths)
    )
    before = other.score(X, lengths)
    other.params, other.n_iter, other.covars_prior, other.covars_weight = "stmc", 20, 0.0, 0.0
    assert other.fit(X, lengths).score(X, lengths) == pytest.approx(before, abs=1e-3)


# -- clusters, choices -------------------------------------------------------------------------


def test_clusters_are_found():
    """Four models, two of which differ only in how often they leave their states."""
    rows = make_hmm_sequences(20, random_state=1)
    model = SequenceDensity(4, n_states=2, solver=EM(5, 0.1), random_state=0).fit(rows.data)
    assert adjusted_rand_score(2 * rows.target + rows.hard, model.predict(rows.data)) > 0.9
    assert model.n_components_ == len(model.weights_) == 4
    drawn, component = model.sample(200, random_state=0)
    assert (model.predict(drawn) == component).mean() > 0.9


def test_held_out_sequences_choose(monkeypatch):
    """More components while that clearly helps; then states."""
    monkeypatch.setattr("mixtura.estimators.sequence_density._STATES", (1, 2))
    monkeypatch.setattr("mixtura.training.chain_mixtures._STARTS", 1)
    rng = np.random.default_rng(0)
    X = [5.0 * (place % 2) + rng.normal(size=(6, 1)) for place in range(24)]
    model = SequenceDensity(**QUICK).fit(X)
    assert (model.n_components_, model.n_states_) == (2, 1)
    assert {each["question"] for each in model.choice_} == {"components", "states"}
    assert adjusted_rand_score(np.arange(24) % 2, model.predict(X)) == 1.0


def test_pieces_of_one_long_sequence_choose(monkeypatch):
    """Where there is nothing to cluster, states are chosen all the same; and where frames are few
    the first choice is taken."""
    monkeypatch.setattr("mixtura.estimators.sequence_density._STATES", (1, 2))
    rng = np.random.default_rng(0)
    levels = np.repeat(np.arange(40) % 2, 10)
    model = SequenceDensity(**QUICK).fit([6.0 * levels[:, None] + rng.normal(size=(400, 1))])
    assert (model.n_components_, model.n_states_) == (1, 2)
    assert {each["question"] for each in model.choice_} == {"states"}
    (path,) = model.decode([6.0 * levels[:, None]])
    assert adjusted_rand_score(levels, path) == 1.0
    assert SequenceDensity(**QUICK).fit([np.arange(5.0)]).n_states_ == 1


# -- anomalies ---------------------------------------------------------------------------------


def test_strange_frames_and_channels_are_found():
    """A spike in one channel; of new frames about as many are flagged as are asked for."""
    rng, X = np.random.default_rng(0), []
    for _ in range(30):
        level = (np.arange(20) // 5 + rng.integers(2)) % 2
        X.append(np.stack([8.0 * level, np.zeros(20)], 1) + rng.normal(size=(20, 2)))
    model = SequenceDensity(1, n_states=2, random_state=0).fit(X)
    odd = np.stack([8.0 * (np.arange(20) // 5 % 2), np.zeros(20)], 1)
    odd += 0.1 * rng.normal(size=(20, 2))  # channels that do not move at all are strange
    odd[7, 1] = 10.0
    flagged, channels = (
        model.outlier_frames([odd], 0.002, by_channel=by)[0] for by in (False, True)
    )
    assert np.flatnonzero(flagged).tolist() == [7]
    assert np.argwhere(channels).tolist() == [[7, 1]]
    odd[7] = np.nan
    assert not model.outlier_frames([odd], 0.002)[0].any()
    drawn, _ = model.sample(200, random_state=1)
    assert np.concatenate(model.outlier_frames(drawn, 0.05)).mean() == pytest.approx(0.05, abs=0.02)
    by_channel = np.concatenate(model.outlier_frames(drawn, 0.05, by_channel=True)).mean(0)
    np.testing.assert_allclose(by_channel, 0.05, atol=0.02)


def test_frames_are_judged_by_the_weights_of_sequences(rng):
    """Those that weigh little hardly move the threshold of the others."""
    X, heavy = [rng.normal(8.0 * (i % 2), size=(20, 1)) for i in range(60)], np.arange(60) % 2 == 0
    weight = np.where(heavy, 100.0, 1.0)
    model = SequenceDensity(1, n_states=1, **QUICK).fit(X, sample_weight=weight)
    assert np.mean(model.outlier_frames(X[::2], 0.05)) == pytest.approx(0.05, abs=0.01)


def test_parts_in_time_are_explained(model, holed):
    """Values of channels in halves of a sequence add up to its log density."""
    found = model.explain(holed[:2], intervals=2, groups=[])
    np.testing.assert_allclose(
        found.values.sum(1) + found.base_values, model.score_samples(holed[:2]), EXACT
    )
    assert found.values.shape == (2, 4)


def test_an_impossible_frame_says_nothing_of_the_next(model, rows):
    """Scores of later frames stay finite and exact."""
    X = [sequence.copy() for sequence in rows.data[:2]]
    X[0][2] = 1e60
    for found in model.score_frames(X):
        assert np.isfinite(found).all()
    np.testing.assert_allclose(model.score_frames(X)[1], model.score_frames(X[1:])[0], EXACT)


# -- an estimator like others ------------------------------------------------------------------


def same(first, second, X):
    np.testing.assert_allclose(first.score_samples(X), second.score_samples(X), 1e-9)
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    for found, expected in zip(first.impute(X), second.impute(X), strict=True):
        np.testing.assert_allclose(found, expected, 1e-9)


def test_files_pickles_and_clones(model, holed, tmp_path):
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for other in (again, pickle.loads(pickle.dumps(model))):
        same(other, model, holed)
        assert set(vars(other)) == set(vars(model))
        found, expected = (each.outlier_frames(holed, 0.2) for each in (other, model))
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))
    fresh = clone(model)
    assert vars(fresh) == fresh.get_params(deep=False) == model.get_params(deep=False)
    with pytest.raises(NotFittedError):
        fresh.forecast(holed)
    assert "SequenceDensity" in model._repr_html_()


def test_fits_repeat_themselves_and_weigh(rows):
    """A weight of two is a sequence given twice, and a weight of zero one left out."""
    X, weight = rows.data[10:20], np.ones(10)
    weight[3], weight[8:] = 2.0, 0.0
    model = SequenceDensity(2, n_states=1, **QUICK).fit(X, sample_weight=weight)
    places = np.repeat(np.arange(10), weight.astype(int))
    same(model.fit([X[p] for p in places]), clone(model).fit(X, sample_weight=weight), X)


def test_searches(rows):
    model = SequenceDensity(1, n_states=1, **QUICK)
    assert cross_val_score(model, rows.data, cv=2).shape == (2,)
    search = GridSearchCV(model, {"n_states": [1, 2], "solver__tol": [0.5]}, cv=2).fit(rows.data)
    assert search.best_params_["n_states"] == 2


@pytest.mark.parametrize(
    ("density", "topology"),
    [
        ("diag", "ergodic"),
        ("spherical", "ergodic"),
        ("low_rank", "left_to_right"),
        ("student", "ergodic"),
    ],
)
def test_structures(density, topology, holed):
    model = SequenceDensity(2, n_states=2, density=density, chain=topology, **QUICK).fit(holed)
    scores = model.score_frames(holed)
    np.testing.assert_allclose(
        [np.nansum(s) for s in scores], model.score_samples(holed), 1e-8, 1e-12
    )
    assert np.isfinite(np.concatenate(model.impute(holed))).all()
    if density == "student":
        with pytest.raises(UnsupportedError, match="n_draws=100"):
            model.forecast(holed)
        assert np.isfinite(model.forecast(holed, 2, n_draws=2)).all()
    else:
        assert np.isfinite(model.forecast(holed, 2).quantiles()).all()


def test_what_is_said_along_the_way(rows):
    with pytest.warns(DegenerateDataWarning, match=r"exceeds the 3 sequences"):
        SequenceDensity(4, n_states=1, **QUICK).fit(rows.data[:3])
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        SequenceDensity(1, n_states=2, solver=EM(1), random_state=0).fit(rows.data)
    seen = []
    watched = SequenceDensity(1, n_states=2, **QUICK).set_callbacks(seen.append)
    watched.fit(rows.data)
    assert len(seen) == len(watched.history_) == watched.n_iter_
    with pytest.warns(ConvergenceWarning, match="max_time"):
        SequenceDensity(max_time=1e-3, random_state=0).fit(rows.data)


BAD = {
    "no steps": (lambda m, X: m.forecast(X, 0), "steps must be positive and whole"),
    "half a draw": (lambda m, X: m.forecast(X, n_draws=0.5), "positive and whole"),
    "quantile": (lambda m, X: m.forecast(X).quantiles([1.0]), "between 0 and 1"),
    "share": (lambda m, X: m.outlier_frames(X, 1.5), "between 0 and 1"),
    "lengths": (lambda m, X: m.sample(2, lengths=[1, 2, 3]), "one for each of the 2"),
    "labels": (lambda m, X: m.impute(X, np.zeros(len(X))), "no classes"),
    "matrix": (lambda m, X: m.fit(np.ones((3, 2))), "may mean two things"),
    "infinity": (lambda m, X: m.fit([[[np.inf]]]), "infinity"),
    "weights": (lambda m, X: m.fit(X, sample_weight=[1.0]), "sample_weight"),
    "channels": (lambda m, X: m.decode([np.ones((2, 3))]), "3 features"),
    "states": (lambda m, X: clone(m).set_params(n_states=0).fit(X), "n_states"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name, model, holed):
    ask, message = BAD[name]
    before = model.score_samples(holed)
    with pytest.raises((InvalidInputError, ValueError), match=message):
        ask(model, holed)
    np.testing.assert_array_equal(model.score_samples(holed), before)
