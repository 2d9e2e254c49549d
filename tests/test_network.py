"""Mixture networks: their parts against slower ways, and the estimators from the outside."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_diabetes, load_iris, make_blobs
from sklearn.linear_model import ElasticNet as ReferenceNet
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture

from mixtura import MixtureNetworkClassifier, MixtureNetworkRegressor, load
from mixtura.data import Batch
from mixtura.densities import categorical, product
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, NoLabelsError
from mixtura.network import EMBEDDINGS, Network, RegressionNetwork
from mixtura.objectives import Regression
from mixtura.progress import Progress
from mixtura.testing import make_batch, make_density, make_engine, make_mixed, make_mixture
from mixtura.trainers.base import SpreadPrior
from mixtura.trainers.linked import ElasticNet, Linked, cross_entropy, squared_error

PUBLISHED = {
    "embedding": "posterior",
    "specialize": 0.0,
    "end_to_end": False,
    "calibrate": False,
    "covariance": "full",
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


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(iris):
    """One network for all tests that only look."""
    return MixtureNetworkClassifier(3, random_state=0).fit(*iris)


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
    """The projection agrees with a general optimiser."""
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


@pytest.mark.parametrize("embedding", ["density", "log_density"])
def test_absolute_embeddings_fill_holes_in(embedding):
    """Rows with holes embed as the rows that the mixture expects."""
    network = make_network(embedding)
    batch = make_batch(network.density, 9, generator(1), holes=True)
    whole = replace(batch, x=network.mixture.impute(batch), observed=None)
    np.testing.assert_allclose(network.embed(batch), network.embed(whole))


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
@pytest.mark.parametrize("kind", [Network, RegressionNetwork])
def test_gradients(embedding, kind):
    """Of outputs by all free parameters, against finite differences."""
    network = make_network(embedding, kind, "diag", (2, 2) if kind is Network else (3,))
    batch = make_batch(network.density, 4, generator(2))
    free = {k: v.detach().clone().requires_grad_() for k, v in network.free().items()}

    def outputs(*values):
        return network.from_free(dict(zip(free, values, strict=True))).class_log_joint(batch)

    assert torch.autograd.gradcheck(outputs, tuple(free.values()))


def test_the_outputs_are_a_joint_density():
    """Summed over classes they are the density of the mixtures; scores are read as announced."""
    network = make_network("log_density")
    batch = make_batch(network.density, 10, generator(1), holes=True)
    joint = network.class_log_joint(batch)
    expected = network.mixture.log_joint(batch).logsumexp(1)
    np.testing.assert_allclose(joint.logsumexp(1), expected)
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


def test_read_out_of_classes_is_penalised_logistic_regression():
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


@pytest.mark.parametrize("link", [0.0, 7.0, 1e10])
def test_one_linked_step(link):
    """Responsibilities, means and weights as in a loop over rows, classes and components."""
    network = make_network(counts=(3, 2))
    engine = make_engine(network.mixture, 40, generator(3))
    batch = engine.table.batch(slice(None))
    linked = Linked(ElasticNet(), link=link)
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
    batch = engine.table.batch(slice(None))
    batch = replace(batch, y=torch.where(torch.arange(30) < 3, -1, batch.y))
    joint = network.mixture.log_joint(batch)
    found = Linked(ElasticNet(), specialize=0.8)._attention(network, batch, joint)
    own = torch.nn.functional.one_hot(batch.y[3:], 2)
    np.testing.assert_allclose(found[3:], np.where(own == 1, 1.0, 0.2))
    guess = network.class_log_joint(batch).softmax(1)[:3]
    np.testing.assert_allclose(found[:3], 1.0 - 0.8 * (1.0 - guess))


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_equal_covariances_are_the_likeliest(covariance):
    """Of all that share one, under a prior: any other scale of it makes the rows less likely."""
    network = make_network(covariance=covariance)
    engine = make_engine(network.mixture, 60, generator(3))
    batch = engine.table.batch(slice(None))
    prior = SpreadPrior(10.0, 0.5 * network.density.typical_spread)
    linked = Linked(ElasticNet(), equal=True, prior=prior)
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
    linked = Linked(ElasticNet(), equal=True, max_iter=3)
    density = linked.run(network, engine, Progress()).network.density
    for own in ([0, 1, 2], [3, 4]):
        covariances = density.covariances()[own]
        np.testing.assert_allclose(covariances, covariances[:1].expand_as(covariances), atol=1e-9)


def test_tied_mixtures_agree_with_scikit_learn():
    """EM with one covariance for all components ends where scikit-learn's does."""
    X, _ = make_blobs(300, centers=3, n_features=2, cluster_std=2.0, random_state=1)
    settings = {**PUBLISHED, "equal_covariances": True, "prior_rows": 0.0, "reg_covar": 1e-6}
    model = MixtureNetworkClassifier(3, tol=1e-7, max_iter=500, **settings).fit(X)
    reference = GaussianMixture(
        3, covariance_type="tied", means_init=model.means_, tol=1e-9, max_iter=500
    ).fit(X)
    np.testing.assert_allclose(model.covariances_[0], reference.covariances_, rtol=1e-2)
    assert model.score_samples(X).mean() == pytest.approx(reference.score(X), abs=1e-4)


def test_without_a_link_all_mixtures_coincide(iris):
    """And with a strong one their weights are the read-out's."""
    X, y = iris[0][:, :2], iris[1]
    model = MixtureNetworkClassifier(3, link=0.0, **PUBLISHED).fit(X, y)
    means, weights = model.means_.reshape(3, 3, 2), model.weights_.reshape(3, 3)
    np.testing.assert_allclose(means, means[[0, 0, 0]], atol=1e-9)
    np.testing.assert_allclose(weights, weights[[0, 0, 0]], atol=1e-9)
    linked = MixtureNetworkClassifier(3, link=1e10, tol=1e-5, max_iter=300, **PUBLISHED).fit(X, y)
    use = np.abs(linked.coef_).reshape(3, 3)
    np.testing.assert_allclose(
        linked.weights_.reshape(3, 3), use / use.sum(1, keepdims=True), atol=5e-3
    )
    assert np.abs(linked.weights_.reshape(3, 3) - weights).max() > 0.1


def test_annihilation():
    """A heavy penalty leaves each mixture as many components as there are clusters."""
    X, y = make_blobs(400, centers=[[-3, 0], [3, 0]], random_state=0)
    light, heavy = (
        MixtureNetworkClassifier(6, l1=l1, annihilate=True, **PUBLISHED).fit(X, y)
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
        Linked(ElasticNet(), tol=tol, max_iter=200).run(network, engine, Progress())
        for tol in (0.1, 1e-4)
    )
    assert hasty.converged
    assert patient.converged
    assert hasty.n_iter < patient.n_iter


def test_a_step_never_loses_likelihood():
    """Without a link every class's mixture climbs, rows with holes included."""
    network = make_network()
    engine = make_engine(network.mixture, 80, generator(3), holes=True)
    progress = Progress()
    Linked(ElasticNet(), tol=0.0, max_iter=15).run(network, engine, progress)
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


# -- the classifier ------------------------------------------------------------------------------


def test_iris(fitted, iris):
    """It learns, and its services have the shapes they should."""
    X, y = iris
    assert fitted.score(X, y) > 0.95
    width = sum(fitted.n_components_)
    assert fitted.transform(X).shape == fitted.responsibilities(X).shape == (150, width)
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1.0)
    assert fitted.cluster(X).max() < width
    assert fitted.get_feature_names_out()[0] == "mixturenetworkclassifier0"


def test_log_density_of_classes_is_bayes_rule(fitted, iris):
    """Weighted by the class prior they sum to the density of the row."""
    total = fitted.class_log_density(iris[0]) + np.log(fitted.class_prior_)
    np.testing.assert_allclose(np.logaddexp.reduce(total, axis=1), fitted.score_samples(iris[0]))


def test_draws(fitted):
    """Labels follow the rows; with wanted labels, rows follow them."""
    X, y = fitted.sample(200, random_state=1)
    assert X.shape == (200, 4)
    assert np.mean(fitted.predict(X) == y) > 0.8
    X, y = fitted.sample(30, y=2, random_state=1)
    assert (y == 2).all()
    assert np.mean(fitted.predict(X) == 2) > 0.8


def test_end_to_end_training_moves_the_means(iris):
    """And lowers the objective that it says it lowers."""
    X, y = iris
    settings = {**PUBLISHED, "covariance": "diag"}
    start = MixtureNetworkClassifier(4, **settings).fit(X, y)
    model = MixtureNetworkClassifier(4, **settings | {"end_to_end": True}).fit(X, y)
    losses = [r["objective"] for r in model.history_ if r["stage"] == "L-BFGS"]
    assert losses[-1] < losses[0]
    assert np.abs(model.means_ - start.means_).max() > 0.01
    assert model.score(X, y) > start.score(X, y)


def test_labels_do_not_move_unlinked_mixtures(iris):
    """The mixtures learn from all rows, labelled or not."""
    X, y = iris
    few = np.where(np.arange(150) % 5 == 0, y, -1)
    whole, part = (MixtureNetworkClassifier(4, **PUBLISHED).fit(X, labels) for labels in (y, few))
    np.testing.assert_allclose(whole.means_, part.means_, rtol=1e-6)
    assert part.score(X, y) > 0.8


def test_without_labels_it_is_a_mixture(iris):
    """It clusters, embeds, imputes, scores and samples, and refuses to name classes."""
    X = iris[0].copy()
    X[::7, 1] = np.nan
    for y in (None, np.full(150, -1)):
        model = MixtureNetworkClassifier(3, random_state=0).fit(X, y)
        assert len(np.unique(model.cluster(X))) == 3
        assert model.transform(X).shape == (150, 3)
        assert np.isfinite(model.impute(X)).all()
        assert np.isfinite(model.score_samples(X)).all()
        assert model.sample(5)[0].shape == (5, 4)
        with pytest.raises(NoLabelsError, match="fitted without labels"):
            model.predict(X)


def test_one_class(iris):
    """One class is always the answer."""
    model = MixtureNetworkClassifier(2, random_state=0).fit(iris[0], np.full(150, "a"))
    assert (model.predict(iris[0]) == "a").all()
    np.testing.assert_allclose(model.predict_proba(iris[0]), 1.0)


@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_saved_networks_answer_the_same(embedding, iris, tmp_path):
    """To the bit, for every embedding."""
    X, y = iris
    model = MixtureNetworkClassifier(
        2, embedding=embedding, calibrate=False, max_iter=5, random_state=0
    ).fit(X, y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_units_do_not_matter(iris):
    """Rescaling features leaves the predictions alone."""
    X, y = iris
    settings = {"max_iter": 10, "calibrate": False, "embedding": "posterior", "random_state": 0}
    plain = MixtureNetworkClassifier(3, **settings).fit(X, y)
    scaled = MixtureNetworkClassifier(3, **settings).fit(1e4 * X - 7.0, y)
    np.testing.assert_allclose(
        plain.predict_proba(X), scaled.predict_proba(1e4 * X - 7.0), atol=1e-4
    )


def test_components_of_their_own_for_each_class(iris):
    """One number a class."""
    model = MixtureNetworkClassifier([1, 2, 4], max_iter=3, **PUBLISHED).fit(*iris)
    assert model.n_components_ == [1, 2, 4]


@pytest.mark.parametrize("n_components", [0, -1, [1, 2], [1.5], [1, 0, 2]])
def test_senseless_numbers_of_components(n_components, iris):
    """Are refused with the remedy."""
    with pytest.raises(InvalidInputError, match="n_components"):
        MixtureNetworkClassifier(n_components).fit(*iris)


def test_more_components_than_rows():
    """One a row, with a warning."""
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with pytest.warns(DegenerateDataWarning, match="more components than rows"):
        model = MixtureNetworkClassifier(9, **PUBLISHED).fit(X, y)
    assert model.n_components_ == [4, 4]


@pytest.mark.parametrize("embedding", ["posterior", "simplex"])
def test_a_component_alone_compares_with_none(embedding, iris):
    """Which is said."""
    settings = PUBLISHED | {"embedding": embedding, "max_iter": 2}
    with pytest.warns(DegenerateDataWarning, match="tells nothing"):
        MixtureNetworkClassifier(1, **settings).fit(*iris)


def test_a_read_out_that_uses_nothing(iris):
    """Is told."""
    with pytest.warns(DegenerateDataWarning, match="smaller l1"):
        model = MixtureNetworkClassifier(2, l1=1e6, **PUBLISHED).fit(*iris)
    np.testing.assert_allclose(model.predict_proba(iris[0]), 1 / 3, atol=1e-6)


def test_missing_labels_of_every_kind(iris):
    """NaN and None are no labels, as -1 is none."""
    X, y = iris
    few = np.arange(150) % 3 == 0
    settings = PUBLISHED | {"max_iter": 3}
    reference = MixtureNetworkClassifier(3, **settings).fit(X, np.where(few, y, -1))
    for labels in (np.where(few, y, np.nan), np.where(few, y.astype(object), None)):
        model = MixtureNetworkClassifier(3, **settings).fit(X, labels)
        np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(X))


def test_predictions_in_inference_mode_do_not_spoil_later_fits(iris):
    """What is kept for all models is fit for gradients, whoever asked first."""
    X = np.column_stack([iris[0], (iris[0] > iris[0].mean(0)).astype(float)])
    settings = {"embedding": "posterior", "calibrate": False, "max_iter": 2, "random_state": 0}
    settings["categorical_features"] = [4, 5, 6, 7]
    model = MixtureNetworkClassifier(2, **settings | {"end_to_end": False}).fit(X, iris[1])
    for cache in (categorical._slots, product._index):
        cache.cache_clear()
    with torch.inference_mode():
        model.predict(X)
    assert np.isfinite(MixtureNetworkClassifier(2, **settings).fit(X, iris[1]).coef_).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("embedding", sorted(EMBEDDINGS))
def test_cuda(embedding):
    """Minibatches through a captured graph, for every embedding."""
    X, y = make_blobs(4000, centers=4, n_features=3, random_state=0)
    settings = {"embedding": embedding, "calibrate": False, "max_iter": 3, "random_state": 0}
    model = MixtureNetworkClassifier(3, device="cuda", **settings).fit(X, y % 2)
    assert model.score(X, y % 2) > 0.9


# -- the regressor -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def predictor(diabetes):
    return MixtureNetworkRegressor(3, embedding="log_density", random_state=0).fit(*diabetes)


def test_diabetes(predictor, diabetes):
    """It predicts, and its mixture has the usual services."""
    X, y = diabetes
    assert predictor.score(X, y) > 0.5
    assert np.isfinite(predictor.score_samples(X)).all()
    assert predictor.transform(X).shape == (442, 3)
    holes = X.copy()
    holes[:, 2] = np.nan
    assert 0.2 < predictor.score(holes, y) < predictor.score(X, y)
    assert np.isfinite(predictor.impute(holes)).all()


def test_units_of_the_target_do_not_matter(predictor, diabetes):
    """Predictions follow them."""
    X, y = diabetes
    other = MixtureNetworkRegressor(3, embedding="log_density", random_state=0)
    other.fit(X, 1e3 * y + 5.0)
    np.testing.assert_allclose(other.predict(X), 1e3 * predictor.predict(X) + 5.0, rtol=1e-3)


def test_rows_without_target_take_part(diabetes):
    """In the mixture: they move its means, and nothing breaks."""
    X, y = diabetes
    known = np.where(np.arange(442) % 3 == 0, y, np.nan)
    settings = {"embedding": "posterior", "end_to_end": False, "random_state": 0}
    some = MixtureNetworkRegressor(3, **settings).fit(X, known)
    all_rows = MixtureNetworkRegressor(3, **settings).fit(X, y)
    np.testing.assert_allclose(some.means_, all_rows.means_, rtol=1e-6)
    trained = MixtureNetworkRegressor(3, embedding="posterior", random_state=0).fit(X, known)
    assert trained.score(X, y) > 0.3


def test_saved_regressors_predict_the_same(predictor, diabetes, tmp_path):
    """To the bit."""
    predictor.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(diabetes[0]), predictor.predict(diabetes[0]))


@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_targets_of_any_magnitude(unit, diabetes):
    """Have finite predictions that follow them."""
    X, y = diabetes[0][:100], diabetes[1][:100]
    settings = {"embedding": "log_density", "end_to_end": False, "random_state": 0}
    plain = MixtureNetworkRegressor(2, **settings).fit(X, y).predict(X)
    scaled = MixtureNetworkRegressor(2, **settings).fit(X, y * unit).predict(X)
    np.testing.assert_allclose(scaled / unit, plain, rtol=1e-6)


def test_the_unit_of_weights_does_not_matter(diabetes):
    """Nor does it change the way of training."""
    X, y = diabetes[0][:150], diabetes[1][:150]
    scores = []
    for weight in (1.0, 1e3):
        model = MixtureNetworkRegressor(3, embedding="posterior", prior_rows=0.0, random_state=0)
        scores.append(model.fit(X, y, np.full(150, weight)).score(X, y))
    assert scores[0] == pytest.approx(scores[1], abs=0.05)


def test_the_likelihood_alone_leaves_the_read_out_alone(diabetes):
    """With nothing but the likelihood to raise, gradients have nothing to teach."""
    settings = {"embedding": "posterior", "random_state": 0}
    linked = MixtureNetworkRegressor(3, end_to_end=False, **settings).fit(*diabetes)
    likely = MixtureNetworkRegressor(3, tradeoff=1.0, **settings).fit(*diabetes)
    np.testing.assert_allclose(linked.predict(diabetes[0]), likely.predict(diabetes[0]))


def test_draws_of_a_regressor(predictor):
    """Rows and what is predicted for them."""
    X, y = predictor.sample(20, random_state=0)
    np.testing.assert_allclose(predictor.predict(X), y)


def test_scores_look_at_known_targets(predictor, diabetes):
    """Rows without one are left out."""
    X, y = diabetes
    known = np.where(np.arange(442) < 300, y, np.nan)
    assert predictor.score(X, known) == pytest.approx(predictor.score(X[:300], y[:300]))


def test_constant_target():
    """Is predicted."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = MixtureNetworkRegressor(2, random_state=0).fit(X, np.full(30, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, atol=1e-6)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([np.nan] * 4, "no row has a target"),
        (["a", "b", "c", "d"], "y must hold numbers"),
        ([1.0, np.inf, 2.0, 3.0], "infinity"),
        ([1.0, 2.0], "inconsistent numbers of samples"),
    ],
)
def test_bad_targets(y, message):
    """Are refused in words."""
    with pytest.raises(ValueError, match=message):
        MixtureNetworkRegressor(1).fit(np.arange(8.0).reshape(4, 2), y)


def test_predictions_are_read_from_the_embedding():
    """The regression network predicts what its read-out says."""
    network = make_network("posterior", RegressionNetwork, counts=(3,))
    batch = make_batch(network.density, 6, generator(1))
    embedded = network.embed(batch)
    expected = embedded @ network.weight + network.bias[0]
    np.testing.assert_allclose(network.class_log_joint(batch)[:, 1], expected)
