"""Whether rows lack entries by design: a questionnaire skips pages, a laboratory has no device."""

from __future__ import annotations

import numpy as np
from scipy.special import entr, xlog1py, xlogy

from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine

#: Rows that are counted, at most; imagined rows per class, which lack what rows do on average.
_MOST_ROWS, _IMAGINED = 20_000, 2.0
#: How surprising patterns of holes are, within classes, beside holes at random: at most this share.
_SURPRISE = 1 / 3


def lacks_by_design(engine: Engine) -> bool:
    """Whether rows of a class lack the same sets of entries again and again.

    So few patterns will hardly come by chance, and what they tell of classes may be trusted. Each
    row is told by the others of its class: by those with its pattern, and one imagined row that
    lacks each entry as often as they do, whatever else it lacks.
    """
    rows = engine.only(engine.labeled).merged(_MOST_ROWS)
    patterns = hole_patterns(rows.all_rows())
    absent = (patterns.x > 0.0).cpu().numpy()
    y, weight = patterns.y.cpu().numpy(), patterns.weight.double().cpu().numpy()
    share = weight @ absent / weight.sum()
    own = np.eye(y.max() + 1)[y] * weight[:, None]
    count, lacks = own.sum(0)[y] - weight, (own.T @ absent)[y] - weight[:, None] * absent
    chance = (lacks + _IMAGINED * share) / (count + _IMAGINED)[:, None]
    imagined = np.exp((xlogy(absent, chance) + xlog1py(~absent, -chance)).sum(1))
    code = np.unique(absent, axis=0, return_inverse=True)[1].ravel()
    alike = np.bincount(code * len(own.T) + y, weight)[code * len(own.T) + y] - weight
    surprise = -np.log((alike.clip(0.0) + imagined) / (count + 1.0))
    some = share[share > 0.0]
    at_random = len(some) * (entr(some.mean()) + entr(1.0 - some.mean()))
    return bool(weight @ surprise / weight.sum() < _SURPRISE * at_random)
