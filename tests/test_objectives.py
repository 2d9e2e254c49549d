"""Objectives: derivatives by autograd and differences, occupancies by the table."""

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.exceptions import ConvergenceWarning

from mixtura import MixtureClassifier, numerics
from mixtura.models.mixture import Mixture
from mixtura.numerics import exp_or_zero
from mixtura.objectives import OBJECTIVES as OBJECTIVES_BY_NAME
from mixtura.objectives import (
    Conditional,
    Hybrid,
    Likelihood,
    Margin,
    Objective,
    SmoothMargin,
    beside_likelihood,
    likelihood_share,
    log_margin,
    tradeoff_of_share,
)
from mixtura.solvers import EBW, LBFGS
from mixtura.testing import check_objective, make_density, make_mixture

COUNTS = [2, 1, 3]
OWNER = np.repeat(np.arange(3), COUNTS)
N = 40

OBJECTIVES = {
    "likelihood": (Likelihood(), False),
    "semi-supervised likelihood": (Likelihood(0.3), True),
    "conditional": (Conditional(), True),
    "margin": (Margin(2.0, 5.0), True),
    "narrow margin": (Margin(0.1, 100.0), True),
    "smooth margin": (SmoothMargin(2.0, 5.0), True),
    "hybrid": (Hybrid(Likelihood(), Margin(2.0), 0.3), False),
    "smooth hybrid": (Hybrid(Likelihood(), SmoothMargin(3.0), 0.9), False),
    "semi-supervised hybrid": (Hybrid(Likelihood(0.4), Conditional(), 0.7), True),
}


@pytest.fixture
def mixture(generator):
    """Unequal numbers of components."""
    density = make_density("diag", "covariance", generator, n_components=6)
    return make_mixture(density, COUNTS, generator)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_derivatives(name, generator):
    """Slopes, totals and occupancies are derivatives of the loss."""
    objective, unlabeled = OBJECTIVES[name]
    check_objective(objective, generator)
    if unlabeled:
        check_objective(objective, generator, unlabeled=True)


# -- the table of occupancies ------------------------------------------------------------------


def parts(J, y):
    """Within-class responsibilities (n, K), class posteriors (n, C), [c = c_n] (n, C)."""
    by_class = np.stack([logsumexp(J[:, c == OWNER], axis=1) for c in range(3)], 1)
    gamma = np.exp(J - by_class[:, OWNER])
    return gamma, by_class, softmax(by_class, axis=1), np.eye(3)[y]


def likelihood_table(J, y):
    gamma, _, _, own = parts(J, y)
    return gamma * own[:, OWNER]


def unlabeled_table(J, y):
    gamma, _, posterior, _ = parts(J, y)
    return gamma * posterior[:, OWNER]


def conditional_table(J, y):
    gamma, _, posterior, own = parts(J, y)
    return gamma * (own - posterior)[:, OWNER]


def margin_table(J, y, smoothness, steepness):
    """s_n gamma ([c = c_n] - [c != c_n] r_nc), r the softmax of the sharpened rivals."""
    gamma, by_class, _, own = parts(J, y)
    rivals = np.where(own > 0, -np.inf, by_class)
    r = softmax(smoothness * rivals, axis=1)
    margin = by_class[own > 0] - logsumexp(smoothness * rivals, axis=1) / smoothness
    return steepness(margin)[:, None] * gamma * (own - r)[:, OWNER]


def hinge_table(J, y, margin=2.0, smoothness=5.0):
    return margin_table(J, y, smoothness, lambda beta: (beta < margin).astype(float))


def smooth_table(J, y, margin=2.0, smoothness=5.0):
    kappa = math.log(2.0) / margin

    def steepness(beta):
        d = np.exp(np.minimum(kappa * beta, 2.0))
        rising, bending = kappa * d / (d + 0.5), kappa * d * (2 - d) / (2 - (d - 2) ** 2 / 2)
        return np.where(d <= 1, rising, np.where(d < 2, bending, 0.0))

    return margin_table(J, y, smoothness, steepness)


@pytest.mark.parametrize(
    ("objective", "table", "labeled"),
    [
        (Likelihood(), likelihood_table, True),
        (Likelihood(1.0), unlabeled_table, False),
        (Conditional(), conditional_table, True),
        (Margin(2.0, 5.0), hinge_table, True),
        (SmoothMargin(2.0, 5.0), smooth_table, True),
    ],
    ids=["likelihood", "unlabeled", "conditional", "margin", "smooth margin"],
)
def test_occupancies_are_those_of_the_table(objective, table, labeled, mixture, rng):
    """What each objective wants of each component, row by row."""
    J, y = 2.0 * rng.normal(size=(N, 6)), rng.integers(3, size=N)
    weight = rng.uniform(0.5, 2.0, size=N)
    labels = torch.from_numpy(y if labeled else np.full(N, -1))
    _, occupancy = objective.occupancy(mixture, torch.from_numpy(J), labels, torch.tensor(weight))
    np.testing.assert_allclose(occupancy, weight[:, None] * table(J, y), 1e-9, 1e-12)


@pytest.mark.parametrize("name", ["conditional", "margin", "smooth_margin"])
def test_hybrid_semi_supervised_occupancies(name, mixture, rng):
    """tradeoff (labeled (1 - u), unlabeled u) plus the rest of the discriminative term."""
    tables = {
        "conditional": conditional_table,
        "margin": hinge_table,
        "smooth_margin": smooth_table,
    }
    J, y = 2.0 * rng.normal(size=(N, 6)), rng.integers(3, size=N)
    has_label = rng.random(N) < 0.6
    term = OBJECTIVES_BY_NAME[name]()
    if name != "conditional":
        term.set_params(margin=2.0, smoothness=5.0)
    objective = beside_likelihood(term, 0.3, unlabeled_weight=0.2)
    labels = torch.from_numpy(np.where(has_label, y, -1))
    _, occupancy = objective.occupancy(
        mixture, torch.from_numpy(J), labels, torch.ones(N, dtype=torch.float64)
    )
    labeled = 0.3 * 0.8 * likelihood_table(J, y) + 0.7 * tables[name](J, y)
    unlabeled = 0.3 * 0.2 * unlabeled_table(J, y)
    expected = np.where(has_label[:, None], labeled, unlabeled)
    np.testing.assert_allclose(occupancy, expected, 1e-9, 1e-12)


@pytest.mark.parametrize("n_values", [1, 4, 4000])
def test_a_trade_off_weighs_the_likelihood_per_value(n_values, rng):
    """Whatever the number of values, up to one factor for all rows."""
    J, y = torch.from_numpy(rng.normal(size=(N, 3))), torch.from_numpy(rng.integers(3, size=N))
    objective = beside_likelihood(Conditional(), 0.3, n_values=n_values)
    own = J.numpy()[np.arange(N), y.numpy()]
    conditional = logsumexp(J.numpy(), axis=1) - own
    expected = -0.3 * own / n_values + 0.7 * conditional
    found = objective.loss(J, y).numpy()
    np.testing.assert_allclose(found / found[0], expected / expected[0])
    assert tradeoff_of_share(likelihood_share(0.3, n_values), n_values) == pytest.approx(0.3)


@pytest.mark.parametrize("unlabeled", [None, 0.3])
def test_one_class_short_cut(unlabeled, generator, rng):
    """With a single class the responsibilities are plain ones, and the loss is the same."""
    mixture = Mixture.single(make_density("diag", "covariance", generator, n_components=4))
    J = torch.from_numpy(5.0 * rng.normal(size=(N, 4)))
    y = torch.zeros(N, dtype=torch.long)
    share = 1.0
    if unlabeled is not None:
        y[::3] = -1
        share = np.where(y.numpy() >= 0, 1.0 - unlabeled, unlabeled)[:, None]
    weight = torch.from_numpy(rng.uniform(0.5, 2.0, size=N))
    objective = Likelihood(unlabeled)
    losses, occupancy = objective.occupancy(mixture, J.clone(), y, weight)
    expected = weight.numpy()[:, None] * share * softmax(J.numpy(), axis=1)
    np.testing.assert_allclose(occupancy, expected, 1e-12)
    direct = (objective.loss(mixture.by_class(J), y) * weight).sum()
    np.testing.assert_allclose(float(losses.sum()), float(direct), 1e-12)


# -- the losses themselves ---------------------------------------------------------------------


def test_log_margin(rng):
    """Own class minus the best rival; smooth maxima lie above the sharp one, and approach it."""
    joint, y = rng.normal(size=(N, 4)), rng.integers(4, size=N)
    own = joint[np.arange(N), y]
    rivals = np.where(np.eye(4)[y] > 0, -np.inf, joint).max(1)
    sharp = log_margin(torch.from_numpy(joint), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(sharp, own - rivals)
    soft = [log_margin(torch.from_numpy(joint), torch.from_numpy(y), s).numpy() for s in (1, 10)]
    assert (soft[0] <= soft[1]).all()
    assert (soft[1] <= sharp).all()
    near = log_margin(torch.from_numpy(joint), torch.from_numpy(y), 1e6).numpy()
    np.testing.assert_allclose(near, sharp, atol=1e-5)


def test_margin_losses_at_their_corners():
    """Nothing to pay from the desired margin on; the smooth hinge is bounded below."""
    margin = 3.0
    beta = torch.tensor([-1000.0, 0.0, margin - 1e-9, margin, 1000.0], dtype=torch.float64)
    joint = torch.stack([beta, torch.zeros_like(beta)], 1)
    y = torch.zeros(5, dtype=torch.long)
    hinge = Margin(margin).loss(joint, y).numpy()
    np.testing.assert_allclose(hinge, [1003.0, 3.0, 0.0, 0.0, 0.0], atol=1e-8)
    smooth = SmoothMargin(margin).loss(joint, y).numpy()
    expected = [math.log(4.0), math.log(2.0 / 1.5), 0.0, 0.0, 0.0]
    np.testing.assert_allclose(smooth, expected, atol=1e-8)


def test_conditional_is_cross_entropy(rng):
    """-log p(c | x), against torch's own; unlabeled rows cost nothing."""
    joint, y = torch.from_numpy(rng.normal(size=(N, 4))), torch.from_numpy(rng.integers(4, size=N))
    expected = torch.nn.functional.cross_entropy(joint, y, reduction="none")
    np.testing.assert_allclose(Conditional().loss(joint, y), expected, 1e-12)
    assert not Conditional().loss(joint, torch.full((N,), -1)).any()


@pytest.mark.parametrize(
    ("name", "tradeoff", "kind"),
    [
        ("likelihood", 0.0, Likelihood),
        ("margin", 1.0, Likelihood),
        ("margin", 0.0, Margin),
        ("smooth_margin", 0.0, SmoothMargin),
        ("conditional", 0.0, Conditional),
        ("margin", 0.5, Hybrid),
    ],
)
def test_beside_the_likelihood(name, tradeoff, kind):
    """The ends of the trade-off are the pure objectives."""
    assert type(beside_likelihood(OBJECTIVES_BY_NAME[name](), tradeoff)) is kind


@pytest.mark.parametrize("name", OBJECTIVES)
def test_extreme_joints_stay_finite(name):
    """Rows that no class explains give finite losses and slopes."""
    objective, _ = OBJECTIVES[name]
    joint = torch.tensor([[-1e6, -2e6, -1e9], [-1e9, -1e6, -2e6], [0.0, -1e12, -1e12]]).double()
    losses, slope = objective.loss_and_slope(joint, torch.tensor([0, 0, 1]))
    assert losses.isfinite().all()
    assert slope.isfinite().all()


def normal_or_zero(values, least):
    return bool(((values == 0) | (values.abs() >= least)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_number_is_smaller_than_the_smallest_normal_one(dtype, rng):
    """Such ones take a CPU a hundred times as long; what is left out is below all rounding."""
    log = torch.from_numpy(-rng.exponential(300.0, size=(200, 7))).to(dtype)
    log[:, 0] = 0.0
    found, least = exp_or_zero(log.clone()), torch.finfo(dtype).tiny
    assert normal_or_zero(found, least)
    assert normal_or_zero(found * found * 0.01, least), "a product of two, and of a weight"
    assert (found == 0).any()
    np.testing.assert_allclose(found, log.double().exp(), rtol=1e-6, atol=least**0.4)
    total = numerics.logsumexp(log, 1)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(total, logsumexp(log.double().numpy(), axis=1), atol=4 * eps)
    assert exp_or_zero(torch.tensor([np.nan, -np.inf])).isnan().tolist() == [True, False]
    assert numerics.logsumexp(torch.full((1, 3), -np.inf, dtype=dtype), 1).isneginf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_occupancies_are_never_next_to_nothing(name, dtype, mixture, rng):
    """A share within its class times the slope of its class: products of two tiny numbers."""
    log_joint = torch.from_numpy(-rng.exponential(150.0, size=(3000, 6))).to(dtype)
    y, weight = torch.arange(3000) % 3, torch.full((3000,), 0.5, dtype=dtype)
    _, occupancy = OBJECTIVES[name][0].occupancy(mixture, log_joint, y, weight)
    by_class = log_joint[:, :3].clone().requires_grad_()
    OBJECTIVES[name][0].total(by_class, y, weight).backward()
    for found in (occupancy, by_class.grad):
        assert normal_or_zero(found, torch.finfo(dtype).tiny)
        assert (found == 0).any()
        assert (found != 0).any()


def test_each_objective_has_a_margin_of_its_own():
    """The hinge asks for more than the smooth hinge, whose loss is flat a few margins away."""
    assert (Margin().margin, SmoothMargin().margin) == (20.0, 1.0)


class Undefined(Conditional):
    """Divides zero by zero."""

    def loss(self, class_log_joint, y):
        return 0.0 * super().loss(class_log_joint, y) / 0.0

    loss_and_slope = Objective.loss_and_slope


@pytest.mark.parametrize("solver", [LBFGS(1), EBW(1)])
def test_a_loss_that_is_never_finite_is_told(solver, rng):
    """Nothing was learned from it, and the fit must not look like a success."""
    model = MixtureClassifier(1, density="diag", objective=Undefined(), tradeoff=0.5, solver=solver)
    with pytest.warns(ConvergenceWarning, match="Undefined was not finite .* Remedy"):
        model.fit(rng.normal(size=(20, 2)), np.arange(2).repeat(10))
