"""SequenceMixtureClassifier: hidden Markov models that are trained to tell classes apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import _fit_context, clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_n_features
from torch import Tensor

from mixtura.data import UNLABELED, resolve_device
from mixtura.data.packing import Packing
from mixtura.data.schema import check_names
from mixtura.data.sequences import SequenceTable
from mixtura.densities import DENSITIES, Structure
from mixtura.engines import Engine, LocalEngine
from mixtura.estimators.base import TABLE_CONSTRAINTS, check_count, log_density
from mixtura.estimators.growing import GROWING, Candidate, GrownClassifier, choose, grow
from mixtura.estimators.pairwise import PairwiseClassifier
from mixtura.estimators.plan import Rows, labeled_rows, read_rows
from mixtura.estimators.sequence_input import Sequences, per_sequence, read_sequences
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError, warn
from mixtura.models.mixture import Mixture
from mixtura.objectives import OBJECTIVES, Objective, beside_likelihood
from mixtura.parts import resolve
from mixtura.persistence import storable
from mixtura.progress import Progress
from mixtura.solvers import EBW, EM, LBFGS, Adam, Solver, SpreadPrior
from mixtura.training.boosting import Learner
from mixtura.training.start import chain_start

#: Methods that train hidden Markov models on.
_DISCRIMINATIVE = ("conditional", "margin", "smooth_margin")
#: What "auto" compares: methods, and numbers of states.
_METHODS = ("boosted", "conditional")
_STATES = (3, 6, 12)
#: What names of solvers are shorthand for.
_ITERATIONS = 100
_SOLVERS: dict[str, Callable[[], Solver]] = {
    "lbfgs": partial(LBFGS, _ITERATIONS),
    "ebw": partial(EBW, _ITERATIONS),
    "adam": partial(Adam, _ITERATIONS, batch_size=100, learning_rate=2e-3, schedule="constant"),
}
#: Iterations of the first leg of discriminative training; each further leg has twice as many.
_LEG = 10
#: What a leg must gain, a sequence, for another to follow.
_GAIN = 1e-3


@storable
class SequenceMixtureClassifier(GrownClassifier):
    """Classifies sequences of unequal length by hidden Markov models with Gaussian emissions.

    NaN means missing, in training and in prediction, and is marginalized exactly: single values,
    whole frames, or a channel that drops out.

    Parameters
    ----------
    n_states : "auto" or int
        States of every hidden Markov model; "auto" compares 3, 6 and 12, fitted by maximum
        likelihood, on held-back sequences.
    method : str, or an `Objective`
        "auto": "boosted" or "conditional", whichever does better on held-back sequences.
        "ml": one model a class, by maximum likelihood (Baum-Welch).
        "conditional", "margin", "smooth_margin": these models, trained on to raise the conditional
        likelihood or a margin between the classes; an object of `mixtura.objectives` such as
        `Margin(5.0)` has settings of its own.
        "boosted": a mixture a class, grown where the classes meet (BxCML);
        "boosted_generative": grown where sequences are not explained yet (BxML).
        "adaboost": models that vote (SAMME, which for two classes is AdaBoost.M1, the paper's BBN);
        there is no density.
    multiclass : "direct" or "pairwise"
        One model of all classes, or one for each pair of them, whose probabilities are coupled.
    density : "diag", "auto", "full", "spherical", "low_rank", "student", or a `Structure`
        Of the emissions, as in `MixtureClassifier`.
    topology : "ergodic" or "left_to_right"
        Whether every state may follow every other, or only later ones.
    n_stages : int
        Growing methods: stages at most; fewer where the objective stops to gain, or classes have
        fewer than two sequences per stage.
    tradeoff : float in [0, 1]
        Share of the likelihood per value (of a sequence of mean length) in a discriminative
        objective, so that one value serves short sequences and long.
    solver : "lbfgs", "adam", "ebw", or a `Solver`
        Of discriminative objectives; a name is shorthand for an object of `mixtura.solvers` with at
        most 100 iterations.
    init : "em", or an `EM`
        Maximum likelihood, which discriminative training starts from:
        `EM(max_iter=100, tol=1e-3, n_init=1)`, where `tol` is the gain in log-likelihood per frame.
    early_stopping : bool
        Choose on held-back sequences how many stages there are, or how far discriminative training
        goes.
    calibrate : bool
        Make probabilities honest by what models say of held-back sequences, whole and with holes;
        the density is left alone.
    prior_rows : float
        Imagined frames a state, with the spread that states show on average, that keep covariances
        sound where real frames are few; 0 is plain maximum likelihood.
    channels_first : bool
        Arrays are (d, T_i), or (n, d, T). What comes back is (T_i, d) all the same.
    id_column, time_column : str
        Of a data frame with one row a frame: the column that tells sequences apart, and the one to
        sort them by (None leaves the rows in their order). Sequences come in the order in which
        their ids appear first, channels are matched by name. Cross-validation cuts data frames by
        row: give it a list of arrays.
    unexpected : "missing", "ignore" or "error"
        As in `MixtureClassifier`, of the channels of a data frame.
    class_weight, max_time, standardize, unlabeled, device, callbacks
        As in `MixtureClassifier`; unlabeled sequences are left out, with a warning.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, weights_, means_ (K, S, d), covariances_ (K, S, d, d)
    n_states_, method_ : what "auto" chose
    stage_weights_, n_stages_ : weight of every stage (or of its vote), and how many there are
    mixture_ : the fitted model, in standardized units; with "adaboost" there are `voters_` instead
    pairwise_ : the classifiers of all pairs, where `multiclass` asks for them and there are three
        classes or more; then there is no density
    scaling_ : the map between units
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    history_ : the course of training

    Examples
    --------
    >>> from mixtura import SequenceMixtureClassifier
    >>> from mixtura.datasets import make_hmm_sequences
    >>> train, test = (make_hmm_sequences(20, random_state=seed) for seed in (0, 1))
    >>> model = SequenceMixtureClassifier(2, method="boosted", n_stages=3, random_state=0)
    >>> bool(model.fit(train.data, train.target).score(test.data, test.target) > 0.9)
    True
    """

    _parameter_constraints: dict = {
        "n_states": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"auto", "ml", *_DISCRIMINATIVE, *GROWING}), Objective],
        "multiclass": [StrOptions({"direct", "pairwise"})],
        "density": [StrOptions(set(DENSITIES)), Structure],
        "topology": [StrOptions({"ergodic", "left_to_right"})],
        "n_stages": [Interval(Integral, 1, None, closed="left")],
        "tradeoff": [Interval(Real, 0, 1, closed="both")],
        "solver": [StrOptions(set(_SOLVERS)), Solver],
        "init": [StrOptions({"em"}), EM],
        "early_stopping": ["boolean"],
        "calibrate": ["boolean"],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "prior_rows": [Interval(Real, 0, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "standardize": ["boolean"],
        "channels_first": ["boolean"],
        "id_column": [str],
        "unexpected": TABLE_CONSTRAINTS["unexpected"],
        "time_column": [None, str],
        "device": [str, torch.device],
        "callbacks": [None, "array-like"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_states: Any = "auto",
        *,
        method: str | Objective = "auto",
        multiclass: str = "direct",
        density: str | Structure = "diag",
        topology: str = "ergodic",
        n_stages: int = 10,
        tradeoff: float = 0.0,
        solver: str | Solver = "lbfgs",
        init: str | EM = "em",
        early_stopping: bool = True,
        calibrate: bool = True,
        max_time: float | None = None,
        prior_rows: float = 1.0,
        class_weight: Any = None,
        standardize: bool = True,
        channels_first: bool = False,
        id_column: str = "id",
        time_column: str | None = None,
        unexpected: str = "missing",
        unlabeled: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_states = n_states
        self.method = method
        self.multiclass = multiclass
        self.density = density
        self.topology = topology
        self.n_stages = n_stages
        self.tradeoff = tradeoff
        self.solver = solver
        self.init = init
        self.early_stopping = early_stopping
        self.calibrate = calibrate
        self.max_time = max_time
        self.prior_rows = prior_rows
        self.class_weight = class_weight
        self.standardize = standardize
        self.channels_first = channels_first
        self.id_column = id_column
        self.time_column = time_column
        self.unexpected = unexpected
        self.unlabeled = unlabeled
        self.device = device
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.input_tags.categorical = tags.input_tags.sparse = False
        return tags

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to the labeled sequences.

        Parameters
        ----------
        X : list of (T_i, d) arrays, (n, T, d) array padded with NaN, or data frame with one row a
            frame.
        y : (n,) labels; those of a data frame may also come one a frame, or as a series by id.
        sample_weight : (n,) non-negative weights, likewise.
        """
        with self._all_or_nothing():
            self._forget()
            sequences = self._check_X(X, reset=True)
            y, weight = (per_sequence(each, X, self.id_column) for each in (y, sample_weight))
            rows = labeled_rows(read_rows(self, sequences, y, weight))
            if self.multiclass == "pairwise" and len(rows.classes) > 2:
                return self._fit_pairs(rows)
            return self._fit_rows(rows)

    def _check_X(self, X: Any, *, reset: bool) -> Any:
        sequences = read_sequences(
            X,
            channels_first=self.channels_first,
            id_column=self.id_column,
            time_column=self.time_column,
        )
        if reset:
            self._keep_names(sequences.names)
        else:
            sequences = self._aligned(sequences)
        _check_n_features(self, sequences.frames, reset=reset)
        return sequences

    def _keep_names(self, names: list[str] | None) -> None:
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _aligned(self, sequences: Sequences) -> Sequences:
        """The channels of training in their order, where both have names; NaN for one lacking."""
        names, known = sequences.names, getattr(self, "feature_names_in_", None)
        if names is None or known is None:
            return sequences
        check_names(names, known, self.unexpected)
        frames = np.full((len(sequences.frames), len(known)), np.nan, sequences.frames.dtype)
        for at, name in enumerate(known):
            if name in names:
                frames[:, at] = sequences.frames[:, names.index(name)]
        return replace(sequences, frames=frames, names=known.tolist())

    def _fit_rows(self, rows: Rows) -> Self:
        sequences: Any = rows.X
        by_frame = np.repeat(rows.weight, sequences.lengths)
        self.scaling_ = self._measure_scaling(sequences.frames, by_frame)
        self.classes_ = rows.classes
        engine = self._table(sequences, rows.y, rows.weight)
        with self._progress() as progress:
            self.n_states_ = self._count_states(engine, progress)
            methods = _METHODS if self.method == "auto" else (self.method,)
            trains = [partial(self._train, self.n_states_, method) for method in methods]
            in_steps = self.method != "ml"
            best, _ = self._train_best(trains, engine, progress, in_steps=in_steps)
        self.method_ = methods[best]
        shares = np.linspace(0.0, 1.0, 101)
        self.length_quantiles_ = np.stack(
            [
                np.quantile(sequences.lengths[rows.y == label], shares, method="nearest")
                for label in range(len(rows.classes))
            ]
        )
        if "voters_" not in self.__dict__:
            self._publish(self.mixture_, self.scaling_)
            self._publish_scores(engine, progress)
        return self

    def _fit_pairs(self, rows: Rows) -> Self:
        sequences: Any = rows.X
        n_pairs = len(rows.classes) * (len(rows.classes) - 1) // 2
        inner = clone(self).set_params(
            multiclass="direct",
            channels_first=False,
            class_weight=None,
            unlabeled=None,
            max_time=None if self.max_time is None else self.max_time / n_pairs,
        )
        self.pairwise_ = PairwiseClassifier(inner)
        self.pairwise_.fit(sequences.split(), rows.classes[rows.y], sample_weight=rows.weight)
        self.classes_ = rows.classes
        self.temperature_, self.doubt_, self.fade_ = 1.0, 0.0, 1.0  # pairs are calibrated
        return self

    def _count_states(self, engine: Engine, progress: Progress) -> int:
        if self.n_states != "auto":
            frames = torch.bincount(engine.y, engine.sizes.double())
            if (frames < self.n_states).any():
                warn(
                    f"n_states={self.n_states} is more than the {int(frames.min())} frames of a "
                    "class: some states have none. Remedy: fewer states, or n_states='auto'.",
                    DegenerateDataWarning,
                )
            return int(self.n_states)
        trains: list[Any] = [partial(self._train, count, "ml") for count in _STATES]
        generator = self._generator()
        choice = choose(trains, engine.merged(), generator, progress, to_the_end=True, until=0.25)
        return _STATES[trains.index(choice.train)]

    def _train(
        self,
        n_states: int,
        method: str | Objective,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[Candidate]:
        begin = partial(
            chain_start,
            n_states=n_states,
            structure=resolve(self.density, DENSITIES).candidates(engine.n_features)[0],
            left_to_right=self.topology == "left_to_right",
        )
        em = resolve(self.init, {"em": EM})
        em = replace(em, tol=em.tol * float(engine.sizes.mean()))
        learner = Learner(begin, em, len(self.classes_))
        learner = learner.informed(engine, self.prior_rows, generator)
        if isinstance(method, str) and method in GROWING:
            return grow(method, learner, self.n_stages, engine, generator, progress)
        mixture = learner.fit(engine, generator, progress)
        mixtures = [mixture]
        if method != "ml" and len(self.classes_) > 1:
            mixtures += self._discriminate(mixture, method, learner.prior, engine, progress)
        return [Candidate(mixture, [1.0]) for mixture in mixtures]

    def _discriminate(
        self,
        mixture: Mixture,
        method: str | Objective,
        prior: SpreadPrior | None,
        engine: Engine,
        progress: Progress,
    ) -> Iterator[Mixture]:
        """Legs of training, each twice as long as the one before, while they gain anything."""
        term, solver = resolve(method, OBJECTIVES), resolve(self.solver, _SOLVERS)
        objective = beside_likelihood(term, self.tradeoff, n_values=engine.values_per_row)
        leg, done, gain, loss = _LEG, 0, math.inf, math.inf
        most = solver.max_iter if isinstance(solver.max_iter, int) else _ITERATIONS
        while done < most and gain > _GAIN and not progress.stopped:
            leg = min(leg, most - done)
            result = solver.limited(leg).run(
                mixture, objective, engine, progress, generator=self._generator(), prior=prior
            )
            mixture, gain, loss = result.model, loss - result.objective, result.objective
            yield mixture
            done, leg = done + leg, 2 * leg

    # -- what a fitted model answers -------------------------------------------------------

    def _table(
        self, X: Any, y: np.ndarray | None = None, weight: np.ndarray | None = None
    ) -> Engine:
        y = np.full(len(X), UNLABELED) if y is None else y
        device = resolve_device(self.device, X.frames.size)
        return LocalEngine(
            SequenceTable(X.frames, X.lengths, y, weight, scaling=self.scaling_, device=device)
        )

    def _class_log_joint(self, rows: Any) -> np.ndarray:
        if "pairwise_" in self.__dict__:
            return self.pairwise_.predict_log_proba(rows.split())
        return super()._class_log_joint(rows)

    def _missing_share(self, rows: Any) -> np.ndarray:
        return rows.sum(np.isnan(rows.frames).mean(1)) / rows.lengths

    def _log_jacobian(self, rows: Any) -> np.ndarray:
        return rows.sum(super()._log_jacobian(rows.frames))

    def _values(self, rows: Any) -> np.ndarray:
        return rows.frames

    def _like(self, values: np.ndarray, rows: Any, X: Any) -> Any:
        return replace(rows, frames=values).split()

    @staticmethod
    def _typicality(mixture: Mixture, batch: Any) -> Tensor:
        """Log density a value: sequences of all lengths can be compared."""
        values = batch.x.shape[1] * (1.0 - batch.missing_share()) * batch.packing.lengths
        return log_density(mixture, batch) / values.clamp_min(1.0)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the labeled sequences, by weight, whose class is predicted."""
        y, weight = (per_sequence(each, X, self.id_column) for each in (y, sample_weight))
        return super().score(X, y, weight)

    def log_margin(self, X: Any, y: Any) -> np.ndarray:
        """log p(x, y) minus the largest log p(x, c) of another class: positive where right."""
        return super().log_margin(X, per_sequence(y, X, self.id_column))

    def decode(self, X: Any) -> list[np.ndarray]:
        """The likeliest path of each sequence through the states of its likeliest component."""

        def paths(mixture: Mixture, batch: Any) -> Tensor:
            density: Any = mixture.density
            return batch.unpacked(density.paths(batch, mixture.posterior(batch).argmax(1)))

        rows = self._check_X(X, reset=False)
        return self._like(self._evaluate(paths, rows).astype(np.int64), rows, X)

    def sample(  # type: ignore[override]
        self, n_samples: int = 1, y: Any = None, *, lengths: Any = None, random_state: Any = None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw sequences from the model.

        Parameters
        ----------
        n_samples : number of sequences.
        y : a class label, or one label a sequence; None draws them from the class prior.
        lengths : number of frames, one for all or one a sequence; None draws from those that the
            training sequences of the class had.

        Returns
        -------
        List of n_samples arrays (T_i, d), and y (n_samples,).
        """
        self._density_model()
        generator = self._generator(random_state)
        labels = self._labels_to_draw(check_count(n_samples), y, generator)
        if lengths is None:
            place = torch.randint(
                self.length_quantiles_.shape[1], labels.shape, generator=generator
            )
            lengths = self.length_quantiles_[labels.numpy(), place.numpy()]
        counts = np.asarray(lengths)
        if counts.shape not in ((), labels.shape) or counts.dtype.kind not in "iu":
            raise InvalidInputError(
                f"lengths={lengths!r}: give a whole number, or one for each of the {n_samples} "
                "sequences."
            )
        if (counts < 1).any():
            raise InvalidInputError("lengths must be positive: a sequence has a frame at least.")
        wanted = torch.from_numpy(np.broadcast_to(counts, labels.shape).astype(np.int64))
        packed = self.mixture_.sample(labels, generator, lengths=wanted)
        frames = packed[Packing.of(wanted).place].numpy()
        offsets = np.append(0, wanted.cumsum(0).numpy())
        drawn = Sequences(self.scaling_.invert(frames), offsets).split()
        return drawn, self.classes_[labels.numpy()]
