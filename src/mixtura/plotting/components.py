"""Components over two columns, and the densities of single columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from mixtura.answers.next_feature import next_feature
from mixtura.data.given import ArrayLike, Device
from mixtura.data.labels import encode_labels, read_labels_of
from mixtura.data.matrix import Matrix
from mixtura.densities import Density, HiddenMarkov, Product, StudentT
from mixtura.densities.product import numeric_part
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.fitted import Fitted
from mixtura.plotting.base import (
    MOST_POINTS,
    MUTED,
    Display,
    HasModel,
    class_names,
    color,
    column_names,
    dots,
    fitted_model,
    legend_beside,
    lines,
    require_matplotlib,
    shown,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

#: Shares of a component's rows within its outlines, and points of an outline or a curve.
SHARES, _POINTS = (0.5, 0.9), 300
#: Deviations that curves go beyond the means of components, and the share of the peak that shows.
_REACH, _VISIBLE = 3.5, 0.003
#: Columns that are shown unless others are asked for, and categories of one; columns of which it
#: is found out what they tell.
_COLUMNS, _CATEGORIES, MOST_COLUMNS = 6, 12, 1_000


def nats_alone(model: Fitted, device: Device) -> np.ndarray:
    """(D,) what each column on its own is expected to tell about the class.

    Zeros where there are no two classes, or so many columns that it would take minutes.
    """
    n_columns = len(model.scaling.location)
    if model.classes is None or len(model.classes) < 2 or n_columns > MOST_COLUMNS:
        return np.zeros(n_columns)
    nothing = Matrix(np.full((1, n_columns), np.nan), np.ones((1, n_columns), dtype=bool))
    return next_feature(model, nothing, torch.Generator().manual_seed(0), device)[0]


def telling_columns(model: Fitted, device: Device) -> np.ndarray:
    """(D,) columns, those first that tell most on their own; else in their order."""
    return np.argsort(-nats_alone(model, device), kind="stable")


def _tabular(model: Fitted) -> Density:
    density = model.mixture.density
    if isinstance(density, HiddenMarkov):
        raise UnsupportedError("components of sequences are chains of states: use StatesDisplay.")
    return density


@dataclass
class Marginal:
    """The density of one column in each class, all others integrated out.

    Attributes
    ----------
    name : of the column.
    at : (G,) values in the user's units, or names of categories.
    density : (G, C) p(value | class); without classes one column, p(value).
    is_category : whether values are categories.
    """

    name: str
    at: np.ndarray
    density: np.ndarray
    is_category: bool

    @classmethod
    def of(cls, model: Fitted, column: int, device: Device) -> Marginal:
        """By the density of rows in which nothing else is observed."""
        mixture = model.mixture
        name = column_names(model.schema, len(model.scaling.location))[column]
        at, joint = component_log_joint(model, column, device)
        density = (mixture.by_class(torch.from_numpy(joint)) - mixture.log_prior).exp().numpy()
        if at.dtype == object:
            return cls(name, at, density, True)
        seen = np.flatnonzero((density > _VISIBLE * density.max(0)).any(1))
        there = slice(seen[0], seen[-1] + 1)
        return cls(name, at[there], density[there], False)

    def draw(self, ax: Axes, flat: bool = False) -> None:
        """Curves, or bars beside each other; `flat` on its side."""
        if self.is_category:
            self._draw_bars(ax)
            return
        for number, density in enumerate(self.density.T):
            values = (density, self.at) if flat else (self.at, density)
            ax.plot(*values, **lines(number), linewidth=1.5)

    def _draw_bars(self, ax: Axes) -> None:
        order = np.argsort(-self.density.max(1), kind="stable")[:_CATEGORIES]
        order.sort()
        n_classes = self.density.shape[1]
        height = 0.8 / n_classes
        for number, chance in enumerate(self.density.T):
            at = np.arange(len(order)) + (number - (n_classes - 1) / 2) * height
            ax.barh(at, chance[order], height * 0.9, color=color(number))
        ax.set_yticks(range(len(order)), [shown(each, 16) for each in self.at[order]])
        ax.invert_yaxis()


def component_log_joint(
    model: Fitted, column: int, device: Device
) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column (G,), or names of its categories, and their log joints (G, K)."""
    n_columns = len(model.scaling.location)
    levels = int(model.schema.levels(n_columns)[column])
    nodes = np.arange(levels) if levels else np.linspace(*_reach(model, column), _POINTS)
    alone = np.full((len(nodes), n_columns), np.nan)
    alone[:, column] = nodes
    joint = model.component_log_joint(model.engine(Matrix(alone, np.isnan(alone)), device))
    if not levels:
        return nodes, joint
    known = model.schema.categories[column] if model.schema.categories is not None else None
    names = [str(each) for each in ([] if known is None else known.tolist())] or ["none"]
    return np.array(names, dtype=object), joint


def _reach(model: Fitted, column: int) -> tuple[float, float]:
    """Where the components have their rows, in the user's units."""
    mean, deviation = _moments(_tabular(model), column)
    ends = np.zeros((2, len(model.scaling.location)))
    ends[:, column] = (mean - _REACH * deviation).min(), (mean + _REACH * deviation).max()
    low, high = model.scaling.invert(ends)[:, column]
    return float(low), float(high)


def _moments(density: Density, column: int) -> tuple[np.ndarray, np.ndarray]:
    """(K,) means and deviations of a column of numbers."""
    part, place = _placed(density, column)
    variance = part.covariances()[:, place, place]
    return part.location[:, place].numpy(), variance.sqrt().numpy()


def _placed(density: Density, column: int) -> tuple[Density, int]:
    """The density of numbers that a column belongs to, and its place there."""
    place = density.find(column)[1] if isinstance(density, Product) else column
    return numeric_part(density), place


def outlines(model: Fitted, pair: Sequence[int]) -> np.ndarray:
    """(K, shares, points, 2) lines that hold these shares of each component's rows.

    They are ellipses in the model's units, and mapped into the user's point by point: what they
    hold stays the same, whatever the curves of the columns.
    """
    density = _tabular(model)
    part, places = numeric_part(density), [_placed(density, column)[1] for column in pair]
    spread = part.scale.covariances() if isinstance(part, StudentT) else part.covariances()
    factor = torch.linalg.cholesky(spread[:, places][:, :, places]).numpy()
    angle = np.linspace(0.0, 2.0 * np.pi, _POINTS)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    units = np.einsum("ks,kij,jp->kspi", _radii(part), factor, circle)
    units += part.location[:, None, None, places].numpy()
    whole = np.zeros((units[..., 0].size, len(model.scaling.location)))
    whole[:, list(pair)] = units.reshape(-1, 2)
    return model.scaling.invert(whole)[:, list(pair)].reshape(units.shape)


def _radii(part: Density) -> np.ndarray:
    """(K, shares) of the circle that an outline is the image of.

    In two dimensions the squares are quantiles in closed form, of chi-squared and F distributions.
    """
    beyond = np.tile(1.0 - np.array(SHARES), (part.n_components, 1))
    if isinstance(part, StudentT):
        dof = part.dof.numpy()[:, None]
        return np.sqrt(dof * (beyond ** (-2.0 / dof) - 1.0))
    return np.sqrt(-2.0 * np.log(beyond))


@dataclass
class ComponentsDisplay(Display):
    """Components over two columns of numbers: outlines, the densities of both, and rows.

    Of every component an inner line holds half of its rows and an outer one 90 % (exactly so for
    Gaussians and t distributions, also where columns are mapped by curves). In the margins stand
    the densities of each column given the class.

    Attributes
    ----------
    outlines : (K, 2, P, 2) in the user's units.
    owner : (K,) the class of each component.
    weights : (K,) of components within their class; heavier ones have stronger lines.
    marginals : of the two columns.
    classes : their names.
    rows, labels : (n, 2) and (n,), what is drawn as points; labels are class indices, -1 for none.
    lines_, points_ : artists.
    """

    outlines: np.ndarray
    owner: np.ndarray
    weights: np.ndarray
    marginals: tuple[Marginal, Marginal]
    classes: list[str]
    rows: np.ndarray
    labels: np.ndarray

    @classmethod
    def from_estimator(
        cls,
        estimator: HasModel,
        X: ArrayLike = None,
        y: ArrayLike = None,
        *,
        features: Sequence[int | str] | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the components of a fitted estimator that has a density of rows.

        Parameters
        ----------
        X, y : rows to draw as points (some of them, where they are many), and their labels.
        features : two columns of numbers, by name or position; None takes those that on their own
            tell most about the class (of more than 1,000 columns, or without classes, the first).
        """
        require_matplotlib()
        model = fitted_model(estimator)
        pair = _pair(model, features, estimator.device)
        mixture = model.mixture
        points, labels = np.zeros((0, 2)), np.zeros(0, dtype=int)
        if X is not None:
            values = estimator._rows(X).values
            labels = _labels(model, y, len(values))
            step = -(-len(values) // MOST_POINTS)
            points, labels = values[::step][:, pair].astype(np.float64), labels[::step]
        one, two = (Marginal.of(model, column, estimator.device) for column in pair)
        return cls(
            outlines(model, pair),
            mixture.owner.numpy(),
            mixture.log_weight.exp().numpy(),
            (one, two),
            class_names(model.classes),
            points,
            labels,
        ).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax = self._axes(ax, 6.5, 5.0)
        self.points_ = [self._scatter(ax, number) for number in range(-1, len(self.classes))]
        self.lines_ = list(self._outline(ax))
        top = ax.inset_axes((0.0, 1.02, 1.0, 0.18), sharex=ax)
        side = ax.inset_axes((1.02, 0.0, 0.18, 1.0), sharey=ax)
        self.marginals[0].draw(top)
        self.marginals[1].draw(side, flat=True)
        for beside in (top, side):
            beside.set_axis_off()
        ax.set_xlabel(shown(self.marginals[0].name))
        ax.set_ylabel(shown(self.marginals[1].name))
        if len(self.classes) > 1:
            firsts = [self.lines_[2 * int(place)] for place in self._firsts()]
            legend_beside(side, firsts, self.classes, "class")
        return self

    def _firsts(self) -> list[int]:
        """The first component of each class."""
        return [int((self.owner == number).argmax()) for number in range(len(self.classes))]

    def _scatter(self, ax: Axes, number: int) -> Artist:
        x, y = self.rows[self.labels == number].T
        style = dots(number) if number >= 0 else {"color": MUTED}
        return ax.scatter(x, y, 12, **style, alpha=0.35, linewidth=0)

    def _outline(self, ax: Axes) -> Iterator[Artist]:
        for number, weight, both in zip(self.owner, self.weights, self.outlines, strict=True):
            strength = 0.35 + 0.65 * min(1.0, 2.0 * weight)
            for width, (x, y) in zip((1.8, 1.0), both.transpose(0, 2, 1), strict=True):
                yield ax.plot(x, y, **lines(number), linewidth=width, alpha=strength)[0]


def _labels(model: Fitted, y: ArrayLike, n_rows: int) -> np.ndarray:
    """(n,) class indices; -1 where there is no label."""
    if y is None or model.classes is None:
        return np.full(n_rows, 0 if model.classes is None else -1)
    return encode_labels(read_labels_of(y, n_rows), model.classes, "auto")


def _pair(model: Fitted, features: Sequence[int | str] | None, device: Device) -> list[int]:
    """Two columns of numbers."""
    _tabular(model)
    n_columns = len(model.scaling.location)
    levels = model.schema.levels(n_columns)
    if features is None:
        numbers = [at for at in telling_columns(model, device) if not levels[at]]
        chosen = [int(at) for at in numbers[:2]]
    else:
        chosen = [model.schema.position(column, n_columns) for column in features]
    if len(set(chosen)) != 2 or len(chosen) != 2 or levels[chosen].any():
        raise InvalidInputError(
            f"ComponentsDisplay needs two different columns of numbers, got features={features!r} "
            f"of {n_columns} column(s): MarginalsDisplay takes any, also categories."
        )
    return chosen


@dataclass
class MarginalsDisplay(Display):
    """Densities of single columns given the class: curves for numbers, bars for categories.

    Attributes
    ----------
    marginals : what is drawn.
    classes : their names.
    axes_ : one per column; `ax_` is the first.
    """

    marginals: list[Marginal]
    classes: list[str]

    @classmethod
    def from_estimator(
        cls,
        estimator: HasModel,
        *,
        features: Sequence[int | str] | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw columns of a fitted estimator that has a density of rows.

        Parameters
        ----------
        features : columns by name or position; None takes the six that on their own tell most
            about the class (of more than 1,000 columns, or without classes, the first).
        """
        require_matplotlib()
        model, device = fitted_model(estimator), estimator.device
        _tabular(model)
        n_columns = len(model.scaling.location)
        if features is None:
            chosen = telling_columns(model, device)[:_COLUMNS].tolist()
        else:
            chosen = [model.schema.position(column, n_columns) for column in features]
        if not chosen:
            raise InvalidInputError("features names no column: give one or more.")
        found = [Marginal.of(model, column, device) for column in chosen]
        return cls(found, class_names(model.classes)).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, which are divided, or on a new figure."""
        n_across = min(3, len(self.marginals))
        n_down = -(-len(self.marginals) // n_across)
        ax = self._axes(ax, 3.0 * n_across + 1.0, 2.4 * n_down)
        grid = ax.get_subplotspec()
        if grid is None:
            raise InvalidInputError("ax must be a subplot, as plt.subplots gives, to be divided.")
        ax.set_axis_off()
        cells = grid.subgridspec(n_down, n_across)
        self.axes_ = []
        for place, marginal in enumerate(self.marginals):
            here = ax.figure.add_subplot(cells[place // n_across, place % n_across])
            marginal.draw(here)
            here.set_xlabel(shown(marginal.name), fontsize="small")
            here.tick_params(labelsize="x-small")
            if not marginal.is_category:
                here.set_yticks([])
            self.axes_.append(here)
        if len(self.classes) > 1:
            from matplotlib.lines import Line2D

            handles = [
                Line2D([], [], **lines(number), linewidth=2.0)
                for number in range(len(self.classes))
            ]
            legend_beside(self.axes_[n_across - 1], handles, self.classes, "class")
        return self
