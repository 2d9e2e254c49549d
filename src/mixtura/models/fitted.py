"""A fitted model: all that it takes to answer for rows in a user's units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from mixtura.conformal import HeldBack
from mixtura.constants import SHARES
from mixtura.data.atoms import Atoms
from mixtura.data.batch import UNLABELED, Batch
from mixtura.data.curves import Curves
from mixtura.data.failures import failures
from mixtura.data.given import ArrayLike, Device
from mixtura.data.indicators import Indicators
from mixtura.data.matrix import Matrix
from mixtura.data.names import column_label
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences
from mixtura.data.sequences import AnyBatch, SequenceBatch, warn_of_lengths
from mixtura.data.table_forms import TableForm
from mixtura.data.trees import Trees
from mixtura.densities import Categorical, Product, VectorDensity
from mixtura.densities.product import numeric_part
from mixtura.engines import Engine, engine_of
from mixtura.engines.base import HasRowCost
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, NoDensityError, warn
from mixtura.models.calibration import Calibration
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.models.sparse import SparseModel
from mixtura.models.summarized import Summarized
from mixtura.models.votes import Votes
from mixtura.parts import storable

#: Rounding errors per feature, in units of a square's rounding (found by trial); and what they may
#: move a log density by.
_ROUNDING, _MOST_NATS = 4.0, 0.05
#: Rows that are enough to see whether they lack what those of training did, and by how much the
#: shares that do may differ.
_ENOUGH_ROWS, _OTHER_SHARE = 30, 0.3
_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}

for _shared in (Schema, TableForm, Scaling, Curves, Atoms, Indicators, Trees, HeldBack):
    storable(_shared)  # which the runtime reads without scikit-learn, and so without `parts`

#: What gives rows a class log-joint.
AnyModel = Mixture | Network | SparseModel | Summarized | Votes
#: Four numbers, as `Fitted` has them.
PerValue = tuple[float, float, float, float]
#: Rows or sequences that have been read and checked.
Observations = Matrix | Sequences
AnyRows = TypeVar("AnyRows", bound=Observations)


class Movable(HasRowCost, Protocol):
    """A model that can go to where the rows are."""

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Self: ...


AnyMovable = TypeVar("AnyMovable", bound=Movable)


def working_type(given: np.dtype, n_features: int, floor: float) -> torch.dtype:
    """float32 for rows that come in it, where its rounding moves no log density by much.

    A squared distance is a sum over features of squares divided by variances, which are no smaller
    than the floor, and each square is rounded.
    """
    risky = _ROUNDING * n_features * float(np.finfo(np.float32).eps) > _MOST_NATS * floor
    return torch.float64 if risky else _DTYPES[given]


def log_scale_of(scaling: Scaling, x: Tensor) -> Tensor:
    """`Scaling.log_scale` at values x (n, D), where they are."""
    return torch.from_numpy(scaling.log_scale(x.cpu().numpy())).to(x.device)


def run_over(
    model: AnyMovable, engine: Engine[AnyBatch], function: Callable[[AnyMovable, AnyBatch], Tensor]
) -> Tensor:
    """`function` of every row under the model, in double precision on the CPU.

    The model is on the CPU, or where the rows are. There it is not copied, so that it keeps the
    factors that it has once computed.
    """
    moved = model if engine.device.type == "cpu" else model.to(engine.device)
    return engine.concat(lambda batch: function(moved, batch).double(), moved)


def log_density(mixture: Mixture, batch: Batch | SequenceBatch) -> Tensor:
    """(n,) log p(x) in the model's units."""
    return mixture.class_log_joint(batch).logsumexp(1)


def typicality(mixture: Mixture, batch: Batch | SequenceBatch) -> Tensor:
    """(n,) what outliers are judged by.

    It is log p with the holes filled by their conditional means: neither they nor what they might
    have held make a row unlikely. Of sequences, of all lengths, it is log p per value.
    """
    rows = batch.frames if isinstance(batch, SequenceBatch) else batch
    filled = rows.x
    if rows.observed is not None:
        filled = mixture.impute(replace(batch, y=torch.full_like(batch.y, UNLABELED)))
    untold = torch.full_like(rows.lacks(), -1)
    whole = replace(rows, x=filled, observed=None, absent=untold)
    if isinstance(batch, SequenceBatch):
        return log_density(mixture, replace(batch, frames=whole, kept={})) / batch.n_values()
    return log_density(mixture, whole)


def in_deviations(scores: np.ndarray, count: np.ndarray, per_value: PerValue) -> np.ndarray:
    """(n,) log densities per value of sequences of so many values: how far from their mean."""
    mean, first, own, common = per_value
    return (scores - mean - first / count) / np.sqrt(own / count + common)


@storable
@dataclass(frozen=True)
class Blend:
    """Models whose class probabilities are averaged with those of a first one.

    Attributes
    ----------
    members : the others.
    weights : (1 + M,) of all, that of the first one first; they sum to one.
    calibration : of the averages.
    """

    members: tuple[Fitted, ...]
    weights: np.ndarray
    calibration: Calibration

    def log_proba(self, first: Tensor, engine: Engine) -> Tensor:
        """(n, C) log p(c | x), given those of the first model and the rows in its units."""
        others = [
            torch.cat([each._log_proba(rows) for rows in engine.in_units(each.scaling)])
            for each in self.members
        ]
        missing = engine.concat(lambda batch: batch.missing_share(), self.members[0].model)
        return self.averaged(torch.stack([first, *others]), missing)

    def averaged(self, log_proba: Tensor, missing: Tensor) -> Tensor:
        """(..., C) log p(c | x) of rows that lack shares (...), of what all say (1 + M, ..., C).

        What another model does not say of a row, the first one does. Where nothing is observed,
        they are averages of priors.
        """
        blank = missing[..., None] == 1.0
        if not any(isinstance(each.model, Summarized) for each in self.members):
            average = log_average(log_proba, self.weights)
            return torch.where(blank, average, self.calibration.log_proba(average, missing))
        say = log_proba[1:].logsumexp(-1, keepdim=True).amin(0).clamp_max(0.0)
        average = log_average(log_proba.log_softmax(-1), self.weights)
        found = self.calibration.log_proba(average, missing) + say
        found = torch.logaddexp(found, log_proba[0] + (-say.expm1()).log())
        return torch.where(blank, log_proba[0], found)


def _warn_of_other_holes(rows: Matrix, lacks: np.ndarray, schema: Schema) -> None:
    """Of a column that rows lack far more, or less often, than those of training did (D,)."""
    values = rows.values
    if not lacks.size or len(rows) < _ENOUGH_ROWS or not isinstance(values, np.ndarray):
        return
    here = np.isnan(values).mean(0)
    column = int(np.abs(here - lacks).argmax())
    if abs(here[column] - lacks[column]) > _OTHER_SHARE:
        warn(
            f"{here[column]:.0%} of these rows lack {column_label(schema.names, column)}, in "
            f"training {lacks[column]:.0%}, and this model takes missing entries for signs of "
            "classes. If circumstances have changed, and not classes, fit with "
            "missingness='ignore'.",
            AmbiguousDataWarning,
        )


def log_average(log_proba: Tensor, weights: np.ndarray) -> Tensor:
    """(..., C) logs of averages, by weights (M,), of probabilities whose logs are (M, ..., C)."""
    log_weight = torch.from_numpy(weights).log()
    return (log_proba + log_weight.view(-1, *[1] * (log_proba.ndim - 1))).logsumexp(0)


@storable
@dataclass(frozen=True)
class Fitted:
    """A model, the units and columns of its rows, and what its answers mean.

    Rows come as engines in the model's units (`engine`); answers are arrays, in the user's units.

    Attributes
    ----------
    model : what gives rows a class log-joint.
    scaling : the map between units.
    schema : names and categories of the columns.
    classes : (C,) labels; None where there are none.
    class_prior : (C,).
    calibration : of class probabilities.
    typical : (1001,) quantiles of `typicality` over rows like those of training.
    per_value : how log densities per value of sequences vary with the number n of values: the mean
        is the first number plus the second by n, the variance the third by n plus the fourth.
    target : location and scale of the numbers that a network predicts.
    blend : models beside this one, whose class probabilities are averaged with its own.
    held_back : rows that prediction sets go by.
    reach : (2, D) between which numbers have a say in class probabilities; (2, 0): everywhere.
    lengths : of the shortest and the longest training sequence; (0, 0) if not known.
    bounded : whether what single frames tell of classes is.
    limits : (3, D + 1) beyond which channels have failed, as `limits_of` has it; (3, 0): none.
    lacks : (D,) shares of the training rows that lack each entry, where that is a sign; else (0,).
    """

    model: AnyModel
    scaling: Scaling
    schema: Schema = field(default_factory=Schema)
    classes: np.ndarray | None = None
    class_prior: np.ndarray | None = None
    calibration: Calibration = field(default_factory=Calibration)
    typical: np.ndarray | None = None
    target: tuple[float, float] = (0.0, 1.0)
    blend: Blend | None = None
    held_back: HeldBack | None = None
    per_value: PerValue | None = None
    reach: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))
    lengths: tuple[int, int] = (0, 0)
    bounded: bool = False
    limits: np.ndarray = field(default_factory=lambda: np.zeros((3, 0)))
    lacks: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __getstate__(self) -> dict[str, object]:
        """A copy or pickle has the fields alone, not the twin that is kept beside them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def n_columns(self) -> int:
        """How many columns rows have."""
        return len(self.scaling.scale)

    @property
    def mixture(self) -> Mixture:
        """The density of rows; an error where there is none."""
        if isinstance(self.model, Mixture):
            return self.model
        if isinstance(self.model, Network):
            return self.model.mixture
        if isinstance(self.model, SparseModel):
            raise NoDensityError("a sparse model is discriminative, and has no density.")
        if isinstance(self.model, Summarized):
            raise NoDensityError(
                "this model knows summaries of sequences (representation='summary'), and has no "
                "density of frames: use representation='auto'."
            )
        raise NoDensityError(
            "this model decides by votes (method='adaboost'), and has no density: use another "
            "method."
        )

    def engine(
        self, rows: Observations, device: str | torch.device, y: np.ndarray | None = None
    ) -> Engine:
        """Rows in the model's units, with class indices (n,) where they are known."""
        y = np.full(len(rows), UNLABELED) if y is None else y
        dtype = self.precision(rows.values.dtype)
        return engine_of(rows, y, None, self.scaling, device, dtype)

    def precision(self, given: np.dtype) -> torch.dtype:
        """What rows that come in a type are worked on in."""
        # Values that a curve tells apart may be one number in float32 and in the first's units.
        if self.blend is not None or isinstance(self.model, Votes | SparseModel | Summarized):
            return torch.float64
        part = numeric_part(self.mixture.density)
        promised = 0.0 if isinstance(part, VectorDensity) else math.inf
        return working_type(given, part.n_features, getattr(part, "floor", promised))

    # -- classes -------------------------------------------------------------------------------

    def checked(self, rows: AnyRows) -> AnyRows:
        """The rows, nothing known of numbers far outside of training; a warning names the first.

        So do others of channels of sequences that failed; and one tells of sequences that are far
        shorter or longer, or of rows that lack other entries where that is taken for a sign.
        """
        known = self.schema.without_far(rows, self.reach)
        if isinstance(known, Sequences):
            warn_of_lengths(known.lengths, self.lengths)
            failed = failures(known, self.limits)
            return known.without(failed) if failed.any() else known
        if isinstance(rows, Matrix):
            _warn_of_other_holes(rows, self.lacks, self.schema)
        return known

    def class_log_joint(self, engine: Engine) -> np.ndarray:
        """(n, C) log p(x, c) in the model's units, or log shares of votes; as bounded as asked."""
        return run_over(self.model, engine, self._class_log_joint).numpy()

    def _class_log_joint(self, model: AnyModel, batch: Batch) -> Tensor:
        return model.class_log_joint(batch.for_prediction() if self.bounded else batch)

    def log_proba(self, engine: Engine) -> np.ndarray:
        """(n, C) log p(c | x); a row with nothing observed gets the prior, of averages theirs."""
        own, blend = self._log_proba(engine), self.blend
        return (self.settled(own) if blend is None else blend.log_proba(own, engine)).numpy()

    def _log_proba(self, engine: Engine) -> Tensor:
        """(n, C) what the model itself says."""

        def calibrated(model: AnyModel, batch: Batch) -> Tensor:
            joint = self._class_log_joint(model, batch).double()
            missing = batch.missing_share() if engine.may_have_missing else None
            return self.calibrated(joint, missing)

        return run_over(self.model, engine, calibrated)

    def calibrated(self, class_log_joint: Tensor, missing: Tensor | None) -> Tensor:
        """(..., C) log p(c | x) of rows that lack shares (...) of their features, or nothing.

        Of summaries they add up to the share of a say that these have.
        """
        found = self.calibration.log_proba(class_log_joint, missing)
        if missing is not None:
            blank = (missing == 1.0).expand(found.shape[:-1])
            found[blank] = class_log_joint[blank].log_softmax(-1)
        if isinstance(self.model, Summarized):
            found = found + class_log_joint.logsumexp(-1, keepdim=True)
        return found

    def settled(self, log_proba: Tensor) -> Tensor:
        """(..., C) log probabilities that add up to one: classes share what is not said."""
        if not isinstance(self.model, Summarized):
            return log_proba
        unsaid = (-log_proba.logsumexp(-1, keepdim=True).clamp_max(0.0).expm1()).log()
        return torch.logaddexp(log_proba, unsaid - math.log(log_proba.shape[-1]))

    def class_log_density(self, engine: Engine) -> np.ndarray:
        """(n, C) log p(x | c), in the user's units."""
        mixture = self.mixture
        assert self.class_prior is not None
        prior = mixture.log_prior.numpy() if self.model is mixture else np.log(self.class_prior)
        return self.class_log_joint_in_units(engine) - prior

    def class_log_joint_in_units(self, engine: Engine) -> np.ndarray:
        """(n, C) log p(x, c), in the user's units."""
        return self._in_users_units(self.model, engine, lambda m, b: m.class_log_joint(b))

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        """(n,) expected numbers, from outputs (n, 2) of a network that predicts."""
        location, scale = self.target
        return outputs[:, 1] * scale + location

    # -- densities -----------------------------------------------------------------------------

    def log_density(self, engine: Engine) -> np.ndarray:
        """(n,) log p(x), in the user's units."""
        found = self._in_users_units(self.mixture, engine, lambda m, b: log_density(m, b)[:, None])
        return found[:, 0]

    def _in_users_units(
        self,
        model: AnyMovable,
        engine: Engine[AnyBatch],
        function: Callable[[AnyMovable, AnyBatch], Tensor],
    ) -> np.ndarray:
        """Log densities (n, k), less the logs of the scales of what is observed."""

        def moved(model: AnyMovable, batch: AnyBatch) -> Tensor:
            log_scale = log_scale_of(self.scaling, batch.x)
            return function(model, batch).double() - batch.sum_observed(log_scale)[:, None]

        return run_over(model, engine, moved).numpy()

    def component_log_joint(self, engine: Engine) -> np.ndarray:
        """(n, K) log p(x, class, component), in the user's units."""
        return self._in_users_units(self.mixture, engine, lambda m, b: m.log_joint(b))

    def responsibilities(self, engine: Engine) -> np.ndarray:
        """(n, K) p(component | x)."""
        return run_over(self.mixture, engine, lambda m, b: m.posterior(b)).numpy()

    def embed(self, engine: Engine) -> np.ndarray:
        """(n, K) what the components make of each row: what a read-out reads, or posteriors."""
        if isinstance(self.model, Network):
            return run_over(self.model, engine, lambda n, b: n.embed(b)).numpy()
        return self.responsibilities(engine)

    def typicality(self, engine: Engine) -> np.ndarray:
        """(n,) what outliers are judged by, in the model's units; of sequences, in deviations."""
        found = run_over(self.mixture, engine, typicality).numpy()
        if self.per_value is None:
            return found
        count = run_over(self.mixture, engine, lambda _, batch: batch.n_values()).numpy()
        return in_deviations(found, count, self.per_value)

    def is_outlier(self, engine: Engine, share: float) -> np.ndarray:
        """(n,) which rows are less typical than all but a share of those like training's."""
        found = self.typicality(engine)
        assert self.typical is not None
        return found < np.interp(share, SHARES, self.typical)

    # -- what is missing -----------------------------------------------------------------------

    def imputed(self, engine: Engine, values: np.ndarray) -> np.ndarray:
        """`values` with conditional means, given the class where it is known, in their holes."""
        return self._filled(engine, values, lambda m, b: m.impute(b))

    def drawn(self, engine: Engine, values: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """`values` with a draw of what is missing in their holes."""
        return self._filled(engine, values, lambda m, b: m.draw(b, generator))

    def _filled(
        self, engine: Engine, values: np.ndarray, function: Callable[[Mixture, Batch], Tensor]
    ) -> np.ndarray:
        found = run_over(self.mixture, engine, lambda m, b: b.unpacked(function(m, b))).numpy()
        filled = np.where(np.isnan(values), self.scaling.invert(found), values)
        return filled.astype(values.dtype)

    def category_proba(self, engine: Engine, column: int | str) -> np.ndarray:
        """(n, number of categories) p(category | what is observed) of a categorical column."""
        density, n_features = self.mixture.density, engine.n_features
        if not isinstance(density, Product):
            raise InvalidInputError("no column of this model holds categories: use impute.")
        place = self.schema.position(column, n_features)
        if not self.schema.levels(n_features)[place]:
            raise InvalidInputError(f"column {column!r} holds numbers: use impute.")
        number, within = density.find(place)
        part = density.parts[number]
        assert isinstance(part, Categorical)

        def chances(mixture: Mixture, batch: Batch) -> Tensor:
            share = mixture.posterior(batch).to(batch.x.dtype)
            return part.to(batch.x.device).chances(density.view(batch, number), share, within)

        return run_over(self.mixture, engine, chances).numpy()

    # -- draws ---------------------------------------------------------------------------------

    def decoded(self, rows: Tensor) -> ArrayLike:
        """Rows that a model drew, (n, D), in the user's units and categories, as in training."""
        return self.schema.table(self.schema.within(self.scaling.invert(rows.cpu().numpy())))
