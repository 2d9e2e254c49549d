"""How far a classifier can be trusted: calibration, missing features, prediction sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from mixtura.data.given import ArrayLike, Classifier, Loaded
from mixtura.data.labels import encode_labels, read_labels
from mixtura.exceptions import InvalidInputError
from mixtura.plotting.base import (
    MUTED,
    Display,
    class_names,
    color,
    dots,
    legend_beside,
    require_matplotlib,
    shown,
)
from mixtura.plotting.holes import with_holes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Normal quantile of intervals that hold 95 %; rows of a group, at least, and groups, at most.
_TWO_SIDED, _FEWEST, _GROUPS = 1.96, 20, 8


def labels_of(classes: np.ndarray, y: ArrayLike) -> np.ndarray:
    """(n,) class indices of labels; there must be some, all known."""
    codes = encode_labels(read_labels(y), np.asarray(classes), None)
    if not len(codes) or (codes < 0).any():
        raise InvalidInputError("this display needs the label of every row, and a row at least.")
    return codes


def _check_shares(shares: Sequence[float]) -> list[float]:
    found = [float(share) for share in shares]
    if not found or not all(0.0 <= share <= 1.0 for share in found):
        raise InvalidInputError(f"shares of missing entries go from 0 to 1, got {shares!r}.")
    return found


@dataclass(frozen=True)
class Reliability:
    """Rows in groups by how sure a classifier is of its answer.

    Attributes
    ----------
    said : (B,) mean probability of the predicted class in each group.
    right : (B,) share of the group that is predicted rightly.
    count : (B,) rows.
    """

    said: np.ndarray
    right: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, proba: np.ndarray, labels: np.ndarray, n_groups: int = _GROUPS) -> Reliability:
        """Of probabilities (n, C) and class indices (n,), in groups of as many rows each.

        They are so many at most, and have twenty rows at least, where there are as many.
        """
        sure, right = proba.max(1), proba.argmax(1) == labels
        count = max(1, min(n_groups, len(sure) // _FEWEST))
        groups = np.array_split(np.argsort(sure, kind="stable"), count)
        said, share = (np.array([each[g].mean() for g in groups]) for each in (sure, right))
        return cls(said, share, np.array([len(group) for group in groups]))

    @property
    def error(self) -> float:
        """Mean distance between what is said and what is right, by rows."""
        return float(np.average(np.abs(self.said - self.right), weights=self.count))

    def interval(self) -> np.ndarray:
        """(2, B) ends of 95 % intervals of the shares that are right."""
        return wilson(self.right, self.count)


def wilson(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(2, ...) ends of Wilson's 95 % intervals of shares among so many."""
    z = _TWO_SIDED
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    root = np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    reach = z * root / (1 + z * z / count)
    return np.stack([middle - reach, middle + reach])


@dataclass
class CalibrationDisplay(Display):
    """How often a classifier is right that says it is so sure, for any number of classes.

    Rows stand in groups of equal size by the probability of the predicted class; bars are 95 %
    intervals. On the diagonal a classifier is as often right as it says.

    Attributes
    ----------
    reliability : by the share of entries that were taken away.
    lines_ : artists, one per share.
    """

    reliability: dict[float, Reliability]

    @classmethod
    def from_estimator(
        cls,
        estimator: Classifier,
        X: ArrayLike,
        y: ArrayLike,
        *,
        missing: Sequence[float] = (0.0,),
        n_groups: int = _GROUPS,
        random_state: int = 0,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the calibration of a fitted classifier on rows that it has not seen.

        Parameters
        ----------
        missing : shares of the entries that are taken away at random, one line for each.
        n_groups : of rows, at most.
        """
        require_matplotlib()
        shares, labels = _check_shares(missing), labels_of(estimator.classes_, y)
        generator = np.random.default_rng(random_state)
        found = {}
        for share in shares:
            proba = estimator.predict_proba(with_holes(X, share, generator))
            found[share] = Reliability.of(proba, labels, n_groups)
        return cls(found).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax, self.lines_ = self._axes(ax, 5.0, 4.5), []
        for number, (share, each) in enumerate(self.reliability.items()):
            reach = np.abs(each.interval() - each.right)
            label = f"{100 * share:.0f} % missing (off by {100 * each.error:.1f} points)"
            style = {**dots(number), "markersize": 5, "linewidth": 1.4, "label": label}
            self.lines_.append(ax.errorbar(each.said, each.right, reach, **style))
        low = min(min(each.said.min(), each.interval().min()) for each in self.reliability.values())
        ends = [max(0.0, low - 0.03), 1.0]
        ax.plot(ends, ends, color=MUTED, linestyle="--", linewidth=1.0)
        ax.set(
            xlim=(ends[0], 1.02),
            ylim=(ends[0], 1.02),
            xlabel="probability of the predicted class",
            ylabel="share that is right",
            aspect="equal",
        )
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0.0, 1.0))
        return self


@dataclass
class MissingDisplay(Display):
    """Error against the share of entries that are missing at prediction.

    Several estimators are compared by drawing them on the same axes, `ax=display.ax_`.

    Attributes
    ----------
    shares : (S,) of the entries that were taken away at random.
    errors : (S, repeats) share of rows that are predicted wrongly.
    name : of the estimator.
    line_ : artist.
    """

    shares: np.ndarray
    errors: np.ndarray
    name: str

    @classmethod
    def from_estimator(
        cls,
        estimator: Classifier,
        X: ArrayLike,
        y: ArrayLike,
        *,
        shares: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        n_repeats: int = 3,
        name: str | None = None,
        random_state: int = 0,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the errors of a fitted classifier that takes missing entries.

        Parameters
        ----------
        shares : of the entries that are taken away at random.
        n_repeats : of the drawing of holes; the bar is their standard deviation.
        """
        require_matplotlib()
        found, labels = _check_shares(shares), labels_of(estimator.classes_, y)
        check_takes_holes(estimator)
        generator = np.random.default_rng(random_state)
        known = np.asarray(estimator.classes_)
        errors = [
            [
                float(np.mean(estimator.predict(with_holes(X, share, generator)) != known[labels]))
                for _ in range(n_repeats)
            ]
            for share in found
        ]
        return cls(np.array(found), np.array(errors), name or type(estimator).__name__).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax = self._axes(ax)
        number = len(ax.containers)
        self.line_ = ax.errorbar(
            100 * self.shares,
            100 * self.errors.mean(1),
            100 * self.errors.std(1),
            label=self.name,
            **dots(number),
            markersize=5,
            linewidth=1.4,
        )
        ax.set(xlabel="entries missing (%)", ylabel="error (%)")
        ax.update_datalim([(0.0, 0.0)])
        ax.autoscale_view()
        ax.set_ylim(bottom=0.0, auto=True)
        names = [shown(each.get_label()) for each in ax.containers]
        ax.legend(ax.containers, names, frameon=False, fontsize="small", loc="upper left")
        return self


def check_takes_holes(estimator: object) -> None:
    """Refuse a classifier that needs complete rows; of a pipeline, holes come to the first step."""
    steps = getattr(estimator, "steps", None) or [("", estimator)]
    tags = getattr(steps[0][1], "__sklearn_tags__", None)
    if tags is not None and not tags().input_tags.allow_nan:
        raise InvalidInputError(
            f"{type(estimator).__name__} takes no missing values: MixtureClassifier and others do, "
            "or put an imputer before it, in a pipeline."
        )


@dataclass
class SetsDisplay(Display):
    """Prediction sets of rows: a dot per class, its area the probability, filled where in the set.

    Crosses mark the true classes. The title counts all rows; the first are drawn.

    Attributes
    ----------
    sets : (n, C) bool.
    proba : (n, C).
    labels : (n,) true class indices, or None.
    coverage : what was asked for.
    classes : names.
    inside_, outside_, true_ : artists; None for what there is none of.
    """

    sets: np.ndarray
    proba: np.ndarray
    labels: np.ndarray | None
    coverage: float
    classes: list[str]
    max_rows: int = 20

    @classmethod
    def from_estimator(
        cls,
        estimator: Loaded,
        X: ArrayLike,
        y: ArrayLike = None,
        *,
        coverage: float = 0.9,
        max_rows: int = 20,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the sets of a fitted classifier that has `predict_set`.

        Parameters
        ----------
        y : true labels, where they are known.
        coverage : share of the sets that are to hold the true class.
        max_rows : rows that are drawn.
        """
        require_matplotlib()
        if not hasattr(estimator, "predict_set"):
            raise InvalidInputError(
                f"{type(estimator).__name__} has no predict_set: MixtureClassifier has."
            )
        labels = None if y is None else labels_of(estimator.classes_, y)
        sets, proba = estimator.predict_set(X, coverage), estimator.predict_proba(X)
        names = class_names(np.asarray(estimator.classes_))
        return cls(sets, proba, labels, coverage, names, max_rows).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        some = slice(self.max_rows)
        sets, proba = self.sets[some], self.proba[some]
        room = 0.25 + 0.1 * max(len(shown(each)) for each in self.classes)
        turned = room * len(self.classes) > 8.0
        room = 0.3 if turned else room
        ax = self._axes(ax, 3.0 + room * len(self.classes), 1.6 + 0.22 * len(sets))
        area = 8.0 + 130.0 * proba
        row, label = np.nonzero(sets)
        self.inside_ = ax.scatter(label, row, area[sets], color=color(0))
        row, label = np.nonzero(~sets)
        self.outside_ = ax.scatter(label, row, area[~sets], facecolors="none", edgecolors=MUTED)
        self.true_ = None
        if self.labels is not None:
            label = self.labels[some]
            self.true_ = ax.scatter(label, range(len(label)), 28, color=color(1), marker="x")
        ax.set_xticks(
            range(len(self.classes)),
            [shown(each) for each in self.classes],
            rotation=90 if turned else 0,
        )
        ax.set_yticks(range(len(sets)))
        ax.tick_params(axis="y", labelsize="x-small")
        ax.set(xlabel="class", ylabel="row", title=self._title())
        ax.title.set_fontsize("medium")
        ax.margins(x=0.5 / len(self.classes))
        ax.set_ylim(len(sets) - 0.4, -0.6)
        artists = [self.inside_, self.outside_, *([self.true_] if self.true_ else [])]
        legend_beside(ax, artists, ["in the set", "not in it", "true class"][: len(artists)], "")
        return self

    def _title(self) -> str:
        text = f"sets of {100 * self.coverage:g} %: {self.sets.sum(1).mean():.2f} classes per row"
        if self.labels is None:
            return text
        held = self.sets[np.arange(len(self.labels)), self.labels].mean()
        return f"{text},\n{100 * held:.1f} % hold the true one ({len(self.labels)} rows)"
