"""What a fitted model answers beyond predictions: why, how sure, what next, what if."""

from mixtura.answers.cells import Cells, Intervals
from mixtura.answers.condition import (
    Condition,
    Given,
    draw_by_chance,
    read_given,
    warn_of_extrapolation,
    with_given,
)
from mixtura.answers.explain import METHODS, NUMBERS, OUTPUTS, Explanation, Groups, explain
from mixtura.answers.frames import (
    Forecast,
    decoded,
    draw_futures,
    forecast,
    frame_scores,
    state_proba,
)
from mixtura.answers.intervals import network_interval, network_means, predict_interval
from mixtura.answers.next_feature import (
    Cost,
    next_feature,
    next_for_network,
    next_for_targets,
    unit_costs,
)
from mixtura.answers.question import ClassQuestion, Question, TargetQuestion
from mixtura.answers.sets import predict_set

__all__ = [
    "METHODS",
    "NUMBERS",
    "OUTPUTS",
    "Cells",
    "ClassQuestion",
    "Condition",
    "Cost",
    "Explanation",
    "Forecast",
    "Given",
    "Groups",
    "Intervals",
    "Question",
    "TargetQuestion",
    "decoded",
    "draw_by_chance",
    "draw_futures",
    "explain",
    "forecast",
    "frame_scores",
    "network_interval",
    "network_means",
    "next_feature",
    "next_for_network",
    "next_for_targets",
    "predict_interval",
    "predict_set",
    "read_given",
    "state_proba",
    "unit_costs",
    "warn_of_extrapolation",
    "with_given",
]
