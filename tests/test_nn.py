"""The last layer against SciPy, PyTorch, integrals and the estimators it is converted from."""

import importlib.util
import io
import runpy
from copy import deepcopy
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
import torch
from gaussians import GAUSSIANS
from scipy.integrate import quad
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal, norm
from torch import nn
from torch.nn.functional import cross_entropy

from mixtura import MixtureClassifier
from mixtura.data.batch import Batch
from mixtura.datasets import make_ripley
from mixtura.exceptions import InvalidInputError
from mixtura.nn import FEATURES, MixtureHead, kl_weight
from mixtura.solvers import EM, LBFGS
from mixtura.testing import STRUCTURES, make_density, make_mixture

COUNTS = [2, 1, 3]
EXAMPLES = Path(__file__).parents[1] / "examples"

by_density = pytest.mark.parametrize("density", FEATURES)


@pytest.fixture(autouse=True)
def _own_noise():
    """Layers draw from PyTorch's default generator; what tests set there stays there."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=STRUCTURES, ids="-".join)
def mixture(request, generator):
    """Three classes with two, one and three components."""
    density = make_density(*request.param, generator, n_components=6)
    return make_mixture(density, COUNTS, generator)


def make_head(density, sparse=True, n_components=COUNTS, in_features=4, **options):
    """Weights of the order of one, quadratic ones too."""
    head = MixtureHead(in_features, 3, n_components, density, sparse, **options)
    with torch.no_grad():
        head.weight.normal_()
    return head


def half_dropped(density, **options):
    """A sparse head without a feature, two components of the first class and many weights."""
    head = make_head(density, n_components=[3, 1, 3], dtype=torch.float64, **options).eval()
    with torch.no_grad():
        head.log_variance[torch.rand(head.weight.shape) < 0.4] = 20.0
        head.log_variance[:2] = 20.0
        head.log_variance[:, 1] = 20.0
        head.log_variance[3] = -10.0  # the only component of its class
        head.log_variance[3, 1] = 20.0
    return head


def brute_features(x, density):
    """phi of a single row, in plain Python."""
    pairs = list(combinations_with_replacement(range(len(x)), 2))
    kept = {"linear": [], "diag": [(i, j) for i, j in pairs if i == j], "full": pairs}[density]
    return np.array([*x, *(x[i] * x[j] for i, j in kept)])


def brute_forward(head, x, weight):
    """Class log-posteriors of rows, up to a constant, with the given weights."""
    phi = np.stack([brute_features(row, head.density) for row in x])
    logits = phi @ weight.T + head.bias.detach().numpy()
    owner = np.repeat(np.arange(head.n_classes), head.n_components)
    return np.stack([logsumexp(logits[:, owner == c], axis=1) for c in range(head.n_classes)], 1)


def rows_of(x):
    """Rows as the mixture takes them."""
    return Batch(x, None, torch.zeros(len(x), dtype=torch.long), torch.ones(len(x)).to(x))


# -- the function ---------------------------------------------------------------------------------


@by_density
@pytest.mark.parametrize("n_components", [1, 2, [1, 4, 2]])
def test_output_is_a_log_sum_over_components(density, n_components, rng):
    """Any number of components, any leading shape."""
    head = make_head(density, False, n_components, dtype=torch.float64)
    x = rng.normal(size=(5, 2, 4))
    out = head(torch.from_numpy(x)).detach().numpy()
    assert out.shape == (5, 2, 3)
    expected = brute_forward(head, x.reshape(10, 4), head.weight.detach().numpy())
    np.testing.assert_allclose(out.reshape(10, 3), expected, rtol=1e-12)
    np.testing.assert_allclose(head(torch.from_numpy(x[0, 0])).detach(), expected[0], rtol=1e-12)


def test_one_linear_component_is_a_linear_layer(rng):
    """The same function of the same weights, at the start of training and in the middle."""
    head, layer = MixtureHead(5, 4, density="linear", sparse=False), nn.Linear(5, 4)
    head.load_state_dict(layer.state_dict())
    x = torch.from_numpy(rng.normal(size=(20, 5))).float()
    y = torch.from_numpy(rng.integers(4, size=20))
    for model in (head, layer):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(20):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(head(x), layer(x))


@by_density
def test_gradients_agree_with_finite_differences(density):
    """Of the output in evaluation mode, and of the divergence."""
    head = make_head(density, dtype=torch.float64).eval()
    with torch.no_grad():
        head.log_variance.uniform_(-5.0, 2.0)
    names = ["weight", "bias", "log_variance"]
    values = [getattr(head, name).detach().requires_grad_() for name in names]
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def output(x, *values):
        return torch.func.functional_call(head, dict(zip(names, values, strict=True)), (x,))

    def divergence(weight, log_variance):
        other = deepcopy(head)
        del other.weight, other.log_variance
        other.weight, other.log_variance = weight, log_variance
        return other.kl()

    assert torch.autograd.gradcheck(output, (x, *values))
    assert torch.autograd.gradcheck(divergence, (values[0], values[2]))


def test_nan_in_gives_nan_out():
    """Nothing is made up for missing values, and other rows are not touched."""
    x = torch.randn(3, 4)
    x[1, 2] = torch.nan
    out = make_head("full")(x)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


# -- variational dropout --------------------------------------------------------------------------


def exact_divergence(log_alpha):
    """KL(N(1, alpha) || log-uniform) by integration, up to the constant that makes it end at 0."""
    deviation = np.exp(log_alpha / 2)
    settled = -(np.euler_gamma + np.log(2)) / 2  # E log|e| of a standard normal e
    value, _ = quad(
        lambda e: norm.pdf(e, 1, deviation) * np.log(np.abs(e) / deviation),
        *(1 - 12 * deviation, 1 + 12 * deviation),
        points=[0.0, 1.0] if deviation > 1 / 12 else [1.0],
        limit=500,
    )
    return value - settled


@pytest.mark.parametrize("log_alpha", [-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 3.0, 8.0])
def test_divergence_is_close_to_the_integral(log_alpha):
    """The sigmoid approximation, a single weight at a time."""
    head = MixtureHead(1, 1, density="linear", dtype=torch.float64)
    with torch.no_grad():
        head.weight.fill_(0.3)
        head.log_variance.fill_(log_alpha + 2 * np.log(0.3))
    assert head.log_alpha().item() == pytest.approx(log_alpha)
    assert head.kl().item() == pytest.approx(exact_divergence(log_alpha), abs=0.01)


@by_density
def test_training_noise_has_the_moments_of_noisy_weights(density, rng):
    """Sums drawn by the layer against sums with weights drawn by NumPy."""
    head = make_head(density, n_components=1, dtype=torch.float64).train()
    with torch.no_grad():
        head.log_variance.uniform_(-4.0, 0.0)
    x = rng.normal(size=4)
    drawn = head(torch.from_numpy(np.tile(x, (40_000, 1)))).detach().numpy()
    deviation = (0.5 * head.log_variance).exp().detach().numpy()
    weight = head.weight.detach().numpy() + deviation * rng.normal(size=(40_000, *deviation.shape))
    sums = weight @ brute_features(x, density) + head.bias.detach().numpy()
    error = sums.std(0) / np.sqrt(40_000 / 2)
    np.testing.assert_array_less(np.abs(drawn.mean(0) - sums.mean(0)), 5 * error)
    np.testing.assert_allclose(drawn.std(0), sums.std(0), rtol=0.03)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.03


def test_drowned_weights_are_zero_at_evaluation_only(rng):
    """The threshold is a log alpha of 3; biases stay."""
    head = make_head("diag", dtype=torch.float64).eval()
    x = rng.normal(size=(6, 4))
    log_alpha = rng.choice([2.99, 3.01], size=head.weight.shape)
    with torch.no_grad():
        head.log_variance.copy_(torch.from_numpy(log_alpha) + head.weight.square().log())
    expected = brute_forward(head, x, np.where(log_alpha > 3, 0.0, head.weight.detach().numpy()))
    np.testing.assert_allclose(head(torch.from_numpy(x)).detach(), expected, rtol=1e-12)
    assert head.sparsity() == np.mean(log_alpha > 3)
    head.train()
    noisy = head(torch.from_numpy(np.zeros((1, 4))))  # no feature, no noise, no NaN in the gradient
    noisy.sum().backward()
    np.testing.assert_allclose(noisy.detach(), brute_forward(head, np.zeros((1, 4)), log_alpha))
    assert all(part.grad.isfinite().all() for part in head.parameters())


def test_dense_head_has_no_divergence():
    """Nothing to add to the loss, and zeros are counted as they are."""
    head = make_head("diag", sparse=False)
    assert head.kl() == 0
    assert head.sparsity() == 0
    assert "log_variance" not in head.state_dict()
    with torch.no_grad():
        head.weight[:, :2] = 0
    assert head.sparsity() == 0.25


def test_start_is_tame_with_large_features():
    """Features up to 100: logits stay within reach, noise is small, and no weight is lost."""
    x = 100 * torch.rand(500, 10)
    for density in FEATURES:
        head = MixtureHead(10, 5, 3, density)
        assert (head(x) - head.eval()(x)).abs().mean() < 5
        assert head(x).abs().max() < 1000
        assert head.sparsity() < 0.02


def test_warm_up():
    """0 before, 1 after, a line between."""
    assert [kl_weight(epoch, 8) for epoch in (0, 1, 2, 4, 7)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert [kl_weight(e, 10, start=0.2, full=0.7) for e in (1, 2, 7)] == [0.0, 0.0, 1.0]
    assert kl_weight(4.5, 10, start=0.2, full=0.7) == pytest.approx(0.5)
    assert kl_weight(0, 10, full=0.0) == 1.0


def test_training_drops_weights_and_keeps_accuracy():
    """Ripley's two classes of two Gaussians: the Bayes error is 8.9 %."""
    train, test = make_ripley(125, random_state=0), make_ripley(2000, random_state=1)
    mean, deviation = train.data.mean(0), train.data.std(0)
    x, x_test = (torch.from_numpy((b.data - mean) / deviation).float() for b in (train, test))
    y, errors, heads = torch.from_numpy(train.target), {}, {}
    for sparse in (False, True):
        head = heads[sparse] = MixtureHead(2, 2, 3, "full", sparse)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
        for step in range(500):
            optimizer.zero_grad()
            loss = cross_entropy(head(x), y) + kl_weight(step, 500) * head.kl() / len(x)
            loss.backward()
            optimizer.step()
        errors[sparse] = np.mean(head.eval()(x_test).argmax(1).numpy() != test.target)
    assert heads[True].sparsity() > 0.5
    assert heads[False].sparsity() == 0
    assert errors[True] < errors[False] + 0.015 < 0.125


# -- pruning --------------------------------------------------------------------------------------


@by_density
@pytest.mark.parametrize("standardize", [False, True])
def test_pruned_head_gives_the_same(density, standardize):
    """Dense, smaller, without the features and components that nothing depends on."""
    head = half_dropped(density, standardize=standardize)
    if standardize:
        head.location.normal_()
        head.scale.uniform_(0.5, 2.0)
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    small = head.prune()
    torch.testing.assert_close(small(x), head(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(small.train()(x), head(x), rtol=1e-12, atol=1e-12)
    assert small.n_components == (2, 1, 3)
    assert not small.sparse
    assert small.weight.shape[1] < head.weight.shape[1]
    assert (small.weight != 0).sum() == (1 - head.sparsity()) * head.weight.numel()
    again = small.prune()
    assert again.weight.shape == small.weight.shape
    torch.testing.assert_close(again(x), head(x), rtol=1e-12, atol=1e-12)
    posterior = small.to_mixture().class_log_joint(rows_of(small_units(small, x))).softmax(1)
    torch.testing.assert_close(posterior, head(x).flatten(0, 1).softmax(1), rtol=0, atol=1e-9)


def small_units(head, x):
    """Rows in the units of a head's mixture."""
    rows = x.flatten(0, 1)
    return rows if head.location is None else (rows - head.location) / head.scale


def test_dropped_features_are_not_computed():
    """Not even a missing value shows."""
    head = make_head("full").eval()
    with torch.no_grad():
        head.log_variance[:, (head.monomials == 2).any(0)] = 30.0  # place 0 is the 1
    x = torch.randn(3, 4)
    expected = head(x)
    x[:, 1] = torch.nan
    assert head(x).isnan().all()
    torch.testing.assert_close(head.prune()(x), expected)


@by_density
def test_head_without_weights_predicts_its_biases(density):
    """Everything pruned: one component a class, the sum of its constants."""
    head = make_head(density).eval()
    with torch.no_grad():
        head.log_variance.fill_(30.0)
    small, bias = head.prune(), head.bias.detach().numpy()
    assert head.sparsity() == 1
    assert small.n_components == (1, 1, 1)
    assert small.weight.shape == (3, 0)
    expected = [logsumexp(part) for part in np.split(bias, [2, 3])]
    np.testing.assert_allclose(small(torch.randn(2, 4)).detach(), [expected] * 2, rtol=1e-6)
    prior = small.to_mixture().log_prior.exp().numpy()
    np.testing.assert_allclose(prior, softmax(expected), rtol=1e-6)


# -- conversion -----------------------------------------------------------------------------------


def test_head_of_a_mixture_is_its_class_log_joint(mixture, rng):
    """Against SciPy's normal densities, every structure."""
    x = rng.normal(size=(30, mixture.density.n_features))
    parts = zip(mixture.density.mean, mixture.density.covariances(), strict=True)
    log_density = np.stack([multivariate_normal(*map(np.asarray, p)).logpdf(x) for p in parts], 1)
    joint = log_density + (mixture.log_weight + mixture.log_prior[mixture.owner]).numpy()
    by_class = [logsumexp(part, axis=1) for part in np.split(joint, [2, 3], axis=1)]
    expected = np.stack(by_class, 1)
    for sparse in (False, True):
        head = MixtureHead.from_mixture(mixture, sparse=sparse).eval()
        np.testing.assert_allclose(head(torch.from_numpy(x)).detach(), expected, rtol=1e-9)
        assert head.sparsity() == 0


@pytest.mark.parametrize("density", GAUSSIANS)
def test_head_of_a_classifier_has_its_posteriors(density, iris):
    """In the user's units, however far from zero."""
    X, y = iris
    X = X + np.array([0.0, 1e4, 0.0, -1e5])
    solver = LBFGS(50) if density == "precision" else EM(50, 0.01)
    model = MixtureClassifier(
        2,
        density=GAUSSIANS[density],
        objective="likelihood",
        solver=solver,
        calibrate=False,
        random_state=0,
    ).fit(X, y)
    head = MixtureHead.from_mixture(model)
    posterior = head(torch.from_numpy(X)).detach().softmax(1)
    np.testing.assert_allclose(posterior, model.predict_proba(X), atol=1e-9)
    assert head.density == ("diag" if density in ("spherical", "diag") else "full")
    rows = rows_of(torch.from_numpy(model.scaling_.apply(X)))
    there_and_back = head.to_mixture().class_log_joint(rows)
    np.testing.assert_allclose(there_and_back.softmax(1), model.predict_proba(X), atol=1e-9)


def test_there_and_back_gives_the_same_parameters(mixture):
    """Natural parameters and back, where every form is negative definite already."""
    back = MixtureHead.from_mixture(mixture).to_mixture()
    torch.testing.assert_close(back.density.mean, mixture.density.mean)
    torch.testing.assert_close(back.density.covariances(), mixture.density.covariances())
    torch.testing.assert_close(back.log_weight, mixture.log_weight)
    torch.testing.assert_close(back.log_prior, mixture.log_prior)
    assert back.layout.counts == mixture.layout.counts


@by_density
def test_any_head_is_a_mixture(density, generator):
    """Forms that are not negative definite become so without a change of the posteriors."""
    head = make_head(density, sparse=False, dtype=torch.float64)
    mixture, x = head.to_mixture(), torch.randn(50, 4, dtype=torch.float64)
    log_joint = mixture.class_log_joint(rows_of(x))
    torch.testing.assert_close(log_joint.softmax(1), head(x).softmax(1), rtol=0, atol=1e-9)
    assert (torch.linalg.eigvalsh(mixture.density.covariances()) > 0).all()
    assert float(mixture.log_prior.exp().sum()) == pytest.approx(1)
    sums = mixture.layout.sum(mixture.log_weight.exp())
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert mixture.sample(torch.tensor([0, 1, 2]), generator).isfinite().all()
    trained_on = mixture.from_free(mixture.free())
    torch.testing.assert_close(trained_on.density.covariances(), mixture.density.covariances())


# -- life in a network ----------------------------------------------------------------------------


@pytest.mark.parametrize("pruned", [False, True])
@by_density
def test_state_survives_a_file(density, pruned):
    """A head made of the stored arguments takes the stored state; no pickled code is needed."""
    head = half_dropped(density, standardize=True)
    head.location.normal_()
    head = head.prune() if pruned else head
    file = io.BytesIO()
    torch.save((head.arguments, head.state_dict()), file)
    file.seek(0)
    arguments, state = torch.load(file, weights_only=True)
    other = MixtureHead(**arguments).eval()
    other.load_state_dict(state)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(other(x), head(x), rtol=0, atol=0)
    torch.testing.assert_close(deepcopy(head)(x), head(x), rtol=0, atol=0)
    assert str(other) == str(head)


@pytest.mark.parametrize(("density", "n_components"), [("diag", 2), ("full", COUNTS)])
def test_compiles_in_one_piece(density, n_components):
    """No graph break, in training and evaluation, with gradients."""
    torch.compiler.reset()
    head = make_head(density, n_components=n_components)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 4)
    for module in (head, compiled):
        torch.manual_seed(1)
        module.train()
        head.zero_grad()
        (module(x).sum() + head.kl()).backward()
        module.gradients = [part.grad.clone() for part in head.parameters()]
    for left, right in zip(head.gradients, compiled.gradients, strict=True):
        torch.testing.assert_close(left, right)
    torch.testing.assert_close(compiled.eval()(x), head.eval()(x))
    small = head.prune()
    torch.testing.assert_close(torch.compile(small, backend="aot_eager")(x), head(x))


@pytest.mark.parametrize("sparse", [False, True])
def test_autocast_leaves_the_head_in_single_precision(sparse):
    """Half-precision features come in; squares, variances and sums do not suffer from it."""
    body, head = nn.Linear(6, 4), make_head("full", sparse).eval()
    x = torch.randn(20, 6)
    with torch.autocast("cpu", torch.bfloat16):
        features = body(x)
        out = head(features)
        loss = cross_entropy(out, torch.zeros(20, dtype=torch.long)) + head.kl()
    assert features.dtype == torch.bfloat16
    assert out.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(out, head(features.float()), rtol=0, atol=0)
    loss.backward()
    assert body.weight.grad.isfinite().all()
    assert head.to(torch.bfloat16)(features).dtype == torch.float32
    assert head.double()(features.double()).dtype == torch.float64


def test_data_parallel(tmp_path):
    """Gradients arrive through the wrapper, those of the divergence too."""
    head = make_head("full")
    other, x, y = deepcopy(head), torch.randn(8, 4), torch.randint(3, (8,))

    def learn(model, plain):
        torch.manual_seed(1)
        (cross_entropy(model(x), y) + 0.1 * plain.kl()).backward()

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:  # no wrapper may outlive the group: it would wait for threads that wait for it
        learn(nn.parallel.DistributedDataParallel(other), other)
    finally:
        torch.distributed.destroy_process_group()
    learn(head, head)
    for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_moves_between_devices(device):
    """Tables of indices go along."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    head = half_dropped("full").to(device).eval()
    x = torch.randn(5, 4, dtype=torch.float64, device=device)
    torch.testing.assert_close(head.prune()(x), head(x))
    made_there = make_head("full", device=device)
    assert {part.device.type for part in (*made_there.parameters(), *made_there.buffers())} == {
        device
    }
    assert made_there.to_mixture().log_prior.device.type == device


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ((4, 3, 1, "spherical"), "linear, diag, full"),
        ((0, 3), "in_features must be a whole number, 1 or more"),
        ((4, -1), "n_classes must be"),
        ((4, 3, 0), "n_components must be"),
        ((4, 3, [1, 0, 2]), "n_components must be"),
        ((4, 3, 1.5), "n_components must be"),
        ((4, 3, [1, 2]), "2 entries for 3 classes: give one per class"),
    ],
)
def test_arguments_that_make_no_sense(arguments, remedy):
    """Each message names the remedy."""
    with pytest.raises(InvalidInputError, match=remedy):
        MixtureHead(*arguments)


@pytest.mark.parametrize("x", [torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.long)])
def test_rows_that_make_no_sense(x):
    """Wrong width, or whole numbers."""
    with pytest.raises(InvalidInputError, match="floating-point rows of in_features=4"):
        MixtureHead(4, 3)(x)


def test_a_number_is_no_row():
    with pytest.raises(InvalidInputError, match="in_features=4"):
        MixtureHead(4, 3)(torch.tensor(1.0))


@pytest.mark.parametrize("n_columns", [-1, 9, 1.5])
def test_columns_that_there_are_not(n_columns):
    with pytest.raises(InvalidInputError, match=r"n_columns.*0 to 8"):
        MixtureHead(4, 3, n_columns=n_columns)


@pytest.mark.parametrize(
    "settings",
    [{"n_steps": 0}, {"n_steps": 5, "start": 0.8, "full": 0.3}, {"n_steps": 5, "start": -1.0}],
)
def test_warm_up_that_makes_no_sense(settings):
    with pytest.raises(InvalidInputError, match="warm-up"):
        kl_weight(1, **settings)


def test_warm_up_may_be_a_switch():
    weights = [kl_weight(step, 4, start=0.5, full=0.5) for step in range(4)]
    assert weights == [0.0, 0.0, 1.0, 1.0]


def test_shapes_are_known_without_numbers():
    """On the meta device, as for any layer."""
    assert MixtureHead(4, 3, device="meta")(torch.empty(5, 4, device="meta")).shape == (5, 3)


def test_pruning_takes_nothing_from_the_random_stream():
    head = make_head("full").eval()
    before = torch.random.get_rng_state()
    MixtureHead.from_mixture(head.prune().to_mixture())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_that_are_no_mixtures():
    """An estimator before its fit, and something else."""
    for model in (MixtureClassifier(), nn.Linear(2, 3)):
        with pytest.raises(InvalidInputError, match="has none"):
            MixtureHead.from_mixture(model)


# -- examples -------------------------------------------------------------------------------------


@pytest.fixture
def run_example(capsys):
    """What a user sees."""

    def run(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_example_last_layer(run_example):
    """Most weights go, the accuracy stays."""
    lines = run_example("last_layer.py").splitlines()
    accuracy = {line.split()[0]: float(line.split()[-1]) for line in lines[:3]}
    assert accuracy["MixtureHead"] == accuracy["pruned"] > accuracy["nn.Linear"] - 0.02
    assert accuracy["nn.Linear"] > 0.95
    assert float(lines[3].split()[2].rstrip("%")) > 80


@pytest.mark.skipif(importlib.util.find_spec("skorch") is None, reason="needs skorch")
def test_example_skorch(run_example):
    """The same through skorch's estimator."""
    assert float(run_example("last_layer_skorch.py").split()[1].rstrip(",")) > 0.93
