"""What to measure next: how much each missing entry is expected to tell about the class.

That is the expected loss of entropy of the class, given what is observed:

    H(sum over v of p(v) q(. | v)) - sum over v of p(v) H(q(. | v)),
    p(v) = sum over c of q(c) p(v | c),

with q(c) the probabilities of the classes, q(c | v) those with the value v in place, and p(v | c)
the density of the entry. It is the mutual information of class and entry where q(c | v) goes by the
rule of Bayes; here it is calibrated, as every probability is: densities that were trained to keep
classes apart promise more than measurements hold. (Where models are averaged, q(c | v) is that of
the first, which has the density.) v goes through the categories of a column, or through nodes of a
quadrature and the atoms of a column. Mixtures of Gaussians, t's and categories have the
distributions of all entries at once (`entries`); any other model is asked about rows that have each
value in place, at nodes that are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from scipy.special import logsumexp, softmax

from mixtura.answers.entries import NODES, entries, has_entries
from mixtura.answers.intervals import network_means
from mixtura.data.given import Device, Numbers
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.fitted import Fitted
from mixtura.models.mixture import Mixture
from mixtura.models.regression import Regression
from mixtura.progress import Progress

#: Draws of a missing number, so many of which are averaged to a node (that spaces nodes evenly),
#: and nodes beyond the outermost ones, as shares of the range.
_DRAWS, _PER_NODE = 256, 4
_BEYOND = np.array([0.1, 0.25, 0.5])
#: Numbers that a chunk of rows may hold.
_NUMBERS = 4_000_000

Cost = Numbers | Mapping[int | str, float] | None
#: A column, the rows that lack it, and log-joints (n, Q, C) of classes and the values it may have
#: there, plus the logs of the widths that values stand for.
Asked = tuple[int, np.ndarray, np.ndarray]
#: A column, the rows that lack it, and what the entries (n,) are worth.
Worth = tuple[int, np.ndarray, np.ndarray]


def unit_costs(schema: Schema, n_columns: int, cost: Cost) -> np.ndarray:
    """(D,) what each column costs; one for those that a mapping does not name."""
    found = np.ones(n_columns)
    try:
        if isinstance(cost, Mapping):
            found[[schema.position(column, n_columns) for column in cost]] = list(cost.values())
        elif cost is not None:
            found[:] = cost
    except InvalidInputError:
        raise
    except (TypeError, ValueError):  # no numbers, or too many
        found[:] = np.nan
    if not (np.isfinite(found) & (found > 0.0)).all():
        raise InvalidInputError(
            f"cost must hold {n_columns} finite numbers above zero, one per column, or be a dict "
            "of them by column: information is divided by it. What is free should be measured "
            "without asking."
        )
    return found


def next_feature(
    model: Fitted,
    rows: Matrix,
    generator: torch.Generator,
    device: Device,
    progress: Progress | None = None,
) -> np.ndarray:
    """(n, D) nats that each missing entry is expected to tell about the class; zero if observed.

    NaN, with a warning, where time did not suffice.
    """
    width = rows.values.shape[1]
    ask, cost = partial(_by_answers, model, generator=generator), _DRAWS * width
    if isinstance(model.model, Mixture) and has_entries(model.model.density):
        ask, count = partial(_by_components, model, model.model), model.model.n_components
        cost = count * (2 * width + len(NODES) * count)

    def worth(some: Matrix) -> Iterator[Worth]:
        log_proba = model.log_proba(model.engine(some, device))
        lacking = np.isnan(some.values).sum(1)
        for column, asked, joint in ask(some, device=device):
            share = torch.from_numpy((lacking[asked] - 1) / width).repeat_interleave(joint.shape[1])
            after = model.calibrated(torch.from_numpy(joint).flatten(0, 1), share).numpy()
            yield column, asked, _lost(joint, after.reshape(joint.shape), log_proba[asked])

    return _in_time(rows, worth, cost, progress or Progress())


def next_for_targets(
    model: Regression, rows: Matrix, generator: torch.Generator, device: Device, progress: Progress
) -> np.ndarray:
    """(n, D) the share of the variance of targets that each missing entry is expected to remove.

    That is the variance of the expected target over what the entry may be, by that of the target,
    given what is observed; of several targets, the mean. Zero if observed, NaN as above.
    """
    return _removed(
        rows,
        [model.indicators.categories(column) for column in range(model.n_columns)],
        partial(model.drawn, y=None, device=device, generator=generator),
        lambda many: model.log_density(many, None, device),
        lambda many: model.predictive(many, device).expected(),
        lambda some: model.predictive(some, device).std() ** 2,
        progress,
    )


def next_for_network(
    model: Fitted, rows: Matrix, generator: torch.Generator, device: Device, progress: Progress
) -> np.ndarray:
    """The same of a network, which predicts means alone.

    The variance is that of its predictions over what all missing entries may be.
    """

    def draw(many: Matrix) -> np.ndarray:
        return model.drawn(model.engine(many, device), many.values, generator)

    def expected(many: Matrix) -> np.ndarray:
        return network_means(model, many, device)[:, None]

    def variance(some: Matrix) -> np.ndarray:
        many = some.take(np.repeat(np.arange(len(some)), _DRAWS))
        found = expected(Matrix(draw(many))).reshape(len(some), _DRAWS, 1).var(1)
        return np.maximum(found, np.finfo(np.float64).tiny)

    def log_density(many: Matrix) -> np.ndarray:
        return model.log_density(model.engine(many, device))

    told = [np.arange(level) for level in model.schema.levels(rows.values.shape[1])]
    return _removed(rows, told, draw, log_density, expected, variance, progress)


def _removed(
    rows: Matrix,
    told: Sequence[np.ndarray],
    draw: Callable[[Matrix], np.ndarray],
    log_density: Callable[[Matrix], np.ndarray],
    expected: Callable[[Matrix], np.ndarray],
    variance: Callable[[Matrix], np.ndarray],
    progress: Progress,
) -> np.ndarray:
    """(n, D) shares of variance, from what a model says of rows and of columns' categories."""

    def worth(some: Matrix) -> Iterator[Worth]:
        whole = variance(some)
        for column, asked, nodes, log_width in _tables(some, told, draw):
            many = _in_place(some.values[asked], column, nodes)
            density = log_density(many).reshape(nodes.shape) + log_width
            chance = softmax(density, axis=1)[..., None]
            mean = expected(many).reshape(*nodes.shape, -1)
            off = mean - (chance * mean).sum(1, keepdims=True)
            yield column, asked, ((chance * off**2).sum(1) / whole[asked]).mean(1).clip(0.0, 1.0)

    return _in_time(rows, worth, _DRAWS * rows.values.shape[1], progress)


def _in_time(
    rows: Matrix, worth: Callable[[Matrix], Iterator[Worth]], cost: int, progress: Progress
) -> np.ndarray:
    """(n, D) what missing entries are worth, of so many rows at a time as may be held."""
    missing, size = np.isnan(rows.values), max(1, _NUMBERS // cost)
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    progress.start("missing entries", sum(int(missing[part].any(0).sum()) for part in parts))
    found = np.where(missing, np.nan, 0.0)
    for part in parts:
        for column, asked, values in worth(rows.take(part)):
            found[part.start + asked, column] = values
            best = float(np.nanmax(found))
            if progress.step({"iteration": column, "objective": best}) and np.isnan(found).any():
                warn(
                    f"max_time sufficed for {int((missing & ~np.isnan(found)).sum())} of "
                    f"{int(missing.sum())} missing entries; the others are NaN. Remedy: fewer "
                    "rows, or more time.",
                    DegenerateDataWarning,
                )
                return found
    return found


def _by_components(
    model: Fitted, mixture: Mixture, rows: Matrix, *, device: Device
) -> Iterator[Asked]:
    """What components say of each missing entry, in the units of the model."""
    engine = model.engine(rows, device)
    batch, mixture = engine.all_rows().to(torch.float64), mixture.to(engine.device, torch.float64)
    joint = mixture.log_joint(batch)
    for column, asked, said in entries(mixture.density, batch):
        found = mixture.by_class((said + joint[asked, None]).flatten(0, 1))
        yield column, asked.cpu().numpy(), found.unflatten(0, said.shape[:2]).cpu().numpy()


def _by_answers(
    model: Fitted, rows: Matrix, *, generator: torch.Generator, device: Device
) -> Iterator[Asked]:
    """What any model says of rows with values in the place of each missing entry."""

    def draw(many: Matrix) -> np.ndarray:
        return model.drawn(model.engine(many, device), many.values, generator)

    told = [np.arange(level) for level in model.schema.levels(rows.values.shape[1])]
    atoms = model.scaling.atoms
    shared = {} if atoms is None else dict(zip(atoms.columns, atoms.shown, strict=True))
    for column, asked, nodes, log_width in _tables(rows, told, draw, shared):
        many = _in_place(rows.values[asked], column, nodes)
        found = model.class_log_joint_in_units(model.engine(many, device))
        yield column, asked, found.reshape(*nodes.shape, -1) + log_width[..., None]


def _in_place(values: np.ndarray, column: int, nodes: np.ndarray) -> Matrix:
    """Each row (n, D) once for each of its nodes (n, Q), with that in a column."""
    many = np.repeat(values, nodes.shape[1], axis=0)
    many[:, column] = nodes.ravel()
    return Matrix(many)


def _tables(
    rows: Matrix,
    categories: Sequence[np.ndarray],
    draw: Callable[[Matrix], np.ndarray],
    atoms: Mapping[int, tuple[float, ...]] | None = None,
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Columns, the rows that lack them, values (n, Q) they may have there, logs of widths.

    Columns have categories, or none; `draw` gives rows with a draw of what is missing, and `atoms`
    are values by column that have probabilities.
    """
    missing, draws = np.isnan(rows.values), None
    for column in np.flatnonzero(missing.any(0)).tolist():
        asked = np.flatnonzero(missing[:, column])
        if len(categories[column]):
            codes = np.tile(categories[column].astype(np.float64), (len(asked), 1))
            yield column, asked, codes, np.zeros_like(codes)
            continue
        if draws is None:
            many = rows.take(np.repeat(np.arange(len(rows)), _DRAWS))
            draws = draw(many).reshape(len(rows), _DRAWS, -1)
        yield column, asked, *_nodes(draws[asked, :, column], (atoms or {}).get(column, ()))


def _nodes(draws: np.ndarray, atoms: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (n, Q) where draws (n, S) are, and beyond; logs of widths by the trapezoidal rule.

    Atoms are nodes of their own, that have a probability, and so the width one.
    """
    inner = _others(draws, atoms).reshape(len(draws), -1, _PER_NODE).mean(2)
    low, high = inner[:, :1], inner[:, -1:]
    reach = np.maximum(high - low, np.finfo(np.float64).tiny) * _BEYOND
    nodes = np.concatenate([low - reach[:, ::-1], inner, high + reach], axis=1)
    width = np.maximum(np.gradient(nodes, axis=1), np.finfo(np.float64).tiny)
    values = np.broadcast_to(np.array(atoms), (len(draws), len(atoms)))
    return np.hstack([values, nodes]), np.log(np.hstack([np.ones_like(values), width]))


def _others(draws: np.ndarray, atoms: tuple[float, ...]) -> np.ndarray:
    """Draws (n, S) in order; those that are no atoms stand for the others, if there are any."""
    held = np.isin(draws, atoms)
    order = np.sort(np.where(held, np.inf, draws), axis=1)
    count = (~held).sum(1, keepdims=True)
    place = np.arange(draws.shape[1]) * count // draws.shape[1]
    return np.where(count > 0, np.take_along_axis(order, place, 1), draws)


def _lost(joint: np.ndarray, after: np.ndarray, log_proba: np.ndarray) -> np.ndarray:
    """(n,) entropy that is lost, from log-joints (n, Q, C), and log q(c | v) and log q(c)."""
    given = joint - logsumexp(joint, axis=1, keepdims=True)
    chance = np.exp(logsumexp(given + log_proba[:, None], axis=2))
    mean = np.log((chance[..., None] * np.exp(after)).sum(1))
    lost = _entropy(mean) - (chance * _entropy(after)).sum(1)
    return lost.clip(0.0, _entropy(log_proba))


def _entropy(log_proba: np.ndarray) -> np.ndarray:
    """(...) of probabilities whose logs are (..., C)."""
    return -np.sum(np.exp(log_proba) * np.maximum(log_proba, -700.0), axis=-1)
