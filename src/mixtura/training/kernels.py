"""Kernel densities: every row is a component, and widths tell rows that are left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from scipy.special import expit
from torch import Tensor

from mixtura.densities import Categorical, Density, DiagonalGaussian, Product
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.numerics import or_zero

#: Rows that are components, at most; iterations that find widths, those that tell which begin is
#: better, those that move known ones, and the share of the loss that ends them.
_MOST_ROWS, _ITERATIONS, _GLIMPSE, _FURTHER, _TOL = 1_000, 15, 5, 4, 1e-3
#: Widths to begin with, the best of them, for one column; and how they grow with more.
_WIDTHS, _GROWTH = (0.3, 0.5, 0.9), 0.35
#: Numbers of rows for which narrow widths are begun with, too: more rows find them by themselves,
#: and fewer cannot tell whether they are right.
_FEW_ROWS = range(100, 401)
#: Rows that are asked at a time: a cache holds what they say of all components.
_CHUNK = 256
#: Between which log widths are; and what is less than the likeliest by more, in logs, is not.
_BOUNDS, _DEEPEST = (-4.5, 3.0), -80.0

_Slope = Callable[[Sequence[np.ndarray]], np.ndarray]


class Kernels:
    """Labeled rows as components, in units of variance one, and one more per class: a broad one.

    All have the same width per column (of categories, the chance of another one), and what a row
    lacks is as broad as all kernels together. Far out, where kernels fade, the broad components
    decide, and rows that lack the column: they tell no more than how many of a class there are.
    """

    def __init__(self, engine: Engine, log_prior: Tensor, generator: torch.Generator) -> None:
        rows = engine.only(engine.labeled).merged().sample(_MOST_ROWS, generator).all_rows()
        rows = rows.take(rows.y.argsort(stable=True))
        levels, self._y = np.array(engine.levels), rows.y.cpu().numpy()
        self._weight, x = (each.double().cpu().numpy() for each in (rows.weight, rows.x))
        counts = np.bincount(self._y, minlength=len(log_prior)) + 1
        self._layout, self._log_prior = Layout(counts.tolist()), log_prior.double().cpu()
        self._place = np.arange(len(x)) + self._y  # of rows among the components
        self._mass, self._x = np.ones(counts.sum()), np.zeros((counts.sum(), len(levels)))
        self._seen = np.zeros(self._x.shape, dtype=bool)
        seen = True if rows.observed is None else rows.observed.cpu().numpy()
        self._mass[self._place], self._seen[self._place] = self._weight, seen
        self._x[self._place] = np.where(seen, x, 0.0)
        self._owner = self._layout.owner.numpy()
        total = np.bincount(self._owner, self._mass)
        self._log_weight = np.log(self._mass / total[self._owner])
        self._numbers, self._coded = np.flatnonzero(levels == 0), np.flatnonzero(levels)
        self._lacking = ~self._seen[np.ix_(self._place, self._numbers)].all(0)  # of some rows
        self._levels = tuple(levels[self._coded].tolist())
        self._categories = [
            np.eye(level)[self._x[:, column].astype(int)] * self._seen[:, [column]]
            for column, level in zip(self._coded, self._levels, strict=True)
        ]
        met = [self._mass @ own for own in self._categories]
        self._shares = [(each + 1.0 / len(each)) / (each.sum() + 1.0) for each in met]

    def mixture(self, log_width: np.ndarray) -> Mixture:
        """Of log widths of columns (D,)."""
        (squares, _, _, *log_chances), _ = self._offers(log_width)
        parts = list[Density]()
        if len(self._numbers):
            mean, variance = (
                torch.from_numpy(each) for each in (self._x[:, self._numbers], -0.5 / squares)
            )
            floor = float(np.exp(2.0 * _BOUNDS[0]))
            parts.append(DiagonalGaussian(mean=mean, variance=variance, floor=floor))
        if self._levels:
            log_chance = torch.from_numpy(np.hstack(log_chances))
            parts.append(Categorical(log_chance=log_chance, levels=self._levels))
        groups = tuple(tuple(each.tolist()) for each in (self._numbers, self._coded) if len(each))
        density = Product(parts=tuple(parts), columns=groups) if self._levels else parts[0]
        return Mixture(density, torch.from_numpy(self._log_weight), self._layout, self._log_prior)

    def _offers(self, log_width: np.ndarray) -> tuple[list[np.ndarray], _Slope]:
        """What components (K, each) offer for squares, numbers, their presence, and categories,
        whose product with what rows have of these is the log density; slopes by log widths (D,),
        by those by what is offered."""
        mean, seen = self._x[:, self._numbers], self._seen[:, self._numbers]
        width = np.exp(2.0 * log_width[self._numbers])
        precision = np.where(seen, 1.0 / width, 1.0 / (width + 1.0))
        scaled, log_variance = mean * precision, np.where(seen, np.log(width), np.log1p(width))
        offers, slopes = [-0.5 * precision, scaled, -0.5 * (mean * scaled + log_variance)], []
        for column, own, every in zip(self._coded, self._categories, self._shares, strict=True):
            other = np.where(self._seen[:, [column]], expit(log_width[column]), 1.0)
            chance = (1.0 - other) * own + other * every
            offers.append(np.log(chance))
            slopes.append(other * (1.0 - other) * (every - own) / chance)

        def slope(by: Sequence[np.ndarray]) -> np.ndarray:
            found, (squares, numbers, present, *chances) = np.zeros(len(log_width)), by
            by_precision = squares - mean * (2.0 * numbers - mean * present)
            found[self._numbers] = width * (precision * (precision * by_precision - present)).sum(0)
            both = zip(slopes, chances, strict=True)
            found[self._coded] = [np.vdot(one, other) for one, other in both]
            return found

        return offers, slope

    def learn(self, known: np.ndarray | None = None) -> np.ndarray:
        """(D,) log widths under which the labels of rows left out in turn are most probable.

        Few iterations do from widths that are known of nearly the same rows.
        """
        n_columns, asked = self._x.shape[1], self._asked()

        def function(point: np.ndarray, center: np.ndarray) -> tuple[float, np.ndarray]:
            offers, slope = self._offers(point)
            loss, by_offer = self._left_out(asked, self._narrowed(offers))
            found = slope(self._widened(by_offer))
            return loss + (point - center) @ (point - center), found + 2.0 * (point - center)

        starts = [np.full(n_columns, np.log(width * n_columns**_GROWTH)) for width in _WIDTHS]
        center = min(starts, key=lambda point: function(point, point)[0])
        limits = {"bounds": [_BOUNDS] * n_columns, "jac": True, "method": "L-BFGS-B"}

        def moved(begin: np.ndarray, most: int) -> OptimizeResult:
            options = {"maxiter": most, "ftol": _TOL}
            return minimize(function, begin, (center,), options=options, **limits)

        if known is not None:
            return moved(known, _FURTHER).x
        if len(asked) not in _FEW_ROWS:
            return moved(center, _ITERATIONS).x
        # Wide ones may not find narrow ones.
        found = [moved(begin, _GLIMPSE) for begin in (center, starts[0])]
        return moved(min(found, key=lambda each: each.fun).x, _ITERATIONS - _GLIMPSE).x

    def _asked(self) -> np.ndarray:
        """(n, F) what rows have that components can tell, in single precision."""
        at = np.ix_(self._place, self._numbers)
        x, seen = self._x[at], self._seen[at]
        own = (each[self._place] for each in self._categories)
        one = np.ones((len(x), 1))
        return np.hstack([x**2, x, seen[:, self._lacking], *own, one]).astype(np.float32)

    def _narrowed(self, offers: Sequence[np.ndarray]) -> np.ndarray:
        """(K, F) all that is offered: what all rows have is one number per component."""
        squares, numbers, present, *chances = offers
        same = self._log_weight + self._log_prior.numpy()[self._owner]
        same = same + present[:, ~self._lacking].sum(1)
        parts = [squares, numbers, present[:, self._lacking], *chances, same[:, None]]
        return np.hstack(parts).astype(np.float32)

    def _widened(self, by_offer: np.ndarray) -> list[np.ndarray]:
        """Slopes by what is offered (K, each), from those by all of it (K, F)."""
        count, own = len(self._numbers), int(self._lacking.sum())
        sizes = [count, count, own, *self._levels]
        *parts, same = np.split(by_offer, np.cumsum(sizes), axis=1)
        present = np.repeat(same, count, axis=1)
        present[:, self._lacking] = parts[2]
        return [*parts[:2], present, *parts[3:]]

    def _left_out(self, asked: np.ndarray, offers: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log probability of labels, each by all other rows; slopes by offers (K, F)."""
        loss, slope, ends = 0.0, np.zeros(offers.shape), np.cumsum([0, *self._layout.counts])
        for start in range(0, len(asked), _CHUNK):
            rows = slice(start, start + _CHUNK)
            joint, weight = asked[rows] @ offers.T, self._weight[rows]
            joint[np.arange(len(joint)), self._place[rows]] = -np.inf
            joint -= joint.max(1, keepdims=True)
            np.exp(np.maximum(joint, _DEEPEST, out=joint), out=joint)
            total, own = joint.sum(1, dtype=np.float64), np.empty(len(joint))
            begins = np.searchsorted(self._y[rows], np.arange(len(ends)))
            for some, components in zip(pairwise(begins), pairwise(ends), strict=True):
                each, mine = slice(*some), joint[slice(*some), slice(*components)]
                mine.sum(1, dtype=np.float64, out=own[each])
                mine *= (1.0 - total[each] / own[each])[:, None].astype(np.float32)
            loss += float(weight @ (np.log(total) - np.log(own)))
            joint *= (weight / total)[:, None].astype(np.float32)
            by_joint = or_zero(torch.from_numpy(joint)).numpy()  # no product is denormal
            slope += by_joint.T @ asked[rows]
        return loss, slope
