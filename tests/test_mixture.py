"""The class mixture against brute force over its components."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from mixtura.data.batch import Batch
from mixtura.models.mixture import Layout, Mixture
from mixtura.testing import STRUCTURES, dense_conditional, make_batch, make_density, make_mixture

COUNTS = [2, 1, 3]
OWNER = np.repeat(np.arange(3), COUNTS)


@pytest.fixture(params=STRUCTURES, ids="-".join)
def mixture(request, generator):
    """Three classes with two, one and three components."""
    density = make_density(*request.param, generator, n_components=6)
    return make_mixture(density, COUNTS, generator)


@pytest.fixture
def diagonal(generator):
    """The same classes with diagonal covariances."""
    density = make_density("diag", "covariance", generator, n_components=6)
    return make_mixture(density, COUNTS, generator)


def brute_log_joint(mixture, batch):
    """log p(x, c, k) by scipy, for complete rows."""
    parts = zip(mixture.density.mean, mixture.density.covariances(), strict=True)
    log_prob = [multivariate_normal(m.numpy(), c.numpy()).logpdf(batch.x.numpy()) for m, c in parts]
    weight = mixture.log_weight.numpy() + mixture.log_prior.numpy()[OWNER]
    return np.stack(log_prob, 1) + weight


def test_class_log_joint_sums_over_the_components_of_a_class(mixture, generator):
    """Unequal numbers of components change nothing about the sum."""
    batch = make_batch(mixture.density, 12, generator)
    joint = brute_log_joint(mixture, batch)
    expected = np.stack([logsumexp(joint[:, c == OWNER], axis=1) for c in range(3)], 1)
    np.testing.assert_allclose(mixture.log_joint(batch), joint, 1e-9)
    np.testing.assert_allclose(mixture.class_log_joint(batch), expected, 1e-9)


def test_posterior_is_bayes_rule_within_the_class_where_it_is_known(mixture, generator):
    """Labeled rows belong to components of their class only."""
    batch = make_batch(mixture.density, 12, generator)
    batch = replace(batch, y=torch.arange(12) % 4 - 1)
    joint = brute_log_joint(mixture, batch)
    foreign = (batch.y.numpy()[:, None] >= 0) & (batch.y.numpy()[:, None] != OWNER)
    expected = softmax(np.where(foreign, -np.inf, joint), axis=1)
    np.testing.assert_allclose(mixture.posterior(batch), expected, 1e-8, 1e-12)


def test_impute_weighs_conditional_means_by_the_posterior(mixture, generator):
    """The mixture's conditional mean, by brute force; observed entries stay."""
    batch = make_batch(mixture.density, 12, generator, holes=True)
    means = dense_conditional(mixture.density, batch)[0]
    expected = np.einsum("nk,nkd->nd", mixture.posterior(batch).numpy(), means)
    filled = mixture.impute(batch)
    np.testing.assert_allclose(filled, expected, 1e-8, 1e-9)
    np.testing.assert_allclose(filled[batch.observed], batch.x[batch.observed], 1e-12)


def test_nothing_observed_leaves_the_prior(mixture):
    """A row of holes has density one, so that its posterior is the prior."""
    x = torch.zeros(2, mixture.density.n_features, dtype=torch.float64)
    batch = Batch(x, x.bool(), torch.full((2,), -1), torch.ones(2))
    joint = mixture.class_log_joint(batch)
    np.testing.assert_allclose(joint, mixture.log_prior.expand(2, -1), 1e-12, 1e-12)


def test_normalize_weight(generator):
    """Weights sum to one in each class, and keep their ratios."""
    density = make_density("diag", "covariance", generator, n_components=6)
    mixture = make_mixture(density, COUNTS, generator)
    raw = torch.randn(6, dtype=torch.float64, generator=generator)
    weight = mixture.normalize_weight(raw).exp().numpy()
    for c in range(3):
        np.testing.assert_allclose(weight[c == OWNER], softmax(raw.numpy()[c == OWNER]), 1e-12)


def test_samples_come_from_components_by_weight(diagonal, generator):
    """Rows of a class have the mean of that class's mixture."""
    n = 40_000
    for c in range(3):
        rows = diagonal.sample(torch.full((n,), c), generator).numpy()
        weight = np.exp(diagonal.log_weight.numpy()[c == OWNER])
        means = diagonal.density.mean.numpy()[c == OWNER]
        variances = diagonal.density.variance.numpy()[c == OWNER]
        mean = weight @ means
        variance = weight @ (variances + means**2) - mean**2
        assert (np.abs(rows.mean(0) - mean) < 5 * np.sqrt(variance / n)).all()


def test_draw_follows_the_posterior(diagonal, generator):
    """Completions of one row average to its imputation, and keep what was observed."""
    n = 20_000
    row = make_batch(diagonal.density, 3, generator, holes=True).take(slice(1, 2))
    many = row.take(torch.zeros(n, dtype=torch.long))
    drawn = diagonal.draw(many, generator)
    assert torch.equal(drawn[many.observed], many.x[many.observed])
    spread = drawn.std(0) / n**0.5
    assert ((drawn.mean(0) - diagonal.impute(row)[0]).abs() <= 5 * spread + 1e-12).all()


def test_free_round_trip(mixture, generator):
    """Free parameters describe the whole model, prior included where it is learned."""
    batch = make_batch(mixture.density, 6, generator, holes=True)
    for learn in (True, False):
        model = replace(mixture, learn_prior=learn)
        free = model.free()
        assert ("log_prior" in free) == learn
        again = model.from_free(free)
        np.testing.assert_allclose(
            again.class_log_joint(batch), model.class_log_joint(batch), 1e-9, 1e-9
        )


def test_classes_come_apart_and_together(mixture, generator):
    """Joining the mixtures of single classes gives the mixture back."""
    parts = [mixture.of_class(c) for c in range(3)]
    assert [part.n_components for part in parts] == COUNTS
    again = Mixture.join(parts, mixture.log_prior, True)
    batch = make_batch(mixture.density, 6, generator)
    np.testing.assert_allclose(again.class_log_joint(batch), mixture.class_log_joint(batch), 1e-9)


@pytest.mark.parametrize("counts", [[2, 1, 3], [2, 2], [1], [1, 1, 1, 4]])
def test_layout(counts, rng):
    """Sums within classes and their opposite, whether classes are equally large or not."""
    layout = Layout(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    values = rng.normal(size=(3, sum(counts)))
    expected = [logsumexp(values[:, owner == c], axis=1) for c in range(len(counts))]
    np.testing.assert_allclose(layout.logsumexp(torch.from_numpy(values)), np.stack(expected, 1))
    np.testing.assert_allclose(
        layout.sum(torch.from_numpy(values[0])), np.bincount(owner, values[0])
    )
    by_class = rng.normal(size=len(counts))
    np.testing.assert_array_equal(layout.by_component(torch.from_numpy(by_class)), by_class[owner])


@pytest.mark.parametrize(
    ("structure", "density_parameters"),
    [
        (("spherical", "covariance"), 6),
        (("diag", "covariance"), 10),
        (("full", "covariance"), 20),
        (("low_rank", "covariance"), 19),
    ],
)
def test_number_of_parameters(structure, density_parameters, generator):
    """Five features, six components in three classes: components, three weights, two priors."""
    density = make_density(*structure, generator, n_components=6)
    mixture = make_mixture(density, COUNTS, generator)
    assert mixture.n_parameters == 6 * density_parameters + 3 + 2
    assert replace(mixture, learn_prior=False).n_parameters == 6 * density_parameters + 3


def test_gradients_reach_every_parameter(mixture, generator):
    """Finite differences of the class log-joints by weights and prior."""
    batch = make_batch(mixture.density, 3, generator, holes=True)
    free = mixture.free()
    names = ["log_weight", "log_prior"]
    leaves = [free[name].clone().requires_grad_() for name in names]

    def joint(*values):
        return mixture.from_free({**free, **dict(zip(names, values, strict=True))}).class_log_joint(
            batch
        )

    assert torch.autograd.gradcheck(joint, leaves)
