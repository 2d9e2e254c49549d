"""Networks for images that differ in their last layer alone, and the loop that trains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from mixtura.nn import MixtureHead, kl_weight

N_CLASSES = 10

#: Penalty on the absolute weights of the last layer.
L1 = 1e-3
#: Large-margin softmax: the angle to the own class counts so many times; it comes in during the
#: first half of the training (Liu et al. 2016 mix the plain logit in for the sake of convergence).
MARGIN = 2
N_COMPONENTS = 2
#: Shares of the training between which the weight of the KL term rises.
WARM_UP = (0.0, 0.5)
WEIGHT_DECAY = 1e-2
#: Rows and columns that a crop may move by.
SHIFT = 4
_EVALUATION_ROWS = 2000

#: layer, features, labels, share of the training done, training rows -> loss
Loss = Callable[[nn.Module, Tensor, Tensor, float, int], Tensor]


class LastLayer(NamedTuple):
    """A layer from features (and a covariance structure) to class logits, and what trains it."""

    make: Callable[[int, str], nn.Module]
    loss: Loss


class LargeMarginLinear(nn.Linear):
    """A linear layer whose own class must be ahead by a multiple of the angle (Liu et al. 2016).

    `least` is the share of the plain logit that stays when the angle has come in.
    """

    least = 0.0

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def with_margin(self, x: Tensor, labels: Tensor, plain: float) -> Tensor:
        """Logits where |w| |x| cos t of the own class is |w| |x| psi(t) but for a share `plain`.

        psi(t) = (-1)^k cos(m t) - 2 k on [k pi / m, (k + 1) pi / m] falls all the way to pi.
        """
        logits = self(x)
        own = logits.gather(1, labels[:, None])
        size = (x.norm(dim=1) * self.weight[labels].norm(dim=1))[:, None].clamp_min(1e-8)
        cosine = (own / size).clamp(-1.0, 1.0)
        fold = (MARGIN / math.pi * cosine.detach().acos()).floor().clamp_max(MARGIN - 1)
        before, multiple = torch.ones_like(cosine), cosine
        for _ in range(MARGIN - 1):  # Chebyshev: cos(m t) from cos t
            before, multiple = multiple, 2.0 * cosine * multiple - before
        psi = torch.where(fold % 2 == 0, multiple, -multiple) - 2.0 * fold
        return logits.scatter(1, labels[:, None], plain * own + (1.0 - plain) * size * psi)


def _softmax(layer: nn.Module, x: Tensor, labels: Tensor, done: float, n_rows: int) -> Tensor:
    return cross_entropy(layer(x), labels)


def _lasso(layer: nn.Module, x: Tensor, labels: Tensor, done: float, n_rows: int) -> Tensor:
    return cross_entropy(layer(x), labels) + L1 * layer.weight.abs().sum()  # type: ignore[operator]


def _margin(layer: nn.Module, x: Tensor, labels: Tensor, done: float, n_rows: int) -> Tensor:
    assert isinstance(layer, LargeMarginLinear)
    plain = max(1.0 - 2.0 * done, layer.least)
    return cross_entropy(layer.with_margin(x, labels, plain), labels)


def _variational(layer: nn.Module, x: Tensor, labels: Tensor, done: float, n_rows: int) -> Tensor:
    assert isinstance(layer, MixtureHead)
    start, full = WARM_UP
    weight = kl_weight(done, 1.0, start=start, full=full) / n_rows
    return cross_entropy(layer(x), labels) + weight * layer.kl()


def _linear(width: int, covariance: str) -> nn.Module:
    return nn.Linear(width, N_CLASSES)


LAST_LAYERS = {
    "softmax": LastLayer(_linear, _softmax),
    "L1 softmax": LastLayer(_linear, _lasso),
    "margin softmax": LastLayer(lambda width, _: LargeMarginLinear(width, N_CLASSES), _margin),
    "mixture": LastLayer(
        lambda width, kind: MixtureHead(width, N_CLASSES, N_COMPONENTS, kind, sparse=False),
        _softmax,
    ),
    "sparse mixture": LastLayer(
        lambda width, kind: MixtureHead(width, N_CLASSES, N_COMPONENTS, kind), _variational
    ),
}


class Body(NamedTuple):
    """A network below the last layers, and the number of its features."""

    module: nn.Module
    size: int


def digit_body(depth: int = 32) -> Body:
    """Five convolutions for 28 x 28 gray values, three of them followed by a pooling.

    Not the paper's network: that has four poolings, and its widths are not printed.
    """
    stages: list[nn.Module] = []
    sizes = ((1, depth, 5), (depth, depth, 3), (depth, 2 * depth, 3), (2 * depth, 2 * depth, 3))
    for number, (inward, outward, width) in enumerate((*sizes, (2 * depth, 4 * depth, 3))):
        stages += [nn.Conv2d(inward, outward, width, padding=width // 2), nn.ReLU()]
        if number in (1, 3, 4):
            stages.append(nn.MaxPool2d(2))
    return Body(nn.Sequential(*stages, nn.Flatten()), 4 * depth * 3 * 3)


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def _convolution(depth_in: int, depth: int, pool: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(depth_in, depth, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(depth), nn.ReLU(), nn.MaxPool2d(pool))


def photo_body() -> Body:
    """A small residual network for 32 x 32 color images."""
    depth = 64
    module = nn.Sequential(
        _convolution(3, depth),
        _convolution(depth, 2 * depth, 2),
        _Residual(_convolution(2 * depth, 2 * depth), _convolution(2 * depth, 2 * depth)),
        _convolution(2 * depth, 4 * depth, 2),
        _convolution(4 * depth, 8 * depth, 2),
        _Residual(_convolution(8 * depth, 8 * depth), _convolution(8 * depth, 8 * depth)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )
    return Body(module, 8 * depth)


class Network(nn.Module):
    """A body, a linear map to few features, and the last layer."""

    def __init__(self, body: nn.Module, squeeze: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.squeeze, self.last = body, squeeze, last
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees. Few features need all their digits, convolutions do not."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            deep = self.body(x.contiguous(memory_format=torch.channels_last))
        return self.squeeze(deep.float())

    @torch.no_grad()
    def evaluate(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and class logits of all images, in evaluation mode."""
        self.eval()
        features = torch.cat([self.features(part) for part in images.split(_EVALUATION_ROWS)])
        return features, self.last(features)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's default generators start from `seed` in this block; outside nothing changes."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def train(
    network: Network,
    loss: Loss,
    images: Tensor,
    labels: Tensor,
    *,
    n_epochs: int,
    batch_size: int,
    rate: float,
    augment: bool,
    generator: torch.Generator,
) -> None:
    """AdamW over one rise and fall of the learning rate; all images stay on the device."""
    n_rows, n_batches = len(images), max(len(images) // batch_size, 1)
    n_steps = n_epochs * n_batches
    optimizer = torch.optim.AdamW(_groups(network), fused=images.is_cuda)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, n_steps)
    source = pad(images, (SHIFT,) * 4, "reflect") if augment else images
    network.train()
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # the shapes never change
        for step in range(n_steps):
            if step % n_batches == 0:
                order = torch.randperm(n_rows, generator=generator).to(images.device)
                batches = order.split(min(batch_size, n_rows))
            index = batches[step % n_batches]
            x = _crop(source, index, generator) if augment else source[index]
            optimizer.zero_grad()
            done = step / n_steps
            loss(network.last, network.features(x), labels[index], done, n_rows).backward()
            optimizer.step()
            schedule.step()


def _groups(network: Network) -> list[dict[str, object]]:
    """The last layer has a penalty of its own, or none: its weights do not decay."""
    below = [*network.body.parameters(), *network.squeeze.parameters()]
    return [
        {"params": below, "weight_decay": WEIGHT_DECAY},
        {"params": network.last.parameters(), "weight_decay": 0.0},
    ]


def _crop(padded: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
    """Random crops of padded images, half of them mirrored, in channels-last order."""
    side, n = padded.shape[-1] - 2 * SHIFT, len(index)
    corner = torch.randint(2 * SHIFT + 1, (2, n, 1), generator=generator)
    mirrored = torch.randint(2, (n, 1), generator=generator) == 1
    span = torch.arange(side)
    rows = (corner[0] + span).to(index.device)
    columns = (corner[1] + torch.where(mirrored, span.flip(0), span)).to(index.device)
    picked = padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)
