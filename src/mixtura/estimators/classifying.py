"""What classifiers answer whose fitted model has class log-joints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from torch import Tensor

from mixtura.answers.condition import Given, draw_by_chance
from mixtura.answers.next_feature import Cost, next_feature, unit_costs
from mixtura.answers.sets import predict_set
from mixtura.conformal import HeldBack
from mixtura.data.given import ArrayLike, ClassWeight, RandomState
from mixtura.data.labels import encode_labels
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling, nan_range
from mixtura.data.schema import Schema
from mixtura.engines import Engine
from mixtura.estimators.answering import DensityEstimator
from mixtura.estimators.base import ModelEstimator
from mixtura.estimators.reading import check_count
from mixtura.estimators.rows import Rows, check_held_back, labeled_score, read_rows
from mixtura.exceptions import AmbiguousDataWarning, InvalidInputError, NoLabelsError, warn
from mixtura.models.fitted import Observations
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.objectives import log_margin
from mixtura.persistence import numpy_twin
from mixtura.progress import Progress
from mixtura.report import write_report
from mixtura.selection.chooser import (
    AnyTrained,
    AnyWay,
    Chooser,
    Contender,
    Judge,
    to_compare,
    too_few,
)
from mixtura.selection.held_out import Answers

#: Weight of unlabeled rows in the likelihood, where nothing else is said: that of any row.
EVEN = 0.5
#: Whether unlabeled rows help is tried with so many of them at most, so many labeled ones at least,
#: and not once this share of the allowed time has gone.
_TRIED, _FEWEST_LABELS, _UNTIL = 1_000, 10, 0.6
#: Rows, and numbers held in memory for them, up to which NumPy answers in less time than PyTorch.
_FEW_ROWS, _FEW_NUMBERS = 300, 2**22
#: Why unlabeled rows are set aside.
_NO_TIME = "max_time left too little time to tell whether they help"
_NO_GAIN = "they did not clearly help to predict held-out labels"
_TOO_FEW = "the labels are too few to tell whether they would help"
STREAMED = "the first part of this stream had none, so that nothing was compared"


def warn_of_rows_set_aside(rows: Rows, reason: str) -> None:
    """Say that unlabeled rows are not used, and why."""
    warn(
        f"{int((rows.y < 0).sum())} unlabeled rows are set aside: {reason}. To use them all the "
        "same, set unlabeled_weight=0.5; unlabeled_weight=0 sets them aside without this warning.",
        AmbiguousDataWarning,
    )


def prefer_unlabeled(
    ways: tuple[AnyWay, AnyWay],
    rows: Rows,
    engine: Engine,
    generator: torch.Generator,
    progress: Progress,
    judge: Judge[AnyTrained],
) -> tuple[Contender[AnyWay, AnyTrained] | None, Chooser[AnyWay, AnyTrained]]:
    """The second of two ways, if it does surely better by also learning from unlabeled rows.

    None, and a warning that says why, if not; and the chooser.
    """
    some = to_compare(engine, spawn(generator)).fewer_unlabeled(engine, _TRIED)
    chooser = Chooser[AnyWay, AnyTrained](
        some, judge, spawn(generator), progress, n_ways=2, until=_UNTIL, fewest=_FEWEST_LABELS
    )
    if too_few(some, _FEWEST_LABELS):
        warn_of_rows_set_aside(rows, _TOO_FEW)
        return None, chooser
    without = chooser.race(ways[:1], "unlabeled rows")
    best = chooser.challenge(without, ways[1:], Answers.surely_beats, "unlabeled rows")
    if best is without:
        warn_of_rows_set_aside(rows, _NO_TIME if chooser.cut_short else _NO_GAIN)
        return None, chooser
    return best, chooser


@dataclass(kw_only=True, eq=False, repr=False)
class ModelClassifier(ClassifierMixin, ModelEstimator):
    """Answers of a classifier whose model has class log-joints."""

    unlabeled: object = "auto"
    class_weight: ClassWeight = None

    @property
    def classes_(self) -> np.ndarray:
        """(C,) the labels."""
        classes = self._fitted.classes
        assert classes is not None
        return classes

    def _to_classify(self, X: ArrayLike) -> Engine:
        """Rows to answer for; an error where no classes are known."""
        self._check_classes()
        return self._engine(X)

    def _check_classes(self) -> None:
        if not len(self.classes_):
            raise NoLabelsError(
                "the model was fitted without labels and knows no classes: use cluster, transform "
                "or score_samples, or fit it with some labels."
            )

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """log p(class | x), (n, C); a row with nothing observed gets the class prior."""
        self._check_classes()
        fitted = self._fitted
        rows = fitted.checked(self._rows(X))
        if isinstance(rows, Matrix) and self._are_few(rows):
            twin = numpy_twin(fitted)
            if twin is not None and len(rows) * twin.row_cost <= _FEW_NUMBERS:
                values = np.asarray(rows.values, dtype=np.float64)
                return twin.log_proba(replace(rows, values=values))
        return fitted.log_proba(fitted.engine(rows, self.device))

    def _are_few(self, rows: Matrix) -> bool:
        """Whether PyTorch's overhead is what an answer would take, and NumPy gives the same."""
        fitted = self._fitted
        exact = isinstance(fitted.model, Mixture) and isinstance(rows.values, np.ndarray)
        exact = exact and fitted.precision(rows.values.dtype) == torch.float64
        return exact and len(rows) <= _FEW_ROWS and str(self.device) in ("auto", "cpu")

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> float:
        """The share of the labeled rows, by weight, whose class is predicted.

        Unlabeled rows are told as in `fit`.
        """
        y, weight = self._by_row(y, X), self._by_row(sample_weight, X)
        return labeled_score(self.predict(X), y, weight, self.unlabeled, self.classes_)

    def report(
        self,
        path: str | PathLike[str],
        X: ArrayLike,
        y: ArrayLike,
        *,
        max_time: float = 60.0,
        random_state: RandomState = None,
    ) -> None:
        """Write a report on the model as one HTML file, which needs nothing else.

        It has the data and its holes, what was chosen against what, error and calibration whole and
        with entries missing, a confusion matrix, and a card of what the model cannot do; of a model
        with a density of rows also which columns matter, each class's components in words and
        pictures, typical and strange rows, and what to measure next. Its pictures need matplotlib:
        `pip install 'mixtura[plot]'`.

        Parameters
        ----------
        path : the file; an old one is replaced when the new one is complete. Of a name that ends in
            .md, the model card alone, in Markdown, which needs no matplotlib.
        X, y : rows that the model has not seen, and their labels. Of many rows some are drawn.
        max_time : seconds, about; where they do not suffice, fewer rows are looked at, and the
            report says how many.
        random_state : of the rows that are drawn, and of holes.
        """
        seed = self._generator(random_state).initial_seed()
        write_report(self, path, X, y, max_time=max_time, seed=seed)


class DensityClassifier(ModelClassifier, DensityEstimator):
    """Answers of a classifier, beside those of its density."""

    def _read_labeled(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike,
        schema: Schema | None = None,
        known: np.ndarray | None = None,
    ) -> tuple[Rows, Schema]:
        """Training rows with their labels and weights, and what the columns are."""
        given, schema = self._read(X, schema)
        y, weight = self._by_row(y, X), self._by_row(sample_weight, X)
        return read_rows(self, given, y, weight, known), schema

    def _reach(self, rows: Observations, schema: Schema, *units: Scaling) -> np.ndarray:
        """(2, D) between which numbers have a say, in one of some units; categories always have."""
        values = nan_range(rows.values)
        low, high = zip(*(each.reach(*values) for each in units), strict=True)
        ends = np.stack([np.min(low, 0), np.max(high, 0)])
        everywhere = (schema.levels(len(ends.T)) > 0) | self._keeps_units
        return np.where(everywhere, np.array([[-np.inf], [np.inf]]), ends)

    @property
    def class_prior_(self) -> np.ndarray:
        """(C,) p(class)."""
        self._fitted.mixture  # noqa: B018  an error where there is no density
        prior = self._fitted.class_prior
        assert prior is not None
        return prior

    @property
    def temperature_(self) -> float:
        """What class log-joints are divided by."""
        return self._fitted.calibration.temperature

    @property
    def doubt_(self) -> float:
        """The share of a plain guess in the probabilities."""
        return self._fitted.calibration.doubt

    @property
    def fade_(self) -> float:
        """How fast the temperature falls with the share of missing features."""
        return self._fitted.calibration.fade

    def predict(
        self, X: ArrayLike, *, reject: float | None = None, unknown: object = None
    ) -> np.ndarray:
        """The most probable class of each row.

        Parameters
        ----------
        reject : rows that `is_outlier` flags at this share get the label `unknown` instead: the
            model has never seen the like. None rejects nothing.
        unknown : None, or a label.
        """
        found = super().predict(X)
        if reject is None:
            return found
        labels = found.astype(object)
        labels[self.is_outlier(X, reject)] = unknown
        alike = np.asarray(unknown).dtype.kind == found.dtype.kind
        return np.asarray(labels.tolist()) if alike else labels

    def predict_set(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        calibration: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> np.ndarray:
        """Sets of classes, of which a share `coverage` hold the true one, whatever is missing.

        A class is in the set of a row unless held-back rows, masked as this row is, hardly ever
        gave their own class so low a probability. Rows of training are held back by folds: those of
        each fold are judged by a model that was trained without them. Coverage is over all rows
        that lack the same entries, by their weights in training, not over those of each class. A
        set may be empty, where even the most probable class is stranger than promised; it has all
        classes where held-back rows are fewer than `coverage / (1 - coverage)`, and where
        `coverage` is 1.

        Parameters
        ----------
        coverage : from 0 to 1.
        calibration : rows and labels that the model has not seen, to go by instead.

        Returns
        -------
        (n, C) bool, classes in the order of `classes_`.
        """
        self._check_classes()
        model = self._fitted
        rows = model.checked(self._table(X))
        held_back = model.held_back if calibration is None else self._unseen(*calibration)
        known = check_held_back(held_back, coverage)
        return predict_set(model, known, rows, coverage, self.device)

    def next_feature(
        self,
        X: ArrayLike,
        cost: Cost = None,
        *,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> np.ndarray:
        """Which missing entry of each row to measure next.

        Parameters
        ----------
        cost : of measuring each column, (D,), or a dict by name or position, where others cost one.
        max_time : seconds, about, after which entries that have not been looked at stay NaN, with a
            warning. `verbose` of the estimator shows how far it is.

        Returns
        -------
        (n, D) nats that each missing entry is expected to tell about the class, by its cost: the
        entropy of its calibrated probabilities that measuring it is expected to take away (where
        models are averaged, of those of the first). Zero where an entry is observed.
        Of categories it is a sum over these; of numbers a quadrature, whose nodes come from draws
        (of `random_state`) unless densities are Gaussian.
        """
        self._check_classes()
        rows, generator = self._fitted.checked(self._table(X)), self._generator(random_state)
        costs = unit_costs(self.schema_, rows.values.shape[1], cost)
        with Progress((), self.verbose, max_time) as progress:
            return next_feature(self._fitted, rows, generator, self.device, progress) / costs

    def _unseen(self, X: ArrayLike, y: ArrayLike) -> HeldBack:
        """Rows that the model has not seen; those without a label are left out."""
        values = self._fitted.checked(self._rows(X)).values
        codes = self._codes(self._by_row(y, X), len(values))
        if codes is None or not (codes >= 0).any():
            raise InvalidInputError("calibration=(X, y) needs labels of rows.")
        known = codes >= 0
        return HeldBack.unseen(values[known], codes[known])

    def class_log_density(self, X: ArrayLike) -> np.ndarray:
        """log p(x | class) over the observed features of each row, (n, C), in the units of X.

        p(class) is `class_prior_`, so that the density integrates to one.
        """
        return self._fitted.class_log_density(self._to_classify(X))

    def log_margin(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """log p(x, y) minus the largest log p(x, c) of another class: positive where right.

        Of the first model, where several are averaged.
        """
        if len(self.classes_) == 1:
            raise InvalidInputError("a margin needs two classes; the model was fitted on one.")
        class_log_joint = self._fitted.class_log_joint_in_units(self._to_classify(X))
        labels = self._codes(self._by_row(y, X), len(class_log_joint))
        if labels is None or (labels < 0).any():
            raise InvalidInputError("log_margin needs a label for every row.")
        return log_margin(torch.from_numpy(class_log_joint), torch.from_numpy(labels)).numpy()

    def sample(
        self,
        n_samples: int = 1,
        y: ArrayLike = None,
        *,
        given: Given | None = None,
        random_state: RandomState = None,
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw rows from the model.

        Parameters
        ----------
        n_samples : number of rows.
        y : a class label, or one label per row; None draws them as they are in the model.
        given : values by column, as of `condition`, that all rows are to have.

        Returns
        -------
        X (n_samples, D) and y (n_samples,). X is a data frame of the columns and types of training
        if that was one (of pandas or polars). Columns of whole numbers then have such, between the
        least and the largest of training, and columns without negative numbers none below the
        least; the model's own draws are those of a fit to arrays. A model that was trained, or
        chosen, to predict classes may not know how columns hang together: to draw rows like those
        of training, fit one of full covariances with `objective="likelihood"`.
        """
        mixture, generator = self._fitted.mixture, self._generator(random_state)
        if given is not None:
            return self._sample_given(given, check_count(n_samples), y, generator)
        labels = self._labels_to_draw(check_count(n_samples), y, generator)
        rows = self._fitted.decoded(mixture.sample(labels, generator))
        return rows, self.classes_[labels.numpy()]

    def _sample_given(
        self, given: Given, count: int, y: ArrayLike, generator: torch.Generator
    ) -> tuple[ArrayLike, np.ndarray]:
        """Rows of which some columns are given, and labels: as told, or as the model has them."""
        model, condition, labels = self._fitted, self._condition(given), None
        if y is not None:
            labels = self._labels_to_draw(count, y, generator).numpy()
        drawn = condition.draw(count, labels, generator)
        if labels is None:
            joint = model.class_log_joint(model.engine(drawn, self.device))
            labels = draw_by_chance(softmax(joint, axis=1), generator)
        return model.schema.table(drawn.values), self.classes_[labels]

    def _labels_to_draw(self, n_samples: int, y: ArrayLike, generator: torch.Generator) -> Tensor:
        """Class indices of draws: as asked for, or from the class prior."""
        if y is None:
            prior = self._fitted.mixture.log_prior.exp()
            return torch.multinomial(prior, n_samples, replacement=True, generator=generator)
        wanted = np.asarray(y)
        if wanted.shape not in ((), (n_samples,)):
            raise InvalidInputError(
                f"y has shape {wanted.shape}: give one label, or one for each of the {n_samples} "
                "rows."
            )
        labels = encode_labels(np.broadcast_to(wanted, n_samples), self.classes_, None)
        if (labels < 0).any():
            raise InvalidInputError(
                "y has None or NaN among the labels to draw rows of: leave them out, or y "
                "altogether."
            )
        return torch.from_numpy(labels)
