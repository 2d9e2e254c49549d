"""Solvers: how a model is improved on an objective. A new one is a class with a `run`."""

from collections.abc import Callable

from mixtura.solvers.adam import Adam
from mixtura.solvers.base import FitResult, Penalty, Solver, SpreadPrior
from mixtura.solvers.ebw import EBW
from mixtura.solvers.em import EM
from mixtura.solvers.gradients import Best
from mixtura.solvers.lbfgs import LBFGS
from mixtura.solvers.linked import LinkedEM
from mixtura.solvers.stages import GROWING, Boosted

#: What the names of solvers are shorthand for.
SOLVERS: dict[str, Callable[[], Solver]] = {"em": EM, "ebw": EBW, "adam": Adam, "lbfgs": LBFGS}

__all__ = [
    "EBW",
    "EM",
    "GROWING",
    "LBFGS",
    "SOLVERS",
    "Adam",
    "Best",
    "Boosted",
    "FitResult",
    "LinkedEM",
    "Penalty",
    "Solver",
    "SpreadPrior",
]
