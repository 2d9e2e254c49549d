"""Synthetic problems whose densities are known, so that the best possible figures are too."""

from __future__ import annotations

import numpy as np
from sklearn.utils import Bunch, check_random_state

from mixtura.exceptions import InvalidInputError

RIPLEY_CENTERS = np.array([[[-0.7, 0.3], [0.3, 0.3]], [[-0.3, 0.7], [0.4, 0.7]]])
RIPLEY_VARIANCE = 0.03

# Of class 0; class 1 is the mirror image. The last lobe lies beyond the boundary that one
# Gaussian per class would draw.
LOBE_CENTERS = np.array([-3.0, -8.0, 0.7])
LOBE_DEVIATIONS = np.array([0.8, 0.4, 0.2])
LOBE_WEIGHTS = np.array([0.7, 0.15, 0.15])

# [class, easy or hard, state] and [class, easy or hard]: the hard ones visit the same two places
# and differ only in how long they stay.
HMM_MEANS = np.array(
    [
        [[[-5.0, 3.0], [-5.0, -1.0]], [[1.0, 1.0], [-1.0, -1.0]]],
        [[[5.0, -3.0], [5.0, 1.0]], [[1.0, 1.0], [-1.0, -1.0]]],
    ]
)
HMM_STAY = np.array([[0.9, 0.9], [0.9, 0.5]])

#: What `random_state` may be.
Seed = int | np.random.RandomState | None

_WAVES = np.maximum(6.0 - np.abs(np.arange(1, 22) - np.array([[11], [15], [7]])), 0.0)
_WAVE_PAIRS = np.array([[0, 1], [0, 2], [1, 2]])


def _bunch(data: object, target: np.ndarray, description: str, **more: object) -> Bunch:
    names = np.array([str(label) for label in range(target.max(initial=0) + 1)])
    return Bunch(data=data, target=target, target_names=names, DESCR=description, **more)


def _spiral(t: np.ndarray, radius: float, turns: float) -> np.ndarray:
    angle = 2.0 * np.pi * turns * t
    return radius * t[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def make_spirals(
    n_per_class: int = 5000,
    *,
    radius: float = 13.0,
    noise: float = 1.0,
    turns: float = 2.0,
    random_state: Seed = None,
) -> Bunch:
    """Two noisy spiral arms, one the other turned by half a circle.

    A row is ``radius * t * (cos(2π turns t), sin(2π turns t))`` plus Gaussian noise with t uniform
    on (0, 1); the second class has the opposite sign. The recipe is that of Pernkopf and Wohlmayr
    (2010), who do not print the radius. The default is ours: its Bayes rate of 87.5 % is just above
    their best figure, 86.1 %.

    Parameters
    ----------
    n_per_class : rows of each class.
    radius : distance from the origin at which the arms end.
    noise : standard deviation of the noise in each coordinate.
    turns : how often an arm winds around the origin.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (2n, 2), ``target`` (2n,) in class order, ``target_names`` and ``DESCR``.

    See Also
    --------
    spirals_bayes_rate : The best share of correct predictions that is possible.
    """
    rng = check_random_state(random_state)
    target = np.repeat([0, 1], n_per_class)
    sign = 1.0 - 2.0 * target[:, None]
    data = sign * _spiral(rng.uniform(size=len(target)), radius, turns)
    data += noise * rng.normal(size=data.shape)
    description = f"Two spiral arms of {turns:g} turns, radius {radius:g}, noise {noise:g}."
    return _bunch(data, target, description)


def spirals_bayes_rate(radius: float = 13.0, noise: float = 1.0, turns: float = 2.0) -> float:
    """Share of correct predictions of the best possible classifier of the spirals.

    By quadrature of the class densities over the plane; good to four digits while the noise is
    above a sixtieth of the radius.

    Parameters
    ----------
    radius, noise, turns : as for :func:`make_spirals`.

    Returns
    -------
    float
        Between one half and one.
    """
    if not (radius >= 0 and noise > 0):
        raise InvalidInputError(
            f"radius must not be negative and noise must be positive; got {radius} and {noise}."
        )
    reach = radius + 6.0 * noise
    axis = np.linspace(-reach, reach, int(np.clip(16.0 * reach / noise, 100, 1000)))
    length = 2.0 * np.pi * max(turns, 1.0) * radius
    n_steps = int(np.clip(8.0 * length / noise, 500, 8000))
    centers = _spiral((np.arange(n_steps) + 0.5) / n_steps, radius, turns)
    across, along = np.exp(-0.5 * ((axis[:, None] - centers.T[:, None, :]) / noise) ** 2)
    first = across @ along.T
    second = first[::-1, ::-1]  # the grid is symmetric and the arms are opposite
    return float(np.maximum(first, second).sum() / (2.0 * first.sum()))


def make_ripley(n_per_class: int = 125, *, random_state: Seed = None) -> Bunch:
    """Ripley's two classes of two round Gaussians each.

    The Bayes error is 8.9 %; on the published test rows the same classifier errs in 8.0 %.

    Parameters
    ----------
    n_per_class : rows of each class; Ripley's own files have 125 for training and 500 for
        testing.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (2n, 2), ``target`` (2n,) in class order, ``component`` (which of the two Gaussians
        of its class a row comes from), ``target_names`` and ``DESCR``.
    """
    rng = check_random_state(random_state)
    target = np.repeat([0, 1], n_per_class)
    component = rng.randint(2, size=len(target))
    noise = np.sqrt(RIPLEY_VARIANCE) * rng.normal(size=(len(target), 2))
    description = "Ripley's synthetic problem: two classes, each of two equal Gaussians."
    data = RIPLEY_CENTERS[target, component] + noise
    return _bunch(data, target, description, component=component)


def make_checkerboard(n_per_component: int = 20, *, random_state: Seed = None) -> Bunch:
    """A board of four by four round Gaussians whose classes alternate (Hayashi and Uchida, 2021).

    Parameters
    ----------
    n_per_component : rows of each of the sixteen Gaussians: the paper trains on 20 and tests on
        100 of each.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (16n, 2), ``target`` (16n,) in the order of the fields, ``component`` (0 to 15),
        ``target_names`` and ``DESCR``.
    """
    rng = check_random_state(random_state)
    component = np.repeat(np.arange(16), n_per_component)
    line, place = np.divmod(component, 4)
    center = np.stack([0.5 * place - 0.75, 0.75 - 0.5 * line], 1)
    data = center + 0.125 * rng.normal(size=center.shape)
    description = "Sixteen Gaussians on a board, of two classes that alternate like its fields."
    return _bunch(data, (line + place) % 2, description, component=component)


def make_lobes(n_per_class: int = 100, *, random_state: Seed = None) -> Bunch:
    """The one-dimensional example of Kim and Pavlovic (2007): two classes of three lobes.

    The central lobe of a class holds most of its rows. Of the two side lobes one lies far outside,
    where it does not matter, and the other on the far side of the boundary that one Gaussian per
    class would draw, where it decides. The paper shows a figure and no numbers: centers
    (∓3, ∓8, ±0.7), deviations (0.8, 0.4, 0.2) and weights (0.7, 0.15, 0.15) are ours.

    Parameters
    ----------
    n_per_class : rows of each class; the paper draws 200 in all.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (2n, 1), ``target`` (2n,) in class order, ``lobe`` (0 central, 1 irrelevant,
        2 crucial), ``target_names`` and ``DESCR``.
    """
    rng = check_random_state(random_state)
    target = np.repeat([0, 1], n_per_class)
    lobe = rng.choice(3, size=len(target), p=LOBE_WEIGHTS)
    side = 1.0 - 2.0 * target
    data = side * LOBE_CENTERS[lobe] + LOBE_DEVIATIONS[lobe] * rng.normal(size=len(target))
    description = "Two classes on a line, each a central, an irrelevant and a crucial lobe."
    return _bunch(data[:, None], target, description, lobe=lobe)


def make_hmm_sequences(
    n_per_class: int = 100, *, length: tuple[int, int] = (40, 60), random_state: Seed = None
) -> Bunch:
    """Sequences in the plane from four hidden Markov models, two for each class.

    After Kim and Pavlovic (2007): half the sequences of a class come from an *easy* model, far from
    those of the other class, and half from a *hard* one that looks like the other class's. The
    paper prints no parameters; ours are two states with unit-variance Gaussians each. The hard
    models share their means and differ in the probability of staying in a state (0.9 and 0.5),
    which a single model per class with few states cannot tell from its easy half.

    Parameters
    ----------
    n_per_class : sequences of each class.
    length : smallest and largest number of frames, drawn uniformly.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (list of (T, 2) arrays), ``target`` (2n,) in class order, ``hard`` (bool, which
        model a sequence comes from), ``target_names`` and ``DESCR``.
    """
    rng = check_random_state(random_state)
    target = np.repeat([0, 1], n_per_class)
    hard = rng.randint(2, size=len(target))
    lengths = rng.randint(length[0], length[1] + 1, size=len(target))
    leaves = rng.uniform(size=(len(target), length[1])) >= HMM_STAY[target, hard][:, None]
    leaves[:, 0] = rng.randint(2, size=len(target))  # both states are as likely to come first
    state = np.cumsum(leaves, axis=1) % 2
    frames = HMM_MEANS[target[:, None], hard[:, None], state]
    frames += rng.normal(size=frames.shape)
    data = [sequence[:T] for sequence, T in zip(frames, lengths, strict=True)]
    description = (
        "Sequences of two classes, each a mixture of an easy and a hard hidden Markov model."
    )
    return _bunch(data, target, description, hard=hard.astype(bool))


def make_waveform(n_samples: int = 5000, *, n_noise: int = 0, random_state: Seed = None) -> Bunch:
    """Breiman's waveforms: random mixtures of two out of three triangles, plus noise.

    Parameters
    ----------
    n_samples : rows; the three classes are equally likely.
    n_noise : further features that are noise and nothing else; 19 gives the usual 40 features.
    random_state : source of randomness.

    Returns
    -------
    Bunch
        ``data`` (n, 21 + n_noise), ``target`` (n,), ``target_names`` and ``DESCR``. The Bayes error
        is about 14 %.
    """
    rng = check_random_state(random_state)
    target = rng.randint(3, size=n_samples)
    share = rng.uniform(size=(n_samples, 1))
    first, second = _WAVES[_WAVE_PAIRS[target]].swapaxes(0, 1)
    data = rng.normal(size=(n_samples, 21 + n_noise))
    data[:, :21] += share * first + (1.0 - share) * second
    return _bunch(data, target, "Breiman's waveforms: three classes, 21 informative features.")
