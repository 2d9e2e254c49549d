"""What a loaded model answers: the methods of the estimator that was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from mixtura.conformal import HeldBack, interval_around
from mixtura.constants import FAR
from mixtura.coupling import coupled
from mixtura.data.columns import is_missing, kept
from mixtura.data.given import ArrayLike
from mixtura.data.in_memory import as_table, with_missing_indicators
from mixtura.data.matrix import Matrix
from mixtura.exceptions import InvalidInputError, NoLabelsError, UnsupportedError, check_share
from mixtura.predictive import Predictive, check_quantiles, in_parts
from mixtura.runtime import gaussians, mixed, sparse  # noqa: F401  what files may hold
from mixtura.runtime.files import Arrays, class_name, named, unpack
from mixtura.runtime.models import Fitted
from mixtura.runtime.networks import Network, RegressionNetwork
from mixtura.runtime.regression import Regression


class Columns:
    """Columns by name, as the data frame that `Schema` takes them for."""

    def __init__(self, given: Mapping[str, ArrayLike]) -> None:
        self.columns = list(given)
        self._values = [_column(values) for values in given.values()]
        if len({len(values) for values in self._values}) != 1:
            raise InvalidInputError("X is a dict whose columns differ in length, or that has none.")

    def __len__(self) -> int:
        return len(self._values[0])

    @property
    def dtypes(self) -> list[np.dtype]:
        return [values.dtype for values in self._values]

    def get_column(self, name: str) -> np.ndarray:
        return self._values[self.columns.index(name)]

    def __getitem__(self, key: tuple[slice, int | list[int]]) -> ArrayLike:
        place = key[1]
        if isinstance(place, list):
            return Columns({self.columns[at]: self._values[at] for at in place})
        return self._values[place]

    def __array__(self, dtype: ArrayLike = None, copy: bool | None = None) -> np.ndarray:
        return np.column_stack(self._values).astype(dtype)


def _column(values: ArrayLike) -> np.ndarray:
    """(n,) one column; a single value is one row."""
    cells = [values] if isinstance(values, str) or not np.iterable(values) else values
    found = np.asarray(cells)
    return np.asarray(cells, dtype=object) if found.dtype.kind in "US" else found


class Predictor:
    """A fitted model that answers for rows: arrays, data frames, or dicts of columns."""

    _takes_holes = True

    def __init__(self, value: ArrayLike, arrays: Arrays) -> None:
        settings, state = named(value["settings"]), named(value["state"])
        self._unexpected = settings.get("unexpected", "missing")
        self.model: Fitted | Regression = unpack(state["model_"], arrays)
        self.n_features_in_ = self.model.n_columns

    def _answer(self, rows: Matrix) -> np.ndarray:
        """(n, ...) what rows are asked for first."""
        return self.model.log_density(rows)

    def check(self) -> None:
        """A row of zeros, one far away and one of nothing get finite answers: the parts fit."""
        rows = np.zeros((2 + self._takes_holes, self.n_features_in_))
        rows[1], rows[2:] = FAR, np.nan
        rows[:, list(self.model.schema.empty)] = np.nan
        for asked in (rows, rows[:2], rows[:1]):  # what fits two rows by chance does not fit one
            found = self._answer(self._rows(self.model.schema.decode(asked)))
            if len(found) != len(asked) or not np.isfinite(found).all():
                raise ValueError("its answers are not finite")

    @property
    def feature_names_in_(self) -> np.ndarray | None:
        """(D,) names of the columns; None where there are none."""
        names = self.model.schema.names
        return None if names is None else np.array(names, dtype=object)

    def _rows(self, X: ArrayLike) -> Matrix:
        plain = self.model.schema.plain(X)
        if plain is None or plain.shape[1] != self.n_features_in_:
            return self._read(Columns(X) if isinstance(X, Mapping) else as_table(X))
        return Matrix(plain)

    def _read(self, X: ArrayLike) -> Matrix:
        given = self.model.schema.encode(X, self._unexpected)
        rows = given if isinstance(given, Matrix) else Matrix(_numbers(given))
        if rows.values.ndim != 2 or rows.values.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"X has the shape {rows.values.shape}, and the model takes (n, "
                f"{self.n_features_in_})."
            )
        if not len(rows):
            raise InvalidInputError("X has no rows: pass one at least.")
        if np.isinf(rows.values).any():
            raise InvalidInputError("X holds infinity: put NaN where a value is not known.")
        return rows

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """(n,) log density of what is observed of each row."""
        return self.model.log_density(self._rows(X))


class Filler(Predictor):
    """One whose model has a density of all its columns, and no others."""

    @property
    def fitted(self) -> Fitted:
        """The model."""
        assert isinstance(self.model, Fitted)
        return self.model

    def impute(self, X: ArrayLike) -> ArrayLike:
        """The rows with conditional means, and the likeliest categories, in their holes.

        A data frame for a data frame, a dict of columns for a dict, and an array for all else.
        """
        rows, schema = self._rows(X), self.fitted.schema
        found = self.fitted.imputed(rows)
        if not isinstance(X, Mapping):
            return schema.like(found, X, rows.untold)
        columns = dict(zip(schema.names or X, schema.decode(found).T, strict=True))
        if rows.untold is not None:
            for (name, values), where in zip(columns.items(), rows.untold.T, strict=True):
                columns[name] = kept(values, _column(X[name]), where) if name in X else values
        return columns

    def is_outlier(self, X: ArrayLike, share: float = 0.01) -> np.ndarray:
        """(n,) rows less likely than all but a share of rows like those of training would be."""
        check_share("share", share)
        return self.fitted.is_outlier(self._rows(X), share)


def _numbers(given: ArrayLike) -> np.ndarray:
    try:
        values = np.asarray(given)
        if values.dtype.kind == "c":
            raise TypeError("complex numbers are neither")
        return values if values.dtype == np.float32 else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"X must be a table of numbers and categories ({error})."
        ) from error


class Classifier(Filler):
    """A classifier."""

    def _answer(self, rows: Matrix) -> np.ndarray:
        if not len(self.classes_) and isinstance(self.fitted.model, Network):
            return self.fitted.log_density(rows)
        found = self.fitted.log_proba(rows)
        if found.shape[1] != len(self.classes_):
            raise ValueError(f"{found.shape[1]} probabilities of {len(self.classes_)} classes")
        return found

    @property
    def classes_(self) -> np.ndarray:
        """(C,) the labels."""
        classes = self.fitted.classes
        assert classes is not None
        return classes

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """log p(class | x), (n, C)."""
        return self.fitted.log_proba(self._to_classify(X))

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def predict_set(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        calibration: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> np.ndarray:
        """(n, C) sets of classes, of which a share `coverage` hold the true one.

        They go by the rows that the model holds back, or by rows and labels that it has not seen,
        `calibration`.
        """
        check_share("coverage", coverage)
        rows, held_back = self._to_classify(X), self.fitted.held_back
        if calibration is not None:
            held_back = self._unseen(*calibration)
        if held_back is None:
            raise UnsupportedError(
                "this model holds no rows back: pass rows that it has not seen, calibration=(X, y)."
            )
        return self.fitted.predict_set(rows, held_back, coverage)

    def _to_classify(self, X: ArrayLike) -> Matrix:
        if not len(self.classes_):
            raise NoLabelsError("the model was fitted without labels and knows no classes.")
        return self.fitted.checked(self._rows(X))

    def _unseen(self, X: ArrayLike, y: ArrayLike) -> HeldBack:
        values, labels = self.fitted.checked(self._rows(X)).values, np.asarray(y)
        strange = len(self.classes_)
        place = {-1: -1} | {label: at for at, label in enumerate(self.classes_.tolist())}
        given = labels.tolist()
        codes = np.array([-1 if is_missing(v) else place.get(v, strange) for v in given])
        if codes.shape != (len(values),) or not 0 <= codes.max() < strange:
            raise InvalidInputError(
                f"calibration=(X, y) needs labels of {self.classes_.tolist()}, one per row; rows "
                "without one, None or -1, are left out."
            )
        return HeldBack.unseen(values[codes >= 0], codes[codes >= 0])


class Density(Filler):
    """A mixture without classes."""

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(component | x), (n, K)."""
        return self.fitted.responsibilities(self._rows(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable component of each row."""
        return self.predict_proba(X).argmax(1)


class NetworkRegressor(Filler):
    """A network that predicts numbers."""

    def _answer(self, rows: Matrix) -> np.ndarray:
        return _by_network(self.fitted, rows)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The expected target of each row."""
        return self._answer(self._rows(X))

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> np.ndarray:
        """(n, 2) intervals, of which a share `coverage` hold the true number."""
        rows, held_back = self._rows(X), _held_back(self.fitted, coverage)
        return interval_around(self.fitted, rows, held_back, _by_network, coverage)


def _held_back(fitted: Fitted, coverage: float) -> HeldBack:
    """The rows that intervals go by."""
    check_share("coverage", coverage)
    if fitted.held_back is None:
        raise UnsupportedError("this model holds no rows back: it has no intervals.")
    return fitted.held_back


def _by_network(fitted: Fitted, rows: Matrix) -> np.ndarray:
    """(n,) what a network predicts, in the units of the target."""
    (location, scale), network = fitted.target, fitted.model
    assert isinstance(network, RegressionNetwork)
    return fitted.run(rows, network.predicted, network.row_cost) * scale + location


class Regressor(Predictor):
    """Mixtures over features and targets: answers are (n, ...), or (n, T, ...) of several."""

    @property
    def regression(self) -> Regression:
        """The model."""
        assert isinstance(self.model, Regression)
        return self.model

    def _answer(self, rows: Matrix) -> np.ndarray:
        return self.regression.predicted(rows)

    def score_samples(self, X: ArrayLike, y: ArrayLike = None) -> np.ndarray:
        """(n,) log p(y | x), in the units of y; targets that are NaN do not count.

        Without y, log p(x), in the units of X; indicators of categories count as numbers.
        """
        rows = self._rows(X)
        if y is None:
            return self.regression.log_density(rows)
        targets, n_targets = np.asarray(y, dtype=np.float64), self.regression.n_targets
        if targets.size != len(rows) * n_targets:
            raise InvalidInputError(
                f"y has shape {targets.shape}: give {n_targets} number(s) for each of {len(rows)} "
                "row(s)."
            )
        return self.regression.log_density(rows, targets.reshape(len(rows), n_targets))

    def _asked(self, X: ArrayLike) -> Matrix:
        return self.regression.checked(self._rows(X))

    def _shaped(self, answers: np.ndarray) -> np.ndarray:
        return answers[:, 0] if self.regression.flat else answers

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The expected targets of each row, and their standard deviations."""
        rows = self._asked(X)
        if not return_std:
            return self._answer(rows)
        mean, std = np.moveaxis(self._told(Predictive.moments, rows), 2, 0)
        return self._shaped(mean.copy()), self._shaped(std.copy())

    def _told(self, ask: Callable[[Predictive], np.ndarray], rows: Matrix) -> np.ndarray:
        """What is asked of the distributions of targets."""
        return in_parts(lambda some: ask(self.regression.predictive(some)), rows)

    def predict_quantiles(
        self, X: ArrayLike, quantiles: ArrayLike = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """(n, Q), or (n, T, Q), what a share `quantiles` (Q,) of the targets will not exceed."""
        shares = check_quantiles(quantiles)
        rows = self._asked(X)
        return self._shaped(self._told(partial(Predictive.quantiles, shares=shares), rows))

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> np.ndarray:
        """(n, 2), or (n, T, 2), intervals, of which a share `coverage` hold the true number."""
        rows, held_back = self._asked(X), _held_back(self.regression.fitted, coverage)
        return self._shaped(self.regression.interval(rows, held_back, coverage))


class SparseClassifier(Classifier):
    """A discriminative classifier: nothing may be missing."""

    _takes_holes = False

    def __init__(self, value: ArrayLike, arrays: Arrays) -> None:
        super().__init__(value, arrays)
        self._unexpected = "error"

    def _rows(self, X: ArrayLike) -> Matrix:
        rows = super()._rows(X if isinstance(X, Mapping) else self.fitted.schema.in_order(X))
        if np.isnan(rows.values).any():
            raise InvalidInputError(
                "Input X contains NaN, and this model has no density to marginalize them with: use "
                "MixtureClassifier, or fill them first."
            )
        return rows


class Pairwise:
    """One classifier for each pair of classes, their probabilities joined by coupling."""

    def __init__(self, value: ArrayLike, arrays: Arrays) -> None:
        state = named(value["state"])
        self.classes_, self._pairs, self._count = (
            unpack(state[name], arrays) for name in ("classes_", "pairs_", "class_count_")
        )
        self._models = [predictor(each, arrays) for each in state["estimators_"]["items"]]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        return self._coupled([model.predict_proba(X) for model in self._models])

    def check(self) -> None:
        """Pairs, classes and their counts fit each other."""
        found = self._coupled([np.full((1, len(each.classes_)), 0.5) for each in self._models])
        if found.shape != (1, len(self.classes_)) or not np.isfinite(found).all():
            raise ValueError("its pairs do not fit its classes")

    def _coupled(self, answers: list[np.ndarray]) -> np.ndarray:
        """(n, C) from the probabilities (n, 2) of all pairs."""
        if len(answers) == 1:
            return answers[0]
        return coupled(answers, self._pairs, self._count)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        return self.classes_[self.predict_proba(X).argmax(1)]


class Imputer:
    """What fills missing entries, in a pipeline."""

    def __init__(self, value: ArrayLike, arrays: Arrays) -> None:
        if named(value["settings"])["strategy"] != "mean":
            raise UnsupportedError(
                "it draws what is missing at random, and mixtura.runtime fills in means alone: set "
                "strategy='mean' before saving, or use mixtura.load, which needs PyTorch."
            )
        state = named(value["state"])
        self._model = predictor(state["estimator_"], arrays)
        self._indicated = unpack(state["indicated_"], arrays)

    def transform(self, X: ArrayLike) -> ArrayLike:
        """The rows with nothing missing, (n, D) and one column per indicator."""
        filled = self._model.impute(X)
        if not len(self._indicated):
            return filled
        shown = np.isnan(self._model._rows(X).values)[:, self._indicated]
        return with_missing_indicators(filled, self._indicated, shown)

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """(n,) log density of what is observed of each row."""
        return self._model.score_samples(X)


#: What a saved estimator becomes, by the name of its class.
_PREDICTORS = {
    "MixtureClassifier": Classifier,
    "BoostedMixtureClassifier": Classifier,
    "MixtureNetworkClassifier": Classifier,
    "SparseMixtureClassifier": SparseClassifier,
    "PairwiseClassifier": Pairwise,
    "MixtureNetworkRegressor": NetworkRegressor,
    "MixtureRegressor": Regressor,
    "MixtureDensity": Density,
    "MixtureImputer": Imputer,
}


def predictor(value: ArrayLike, arrays: Arrays) -> ArrayLike:
    """What answers for a stored estimator."""
    found = _PREDICTORS[class_name(value, _PREDICTORS)](value, arrays)
    if isinstance(found, Predictor | Pairwise):  # what an imputer holds has been checked
        found.check()
    return found
