"""The classifier of sequences: our own checks of an estimator, hmmlearn, and what it answers."""

import pickle

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sequence_checks import (
    SEQUENCE_ESTIMATOR_CHECKS,
    check_one_class,
    check_sequence_estimator,
    check_storage,
    check_weights,
    toy_sequences,
)
from sklearn.base import clone
from small_sequences import PLAIN, grown, small

from mixtura import SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, NoDensityError
from mixtura.solvers import EBW, EM, LBFGS, Adam

THOROUGH = {
    "ml": small("ml", 3),
    "boosted": small("boosted"),
    "adaboost": small("adaboost"),
}
OTHERS = {
    "pairwise": small("ml", 3, multiclass="pairwise"),
    "conditional": small("conditional", density="full"),
    "EBW": small("smooth_margin", 3, solver=EBW),
    "Adam": small("margin", solver=Adam, chain="left_to_right"),
    "boosted_generative": small("boosted_generative"),
}


@pytest.mark.parametrize("check", SEQUENCE_ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", THOROUGH)
def test_estimator(name, check):
    """Every check, as scikit-learn has them for matrices."""
    check(THOROUGH[name])


@pytest.mark.parametrize(
    "check", [check_storage, check_weights, check_one_class], ids=lambda check: check.__name__
)
@pytest.mark.parametrize("name", OTHERS)
def test_other_methods(name, check):
    """What may go wrong in a method or a solver of its own."""
    check(OTHERS[name])


def test_check_sequence_estimator_runs_every_check(monkeypatch):
    """A new classifier inherits all checks by one call."""
    ran = []
    checks = [ran.append] * 3
    monkeypatch.setattr("sequence_checks.SEQUENCE_ESTIMATOR_CHECKS", checks)
    check_sequence_estimator(THOROUGH["ml"])
    assert ran == [THOROUGH["ml"]] * 3


@pytest.fixture(scope="module")
def data():
    """Enough sequences to hold some back, with holes."""
    rows = make_hmm_sequences(15, length=(6, 10), random_state=0)
    X = [sequence.copy() for sequence in rows.data]
    X[0][2], X[1][:, 1], X[2][-1, 0] = np.nan, np.nan, np.nan
    return X, rows.target


@pytest.fixture(scope="module")
def model(data):
    """One model a class."""
    return clone(THOROUGH["ml"]).set_params(init=EM(20)).fit(*data)


# -- held back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ml", "conditional", "boosted"])
def test_held_back_sequences(method, data):
    """Order and calibration are chosen; probabilities are sound and not too sure of themselves."""
    X, y = data
    model = SequenceMixtureClassifier(
        2, method=grown(method), init=EM(2), solver=LBFGS(2), random_state=0
    )
    model.fit(X, y)
    assert 1 <= model.n_stages_ <= 2
    assert len(model.stage_weights_) == model.n_stages_
    assert model.doubt_ > 0.0
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-9)
    assert proba.max() < 1.0


def test_states_are_chosen(data, monkeypatch):
    """Of those that "auto" compares."""
    monkeypatch.setattr("mixtura.estimators.representing._STATES", (1, 2))
    model = SequenceMixtureClassifier(method="ml", init=EM(3), random_state=0).fit(*data)
    assert model.n_states_ in (1, 2)
    assert model.means_.shape == (2, model.n_states_, 2)


def test_discriminative_training_knows_when_to_stop(data):
    """Every leg is a candidate; without early stopping the last one is taken."""
    X, y = data
    model = SequenceMixtureClassifier(
        2, method="conditional", init=EM(30), solver=LBFGS(30), **PLAIN
    ).fit(X, y)
    ml = SequenceMixtureClassifier(2, method="ml", init=EM(30), **PLAIN).fit(X, y)

    def conditional(fitted):
        return fitted.predict_log_proba(X)[np.arange(len(y)), y].mean()

    assert conditional(model) > conditional(ml) + 0.05
    assert model.score_samples(X).mean() < ml.score_samples(X).mean()


def test_starts_from_single_sequences_reach_further():
    """Classes of two kinds each, which single models near maximum likelihood do not tell."""
    train, test = (make_hmm_sequences(40, random_state=seed) for seed in (10, 11))

    def error(n_init):
        init = EM(20, n_init=n_init)
        model = SequenceMixtureClassifier(2, method="conditional", init=init, **PLAIN)
        return 1.0 - model.fit(train.data, train.target).score(test.data, test.target)

    assert error(6) < 0.1 < 0.2 < error(1)


def test_iterations_may_come_from_numpy():
    """As those of a search do: they are the same number."""
    rows = make_hmm_sequences(10, random_state=0)

    def iterations(max_iter):
        model = SequenceMixtureClassifier(2, method="conditional", solver=LBFGS(max_iter), **PLAIN)
        history = model.fit(rows.data, rows.target).history_
        return sum(record["stage"] == "L-BFGS" for record in history)

    assert iterations(np.int64(5)) == iterations(5) == 5


def test_boosting_adds_where_classes_meet():
    """The synthetic task: two kinds of sequences a class, and one model is too few."""
    train, test = (make_hmm_sequences(40, length=(20, 30), random_state=seed) for seed in (0, 1))
    scores = {
        method: SequenceMixtureClassifier(
            2, method=grown(method, 3), init=EM(10), solver=LBFGS(10), **PLAIN
        )
        .fit(train.data, train.target)
        .score(test.data, test.target)
        for method in ("ml", "boosted")
    }
    assert scores["boosted"] > scores["ml"]
    assert scores["boosted"] > 0.85


# -- answers -----------------------------------------------------------------------------------


def test_densities_agree_with_hmmlearn(data):
    """log p(x | class) in the user's units, sequence by sequence."""
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    X, y = data
    whole, labels = X[3:], y[3:]
    scaled = [sequence * [10.0, 0.1] + [3.0, -5.0] for sequence in whole]
    model = clone(THOROUGH["ml"]).fit(scaled, labels)
    found = model.class_log_density(scaled)
    density = model.mixture_.density
    for label in (0, 1):
        theirs = hmmlearn.GaussianHMM(2, "full")
        theirs.startprob_ = density.log_start[label].exp().numpy()
        theirs.transmat_ = density.log_transition[label].exp().numpy()
        theirs.means_, theirs.covars_ = model.means_[label], model.covariances_[label]
        expected = [theirs.score(sequence) for sequence in scaled]
        np.testing.assert_allclose(found[:, label], expected, 1e-8)
        paths = [theirs.decode(sequence)[1].tolist() for sequence in scaled]
        mine = model.predict(scaled) == label
        decoded = [path.tolist() for path in model.decode(scaled)]
        assert [p for p, own in zip(decoded, mine, strict=True) if own] == [
            p for p, own in zip(paths, mine, strict=True) if own
        ]
    total = logsumexp(found + np.log(model.class_prior_), axis=1)
    np.testing.assert_allclose(model.score_samples(scaled), total, 1e-9)


def test_units_do_not_matter(data):
    """Channels in other units give the same probabilities."""
    X, y = data
    expected = clone(THOROUGH["boosted"]).fit(X, y).predict_proba(X)
    other = [sequence * [1e-6, 1e6] + [1.0, -1e7] for sequence in X]
    found = clone(THOROUGH["boosted"]).fit(other, y).predict_proba(other)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_imputation(data, model):
    """Observed values come back to the bit, missing ones from what is around them."""
    X, y = data
    filled = model.impute(X, y)
    assert [sequence.shape for sequence in filled] == [sequence.shape for sequence in X]
    for sequence, whole in zip(X, filled, strict=True):
        seen = ~np.isnan(sequence)
        np.testing.assert_array_equal(whole[seen], sequence[seen])
        assert np.isfinite(whole).all()
    draws = model.impute(X, n_draws=3, random_state=0)
    assert len(draws) == 3
    assert not np.array_equal(draws[0][0], draws[1][0])
    np.testing.assert_array_equal(draws[0][3], X[3])


def test_sampling(model):
    """Lengths, labels and units as asked for; the model knows its own."""
    drawn, labels = model.sample(300, random_state=0)
    assert {len(sequence) for sequence in drawn} <= set(range(6, 11))
    assert set(labels) == {0, 1}
    assert (model.predict(drawn) == labels).mean() > 0.7
    drawn, labels = model.sample(3, y=1, lengths=[1, 20, 5], random_state=0)
    assert [sequence.shape for sequence in drawn] == [(1, 2), (20, 2), (5, 2)]
    assert labels.tolist() == [1, 1, 1]
    again, _ = model.sample(3, y=1, lengths=[1, 20, 5], random_state=0)
    np.testing.assert_array_equal(drawn[1], again[1])


BAD_QUESTIONS = {
    "no length": (lambda m: m.sample(2, lengths=0), "positive"),
    "half a length": (lambda m: m.sample(2, lengths=1.5), "whole number"),
    "too few lengths": (lambda m: m.sample(3, lengths=[1, 2]), "one for each of the 3"),
    "unknown label": (lambda m: m.sample(2, y=9), "not among the classes"),
    "no samples": (lambda m: m.sample(0), "positive and whole"),
    "labels to impute": (lambda m: m.impute([np.ones((2, 2))], [0, 1]), "2 entries.*1 rows"),
    "share": (lambda m: m.is_outlier([np.ones((2, 2))], share=2.0), "between 0 and 1"),
    "one sequence": (lambda m: m.predict(np.ones((2, 2))), r"\[X\] for one sequence"),
}


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_questions_are_refused(name, model):
    """Each with a message that names the problem."""
    ask, message = BAD_QUESTIONS[name]
    with pytest.raises(InvalidInputError, match=message):
        ask(model)


def test_outliers(data, model):
    """Sequences of another world, whatever their length."""
    X, _ = data
    assert not model.is_outlier(X, share=0.0).any()
    assert model.is_outlier(X, share=1.0).mean() > 0.9
    strange = [np.full((1, 2), 50.0), np.full((500, 2), 50.0)]
    assert model.is_outlier(strange).all()
    assert not model.is_outlier([np.tile(X[5], (40, 1))]).any()


def test_unknown_sequences_get_the_prior(model):
    """Nothing observed: the class prior, and no density to speak of."""
    unknown = [np.full((5, 2), np.nan)]
    np.testing.assert_allclose(model.predict_proba(unknown)[0], model.class_prior_, 1e-9)
    np.testing.assert_allclose(model.score_samples(unknown), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    "estimator", [THOROUGH["adaboost"], OTHERS["pairwise"]], ids=["adaboost", "pairwise"]
)
def test_votes_are_no_density(estimator):
    """Whoever asks for one is told what to do."""
    X, y = toy_sequences()
    model = clone(estimator).fit(X, y)
    for method in ("score_samples", "impute", "transform", "decode", "is_outlier", "sample"):
        with pytest.raises(NoDensityError, match=r"use another method|multiclass='direct'"):
            getattr(model, method)(3 if method == "sample" else X)


def test_pairs_of_two_classes_are_direct(data):
    """There is one pair, and it has a density."""
    X, y = data
    pairs, direct = clone(OTHERS["pairwise"]).fit(X, y), clone(THOROUGH["ml"]).fit(X, y)
    np.testing.assert_array_equal(pairs.score_samples(X), direct.score_samples(X))


@pytest.mark.parametrize("topology", ["ergodic", "left_to_right"])
@pytest.mark.parametrize("density", ["diag", "full", "spherical", "low_rank"])
def test_structures(density, topology, data):
    """Every emission and topology, with holes."""
    X, y = data
    model = small("ml", density=density, chain=topology).fit(X, y)
    assert model.score(X, y) > 0.6
    assert model.means_.shape == (2, 2, 2)
    assert model.covariances_.shape == (2, 2, 2, 2)
    if topology == "left_to_right":
        assert all((np.diff(path) >= 0).all() for path in model.decode(X))


def test_single_precision(data):
    """float32 gives what float64 gives, to single precision."""
    X, y = data
    expected = clone(THOROUGH["ml"]).fit(X, y).predict_proba(X)
    single = [sequence.astype(np.float32) for sequence in X]
    model = clone(THOROUGH["ml"]).fit(single, y)
    np.testing.assert_allclose(model.predict_proba(single), expected, 1e-3, 1e-3)
    assert model.impute(single)[0].dtype == np.float32


def test_unlabeled_sequences_are_left_out(data):
    """With a warning that names the remedy."""
    X, y = data
    some = np.where(np.arange(len(y)) % 3 == 0, -1, y)
    with pytest.warns(DegenerateDataWarning, match=r"unlabeled row.*Remedy"):
        model = clone(THOROUGH["ml"]).fit(X, some)
    kept = np.flatnonzero(some >= 0)
    expected = clone(THOROUGH["ml"]).fit([X[place] for place in kept], y[kept])
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), 1e-9, 1e-12)


@pytest.mark.parametrize("value", [1e20, -1e100, 1e300])
def test_sequences_a_world_away_have_probabilities(value, model):
    """Whatever finite number is asked about, the answer is not NaN."""
    strange = np.ones((4, 2))
    strange[2, 1] = value
    np.testing.assert_allclose(model.predict_proba([strange]).sum(1), 1.0, 1e-9)
    assert not np.isnan(model.score_samples([strange])).any()
    assert model.is_outlier([strange]).all()


def test_a_failed_fit_leaves_the_old_model(data):
    """A refit that raises half-way answers as before."""

    def fail(record):
        raise RuntimeError("stop here")

    X, y = data
    model = clone(THOROUGH["ml"]).fit(X, y)
    before = model.predict_proba(X)
    model.set_callbacks(fail)
    with pytest.raises(RuntimeError, match="stop here"):
        model.fit([sequence[:, :1] for sequence in X], np.array(["a", "b"])[y])
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize(
    "method", ["ml", "conditional", "boosted", "boosted_generative", "adaboost"]
)
def test_time_runs_out(method, data):
    """A limit ends training early, with a model."""
    model = SequenceMixtureClassifier(method=method, max_time=1e-6, random_state=0).fit(*data)
    assert model.n_states_ == 3
    assert model.score(*data) > 0.6


@pytest.mark.parametrize(("name", "stages"), [("boosted", {"boosting"}), ("ml", {"EM"})])
def test_callbacks_see_the_course(name, stages, data):
    """One record a step, the same as in the history."""
    seen = []
    model = clone(THOROUGH[name]).set_callbacks(seen.append).fit(*data)
    assert {record["stage"] for record in seen} == stages
    assert [r["objective"] for r in model.history_] == [r["objective"] for r in seen]


def test_pairs_share_the_time(clock):
    """Ten pairs in about the time that was allowed for all."""
    data = make_hmm_sequences(40, length=(20, 30), random_state=0)
    model = SequenceMixtureClassifier(
        6, method="boosted", multiclass="pairwise", max_time=2.0, random_state=0
    )
    model.fit(data.data, np.arange(80) % 5)
    assert clock.now < 4.0  # each pair takes a step, and looks at the clock a few times
    assert len(model.pairwise_.estimators_) == 10


def test_a_channel_that_a_class_lacks_keeps_its_spread():
    """What was never observed is as wide as elsewhere, not as narrow as can be."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(30, 2)) * [1.0, 3.0] for _ in range(20)]
    y = np.arange(20) % 2
    holed = [np.where([True, label == 1], x, np.nan) for x, label in zip(X, y, strict=True)]
    model = clone(THOROUGH["ml"]).set_params(n_states=1).fit(holed, y)
    spread = np.sqrt(model.covariances_[:, 0, 1, 1])
    assert 0.5 < spread[0] / spread[1] < 2.0


def test_models_do_not_keep_what_they_scored():
    """However much a model has seen, its pickle stays small."""
    model = clone(THOROUGH["ml"]).fit(*toy_sequences())
    before = len(pickle.dumps(model))
    model.score_samples([np.zeros((5_000, 2))])
    with torch.no_grad():
        model.mixture_.class_log_joint(model._engine(toy_sequences()[0]).all_rows())
    assert len(pickle.dumps(model)) < 1.5 * before


@pytest.mark.parametrize("solver", [EBW(2, early_stopping=True), Adam(2)])
def test_early_stopping_of_a_solver_holds_sequences_out(solver):
    """Its iterations are judged by sequences that it is not trained on."""
    rows = make_hmm_sequences(20, random_state=0)
    model = SequenceMixtureClassifier(1, method="margin", solver=solver, calibrate=False)
    model.set_params(early_stopping=False, random_state=0).fit(rows.data, rows.target)
    assert "validation_error" in model.history_[-1]
    model.set_params(solver__early_stopping=False).fit(rows.data, rows.target)
    assert "validation_error" not in model.history_[-1]
