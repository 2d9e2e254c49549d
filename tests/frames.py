"""A small mixed table with holes, for several tests."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

#: A model that is fitted in no time.
QUICK = {"objective": "likelihood", "density": "diag", "missingness": "ignore"}


def make_frame(n=120, seed=0, holes=0.15):
    """Two classes that every column but the last tells a little of."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    color = np.where(rng.random(n) < 0.1 + 0.7 * y, "red", rng.choice(["blue", "green"], n))
    frame = pd.DataFrame(
        {
            "color": color.astype(object),
            "size": 1.5 * y + rng.normal(size=n),
            "member": pd.Series([bool(v) for v in rng.random(n) < 0.2 + 0.6 * y], dtype=object),
            "weight": 100.0 + 10.0 * rng.normal(size=n),
        }
    )
    return frame.mask(rng.random(frame.shape) < holes), y


FRAME, Y = make_frame()
FRESH, FRESH_Y = make_frame(200, seed=1)
