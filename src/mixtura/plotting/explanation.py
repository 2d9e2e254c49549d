"""An explanation: what each column adds for one row, or does on average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from mixtura.answers.explain import Explanation
from mixtura.data.given import ArrayLike, Loaded, Setting
from mixtura.exceptions import InvalidInputError
from mixtura.plotting.base import MUTED, Display, color, require_matplotlib, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class ExplanationDisplay(Display):
    """Shapley values: a waterfall for one row, bars of mean absolute values for several.

    Attributes
    ----------
    names : of the columns, those first that matter most; for one row, the rest is summed up.
    values : (P,) what they add; on average without sign, for several rows.
    base : the answer to a row with nothing observed; None for several rows.
    title : what is explained.
    n_columns : how many columns there are.
    bars_ : artist.
    """

    names: list[str]
    values: np.ndarray
    base: float | None
    title: str
    n_columns: int

    @classmethod
    def from_estimator(
        cls,
        estimator: Loaded,
        X: ArrayLike,
        *,
        output: str | None = None,
        target: object = None,
        max_features: int = 10,
        ax: Axes | None = None,
        **options: Setting,
    ) -> Self:
        """Explain rows, and draw it.

        Parameters
        ----------
        output : "probability", "log_odds", "log_density" or "mean", as of `explain`, which further
            `options` go to.
        target : the class that is explained; None takes for each row the one that gets the largest
            value. Of a regressor, "target 0" and so on; None takes the first.
        max_features : columns that are drawn; for one row, the others are summed up.
        """
        if not hasattr(estimator, "explain"):
            raise InvalidInputError(
                f"{type(estimator).__name__} has no explain: estimators with a density have."
            )
        require_matplotlib()
        found, title = estimator.explain(X, output, **options), None
        if hasattr(estimator, "predict_quantiles") and output != "log_density":
            names = found.output_names
            target = names[0] if names and target is None else target
            title = f"expected {target or 'number'}"
        return cls.from_explanation(
            found, target=target, max_features=max_features, title=title, ax=ax
        )

    @classmethod
    def from_explanation(
        cls,
        explanation: Explanation,
        *,
        target: object = None,
        max_features: int = 10,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw what `explain` gave, under a title, or that of its class."""
        if max_features < 1:
            raise InvalidInputError(f"max_features must be positive, got {max_features!r}.")
        values, base, about = _of_class(explanation, target)
        own = [f"column {name}" if name.isdigit() else name for name in explanation.feature_names]
        first, start = np.abs(values).mean(0), None
        if len(values) == 1:
            first, start, data = values[0], float(base[0]), explanation.display_data
            own = [_with_value(name, data, place) for place, name in enumerate(own)]
        order = np.argsort(-np.abs(first), kind="stable")
        kept, rest = order[:max_features], order[max_features:]
        labels, drawn = [own[at] for at in kept], first[kept]
        if len(rest) and start is not None:
            labels.append("1 other" if len(rest) == 1 else f"{len(rest)} others")
            drawn = np.append(drawn, first[rest].sum())
        return cls(labels, drawn, start, title or about, len(own)).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax = self._axes(ax, 6.5, 1.4 + 0.32 * len(self.names))
        place = np.arange(len(self.names))
        if self.base is None:
            self.bars_ = ax.barh(place, self.values, 0.7, color=color(0))
            some = f", the first {len(self.names)} of {self.n_columns}"
            more = some if len(self.names) < self.n_columns else ""
            ax.set_xlabel(f"mean size of Shapley values{more}")
        else:
            ends = self.base + np.cumsum(self.values[::-1])[::-1]
            begin = ends - self.values
            shades = [color(0 if value >= 0.0 else 1) for value in self.values]
            self.bars_ = ax.barh(place, self.values, 0.7, left=begin, color=shades)
            ax.vlines(ends[1:], place[:-1] + 0.35, place[1:] - 0.35, color=MUTED, linewidth=0.8)
            self._write(ax, begin, ends)
            ax.axvline(self.base, color=MUTED, linestyle=":", linewidth=1.0)
            ax.set_xlabel(f"from {self.base:.3g} with nothing observed to {ends[0]:.3g}")
        ax.set_yticks(place, [shown(name, 40) for name in self.names])
        ax.invert_yaxis()
        ax.set_title(shown(self.title, 60), fontsize="medium")
        return self

    def _write(self, ax: Axes, begin: np.ndarray, ends: np.ndarray) -> None:
        """What each bar stands for, beside it."""
        low, high = min(begin.min(), ends.min()), max(begin.max(), ends.max())
        room = max(high - low, 1e-12)
        for at, value in enumerate(self.values):
            ax.text(
                max(begin[at], ends[at]) + 0.015 * room,
                at,
                f"{value:+.3g}",
                va="center",
                fontsize="small",
            )
        ax.set_xlim(low - 0.05 * room, high + 0.2 * room)


def _of_class(explanation: Explanation, target: object) -> tuple[np.ndarray, np.ndarray, str]:
    """(n, P) values and (n,) base values of one class, and what they are about."""
    values, base = np.asarray(explanation.values), np.asarray(explanation.base_values)
    names = explanation.output_names
    if names is None:
        return values, base, "log density"
    if target is None:
        place = (base + values.sum(1)).argmax(1)
    elif str(target) in names:
        place = np.full(len(values), list(names).index(str(target)))
    else:
        raise InvalidInputError(f"target={target!r} is none of the classes {list(names)}.")
    each = np.arange(len(values))
    of_one = len(set(place.tolist())) == 1
    title = f"class {names[place[0]]}" if of_one else "the predicted class"
    return values[each, :, place], base[each, place], title


def _with_value(name: str, data: np.ndarray | None, place: int) -> str:
    """The name of a column and what the row holds there."""
    value = None if data is None else data[0, place]
    if value is None:
        return name
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return f"{name} = {value:.4g}" if is_number else f"{name} = {value}"
