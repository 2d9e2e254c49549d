"""SequenceMixtureClassifier: hidden Markov models that are trained to tell classes apart."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

import numpy as np
from sklearn.base import _fit_context, clone
from sklearn.utils._param_validation import StrOptions

from mixtura.data.failures import limits_of
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences, per_sequence
from mixtura.engines import engine_of
from mixtura.estimators.channels import (
    CHAIN_CONSTRAINTS,
    SequenceEstimator,
    drawn_sequences,
    length_quantiles,
    lengths_to_draw,
)
from mixtura.estimators.classifying import DensityClassifier
from mixtura.estimators.pairwise import PairwiseClassifier
from mixtura.estimators.reading import check_count
from mixtura.estimators.representing import (
    METHODS,
    REPRESENTATIONS,
    SOLVERS,
    represent,
    sums_up,
)
from mixtura.estimators.rows import Rows
from mixtura.exceptions import NoDensityError
from mixtura.models.fitted import Fitted
from mixtura.objectives import Objective
from mixtura.parts import SHARE
from mixtura.solvers import EM, Boosted, Solver


@dataclass(eq=False, repr=False)
class SequenceMixtureClassifier(SequenceEstimator, DensityClassifier):
    """Classifies sequences of unequal length by hidden Markov models and by summaries.

    NaN means missing, in training and in prediction. Hidden Markov models integrate it out exactly:
    single values, whole frames, or a channel that drops out. Summaries are those of what is there,
    and channels that drop out are integrated out exactly. Of sequences that are unlike all of
    training (cut off, say) summaries say little, and hidden Markov models decide.

    Parameters
    ----------
    n_states : "auto" or int
        States of every hidden Markov model; "auto" compares 3, 6 and 12, fitted by maximum
        likelihood, on held-out sequences.
    representation : "auto", "states", "summary" or "both"
        "states": hidden Markov models with Gaussian emissions. "summary": Gaussians, which share a
        covariance, over numbers that sum up each channel (its shape, parts, spectrum and the
        outputs of small kernels); there is no density of frames. "both": their probabilities are
        averaged by weights that suit held-out sequences, whole and with holes; all else (density,
        draws, imputations, paths) is that of the hidden Markov models. "auto": "both", or one of
        the two where the average does no better; "states" where a `method` is named.
    method : str, an `Objective`, or a `Boosted`
        How hidden Markov models are trained. "auto": "ml" beside summaries; with "states" it is
        "boosted" or "conditional", whichever does better on held-out sequences.
        "ml": one model per class, by maximum likelihood (Baum-Welch).
        "conditional", "margin", "smooth_margin": these models, trained on to raise the conditional
        likelihood or a margin between the classes; an object of `mixtura.objectives` such as
        `Margin(5.0)` has settings of its own.
        "boosted": a mixture per class, grown where the classes meet (BxCML);
        "boosted_generative": grown where sequences are not explained yet (BxML).
        "adaboost": models that vote (SAMME, which for two classes is AdaBoost.M1, the paper's BBN);
        there is no density. These three are shorthand for `mixtura.solvers.Boosted`, with ten
        stages at most: `Boosted("adaboost", n_stages=5)`.
    multiclass : "direct" or "pairwise"
        One model of all classes, or one for each pair of them, whose probabilities are coupled.
    density : "diag", "auto", "full", "spherical", "low_rank", "student", or a `Structure`
        Of the emissions, as in `MixtureClassifier`; "auto" compares nothing here: it is "low_rank",
        or "full" for one or two channels.
    chain : "ergodic", "left_to_right", or a `Chain`
        How states follow each other; a name is shorthand for an object of `mixtura.densities`,
        which also has how long states last, how many densities each emits, and what classes with
        few sequences share: `Chain(durations=10, n_mixtures=3, sharing="adapted")`.
    tradeoff : float in [0, 1]
        Share of the likelihood per value (of a sequence of mean length) in a discriminative
        objective, so that one value serves short sequences and long.
    solver : "lbfgs", "adam", "ebw", or a `Solver`
        Of discriminative objectives; a name is shorthand for an object of `mixtura.solvers` with at
        most 100 iterations.
    init : "em", or an `EM`
        Maximum likelihood, which discriminative training starts from:
        `EM(max_iter=100, tol=1e-3, n_init=1)`, where `tol` is the gain in log-likelihood per frame.
        With `n_init=10`, say, objectives also start nine times from EM on one sequence of each
        class, and the best end is kept, which may lie far from maximum likelihood.
    early_stopping : bool
        Choose on held-out sequences how many stages there are, or how far discriminative training
        goes.
    calibrate : bool
        Make probabilities honest by what models say of held-out sequences, whole and with holes,
        and take it for possible that a frame is a glitch, which counts for no class without limit;
        the density is left alone.
    prior_rows : float
        Imagined frames per state, with the spread that states show on average, that keep
        covariances sound where real frames are few; 0 is plain maximum likelihood.
    layout : "frames_first", "channels_first", or a `Layout`
        How sequences lie in X: arrays are (T_i, d) and (n, T, d), or (d, T_i) and (n, d, T); a
        data frame with one row per frame has a column "id", or the columns that an object of
        `mixtura.sequences` names: `Layout(id_column="run", time_column="when")`. Sequences come in
        the order in which their ids appear first, channels are matched by name. Cross-validation
        cuts data frames by row: `GroupKFold` by id keeps sequences whole, with one label per row;
        or make sequences of them by `mixtura.sequences.from_long`, which also puts time stamps on a
        grid.
    unexpected, categorical_features
        As in `MixtureClassifier`, of the channels, whose numbers far beyond the frames of training
        count as missing for class probabilities too; so do spikes, and channels that are stuck at
        one value, as training had none. Those that hold words, or the categories of a data frame,
        are categorical by themselves.
    standardize : bool
        Work in units in which every channel has variance one.
    class_weight, max_time, unlabeled, device
        As in `MixtureClassifier`; summaries learn from unlabeled sequences, too, unless held-out
        labels speak against it, hidden Markov models do not (without summaries, a warning says so).
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    classes_, class_prior_, weights_, means_ (K, S, d), covariances_ (K, S, d, d), or
        (K, S, M, ...) of the M densities of each state
    representation_, n_states_, method_, density_ : what "auto" chose
    stage_weights_, n_stages_ : weight of every stage (or of its vote), and how many there are
    model_ : the fitted model; `mixture_`, its density in standardized units (none with "adaboost"),
        and `scaling_`, the map between units
    pairwise_ : the classifiers of all pairs, where `multiclass` asks for them and there are three
        classes or more; then there is no density
    temperature_, doubt_, fade_ : calibration, as in `MixtureClassifier`
    choice_ : what was compared on held-out sequences, as in `MixtureClassifier`
    history_ : the course of training

    Examples
    --------
    >>> from mixtura import SequenceMixtureClassifier
    >>> from mixtura.datasets import make_hmm_sequences
    >>> train, test = (make_hmm_sequences(8, random_state=seed) for seed in (0, 1))
    >>> model = SequenceMixtureClassifier(2, method="boosted", random_state=0)
    >>> bool(model.fit(train.data, train.target).score(test.data, test.target) > 0.9)
    True
    """

    _parameter_constraints = CHAIN_CONSTRAINTS | {
        "representation": [StrOptions(set(REPRESENTATIONS))],
        "method": [StrOptions(set(METHODS)), Objective, Boosted],
        "multiclass": [StrOptions({"direct", "pairwise"})],
        "tradeoff": [SHARE],
        "solver": [StrOptions(set(SOLVERS)), Solver],
    }

    n_states: int | str = "auto"
    _: KW_ONLY
    representation: str = "auto"
    method: str | Objective | Boosted = "auto"
    multiclass: str = "direct"
    tradeoff: float = 0.0
    solver: str | Solver = "lbfgs"
    init: str | EM = "em"
    early_stopping: bool = True
    calibrate: bool = True

    # -- reading ---------------------------------------------------------------------------

    def _by_row(self, answers: ArrayLike, X: ArrayLike) -> ArrayLike:
        return per_sequence(answers, X, self._layout.id_column)

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike = None) -> Self:
        """Fit the model to the labeled sequences.

        Parameters
        ----------
        X : list of (T_i, d) arrays, (n, T, d) array padded with NaN, data frame with one row per
            frame, or what `mixtura.sequences` makes of panels and time stamps; or Parquet files of
            such a frame, as `mixtura.parquet.Source` takes them, which stay on disk: labels and
            weights may then be names of columns.
        y : (n,) labels; those of a data frame may also come one per frame, or as a series by id.
        sample_weight : (n,) non-negative weights, likewise.
        """
        with self._all_or_nothing(X):
            self._forget()
            X, y, sample_weight = self._opened(X, y, sample_weight)
            rows, schema = self._read_labeled(X, y, sample_weight)
            if self.multiclass == "pairwise" or not sums_up(self) or len(rows.classes) == 1:
                rows = rows.only_labeled()
            if self.multiclass == "pairwise" and len(rows.classes) > 2:
                return self._fit_pairs(rows, schema)
            return self._fit_rows(rows, schema)

    def _fit_rows(self, rows: Rows, schema: Schema) -> Self:
        scaling, generator = self._scaled(rows.X, rows.weight, schema), self._generator()
        engine = engine_of(rows.X, rows.y, rows.weight, scaling, self.device)
        with self._progress() as progress:
            found = represent(self, engine, len(rows.classes), generator, progress)
            known = engine.only(engine.labeled)
            model = found.fitted(scaling, schema, rows.classes, known, progress)
        self.model_ = self._limited(model, scaling, rows, schema)
        self.representation_, self.choice_ = found.representation, found.table
        if found.states is not None:
            plan, self.stage_weights_ = found.states.plan, np.array(found.states.grown.shares)
            self.n_states_, self.density_ = plan.n_states, plan.chains.structure
            self.method_, self.n_stages_ = found.method, len(self.stage_weights_)
        self.history_ = progress.history
        self.n_iter_ = max(1, len(self.history_))
        assert isinstance(rows.X, Sequences)
        self.length_quantiles_, self.form_ = _length_quantiles(rows), rows.X.unpadded_form
        return self

    def _limited(self, model: Fitted, scaling: Scaling, rows: Rows, schema: Schema) -> Fitted:
        """The model, which knows how far numbers and lengths went in training, and glitches."""
        assert isinstance(rows.X, Sequences)
        reach, lengths = self._reach(rows.X, schema, scaling), rows.X.lengths
        span, limits = (int(lengths.min()), int(lengths.max())), limits_of(rows.X, scaling.scale)
        return replace(model, reach=reach, lengths=span, limits=limits, bounded=self.calibrate)

    # -- pairs of classes ------------------------------------------------------------------

    def _fit_pairs(self, rows: Rows, schema: Schema) -> Self:
        assert isinstance(rows.X, Sequences)
        n_pairs = len(rows.classes) * (len(rows.classes) - 1) // 2
        inner = clone(self).set_params(
            multiclass="direct",
            class_weight=None,
            unlabeled=None,
            max_time=None if self.max_time is None else self.max_time / n_pairs,
        )
        pairs = PairwiseClassifier(inner)
        pairs.fit(rows.X, rows.classes[rows.y], sample_weight=rows.weight)
        scaling = self._scaled(rows.X, rows.weight, schema)
        for each in pairs.estimators_:  # what one pair has not seen another has
            each.model_ = self._limited(each.model_, scaling, rows, schema)
        self.pairwise_, self.pairwise_schema_ = pairs, schema
        return self

    @property
    def _fitted(self) -> Fitted:
        if "pairwise_" in vars(self):
            raise NoDensityError(
                "this model decides by pairs of classes (multiclass='pairwise'), and has no "
                "density: use multiclass='direct'."
            )
        return super()._fitted

    @property
    def classes_(self) -> np.ndarray:
        """(C,) the labels."""
        return self.pairwise_.classes_ if "pairwise_" in vars(self) else super().classes_

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """log p(class | x), (n, C); a sequence with nothing observed gets the class prior."""
        if "pairwise_" not in vars(self):
            return super().predict_log_proba(X)
        sequences, _ = self._read(X, self.pairwise_schema_)
        return self.pairwise_.predict_log_proba(sequences)

    def predict(
        self, X: ArrayLike, *, reject: float | None = None, unknown: object = None
    ) -> np.ndarray:
        """The most probable class of each sequence; `unknown` where `is_outlier` flags it."""
        if "pairwise_" not in vars(self) or reject is not None:
            return super().predict(X, reject=reject, unknown=unknown)
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    # -- what a fitted model answers -------------------------------------------------------

    def sample(  # type: ignore[override]
        self,
        n_samples: int = 1,
        y: ArrayLike = None,
        *,
        lengths: ArrayLike = None,
        random_state: RandomState = None,
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw sequences from the model.

        Parameters
        ----------
        n_samples : number of sequences.
        y : a class label, or one label per sequence; None draws them from the class prior.
        lengths : number of frames, one for all or one per sequence; None draws from those that the
            training sequences of the class had.

        Returns
        -------
        Sequences in the form of those of training (ids and times count from 0), and y (n_samples,).
        """
        mixture, generator = self.mixture_, self._generator(random_state)
        labels = self._labels_to_draw(check_count(n_samples), y, generator)
        wanted = lengths_to_draw(lengths, self.length_quantiles_[labels.numpy()], generator)
        packed = mixture.sample(labels, generator, lengths=wanted)
        drawn = drawn_sequences(packed, wanted, self.scaling_, self.schema_)
        return self.form_.build(drawn), self.classes_[labels.numpy()]


def _length_quantiles(rows: Rows) -> np.ndarray:
    """(C, 101) quantiles of the lengths of each class's sequences."""
    assert isinstance(rows.X, Sequences)
    lengths, classes = rows.X.lengths, range(len(rows.classes))
    return np.stack([length_quantiles(lengths[rows.y == label]) for label in classes])
