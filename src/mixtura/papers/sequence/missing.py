"""Sequence mixtures beyond the paper: error against what is missing from test sequences.

All methods are trained on complete sequences. From those to classify, a share of the frames or of
the single values is taken away, or whole channels, others for each sequence. Mixtures integrate
over what is missing. The rivals see sequences interpolated along time; a channel without a frame
is its mean for the support vectors, and left out of the distances of the nearest neighbor.

Parts are named like "vowels, frames".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.pipeline import make_pipeline

from mixtura.data.given import Predictor
from mixtura.papers.pictures import curves, framed
from mixtura.papers.report import Report
from mixtura.papers.sequence._methods import (
    RIVALS,
    Interpolate,
    Sequences,
    error,
    method,
    take,
    without_channels,
    without_frames,
    without_values,
)
from mixtura.papers.sequence.speech import SETTINGS, load
from mixtura.papers.tables import spread

Punch = Callable[..., Sequences]

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
CHANNELS = (0, 1, 2, 4, 6, 8, 10)
KINDS: dict[str, tuple[Punch, tuple[float, ...]]] = {
    "frames": (without_frames, SHARES),
    "values": (without_values, SHARES),
    "channels": (without_channels, CHANNELS),
}
PARTS = ("vowels", "digits")
METHODS = ("ML", "BxCML", *RIVALS)
DRAWS = 3
_QUICK_METHODS = ("ML", "1-NN DTW")


def run(report: Report) -> None:
    """A row for each set, kind of hole, amount and method, and curves."""
    for part in PARTS[:1] if report.quick else PARTS:
        kinds = [kind for kind in KINDS if report.wants(f"{part}, {kind}")]
        if kinds:
            data, target, ((train, test), *_) = load(part, report.seed)
            names = _QUICK_METHODS if report.quick else METHODS
            models = {
                name: _fit(report, part, name, take(data, train), target[train]) for name in names
            }
            for kind in kinds:
                _show(report, part, kind, models, take(data, test), target[test])
    if report.tables:
        _draw(report)


def _fit(report: Report, part: str, name: str, data: Sequences, target: np.ndarray) -> Predictor:
    report.note(f"{part}: {name}")
    model = method(name, **SETTINGS[part])(report.seed)
    if name in RIVALS:
        model = make_pipeline(Interpolate(blank=name == "FSVM"), model)
    return model.fit(data, target)


def _show(
    report: Report,
    part: str,
    kind: str,
    models: dict[str, Predictor],
    data: Sequences,
    target: np.ndarray,
) -> None:
    punch, amounts = KINDS[kind]
    for amount in amounts[::4] if report.quick else amounts:
        draws = DRAWS if amount and not report.quick else 1
        holed = [punch(data, amount, np.random.default_rng(report.seed + k)) for k in range(draws)]
        for name, model in models.items():
            errors = [error(model, sequences, target) for sequences in holed]
            missing = amount if kind == "channels" else round(100 * amount)
            what = {"data": part, "kind": kind, "missing": missing, "model": name}
            report.row("errors", **what, **spread(errors))


def _draw(report: Report) -> None:
    rows = report.tables["errors"]
    panels = list(dict.fromkeys((row["data"], row["kind"]) for row in rows))
    with report.figure(figsize=(4.5 * len(panels), 4)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, (part, kind) in zip(axes, panels, strict=True):
            mine = [row for row in rows if (row["data"], row["kind"]) == (part, kind)]
            curves(panel, mine, "model", "missing")
            unit = "" if kind == "channels" else " (%)"
            framed(panel, f"missing {kind}{unit}", "test error (%)", part)
