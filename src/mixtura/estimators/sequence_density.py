"""SequenceDensity: mixtures of hidden Markov models of sequences without labels."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

import numpy as np
import torch
from sklearn.base import _fit_context

from mixtura.answers.frames import Forecast, draw_futures, forecast, frame_scores, state_proba
from mixtura.constants import SHARES
from mixtura.data.failures import limits_of, stuck
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences, per_sequence
from mixtura.engines import Engine, engine_of
from mixtura.estimators.channels import (
    CHAIN_CONSTRAINTS,
    SequenceEstimator,
    drawn_sequences,
    length_quantiles,
    lengths_to_draw,
)
from mixtura.estimators.clustering import Clustering, Fit, affordable, minus_log_likelihood
from mixtura.estimators.reading import check_count, check_weight
from mixtura.exceptions import UnsupportedError, check_share
from mixtura.models.fitted import Fitted, log_density
from mixtura.models.mixture import Mixture
from mixtura.numerics import spawn
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, Outcome
from mixtura.selection.chooser import FEWEST, MOST_COMPARED, Chooser
from mixtura.selection.held_out import Losses, with_holes
from mixtura.selection.typical import typical_sequences, weighted_quantiles, without_each_fold
from mixtura.solvers import EM
from mixtura.training.chain_mixtures import ChainMixturePlan

#: What "auto" compares: numbers of states, and numbers of components one after another.
_STATES, _COMPONENTS = (3, 6, 12), (2, 3, 4, 6, 8)
#: Frames that are compared on at most, and iterations of each candidate.
_MOST_FRAMES, _ITERATIONS = 100_000, 30
#: Sequences that thresholds of frames go by at most.
_MOST_SEQUENCES = 3_000
#: Where sequences are few, pieces of them are held out; they have so many frames at least.
_SHORTEST = 10


def _judged(mixture: Mixture, held_out: Engine, generator: torch.Generator) -> Losses:
    """Minus the log density of sequences, whole and with holes."""
    batches = with_holes(held_out, generator, mixture)
    return Losses.of(batches, lambda batch: -log_density(mixture, batch))


@dataclass(eq=False, repr=False)
class SequenceDensity(SequenceEstimator, Clustering):
    """A mixture of hidden Markov models, fitted to sequences without labels by EM.

    Components are clusters of sequences, states are segments of them. NaN means missing, in
    training and later: single values, whole frames or channels are integrated out exactly.

    Parameters
    ----------
    n_components : "auto" or int
        Clusters. "auto" takes more of them while held-out sequences become clearly likelier, and
        one where there are fewer than 20 sequences.
    n_states : "auto" or int
        States of every hidden Markov model; "auto" compares 3, 6 and 12 by the likelihood of
        held-out sequences, or of pieces of them where there are fewer than 20.
    density : "diag", "auto", "full", "spherical", "low_rank", "student", or a `Structure`
        Of the emissions, as in `MixtureClassifier`; "auto" compares nothing here: it is "low_rank",
        or "full" for one or two channels.
    chain
        As in `SequenceMixtureClassifier`.
    solver : "em", or an `EM`
        "em" is `EM(max_iter=100, tol=1e-3, n_init=1)`, where `tol` is the gain in log-likelihood
        per frame.
    prior_rows, layout, standardize, unexpected, categorical_features
        As in `SequenceMixtureClassifier`.
    max_time, device
        As in `MixtureClassifier`.
    random_state, verbose : as in scikit-learn.

    Attributes
    ----------
    weights_ (K,), means_ (K, S, d), covariances_ (K, S, d, d), n_components_, n_states_, density_
    model_ : the fitted model; `mixture_` and `scaling_` for short
    choice_ : what was compared on held-out sequences
    history_, n_iter_, converged_

    Examples
    --------
    >>> from mixtura import SequenceDensity
    >>> from mixtura.datasets import make_hmm_sequences
    >>> X = make_hmm_sequences(20, random_state=0).data
    >>> model = SequenceDensity(2, n_states=2, random_state=0).fit(X[1:])
    >>> coming = model.forecast(X[:1], steps=5)
    >>> coming.mean.shape, coming.quantiles([0.1, 0.9]).shape
    ((1, 5, 2), (1, 5, 2, 2))
    """

    _parameter_constraints = CHAIN_CONSTRAINTS

    n_components: int | str = "auto"
    _: KW_ONLY
    n_states: int | str = "auto"
    solver: str | EM = "em"

    @property
    def n_states_(self) -> int:
        """States of every hidden Markov model."""
        return self.means_.shape[1]

    # -- fitting ---------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike = None, sample_weight: ArrayLike = None) -> Self:
        """Fit the mixture to the sequences; y is ignored.

        Parameters
        ----------
        X : list of (T_i, d) arrays, (n, T, d) array padded with NaN, data frame with one row per
            frame, or what `mixtura.sequences` makes of panels and time stamps; or Parquet files of
            such a frame, as `mixtura.parquet.Source` takes them, which stay on disk: weights
            may then be the name of a column.
        sample_weight : (n,) non-negative weights; those of a data frame may also come one per
            frame, or as a series by id.
        """
        with self._all_or_nothing(X):
            self._forget()
            X, _, sample_weight = self._opened(X, None, sample_weight)
            rows, schema = self._read(X)
            weight = check_weight(per_sequence(sample_weight, X, self._layout.id_column), len(rows))
            return self._fit_rows(rows.take(weight > 0), weight[weight > 0], schema)

    def _fit_rows(self, rows: Sequences, weight: np.ndarray, schema: Schema) -> Self:
        scaling, generator = self._scaled(rows, weight, schema), self._generator()
        engine = engine_of(rows, None, weight, scaling, self.device)
        with self._progress() as progress:
            plan = self._choose(rows, weight, scaling, spawn(generator), progress)
            outcome = _train(plan, engine, spawn(generator), progress)
            mixture = outcome.model.model
            typical, per_value = typical_sequences(mixture, engine, progress)
        mixture = mixture.to("cpu", torch.float64)
        limits = limits_of(rows, scaling.scale)
        self.model_ = Fitted(
            mixture, scaling, schema, typical=typical, per_value=per_value, limits=limits
        )
        self.density_, self.form_ = plan.chains.structure, rows.unpadded_form
        self.length_quantiles_ = length_quantiles(rows.lengths)
        self.frame_quantiles_ = self._frame_quantiles(rows, weight)
        self._tell(outcome, len(engine), progress)
        return self

    def _choose(
        self,
        rows: Sequences,
        weight: np.ndarray,
        scaling: Scaling,
        generator: torch.Generator,
        progress: Progress,
    ) -> ChainMixturePlan:
        """How many components and states, by what held-out sequences are likeliest with."""
        open_count, open_states = self.n_components == "auto", self.n_states == "auto"
        chains = self._chains(int((scaling.levels == 0).sum()), int(rows.lengths.max()))
        if chains.chain.sharing is not None:
            raise UnsupportedError(
                f"chain={self.chain!r}: classes share, and SequenceDensity has none; use "
                "sharing=None."
            )
        plan = ChainMixturePlan(
            1 if open_count else affordable(int(self.n_components), len(rows), "sequences"),
            _STATES[0] if open_states else int(self.n_states),
            chains,
            resolve(self.solver, {"em": EM}),
            self.prior_rows,
        )
        few, length = len(rows) < FEWEST, len(rows.values) // FEWEST
        if few and length >= _SHORTEST:
            pieces = rows.cut(length)
            weight = np.repeat(weight, -(-rows.lengths // length))
            rows, open_count = pieces, False
        some = None
        if open_count or open_states:
            most = int(np.clip(_MOST_FRAMES / rows.lengths.mean(), FEWEST, MOST_COMPARED))
            engine = engine_of(rows, None, weight, scaling, self.device)
            some = engine.merged().sample(most, spawn(generator))
        brief = replace(plan, em=plan.em.limited(_ITERATIONS))
        chooser = Chooser[ChainMixturePlan, Mixture](
            some, _judged, spawn(generator), progress, n_ways=len(_STATES) + len(_COMPONENTS)
        )
        best = chooser.race([brief], "components" if open_count else "states")
        for count in _COMPONENTS if open_count else ():
            before, more = best, replace(best.way, n_components=count)
            best = chooser.challenge(best, [more], Losses.clearly_beats, "components")
            if best is before:
                break
        others = [replace(best.way, n_states=count) for count in _STATES[1:] if open_states]
        best = chooser.challenge(best, others, question="states")
        self.choice_ = chooser.table()
        return replace(best.way, em=plan.em)

    # -- single frames ---------------------------------------------------------------------

    def _frame_quantiles(self, rows: Sequences, weight: np.ndarray) -> np.ndarray:
        """(1 + d, 1001) quantiles of what whole frames, and channels, score: held out of training.

        A fold of the sequences is judged by what a step of EM without it makes of the model.
        """
        step, total = -(-len(rows) // _MOST_SEQUENCES), weight.sum()
        rows, weight = rows.take(slice(None, None, step)), weight[::step]
        parts, every = [], []
        engine = self.model_.engine(rows, "cpu").with_answers(weight=torch.from_numpy(weight))
        folds = without_each_fold(self.mixture_, engine, total / weight.sum())
        for index, mixture in folds:
            model, fold = replace(self.model_, model=mixture), rows.take(index)
            whole = frame_scores(model, fold, self.device)
            channels = frame_scores(model, fold, self.device, by_channel=True)
            parts.append(np.column_stack([whole, channels]))
            every.append(np.repeat(weight[index], fold.lengths))
        weights, found = np.concatenate(every), []
        for scores in np.concatenate(parts).T:
            seen = ~np.isnan(scores)
            nothing = np.full(len(SHARES), -np.inf)
            found.append(weighted_quantiles(scores[seen], weights[seen]) if seen.any() else nothing)
        return np.stack(found)

    def state_proba(self, X: ArrayLike) -> list[np.ndarray]:
        """p(component, state of the frame | all of the sequence), (T_i, K, S) per sequence."""
        return state_proba(self._fitted, self._rows(X), self.device)

    def score_frames(self, X: ArrayLike, *, by_channel: bool = False) -> list[np.ndarray]:
        """Log density of each frame given the frames before it, exact, in the units of X.

        Returns
        -------
        (T_i,) per sequence, which sum to `score_samples`; NaN where nothing is observed. With
        `by_channel` (T_i, d): of each value given the frames before, by itself.
        """
        rows = self._rows(X)
        return rows.with_values(frame_scores(self._fitted, rows, self.device, by_channel)).split()

    def outlier_frames(
        self, X: ArrayLike, share: float = 0.01, *, by_channel: bool = False
    ) -> list[np.ndarray]:
        """Frames, or values, less likely than all but a `share` of those of training.

        By what `score_frames` says: a frame is strange that the ones before did not let expect.
        Training frames count as they would, had the model not seen their sequences. Where nothing
        is observed, nothing is strange. Channels that are stuck at one value for most of a
        sequence, as none of training was, are strange too.

        Returns
        -------
        (T_i,) bool per sequence; with `by_channel` (T_i, d), which channel it is.
        """
        check_share("share", share)
        rows, model = self._rows(X), self._fitted
        least = np.array([np.interp(share, SHARES, each) for each in self.frame_quantiles_])
        strange = frame_scores(model, rows, self.device, by_channel) < (
            least[1:] if by_channel else least[0]
        )
        still = stuck(rows, model.limits)
        return rows.with_values(strange | (still if by_channel else still.any(1))).split()

    def forecast(
        self,
        X: ArrayLike,
        steps: int = 1,
        *,
        n_draws: int | None = None,
        random_state: RandomState = None,
    ) -> Forecast | np.ndarray:
        """The next frames of each sequence, with their distribution.

        Parameters
        ----------
        X : what has been observed, with holes or without.
        steps : number of frames.
        n_draws : None gives the distribution of each frame, exact; a number so many random futures,
            whose frames belong together.

        Returns
        -------
        A `Forecast` with `mean`, `std` (n, steps, d), `quantiles(shares)` and `proba`, the chances
        of the states; or draws (n_draws, n, steps, d).
        """
        steps, rows = check_count(steps, "steps"), self._rows(X)
        if n_draws is None:
            return forecast(self._fitted, rows, steps, self.device)
        count, generator = check_count(n_draws), self._generator(random_state)
        return draw_futures(self._fitted, rows, steps, count, generator, self.device)

    # -- draws -----------------------------------------------------------------------------

    def sample(
        self, n_samples: int = 1, *, lengths: ArrayLike = None, random_state: RandomState = None
    ) -> tuple[ArrayLike, np.ndarray]:
        """Draw sequences, and the component each came from.

        Parameters
        ----------
        n_samples : number of sequences.
        lengths : number of frames, one for all or one per sequence; None draws from those of the
            training sequences.

        Returns
        -------
        Sequences in the form of those of training (ids and times count from 0), and components
        (n_samples,).
        """
        mixture, generator, count = self.mixture_, self._generator(random_state), n_samples
        known = np.tile(self.length_quantiles_, (check_count(count), 1))
        wanted = lengths_to_draw(lengths, known, generator)
        weight = mixture.log_weight.exp()
        component = torch.multinomial(weight, count, replacement=True, generator=generator)
        packed = mixture.density.sample(component, generator, lengths=wanted)
        drawn = drawn_sequences(packed, wanted, self.scaling_, self.schema_)
        return self.form_.build(drawn), component.numpy()


def _train(
    plan: ChainMixturePlan, engine: Engine, generator: torch.Generator, progress: Progress
) -> Outcome[Fit]:
    """Train on all sequences, or on as many as time allows."""

    def train(rows: Engine, own: torch.Generator, latest: Fit | None) -> Fit:
        if latest is None:
            return plan.train(rows, own, progress)
        return plan.improved(latest.model, rows, progress)

    return Budget(progress, train, minus_log_likelihood, generator).run(engine)
