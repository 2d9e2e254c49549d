"""Fisher scores against finite differences of the class densities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    SequenceMixtureClassifier,
)
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import LowRank
from mixtura.exceptions import NoDensityError, UnsupportedError
from mixtura.solvers import EM, Boosted

PLAIN = {"early_stopping": False, "calibrate": False, "random_state": 0}
ML = SequenceMixtureClassifier(2, method="ml", init=EM(5), **PLAIN)


@pytest.fixture(scope="module")
def sequences():
    """Short sequences of two classes, with holes."""
    rows = make_hmm_sequences(10, length=(3, 6), random_state=0)
    X = [sequence.copy() for sequence in rows.data]
    X[0][1], X[1][:, 0], X[2][0, 1] = np.nan, np.nan, np.nan
    return X, rows.target


MODELS = {
    "classifier": MixtureClassifier([2, 1, 1], density="full", objective="likelihood"),
    "density": MixtureDensity(3, density=LowRank(1, floor=0.01), random_state=0),
    "one component": MixtureClassifier(1, density="diag", objective="likelihood"),
    "boosted": BoostedMixtureClassifier(density="diag", n_stages=2, **PLAIN),
    "hidden Markov": ML,
    "left to right": clone(ML).set_params(chain="left_to_right", density="full"),
    "boosted sequences": clone(ML).set_params(method=Boosted(n_stages=2)),
}


def class_log_density(mixture, batch, vector):
    """Sum over the classes of log p(x | c), (n,), of a model whose parameters are in a vector."""
    free, used = mixture.density.free(), 0
    for name, value in free.items():
        part = vector[used : used + value.numel()]
        free[name], used = part.view_as(value), used + value.numel()
    changed = replace(mixture, density=mixture.density.from_free(free))
    if used < len(vector):
        changed = replace(changed, log_weight=changed.normalize_weight(vector[used:]))
    return (changed.class_log_joint(batch) - changed.log_prior).sum(1)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_derivatives(name, sequences, holey_iris):
    """Central differences, parameter by parameter; other classes do not depend on them."""
    sequential = isinstance(MODELS[name], SequenceMixtureClassifier)
    X, y = sequences if sequential else (holey_iris[0][::10, :3], holey_iris[1][::10])
    transformer = FisherScores(MODELS[name]).fit(X, y)
    found = transformer.transform(X)
    model = transformer.estimator_
    mixture = model.mixture_
    batch = model._engine(X).all_rows()
    parts = list(mixture.density.free().values())
    if mixture.n_components > mixture.n_classes:
        parts.append(mixture.log_weight)
    vector = torch.cat([part.flatten() for part in parts])
    assert found.shape == (len(X), len(vector))
    step = 1e-5
    for place, nudge in enumerate(step * torch.eye(len(vector), dtype=torch.float64)):
        high, low = (class_log_density(mixture, batch, vector + sign * nudge) for sign in (1, -1))
        slope = (high - low) / (2.0 * step)
        np.testing.assert_allclose(found[:, place], slope, 1e-5, 1e-5)


def test_every_row_for_itself(sequences):
    """One at a time is all at once, beyond the rows that are worked on together."""
    X, y = sequences
    transformer = FisherScores(ML).fit(X, y)
    together = transformer.transform(X)
    assert len(X) > 16
    apart = np.concatenate([transformer.transform([sequence]) for sequence in X])
    np.testing.assert_allclose(apart, together, 1e-9, 1e-9)


def test_scores_feed_a_support_vector_machine(rng):
    """The Fisher kernel tells the classes apart, in a pipeline that can be cross-validated."""
    y = np.arange(40) % 2
    X = [2.0 * label + rng.normal(size=(rng.integers(2, 9), 2)) for label in y]
    model = make_pipeline(FisherScores(ML), StandardScaler(), SVC())
    assert cross_val_score(model, X, y, cv=2).mean() > 0.8


def test_names_and_parameters(sequences):
    """As scikit-learn has it."""
    X, y = sequences
    transformer = FisherScores(ML).fit(X, y)
    names = transformer.get_feature_names_out()
    assert len(names) == transformer.transform(X).shape[1]
    assert names[0] == "fisherscores0"
    changed = clone(transformer).set_params(estimator__n_states=3)
    assert changed.estimator.n_states == 3
    assert not hasattr(changed, "estimator_")


def test_a_frozen_estimator_is_taken_as_it_is(sequences):
    """And survives cloning, as cross-validation does it; an unfitted one is refused."""
    X, y = sequences
    model = clone(ML).fit(X, y)
    transformer = clone(FisherScores(FrozenEstimator(model))).fit(X)
    np.testing.assert_allclose(transformer.transform(X), FisherScores(ML).fit(X, y).transform(X))
    with pytest.raises(NotFittedError):
        FisherScores(FrozenEstimator(ML)).fit(X)
    with pytest.raises(NotFittedError):
        FisherScores(ML).transform(X)


REFUSED = {
    "foreign": (LogisticRegression(), UnsupportedError, "LogisticRegression has no density"),
    "votes": (clone(ML).set_params(method="adaboost"), NoDensityError, "use another method"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_density(name, sequences):
    """The message says what to use instead."""
    estimator, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        FisherScores(estimator).fit(*sequences)


def test_pairs_have_no_density(sequences):
    """Three classes and a model for each pair."""
    X, y = sequences
    y = np.arange(len(y)) % 3
    with pytest.raises(NoDensityError, match="direct"):
        FisherScores(clone(ML).set_params(multiclass="pairwise")).fit(X, y)


@pytest.mark.parametrize("name", ["classifier", "density", "boosted sequences"])
@pytest.mark.parametrize("frozen", [False, True])
def test_file_gives_the_scores_back(name, frozen, iris, sequences, tmp_path):
    X, y = sequences if "sequences" in name else iris
    estimator = clone(MODELS[name])
    if frozen:
        estimator = FrozenEstimator(estimator.fit(X, y))
    scores = FisherScores(estimator).fit(X, y)
    scores.save(tmp_path / "scores")
    again = mixtura.load(tmp_path / "scores")
    np.testing.assert_array_equal(again.transform(X), scores.transform(X))
    assert again.get_feature_names_out().tolist() == scores.get_feature_names_out().tolist()
    assert clone(again).fit(X, y).transform(X).shape == scores.transform(X).shape


def test_scores_that_are_not_fitted_are_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        FisherScores(ML).save(tmp_path / "scores")
