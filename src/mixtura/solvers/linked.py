"""Mixture networks: one step of EM, one fit of the read-out, and the read-out moves the weights.

Each class's mixture is fitted to all rows, labeled or not; an elastic net on what the mixtures
make of the labeled rows decides. Its weights are the prior of the mixtures' (the link), and a
component that it does not use may be erased.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from mixtura.data.batch import Batch
from mixtura.densities import Density, Statistics, VectorDensity
from mixtura.densities.base import keep_valid
from mixtura.densities.product import numeric_part, with_numeric_part
from mixtura.engines import Engine
from mixtura.models.mixture import Layout, Mixture
from mixtura.models.network import Network, RegressionNetwork
from mixtura.numerics import exp_or_zero
from mixtura.parts import AMOUNT, SHARE, Part
from mixtura.progress import Progress, Record
from mixtura.solvers.base import CONSTRAINTS, SpreadPrior, penalty
from mixtura.solvers.elastic_net import ElasticNet, cross_entropy, squared_error
from mixtura.solvers.em import em_update

#: Smallest deviation that an embedding is divided by.
_LEAST_SCALE = 1e-9
#: Share of its objective that the last iteration of a read-out gains; and where gradients are to
#: improve it on complete rows.
_EXACT, _ROUGH = 1e-9, 1e-4
#: Rounds of giving the classes their shares, how near is near enough, and how stiff the search is.
_ROUNDS, _NEAR, _STIFF = 5, 2e-3, 1e-4


@dataclass(frozen=True)
class LinkedResult:
    """A trained network and how training ended; the classes' shares (C,) in p(x), once known."""

    network: Network
    n_iter: int
    converged: bool
    prior: SpreadPrior | None = None
    shares: Tensor | None = None


@dataclass
class LinkedEM(Part):
    """EM steps and read-outs in turn, until the mixtures' parameters change by less than `tol`.

    Parameters
    ----------
    max_iter : iterations at most.
    tol : relative change of the parameters that ends it.
    l1, l2 : penalties of the read-out's weights, beside the mean loss of the rows.
    link : rows that the read-out's say in the mixtures' weights counts for: components that the
        read-out uses grow. 0 is no link.
    annihilate : whether a component whose weight in the read-out becomes zero is erased.
    specialize : "auto" or from 0 to 1, how much less the rows of other classes count for the
        mixture of a class. 0 fits every mixture to all rows, as published; 1 to the rows of its
        class (unlabeled ones by what the read-out makes of them). "auto" is 1 for log-densities and
        0 for other embeddings. Networks that predict a number have one mixture, and none.
    equal_covariances : give all components of a mixture one covariance (until gradients move them).
    end_to_end : then train mixtures and read-out together by gradient, so that the read-out moves
        means and covariances too.
    """

    max_iter: int = 50
    tol: float = 1e-3
    l1: float = 1e-3
    l2: float = 1e-3
    link: float = 0.0
    annihilate: bool = False
    specialize: float | str = "auto"
    equal_covariances: bool = False
    end_to_end: bool = True

    _parameter_constraints = CONSTRAINTS | {
        "l1": [AMOUNT],
        "l2": [AMOUNT],
        "link": [AMOUNT],
        "annihilate": ["boolean"],
        "specialize": [StrOptions({"auto"}), SHARE],
        "equal_covariances": ["boolean"],
        "end_to_end": ["boolean"],
    }

    def specialized(self, embedding: str) -> float:
        """How far the mixtures of classes keep to their own rows, for an embedding."""
        if isinstance(self.specialize, str):
            return float(embedding == "log_density")
        return self.specialize

    def run(
        self,
        network: Network,
        engine: Engine,
        progress: Progress,
        *,
        net: ElasticNet | None = None,
        prior: SpreadPrior | None = None,
        fitted: bool = False,
    ) -> LinkedResult:
        """A trained network.

        Parameters
        ----------
        net : penalties of the read-out; None: as the settings say.
        prior : of the spread of components.
        fitted : whether EM has fitted the mixtures to all rows, or to those of their classes, and
            gradients follow. Where no more than EM is to be done, the read-out alone is fitted.
        """
        predicts = isinstance(network, RegressionNetwork)
        specialize = 0.0 if predicts else self.specialized(network.embedding)
        course = _Course(self, net or ElasticNet(self.l1, self.l2), specialize, prior)
        if fitted and course.is_em(engine):
            return course.only_read(network, engine)
        return course.run(network, engine, progress)


@dataclass(frozen=True)
class _Course:
    """Linked EM on given rows."""

    settings: LinkedEM
    net: ElasticNet
    specialize: float
    prior: SpreadPrior | None

    def run(self, network: Network, engine: Engine, progress: Progress) -> LinkedResult:
        settings = self.settings
        progress.start("linked EM", settings.max_iter)
        taught = _rows_with_answers(network, engine)
        used = self._uses_read_outs(engine)
        network = self._read_out(network, taught) if used else network
        stop = settled = False
        iteration = 0
        while not (stop or settled) and iteration < settings.max_iter:
            before, iteration = network, iteration + 1
            sums = engine.sum(partial(self._accumulate, network), network)
            loss = float(sums.pop("loss")) + penalty(network.mixture, self.prior)
            network = replace(network, mixture=self._step(network, sums))
            network = self._read_out(network, taught) if used else network
            loss /= engine.total_weight
            record: Record = {"stage": "linked EM", "iteration": iteration, "objective": loss}
            stop = progress.step(record)
            settled = _change(before.mixture, network.mixture) < settings.tol
        network = network if used else self._read_out(network, taught)
        return LinkedResult(network, iteration, settled and not stop, self.prior)

    def only_read(self, network: Network, engine: Engine) -> LinkedResult:
        """The mixtures as they are, and a read-out that gradients may begin with."""
        taught = _rows_with_answers(network, engine)
        tol = _EXACT if engine.may_have_missing else _ROUGH
        return LinkedResult(self._read_out(network, taught, tol), 0, True, self.prior)

    def is_em(self, engine: Engine) -> bool:
        """Whether it does what EM does, each mixture on all rows or on its own."""
        whole = self.specialize in (0.0, 1.0) and not self.settings.equal_covariances
        return whole and not self._uses_read_outs(engine)

    def _uses_read_outs(self, engine: Engine) -> bool:
        """Whether a read-out changes the next EM step; if not, only the last one is of use."""
        guesses = self.specialize > 0.0 and bool((engine.y < 0).any())
        return self.settings.link > 0.0 or self.settings.annihilate or guesses

    @torch.no_grad()
    def _accumulate(self, network: Network, batch: Batch) -> Statistics:
        """Responsibilities within every class's mixture, and what they sum to."""
        mixture = network.mixture
        log_prob, statistics = mixture.density.expectation(batch)
        log_joint = mixture.weighted(log_prob)
        by_class = mixture.by_class(log_joint)
        share = self._attention(network, batch, log_joint) * batch.weight[:, None]
        within = exp_or_zero(log_joint - by_class[:, mixture.owner])
        loss = -(share * (by_class - mixture.log_prior)).sum()
        return {**statistics(within * share[:, mixture.owner]), "loss": loss}

    def _attention(self, network: Network, batch: Batch, log_joint: Tensor) -> Tensor:
        """(n, C) how much each class's mixture looks at each row."""
        whole = log_joint.new_ones(len(batch), network.n_classes)
        if self.specialize == 0.0 or network.n_classes == 1:
            return whole
        labeled = batch.y[:, None] >= 0
        target = torch.nn.functional.one_hot(batch.y.clamp_min(0), network.n_classes).to(whole)
        if not labeled.all():
            guess = network.class_log_proba(batch, log_joint).exp()
            target = torch.where(labeled, target, guess)
        return whole - self.specialize * (1.0 - target)

    def _step(self, network: Network, sums: Statistics) -> Mixture:
        """The M step; the read-out is the prior of the weights."""
        mixture = em_update(network.mixture, sums, self.prior)
        layout = mixture.layout
        if self.settings.equal_covariances:
            rows = sums["mass"] + (0.0 if self.prior is None else self.prior.rows)
            mixture = replace(mixture, density=tied(mixture.density, rows, layout))
        use = network.weight.abs()
        total = layout.by_component(layout.sum(use))
        prior = self.settings.link * torch.where(total > 0, use / total, 0.0)
        tiny = torch.finfo(prior.dtype).tiny
        weight = mixture.normalize_weight((sums["mass"] + prior).clamp_min(tiny).log())
        return replace(mixture, log_weight=weight)

    def _read_out(self, network: Network, taught: Engine | None, tol: float = _EXACT) -> Network:
        """The best weights for the present embedding; unused components go, if they may."""
        if taught is None:
            return network
        zero, one = torch.zeros_like(network.shift), torch.ones_like(network.scale)
        plain = network.with_read_out(network.weight, network.bias, zero, one)

        def embed(batch: Batch) -> Tensor:
            return plain.embed(batch).double()

        embedded = taught.concat(embed, network).numpy()
        weight, y = taught.weight.double().cpu().numpy(), taught.y.cpu().numpy()
        share = weight / weight.sum()
        shift, scale = np.zeros(embedded.shape[1]), np.ones(embedded.shape[1])
        if network.embedding != "posterior":
            shift = share @ embedded
            scale = np.sqrt(share @ (embedded - shift) ** 2).clip(min=_LEAST_SCALE)
        loss = squared_error if isinstance(network, RegressionNetwork) else cross_entropy
        found = self.net.fit(
            (embedded - shift) / scale,
            network.mixture.owner.cpu().numpy(),
            partial(loss, y),
            share,
            (network.weight.cpu().numpy(), network.bias.cpu().numpy()),
            tol,
        )
        tensors = (torch.from_numpy(each).to(network.weight) for each in (*found, shift, scale))
        network = network.with_read_out(*tensors)
        return _without_unused(network) if self.settings.annihilate else network


def with_class_shares(
    network: Network, shares: np.ndarray, progress: Progress
) -> tuple[Network, Tensor]:
    """The network whose p(x) gives the classes their shares (C,), which an empty row then gets.

    Beside it those that they have.

    Of all weights under which the mean of p(c | x) over p(x) has these shares, those nearest to the
    present ones in relative entropy: w_k exp(a_k . t), where a_k is the mean over component k.
    Posteriors follow the weights, hence several rounds, of which only those count that gain. Where
    time is up, the weights stay as they are.
    """
    if progress.stopped:
        return network, network.class_shares()
    log_prob = network.own_log_prob()
    share, chances = 1.0, network.class_chances(log_prob)
    distance = _distance(network, chances, shares)
    for _ in range(_ROUNDS):
        if distance < _NEAR or progress.time_spent >= 1.0:
            break
        log_weight = network.mixture.log_joint_weight
        tilt = share * _tilt(log_weight.cpu().numpy(), chances.cpu().numpy(), shares)
        tilted = log_weight + chances @ torch.from_numpy(tilt).to(chances)
        changed = network.with_joint_weight(tilted - tilted.logsumexp(0))
        found = changed.class_chances(log_prob)
        nearer = _distance(changed, found, shares)
        if nearer < distance:
            network, chances, distance = changed, found, nearer
        else:
            share /= 2.0
    return network, network.mixture.log_joint_weight.exp() @ chances


def _distance(network: Network, chances: Tensor, shares: np.ndarray) -> float:
    """How far the classes are from their shares."""
    own = network.mixture.log_joint_weight.exp() @ chances
    return float(np.abs(own.cpu().numpy() - shares).max())


def _tilt(log_weight: np.ndarray, chances: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """t (C,) for which weights w_k exp(a_k . t) give the shares: where a convex function is least.

    A little stiffness keeps it finite where the shares are out of reach.
    """

    def value_and_slope(tilt: np.ndarray) -> tuple[float, np.ndarray]:
        tilted = log_weight + chances @ tilt
        total = logsumexp(tilted)
        slope = np.exp(tilted - total) @ chances - shares + _STIFF * tilt
        return float(total - shares @ tilt + 0.5 * _STIFF * tilt @ tilt), slope

    return minimize(value_and_slope, np.zeros(len(shares)), jac=True, method="L-BFGS-B").x


def _rows_with_answers(network: Network, engine: Engine) -> Engine | None:
    """The rows that a read-out can learn from; None where there is nothing to learn."""
    known = engine.labeled
    regression = isinstance(network, RegressionNetwork)
    if not known.any() or (network.n_classes == 1 and not regression):
        return None
    return engine.only(known)


def _without_unused(network: Network) -> Network:
    """The network without components of weight zero.

    Posteriors sum to one, so the read-out measures all others of a class against one of weight
    zero: the heaviest of these stays as that reference, and a class of two at least.
    """
    owner, used = network.mixture.owner, network.weight != 0
    keep = used.clone()
    for label in range(network.n_classes):
        mine = (owner == label).nonzero().flatten()
        idle = mine[~used[mine]]
        spare = network.fewest - len(mine) + len(idle)
        count = max(network.fewest - 1, spare)
        keep[idle[network.mixture.log_weight[idle].argsort(descending=True)[:count]]] = True
    return network if keep.all() else network.select(keep.nonzero().flatten())


def _change(before: Mixture, after: Mixture) -> float:
    """Relative change of all parameters; infinite where components went."""
    if before.n_components != after.n_components:
        return float("inf")
    old, new = (
        {**each.density.free(), "weight": each.log_weight.exp()} for each in (before, after)
    )
    moved = sum(float((new[name] - old[name]).square().sum()) for name in old)
    size = sum(float(value.square().sum()) for value in old.values())
    return (moved / max(size, 1e-300)) ** 0.5


def tied(density: Density, rows: Tensor, layout: Layout) -> Density:
    """The likeliest density whose components share the covariance of their class.

    `rows` (K,) are those of each component, real and imagined. A low rank is improved by one step
    from that of the heaviest component.
    """
    part = numeric_part(density)
    if not isinstance(part, VectorDensity):
        return density
    share = rows / layout.by_component(layout.sum(rows)).clamp_min(torch.finfo(rows.dtype).tiny)
    spread = part.spread
    weighted = share.view(-1, *[1] * (spread.ndim - 1)) * spread
    blank = spread.new_zeros(layout.n_classes, *spread.shape[1:])
    pooled = blank.index_add(0, layout.owner, weighted)[layout.owner]
    own = [(layout.owner == label).nonzero().flatten() for label in range(layout.n_classes)]
    heaviest = torch.stack([mine[rows[mine].argmax()] for mine in own])
    alike = part.select(heaviest[layout.owner]).at(part.location)
    again, valid = alike.maximize(alike.spread_statistics(pooled, part.location))
    return with_numeric_part(density, keep_valid(part, again, valid))
