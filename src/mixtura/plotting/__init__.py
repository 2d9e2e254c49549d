"""Pictures of fitted models, in the way of scikit-learn's displays.

Each has `from_estimator(...)`, which draws, and `plot(ax=None)`, which draws again; `ax_`,
`figure_` and the artists are attributes. They need matplotlib: `pip install 'mixtura[plot]'`.
"""

from mixtura.plotting.classifiers import CalibrationDisplay, MissingDisplay, SetsDisplay
from mixtura.plotting.components import ComponentsDisplay, MarginalsDisplay
from mixtura.plotting.explanation import ExplanationDisplay
from mixtura.plotting.sequences import StatesDisplay
from mixtura.plotting.training import ChoiceDisplay, HistoryDisplay

__all__ = [
    "CalibrationDisplay",
    "ChoiceDisplay",
    "ComponentsDisplay",
    "ExplanationDisplay",
    "HistoryDisplay",
    "MarginalsDisplay",
    "MissingDisplay",
    "SetsDisplay",
    "StatesDisplay",
]
