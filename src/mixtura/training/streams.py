"""Mixtures of classes that grow and shrink with the rows of a stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mixtura.densities import Density, Statistics
from mixtura.densities.base import add_statistics, scale_statistics
from mixtura.engines import Engine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Likelihood
from mixtura.progress import Progress
from mixtura.solvers import EM
from mixtura.solvers.base import expected
from mixtura.solvers.em import em_update, past_statistics
from mixtura.training.groups import ROWS_PER_COMPONENT, Recipe

#: Rows of a class that are looked at, and how many of them are held out.
_MOST_ROWS, _HELD_OUT = 5_000, 0.2
#: Iterations of EM before a further component is judged, and by which its place is found.
_ITERATIONS, _FEW = 10, 5
_MOST_COMPONENTS = 16
#: Components that may be better than none where one alone is not.
_AHEAD = 2
#: Standard errors that a gain must have.
_SURE = 2.0
#: Mean log density that a component may lack of the best single one for its rows where its past was
#: like them.
_ALIKE = 0.1
#: Share of the rows of a component that another must have for the two to be taken for one.
_SHARED = 0.05


def grown(
    mixture: Mixture, engine: Engine, seen: Tensor, recipe: Recipe, generator: torch.Generator
) -> tuple[Mixture, Statistics]:
    """The mixture, with further components where new rows are clearly better explained by them.

    Also the statistics of all rows before these, `seen` (C,) of each class, which the components
    that were there stand for.
    """
    past, parts = past_statistics(mixture, seen), []
    for label in range(mixture.n_classes):
        mine = mixture.owner == label
        own = mixture.of_class(label), {name: value[mine] for name, value in past.items()}
        if int((engine.y == label).sum()) >= 2 * ROWS_PER_COMPONENT:
            own = _grown(*own, engine.labeled_as(label).single_class(), recipe, generator)
        parts.append(own)
    whole = Mixture.join([own for own, _ in parts], mixture.log_prior, mixture.learn_prior)
    return whole, {name: torch.cat([each[name] for _, each in parts]) for name in past}


def shrunken(mixture: Mixture, seen: Tensor) -> Mixture:
    """The mixture without components that stand for hardly a row; `seen` (C,) are those of classes.

    Every class keeps one.
    """
    rows = mixture.log_weight.exp() * mixture.layout.by_component(seen.to(mixture.log_weight))
    keep = rows >= ROWS_PER_COMPONENT
    for label in range(mixture.n_classes):
        mine = mixture.owner == label
        keep[torch.where(mine, mixture.log_weight, -torch.inf).argmax()] = True
    return mixture if bool(keep.all()) else mixture.select(keep.nonzero().flatten())


def _grown(
    mixture: Mixture, past: Statistics, rows: Engine, recipe: Recipe, generator: torch.Generator
) -> tuple[Mixture, Statistics]:
    """The mixture of one class: components are added one by one, then taken together."""
    total = rows.total_weight
    train, held_out = rows.subsample(_MOST_ROWS, generator).hold_out(_HELD_OUT, generator)
    assert held_out is not None  # rows are enough
    train = train.with_answers(weight=train.weight * (total / train.total_weight))
    own = _Own(mixture, past, _settled(mixture, past, train))
    larger = own
    while larger.size < min(_MOST_COMPONENTS, own.size + _AHEAD):
        further = _further(larger.settled, train, recipe, generator)
        if further is None:
            break
        larger = larger.split(further, train) if further.alike else larger.joined(further, train)
        own = larger if larger.explains_better(own, held_out, total) else own
    while own.size > 1:
        smaller = own.with_pair_as_one(train)
        if smaller is None or own.explains_better(smaller, held_out, total):
            break
        own = smaller
    return own.mixture, own.past


@dataclass(frozen=True)
class _Own:
    """The mixture of one class, the statistics of its past, and what new rows make of it."""

    mixture: Mixture
    past: Statistics
    settled: Mixture

    @classmethod
    def of(cls, start: Mixture, past: Statistics, rows: Engine) -> _Own:
        """Of a mixture that new rows have settled."""
        settled = _settled(start, past, rows)
        return cls(settled, past, settled)

    @property
    def size(self) -> int:
        return self.settled.n_components

    def joined(self, further: _Further, rows: Engine) -> _Own:
        """With one more component, for which the past has no rows."""
        longer = {name: torch.cat([each, 0.0 * each[:1]]) for name, each in self.past.items()}
        return _Own.of(
            _with(self.settled, further.pair.density.select(further.worse)), longer, rows
        )

    def split(self, further: _Further, rows: Engine) -> _Own:
        """With a pair in place of one, whose past they share as they share its new rows."""
        pair, own, others = further.pair, self.settled, further.others
        share, weight = pair.log_weight.exp(), own.log_weight.exp()
        density = Density.stack([own.density.select(others), pair.density])
        mass = torch.cat([weight[others], weight[further.place] * share])
        parts = scale_statistics(
            pair.density.own_statistics(), self.past["mass"][further.place] * share
        )
        past = {name: torch.cat([each[others], parts[name]]) for name, each in self.past.items()}
        return _Own.of(Mixture.single(density).with_masses(density, mass), past, rows)

    def explains_better(self, smaller: _Own, held_out: Engine, n_rows: float) -> bool:
        """Whether held-out rows are surely better explained than by fewer components.

        The gain of as many rows as have come must be worth the parameters.
        """
        gain = _log_density(self.settled, held_out) - _log_density(smaller.settled, held_out)
        cost = 0.5 * (self.settled.n_parameters - smaller.settled.n_parameters) * math.log(n_rows)
        mean, error = mean_and_error(gain, held_out.weight.to(gain))
        return mean > max(_SURE * error, cost / n_rows)

    def with_pair_as_one(self, rows: Engine) -> _Own | None:
        """Without one of the two that share most rows; the other stands for the past of both.

        None: no two share any.
        """
        model = self.settled
        shares = rows.concat(lambda batch: model.log_joint(batch).softmax(1), model.density)
        weighted = shares * rows.weight.to(shares)[:, None]
        overlap = (shares.mT @ weighted / weighted.sum(0).clamp_min(1.0)).fill_diagonal_(0.0)
        kept, left = divmod(int(overlap.argmax()), self.size)
        if overlap[kept, left] < _SHARED:
            return None
        keep = torch.tensor([each for each in range(self.size) if each != left])
        past = {name: each.clone() for name, each in self.past.items()}
        for each in past.values():
            each[kept] += each[left]
        return _Own.of(model.select(keep), {name: each[keep] for name, each in past.items()}, rows)


def mean_and_error(values: Tensor, weight: Tensor) -> tuple[float, float]:
    """The mean of values (n,) by weight (n,), and its standard error."""
    share = weight / weight.sum()
    mean = values @ share
    spread = (values - mean).square() @ share.square() / (1.0 - share.square().sum())
    return float(mean), float(spread.sqrt())


def _settled(mixture: Mixture, past: Statistics, rows: Engine) -> Mixture:
    """After some iterations of EM over new rows, beside the statistics of the past."""
    for _ in range(_ITERATIONS):
        sums = rows.sum(partial(expected, mixture, Likelihood()), mixture.density)
        mixture = em_update(mixture, add_statistics(sums, past))
    return mixture


@dataclass(frozen=True)
class _Further:
    """A component that gains by being two.

    Attributes
    ----------
    pair : the two, learned from the rows of that component alone.
    place, others : where it stands, and where the others do.
    worse : which of the two has the rows that the component explained worse.
    alike : whether it explained its rows about as well as a single one can: then its past may have
        been two, as well.
    """

    pair: Mixture
    place: int
    others: Tensor
    worse: Tensor
    alike: bool


def _further(
    mixture: Mixture, rows: Engine, recipe: Recipe, generator: torch.Generator
) -> _Further | None:
    """The component that gains most from being two. None: rows are too few."""
    em, found = EM(_FEW, tol=0.0), None
    owner = rows.concat(lambda batch: mixture.log_joint(batch).argmax(1), mixture.density)
    most = 0.0
    for k in range(mixture.n_components):
        mine = rows.only((owner == k).to(rows.device))
        if len(mine) < 2 * ROWS_PER_COMPONENT:
            continue
        starts = [recipe.finished(recipe.start(mine, n, generator, True)) for n in (1, 2)]
        one, two = (em.run(start, Likelihood(), mine, Progress()).model for start in starts)
        alone, pair = (_log_density(each, mine) for each in (one, two))
        gain = float((pair - alone) @ mine.weight.cpu())
        if gain > most:
            most, found = gain, (k, two, mine, alone)
    if found is None:
        return None
    place, pair_of, mine, alone = found
    before = mixture.density.select(torch.tensor([place]))
    child = mine.concat(lambda batch: pair_of.log_joint(batch).argmax(1), pair_of.density)
    explained = mine.concat(lambda batch: before.log_prob(batch)[:, 0], before)
    weight = mine.weight.to(explained)
    weights = [weight * (child == each) for each in (0, 1)]
    means = [explained @ each / each.sum() if each.any() else math.inf for each in weights]
    worse = torch.tensor([int(means[1] < means[0])])
    others = torch.tensor([each for each in range(mixture.n_components) if each != place])
    alike = float((alone - explained) @ weight / weight.sum()) < _ALIKE
    return _Further(pair_of, place, others.long(), worse, alike)


def _with(mixture: Mixture, further: Density) -> Mixture:
    """A mixture of one class with one more component, of an equal share."""
    density = Density.stack([mixture.density, further])
    share = 1.0 / density.n_components
    one = torch.full_like(mixture.log_weight[:1], share).log()
    weight = torch.cat([mixture.log_weight + torch.log1p(-one.exp()), one])
    return Mixture.single(density).with_masses(density, weight.exp())


def _log_density(mixture: Mixture, rows: Engine) -> Tensor:
    return rows.concat(lambda batch: mixture.outputs(batch)[:, 0], mixture.density)
