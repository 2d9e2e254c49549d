"""Tensors by their names, for several tests."""

import numpy as np


def close(found, wanted, exact=1e-9):
    """Tensors of the same names are the same, up to rounding of the largest."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        slack = exact * max(1.0, float(value.abs().max()))
        np.testing.assert_allclose(found[name], value, exact, slack, err_msg=name)
