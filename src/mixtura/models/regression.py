"""A fitted regression: mixtures over features and targets, and what they say of new rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.data.targets import without_targets
from mixtura.densities.gaussian import Gaussian
from mixtura.densities.patterns import distinct_patterns
from mixtura.exceptions import UnsupportedError
from mixtura.models.fitted import Fitted, run_over
from mixtura.models.mixture import Mixture
from mixtura.parts import storable
from mixtura.predictive import (
    FeaturesAndTargets,
    Predictive,
    members_of,
    of_features,
    say_of,
    weights_of,
)


@storable
@dataclass(frozen=True)
class Regression(FeaturesAndTargets[Fitted]):
    """What mixtures over features and targets say of new rows."""

    @property
    def members(self) -> list[Fitted]:
        """All models that are averaged."""
        return members_of(self.fitted)

    @property
    def weights(self) -> np.ndarray:
        """(M,) how much say each has."""
        return weights_of(self.fitted)

    def predictive(self, rows: Matrix, device: Device) -> Predictive:
        """The distributions of the targets given features."""
        return predictive(self.fitted, self.near(rows), self.n_targets, device)

    def log_density(self, rows: Matrix, y: np.ndarray | None, device: Device) -> np.ndarray:
        """(n,) log p(y | x) of what is known of y (n, T), or log p(x), in the user's units."""
        if y is None:
            return self._log_density(self.whole(rows), device)
        beside, near = self.whole(rows, y).within(self.reach), self.near(rows)
        whole, known = (self._log_densities(self.members, each, device) for each in (beside, near))
        with np.errstate(divide="ignore"):  # who has no say
            say = np.log(say_of(self.fitted, near.values))
        return logsumexp(whole - known + say, axis=0)

    def _log_density(self, whole: Matrix, device: Device) -> np.ndarray:
        """(n,) of what is known of rows."""
        members, weights = of_features(self.fitted)
        found = self._log_densities(members, whole, device)
        return logsumexp(found + np.log(weights)[:, None], axis=0)

    def is_outside(self, rows: Matrix, device: Device) -> np.ndarray:
        """(n,) which rows of the same columns are less likely than all that are held back."""
        known = self.fitted.held_back
        if known is None:
            return np.zeros(len(rows), dtype=bool)
        whole = self.whole(rows)
        like = Matrix(np.where(np.isnan(whole.values[0]), np.nan, known.values))
        own, others = (self._log_density(each, device) for each in (whole, like))
        return own < others.min()

    def _log_densities(
        self, members: Sequence[Fitted], whole: Matrix, device: Device
    ) -> np.ndarray:
        """(M, n) of what is known of rows, under each of some models."""
        engine = self.fitted.engine(whole, device)
        return np.stack([each.log_density(engine.under(each.scaling)) for each in members])

    def draw(
        self, rows: Matrix, count: int, device: Device, generator: torch.Generator
    ) -> np.ndarray:
        """(count, n, T) draws of the targets given features."""
        many = self.near(rows).take(np.tile(np.arange(len(rows)), count))
        found = self._drawn(many, device, generator)[:, -self.n_targets :]
        return found.reshape(count, len(rows), self.n_targets)

    def _drawn(self, whole: Matrix, device: Device, generator: torch.Generator) -> np.ndarray:
        """(n, P + T) rows with a draw of what is missing, each by one of the models."""
        chance = torch.from_numpy(say_of(self.fitted, whole.values).T)
        member = torch.multinomial(chance, 1, generator=generator).flatten()
        engine, found = self.fitted.engine(whole, device), whole.values.copy()
        for number, each in enumerate(self.members):
            mine = (member == number).nonzero().flatten().numpy()
            if len(mine):
                part = engine.take(mine).under(each.scaling)
                found[mine] = each.drawn(part, whole.values[mine], generator)
        return found

    # -- features ------------------------------------------------------------------------------

    def category_proba(
        self, rows: Matrix, column: int, y: np.ndarray | None, device: Device
    ) -> np.ndarray:
        """(n, k) chances of the categories of a column that are told apart, where it is missing.

        By the densities of rows with each of them in place.
        """
        codes = self.indicators.categories(column)
        many = np.repeat(rows.values, len(codes), axis=0)
        many[:, column] = np.tile(codes, len(rows))
        y = None if y is None else np.repeat(y, len(codes), axis=0)
        members, weights = of_features(self.fitted)
        found = self._log_densities(members, self.whole(Matrix(many), y), device)
        chance = softmax(found.reshape(len(found), len(rows), -1), axis=2)
        return np.einsum("m,mnk->nk", weights, chance)

    def imputed(self, rows: Matrix, y: np.ndarray | None, device: Device) -> np.ndarray:
        """(n, D) features with conditional means, and the likeliest categories, in their holes."""
        whole = self.whole(rows, y)
        engine = self.fitted.engine(whole, device)
        means = [m.imputed(engine.under(m.scaling), whole.values) for m in self.members]
        say = say_of(self.fitted, whole.values)
        found = self._put(rows.values, np.einsum("mn,mnp->np", say, means))
        for column, lacking, chance in self._categories(rows.values, y, device):
            found[lacking, column] = self.indicators.categories(column)[chance.argmax(1)]
        return found

    def drawn(
        self, rows: Matrix, y: np.ndarray | None, generator: torch.Generator, device: Device
    ) -> np.ndarray:
        """(n, D) features with a draw of what is missing: categories in turn, then numbers."""
        values = rows.values.astype(np.float64)
        for column, lacking, chance in self._categories(values, y, device):
            chosen = torch.multinomial(torch.from_numpy(chance), 1, generator=generator)
            values[lacking, column] = self.indicators.categories(column)[chosen.flatten()]
        whole = self.whole(Matrix(values), y)
        return self._put(values, self._drawn(whole, device, generator))

    def _categories(
        self, values: np.ndarray, y: np.ndarray | None, device: Device
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Columns of categories, the rows that lack them, and chances of what is told apart."""
        for column in np.flatnonzero(self.indicators.frequent >= 0).tolist():
            lacking = np.flatnonzero(np.isnan(values[:, column]))
            if len(lacking):
                known = None if y is None else y[lacking]
                rows = Matrix(values[lacking])
                yield column, lacking, self.category_proba(rows, column, known, device)

    def _put(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """(n, D) features with numbers (n, P ...) in the place of missing ones."""
        found, own = values.astype(np.float64), self.indicators.itself
        column = self.indicators.column[own]
        told = numbers[:, : len(own)][:, own]
        found[:, column] = np.where(np.isnan(found[:, column]), told, found[:, column])
        return found


def predictive(fitted: Fitted, whole: Matrix, n_targets: int, device: Device) -> Predictive:
    """The distributions of the last columns of rows, given the others."""
    location, scale = (
        each[-n_targets:] for each in (fitted.scaling.location, fitted.scaling.scale)
    )
    engine, parts = fitted.engine(whole, device), []
    for each in members_of(fitted):
        rows = engine.under(each.scaling)
        found = run_over(each.mixture, rows, partial(conditional, n_targets=n_targets))
        parts.append(Predictive.of(found.numpy(), location, scale))
    return Predictive.average(parts, say_of(fitted, whole.values))


def log_conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n,) log density of the targets that are observed, given the features."""
    known = without_targets(batch, n_targets)
    return (mixture.outputs(batch) - mixture.outputs(known))[:, 0]


def conditional(mixture: Mixture, batch: Batch, n_targets: int) -> Tensor:
    """(n, K, 1 + 2 T) what each component says of the targets, given the features.

    Log shares of the components, means and log deviations. A conditional variance is a ratio of
    determinants, which stand in the log densities at the means.
    """
    known, part = without_targets(batch, n_targets), mixture.density
    if not isinstance(part, Gaussian):
        raise UnsupportedError(
            f"{type(part).__name__} is no Gaussian, and what it says of some columns given others "
            "has no closed form: use a density of Gaussians, such as 'full' or 'low_rank'."
        )
    assert known.observed is not None
    share = mixture.log_joint(known).log_softmax(1)
    mean = part.expected(known)[..., -n_targets:]
    patterns, place = distinct_patterns(known.observed)  # deviations depend on nothing else

    def peak(observed: Tensor) -> Tensor:
        blank, none = known.x[: len(observed)], known.weight[: len(observed)]
        return part.distances(Batch(blank, observed, known.y[: len(observed)], none))[1]

    without, log_deviation = peak(patterns), []
    for target in range(-n_targets, 0):
        observed = patterns.clone()
        observed[:, target] = True
        log_deviation.append((without - peak(observed) - 0.5 * LOG_2PI)[place])
    return torch.cat([share[..., None], mean, torch.stack(log_deviation, 2)], 2)
