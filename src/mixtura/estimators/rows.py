"""Training rows with classes, read and found consistent before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length

from mixtura.conformal import HeldBack
from mixtura.data.columns import unmasked
from mixtura.data.given import ArrayLike, ClassWeight, Numbers
from mixtura.data.labels import (
    CodedLabels,
    class_masses,
    encode_labels,
    find_labeled,
    labeled_mask,
    read_labels,
)
from mixtura.estimators.reading import check_weight
from mixtura.exceptions import (
    AmbiguousDataWarning,
    DegenerateDataWarning,
    InvalidInputError,
    UnsupportedError,
    check_share,
    warn,
)
from mixtura.models.fitted import Observations

if TYPE_CHECKING:
    from mixtura.estimators.classifying import ModelClassifier

#: Shares of themselves that labels differ by where sums of decimal fractions are rounded.
_ROUNDING = 1e-12
#: A mean weight of rows that is smaller hardly counts rows.
_LITTLE = 0.1
#: Rows that are looked at before all are.
_GLANCE = 2**20
#: The prior of a class that a stream has not shown yet: with one of a row or less it would already
#: be predicted for rows between the others.
_NEVER = 1e-100
#: What is said of a name in place of labels or targets.
_NAME = "y={!r} is a name, for estimators that learn from files: pass one value per row."


@dataclass(frozen=True)
class Rows:
    """Rows or sequences; labels are indices of `classes` (-1: none), weights positive."""

    X: Observations
    y: np.ndarray
    weight: np.ndarray
    classes: np.ndarray

    @property
    def has_unlabeled(self) -> bool:
        return bool(self.y.min(initial=0) < 0)

    def chosen_on(self, unlabeled_weight: float | str) -> tuple[Rows, bool]:
        """The rows that all else is chosen on; and whether to ask if unlabeled ones help, too.

        They are the labeled ones, where there are some of every class, and unlabeled ones weigh
        nothing, or it is open what they weigh.
        """
        left_open = unlabeled_weight == "auto" and len(self.classes) > 1
        one = np.broadcast_to(1.0, len(self.y))
        known = np.count_nonzero(class_masses(self.y, one, len(self.classes)))
        some = self.has_unlabeled and 0 < known == len(self.classes)
        if some and (left_open or unlabeled_weight == 0.0):
            return self.labeled(), left_open
        return self, False

    def take(self, index: np.ndarray) -> Rows:
        """The rows of a mask."""
        if index.all():
            return self
        return replace(self, X=self.X.take(index), y=self.y[index], weight=self.weight[index])

    def labeled(self) -> Rows:
        """The rows that have labels."""
        return self.take(self.y >= 0)

    def only_labeled(self) -> Rows:
        """The same, for a model that cannot learn from others, with a warning."""
        if len(self.classes) == 1 and self.has_unlabeled:
            raise InvalidInputError(
                f"only the class {self.classes.tolist()[0]!r} has labeled rows, and a "
                "discriminative model needs two: label rows of another; if the marker of unlabeled "
                "rows is a class, set unlabeled=None."
            )
        return self.take(labeled_alone(self.y))


def read_rows(
    estimator: ModelClassifier,
    X: Observations,
    y: ArrayLike,
    sample_weight: ArrayLike,
    known: np.ndarray | None = None,
) -> Rows:
    """Labels as class indices, and the rows that count, by an estimator's parameters.

    With `known` classes, the rows may lack some of them: they are part of a stream.
    """
    classes, codes = read_classes(estimator, X, y, estimator.unlabeled, known)
    weight = read_weight(sample_weight, len(X))
    keep = _positive(weight)
    if estimator.class_weight is not None:
        if known is not None and isinstance(estimator.class_weight, str):
            raise InvalidInputError(
                f"class_weight={estimator.class_weight!r} needs all rows, and partial_fit sees a "
                "part: give a dictionary of weights, or weights of rows."
            )
        weight = weight * _class_weights(estimator.class_weight, codes, weight, classes)
        keep = _positive(weight)
    mass = class_masses(codes, keep, len(classes))
    if known is None and (mass == 0).any():
        raise InvalidInputError(
            f"no labeled row with positive weight for the classes "
            f"{classes[mass == 0].tolist()}: drop these classes, or weigh their rows."
        )
    return Rows(X, codes, weight, classes).take(keep)


def _positive(weight: np.ndarray) -> np.ndarray:
    """(n,) which rows count; what all share is kept once."""
    if weight.strides == (0,):
        return np.broadcast_to(weight[:1] > 0, len(weight))
    return weight > 0


def _check_given(estimator: object, y: ArrayLike) -> None:
    """Refuse labels or targets that are absent, or the name of a column."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    if isinstance(y, str):
        raise InvalidInputError(_NAME.format(y))


def read_classes(
    estimator: object,
    X: ArrayLike,
    y: ArrayLike,
    unlabeled: object,
    known: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The classes, `known` or those of y, and (n,) their indices, -1 for unlabeled rows.

    An entry of y stands for one row, or for as many as `counts` (n,) says.
    """
    _check_given(estimator, y)
    if isinstance(y, CodedLabels):
        classes, codes = read_classes(estimator, y.values, y.values, unlabeled, known, y.counts)
        return classes, y.recoded(codes.astype(np.min_scalar_type(-2 * len(classes))))
    is_one = getattr(y, "strides", None) == (0,)  # a label for all is meant: an imputer's
    y = read_labels(y)
    check_consistent_length(X, y)
    if y.dtype.kind == "f":
        assert_all_finite(y, allow_nan=True, input_name="y")
    classes = _classes(y, unlabeled, not is_one, counts) if known is None else known
    return classes, encode_labels(y, classes, unlabeled)


def read_weight(sample_weight: ArrayLike, n_rows: int) -> np.ndarray:
    """(n,) weights to learn by; a warning says where they are so small that rows tell little."""
    weight = check_weight(sample_weight, n_rows)
    if (mean := weight.mean(where=_positive(weight))) < _LITTLE:
        warn(
            f"sample_weight is {mean:.3g} in the mean, and a weight counts rows: so few rows tell "
            "little. Remedy: divide the weights by their mean, unless that is meant.",
            AmbiguousDataWarning,
        )
    return weight


def read_targets(estimator: object, X: Observations, y: ArrayLike, several: bool) -> np.ndarray:
    """(n,) numbers to predict, or (n, T) if there may be several; NaN where there is none."""
    _check_given(estimator, y)
    given = np.asarray(unmasked(y.plain() if isinstance(y, CodedLabels) else y))
    if not several or given.ndim != 2:
        given = column_or_1d(given, warn=True)
    if given.dtype.kind in "mM":
        raise InvalidInputError(
            f"y must hold numbers, and holds {given.dtype}: predict what is meant by it, such as "
            "days since a date, (y - y.min()) / numpy.timedelta64(1, 'D')."
        )
    words = given if given.dtype.kind in "OUS" else np.empty(0)
    text = [at for at, each in np.ndenumerate(words) if isinstance(each, str | bytes)]
    if text:
        raise InvalidInputError(
            f"y must hold numbers, and holds text, first {given[text[0]]!r} in row {text[0][0]}: "
            "turn it into numbers, with NaN where there is none."
        )
    try:
        given = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"y must hold numbers: {error}.") from error
    assert_all_finite(given, allow_nan=True, input_name="y")
    check_consistent_length(X, given)
    if not given.size:
        raise InvalidInputError("y has no columns: give one per number to predict.")
    return given


def check_held_back(held_back: HeldBack | None, coverage: float) -> HeldBack:
    """Rows that sets and intervals go by; an error where there are none, or for a bad coverage."""
    check_share("coverage", coverage)
    if held_back is None:
        raise UnsupportedError(
            "this model holds no rows back (fit of MixtureClassifier and of the regressors does, "
            "where they are enough; partial_fit does not): pass rows that it has not seen, "
            "calibration=(X, y)."
        )
    return held_back


def labeled_alone(codes: np.ndarray) -> np.ndarray:
    """Which rows have labels; a warning says how many have none and are left out."""
    known = codes >= 0
    if not known.all():
        warn(
            f"{int((~known).sum())} unlabeled row(s) are left out: this model cannot learn from "
            "them. Remedy: drop them; of rows MixtureClassifier learns, of sequences "
            "SequenceMixtureClassifier with summaries (representation='both'), or SequenceDensity.",
            DegenerateDataWarning,
        )
    return known


def labeled_score(
    predicted: np.ndarray,
    y: ArrayLike,
    sample_weight: ArrayLike,
    unlabeled: object,
    classes: np.ndarray,
) -> float:
    """The share of the labeled rows, by weight, whose class is predicted."""
    labels = read_labels(y)
    check_consistent_length(predicted, labels)
    weight = check_weight(sample_weight, len(labels))
    known = labeled_mask(labels, unlabeled, classes) & (weight > 0)
    if not known.any():
        raise InvalidInputError(
            "no row has a label and a weight above zero: a score needs labeled rows."
        )
    given = np.array(labels[known].tolist())
    return accuracy_score(given, predicted[known], sample_weight=weight[known])


def target_score(predicted: np.ndarray, y: np.ndarray, sample_weight: ArrayLike) -> float:
    """R^2 of the rows that have a target and weigh something; the mean over columns (n, T)."""
    weight = check_weight(sample_weight, len(y))
    known = ~np.isnan(y) & (weight > 0)[:, None]
    if not known.any(0).all():
        raise InvalidInputError(
            "no row has a target and a weight above zero: a score needs rows with targets."
        )
    each = [(y[k, t], predicted[k, t], weight[k]) for t, k in enumerate(known.T)]
    return float(np.mean([r2_score(*two, sample_weight=mass) for *two, mass in each]))


def _classes(
    y: np.ndarray, unlabeled: object, tells: bool, counts: np.ndarray | None
) -> np.ndarray:
    """The classes of training labels; if asked to, a warning tells where there is one alone."""
    labeled = find_labeled(y, unlabeled, counts)
    if not labeled.any():
        raise InvalidInputError(
            f"y has no labeled row: all are None, NaN or the marker (unlabeled={unlabeled!r}). "
            "Label some rows, set unlabeled=None if the marker is a class, or use MixtureDensity."
        )
    told = y[labeled]
    if counts is not None:  # labels of fewer than two rows each, in the mean, pass for numbers
        spare = min(counts[labeled].sum() - len(told), len(told))
        told = np.append(told, np.repeat(told[:1], spare))
    classes = _distinct(told)
    if tells and len(classes) == 1:
        others = "" if labeled.all() else ", the others are unlabeled"
        warn(
            f"only the class {classes.tolist()[0]!r} has labeled rows{others}: every row will be "
            "predicted to be of it. Remedy: label rows of another (if the marker of unlabeled rows "
            "is a class, set unlabeled=None), or use MixtureDensity or SequenceDensity, whose "
            "is_outlier tells what is unlike these rows.",
            DegenerateDataWarning,
        )
    return classes


def _distinct(labels: np.ndarray) -> np.ndarray:
    kinds = {type(label).__name__ for label in labels.tolist()}
    if "str" in kinds and len(kinds) > 1:
        raise InvalidInputError(
            f"y mixes labels of the types {', '.join(sorted(kinds))}: make them all one type."
        )
    if labels.dtype.kind in "mM" or kinds & {"date", "datetime", "time", "timedelta", "Timestamp"}:
        raise InvalidInputError(
            "y holds dates or times, which are no class labels: predict what is meant by them, "
            "such as the weekday, or turn them into text by str()."
        )
    plain = np.array(labels.tolist())
    numbers_as_objects = labels.dtype == object and "str" not in kinds
    found = np.unique(plain if numbers_as_objects else labels)
    _check_rounding(found)
    check_classification_targets(plain)
    return found


def _check_rounding(labels: np.ndarray) -> None:
    """Of numbers with fractions, also as text, none may be another one but for rounding."""
    try:
        numbers = np.unique(labels.astype(np.float64))
    except (ValueError, TypeError):
        return
    numbers = numbers[np.isfinite(numbers)]
    near, fraction = np.diff(numbers) <= _ROUNDING * np.abs(numbers[1:]), numbers % 1.0 != 0.0
    near &= fraction[1:] | fraction[:-1]
    if near.any():
        one, other = numbers[near.argmax()], numbers[near.argmax() + 1]
        raise InvalidInputError(
            f"y holds the labels {one} and {other}, which differ by rounding alone: round them, or "
            "name classes by whole numbers or words."
        )


def _class_weights(
    class_weight: ClassWeight, codes: np.ndarray, weight: np.ndarray, classes: np.ndarray
) -> np.ndarray:
    """(n,) factors of the weights; unlabeled rows keep theirs."""
    if isinstance(class_weight, str):
        mass = class_masses(codes, weight, len(classes))
        factors = mass.mean() / np.where(mass > 0, mass, 1.0)
    else:
        factors = compute_class_weight(class_weight, classes=classes, y=classes)
    return np.append(factors, 1.0)[codes]


def read_counts(n_components: Numbers | str, classes: np.ndarray) -> np.ndarray:
    """One positive number of components for each class."""
    counts = np.atleast_1d(np.asarray(n_components))
    if counts.dtype.kind not in "iu" or counts.ndim != 1 or (counts < 1).any():
        raise InvalidInputError(
            f"n_components={n_components!r}: give a positive int, or one positive int per class."
        )
    if len(counts) not in (1, len(classes)):
        raise InvalidInputError(
            f"n_components has {len(counts)} entries, but there are {len(classes)} classes "
            f"({classes.tolist()}): give one number per class, or a single one."
        )
    return np.broadcast_to(counts, len(classes))


def class_prior(given: Numbers | str, rows: Rows) -> np.ndarray:
    """(C,) shares of the classes: those of the rows, the same for all, or as given."""
    n_classes = len(rows.classes)
    if isinstance(given, str):
        mass = class_masses(rows.y, rows.weight, n_classes)
        uniform = given == "uniform" or mass.sum() == 0
        prior = np.ones(n_classes) if uniform else mass
        return np.maximum(prior / prior.sum(), _NEVER)
    prior = np.asarray(given, dtype=np.float64)
    if prior.shape != (n_classes,) or not (prior > 0).all() or abs(prior.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"class_prior must hold {n_classes} positive numbers that sum to one, in the order of "
            f"the classes {rows.classes.tolist()}; got {prior.tolist()}."
        )
    return prior / prior.sum()


def component_counts(n_components: Numbers | str, rows: Rows) -> list[int] | None:
    """Components of each class, no more than its distinct rows; None for "auto"."""
    if isinstance(n_components, str):
        return None
    classes = rows.classes
    wanted = read_counts(n_components, classes)
    found = [_distinct_of(rows, label, most) for label, most in enumerate(wanted)]
    available = np.maximum(found, 1)
    if (wanted > available).any():
        warn(
            f"more components than distinct labeled rows in the classes "
            f"{classes[wanted > available].tolist()}; these get one component per distinct row. "
            "Remedy: a smaller n_components.",
            DegenerateDataWarning,
        )
    return np.minimum(wanted, available).tolist()


def _distinct_of(rows: Rows, label: int, most: int) -> int:
    """`distinct_rows` of a class: the first rows tell, as a rule, and all places take memory."""
    first = np.flatnonzero(rows.y[:_GLANCE] == label)
    found = distinct_rows(rows.X.values, first, most)
    if found == most or len(rows.y) <= _GLANCE:
        return found
    return distinct_rows(rows.X.values, np.flatnonzero(rows.y == label), most)


def distinct_rows(X: np.ndarray, index: np.ndarray, most: int) -> int:
    """How many of the rows at `index` differ from each other; `most` where there are no fewer.

    Equal rows count once, so that a row given twice is a row of weight two.
    """
    size = 4 * most
    while True:
        rows = X[index[:size]]
        found = len(np.unique(np.where(np.isnan(rows), np.inf, rows), axis=0))
        if found >= most or size >= len(index):
            return min(found, most)
        size *= 4
