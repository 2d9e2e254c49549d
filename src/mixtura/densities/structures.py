"""Which density the numbers of a row get: a kind, its settings, and how training of it begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from mixtura.data.given import Parameters
from mixtura.densities.base import VectorDensity
from mixtura.densities.full_covariance import FullGaussian
from mixtura.densities.gaussian import DiagonalGaussian, Gaussian
from mixtura.densities.low_rank_covariance import LowRankGaussian
from mixtura.densities.low_rank_precision import LowRankPrecision
from mixtura.densities.student import StudentT
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.parts import COUNT, POSITIVE, Part

_FLOOR: list[object] = [POSITIVE]
_RANK: list[object] = [StrOptions({"auto"}), COUNT]
#: Up to so many features a full covariance has hardly more parameters than one of low rank.
_NARROW = 2
#: Where a number is left to "auto": first choice first. The study behind them is
#: docs/results/defaults.md.
_FLOORS, _THIN = (0.01, 0.1), 3


class Structure(Part, ABC):
    """A kind of density over rows of numbers, and its settings.

    A new kind is a dataclass with a `build`; its fields are its settings.
    """

    #: Whether its densities have closed-form updates.
    closed_form: bool = True
    #: Smallest variance in any direction, in the units of the model; 0 promises none.
    floor: float | str = 0.0

    @abstractmethod
    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        """A stack of K densities to begin with.

        Parameters
        ----------
        x : (n, D) rows, complete and in units in which every feature has variance one.
        membership : (n, K) their weights in clusters, one per density.
        """

    def candidates(self, n_features: int) -> list[Structure]:
        """What "auto" leaves open for rows of so many numbers, settled; the first choice first."""
        return [self]

    def limited(self, rank: int) -> Structure:
        """The same with no higher rank, once it is settled."""
        return self

    @property
    def start(self) -> Structure:
        """The structure that EM is to fit before another solver goes on."""
        return self

    def finish(self, begun: VectorDensity) -> VectorDensity:
        """A density of this structure from one that `start` has built."""
        return begun


@dataclass
class Full(Structure):
    """Gaussians with a covariance matrix each.

    Parameters
    ----------
    floor : smallest variance in any direction, as a share of the feature's own (in the units of X
        where standardize=False or marginals="raw" asks for these). Adam and L-BFGS bound it less:
        each pivot of the Cholesky factor by a tenth of its root.
    """

    floor: float = 0.01

    _parameter_constraints = {"floor": _FLOOR}

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        return FullGaussian.from_clusters(x, membership, self.floor, generator)


@dataclass
class Diagonal(Structure):
    """Gaussians with a variance per feature.

    Parameters
    ----------
    floor : smallest variance, in the units of `Full`.
    """

    floor: float = 0.01

    _parameter_constraints = {"floor": _FLOOR}

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        return DiagonalGaussian.from_clusters(x, membership, self.floor, generator)


@dataclass
class Spherical(Structure):
    """Gaussians with one variance.

    Parameters
    ----------
    floor : smallest variance, in the units of `Full`.
    """

    floor: float = 0.01

    _parameter_constraints = {"floor": _FLOOR}

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        return DiagonalGaussian.from_clusters(x, membership, self.floor, generator, tied=True)


@dataclass
class LowRank(Structure):
    """Gaussians whose covariance, or its inverse, is diagonal plus low rank.

    Parameters
    ----------
    rank : of the low-rank part; "auto" is a quarter of the features, 25 at most.
    floor : smallest variance in any direction, in the units of `Full`.
    parameterization : which of the two it is, "covariance" (factor analyzers) or "precision",
        which has no closed-form updates.
    init : "em" begins with EM for the structure itself, "eigen" with the leading eigenpairs of full
        covariances (as a precision always does).
    """

    rank: int | str = "auto"
    floor: float = 0.01
    parameterization: str = "covariance"
    init: str = "em"

    _parameter_constraints = {
        "rank": _RANK,
        "floor": _FLOOR,
        "parameterization": [StrOptions({"covariance", "precision"})],
        "init": [StrOptions({"em", "eigen"})],
    }

    @property
    def closed_form(self) -> bool:  # type: ignore[override]
        return self.parameterization == "covariance"

    def candidates(self, n_features: int) -> list[Structure]:
        return [replace(self, rank=_settled_rank(self.rank, n_features))]

    def limited(self, rank: int) -> Structure:
        return self if isinstance(self.rank, str) else replace(self, rank=min(self.rank, rank))

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        rank = _rank(self.rank, x.shape[1])
        return LowRankGaussian.from_clusters(x, membership, self.floor, generator, rank=rank)

    @property
    def start(self) -> Structure:
        return self if self.init == "em" and self.closed_form else Full(self.floor)

    def finish(self, begun: VectorDensity) -> VectorDensity:
        if not isinstance(begun, FullGaussian):
            return begun
        kind = LowRankGaussian if self.closed_form else LowRankPrecision
        return kind.from_full(begun, _rank(self.rank, begun.n_features))


@dataclass
class Student(Structure):
    """Student's t: heavy tails, for rows of which some lie far out; degrees of freedom are learned.

    Parameters
    ----------
    scale : form of the scale matrices, "full", "diag" or "low_rank".
    rank : of the low-rank part, as in `LowRank`.
    floor : smallest entry of a scale matrix in any direction, in the units of `Full`.
    """

    scale: str = "full"
    rank: int | str = "auto"
    floor: float = 0.01

    _parameter_constraints = {
        "scale": [StrOptions({"full", "diag", "low_rank"})],
        "rank": _RANK,
        "floor": _FLOOR,
    }

    def candidates(self, n_features: int) -> list[Structure]:
        if self.scale != "low_rank":
            return [self]
        return [replace(self, rank=_settled_rank(self.rank, n_features))]

    def limited(self, rank: int) -> Structure:
        return self if isinstance(self.rank, str) else replace(self, rank=min(self.rank, rank))

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        options: Parameters = {}
        kind: type[Gaussian] = DiagonalGaussian if self.scale == "diag" else FullGaussian
        if self.scale == "low_rank":
            kind, options = LowRankGaussian, {"rank": _rank(self.rank, x.shape[1])}
        return StudentT.from_clusters(x, membership, self.floor, generator, kind=kind, **options)


@dataclass
class Auto(Structure):
    """Gaussians of a structure that is left open.

    Low rank (full for one or two features) is the first choice; where candidates are compared, the
    others are a higher floor, a smaller rank, and variances alone. What `MixtureClassifier` adds to
    them is in the guide (docs/guide/auto.md).

    Parameters
    ----------
    floor : "auto" compares 0.01 and 0.1.
    rank : "auto" compares a quarter of the features (25 at most) and 3.
    """

    floor: float | str = "auto"
    rank: int | str = "auto"

    _parameter_constraints = {"floor": [StrOptions({"auto"}), *_FLOOR], "rank": _RANK}

    def candidates(self, n_features: int) -> list[Structure]:
        floor = _FLOORS[0] if isinstance(self.floor, str) else self.floor
        first: Full | LowRank = Full(floor)
        if n_features > _NARROW:
            first = LowRank(_settled_rank(self.rank, n_features), floor)
        found: list[Structure] = [first]
        if n_features == 0:
            return found
        if self.floor == "auto":
            found += [replace(first, floor=floor) for floor in _FLOORS[1:]]
        thick = _rank(self.rank, n_features) > _THIN
        if self.rank == "auto" and isinstance(first, LowRank) and thick:
            found.append(replace(first, rank=_THIN))
        if n_features > 1:
            found.append(Diagonal(floor))
        return found

    def build(self, x: Tensor, membership: Tensor, generator: torch.Generator) -> VectorDensity:
        return self.candidates(x.shape[1])[0].build(x, membership, generator)


@dataclass
class Chain(Part):
    """How the states of hidden Markov models follow each other, and what they emit.

    Parameters
    ----------
    topology : "ergodic", every state may follow every other; or "left_to_right", only later ones
        may (some may be skipped).
    durations : 1: in every frame a state is left with the same chance (hidden Markov models). More:
        that it lasts 1, 2, ... frames, fewer than that, has a chance of its own each, and every
        frame beyond the same one again (hidden semi-Markov models, by a chain of so many times as
        many states). No more count than the longest training sequence has frames.
    n_mixtures : densities that the emissions of each state are a mixture of.
    sharing : what classes with few sequences have from the others. None: nothing. "adapted": all
        begin with one model of the sequences of all classes, and each state counts, beside its own
        frames, as many imagined ones of that model as two sequences have per state on average, or
        `prior_rows`, if that is more. "tied": the states of all classes emit alike, and classes
        differ in starts, moves and durations.
    """

    topology: str = "ergodic"
    durations: int = 1
    n_mixtures: int = 1
    sharing: str | None = None

    _parameter_constraints = {
        "topology": [StrOptions({"ergodic", "left_to_right"})],
        "durations": [COUNT],
        "n_mixtures": [COUNT],
        "sharing": [StrOptions({"adapted", "tied"}), None],
    }

    @property
    def left_to_right(self) -> bool:
        """Whether states are left for later ones alone."""
        return self.topology == "left_to_right"


def _rank(rank: int | str, n_features: int) -> int:
    """A quarter of the features for "auto", 25 at most; never more than there are features."""
    wanted = min(25, max(1, n_features // 4)) if isinstance(rank, str) else rank
    return min(int(wanted), max(n_features, 1))


def _settled_rank(rank: int | str, n_features: int) -> int:
    """The same, with a warning where what was asked for is a full covariance."""
    if not isinstance(rank, str) and rank >= n_features > 0:
        warn(
            f"rank={rank} is no less than the {n_features} features; rank {n_features} is used, "
            "which is a full matrix: that form (density='full', or scale='full') says the same in "
            "fewer parameters.",
            DegenerateDataWarning,
        )
    return _rank(rank, n_features)


#: What the names of chains are shorthand for.
CHAINS: dict[str, Callable[[], Chain]] = {
    "ergodic": Chain,
    "left_to_right": partial(Chain, "left_to_right"),
}
#: What the names of densities are shorthand for.
DENSITIES: dict[str, Callable[[], Structure]] = {
    "auto": Auto,
    "full": Full,
    "diag": Diagonal,
    "spherical": Spherical,
    "low_rank": LowRank,
    "student": Student,
}
