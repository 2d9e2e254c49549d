"""Classifiers by summaries of sequences, and how they stand beside hidden Markov models."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from waves import ANY_LENGTH, sequence_engine, summed_up, waves

from mixtura import SequenceMixtureClassifier, load
from mixtura.data.sequence_input import read_sequences
from mixtura.datasets import make_hmm_sequences
from mixtura.exceptions import DegenerateDataWarning, NoDensityError
from mixtura.selection.held_out import Answers
from mixtura.solvers import EM

FAST = {"init": EM(3), "n_states": 2, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return *waves(rng, 40), *waves(rng, 60)


@pytest.fixture(scope="module")
def both(data):
    return SequenceMixtureClassifier(**FAST).fit(*data[:2])


@pytest.fixture(scope="module")
def summary(data):
    return SequenceMixtureClassifier(representation="summary", random_state=0).fit(*data[:2])


# -- the estimator ---------------------------------------------------------------------------------


def test_frames_far_out_have_an_answer(summary, data):
    found = summary.predict_proba([data[2][0] * factor for factor in (1e9, 1e100, 1e200)])
    assert_allclose(found.sum(1), 1.0)
    assert_allclose(found[1], found[2])  # both are cut at the same values


def test_the_default_weighs_both_and_keeps_all_answers(both, data):
    X, y = data[2:]
    assert both.score(X, y) > 0.95
    assert both.representation_ in ("both", "summary")
    assert both.model_.blend.weights.sum() == pytest.approx(1.0)
    assert_allclose(both.predict_proba(X).sum(1), 1.0)
    assert_allclose(both.predict_proba(X[:1]), both.predict_proba(X)[:1], rtol=1e-5)
    assert np.isfinite(both.score_samples(X)).all()
    drawn, _ = both.sample(3, random_state=0)
    assert len(drawn) == 3
    assert both.decode(X[:1])[0].shape == (len(X[0]),)
    questions = {row["question"] for row in both.choice_}
    assert questions == {"representation", "states"}


def test_failed_channels_and_lost_frames_cost_little(both, data):
    X, y = data[2:]
    rng = np.random.default_rng(0)
    failed = [np.where([True, False], np.nan, frames) for frames in X]
    lost = [np.where(rng.random((len(frames), 1)) < 0.3, np.nan, frames) for frames in X]
    assert both.score(failed, y) > 0.9
    assert both.score(lost, y) > 0.9
    nothing = [np.full((5, 2), np.nan)]
    assert_allclose(both.predict_proba(nothing)[0], both.class_prior_)


def test_explanations_add_up_to_the_answer(both, data):
    X = data[2][:2]
    found = both.explain(X)
    assert_allclose(found.values.sum(1) + found.base_values, both.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("name", ["both", "summary"])
def test_saved_models_answer_the_same(name, request, data, tmp_path):
    model = request.getfixturevalue(name)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert_allclose(again.predict_proba(data[2]), model.predict_proba(data[2]), rtol=1e-9)
    assert again.representation_ == model.representation_


def test_summaries_alone_have_no_density(summary, data):
    X, y = data[2:]
    assert summary.score(X, y) > 0.95
    assert not hasattr(summary, "n_states_")
    for ask in (summary.score_samples, summary.decode, summary.impute, summary.is_outlier):
        with pytest.raises(NoDensityError, match="representation='auto'"):
            ask(X)
    assert np.isfinite(summary.predict_log_proba(X)).all()


def test_a_named_method_asks_for_states_alone(data):
    named, asked = (
        SequenceMixtureClassifier(method="ml", representation=each, **FAST).fit(*data[:2])
        for each in ("auto", "states")
    )
    assert named.representation_ == asked.representation_ == "states"
    assert named.model_.blend is None
    assert_allclose(named.predict_log_proba(data[2]), asked.predict_log_proba(data[2]))


def test_states_win_where_summaries_cannot_tell():
    train = make_hmm_sequences(30, length=(20, 30), random_state=0)
    model = SequenceMixtureClassifier(n_states=4, init=EM(10), random_state=0)
    model.fit(train.data, train.target)
    assert model.model_.blend.weights[0] > 0.5


def test_little_time_leaves_summaries_out(data):
    with pytest.warns(UserWarning, match="max_time"):
        model = SequenceMixtureClassifier(max_time=1e-6, **FAST).fit(*data[:2])
    assert model.representation_ == "states"


@pytest.mark.parametrize("representation", ["auto", "states", "summary"])
def test_a_dozen_sequences_make_nobody_certain(representation):
    """Labels are chance; doubt is that of 12 rows: 20 of 40 imagined ones are wrong."""
    rng = np.random.default_rng(7)
    X = [rng.normal(size=(rng.integers(20, 60), 2)).cumsum(0) for _ in range(72)]
    model = SequenceMixtureClassifier(representation=representation, random_state=0)
    with pytest.warns(DegenerateDataWarning, match="kept away from 0 and 1"):
        model.fit(X[:12], np.repeat([0, 1], 6))
    assert model.predict_proba(X[12:]).min() >= 0.5 * 20.0 / (40.0 + 12.0) - 1e-12


def test_of_few_sequences_summaries_have_most_of_the_say(data):
    with pytest.warns(DegenerateDataWarning, match="too few"):
        model = SequenceMixtureClassifier(**FAST).fit(data[0][:8], data[1][:8])
    assert model.model_.blend.weights.tolist() == [0.05, 0.95]


# -- odd sequences ---------------------------------------------------------------------------------


def odd(name, rng):
    X, y = waves(rng, 16)
    if name == "one long":
        X[0] = np.tile(X[0], (150, 1))
    elif name == "wholly missing":
        X[3] = np.full_like(X[3], np.nan)
    elif name == "constant channel":
        X = [np.column_stack([frames[:, 0], np.ones(len(frames))]) for frames in X]
    elif name == "channel of one class":
        X = [np.where([False, label == 0], np.nan, f) for f, label in zip(X, y, strict=True)]
    elif name == "single frames":
        X = [frames[:1] + label for frames, label in zip(X, y, strict=True)]
    elif name == "many channels":
        X = [np.tile(frames, 10) + 0.1 * rng.normal(size=(len(frames), 20)) for frames in X]
    elif name == "float32":
        X = [(1e3 + frames).astype(np.float32) for frames in X]
    elif name == "a class of one":
        y[-1] = 2
    elif name == "far away":
        X[0] = X[0] * 1e8
    return X, y


@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
@pytest.mark.parametrize(
    "name",
    [
        "one long",
        "wholly missing",
        "constant channel",
        "channel of one class",
        "single frames",
        "many channels",
        "float32",
        "a class of one",
        "far away",
    ],
)
def test_odd_sequences(name):
    X, y = odd(name, np.random.default_rng(0))
    model = SequenceMixtureClassifier(representation="summary", random_state=0).fit(X, y)
    found = model.predict_proba(X)
    assert np.isfinite(found).all()
    assert_allclose(found.sum(1), 1.0)
    assert model.score(X, y) > 0.8


def test_summaries_unlike_training_have_less_of_a_say(both, summary, data):
    """Cut off, a sequence is like none of training: states decide, and nobody is sure."""
    X = data[2]
    cut = [frames[:4] for frames in X]
    with pytest.warns(DegenerateDataWarning, match="4 frames of sequence 0, in training 20 to 39"):
        unsure = summary.predict_proba(cut)
    with pytest.warns(DegenerateDataWarning, match="60 sequence"):
        found = both.predict_log_proba(cut)
    assert unsure.max() < 0.6 < summary.predict_proba(X).max(1).min()
    assert_allclose(unsure.sum(1), 1.0)
    model, member = both.model_, both.model_.blend.members[0]
    engine = model.engine(read_sequences(cut), "cpu")
    joint = member.class_log_joint(engine)
    say = np.exp(joint).sum(1)
    assert say.max() < 0.1
    states = replace(model, blend=None).log_proba(engine)
    average = np.exp(states) * model.blend.weights[0]
    average += (
        np.exp(member.calibration.log_proba(torch.from_numpy(joint)).numpy())
        * (model.blend.weights[1])
    )
    final = model.blend.calibration.log_proba(torch.from_numpy(np.log(average))).exp().numpy()
    expected = say[:, None] * final + (1.0 - say[:, None]) * np.exp(states)
    assert_allclose(np.exp(found), expected, rtol=1e-9)


def test_usual_distances_are_those_of_sequences_left_out(rng):
    """By plain loops over sequences, means without each, channels that are there."""
    x, y = rng.normal(size=(30, 3, 2)), np.arange(30) % 2
    x += y[:, None, None]
    seen = rng.random((30, 3)) < 0.8
    x *= seen[..., None]
    weight = torch.ones(30, dtype=torch.float64)
    rows = summed_up([], [], torch.from_numpy(seen), torch.from_numpy(y), weight, [], ANY_LENGTH)
    means = np.stack([[x[(y == c) & s, d].mean(0) for d, s in enumerate(seen.T)] for c in (0, 1)])
    found = rows._usual(torch.from_numpy(x), torch.from_numpy(means)).numpy()
    own, far = np.zeros((30, 3)), np.zeros(30)
    for row in range(30):
        squares = ((x[row] - means) ** 2).sum(2) * seen[row]
        squares[y[row]] *= (15 / 14) ** 2
        own[row], far[row] = squares[y[row]], squares.sum(1).min()
    each = own.sum(0) / seen.sum(0)
    share = np.quantile(far / np.maximum(seen @ each, 1e-300), 0.95)
    assert_allclose(found, 2.0 * share * each)


@pytest.mark.parametrize("representation", ["summary", "both"])
@pytest.mark.filterwarnings("ignore::mixtura.exceptions.DegenerateDataWarning")
def test_channels_that_do_not_vary_within_classes_have_answers(representation):
    """Where such a channel is all there is: noise of 1e-9 silences no summary."""
    rng, y = np.random.default_rng(0), np.arange(40) % 2
    slopes = (2.0 * y[:, None] - 1.0) * np.linspace(0, 1, 30)
    X = np.stack([rng.normal(size=(40, 30)).cumsum(1), slopes], 2)
    new = X * [np.nan, 1.0]
    options = FAST if representation == "both" else {"random_state": 0}
    model = SequenceMixtureClassifier(representation=representation, **options).fit(X, y)
    sure = model.predict_proba(new)
    assert (sure.argmax(1) == y).all()
    for noise in (1e-9, -1e-9, 1e-9 * rng.normal(size=new.shape)):
        assert_allclose(model.predict_proba(new + noise), sure, atol=0.01)
    for other in (new[:, :10], new + np.sin(np.arange(30.0))[:, None]):
        found = model.predict_proba(other)
        assert_allclose(found.sum(1), 1.0)
        if representation == "summary":
            assert found.max() < 0.6


def test_the_farthest_summaries_have_finite_answers(summary, data):
    """Even where nothing at all is usual."""
    model = replace(summary.model_.model, usual=torch.zeros(2).double())
    joint = model.class_log_joint(summary.model_.engine(read_sequences(data[2]), "cpu").all_rows())
    assert_allclose(joint.logsumexp(1), -100.0)


def test_log_joints_of_summaries_are_no_sums_over_frames(both, data):
    """Their temperature is not expected to be the root of the number of frames."""
    engine = sequence_engine(*data[:2])
    models = both.model_.model, both.model_.blend.members[0].model
    said = [Answers.of(each, engine, torch.Generator()) for each in models]
    assert [each.frames.max() > 1.0 for each in said] == [True, False]


def test_pickles_that_lack_later_fields_answer(summary, data):
    """As if every distance and every length were usual."""
    old = copy(summary.model_.model)
    del vars(old)["usual"], vars(old)["lengths"]
    batch = summary.model_.engine(read_sequences(data[2]), "cpu").all_rows()
    assert_allclose(old.to("cpu").class_log_joint(batch).logsumexp(1), 0.0, atol=1e-12)
