"""Numbers that models share with their twins in the runtime."""

from __future__ import annotations

import math

import numpy as np

LOG_2PI = math.log(2.0 * math.pi)
#: (1001,) shares of rows at which the scores of typical ones are stored.
SHARES = np.linspace(0.0, 1.0, 1001)
#: A vote that nobody casts.
SILENCE = 1e-3
#: What lies no farther from an atom, in the model's units (or as a share of it), is that value.
SAME = 1e-6
#: Columns of sparse models end here, so that squares of their products stay finite.
FARTHEST_COLUMN = 1e70
#: A row far away, which models that have been read are asked about.
FAR = 1e6
#: The most bytes that the text of one array of a model file takes.
MOST_TEXT = 2**26
