"""SparseMixtureClassifier: a discriminative mixture that finds out what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import KERNEL_PARAMS, PAIRWISE_KERNEL_FUNCTIONS
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted
from torch import Tensor

from mixtura.data import Table, resolve_device
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.base import Trainable
from mixtura.estimators.plan import SMALL, Rows, component_counts, labeled_rows, read_rows
from mixtura.estimators.predicting import LabeledScore
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError, warn
from mixtura.models.columns import Kernels, Products
from mixtura.models.mixture import Layout
from mixtura.persistence import storable
from mixtura.progress import Progress, Record
from mixtura.selection.budget import warn_if_cut_short
from mixtura.training.sparse_bayes import Examples, SparseBayes, SparseFit
from mixtura.training.start import cluster

#: By how much a start from one component a class must beat those from several, whose evidence is
#: a few units too low.
_CLEARLY = 5.0
#: Training rows that may become centers.
_CENTRES = 1_000
#: Columns of all rows are kept while they are no more numbers than this; a prediction makes arrays
#: of about so many.
_KEPT, _CHUNK = 2**26, 2**21
#: Columns of rows to predict end here, so that squares of their products stay finite.
_FARTHEST = 1e70


@storable
class SparseMixtureClassifier(LabeledScore, Trainable):
    """A sparse discriminative Gaussian mixture, trained by maximizing the evidence.

    Every class is a mixture whose components are log-linear in products of features (primal form)
    or in kernels to training rows (dual form). Sparse Bayesian learning removes the weights and
    the components that the evidence does not ask for. With one component a class and the dual form
    this is the relevance vector machine.

    Parameters
    ----------
    n_components : int, or one int a class
        Components to start from. A start from one component a class is tried too, and taken where
        its evidence is clearly larger.
    form : "auto", "primal" or "dual"
        "auto" is primal for more than 3,000 rows with the kernel "poly2", unless there are more
        products than rows.
    kernel : "poly2", a name that scikit-learn's `pairwise_kernels` knows, or a function
        Dual form; "poly2" is `(gamma x.x' + 1)^2`. A function takes two matrices of standardized
        rows and gives the matrix of their kernels. It need not be positive definite.
    kernel_params : dict or None
        Parameters of the kernel. Where it takes a `gamma` that is not given, 2 / D is used for
        "poly2" (for two features the paper's 1) and 1 / (2 D) for the others.
    features : "quadratic", "diagonal" or "linear"
        Primal form: all products of two features (full covariances), squares alone, or none.
    moderate : bool
        Let the uncertainty of the weights moderate the probabilities (MacKay's approximation).
    n_init : int
        Starts from different clusters; the one with the largest evidence is kept. More starts tend
        to find fewer weights.
    max_iter, tol : int, float
        Updates of the precisions, and the change of the evidence that counts as none (0.01 % of it
        always does).
    max_time : float or None
        Stop after so many seconds, with the model there is by then.
    ceiling : float
        A weight whose prior precision passes it is removed; in units of the root mean square of its
        column.
    max_weights : int
        Weights to start from: where there could be more, every component starts from the columns
        that explain its rows best: sixty at most, and thirty at least if that makes no more than
        900 in all. In dual form they are chosen among 1,000 rows.
    class_weight, standardize, unlabeled, device, callbacks, random_state, verbose
        As in `MixtureClassifier`; unlabeled rows are left out, with a warning.

    Attributes
    ----------
    classes_, n_components_ (what is left, a class), n_weights_ (that are not zero)
    form_ : "primal" or "dual"
    weights_ : (K, H), of the components for the columns named in `terms_`
    shares_ : (K,), prior probability of every component
    terms_ : what the columns are: "1", products of features in the units of `scaling_`, or rows
    kernel_, kernel_params_ : dual form: what predictions use
    relevance_vectors_ : (R, D), dual form: the training rows that are left
    products_ : (H, 2), primal form: the factors of each column, as places in (1, x)
    weight_covariance_ : posterior covariance of the weights that are not zero, row by row
    evidence_ : log marginal likelihood by Laplace's approximation with the components' shares of
        each row held fixed, which with several components a class is a few units too low
    history_ : its course, with the number of weights and components, from the start that was kept
    scaling_, schema_, n_iter_, converged_

    Examples
    --------
    >>> from mixtura import SparseMixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> rows = make_ripley(random_state=0)
    >>> model = SparseMixtureClassifier(random_state=0).fit(rows.data, rows.target)
    >>> model.n_weights_ < 20
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "form": [StrOptions({"auto", "primal", "dual"})],
        "kernel": [StrOptions({"poly2", *PAIRWISE_KERNEL_FUNCTIONS}), callable],
        "kernel_params": [None, dict],
        "features": [StrOptions({"quadratic", "diagonal", "linear"})],
        "moderate": ["boolean"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "ceiling": [Interval(Real, 0, None, closed="neither")],
        "max_weights": [Interval(Integral, 1, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "standardize": ["boolean"],
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: Any = 3,
        *,
        form: str = "auto",
        kernel: Any = "poly2",
        kernel_params: dict[str, Any] | None = None,
        features: str = "quadratic",
        moderate: bool = True,
        n_init: int = 1,
        max_iter: int = 200,
        max_time: float | None = None,
        tol: float = 1e-2,
        ceiling: float = 1e5,
        max_weights: int = 200,
        class_weight: Any = None,
        standardize: bool = True,
        unlabeled: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.form = form
        self.kernel = kernel
        self.kernel_params = kernel_params
        self.features = features
        self.moderate = moderate
        self.n_init = n_init
        self.max_iter = max_iter
        self.max_time = max_time
        self.tol = tol
        self.ceiling = ceiling
        self.max_weights = max_weights
        self.class_weight = class_weight
        self.standardize = standardize
        self.unlabeled = unlabeled
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to the labeled rows.

        Parameters
        ----------
        X : (n, D), nothing missing.
        y : (n,) labels.
        sample_weight : (n,) non-negative weights; a row of weight two counts as two rows.
        """
        with self._all_or_nothing():
            X = self._check_complete(X, reset=True)
            rows = labeled_rows(read_rows(self, X, y, sample_weight))
            return self._fit_rows(rows, self._counts(rows))

    def _check_complete(self, X: Any, *, reset: bool) -> np.ndarray:
        X = self._check_X(X, reset=reset)
        holes = np.isnan(X).any(0)
        if holes.any():
            raise InvalidInputError(
                f"Input X contains NaN, in the column(s) {np.flatnonzero(holes)[:10].tolist()}, "
                "and this model has no density to marginalize them with. Use MixtureClassifier, "
                "or fill them first."
            )
        return X

    def _counts(self, rows: Rows) -> list[int]:
        counts = component_counts(self.n_components, rows)
        assert counts is not None  # only "auto" leaves them open, and is refused before
        return [1] if len(rows.classes) == 1 else counts

    def _fit_rows(self, rows: Rows, counts: list[int]) -> Self:
        form, params = self._form(*rows.X.shape), self._kernel_params(rows.X.shape[1])
        scaling = self._measure_scaling(rows.X, rows.weight)
        device = resolve_device(self.device, rows.X.size)
        engine = LocalEngine(Table(rows.X, rows.y, rows.weight, scaling=scaling, device=device))
        generator = self._generator()
        with self._progress() as progress:
            basis = self._basis(form, params, engine, generator)
            fit, self.history_ = self._best_start(basis, engine, counts, generator, progress)
        self.classes_, self.form_, self.scaling_ = rows.classes, form, scaling
        self._publish(basis, fit)
        self.converged_ &= not warn_if_cut_short(progress, len(engine), len(engine))
        if not fit.converged and not progress.stopped:
            warn(
                f"the evidence had not settled after max_iter={self.max_iter} iterations; raise "
                "max_iter.",
                ConvergenceWarning,
            )
        return self

    def _best_start(
        self,
        basis: Products | Kernels,
        engine: Engine,
        counts: list[int],
        generator: torch.Generator,
        progress: Progress,
    ) -> tuple[SparseFit, list[Record]]:
        """The start that ends with the largest evidence, `_CLEARLY` more for a single component."""
        trainer = SparseBayes(self.max_iter, self.tol, self.ceiling, self.max_weights)
        columns, single = _columns(basis, engine), [1] * len(counts)
        attempts: list[tuple[float, SparseFit, list[Record]]] = []
        for wanted in [counts] * self.n_init + [single] * (counts != single):
            before = len(progress.history)
            start, layout = _clusters(engine, wanted, generator)
            examples = Examples(columns, len(basis), engine.y, start, engine.weight, layout)
            fit = trainer.run(examples, progress)
            worth = fit.evidence - (_CLEARLY if wanted == single != counts else 0.0)
            attempts.append((worth, fit, progress.history[before:]))
            if progress.stopped:
                break
        _, best, course = max(attempts, key=lambda attempt: attempt[0])
        return best, course

    def _form(self, n_rows: int, n_features: int) -> str:
        if self.kernel != "poly2" and (self.form == "primal" or self.features != "quadratic"):
            raise UnsupportedError(
                f"kernel={self.kernel!r} belongs to the dual form, form={self.form!r} and "
                f"features={self.features!r} to the primal one: set one of them aside."
            )
        if self.form == "dual" and self.features != "quadratic":
            raise UnsupportedError(
                f"features={self.features!r} belongs to the primal form: use form='primal', or "
                "choose a kernel."
            )
        if self.form != "auto":
            return self.form
        if self.features != "quadratic":
            return "primal"
        many = n_rows > max(SMALL, (n_features + 1) * (n_features + 2) // 2)
        return "primal" if many and self.kernel == "poly2" else "dual"

    def _kernel_params(self, n_features: int) -> dict[str, Any]:
        params = dict(self.kernel_params or {})
        if callable(self.kernel):
            return params
        known = frozenset(
            KERNEL_PARAMS.get(self.kernel, ()) if self.kernel != "poly2" else ("gamma",)
        )
        if set(params) - known:
            raise InvalidInputError(
                f"kernel_params has {sorted(set(params) - known)}, which kernel={self.kernel!r} "
                f"does not take; it takes {sorted(known) or 'none'}."
            )
        width = 2.0 if self.kernel == "poly2" else 0.5
        return {"gamma": width / n_features, **params} if "gamma" in known else params

    def _basis(
        self, form: str, params: dict[str, Any], engine: Engine, generator: torch.Generator
    ) -> Products | Kernels:
        """All columns that a weight may belong to."""
        if form == "primal":
            return Products.of(self.features, engine.n_features)
        distinct = np.unique(engine.all_rows().x.cpu().numpy(), axis=0)
        order = torch.randperm(len(distinct), generator=generator)[:_CENTRES].numpy()
        return Kernels(distinct[order], self.kernel, params)

    def _publish(self, basis: Products | Kernels, fit: SparseFit) -> None:
        model = fit.model
        used = np.unique(np.append(model.column.cpu().numpy(), 0))
        place = np.searchsorted(used, model.column.cpu().numpy())
        self.n_components_ = list(model.layout.counts)
        self.shares_ = model.log_share.exp().cpu().numpy()
        self.weights_ = np.zeros((len(self.shares_), len(used)))
        self.weights_[model.component.cpu().numpy(), place] = model.weight.cpu().numpy()
        self.weight_covariance_ = fit.covariance.cpu().numpy()
        self.n_weights_ = len(model.weight)
        self.evidence_, self.n_iter_, self.converged_ = fit.evidence, fit.n_iter, fit.converged
        for name in ("products_", "relevance_vectors_", "kernel_", "kernel_params_"):
            self.__dict__.pop(name, None)  # of a former fit in the other form
        if isinstance(basis, Products):
            self.products_ = basis.pairs[used]
        else:
            self.relevance_vectors_ = self.scaling_.invert(basis.centers[used[1:] - 1])
            self.kernel_, self.kernel_params_ = basis.kernel, basis.params
        if not self.n_weights_ and len(self.classes_) > 1:
            warn(
                "no weight is left: the evidence finds nothing in X that tells the classes apart, "
                "and every row gets the class shares. Remedy: other features, another kernel, or "
                "more rows.",
                DegenerateDataWarning,
            )

    # -- predicting ------------------------------------------------------------------------

    def _fitted_basis(self) -> Products | Kernels:
        if self.form_ == "primal":
            return Products(self.products_)
        centers = self.scaling_.apply(self.relevance_vectors_)
        return Kernels(centers, self.kernel_, self.kernel_params_)

    def _evaluate(self, X: Any, function: Callable[[_Answer, Tensor], Tensor]) -> np.ndarray:
        """`function` of the columns of every row, chunk by chunk."""
        check_is_fitted(self)
        X = self._check_complete(X, reset=False)
        device = resolve_device(self.device, X.size)
        engine = LocalEngine(Table(X, scaling=self.scaling_, device=device))
        answer, basis = _Answer.of(self, device), self._fitted_basis()
        every = torch.arange(len(basis), device=device)
        n_classes = len(self.classes_)
        size = max(1, _CHUNK // (len(every) + n_classes * (1 + n_classes + self.n_weights_)))
        columns = (basis.values(batch.x, every) for batch in engine.chunks(size))
        parts = [function(answer, each.clamp(-_FARTHEST, _FARTHEST)) for each in columns]
        return torch.cat(parts).cpu().numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(class | x), (n, C), classes in the order of `classes_`."""
        return self._evaluate(X, _Answer.log_proba)

    def responsibilities(self, X: Any) -> np.ndarray:
        """p(component | x), (n, K), components in the order of `shares_`; never moderated."""
        return self._evaluate(X, lambda answer, values: answer.joint(values).softmax(1))

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        place = self.predict_log_proba(X).argmax(1)
        return self.classes_[place]

    def save(self, path: Any) -> None:
        """Write the fitted estimator to one file; `mixtura.load` reads it back."""
        if callable(self.kernel):
            raise InvalidInputError(
                "a model file cannot hold a kernel that is a function: use one that has a name, or "
                "pickle the estimator."
            )
        super().save(path)

    @property
    def terms_(self) -> list[str]:
        """What the columns of `weights_` are."""
        check_is_fitted(self)
        if self.form_ == "dual":
            return ["1", *(f"vector {place}" for place in range(len(self.relevance_vectors_)))]
        return Products(self.products_).names(list(_check_feature_names_in(self)))


def _columns(
    basis: Products | Kernels, engine: Engine
) -> Callable[[slice | Tensor, Tensor], Tensor]:
    """Values by rows and columns: looked up where all of them are few enough to keep."""

    def values(rows: slice | Tensor, wanted: Tensor) -> Tensor:
        return basis.values(engine.batch(rows).x, wanted)

    if len(engine) * len(basis) > _KEPT:
        return values
    kept = values(slice(None), torch.arange(len(basis), device=engine.device))
    return lambda rows, wanted: kept[rows][:, wanted]


def _clusters(
    engine: Engine, counts: list[int], generator: torch.Generator
) -> tuple[Tensor, Layout]:
    """(n,) component from which each row starts, and the components of each class.

    A class has no more components than distinct rows. Its clusters depend on its own rows alone:
    all classes draw from the same seed.
    """
    start = torch.zeros_like(engine.y)
    found: list[int] = []
    seed = int(torch.randint(2**31, (1,), generator=generator))
    for label, count in enumerate(counts):
        own = engine.labeled_as(label).all_rows()
        clusters = cluster(own.x, own.weight, count, torch.Generator().manual_seed(seed))
        start[engine.y == label] = sum(found) + clusters
        found.append(int(clusters.max()) + 1)
    return start, Layout(found, engine.device)


@dataclass(frozen=True)
class _Answer:
    """Class probabilities from the values of the columns.

    Attributes
    ----------
    weight, log_share : (K, H) and (K,).
    layout : components of each class.
    component, column : (L,) place of the weights that are not zero.
    root : (L, L), whose product with its transpose is their posterior covariance; None takes the
        weights for certain.
    """

    weight: Tensor
    log_share: Tensor
    layout: Layout
    component: Tensor
    column: Tensor
    root: Tensor | None

    @classmethod
    def of(cls, model: SparseMixtureClassifier, device: torch.device) -> _Answer:
        weight = torch.as_tensor(model.weights_, device=device)
        component, column = weight.nonzero(as_tuple=True)
        root = None
        if model.moderate and model.n_weights_:
            deviation = np.sqrt(model.weight_covariance_.diagonal())
            correlation = model.weight_covariance_ / deviation[:, None] / deviation
            values, vectors = np.linalg.eigh(correlation)
            half = deviation[:, None] * vectors * np.sqrt(values.clip(min=0.0))
            root = torch.as_tensor(half, device=device)
        log_share = torch.as_tensor(model.shares_, device=device).log()
        return cls(weight, log_share, Layout(model.n_components_, device), component, column, root)

    def joint(self, values: Tensor) -> Tensor:
        """log p(component | x) up to a constant, (n, K), from the columns (n, H)."""
        return self.log_share + values @ self.weight.T

    def log_proba(self, values: Tensor) -> Tensor:
        """log p(class | x), (n, C), from the columns (n, H)."""
        joint = self.joint(values)
        by_class = self.layout.logsumexp(joint)
        if self.root is None:
            return by_class.log_softmax(1)
        return _moderated(by_class, self._deviations(values, joint, self.root))

    def _deviations(self, values: Tensor, joint: Tensor, root: Tensor) -> Tensor:
        """(n, C, L): inner products of its rows are covariances of the class log-joints."""
        shares = (joint - self.layout.logsumexp(joint)[:, self.layout.owner]).exp()
        slopes = values[:, self.column] * shares[:, self.component]
        owner = self.layout.owner[self.component]
        masks = [owner == label for label in range(self.layout.n_classes)]
        return torch.stack([slopes[:, mask] @ root[mask] for mask in masks], 1)


def _moderated(by_class: Tensor, deviations: Tensor) -> Tensor:
    """Class log-probabilities under uncertain log-joints.

    Every difference of two classes shrinks by MacKay's factor 1 / sqrt(1 + pi variance / 8); for
    two classes this is his moderated output.
    """
    covariance = deviations @ deviations.mT
    own = covariance.diagonal(dim1=1, dim2=2)
    variance = (own[:, :, None] + own[:, None, :] - 2.0 * covariance).clamp_min(0.0)
    difference = by_class[:, None, :] - by_class[:, :, None]
    shrunk = difference / (1.0 + math.pi / 8.0 * variance).sqrt()
    return (-shrunk.logsumexp(2)).log_softmax(1)
