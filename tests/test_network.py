"""The parts of mixture networks, against slower ways."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from mixed import make_mixed
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_wine, make_blobs
from sklearn.linear_model import ElasticNet as ReferenceNet
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture

from mixtura import MixtureNetworkClassifier
from mixtura.data.batch import Batch
from mixtura.densities import Full
from mixtura.engines import base
from mixtura.models.fitted import run_over
from mixtura.models.network import Network, RegressionNetwork
from mixtura.models.read_out import EMBEDDINGS
from mixtura.objectives import Regression
from mixtura.progress import Progress
from mixtura.selection.held_out import Answers
from mixtura.solvers import EM, LinkedEM, SpreadPrior
from mixtura.solvers.linked import (
    ElasticNet,
    _Course,
    cross_entropy,
    squared_error,
    with_class_shares,
)
from mixtura.testing import make_batch, make_density, make_engine, make_mixture

PUBLISHED = {
    "embedding": "posterior",
    "calibrate": False,
    "density": "full",
    "random_state": 0,
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_network(embedding="posterior", kind=Network, covariance="full", counts=(3, 2)):
    """A network over four features with weights of all signs, in its own units."""
    random = generator()
    density = make_density(covariance, "covariance", random, n_components=sum(counts), n_features=4)
    mixture = make_mixture(density, list(counts), random)
    blank = kind.blank(mixture, embedding)
    draw = partial(torch.randn, dtype=torch.float64, generator=random)
    size = sum(counts)
    return blank.with_read_out(draw(size), draw(len(counts)), draw(size), draw(size).exp())


# -- embeddings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("holes", [False, True])
def test_posteriors_sum_to_one_in_every_class(holes):
    """Each class's mixture shares a row out among its own components."""
    network = make_network()
    batch = make_batch(network.density, 20, generator(1), holes=holes)
    found = EMBEDDINGS["posterior"](network.mixture, network.mixture.log_joint(batch))
    np.testing.assert_allclose(found[:, :3].sum(1), 1.0)
    np.testing.assert_allclose(found[:, 3:].sum(1), 1.0)


def test_densities_are_those_of_scipy():
    """Log-densities with the weight, and densities as a share of the component's highest."""
    network = make_network()
    mixture, batch = network.mixture, make_batch(network.density, 8, generator(1))
    joint = mixture.log_joint(batch)
    logs, shares = (EMBEDDINGS[name](mixture, joint) for name in ("log_density", "density"))
    for k in range(5):
        mean, covariance = mixture.density.mean[k].numpy(), mixture.density.covariances()[k]
        normal = multivariate_normal(mean, covariance.numpy())
        expected = normal.logpdf(batch.x.numpy())
        np.testing.assert_allclose(logs[:, k], expected + float(mixture.log_weight[k]))
        np.testing.assert_allclose(shares[:, k], np.exp(expected - normal.logpdf(mean)))


def test_simplex_is_the_nearest_point():
    """The projection agrees with a general optimizer."""
    network = make_network(counts=(4, 1))
    batch = make_batch(network.density, 5, generator(1))
    joint = network.mixture.log_joint(batch)
    found = EMBEDDINGS["simplex"](network.mixture, joint).numpy()
    np.testing.assert_allclose(found[:, 4], 1.0)
    for row, values in zip(found, joint.numpy(), strict=True):
        nearest = minimize(
            lambda p, v=values: np.square(p - v[:4] + v[:4].max()).sum(),
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1.0},
        ).x
        np.testing.assert_allclose(row[:4], nearest, atol=1e-4)


@pytest.mark.parametrize("informative", [False, True])
def test_densities_are_shares_of_the_highest(informative):
    """Over numbers, categories and holes: a component's likeliest row has one, no row has more."""
    density = make_mixed(generator(), informative=informative)
    peak = density.log_peak()
    batch = make_batch(density, 200, generator(1), holes=True)
    whole = replace(batch, x=density.fill(batch, torch.ones(200, density.n_components).double()))
    assert (density.log_prob(replace(whole, observed=None, absent=batch.lacks())) <= peak).all()
    mode = density.location
    absent = None
    if informative:
        absent = density.parts[-1].location.to(torch.int8)
    at_home = Batch(mode, None, torch.zeros(len(mode)).long(), torch.ones(len(mode)), absent)
    np.testing.assert_allclose(density.log_prob(at_home).diagonal(), peak)


# -- rows with holes -----------------------------------------------------------------------------


def make_fair_network(embedding, kind=Network, covariance="full", counts=(3, 2)):
    """One whose classes are about even, and whose embedding has been standardized."""
    network = make_network(embedding, kind, covariance, counts)
    rows = make_batch(network.density, 500, generator(5))
    zero, one = torch.zeros_like(network.shift), torch.ones_like(network.scale)
    plain = network.with_read_out(network.weight, 0.0 * network.bias, zero, one).embed(rows)
    return network.with_read_out(
        network.weight, 0.0 * network.bias, plain.mean(0), plain.std(0) + 1e-6
    )


def conditional_draws(mixture, row, seen, count):
    """Rows completed by draws given what is seen: means and covariances by the textbook."""
    random, joint, parts = np.random.default_rng(0), [], []
    means, covariances = mixture.density.mean.numpy(), mixture.density.covariances().numpy()
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        log_weight = float(mixture.log_joint_weight[k])
        inside = covariance[np.ix_(seen, seen)]
        if seen.any():
            log_weight += multivariate_normal(mean[seen], inside).logpdf(row[seen])
        gain = covariance[np.ix_(~seen, seen)] @ np.linalg.inv(inside)
        center = mean[~seen] + gain @ (row[seen] - mean[seen])
        rest = covariance[np.ix_(~seen, ~seen)] - gain @ covariance[np.ix_(seen, ~seen)]
        whole = np.tile(row, (count, 1))
        if not seen.all():
            whole[:, ~seen] = random.multivariate_normal(center, rest, size=count, method="svd")
        joint.append(log_weight)
        parts.append(whole)
    return softmax(joint), parts


def complete_batch(x):
    x = torch.from_numpy(x)
    return Batch(x, None, torch.full((len(x),), -1), torch.ones(len(x)).double())


@pytest.mark.parametrize("covariance", ["full", "diag", "low_rank"])
@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_holes_are_integrated_out(embedding, covariance):
    """p(c | observed) is the mean of p(c | x) over thousands of textbook draws of the rest."""
    network = make_fair_network(embedding, covariance=covariance)
    batch = make_batch(network.density, 12, generator(1), holes=True)
    found = network.class_log_joint(batch).softmax(1).numpy()
    for row, seen, proba in zip(batch.x.numpy(), batch.observed.numpy(), found, strict=True):
        share, parts = conditional_draws(network.mixture, row, seen, 4_000)
        means = [network.class_log_joint(complete_batch(x)).softmax(1).mean(0) for x in parts]
        np.testing.assert_allclose(proba, share @ np.stack(means), atol=0.03)


def test_missing_categories_are_summed_over():
    """With one categorical column missing there is nothing to draw by chance: all are listed."""
    density = make_mixed(generator())
    random = generator(3)
    draw = partial(torch.randn, dtype=torch.float64, generator=random)
    size = density.n_components
    mixture = make_mixture(density, [size - 1, 1], random)
    blank = Network.blank(mixture, "log_density")
    network = blank.with_read_out(draw(size), draw(2), draw(size), 3.0 * draw(size).exp())
    whole = make_batch(density, 20, generator(1))
    column = density.columns[1][0]
    observed = torch.ones_like(whole.x, dtype=torch.bool)
    observed[:, column] = False
    holes = replace(whole, observed=observed, x=whole.x * observed, absent=whole.lacks())
    n_levels = density.parts[1].levels[0]
    values = [whole.x.clone() for _ in range(n_levels)]
    for code, x in enumerate(values):
        x[:, column] = code
    joints = torch.stack([network.class_log_joint(replace(whole, x=x)) for x in values])
    expected = joints.logsumexp(0)
    found = network.class_log_joint(holes)
    np.testing.assert_allclose(found.logsumexp(1), expected.logsumexp(1))
    np.testing.assert_allclose(found.softmax(1), expected.softmax(1), atol=0.02)


def test_predictions_of_numbers_are_averaged_too():
    """Over the same draws."""
    network = make_fair_network("log_density", RegressionNetwork, counts=(4,))
    batch = make_batch(network.density, 8, generator(1), holes=True)
    found = network.outputs(batch)[:, 1].numpy()
    for row, seen, prediction in zip(batch.x.numpy(), batch.observed.numpy(), found, strict=True):
        share, parts = conditional_draws(network.mixture, row, seen, 4_000)
        each = np.stack([network.outputs(complete_batch(x))[:, 1] for x in parts])
        error = each.std() / network.n_draws**0.5
        assert abs(prediction - share @ each.mean(1)) < 2.0 * error + 1e-9


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_a_row_gets_the_same_answer_in_any_batch(embedding):
    """Draws are a row's own; complete rows need none, and are as they were to the bit."""
    network = make_fair_network(embedding)
    batch = make_batch(network.density, 30, generator(1), holes=True)
    together = network.class_log_joint(batch)
    alone = torch.cat([network.class_log_joint(batch.take([i])) for i in range(30)])
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    whole = make_batch(network.density, 30, generator(1))
    marked = replace(whole, observed=torch.ones_like(whole.x, dtype=torch.bool))
    assert torch.equal(network.class_log_joint(whole), network.class_log_joint(marked))


def test_chunks_of_rows_with_holes_leave_room_for_their_draws(monkeypatch):
    """A chunk holds no more rows, or draws of what is missing in them, than there is room for."""
    network = make_network("posterior")
    engine = make_engine(network.mixture, 50, generator(1), holes=True)
    room = 3 * network.row_cost(True)
    monkeypatch.setitem(base._CHUNK_NUMBERS, "cpu", room)
    met, plain = [], Network.class_log_joint

    def watched(self, batch):
        met.append(len(batch))
        return plain(self, batch)

    monkeypatch.setattr(Network, "class_log_joint", watched)
    monkeypatch.setattr(Network, "class_shares", lambda self: self.mixture.log_prior.exp())
    run_over(network, engine, lambda n, b: n.class_log_joint(b))
    assert (max(met), sum(met)) == (3, 50)
    Answers.of(network, engine, generator())
    assert (max(met), sum(met)) == (3, 150)


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_weights_can_give_the_classes_their_shares(embedding):
    """The mean of p(c | x) over p(x), which an empty row gets."""
    network = make_fair_network(embedding)
    before = network.class_shares().numpy()
    chances = network.class_chances().numpy()
    wanted = 0.8 * before + 0.2 * chances[chances[:, 0].argmax()]  # some weights have it
    found, shares = with_class_shares(network, wanted, Progress())
    assert np.abs(before - wanted).max() > 0.04
    np.testing.assert_allclose(found.class_shares(), wanted, atol=0.01)
    np.testing.assert_allclose(found.class_shares(), shares)
    np.testing.assert_allclose(found.mixture.log_joint_weight.exp().sum(), 1.0)
    empty = make_batch(network.density, 1, generator(1))
    empty = replace(empty, observed=torch.zeros_like(empty.x, dtype=torch.bool))
    np.testing.assert_allclose(found.class_log_joint(empty).exp()[0], found.class_shares())
    if embedding in ("density", "log_density"):
        whole = make_batch(network.density, 9, generator(2))
        kept, changed = (each.class_log_joint(whole).softmax(1) for each in (network, found))
        np.testing.assert_allclose(kept, changed)


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
@pytest.mark.parametrize("kind", [Network, RegressionNetwork])
def test_gradients(embedding, kind):
    """Of outputs by all free parameters, against finite differences."""
    network = make_network(embedding, kind, "diag", (2, 2) if kind is Network else (3,))
    batch = make_batch(network.density, 4, generator(2))
    free = {k: v.detach().clone().requires_grad_() for k, v in network.free().items()}

    def outputs(*values):
        return network.from_free(dict(zip(free, values, strict=True))).outputs(batch)

    assert torch.autograd.gradcheck(outputs, tuple(free.values()))


@pytest.mark.parametrize("embedding", ["posterior", "density", "log_density"])
@pytest.mark.parametrize("kind", [Network, RegressionNetwork])
def test_gradients_with_holes(embedding, kind):
    """Draws that stay: outputs are one function of the parameters, also away from the start."""
    start = make_network(embedding, kind, "diag", (2, 2) if kind is Network else (3,))
    start = replace(start, n_draws=4)
    batch = make_batch(start.density, 7, generator(2), holes=True).take(slice(6))
    kept = start.completed(batch)
    np.testing.assert_allclose(start.outputs(kept), start.outputs(batch))
    random = generator(4)
    moved = {k: v + 0.05 * torch.randn(v.shape, generator=random) for k, v in start.free().items()}
    for free in (start.free(), moved):
        values = tuple(v.detach().clone().requires_grad_() for v in free.values())

        def outputs(*values):
            return start.from_free(dict(zip(start.free(), values, strict=True))).outputs(kept)

        assert torch.autograd.gradcheck(outputs, values)


def test_draws_are_not_learned():
    """What training made of its own draws holds for others."""
    X, y = load_wine(return_X_y=True)
    X[np.random.default_rng(0).random(X.shape) < 0.5] = np.nan
    settings = {"embedding": "log_density", "tradeoff": 0.0, "missingness": "ignore"}
    model = MixtureNetworkClassifier(2, calibrate=False, random_state=0, **settings).fit(X, y)
    assert -np.log(model.predict_proba(X)[np.arange(len(y)), y]).mean() < 0.5


def test_the_outputs_are_a_joint_density():
    """Summed over classes they are the density of the mixtures; scores are read as announced."""
    network = make_network("log_density")
    batch = make_batch(network.density, 10, generator(1), holes=True)
    joint = network.class_log_joint(batch)
    np.testing.assert_allclose(
        joint.logsumexp(1), network.mixture.log_joint(batch).logsumexp(1), rtol=1e-6
    )
    batch = make_batch(network.density, 10, generator(1))
    joint = network.class_log_joint(batch)
    expected = network.mixture.log_joint(batch).logsumexp(1)
    embedded, owner = network.embed(batch).numpy(), network.mixture.owner.numpy()
    scores = np.stack([network.bias.numpy()] * 10)
    for row in range(10):
        for k, c in enumerate(owner):
            scores[row, c] += network.weight[k] * embedded[row, k]
    np.testing.assert_allclose(network.scores(torch.from_numpy(embedded)), scores)
    np.testing.assert_allclose(joint - expected[:, None], log_softmax(scores, axis=1))


# -- read-out ------------------------------------------------------------------------------------


def test_read_out_of_numbers_is_the_elastic_net():
    """The same weights and zeros as scikit-learn's."""
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 6))
    y = X[:, 0] - 2.0 * X[:, 1] + 0.3 * random.normal(size=80) + 1.0
    net = ElasticNet(l1=0.1, l2=0.05)
    even = np.full(80, 1 / 80)
    start = np.zeros(6), np.zeros(1)
    weight, bias = net.fit(X, np.zeros(6, int), partial(squared_error, y), even, start)
    reference = ReferenceNet(alpha=0.15, l1_ratio=0.1 / 0.15, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(weight, reference.coef_, atol=1e-4)
    np.testing.assert_allclose(bias[0], reference.intercept_, atol=1e-4)
    assert ((weight == 0) == (reference.coef_ == 0)).all()
    assert (weight == 0).any()


def test_read_out_of_classes_is_penalized_logistic_regression():
    """A class without components against one with all of them, with weights of rows."""
    random = np.random.default_rng(0)
    X, share = random.normal(size=(120, 5)), random.uniform(0.5, 1.5, size=120)
    y = (X[:, 0] + X[:, 1] + random.normal(size=120) > 0).astype(int)
    share /= share.sum()
    start = np.zeros(5), np.zeros(2)
    weight, bias = ElasticNet(0.02, 0.01).fit(
        X, np.zeros(5, int), partial(cross_entropy, 1 - y), share, start
    )
    reference = LogisticRegression(
        C=1 / 0.03, l1_ratio=2 / 3, solver="saga", tol=1e-8, max_iter=10_000
    ).fit(X, y, sample_weight=share)
    np.testing.assert_allclose(weight, reference.coef_[0], atol=1e-3)
    np.testing.assert_allclose(bias[0] - bias[1], reference.intercept_[0], atol=1e-3)


# -- linked EM -----------------------------------------------------------------------------------


def course(specialize=0.0, prior=None, **settings):
    """Linked EM with these settings."""
    return _Course(LinkedEM(**settings), ElasticNet(), specialize, prior)


@pytest.mark.parametrize("link", [0.0, 7.0, 1e10])
def test_one_linked_step(link):
    """Responsibilities, means and weights as in a loop over rows, classes and components."""
    network = make_network(counts=(3, 2))
    engine = make_engine(network.mixture, 40, generator(3))
    batch = engine.all_rows()
    linked = course(link=link)
    sums = engine.sum(partial(linked._accumulate, network), network.density)
    found = linked._step(network, sums)
    joint, weight = network.mixture.log_joint(batch).numpy(), batch.weight.numpy()
    use = network.weight.abs().numpy()
    for label, own in ((0, [0, 1, 2]), (1, [3, 4])):
        share = np.exp(joint[:, own]) / np.exp(joint[:, own]).sum(1, keepdims=True)
        mass = (share * weight[:, None]).sum(0)
        alpha = 1.0 + link * use[own] / use[own].sum()
        expected = (mass + alpha - 1.0) / (weight.sum() + alpha.sum() - len(own))
        np.testing.assert_allclose(found.log_weight.exp()[own], expected, rtol=1e-6)
        mean = (share * weight[:, None]).T @ batch.x.numpy() / mass[:, None]
        np.testing.assert_allclose(found.density.mean[own], mean)
        assert (found.owner[own] == label).all()


def test_specialists_look_at_their_own_rows():
    """All of them, and of the others as much as is left."""
    network = make_network()
    engine = make_engine(network.mixture, 30, generator(3))
    batch = engine.all_rows()
    batch = replace(batch, y=torch.where(torch.arange(30) < 3, -1, batch.y))
    joint = network.mixture.log_joint(batch)
    found = course(specialize=0.8)._attention(network, batch, joint)
    own = torch.nn.functional.one_hot(batch.y[3:], 2)
    np.testing.assert_allclose(found[3:], np.where(own == 1, 1.0, 0.2))
    guess = network.class_log_joint(batch).softmax(1)[:3]
    np.testing.assert_allclose(found[:3], 1.0 - 0.8 * (1.0 - guess))


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_equal_covariances_are_the_likeliest(covariance):
    """Of all that share one, under a prior: any other scale of it makes the rows less likely."""
    network = make_network(covariance=covariance)
    engine = make_engine(network.mixture, 60, generator(3))
    batch = engine.all_rows()
    prior = SpreadPrior(10.0, 0.5 * network.density.typical_spread)
    linked = course(equal_covariances=True, prior=prior)
    sums = engine.sum(partial(linked._accumulate, network), network.density)
    shared = linked._step(network, sums).density
    joint = network.mixture.log_joint(batch)
    share = EMBEDDINGS["posterior"](network.mixture, joint) * batch.weight[:, None]

    def expected(density):
        """Expected log-likelihood of the rows, and of the imagined ones."""
        likelihood = (share * density.log_prob(batch)).sum()
        return float(likelihood + 10.0 * density.spread_log_prob(prior.reference).sum())

    for own in ([0, 1, 2], [3, 4]):
        covariances = shared.covariances()[own]
        np.testing.assert_allclose(covariances, covariances[:1].expand_as(covariances), atol=1e-9)
        for scale in (0.98, 1.02):
            factor = torch.ones(5).double()
            factor[own] = scale
            changed = shared.with_tensors(
                {
                    k: v if k == "mean" else v * factor.view(-1, *[1] * (v.ndim - 1))
                    for k, v in shared.tensors().items()
                }
            )
            assert expected(changed) < expected(shared)


@pytest.mark.parametrize("covariance", ["spherical", "low_rank"])
def test_equal_covariances_are_equal(covariance):
    """For every structure."""
    network = make_network(covariance=covariance)
    engine = make_engine(network.mixture, 60, generator(3))
    linked = LinkedEM(3, equal_covariances=True)
    density = linked.run(network, engine, Progress()).network.density
    for own in ([0, 1, 2], [3, 4]):
        covariances = density.covariances()[own]
        np.testing.assert_allclose(covariances, covariances[:1].expand_as(covariances), atol=1e-9)


def test_tied_mixtures_agree_with_scikit_learn():
    """EM with one covariance for all components ends where scikit-learn's does."""
    X, _ = make_blobs(300, centers=3, n_features=2, cluster_std=2.0, random_state=1)
    settings = PUBLISHED | {"density": Full(1e-6), "prior_rows": 0.0, "init": EM(500, 1e-6)}
    solver = LinkedEM(500, tol=1e-7, equal_covariances=True, end_to_end=False)
    model = MixtureNetworkClassifier(3, solver=solver, **settings).fit(X)
    reference = GaussianMixture(
        3, covariance_type="tied", means_init=model.means_, tol=1e-9, max_iter=500
    ).fit(X)
    np.testing.assert_allclose(model.covariances_[0], reference.covariances_, rtol=1e-2)
    assert model.score_samples(X).mean() == pytest.approx(reference.score(X), abs=1e-4)


def test_without_a_link_all_mixtures_coincide(iris):
    """And with a strong one their weights are the read-out's."""
    X, y = iris[0][:, :2], iris[1]
    solver = LinkedEM(link=0.0, end_to_end=False)
    model = MixtureNetworkClassifier(3, solver=solver, **PUBLISHED).fit(X, y)
    means, weights = model.means_.reshape(3, 3, 2), model.weights_.reshape(3, 3)
    np.testing.assert_allclose(means, means[[0, 0, 0]], atol=1e-9)
    np.testing.assert_allclose(weights, weights[[0, 0, 0]], atol=1e-9)
    solver = LinkedEM(300, tol=1e-5, link=1e10, end_to_end=False)
    linked = MixtureNetworkClassifier(3, solver=solver, init=EM(300, 1e-4), **PUBLISHED)
    linked.fit(X, y)
    use = np.abs(linked.coef_).reshape(3, 3)
    np.testing.assert_allclose(
        linked.weights_.reshape(3, 3), use / use.sum(1, keepdims=True), atol=5e-3
    )
    assert np.abs(linked.weights_.reshape(3, 3) - weights).max() > 0.1


def test_annihilation():
    """A heavy penalty leaves each mixture as many components as there are clusters."""
    X, y = make_blobs(400, centers=[[-3, 0], [3, 0]], random_state=0)
    light, heavy = (
        MixtureNetworkClassifier(
            6, solver=LinkedEM(l1=l1, annihilate=True, end_to_end=False), **PUBLISHED
        ).fit(X, y)
        for l1 in (1e-4, 0.1)
    )
    assert heavy.n_components_ == [2, 2]
    assert sum(light.n_components_) > 4
    assert heavy.score(X, y) > 0.98
    assert heavy.transform(X).shape == (400, sum(heavy.n_components_))


def test_the_stop_is_by_the_change_of_parameters():
    """A loose tolerance stops sooner, and says that it settled."""
    network = make_network()
    engine = make_engine(network.mixture, 60, generator(3))
    hasty, patient = (
        LinkedEM(200, tol=tol).run(network, engine, Progress()) for tol in (0.1, 1e-4)
    )
    assert hasty.converged
    assert patient.converged
    assert hasty.n_iter < patient.n_iter


def test_a_step_never_loses_likelihood():
    """Without a link every class's mixture climbs, rows with holes included."""
    network = make_network()
    engine = make_engine(network.mixture, 80, generator(3), holes=True)
    progress = Progress()
    LinkedEM(15, tol=0.0).run(network, engine, progress)
    losses = [record["objective"] for record in progress.history]
    assert (np.diff(losses) < 1e-9).all()
    assert losses[-1] < losses[0] - 0.01


# -- objectives ----------------------------------------------------------------------------------


def test_regression_objective():
    """Squared errors where there is a target, densities everywhere, and finite slopes."""
    outputs = torch.tensor([[-1.0, 2.0], [-3.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([1.0, torch.nan], dtype=torch.float64)
    losses, slopes = Regression(0.25).loss_and_slope(outputs, y)
    np.testing.assert_allclose(losses, [0.75 * 0.5 + 0.25, 0.75])
    np.testing.assert_allclose(slopes, [[-0.25, 0.75], [-0.25, 0.0]])


def test_predictions_are_read_from_the_embedding():
    """The regression network predicts what its read-out says."""
    network = make_network("posterior", RegressionNetwork, counts=(3,))
    batch = make_batch(network.density, 6, generator(1))
    embedded = network.embed(batch)
    expected = embedded @ network.weight + network.bias[0]
    np.testing.assert_allclose(network.outputs(batch)[:, 1], expected)
