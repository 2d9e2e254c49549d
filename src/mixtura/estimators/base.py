"""What fitting is like for every estimator."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import PathLike
from typing import Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state, estimator_html_repr
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from mixtura.answers.explain import METHODS, Groups, explain
from mixtura.answers.question import Question
from mixtura.data.given import ArrayLike, Device, RandomState, Setting
from mixtura.data.lazy import Openable, are_files, is_path
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.densities import DENSITIES, Structure
from mixtura.engines import Engine
from mixtura.estimators.reading import check_count
from mixtura.exceptions import InvalidInputError, warning_once
from mixtura.models.fitted import Fitted, Observations
from mixtura.numerics import by_parts
from mixtura.parts import AMOUNT, COUNT, POSITIVE, SHARE, storable
from mixtura.persistence import content_of, save_estimator
from mixtura.progress import Callback, Progress, Record
from mixtura.report import notebook
from mixtura.runtime.files import read
from mixtura.runtime.predictors import predictor
from mixtura.solvers import EM

#: Where the documentation is, or will be: the page of each estimator in the API.
_DOCS = "https://mixtura.readthedocs.io/en/latest/api/mixtura.{estimator_name}.html"
#: Rows, or frames, that completions are drawn of at a time.
_DRAWN_AT_ONCE = 50_000
#: What parameters may be, where an estimator that has them says nothing else.
CONSTRAINTS: dict[str, list[object]] = {
    "n_components": [StrOptions({"auto"}), COUNT],
    "density": [StrOptions(set(DENSITIES)), Structure],
    "solver": [StrOptions({"em"}), EM],
    "init": [StrOptions({"em"}), EM],
    "prior_rows": [AMOUNT],
    "unlabeled_weight": [StrOptions({"auto"}), SHARE],
    "class_weight": [None, dict, StrOptions({"balanced"})],
    "n_stages": [COUNT],
    "early_stopping": ["boolean"],
    "calibrate": ["boolean"],
    "warm_start": ["boolean"],
    "standardize": ["boolean"],
    "categorical_features": [None, StrOptions({"from_dtype"}), "array-like"],
    "unexpected": [StrOptions({"missing", "ignore", "error"})],
    "missingness": [StrOptions({"auto", "ignore", "informative"})],
    "max_time": [None, POSITIVE],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


def _size(X: ArrayLike) -> float:
    """How many numbers a user passed, as far as that can be told: nothing has been checked yet."""
    if is_path(X) or are_files(X) or isinstance(X, Openable):
        return math.inf
    return math.prod(shape) if (shape := getattr(X, "shape", ())) else 0


@storable
@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(BaseEstimator):
    """What fitting is like for every estimator, and how it is stored."""

    _doc_link_module = "mixtura"
    _doc_link_template = _DOCS
    _callbacks = tuple[Callback, ...]()

    max_time: float | None = None
    device: Device = "auto"
    random_state: RandomState = None
    verbose: int = 0
    #: Of the column that is predicted, where `mixtura fit` has read it.
    target_name_: str | None = field(init=False)
    #: What marked missing values in the file that it has read.
    missing_marks_: list[str] = field(init=False)

    def __sklearn_tags__(self) -> Tags:
        """Holes and categories are welcome, unless an estimator says otherwise."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.sparse = True
        return tags

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
        known = self.get_params(deep=False)
        for name in params:
            part, nested, _ = name.partition("__")
            given = params.get(part, known.get(part))
            if nested and part in known and not hasattr(given, "set_params"):
                kind = "a name" if isinstance(given, str) else "none"
                raise InvalidInputError(
                    f"{name} is a setting of an object, and {part}={given!r} is {kind}: pass the "
                    "object that a name is shorthand for, as density=LowRank() or solver=Adam()."
                )
        return super().set_params(**params)

    def set_callbacks(self, *callbacks: Callback) -> Self:
        """Functions to call with a dict after every iteration of a fit, instead of earlier ones.

        Training stops when one returns True. Clones have the same; model files have none.
        """
        if not all(callable(callback) for callback in callbacks):
            raise InvalidInputError("callbacks must be functions that take a dict.")
        self._callbacks = callbacks
        return self

    def __sklearn_clone__(self) -> Self:
        blank = super().__sklearn_clone__()
        return blank.set_callbacks(*self._callbacks) if self._callbacks else blank

    def _generator(self, random_state: RandomState = None) -> torch.Generator:
        """All that is random in a fit, or in a draw, comes from one generator."""
        state = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator().manual_seed(int(state.randint(np.iinfo(np.int32).max)))

    def _draws(
        self,
        rows: Observations,
        y: np.ndarray | None,
        draw: Callable[[Observations, np.ndarray | None, torch.Generator], np.ndarray],
        like: Callable[[np.ndarray], ArrayLike],
        n_draws: int,
        random_state: RandomState,
    ) -> ArrayLike:
        """So many random completions of rows with labels or targets y, as an array if each is one.

        Many at a time: `draw` takes hardly longer for a thousand rows than for one.
        """
        generator, count, found = self._generator(random_state), check_count(n_draws), []
        size = max(1, _DRAWN_AT_ONCE // len(rows.values))
        for some in np.diff(np.append(np.arange(0, count, size), count)):
            place = np.tile(np.arange(len(rows)), some)
            drawn = draw(rows.take(place), None if y is None else y[place], generator)
            found += [like(each) for each in drawn.reshape(some, *rows.values.shape)]
        return np.stack(found) if isinstance(found[0], np.ndarray) else found

    def _progress(self) -> Progress:
        return Progress(self._callbacks, self.verbose, self.max_time)

    def _shapley(
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

        One thread works on small X and on lists of sequences; several on parts of large X.
        """
        before = dict(self.__dict__)
        try:
            with warning_once(), by_parts(_size(X)):
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _forget(self) -> None:
        """Drop what an earlier fit left: not every method leaves the same."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)


class ModelEstimator(Estimator):
    """An estimator whose answers are those of its fitted model, `model_`; subclasses train it."""

    feature_names_in_: np.ndarray
    model_: Fitted
    choice_: list[dict[str, object]]
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
