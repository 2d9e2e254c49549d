"""MixtureNetworkClassifier and MixtureNetworkRegressor: mixtures embed, a read-out decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted

from mixtura.data import UNLABELED, Batch, Table, labelled_mask, resolve_device
from mixtura.densities import STRUCTURES
from mixtura.engines import LocalEngine, some_rows
from mixtura.estimators.base import (
    TABLE_CONSTRAINTS,
    MixtureEstimator,
    check_count,
    check_weight,
    resolve_rank,
    run_over,
)
from mixtura.estimators.calibration import Calibration
from mixtura.estimators.growing import Candidate, Choice, choose
from mixtura.estimators.plan import SMALL, Rows, adam_epochs, batch_rows, class_counts, read_rows
from mixtura.estimators.predicting import DensityClassifier
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, NoLabelsError, warn
from mixtura.mixture import Mixture
from mixtura.network import EMBEDDINGS, Network, RegressionNetwork
from mixtura.objectives import DISCRIMINATIVE, Objective, Regression, build_objective
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.trainers.base import SpreadPrior
from mixtura.trainers.em import EM
from mixtura.trainers.gradient import LBFGS, Adam
from mixtura.trainers.linked import ElasticNet, Linked, NetworkPrior
from mixtura.trainers.selection import Recipe, fit_groups

#: Embeddings that "auto" compares, and how far the mixtures of classes then keep to their own rows.
_COMPARED = {"posterior": 0.0, "log_density": 1.0}
_ITERATIONS, _LEARNING_RATE = 60, 5e-3
#: Draws that rows of wanted classes are chosen from, at least.
_POOL = 1_000
#: Parts that rows are held back in for a choice between regressors, and rows that are too few.
_FOLDS, _FEWEST = 4, 50


class Variant(NamedTuple):
    """What "auto" may leave open."""

    embedding: str
    specialize: float
    informative: bool


class MixtureNetwork(MixtureEstimator):
    """What classifier and regressor share."""

    _network_class: type[Network] = Network

    def _variants(self, table: Table) -> list[Variant]:
        """The choices that the parameters leave, first choice first."""
        auto = self.embedding == "auto"
        open_question = self.missingness == "auto" and table.may_have_missing
        holes = [False, True] if open_question else [self.missingness == "informative"]
        found = []
        for embedding in _COMPARED if auto else [self.embedding]:
            given = getattr(self, "specialize", 0.0)
            default = _COMPARED.get(embedding, 0.0)
            specialize = default if given == "auto" else float(given)
            found += [Variant(embedding, specialize, informative) for informative in holes]
        return found

    def _fit_network(
        self, variant: Variant, table: Table, generator: torch.Generator, progress: Progress
    ) -> Network:
        """A start by EM, linked EM, and gradients through the whole network if they are wanted."""
        engine = LocalEngine(table)
        mixture, prior = self._start(variant, table, generator, progress)
        linked = Linked(
            ElasticNet(self.l1, self.l2),
            link=self.link,
            annihilate=self.annihilate,
            specialize=variant.specialize,
            equal=self.equal_covariances,
            max_iter=self.max_iter,
            tol=self.tol,
            prior=prior,
        )
        blank = self._network_class.blank(mixture, variant.embedding)
        found = linked.run(blank, engine, progress)
        self.n_iter_, self.converged_ = found.n_iter, found.converged
        if not self.end_to_end or not found.network.weight.any():
            return found.network
        penalties = NetworkPrior(linked.net, engine.total_weight, prior)
        trainer = self._gradient_trainer(engine, penalties, generator)
        return trainer.run(found.network, self._objective(table), engine, progress).mixture

    def _gradient_trainer(
        self, engine: LocalEngine, prior: NetworkPrior, generator: torch.Generator
    ) -> Any:
        if engine.total_weight <= SMALL:
            return LBFGS(_ITERATIONS, prior=prior)  # type: ignore[arg-type]
        size = batch_rows("auto", len(engine))
        return Adam(
            generator,
            max_epochs=adam_epochs(len(engine) / size),
            batch_size=size,
            learning_rate=_LEARNING_RATE,
            schedule="cosine",
            prior=prior,  # type: ignore[arg-type]
        )

    def _objective(self, table: Table) -> Objective:
        raise NotImplementedError

    def _start(
        self, variant: Variant, table: Table, generator: torch.Generator, progress: Progress
    ) -> tuple[Mixture, SpreadPrior | None]:
        """EM on all rows, once for all classes; or on the rows of each, where that is its share."""
        n_classes, everyone = self._n_mixtures, LocalEngine(table.single_class())
        engines = [everyone] * n_classes
        if variant.specialize > 0.5 and n_classes > 1:
            own = (table.labelled_as(label) for label in range(n_classes))
            engines = [LocalEngine(rows.single_class()) if len(rows) else everyone for rows in own]
        counts = self._counts(engines)
        alike = len({id(engine) for engine in engines}) == 1 and len(set(counts or [0])) == 1
        fitted = 1 if alike else n_classes
        recipe = Recipe(
            covariance=self.covariance,
            rank=resolve_rank(self.rank, self.covariance, table.n_numbers),
            floor=self.reg_covar,
            em=EM(self.max_iter, 10.0 * self.tol),
            n_init=self.n_init,
            prior_rows=self.prior_rows,
            informative=variant.informative,
        )
        counts = None if counts is None else counts[:fitted]
        start = fit_groups(engines[:fitted], counts, recipe, generator, progress)
        mixtures = [result.mixture for result in start.results] * (n_classes if alike else 1)
        even = mixtures[0].log_weight.new_full((n_classes,), 1.0 / n_classes).log()
        return Mixture.join(mixtures, even, learn_prior=True), start.prior

    def _counts(self, engines: Sequence[LocalEngine]) -> list[int] | None:
        """Components of each mixture, no more than its rows; None for "auto"."""
        if isinstance(self.n_components, str):
            return None
        wanted = np.atleast_1d(np.asarray(self.n_components))
        if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or (wanted < 1).any():
            raise InvalidInputError(
                f"n_components={self.n_components!r}: give a positive int, or one a class."
            )
        if len(wanted) not in (1, len(engines)):
            raise InvalidInputError(
                f"n_components has {len(wanted)} entries for {len(engines)} mixtures: give one "
                "number a class, or a single one."
            )
        most = np.array([len(engine) for engine in engines])
        if (wanted > most).any():
            warn(
                "more components than rows: there is one a row then. Remedy: a smaller "
                "n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        return np.minimum(wanted, most).tolist()

    # -- what a fitted network answers -----------------------------------------------------------

    @property
    def _n_mixtures(self) -> int:
        return 1

    def _keep(self, network: Network, variant: Variant, table: Table, progress: Progress) -> None:
        """Fitted attributes."""
        self._publish(network.mixture, table.scaling, table)
        network = network.to("cpu", torch.float64)
        self.coef_, self.intercept_ = network.weight.numpy(), network.bias.numpy()
        self.embedding_shift_, self.embedding_scale_ = network.shift.numpy(), network.scale.numpy()
        self.embedding_, self.specialize_ = variant.embedding, variant.specialize
        self.missingness_ = "informative" if variant.informative else "ignore"
        self.n_components_ = list(network.mixture.layout.counts)
        self.history_ = progress.history

    def _network(self) -> Network:
        check_is_fitted(self)
        read_out = (self.coef_, self.intercept_, self.embedding_shift_, self.embedding_scale_)
        blank = self._network_class.blank(self.mixture_, self.embedding_)
        return blank.with_read_out(*map(torch.from_numpy, read_out))

    def _outputs(self, rows: np.ndarray) -> np.ndarray:
        """What the network makes of checked rows."""
        return run_over(
            self._network(), self._table(rows), lambda n, b: n.class_log_joint(b)
        ).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """The embedding of each row, (n, K), in the units of the read-out."""
        network, rows = self._network(), self._check_X(X, reset=False)
        return run_over(network, self._table(rows), lambda n, b: n.embed(b)).numpy()

    def cluster(self, X: Any) -> np.ndarray:
        """The component that each row most probably belongs to, (n,)."""
        return self.responsibilities(X).argmax(1)


@storable
class MixtureNetworkClassifier(DensityClassifier, MixtureNetwork):
    """Mixtures embed a row, one a class; a sparse log-linear read-out of the embedding decides.

    Numbers, categories, holes and unlabelled rows are welcome: the mixtures learn from all rows,
    the read-out from the labelled ones. Without any label it is a mixture: it embeds, clusters,
    imputes, scores and samples.

    Parameters
    ----------
    n_components : "auto", int, or one int a class
        Components of each mixture; "auto" grows them while an information criterion falls.
    embedding : "auto", "posterior", "density", "log_density" or "simplex"
        What a component makes of a row: its posterior in the mixture; its density, as a share of
        its highest; the log of that; or the posterior's cousin with true zeros, the projection of
        the log-joints onto the simplex. "auto" compares posteriors and log-densities on held-back
        rows.
    specialize : "auto" or float in [0, 1]
        How much less the rows of other classes count for the mixture of a class. 0 fits every
        mixture to all rows, as published; 1 to the rows of its class. "auto" is 1 for log-densities
        and 0 for the others.
    link : float
        Rows that the read-out's say in the mixtures' weights counts for: components that the
        read-out uses grow. 0 is no link.
    l1, l2 : float
        Penalties of the read-out's weights, beside the mean loss of the rows.
    annihilate : bool
        Erase components whose weight in the read-out becomes zero.
    end_to_end : bool
        Then train mixtures and read-out together by gradient, so that the read-out moves means and
        covariances too.
    objective : "conditional", "margin" or "smooth_margin"
        The discriminative term of that training.
    tradeoff : float in [0, 1]
        Share of the likelihood in it.
    margin : float
        Log-margin that a margin objective asks for.
    unlabeled_weight : float in [0, 1]
        Weight of unlabelled rows in the likelihood; labelled rows then weigh one minus it.
    covariance : "full", "diag", "spherical" or "low_rank"
    equal_covariances : bool
        Give all components of a mixture one covariance (until gradients move them).
    calibrate : bool
        Make probabilities honest by what networks say of held-back rows, whole and with holes.
    max_iter, tol : int, float
        Linked EM ends after so many iterations, or when the parameters change by a smaller share.
    rank, reg_covar, prior_rows, n_init, standardize, class_weight, categorical_features,
    unexpected, missingness, unlabeled, max_time, device, callbacks
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_ : the labels, and their shares in the labelled rows
    coef_, intercept_ : read-out; a weight a component, a bias a class
    mixture_, weights_, means_, covariances_, n_components_ : the mixtures, class by class
    embedding_, specialize_, missingness_ : what "auto" chose
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    scaling_, schema_, history_, n_iter_, converged_

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureNetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MixtureNetworkClassifier(4, random_state=0).fit(X, y)
    >>> model.transform(X).shape[1] == model.coef_.shape[0]
    True
    """

    _parameter_constraints: dict = {
        "n_components": [StrOptions({"auto"}), Integral, "array-like"],
        "embedding": [StrOptions({"auto", *EMBEDDINGS})],
        "specialize": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "link": [Interval(Real, 0, None, closed="left")],
        "l1": [Interval(Real, 0, None, closed="left")],
        "l2": [Interval(Real, 0, None, closed="left")],
        "annihilate": ["boolean"],
        "end_to_end": ["boolean"],
        "objective": [StrOptions(set(DISCRIMINATIVE))],
        "tradeoff": [Interval(Real, 0, 1, closed="both")],
        "margin": [Interval(Real, 0, None, closed="neither")],
        "unlabeled_weight": [Interval(Real, 0, 1, closed="both")],
        "covariance": [StrOptions({name for name, _ in STRUCTURES})],
        "rank": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "equal_covariances": ["boolean"],
        "reg_covar": [Interval(Real, 0, None, closed="neither")],
        "prior_rows": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "calibrate": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "standardize": ["boolean"],
        **TABLE_CONSTRAINTS,
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        embedding: str = "auto",
        specialize: Any = "auto",
        link: float = 0.0,
        l1: float = 1e-3,
        l2: float = 1e-3,
        annihilate: bool = False,
        end_to_end: bool = True,
        objective: str = "conditional",
        tradeoff: float = 0.1,
        margin: float = 5.0,
        unlabeled_weight: float = 0.5,
        covariance: str = "low_rank",
        rank: Any = "auto",
        equal_covariances: bool = False,
        reg_covar: float = 0.01,
        prior_rows: float = 3.0,
        n_init: int = 1,
        class_weight: Any = None,
        calibrate: bool = True,
        max_iter: int = 50,
        max_time: float | None = None,
        tol: float = 1e-3,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        unlabeled: Any = -1,
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.embedding = embedding
        self.specialize = specialize
        self.link = link
        self.l1 = l1
        self.l2 = l2
        self.annihilate = annihilate
        self.end_to_end = end_to_end
        self.objective = objective
        self.tradeoff = tradeoff
        self.margin = margin
        self.unlabeled_weight = unlabeled_weight
        self.covariance = covariance
        self.rank = rank
        self.equal_covariances = equal_covariances
        self.reg_covar = reg_covar
        self.prior_rows = prior_rows
        self.n_init = n_init
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.max_iter = max_iter
        self.max_time = max_time
        self.tol = tol
        self.standardize = standardize
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.unlabeled = unlabeled
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing.
        y : (n,) labels; `unlabeled` (or None) where there is none. None, or no label at all, fits a
            mixture to the rows.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing():
            X = self._check_X(X, reset=True)
            return self._fit_rows(self._read(X, y, sample_weight))

    def _read(self, X: np.ndarray, y: Any, sample_weight: Any) -> Rows:
        if y is not None:
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
            if labelled_mask(y, self.unlabeled).any():
                return read_rows(self, X, y, sample_weight)
        weight = check_weight(sample_weight, len(X))
        keep = weight > 0
        nothing = np.full(int(keep.sum()), UNLABELED)
        return Rows(X[keep], nothing, weight[keep], np.array([], dtype=int))

    def _fit_rows(self, rows: Rows) -> Self:
        self.classes_ = rows.classes
        scaling = self._measure_scaling(rows.X, rows.weight)
        device = resolve_device(self.device, rows.X.size)
        table = Table(rows.X, rows.y, rows.weight, scaling=scaling, device=device)
        variants = self._variants(table)
        with self._progress() as progress:
            choice = self._choose(variants, table, progress)
            variant = variants[0] if choice is None else choice.train.args[0]  # type: ignore[attr-defined]
            network = self._fit_network(variant, table, self._generator(), progress)
        calibration = Calibration()
        if self.calibrate and choice is not None and choice.unseen is not None:
            calibration = choice.unseen.calibrate()
        self.temperature_, self.doubt_ = calibration.temperature, calibration.doubt
        self.fade_ = calibration.fade
        self.class_prior_ = class_counts(rows, np.zeros(len(rows.classes)))
        self.class_prior_ = self.class_prior_ / max(self.class_prior_.sum(), 1e-300)
        self._keep(network, variant, table, progress)
        return self

    def _choose(self, variants: list[Variant], table: Table, progress: Progress) -> Choice | None:
        """The variant that does best on held-back rows, and what it says of them."""
        if len(self.classes_) < 2 or (len(variants) == 1 and not self.calibrate):
            return None
        generator = self._generator()

        def train(
            variant: Variant, table: Table, generator: torch.Generator, progress: Progress
        ) -> list[Candidate]:
            return [Candidate(self._fit_network(variant, table, generator, progress), [1.0])]

        trains = [partial(train, variant) for variant in variants]
        few = some_rows(table, SMALL, generator)
        return choose(trains, few, generator, progress, to_the_end=True)

    def _objective(self, table: Table) -> Objective:
        return build_objective(
            self.objective,
            tradeoff=self.tradeoff,
            margin=self.margin,
            unlabeled_weight=self.unlabeled_weight if bool((table.y < 0).any()) else None,
        )

    @property
    def _n_mixtures(self) -> int:
        return max(1, len(self.classes_))

    def _class_log_joint(self, rows: Any) -> np.ndarray:
        if not len(self.classes_):
            raise NoLabelsError(
                "the network was fitted without labels and knows no classes: use cluster, "
                "transform or score_samples, or fit it with some labels."
            )
        return self._outputs(rows)

    def class_log_density(self, X: Any) -> np.ndarray:
        """log p(x | class) = log p(x) + log p(class | x) - log p(class), (n, C)."""
        rows = self._check_X(X, reset=False)
        found = self._class_log_joint(rows) - self._log_jacobian(rows)[:, None]
        return found - np.log(self.class_prior_)

    def impute(  # type: ignore[override]
        self, X: Any, *, n_draws: int | None = None, random_state: Any = None
    ) -> Any:
        """Fill missing entries from what is observed; see `MixtureClassifier.impute`."""
        return super().impute(X, n_draws=n_draws, random_state=random_state)

    def sample(
        self, n_samples: int = 1, y: Any = None, *, random_state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the mixtures, and labels from what the network makes of them.

        With `y` (a label, or one a row) rows are chosen from many draws, by the probability that
        the network gives to their label.
        """
        mixture, generator = self._density_model(), self._generator(random_state)
        count = check_count(n_samples)
        wanted = None if y is None else self._labels_to_draw(count, y, generator)
        pool = count if wanted is None else max(_POOL, 10 * count)
        chance = mixture._log_joint_weight.exp()
        component = torch.multinomial(chance, pool, replacement=True, generator=generator)
        rows = mixture.density.sample(component, generator)
        blank = torch.full((pool,), UNLABELED)
        batch = Batch(rows, None, blank, torch.ones_like(rows[:, 0]))
        if not len(self.classes_):
            return self._drawn(rows), blank.numpy()
        log_proba = self._network().class_log_joint(batch).log_softmax(1).detach()
        if wanted is None:
            labels = torch.multinomial(log_proba.exp(), 1, generator=generator).flatten()
            return self._drawn(rows), self.classes_[labels.numpy()]
        logits = log_proba.mT[wanted]
        taken = torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()
        return self._drawn(rows[taken]), self.classes_[wanted.numpy()]


@storable
class MixtureNetworkRegressor(RegressorMixin, MixtureNetwork):
    """A mixture embeds a row; a sparse linear read-out of the embedding predicts a number.

    A radial basis function network whose centres and widths are a density of the rows, and, trained
    end to end, serve the prediction too. Numbers, categories, holes and rows without a target (NaN)
    are welcome.

    Parameters
    ----------
    n_components : "auto" or int
        Components of the mixture; "auto" grows them while an information criterion falls.
    tradeoff : float in [0, 1]
        Share of the likelihood of the rows in end-to-end training; the rest is the squared error,
        in units of the target's variance.
    embedding, link, l1, l2, annihilate, end_to_end, covariance, rank, equal_covariances, reg_covar,
    prior_rows, n_init, max_iter, max_time, tol, standardize, categorical_features, unexpected,
    missingness, device, callbacks
        As in `MixtureNetworkClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    coef_, intercept_ : read-out, in units of the target's deviation
    target_location_, target_scale_ : mean and deviation of the target
    mixture_, weights_, means_, covariances_, n_components_ : the mixture
    embedding_, missingness_ : what "auto" chose
    scaling_, schema_, history_, n_iter_, converged_

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from mixtura import MixtureNetworkRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MixtureNetworkRegressor(5, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.4
    True
    """

    _network_class = RegressionNetwork

    _parameter_constraints: dict = {
        name: MixtureNetworkClassifier._parameter_constraints[name]
        for name in (
            *("embedding", "link", "l1", "l2", "annihilate", "end_to_end", "tradeoff"),
            *("covariance", "rank", "equal_covariances", "reg_covar", "prior_rows", "n_init"),
            *("max_iter", "max_time", "tol", "standardize", *TABLE_CONSTRAINTS),
            *("device", "callbacks", "random_state", "verbose"),
        )
    } | {"n_components": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")]}

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        embedding: str = "auto",
        link: float = 0.0,
        l1: float = 1e-3,
        l2: float = 1e-3,
        annihilate: bool = False,
        end_to_end: bool = True,
        tradeoff: float = 0.1,
        covariance: str = "diag",
        rank: Any = "auto",
        equal_covariances: bool = False,
        reg_covar: float = 0.01,
        prior_rows: float = 3.0,
        n_init: int = 1,
        max_iter: int = 50,
        max_time: float | None = None,
        tol: float = 1e-3,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.embedding = embedding
        self.link = link
        self.l1 = l1
        self.l2 = l2
        self.annihilate = annihilate
        self.end_to_end = end_to_end
        self.tradeoff = tradeoff
        self.covariance = covariance
        self.rank = rank
        self.equal_covariances = equal_covariances
        self.reg_covar = reg_covar
        self.prior_rows = prior_rows
        self.n_init = n_init
        self.max_iter = max_iter
        self.max_time = max_time
        self.tol = tol
        self.standardize = standardize
        self.categorical_features = categorical_features
        self.unexpected = unexpected
        self.missingness = missingness
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : (n, D), numbers and categories; NaN or None where missing.
        y : (n,) targets; NaN where there is none.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing():
            X = self._check_X(X, reset=True)
            return self._fit_rows(X, *self._read(X, y, sample_weight))

    def _read(self, X: np.ndarray, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Targets in units of their deviation, and weights."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        y = column_or_1d(y, warn=True)
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"y must hold numbers: {error}.") from error
        assert_all_finite(y, allow_nan=True, input_name="y")
        check_consistent_length(X, y)
        weight = check_weight(sample_weight, len(X))
        known = ~np.isnan(y) & (weight > 0)
        if not known.any():
            raise InvalidInputError(
                "no row has a target: give some, or use MixtureDensity for rows alone."
            )
        share = weight[known] / weight[known].sum()
        self.target_location_ = float(share @ y[known])
        deviation = float(np.sqrt(share @ (y[known] - self.target_location_) ** 2))
        self.target_scale_ = deviation if deviation > 0 else 1.0
        return (y - self.target_location_) / self.target_scale_, weight

    def _fit_rows(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Self:
        if (weight == 0).any():
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        scaling = self._measure_scaling(X, weight)
        device = resolve_device(self.device, X.size)
        table = Table(X, y, weight, scaling=scaling, device=device)
        variants = self._variants(table)
        with self._progress() as progress:
            variant = self._choose(variants, table, progress)
            network = self._fit_network(variant, table, self._generator(), progress)
        self._keep(network, variant, table, progress)
        return self

    def _choose(self, variants: list[Variant], table: Table, progress: Progress) -> Variant:
        """The variant with the smallest squared error on held-back rows."""
        known = (~table.y.isnan()).nonzero().flatten().cpu()
        if len(variants) == 1 or len(known) < _FEWEST:
            return variants[0]
        generator = self._generator()
        order = known[torch.randperm(len(known), generator=generator)][: 2 * SMALL]
        errors = np.zeros(len(variants))
        for fold in range(_FOLDS):
            held = order[fold::_FOLDS].numpy()
            train = table.subset(np.setdiff1d(order.numpy(), held))
            test = table.subset(held)
            for place, variant in enumerate(variants):
                if progress.time_spent >= 0.5:
                    break
                part = progress.part(0.5 / (_FOLDS * len(variants)))
                network = self._fit_network(variant, train, generator, part)
                found = run_over(network, test, lambda n, b: n.class_log_joint(b))[:, 1]
                errors[place] += float((found - test.y.cpu()).square().sum())
        return variants[int(errors.argmin())]

    def _objective(self, table: Table) -> Objective:
        return Regression(self.tradeoff)

    def predict(self, X: Any) -> np.ndarray:
        """The expected target of each row."""
        check_is_fitted(self)
        found = self._outputs(self._check_X(X, reset=False))[:, 1]
        return found * self.target_scale_ + self.target_location_
