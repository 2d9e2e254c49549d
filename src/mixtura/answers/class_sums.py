"""Class log-joints of many subsets of a row's columns.

Mixtures with many components have, as a rule, columns that are independent within a component.
Then the sum over the components of a class is a sum of products, one factor per column. Of all
subsets it is a matrix product, between the subsets of one half of the columns and those of the
other; of the first columns of an order it takes one multiplication per component and column. No
factor is above one, as each is divided by the largest of its class. Sums that are so small that a
product may have been lost are found again from logs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.answers.subsets import Subsets, by_group, log_probs
from mixtura.data.batch import Batch
from mixtura.models.mixture import Mixture
from mixtura.numerics import logsumexp

#: Sums below it may lack products that have been rounded to zero, which are below 1e-307.
_LEAST = 1e-280
#: Numbers of a chunk that stays in a core's cache.
_CACHED = 2**15


def class_log_joints(mixture: Mixture, batch: Batch, subsets: Subsets) -> Tensor:
    """(s, n, C) of each subset of the columns, as `log_probs` has the components."""
    terms = None
    if mixture.n_components > mixture.n_classes:
        terms = by_group(mixture.density, batch, subsets)
    if terms is None:
        joint = log_probs(mixture.density, batch, subsets) + mixture.log_joint_weight
        return _by_class(mixture, joint)
    terms[0] += mixture.log_joint_weight.to(terms)
    tops = torch.stack([part.amax(2) for part in terms.split(mixture.layout.counts, 2)], 2)
    shares = (terms - mixture.layout.by_component(tops)).exp_()
    shown = torch.from_numpy(subsets.shown).to(terms)
    sums = (_of_all if subsets.orders is None else _of_orders)(mixture, shares, subsets)
    found = sums.log() + (shown @ tops[1:].flatten(1)).unflatten(1, tops.shape[1:]) + tops[0]
    small = (sums < _LEAST).any(2)
    for row in small.any(0).nonzero().flatten().tolist():
        some = small[:, row]
        found[some, row] = _by_class(mixture, shown[some] @ terms[1:, row] + terms[0, row])
    return found


def class_log_joints_of(mixture: Mixture, batch: Batch, kept: Tensor) -> Tensor:
    """(s, n, C) of rows of which only some columns, (s, D) bool, are observed: independent ones."""
    single = [(column,) for column in range(batch.x.shape[1])]
    terms = by_group(mixture.density, batch, Subsets(single))
    assert terms is not None
    joint = (kept.to(terms) @ terms[1:].flatten(1)).unflatten(1, terms.shape[1:])
    return _by_class(mixture, joint + mixture.log_joint_weight.to(terms))


def _by_class(mixture: Mixture, joint: Tensor) -> Tensor:
    """(..., C) sums of components (..., K), in logs: class by class, as subsets may stand last."""
    if mixture.n_components == mixture.n_classes:
        return joint
    parts = joint.split(mixture.layout.counts, -1)
    return torch.stack([logsumexp(part, -1) for part in parts], -1)


def _of_all(mixture: Mixture, shares: Tensor, subsets: Subsets) -> Tensor:
    """(2^m, n, C) sums within classes of products of shares (1 + m, n, K), the first in each."""
    half = len(subsets.groups) // 2
    sides = [_products(part) for part in (shares[1 : 1 + half], shares[1 + half :])]
    sides[1] *= shares[0][:, None]
    pairs = zip(*(side.split(mixture.layout.counts, 2) for side in sides), strict=True)
    return torch.stack([(high @ low.mT).flatten(1).mT for low, high in pairs], 2)


def _products(shares: Tensor) -> Tensor:
    """(n, 2^m, K) products of shares (m, n, K) over all subsets, as `all_subsets` has them."""
    found = shares.new_ones(shares.shape[1], 1, shares.shape[2])
    for share in shares:
        found = torch.cat([found, found * share[:, None]], 1)
    return found


def _of_orders(mixture: Mixture, shares: Tensor, subsets: Subsets) -> Tensor:
    """(R (1 + m), n, C) the same of the first groups of each order."""
    assert subsets.orders is not None
    orders = torch.from_numpy(subsets.orders).to(shares.device)
    n_orders, size = orders.shape
    found = shares.new_empty(n_orders, size + 1, shares.shape[1], mixture.n_classes)
    step = max(1, _CACHED // (n_orders * shares.shape[2]))
    for start in range(0, shares.shape[1], step):
        part = shares[:, start : start + step]
        product = part[0].repeat(n_orders, 1, 1)
        found[:, 0, start : start + step] = mixture.layout.sum(product)
        for place in range(size):
            product *= part[1 + orders[:, place]]
            found[:, place + 1, start : start + step] = mixture.layout.sum(product)
    return found.flatten(0, 1)
