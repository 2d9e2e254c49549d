"""How sure a model is: sets of classes that cover the true one as often as they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mixtura.conformal import Judge, conformal_sets
from mixtura.data import Matrix
from mixtura.data.given import Device
from mixtura.models.fitted import Fitted
from mixtura.models.held_back import HeldBack
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.selection.typical import with_models


def predict_set(
    model: Fitted, held_back: HeldBack, rows: Matrix, coverage: float, device: Device
) -> np.ndarray:
    """(n, C) whether each class is in the set of each row."""
    if not held_back.models:
        held_back = with_models(model, held_back, device)

    def proba(fitted: Fitted, rows: Matrix) -> np.ndarray:
        return np.exp(fitted.log_proba(fitted.engine(rows, device)))

    def judged_by(mixtures: tuple[Mixture | Network, ...]) -> Judge:
        own = judge(model, mixtures)
        return lambda values: proba(own, Matrix(values))

    judges = [judged_by(mixtures) for mixtures in held_back.models]
    observed = ~np.isnan(rows.values)
    return conformal_sets(proba(model, rows), observed, held_back, judges, coverage)


def judge(model: Fitted, mixtures: tuple[Mixture | Network, ...]) -> Fitted:
    """The model with mixtures in place of its own and of those averaged with it, if any."""
    if not mixtures:
        return model
    first, *others = mixtures
    blend = model.blend
    if blend is not None:
        members = zip(blend.members, others, strict=True)
        blend = replace(blend, members=tuple(replace(each, model=own) for each, own in members))
    return replace(model, model=first, blend=blend)
