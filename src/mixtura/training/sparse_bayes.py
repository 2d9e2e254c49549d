"""Sparse Bayesian learning of a discriminative mixture (Hayashi and Uchida, 2021).

The model is log-linear in given columns phi(x) of a row,

    p(c, m | x) = pi_cm exp(w_cm . phi(x)) / sum of the same over all classes and components,

with a prior N(0, 1/a) for every weight. Training alternates between the most probable weights and
the precisions `a` that maximize the evidence; weights that the evidence does not want, and
components without weights or rows, die out.

Every component has weights, so no class is set apart as the reference, and renaming the classes
renames the answers. The probabilities depend on differences between components alone: once
precisions are learned, a column that all components have gives up the weight that the evidence
wants least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.models.mixture import Layout
from mixtura.numerics import floor_spectrum, log_det_lower, logsumexp, lower_inverse
from mixtura.progress import Progress, Record

Chunks = Iterable[tuple[slice, Tensor]]

#: Steps with the clusters of the start, and between two updates of the precisions.
_FIRST_STEPS, _STEPS = 5, 6
#: A step that promises less (or a tenth of what counts as no change of the evidence) is the last;
#: one that does not gain is halved so often.
_SETTLED, _HALVINGS = 1e-3, 30
#: At most such a share of the weights is given up at once for the evidence's sake.
_QUOTA = 0.2
#: A component that explains a smaller share of its class has died.
_NO_MASS = 1e-5
#: Iterations without change before training ends, and the share of the evidence that is none.
_CALM, _RELATIVE = 3, 1e-4
#: Bounds that keep divisions sound: of a precision, and of what the data tell of a weight.
_LEAST_PRECISION, _LEAST_KNOWN = 1e-10, 1e-12
#: A column so small beside the largest is what rounding left of a constant.
_NOTHING = 1e-14
#: Numbers in a chunk of columns, and in all that are kept.
_CHUNK, _KEPT = 2**22, 2**26
#: Weights whose products with all later ones are summed in one go: half the matrix is not needed.
_PANEL = 256
#: Columns from which a component starts: that many are enough; so few it may have in any case, as
#: long as all components have no more than the third number.
_ENOUGH, _FEWEST, _MOST = 60, 30, 600
#: Rows on which training begins.
_FIRST_ROWS = 5_000
#: A remainder of this relative size is rounding, and so is such a difference.
_EXPLAINED = 1e-6


@dataclass(frozen=True)
class Examples:
    """Training rows.

    Attributes
    ----------
    columns : (rows, columns) -> values of these columns of phi for these rows.
    n_columns : how many columns there are.
    y : (n,) class of each row.
    cluster : (n,) component, among all, from which each row starts.
    weight : (n,) positive weights.
    layout : components of each class.
    """

    columns: Callable[[slice | Tensor, Tensor], Tensor]
    n_columns: int
    y: Tensor
    cluster: Tensor
    weight: Tensor
    layout: Layout

    def some(self, count: int) -> Examples:
        """About so many rows, a share of each cluster, that weigh as much as all."""
        if len(self.y) <= count:
            return self
        # Cluster by cluster, so that neither the order of the rows nor that of the classes matters.
        order, sizes = self.cluster.argsort(stable=True), self.cluster.bincount()
        first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        step = -(-len(self.y) // max(1, count))
        rows = order[(torch.arange(len(order), device=order.device) - first) % step == 0]
        weight = self.weight[rows] * (self.weight.sum() / self.weight[rows].sum())
        return replace(
            self,
            columns=lambda part, columns: self.columns(rows[part], columns),
            y=self.y[rows],
            cluster=self.cluster[rows],
            weight=weight,
        )

    def chunks(self, columns: Tensor, scale: Tensor) -> Chunks:
        """Slices of the rows, and the scaled columns there; kept where they are not too many."""
        chunks = _Columns(self, columns, scale)
        return list(chunks) if len(self.y) * len(columns) <= _KEPT else chunks


@dataclass(frozen=True)
class _Columns:
    """Columns that are computed anew whenever they are looked through."""

    examples: Examples
    columns: Tensor
    scale: Tensor

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        size = max(1, _CHUNK // max(1, len(self.columns)))
        for start in range(0, len(self.examples.y), size):
            rows = slice(start, start + size)
            values = self.examples.columns(rows, self.columns).T / self.scale[self.columns, None]
            yield rows, values.contiguous().T


@dataclass(frozen=True)
class SparseMixture:
    """Live weights, ascending by component.

    Attributes
    ----------
    layout : components of each class.
    log_share : (K,) log pi; minus infinity for a component that has died.
    component, column : (L,) what each weight belongs to.
    weight, precision : (L,) most probable value, and precision of the prior.
    """

    layout: Layout
    log_share: Tensor
    component: Tensor
    column: Tensor
    weight: Tensor
    precision: Tensor

    def keep(self, which: Tensor) -> SparseMixture:
        """The same model with a part of its weights."""
        return replace(
            self,
            component=self.component[which],
            column=self.column[which],
            weight=self.weight[which],
            precision=self.precision[which],
        )

    def compact(self) -> SparseMixture:
        """The same function of fewer components.

        The dead are gone, and those of a class that have lost all their weights are one.
        """
        weighty = set(self.component.tolist())
        alive = self.log_share.isfinite()
        groups: list[list[int]] = []
        counts = []
        for label in range(self.layout.n_classes):
            own = torch.nonzero(alive & (self.layout.owner == label)).flatten().tolist()
            kept = [[k] for k in own if k in weighty]
            rest = [k for k in own if k not in weighty]
            groups += [*kept, rest] if rest else kept
            counts.append(len(kept) + bool(rest))
        place = torch.zeros_like(self.layout.owner)
        for new, group in enumerate(groups):
            place[group] = new
        return replace(
            self,
            layout=Layout(counts, place.device),
            log_share=torch.stack([self.log_share[group].logsumexp(0) for group in groups]),
            component=place[self.component],
        )

    def log_proba(self, values: Tensor) -> Tensor:
        """log p(c, m | x), (n, K), from the values (n, L) of the live columns."""
        spread = values.new_zeros(len(self.weight), self.layout.n_components)
        spread[torch.arange(len(self.weight)), self.component] = self.weight
        return (self.log_share + values @ spread).log_softmax(1)


@dataclass(frozen=True)
class Slope:
    """log p(labels | x), its gradient, and what each component explains of the rows, (K,)."""

    value: Tensor
    gradient: Tensor
    mass: Tensor


@dataclass(frozen=True)
class SparseFit:
    """A trained model, a root of the covariance of its weights, and how training ended."""

    model: SparseMixture
    root: Tensor
    evidence: float
    n_iter: int
    converged: bool


def slope(model: SparseMixture, examples: Examples, chunks: Chunks) -> Slope:
    """Log-likelihood and its gradient `(r - p) phi`, summed over rows."""
    value, mass = model.weight.new_zeros(()), torch.zeros_like(model.log_share)
    gradient = model.weight.new_zeros(len(mass), len(model.weight))
    for rows, values in chunks:
        weight, log_proba = examples.weight[rows], model.log_proba(values)
        own = _own(log_proba, model.layout, examples.y[rows])
        per_row = logsumexp(own, 1)
        shares = (own - per_row[:, None]).exp()
        value += weight @ per_row
        mass += weight @ shares
        gradient += ((shares - log_proba.exp()) * weight[:, None]).T @ values
    return Slope(value, gradient.gather(0, model.component[None])[0], mass)


def information(model: SparseMixture, examples: Examples, chunks: Chunks) -> Tensor:
    """Minus the Hessian with the components' shares fixed: sum of `p (delta - p') phi phi^T`."""
    count, blocks = len(model.weight), _blocks(model)
    total = model.weight.new_zeros(count, count)
    within = [model.weight.new_zeros(b.stop - b.start, b.stop - b.start) for b in blocks]
    for rows, values in chunks:
        root = examples.weight[rows].sqrt()
        proba = model.log_proba(values).exp() * root[:, None]
        expected = proba.T[model.component] * values.T
        for start in range(0, count, _PANEL):
            panel = slice(start, start + _PANEL)
            total[start:, panel] -= expected[start:] @ expected[panel].T
        # A difference of sums would lose 1 - p beside p.
        for own, block in zip(within, blocks, strict=True):
            own += (values.T[block] * root - expected[block]) @ expected[block].T
    for own, block in zip(within, blocks, strict=True):
        total[block, block] = own
    return total.tril() + total.tril(-1).T


def _own(log_proba: Tensor, layout: Layout, y: Tensor) -> Tensor:
    """log p(c, m | x) at the components of each row's class, minus infinity elsewhere."""
    return log_proba.masked_fill(y[:, None] != layout.owner, -math.inf)


def _blocks(model: SparseMixture) -> list[slice]:
    """Where the weights of each component lie."""
    ends = torch.bincount(model.component).cumsum(0).tolist() if len(model.weight) else []
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False) if b > a]


@dataclass(frozen=True)
class Laplace:
    """The Gaussian that approximates the posterior of the weights.

    The components' shares of each row are held fixed, as in the paper: with several components a
    class the curvature is too high, evidence and deviations are too low. Everything is in units of
    each weight's prior deviation, in which no eigenvalue of the negative Hessian is below one.
    """

    deviation: Tensor
    factor: Tensor

    @classmethod
    def at(cls, model: SparseMixture, hessian: Tensor) -> Laplace:
        """From minus the Hessian of the log-likelihood."""
        deviation = model.precision.rsqrt()
        scaled = hessian * deviation[:, None] * deviation
        # Beside huge entries the one is lost to rounding, so what rounding takes comes on top.
        rounding = len(scaled) * torch.finfo(scaled.dtype).eps * scaled.diagonal().sum()
        scaled.diagonal().add_(1.0 + rounding)
        factor, failed = torch.linalg.cholesky_ex(scaled)
        if failed:  # rows of very uneven weights: their sums have lost more than that
            floor = 1.0 + float(rounding)
            factor = torch.linalg.cholesky(floor_spectrum(scaled[None], floor)[0])
        return cls(deviation, factor)

    def solve(self, gradient: Tensor) -> Tensor:
        """The Newton step."""
        right = (self.deviation * gradient)[:, None]
        return self.deviation * torch.cholesky_solve(right, self.factor)[:, 0]

    def root(self) -> Tensor:
        """(L, L), whose product with its transpose is the covariance of the weights."""
        return (lower_inverse(self.factor) * self.deviation).T

    def evidence(self, model: SparseMixture, log_likelihood: Tensor) -> Tensor:
        """log p(labels), the weights integrated out."""
        penalty = model.precision @ model.weight.square()
        return log_likelihood - 0.5 * (penalty + log_det_lower(self.factor))


@dataclass(frozen=True)
class SparseBayes:
    """The trainer.

    Parameters
    ----------
    max_iter : updates of the precisions.
    tol : training ends when the evidence changes less, or by less than 0.01 %, and no weight dies,
        for a while.
    ceiling : a weight whose precision passes it dies; in units of the column's root mean square.
    max_weights : weights to start from; where there could be more, every component starts from the
        columns that explain its rows best: sixty at most, and thirty at least if that makes no
        more than 600 in all.
    """

    max_iter: int = 200
    tol: float = 1e-2
    ceiling: float = 1e5
    max_weights: int = 200

    def run(self, examples: Examples, progress: Progress) -> SparseFit:
        """Train from zero weights; where rows are many, first on some of them."""
        scale = _root_mean_square(examples)
        progress.start("sparse Bayes", self.max_iter)
        few = examples.some(_FIRST_ROWS)
        model = _meet_clusters(self._start(few, scale), few, scale, progress)
        if few is not examples:
            model = self._shrink(model, few, scale, progress.part(0.5)).model
        return _in_units(self._shrink(model, examples, scale, progress), scale)

    def _shrink(
        self, model: SparseMixture, examples: Examples, scale: Tensor, progress: Progress
    ) -> SparseFit:
        """Update weights and precisions in turn until nothing dies and the evidence is calm."""
        evidence, calm, hessian = -math.inf, 0, None
        for n_iter in range(1, self.max_iter + 1):
            model, there, hessian = _climb(model, examples, scale, _STEPS, progress, hessian)
            laplace = Laplace.at(model, hessian)
            root = laplace.root()
            before, evidence = evidence, float(laplace.evidence(model, there.value))
            learned, live = self._learn(model, there, hessian, root.square().sum(1))
            settled = abs(evidence - before) < max(self.tol, _RELATIVE * abs(evidence))
            calm = calm + 1 if settled and live.all() else 0
            stop = progress.step(_record(model, evidence))
            if stop or calm == _CALM or n_iter == self.max_iter:
                break
            model, hessian = learned, hessian[live][:, live]
        return SparseFit(model, root, evidence, n_iter, calm == _CALM)

    def _start(self, examples: Examples, scale: Tensor) -> SparseMixture:
        """Zero weights with precision one."""
        layout, n_columns = examples.layout, examples.n_columns
        count = layout.n_components
        share = examples.weight @ _memberships(examples, scale) / examples.weight.sum()
        columns = torch.arange(n_columns, device=scale.device).repeat(count, 1)
        total = max(self.max_weights, min(_FEWEST * count, _MOST))
        most = max(1, min(_ENOUGH, total // count))
        if n_columns > most:
            columns = _pursue(examples.some(_KEPT // n_columns), scale, most)
        component = torch.arange(count, device=scale.device).repeat_interleave(columns.shape[1])
        zero = scale.new_zeros(len(component))
        return SparseMixture(layout, share.log(), component, columns.flatten(), zero, zero + 1.0)

    def _learn(
        self, model: SparseMixture, there: Slope, hessian: Tensor, variance: Tensor
    ) -> tuple[SparseMixture, Tensor]:
        """MacKay's update of the precisions and shares without what has died; (L,) what lives."""
        square, mass = model.weight.square(), there.mass
        known = (1.0 - model.precision * variance).clamp_min(_LEAST_KNOWN)
        precision = (known / square).clamp_min(_LEAST_PRECISION)
        gone = mass < _NO_MASS * model.layout.by_component(model.layout.sum(mass))
        mass = mass.masked_fill(gone, 0.0)
        share = mass / mass.sum()
        dead = (precision >= self.ceiling) | gone[model.component]
        # Below one, the evidence would rise if this weight alone were given up.
        wanted = square / (variance * known)
        least = wanted.argsort()[: math.ceil(_QUOTA * len(wanted))]
        dead[least] |= wanted[least] < 1.0
        dead |= _redundant(model, wanted.masked_fill(dead, math.inf), int((~gone).sum()))
        weight = _given_up(model, hessian, dead)
        moved = replace(model, log_share=share.log(), weight=weight, precision=precision)
        return moved.keep(~dead), ~dead


def _redundant(model: SparseMixture, wanted: Tensor, n_alive: int) -> Tensor:
    """(L,) whether a weight is the least wanted of a column that all live components have.

    The same number may be added to all weights of a column without changing any probability. Two
    components want their weights equally, and the first gives up.
    """
    columns, place = model.column.unique(return_inverse=True)
    table = wanted.new_full((model.layout.n_components, len(columns)), math.inf)
    table[model.component, place] = wanted
    shared = table.isfinite().sum(0) == n_alive
    least = (table <= (1.0 + _EXPLAINED) * table.amin(0)).int().argmax(0)
    return shared[place] & (least[place] == model.component)


def _given_up(model: SparseMixture, hessian: Tensor, dead: Tensor) -> Tensor:
    """Most probable weights once those that die are zero, by the quadratic approximation.

    Without it the loss of one of two columns that cancel each other would leave the other alone
    with a huge weight, in a region where all probabilities are zero or one and Newton is lost.
    """
    weight, live = model.weight.clone(), ~dead
    if dead.any() and live.any():
        rest = Laplace.at(model.keep(live), hessian[live][:, live])
        weight[live] += rest.solve(hessian[live][:, dead] @ weight[dead])
    return weight


def _meet_clusters(
    model: SparseMixture, examples: Examples, scale: Tensor, progress: Progress
) -> SparseMixture:
    """Fit the weights to the clusters of the start, as if these were classes."""
    singles = Layout([1] * model.layout.n_components, scale.device)
    clusters = replace(examples, y=examples.cluster, layout=singles)
    apart = replace(model, layout=singles)
    met = _climb(apart, clusters, scale, _FIRST_STEPS, progress)[0]
    return replace(met, layout=model.layout)


def _in_units(fit: SparseFit, scale: Tensor) -> SparseFit:
    """The same for columns as they are, without weights of zero and components of nothing."""
    model = fit.model
    alive, unit = model.weight != 0.0, scale[model.column]
    weight, precision = model.weight / unit, model.precision * unit.square()
    compact = replace(model, weight=weight, precision=precision).keep(alive).compact()
    return replace(fit, model=compact, root=(fit.root / unit[:, None])[alive])


def _climb(
    model: SparseMixture,
    examples: Examples,
    scale: Tensor,
    n_steps: int,
    progress: Progress,
    hessian: Tensor | None = None,
) -> tuple[SparseMixture, Slope, Tensor]:
    """Steps towards the most probable weights; slope and minus Hessian at the end.

    Quasi-Newton steps: the Hessian of the beginning (or what is given for it) and the changes of
    the gradient since. It holds the components' shares of a row fixed, the gradient does not.
    """
    chunks = examples.chunks(model.column, scale)
    if hessian is None:
        hessian = information(model, examples, chunks)
    laplace, here = Laplace.at(model, hessian), slope(model, examples, chunks)
    changes: list[tuple[Tensor, Tensor]] = []
    for _ in range(n_steps):
        gradient = here.gradient - model.precision * model.weight
        direction = _quasi_newton(laplace, gradient, changes)
        promised = float(gradient @ direction)
        settled = promised < max(_SETTLED, 0.1 * _RELATIVE * abs(float(here.value)))
        if settled or progress.time_spent >= 1.0:
            break
        moved, there = _step(model, direction, here, examples, chunks)
        if moved is model:
            break
        step = moved.weight - model.weight
        bend = here.gradient - there.gradient + model.precision * step
        if step @ bend > 0.0:
            changes.append((step, bend))
        model, here = moved, there
    return model, here, information(model, examples, chunks)


def _quasi_newton(
    laplace: Laplace, gradient: Tensor, changes: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """The inverse of the negative Hessian, corrected by what steps did to the gradient (BFGS)."""
    factors = []
    for step, bend in reversed(changes):
        factors.append(step @ gradient / (step @ bend))
        gradient = gradient - factors[-1] * bend
    direction = laplace.solve(gradient)
    for (step, bend), factor in zip(changes, reversed(factors), strict=True):
        direction = direction + (factor - bend @ direction / (step @ bend)) * step
    return direction


def _step(
    model: SparseMixture, direction: Tensor, here: Slope, examples: Examples, chunks: Chunks
) -> tuple[SparseMixture, Slope]:
    """The model a step further, halved until it gains; the same where rounding rules."""
    objective = here.value - 0.5 * model.precision @ model.weight.square()
    for halvings in range(_HALVINGS):
        moved = replace(model, weight=model.weight + direction / 2**halvings)
        there = slope(moved, examples, chunks)
        if there.value - 0.5 * model.precision @ moved.weight.square() >= objective:
            return moved, there
    return model, here


def _root_mean_square(examples: Examples) -> Tensor:
    """(H,) size of each column, one for columns of nothing but zeros and rounding."""
    ones = examples.weight.new_ones(examples.n_columns)
    every = torch.arange(examples.n_columns, device=ones.device)
    total = torch.zeros_like(ones)
    for rows, values in _Columns(examples, every, ones):
        total += examples.weight[rows] @ values.square()
    size = (total / examples.weight.sum()).sqrt()
    return torch.where(size > _NOTHING * size.max(), size, ones)


def _memberships(examples: Examples, like: Tensor) -> Tensor:
    """(n, K) one where a row starts from a component, zero elsewhere."""
    return torch.nn.functional.one_hot(examples.cluster, examples.layout.n_components).to(like)


def _pursue(examples: Examples, scale: Tensor, count: int) -> Tensor:
    """(K, count) columns that together tell each cluster best from the rest.

    Orthogonal matching pursuit, for all clusters at once.
    """
    target = _memberships(examples, scale)
    target = target - examples.weight @ target / examples.weight.sum()
    every = torch.arange(examples.n_columns, device=scale.device)
    root = examples.weight[:, None].sqrt()
    values = root * examples.columns(slice(None), every) / scale
    residual = (root * target).T.contiguous()
    bases = residual.new_zeros(*residual.shape, count)
    chosen = every.new_zeros(len(residual), count)
    free = torch.ones(len(residual), examples.n_columns, dtype=torch.bool, device=scale.device)
    least = _EXPLAINED * residual.norm(dim=1, keepdim=True) * values.norm(dim=0)
    for place in range(count):
        score = (residual @ values).abs()
        # What rounding left is no reason to prefer a column: the first that is free will do.
        score = torch.where(score > least, score, 0.0).masked_fill(~free, -1.0)
        best = score.argmax(1)
        column, known = values[:, best].T[:, :, None], bases[:, :, :place]
        fresh = column - known @ (known.mT @ column)
        size, whole = (vector.norm(dim=1, keepdim=True) for vector in (fresh, column))
        fresh = torch.where(size > _EXPLAINED * whole, fresh / size, 0.0)
        residual -= (fresh @ (fresh.mT @ residual[:, :, None]))[:, :, 0]
        bases[:, :, place], chosen[:, place] = fresh[:, :, 0], best
        free[torch.arange(len(best)), best] = False
    return chosen.sort(1).values


def _record(model: SparseMixture, evidence: float) -> Record:
    live = int(model.log_share.isfinite().sum())
    return {
        "objective": -evidence,
        "evidence": evidence,
        "n_weights": len(model.weight),
        "n_components": live,
    }
