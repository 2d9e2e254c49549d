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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixtura.models.mixture import Layout
from mixtura.progress import Progress, Record
from mixtura.training.sparse_mixture import (
    KEPT,
    Chunks,
    Examples,
    Laplace,
    Slope,
    SparseMixture,
    information,
    slope,
)

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
#: Columns from which a component starts: that many are enough; so few it may have in any case, as
#: long as all components have no more than the third number.
_ENOUGH, _FEWEST, _MOST = 60, 30, 600
#: Rows on which training begins.
_FIRST_ROWS = 5_000
#: A remainder of this relative size is rounding, and so is such a difference.
_EXPLAINED = 1e-6


@dataclass(frozen=True)
class SparseFit:
    """A trained model, a root of the covariance of its weights, and how training ended."""

    model: SparseMixture
    root: Tensor
    evidence: float
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class SparseBayes:
    """The trainer.

    Parameters
    ----------
    max_iter : updates of the precisions.
    tol : training ends when the evidence changes less, or by less than 0.01 %, and no weight dies,
        for a while.
    ceiling : a weight whose precision passes it dies; in units of the column's root mean square.
    max_weights : weights to start from, as of `SparseMixtureClassifier`.
    """

    max_iter: int = 200
    tol: float = 1e-2
    ceiling: float = 1e5
    max_weights: int = 200

    def run(self, examples: Examples, progress: Progress) -> SparseFit:
        """Train from zero weights; where rows are many, first on some of them."""
        scale = examples.root_mean_square()
        progress.start("sparse Bayes", self.max_iter)
        few = examples.some(_FIRST_ROWS)
        model = _fit_clusters(self._start(few, scale), few, scale, progress)
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
        share = examples.weight @ examples.memberships(scale) / examples.weight.sum()
        columns = torch.arange(n_columns, device=scale.device).repeat(count, 1)
        total = max(self.max_weights, min(_FEWEST * count, _MOST))
        most = max(1, min(_ENOUGH, total // count))
        if n_columns > most:
            columns = _pursue(examples.some(KEPT // n_columns), scale, most)
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


def _fit_clusters(
    model: SparseMixture, examples: Examples, scale: Tensor, progress: Progress
) -> SparseMixture:
    """Fit the weights to the clusters of the start, as if these were classes."""
    singles = Layout([1] * model.layout.n_components, scale.device)
    clusters = replace(examples, y=examples.cluster, layout=singles)
    apart = replace(model, layout=singles)
    fitted = _climb(apart, clusters, scale, _FIRST_STEPS, progress)[0]
    return replace(fitted, layout=model.layout)


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


def _pursue(examples: Examples, scale: Tensor, count: int) -> Tensor:
    """(K, count) columns that together tell each cluster best from the rest.

    Orthogonal matching pursuit, for all clusters at once.
    """
    target = examples.memberships(scale)
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
