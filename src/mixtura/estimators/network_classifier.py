"""MixtureNetworkClassifier: mixtures embed a row, a sparse read-out decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_consistent_length
from torch import Tensor

from mixtura.data import UNLABELED, Batch, Table, labeled_mask, read_labels, resolve_device
from mixtura.densities import DENSITIES, Structure
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.base import TABLE_CONSTRAINTS, check_count, check_weight
from mixtura.estimators.growing import Candidate, choose
from mixtura.estimators.network import TRIAL_DRAWS, MixtureNetwork, Variant
from mixtura.estimators.plan import (
    EVEN,
    FEWEST_TRIED,
    NO_GAIN,
    NO_TIME,
    SMALL,
    TOO_FEW,
    TRIED,
    UNTIL,
    Rows,
    read_counts,
    read_rows,
    warn_of_rows_set_aside,
)
from mixtura.estimators.predicting import DensityClassifier
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, NoLabelsError, warn
from mixtura.models.network import EMBEDDINGS
from mixtura.objectives import (
    Conditional,
    Margin,
    Objective,
    SmoothMargin,
    beside_likelihood,
    likelihood_share,
)
from mixtura.parts import resolve
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.selection.calibration import Calibration, Unseen
from mixtura.solvers import EM, LinkedEM
from mixtura.solvers.linked import LinkedResult, with_class_shares

#: What names are shorthand for. Scores of a read-out are no log densities: a smaller margin than
#: elsewhere is enough.
_OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "conditional": Conditional,
    "margin": partial(Margin, 5.0),
    "smooth_margin": SmoothMargin,
}
#: Draws that rows of wanted classes are chosen from: at a time, and in all for each row.
_POOL, _MOST_DRAWS = 1_000, 10_000


def _shares(engine: Engine, n_classes: int) -> np.ndarray:
    """(C,) shares of the classes in the weight of the labeled rows."""
    y, weight = engine.y.cpu().numpy(), engine.weight.double().cpu().numpy()
    mass = np.bincount(y[y >= 0], weight[y >= 0], minlength=n_classes)
    return mass / max(mass.sum(), 1e-300)


@storable
class MixtureNetworkClassifier(DensityClassifier, MixtureNetwork):
    """Mixtures embed a row, one a class; a sparse log-linear read-out of the embedding decides.

    Numbers, categories, holes and unlabeled rows are welcome: the mixtures learn from all rows,
    the read-out from the labeled ones. Without any label it is a mixture: it embeds, clusters,
    imputes, scores and samples.

    Parameters
    ----------
    n_components : "auto", int, or one int a class
        Components of each mixture; "auto" grows them while an information criterion falls, where
        mixtures specialize, and takes twice the cube root of the number of rows elsewhere.
    embedding : "auto", "posterior", "density", "log_density" or "simplex"
        What a component makes of a row: its posterior in the mixture; its density, as a share of
        its highest; the log of that; or the posterior's cousin with true zeros, the projection of
        the log-joints onto the simplex. "auto" compares posteriors and log-densities on held-back
        rows.
    specialize : "auto" or float in [0, 1]
        How much less the rows of other classes count for the mixture of a class. 0 fits every
        mixture to all rows, as published; 1 to the rows of its class. "auto" is 1 for log-densities
        and 0 for the others.
    objective : "conditional", "margin", "smooth_margin", or an `Objective`
        The discriminative term of that training; a name is shorthand for an object of
        `mixtura.objectives`, "margin" for `Margin(5.0)`.
    tradeoff : float in [0, 1]
        Share of the likelihood per observed value in it, so that one number serves few features and
        many.
    unlabeled_weight : "auto" or float in [0, 1]
        Weight of unlabeled rows in the likelihood; labeled rows then weigh one minus it. 0 sets
        them aside altogether; "auto" decides as in `MixtureClassifier`.
    density : "low_rank", "auto", "full", "diag", "spherical", "student", or a `Structure`
        What components are in the columns that hold numbers, as in `MixtureClassifier`.
    solver : "linked_em", or a `LinkedEM`
        Steps of EM and fits of the read-out in turn, then gradients through both; a name is
        shorthand for an object of `mixtura.solvers` with its settings: iterations, the penalties
        `l1` and `l2` of the read-out's weights, `link`, `annihilate`, `equal_covariances`,
        `end_to_end`. Where classes are uneven, the penalties are multiplied by the number of
        classes times the smallest class's share (but by 0.1 at least), or they would silence the
        components of rare classes first.
    init : "em", or an `EM`
        What the mixtures start from, `EM(max_iter=50, tol=0.01, n_init=1)`.
    calibrate : bool
        Make probabilities honest by what networks say of held-back rows, whole and with holes.
    prior_rows, standardize, class_weight, categorical_features, unexpected, missingness,
    unlabeled, max_time, device, callbacks
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_ : the labels; the mean of p(class | x) over p(x), the model's own prior:
        trained end to end, the shares of the (weighted) labeled rows, as near as can be
    coef_, intercept_ : read-out; a weight a component, a bias a class
    mixture_, weights_, means_, covariances_, n_components_ : the mixtures, class by class
    embedding_, specialize_, missingness_ : what "auto" chose
    unlabeled_weight_ : likewise; None if all rows had labels, or none
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    scaling_, schema_, history_
    n_iter_, converged_ : of linked EM; end to end, the number of iterations is fixed

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureNetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MixtureNetworkClassifier(4, embedding="posterior", random_state=0).fit(X, y)
    >>> model.transform(X).shape[1] == model.coef_.shape[0]
    True
    """

    _parameter_constraints: dict = {
        "n_components": [StrOptions({"auto"}), Integral, "array-like"],
        "embedding": [StrOptions({"auto", *EMBEDDINGS})],
        "specialize": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "objective": [StrOptions(set(_OBJECTIVES)), Objective],
        "tradeoff": [Interval(Real, 0, 1, closed="both")],
        "unlabeled_weight": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "density": [StrOptions(set(DENSITIES)), Structure],
        "solver": [StrOptions({"linked_em"}), LinkedEM],
        "init": [StrOptions({"em"}), EM],
        "prior_rows": [Interval(Real, 0, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "calibrate": ["boolean"],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
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
        objective: str | Objective = "conditional",
        tradeoff: float = 0.2,
        unlabeled_weight: Any = "auto",
        density: str | Structure = "low_rank",
        solver: str | LinkedEM = "linked_em",
        init: str | EM = "em",
        prior_rows: float = 3.0,
        class_weight: Any = None,
        calibrate: bool = True,
        max_time: float | None = None,
        standardize: bool = True,
        categorical_features: Any = None,
        unexpected: str = "missing",
        missingness: str = "auto",
        unlabeled: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.embedding = embedding
        self.specialize = specialize
        self.objective = objective
        self.tradeoff = tradeoff
        self.unlabeled_weight = unlabeled_weight
        self.density = density
        self.solver = solver
        self.init = init
        self.prior_rows = prior_rows
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.max_time = max_time
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
        y : (n,) labels; None or NaN where there is none (or -1, see `unlabeled`). Without any
            (y=None, or None for every row) a mixture is fitted to the rows; NaN for every row is
            refused, as scikit-learn's checks ask.
        sample_weight : (n,) non-negative weights.
        """
        with self._all_or_nothing():
            X = self._check_X(X, reset=True)
            return self._fit_rows(self._read(X, y, sample_weight))

    def _read(self, X: np.ndarray, y: Any, sample_weight: Any) -> Rows:
        if y is not None:
            y = read_labels(y)
            check_consistent_length(X, y)
            if y.dtype.kind == "f" and np.isnan(y).all():
                raise InvalidInputError("y holds NaN alone: pass y=None to fit without labels.")
            if labeled_mask(y, self.unlabeled).any():
                return read_rows(self, X, y, sample_weight)
        weight = check_weight(sample_weight, len(X))
        keep = weight > 0
        nothing = np.full(int(keep.sum()), UNLABELED)
        return Rows(X[keep], nothing, weight[keep], np.array([], dtype=int))

    def _fit_rows(self, rows: Rows) -> Self:
        self.classes_ = rows.classes
        resolve(self.objective, _OBJECTIVES)  # refused before any work is done
        if not isinstance(self.n_components, str):
            read_counts(self.n_components, rows.classes if len(rows.classes) else np.zeros(1))
        with self._progress() as progress:
            variant, engine, unseen = self._decide(rows, progress)
            draw = partial(engine.sample, generator=self._generator())
            aside = len(rows.y) - len(engine)
            result = self._fit_in_time(variant, engine, draw, progress, aside)
        calibration = unseen.calibrate() if self.calibrate and unseen else Calibration()
        self.temperature_, self.doubt_ = calibration.temperature, calibration.doubt
        self.fade_ = calibration.fade
        self.class_prior_ = result.network.class_shares().cpu().numpy()[: len(rows.classes)]
        self._keep(result, variant, engine, progress)
        return self

    def _decide(self, rows: Rows, progress: Progress) -> tuple[Variant, Engine, Unseen | None]:
        """What to train on which rows; unlabeled ones only if held-out labels say that they help.

        All else is chosen as it would be without them.
        """
        engine = self._training_table(rows)
        self.unlabeled_weight_ = self._unlabeled_weight if rows.has_unlabeled else None
        left_open = self.unlabeled_weight == "auto" and len(rows.classes) > 1
        if not (left_open or self.unlabeled_weight == 0.0) or not rows.may_do_without_unlabeled:
            variant, unseen = self._choose(engine, progress)
            return variant, engine, unseen
        labeled = self._training_table(rows.labeled())
        variant, unseen = self._choose(labeled, progress)
        better: Unseen | str = TOO_FEW
        if left_open and len(labeled) >= FEWEST_TRIED:
            better = self._better_with_unlabeled(variant, engine, progress)
        if not isinstance(better, str):
            return variant, engine, better
        if left_open:
            warn_of_rows_set_aside(rows, better)
        self.unlabeled_weight_ = 0.0
        return variant, labeled, unseen

    def _training_table(self, rows: Rows) -> Engine:
        scaling = self._measure_scaling(rows.X, rows.weight)
        device = resolve_device(self.device, rows.X.size)
        return LocalEngine(Table(rows.X, rows.y, rows.weight, scaling=scaling, device=device))

    def _better_with_unlabeled(
        self, variant: Variant, engine: Engine, progress: Progress
    ) -> Unseen | str:
        """What networks that also learn from unlabeled rows say of held-out ones; or why not."""

        def without(engine: Engine, *args: Any) -> list[Candidate]:
            return self._candidates(variant, engine.only(engine.labeled), *args)

        trains: list[Any] = [without, partial(self._candidates, variant)]
        found = choose(
            trains,
            engine.merged().sample(SMALL, self._generator()).fewer_unlabeled(engine, TRIED),
            self._generator(),
            progress,
            to_the_end=True,
            beats=Unseen.surely_beats,
            until=UNTIL,
        )
        if found.train is not without and found.unseen is not None:
            return found.unseen
        return NO_TIME if progress.time_spent >= UNTIL else NO_GAIN

    def _candidates(
        self, variant: Variant, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> list[Candidate]:
        """A network, as one of several ways to train."""
        found = self._fit_network(variant, engine, generator, progress)
        return [Candidate(replace(found.network, n_draws=TRIAL_DRAWS), [1.0])]

    def _choose(self, engine: Engine, progress: Progress) -> tuple[Variant, Unseen | None]:
        """The variant that does best on held-back rows, and what it says of them."""
        variants, open_question = self._variants(), self._may_tell(engine)
        settled = len(variants) == 1 and not self.calibrate and not open_question
        if len(self.classes_) < 2 or settled:
            return variants[0], None
        some = engine.merged().sample(SMALL, self._generator())
        seed = self._generator().initial_seed()

        def best(variants: list[Variant], until: float) -> tuple[Variant, Unseen | None]:
            trains = [partial(self._candidates, variant) for variant in variants]
            again = torch.Generator().manual_seed(seed)  # the same parts are held back
            found = choose(trains, some, again, progress, to_the_end=True, until=until)
            return variants[trains.index(found.train)], found.unseen  # type: ignore[arg-type]

        first, unseen = best(variants, 0.35)
        if open_question and unseen is not None:
            other, judged = best([first._replace(informative=True)], 0.5)
            if judged is not None and len(judged) == len(unseen) and judged.clearly_beats(unseen):
                return other, judged
        return first, unseen

    @property
    def _unlabeled_weight(self) -> float:
        """Weight of unlabeled rows in the likelihood, where they take part."""
        return EVEN if self.unlabeled_weight == "auto" else self.unlabeled_weight

    def _objective(self, engine: Engine) -> Objective:
        return beside_likelihood(
            resolve(self.objective, _OBJECTIVES),
            self.tradeoff,
            unlabeled_weight=self._unlabeled_weight if bool((engine.y < 0).any()) else None,
            n_values=engine.values_per_row,
        )

    def _finished(self, result: LinkedResult, engine: Engine, progress: Progress) -> LinkedResult:
        """Classes get their shares of the labeled rows; the published weights are left alone."""
        found = super()._finished(result, engine, progress)
        if len(self.classes_) < 2 or not self._linked_em.end_to_end:
            return found
        shares = _shares(engine, len(self.classes_))
        return replace(found, network=with_class_shares(found.network, shares, progress))

    def _rarity(self, engine: Engine) -> float:
        """The smallest class's share, of an even one: so much say its rows have in the loss.

        Penalties never vanish: they are lessened tenfold at most.
        """
        n_classes = len(self.classes_)
        shares = _shares(engine, n_classes)
        return max(0.1, n_classes * float(shares[shares > 0].min())) if shares.any() else 1.0

    def _supervision(self, engine: Engine) -> float:
        if len(self.classes_) < 2:
            return 0.0
        labeled = engine.y >= 0
        share = 1.0
        if not bool(labeled.all()):  # the likelihood holds labels too, where it looks at them
            share -= likelihood_share(self.tradeoff, engine.values_per_row) * self._unlabeled_weight
        return share * float(engine.weight[labeled].sum())

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
        """log p(x | class) = log p(x) + log p(class | x) - log p(class), (n, C).

        p(class) is the model's own, `class_prior_`, so that the density integrates to one.
        """
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

        With `y` (a label, or one per row) draws are accepted with the probability that the network
        gives to their label, until there are enough. Where a class is too rare for that, the
        likeliest draws of it fill up, with a warning; no draw is given twice.
        """
        self._density_model()
        generator, count = self._generator(random_state), check_count(n_samples)
        wanted = None if y is None else self._labels_to_draw(count, y, generator)
        if wanted is not None:
            rows = torch.zeros(count, self.n_features_in_, dtype=torch.float64)
            for label in wanted.unique().tolist():
                mine = (wanted == label).nonzero().flatten()
                rows[mine] = self._accepted(label, len(mine), generator)
            return self._drawn(rows), self.classes_[wanted.numpy()]
        batch = self._draw(count, generator)
        if not len(self.classes_):
            return self._drawn(batch.x), batch.y.numpy()
        chance = self._chances(batch)
        labels = torch.multinomial(chance, 1, generator=generator).flatten()
        return self._drawn(batch.x), self.classes_[labels.numpy()]

    def _chances(self, batch: Batch) -> Tensor:
        """(n, C) what the network makes of draws."""
        with torch.no_grad():
            return self._network().class_log_joint(batch).softmax(1)

    def _accepted(self, label: int, count: int, generator: torch.Generator) -> Tensor:
        """Draws from p(x), each accepted with the probability of the class, until there are enough.

        After `_MOST_DRAWS` for each row that is wanted, the likeliest of the others fill up.
        """
        taken, spare, spent = [], [], 0
        missing = count
        while missing > 0 and spent < _MOST_DRAWS * count:
            batch = self._draw(max(_POOL, missing), generator)
            chance = self._chances(batch)[:, label]
            level = torch.rand(len(batch), dtype=torch.float64, generator=generator)
            taken.append(batch.x[level < chance][:missing])
            best = chance.masked_fill(level < chance, -1.0).topk(min(missing, len(batch)))
            spare.append((best.values, batch.x[best.indices]))
            missing, spent = missing - len(taken[-1]), spent + len(batch)
        if missing > 0:
            warn(
                f"only {count - missing} of {spent} draws were of class "
                f"{self.classes_.tolist()[label]!r}; the likeliest of the others fill up. Remedy: "
                "fewer draws, or a class that the network predicts more often.",
                DegenerateDataWarning,
            )
            chance, rows = map(torch.cat, zip(*spare, strict=True))
            taken.append(rows[chance.topk(missing).indices])
        return torch.cat(taken)
