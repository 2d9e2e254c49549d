"""SparseMixtureClassifier: a discriminative mixture that finds out what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from typing import Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import KERNEL_PARAMS, PAIRWISE_KERNEL_FUNCTIONS
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _check_feature_names_in
from torch import Tensor

from mixtura.data.given import ArrayLike, Numbers
from mixtura.data.in_memory import as_table
from mixtura.data.lazy import Opened
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.engines import Engine, engine_of
from mixtura.estimators.base import CONSTRAINTS
from mixtura.estimators.classifying import ModelClassifier
from mixtura.estimators.reading import learn_table, opened, read_table
from mixtura.estimators.rows import Rows, component_counts, read_rows
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, UnsupportedError, warn
from mixtura.models.columns import Kernel, Kernels, Products
from mixtura.models.fitted import Fitted, run_over
from mixtura.models.mixture import Layout
from mixtura.models.sparse import SparseModel
from mixtura.parts import AMOUNT, COUNT, POSITIVE
from mixtura.progress import Progress, Record
from mixtura.selection.budget import warn_if_cut_short
from mixtura.selection.chooser import MOST_COMPARED
from mixtura.training.sparse_bayes import SparseBayes, SparseFit
from mixtura.training.sparse_mixture import Examples
from mixtura.training.start import cluster

#: Training rows that may become centers.
_CENTERS = 1_000
#: Columns of all rows are kept while they are no more numbers than this.
_KEPT = 2**26


@dataclass(eq=False, repr=False)
class SparseMixtureClassifier(ModelClassifier):
    """A sparse discriminative Gaussian mixture, trained by maximizing the evidence.

    Every class is a mixture whose components are log-linear in products of features (primal form)
    or in kernels to training rows (dual form). Sparse Bayesian learning removes the weights and
    the components that the evidence does not ask for. With one component per class and the dual
    form this is the relevance vector machine.

    Parameters
    ----------
    n_components : int, or one int per class
        Components to start from. A start from one component per class is tried too, and taken where
        its evidence is larger.
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
        600 in all. In dual form they are chosen among 1,000 rows.
    standardize : bool
        Work in units in which every feature has variance one.
    class_weight, unlabeled, device, random_state, verbose
        As in `MixtureClassifier`; unlabeled rows are left out, with a warning.

    Attributes
    ----------
    classes_, n_components_ (what is left, per class), n_coef_ (that are not zero)
    form_ : "primal" or "dual"
    coef_ : (K, H), of the components for the columns named in `terms_`
    weights_ : (K,), prior probability of every component
    terms_ : what the columns are: "1", products of features in the units of `scaling_`, or rows
    kernel_, kernel_params_ : dual form: what predictions use
    relevance_vectors_ : (R, D), dual form: the training rows that are left
    products_ : (H, 2), primal form: the factors of each column, as places in (1, x)
    coef_covariance_ : posterior covariance of the coefficients that are not zero, row by row
    evidence_ : log marginal likelihood by Laplace's approximation with the components' shares of
        each row held fixed, which with several components per class is a few units too low
    history_ : its course, with the number of weights and components, from the start that was kept
    model_ : the fitted model; `scaling_`, `schema_` for short
    n_iter_, converged_

    Examples
    --------
    >>> from mixtura import SparseMixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> rows = make_ripley(random_state=0)
    >>> model = SparseMixtureClassifier(random_state=0).fit(rows.data, rows.target)
    >>> model.n_coef_ < 20
    True
    """

    _parameter_constraints = CONSTRAINTS | {
        "n_components": [COUNT, "array-like"],
        "form": [StrOptions({"auto", "primal", "dual"})],
        "kernel": [StrOptions({"poly2", *PAIRWISE_KERNEL_FUNCTIONS}), callable],
        "kernel_params": [None, dict],
        "features": [StrOptions({"quadratic", "diagonal", "linear"})],
        "moderate": ["boolean"],
        "n_init": [COUNT],
        "max_iter": [COUNT],
        "tol": [AMOUNT],
        "ceiling": [POSITIVE],
        "max_weights": [COUNT],
    }

    n_components: Numbers | str = 3
    _: KW_ONLY
    form: str = "auto"
    kernel: Kernel = "poly2"
    kernel_params: dict[str, object] | None = None
    features: str = "quadratic"
    moderate: bool = True
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-2
    ceiling: float = 1e5
    max_weights: int = 200
    standardize: bool = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = False
        return tags

    # -- attributes ------------------------------------------------------------------------

    @property
    def _sparse(self) -> SparseModel:
        model = self._fitted.model
        assert isinstance(model, SparseModel)
        return model

    @property
    def n_components_(self) -> list[int]:
        """Components of each class."""
        return list(self._sparse.layout.counts)

    @property
    def weights_(self) -> np.ndarray:
        """(K,) prior probability of every component."""
        return self._sparse.log_weight.exp().numpy()

    @property
    def coef_(self) -> np.ndarray:
        """(K, H) coefficients of the components for the columns named in `terms_`."""
        return self._sparse.coef.numpy()

    @property
    def coef_covariance_(self) -> np.ndarray:
        """(L, L) posterior covariance of the coefficients that are not zero, row by row."""
        return (self._sparse.root @ self._sparse.root.T).numpy()

    @property
    def n_coef_(self) -> int:
        """Coefficients that are not zero."""
        return self._sparse.n_coef

    @property
    def form_(self) -> str:
        """ "primal" or "dual"."""
        return "primal" if isinstance(self._sparse.basis, Products) else "dual"

    @property
    def _kernels(self) -> Kernels:
        basis = self._sparse.basis
        if isinstance(basis, Products):
            raise AttributeError("a model in primal form has no kernels.")
        return basis

    @property
    def relevance_vectors_(self) -> np.ndarray:
        """(R, D) the training rows that are left, in dual form."""
        return self.scaling_.invert(self._kernels.centers)

    @property
    def kernel_(self) -> Kernel:
        """The kernel that predictions use, in dual form."""
        return self._kernels.kernel

    @property
    def kernel_params_(self) -> dict[str, object]:
        """Its parameters."""
        return self._kernels.params

    @property
    def products_(self) -> np.ndarray:
        """(H, 2) the factors of each column, as places in (1, x), in primal form."""
        basis = self._sparse.basis
        if not isinstance(basis, Products):
            raise AttributeError("a model in dual form has no products.")
        return basis.pairs

    @property
    def terms_(self) -> list[str]:
        """What the columns of `coef_` are."""
        basis = self._sparse.basis
        if isinstance(basis, Products):
            return basis.names(list(_check_feature_names_in(self)))
        return ["1", *(f"vector {place}" for place in range(len(basis.centers)))]

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit the model to the labeled rows.

        Parameters
        ----------
        X : (n, D), nothing missing. Or files, as `MixtureClassifier` takes them, of as many rows
            as memory holds.
        y : (n,) labels.
        sample_weight : (n,) non-negative weights; a row of weight two counts as two rows.
        """
        with self._all_or_nothing(X):
            X, y, sample_weight = opened(self, X, y, sample_weight)
            if isinstance(X, Opened):
                schema = learn_table(self, X, None, "error")[1].of_numbers()
                given = _whole(X.rows.whole())
            else:
                schema = Schema.learn(as_table(X)).of_numbers()
                given = self._read(X, schema, reset=True)
            rows = read_rows(self, given, y, sample_weight).only_labeled()
            return self._fit_rows(rows, schema, self._counts(rows))

    def _read(self, X: ArrayLike, schema: Schema, *, reset: bool) -> Matrix:
        rows = read_table(self, schema.in_order(as_table(X)), schema, "error", reset=reset)
        return _whole(rows.values)

    def _rows(self, X: ArrayLike) -> Matrix:
        return self._read(X, self.schema_, reset=False)

    def _counts(self, rows: Rows) -> list[int]:
        counts = component_counts(self.n_components, rows)
        assert counts is not None  # only "auto" leaves them open, and is refused before
        return [1] if len(rows.classes) == 1 else counts

    def _fit_rows(self, rows: Rows, schema: Schema, counts: list[int]) -> Self:
        values = rows.X.values
        form, params = self._form(*values.shape), self._kernel_params(values.shape[1])
        scaling = Scaling.measure(values, rows.weight, getattr(self, "feature_names_in_", None))
        scaling = scaling if self.standardize else Scaling.identity(values.shape[1])
        engine = engine_of(rows.X, rows.y, rows.weight, scaling, self.device)
        generator = self._generator()
        with self._progress() as progress:
            basis = self._basis(form, params, engine, generator)
            fit, self.history_ = self._best_start(basis, engine, counts, generator, progress)
        self.model_ = Fitted(self._model(basis, fit), scaling, schema, rows.classes)
        self.evidence_, self.n_iter_ = fit.evidence, fit.n_iter
        cut_short = warn_if_cut_short(progress, len(engine), len(engine))
        self.converged_ = fit.converged and not cut_short
        if not fit.converged and not progress.stopped:
            warn(
                f"the evidence had not settled after max_iter={self.max_iter} iterations; raise "
                "max_iter.",
                ConvergenceWarning,
            )
        if not self.n_coef_ and len(rows.classes) > 1:
            warn(
                "no weight is left: the evidence finds nothing in X that tells the classes apart, "
                "and every row gets the class shares. Remedy: other features, another kernel, or "
                "more rows.",
                DegenerateDataWarning,
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
        """The start that ends with the largest evidence."""
        trainer = SparseBayes(self.max_iter, self.tol, self.ceiling, self.max_weights)
        columns, single = _columns(basis, engine), [1] * len(counts)
        attempts: list[tuple[SparseFit, list[Record]]] = []
        for wanted in [counts] * self.n_init + [single] * (counts != single):
            before = len(progress.history)
            start, layout = _clusters(engine, wanted, generator)
            examples = Examples(columns, len(basis), engine.y.long(), start, engine.weight, layout)
            attempts.append((trainer.run(examples, progress), progress.history[before:]))
            if progress.stopped:
                break
        return max(attempts, key=lambda attempt: attempt[0].evidence)

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
        many = n_rows > max(MOST_COMPARED, (n_features + 1) * (n_features + 2) // 2)
        return "primal" if many and self.kernel == "poly2" else "dual"

    def _kernel_params(self, n_features: int) -> dict[str, object]:
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
        self, form: str, params: dict[str, object], engine: Engine, generator: torch.Generator
    ) -> Products | Kernels:
        """All columns that a weight may belong to."""
        if form == "primal":
            return Products.of(self.features, engine.n_features)
        distinct = np.unique(engine.all_rows().x.cpu().numpy(), axis=0)
        order = torch.randperm(len(distinct), generator=generator)[:_CENTERS].numpy()
        return Kernels(distinct[order], self.kernel, params)

    def _model(self, basis: Products | Kernels, fit: SparseFit) -> SparseModel:
        """What is left, over the columns that it needs."""
        found = fit.model
        column = found.column.cpu().numpy()
        used = np.unique(np.append(column, 0))
        coef = torch.zeros(len(found.log_share), len(used), dtype=torch.float64)
        coef[found.component.cpu(), np.searchsorted(used, column)] = found.weight.double().cpu()
        return SparseModel(
            basis=basis.select(used),
            coef=coef,
            log_weight=found.log_share.double().cpu(),
            layout=Layout(found.layout.counts),
            root=fit.root.double().cpu(),
            moderate=self.moderate,
        )

    # -- predicting ------------------------------------------------------------------------

    def responsibilities(self, X: ArrayLike) -> np.ndarray:
        """p(component | x), (n, K), components in the order of `weights_`; never moderated."""
        return run_over(self._sparse, self._engine(X), lambda m, b: m.posterior(b)).numpy()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to one file; `mixtura.load` reads it back."""
        if callable(self.kernel):
            raise InvalidInputError(
                "a model file cannot hold a kernel that is a function: use one that has a name, or "
                "pickle the estimator."
            )
        super().save(path)


def _whole(values: np.ndarray) -> Matrix:
    """Rows of which nothing may be missing."""
    holes = np.isnan(values).any(0)
    if holes.any():
        raise InvalidInputError(
            f"Input X contains NaN, in the column(s) {np.flatnonzero(holes)[:10].tolist()}, and "
            "this model has no density to marginalize them with. Use MixtureClassifier, or fill "
            "them first."
        )
    return Matrix(values)


def _columns(
    basis: Products | Kernels, engine: Engine
) -> Callable[[slice | Tensor, Tensor], Tensor]:
    """Values by rows and columns: looked up where all of them are few enough to keep."""

    def values(rows: slice | Tensor, wanted: Tensor) -> Tensor:
        return basis.values(engine.batch(rows).x, wanted)

    if len(engine) * len(basis) > _KEPT:
        return values
    kept = values(slice(None), torch.arange(len(basis), device=engine.device)).T.contiguous()
    return lambda rows, wanted: kept[wanted][:, rows].T


def _clusters(
    engine: Engine, counts: list[int], generator: torch.Generator
) -> tuple[Tensor, Layout]:
    """(n,) component from which each row starts, and the components of each class.

    A class has no more components than distinct rows. Its clusters depend on its own rows alone:
    all classes draw from the same seed.
    """
    start = torch.zeros_like(engine.y, dtype=torch.long)
    found: list[int] = []
    seed = int(torch.randint(2**31, (1,), generator=generator))
    for label, count in enumerate(counts):
        own = engine.labeled_as(label).all_rows()
        same = torch.Generator().manual_seed(seed)
        clusters = cluster(own.x, own.weight[:, None], count, same)[:, 0]
        names, place = clusters.unique(return_inverse=True)
        start[engine.y == label] = sum(found) + place
        found.append(len(names))
    return start, Layout(found, engine.device)
