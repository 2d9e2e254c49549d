"""What estimators share: how fitting is like, and what one with a density answers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Integral, Real
from os import PathLike
from typing import Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags, check_random_state, estimator_html_repr
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_array,
    check_is_fitted,
    validate_data,
)

from mixtura.answers import (
    METHODS,
    OUTPUTS,
    Cells,
    ClassQuestion,
    Condition,
    Given,
    Groups,
    Intervals,
    Question,
    explain,
)
from mixtura.data import Matrix, Scaling, encode_labels, read_labels_of, resolve_device
from mixtura.data.given import ArrayLike, Device, Parameters, RandomState, Setting
from mixtura.data.lazy import Openable, Opened, is_path, source_of
from mixtura.data.schema import Schema, as_table
from mixtura.data.sequence_input import Sequences
from mixtura.data.sharded import Shard
from mixtura.densities import HiddenMarkov
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.conditioned import ConditionedModel
from mixtura.exceptions import InvalidInputError, UnsupportedError, check_share, warning_once
from mixtura.models.fitted import Fitted, Observations
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.numerics import one_thread
from mixtura.parts import storable
from mixtura.persistence import content_of, save_estimator
from mixtura.progress import Callback, Progress, Record
from mixtura.report import notebook
from mixtura.runtime.files import read
from mixtura.runtime.predictors import predictor

#: Where the documentation is, or will be: the page of each estimator in the API.
_DOCS = "https://mixtura.readthedocs.io/en/latest/api/mixtura.{estimator_name}.html"
#: What a matrix of numbers must be like.
_NUMBERS: Parameters = {
    "dtype": [np.float64, np.float32],
    "order": "C",
    "ensure_all_finite": "allow-nan",
}
#: Constraints of the parameters that say how a fit runs.
FIT_CONSTRAINTS: dict[str, list[object]] = {
    "max_time": [None, Interval(Real, 0, None, closed="neither")],
    "device": [str, torch.device],
    "callbacks": [None, "array-like"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}
#: Constraints of the parameters that say how mixed tables are read.
TABLE_CONSTRAINTS: dict[str, list[object]] = {
    "categorical_features": [None, StrOptions({"from_dtype"}), "array-like"],
    "unexpected": [StrOptions({"missing", "ignore", "error"})],
    "missingness": [StrOptions({"auto", "ignore", "informative"})],
}
#: Rows stand for no more rows than this, so that weighted sums of squares stay finite.
_MOST_WEIGHT = 1e100


def _size(X: ArrayLike) -> float:
    """How many numbers a user passed, as far as that can be told: nothing has been checked yet."""
    if is_path(X) or isinstance(X, Openable):
        return math.inf
    return math.prod(shape) if (shape := getattr(X, "shape", ())) else 0


@storable
class Estimator(BaseEstimator):
    """What fitting is like for every estimator, and how it is stored."""

    _doc_link_module = "mixtura"
    _doc_link_template = _DOCS

    callbacks: Iterable[Callback] | None
    random_state: RandomState
    verbose: int
    max_time: float | None
    #: Of the column that is predicted, where `mixtura fit` has read it.
    target_name_: str | None

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to one file; `mixtura.load` reads it back."""
        check_is_fitted(self)
        save_estimator(self, path)

    def _repr_html_inner(self) -> str:
        """What notebooks show: the fitted model, or the diagram of scikit-learn."""
        if any(name.endswith("_") for name in vars(self)):
            return notebook(self)
        return estimator_html_repr(self)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if hasattr(self, "_repr_html_"):  # not where scikit-learn is to display text
            shown["text/html"] = self._repr_html_inner()
        return shown

    def export(self, path: str | PathLike[str]) -> None:
        """Write the fitted classifier as an ONNX graph, for onnxruntime and others.

        It takes "X" (n, D), of double precision, NaN where a value is missing, and gives "label"
        (n,) and "probabilities" (n, C), those of `predict_proba` to 1e-5. Of columns with
        categories X has codes, their places in the metadata entry "categories"; any other code is
        missing.

        Parameters
        ----------
        path : of a file whose name ends with .onnx.
        """
        check_is_fitted(self)
        if not str(path).endswith(".onnx"):
            raise InvalidInputError(f"export writes ONNX graphs: {path} must end with .onnx.")
        if find_spec("onnx") is None:
            raise ImportError("export needs onnx: pip install 'mixtura[onnx]'.")
        from mixtura.runtime.export import write

        write(predictor(*read(content_of(self))), path)

    def set_params(self, **params: Setting) -> Self:
        """Set parameters of the estimator and, by nested names, of the parts that are objects."""
        for name in params:
            part, nested, _ = name.partition("__")
            given = params.get(part, getattr(self, part, None))
            if nested and isinstance(given, str):
                raise InvalidInputError(
                    f"{name} is a setting of an object, and {part}={given!r} is a name: pass the "
                    "object that it is shorthand for, such as density=LowRank() or solver=Adam()."
                )
        return super().set_params(**params)

    def _generator(self, random_state: RandomState = None) -> torch.Generator:
        """All that is random in a fit, or in a draw, comes from one generator."""
        state = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator().manual_seed(int(state.randint(np.iinfo(np.int32).max)))

    def _progress(self) -> Progress:
        if not all(callable(callback) for callback in self.callbacks or ()):
            raise InvalidInputError("callbacks must be functions that take a dict.")
        return Progress(self.callbacks or (), self.verbose, self.max_time)

    def _told(
        self,
        question: Question,
        rows: Observations,
        method: str,
        groups: Groups,
        max_time: float | None,
        random_state: RandomState,
    ) -> ArrayLike:
        """Shapley values, for shap where it is installed."""
        if method not in METHODS:
            raise InvalidInputError(f"method={method!r}: method is one of {METHODS}.")
        generator = self._generator(random_state)
        with Progress((), self.verbose, max_time) as progress:
            found = explain(
                *(question, rows, method, groups), generator=generator, progress=progress
            )
        return found.for_shap()

    @contextmanager
    def _all_or_nothing(self, X: ArrayLike) -> Iterator[None]:
        """A fit that fails leaves the estimator as it was; one that succeeds warns once.

        One thread works on small X, and on lists of sequences.
        """
        before = dict(self.__dict__)
        try:
            with warning_once(), one_thread(_size(X)):
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _forget(self) -> None:
        """Drop what an earlier fit left: not every method leaves the same."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)


def opened(
    estimator: DensityEstimator, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike
) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
    """Training rows, labels and weights: as they are, or of a source after its scan."""
    X = source_of(X)
    if not isinstance(X, Openable):
        return X, y, sample_weight
    if isinstance(X, Shard):
        X.check_fit(estimator.get_params(deep=False))
    found = X.opened(y, sample_weight, estimator.categorical_features)
    if not len(found.rows):
        raise InvalidInputError("the files or chunks have no rows: pass some that have.")
    if found.weight is None:  # a one for all rows takes no memory
        return found, found.y, np.broadcast_to(1.0, len(found.rows))
    return found, found.y, found.weight


def read_table(
    estimator: BaseEstimator, X: ArrayLike, schema: Schema, unexpected: str, *, reset: bool
) -> Matrix:
    """Rows as numbers and codes of categories, checked as scikit-learn does."""
    plain = None if reset else schema.plain(X)
    if plain is not None and plain.shape[1] == estimator.n_features_in_:
        return Matrix(plain)
    X = as_table(X)
    given = schema.encode(X, unexpected)
    if not isinstance(given, Matrix):
        return Matrix(validate_data(estimator, given, reset=reset, **_NUMBERS))
    rows = check_array(given.values, input_name="X", estimator=estimator, **_NUMBERS)
    if reset or schema.names_in(X) is None:
        _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, rows, reset=reset)
    return Matrix(rows, given.untold)


def learn_table(
    estimator: BaseEstimator, X: ArrayLike, categorical_features: ArrayLike, unexpected: str
) -> tuple[Matrix, Schema]:
    """Training rows, and what their columns are."""
    schema = Schema.learn(as_table(X), categorical_features)
    rows = read_table(estimator, X, schema, unexpected, reset=True)
    return rows, schema.with_empty(rows.values)


class ModelEstimator(Estimator):
    """An estimator whose answers are those of its fitted model, `model_`; subclasses train it."""

    device: Device

    feature_names_in_: np.ndarray
    model_: Fitted
    history_: list[Record]

    @abstractmethod
    def _rows(self, X: ArrayLike) -> Observations:
        """What a user passes, checked."""

    def _engine(self, X: ArrayLike) -> Engine:
        """Rows to answer for, in the model's units."""
        return self._fitted.engine(self._rows(X), self.device)

    def _by_row(self, answers: ArrayLike, X: ArrayLike) -> ArrayLike:
        """Labels or weights of what is in X, one per row."""
        return answers

    @property
    def _fitted(self) -> Fitted:
        if "model_" not in self.__dict__:
            check_is_fitted(self, "model_")
        return self.model_

    @property
    def schema_(self) -> Schema:
        """Names and categories of the columns."""
        return self._fitted.schema

    @property
    def scaling_(self) -> Scaling:
        """The map between the user's units and the model's."""
        return self._fitted.scaling


class DensityEstimator(TransformerMixin, ModelEstimator):
    """Answers of an estimator whose fitted model, `model_`, has a density; subclasses train it.

    They read what a user passes by `_read`, which learns the columns where there is no schema yet.
    """

    categorical_features: ArrayLike
    unexpected: str
    standardize: bool
    choice_: list[dict[str, object]]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.sparse = True
        return tags

    # -- reading -------------------------------------------------------------------------------

    def _read(self, X: ArrayLike, schema: Schema | None = None) -> tuple[Observations, Schema]:
        """Checked rows, and what their columns are; they are learned if that is not known."""
        if isinstance(X, Opened):
            if all(isinstance(name, str) for name in X.schema.names or [None]):
                self.feature_names_in_ = np.array(X.schema.names, dtype=object)
            _check_n_features(self, X.rows, reset=True)
            return Matrix(X.rows), X.schema  # type: ignore[arg-type]
        if schema is not None:
            return read_table(self, X, schema, self.unexpected, reset=False), schema
        return learn_table(self, X, self.categorical_features, self.unexpected)

    def _rows(self, X: ArrayLike) -> Observations:
        return self._read(X, self._fitted.schema)[0]

    def _scaled(self, rows: Observations, weight: np.ndarray, schema: Schema) -> Scaling:
        """The units to work in."""
        values = rows.values
        if isinstance(rows, Sequences):
            weight = np.repeat(weight, rows.lengths)
        names = getattr(self, "feature_names_in_", None)
        measured = Scaling.measure(values, weight, names)
        scaling = measured if self.standardize else Scaling.identity(values.shape[1])
        return scaling.sparing(schema.levels(values.shape[1]))

    # -- attributes ----------------------------------------------------------------------------

    @property
    def mixture_(self) -> Mixture:
        """The density of rows, in the model's units."""
        return self._fitted.mixture

    @property
    def weights_(self) -> np.ndarray:
        """(K,) weights of the components within their class."""
        return self.mixture_.log_weight.exp().numpy()

    @property
    def means_(self) -> np.ndarray:
        """Locations of the components (and states) in the user's units, (K, ..., D).

        Of columns with atoms they are those of the other values, as are covariances.
        """
        return self.scaling_.invert(self.mixture_.density.location.numpy())

    @property
    def covariances_(self) -> np.ndarray:
        """Dense covariances of the components (and states) in the user's units, (K, ..., D, D).

        Where columns are mapped by curves, they are those of straight lines through the means.
        """
        density = self.mixture_.density
        scale = self.scaling_.log_scale(density.location).exp().numpy()
        return density.covariances().numpy() * scale[..., :, None] * scale[..., None, :]

    @property
    def missingness_(self) -> str:
        """Whether components also differ in which entries are absent."""
        informative = getattr(self.mixture_.density, "informative", False)
        return "informative" if informative else "ignore"

    @property
    def score_quantiles_(self) -> np.ndarray:
        """(1001,) quantiles of what `is_outlier` judges by, over rows like those of training."""
        found = self._fitted.typical
        if found is None:
            raise AttributeError("a model without a density has no typical rows.")
        return found

    # -- answers -------------------------------------------------------------------------------

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Log density log p(x) of each row over its observed features.

        Where `missingness_` is "informative" it also counts which entries are absent. Of categories
        and atoms (see `marginals`) it has the probability, which no units change: a row of nothing
        else scores its log probability.

        Returns
        -------
        (n,) array, in the units of X.
        """
        return self._fitted.log_density(self._engine(X))

    def responsibilities(self, X: ArrayLike) -> np.ndarray:
        """p(component | x), (n, K), components in the order of `weights_`."""
        return self._fitted.responsibilities(self._engine(X))

    def transform(self, X: ArrayLike) -> np.ndarray:
        """The embedding of each row, (n, K): its component posteriors, or what a read-out reads."""
        return self._fitted.embed(self._engine(X))

    def get_feature_names_out(self, input_features: ArrayLike = None) -> np.ndarray:
        """Names of the columns that `transform` gives, (K,)."""
        prefix = type(self).__name__.lower()
        count = self._fitted.mixture.n_components
        return np.array([f"{prefix}{place}" for place in range(count)], dtype=object)

    def impute(
        self,
        X: ArrayLike,
        y: ArrayLike = None,
        *,
        n_draws: int | None = None,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Fill missing entries from what is observed.

        Parameters
        ----------
        X : (n, D), NaN where missing.
        y : labels to condition on, where they are known and classes have densities.
        n_draws : None fills in the conditional mean (of mapped values, where curves map columns: in
            the units of X that is nearer to a median); a number gives so many random completions.

        Returns
        -------
        (n, D), or (n_draws, n, D); a data frame for a data frame, with the columns of the training
        rows in their order; of sequences what they came as; or n_draws of these. Observed entries
        come back to the bit; of categories, the likeliest is filled in. Means are those of the
        model: a discriminative objective may have moved them far from the data.
        """
        rows = self._rows(X)
        codes = self._codes(self._by_row(y, X), len(rows))
        return self._filled(rows, X, codes, n_draws, random_state)

    def _filled(
        self,
        rows: Observations,
        X: ArrayLike,
        y: np.ndarray | None,
        n_draws: int | None,
        random_state: RandomState,
    ) -> ArrayLike:
        """Checked rows with their holes filled, given class indices (n,), in the form of X."""
        model = self._fitted
        if y is not None and isinstance(model.model, Network):
            raise InvalidInputError("a network has no density per class: leave y out.")
        engine = model.engine(rows, self.device, y)
        if n_draws is None:
            return self._like(model.imputed(engine, rows.values), rows, X)
        generator = self._generator(random_state)
        draws = [
            self._like(model.drawn(engine, rows.values, generator), rows, X)
            for _ in range(check_count(n_draws))
        ]
        return np.stack(draws) if isinstance(draws[0], np.ndarray) else draws

    def _codes(self, y: ArrayLike, n_rows: int) -> np.ndarray | None:
        """Class indices of labels, -1 for those that mark unlabeled rows; None for none."""
        if y is None:
            return None
        classes = self._fitted.classes
        if classes is None:
            raise InvalidInputError("this model knows no classes: leave y out.")
        return encode_labels(read_labels_of(y, n_rows), classes, getattr(self, "unlabeled", None))

    def _like(self, values: np.ndarray, rows: Observations, X: ArrayLike) -> ArrayLike:
        """Values of checked rows in the form of what was given."""
        if isinstance(rows, Sequences):
            return rows.like(values, X)
        return self.schema_.like(values, X)

    def category_proba(self, X: ArrayLike, column: int | str) -> np.ndarray:
        """p(category | what is observed) of a categorical column.

        Parameters
        ----------
        X : rows, as for `impute`.
        column : its position, or its name in a data frame.

        Returns
        -------
        (n, number of categories), in the order of `schema_.categories`; one for what is observed.
        """
        return self._fitted.category_proba(self._engine(X), column)

    def is_outlier(self, X: ArrayLike, share: float = 0.01) -> np.ndarray:
        """Rows less likely than all but a `share` of rows like those of training would be.

        Training rows count by what a model without them makes of them (those of a stream by what
        the model made of them before it learned from them), so about that `share` of new rows is
        flagged where nothing has changed. Where densities have no closed-form updates they count as
        they are, and more is flagged; so they do where `max_time` leaves no time for more.

        A row with holes is judged in its favor: with the holes filled by their conditional means.
        Sequences are judged by their log density per value.
        """
        model = self._fitted
        check_share("share", share)
        return model.is_outlier(self._engine(X), share)

    def condition(self, given: Given) -> ConditionedModel:
        """The model given some columns: it scores, samples, imputes and predicts.

        Parameters
        ----------
        given : values by column, which goes by its name or position.
        """
        return ConditionedModel(self, self._condition(given))

    def _condition(self, given: Given | Condition) -> Condition:
        if isinstance(given, Condition):
            return given
        if isinstance(self._fitted.mixture.density, HiddenMarkov):
            raise UnsupportedError("conditions are for tables: frames of sequences have none.")
        return Condition.of(self._fitted, self.n_features_in_, given, self.device)

    def _draw_given(
        self, condition: Condition, n_samples: int, random_state: RandomState
    ) -> np.ndarray:
        """(n_samples, D) rows, in the user's units and categories."""
        drawn = condition.draw(check_count(n_samples), None, self._generator(random_state))
        return self.schema_.decode(drawn.values)

    def _table(self, X: ArrayLike) -> Matrix:
        """Checked rows of a table; sequences are refused."""
        rows = self._rows(X)
        if not isinstance(rows, Matrix):
            raise UnsupportedError("this is an answer for tables, and X holds sequences.")
        return rows

    def explain(
        self,
        X: ArrayLike,
        output: str | None = None,
        *,
        method: str = "auto",
        groups: Groups = None,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Why the model answers as it does: Shapley values of the columns of each row.

        The value of some columns is the model's answer to the row with the others missing, that is,
        integrated out. So the values of a row sum to its answer less the answer to a row with
        nothing observed, columns that say the same share what they say, and missing entries get
        zero. Probabilities are those of `predict_proba`, whose calibration depends on how much is
        missing. Where `missingness_` is "informative", what the row lacks is part of what is known
        from the start: its evidence stands in the base value.

        Parameters
        ----------
        X : rows, as for `predict`.
        output : "probability", "log_odds" (of each class against the others) or "log_density", by
            which the most negative values say why a row is an outlier; they are in units in which
            columns compare, and the base values make the sum `score_samples`. None is
            "probability" where there are classes, and "log_density" elsewhere.
        method : "exact" looks at all subsets of at most 20 columns that a row has, "permutation" at
            64 random orders; "auto" is "exact" for up to 13 columns, and wherever one order tells
            all: where columns are independent given one component per class, for the log odds of
            two classes (that have not been calibrated) and for the log density.
        groups : columns that come and go together, by name or position: a list of lists, or a dict
            of lists by the names of the groups. Other columns stand alone.
        max_time : seconds after which no more orders are drawn, with a warning; each takes the time
            of a factorization per component, and there are four at least. `verbose` of the
            estimator shows how far it is.

        Returns
        -------
        A `shap.Explanation` where shap is installed, which its plots take; else an object with the
        same fields: `values` (n, P, C), or (n, P) of a log density, for P columns and groups,
        `base_values`, `data`, `display_data`, `feature_names`, `output_names`, and `error_std`,
        standard errors that are zero where values are exact.
        """
        return self._explained(X, output, method, groups, None, max_time, random_state)

    def _explained(
        self,
        X: ArrayLike,
        output: str | None,
        method: str,
        groups: Groups,
        intervals: Intervals,
        max_time: float | None,
        random_state: RandomState,
    ) -> ArrayLike:
        rows, model = self._rows(X), self._fitted
        known = () if model.classes is None else model.classes
        output = output or ("probability" if len(known) else "log_density")
        if output not in OUTPUTS:
            raise InvalidInputError(f"output={output!r}: output is one of {OUTPUTS}.")
        if output != "log_density" and len(known) < 1 + (output == "log_odds"):
            raise InvalidInputError(
                f"output={output!r} needs classes, and the model knows {len(known)}: use "
                "output='log_density'."
            )
        question = ClassQuestion(model, output, self.device, Cells.of(intervals))
        return self._told(question, rows, method, groups, max_time, random_state)


def training_engine(
    rows: Observations, y: np.ndarray | None, weight: np.ndarray, scaling: Scaling, device: Device
) -> Engine:
    """Rows to learn from, in the model's units."""
    place = resolve_device(device, rows.values.size)
    return LocalEngine(rows.table(y, weight, scaling=scaling, device=place))


def check_weight(sample_weight: ArrayLike, n_rows: int) -> np.ndarray:
    """One finite, non-negative weight per row, not all zero."""
    if sample_weight is None:
        return np.ones(n_rows)
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"sample_weight must hold numbers ({error}).") from error
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.shape != (n_rows,):
        raise InvalidInputError(
            f"sample_weight has shape {weight.shape}, but X has {n_rows} rows: "
            f"give one weight per row, shape ({n_rows},)."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInputError("sample_weight must be finite and not negative.")
    if (weight > _MOST_WEIGHT / max(n_rows, 1)).any():
        raise InvalidInputError(
            f"sample_weight reaches {weight.max():.3g}, and a weight counts rows: divide it by "
            "its mean."
        )
    if not (weight > 0).any():
        raise InvalidInputError("sample_weight is zero for every row: nothing to fit.")
    return weight


def check_count(count: object, name: str = "the number to draw") -> int:
    """How many: a positive whole number."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise InvalidInputError(f"{name} must be positive and whole, got {count!r}.")
    return int(count)
