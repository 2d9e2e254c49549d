"""The end of a network: Gaussian mixtures in place of the last linear layer.

A Gaussian in its natural parameters is linear in the monomials of degree two. So the log-joint of
a class that is a mixture of Gaussians is `logsumexp_k (w_k . phi(x) + b_k)` over its components, a
layer like any other (Hayashi and Uchida, 2021, sections 3.2 and 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, softplus

from mixtura.data.batch import Batch
from mixtura.data.given import Parameters, Setting
from mixtura.densities import Density, DiagonalGaussian, FullGaussian, Gaussian
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.models.columns import Products
from mixtura.models.mixture import Layout, Mixture, padded_slots
from mixtura.numerics import lower_inverse

#: What phi is made of, by density.
FEATURES = {"linear": "linear", "diag": "diagonal", "full": "quadratic"}

#: Weights that their noise exceeds by this much (log alpha) are zero at evaluation.
_DROPPED = 3.0
#: Log variance of a weight before training, relative to the square of its scale.
_FIRST_NOISE = -10.0
#: Scale of the first quadratic weights beside the linear ones: squares of features may be large.
_QUADRATIC = 0.01
#: Molchanov et al. (2017), equation 14.
_KL_HEIGHT, _KL_SHIFT, _KL_SLOPE = 0.63576, 1.87320, 1.48695
#: Keeps roots and logarithms of squares away from zero.
_TINY = 1e-16
#: Devices that have autocast; asked once, since not every version of torch compiles the question.
_AUTOCAST = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "mps", "xpu")))


def kl_weight(step: float, n_steps: float, *, start: float = 0.0, full: float = 0.5) -> float:
    """Weight of `MixtureHead.kl` in the course of training: 0, then rising in a line, then 1.

    The prior would drown weights that know nothing yet, so it comes late::

        for epoch in range(n_epochs):
            for x, y in batches:
                penalty = kl_weight(epoch, n_epochs) * head.kl() / n_training_rows
                loss = cross_entropy(head(body(x)), y) + penalty

    Parameters
    ----------
    step, n_steps : how far training is, in epochs or in steps.
    start, full : shares of the training at which the weight leaves 0 and reaches 1.
    """
    if not (n_steps > 0 and 0.0 <= start <= full):
        raise InvalidInputError(
            f"a warm-up needs n_steps above 0 and 0 <= start <= full; got n_steps={n_steps}, "
            f"start={start}, full={full}."
        )
    share = step / n_steps
    if share >= full:
        return 1.0
    return (share - start) / (full - start) if share > start else 0.0


class MixtureHead(nn.Module):
    """A mixture of Gaussians for each class, in place of the last `nn.Linear` of a classifier.

    `out_c = logsumexp_k (w_ck . phi(x) + b_ck)`: class log-posteriors up to a constant, which is
    what a cross-entropy takes. One linear component per class is `nn.Linear`.

    A sparse head learns the variance of a noise on each weight (variational dropout, Molchanov et
    al. 2017). Add `kl_weight(...) * head.kl() / n_training_rows` to the loss, and weights that are
    not needed drown in their noise: they are zero in evaluation mode, and `prune` removes them.

    Squares grow fast: features of the order of one train best. NaN in gives NaN out; rows with
    missing values need the estimators.

    Parameters
    ----------
    in_features, n_classes : sizes of the last dimension, in and out.
    n_components : components of every class, or one number per class.
    density : phi is x ("linear"), x and its squares ("diag"), x and all x_i x_j ("full").
    sparse : variational dropout on the weights; biases never have it.
    standardize : take phi of `(x - location) / scale`, buffers that are to be filled. It saves the
        digits of features whose mean is large beside their deviation.
    n_columns : how many entries of phi are used; all by default. `prune` chooses which.
    device, dtype : as in `nn.Linear`.

    Attributes
    ----------
    weight, bias : (K, H) and (K,); the components of the first class come first.
    log_variance : (K, H), of the noise on the weights; None in a dense head.
    """

    log_variance: nn.Parameter | None
    monomials: Tensor
    slots: Tensor | None
    columns: Tensor | None
    location: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        n_components: int | Sequence[int] = 1,
        density: str = "diag",
        sparse: bool = True,
        *,
        standardize: bool = False,
        n_columns: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if density not in FEATURES:
            raise InvalidInputError(
                f"density must be one of {', '.join(FEATURES)}; got {density!r}."
            )
        self.density, self.sparse = density, sparse
        self.in_features = _count("in_features", in_features)
        self.n_classes = _count("n_classes", n_classes)
        self.n_components = _component_counts(n_components, self.n_classes)
        kind: Parameters = {"device": device, "dtype": dtype}
        monomials = _monomials(self.in_features, density)
        width = _width(n_columns, monomials.shape[1])
        used = None if n_columns is None else torch.arange(width, device=device)
        zero = torch.zeros(self.in_features, **kind) if standardize else None
        # The arguments imply the first two, so that files need not hold them.
        self.register_buffer("monomials", monomials.to(device), persistent=False)
        slots = padded_slots(self.n_components)
        slots = None if slots is None else slots.to(device)
        self.register_buffer("slots", slots, persistent=False)
        self.register_buffer("columns", used)
        self.register_buffer("location", zero)
        self.register_buffer("scale", None if zero is None else torch.ones_like(zero))
        self.weight = nn.Parameter(torch.empty(sum(self.n_components), width, **kind))
        self.bias = nn.Parameter(torch.empty(sum(self.n_components), **kind))
        noise = nn.Parameter(torch.empty_like(self.weight)) if sparse else None
        self.register_parameter("log_variance", noise)
        self.reset_parameters()

    @property
    def arguments(self) -> Parameters:
        """`MixtureHead(**head.arguments)` can load the state of this head, pruned or not."""
        return {
            "in_features": self.in_features,
            "n_classes": self.n_classes,
            "n_components": self.n_components,
            "density": self.density,
            "sparse": self.sparse,
            "standardize": self.location is not None,
            "n_columns": None if self.columns is None else len(self.columns),
            "dtype": self.weight.dtype,
        }

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.arguments.items())

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Random weights, the linear ones as in `nn.Linear`; components of a class differ."""
        bound = self.in_features**-0.5
        squares = self._factors()[0] > 0
        unit = torch.where(squares, _QUADRATIC, 1.0).to(self.weight).expand_as(self.weight)
        self.weight.uniform_(-bound, bound).mul_(unit)
        self.bias.uniform_(-bound, bound)
        if self.log_variance is not None:
            self.log_variance.copy_(_FIRST_NOISE + 2.0 * unit.log())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., n_classes), in single precision or better."""
        if not x.is_floating_point() or x.shape[-1:] != (self.in_features,):
            raise InvalidInputError(
                f"the head takes floating-point rows of in_features={self.in_features}; got the "
                f"shape {tuple(x.shape)} of {x.dtype}. Convert them, or make a head for them."
            )
        with _full_precision(x.device.type):  # half precision cannot hold squares
            return self._by_class(self._component_logits(self._features(x.to(self._dtype))))

    def kl(self) -> Tensor:
        """Divergence of the weights from their log-uniform prior, summed; zero in a dense head.

        `0.63576 sigmoid(-1.8732 - 1.48695 log alpha) + log(1 + 1 / alpha) / 2` per weight, which is
        within 0.01 of the exact value (Molchanov et al. 2017, section 4.2).
        """
        if not self.sparse:
            return self.bias.new_zeros((), dtype=self._dtype)
        log_alpha = self.log_alpha()
        step = torch.sigmoid(-_KL_SHIFT - _KL_SLOPE * log_alpha)
        return (_KL_HEIGHT * step + 0.5 * softplus(-log_alpha)).sum()

    def log_alpha(self) -> Tensor:
        """log of (variance / square) of each weight, (K, H): high where noise drowns it."""
        weight = self.weight.to(self._dtype)
        if self.log_variance is None:
            return torch.full_like(weight, -torch.inf)
        return self.log_variance.to(self._dtype) - (weight.square() + _TINY).log()

    def sparsity(self) -> float:
        """Share of the weights, biases apart, that are zero at evaluation."""
        weight = self._kept_weight()
        return int((weight == 0).sum()) / max(weight.numel(), 1)

    @torch.no_grad()
    def prune(self) -> MixtureHead:
        """A smaller dense head that gives the same in evaluation mode.

        Features that no component uses are not computed any more. The components of a class that
        have lost all their weights become one, since a sum of constants is a constant.
        """
        weight, bias = self._kept_weight(), self.bias.to(self._dtype)
        used = weight != 0
        kept, rows, biases, counts = used.any(0).nonzero().flatten(), [], [], []
        for own in torch.arange(len(weight), device=weight.device).split(self.n_components):
            alive = used[own].any(1)
            live, bare = own[alive], own[~alive]
            rows += [live, bare[:1]]
            biases += [bias[live], bias[bare].logsumexp(0, keepdim=True)[: len(bare)]]
            counts.append(len(live) + len(bare[:1]))
        smaller = {"n_components": counts, "sparse": False, "n_columns": len(kept)}
        arguments = {**self.arguments, **smaller, "device": weight.device}
        head = _blank(**arguments)
        head._set(weight[torch.cat(rows)][:, kept], torch.cat(biases))
        head.location, head.scale = deepcopy((self.location, self.scale))
        head.columns = kept if self.columns is None else self.columns[kept]
        return head.train(self.training)

    @staticmethod
    def from_mixture(model: object, sparse: bool = False) -> MixtureHead:
        """The head, in double precision, whose output is the class log-joint of a mixture.

        Parameters
        ----------
        model : a `Mixture`, or a fitted estimator, whose units the head then takes. What calibrates
            an estimator's probabilities, and models beside its first, are not part of its mixture.
        sparse : whether the weights get a noise, small beside each, for training on; the output in
            evaluation mode is the same.
        """
        mixture = model if isinstance(model, Mixture) else getattr(model, "mixture_", None)
        if not isinstance(mixture, Mixture):
            raise InvalidInputError(
                "from_mixture takes a Mixture or a fitted estimator that has one as mixture_, and "
                f"this {type(model).__name__} has none."
            )
        if not isinstance(mixture.density, Gaussian):
            raise UnsupportedError(
                "a head is a Gaussian mixture, and this model has other tails, has categories or "
                "atoms, models holes, or is over sequences: fit Gaussians to numbers alone, with "
                "missingness='ignore' and marginals='linear'."
            )
        mixture, scaling = mixture.to(dtype=torch.float64), getattr(model, "scaling_", None)
        if scaling is not None and scaling.curves is not None:
            raise UnsupportedError(
                "a head scales its features, and this model maps them by curves: fit it with "
                "marginals='linear'."
            )
        density = mixture.density
        head = _blank(
            in_features=density.n_features,
            n_classes=mixture.n_classes,
            n_components=mixture.layout.counts,
            density="diag" if isinstance(density, DiagonalGaussian) else "full",
            sparse=sparse,
            standardize=scaling is not None,
            device=density.location.device,
            dtype=density.location.dtype,
        )
        head._set(_natural_weights(density), mixture.log_joint(_origin(density))[0])
        if scaling is not None:
            head.location = torch.from_numpy(scaling.location).to(density.location)
            head.scale = torch.from_numpy(scaling.scale).to(density.location)
        return head

    @torch.no_grad()
    def to_mixture(self) -> Mixture:
        """The Gaussian mixture with the class posteriors of evaluation mode, in double precision.

        Its units are those of phi: `(x - location) / scale` where the head has them. Where a
        quadratic form is not negative definite, a multiple of `|x|^2` is taken from those of all
        components: posteriors do not see it.
        """
        slope, precision = self._natural_parameters()
        full = precision.ndim == 3
        spectrum = torch.linalg.eigvalsh(precision) if full else precision
        lift = _lift(spectrum)
        (precision.diagonal(dim1=1, dim2=2) if full else precision).add_(lift)
        floor = 0.5 / (float(spectrum.max()) + lift)  # below every variance, so it alters none
        density = _gaussians(slope, precision, floor)
        layout = Layout(self.n_components, slope.device)
        log_mass = (self.bias - density.log_prob(_origin(density)))[0]
        by_class = layout.logsumexp(log_mass[None])[0]
        log_weight = log_mass - layout.by_component(by_class)
        return Mixture(density, log_weight, layout, by_class.log_softmax(0))

    @property
    def _dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.promote_types(self.weight.dtype, torch.float32)

    @torch.no_grad()
    def _set(self, weight: Tensor, bias: Tensor) -> None:
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        if self.log_variance is not None:
            self.log_variance.copy_(_FIRST_NOISE + (weight.square() + _TINY).log())

    def _factors(self) -> Tensor:
        """The two places in (1, x) whose product each used feature is, (2, H)."""
        return self.monomials if self.columns is None else self.monomials[:, self.columns]

    def _features(self, x: Tensor) -> Tensor:
        """phi(x), or what of it is used."""
        if self.location is not None and self.scale is not None:
            x = (x - self.location) / self.scale
        if self.columns is None and self.density == "linear":
            return x
        if self.columns is None and self.density == "diag":
            return torch.cat([x, x.square()], -1)
        left, right = self._factors()
        with_one = pad(x, (1, 0), value=1.0)
        return with_one[..., left] * with_one[..., right]

    def _kept_weight(self) -> Tensor:
        """The weights of evaluation mode."""
        weight = self.weight.to(self._dtype)
        return weight.masked_fill(self.log_alpha() > _DROPPED, 0.0) if self.sparse else weight

    def _component_logits(self, features: Tensor) -> Tensor:
        """w_k . phi + b_k, (..., K); in training, with the noise of w.

        The noise is drawn for the sums and not for the weights (local reparameterization): every
        row gets its own at the price of one, and gradients vary far less.
        """
        bias = self.bias.to(self._dtype)
        if self.log_variance is None or not self.training:
            return linear(features, self._kept_weight(), bias)
        mean = linear(features, self.weight.to(self._dtype), bias)
        variance = linear(features.square(), self.log_variance.to(self._dtype).exp())
        return mean + (variance + _TINY).sqrt() * torch.randn_like(mean)

    def _by_class(self, logits: Tensor) -> Tensor:
        if self.slots is None:
            return logits.unflatten(-1, (self.n_classes, -1)).logsumexp(-1)
        return pad(logits, (0, 1), value=-torch.inf)[..., self.slots].logsumexp(-1)

    def _natural_parameters(self) -> tuple[Tensor, Tensor]:
        """Slope (K, D) and precision, (K, D) or (K, D, D), in double precision."""
        weight, (left, right) = self._kept_weight().double(), self._factors()
        square = left > 0
        slope = weight.new_zeros(len(weight), self.in_features)
        slope[:, right[~square] - 1] = weight[:, ~square]
        if self.density != "full":
            precision = torch.zeros_like(slope)
            precision[:, left[square] - 1] = -2.0 * weight[:, square]
            return slope, precision
        half = weight.new_zeros(*slope.shape, self.in_features)
        half[:, left[square] - 1, right[square] - 1] = -weight[:, square]
        return slope, half + half.mT


def _blank(*, device: torch.device, **arguments: Setting) -> MixtureHead:
    """A head whose weights are to be set: its first ones take nothing from the random stream."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return MixtureHead(**arguments, device=device)


def _full_precision(device_type: str) -> torch.autocast | nullcontext[None]:
    """No autocast, on devices that have it."""
    if device_type in _AUTOCAST:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _count(name: str, value: object) -> int:
    if not isinstance(value, Integral) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number, 1 or more; got {value!r}.")
    return int(value)


def _component_counts(given: int | Sequence[int], n_classes: int) -> tuple[int, ...]:
    counts = list(given) if hasattr(given, "__iter__") else [given] * n_classes
    if len(counts) != n_classes:
        raise InvalidInputError(
            f"n_components has {len(counts)} entries for {n_classes} classes: give one per class, "
            "or a single number for all."
        )
    return tuple(_count("n_components", count) for count in counts)


def _width(n_columns: int | None, most: int) -> int:
    if n_columns is None:
        return most
    if not isinstance(n_columns, Integral) or not 0 <= n_columns <= most:
        raise InvalidInputError(
            f"n_columns={n_columns!r} must be a whole number from 0 to {most}, the entries of phi."
        )
    return int(n_columns)


def _monomials(in_features: int, density: str) -> Tensor:
    """(2, H): the two places in (1, x) whose product each feature is; place 0 is the 1."""
    return torch.as_tensor(Products.of(FEATURES[density], in_features).pairs[1:].T)


def _origin(density: Density) -> Batch:
    """A row of zeros: of a quadratic function it shows the constant."""
    zero = density.location.new_zeros(1, density.n_features)
    return Batch(zero, None, zero[:, 0].long(), zero[:, 0] + 1.0)


def _natural_weights(density: Density) -> Tensor:
    """What multiplies the monomials in the log density of each component, (K, H)."""
    if isinstance(density, DiagonalGaussian):
        precision = density.variance.reciprocal()
        return torch.cat([precision * density.location, -0.5 * precision], 1)
    if isinstance(density, FullGaussian):
        factor = density.factor
    else:
        factor = torch.linalg.cholesky(density.covariances())
    half = lower_inverse(factor)
    precision = half.mT @ half
    slope = (precision @ density.location[..., None])[..., 0]
    left, right = _monomials(density.n_features, "full")[:, density.n_features :] - 1
    share = torch.where(left == right, 0.5, 1.0).to(precision)
    return torch.cat([slope, -share * precision[:, left, right]], 1)


def _lift(spectrum: Tensor) -> float:
    """What to add to all eigenvalues to make each safely positive; 0 if they are."""
    smallest, largest = float(spectrum.min()), float(spectrum.abs().max())
    return 0.0 if smallest > 1e-10 * largest else (0.1 * largest or 1.0) - smallest


def _gaussians(slope: Tensor, precision: Tensor, floor: float) -> Density:
    """The Gaussians proportional to `exp(slope . x - x^T precision x / 2)`."""
    if precision.ndim == 2:
        variance = precision.reciprocal()
        return DiagonalGaussian(mean=slope * variance, variance=variance, floor=floor)
    root = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve(slope[..., None], root)[..., 0]
    factor = torch.linalg.cholesky(torch.cholesky_inverse(root))
    return FullGaussian(mean=mean, factor=factor, floor=floor)
