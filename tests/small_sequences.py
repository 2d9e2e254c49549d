"""Classifiers of sequences that are trained in no time, for several tests."""

from mixtura import SequenceMixtureClassifier
from mixtura.solvers import EM, GROWING, LBFGS, Boosted

PLAIN = {"early_stopping": False, "calibrate": False, "random_state": 0}


def small(method, max_iter=1, solver=LBFGS, **options):
    """A classifier that is trained in no time."""
    training = {"init": EM(max_iter), "solver": solver(max_iter)}
    method = grown(method)
    return SequenceMixtureClassifier(2, method=method, **training, **PLAIN, **options)


def grown(method, n_stages=2):
    """So many stages, where there are any."""
    return Boosted(method, n_stages) if method in GROWING else method
