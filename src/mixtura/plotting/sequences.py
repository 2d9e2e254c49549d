"""Sequences and the states that a model sees in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from mixtura.data.given import ArrayLike, Loaded
from mixtura.data.sequence_input import Sequences
from mixtura.exceptions import InvalidInputError
from mixtura.plotting.base import DASHES, Display, color, legend_beside, require_matplotlib, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Channels that are drawn: so many kinds of lines can be told apart.
_MOST = len(DASHES)


@dataclass
class StatesDisplay(Display):
    """The channels of one sequence (the first four) over the states of its likeliest path.

    Attributes
    ----------
    frames : (T, d) in the user's units.
    states : (T,).
    names : of the channels.
    label : the predicted class.
    lines_, spans_ : artists: one line per channel, one span per stay in a state.
    """

    frames: np.ndarray
    states: np.ndarray
    names: list[str]
    label: object

    @classmethod
    def from_estimator(
        cls, estimator: Loaded, X: ArrayLike, *, index: int = 0, ax: Axes | None = None
    ) -> Self:
        """Draw one of the sequences in X, by a fitted `SequenceMixtureClassifier`.

        Parameters
        ----------
        index : which of them.
        """
        if not hasattr(estimator, "decode"):
            raise InvalidInputError(
                f"{type(estimator).__name__} knows no states: SequenceMixtureClassifier does."
            )
        require_matplotlib()
        rows = estimator._rows(X)
        assert isinstance(rows, Sequences)
        if not -len(rows) <= index < len(rows):
            raise InvalidInputError(f"index={index!r}, and X holds {len(rows)} sequences.")
        states, label = estimator.decode(X)[index], estimator.predict(X)[index]
        frames = rows.split()[index]
        names = [f"channel {number}" for number in range(frames.shape[1])]
        return cls(frames, states, rows.names or names, label).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on axes, or on a new figure."""
        ax = self._axes(ax, 8.0, 3.4)
        change = np.flatnonzero(np.diff(self.states)) + 1
        begins, ends = np.append(0, change), np.append(change, len(self.states))
        shades = [color(int(state)) for state in self.states[begins]]
        self.spans_ = [
            ax.axvspan(begin - 0.5, end - 0.5, color=shade, alpha=0.2, linewidth=0)
            for begin, end, shade in zip(begins, ends, shades, strict=True)
        ]
        self.lines_ = [
            ax.plot(values, color="black", linestyle=DASHES[number], linewidth=1.2)[0]
            for number, values in enumerate(self.frames.T[:_MOST])
        ]
        known = np.unique(self.states)
        first = [self.spans_[int((self.states[begins] == state).argmax())] for state in known]
        labels = [*self.names[:_MOST], *(f"state {state}" for state in known)]
        legend_beside(ax, [*self.lines_, *first], labels, "")
        if len(self.names) > _MOST:
            ax.set_ylabel(f"first {_MOST} of {len(self.names)} channels")
        ax.set(xlabel="frame", xlim=(-0.5, len(self.states) - 0.5))
        ax.set_title(shown(f"predicted class {self.label}", 60), fontsize="medium")
        return self
