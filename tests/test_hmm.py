"""Hidden Markov models against hmmlearn, sums over all paths, finite differences and draws."""

from functools import partial
from itertools import pairwise, product
from weakref import ref

import numpy as np
import pytest
import torch
from chains import (
    SEQUENCE_DENSITY_CHECKS,
    check_chances,
    check_sequence_density,
    make_chains,
    make_sequence_engine,
    make_sequences,
)
from scipy.special import logsumexp
from scipy.stats import norm

from mixtura.data.scaling import Scaling
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import DiagonalGaussian, FullGaussian, HiddenMarkov, chains
from mixtura.densities.chains import LEAST, Packing
from mixtura.engines import SequenceEngine
from mixtura.models.mixture import Mixture
from mixtura.objectives import Conditional, Likelihood, Margin
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam, SpreadPrior
from mixtura.testing import check_solver, check_valid, make_mixture

TOPOLOGIES = {"ergodic": False, "left to right": True}
STRUCTURES = ["diag", "full", "low_rank"]


@pytest.fixture(params=TOPOLOGIES)
def left_to_right(request):
    """Both topologies."""
    return TOPOLOGIES[request.param]


@pytest.mark.parametrize("check", SEQUENCE_DENSITY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("covariance", "left_to_right"),
    [("diag", False), ("full", False), ("low_rank", False), ("full", True)],
    ids=["diag", "full", "low rank", "left to right"],
)
def test_property(covariance, left_to_right, check, generator):
    """Every structure and topology has every property."""
    check(make_chains(covariance, generator, left_to_right=left_to_right), generator)


def test_check_sequence_density_runs_every_check(generator):
    """Three states, one channel, one model: no special case."""
    density = make_chains("diag", generator, n_components=1, n_states=3, n_features=1)
    check_sequence_density(density, generator)


@pytest.mark.parametrize("check", SEQUENCE_DENSITY_CHECKS[:2], ids=lambda check: check.__name__)
def test_property_in_pieces(check, left_to_right, generator, monkeypatch):
    """Sums over all paths, where sequences are cut into pieces of one or two frames."""
    monkeypatch.setattr(chains, "_LONG", 1)
    check(make_chains("diag", generator, left_to_right=left_to_right), generator)


# -- hmmlearn ----------------------------------------------------------------------------------

LENGTHS = [7, 30, 1, 12, 2]


def theirs(density, component, **options):
    """The same model in hmmlearn."""
    own = density.select(torch.tensor([component]))
    kind = "diag" if isinstance(density.emission, DiagonalGaussian) else "full"
    model = pytest.importorskip("hmmlearn.hmm").GaussianHMM(
        density.n_states,
        kind,
        covars_prior=0.0,
        covars_weight=1,
        min_covar=0.0,
        init_params="",
        n_iter=1,
        **options,
    )
    model.startprob_ = own.log_start[0].exp().numpy()
    model.transmat_ = own.log_transition[0].exp().numpy()
    model.means_ = own.location[0].numpy()
    covariances = own.covariances()[0].numpy()
    model.covars_ = np.diagonal(covariances, 0, 1, 2) if kind == "diag" else covariances
    return model


def parts(batch):
    """The sequences of a batch as arrays."""
    return [frames.numpy() for frames in batch.unpacked(batch.x).split(LENGTHS)]


@pytest.fixture(params=["diag", "full"])
def stacked(request, generator):
    """Three models in one stack, and sequences of many lengths."""
    density = make_chains(request.param, generator, n_components=3, n_states=4, floor=1e-9)
    return density, make_sequences(density, LENGTHS, generator)


def test_likelihoods_and_states_agree_with_hmmlearn(stacked):
    """Every model of the stack, every sequence."""
    density, batch = stacked
    log_prob = density.log_prob(batch)
    for component in range(3):
        model = theirs(density, component)
        share = torch.zeros(len(LENGTHS), 3, dtype=torch.float64)
        share[:, component] = 1.0
        state = batch.unpacked(density._posterior(batch, share).state[component])
        for place, (frames, found) in enumerate(
            zip(parts(batch), state.split(LENGTHS), strict=True)
        ):
            expected = model.score(frames)
            np.testing.assert_allclose(float(log_prob[place, component]), expected, 1e-8)
            np.testing.assert_allclose(found, model.predict_proba(frames), 1e-8, 1e-8)


def test_paths_agree_with_hmmlearn(stacked):
    """Viterbi's states, and what they score."""
    density, batch = stacked
    for component in range(3):
        paths = density.paths(batch, torch.full((len(LENGTHS),), component))
        emission = density._log_emission(batch)[component]
        best = emission[torch.arange(len(paths)), paths]
        start, moves = density.log_start[component], density.log_transition[component]
        first = batch.packing.n_first
        best[:first] += start[paths[:first]]
        best[first:] += moves[paths[batch.packing.previous()], paths[first:]]
        scores = batch.packing.total(best[None])[:, 0]
        model = theirs(density, component)
        decoded = zip(parts(batch), batch.unpacked(paths).split(LENGTHS), scores, strict=True)
        for frames, path, score in decoded:
            expected, states = model.decode(frames)
            assert path.tolist() == states.tolist()
            np.testing.assert_allclose(float(score), expected, 1e-8)


def test_weighted_baum_welch_agrees_with_hmmlearn(stacked):
    """A weight of three is three sequences."""
    density, batch = stacked
    counts = np.array([[1, 2, 3], [2, 1, 1], [3, 1, 4], [1, 5, 1], [1, 1, 2]])
    updated, valid = density.maximize(density.statistics(batch, torch.from_numpy(counts).double()))
    assert valid.all()
    for component in range(3):
        repeated = [
            frames
            for frames, count in zip(parts(batch), counts[:, component], strict=True)
            for _ in range(count)
        ]
        model = theirs(density, component).fit(np.concatenate(repeated), list(map(len, repeated)))
        own = updated.select(torch.tensor([component]))
        np.testing.assert_allclose(own.log_start[0].exp(), model.startprob_, 1e-8, 1e-12)
        np.testing.assert_allclose(own.log_transition[0].exp(), model.transmat_, 1e-8, 1e-12)
        np.testing.assert_allclose(own.location[0], model.means_, 1e-8, 1e-8)
        np.testing.assert_allclose(own.covariances()[0], model.covars_, 1e-8, 1e-8)


def test_ten_thousand_frames(generator):
    """No underflow on the way: hmmlearn's computation in logs says the same."""
    density = make_chains("diag", generator, n_components=1, n_states=3)
    batch = make_sequences(density, [10_000], generator)
    expected = theirs(density, 0, implementation="log").score(batch.x.numpy())
    found = density.log_prob(batch)
    assert found.isfinite().all()
    np.testing.assert_allclose(float(found), expected, 1e-10)
    statistics = density.statistics(batch, torch.ones(1, 1, dtype=torch.float64))
    np.testing.assert_allclose(float(statistics["emission.mass"].sum()), 10_000.0, 1e-9)
    np.testing.assert_allclose(float(statistics["transition"].sum()), 9_999.0, 1e-9)


# -- scaled probabilities are exact ------------------------------------------------------------


def in_logs(log_emission, log_start, log_transition):
    """Forward and backward variables of one chain, nothing scaled: log-likelihood, states."""
    forward = [log_start + log_emission[0]]
    for seen in log_emission[1:]:
        forward.append(logsumexp(forward[-1][:, None] + log_transition, axis=0) + seen)
    backward = [np.zeros(len(log_start))]
    for seen in log_emission[:0:-1]:
        backward.append(logsumexp(log_transition + seen + backward[-1], axis=1))
    total = logsumexp(forward[-1])
    return total, np.exp(np.array(forward) + np.array(backward[::-1]) - total)


@pytest.mark.parametrize("spread", [300.0, 3_000.0, 1e5])
@pytest.mark.parametrize("forbidden", [False, True], ids=["free", "left to right"])
@pytest.mark.parametrize("n_frames", [60, 200], ids=["whole", "cut"])
def test_states_thousands_of_nats_apart(spread, forbidden, n_frames, rng):
    """Paths that underflow are replaced by better ones, or nothing underflows."""
    n_states = 3
    log_emission = spread * rng.normal(size=(1, n_frames, n_states))
    start = np.array([1.0, LEAST, LEAST])
    moves = np.maximum(rng.dirichlet(np.ones(n_states), size=n_states), LEAST)
    if forbidden:
        start[1:] = 0.0
        moves = np.triu(moves) / np.triu(moves).sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_start, log_moves = np.log(start), np.log(moves)
    expected, states = in_logs(log_emission[0], log_start, log_moves)
    packing = Packing.of(torch.tensor([n_frames]))
    forward = chains.forward(
        torch.from_numpy(log_emission),
        torch.from_numpy(log_start)[None],
        torch.from_numpy(log_moves)[None],
        packing,
    )
    assert isinstance(forward, chains.LogForward if forbidden else chains.ScaledForward)
    np.testing.assert_allclose(float(forward.log_prob), expected, 1e-12)
    posterior = forward.posterior(torch.ones(1, 1, dtype=torch.float64))
    np.testing.assert_allclose(posterior.state[0], states, 1e-7, 1e-7)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("lengths", [[4, 1, 7, 2], [65, 1, 170, 13, 14, 26, 170]], ids=str)
def test_logs_and_scaled_probabilities_agree(lengths, library, left_to_right, rng, monkeypatch):
    """Both may be used where frames do not contradict what is forbidden."""
    if library == "torch":  # as on other devices
        monkeypatch.setattr(chains, "_library", lambda tensor: torch)
        monkeypatch.setattr(chains, "_array", lambda tensor: tensor)
    packing = Packing.of(torch.tensor(lengths))
    log_emission = torch.from_numpy(rng.normal(size=(2, sum(lengths), 3)))
    start, moves = (torch.from_numpy(rng.normal(size=shape)) for shape in ((2, 3), (2, 3, 3)))
    if left_to_right:
        start[:, 1:], moves[:, *np.tril_indices(3, -1)] = -torch.inf, -torch.inf
    chain = log_emission, start.log_softmax(-1), moves.log_softmax(-1), packing
    weight = torch.from_numpy(rng.normal(size=(len(lengths), 2)))
    scaled, logs = chains.forward(*chain), chains.LogForward.run(*chain)
    assert isinstance(scaled, chains.ScaledForward)
    assert (scaled.joints is not None) == (max(lengths) > 100)
    np.testing.assert_allclose(scaled.log_prob, logs.log_prob, 1e-12)
    filtered = (forward.log_filtered().softmax(2) for forward in (scaled, logs))
    np.testing.assert_allclose(*filtered, 1e-10, 1e-100)
    one, other = (forward.posterior(weight) for forward in (scaled, logs))
    for name in ("state", "start", "transition"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), 1e-9, 1e-12)


def test_a_sequence_that_the_topology_forbids(generator):
    """Backwards through a left-to-right model: it has to stay, whatever that costs."""
    density = HiddenMarkov.from_states(
        DiagonalGaussian(
            mean=torch.tensor([[0.0], [100.0]]).double(),
            variance=torch.ones(2, 1).double(),
            floor=1.0,
        ),
        torch.ones(2).double(),
        torch.ones(2, 2).double(),
        left_to_right=True,
    )
    x = torch.tensor([[100.0], [0.0]]).double()
    y, weight = torch.tensor([0]), torch.ones(1).double()
    batch = SequenceBatch.of(x, None, torch.tensor([2]), y, weight)
    expected = -0.5 * 100.0**2 + np.log(0.5) - np.log(2.0 * np.pi)
    np.testing.assert_allclose(float(density.log_prob(batch)), expected, 1e-9)
    assert density.paths(batch, torch.tensor([0])).tolist() == [0, 0]


# -- training ----------------------------------------------------------------------------------


def problem(covariance, generator, left_to_right=False, holes=False):
    """A start of two classes, and sequences that it does not fit yet."""
    make = partial(make_chains, covariance, generator, n_components=3, left_to_right=left_to_right)
    truth, start = (make_mixture(make(), [2, 1], generator) for _ in range(2))
    lengths = torch.randint(1, 9, (25,), generator=generator).tolist()
    return start, make_sequence_engine(truth, lengths, generator, holes=holes)


@pytest.mark.parametrize("prior_rows", [0.0, 7.0], ids="{:g} imagined frames".format)
@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize("covariance", ["spherical", *STRUCTURES])
def test_em_never_goes_down(covariance, left_to_right, holes, prior_rows, generator):
    """Every iteration improves the likelihood, or the likelihood plus the log prior."""
    start, engine = problem(covariance, generator, left_to_right, holes)
    prior = SpreadPrior(prior_rows, 0.5 * start.density.typical_spread) if prior_rows else None
    progress = Progress()
    result = EM(8, -1.0).run(start, Likelihood(), engine, progress, prior=prior)
    losses = np.array([record["objective"] for record in progress.history])
    assert len(losses) == 8
    assert (np.diff(losses) <= 1e-9 * np.abs(losses[1:])).all()
    assert losses[-1] < losses[0] - 0.01
    check_valid(result.model)
    check_chances(result.model.density)


@pytest.mark.parametrize(
    "solver", [EBW(6), LBFGS(6), Adam(3, batch_size=8, schedule="constant")], ids=str
)
def test_solvers_improve(solver, left_to_right, generator):
    """A valid model no worse than the start, the same every time, with the topology's zeros."""
    start, engine = problem("full", generator, left_to_right, holes=True)
    result = check_solver(solver, Margin(3.0), start, engine)
    check_chances(result.model.density)


@pytest.mark.parametrize("solver", [EBW, LBFGS])
def test_discriminative_training_gains(solver, generator):
    """A fifth of the loss and more is gone in a few iterations."""
    start, engine = problem("diag", generator)
    before = solver(1, tol=0.0).run(start, Conditional(), engine, Progress())
    after = solver(15).run(start, Conditional(), engine, Progress())
    assert after.objective < 0.8 * before.objective


def test_a_state_without_frames_stays(generator):
    """It keeps its parameters, and so do the moves from it."""
    density = make_chains("full", generator, n_components=1, n_states=3)
    location = density.location.clone()
    location[0, 1] = 1e4
    lost = density.with_tensors({**density.tensors(), "emission.mean": location})
    batch = make_sequences(density, [6, 4], generator)
    statistics = lost.statistics(batch, torch.ones(2, 1).double())
    updated, valid = lost.maximize(statistics)
    assert valid.all()
    np.testing.assert_allclose(updated.location[0, 1], location[0, 1])
    np.testing.assert_allclose(updated.log_transition[0, 1], density.log_transition[0, 1])
    assert updated.log_prob(batch).isfinite().all()


def test_impossible_statistics_are_reported(generator):
    """Negative starts, moves or masses are flagged, model by model."""
    density = make_chains("diag", generator, n_components=4)
    statistics = {name: value.clone() for name, value in density.own_statistics().items()}
    statistics["start"][0, 0] = -1.0
    statistics["transition"][1, 0, 1] = -1.0
    statistics["emission.mass"][2, 0] = -1.0
    _, valid = density.maximize(statistics)
    assert valid.tolist() == [False, False, False, True]


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_parameters_are_counted(covariance, left_to_right, generator):
    """As many as there are directions in which the density can change (Jacobian's rank)."""
    density = make_chains(
        covariance, generator, n_components=1, n_states=3, left_to_right=left_to_right
    )
    names, values = zip(*density.free().items(), strict=True)

    def described(*free):
        made = density.from_free(dict(zip(names, free, strict=True)))
        outcome = made.log_start, made.log_transition, made.location, made.covariances()
        return torch.cat([part.flatten() for part in outcome])

    jacobian = torch.autograd.functional.jacobian(described, values)
    wide = torch.cat([part.flatten(1) for part in jacobian], 1)
    assert torch.linalg.matrix_rank(wide) == density.n_parameters


# -- draws -------------------------------------------------------------------------------------


def test_states_are_visited_as_often_as_they_should(generator):
    """States far apart show themselves in the frames: starts and moves within five sigma."""
    start, moves = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([[6, 3, 1], [2, 2, 6], [1, 8, 1]])
    emission = FullGaussian(
        mean=torch.tensor([[0.0], [100.0], [200.0]]).double(),
        factor=torch.ones(3, 1, 1).double(),
        floor=1e-3,
    )
    density = HiddenMarkov.from_states(emission, start.double(), moves.double())
    n = 5_000
    lengths = torch.randint(1, 6, (n,), generator=generator)
    packed = density.sample(torch.zeros(n, dtype=torch.long), generator, lengths=lengths)
    states = (packed[:, 0] / 100.0).round().long().numpy()
    packing = Packing.of(lengths)
    assert len(states) == int(lengths.sum())
    first = np.bincount(states[:n], minlength=3)
    assert (np.abs(first - n * start.numpy()) < 5.0 * np.sqrt(n * start.numpy())).all()
    came, went = states[packing.previous().numpy()], states[n:]
    for state in range(3):
        found = np.bincount(went[came == state], minlength=3)
        expected = found.sum() * moves[state].numpy() / 10.0
        assert (np.abs(found - expected) < 5.0 * np.sqrt(expected)).all()


# -- tables ------------------------------------------------------------------------------------


def test_chunks_add_up(generator):
    """Sums over chunks of any size are those over all sequences, and order is kept."""
    start, engine = problem("diag", generator, holes=True)
    whole = start.density.log_prob(engine.all_rows())
    for size in (1, 7, 40):
        batches = list(engine.chunks(size))
        np.testing.assert_allclose(
            torch.cat([start.density.log_prob(batch) for batch in batches]), whole, 1e-12
        )
        assert len(batches) > 1
        assert torch.equal(torch.cat([batch.y for batch in batches]), engine.y)
    index = np.array([3, 0, 17])
    part = engine.take(index).concat(start.density.log_prob, start.density)
    np.testing.assert_allclose(part, whole[index], 1e-12)


@pytest.mark.parametrize("left_to_right", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_one_forward_pass_is_alive_at_a_time(left_to_right, generator, monkeypatch):
    """Whatever the number of chunks, and none once all have been looked through."""
    density = make_chains("diag", generator, left_to_right=left_to_right)
    batch = make_sequences(density, [5] * 30, generator)
    engine = SequenceEngine(
        batch.unpacked(batch.x).numpy(),
        np.full(30, 5),
        scaling=Scaling.identity(2),
        device=torch.device("cpu"),
    )
    passes, alive = [], []

    def watched(*chain):
        alive.append(sum(each() is not None for each in passes))
        found = chains.forward(*chain)
        passes.append(ref(found))
        return found

    monkeypatch.setattr("mixtura.densities.hmm.forward", watched)
    monkeypatch.setattr(engine, "chunk_rows", lambda density: 20)
    engine.concat(density.log_prob, density)
    engine.sum(lambda part: density.statistics(part, density.log_prob(part).softmax(1)), density)
    assert len(passes) == 16
    assert not any(alive)
    assert not any(each() for each in passes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_compute_in_double_precision(dtype, generator):
    """Numbers in single precision lose nothing more on the way."""
    density = make_chains("full", generator)
    batch = make_sequences(density, LENGTHS, generator)
    frames = batch.unpacked(batch.x).numpy().astype(dtype)
    frames[4, 1] = np.nan
    found, expected = (
        density.log_prob(
            SequenceEngine(
                part, np.array(LENGTHS), scaling=Scaling.identity(2), device=torch.device("cpu")
            ).batch(slice(None))
        )
        for part in (frames, frames.astype(np.float64))
    )
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, 1e-12)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
def test_punched_sequences(holes, generator):
    """Beside every sequence a copy that lacks frames or channels, and nothing else changes."""
    density = make_chains("diag", generator, n_features=3)
    batch = make_sequences(density, [40] * 60, generator, holes=holes)
    both = batch.with_punched(0.3, generator)
    assert len(both) == 120
    np.testing.assert_allclose(both.weight, 0.5)
    seen = both.unpacked(both.frames.observed)
    x = both.unpacked(both.x)
    np.testing.assert_allclose(x[:2400], batch.unpacked(batch.x))
    np.testing.assert_allclose(x[2400:][seen[2400:]], x[:2400][seen[2400:]])
    assert not (seen[2400:] & ~seen[:2400]).any()
    assert (x[~seen] == 0.0).all()
    if not holes:
        copies = seen[2400:].view(60, 40, 3)
        by_frame, by_channel = copies[::2], copies[1::2]
        assert (by_frame.all(2) == by_frame.any(2)).all()
        assert (by_channel.all(1) == by_channel.any(1)).all()
        lost = 1.0 - copies.double().mean((1, 2))
        assert 0.2 < lost.mean() < 0.4
        np.testing.assert_allclose(both.missing_share()[60:], lost, 1e-9, 1e-9)


def test_mixtures_of_chains(generator):
    """Posteriors, imputation and draws go through `Mixture` as for vectors."""
    mixture = make_mixture(make_chains("diag", generator, n_components=3), [2, 1], generator)
    batch = make_sequences(mixture.density, [5, 3], generator, holes=True)
    np.testing.assert_allclose(mixture.posterior(batch).sum(1), 1.0, 1e-12)
    seen = batch.frames.observed
    for filled in (mixture.impute(batch), mixture.draw(batch, generator)):
        assert filled.isfinite().all()
        np.testing.assert_allclose(filled[seen], batch.x[seen], 1e-12)
    single = Mixture.single(mixture.density)
    assert single.n_components == 3


def test_bounded_frames_have_a_share_of_their_largest_density_in_any_state():
    """By the sum over all paths, with emissions that scipy gives and a glitch in the middle."""
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(4, 2))
    frames[2] = 30.0
    means = np.array([[[0.0, 0.0], [1.0, 1.0]], [[3.0, -1.0], [5.0, 5.0]]])
    start, moves = np.array([0.3, 0.7]), np.array([[0.8, 0.2], [0.4, 0.6]])
    tensors = [torch.from_numpy(value).log().expand(2, *value.shape) for value in (start, moves)]
    flat, unit = torch.from_numpy(means.reshape(4, 2)), torch.ones(4, 2).double()
    emission = DiagonalGaussian(mean=flat, variance=unit, floor=1e-9)
    model = HiddenMarkov(emission=emission, log_start=tensors[0], log_transition=tensors[1])
    one = torch.ones(1)
    x = torch.from_numpy(frames)
    batch = SequenceBatch.of(x, None, torch.tensor([4]), one.long(), one.double())
    log_emission = norm.logpdf(frames[:, None, None], means).sum(-1)
    for each, bounded in ((batch, False), (batch.for_prediction(), True)):
        shown = log_emission
        if bounded:
            shown = np.maximum(shown, shown.max((1, 2), keepdims=True) - 20.0)
        paths = [
            [
                np.log(start[path[0]])
                + sum(np.log(moves[i, j]) for i, j in pairwise(path))
                + sum(shown[t, k, state] for t, state in enumerate(path))
                for path in product(range(2), repeat=4)
            ]
            for k in range(2)
        ]
        np.testing.assert_allclose(model.log_prob(each)[0], logsumexp(paths, 1), rtol=1e-12)
