"""Sparse Bayesian learning against autograd, quadrature, logistic regression and pursuit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.linear_model import LogisticRegression, OrthogonalMatchingPursuit
from torch.func import hessian

from mixtura.models.mixture import Layout
from mixtura.progress import Progress
from mixtura.training import sparse_bayes, sparse_mixture
from mixtura.training.sparse_bayes import SparseBayes
from mixtura.training.sparse_mixture import Examples, Laplace, SparseMixture, information, slope


def make_examples(values, y, counts, cluster=None, weight=None):
    """Rows with given columns."""
    values = torch.as_tensor(values, dtype=torch.float64)
    y = torch.as_tensor(y)
    return Examples(
        lambda rows, columns: values[rows][:, columns],
        values.shape[1],
        y,
        y if cluster is None else torch.as_tensor(cluster),
        torch.ones(len(y)).double() if weight is None else torch.as_tensor(weight),
        Layout(counts),
    )


@pytest.fixture
def problem(rng):
    """Three classes, five components, weights at random; some columns are not used."""
    values = rng.normal(size=(40, 6))
    examples = make_examples(
        values, np.arange(40) % 3, [2, 1, 2], weight=rng.uniform(0.5, 2.0, size=40)
    )
    used = [(0, 0), (0, 3), (1, 1), (2, 0), (2, 2), (2, 5), (3, 4)]
    component, column = torch.tensor(used).T
    weight, precision = torch.as_tensor(rng.normal(size=(2, len(used))))
    share = torch.as_tensor(rng.dirichlet(np.ones(5)))
    model = SparseMixture(examples.layout, share.log(), component, column, weight, precision.exp())
    return model, examples


def chunks_of(model, examples):
    return examples.chunks(model.column, torch.ones(examples.n_columns).double())


def slope_and_information(model, examples):
    chunks = chunks_of(model, examples)
    return slope(model, examples, chunks), information(model, examples, chunks)


def complete_log_likelihood(weight, model, examples, shares):
    """The expected log-likelihood with known components, from its definition."""
    values = examples.columns(slice(None), model.column)
    spread = torch.nn.functional.one_hot(model.component, 5).double() * weight[:, None]
    log_proba = (model.log_share + values @ spread).log_softmax(1)
    return (examples.weight[:, None] * shares * log_proba).sum()


def shares_of(model, examples):
    log_proba = model.log_proba(examples.columns(slice(None), model.column))
    own = torch.where(examples.y[:, None] == examples.layout.owner, log_proba, -torch.inf)
    return own.softmax(1)


def test_gradient_agrees_with_finite_differences(problem):
    model, examples = problem
    chunks, step = chunks_of(model, examples), 1e-6
    found = slope(model, examples, chunks).gradient
    for place in range(len(model.weight)):
        nudge = torch.zeros_like(model.weight)
        nudge[place] = step
        above, below = (
            slope(replace(model, weight=model.weight + sign * nudge), examples, chunks).value
            for sign in (1, -1)
        )
        assert float(found[place]) == pytest.approx(float(above - below) / (2 * step), abs=1e-7)


def test_hessian_is_that_of_the_likelihood_with_known_components(problem):
    model, examples = problem
    shares = shares_of(model, examples)
    expected = -hessian(complete_log_likelihood)(model.weight, model, examples, shares)
    there, found = slope_and_information(model, examples)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(there.mass, examples.weight @ shares)


def test_chunks_change_nothing(problem, monkeypatch):
    model, examples = problem
    whole = slope_and_information(model, examples)
    monkeypatch.setattr(sparse_mixture, "_CHUNK", 50)
    monkeypatch.setattr(sparse_mixture, "KEPT", 0)
    monkeypatch.setattr(sparse_mixture, "_PANEL", 2)
    parts = slope_and_information(model, examples)
    for name in ("value", "gradient", "mass"):
        torch.testing.assert_close(getattr(parts[0], name), getattr(whole[0], name))
    torch.testing.assert_close(parts[1], whole[1])


def one_weight(rng, precision):
    """Two classes and a single weight, at its most probable value."""
    x = rng.normal(size=300)
    y = (rng.random(300) < 1 / (1 + np.exp(-1.5 * x))).astype(int)
    examples = make_examples(x[:, None], 1 - y, [1, 1])
    zero = torch.zeros(1, dtype=torch.long)
    model = SparseMixture(
        examples.layout,
        torch.full((2,), 0.5).double().log(),
        zero,
        zero,
        torch.zeros(1).double(),
        torch.tensor([precision]).double(),
    )
    scale = torch.ones(1).double()
    model, there, found = sparse_bayes._climb(model, examples, scale, 20, Progress())
    return x, y, model, there.value, Laplace.at(model, found)


def test_evidence_is_the_integral_over_the_weight(rng):
    x, y, model, value, laplace = one_weight(rng, 0.7)

    def integrand(w):
        sign = np.where(y == 1, 1.0, -1.0)
        log_likelihood = -np.logaddexp(0.0, -sign * w * x).sum()
        return np.exp(log_likelihood - value.item() - 0.35 * w * w) * np.sqrt(0.7 / (2 * np.pi))

    center = model.weight.item()
    integral = quad(integrand, center - 3, center + 3)[0]
    exact = np.log(integral) + value.item()
    assert laplace.evidence(model, value).item() == pytest.approx(exact, abs=5e-3)


def test_the_update_follows_the_slope_of_the_evidence(problem):
    """At given weights, d evidence / d log a = (1 - a w^2 - a variance) / 2."""
    model, examples = problem
    there, curved = slope_and_information(model, examples)
    variance = Laplace.at(model, curved).root().square().sum(1)
    rise = 0.5 * (1 - model.precision * (model.weight.square() + variance))
    for place in range(len(model.weight)):

        def evidence(factor, place=place):
            precision = model.precision.clone()
            precision[place] *= factor
            moved = replace(model, precision=precision)
            return float(Laplace.at(moved, curved).evidence(moved, there.value))

        step = 1e-5
        difference = (evidence(np.exp(step)) - evidence(np.exp(-step))) / (2 * step)
        assert float(rise[place]) == pytest.approx(difference, abs=1e-6)


def learned_from(model, examples):
    """One update of the precisions, and the slope, information and variances it is based on."""
    there, curved = slope_and_information(model, examples)
    variance = torch.linalg.inv(curved + torch.diag(model.precision)).diagonal()
    learned, live = SparseBayes()._learn(model, there, curved, variance)
    assert learned.column.tolist() == model.column[live].tolist()
    return learned, there, curved, variance


def test_precisions_follow_mackay(problem):
    """a' = (1 - a variance) / w^2 for what stays, and at most a fifth goes at once."""
    model, examples = problem
    model = sparse_bayes._climb(model, examples, torch.ones(6).double(), 20, Progress())[0]
    learned, there, _, variance = learned_from(model, examples)
    expected = (1.0 - model.precision * variance) / model.weight.square()
    names = list(zip(model.component.tolist(), model.column.tolist(), strict=True))
    stays = list(zip(learned.component.tolist(), learned.column.tolist(), strict=True))
    places = [names.index(name) for name in stays]
    torch.testing.assert_close(learned.precision, expected[places])
    assert len(names) - 2 <= len(stays) < len(names)
    torch.testing.assert_close(learned.log_share.exp(), there.mass / there.mass.sum())


def test_a_weight_goes_where_the_evidence_rises_without_it(problem):
    """Seen by raising its precision alone, with the weights moving to their new optimum."""
    model, examples = problem
    model = sparse_bayes._climb(model, examples, torch.ones(6).double(), 50, Progress())[0]
    learned, there, curved, variance = learned_from(model, examples)
    stays = set(zip(learned.component.tolist(), learned.column.tolist(), strict=True))

    def evidence(precision):
        """Of the quadratic that approximates the likelihood at the present weights."""
        total = curved + torch.diag(precision)
        linear = curved @ model.weight + there.gradient
        fit = 0.5 * linear @ torch.linalg.solve(total, linear)
        return float(fit + 0.5 * precision.log().sum() - 0.5 * torch.logdet(total))

    known = 1.0 - model.precision * variance
    wanted = model.weight.square() / (variance * known)
    for place, name in enumerate(zip(model.component.tolist(), model.column.tolist(), strict=True)):
        gone = model.precision.clone()
        gone[place] = 1e12
        finite = model.precision.clone()
        candidates = torch.logspace(-3, 6, 400).double()
        best = max(
            evidence(finite.index_fill(0, torch.tensor(place), float(a))) for a in candidates
        )
        rises = evidence(gone) >= best - 1e-6
        assert rises == bool(wanted[place] < 1.0)
        assert name in stays or rises


def test_a_column_of_all_components_gives_up_the_least_wanted_weight(problem):
    """The probabilities know differences alone."""
    model, examples = problem
    used = [(k, column) for k in range(5) for column in ((0, 3) if k < 4 else (0,))]
    component, column = torch.tensor(used).T
    weight = torch.linspace(1.0, 2.0, len(used)).double()
    model = replace(model, component=component, column=column, weight=weight, precision=weight)
    found = sparse_bayes._redundant(model, weight, 5)
    assert found.nonzero().flatten().tolist() == [used.index((0, 0))]
    moved = replace(model, weight=weight - weight[0] * (column == 0)).keep(~found)
    values = examples.columns(slice(None), column)
    torch.testing.assert_close(moved.log_proba(values[:, ~found]), model.log_proba(values))


def test_two_components_keep_one_weight_per_column(rng):
    """Where likelihood and evidence know no difference between them."""
    values = rng.normal(size=(300, 3))
    y = (values @ [2.0, -1.0, 1.5] + rng.logistic(size=300) > 0).astype(int)
    fit = SparseBayes().run(make_examples(values, y, [1, 1]), Progress())
    assert fit.model.column.tolist() == [0, 1, 2]
    assert fit.model.component.tolist() == [1, 1, 1]


def test_a_component_without_rows_is_gone(problem):
    model, examples = problem
    share = model.log_share.clone()
    share[0] -= 40.0
    learned = learned_from(replace(model, log_share=share.log_softmax(0)), examples)[0]
    assert learned.log_share[0] == -torch.inf
    assert 0 not in learned.component.tolist()
    assert learned.log_share.exp().sum() == pytest.approx(1.0, abs=1e-12)


def test_columns_of_different_size_are_treated_alike(rng):
    values = rng.normal(size=(200, 5))
    y = (values[:, 1] + rng.logistic(size=200) < 0).astype(int)
    unit = np.array([1.0, 1e-6, 1e3, 1.0, 1e5])
    plain, scaled = (
        SparseBayes().run(make_examples(v, y, [1, 1]), Progress()) for v in (values, values * unit)
    )
    assert plain.model.column.tolist() == scaled.model.column.tolist()
    torch.testing.assert_close(
        scaled.model.weight * torch.from_numpy(unit)[scaled.model.column], plain.model.weight
    )
    assert scaled.evidence == pytest.approx(plain.evidence)


def test_what_rounding_leaves_of_a_constant_is_no_column(rng):
    values = rng.normal(size=(100, 2))
    values[:, 1] *= 1e-16
    fit = SparseBayes().run(make_examples(values, np.arange(100) % 2, [1, 1]), Progress())
    assert 1 not in fit.model.column.tolist()


def test_covariance_is_the_inverse_of_the_negative_hessian(problem):
    model, examples = problem
    data = slope_and_information(model, examples)[1]
    expected = torch.linalg.inv(data + torch.diag(model.precision))
    root = Laplace.at(model, data).root()
    torch.testing.assert_close(root @ root.T, expected)


def test_most_probable_weights_are_those_of_logistic_regression(rng):
    """One component per class, all precisions alike: a ridge penalty on the difference."""
    values = rng.normal(size=(120, 4))
    y = (values @ [1.0, -2.0, 0.0, 0.5] + rng.logistic(size=120) < 0).astype(int)
    weight = rng.integers(1, 4, size=120).astype(float)
    examples = make_examples(values, y, [1, 1], weight=weight)
    scale = torch.ones(4).double()
    start = SparseBayes()._start(examples, scale)
    start = replace(
        start, log_share=torch.zeros(2).double(), precision=torch.full((8,), 0.6).double()
    )
    model = sparse_bayes._climb(start, examples, scale, 50, Progress())[0]
    rival = LogisticRegression(C=1 / 0.3, fit_intercept=False, tol=1e-10, max_iter=1000)
    rival.fit(values, 1 - y, sample_weight=weight)
    first, second = model.weight.view(2, 4).numpy()
    np.testing.assert_allclose(first - second, rival.coef_[0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_newton_steps_never_lose_ground(problem, size):
    """Also from weights far off, where a whole step overshoots."""
    model, examples = problem
    scale = torch.ones(examples.n_columns).double()
    model = replace(model, weight=size * model.weight)
    values = []
    for _ in range(15):
        chunks = chunks_of(model, examples)
        penalty = 0.5 * model.precision @ model.weight.square()
        values.append(float(slope(model, examples, chunks).value - penalty))
        model = sparse_bayes._climb(model, examples, scale, 1, Progress())[0]
    assert np.all(np.diff(values) >= 0.0)
    assert values[-1] > values[0]


def test_columns_that_tell_nothing_die(rng):
    """The evidence keeps a column by chance with the probability that a square normal beats one."""
    values = rng.normal(size=(400, 12))
    y = (2.0 * values[:, 4] + rng.logistic(size=400) < 0).astype(int)
    progress = Progress()
    fit = SparseBayes().run(make_examples(values, y, [1, 1]), progress)
    assert fit.converged
    told = fit.model.column == 4
    assert abs(float(fit.model.weight[told])) > 1.0
    assert len(fit.model.weight) <= 5
    assert (fit.model.weight[~told].abs() < 0.1).all()
    assert progress.history[0]["n_weights"] == 24
    assert fit.evidence > progress.history[0]["evidence"] + 5.0


def test_the_rest_makes_up_for_what_is_given_up(rng):
    """Of two columns that almost cancel, each with a huge weight, one can go without harm."""
    x, noise = rng.normal(size=(2, 200))
    y = (x + 0.5 * noise + rng.logistic(size=200) < 0).astype(int)
    examples = make_examples(np.stack([x, x + 1e-3 * noise], 1), y, [1, 1])
    scale = torch.ones(2).double()
    start = SparseBayes()._start(examples, scale)
    start = start.keep(start.component == 0)
    start = replace(start, precision=torch.full((2,), 1e-6).double())
    model, _, curved = sparse_bayes._climb(start, examples, scale, 50, Progress())
    assert model.weight.abs().min() > 100.0
    dead = torch.tensor([False, True])
    without = replace(model, weight=sparse_bayes._given_up(model, curved, dead)).keep(~dead)
    best = sparse_bayes._climb(without, examples, scale, 50, Progress())[1].value
    left = slope(without, examples, chunks_of(without, examples)).value
    assert best - 0.5 < left <= best
    alone = model.keep(~dead)
    assert slope(alone, examples, chunks_of(alone, examples)).value < best - 100.0


def test_components_that_are_not_needed_die(rng):
    """Each class is one normal cloud, and starts from four clusters."""
    x = np.concatenate([rng.normal(-1, 1, size=(150, 2)), rng.normal(1, 1, size=(150, 2))])
    values = np.column_stack([np.ones(300), x, x**2, x[:, 0] * x[:, 1]])
    y = np.repeat([0, 1], 150)
    cluster = 4 * y + (x[:, 0] > y * 2 - 1) * 2 + (x[:, 1] > y * 2 - 1)
    fit = SparseBayes().run(make_examples(values, y, [4, 4], cluster), Progress())
    assert sum(fit.model.layout.counts) <= 4
    assert len(fit.model.weight) <= 8


def test_compact_model_is_the_same_function(problem):
    """Dead components go, and those without weights are one; the rest keeps its order."""
    model, examples = problem
    model = model.keep(model.component != 0)
    share = model.log_share.clone()
    share[3] = -torch.inf
    model = replace(model, log_share=share.log_softmax(0)).keep(model.component != 3)
    small = model.compact()
    assert small.layout.counts == (2, 1, 1)
    values = examples.columns(slice(None), model.column)
    torch.testing.assert_close(
        small.layout.logsumexp(small.log_proba(values)),
        model.layout.logsumexp(model.log_proba(values)),
    )
    bare = replace(model.keep(model.component < 0), log_share=problem[0].log_share).compact()
    assert bare.layout.counts == (1, 1, 1)
    assert bare.log_share.exp().sum() == pytest.approx(1.0)


def test_pursuit_finds_what_scikit_learn_finds(rng):
    cluster = rng.integers(4, size=80)
    values = rng.normal(size=(80, 30))
    values[:, 3] += cluster == 0
    values[:, 8] += cluster == 1
    weight = rng.uniform(0.1, 5.0, size=80)
    root = np.sqrt(weight)[:, None]
    values /= np.sqrt((weight[:, None] * values**2).sum(0))
    examples = make_examples(values, np.zeros(80, int), [4], cluster, weight)
    found = sparse_bayes._pursue(examples, torch.ones(30).double(), 6)
    for place in range(4):
        target = (cluster == place) - np.average(cluster == place, weights=weight)
        rival = OrthogonalMatchingPursuit(n_nonzero_coefs=6, fit_intercept=False)
        rival.fit(root * values, root[:, 0] * target)
        assert found[place].tolist() == np.flatnonzero(rival.coef_).tolist()


def test_some_rows_weigh_as_much_as_all(rng):
    """A share of each cluster, and their own columns, whatever the order of the rows."""
    values, weight = rng.normal(size=(1000, 3)), rng.uniform(0.5, 2.0, size=1000)
    cluster = np.arange(1000) % 2
    examples = make_examples(values, cluster, [1, 1], weight=weight)
    some = examples.some(100)
    assert len(some.y) == 100
    assert torch.bincount(some.cluster).tolist() == [50, 50]
    assert some.weight.sum() == pytest.approx(weight.sum())
    every = torch.arange(3)
    for place in range(0, 100, 30):
        row = some.columns(slice(place, place + 1), every)[0]
        (source,) = np.flatnonzero((values == row.numpy()).all(1))
        assert cluster[source] == some.y[place]
    assert examples.some(1000) is examples


def test_training_on_some_rows_first_ends_where_training_on_all_does(rng, monkeypatch):
    values = rng.normal(size=(2000, 20))
    y = (values[:, 3] - values[:, 7] + rng.logistic(size=2000) < 0).astype(int)
    whole = SparseBayes().run(make_examples(values, y, [1, 1]), Progress())
    monkeypatch.setattr(sparse_bayes, "_FIRST_ROWS", 400)
    progress = Progress()
    staged = SparseBayes().run(make_examples(values, y, [1, 1]), progress)
    assert progress.history[0]["n_weights"] < 20
    assert {3, 7} <= set(staged.model.column.tolist())
    assert staged.evidence == pytest.approx(whole.evidence, abs=0.5)


def test_the_order_of_the_rows_does_not_matter(rng):
    """Not even where the classes alternate and only some rows are looked at."""
    values = rng.normal(size=(9000, 60))
    values[:, 17] += np.arange(9000) % 2
    scale = torch.ones(60).double()
    for order in (np.arange(9000), rng.permutation(9000)):
        examples = make_examples(values[order], order % 2, [1, 1]).some(1000)
        assert 17 in SparseBayes(max_weights=1)._start(examples, scale).column.tolist()


def test_a_start_of_few_weights(rng):
    """Every component starts from the columns that explain its rows, thirty at least."""
    values = rng.normal(size=(200, 50))
    y = (values[:, 7] > 0).astype(int)
    examples = make_examples(values, y, [1, 1])
    start = SparseBayes(max_weights=1)._start(examples, torch.ones(50).double())
    assert len(start.weight) == 60
    assert 7 in start.column.tolist()
    fit = SparseBayes(max_weights=1).run(examples, Progress())
    assert 7 in fit.model.column.tolist()
    many = make_examples(values, y, [50, 50], cluster=rng.integers(50, size=200) + 50 * y)
    assert len(SparseBayes()._start(many, torch.ones(50).double()).weight) <= 900
