"""What displays share: axes, colors that people tell apart, names that are shown as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from sklearn.utils.validation import check_is_fitted

from mixtura.data.given import ArrayLike, Device, Parameters
from mixtura.data.schema import Schema
from mixtura.exceptions import UnsupportedError
from mixtura.models.fitted import Fitted, Observations

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

#: Colors of Okabe and Ito that show on white and on black; then markers and lines differ.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES, _MARKERS = ("-", "--", ":", "-."), ("o", "^", "s", "D", "v", "P")
#: Names are cut to so many characters.
_LONGEST = 28
#: Points of more rows than these hide each other.
MOST_POINTS = 1_000
#: Control characters but for the end of a line, halves of characters, and turns of direction.
_STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
#: What all but what matters is drawn in: it shows on white and on black.
MUTED = "#8c8c8c"


class HasModel(Protocol):
    """A fitted estimator of mixtura."""

    device: Device

    @property
    def model_(self) -> Fitted: ...
    def _rows(self, X: ArrayLike) -> Observations: ...


class Display:
    """What is drawn on axes, in the way of scikit-learn's displays.

    Attributes
    ----------
    ax_, figure_ : the axes and their figure.
    """

    ax_: Axes
    figure_: Figure | SubFigure

    def _axes(self, ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
        """The axes to draw on; those of a new figure where none are given."""
        require_matplotlib()
        if ax is None:
            import matplotlib.pyplot as pyplot

            _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def require_matplotlib() -> None:
    """An error that says what to install, where matplotlib is absent."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("Plots need matplotlib: pip install 'mixtura[plot]'.") from None


def fitted_model(estimator: HasModel) -> Fitted:
    """The model of a fitted estimator."""
    check_is_fitted(estimator)
    found = getattr(estimator, "model_", None)
    if found is None:
        raise UnsupportedError(
            f"{type(estimator).__name__} has no model of its own to look at: pass the estimator of "
            "mixtura inside it."
        )
    return found


def printable(text: str) -> str:
    """Text without what steers a screen or turns the direction of writing."""
    return _STEERING.sub("\ufffd", text)


def shown(name: object, longest: int = _LONGEST) -> str:
    """A name on one line, not too long, in which no dollar begins a formula."""
    text = " ".join(printable(str(name)).split())
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text.replace("$", r"\$")


def column_names(schema: Schema, n_columns: int) -> list[str]:
    """Names of all columns; their positions where they have none."""
    names = schema.names or [f"column {place}" for place in range(n_columns)]
    return [str(name) for name in names]


def class_names(classes: np.ndarray | None) -> list[str]:
    """Names of all classes; one without a name where there are none."""
    return [""] if classes is None else [str(label) for label in classes.tolist()]


def color(number: int) -> str:
    """The color of a class, a state or a curve."""
    return COLORS[number % len(COLORS)]


def dots(number: int) -> Parameters:
    """The style of its points; those of one color differ in their markers."""
    marker = _MARKERS[(number + number // len(COLORS)) % len(_MARKERS)]
    return {"color": color(number), "marker": marker}


def lines(number: int) -> Parameters:
    """The style of its lines; those of one color differ in their dashes."""
    dashes = DASHES[number // len(COLORS) % len(DASHES)]
    return {"color": color(number), "linestyle": dashes}


def legend_beside(ax: Axes, handles: Sequence[Artist], labels: Sequence[str], title: str) -> None:
    """A legend to the right of the axes; where there are many entries, the first of them."""
    most = 20
    names = [shown(label) or " " for label in labels[:most]]
    if len(labels) > most:
        title = f"{title} (first {most} of {len(labels)})"
    ax.legend(
        list(handles)[:most],
        names,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        borderaxespad=0.0,
        frameon=False,
        fontsize="small",
        title_fontsize="small",
    )
