"""Poor sequences still give a sound model, with a warning where something was wrong."""

import warnings

import numpy as np
import pytest
from sequence_checks import toy_sequences
from small_sequences import grown, small

from mixtura import SequenceMixtureClassifier
from mixtura.exceptions import DegenerateDataWarning
from mixtura.solvers import EM, LBFGS

TOY, LABELS = toy_sequences()


def changed(function):
    return [function(sequence.copy(), label) for sequence, label in zip(TOY, LABELS, strict=True)]


def with_channel(value):
    def put(sequence, label):
        sequence[:, 1] = value(label) if callable(value) else value
        return sequence

    return changed(put)


POOR = {
    "length one": (changed(lambda s, _: s[1:2]), LABELS, None),
    "missing frames": (
        changed(lambda s, _: np.vstack([s, np.full((3, 2), np.nan), s])),
        LABELS,
        None,
    ),
    "missing sequences": ([*TOY, np.full((2, 2), np.nan)], np.append(LABELS, 1), None),
    "class of missing sequences": (
        changed(lambda s, label: s * np.nan if label == 2 else s),
        LABELS,
        None,
    ),
    "missing channel": (with_channel(np.nan), LABELS, "no observed value"),
    "constant channel": (with_channel(7.0), LABELS, "constant"),
    "constant in a class": (with_channel(lambda label: float(label)), LABELS, None),
    "all constant": (changed(lambda s, _: np.ones_like(s)), LABELS, "constant"),
    "one sequence a class": (TOY[:3], LABELS[:3], None),
    "one frame a class": ([s[1:2] for s in TOY[:3]], LABELS[:3], "more than the 1 frames"),
    "a class with one sequence": (TOY[:10] + TOY[11:12], np.append(np.arange(10) % 2, 2), None),
    "one sequence": (TOY[:1], LABELS[:1], "only the class 0"),
    "duplicates": ([TOY[label] for label in LABELS], LABELS, None),
    "huge and tiny": (changed(lambda s, _: s * [1e150, 1e-150]), LABELS, None),
    "large offset": (changed(lambda s, _: s + 1e8), LABELS, None),
    "outlier": ([TOY[0] * 1e12, *TOY[1:]], LABELS, None),
    "float32": (changed(lambda s, _: s.astype(np.float32)), LABELS, None),
    "integers": (changed(lambda s, _: np.nan_to_num(np.round(s)).astype(int)), LABELS, None),
}


@pytest.mark.parametrize("name", POOR)
@pytest.mark.parametrize("method", ["conditional", "boosted"])
def test_poor_data_give_sound_models(method, name):
    """No NaN anywhere; what cannot be used is named together with the remedy."""
    X, y, expected = POOR[name]
    model = SequenceMixtureClassifier(
        3, method=grown(method), init=EM(1), solver=LBFGS(1), calibrate=False, random_state=0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    messages = [str(w.message) for w in caught if w.category is DegenerateDataWarning]
    assert all("Remedy" in message for message in messages)
    assert (expected is None) == (not messages)
    assert expected is None or any(expected in message for message in messages)
    stray = [str(w.message) for w in caught if w.category is not DegenerateDataWarning]
    assert not stray, f"stray warnings: {stray}"
    proba = model.predict_proba(X)
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-9)
    assert np.isfinite(model.score_samples(X)).all()
    for sequences in (model.impute(X), model.sample(3, random_state=0)[0]):
        assert all(np.isfinite(sequence).all() for sequence in sequences)


def test_generative_growth_does_not_begin_with_nothing():
    """Stages begin with single sequences, some of which are wholly missing."""
    X, y, _ = POOR["missing sequences"]
    X = [s * np.nan if number < 4 else s for number, s in enumerate(X)]
    model = SequenceMixtureClassifier(
        2, method=grown("boosted_generative"), init=EM(2), calibrate=False, random_state=0
    )
    assert np.isfinite(model.fit(X, y).predict_proba(X)).all()


@pytest.mark.parametrize("density", ["full", "spherical", "low_rank"])
@pytest.mark.parametrize("name", ["length one", "all constant", "one frame a class", "outlier"])
def test_poor_data_with_every_structure(name, density):
    """Left to right, more states than frames, and no prior that could help."""
    X, y, _ = POOR[name]
    model = SequenceMixtureClassifier(
        4,
        method="ml",
        density=density,
        chain="left_to_right",
        prior_rows=0,
        init=EM(3),
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        model.fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.score_samples(X)).all()


def test_ten_thousand_frames():
    """A long sequence is one among others."""
    long = np.tile(TOY[7], (10_000 // len(TOY[7]), 1))
    model = small("ml").fit([*TOY[:6], long], [*LABELS[:6], 1])
    proba = model.predict_proba([long, TOY[7]])
    np.testing.assert_allclose(proba.sum(1), 1.0, 1e-9)
    assert proba[0].argmax() == 1
