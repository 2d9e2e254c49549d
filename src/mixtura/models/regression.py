"""A fitted regression: mixtures over features and targets, and what they say of new rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.special import logsumexp

from mixtura.data import Matrix
from mixtura.data.given import Device
from mixtura.data.schema import Schema
from mixtura.data.targets import Indicators
from mixtura.models.fitted import Fitted, run_over
from mixtura.models.predictive import Predictive, conditional
from mixtura.parts import storable


@storable
@dataclass(frozen=True)
class Regression:
    """Models of the features, as numbers, and of the targets, which are the last columns.

    Attributes
    ----------
    fitted : a mixture, others that are averaged with it, the units of their columns, and rows that
        are held back.
    schema : names and categories of the columns that users pass.
    indicators : the features as numbers.
    n_targets : how many targets there are.
    flat : whether they were given, and are to be answered, as (n,).
    """

    fitted: Fitted
    schema: Schema
    indicators: Indicators
    n_targets: int
    flat: bool

    @property
    def n_columns(self) -> int:
        """How many columns rows of features have."""
        return self.indicators.n_columns

    @property
    def members(self) -> tuple[Fitted, ...]:
        """All models that are averaged."""
        return _members(self.fitted)

    @property
    def weights(self) -> np.ndarray:
        """(M,) how much say each has."""
        return _weights(self.fitted)

    def whole(self, rows: Matrix, y: np.ndarray | None = None) -> Matrix:
        """Rows of features, as numbers, beside targets (n, T); none are known unless given."""
        missing = np.full((len(rows), self.n_targets), np.nan)
        features = self.indicators.apply(rows.values)
        return Matrix(np.column_stack([features, missing if y is None else y]))

    def predictive(self, rows: Matrix, device: Device) -> Predictive:
        """The distributions of the targets given features."""
        return predictive(self.fitted, self.whole(rows), self.n_targets, device)

    def log_density(self, rows: Matrix, y: np.ndarray | None, device: Device) -> np.ndarray:
        """(n,) log p(y | x) of what is known of y (n, T), or log p(x), in the user's units."""
        found = self._log_densities(self.whole(rows, y), device)
        if y is not None:
            found = found - self._log_densities(self.whole(rows), device)
        return logsumexp(found + np.log(self.weights)[:, None], axis=0)

    def _log_densities(self, whole: Matrix, device: Device) -> np.ndarray:
        """(M, n) of what is known of rows, under each model."""
        engine = self.fitted.engine(whole, device)
        found = [each.log_density(engine.under(each.scaling)) for each in self.members]
        return np.stack(found)

    def draw(
        self, rows: Matrix, count: int, device: Device, generator: torch.Generator
    ) -> np.ndarray:
        """(count, n, T) draws of the targets given features."""
        whole = self.whole(rows)
        many = whole.take(np.tile(np.arange(len(rows)), count))
        engine = self.fitted.engine(many, device)
        chance = torch.from_numpy(self.weights)
        member = torch.multinomial(chance, len(many), replacement=True, generator=generator).numpy()
        found = np.empty((len(many), self.n_targets))
        for number, each in enumerate(self.members):
            mine = np.flatnonzero(member == number)
            if len(mine):
                part = engine.take(mine).under(each.scaling)
                drawn = each.drawn(part, many.values[mine], generator)
                found[mine] = drawn[:, -self.n_targets :]
        return found.reshape(count, len(rows), self.n_targets)


def predictive(fitted: Fitted, whole: Matrix, n_targets: int, device: Device) -> Predictive:
    """The distributions of the last columns of rows, given the others."""
    location, scale = (
        each[-n_targets:] for each in (fitted.scaling.location, fitted.scaling.scale)
    )
    engine, parts = fitted.engine(whole, device), []
    for each in _members(fitted):
        rows = engine.under(each.scaling)
        found = run_over(each.mixture, rows, partial(conditional, n_targets=n_targets))
        parts.append(Predictive.of(found.numpy(), location, scale))
    return Predictive.average(parts, _weights(fitted))


def _members(fitted: Fitted) -> tuple[Fitted, ...]:
    """All models that are averaged."""
    return (fitted, *(() if fitted.blend is None else fitted.blend.members))


def _weights(fitted: Fitted) -> np.ndarray:
    """(M,) how much say each has."""
    return np.ones(1) if fitted.blend is None else fitted.blend.weights
