"""Checks of densities over sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import torch
from scipy.linalg import block_diag
from scipy.special import logsumexp, softmax
from torch import Tensor

from mixtura.data.packing import Packing
from mixtura.data.scaling import Scaling
from mixtura.data.sequences import SequenceBatch
from mixtura.densities import Density, HiddenMarkov, VectorDensity
from mixtura.engines import Engine, SequenceEngine
from mixtura.models.mixture import Mixture
from mixtura.testing.densities import check_moments, same_where_observed
from mixtura.testing.parts import CPU, DRAWS, EXACT, make_density, rand, randn
from mixtura.testing.references import dense_conditional, dense_log_prob


def make_chains(
    covariance: str,
    generator: torch.Generator,
    *,
    n_components: int = 2,
    n_states: int = 2,
    n_features: int = 2,
    left_to_right: bool = False,
    floor: float = 1e-3,
) -> HiddenMarkov:
    """Hidden Markov models with random starts and moves, and emissions of a known structure."""
    emission = make_density(
        covariance,
        "covariance",
        generator,
        n_components=n_components * n_states,
        n_features=n_features,
        rank=1,
        floor=floor,
    )
    parts: list[Density] = [
        HiddenMarkov.from_states(
            emission.select(torch.arange(n_states) + n_states * component),
            0.1 + rand(generator, n_states),
            0.1 + rand(generator, n_states, n_states),
            left_to_right=left_to_right,
        )
        for component in range(n_components)
    ]
    stacked = Density.stack(parts)
    assert isinstance(stacked, HiddenMarkov)
    return stacked


def make_sequences(
    density: HiddenMarkov, lengths: list[int], generator: torch.Generator, *, holes: bool = False
) -> SequenceBatch:
    """Sequences drawn from all components in turn.

    With holes, the first sequence is complete, the last wholly missing, and the longest has a frame
    of which nothing is known.
    """
    count = torch.tensor(lengths)
    n, place = len(lengths), Packing.of(count).place
    x = density.sample(torch.arange(n) % density.n_components, generator, lengths=count)[place]
    y, weight = torch.full((n,), -1), torch.ones(n, dtype=x.dtype)
    if not holes:
        return SequenceBatch.of(x, None, count, y, weight)
    ends = count.cumsum(0)
    observed = rand(generator, *x.shape) < 0.6
    observed[: count[0]], observed[ends[-2] :] = True, False
    observed[ends[count.argmax()] - 2] = False
    return SequenceBatch.of(torch.where(observed, x, 0.0), observed, count, y, weight)


def make_sequence_engine(
    mixture: Mixture, lengths: list[int], generator: torch.Generator, *, holes: bool = False
) -> Engine:
    """Labeled, weighted sequences drawn from a mixture."""
    count = torch.tensor(lengths)
    prior = mixture.log_prior.exp()
    labels = torch.multinomial(prior, len(count), replacement=True, generator=generator)
    packed = mixture.sample(labels, generator, lengths=count)
    frames = packed[Packing.of(count).place].numpy()
    if holes:
        frames[rand(generator, *frames.shape).numpy() < 0.2] = np.nan
    weight = 0.5 + rand(generator, len(count)).numpy()
    scaling = Scaling.identity(frames.shape[1])
    answers = labels.numpy(), weight
    return SequenceEngine(frames, count.numpy(), *answers, scaling=scaling, device=CPU)


_LENGTHS = [4, 2, 1, 5, 3]


def check_sequence_density(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Everything it promises; `SEQUENCE_DENSITY_CHECKS` has the checks one by one.

    All paths are listed: keep the states few.
    """
    for check in SEQUENCE_DENSITY_CHECKS:
        check(density, generator)


def check_chain_log_prob(density: HiddenMarkov, generator: torch.Generator) -> None:
    """A likelihood is a sum over all paths; what is missing is integrated out."""
    for holes in (False, True):
        batch = make_sequences(density, _LENGTHS, generator, holes=holes)
        expected = np.zeros((len(batch), density.n_components))
        for sequence, component, _, _, log_joint in _all_paths(density, batch):
            expected[sequence, component] = logsumexp(log_joint)
        np.testing.assert_allclose(density.log_prob(batch), expected, EXACT, EXACT)
        with torch.no_grad():
            np.testing.assert_allclose(density.log_prob(batch), expected, EXACT, EXACT)
    assert (density.log_prob(batch)[-1].abs() < EXACT).all(), "nothing observed, but a likelihood"


def check_chain_statistics(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Starts, moves and what states emit are expectations over all paths, of any sign."""
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    shape = density.log_start.shape
    share = randn(generator, len(batch), shape[0])
    start, moves = np.zeros(shape), np.zeros((*shape, shape[1]))
    for sequence, k, _, paths, log_joint in _all_paths(density, batch):
        visited = np.eye(shape[1])[paths]
        chance = float(share[sequence, k]) * softmax(log_joint)
        start[k] += chance @ visited[:, 0]
        moves[k] += np.einsum("p,pts,ptr->sr", chance, visited[:, :-1], visited[:, 1:])
    state = torch.from_numpy(_dense_states(density, batch)) * share[batch.packing.owner, :, None]
    inner = density.emission.statistics(batch.frames, state.flatten(1))
    expected = {
        "mass": share.sum(0),
        "start": start,
        "transition": moves,
        **{f"emission.{name}": value.unflatten(0, shape) for name, value in inner.items()},
    }
    found = density.statistics(batch, share)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, EXACT, EXACT, err_msg=name)


def check_chain_signs(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Statistics are linear in the occupancies."""
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    one, other = (randn(generator, len(batch), density.n_components) for _ in range(2))
    parts = density.statistics(batch, one), density.statistics(batch, other)
    for name, value in density.statistics(batch, one - 2.0 * other).items():
        expected = parts[0][name] - 2.0 * parts[1][name]
        np.testing.assert_allclose(value, expected, EXACT, EXACT)


def check_chain_paths(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Decoded paths are the likeliest of all."""
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    for sequence, component, places, paths, log_joint in _all_paths(density, batch):
        found = density.paths(batch, torch.full((len(batch),), component)).numpy()
        assert found[places].tolist() == paths[log_joint.argmax()].tolist(), sequence


def check_chain_gradient(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Gradients by the free parameters are those of finite differences, with and without holes."""
    free = {k: v.detach().clone().requires_grad_() for k, v in density.free().items()}
    for holes in (False, True):
        batch = make_sequences(density, [2, 3, 1], generator, holes=holes)

        def log_prob(*values: Tensor, batch: SequenceBatch = batch) -> Tensor:
            return density.from_free(dict(zip(free, values, strict=True))).log_prob(batch)

        assert torch.autograd.gradcheck(log_prob, tuple(free.values()))


def check_chain_free(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Free parameters describe the density, and any values of them a valid one."""
    free = density.free()
    again = density.from_free(free)
    for name, value in density.tensors().items():
        np.testing.assert_allclose(again.tensors()[name], value, EXACT, EXACT)
    other = density.from_free({k: v + 10.0 * randn(generator, *v.shape) for k, v in free.items()})
    check_chances(other)
    assert other.log_prob(make_sequences(density, [3, 1], generator)).isfinite().all()


def check_chances(density: HiddenMarkov) -> None:
    """Starts and moves are probabilities, and what the topology forbids is zero."""
    start, moves = density.log_start.exp(), density.log_transition.exp()
    np.testing.assert_allclose(start.sum(1), 1.0, EXACT)
    np.testing.assert_allclose(moves.sum(2), 1.0, EXACT)
    if density.left_to_right:
        assert not start[:, 1:].any()
        back = torch.ones_like(moves[0]).tril(-1).bool()
        assert not moves[:, back].any()


def check_chain_own_statistics(density: HiddenMarkov, generator: torch.Generator) -> None:
    """The likeliest density for a model's own statistics is the model."""
    again, valid = density.maximize(density.own_statistics())
    assert valid.all()
    for name in ("location", "log_start", "log_transition"):
        np.testing.assert_allclose(getattr(again, name), getattr(density, name), EXACT, EXACT)
    np.testing.assert_allclose(again.covariances(), density.covariances(), EXACT, EXACT)


def check_chain_batch(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Neither the other sequences, nor their order, nor unknown frames at the end matter."""
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    expected = density.log_prob(batch).numpy()
    assert batch.frames.observed is not None
    x, seen = (batch.unpacked(part) for part in (batch.x, batch.frames.observed))
    parts = list(zip(x.split(_LENGTHS), seen.split(_LENGTHS), strict=True))

    def again(order: list[int], padding: int = 0) -> np.ndarray:
        frames, observed = (
            torch.cat(
                [torch.nn.functional.pad(parts[at][kind], (0, 0, 0, padding)) for at in order]
            )
            for kind in (0, 1)
        )
        lengths = batch.packing.lengths[order] + padding
        chosen = SequenceBatch.of(frames, observed, lengths, batch.y[order], batch.weight[order])
        return density.log_prob(chosen).numpy()

    places = list(range(len(batch)))
    np.testing.assert_allclose(again(places[::-1]), expected[::-1], EXACT, EXACT)
    np.testing.assert_allclose(again(places, padding=3), expected, EXACT, EXACT)
    for place in places:
        np.testing.assert_allclose(again([place])[0], expected[place], EXACT, EXACT)


def check_chain_stacking(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Models taken apart and put together again are the same."""
    parts = [density.select(torch.tensor([k])) for k in range(density.n_components)]
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    together = Density.stack(list(parts)).log_prob(batch)
    np.testing.assert_allclose(together, density.log_prob(batch), EXACT, EXACT)
    np.testing.assert_allclose(parts[-1].log_prob(batch)[:, 0], together[:, -1], EXACT, EXACT)


def check_chain_sample(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Draws have the mean and the covariance of whole sequences."""
    lengths = torch.full((DRAWS,), 3)
    unknown = SequenceBatch.of(
        torch.zeros(3, density.n_features, dtype=torch.float64),
        torch.zeros(3, density.n_features, dtype=torch.bool),
        lengths[:1],
        torch.tensor([-1]),
        torch.ones(1, dtype=torch.float64),
    )
    for component in range(density.n_components):
        packed = density.sample(torch.full((DRAWS,), component), generator, lengths=lengths)
        rows = packed[Packing.of(lengths).place].reshape(DRAWS, -1).numpy()
        check_moments(rows, *_path_moments(density, unknown, component))


def check_chain_fill(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Imputed values are the conditional means over all paths."""
    batch = make_sequences(density, _LENGTHS, generator, holes=True)
    share = randn(generator, len(batch), density.n_components).softmax(1)
    state = _dense_states(density, batch) * share.numpy()[batch.packing.owner, :, None]
    mean = dense_conditional(_emission(density), batch.frames)[0]
    expected = np.einsum("fk,fkd->fd", state.reshape(len(state), -1), mean)
    np.testing.assert_allclose(density.fill(batch, share), expected, EXACT, EXACT)


def check_chain_complete(density: HiddenMarkov, generator: torch.Generator) -> None:
    """Completions keep what was observed, and follow the conditional distribution of the rest."""
    x = make_sequences(density, [3], generator).x
    observed = torch.ones_like(x, dtype=torch.bool)
    observed[0, 0], observed[1] = False, False

    def copies(count: int) -> SequenceBatch:
        return SequenceBatch.of(
            torch.where(observed, x, 0.0).repeat(count, 1),
            observed.repeat(count, 1),
            torch.full((count,), 3),
            torch.full((count,), -1),
            torch.ones(count, dtype=torch.float64),
        )

    many, component = copies(DRAWS), density.n_components - 1
    frames = density.complete(many, torch.full((DRAWS,), component), generator)
    same_where_observed(frames, many.frames)
    rows = many.unpacked(frames).reshape(DRAWS, -1).numpy()
    mean, covariance = _path_moments(density, copies(1), component)
    hidden = ~observed.flatten().numpy()
    check_moments(rows[:, hidden], mean[hidden], covariance[np.ix_(hidden, hidden)])


SEQUENCE_DENSITY_CHECKS: tuple[Callable[[HiddenMarkov, torch.Generator], None], ...] = (
    check_chain_log_prob,
    check_chain_statistics,
    check_chain_signs,
    check_chain_paths,
    check_chain_gradient,
    check_chain_free,
    check_chain_own_statistics,
    check_chain_batch,
    check_chain_stacking,
    check_chain_sample,
    check_chain_fill,
    check_chain_complete,
)


def _emission(density: HiddenMarkov) -> VectorDensity:
    assert isinstance(density.emission, VectorDensity)
    return density.emission


def _all_paths(
    density: HiddenMarkov, batch: SequenceBatch
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
    """(sequence, component, packed places of its frames, all paths (P, T), log joints (P,))."""
    n_states = density.n_states
    emission = dense_log_prob(_emission(density), batch.frames).reshape(len(batch.x), -1, n_states)
    for sequence in range(len(batch)):
        places = (batch.packing.owner == sequence).nonzero().flatten().numpy()
        moments = np.arange(len(places))
        paths = np.array(list(product(range(n_states), repeat=len(places))))
        for component in range(density.n_components):
            start, moves = (
                part[component].numpy() for part in (density.log_start, density.log_transition)
            )
            moved = moves[paths[:, :-1], paths[:, 1:]].sum(1)
            emitted = emission[places, component][moments, paths].sum(1)
            yield sequence, component, places, paths, start[paths[:, 0]] + moved + emitted


def _dense_states(density: HiddenMarkov, batch: SequenceBatch) -> np.ndarray:
    """Posteriors of the states at packed frames, (F, K, S)."""
    result = np.zeros((len(batch.x), *density.log_start.shape))
    for _, component, places, paths, log_joint in _all_paths(density, batch):
        visited = np.eye(density.n_states)[paths]
        result[places, component] = np.einsum("p,pts->ts", softmax(log_joint), visited)
    return result


def _path_moments(
    density: HiddenMarkov, batch: SequenceBatch, component: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (T D,) and covariance of the only sequence given what is observed of it."""
    means, covariances = dense_conditional(_emission(density), batch.frames)
    mean, second = 0.0, 0.0
    for _, k, places, paths, log_joint in _all_paths(density, batch):
        if k == component:
            for path, chance in zip(paths, softmax(log_joint), strict=True):
                drawn = places, component * density.n_states + path
                center = means[drawn].ravel()
                mean = mean + chance * center
                inside = block_diag(*covariances[drawn])
                second = second + chance * (np.outer(center, center) + inside)
    return np.asarray(mean), second - np.outer(mean, mean)
