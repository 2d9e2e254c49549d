"""What missing entries tell of the classes, beside mixtures that learn to discriminate.

Where the entries that rows lack depend on the class, a discriminative objective would teach that
to the features: a class whose rows seldom show a feature finds all values of it unlikely. Such a
mixture errs as soon as entries are missing for other reasons. So what the holes tell is set beside
it in training, as evidence that is there already, and taken away afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from mixtura.data.scaling import Scaling
from mixtura.densities import Density, Product
from mixtura.densities.base import VectorDensity
from mixtura.densities.hole_evidence import HoleEvidence
from mixtura.densities.product import hole_patterns
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.models.stack import Assignment, MixtureStack
from mixtura.solvers import SpreadPrior

#: Rows that are counted, at most; imagined rows per class, which lack what rows do on average.
_MOST_ROWS, _IMAGINED = 20_000, 2.0
#: Steps from none of the evidence to all of it, between which powers of it are compared.
_STEPS = 20

AnyMixture = TypeVar("AnyMixture", Mixture, MixtureStack)


def hole_evidence(engine: Engine, assignment: Assignment, n_classes: int) -> HoleEvidence:
    """(P * C, ...) for each class of each problem, by the different rows that it learns from."""
    indicators = engine.scaling.indicators
    if indicators is not None and not engine.uniform:  # thousands per row, of the same columns
        engine = engine.under(Scaling.identity(indicators.n_columns))
    batch = engine.merged(_MOST_ROWS).all_rows()
    absent, label = hole_patterns(batch).x.double(), assignment.label[batch.y]
    weight = assignment.weight(batch.y, batch.weight).double() * (label >= 0)[:, None]
    own = torch.nn.functional.one_hot(label.clamp_min(0), n_classes).double()
    found = [_evidence(absent, own, each) for each in weight.mT]
    base, log_odds = (torch.cat([getattr(e, name) for e in found]) for name in ("base", "log_odds"))
    return HoleEvidence(base=base, log_odds=log_odds)


def _evidence(absent: Tensor, own: Tensor, weight: Tensor) -> HoleEvidence:
    """Of one problem: absent (n, D), own (n, C) one where a row is of a class, weight (n,).

    Entries are absent independently of each other given the class, to a power under which the
    labels of rows that were not counted are most probable: zero where holes come at random, less
    than one where they come together.
    """
    rows = own * weight[:, None]
    count, lacks = rows.sum(0), rows.mT @ absent
    imagined = _IMAGINED * (lacks.sum(0) + 0.5) / (count.sum() + 1.0)
    log_odds, base = _log_odds(lacks + imagined, count + _IMAGINED)
    label, left = own.argmax(1), weight[:, None]
    others = lacks[label] - left * absent + imagined, (count[label] - weight + _IMAGINED)
    own_odds, own_base = _log_odds(*others)
    alone = own_base + (absent * own_odds).sum(1)
    log_joint = (base + absent @ log_odds.mT).scatter(1, label[:, None], alone[:, None])
    prior = (count + 1.0).log()

    def gain(step: int) -> float:
        chance = (prior + step / _STEPS * log_joint).log_softmax(1)
        return float(chance.gather(1, label[:, None])[:, 0] @ weight)

    low, high = 0, _STEPS  # it is concave
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if gain(middle) < gain(middle + 1) else (low, middle)
    return HoleEvidence(base=base, log_odds=log_odds).scaled(low / _STEPS)


def _log_odds(lacks: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows that lack an entry (..., D), out of a count (...): log odds, log chance of none."""
    shows = (count[..., None] - lacks).clamp_min(1e-9)
    lacks = lacks.clamp_min(1e-9)
    return lacks.log() - shows.log(), (shows.log() - count[..., None].log()).sum(-1)


def with_evidence(
    model: AnyMixture, prior: SpreadPrior | None, evidence: HoleEvidence
) -> tuple[AnyMixture, SpreadPrior | None]:
    """Mixtures, their components beside the evidence (P * C) for the classes that own them."""
    owner, spread = model.layout.owner, model.density.spread
    first = model.n_classes * torch.arange(model.n_problems, device=owner.device)
    part = evidence.select((first[:, None] + owner).flatten()).to(dtype=model.log_weight.dtype)
    product = _times(model.density, part)
    if prior is not None:  # a product has the spreads of its parts flat, side by side
        leading = prior.reference.ndim - spread.ndim + 1
        prior = replace(prior, reference=prior.reference.flatten(leading))
    return replace(model, density=product), prior


def _times(density: Density, part: HoleEvidence) -> Product:
    if isinstance(density, Product):
        return replace(density, parts=(*density.parts, part), informative=True)
    columns = (tuple(range(density.n_features)),)
    return Product(parts=(density, part), columns=columns, informative=True)


def without_evidence(model: AnyMixture) -> AnyMixture:
    """The mixtures that `with_evidence` began with, as training has left them."""
    return replace(model, density=_rest(model.density))


def _rest(density: Density) -> Density:
    assert isinstance(density, Product)
    parts = density.parts[:-1]
    if len(parts) == 1 and isinstance(parts[0], VectorDensity):
        return parts[0]
    return replace(density, parts=parts, informative=False)
