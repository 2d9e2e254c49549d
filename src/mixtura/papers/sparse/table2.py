"""Sparse mixtures, Table 2 and Figure 5: the last layer of a network on image sets.

Hayashi and Uchida (2021), section 4.2. All layers share network, budget and schedule, which are
not the paper's: batches of 256, AdamW, one cycle of the learning rate over 20 epochs, and for
CIFAR-10 (a JPEG copy) a small residual network in place of a DenseNet, where the mixture that is
not sparse has 40 epochs, and the margin softmax keeps the share of the plain logit (0, 0.5 or 0.8)
that errs least on 5,000 training images held out, after ten epochs. Errors in percent over several
seeds.

A part is named like "mnist 2-d, sparse mixture, seed 0".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mixtura.data.given import Parameters
from mixtura.engines import resolve_device
from mixtura.nn import MixtureHead
from mixtura.papers.cells import grid
from mixtura.papers.images import load_images
from mixtura.papers.report import Report
from mixtura.papers.sparse._last_layer import (
    LAST_LAYERS,
    Body,
    LargeMarginLinear,
    Network,
    digit_body,
    photo_body,
    seeded,
    train,
)
from mixtura.papers.tables import spread

SEEDS = 3
EPOCHS = 20
BATCH_SIZE = 256
#: Weights of a layer that is not sparse count as zero below this share of the largest.
NEGLIGIBLE = 1e-3
#: The layers whose 2-d features are drawn.
DRAWN = ("softmax", "sparse mixture")
#: Cells that are trained for longer than the others.
LONGER = {("cifar10", "mixture"): 40}


@dataclass(frozen=True)
class Part:
    """A column of the table.

    Attributes
    ----------
    images : name of the set. channels : planes of an image, which is square.
    mean, deviation : what pixels in [0, 1] are normalized by.
    body : the network below the last layers.
    width : features that the last layer sees; None for those of the body.
    covariance : of the mixtures.
    rate : highest learning rate. augment : train on random crops and mirror images.
    n_train, n_test : random rows to keep; all by default.
    plain : share of the plain logit that the margin softmax keeps.
    paper : the paper's errors, in the order of LAST_LAYERS.
    """

    images: str
    width: int | None
    paper: tuple[float, ...]
    covariance: str = "full"
    channels: int = 1
    mean: float = 0.1307
    deviation: float = 0.3081
    body: Callable[[], Body] = digit_body
    rate: float = 2e-3
    augment: bool = False
    n_train: int | None = None
    n_test: int | None = None
    plain: float = 0.0
    epochs: int = EPOCHS
    batch_size: int = BATCH_SIZE


PARTS = {
    "mnist 2-d": Part("mnist", 2, (3.19, 3.70, 2.52, 2.43, 1.81)),
    "mnist 10-d": Part("mnist", 10, (1.01, 1.58, 0.80, 0.72, 0.86)),
    "fashion 10-d": Part("fashion", 10, (8.78, 9.20, 8.51, 8.30, 8.05)),
    "cifar10": Part(
        "cifar10",
        None,
        (11.07, 10.30, 11.58, 10.05, 10.46),
        covariance="diag",
        channels=3,
        mean=0.4734,
        deviation=0.2516,
        body=photo_body,
        augment=True,
        plain=0.8,
    ),
}
CELLS = grid(list(LAST_LAYERS), {name: part.paper for name, part in PARTS.items()})
_QUICK_PARTS = ("mnist 10-d",)
_QUICK_LAYERS = DRAWN
_QUICK: Parameters = {
    "body": partial(digit_body, depth=4),
    "n_train": 600,
    "n_test": 400,
    "epochs": 6,
    "batch_size": 25,
    "rate": 1e-2,
}


@dataclass(frozen=True)
class Images:
    """Normalized images and labels on the device."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Outcome:
    """A trained network, in numbers."""

    error: float
    sparsity: float
    weights: int
    seconds: float
    features: tuple[np.ndarray, np.ndarray]


def run(report: Report) -> None:
    """One row per cell of the table and one per seed of it, and the features of digits."""
    drawn: dict[str, tuple[Images, Outcome]] = {}
    layers = _QUICK_LAYERS if report.quick else tuple(LAST_LAYERS)
    for name in _QUICK_PARTS if report.quick else PARTS:
        part = replace(PARTS[name], **_QUICK) if report.quick else PARTS[name]
        cells = {layer: _seeds(report, f"{name}, {layer}") for layer in layers}
        if not any(cells.values()):
            continue
        images = _load(report, part)
        for layer, seeds in cells.items():
            outcomes = [_show_seed(report, part, images, name, layer, seed) for seed in seeds]
            if outcomes:
                _show_cell(report, name, layer, outcomes)
                if part.width == 2 and layer in DRAWN:
                    drawn[layer] = images, outcomes[0]
    if drawn:
        _draw(report, drawn)


def _seeds(report: Report, cell: str) -> list[int]:
    """The seeds of a cell that were asked for."""
    seeds = range(report.seed, report.seed + (1 if report.quick else SEEDS))
    return [seed for seed in seeds if report.wants(f"{cell}, seed {seed}")]


def _load(report: Report, part: Part) -> Images:
    arrays = load_images(part.images, n_train=part.n_train, n_test=part.n_test)
    device = resolve_device(report.device, arrays.X_train.size)

    def pixels(rows: np.ndarray) -> Tensor:
        side = round((rows.shape[1] / part.channels) ** 0.5)
        x = torch.from_numpy(rows).to(device).view(-1, part.channels, side, side)
        return (x - part.mean) / part.deviation

    def labels(codes: np.ndarray) -> Tensor:
        return torch.from_numpy(codes).long().to(device)

    return Images(
        pixels(arrays.X_train), labels(arrays.y_train), pixels(arrays.X_test), labels(arrays.y_test)
    )


def train_cell(part: Part, images: Images, layer: str, seed: int) -> Outcome:
    """Train a network with the given last layer, and test it."""
    make, loss = LAST_LAYERS[layer]
    began = time.perf_counter()
    with seeded(seed):
        body, size = part.body()
        width = part.width or size
        squeeze = nn.Identity() if part.width is None else nn.Linear(size, width)
        last = make(width, part.covariance)
        if isinstance(last, LargeMarginLinear):
            last.least = part.plain
        network = Network(body, squeeze, last)
        train(
            network.to(images.x.device),
            loss,
            images.x,
            images.y,
            n_epochs=part.epochs,
            batch_size=part.batch_size,
            rate=part.rate,
            augment=part.augment,
            generator=torch.Generator().manual_seed(seed),
        )
    features, logits = network.evaluate(images.x_test)
    error = 100 * float((logits.argmax(1) != images.y_test).double().mean())
    seconds = time.perf_counter() - began
    in_training = network.evaluate(images.x)[0] if part.width == 2 else features[:0]
    sparsity, weights = _sparsity(network.last)
    return Outcome(
        error, sparsity, weights, seconds, (in_training.cpu().numpy(), features.cpu().numpy())
    )


def _sparsity(last: nn.Module) -> tuple[float, int]:
    """Share of zeros among the weights of the last layer, and the number of others."""
    if isinstance(last, MixtureHead) and last.sparse:
        return last.sparsity(), round((1 - last.sparsity()) * last.weight.numel())
    size = last.weight.detach().abs()  # type: ignore[operator]
    kept = int((size > NEGLIGIBLE * size.max()).sum())
    return 1 - kept / size.numel(), kept


def _show_seed(
    report: Report, part: Part, images: Images, name: str, layer: str, seed: int
) -> Outcome:
    epochs = part.epochs if report.quick else LONGER.get((name, layer), part.epochs)
    outcome = train_cell(replace(part, epochs=epochs), images, layer, seed)
    figures = {name: getattr(outcome, name) for name in ("error", "sparsity", "weights", "seconds")}
    report.row("seeds", part=name, head=layer, seed=seed, **figures)
    return outcome


def _show_cell(report: Report, name: str, layer: str, outcomes: list[Outcome]) -> None:
    errors = [outcome.error for outcome in outcomes]
    report.cell(name, layer, errors)
    report.row(
        "error",
        part=name,
        head=layer,
        **spread(errors),
        paper=PARTS[name].paper[list(LAST_LAYERS).index(layer)],
        sparsity=float(np.mean([outcome.sparsity for outcome in outcomes])),
        weights=float(np.mean([outcome.weights for outcome in outcomes])),
        seconds=sum(outcome.seconds for outcome in outcomes),
    )


def _draw(report: Report, drawn: dict[str, tuple[Images, Outcome]]) -> None:
    """Figure 5: where the network puts training and test digits."""
    with report.figure("features", figsize=(11, 5.2 * len(drawn))) as figure:
        axes = figure.subplots(len(drawn), 2, squeeze=False)
        for line, (layer, (images, outcome)) in zip(axes, drawn.items(), strict=True):
            labels = (images.y, images.y_test)
            for place, kind in enumerate(("training", "test")):
                x, colors = outcome.features[place], labels[place].cpu().numpy()
                line[place].scatter(*x.T, c=colors, cmap="tab10", s=2, linewidths=0)
                line[place].set_title(f"{layer}: {kind} digits")
