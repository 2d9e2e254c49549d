"""What a model is asked about parts of rows, where its answers are explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from mixtura.answers.cells import Cells
from mixtura.answers.class_sums import class_log_joints, class_log_joints_of
from mixtura.answers.subsets import Subsets, with_means
from mixtura.data.batch import Batch, spread
from mixtura.data.given import Device
from mixtura.data.matrix import Matrix
from mixtura.data.schema import Schema
from mixtura.densities import Categorical, Density, DiagonalGaussian, Gaussian, HolePattern, Product
from mixtura.engines import Engine
from mixtura.models.fitted import Fitted, Observations, log_density, log_scale_of, run_over
from mixtura.models.mixture import Mixture
from mixtura.models.network import RegressionNetwork
from mixtura.models.regression import Regression, conditional
from mixtura.models.summarized import Summarized
from mixtura.predictive import of_features, trees_of

AnyFitted = TypeVar("AnyFitted", Fitted, Regression)


@dataclass(frozen=True)
class Question(ABC, Generic[AnyFitted]):
    """What is asked of a model, and of which parts.

    Attributes
    ----------
    output : what values are of.
    cells : what comes and goes.
    """

    model: AnyFitted
    output: str
    device: Device
    cells: Cells = field(default_factory=lambda: Cells.of(None))

    @property
    def schema(self) -> Schema:
        """Names and categories of the columns."""
        return self.model.schema

    @property
    @abstractmethod
    def names(self) -> list[str] | None:
        """Of the C numbers of an answer; None where it is one number."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers an answer has."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Numbers that are held per row and subset, beside the row itself."""

    @abstractmethod
    def values(self, rows: Observations, subsets: Subsets) -> Tensor:
        """(s, n, C) answers to each subset of cells of rows that lack the same ones."""

    @abstractmethod
    def log_density(self, rows: Observations) -> np.ndarray:
        """(n,) in the user's units."""

    def adds_up(self) -> bool:
        """Whether answers are sums over cells: then every order tells the Shapley values."""
        return False


@dataclass(frozen=True)
class ClassQuestion(Question[Fitted]):
    """What a model says of classes, which number a network expects, or how likely rows are."""

    @property
    def names(self) -> list[str] | None:
        if self.output == "log_density" or self.model.classes is None:
            return None
        return [str(label) for label in self.model.classes.tolist()]

    def log_density(self, rows: Observations) -> np.ndarray:
        return self.model.log_density(self.model.engine(rows, self.device))

    @property
    def _source(self) -> object:
        return self.model.mixture if self.output == "log_density" else self.model.model

    @property
    def size(self) -> int:
        classes = self.model.classes
        return 1 if self.output == "log_density" or classes is None else len(classes)

    @property
    def cost(self) -> int:
        source = self._source
        return 4 * self.size + (8 * source.n_components if isinstance(source, Mixture) else 0)

    def values(self, rows: Observations, subsets: Subsets) -> Tensor:
        if self.output == "mean":
            return self._numbers(rows, subsets)
        blend = self.model.blend
        if blend is not None and isinstance(rows, Matrix):  # as in predictions
            rows = replace(rows, values=rows.values.astype(np.float64))
        found = self._own_values(rows, subsets)
        if self.output == "log_density":
            return self._shown(found[0])
        if blend is None:
            return self._shown(self.model.settled(found[0]))
        others = [replace(self, model=each)._own_values(rows, subsets) for each in blend.members]
        every = torch.stack([found[0], *(own for own, _ in others)])
        return self._shown(blend.averaged(every, found[1]))

    def _numbers(self, rows: Observations, subsets: Subsets) -> Tensor:
        """(s, n, 1) what a network expects."""
        network = self.model.model
        assert isinstance(network, RegressionNetwork)
        engine = self.model.engine(self.cells.masked(rows, subsets), self.device)
        outputs = run_over(network, engine, lambda m, b: m.outputs(b)).numpy()
        return torch.from_numpy(self.model.predicted(outputs)).view(-1, len(rows), 1)

    def _own_values(self, rows: Observations, subsets: Subsets) -> tuple[Tensor, Tensor]:
        """What the model itself says in logs, (s, n, C), and shares missing, (s, n) or (s, 1)."""
        if isinstance(rows, Matrix) and isinstance(self._source, Mixture):
            joint, missing = self._of_mixture(self._source, rows, subsets)
        else:
            joint, missing = self._of_any(rows, subsets)
        if self.output == "log_density":
            return joint.logsumexp(-1, keepdim=True), missing
        return self.model.calibrated(joint, missing), missing

    def _shown(self, log_values: Tensor) -> Tensor:
        if self.output == "log_density":
            return log_values
        if self.output == "probability":
            return log_values.exp()
        own = torch.eye(log_values.shape[-1], dtype=torch.bool)
        others = log_values[..., None, :].masked_fill(own, -torch.inf)
        return log_values - others.logsumexp(-1)

    def _of_mixture(
        self, mixture: Mixture, rows: Matrix, subsets: Subsets
    ) -> tuple[Tensor, Tensor]:
        """Class log-joints (s, n, C), and shares of the columns that are missing, (s, 1)."""
        engine, origin = self.model.engine(rows, self.device), self.model.scaling.origin
        batch = engine.all_rows()
        mixture = mixture if engine.device.type == "cpu" else mixture.to(engine.device)
        kept = torch.from_numpy(subsets.columns(rows.values.shape[1])).to(engine.device)
        kept = kept if origin is None else spread(kept, origin)
        if origin is not None and len(set(origin)) > 1:  # products are of several columns' groups
            joint = class_log_joints_of(mixture, batch.to(torch.float64), kept)
        else:
            subsets = subsets if origin is None else subsets.spread(origin[0])
            joint = class_log_joints(mixture, batch.to(torch.float64), subsets)
        if batch.observed is not None:
            kept = kept & batch.observed[0]
        missing = replace(batch, observed=kept).missing_share()[:, None]
        return joint.cpu(), missing.cpu()

    def _of_any(self, rows: Observations, subsets: Subsets) -> tuple[Tensor, Tensor]:
        """The same by the answers to rows with holes, of any model."""
        engine = self.model.engine(self.cells.masked(rows, subsets), self.device)
        missing = engine.concat(lambda batch: batch.missing_share(), self.model.model)
        model = self.model.model
        if self.output == "log_density":
            joint = run_over(self.model.mixture, engine, log_density)[:, None]
        elif isinstance(model, Summarized) and not any(model.summary.levels):
            kept = torch.from_numpy(subsets.columns(rows.values.shape[1])).to(engine.device)
            whole = self.model.engine(rows, self.device)
            found = run_over(model, whole, lambda m, b: m.class_log_joints(b, kept).flatten(1))
            joint = found.unflatten(1, (len(kept), -1)).transpose(0, 1).flatten(0, 1)
        else:
            joint = torch.from_numpy(self.model.class_log_joint(engine))
        return joint.unflatten(0, (-1, len(rows))), missing.unflatten(0, (-1, len(rows)))

    def adds_up(self) -> bool:
        source, calibration = self._source, self.model.calibration
        if not isinstance(source, Mixture) or source.n_components > source.n_classes:
            return False
        parts = source.density.parts if isinstance(source.density, Product) else [source.density]
        if self.output == "log_density":
            fit = source.n_classes == 1
        else:
            plain = calibration == replace(calibration, temperature=1.0, doubt=0.0)
            plain = plain and self.model.blend is None
            fit = self.output == "log_odds" and source.n_classes == 2 and plain
        return fit and all(map(_is_independent, parts))


def _is_independent(density: Density) -> bool:
    kinds = (Categorical, DiagonalGaussian)
    return isinstance(density, kinds) and not isinstance(density, HolePattern)


@dataclass(frozen=True)
class TargetQuestion(Question[Regression]):
    """Which numbers a regression expects, or how likely it finds the features of rows."""

    @property
    def names(self) -> list[str] | None:
        if self.output == "log_density" or self.model.flat:
            return None
        return [f"target {place}" for place in range(self.model.n_targets)]

    @property
    def size(self) -> int:
        return 1 if self.output == "log_density" else self.model.n_targets

    @property
    def cost(self) -> int:
        members = [each.mixture.n_components for each in self.model.members]
        return (8 + 2 * self.model.n_targets) * max(members)

    def log_density(self, rows: Observations) -> np.ndarray:
        assert isinstance(rows, Matrix)
        return self.model.log_density(rows, None, self.device)

    def values(self, rows: Observations, subsets: Subsets) -> Tensor:
        assert isinstance(rows, Matrix)
        whole = self.model.whole if self.output == "log_density" else self.model.near
        engine = self.model.fitted.engine(whole(rows), self.device)
        subsets = subsets.spread(self.model.indicators.column.tolist())
        members, weights = of_features(self.model.fitted)
        said = torch.stack(
            [self._own_values(each, engine.under(each.scaling), subsets) for each in members]
        )
        share = torch.from_numpy(weights)[:, None, None, None]
        if self.output == "log_density":
            return (said + share.log()).logsumexp(0)
        return self._beside_trees((said * share).sum(0), engine, subsets)

    def _own_values(self, member: Fitted, engine: Engine, subsets: Subsets) -> Tensor:
        """(s, n, C) what one of the averaged models says."""
        batch, mixture = engine.all_rows().to(torch.float64), member.mixture.to(engine.device)
        n_targets, density = self.model.n_targets, mixture.density
        assert isinstance(density, Gaussian)
        found, means = with_means(density, batch, subsets, n_targets)
        joint = found + mixture.log_joint_weight
        if self.output == "log_density":
            return joint.logsumexp(2, keepdim=True).cpu() - self._stretch(
                member, engine.all_rows(), subsets
            )
        location, scale = self._units(member)
        expected = torch.einsum("snk,snkt->snt", joint.softmax(2), means).cpu()
        return expected * scale + location

    def _beside_trees(self, expected: Tensor, engine: Engine, subsets: Subsets) -> Tensor:
        """(s, n, T) the same, with what stands beside trees where a subset shows all they ask for.

        Rows lack the same columns.
        """
        fitted, n_targets = self.model.fitted, self.model.n_targets
        members = zip(self.model.members, self.model.weights, trees_of(fitted), strict=True)
        beside = [(each, weight, trees) for each, weight, trees in members if trees is not None]
        mass = torch.full((len(expected), 1, 1), 1.0 - sum(weight for _, weight, _ in beside))
        total = expected * mass
        for each, weight, trees in beside:
            batch = engine.under(each.scaling).all_rows().to(torch.float64)
            kept = torch.from_numpy(subsets.columns(trees.n_columns)).to(batch.x.device)
            shown = spread(kept, trees.origin) & batch.lacks()[0].eq(0)
            (told,) = shown[:, trees.places].all(1).nonzero(as_tuple=True)
            if not len(told):
                continue
            count, observed = len(told), shown[told].repeat_interleave(len(batch), 0)
            x = batch.x.repeat(count, 1) * observed
            many = Batch(x, observed, batch.y.repeat(count), batch.weight.repeat(count))
            said = conditional(each.mixture.to(batch.x.device), many, n_targets)
            mean = torch.einsum("nk,nkt->nt", said[..., 0].exp(), said[..., 1 : 1 + n_targets])
            location, scale = self._units(each)
            found = mean.cpu() * scale + location
            total[told.cpu()] += weight * found.unflatten(0, (count, len(batch)))
            mass[told.cpu()] += weight
        return total / mass

    def _units(self, member: Fitted) -> tuple[Tensor, Tensor]:
        """(T,) location and scale of the targets."""
        last = slice(-self.model.n_targets, None)
        units = member.scaling.location, member.scaling.scale
        location, scale = (torch.from_numpy(each[last]) for each in units)
        return location, scale

    @staticmethod
    def _stretch(member: Fitted, batch: Batch, subsets: Subsets) -> Tensor:
        """(s, n, 1) what curves add to the logs of scales: models are compared in deviations."""
        assert batch.observed is not None  # targets are missing
        linear = torch.from_numpy(member.scaling.scale).log()
        own = (log_scale_of(member.scaling, batch.x).cpu() - linear) * batch.observed.cpu()
        kept = torch.from_numpy(subsets.columns(batch.x.shape[1])).to(own)
        return (kept @ own.mT)[..., None]
