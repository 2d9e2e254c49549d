"""Densities of rows in NumPy, for prediction: twins of those of `mixtura.densities`.

Their formulas stand there. What differs is how rows with holes are computed: what is missing stands
in an identity, and one Cholesky factorization per row and component, bordered by the row itself,
gives its squared distance and the log determinant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from mixtura.runtime.files import kind

LOG_2PI = math.log(2.0 * math.pi)
#: The corner of a bordered matrix: larger than any squared distance.
_CORNER = 1e300


@dataclass(frozen=True)
class Batch:
    """Rows in the model's units: x (n, D), zero where missing; observed and absent as in training.

    `observed` (n, D) is None where nothing is missing; `absent` (n, D) is 1 for absent, 0 for
    present, -1 for no telling, and None where all that is not observed is absent.
    """

    x: np.ndarray
    observed: np.ndarray | None
    absent: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def seen(self) -> np.ndarray:
        """(n, D) bool."""
        return np.ones(self.x.shape, dtype=bool) if self.observed is None else self.observed

    @cached_property
    def moments(self) -> np.ndarray:
        """(n, 3 D) squares, values and presences."""
        return np.concatenate([self.x * self.x, self.x, self.seen], 1)

    def take(self, index: np.ndarray) -> Batch:
        parts = (None if each is None else each[index] for each in (self.observed, self.absent))
        return Batch(self.x[index], *parts)

    def lacks(self) -> np.ndarray:
        """(n, D) as `absent`."""
        return (~self.seen).astype(np.int8) if self.absent is None else self.absent


class Density(Protocol):
    """K densities; components come first in all arrays."""

    @property
    def row_cost(self) -> int: ...
    @property
    def n_components(self) -> int: ...
    def log_prob(self, batch: Batch) -> np.ndarray: ...
    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray: ...
    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray: ...


def _bordered(matrix: np.ndarray, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v^T A^-1 v and log det A, (...), of A (..., d, d) and v (..., d): one factorization."""
    size = vector.shape[-1]
    whole = np.empty((*vector.shape[:-1], size + 1, size + 1))
    whole[..., :size, :size], whole[..., size, :size] = matrix, vector
    whole[..., size, size] = _CORNER
    factor = np.linalg.cholesky(whole)
    half = factor[..., size, :size]
    pivots = factor.diagonal(0, -2, -1)[..., :size]
    return (half * half).sum(-1), 2.0 * np.log(pivots).sum(-1)


@dataclass(frozen=True)
class Gaussian:
    """What all forms of covariances share; a form writes `distances` and `regress`."""

    mean: np.ndarray
    floor: float

    @property
    def n_components(self) -> int:
        return len(self.mean)

    @property
    def row_cost(self) -> int:
        return 4 * self.mean.size

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of what is observed, and log det(2 pi covariance) of it, (n, K)."""
        raise NotImplementedError

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: np.ndarray | slice
    ) -> np.ndarray:
        """Expected deviations (..., D) of whole rows, given those (zero elsewhere) that are seen.

        Leading dimensions end with those that `component` has.
        """
        raise NotImplementedError

    def log_prob(self, batch: Batch) -> np.ndarray:
        squared, log_det = self.distances(batch)
        return -0.5 * (squared + log_det)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        seen = batch.seen[:, None]
        away = np.where(seen, batch.x[:, None] - self.mean, 0.0)
        expected = self.mean + self.regress(away, seen, slice(None))
        return np.where(batch.seen, batch.x, np.einsum("nk,nkd->nd", share, expected))

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        away = np.where(batch.seen, batch.x - drawn, 0.0)
        return np.where(batch.seen, batch.x, drawn + self.regress(away, batch.seen, component))


@kind
@dataclass(frozen=True)
class DiagonalGaussian(Gaussian):
    variance: np.ndarray
    tied: bool = False

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """What squares, values and presences (3 D,) are multiplied by; log(2 pi variance)."""
        precision = 1.0 / self.variance
        parts = precision, -2.0 * self.mean * precision, self.mean**2 * precision
        return np.concatenate(parts, 1).T.copy(), np.log(self.variance).T + LOG_2PI

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        (table, log_variance), values = self._table, batch.moments
        return values @ table, values[:, -len(log_variance) :] @ log_variance

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: np.ndarray | slice
    ) -> np.ndarray:
        return np.zeros_like(away)


@kind
@dataclass(frozen=True)
class FullGaussian(Gaussian):
    factor: np.ndarray

    @property
    def row_cost(self) -> int:
        return 4 * self.factor.size

    @cached_property
    def _covariance(self) -> np.ndarray:
        return self.factor @ self.factor.swapaxes(1, 2)

    @cached_property
    def _whitening(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What whitens rows (D, K D), minus the whitened means (K D,), log determinants (K,)."""
        inverse = np.linalg.inv(self.factor)
        offset = -(inverse @ self.mean[..., None]).ravel()
        log_det = (2.0 * np.log(self.factor.diagonal(0, 1, 2)) + LOG_2PI).sum(1)
        return inverse.reshape(-1, inverse.shape[2]).T.copy(), offset, log_det

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        if batch.observed is None:
            weight, offset, log_det = self._whitening
            white = (batch.x @ weight + offset).reshape(len(batch), *self.mean.shape)
            return (white * white).sum(2), np.broadcast_to(log_det, white.shape[:2])
        seen = batch.observed[:, None]
        away = (batch.x[:, None] - self.mean) * seen
        squared, log_det = _bordered(self._masked(seen, slice(None)), away)
        return squared, log_det + LOG_2PI * seen.sum(2)

    def _masked(self, seen: np.ndarray, component: np.ndarray | slice) -> np.ndarray:
        """Covariances of what is seen (..., D), in an identity."""
        both = seen[..., None] & seen[..., None, :]
        return np.where(both, self._covariance[component], np.eye(seen.shape[-1]))

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: np.ndarray | slice
    ) -> np.ndarray:
        solved = np.linalg.solve(self._masked(seen, component), away[..., None])
        return (self._covariance[component] @ solved)[..., 0]


@dataclass(frozen=True)
class LowRankForm(Gaussian):
    """Diagonal plus low rank: all that depends on a pattern is B (R, R), a sum over one side."""

    diagonal: np.ndarray
    loading: np.ndarray

    #: Whether the covariance has this form, and B sums over what is observed; or the precision.
    of_covariance: ClassVar[bool]

    @property
    def row_cost(self) -> int:
        return 4 * (self.mean.size + len(self.mean) * (self.loading.shape[2] + 1) ** 2)

    @cached_property
    def _scaled(self) -> np.ndarray:
        return self.loading / self.diagonal[..., None]

    @cached_property
    def _grams(self) -> np.ndarray:
        """(D, K, R, R) what each feature adds to B."""
        grams = self.loading[..., :, None] * self._scaled[..., None, :]
        return grams.transpose(1, 0, 2, 3).copy()

    @cached_property
    def _table(self) -> tuple[np.ndarray, ...]:
        """Squares, values and presences to weighted squares (3 D, K); values and presences to u,
        (2 D, K R); log(2 pi variance) but for the low rank (D, K)."""
        weight = 1.0 / self.diagonal if self.of_covariance else self.diagonal
        projection = self._scaled if self.of_covariance else self.loading
        squares = weight, -2.0 * weight * self.mean, weight * self.mean**2
        both = np.concatenate([projection, -projection * self.mean[..., None]], 1)
        by_value = both.transpose(1, 0, 2).reshape(2 * self.mean.shape[1], -1)
        log_scale = np.log(self.diagonal if self.of_covariance else 1.0 / self.diagonal)
        return np.concatenate(squares, 1).T.copy(), by_value, log_scale.T + LOG_2PI

    def _gram(self, seen: np.ndarray) -> np.ndarray:
        """(n, K, R, R) B of rows of which this is seen (n, D)."""
        side = (seen if self.of_covariance else ~seen).astype(np.float64)
        shape = self._grams.shape
        summed = (side @ self._grams.reshape(shape[0], -1)).reshape(-1, *shape[1:])
        return summed + np.eye(shape[2])

    def distances(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        (by_square, by_value, log_scale), values = self._table, batch.moments
        latent = (values[:, -len(by_value) :] @ by_value).reshape(len(batch), len(self.mean), -1)
        inner, log_gram = _bordered(self._gram(batch.seen), latent)
        squares, log_det = values @ by_square, values[:, -len(log_scale) :] @ log_scale + log_gram
        if self.of_covariance:
            return squares - inner, log_det
        return squares + inner, log_det - self._log_gram_all

    @cached_property
    def _log_gram_all(self) -> np.ndarray:
        every = self._grams.sum(0) + np.eye(self._grams.shape[2])
        return _bordered(every, np.zeros(every.shape[:2]))[1]

    def regress(
        self, away: np.ndarray, seen: np.ndarray, component: np.ndarray | slice
    ) -> np.ndarray:
        projection, response = self._scaled[component], self.loading[component]
        if not self.of_covariance:
            projection, response = response, -projection
        latent = (projection * away[..., None]).sum(-2)
        own = self._gram(seen.reshape(-1, seen.shape[-1]))
        if not isinstance(component, slice):
            own = own[np.arange(len(own)), component]
        solved = np.linalg.solve(own, latent[..., None])
        return (response @ solved)[..., 0]


@kind
@dataclass(frozen=True)
class LowRankGaussian(LowRankForm):
    of_covariance = True


@kind
@dataclass(frozen=True)
class LowRankPrecision(LowRankForm):
    of_covariance = False


@kind
@dataclass(frozen=True)
class StudentT:
    scale: Gaussian
    dof: np.ndarray

    @property
    def n_components(self) -> int:
        return len(self.dof)

    @property
    def row_cost(self) -> int:
        return self.scale.row_cost

    @cached_property
    def _constants(self) -> np.ndarray:
        """(D + 1, K) what the log density has more than a Gaussian's, by how much is observed."""
        return np.array(
            [
                [
                    math.lgamma(0.5 * (nu + size))
                    - math.lgamma(0.5 * nu)
                    - 0.5 * size * math.log(0.5 * nu)
                    for nu in self.dof.tolist()
                ]
                for size in range(self.scale.mean.shape[1] + 1)
            ]
        )

    def log_prob(self, batch: Batch) -> np.ndarray:
        squared, log_det = self.scale.distances(batch)
        size = batch.seen.sum(1)
        tail = np.log1p(squared.clip(0.0) / self.dof) * (self.dof + size[:, None])
        return self._constants[size] - 0.5 * (log_det + tail)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        return self.scale.fill(batch, share)

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        other, each = Batch(np.where(batch.seen, drawn, 0.0), batch.observed), np.arange(len(batch))
        reach, own = (
            (self.dof + self.scale.distances(rows)[0].clip(0.0))[each, component, None]
            for rows in (batch, other)
        )
        mean = self.scale.mean[component]
        around, mine = (
            mean
            + self.scale.regress(np.where(batch.seen, rows.x - mean, 0.0), batch.seen, component)
            for rows in (batch, other)
        )
        moved = around + np.sqrt(reach / own) * (drawn - mine)
        return np.where(batch.seen, batch.x, moved)


@kind
@dataclass(frozen=True)
class Categorical:
    log_chance: np.ndarray
    levels: tuple[int, ...]
    floor: float = 1e-6

    def __post_init__(self) -> None:
        if sum(self.levels) != self.log_chance.shape[1]:
            raise ValueError(f"{self.log_chance.shape[1]} chances of {self.levels} categories")

    @property
    def n_components(self) -> int:
        return len(self.log_chance)

    @property
    def row_cost(self) -> int:
        return (len(self.levels) + 2) * self.n_components

    @cached_property
    def _first(self) -> np.ndarray:
        """(d,) slot of the first category of each column."""
        return np.cumsum([0, *self.levels[:-1]])

    @cached_property
    def _table(self) -> np.ndarray:
        """(S + 1, K) log chances of the slots; zero for what is missing."""
        return np.concatenate([self.log_chance.T, np.zeros((1, len(self.log_chance)))])

    def log_prob(self, batch: Batch) -> np.ndarray:
        slots = np.where(batch.seen, batch.x.astype(np.int64) + self._first, len(self._table) - 1)
        return self._table[slots].sum(1)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        parts = np.split(np.exp(self.log_chance), self._first[1:], axis=1)
        likeliest = np.stack([(share @ part).argmax(1) for part in parts], 1)
        return np.where(batch.seen, batch.x, likeliest)

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return np.where(batch.seen, batch.x, drawn)


@kind
@dataclass(frozen=True)
class HolePattern(Categorical):
    broad: float = 0.1
    further: float = 0.1
    rates: tuple[float, ...] = ()

    @property
    def row_cost(self) -> int:
        return super().row_cost * (len(self.rates) + 1)

    @cached_property
    def _by_rate(self) -> Categorical:
        """The K R products of chances at each rate, one after another."""
        present, absent = self.log_chance[:, None, ::2], self.log_chance[:, None, 1::2]
        rate = np.array(self.rates)[:, None]
        with np.errstate(divide="ignore"):
            further = np.logaddexp(absent, present + np.log(rate))
        both = np.stack([present + np.log1p(-rate), further], -1)
        return Categorical(both.reshape(-1, self.log_chance.shape[1]), self.levels)

    @cached_property
    def _log_shares(self) -> np.ndarray:
        """(R,)."""
        some = len(self.rates) - 1
        return np.log([1.0 - self.broad - self.further] + [self.further / some] * some)

    @cached_property
    def _log_factorials(self) -> np.ndarray:
        return np.array([math.lgamma(1.0 + count) for count in range(len(self.levels) + 2)])

    def log_prob(self, batch: Batch) -> np.ndarray:
        own = self._by_rate.log_prob(batch).reshape(len(batch), self.n_components, -1)
        absent = np.where(batch.seen, batch.x, 0.0).sum(1).astype(np.int64)
        told, log_factorial = batch.seen.sum(1), self._log_factorials
        broad = log_factorial[absent] + log_factorial[told - absent] - log_factorial[told + 1]
        broad = np.broadcast_to((broad + math.log(self.broad))[:, None, None], (*own.shape[:2], 1))
        return np.logaddexp.reduce(np.concatenate([own + self._log_shares, broad], 2), axis=2)


@kind
@dataclass(frozen=True)
class Product:
    parts: tuple[Density, ...]
    columns: tuple[tuple[int, ...], ...]
    informative: bool = False

    @property
    def n_components(self) -> int:
        return self.parts[0].n_components

    @property
    def row_cost(self) -> int:
        return sum(part.row_cost for part in self.parts)

    @cached_property
    def _index(self) -> list[np.ndarray]:
        return [np.array(columns, dtype=np.int64) for columns in self.columns]

    def _view(self, batch: Batch, index: np.ndarray) -> Batch:
        observed = None if batch.observed is None else batch.observed[:, index]
        whole = observed is None or observed.all()
        return Batch(batch.x[:, index], None if whole else observed)

    def log_prob(self, batch: Batch) -> np.ndarray:
        views = [self._view(batch, index) for index in self._index]
        if self.informative:
            lacks = batch.lacks()
            told = None if batch.absent is None else lacks >= 0
            views.append(Batch(lacks.clip(0).astype(np.float64), told))
        first, *rest = (p.log_prob(view) for p, view in zip(self.parts, views, strict=True))
        return sum(rest, first)

    def fill(self, batch: Batch, share: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        for part, index in zip(self.parts, self._index, strict=False):
            found[:, index] = part.fill(self._view(batch, index), share)
        return found

    def agree(self, batch: Batch, component: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        found = np.empty_like(batch.x)
        for part, index in zip(self.parts, self._index, strict=False):
            found[:, index] = part.agree(self._view(batch, index), component, drawn[:, index])
        return found
